"""SIMT kernels: each thread multiplies by FFMA or DFMA instructions."""
