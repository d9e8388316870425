"""cutegemm: a GEMM described once, by layouts; checked, simulated, analysed, drawn, and run at full speed.

`import cutegemm` needs numpy and brings the layout algebra. What else stands here is imported when it is
first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cutegemm.errors import CompileError as CompileError
from cutegemm.errors import CopyWarning as CopyWarning
from cutegemm.errors import CutegemmError as CutegemmError
from cutegemm.errors import EmulationError as EmulationError
from cutegemm.errors import LayoutError as LayoutError
from cutegemm.errors import PlanError as PlanError
from cutegemm.errors import SimulationError as SimulationError
from cutegemm.errors import UnsupportedError as UnsupportedError
from cutegemm.layout import *  # noqa: F403
from cutegemm.layout import __all__ as _algebra

__version__ = "0.1.0"

_LATER = {
    "compile_plan": "cutegemm.run.compile",
    "gemm": "cutegemm.run.gemm",
    "GemmPlan": "cutegemm.plan",
    "mma_sync_plan": "cutegemm.build",
    "mma_tma_plan": "cutegemm.build",
    "Operand": "cutegemm.plan",
    "Operands": "cutegemm.plan",
    "Problem": "cutegemm.plan",
    "simt_plan": "cutegemm.build",
    "sm90_plan": "cutegemm.build",
    "plan_named": "cutegemm.choose.catalog",
    "plans": "cutegemm.choose.catalog",
    "make_layout_tv": "cutegemm.tile",
    "Raster": "cutegemm.tile",
    "TiledCopy": "cutegemm.tile",
    "TiledMma": "cutegemm.tile",
}
_MODULES = (
    "analysis",
    "build",
    "choose",
    "draw",
    "emulate",
    "machine",
    "plan",
    "profile",
    "run",
    "simulate",
    "tile",
)

__all__ = [
    *_algebra,
    *_LATER,
    "CompileError",
    "CopyWarning",
    "CutegemmError",
    "EmulationError",
    "LayoutError",
    "PlanError",
    "SimulationError",
    "UnsupportedError",
]

if TYPE_CHECKING:  # what `_LATER` names, for type checkers and editors
    from cutegemm.build import mma_sync_plan as mma_sync_plan
    from cutegemm.build import mma_tma_plan as mma_tma_plan
    from cutegemm.build import simt_plan as simt_plan
    from cutegemm.build import sm90_plan as sm90_plan
    from cutegemm.choose.catalog import plan_named as plan_named
    from cutegemm.choose.catalog import plans as plans
    from cutegemm.plan import GemmPlan as GemmPlan
    from cutegemm.plan import Operand as Operand
    from cutegemm.plan import Operands as Operands
    from cutegemm.plan import Problem as Problem
    from cutegemm.run.compile import compile_plan as compile_plan
    from cutegemm.run.gemm import gemm as gemm
    from cutegemm.tile import Raster as Raster
    from cutegemm.tile import TiledCopy as TiledCopy
    from cutegemm.tile import TiledMma as TiledMma
    from cutegemm.tile import make_layout_tv as make_layout_tv
else:

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            return getattr(import_module(_LATER[name]), name)
        if name in _MODULES:
            return import_module(f"cutegemm.{name}")
        raise AttributeError(f"module 'cutegemm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
