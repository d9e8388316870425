"""GEMM kernels in the CuTe DSL, one set for each family of plans. Importing one of them imports the DSL.

Layouts and atoms of a plan in the DSL   `lower`
Arguments of a compiled function         `arguments`
Tile scheduler and epilogue              `work`, `values`
Kernels with warp roles                  `trace`; `sm90`: `kernel`, `loads`, `consumer`, `storage`, `own_tile`,
                                         `split_k`; `mma_sync.tma`: mma.sync with a TMA producer
Kernels with one schedule                `threads`: `mainloop`, `epilogue`, `fragments`; `simt` and `mma_sync.kernel`
Repack pass                              `repack`
"""
