"""Ladders: the steps in which the literature teaches a GEMM, each a named plan with its reason."""
