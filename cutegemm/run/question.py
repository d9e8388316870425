"""Choose the plan of a call: what the choice depends on, and the decision."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from math import inf
from typing import Any, TypeVar

import numpy as np

from cutegemm.build import with_epilogue
from cutegemm.choice import rows
from cutegemm.choice.candidate import Candidate, Request
from cutegemm.choice.catalog import built, families, ranked_for
from cutegemm.choice.catalog import chosen as choose_recipe
from cutegemm.choice.names import recipe_named
from cutegemm.choice.order import Orders, ServedRows, Weight, restored, served_rows
from cutegemm.choice.recipe import SWAPPED, Recipe
from cutegemm.choice.times import Numbering, Times
from cutegemm.compile import exported
from cutegemm.compile.cache import has_dsl
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.machine.device import Device
from cutegemm.plan.accumulation import row_independent_order
from cutegemm.plan.epilogue import Epilogue, Function
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.store.quantized import tile_rules
from cutegemm.run import recall
from cutegemm.run.checks import check_plan
from cutegemm.tile.tma import TmaBox

# Accumulators of a thread with auxiliary outputs. With 192, kernels with auxiliary outputs spill.
_MAX_ACCUMULATORS_WITH_AUX = 160
# Elements of a tile. From this size on, a gelu takes 8% longer with cooperative consumers than with pingpong consumers,
# which hide it (H200, K = 4096).
_LARGE_TILE = 128 * 256
# A tile of 64 rows has less MMA work than epilogue work. silu over pairs of columns takes 13% longer with 64x192 tiles
# than with 128x128 (H200, 2048x16384x4096). A D of few rows has no higher tiles to choose from.
_LOW_ROWS, _MANY_ROWS = 64, 1024
_LEAST_ROW_BYTES = 64  # least bytes of a row of D in an epilogue stage, if the epilogue is gated
_MOST_LAYERS = 1024  # layers whose recipes this process remembers
MOST_LOSS = 1.1  # a library's plan within this ratio of the lowest predicted time is used; nothing is compiled instead
_NEAR = 2.0  # candidates up to this multiple of the least predicted time are considered

_FEW: dict[Any, tuple[Recipe, ...]] = {}  # `Question.but_rows` -> the recipes of `few_of`
_SERVED: dict[Weight, ServedRows] = {}  # results of `Question.served_rows`

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class EpilogueSpec:
    """A custom epilogue (other than alpha * acc + beta * c), with the types of the tensors that it reads and writes.

    The choice of a plan uses it to find plans that are fast with this epilogue.

    epilogue   the expressions that compute D and further results from the accumulators
    aux        name -> type, majorness and alignment of each operand and result. D is left out, and so is the matrix
               that the kernel loads in the place of C
    """

    epilogue: Epilogue
    aux: dict[str, Operand]

    def can_implement(self, plan: GemmPlan, rows: int) -> bool:
        """Return True if a plan is expected to be fast with this epilogue: no register spills, and enough overlap.

        Only plans with warp roles are checked. For any other plan the result is True, unless the epilogue quantizes.
        The conditions come from kernels that spilled or were slow, e.g. reductions next to an overlapped epilogue.

        plan   the plan
        rows   number of rows of D; with many rows, small tiles are excluded too
        """
        if self.epilogue.quantized and any(tile_rules(plan, bool(self.epilogue.gated))):
            return False  # sooner than by building the plan with this epilogue
        if not plan.body.has_roles:
            return True
        if self.epilogue.gated and not self.has_long_rows(plan):
            return False
        if self.epilogue.beside and plan.registers()["accumulators"] > _MAX_ACCUMULATORS_WITH_AUX:
            return False
        if self.epilogue.beside and self.epilogue.tiles and plan.operands.d.major == "m":
            # The derivative of gelu has 459 spills with swap_ab:sm90_128x160_2x1 and takes five times as long.
            return False
        if self.epilogue.reductions and plan.body.overlapped:  # reductions spill next to the accumulators of two tiles
            return False
        if ("n",) in self.reduced_along and plan.operands.d.major == "m":
            # Row sums: swap_ab:sm90_128x160_2x1 takes 122 us, sm90_cluster_2x1 takes 111 (H200, 16384x3072x768).
            return False
        computes = any(isinstance(node, Function) for node in self.epilogue.expression.nodes())
        is_large = plan.cta_tile[0] * plan.cta_tile[1] >= _LARGE_TILE
        is_low = plan.cta_tile[0] <= _LOW_ROWS and rows >= _MANY_ROWS
        exposed = plan.body.overlapped or is_low or (plan.body.kind == "cooperative" and is_large)
        return not (computes and exposed)

    def on(self, plan: GemmPlan, swap_ab: bool) -> GemmPlan:
        """Return the plan with this epilogue instead of its own.

        plan      the plan
        swap_ab   True if the plan computes D^T = B^T A^T, so that the epilogue is transposed too
        raises    PlanError if the plan cannot have this epilogue
        """
        epilogue = self.epilogue.transposed if swap_ab else self.epilogue
        aux = {name: operand.transposed if swap_ab else operand for name, operand in self.aux.items()}
        return with_epilogue(epilogue, plan, aux)

    @property
    def reduced_along(self) -> list[tuple[str, ...]]:
        """Return the modes that each reduction of this epilogue adds up, e.g. [("n",)] for a sum over each row."""
        return [reduction.along for _, reduction in self.epilogue.reductions]

    def has_long_rows(self, plan: GemmPlan) -> bool:
        """Return True if each epilogue stage of a plan holds 64 bytes (two L2 sectors) or more of each row of D.

        D is the result of a gated epilogue, half as wide as B. The result is True for a plan without epilogue stages.
        """
        plain, d = self.on(plan, False), plan.operands.d
        buffers = plain.store.buffers(plain)
        return d.major != "n" or all(each.tile[1] * d.dtype.bits // 8 >= _LEAST_ROW_BYTES for each in buffers)

    def fits(self, plan: GemmPlan) -> bool:
        """Return True if a plan can have this epilogue without breaking a rule.

        plan   a plan that does not swap A and B
        """
        try:
            return bool(self.on(plan, False))
        except PlanError:
            return False

    def with_gated_b(self, operands: Operands, n: int) -> Operands:
        """Return the operands of a problem, with B's alignment reduced to what a gated epilogue's kernel can rely on.

        Such a kernel reads a row of B as two halves, or as pairs of neighbouring columns. A half or pair may be less
        aligned than the row. Without a gated epilogue, or with a K-major B, the operands stay as they are.

        operands   types, majorness and alignment of A to D
        n          number of columns of B
        """
        b = operands.b
        if not self.epilogue.gated or b.major != "n":
            return operands
        size = b.dtype.bits // 8
        bits = size if self.epilogue.gated == "pairs" else n // 2 * size | b.align_bytes
        return replace(operands, b=replace(b, align_bytes=min(b.align_bytes, bits & -bits)))


@dataclass(frozen=True)
class Question:
    """Describes a `gemm` call for the choice of its plan; its methods list, compare and build the possible plans.

    operands          function that returns types, majorness and alignment of A to D. Alignment depends on who loads a
                      matrix: the function's argument names the matrices that TMA loads ("", "a", "b" or "ab"); None:
                      threads load all
    extents           M, N, K and L
    has_c             True if c is passed
    ending            the epilogue; None for alpha * acc + beta * c
    accumulate        accumulation of float8: "fast" as the tensor cores do, or "promoted" to float32 every 128 elements
                      of K
    arch              architecture to compile for
    device            device whose times are predicted
    batch_invariant   True if a row of D must have the same bits for any number of rows of A. The plan must then add
                      products in an order that is fixed for N, K and the types
    """

    operands: Callable[[str | None], Operands]
    extents: tuple[int, int, int, int]
    has_c: bool
    ending: EpilogueSpec | None
    accumulate: str
    arch: str
    device: Device
    batch_invariant: bool = False

    def all_operands(self, by_box: str | None) -> Operands:
        """Return type, majorness and alignment of all operands of this call, with those of the epilogue.

        by_box   names of the matrices that TMA loads ("", "a", "b" or "ab"); None if threads load all of them
        """
        operands, ending = self.operands(by_box), self.ending
        return ending.with_gated_b(operands.with_aux(**ending.aux), self.extents[1]) if ending else operands

    @cached_property
    def boxed(self) -> Operands:
        """Operands of this call with the alignments that TMA needs for A and B: those of addresses and strides."""
        return self.all_operands("ab")

    @cached_property
    def problem(self) -> Problem:
        """Problem of this call: M, N, K, L and operands, with the alignments that loads by threads need."""
        return Problem(*self.extents, self.all_operands(None))

    @property
    def gated(self) -> str:
        """Return how gate and up columns lie in B for a gated epilogue: "halves" or "pairs"; "" for any other epilogue.

        With "halves", the left half of B has the gate columns and the right half the up columns. With "pairs", each
        gate column is followed by its up column.
        """
        return self.ending.epilogue.gated if self.ending is not None else ""

    @property
    def swap_ab(self) -> bool | None:
        """Return False if A and B must not be swapped: gate and up, or a block of columns, would be rows. Else None."""
        quantizes = self.ending is not None and self.ending.epilogue.quantized is not None
        return False if self.gated or quantizes else None

    @property
    def needs_order(self) -> bool:
        """Return True if this call is batch invariant and K > 0: its plan must add products in a fixed order."""
        return self.batch_invariant and self.extents[2] > 0

    @cached_property
    def weight(self) -> Weight:
        """Return what the order of accumulation of this batch-invariant call depends on: B, types, device.

        The number of rows of A is left out.
        """
        return Weight.of(self.boxed, *self.extents[1:3], self.arch, self.device, self.accumulate)

    @cached_property
    def served_rows(self) -> ServedRows:
        """Return the order of accumulation for all numbers of rows of A, with the fastest recipes that have this order.

        A recipe is a named set of options that gives a plan. The result is cached in this process and on the disk.

        raises   PlanError if no order is possible for all numbers of rows
        """
        weight = self.weight
        of = functools.partial(restored, weight)
        return _remembered("order", _SERVED, weight, of, lambda: served_rows(weight), lambda served: served.recipes)

    @cached_property
    def orders(self) -> Orders:
        """Return an object that finds the order in which plans for this call add products along K.

        Its method `of` takes a recipe, i.e. a named set of options that gives a plan. The order matters if the call is
        batch invariant.
        """
        return Orders(self.boxed, self.problem.operands, self.weight, self.has_c)

    @cached_property
    def request(self) -> Request:
        """Return all conditions for the choice of this call's plan except the extents, as kernel families take them."""
        return Request(
            self.boxed,
            self.problem.operands,
            self.arch,
            self.device,
            self.accumulate,
            self.swap_ab,
            self.has_c,
        )

    def ranked(self) -> Iterator[Candidate]:
        """Yield the candidates (named plan options with predicted times) that can solve this problem, fastest first.

        If the call is batch invariant, only candidates with the fixed order of accumulation are yielded.
        """
        candidates = ranked_for(self.request, self.problem)
        if not self.needs_order:
            return candidates
        return (candidate for candidate in candidates if self.has_order(candidate.recipe))

    def has_order(self, recipe: Recipe) -> bool:
        """Return True if a recipe (named plan options) gives a plan with the order that batch-invariant calls use."""
        return self.orders.of(recipe) == self.served_rows.order

    def compared(self) -> list[Candidate]:
        """Return the candidates (plan options with times) that take at most twice the least time, fastest first."""
        candidates = self.ranked()
        first = next(candidates, None)
        if first is None:
            return []
        return [first, *takewhile(lambda candidate: candidate.us <= first.us * _NEAR, candidates)]

    def times(self, recipes: Numbering, rows: Sequence[int]) -> Times:
        """Return the numbers and times of the candidates that `ranked` yields, for several numbers of rows of A.

        recipes   gives recipes (named plan options) their numbers
        rows      numbers of rows of A
        """
        problems = [replace(self.problem, m=count) for count in rows]
        times = recipes.times(problems, lambda problem: families(self.request, problem))
        if not self.needs_order:
            return times
        numbers, places = np.unique(times.numbers, return_inverse=True)
        return times.where(np.array([self.has_order(recipes[number]) for number in numbers.tolist()], bool)[places])

    def in_order(self) -> Iterator[Recipe]:
        """Yield all recipes (named plan options) with the order of accumulation that batch-invariant calls use.

        The recipes for this number of rows come first, by predicted time. They are followed by recipes that are best
        for other numbers of rows.
        """
        yield from (candidate.recipe for candidate in self.ranked())
        yield from self.served_rows.nearest(self.extents[0])

    def served(self, recipe: Recipe, rows: int | None = None, any_epilogue: bool = False) -> Decision | None:
        """Return the plan that a recipe (named plan options) gives for this call; None if the plan is not suitable.

        The result is None in three cases: the plan breaks a rule, e.g. of alignment; it is expected to spill registers
        or be slow with the call's epilogue; or the call is batch invariant, and the plan does not have the fixed order
        of accumulation.

        recipe         named options that the plan is built from
        rows           number of rows of D that the judgement of the epilogue assumes; None: M of this call
        any_epilogue   True to accept a plan that is expected to spill or be slow with the epilogue
        returns        the plan, with the epilogue, and its problem; or None
        """
        plan = self._suited(recipe, rows, any_epilogue)
        return None if plan is None else _decision(plan, recipe.swap_ab, self.problem)

    def is_served(self, recipe: Recipe, rows: int | None = None) -> bool:
        """Return True if `served` returns a plan for a recipe (named plan options) and a number of rows of D."""
        return self._suited(recipe, rows, False) is not None

    def _suited(self, recipe: Recipe, rows: int | None, any_epilogue: bool) -> GemmPlan | None:
        """Return the plan that `served` returns, not marked for swap A/B yet; None if the plan is not suitable."""
        problem = self.problem
        try:
            plan = built(recipe, self.boxed, problem.operands, problem, self.arch, self.device, self.has_c)
            solved = problem.transposed if recipe.swap_ab else problem
            if self.needs_order and row_independent_order(plan, solved, recipe.swap_ab) != self.served_rows.order:
                return None
            if self.ending is not None:
                suits = any_epilogue or self.ending.can_implement(plan, problem.m if rows is None else rows)
                return self.ending.on(plan, recipe.swap_ab) if suits else None
        except CutegemmError:
            return None
        return plan

    def of_rows(self, rows: int) -> Question:
        """Return this description of a call for an A with another number of rows; strides and alignments stay."""
        return replace(self, extents=(rows, *self.extents[1:]))

    @property
    def but_rows(self) -> tuple[Any, ...]:
        """Return a hashable key of this call without the number of rows of A; all calls of one layer share the key."""
        ending = self.ending
        epilogue = None if ending is None else (ending.epilogue, tuple(ending.aux.items()))
        operands = (self.boxed, self.problem.operands)
        options = (self.has_c, epilogue, self.accumulate, self.arch, self.device, self.batch_invariant)
        return (operands, *self.extents[1:], *options)


