"""From the arguments of a call to what carries it out: checks, the plan, the kernel, what it is to be called with.

All of it follows from the signature of the arguments (types, shapes, strides, alignment, device), and is done once for
each that is new.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cutegemm.build import ending_in
from cutegemm.choose.catalog import chosen as choose_recipe
from cutegemm.choose.names import recipe_named
from cutegemm.choose.recipe import Recipe
from cutegemm.dtypes import f32, tf32
from cutegemm.errors import PlanError
from cutegemm.machine.device import Device
from cutegemm.plan.epilogue import Epilogue, Function
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.run.checks import (
    check_plan,
    extents_of,
    refused,
    wanted_mode,
    wrong_choices,
    wrong_devices,
    wrong_dtypes,
    wrong_extents,
    wrong_memory,
    wrong_values,
)
from cutegemm.run.compile import CompiledKernel, compile_plan
from cutegemm.run.views import View, operands_of
from cutegemm.tile.tma import TmaBox

# Of a thread, whose epilogue has several results: with 192 their kernels were seen to spill.
_MOST_SUMS_OF_SEVERAL = 160
# Elements, from which on cooperative consumers were seen to lose 8% by a gelu that pingpong hides (H200, K = 4096).
_LARGE_TILE = 128 * 256
# Rows of a tile, of which two have less to multiply than one of them has to compute: a silu over pairs of columns took
# 13% longer by 64x192 than by 128x128 (H200, 2048x16384x4096). Few rows have no other tiles.
_LOW_ROWS, _MANY_ROWS = 64, 1024
_LEAST_ROW_BYTES = 64


@dataclass(frozen=True)
class How:
    """How a product is to be computed: the options of `gemm`."""

    plan: GemmPlan | str | None = None
    accumulate: str = "fast"
    allow_tf32: bool = False
    out_dtype: Any = None


@dataclass(frozen=True)
class Ending:
    """What becomes of the sums, where it is not alpha * acc + beta * c.

    epilogue   the expressions
    further    what its operands and results are made of, all but the tile that is passed as `c`
    """

    epilogue: Epilogue
    further: dict[str, Operand]

    def suits(self, plan: GemmPlan, rows: int) -> bool:
        """Whether a plan has time and registers for the epilogue, where D has so many rows.

        Of large tiles, that is where others multiply meanwhile; of several results, where there are fewer sums; of many
        rows, where tiles are not low.
        """
        pipeline = plan.pipeline
        if pipeline is None:
            return True
        if self.epilogue.gated and not self.has_long_rows(plan):
            return False
        if self.epilogue.beside and plan.registers()["accumulators"] > _MOST_SUMS_OF_SEVERAL:
            return False
        if self.epilogue.reductions and pipeline.deferred:  # beside what is held they were seen to spill
            return False
        computes = any(isinstance(node, Function) for node in self.epilogue.expression.nodes())
        is_large = plan.cta_tile[0] * plan.cta_tile[1] >= _LARGE_TILE
        is_low = plan.cta_tile[0] <= _LOW_ROWS and rows >= _MANY_ROWS
        exposed = pipeline.deferred or is_low or (pipeline.kind == "cooperative" and is_large)
        return not (computes and exposed)

    def on(self, plan: GemmPlan, turned: bool) -> GemmPlan:
        """A plan that ends so.

        turned   whether it is for the transposed problem
        raises   PlanError where none can
        """
        epilogue = self.epilogue.transposed if turned else self.epilogue
        further = {name: each.transposed if turned else each for name, each in self.further.items()}
        return ending_in(epilogue, plan, further)

    def has_long_rows(self, plan: GemmPlan) -> bool:
        """Whether what a slot holds of a row of a gated D, which is half as wide, is whole sectors of L2 still."""
        slots, d = self.on(plan, False).slots, plan.operands.d
        return slots is None or d.major != "n" or slots.subtile[1] * d.dtype.bits // 8 >= _LEAST_ROW_BYTES

    def ends(self, plan: GemmPlan) -> bool:
        """Whether a plan can end so."""
        try:
            return bool(self.on(plan, False))
        except PlanError:
            return False

    def loaded(self, operands: Operands, n: int) -> Operands:
        """The operands, where B's columns are not read one after the other: aligned as gates and ups are.

        n   columns of B
        """
        b = operands.b
        if not self.epilogue.gated or b.major != "n":
            return operands
        size = b.dtype.bits // 8
        bits = size if self.epilogue.gated == "pairs" else n // 2 * size | b.align_bytes
        return replace(operands, b=replace(b, align_bytes=min(b.align_bytes, bits & -bits)))


@dataclass(frozen=True)
class Prepared:
    """What follows from a signature.

    kernel   the compiled kernel, or None where D is empty
    views    of a, b, c and out
    shape    of D, and `dtype`, in torch
    turned   whether the kernel computes D^T = B^T A^T
    problem  that the kernel is called for
    """

    kernel: CompiledKernel | None
    views: tuple[View, ...]
    shape: tuple[int, ...]
    dtype: Any
    turned: bool = False
    problem: Problem | None = None

    @property
    def function(self) -> Callable[..., Any]:
        """The compiled function, or what gives it a workspace besides."""
        assert self.kernel is not None
        assert self.problem is not None
        problem = self.problem
        function: Callable[..., Any] = self.kernel.for_problem(problem.m, problem.n, problem.k, problem.l)
        return function


def named(a: Any, b: Any, c: Any, out: Any, needed: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments that are given, by name; those needed also where they are None."""
    all_of_them = (("a", a), ("b", b), ("c", c), ("out", out))
    return {name: value for name, value in all_of_them if value is not None or name in needed}


