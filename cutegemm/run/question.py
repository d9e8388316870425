"""Which plan carries a product out: what the choice depends on, and the choice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from cutegemm.build import with_epilogue
from cutegemm.choice import rows
from cutegemm.choice.candidate import Candidate
from cutegemm.choice.catalog import built, ranked
from cutegemm.choice.catalog import chosen as choose_recipe
from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import SWAPPED, Recipe
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.machine.device import Device
from cutegemm.plan.epilogue import Epilogue, Function
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.run import recall
from cutegemm.run.checks import check_plan
from cutegemm.tile.tma import TmaBox

# Of a thread, whose epilogue has several results: with 192 their kernels were seen to spill.
_MAX_ACCUMULATORS_WITH_AUX = 160
# Elements, from which on cooperative consumers were seen to lose 8% by a gelu that pingpong hides (H200, K = 4096).
_LARGE_TILE = 128 * 256
# Rows of a tile, of which two have less to multiply than one of them has to compute: a silu over pairs of columns took
# 13% longer by 64x192 than by 128x128 (H200, 2048x16384x4096). Few rows have no other tiles.
_LOW_ROWS, _MANY_ROWS = 64, 1024
_LEAST_ROW_BYTES = 64
_MOST_LAYERS = 1024
_NEAR = 2.0  # times the least prediction: what is beyond is not looked at

_FEW: dict[Any, tuple[Recipe, ...]] = {}


@dataclass(frozen=True)
class EpilogueSpec:
    """What becomes of the sums, where it is not alpha * acc + beta * c.

    epilogue   the expressions
    aux        what its operands and results are made of, all but the tile that is passed as `c`
    """

    epilogue: Epilogue
    aux: dict[str, Operand]

    def can_implement(self, plan: GemmPlan, rows: int) -> bool:
        """Whether a plan has time and registers for the epilogue, where D has so many rows.

        Of large tiles, that is where others multiply meanwhile; of several results, where there are fewer sums, and,
        beside tiles that are read or sums of rows, where D's rows are the plan's; of many rows, where tiles are not
        low.
        """
        if not plan.body.has_roles:
            return True
        if self.epilogue.gated and not self.has_long_rows(plan):
            return False
        if self.epilogue.beside and plan.registers()["accumulators"] > _MAX_ACCUMULATORS_WITH_AUX:
            return False
        if self.epilogue.beside and self.epilogue.tiles and plan.operands.d.major == "m":
            # The derivative of gelu by swap_ab:sm90_128x160_2x1: 459 spills, five times as long
            return False
        if self.epilogue.reductions and plan.body.overlapped:  # beside what is held they were seen to spill
            return False
        sums_rows = any(each.along == ("n",) for _, each in self.epilogue.reductions)
        if sums_rows and plan.operands.d.major == "m":
            # Sums of rows by swap_ab:sm90_128x160_2x1: 122 us, 111 by sm90_cluster_2x1 (H200, 16384x3072x768)
            return False
        computes = any(isinstance(node, Function) for node in self.epilogue.expression.nodes())
        is_large = plan.cta_tile[0] * plan.cta_tile[1] >= _LARGE_TILE
        is_low = plan.cta_tile[0] <= _LOW_ROWS and rows >= _MANY_ROWS
        exposed = plan.body.overlapped or is_low or (plan.body.kind == "cooperative" and is_large)
        return not (computes and exposed)

    def on(self, plan: GemmPlan, swap_ab: bool) -> GemmPlan:
        """A plan that ends so.

        swap_ab   whether it is for the transposed problem
        raises    PlanError where none can
        """
        epilogue = self.epilogue.transposed if swap_ab else self.epilogue
        aux = {name: each.transposed if swap_ab else each for name, each in self.aux.items()}
        return with_epilogue(epilogue, plan, aux)

    def has_long_rows(self, plan: GemmPlan) -> bool:
        """Whether what an epilogue stage holds of a row of a gated D, which is half as wide, is whole sectors of L2
        still."""
        epi_stages, d = self.on(plan, False).epi_stages, plan.operands.d
        return epi_stages is None or d.major != "n" or epi_stages.epi_tile[1] * d.dtype.bits // 8 >= _LEAST_ROW_BYTES

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
class Question:
    """What a plan is chosen for: all that the choice depends on.

    operands    as threads access them all, of None; of "", "a", "b" or "ab" as TMA loads these
    extents     M, N, K and L
    has_c       whether a C is given
    ending      what becomes of the sums, where it is not alpha * acc + beta * c
    accumulate  see `gemm`
    """

    operands: Callable[[str | None], Operands]
    extents: tuple[int, int, int, int]
    has_c: bool
    ending: EpilogueSpec | None
    accumulate: str
    arch: str
    device: Device

    def made_of(self, by_box: str | None) -> Operands:
        """The operands, those of an epilogue too."""
        found, ending = self.operands(by_box), self.ending
        return ending.loaded(found.with_aux(**ending.aux), self.extents[1]) if ending else found

    @cached_property
    def boxed(self) -> Operands:
        """As TMA would load A and B both."""
        return self.made_of("ab")

    @cached_property
    def problem(self) -> Problem:
        """Of the operands as threads access them."""
        return Problem(*self.extents, self.made_of(None))

    @property
    def gated(self) -> str:
        """See `Epilogue.gated`: rows of the transposed problem are no pairs."""
        return self.ending.epilogue.gated if self.ending is not None else ""

    def ranked(self, rows: int | None = None) -> Iterator[Candidate]:
        """The candidates, the fastest by the model first; for another number of rows of A, where that is said."""
        problem = self.problem if rows is None else replace(self.problem, m=rows)
        either = False if self.gated else None
        return ranked(
            self.boxed,
            problem,
            self.arch,
            self.device,
            self.accumulate,
            either,
            by_threads=problem.operands,
            with_c=self.has_c,
        )

    def compared(self, rows: int | None = None) -> list[Candidate]:
        """Those that are not far from the fastest."""
        found = self.ranked(rows)
        first = next(found, None)
        if first is None:
            return []
        return [first, *takewhile(lambda one: one.us <= first.us * _NEAR, found)]

    def served(self, asked: Recipe, rows: int | None = None) -> Decision | None:
        """What a recipe is built to, where its plan serves, and has time and registers for the epilogue.

        rows   see `EpilogueSpec.can_implement`; those of the problem where left out
        """
        of = self.problem
        try:
            plan = built(asked, self.boxed, of.operands, of, self.arch, self.device, self.has_c)
            if self.ending is None:
                ended = plan
            elif self.ending.can_implement(plan, of.m if rows is None else rows):
                ended = self.ending.on(plan, asked.swap_ab)
            else:
                return None
        except CutegemmError:
            return None
        return _decision(ended, asked.swap_ab, of)

    def of_rows(self, rows: int) -> Question:
        """The same for another number of rows of A, which lie as these do."""
        return replace(self, extents=(rows, *self.extents[1:]))

    @property
    def but_rows(self) -> tuple[Any, ...]:
        """All that it is but the rows of A: a layer's question, which is asked again and again."""
        ending = self.ending
        of_epilogue = None if ending is None else (ending.epilogue, tuple(ending.aux.items()))
        of_memory = (self.boxed, self.problem.operands)
        return (of_memory, *self.extents[1:], self.has_c, of_epilogue, self.accumulate, self.arch, self.device)


