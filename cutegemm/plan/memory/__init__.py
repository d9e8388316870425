"""Global memory of a plan besides its operands: repacked operands, accumulators of K splits, partial results."""
