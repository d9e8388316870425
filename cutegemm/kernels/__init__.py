"""Kernels in the CuTe DSL, each carrying out the plans of one family. Importing one imports the DSL."""
