"""cutegemm: describe a GEMM kernel once, by layouts; then check, simulate, analyse, draw and run it.

`import cutegemm` needs numpy alone and imports only the layout algebra. All other names are imported at first use.
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
from cutegemm.layout import filter as filter  # not in __all__: `import *` must not shadow Python's
from cutegemm.layout import hooks as _hooks
from cutegemm.run import graph as _graph
from cutegemm.version import __version__ as __version__

_LATER = {
    "backends": "cutegemm.compile.backends",
    "batch_invariant": "cutegemm.run.calls",
    "bf16": "cutegemm.dtypes",
    "choose": "cutegemm.choice.catalog",
    "compile_in_background": "cutegemm.compile.background",
    "compile_plan": "cutegemm.compile.plans",
    "CopyAtom": "cutegemm.tile",
    "cp_async": "cutegemm.tile",
    "DType": "cutegemm.dtypes",
    "e4m3": "cutegemm.dtypes",
    "e5m2": "cutegemm.dtypes",
    "emulate": "cutegemm.run.emulated",
    "export": "cutegemm.compile.export",
    "f16": "cutegemm.dtypes",
    "f32": "cutegemm.dtypes",
    "f64": "cutegemm.dtypes",
    "fma": "cutegemm.tile",
    "gemm": "cutegemm.run.gemm",
    "GemmPlan": "cutegemm.plan",
    "ldmatrix": "cutegemm.tile",
    "load": "cutegemm.compile.exported",
    "make_layout_tv": "cutegemm.tile",
    "make_tiled_copy": "cutegemm.tile",
    "make_tiled_copy_A": "cutegemm.tile",
    "make_tiled_copy_B": "cutegemm.tile",
    "make_tiled_copy_C": "cutegemm.tile",
    "make_tiled_copy_C_atom": "cutegemm.tile",
    "make_tiled_copy_D": "cutegemm.tile",
    "make_tiled_copy_S": "cutegemm.tile",
    "make_tiled_copy_tv": "cutegemm.tile",
    "make_tiled_mma": "cutegemm.tile",
    "mma_sync": "cutegemm.tile",
    "mma_sync_plan": "cutegemm.build",
    "mma_tma_plan": "cutegemm.build",
    "MmaAtom": "cutegemm.tile",
    "Operand": "cutegemm.plan",
    "Operands": "cutegemm.plan",
    "plan_named": "cutegemm.choice.catalog",
    "plan_of": "cutegemm.run.gemm",
    "plans": "cutegemm.choice.catalog",
    "prepare": "cutegemm.run.ahead",
    "Problem": "cutegemm.plan",
    "Raster": "cutegemm.tile",
    "register_plan": "cutegemm.choice.names",
    "s32": "cutegemm.dtypes",
    "s8": "cutegemm.dtypes",
    "simt_plan": "cutegemm.build",
    "simulate": "cutegemm.simulator",
    "simt_tiled_mma": "cutegemm.tile",
    "gemv_plan": "cutegemm.build",
    "sm90_plan": "cutegemm.build",
    "smem_atom": "cutegemm.tile",
    "stmatrix": "cutegemm.tile",
    "tf32": "cutegemm.dtypes",
    "ThrCopy": "cutegemm.tile",
    "ThrMma": "cutegemm.tile",
    "TiledCopy": "cutegemm.tile",
    "TiledMma": "cutegemm.tile",
    "TmaBox": "cutegemm.tile",
    "tuning": "cutegemm.run.tune",
    "universal_copy": "cutegemm.tile",
    "use_tuned": "cutegemm.run.tune",
    "wgmma": "cutegemm.tile",
    "widest_smem_kind": "cutegemm.tile",
}
_OF_TORCH = {  # not in `__all__`: `import *` must work without torch, and must not shadow names of torch
    "addmm": "cutegemm.torch",
    "bmm": "cutegemm.torch",
    "GatedMLP": "cutegemm.torch",
    "gemm_act": "cutegemm.torch",
    "gemm_dact": "cutegemm.torch",
    "gemm_dgated": "cutegemm.torch",
    "gemm_gated": "cutegemm.torch",
    "grouped_mm": "cutegemm.torch",
    "linear": "cutegemm.torch",
    "mlp": "cutegemm.torch",
    "Linear": "cutegemm.torch",
    "mm": "cutegemm.torch",
    "experts": "cutegemm.torch",
    "from_deep_gemm": "cutegemm.torch",
    "quantize": "cutegemm.torch",
    "scaled_grouped_mm": "cutegemm.torch",
    "scaled_mm": "cutegemm.torch",
    "use": "cutegemm.torch",
}
_MODULES = (
    "analysis",
    "build",
    "choice",
    "draw",
    "emulator",
    "epilogue",
    "interop",
    "machine",
    "plan",
    "profile",
    "run",
    "simulator",
    "tile",
    "torch",
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

if TYPE_CHECKING:  # the names of `_LATER` and `_OF_TORCH`, for type checkers and editors
    from cutegemm.build import gemv_plan as gemv_plan
    from cutegemm.build import mma_sync_plan as mma_sync_plan
    from cutegemm.build import mma_tma_plan as mma_tma_plan
    from cutegemm.build import simt_plan as simt_plan
    from cutegemm.build import sm90_plan as sm90_plan
    from cutegemm.choice.catalog import choose as choose
    from cutegemm.choice.catalog import plan_named as plan_named
    from cutegemm.choice.catalog import plans as plans
    from cutegemm.choice.names import register_plan as register_plan
    from cutegemm.compile.backends import backends as backends
    from cutegemm.compile.background import compile_in_background as compile_in_background
    from cutegemm.compile.export import export as export
    from cutegemm.compile.exported import load as load
    from cutegemm.compile.plans import compile_plan as compile_plan
    from cutegemm.dtypes import DType as DType
    from cutegemm.dtypes import bf16 as bf16
    from cutegemm.dtypes import e4m3 as e4m3
    from cutegemm.dtypes import e5m2 as e5m2
    from cutegemm.dtypes import f16 as f16
    from cutegemm.dtypes import f32 as f32
    from cutegemm.dtypes import f64 as f64
    from cutegemm.dtypes import s8 as s8
    from cutegemm.dtypes import s32 as s32
    from cutegemm.dtypes import tf32 as tf32
    from cutegemm.plan import GemmPlan as GemmPlan
    from cutegemm.plan import Operand as Operand
    from cutegemm.plan import Operands as Operands
    from cutegemm.plan import Problem as Problem
    from cutegemm.run.ahead import prepare as prepare
    from cutegemm.run.calls import batch_invariant as batch_invariant
    from cutegemm.run.emulated import emulate as emulate
    from cutegemm.run.gemm import gemm as gemm
    from cutegemm.run.gemm import plan_of as plan_of
    from cutegemm.run.tune import tuning as tuning
    from cutegemm.run.tune import use_tuned as use_tuned
    from cutegemm.simulator import simulate as simulate
    from cutegemm.tile import CopyAtom as CopyAtom
    from cutegemm.tile import MmaAtom as MmaAtom
    from cutegemm.tile import Raster as Raster
    from cutegemm.tile import ThrCopy as ThrCopy
    from cutegemm.tile import ThrMma as ThrMma
    from cutegemm.tile import TiledCopy as TiledCopy
    from cutegemm.tile import TiledMma as TiledMma
    from cutegemm.tile import TmaBox as TmaBox
    from cutegemm.tile import cp_async as cp_async
    from cutegemm.tile import fma as fma
    from cutegemm.tile import ldmatrix as ldmatrix
    from cutegemm.tile import make_layout_tv as make_layout_tv
    from cutegemm.tile import make_tiled_copy as make_tiled_copy
    from cutegemm.tile import make_tiled_copy_A as make_tiled_copy_A
    from cutegemm.tile import make_tiled_copy_B as make_tiled_copy_B
    from cutegemm.tile import make_tiled_copy_C as make_tiled_copy_C
    from cutegemm.tile import make_tiled_copy_C_atom as make_tiled_copy_C_atom
    from cutegemm.tile import make_tiled_copy_D as make_tiled_copy_D
    from cutegemm.tile import make_tiled_copy_S as make_tiled_copy_S
    from cutegemm.tile import make_tiled_copy_tv as make_tiled_copy_tv
    from cutegemm.tile import make_tiled_mma as make_tiled_mma
    from cutegemm.tile import mma_sync as mma_sync
    from cutegemm.tile import simt_tiled_mma as simt_tiled_mma
    from cutegemm.tile import smem_atom as smem_atom
    from cutegemm.tile import stmatrix as stmatrix
    from cutegemm.tile import universal_copy as universal_copy
    from cutegemm.tile import wgmma as wgmma
    from cutegemm.tile import widest_smem_kind as widest_smem_kind
    from cutegemm.torch import GatedMLP as GatedMLP
    from cutegemm.torch import Linear as Linear
    from cutegemm.torch import addmm as addmm
    from cutegemm.torch import bmm as bmm
    from cutegemm.torch import experts as experts
    from cutegemm.torch import from_deep_gemm as from_deep_gemm
    from cutegemm.torch import gemm_act as gemm_act
    from cutegemm.torch import gemm_dact as gemm_dact
    from cutegemm.torch import gemm_dgated as gemm_dgated
    from cutegemm.torch import gemm_gated as gemm_gated
    from cutegemm.torch import grouped_mm as grouped_mm
    from cutegemm.torch import linear as linear
    from cutegemm.torch import mlp as mlp
    from cutegemm.torch import mm as mm
    from cutegemm.torch import quantize as quantize
    from cutegemm.torch import scaled_grouped_mm as scaled_grouped_mm
    from cutegemm.torch import scaled_mm as scaled_mm
    from cutegemm.torch import use as use
else:

    def __getattr__(name: str) -> Any:
        """Import a public name or subpackage of cutegemm when it is first used, so that `import cutegemm` stays fast.

        raises   AttributeError if cutegemm has no such name
        """
        if name in _LATER:
            return getattr(import_module(_LATER[name]), name)
        if name in _OF_TORCH:
            return getattr(import_module(_OF_TORCH[name]), name)
        if name in _MODULES:
            return import_module(f"cutegemm.{name}")
        raise AttributeError(f"module 'cutegemm' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the sorted public names of the package, including those that are not imported yet."""
    return sorted({*__all__, *_OF_TORCH, *_MODULES, *(name for name in globals() if name.startswith("__"))})


