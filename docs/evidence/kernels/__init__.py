"""Kernels without a plan, which are measured by themselves or next to plans."""
