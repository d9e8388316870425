"""Kernels that no plan stands behind: what is measured by itself, or beside the plans' own."""
