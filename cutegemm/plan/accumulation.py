"""The order of additions to an element of D, as a value that can be compared.

Floating-point addition is not associative: two plans give the same bits for an element of D only if they add its
products in the same order. `GemmPlan.accumulation_order` returns this order. Two plans with equal orders give the same
accumulators, whatever their tiles, stages and schedules are.

An order is made of chains and sums. A `Chain` is one accumulator: MMAs add the k-blocks of its runs of k to it, in
ascending order of k. A `Sum` adds chains, or sums, in f32 (f64), from the first to the last. So an unsplit GEMM is one
chain, split-K is a sum of chains, and sliced-K within a cluster that splits K is a sum of sums.

The order of the additions within one MMA instruction is that of the hardware. `Instruction` holds everything that it
may depend on: see `DEPENDS_ON`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from cutegemm.errors import UnsupportedError
from cutegemm.layout import Layout, composition
from cutegemm.plan.epilogue import Accumulator

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

# The properties of an MMA instruction that the bits of an element may depend on, apart from its kind, its extent of K
# and its types. None of them is listed: the tensor cores of an H100 add the products of an element in the same order
# for all N, wherever A comes from, and also if A and B are swapped (370 comparisons, 2026-11-27). No document says so.
# `python -m docs.evidence instructions` compares them on a GPU; what it found is recorded in
# docs/evidence/data/instructions.json, which a test compares with this set.
DEPENDS_ON: frozenset[str] = frozenset()
PROPERTIES = ("n", "a_source", "swap_ab")

_MOST_SHOWN = 4  # terms of a sum that are printed


@dataclass(frozen=True)
class Instruction:
    """The MMA instruction of a plan, with everything about it that can change the bits of a result.

    kind       "wgmma", "mma" (mma.sync) or "fma"; "any instruction" for integers
    k          extent of the instruction along K: the number of products that it adds at once
    types      element types of the caller's A and B and of the accumulator, such as "bf16 x bf16 -> f32"
    rounding   how f32 operands are rounded to tf32: "rz" (low bits are ignored), "rna" or "rne" (to nearest); "" for
               other types
    further    further properties that change the bits, as (name, value) pairs such as ("n", 128); () at present,
               because none are known
    """

    kind: str
    k: int
    types: str
    rounding: str = ""
    further: tuple[tuple[str, int | str | bool], ...] = ()

    def __str__(self) -> str:
        rounding = f", rounded {self.rounding}" if self.rounding else ""
        further = "".join([f", {name} = {value}" for name, value in self.further])
        return f"{self.kind} of {self.k} k, {self.types}{rounding}{further}"


@dataclass(frozen=True)
class Pattern:
    """Which k an accumulator adds, as a periodic pattern, if it adds only some k-blocks (e.g. one warp in sliced-K).

    A k-block is what one MMA instruction adds. For example, period 8, first 2 and layout (2, 2):(1, 4) select the
    k-blocks (2, 3) and (6, 7) of every 8 k.

    period   number of k after which the selection repeats
    first    first selected k in a period
    layout   (k within an instruction, k-block) -> offset from `first`
    """

    period: int
    first: int
    layout: Layout

    def __str__(self) -> str:
        return f"{self.first} + {self.layout} of each {self.period} k"


@dataclass(frozen=True)
class Chain:
    """The order of the MMAs that add to one accumulator of an element of D.

    runs      ranges (first k, end) in the order of the additions. A range may begin below 0 or end after K; there are
              zeros
    pattern   the k-blocks of these ranges that are added; None: all, in ascending order of k
    """

    runs: tuple[tuple[int, int], ...]
    pattern: Pattern | None = None

    def k_blocks(self, k: int) -> Iterator[tuple[int, ...]]:
        """Yield a tuple of the k that each MMA of this accumulator adds, in the order of execution.

        k   extent of one MMA instruction along K

        >>> list(Chain(((0, 8),)).k_blocks(4))
        [(0, 1, 2, 3), (4, 5, 6, 7)]
        >>> list(Chain(((0, 8),), Pattern(8, 2, Layout((2, 2), (1, 4)))).k_blocks(2))
        [(2, 3), (6, 7)]
        """
        for first, end in self.runs:
            if self.pattern is None:
                for start in range(first, end, k):
                    yield tuple(range(start, start + k))
                continue
            offsets = self.pattern.layout.offsets().reshape((k, -1), order="F")
            for start in range(first, end, self.pattern.period):
                for block in offsets.T:
                    yield tuple((start + self.pattern.first + block).tolist())

    def __str__(self) -> str:
        runs = ", ".join([f"{first}..{end}" for first, end in self.runs[:_MOST_SHOWN]])
        more = f" and {len(self.runs) - _MOST_SHOWN} more" if len(self.runs) > _MOST_SHOWN else ""
        return f"k {runs}{more}" + (f" at {self.pattern}" if self.pattern else "")


@dataclass(frozen=True)
class Sum:
    """A sum of terms from the first to the last, in the description of how an element of D is computed.

    terms     what is added: a `Chain` is one accumulator, a `Sum` is computed first
    factor    what each term is multiplied by before it is added, as text such as "block scales" or "alpha * acc"; ""
              for nothing
    """

    terms: tuple[Total, ...]
    factor: str = ""

    def __str__(self) -> str:
        shown = " + ".join([f"({term})" for term in self.terms[:_MOST_SHOWN]])
        if len(self.terms) > _MOST_SHOWN:
            shown += f" + ... + ({self.terms[-1]}): {len(self.terms)} terms"
        return shown + (f", each multiplied by {self.factor}" if self.factor else "")


Total = Union[Chain, Sum]


@dataclass(frozen=True)
class AccumulationOrder:
    """The order of all additions that a kernel makes for an element of D.

    Two kernels with equal orders give equal bits.

    instruction   the MMA instruction
    totals        one order for each kind of tile of D: a `Chain` (one accumulator) or a `Sum`. There are several only
                  with stream-K, which divides the k-tiles of some tiles. () for integers: their sum wraps around, so
                  that neither its order nor the instruction matters
    """

    instruction: Instruction
    totals: tuple[Total, ...]

    @property
    def is_uniform(self) -> bool:
        """Return whether all elements of D add their products in the same order; False for some stream-K plans."""
        return len(self.totals) <= 1

    def __str__(self) -> str:
        if not self.totals:
            return f"{self.instruction.types}: exact in any order"
        return f"{self.instruction}: {' or, in other tiles, '.join(map(str, self.totals))}"


def joined(runs: list[tuple[int, int]]) -> Runs:
    """Join adjacent ranges (first, end), and leave out empty ones, e.g. [(0, 2), (2, 4), (6, 6)] gives ((0, 4),).

    >>> joined([(0, 64), (64, 128), (128, 128), (192, 256)])
    ((0, 128), (192, 256))
    """
    out: list[tuple[int, int]] = []
    for first, end in runs:
        if first == end:
            continue
        if out and out[-1][1] == first:
            out[-1] = (out[-1][0], end)
        else:
            out.append((first, end))
    return tuple(out)


def added(terms: list[Total], factor: str = "") -> Total:
    """Return the `Sum` of some terms of an accumulation order; a single term without a factor is returned itself.

    terms    accumulators (`Chain`) or sums, in the order of the additions
    factor   what each term is multiplied by before it is added, as text such as "block scales"; "" for nothing
    """
    return terms[0] if len(terms) == 1 and not factor else Sum(tuple(terms), factor)


def accumulation_order(plan: GemmPlan, problem: Problem, swap_ab: bool = False) -> AccumulationOrder:
    """Return in what order a plan's kernel adds the products of an element of D. Equal orders give equal bits.

    problem   the problem with the plan's A and B, i.e. after a swap; its M, N and L matter only with stream-K
    swap_ab   whether the plan will be used for D^T = B^T A^T, although its field `swap_ab` is not set yet
    raises    UnsupportedError if groups of a grouped GEMM divide K, because each has an order of its own
    """
    if plan.operands.groups == "k":
        raise UnsupportedError(
            f"accumulation_order: groups divide K of {plan.name}, and each has its own number of k-tiles. Ask for the "
            "order of a plan without groups, and pass the extents of one group."
        )
    instruction = _instruction(plan, swap_ab or plan.swap_ab)
    if not plan.operands.acc.is_float:
        return AccumulationOrder(Instruction("any instruction", 1, instruction.types), ())
    totals = [_of_divided(plan, problem, pieces) for pieces in _divisions(plan, problem)]
    return AccumulationOrder(instruction, tuple(dict.fromkeys(totals)))


def row_independent_order(plan: GemmPlan, problem: Problem, swap_ab: bool = False) -> AccumulationOrder | None:
    """Return the accumulation order of a plan if it does not depend on M and L, else None.

    With it, a row of D keeps its bits when A gets more rows. None if K is split among clusters. With stream-K the order
    depends on the number of tiles. With split-K, some plans scale the accumulators before they are added, so that the
    order depends on the epilogue too.

    problem   the problem; only its K matters
    swap_ab   whether the plan will be used for D^T = B^T A^T, although its field `swap_ab` is not set yet
    """
    if _splits_k(plan):
        return None
    return accumulation_order(plan, problem, swap_ab)


def _splits_k(plan: GemmPlan) -> bool:
    """Return whether several clusters may share a tile of D, each with some of its k-tiles (e.g. split-K)."""
    return plan.scheduler.split.is_split


def _instruction(plan: GemmPlan, swap_ab: bool) -> Instruction:
    """Return the MMA instruction of a plan as a part of its accumulation order, with the types of the caller's A and B.

    swap_ab   True if the plan's A is the caller's B^T, so that the types change places
    """
    atom = plan.tiled_mma.atom
    a, b = (atom.b_dtype, atom.a_dtype) if swap_ab else (atom.a_dtype, atom.b_dtype)
    kind = "wgmma" if atom.is_of_warpgroup else atom.name.partition(".")[0].partition("_")[0]
    properties: dict[str, int | str | bool] = {
        "n": atom.shape_mnk[1],
        "a_source": str(atom.a_source),
        "swap_ab": swap_ab,
    }
    further = tuple([(name, properties[name]) for name in PROPERTIES if name in DEPENDS_ON])
    rounding = plan.rounding if plan.operands.a.dtype.name == "tf32" else ""
    return Instruction(kind, atom.shape_mnk[2], f"{a} x {b} -> {atom.c_dtype}", rounding, further)


Runs = tuple[tuple[int, int], ...]  # ranges (first, end) of k-tiles, or of k
_Pieces = tuple[Runs, ...]  # for each K split, in order: its ranges of k-tiles


def _divisions(plan: GemmPlan, problem: Problem) -> list[_Pieces]:
    """Return the different ways that a problem's tiles divide their k-tiles among K splits; one if all tiles are alike.

    An entry has, for each K split in order, its ranges (first, end) of k-tiles. For example (((0, 4),), ((4, 8),))
    divides 8 k-tiles into two halves. Only this function and `_splits_k` read how K is split among clusters.
    """
    k_tiles, split = plan.k_tiles(problem), plan.scheduler.split
    if not _splits_k(plan):
        return [(((0, k_tiles),),)]
    if split.splits > 1:  # all tiles alike
        problem = type(problem)(1, 1, problem.k, operands=problem.operands)
    tiles = plan.work(problem).assignment().work_tile
    step, found = split.k_step, dict[int, list[tuple[int, Runs]]]()
    for tile, k_split, first, count in zip(tiles.tile, tiles.k_split, tiles.k_first, tiles.k_count, strict=True):
        runs = joined([(int(first) + i * step, int(first) + i * step + 1) for i in range(int(count))])
        found.setdefault(int(tile), []).append((int(k_split), runs))
    return list(dict.fromkeys([tuple([runs for _, runs in sorted(pieces)]) for pieces in found.values()]))


def _of_divided(plan: GemmPlan, problem: Problem, pieces: _Pieces) -> Total:
    """Return in what order the products of an element are added, for a tile whose k-tiles are divided among K splits.

    pieces   for each K split in order, its ranges (first, end) of k-tiles
    """
    if len(pieces) == 1:
        return _of_cluster(plan, problem, pieces[0])
    head = plan.epilogue.head.expression
    factor = "" if plan.body.has_roles or isinstance(head, Accumulator) else str(head)
    return added([_of_cluster(plan, problem, runs) for runs in pieces], factor)


def _of_cluster(plan: GemmPlan, problem: Problem, runs: Runs) -> Total:
    """Return in what order one K split adds its products: over the CTAs of a cluster, then over the warps of a CTA.

    runs   ranges (first, end) of the k-tiles of this K split
    """
    if plan.cluster_k == 1:
        return _of_cta(plan, problem, runs)
    ((first, end),) = runs or ((0, 0),)  # a plan does not split K by clusters and in another way with gaps
    shares = [plan.k_range(rank, end - first) for rank in range(plan.cluster_k)]
    return added([_of_cta(plan, problem, joined([(first + at, first + at + n)])) for at, n in shares])


def _of_cta(plan: GemmPlan, problem: Problem, runs: Runs) -> Total:
    """Return in what order one CTA adds the products of its k-tiles.

    problem   the problem, whose K decides where the ragged k-tile is. If threads copy, the first k-tile is the ragged
              one, so k counts from below 0
    runs      ranges (first, end) of the k-tiles
    """
    bk = plan.cta_tile[2]
    start = 0 if plan.body.has_roles else problem.k - plan.k_tiles(problem) * bk
    in_k = tuple([(start + first * bk, start + end * bk) for first, end in runs])
    if plan.body.slices_k:
        return added([Chain(in_k, pattern) for pattern in _patterns(plan, plan.body.k_warps)])
    along_k, k = plan.tiled_mma.permutation_mnk[2], plan.tiled_mma.atom.shape_mnk[2]
    if isinstance(along_k, Layout):  # the k of an instruction may not be adjacent
        own = composition(along_k, Layout((k, along_k.size() // k)))
        return Chain(in_k, Pattern(along_k.cosize(), 0, own))
    return plan.body.mainloop.accumulation(plan, in_k)


def _patterns(plan: GemmPlan, warps: int) -> Iterator[Pattern]:
    """Yield, for each warp in order, the k-blocks that it multiplies in sliced-K (the warps of a CTA split K).

    warps   number of warps that split K
    """
    k = plan.tiled_mma.atom.shape_mnk[2]
    along_k = plan.tiled_mma.permutation_mnk[2]
    layout = along_k if isinstance(along_k, Layout) else Layout((k, warps, 1), (1, k, 0))
    own = Layout((layout[0].shape, layout[2].shape), (layout[0].stride, layout[2].stride))
    for warp in range(warps):
        yield Pattern(layout.cosize(), int(layout[1](warp)), own)
