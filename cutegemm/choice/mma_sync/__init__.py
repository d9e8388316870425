"""Named mma.sync plans, their ladder, and the choice among them."""