@dataclass(frozen=True)
class Decision:
    """The plan that is chosen for a `gemm` call, with the problem that it solves.

    plan      the plan that the kernel implements; it may swap A and B
    problem   the problem that the plan solves: D^T = B^T A^T if it swaps A and B
    """

    plan: GemmPlan
    problem: Problem


@functools.lru_cache(maxsize=4096)
def _swapped(plan: GemmPlan) -> GemmPlan:
    """Return a plan that was built for the transposed problem, marked as one that computes D^T = B^T A^T."""
    return plan.with_(swap_ab=True)


def _decision(plan: GemmPlan, swap_ab: bool, problem: Problem) -> Decision:
    """Return a plan together with the problem that it solves, which is transposed if the plan swaps A and B.

    plan      plan for `problem`, or for the transposed problem if `swap_ab`
    swap_ab   True if the plan was built for D^T = B^T A^T
    problem   the problem before swapping
    """
    if not swap_ab:
        return Decision(plan, problem)
    return Decision(plan if plan.swap_ab else _swapped(plan), problem.transposed)


def decide(question: Question, wanted: GemmPlan | Recipe | None = None, varying_rows: bool = False) -> Decision:
    """Return the plan for a call of `gemm`, and the problem that the plan solves.

    If a library of compiled kernels is loaded, its fastest plan is chosen if its predicted time is close to the least
    of all plans.

    question       all that the choice depends on: types, extents, alignments, epilogue, device
    wanted         the plan that the caller asks for, or its recipe (named options that give a plan for given
                   operands); None: the plan with the lowest predicted time
    varying_rows   True to choose among a few recipes that cover all numbers of rows, so that few kernels are compiled
    raises         PlanError if no plan can solve the problem, or if `wanted` cannot
    """
    ending, problem = question.ending, question.problem
    if question.needs_order:
        return _decide_in_order(question, wanted, varying_rows)
    if wanted is None:
        decision = prebuilt(question)
        if decision is not None:
            return decision
    if wanted is None and varying_rows:
        decision = _fastest(question, frozenset(few_of(question)))
        if decision is not None:
            return decision
    if wanted is None:
        recipe, plan = _chosen(question)
        swap_ab = recipe.swap_ab
    elif isinstance(wanted, Recipe):
        swap_ab = wanted.swap_ab
        operands = question.all_operands(wanted.boxes(question.boxed))
        plan = wanted.build(operands, question.has_c, question.arch, question.device)
    else:
        swap_ab, operands = wanted.swap_ab, question.all_operands(_loaded_by_box(wanted))
        operands = operands.transposed if swap_ab else operands
        plan = check_plan(wanted, operands, problem, question.has_c, ending is not None)
    if ending is not None:
        try:
            plan = ending.on(plan, swap_ab)
        except PlanError:
            other = _fastest(question) if wanted is None else None
            if other is None:
                raise
            return other
    return _decision(plan, swap_ab, problem)


