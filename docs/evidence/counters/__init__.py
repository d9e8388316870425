"""Predictions of the analysis beside hardware counters: the cases, the recorded counters, the missed predictions."""
