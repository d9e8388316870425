"""From a problem to a plan: named plans, and the choice of the plan with the lowest predicted time."""
