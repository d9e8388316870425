"""Kernels without a plan, which are measured by themselves or beside plans."""
