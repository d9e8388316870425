"""Tutorial ladders: named plans that each change one thing of the step before, with the reason."""
