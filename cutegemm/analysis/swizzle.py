"""The smallest swizzle or padding under which every access of a buffer is free of bank conflicts at once.

Where TMA or wgmma touch the buffer, the candidates are the layouts that they know: the four shared-memory
atoms, tiled, the one with the widest rows first. Elsewhere they are the plain layout, the swizzles of it, and
paddings of its rows.
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
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.dtypes import DType
    from cutegemm.plan.plan import GemmPlan

HARDWARE_OPS = ("tma", "wgmma")
_ROUND_BYTES = SMEM_BANKS * SMEM_BANK_BYTES  # all banks once: addresses so far apart share a bank


@dataclass(frozen=True)
class Candidate:
    """A layout of the tile and what the accesses cost in it.

    layout        (extent, bK), or (bM, bN)
    how           in words: "plain", "swizzle S<3,3,3>", "padding of 4 elements", "128B atom"
    extra_bytes   of shared memory beyond the elements
    costs         by access, in the order given; None where the layout tears an access apart
    """

    layout: Layout | ComposedLayout
    how: str
    extra_bytes: int
    costs: tuple[Wavefronts | None, ...]

    @property
    def is_free(self) -> bool:
        """Whether no access conflicts."""
        return all(cost is not None and cost.conflicts == 0 for cost in self.costs)

    @property
    def wavefronts(self) -> int:
        """Of all accesses together."""
        return sum(cost.wavefronts for cost in self.costs if cost is not None)


@dataclass(frozen=True)
class SwizzleSearch:
    """What a search found.

    swizzle    the smallest candidate without conflicts that takes no memory, or None
    padding    the smallest padding without conflicts, or None
    least      of all candidates that serve every access, the one with the fewest wavefronts
    reason     why there is none, where there is none
    tried      candidates that were looked at
    """

    swizzle: Candidate | None
    padding: Candidate | None
    least: Candidate | None
    reason: str
    tried: int

    @property
    def best(self) -> Candidate | None:
        """The swizzle, else the padding."""
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
    """The smallest swizzle and the smallest padding that serve all accesses of a buffer.

    accesses   to the buffer; what their sources cost in global memory is left out
    tile       (extent along M or N, bK), or (bM, bN)
    dtype      of the elements
    major      "mn" where the first mode is contiguous in shared memory, "k" where the second is
    hardware   whether only the layouts of TMA and wgmma are admitted; by the accesses where left out

    >>> from cutegemm.dtypes import bf16
    >>> from cutegemm.analysis.accesses import core_matrices
    >>> rows = Access("read A", "a", "ldmatrix", core_matrices((64, 64), "k", 16), 16, 128, "k-tile")
    >>> search_swizzle([rows], (64, 64), bf16, "k").best.how
    'swizzle S<3,3,3>'
    """
    only_hardware = any(a.op in HARDWARE_OPS for a in accesses) if hardware is None else hardware
    parts = [replace(a, sources=None) for a in accesses]
    plain = _plain(tile, major)
    widths = [part.width(plain.offsets()) for part in parts]
    swizzle = padding = least = None
    tried: list[Candidate] = []
    for how, layout, extra in _candidates(tile, dtype, major, only_hardware):
        if (swizzle is not None and extra == 0) or padding is not None:
            continue
        costs = tuple([_cost(part, layout, width, rules) for part, width in zip(parts, widths, strict=True)])
        found = Candidate(layout, how, extra, costs)
        tried.append(found)
        if None not in costs and (least is None or found.wavefronts < least.wavefronts):
            least = found
        if found.is_free and extra == 0:
            swizzle = found
        elif found.is_free:
            padding = found
    none = swizzle is None and padding is None
    return SwizzleSearch(swizzle, padding, least, _reason(parts, tried) if none else "", len(tried))


def search_plan(plan: GemmPlan, buffer: str, rules: Rules = DEFAULT_RULES) -> SwizzleSearch:
    """The search for a buffer of a plan, "a", "b" or "d", with the majorness that it has there.

    raises   LayoutError where the plan keeps no such buffer in shared memory
    """
    rows, columns, bk = plan.loaded_tile
    buffers: dict[str, tuple[tuple[int, int], Layout | ComposedLayout | None]] = {
        "a": ((rows, bk), plan.a.smem),
        "b": ((columns, bk), plan.b.smem),
        "d": (plan.cta_tile[:2] if plan.epi_stages is None else plan.epi_stages.epi_tile, plan.smem_d),
    }
    tile, layout = buffers.get(buffer, ((0, 0), None))
    if layout is None:
        raise LayoutError(f"search_plan: the plan {plan} keeps no {buffer.upper()} in shared memory.")
    accesses = [a for a in shared_accesses(plan) if a.buffer == buffer]
    leaves_by_tma = buffer == "d" and plan.epi_stages is not None and isinstance(plan.epi_stages.store, TmaBox)
    dtype, major = getattr(plan.operands, buffer).dtype, smem_major(layout)
    return search_swizzle(accesses, tile, dtype, major, hardware=leaves_by_tma or None, rules=rules)


def smem_major(layout: Layout | ComposedLayout) -> str:
    """Which mode of a tile is contiguous in shared memory: "mn" for the first, "k" for the second."""
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    return "mn" if 1 in outer[0].flat()[1] else "k"


def _plain(tile: tuple[int, int], major: str, pad: int = 0) -> Layout:
    return Layout(tile, (1, tile[0] + pad) if major == "mn" else (tile[1] + pad, 1))


def _candidates(
    tile: tuple[int, int], dtype: DType, major: str, hardware: bool
) -> Iterator[tuple[str, Layout | ComposedLayout, int]]:
    """(in words, layout, extra bytes), in the order of preference."""
    if hardware:
        for kind in reversed(KINDS):  # the widest rows first: one box of TMA then carries the most
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
    """(bits, base, shift) in elements that move whole elements among the banks; the fewest bits first, then
    those that keep the widest vectors together."""
    top = (_ROUND_BYTES // unit).bit_length() - 1  # bits of an offset that say where in the banks it lies
    reach = (elements - 1).bit_length()
    for bits in range(1, top + 1):
        for base in range(top - bits, -1, -1):
            for shift in range(bits, reach - base):
                if base + shift + bits <= reach:
                    yield bits, base, shift


def _cost(part: Access, layout: Layout | ComposedLayout, width: int, rules: Rules) -> Wavefronts | None:
    """What it costs, or None where the layout narrows or tears it."""
    try:
        if part.bits is None and part.width(layout.offsets()) < width:
            return None
        return part.cost(layout, rules)
    except LayoutError:
        return None


def _reason(parts: Sequence[Access], tried: Sequence[Candidate]) -> str:
    free = [{i for i, c in enumerate(t.costs) if c is not None and c.conflicts == 0} for t in tried]
    for i, part in enumerate(parts):
        if not any(i in f for f in free):
            return f"{part.name} conflicts by itself under each of the {len(tried)} layouts tried."
    for i, first in enumerate(parts):
        for j in range(i + 1, len(parts)):
            if not any(i in f and j in f for f in free):
                return (
                    f"{first.name} and {parts[j].name} are each free of conflicts in some layout, but "
                    f"together in none of the {len(tried)} tried."
                )
    return f"every two accesses have a layout without conflicts; all {len(parts)} have none of {len(tried)}."
