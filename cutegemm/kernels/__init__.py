"""Kernels in the CuTe DSL, each carrying out the plans of one family. Importing one imports the DSL.

what a plan holds, lowered     `lower`; what a kernel is traced with: `arguments`
one schedule for all threads   `mainloop`, `epilogue`
  SIMT                         `simt`; `simt_direct`, `simt_workspace` (packed, split K), `simt_parts`
  mma.sync                     `mma_sync`, `fragments`; `mma_sync_tma`
roles: Hopper                  `sm90`; `sm90_queue`, `sm90_producer`, `sm90_consumer`; its end: `sm90_epilogue`,
                               `sm90_leaving`, `sm90_parts`
operands packed before         `packing`
for measurements alone         `bench`
"""
