"""Global memory that a plan needs besides its operands: repacked operands, accumulators of K splits, partial results."""
