"""Rules for shared-memory layouts: they must agree with the TMA boxes and with what wgmma descriptors can express.

TMA writes a box to contiguous shared memory, row after row, and swizzles the addresses. A wgmma descriptor expresses
one of eight layouts: k-major or mn-major, without a swizzle or with a swizzle of 32, 64 or 128 bytes. The kernels
derive boxes and descriptors from the plan's layout, so all three must agree.

The first two modes of such a layout are the modes of a tile. Before the swizzle, an offset is the sum of a term for
each coordinate. So the rules compare the two modes separately, each by a table of a few hundred offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.dtypes import DType
from cutegemm.layout import ComposedLayout, Layout, Swizzle, product_each
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.plan.shared import SharedLayout
from cutegemm.tile.smem_atoms import KINDS, SMEM_ATOM_ROWS
from cutegemm.tile.tma import TMA_SMEM_ALIGNED_BYTES, TMA_SWIZZLES, TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

_PLAIN = Swizzle(0, 4, 3)  # no swizzle
_CLOSE = 64  # largest ratio of the range of offsets to their number for which a table is used
_MOST_ELEMENTS = 1 << 22  # largest size of a layout, many times the shared memory of an SM
_MOST_REACH = 1 << 62  # offsets below this fit 64 bits, also after a swizzle


@dataclass(frozen=True)
class _Tile:
    """A tile of an operand in shared memory, as the checks of TMA boxes and wgmma descriptors need it.

    name     name of the operand in messages, in capitals
    modes    names of the tile's two modes, such as ("m", "k")
    dtype    element type
    shape    extents of the two modes
    inner    0 or 1: the contiguous mode in global memory
    """

    name: str
    modes: tuple[str, str]
    dtype: DType
    shape: tuple[int, int]
    inner: int

    @property
    def vector(self) -> int:
        """Return the number of elements of the tile's type in 16 bytes."""
        return ACCESS_BITS // self.dtype.bits

    def element(self, inner: int, outer: int) -> str:
        """Return the text for an element, such as "A(m 3, k 8)".

        inner, outer   coordinates along the contiguous mode and along the other mode
        """
        at = (inner, outer) if self.inner == 0 else (outer, inner)
        return f"{self.name}({self.modes[0]} {at[0]}, {self.modes[1]} {at[1]})"


def layout_rule(layout: SharedLayout) -> str | None:
    """Return why an object cannot be a layout of shared memory, as the end of a sentence; None if it can.

    >>> layout_rule(ComposedLayout(Swizzle(3, 3, 3), 8, Layout((8, 64), (64, 1))))
    'begins with the offset 8; expected the offset 0.'
    """
    if isinstance(layout, ComposedLayout):
        if not isinstance(layout.inner, Swizzle):
            return "is a composition with a layout; expected a layout, or a composition with a swizzle."
        if layout.offset != 0:
            return f"begins with the offset {layout.offset}; expected the offset 0."
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    if not outer.is_integral:
        return "has strides that are not integers."
    reach = sum([(extent - 1) * abs(stride) for extent, stride in zip(*outer.flat(), strict=True)])
    if reach >= _MOST_REACH:
        return f"reaches {reach} elements, too many for a 64-bit offset."
    if outer.size() > _MOST_ELEMENTS:
        return f"has {outer.size()} elements, more than any shared memory holds."
    return None


def places(offsets: np.ndarray) -> int:
    """Return the number of distinct values in an array of integer offsets.

    If their range is small, a table of flags is used, which is faster than sorting.
    """
    if not len(offsets):
        return 0
    first = offsets.min()
    span = int(offsets.max() - first) + 1
    if span > _CLOSE * len(offsets):
        return len(np.unique(offsets))
    marks = np.zeros(span, bool)
    marks[offsets - first] = True
    return int(np.count_nonzero(marks))


@lru_cache(maxsize=4096)
def overlapping(name: str, layout: SharedLayout) -> tuple[str, ...]:
    """Return a sentence for each violation: two elements of shared memory at one offset, or negative offsets.

    name     name of the operand, for the messages
    layout   layout of the operand in shared memory
    """
    offsets, out = layout.offsets(), []
    if places(offsets) != len(offsets):
        out.append(f"the shared memory of {name}, {layout}, places two elements at one offset.")
    if len(offsets) and offsets.min() < 0:
        out.append(f"the shared memory of {name}, {layout}, has negative offsets.")
    return tuple(out)


