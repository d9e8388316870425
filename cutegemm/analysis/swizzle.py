"""Search for the smallest swizzle or padding under which all accesses of a buffer are free of bank conflicts.

If TMA or wgmma access the buffer, the candidates are the layouts that they support: the four shared-memory atoms,
tiled, with the widest rows first. Else they are the plain layout, swizzles of it, and paddings of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cutegemm.analysis.accesses import Access, shared_accesses
from cutegemm.analysis.shared import DEFAULT_RULES, Rules, Wavefronts
from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, size, tile_to_shape
from cutegemm.machine.arch import SMEM_BANK_BYTES, SMEM_BANKS
from cutegemm.tile.smem_atoms import KINDS, smem_atom

if TYPE_CHECKING:
    from cutegemm.dtypes import DType
    from cutegemm.plan.plan import GemmPlan

HARDWARE_OPS = ("tma", "wgmma")
_ROUND_BYTES = SMEM_BANKS * SMEM_BANK_BYTES  # addresses at this distance share a bank


@dataclass(frozen=True)
class Candidate:
    """A layout to try for a tile in shared memory, with the wavefronts that each access to the tile takes with it.

    layout        layout of a tile of A, B or D, e.g. (bM, bK) for A
    how           description: "plain", "swizzle S<3,3,3>", "padding of 4 elements", "128B atom"
    extra_bytes   bytes of padding
    costs         for each access, such as "read A", its wavefronts and bank conflicts; None if the layout allows only
                  narrower vectors than the plain layout
    """

    layout: Layout | ComposedLayout
    how: str
    extra_bytes: int
    costs: tuple[Wavefronts | None, ...]

    @property
    def is_free(self) -> bool:
        """True if no access to the shared-memory tile, such as the writes and reads of A, has bank conflicts.

        This holds for the layout that this object describes. An access that gets narrower vectors counts as False.
        """
        return all(cost is not None and cost.conflicts == 0 for cost in self.costs)

    @property
    def wavefronts(self) -> int:
        """Sum of the shared-memory wavefronts of all accesses to the tile, such as the writes and reads of A.

        They are those with the layout that this object describes.
        """
        return sum(cost.wavefronts for cost in self.costs if cost is not None)


@dataclass(frozen=True)
class SwizzleSearch:
    """Holds what a search for a shared-memory layout without bank conflicts has found.

    swizzle   the smallest swizzle without conflicts, or the plain layout if it has none; None if all swizzles conflict
    padding   the smallest padding without conflicts; None if every padding conflicts
    least     the layout with the fewest wavefronts of those with full vector width; None if there is none
    reason    why all tried layouts have conflicts; "" if one has none
    tried     number of candidates that were evaluated
    """

    swizzle: Candidate | None
    padding: Candidate | None
    least: Candidate | None
    reason: str
    tried: int

    @property
    def best(self) -> Candidate | None:
        """The swizzle that this search has found, else the padding; None if every candidate conflicts."""
        return self.swizzle or self.padding


def search_swizzle(
    accesses: Sequence[Access],
    tile: tuple[int, int],
    dtype: DType,
    major: str,
    *,
    hardware: bool | None = None,
    rules: Rules = DEFAULT_RULES,
) -> SwizzleSearch:
    """Search for the smallest swizzle and the smallest padding without bank conflicts in any access of a buffer.

    accesses   accesses to the buffer; conflicts at the sources of cp.async do not count
    tile       (extent along M or N, bK), or (bM, bN)
    dtype      type of the elements
    major      "mn" if the first mode is contiguous in shared memory, "k" if the second mode is
    hardware   True if only layouts that TMA and wgmma support are candidates; None: True if TMA or wgmma makes an
               access
    rules      model of shared memory: which groups of lanes are served together

    >>> from cutegemm.dtypes import bf16
    >>> from cutegemm.analysis.accesses import core_matrices
    >>> rows = Access("read A", "a", "ldmatrix", core_matrices((64, 64), "k", 16), 16, 128, "k-tile")
    >>> search_swizzle([rows], (64, 64), bf16, "k").best.how
    'swizzle S<3,3,3>'
    """
    only_hardware = any(a.op in HARDWARE_OPS for a in accesses) if hardware is None else hardware
    shared = [replace(a, sources=None) for a in accesses]
    plain = _plain(tile, major)
    widths = [access.width(plain.offsets()) for access in shared]
    swizzle = padding = least = None
    tried: list[Candidate] = []
    for how, layout, extra in _candidates(tile, dtype, major, only_hardware):
        if (swizzle is not None and extra == 0) or padding is not None:
            continue
        costs = tuple([_cost(access, layout, width, rules) for access, width in zip(shared, widths, strict=True)])
        candidate = Candidate(layout, how, extra, costs)
        tried.append(candidate)
        if None not in costs and (least is None or candidate.wavefronts < least.wavefronts):
            least = candidate
        if candidate.is_free and extra == 0:
            swizzle = candidate
        elif candidate.is_free:
            padding = candidate
    failed = swizzle is None and padding is None
    return SwizzleSearch(swizzle, padding, least, _reason(shared, tried) if failed else "", len(tried))


def search_plan(plan: GemmPlan, buffer: str, rules: Rules = DEFAULT_RULES) -> SwizzleSearch:
    """Search for a shared-memory layout without bank conflicts for a buffer of a plan, keeping its majorness.

    buffer   "a", "b" or "d"
    rules    model of shared memory: which groups of lanes are served together
    raises   LayoutError if the plan does not have the buffer in shared memory

    >>> from cutegemm.build import Shared, simt_plan
    >>> search_plan(simt_plan(block=(128, 128, 8), shared_a=Shared("mn", pad=0)), "a").best.how
    'swizzle S<1,4,5>'
    """
    searched = next((each for each in plan.buffers if each.name == buffer), None)
    if searched is None:
        raise LayoutError(f"search_plan: the plan {plan} does not have {buffer.upper()} in shared memory.")
    accesses = [a for a in shared_accesses(plan) if a.buffer == buffer]
    by_tma, major = buffer == "d" and plan.store.stored_by_tma, smem_major(searched.layout)
    return search_swizzle(accesses, searched.tile, searched.dtype, major, hardware=by_tma or None, rules=rules)


def smem_major(layout: Layout | ComposedLayout) -> str:
    """Return which mode of a tile is contiguous in shared memory: "mn" for the first, "k" for the second."""
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    return "mn" if 1 in outer[0].flat()[1] else "k"


def _plain(tile: tuple[int, int], major: str, pad: int = 0) -> Layout:
    """Return the layout of a tile in shared memory without swizzle, with unused elements (padding) after each row.

    tile    extents of the two modes of the tile
    pad     unused elements after each row
    major   "mn" if the first mode is contiguous, "k" if the second mode is
    """
    return Layout(tile, (1, tile[0] + pad) if major == "mn" else (tile[1] + pad, 1))


def _candidates(
    tile: tuple[int, int], dtype: DType, major: str, hardware: bool
) -> Iterator[tuple[str, Layout | ComposedLayout, int]]:
    """Yield (description, layout, extra bytes) of the shared-memory layouts to try, the preferred ones first.

    tile       (extent along M or N, bK), or (bM, bN)
    dtype      type of the elements
    major      "mn" if the first mode is contiguous in shared memory, "k" if the second mode is
    hardware   True for only those layouts that TMA and wgmma support
    """
    if hardware:
        for kind in reversed(KINDS):  # the widest rows first: they give the largest TMA boxes
            atom = smem_atom(dtype, major, kind)
            if tile[0] % size(atom, mode=[0]) == 0 and tile[1] % size(atom, mode=[1]) == 0:
                yield f"{kind} atom", tile_to_shape(atom, tile, (0, 1)), 0
        return
    plain = _plain(tile, major)
    yield "plain", plain, 0
    unit = dtype.bits // 8
    for bits, base, shift in _swizzles(plain.size(), unit):
        swizzle = Swizzle(bits, base, shift)
        yield f"swizzle {swizzle}", ComposedLayout(swizzle, 0, plain), 0
    rows = tile[1] if major == "mn" else tile[0]
    for pad in range(1, _ROUND_BYTES // unit):
        yield (
            f"padding of {pad} element{'' if pad == 1 else 's'}",
            _plain(tile, major, pad),
            pad * rows * unit,
        )


def _swizzles(elements: int, unit: int) -> Iterator[tuple[int, int, int]]:
    """Yield (bits, base, shift) of swizzles on element offsets that permute whole elements among the banks.

    Swizzles with fewer bits come first, then those that leave wider vectors contiguous.

    elements   number of elements of the tile
    unit       bytes of an element
    """
    top = (_ROUND_BYTES // unit).bit_length() - 1  # bits of an offset that select the bank and the byte in it
    reach = (elements - 1).bit_length()
    for bits in range(1, top + 1):
        for base in range(top - bits, -1, -1):
            for shift in range(bits, reach - base):
                if base + shift + bits <= reach:
                    yield bits, base, shift


def _cost(access: Access, layout: Layout | ComposedLayout, width: int, rules: Rules) -> Wavefronts | None:
    """Return the wavefronts of a shared-memory access with a layout of its tile, to compare layouts.

    The result is None if the layout makes the vectors of the access narrower, or not contiguous.

    width   bits of the access with the plain layout
    rules   model of shared memory: which groups of lanes are served together
    """
    try:
        if access.bits is None and access.width(layout.offsets()) < width:
            return None
        return access.cost(layout, rules)
    except LayoutError:
        return None


def _reason(accesses: Sequence[Access], tried: Sequence[Candidate]) -> str:
    """Return the reason, as text, why every tried layout has bank conflicts.

    One access may conflict by itself with every layout, or two accesses together, or more of them.

    accesses   accesses to the buffer
    tried      the layouts with their costs, which all have conflicts
    """
    free = [{i for i, c in enumerate(t.costs) if c is not None and c.conflicts == 0} for t in tried]
    for i, access in enumerate(accesses):
        if not any(i in f for f in free):
            return f"{access.name} conflicts by itself under each of the {len(tried)} layouts tried."
    for i, first in enumerate(accesses):
        for j in range(i + 1, len(accesses)):
            if not any(i in f and j in f for f in free):
                return (
                    f"{first.name} and {accesses[j].name} are each free of conflicts in some layout, but "
                    f"together in none of the {len(tried)} tried."
                )
    return (
        f"any two accesses have a layout without conflicts, but none of the {len(tried)} layouts tried is free of "
        f"conflicts for all {len(accesses)}."
    )
