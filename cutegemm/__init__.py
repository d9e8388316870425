"""cutegemm: a GEMM described once, by layouts; checked, simulated, analysed, drawn, and run at full speed.

`import cutegemm` needs numpy and brings the layout algebra. What else stands here is imported when it is
first asked for.
"""

from importlib import import_module
from typing import Any

from cutegemm.errors import CutegemmError, LayoutError, PlanError, UnsupportedError
from cutegemm.layout import *  # noqa: F403
from cutegemm.layout import __all__ as _algebra

__version__ = "0.1.0"

_LATER = {
    "GemmPlan": "cutegemm.plan",
    "Operand": "cutegemm.plan",
    "Operands": "cutegemm.plan",
    "Problem": "cutegemm.plan",
    "Raster": "cutegemm.tile",
    "TiledCopy": "cutegemm.tile",
    "TiledMma": "cutegemm.tile",
    "make_layout_tv": "cutegemm.tile",
    "simt_plan": "cutegemm.plan",
}

__all__ = [*_algebra, *_LATER, "CutegemmError", "LayoutError", "PlanError", "UnsupportedError"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'cutegemm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
