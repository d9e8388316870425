"""Work of a CTA: which tile of D and which of its k-tiles it takes, and in which order."""
