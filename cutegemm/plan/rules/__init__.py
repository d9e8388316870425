"""Rules that a plan must meet, as generators of sentences: one for each violation."""
