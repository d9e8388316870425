"""GEMMs of other projects, from the user's own copies, to be timed next to the plans and cuBLAS.

| `--peer`                       | what is called                                                                 |
|--------------------------------|--------------------------------------------------------------------------------|
| a path to `tensorop_gemm.py`   | class `TensorOpGemm` of CUTLASS's CuTe DSL example for Ampere (seen: 4.7.0),   |
|                                | compiled for the extents of the problem                                        |
| `quack`                        | `gemm` and, with an epilogue, `gemm_act`, `gemm_gated` and `gemm_add` of       |
|                                | `quack.gemm_interface`, of the package quack-kernels, tuned                    |
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cutegemm.dtypes import bf16, f16
from cutegemm.errors import UnsupportedError
from cutegemm.plan.problem import Problem

QUACK = "quack"
_EXAMPLE = "TensorOpGemm"


def name_of(given: str) -> str:
    """Return the name of a peer in tables.

    >>> name_of("quack"), name_of("examples/tensorop_gemm.py")
    ('quack', 'tensorop_gemm')
    """
    return Path(given).stem


def call_of(given: str, problem: Problem, a: Any, b: Any, out: Any) -> Callable[[], Any]:
    """Return a call of a peer that computes out = a @ b.

    given     see above
    problem   problem of compact matrices
    raises    UnsupportedError if no peer has the name, or it does not take these operands
    """
    kind = problem.operands.a.dtype
    if kind not in (bf16, f16):
        raise UnsupportedError(
            f"--peer {given}: a peer multiplies bf16 or f16, not {kind}; leave it out, or change --dtype."
        )
    return _quack(a, b, out) if given == QUACK else _example(Path(given), problem, a, b, out)


def load(path: Path) -> Any:
    """Return the class of the example in a file.

    raises   UnsupportedError if the file is missing, cannot be imported, or lacks the class
    """
    if not path.is_file():
        raise UnsupportedError(f"--peer {path}: the file does not exist; give a path to it, or {QUACK!r}.")
    spec = importlib.util.spec_from_file_location(f"peer_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UnsupportedError(f"--peer {path}: this is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the DSL looks functions up by their module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UnsupportedError(f"--peer {path}: it cannot be imported: {error!r}.") from error
    if not hasattr(module, _EXAMPLE):
        raise UnsupportedError(f"--peer {path}: it has no class {_EXAMPLE}, which is what is called here.")
    return getattr(module, _EXAMPLE)


def _example(path: Path, problem: Problem, a: Any, b: Any, out: Any) -> Callable[[], Any]:
    kind = load(path)
    from docs.evidence.kernels.peer import compile_tensorop

    try:
        kernel = compile_tensorop(kind, problem)
    except Exception as error:
        raise UnsupportedError(f"--peer {path}: {_EXAMPLE} does not compile by this DSL: {error}") from error
    return lambda: kernel(a, b, out)


def _quack(a: Any, b: Any, out: Any) -> Callable[[], Any]:
    gemm = _of_quack("gemm")
    return lambda: gemm(a, b, out=out, tuned=True)


def quack_calls(x: Any, wt: Any, bias: Any, c: Any) -> dict[str, Callable[[], Any]]:
    """Return quack's calls for GEMMs with an epilogue, tuned, by the names of `docs.evidence.epilogues`.

    x, wt, bias, c   (M, K), (K, N), (N,) and (M, N)
    raises           UnsupportedError without quack
    """
    gemm, act, gated, add = [_of_quack(name) for name in ("gemm", "gemm_act", "gemm_gated", "gemm_add")]
    gelu = {"activation": "gelu_tanh_approx", "bias": bias, "store_preact": False}
    return {
        "product": lambda: gemm(x, wt),
        "bias": lambda: gemm(x, wt, bias=bias),
        "bias, gelu_tanh": lambda: act(x, wt, **gelu),
        "swiglu": lambda: gated(x, wt, activation="swiglu", store_preact=False),
        "residual": lambda: add(x, wt, c),
    }


def _of_quack(name: str) -> Any:
    """Return a function of quack; raise UnsupportedError if it is missing."""
    try:
        return getattr(importlib.import_module("quack.gemm_interface"), name)
    except ImportError as error:
        raise UnsupportedError(f"--peer {QUACK}: pip install quack-kernels ({error}).") from error
    except Exception as error:
        raise UnsupportedError(f"--peer {QUACK}: it cannot be imported: {error!r}.") from error
