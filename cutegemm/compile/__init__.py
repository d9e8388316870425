"""Compile plans to kernels in parallel, cache them on the disk, export and load them, and allocate workspaces."""
