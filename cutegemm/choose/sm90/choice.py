"""The choice among the named plans for Hopper, by the time that `sm90.time` predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.columns import by_time, of_rows
from cutegemm.choose.sm90.considered import ONE_LEVEL, TWO_LEVELS, considered
from cutegemm.choose.sm90.packing import packed_us
from cutegemm.choose.sm90.recipe import Sm90Recipe
from cutegemm.choose.sm90.shapes import K_TILE_BYTES
from cutegemm.errors import PlanError
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.split import FILLED, Split, by_last

ACCUMULATIONS = ("fast", "two_level")


def ranked(
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    accumulate: str = "fast",
    transposed: bool | None = None,
    with_c: bool = False,
) -> Iterator[Candidate]:
    """Plans, whole and split, for D and for D^T, that which is held to be the fastest first.

    Operands that TMA cannot load, or wgmma not multiply, as they are, are packed.

    operands     as TMA loads A and B: those of the problem before it is transposed
    accumulate   of fp8: "fast" sums up as wgmma does, with about 14 bits; "two_level" adds the sums of each k-tile
                 up in f32. Other types are summed up in full either way
    transposed   whether the plans are for D^T alone, or for D alone; both where left out
    with_c       whether a tile of C is read for each of D
    raises       PlanError for another way to sum up

    >>> nt = Operands.of("bf16", layout="nt")
    >>> [next(ranked(nt, Problem(*mnk))).recipe.tile for mnk in ((16, 4096, 4096), (4096, 4096, 4096))]
    [(64, 16), (128, 256)]
    """
    if accumulate not in ACCUMULATIONS:
        raise PlanError("choose", [f"accumulate = {accumulate!r}; {' or '.join(ACCUMULATIONS)} is expected."])
    ways = tuple([way for way in (False, True) if transposed in (None, way) and _serves(operands, way)])
    if not ways:
        return
    among = considered(_sums(operands, accumulate, problem), operands, ways, with_c, device)
    recipes, model = among.recipes, among.model
    tiling, packed = model.tiling(problem), model.packed
    divided = among.divided(tiling, problem)
    found = model.predicted(problem, tiling, divided)
    beside_us = of_rows(packed_us(model.shapes, operands, problem, device, packed), divided.rows)
    total_us = found.us + beside_us
    owned = frozenset(divided.owners.at.tolist() if divided.owners else ())
    for place in by_time(total_us):
        row, us = divided.rows[place], float(total_us[place])
        parts, way = int(divided.parts[place]), bool(model.shapes.turned[row])
        copied = packed.replace("b" if way else "a", "") if model.shapes.reads_a[row] else packed
        variant = _variant(recipes[row], parts, place in owned, bool(copied), way)
        is_packing = found.us[place] <= us / 2
        yield Candidate(variant, us, (lambda: "packing") if is_packing else partial(found.bound, place))


@lru_cache(maxsize=8192)
def _variant(recipe: Sm90Recipe, parts: int, owned: bool, is_packed: bool, turned: bool) -> Sm90Recipe:
    split: Split | None = FILLED if owned else by_last(split_k=parts) if parts > 1 else None
    return replace(recipe, split=split, is_packed=is_packed, transposed=turned)


def _serves(operands: Operands, turned: bool) -> bool:
    """Whether wgmma can end so: threads hold a D of bytes in pairs along N."""
    return operands.d.dtype.bits > 8 or (operands.d.major == "m") == turned


def _sums(operands: Operands, accumulate: str, problem: Problem) -> str:
    """Which recipes there are to choose from: of float8, those whose threads add up the sums of each k-tile, where that
    is asked for and there is more than one."""
    is_fp8 = operands.a.dtype.is_float and operands.a.dtype.bits == 8
    is_one = problem.k * operands.a.dtype.bits <= K_TILE_BYTES * 8
    return TWO_LEVELS if is_fp8 and accumulate == "two_level" and not is_one else ONE_LEVEL
