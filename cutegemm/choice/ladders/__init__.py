"""Tutorial ladders: named plans, each of which changes one thing of the step before, with the reason."""
