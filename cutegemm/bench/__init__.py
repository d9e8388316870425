"""Benchmarks: commands that print a table and return its numbers.

measured on a CPU      `algebra`, `simulate`; `cpu` says on which
measured on a GPU      `gemm` any plans, `simt` the f32 problems, `ladder` a ladder's steps; all by `measure`
beside the plans       `peer`: GEMMs of others; `power`: clock and power; `candidates`: lists of plans to try
constants of choices   `fit_simt`, `fit_sm90`: from the times
all of it again        `evidence`, by the list in `evidence_steps`
of it for readers      `pages`
"""
