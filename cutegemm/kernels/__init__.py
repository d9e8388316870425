"""Kernels in the CuTe DSL, each carrying out the plans of one family. Importing one imports the DSL.

A plan's layouts and atoms lowered    `lower`; the arguments that a kernel is traced with: `arguments`
The tile scheduler and the epilogue   `work`, `values`
Programs of roles                     `trace`; `sm90`: `kernel`, `loads`, `consumer`, `storage`, `own_tile`, `parts`;
                                      `mma_sync.tma`: warps that TMA loads for
One schedule for all threads          `threads` (`mainloop`, `epilogue`, `fragments`); `simt` and `mma_sync.kernel`
Operands packed before                `repack`
"""
