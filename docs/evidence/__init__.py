"""Measurements that the documents show, and the pages made of them: `python -m docs.evidence`, from the repository.

measured on a CPU      `algebra`, `simulate`; `machine` says on which
                       `functions`: errors of the elementwise functions, emulated or on a GPU
measured on a GPU      `gemm` any plans, `simt` the f32 problems, `ladder` a ladder's steps: each a `contest` with the
                       library and `peer`s, GEMMs of others; `decode`, `chain`: many in one of `graphs`
                       `measure`, `power`: data, clock and power
                       `candidates`: lists of plans to try; `rows`: what is read from the results
                       `drawn`: random problems; `layers`: linear layers of public models
by NVIDIA's tools      `counters`: predictions beside what ncu counts; `sanitizer`: what compute-sanitizer finds
constants of choices   `fit_simt`, `fit_mma_sync`, `fit_sm90`: from the times
all of it again        `steps_run`, by the list in `steps`
of it for readers      `pages`
"""