def box_rules(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each shared-memory layout that does not agree with TMA boxes or wgmma descriptors.

    The shapes of the layouts must have been checked before.
    """
    (bm, bn, bk), atom, loaded = plan.loaded_tile, plan.tiled_mma.atom, plan.loaded
    for name, extent, box, layout, operand, source, major in (
        ("A", bm, plan.a.load, plan.a.smem, loaded.a, atom.a_source, atom.a_major),
        ("B", bn, plan.b.load, plan.b.smem, loaded.b, atom.b_source, atom.b_major),
    ):
        number = "AB".index(name)
        step, multiplied = atom.shape_mnk[number], plan.mma_tile[number]
        mode = "mn"[number]
        tile = _Tile(name, (mode, "k"), operand.dtype, (extent, bk), 1 if operand.major == "k" else 0)
        if isinstance(box, TmaBox):
            yield from _misplaced(tile, box.box, box.swizzle, layout)
        if source == "shared":
            if (operand.major == "k") != (major == "k"):
                yield f"{name} is {operand.major}-major in shared memory, but {atom.name} reads it {major}-major."
            else:
                yield from _not_stated(tile, layout, step, atom.shape_mnk[2], atom.name, multiplied)
    for stream in plan.streams[2:]:
        operand = loaded.matrix(stream.name)
        tile = _Tile(stream.name.upper(), (stream.mode, "k"), operand.dtype, stream.tile, int(operand.major == "k"))
        if isinstance(stream.load, TmaBox):
            yield from _misplaced(tile, stream.load.box, stream.load.swizzle, stream.smem)
    if plan.store.layout is not None:
        yield from _d_rules(plan, plan.store.layout)


def _d_rules(plan: GemmPlan, layout: SharedLayout) -> Iterator[str]:
    """Yield a sentence if the shared memory of D does not have the layout that the TMA boxes of D and C write and read.

    layout   the plan's layout of the shared memory of D
    """
    ops, tile_mn = plan.operands, plan.store.tile(plan)
    if product_each(layout.shape) != plan.store.smem_extents(plan):
        return  # reported by the rules of the store
    yield from overlapping("D", layout)
    for name, box in plan.store.boxes:
        stored = "reduce_add" if ops.scattered else "store"
        operand, direction = ops.matrix(name.lower()), {"D": stored, "C": "load"}[name]
        if box.direction != direction or box.dtype != operand.dtype or box.multicast != 1:
            yield f"{name} is copied by {box}; expected a {direction} of {operand.dtype} without multicast."
        if name == "C" and (operand.dtype, operand.major) != (ops.d.dtype, ops.d.major):
            yield (
                f"C, {operand}, is loaded into the epilogue stages of D, {ops.d}; both must have the same type and "
                "majorness."
            )
            continue
        tile = _Tile(name, ("m", "n"), operand.dtype, tile_mn, 1 if operand.major == "n" else 0)
        inner, outer = tile_mn[tile.inner], tile_mn[1 - tile.inner]
        if inner % box.box[0] or outer % box.box[1]:
            yield (
                f"boxes of {box.box[0]} x {box.box[1]} of {name} do not divide an epilogue tile, whose {outer} "
                f"rows have {inner} elements."
            )
        yield from _misplaced(tile, box.box, box.swizzle, layout)


@lru_cache(maxsize=4096)
def _misplaced(tile: _Tile, box: tuple[int, ...], kind: str, layout: SharedLayout) -> tuple[str, ...]:
    """Return a sentence if TMA puts elements of a tile at other offsets than the plan's layout does; () if all agree.

    tile     the tile in shared memory
    box      extents of a box, the contiguous mode first, in elements
    kind     swizzle of the boxes, a key of TMA_SWIZZLES such as "128B"
    layout   the plan's layout of shared memory
    """
    outer, swizzle = _parts(layout)
    width, rows = box
    bits = tile.dtype.bits
    want = Swizzle(TMA_SWIZZLES[kind][0], 4, 3).recast(8, bits)
    along, across = _contributions(outer, tile)
    said = f"the shared memory of {tile.name}, {layout}, does not agree with its TMA boxes of {width} x {rows}"
    said += f" and swizzle {kind!r}"
    do = (
        f"Use a layout that makes each column of boxes {_text_of(tile, width, kind)}, or boxes that agree with "
        "the layout."
    )
    out = []
    if not _same(swizzle, want):
        moved = _first_moved(outer, swizzle, want, tile)
        example = "" if moved is None else f"; {moved}"
        out.append(f"{said}: the layout has the swizzle {swizzle}, the boxes have {want}{example}. {do}")
    inner, other = np.arange(len(along)), np.arange(len(across))
    for which, have, expected in (
        (0, along - along[inner // width * width], inner % width),
        (1, across - across[other // rows * rows], other % rows * width),
    ):
        wrong = np.flatnonzero(have != expected)
        if len(wrong):
            at = int(wrong[0])
            element = tile.element(at, 0) if which == 0 else tile.element(0, at)
            first = at - at % (width, rows)[which]
            corner = tile.element(first, 0) if which == 0 else tile.element(0, first)
            out.append(
                f"{said}: {element} is {int(have[at])} elements after {corner}; in a box it is "
                f"{int(expected[at])}. {do}"
            )
    starts = [along[::width], across[::rows], *[copies.offsets() for copies in _copies(outer)]]
    if any((start * bits % (8 * TMA_SMEM_ALIGNED_BYTES)).any() for start in starts):
        out.append(
            f"the shared memory of {tile.name}, {layout}, has boxes of {width} x {rows} that do not start at a "
            f"multiple of {TMA_SMEM_ALIGNED_BYTES} bytes, which TMA needs."
        )
    return tuple(out)


@lru_cache(maxsize=4096)
def _not_stated(
    tile: _Tile, layout: SharedLayout, rows: int, k: int, instruction: str, multiplied: int | None = None
) -> tuple[str, ...]:
    """Return a violation if no wgmma descriptor can describe a layout of shared memory, else an empty tuple.

    tile         the tile in shared memory
    layout       the plan's layout of it
    rows, k      extents that one instruction reads: M of A or N of B, and K
    instruction  name of the instruction, for the message
    multiplied   number of leading rows of the tile that instructions read; None for all
    source       PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"; CuTe, mma_traits_sm90_gmma.hpp,
                 the canonical layouts of `make_gmma_desc`
    """
    outer, swizzle = _parts(layout)
    bits, vector = tile.dtype.bits, tile.vector
    said = f"no descriptor of {instruction} expresses the shared memory of {tile.name}, {layout}"
    kind = next((k for k, (n, _) in KINDS.items() if _same(swizzle, Swizzle(n, 4, 3).recast(8, bits))), None)
    if kind is None:
        known = ", ".join(str(Swizzle(n, 4, 3).recast(8, bits)) for n, _ in KINDS.values() if n)
        return (f"{said}: its swizzle is {swizzle}; use no swizzle or one of {known}.",)
    row_bytes = KINDS[kind][1]
    row = row_bytes * 8 // bits  # elements in a row of the swizzle pattern
    period = SMEM_ATOM_ROWS * row  # elements after which the pattern repeats
    along, across = _contributions(outer, tile)
    mn, k_table = (across, along) if tile.inner == 1 else (along, across)
    fills_rows = multiplied == rows < len(mn)  # one instruction reads the first rows; the others pad the rows of boxes
    mn = mn[:multiplied]
    if len(mn) % rows or len(k_table) % k:
        return ()  # another rule reports a tile that instructions do not divide
    major = "k" if tile.inner == 1 else "mn"
    of_rows = mn.reshape(-1, rows)  # (instructions, rows)
    of_k = k_table.reshape(-1, k)
    wrong = None
    if major == "k":
        wrong = _steps(of_rows, SMEM_ATOM_ROWS, row) or _steps(of_k, vector if kind == "interleave" else k, 1)
        if wrong is None and kind != "interleave" and (of_k[:, 0] % period + k > row).any():
            wrong = f"the {k} elements along K that an instruction reads cross the end of a row of {row}"
    elif rows % row and not fills_rows:
        wrong = f"the {rows} elements along {tile.modes[0].upper()} that an instruction reads end inside a row of {row}"
    else:
        wrong = _steps(of_rows, row, 1) or _steps(of_k, SMEM_ATOM_ROWS, row)
    if wrong is not None:
        return (f"{said}: {major}-major, {_swizzled_by(kind)}, {wrong}. {_as_smem_atom(tile, kind)}",)
    unit = vector if kind == "interleave" else period
    groups = [of_rows[:, :: SMEM_ATOM_ROWS if major == "k" else row], *[c.offsets() for c in _copies(outer)]]
    if major == "mn":
        groups.append(of_k[:, ::SMEM_ATOM_ROWS])
    elif kind == "interleave":
        groups.append(of_k[:, ::vector])
    if any((group % unit).any() for group in groups):
        return (
            f"{said}: {_swizzled_by(kind)}, groups of {SMEM_ATOM_ROWS} rows must start at multiples of "
            f"{unit * bits // 8} bytes. {_as_smem_atom(tile, kind)}",
        )
    return ()


def _steps(table: np.ndarray, group: int, step: int) -> str | None:
    """Return why a wgmma descriptor cannot describe the offsets that instructions read along one mode; None if it can.

    A descriptor needs groups of elements at a constant distance `step`, and a constant distance between groups.

    table   (instructions, elements): offsets along the mode
    group   number of elements of a group
    step    distance of neighbouring elements in a group
    """
    first = table - table[:, :1]
    extent = table.shape[1]
    position = np.arange(extent)
    apart = "side by side" if step == 1 else f"{step} elements apart"
    if group < extent:
        distance = int(first[0, group])
        expected = position % group * step + position // group * distance
        rule = f"groups of {group} elements {apart} at equal distances are needed"
    else:
        expected = position * step
        rule = f"{extent} elements {apart} are needed"
    if (first != expected).any():
        at = np.argwhere(first != expected)[0]
        return f"{rule}; element {int(at[1])} is {int(first[tuple(at)])} elements after the first"
    return None


def _parts(layout: SharedLayout) -> tuple[Layout, Swizzle]:
    """Split a shared-memory layout into (layout before the swizzle, swizzle); without a swizzle, that is `_PLAIN`."""
    if isinstance(layout, ComposedLayout):
        assert isinstance(layout.inner, Swizzle)
        return layout.outer, layout.inner
    return layout, _PLAIN


def _contributions(outer: Layout, tile: _Tile) -> tuple[np.ndarray, np.ndarray]:
    """Return what each coordinate adds to an element's offset: along a tile's contiguous mode, and along the other.

    The offset of an element, before the swizzle, is the sum of two such numbers.

    outer     the layout without its swizzle
    tile      the tile in shared memory
    returns   two arrays, with an entry for each coordinate along a mode
    """
    return outer[tile.inner].offsets(), outer[1 - tile.inner].offsets()


def _copies(outer: Layout) -> list[Layout]:
    """Return the modes of a shared-memory layout after the two of the tile: stages, or epilogue stages and consumers.

    outer   the layout without its swizzle
    """
    return [outer[mode] for mode in range(2, len(outer))]


def _same(one: Swizzle, other: Swizzle) -> bool:
    """Return whether two swizzles are the same function; all swizzles of 0 bits are."""
    return one == other or one.bits == other.bits == 0


def _first_moved(outer: Layout, have: Swizzle, want: Swizzle, tile: _Tile) -> str | None:
    """Return a text that names the first element whose offset differs between two swizzles; None if they agree.

    tile         the tile in shared memory
    outer        the layout before the swizzle
    have, want   the swizzle of the plan's layout, and the one that is needed
    """
    along, across = _contributions(outer, tile)
    before = along[:, None] + across[None, :]
    moved = np.argwhere(have(before) != want(before))
    if not len(moved):
        return None
    x, y = (int(i) for i in moved[0])
    place = before[x, y]
    return f"{tile.element(x, y)} is at the offset {int(have(place))}, TMA places it at {int(want(place))}"


def _text_of(tile: _Tile, width: int, kind: str) -> str:
    """Return a shared-memory layout that would be correct, as text for the hint of a message.

    It is the layout of one column of TMA boxes.

    tile    the tile in shared memory
    width   extent of a box along the contiguous mode, in elements
    kind    swizzle of the boxes, a key of TMA_SWIZZLES such as "128B"
    """
    bits = TMA_SWIZZLES[kind][0]
    rows = tile.shape[1 - tile.inner]
    plain = Layout((rows, width), (width, 1)) if tile.inner == 1 else Layout((width, rows), (1, width))
    if bits == 0:
        return str(plain)
    return f"{Swizzle(bits, 4, 3).recast(8, tile.dtype.bits)} o 0 o {plain}"


def _swizzled_by(kind: str) -> str:
    """Return the name of a swizzle for a message, as words.

    kind   a key of TMA_SWIZZLES such as "128B"
    """
    return "without a swizzle" if kind == "interleave" else f"with a swizzle of {kind}"


def _as_smem_atom(tile: _Tile, kind: str) -> str:
    """Return advice for a message: build the layout from the shared-memory atom with this swizzle.

    tile   the tile in shared memory
    kind   a key of TMA_SWIZZLES such as "128B"
    """
    major = "k" if tile.inner == 1 else "mn"
    return f"Use tile_to_shape of smem_atom({tile.dtype}, {major!r}, {kind!r})."
