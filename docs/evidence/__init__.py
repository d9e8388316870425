"""Measurements of the documentation, and the pages that are made from them: `python -m docs.evidence`, in a clone.

on a CPU          `algebra`, `simulate`, `choosing`; `machine` describes the machine
                  `functions`: errors of the elementwise functions, emulated or on a GPU
on a GPU          `gemm` (any plans), `simt` (f32), `ladder` (steps of a ladder): benchmarks of plans, cuBLAS and peers
                  `decode`, `chain`: many launches in one CUDA graph, see `graphs`
                  `epilogues`, `models`: compared with torch and quack
                  `measure`, `power`: data, clock and power; `files`: how results are written
                  `candidates`: lists of plans; `rows`: evaluation of results
                  `random_problems`, `layers`: random problems, linear layers of public models
by NVIDIA tools   `counters`: predictions next to the counters of ncu; `sanitizer`: findings of compute-sanitizer
fitted constants  `fit_simt`, `fit_mma_sync`, `fit_sm90`
everything again  `steps_run`, with the list in `steps`
for readers       `pages`
"""
