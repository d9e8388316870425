"""cutegemm: a GEMM described once, by layouts; checked, simulated, analysed, drawn, and run at full speed.

`import cutegemm` needs numpy and brings the layout algebra. What else stands here is imported when it is
first asked for.
"""

from importlib import import_module
from typing import Any

from cutegemm.errors import (
    CompileError,
    CopyWarning,
    CutegemmError,
    LayoutError,
    PlanError,
    UnsupportedError,
)
from cutegemm.layout import *  # noqa: F403
from cutegemm.layout import __all__ as _algebra

__version__ = "0.1.0"

_LATER = {
    "compile_plan": "cutegemm.compile",
    "gemm": "cutegemm.launch",
    "GemmPlan": "cutegemm.plan",
    "Operand": "cutegemm.plan",
    "Operands": "cutegemm.plan",
    "Problem": "cutegemm.plan",
    "Raster": "cutegemm.tile",
    "TiledCopy": "cutegemm.tile",
    "TiledMma": "cutegemm.tile",
    "make_layout_tv": "cutegemm.tile",
    "plan_named": "cutegemm.plan.catalog",
    "plans": "cutegemm.plan.catalog",
    "simt_plan": "cutegemm.plan",
    "sm90_plan": "cutegemm.plan",
}

__all__ = [
    *_algebra,
    *_LATER,
    "CompileError",
    "CopyWarning",
    "CutegemmError",
    "LayoutError",
    "PlanError",
    "UnsupportedError",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'cutegemm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
