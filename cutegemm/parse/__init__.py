"""What a person types, at the command line and in the explorer, made into plans, problems and epilogues."""
