"""What the kernels share whose threads all follow one schedule."""
