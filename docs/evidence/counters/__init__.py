"""Predictions of the analysis beside hardware counters: which cases, what was counted, which predictions miss."""