def prepare(
    a: Any, b: Any, c: Any, out: Any, beta: float, how: How, ending: Ending | None = None
) -> Prepared | list[str]:
    """Checks a signature that is new, and finds its kernel.

    returns   what was found, or the names of the operands that have no stride of 1
    raises    CutegemmError in words
    """
    plan = how.plan
    from cutegemm.run import torch_ops

    given, gated = named(a, b, c, out), ending.epilogue.gated if ending is not None else ""
    wrong = [
        *wrong_choices(plan, how.accumulate, how.allow_tf32),
        *wrong_dtypes(given, torch_ops, how.out_dtype),
        *wrong_extents(given, gated),
        *wrong_values(given, beta),
        *wrong_memory(given),
        *wrong_devices(given),
    ]
    if wrong:
        raise refused(a, b, wrong)
    batched, (m, n, k, l) = a.dim() == 3, extents_of(a, b)  # noqa: E741
    columns = n // 2 if gated else n
    result = (l, m, columns) if batched else (m, columns)
    dtype = given["out"].dtype if "out" in given else how.out_dtype
    if dtype is None and "c" in given and ending is None:
        dtype = given["c"].dtype
    dtype = dtype or torch_ops.RESULTS[a.dtype][0]
    views = {
        name: View.of(name, tensor, batched, wanted_mode(plan, name, tensor))
        for name, tensor in given.items()
    }
    copies = [name for name, view in views.items() if view.major is None]
    if copies:
        return copies
    if out is None:
        views["out"] = View.fresh(result, torch_ops.DTYPES[dtype].bits // 8, batched)
    views.setdefault("c", views["out"])
    ordered = [views[name] for name in ("a", "b", "c", "out")]
    if 0 in result:
        return Prepared(None, tuple(ordered), result, dtype)
    index = a.get_device()
    arch, device = torch_ops.device_arch(index), torch_ops.device_of(index)
    kinds = torch_ops.DTYPES[a.dtype], torch_ops.DTYPES[dtype]
    if plan is None and how.allow_tf32 and kinds[0] is f32:
        kinds = tf32, kinds[1]
    has_c = "c" in given

    def operands(by_box: str | None) -> Operands:
        found = operands_of(views, *kinds, batched, by_box, torch_ops.DTYPES[c.dtype] if has_c else None)
        return ending.loaded(found.with_further(**ending.further), n) if ending else found

    asked = recipe_named(plan) if isinstance(plan, str) else plan
    boxed, problem = operands("ab"), Problem(m, n, k, l, operands(None))
    if asked is None:
        recipe, chosen = _chosen(boxed, problem, ending, arch, device, has_c, how.accumulate)
        turned = recipe.transposed
    elif isinstance(asked, Recipe):
        turned = asked.transposed
        chosen = asked.build(operands(asked.boxes(boxed)), has_c, arch, device)
    else:
        turned = False
        chosen = check_plan(asked, operands(_loaded_by_box(asked)), problem, has_c and ending is None)
    if ending is not None:
        chosen = ending.on(chosen, turned)
    if turned:
        problem = problem.transposed
    too_large = list(limits(chosen, problem))
    if too_large:
        raise refused(a, b, too_large)
    return Prepared(compile_plan(chosen, arch), tuple(ordered), result, dtype, turned, problem)


def _loaded_by_box(plan: GemmPlan) -> str | None:
    """Which operands TMA loads; None where threads load them all."""
    if not isinstance(plan.load_a, TmaBox):
        return None
    packed = [packing.name for packing in plan.packs]
    return "".join([name for name in "ab" if name not in packed])


def _chosen(
    boxed: Operands,
    problem: Problem,
    ending: Ending | None,
    arch: str,
    device: Device,
    has_c: bool,
    accumulate: str,
) -> tuple[Recipe, GemmPlan]:
    """The recipe to take and its plan, of those that can end so: rows of the transposed problem are no pairs.

    boxed   the operands as TMA would load them all; those of the problem are as threads load them
    """
    take = functools.partial(
        choose_recipe, boxed, problem, arch, device, has_c, accumulate, by_threads=problem.operands
    )
    if ending is None:
        return take()
    if not ending.epilogue.gated:
        return take(suits=functools.partial(ending.suits, rows=problem.m))
    for suits in (lambda plan: ending.ends(plan) and ending.suits(plan, problem.m), ending.ends):
        found = take(suits=suits, transposed=False)
        if suits(found[1]):
            break
    return found
