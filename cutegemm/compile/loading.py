"""Load the function of a kernel from an entry of the disk cache, without a compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cutegemm.compile import cache
from cutegemm.errors import UnsupportedError, how_to_install


def load_function(folder: Path, manifest: cache.Manifest) -> Any:
    """Load a kernel from a folder of the disk cache and return it as a callable function.

    The CuTe DSL is imported only if the kernel was written on a machine without a linker.

    folder     folder of the compiled kernel
    manifest   dict that describes the folder, from `cache.intact`; its "symbol" is the name of the function
    raises     UnsupportedError if TVM-FFI is not installed
    """
    try:
        import tvm_ffi
    except ImportError as error:
        raise UnsupportedError(
            f"compile_plan: TVM-FFI, which loads a compiled kernel, is not installed. {how_to_install('kernels')}"
        ) from error
    symbol = manifest["symbol"]
    if "kernel.so" in manifest["files"]:
        return getattr(tvm_ffi.load_module(str(folder / "kernel.so")), symbol)
    # An entry that was written without a linker has only an object file, which the DSL's own loader accepts.
    from cutlass._mlir._mlir_libs._cutlass_ir._execution_engine import BinaryExecutionEngine

    engine = BinaryExecutionEngine((folder / "kernel.o").read_bytes(), [str(cache.runtime_library())], True)
    return tvm_ffi.Function.__from_extern_c__(engine.lookup(f"__tvm_ffi_{symbol}"), keep_alive_object=engine)