def _decide_in_order(question: Question, wanted: GemmPlan | Recipe | None, varying_rows: bool) -> Decision:
    """Return the plan for a batch-invariant call: one that adds products in the order fixed for N, K and the types.

    With this order, a row of D has the same bits whatever the number of rows. Plans whose epilogue is slow or spills
    registers are used only if no other plan has this order. If no plan for this number of rows has it, a plan for
    another number of rows is used.

    question       all that the choice depends on: types, extents, alignments, epilogue, device
    wanted         the plan that the caller asks for, or its recipe (named plan options); None to choose one
    varying_rows   True to choose among a few recipes that cover all numbers of rows
    raises         PlanError if no plan with this order can compute the call, if `wanted` has another order, or if the
                   epilogue adds the elements of a row
    """
    subject = f"gemm(batch_invariant=True) of {question.problem}"
    ending, order = question.ending, question.served_rows.order
    if ending is not None and ("n",) in ending.reduced_along:
        rule = "the epilogue reduces rows, whose elements other plans add in another order. Reduce D by another kernel."
        raise PlanError(subject, [rule])
    if wanted is not None:
        decision = decide(replace(question, batch_invariant=False), wanted)
        own = row_independent_order(decision.plan, decision.problem)
        if own != order:
            have = own or "which depends on the number of rows, as K is split among clusters"
            rule = f"plan {decision.plan.name} has the order of accumulation {have}. Leave out plan: {order} is needed."
            raise PlanError(subject, [rule])
        return decision
    decision_or_none = prebuilt(question)
    if decision_or_none is None and varying_rows:
        decision_or_none = _fastest(question, frozenset(few_of(question)))
    if decision_or_none is not None:
        return decision_or_none
    decision_or_none = _fastest(question)
    others = (question.served(recipe, any_epilogue=True) for recipe in question.in_order())
    decision_or_none = decision_or_none or next((each for each in others if each is not None), None)
    if decision_or_none is None:
        rule = f"no plan with this weight's order of accumulation ({order}) serves these operands and this epilogue."
        raise PlanError(subject, [f"{rule} Leave out batch_invariant, or pass contiguous, aligned tensors."])
    return decision_or_none