@dataclass(frozen=True)
class Decision:
    """What a question is answered by: a plan, which may be transposed, and the problem that it carries out."""

    plan: GemmPlan
    problem: Problem


@functools.lru_cache(maxsize=4096)
def _transposed(plan: GemmPlan) -> GemmPlan:
    return plan.with_(swap_ab=True)


def _decision(plan: GemmPlan, swap_ab: bool, problem: Problem) -> Decision:
    """A plan for a problem; turned: for D^T = B^T A^T."""
    if not swap_ab:
        return Decision(plan, problem)
    return Decision(plan if plan.swap_ab else _transposed(plan), problem.transposed)


def decide(question: Question, asked: GemmPlan | Recipe | None = None, varying_rows: bool = False) -> Decision:
    """The plan for a question, and the problem that it solves.

    asked          the caller's own plan, or its recipe; None where it is chosen
    varying_rows   whether it is to be one of the few that serve any number of rows: see `choose.rows`
    raises         PlanError where none serves, or the one that is asked for does not
    """
    of, ending, problem = question, question.ending, question.problem
    if asked is None and varying_rows:
        found = _one_of_few(question)
        if found is not None:
            return found
    if asked is None:
        recipe, plan = _chosen(question)
        swap_ab = recipe.swap_ab
    elif isinstance(asked, Recipe):
        swap_ab = asked.swap_ab
        plan = asked.build(of.made_of(asked.boxes(of.boxed)), of.has_c, of.arch, of.device)
    else:
        swap_ab, operands = asked.swap_ab, of.made_of(_loaded_by_box(asked))
        operands = operands.transposed if swap_ab else operands
        plan = check_plan(asked, operands, problem, of.has_c, ending is not None)
    if ending is not None:
        try:
            plan = ending.on(plan, swap_ab)
        except PlanError:
            other = _first_served(question) if asked is None else None
            if other is None:
                raise
            return other
    return _decision(plan, swap_ab, problem)


