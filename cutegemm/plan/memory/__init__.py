"""Global memory that a plan needs besides its operands: packed operands, sums of the parts of a split K."""
