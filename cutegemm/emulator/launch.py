"""Recording of the kernel launches that a compiled host function makes.

The host function checks its tensors, computes grids, tensor maps and parameters, and launches. It runs unchanged, but
the CUDA runtime functions that it calls are replaced, so that nothing is launched.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cutegemm.dtypes import DType
from cutegemm.emulator.elf import load_with
from cutegemm.emulator.ptx import Kernel
from cutegemm.errors import UnsupportedError

_CUDA_DEVICE = 2  # DLDeviceType::kDLCUDA
_CODES = {"s": 0, "u": 1, "f": 2, "b": 4}  # DLDataTypeCode, by the first letter of a type's name
_CODES_OF = {"e4m3": 10, "e5m2": 12}
_TENSOR, _FLOAT = 7, 3  # TVMFFITypeIndex: kTVMFFIDLTensorPtr, kTVMFFIFloat
_CLUSTER_DIMENSION = 4  # cudaLaunchAttributeClusterDimension
_SERIALIZATION = 6  # cudaLaunchAttributeProgrammaticStreamSerialization
_ATTRIBUTE_BYTES = 72  # cudaLaunchAttribute: an int, padding to 8, 64 bytes of value
_EXPORTED = re.compile(rb"\0__tvm_ffi_(\w+)\0")
_LOAD = "__cute_internal_{}_cuda_load"


class _Tensor(ctypes.Structure):
    """The C structure DLTensor of DLPack, which describes a tensor argument: address, type, shape and strides."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Value(ctypes.Union):
    _fields_ = (("integer", ctypes.c_int64), ("real", ctypes.c_double), ("pointer", ctypes.c_void_p))


class _Any(ctypes.Structure):
    """TVMFFIAny, the C structure of an argument or result of a TVM-FFI function.

    Compiled kernels are such functions.
    """

    _fields_ = (("kind", ctypes.c_int32), ("small", ctypes.c_uint32), ("value", _Value))


class _Config(ctypes.Structure):
    """cudaLaunchConfig_t, the CUDA runtime's C structure of the grid, block and attributes of a launch."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("shared_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("attribute_count", ctypes.c_uint32),
    )  # fmt: skip


@dataclass(frozen=True)
class TensorArgument:
    """A tensor argument of a compiled host function: emulated address, element type, shape, and strides in elements."""

    address: int
    kind: DType | str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """One kernel launch that a compiled host function makes.

    kernel         name of the kernel in the PTX
    grid, block    number of CTAs, and of threads of a CTA, along (x, y, z)
    cluster        CTAs of a cluster, along x
    shared_bytes   dynamic shared memory of a CTA
    params         uint8 array, the bytes of all kernel parameters
    uses_pdl       True if the kernel may begin while the previous launch still runs (programmatic dependent launch)
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: int
    shared_bytes: int
    params: np.ndarray
    uses_pdl: bool = False

    @property
    def ctas(self) -> int:
        """Return the number of CTAs of this kernel launch."""
        return self.grid[0] * self.grid[1] * self.grid[2]