# The functions below connect lower modules to higher ones, which are imported when the function is first called.


def _notebook(thing: Any) -> Any:
    """Return the HTML text that a Jupyter notebook displays for a layout or a plan: its picture as SVG.

    thing   layout, plan or other object of this package; what cannot be drawn is shown as text
    """
    return import_module(f"{__name__}.draw").notebook(thing)


_hooks.notebook.register(_notebook)


def _fused(*values: Any) -> Any:
    return import_module(f"{__name__}.build.fused").fused(*values)


_hooks.fused.register(_fused)


def _through_torch(arguments: Any) -> Any:
    """Run a call of `gemm` as a registered torch operator, so that torch.compile sees it as one operation.

    Returns what `gemm` returns.

    arguments   the parameters of `gemm` and their values, as a dict
    """
    from cutegemm.torch.gemm import gemm_in_torch  # an import statement: Dynamo does not trace `import_module`

    return gemm_in_torch(arguments)


_graph.through_torch.register(_through_torch)


def _by_torch(arguments: Any) -> Any:
    """Compute a call of `gemm` by torch's own operations instead of a kernel of this package.

    Returns what `gemm` returns. It serves calls whose kernel is still being compiled.

    arguments   the parameters of `gemm` and their values, as a dict
    """
    return import_module(f"{__name__}.torch.gemm").gemm_by_torch(arguments)


_graph.by_torch.register(_by_torch)


def _questions_of(modules: Any, rows: Any, backward: bool) -> Any:
    """Return what torch modules ask for: pairs (`Question`, numbers of rows), and the kernels of experts.

    A `Question` holds shapes, types and epilogue of a GEMM, i.e. what the choice of a kernel depends on.

    modules    torch modules
    rows       numbers of rows M of their inputs
    backward   whether kernels of experts for the backward pass are wanted, too
    """
    return import_module(f"{__name__}.torch.models.preparation").questions_of(modules, rows, backward)


_graph.questions_of.register(_questions_of)


def _kernels_of_groups(*arguments: Any) -> Any:
    """Return (plan, architecture) of each kernel that `grouped_mm` uses for shapes.

    arguments   as for `torch.grouped.preparation.kernels_of_groups`
    """
    return import_module(f"{__name__}.torch.grouped.preparation").kernels_of_groups(*arguments)


_graph.kernels_of_groups.register(_kernels_of_groups)
