"""Named SIMT plans, their predicted times, and the choice among them."""
