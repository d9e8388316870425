"""SIMT kernels: FFMA and DFMA."""