class HostFunction:
    """The compiled host function that launches a GEMM's kernels, loaded so that its launches are recorded, not made.

    It lives in a private copy of its library. There, functions of the CUDA runtime are replaced by Python callbacks.

    library   path of the shared library
    raises    UnsupportedError if the library exports no TVM-FFI function
    """

    def __init__(self, library: Path) -> None:
        exported = _EXPORTED.search(library.read_bytes())
        if exported is None:
            raise UnsupportedError(f"emulate: {library} exports no TVM-FFI function.")
        symbol = exported[1].decode()
        self._names: dict[int, str] = {}
        self._launches: list[Launch] = []
        self._errors: list[str] = []
        self._kernels: dict[str, Kernel] = {}
        self._callbacks = self._stand_in()
        self._library = load_with(library, self._callbacks)
        self._function = getattr(self._library, f"__tvm_ffi_{symbol}")
        self._function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
        handle = ctypes.c_void_p(1)
        at = ctypes.c_void_p(ctypes.addressof(handle))
        getattr(self._library, _LOAD.format(symbol))(ctypes.byref(at))

    def launches(
        self, kernels: dict[str, Kernel], tensors: Sequence[TensorArgument], scales: Sequence[float]
    ) -> list[Launch]:
        """Call the compiled host function, and return the kernel launches that it makes, in order.

        The kernels do not run.

        kernels   kernels of the PTX by name, for the sizes of their parameters
        tensors   tensor arguments
        scales    scalar arguments, which follow the tensors
        raises    UnsupportedError, with the host function's message, if it rejects its arguments
        """
        self._kernels = kernels
        self._launches.clear()
        self._errors.clear()
        kept = [_tensor(t) for t in tensors]
        arguments = (_Any * (len(kept) + len(scales)))()
        for argument, (tensor, *_) in zip(arguments, kept, strict=False):
            argument.kind, argument.value.pointer = _TENSOR, ctypes.addressof(tensor)
        for i, scale in enumerate(scales):
            arguments[len(kept) + i].kind, arguments[len(kept) + i].value.real = _FLOAT, scale
        result = _Any()
        code = self._function(None, arguments, len(arguments), ctypes.byref(result))
        if code or self._errors:
            reasons = "; ".join(self._errors) or f"code {code}"
            raise UnsupportedError(f"emulate: the host function rejects its arguments: {reasons}")
        return list(self._launches)

    # --- the stand-in for the runtime --------------------------------------------------------------------

    def _stand_in(self) -> dict[str, Any]:
        """Return Python callbacks to replace functions of the CUDA runtime in the host function: name -> callback.

        The ctypes callbacks record launches instead of making them.
        """
        pointer, integer, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p

        def succeed(*_: Any) -> int:
            return 0

        def returns(value: int) -> Callable[..., int]:
            def function(out: int, *_: Any) -> int:
                ctypes.c_int32.from_address(out).value = value
                return 0

            return function

        functions: list[tuple[str, Any, tuple[Any, ...], Callable[..., Any]]] = [
            ("cuda_dialect_init_library_once", integer, (pointer,) * 4, succeed),
            ("_cudaLibraryLoadData", integer, (pointer,), succeed),
            ("_cudaLibraryGetKernel", integer, (pointer, pointer, text), self._get_kernel),
            ("_cudaLaunchKernelEx", integer, (ctypes.POINTER(_Config), pointer, pointer), self._launch),
            ("_cudaDeviceGetAttribute", integer, (pointer, integer, integer), returns(1 << 20)),
            ("_cuKernelGetAttribute", integer, (pointer, integer, pointer, integer), returns(0)),
            ("_cudaFuncSetAttribute", integer, (pointer, integer, integer), succeed),
            ("_cudaKernelSetAttributeForDevice", integer, (pointer, integer, integer, integer), succeed),
            ("_cudaGetDevice", integer, (pointer,), returns(0)),
            ("_cudaSetDevice", integer, (integer,), succeed),
            ("TVMFFIEnvGetStream", pointer, (integer, integer), succeed),
            ("CuteDSLRT_TVMFFISetRaisedCudaError", integer, (integer,), self._cuda_error),
            ("TVMFFIErrorSetRaisedFromCStr", None, (text, text), self._error),
            (
                "TVMFFIErrorSetRaisedFromCStrParts",
                None,
                (text, ctypes.POINTER(text), integer),
                self._error_parts,
            ),
        ]
        callbacks: dict[str, Any] = {
            name: ctypes.CFUNCTYPE(result, *kinds)(function) for name, result, kinds, function in functions
        }
        # Called after Python has ended, so it must be a C function: getpid has no effect.
        callbacks["cuda_dialect_unload_library_once"] = ctypes.CDLL(None).getpid
        return callbacks

    def _get_kernel(self, out: int, _library: int, name: bytes) -> int:
        handle = len(self._names) + 1
        self._names[handle] = name.decode()
        ctypes.c_void_p.from_address(out).value = handle
        return 0

    def _launch(self, config: Any, handle: int, arguments: int) -> int:
        settings = config.contents
        name = self._names[handle]
        kernel = self._kernels[name]
        params = np.zeros(kernel.param_bytes, np.uint8)
        pointers = (ctypes.c_void_p * len(kernel.params)).from_address(arguments)
        for param, at in zip(kernel.params, pointers, strict=True):
            params[param.offset : param.offset + param.size] = np.frombuffer(ctypes.string_at(at, param.size), np.uint8)
        x, y, z = _attribute(settings, _CLUSTER_DIMENSION, 3) or (1, 1, 1)
        assert y == z == 1, "clusters lie along x"
        uses_pdl = _attribute(settings, _SERIALIZATION, 1) == (1,)
        self._launches.append(
            Launch(name, tuple(settings.grid), tuple(settings.block), x, settings.shared_bytes, params, uses_pdl)
        )
        return 0

    def _cuda_error(self, code: int) -> int:
        self._errors.append(f"CUDA error {code}")
        return code

    def _error(self, kind: bytes, message: bytes) -> None:
        self._errors.append(f"{kind.decode()}: {message.decode()}")

    def _error_parts(self, kind: bytes, parts: Any, count: int) -> None:
        self._errors.append(f"{kind.decode()}: " + "".join(parts[i].decode() for i in range(count)))


def _attribute(config: _Config, kind: int, words: int) -> tuple[int, ...] | None:
    """Return the first 32-bit words of the value of a launch attribute; None if the launch does not have it.

    config   the launch configuration
    kind     number of the attribute, a cudaLaunchAttributeID
    words    number of words to return
    """
    for i in range(config.attribute_count):
        at = config.attributes + i * _ATTRIBUTE_BYTES
        if ctypes.c_int32.from_address(at).value == kind:
            return tuple((ctypes.c_uint32 * words).from_address(at + 8))
    return None


def _tensor(argument: TensorArgument) -> tuple[Any, ...]:
    """Convert a tensor argument to the C structure DLTensor.

    returns   (the structure, the arrays that it points to, which the caller must keep alive as long as the structure)
    """
    name = str(argument.kind)
    bits = int("".join(c for c in name.removeprefix("e4m3").removeprefix("e5m2") if c.isdigit()) or 8)
    count = len(argument.shape)
    shape, strides = (ctypes.c_int64 * count)(*argument.shape), (ctypes.c_int64 * count)(*argument.strides)
    code = _CODES_OF.get(name, _CODES.get(name[0], 0))
    tensor = _Tensor(argument.address, _CUDA_DEVICE, 0, count, code, bits, 1, shape, strides, 0)
    return tensor, shape, strides


@functools.lru_cache(maxsize=64)
def host_function(library: Path) -> HostFunction:
    """Load the host function of a compiled kernel's library, once for each path.

    library   path of the shared library
    raises    UnsupportedError if the library does not exist, or exports no TVM-FFI function
    """
    if not library.exists():
        raise UnsupportedError(
            "emulate: the kernel was compiled without a linker. Install a C compiler (cc), and clear the cache."
        )
    import tvm_ffi  # noqa: F401 - it exports functions that the library imports

    return HostFunction(library)
