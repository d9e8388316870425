"""One kernel for each elementwise function, on vectors.

One host function launches the kernels of a type in a row; they are compiled together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Float64, Int32, Int64

from cutegemm.kernels.functions import BINARY, FUNCTIONS, NARROW

NAMES = (*FUNCTIONS, *BINARY, *NARROW)
THREADS = 256  # threads of a CTA
KINDS = {"f32": Float32, "f64": Float64}


class OneFunction:
    """The kernel of one function: (address of x, of y, of the results, elements) -> None."""

    def __init__(self, name: str, kind: Any) -> None:
        self.name, self.kind = name, kind

    def element(self, address: Any, index: Any) -> cute.Tensor:
        size = self.kind.width // 8
        at = cute.make_ptr(self.kind, address + Int64(index) * size, cute.AddressSpace.gmem, assumed_align=size)
        return cute.make_tensor(at, cute.make_layout(1))

    def compute(self, x: Any, y: Any, out: Any, index: Any) -> None:
        value = self.element(x, index)[0]
        if self.name in BINARY:
            value = BINARY[self.name](value, self.element(y, index)[0])
        else:
            value = {**FUNCTIONS, **NARROW}[self.name](value)
        self.element(out, index)[0] = value

    @cute.kernel
    def kernel(self, x: Int64, y: Int64, out: Int64, count: Int32):
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        index = cta * THREADS + tid
        if index < count:
            self.compute(x, y, out, index)


class AllFunctions:
    """The host function: (x, y, results, stream) -> None. `results` has a row for each function."""

    def __init__(self, names: Sequence[str], kind: str) -> None:
        self.kind = KINDS[kind]
        self.kernels = [OneFunction(name, self.kind) for name in names]

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, stream):
        count = x.shape[0]
        for row, function in enumerate(self.kernels):
            first = out.iterator.toint() + Int64(row * (self.kind.width // 8)) * Int64(count)
            function.kernel(x.iterator.toint(), y.iterator.toint(), first, count).launch(
                grid=(cute.ceil_div(count, THREADS), 1, 1), block=(THREADS, 1, 1), stream=stream
            )

    def compiled(self, folder: Path | None = None) -> Any:
        """Return the compiled function, called as (x, y, results) with tensors on a GPU.

        folder   if given, PTX and cubin are written there, and nothing is returned: for a machine without a GPU
        """
        vector = cute.runtime.make_fake_compact_tensor(self.kind, (cute.sym_int(),))
        rows = cute.runtime.make_fake_compact_tensor(
            self.kind, (len(self.kernels), cute.sym_int()), stride_order=(1, 0)
        )
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        options = "--enable-tvm-ffi"
        if folder is None:
            return cute.compile(self, vector, vector, rows, stream, options=options)
        options += f" --gpu-arch sm_90a --keep-ptx --keep-cubin --dump-dir {folder}"
        return cute.compile(self, vector, vector, rows, stream, options=options, no_jit_engine=True)
