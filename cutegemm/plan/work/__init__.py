"""Work of a CTA: its tiles of D and their k-tiles, in order."""
