"""Rules that a plan must meet. Each rule is a generator of sentences: one sentence for each violation."""
