"""Benchmarks: commands that print a table and return its numbers.

measured on a CPU      `algebra`, `simulate`; `cpu` says on which
measured on a GPU      `gemm` any plans, `simt` the f32 problems, `ladder` a ladder's steps: each a `contest` with the
                       library and `peer`s, GEMMs of others, by `measure`; `power`: clock and power
                       `candidates`: lists of plans to try; `rows`: what is read from the results
constants of choices   `fit_simt`, `fit_sm90`: from the times
all of it again        `evidence`, by the list in `evidence_steps`
of it for readers      `pages`
"""
