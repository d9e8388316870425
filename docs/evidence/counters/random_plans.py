"""Random plans and ragged problems, sampled by a seed. A plan is the text that spells it out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from cutegemm.choice.catalog import plan_named
from cutegemm.dtypes import DType
from cutegemm.errors import CutegemmError
from cutegemm.machine.arch import arch_named
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.profile import Case

_TARGET = "sm_90a"
_MOST_TRIES = 10_000  # for one plan: most draws break a rule
_LARGE = 0.2  # share of problems that do not fit L2
_BATCHED = 0.1
_MOST_FLOP = 3e11  # a few milliseconds of SIMT
_MAX_ACCUMULATORS = 128  # accumulators of a thread of mma.sync or SIMT; with more, some tiles spill


@dataclass(frozen=True)
class Drawn:
    """A random plan and a problem.

    plan          text that `plan_named` reads
    dtype         element type of A and B
    layout        BLAS letters
    align_bytes   alignment of all matrices
    extents       (M, N, K, L)
    """

    name: str
    plan: str
    dtype: str
    layout: str
    align_bytes: int
    extents: tuple[int, int, int, int]

    @property
    def operands(self) -> Operands:
        """Operands of the problem."""
        return Operands.of(self.dtype, layout=self.layout, align_bytes=self.align_bytes, batched=self.extents[3] > 1)

    def case(self) -> Case:
        """Return the case to launch. Raises PlanError if a rule is broken."""
        plan = plan_named(self.plan, self.operands)
        return Case(self.name, plan, Problem(*self.extents, operands=plan.operands))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, which `Drawn(**data)` accepts."""
        return asdict(self)


def draw(family: str, plans: int, seed: int) -> list[Drawn]:
    """Return `plans` random plans of a family that break no rule, each with a problem of its own.

    family   one of `FAMILIES`

    >>> [d.extents for d in draw("simt", 2, seed=0)] == [d.extents for d in draw("simt", 2, seed=0)]
    True
    """
    chance = random.Random(f"{family} {seed}")
    found: list[Drawn] = []
    texts = set()
    for _ in range(_MOST_TRIES * plans):
        if len(found) == plans:
            return found
        drawn = _one(f"{family}_{len(found):02d}", family, chance)
        if drawn is not None and drawn.plan not in texts:
            texts.add(drawn.plan)
            found.append(drawn)
    raise CutegemmError(f"proof: no {plans} plans of {family} that keep the rules were found.")