def prebuilt(question: Question) -> Decision | None:
    """Return the plan with the lowest predicted time among those that a loaded library contains a compiled kernel for.

    If the DSL is installed, other plans could be compiled. The plan is then returned only if it takes at most 10%
    (`MOST_LOSS`) longer than the fastest plan of all, by predicted time.

    question   all that the choice depends on: types, extents, alignments, epilogue, device
    returns    None without a library, or if no plan in it is suitable
    raises     UnsupportedError if CUTEGEMM_LIBRARY names a library that cannot be used
    """
    names = exported.recipes(question.arch)
    if not names:
        return None
    most = MOST_LOSS if has_dsl() else inf
    found = fastest_built(question, names, lambda plan: exported.loaded(plan, question.arch) is not None, most)
    return None if found is None else found[0]


def fastest_built(
    question: Question, names: Container[str], is_built: Callable[[GemmPlan], bool], most: float
) -> tuple[Decision, float] | None:
    """Return the plan with the lowest predicted time among those with a compiled kernel, and how much slower it is.

    question   all that the choice depends on: types, extents, alignments, epilogue, device
    names      names of the recipes (named options of plans) that may have kernels; others are skipped without building
               plans
    is_built   function that returns True for a plan with a compiled kernel
    most       largest accepted slowdown: predicted time of the plan / lowest predicted time of all plans, compiled or
               not
    returns    (plan with its problem, slowdown); None if no plan with a compiled kernel is fast enough
    """
    least: float | None = None
    for candidate in question.ranked():
        if least is not None and candidate.us > least * most:
            break
        is_named = str(candidate.recipe) in names
        if least is not None and not is_named:
            continue
        decision = question.served(candidate.recipe)
        if decision is None:
            continue
        least = candidate.us if least is None else least
        if is_named and is_built(decision.plan):
            return decision, candidate.us / least
    return None


