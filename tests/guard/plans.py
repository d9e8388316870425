"""The plans that the guard compiles: every named plan and every form of the tests."""

from __future__ import annotations

from contextlib import suppress
from itertools import cycle

from cutegemm.choice.catalog import plan_named, plans
from cutegemm.errors import CutegemmError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.plan import GemmPlan, Operands
from tests.epilogues import CASES
from tests.fused import PLANS as FUSED
from tests.gated import FORMS as GATED
from tests.grouped import form as grouped
from tests.kernels import mma_sync_forms, sm90_forms
from tests.quantized import FORMS as QUANTIZED
from tests.quantized import form as quantized
from tests.scaled import FORMS as BLOCK_SCALED
from tests.scaled import form as block_scaled

# A named plan is built for the first of these operands that it takes.
_OPERANDS = (
    Operands.of("f32", layout="tn"),
    Operands.of("bf16", layout="nt"),
    Operands.of("bf16", layout="nt", out_major="m"),
    Operands.of("tf32", layout="tt"),
    Operands.of("e4m3", layout="nt", out="bf16"),
)


def guarded_plans() -> dict[str, tuple[GemmPlan, str]]:
    """Return label -> (plan, architecture): the named plans, and the forms of the tests.

    A label is a table of plans and a name in it, such as "sm90 pingpong".

    raises  ValueError if a named plan takes none of the operands that are tried
    """
    mma_sync = {name: DEFAULT_ARCH if name in mma_sync_forms.FED else "sm_80" for name in mma_sync_forms.FORMS}
    mma_sync |= dict.fromkeys(mma_sync_forms.FLOAT8, "sm_89")
    return {
        **{f"named {name}": (_named(name), DEFAULT_ARCH) for name, _ in plans()},
        **{f"sm90 {name}": (sm90_forms.form(name), DEFAULT_ARCH) for name in sm90_forms.FORMS},
        **{f"mma_sync {name}": (mma_sync_forms.form(name), arch) for name, arch in mma_sync.items()},
        **{f"gated {name}": (CASES[case].on(plan), DEFAULT_ARCH) for name, (plan, case, _) in GATED.items()},
        **{f"epilogue {name}": (plan, DEFAULT_ARCH) for name, plan in _with_epilogues().items()},
        **{f"block_scaled {name}": (block_scaled(name, out="bf16"), DEFAULT_ARCH) for name in BLOCK_SCALED},
        **{f"grouped {name}": (grouped(name, out="bf16"), DEFAULT_ARCH) for name in ("m", "n", "k")},
        **{f"quantized {name}": (quantized(name), DEFAULT_ARCH) for name in QUANTIZED},
        **{f"skinny {name}": (plan, DEFAULT_ARCH) for name, plan in _skinny().items()},
    }


def _named(name: str) -> GemmPlan:
    for operands in _OPERANDS:
        with suppress(CutegemmError):
            return plan_named(name, operands)
    raise ValueError(f"the plan {name!r} takes none of the operands of the guard. Add operands that it takes.")


def _with_epilogues() -> dict[str, GemmPlan]:
    """Return the plans of the epilogue tests, each with the next one of their epilogues that it serves."""
    cases = cycle([name for name in CASES if not CASES[name].epilogue.gated])
    found = {}
    for name, make in FUSED.items():
        for _ in CASES:
            case = next(cases)
            with suppress(CutegemmError):
                found[f"{name}, {case}"] = CASES[case].on(make())
                break
    return found


def _skinny() -> dict[str, GemmPlan]:
    from tests.emulator import test_gemv  # skipped by pytest if the DSL is missing

    return {name: test_gemv.form(name) for name in test_gemv.FORMS}
