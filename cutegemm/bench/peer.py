"""GEMMs that others wrote, from the user's own copies, as contestants beside the plans and the library.

| `--peer`                       | what is called                                                                 |
|--------------------------------|--------------------------------------------------------------------------------|
| a path to `tensorop_gemm.py`   | class `TensorOpGemm` of CUTLASS's CuTe DSL example for Ampere (seen: 4.7.0),   |
|                                | compiled for the very extents                                                  |
| `quack`                        | `quack.gemm_interface.gemm` of the package quack-kernels, tuned                |
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cutegemm.dtypes import DType
from cutegemm.errors import CutegemmError, UnsupportedError
from cutegemm.plan.problem import Operands, Problem

QUACK = "quack"
_EXAMPLE = "TensorOpGemm"
_KINDS = {"torch.bfloat16": "bf16", "torch.float16": "f16"}
_MOST_OFF = 2.0**-6  # of the largest element: rounding to bf16 by another order of summation is far below


def name_of(given: str) -> str:
    """How a peer is called in tables.

    >>> name_of("quack"), name_of("examples/tensorop_gemm.py")
    ('quack', 'tensorop_gemm')
    """
    return Path(given).stem


def contestant(given: str, a: Any, b: Any, out: Any) -> Callable[[], Any]:
    """The call of a peer that computes out = a @ b; it has been called once, and was right.

    given    see above
    raises   UnsupportedError where there is no such peer, or it does not take these operands;
             CutegemmError where its product is not that of the library
    """
    import torch

    call = _quack(a, b, out) if given == QUACK else _example(Path(given), a, b, out)
    out.fill_(float("nan"))
    try:
        call()
    except Exception as error:  # whatever it is, the others still run
        raise UnsupportedError(f"--peer {given}: it does not run on these operands: {error!r}.") from error
    wanted = torch.matmul(a, b)
    off, most = (out - wanted).abs().max().item(), wanted.abs().max().item()
    if not off <= _MOST_OFF * most:
        raise CutegemmError(
            f"peer {name_of(given)}: its product is off by {off:.3g}, where elements are up to {most:.3g}; "
            f"{_MOST_OFF * most:.3g} at most is expected. It is not timed."
        )
    return call


def operands_of(a: Any, b: Any) -> Operands:
    """The operands of a peer's problem: matrices of one 16-bit type, each with contiguous rows or columns.

    raises   UnsupportedError for others
    """
    kinds = {str(x.dtype) for x in (a, b)}
    if len(kinds) > 1 or not kinds <= set(_KINDS):
        raise UnsupportedError(
            f"a peer multiplies bf16 or f16, not {' by '.join(sorted(kinds))}; leave --peer out, or change --dtype."
        )
    letters = ["n" if x.stride(1) == 1 else "t" for x in (a, b)]
    if any(letter == "t" and x.stride(0) != 1 for letter, x in zip(letters, (a, b), strict=True)):
        strides = " and ".join(str(tuple(x.stride())) for x in (a, b))
        raise UnsupportedError(
            f"a peer takes matrices whose rows or columns are contiguous; the strides are {strides}."
        )
    return Operands.of(DType.parse(_KINDS[kinds.pop()]), layout="".join(letters))


def load(path: Path) -> Any:
    """The class of the example in a file.

    raises   UnsupportedError where there is no such file, it cannot be imported, or lacks the class
    """
    if not path.is_file():
        raise UnsupportedError(f"--peer {path}: there is no such file; give a path to it, or {QUACK!r}.")
    spec = importlib.util.spec_from_file_location(f"peer_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UnsupportedError(f"--peer {path}: this is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the DSL looks functions up by their module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UnsupportedError(f"--peer {path}: it cannot be imported: {error!r}.") from error
    if not hasattr(module, _EXAMPLE):
        raise UnsupportedError(f"--peer {path}: it has no class {_EXAMPLE}, which is what is called here.")
    return getattr(module, _EXAMPLE)


def _example(path: Path, a: Any, b: Any, out: Any) -> Callable[[], Any]:
    operands = operands_of(a, b)
    kind = load(path)
    from cutegemm.kernels.bench.peer import compile_tensorop

    try:
        kernel = compile_tensorop(kind, Problem(a.shape[0], b.shape[1], a.shape[1], operands=operands))
    except Exception as error:
        raise UnsupportedError(f"--peer {path}: {_EXAMPLE} does not compile by this DSL: {error}") from error
    return lambda: kernel(a, b, out)


def _quack(a: Any, b: Any, out: Any) -> Callable[[], Any]:
    operands_of(a, b)
    try:
        gemm = importlib.import_module("quack.gemm_interface").gemm
    except ImportError as error:
        raise UnsupportedError(f"--peer {QUACK}: pip install quack-kernels ({error}).") from error
    except Exception as error:
        raise UnsupportedError(f"--peer {QUACK}: it cannot be imported: {error!r}.") from error
    return lambda: gemm(a, b, out=out, tuned=True)