def _one(name: str, family: str, chance: random.Random) -> Drawn | None:
    text, dtype, layout, align = FAMILIES[family](chance)
    bits = DType.parse(dtype).bits
    align = max(align, bits // 8)
    problem = _extents(chance, align * 8 // bits, family)
    drawn = Drawn(name, text, dtype, layout, align, problem)
    try:
        case = drawn.case()
    except CutegemmError:
        return None
    return drawn if _can_implement(case) else None


def _can_implement(case: Case) -> bool:
    plan, problem = case.plan, case.problem
    if plan.violations(_TARGET, problem) or problem.flops > _MOST_FLOP:
        return False
    return (
        _is_ragged(plan, problem)
        and (plan.family == "sm90" or plan.registers()["accumulators"] <= _MAX_ACCUMULATORS)
        and sum(plan.smem_bytes().values()) <= arch_named(_TARGET).smem_per_block_bytes
    )


def _is_ragged(plan: GemmPlan, problem: Problem) -> bool:
    tile = plan.cta_tile
    return any(extent % part for extent, part in zip((problem.m, problem.n, problem.k), tile, strict=True))


def _extents(chance: random.Random, step: int, family: str) -> tuple[int, int, int, int]:
    """Return random extents: multiples of `step`, so that rows stay aligned, and sometimes multiples of 64."""
    most_mn, most_k = (9000, 3000) if chance.random() < _LARGE else (2600, 1500)

    def one(most: int) -> int:
        unit = chance.choice((step, step, step, 64))
        return max(unit, chance.randrange(96, most) // unit * unit)

    batch = chance.choice((2, 3)) if chance.random() < _BATCHED else 1
    return one(most_mn) // batch // step * step or step, one(most_mn), one(most_k), batch


def _text(family: str, **options: Any) -> str:
    """Return the text that spells a random plan out; the builder decides options that are None."""
    parts = []
    for key, value in options.items():
        if value is not None:
            shown = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            parts.append(f"{key}={shown}")
    return f"{family}:{','.join(parts)}"


def _raster(chance: random.Random) -> str | None:
    return chance.choice((None, None, "along_m", "along_n", "grouped_m:4", "grouped_n:8", "grouped_m:16"))


def _letters(chance: random.Random) -> str:
    return chance.choice(("nn", "nt", "tn", "tt"))


def _shared(chance: random.Random, major: tuple[str, ...]) -> str | None:
    kind = chance.random()
    if kind < 0.6:
        return None
    if kind < 0.9:
        return f"{chance.choice(major)}+{chance.choice((0, 4, 8))}"
    return f"{chance.choice(major)}^{chance.choice(('1.4.5', '2.2.3', '3.2.3'))}"


def _simt(chance: random.Random) -> tuple[str, str, str, int]:
    thread = chance.choice(((4, 4), (8, 4), (4, 8), (8, 8), (16, 8), (8, 16)))
    lanes = chance.choice(((4, 8), (8, 4), (2, 16), (16, 2)))
    warp = (thread[0] * lanes[0], thread[1] * lanes[1])
    warps = chance.choice(((1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4), (1, 4), (4, 1)))
    deep = chance.choice((4, 8, 8, 16, 16, 32))
    text = _text(
        "simt", block=(warp[0] * warps[0], warp[1] * warps[1], deep), warp=warp, thread=thread,
        quad=chance.choice(((4, 4), (4, 4), (4, 4), (2, 2), (1, 1), (4, 2))),
        stages=chance.choice((1, 2, 2, 3, 4)),
        shared_a=_shared(chance, ("k", "mn")), shared_b=_shared(chance, ("k", "mn")),
        load_a=chance.choice((None, None, "cp.async", "register")),
        load_b=chance.choice((None, None, "cp.async", "register")),
        lanes_along=chance.choice(("m", "n")), raster=_raster(chance), mma_order=chance.choice(("m", "n")),
        store=chance.choice((None, None, "direct", "shared")),
    )  # fmt: skip
    return (
        text,
        chance.choice(("f32",) * 6 + ("f16", "bf16", "f64")),
        _letters(chance),
        chance.choice((16, 16, 4, 8)),
    )


def _mma_sync(chance: random.Random) -> tuple[str, str, str, int]:
    dtype = chance.choice(("bf16", "bf16", "f16", "tf32"))
    warp = chance.choice(((64, 64), (64, 32), (32, 64), (32, 32), (16, 64), (64, 16), (32, 16)))
    warps = chance.choice(((1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4)))
    deep = chance.choice((32, 64, 64, 128)) * 8 // DType.parse(dtype).bits  # bytes to elements
    text = _text(
        "mma_sync", block=(warp[0] * warps[0], warp[1] * warps[1], deep), warp=warp,
        stages=chance.choice((1, 2, 3, 3, 4)), fragments=chance.choice((1, 2, 2)),
        load=chance.choice((None, None, None, "register")), load_bytes=chance.choice((16, 16, 16, 8)),
        cache=chance.choice(("cg", "cg", "ca")),
        shared=chance.choice(("swizzled", "swizzled", "padded", "plain")),
        read=chance.choice(("ldmatrix", "ldmatrix", "plain")),
        store=chance.choice(("shared", "shared", "direct")), warps_along=chance.choice(("m", "n")),
        raster=_raster(chance), mma_order=chance.choice(("m", "n")),
    )  # fmt: skip
    return text, dtype, _letters(chance), chance.choice((16, 16, 16, 8, 4))


def _mma_tma(chance: random.Random) -> tuple[str, str, str, int]:
    dtype = chance.choice(("bf16", "bf16", "f16", "tf32"))
    warp = chance.choice(((64, 64), (64, 32), (32, 64), (32, 32), (64, 80), (16, 64)))
    warps = chance.choice(((2, 2), (4, 2), (2, 4), (4, 1), (1, 4)))
    deep = chance.choice((64, 128, 128)) * 8 // DType.parse(dtype).bits
    text = _text(
        "mma_tma", block=(warp[0] * warps[0], warp[1] * warps[1], deep), warp=warp,
        stages=chance.choice((None, None, 2, 3)), store=chance.choice(("shared", "shared", "direct")),
        raster=_raster(chance), mma_order=chance.choice(("m", "n")),
    )  # fmt: skip
    return text, dtype, _letters(chance), 16


def _sm90(chance: random.Random) -> tuple[str, str, str, int]:
    dtype = chance.choice(("bf16", "bf16", "bf16", "f16", "e4m3", "tf32"))
    schedule = chance.choice(("pingpong", "pingpong", "cooperative", "single"))
    rows = chance.choice((64, 128, 192, 256))
    columns = chance.choice((*range(16, 257, 16), 128, 128, 256, 40, 72, 104))
    cluster = chance.choice(((1, 1), (1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)))
    store = chance.choice(("tma", "tma", "tma_warp", "direct"))
    text = _text(
        "sm90", tile=(rows, columns, 128 * 8 // DType.parse(dtype).bits), schedule=schedule, cluster=cluster,
        store=store, shared_d=chance.choice(("swizzled", "swizzled", "plain", "padded")) if store == "tma" else None,
        stages=chance.choice((None, None, 2, 3, 4)), raster=_raster(chance),
        ctas=chance.choice((None, None, None, "none")),
    )  # fmt: skip
    letters = _letters(chance) if DType.parse(dtype).bits == 16 else "nt"
    return text, dtype, letters, 16


DEVICES = ("h200", "h100")  # on which they are counted
FAMILIES: dict[str, Callable[[random.Random], tuple[str, str, str, int]]] = {
    "simt": _simt,
    "mma_sync": _mma_sync,
    "mma_tma": _mma_tma,
    "sm90": _sm90,
}