def _one_of_few(question: Question) -> Decision | None:
    """The plan that is held to be the fastest of the few of a layer; None where none of them serves."""
    return _first_served(question, frozenset(few_of(question)))


def _first_served(question: Question, among: frozenset[Recipe] | None = None) -> Decision | None:
    """The plan that is held to be the fastest of those that can end as they should; None where none can.

    among   recipes, of which it is to be one
    """
    for candidate in question.ranked():
        if among is None or candidate.recipe in among:
            found = question.served(candidate.recipe)
            if found is not None:
                return found
    return None


def few_of(question: Question) -> tuple[Recipe, ...]:
    """The recipes that serve a layer for any number of rows, remembered here and on the disk: see `choose.rows.few`."""
    key = question.but_rows
    if key not in _FEW:
        if len(_FEW) >= _MOST_LAYERS:
            _FEW.clear()
        text = repr(key)
        names = recall.remembered("few", text)
        found = _few(question) if names is None else tuple([recipe_named(str(name)) for name in names])
        if names is None:
            recall.remember("few", text, [str(recipe) for recipe in found])
        _FEW[key] = found
    return _FEW[key]


def _few(question: Question) -> tuple[Recipe, ...]:
    """Of those that cannot end as they should, or not in time, none: others take their places."""
    weigh, unsuited = functools.cache(question.compared), set[Recipe]()

    def suited(each: int) -> list[Candidate]:
        return [one for one in weigh(each) if one.recipe not in unsuited]

    while True:
        found = rows.few(suited)
        wrong = {recipe for recipe in found if question.served(recipe, rows=1) is None}
        if not wrong:
            return found
        unsuited |= wrong


def _loaded_by_box(plan: GemmPlan) -> str | None:
    """Which operands TMA loads; None where threads load them all."""
    if not isinstance(plan.a.load, TmaBox):
        return None
    packed = [repack.name for repack in plan.repacks]
    boxed = "".join([name for name in "ab" if name not in packed])
    return boxed.translate(SWAPPED) if plan.swap_ab else boxed


def _chosen(question: Question) -> tuple[Recipe, GemmPlan]:
    """The recipe to take and its plan, of those that can end so: rows of the transposed problem are no pairs."""
    of, ending, problem = question, question.ending, question.problem
    take = functools.partial(
        choose_recipe,
        of.boxed,
        problem,
        of.arch,
        of.device,
        of.has_c,
        of.accumulate,
        by_threads=problem.operands,
    )
    if ending is None:
        return take()
    if not of.gated:
        return take(can_implement=functools.partial(ending.can_implement, rows=problem.m))
    for can_implement in (lambda plan: ending.ends(plan) and ending.can_implement(plan, problem.m), ending.ends):
        found = take(can_implement=can_implement, swap_ab=False)
        if can_implement(found[1]):
            break
    return found
