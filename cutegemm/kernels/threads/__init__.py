"""The base of the kernels whose threads all follow one schedule."""
