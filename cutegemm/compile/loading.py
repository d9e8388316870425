"""From an entry of the cache to the function that it holds: neither the DSL nor a compiler is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cutegemm.compile import cache
from cutegemm.errors import UnsupportedError, how_to_install


def load_function(folder: Path, manifest: cache.Manifest) -> Any:
    """The function of an entry, ready to be called."""
    try:
        import tvm_ffi
    except ImportError as error:
        raise UnsupportedError(
            f"compile_plan: TVM-FFI, which loads a compiled kernel, is not installed. {how_to_install('kernels')}"
        ) from error
    symbol = manifest["symbol"]
    if "kernel.so" in manifest["files"]:
        return getattr(tvm_ffi.load_module(str(folder / "kernel.so")), symbol)
    # No linker was found when it was compiled: the DSL's own loader takes the object as it is.
    from cutlass._mlir._mlir_libs._cutlass_ir._execution_engine import BinaryExecutionEngine

    engine = BinaryExecutionEngine((folder / "kernel.o").read_bytes(), [str(cache.runtime_library())], True)
    return tvm_ffi.Function.__from_extern_c__(engine.lookup(f"__tvm_ffi_{symbol}"), keep_alive_object=engine)
