"""From a problem to a plan: the named plans, and the choice among them."""
