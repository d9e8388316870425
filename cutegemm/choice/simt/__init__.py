"""Named SIMT plans, their ladder, and the choice among them."""
