"""Kernels for mma.sync: the threads load, or a producer does by TMA."""
