"""Named Hopper plans, their ladder, and the choice among them."""