def _fastest(question: Question, among: frozenset[Recipe] | None = None) -> Decision | None:
    """Return the plan with the lowest predicted time that can solve a `gemm` call's problem; None if none can.

    question   all that the choice depends on: types, extents, alignments, epilogue, device
    among      the recipes (named options that give a plan for given operands) to consider; None: all
    """
    for candidate in question.ranked():
        if among is None or candidate.recipe in among:
            decision = question.served(candidate.recipe)
            if decision is not None:
                return decision
    return None


def few_of(question: Question) -> tuple[Recipe, ...]:
    """Return the few recipes that a layer uses for all numbers of rows of its input, so that few kernels are compiled.

    A recipe is a named set of options that gives a plan for given operands. Together, the recipes are nearly as fast as
    the best plan for each number of rows. The result is cached in this process and on the disk.

    question   types, extents, alignments and epilogue of the layer; its number of rows is ignored
    """
    return _remembered("few", _FEW, question.but_rows, tuple, lambda: _few(question), lambda recipes: recipes)


def _remembered(
    kind: str,
    known: dict[Any, _Value],
    key: Any,
    restore: Callable[[list[Recipe]], _Value | None],
    compute: Callable[[], _Value],
    recipes_of: Callable[[_Value], Iterable[Recipe]],
) -> _Value:
    """Return a value made from recipes (named plan options), from a cache if possible; else compute and cache it.

    kind         folder of the cache on the disk
    known        cache of this process: key -> value
    key          what the value depends on; its repr is the key on the disk
    restore      function that makes the value from the recipes that the disk has; it returns None if they do not fit
    compute      function that computes the value
    recipes_of   function that returns the recipes of a value, to write them to the disk
    """
    if key not in known:
        if len(known) >= _MOST_LAYERS:
            known.clear()
        names = recall.remembered(kind, repr(key))
        value = None if names is None else restore([recipe_named(str(name)) for name in names])
        if value is None:
            value = compute()
            recall.remember(kind, repr(key), [str(recipe) for recipe in recipes_of(value)])
        known[key] = value
    return known[key]


