"""Predictions of the analysis and hardware counters: the cases, the recorded counters, the missed predictions."""
