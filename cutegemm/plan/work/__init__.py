"""Work: which tile of D, and which of its k-tiles, a CTA takes, and in which order."""