def _few(question: Question) -> tuple[Recipe, ...]:
    """Choose the few recipes (named plan options) that a layer uses for all numbers of rows of its input.

    Only these are compiled. Together they are nearly as fast as the best plan for each number of rows. Recipes whose
    plans cannot have the layer's epilogue are excluded. Nothing is cached.

    question   types, extents, alignments and epilogue of the layer; its number of rows is ignored
    """
    recipes, sampled = Numbering(), rows.looked_at()
    times = question.times(recipes, sampled).within(_NEAR)
    return rows.few(sampled, times, recipes, can_implement=lambda recipe: question.is_served(recipe, rows=1))


def _loaded_by_box(plan: GemmPlan) -> str | None:
    """Return the names of the caller's matrices that a plan loads by TMA, such as "ab"; None if threads load all."""
    if not isinstance(plan.a.load, TmaBox):
        return None
    packed = [repack.name for repack in plan.repacks]
    boxed = "".join([name for name in "ab" if name not in packed])
    return boxed.translate(SWAPPED) if plan.swap_ab else boxed


def _chosen(question: Question) -> tuple[Recipe, GemmPlan]:
    """Return the recipe (named plan options) with the least predicted time, and its plan without the call's epilogue.

    Recipes that can implement the epilogue come first. With a gated epilogue, A and B are not swapped.

    question   all that the choice depends on: types, extents, alignments, epilogue, device
    """
    ending, problem = question.ending, question.problem
    choose = functools.partial(
        choose_recipe,
        question.boxed,
        problem,
        question.arch,
        question.device,
        question.has_c,
        question.accumulate,
        by_threads=problem.operands,
    )
    if ending is None:
        return choose()
    if not question.gated:
        of_rows = functools.partial(ending.can_implement, rows=problem.m)
        return choose(can_implement=of_rows, swap_ab=question.swap_ab)
    for can_implement in (lambda plan: ending.fits(plan) and ending.can_implement(plan, problem.m), ending.fits):
        recipe_and_plan = choose(can_implement=can_implement, swap_ab=False)
        if can_implement(recipe_and_plan[1]):
            break
    return recipe_and_plan
