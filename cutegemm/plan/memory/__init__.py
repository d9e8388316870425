"""Global memory of a plan in addition to its operands: repacked operands, accumulators of K splits, partial results."""
