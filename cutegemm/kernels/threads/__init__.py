"""Base of the kernels whose threads all follow one schedule, without warp roles."""
