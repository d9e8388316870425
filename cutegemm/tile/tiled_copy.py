"""The class `TiledCopy`: a copy atom repeated over threads and over the values of each thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from cutegemm.errors import LayoutError, PlanError
from cutegemm.layout import hooks
from cutegemm.layout.algebra import coalesce, composition, filter
from cutegemm.layout.inttuple import as_int_tuple, as_tuples, integer_of, product, product_each
from cutegemm.layout.inverses import left_inverse, rest_of, right_inverse
from cutegemm.layout.layout import Layout, concatenate, cute_text
from cutegemm.layout.modes import on_layout, size
from cutegemm.layout.recast import recast_layout
from cutegemm.layout.tensor import Tensor
from cutegemm.layout.tiling import logical_product, zipped_divide
from cutegemm.tile.atoms import CopyAtom, fields_of, require
from cutegemm.tile.target import Target, as_tensor
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tv import make_layout_tv


@dataclass(frozen=True)
class TiledCopy(hooks.Shown):
    """Describes how threads copy a tile together: a copy instruction, repeated over threads and over each one's values.

    atom             the instruction
    layout_tv        (thread, value) -> colexicographic index in the tile, for the elements that threads hold in
                     registers
    tiler_mn         the tile: for each mode an extent, or a layout of its elements
    fragment_shape   (value, rest_m, rest_n), the shape of a thread's fragment of one tile of the TiledMma for which the
                     copy was made. The values of the fragment have the order of `layout_tv`. None for a copy without
                     TiledMma
    raises           PlanError with every broken rule
    source           CuTe, copy_atom.hpp:182, TiledCopy

    >>> from cutegemm.dtypes import f32
    >>> from cutegemm.tile.copy_atoms import universal_copy
    >>> copy = make_tiled_copy_tv(universal_copy(f32, 128), Layout((32, 8)), Layout((4, 1)))
    >>> copy.threads, copy.tiler_mn, str(copy.layout_src_tv_tiled)
    (256, (128, 8), '(256,(4,1)):(4,(1,0))')
    """

    atom: CopyAtom
    layout_tv: Layout
    tiler_mn: tuple[Any, ...]
    fragment_shape: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        require("TiledCopy", self.atom, CopyAtom, "a copy atom")
        object.__setattr__(self, "tiler_mn", as_tuples(self.tiler_mn))
        if not isinstance(self.fragment_shape, (tuple, type(None))):
            raise PlanError("TiledCopy", [f"fragment_shape = {self.fragment_shape!r} is not a shape or None"])
        rules = _violations(self.atom, self.layout_tv, self.tiler_mn) or self._torn()
        if rules:
            raise PlanError(f"TiledCopy of {self.atom}", rules)

    def _torn(self) -> list[str]:
        """Return a list with an error phrase if a thread's values do not fill whole instructions of this copy, else [].

        E.g. 6 values of a thread do not fill instructions that move 4 values each.
        """
        try:
            self._src_to_tile, self._dst_to_tile  # noqa: B018  (computed here, used later)
        except LayoutError as error:
            return [
                f"the layout {self.layout_tv} does not divide into blocks of {self.atom.threads} threads by "
                f"{self.atom.values} values, the size of the atom:\n      " + str(error).replace("\n", "\n    ")
            ]
        return []

    def __reduce__(self) -> tuple[Any, ...]:
        return (TiledCopy, fields_of(self))

    def __str__(self) -> str:
        return f"{self.atom} by {self.layout_tv}, tile {cute_text(self.tiler_mn)}: {self.threads} threads"

    @property
    def threads(self) -> int:
        """Number of threads that take part in this tiled copy."""
        return int(self.layout_tv[0].size())

    @cached_property
    def _tile_shape(self) -> Any:
        """Shape of the tile that this copy moves; a mode of the tiler that is a layout has the shape of that layout."""
        return tuple([t.shape if isinstance(t, Layout) else t for t in self.tiler_mn])

    @cached_property
    def layout_src_tv_tiled(self) -> Layout:
        """Layout of the elements that each thread reads: (thread, value) -> colexicographic index in the tile."""
        return composition(Layout(self._tile_shape), self._src_to_tile)

    @cached_property
    def layout_dst_tv_tiled(self) -> Layout:
        """Layout of the elements that each thread writes: (thread, value) -> colexicographic index in the tile."""
        return composition(Layout(self._tile_shape), self._dst_to_tile)

    @cached_property
    def tv_in_tile(self) -> Layout:
        """Layout of the elements in each thread's registers: (thread, value) -> colexicographic index in the tile."""
        return composition(Layout(self._tile_shape), self.layout_tv)

    @cached_property
    def _src_to_tile(self) -> Layout:
        """Layout of the elements that each thread reads: (thread, (value, atom)) -> index in the tile.

        "value" counts the elements of one execution of this copy's instruction, "atom" counts the executions.
        """
        return _to_tile(self.layout_tv, self.atom.layout_ref_tv, self.atom.layout_src_tv)

    @cached_property
    def _dst_to_tile(self) -> Layout:
        """Layout of the elements that each thread writes: (thread, (value, atom)) -> index in the tile.

        "value" counts the elements of one execution of this copy's instruction, "atom" counts the executions.
        """
        return _to_tile(self.layout_tv, self.atom.layout_ref_tv, self.atom.layout_dst_tv)

    def get_slice(self, thr_idx: int) -> ThrCopy:
        """Return the view of this tiled copy for one thread, which partitions tensors into the thread's elements.

        thr_idx   index of the thread, from 0
        raises    LayoutError for a thread that does not take part
        """
        index = integer_of(thr_idx)
        if index is None or not 0 <= index < self.threads:
            raise LayoutError(
                f"TiledCopy.get_slice: thread {thr_idx} does not take part in {self}. Use 0 to {self.threads - 1}."
            )
        return ThrCopy(self, index)

    def tidfrg_s(self, target: Target) -> Any:
        """Return the source with its elements grouped by thread.

        The result has the form (thread, (value, atom), (rest_m, rest_n, ...)). "value" counts the elements of one
        execution of the copy instruction, "atom" the executions within a tile, and the rest modes count tiles.

        target    source (M, N, ...), a layout or tensor with as many modes as the tile or more; further modes go to
                  the rest
        returns   a layout if `target` is one, a tensor (a view of it) if `target` is a tensor
        raises    LayoutError if the target has fewer modes than the tile, or if no layout has this form
        source    CuTe, copy_atom.hpp, tidfrg_S
        """
        return on_layout("TiledCopy.tidfrg_s(target): target", self._tidfrg, target, self._src_to_tile)

    def tidfrg_d(self, target: Target) -> Any:
        """Return the destination with its elements grouped by thread.

        The result has the form (thread, (value, atom), (rest_m, rest_n, ...)). "value" counts the elements of one
        execution of the copy instruction, "atom" the executions within a tile, and the rest modes count tiles.

        target    destination (M, N, ...), a layout or tensor with as many modes as the tile or more; further modes go
                  to the rest
        returns   a layout if `target` is one, a tensor (a view of it) if `target` is a tensor
        raises    LayoutError if the target has fewer modes than the tile, or if no layout has this form
        source    CuTe, copy_atom.hpp, tidfrg_D
        """
        return on_layout("TiledCopy.tidfrg_d(target): target", self._tidfrg, target, self._dst_to_tile)

    def _tidfrg(self, layout: Layout, to_tile: Layout) -> Layout:
        """Return `layout` with its elements grouped by thread: (thread, (value, atom), (rest_m, rest_n, ...)).

        "value" counts the elements of one execution of the copy instruction, "atom" the executions within a tile, and
        the rest modes count tiles.

        layout    source or destination (M, N, ...) of this copy
        to_tile   (thread, (value, atom)) -> index in the tile, for the elements that threads read (source) or write
                  (destination)
        """
        if len(layout) < len(self.tiler_mn):
            raise LayoutError(
                f"TiledCopy: {layout} has fewer modes than the tile {cute_text(self.tiler_mn)}. Append modes 1:0."
            )
        tiles = zipped_divide(layout, self.tiler_mn)
        grouped = composition(tiles[0], to_tile)
        return concatenate([grouped[0], grouped[1], tiles[1]])

    def offsets_s(self, target: Target) -> np.ndarray:
        """Return the offset of each element that each thread of this copy reads.

        target    source (M, N, ...): a layout or tensor
        returns   int64 array (threads, values, rest_m, rest_n, ...). A target whose elements are coordinates, such as
                  an identity tensor, adds a last axis for the numbers of a coordinate

        >>> from cutegemm.dtypes import f32
        >>> from cutegemm.tile.copy_atoms import universal_copy
        >>> copy = make_tiled_copy_tv(universal_copy(f32, 64), Layout((2, 2)), Layout((2, 1)))
        >>> copy.offsets_s(Layout((4, 4)))[3].tolist()
        [[[6, 14]], [[7, 15]]]
        """
        return _all_offsets(self.tidfrg_s(as_tensor(target)))

    def offsets_d(self, target: Target) -> np.ndarray:
        """Return the offset of each element that each thread of this copy writes.

        target    destination (M, N, ...): a layout or tensor
        returns   int64 array (threads, values, rest_m, rest_n, ...). A target whose elements are coordinates, such as
                  an identity tensor, adds a last axis for the numbers of a coordinate
        """
        return _all_offsets(self.tidfrg_d(as_tensor(target)))

    def retile(self, target: Target) -> Any:
        """Return a thread's MMA fragment regrouped for this copy: ((value, atom), rest_m, rest_n, ...).

        The fragment's elements are grouped by execution of the copy instruction: "value" counts within one execution,
        "atom" the executions of a tile, and the rest modes count tiles. If the copy was made for the TiledMma of the
        fragment, each element is the one that the copy moves there. For another copy, the rest modes are assumed to
        count the elements of the tile in ascending order.

        target    fragment (value, rest_m, rest_n, ...) in registers
        returns   a layout if `target` is one, a tensor (a view of it) if `target` is a tensor
        raises    LayoutError if the values of the target do not fill whole executions, or if the order of its values is
                  not known because the copy was made from another copy with another order
        source    CuTe, copy_atom.hpp:283, retile. CuTe always assumes the order of elements, which is wrong for a
                  TiledMma with a permutation that orders values differently
        """
        return on_layout("TiledCopy.retile(target): target", self._retile, target)

    def _retile(self, layout: Layout) -> Layout:
        """Return a fragment's layout regrouped by executions of this copy's instruction.

        layout    layout (value, rest_m, rest_n, ...) of a thread's MMA fragment
        returns   layout ((value, atom), rest_m, rest_n, ...): "value" counts the elements of one execution, "atom" the
                  executions within a tile
        """
        values = layout[0].size()
        own = self.fragment_shape
        if own and size(own[0]) == values:
            extents, order = product_each(own)[1:], Layout(product(own[1:]))
        else:
            extents, order = self._by_element(values)
            if own is not None and not _counts_up(order):
                raise LayoutError(
                    f"TiledCopy.retile: {self} was made for a TiledMma with a permutation, and the order of {values} "
                    f"values in {layout} is not known. Retile a fragment of that TiledMma by a copy from "
                    "make_tiled_copy_A, _B or _C."
                )
        fragment = logical_product(Layout(values), order)
        atoms = zipped_divide(fragment, Layout(self.atom.values))  # (value of an atom, atom) -> (v, m, n)
        tiles = zipped_divide(layout, (values, *extents))
        in_order = composition(tiles[0], atoms)
        return concatenate([in_order, *[tiles[1][m] for m in range(1, len(tiles[1]))]])

    def _by_element(self, values: int) -> tuple[Any, Layout]:
        """Return the arrangement of a thread's values in the tile, in groups of consecutive values of this copy.

        values    number of values of a group
        returns   (number of groups along M and along N, layout from the number of a group to its coordinate (m, n)
                  among the groups)
        """
        index_of = composition(right_inverse(self.layout_tv), Layout(self._tile_shape))
        groups = recast_layout(self.threads * values, 1, index_of)  # (m, n) -> group
        return product_each(groups.shape), right_inverse(groups)

    @property
    def retiles_in_element_order(self) -> bool:
        """True if a thread's MMA fragment is in the order of the tile's elements, as CuTe's `retile` assumes."""
        if not self.fragment_shape:
            return self.fragment_shape is None
        try:
            extents, order = self._by_element(size(self.fragment_shape[0]))
        except LayoutError:
            return False
        return bool(_counts_up(order) and extents == product_each(self.fragment_shape)[1:])


@dataclass(frozen=True)
class ThrCopy:
    """The part of a TiledCopy that one thread executes: it selects this thread's elements of source and destination.

    tiled_copy   the copy of all threads
    thr_idx      index of the thread, from 0
    """

    tiled_copy: TiledCopy
    thr_idx: int

    def partition_S(self, target: Target) -> Tensor:
        """Return the elements of a source that this thread reads, as a tensor ((value, atom), rest_m, rest_n, ...).

        "value" counts the elements of one execution of the copy instruction, "atom" the executions within a tile, and
        the rest modes count tiles.

        target    tensor (M, N, ...); a layout is taken as a tensor whose elements are the offsets
        returns   Tensor, a view of the target

        >>> from cutegemm.dtypes import f32
        >>> from cutegemm.layout.tensor import make_identity_tensor
        >>> from cutegemm.tile.copy_atoms import universal_copy
        >>> copy = make_tiled_copy_tv(universal_copy(f32, 128), Layout((32, 8)), Layout((4, 1)))
        >>> copy.get_slice(37).partition_S(make_identity_tensor((256, 32)))
        Tensor<coordinates at (20, 1) o ((4,1),2,4):((1@0,0),128@0,8@1)>
        """
        return self._partition(self.tiled_copy.tidfrg_s, target)

    def partition_D(self, target: Target) -> Tensor:
        """Return the elements of a destination that this thread writes: a tensor ((value, atom), rest_m, rest_n, ...).

        "value" counts the elements of one execution of the copy instruction, "atom" the executions within a tile, and
        the rest modes count tiles.

        target    tensor (M, N, ...); a layout is taken as a tensor whose elements are the offsets
        returns   Tensor, a view of the target
        """
        return self._partition(self.tiled_copy.tidfrg_d, target)

    def _partition(self, tidfrg: Any, target: Target) -> Tensor:
        """Return the elements of `target` that this thread reads or writes: ((value, atom), rest_m, rest_n, ...).

        tidfrg   function from a layout or tensor to the same elements grouped by thread, such as `TiledCopy.tidfrg_s`,
                 which groups a source
        target   tensor (M, N, ...); for a layout, the tensor whose elements are the layout's offsets
        """
        split = tidfrg(as_tensor(target))
        part: Tensor = split[self.thr_idx, None, (None,) * len(split.layout.shape[2])]
        return part

    def retile(self, target: Target) -> Any:
        """Return this thread's MMA fragment regrouped for the copy: ((value, atom), rest_m, rest_n, ...).

        "value" counts the elements of one execution of the copy instruction, "atom" the executions within a tile, and
        the rest modes count tiles.

        target    fragment (value, rest_m, rest_n, ...) in registers
        returns   a layout if `target` is one, a tensor (a view of it) if `target` is a tensor
        """
        return self.tiled_copy.retile(target)


def make_tiled_copy(atom: CopyAtom, layout_tv: Layout, tiler_mn: tuple[Any, ...]) -> TiledCopy:
    """Return the tiled copy that repeats a copy atom by a given thread-value layout over a tile.

    atom        the instruction
    layout_tv   (thread, value) -> colexicographic index in the tile, for the elements that threads hold in registers.
                If the copy uses no registers (cp.async), for the elements that the atom's reference layout describes
    tiler_mn    the tile that all threads copy together: for each mode an extent, or a layout of its elements
    raises      PlanError with every violated rule
    source      CuTe DSL, `make_tiled_copy`

    >>> from cutegemm.dtypes import f32
    >>> from cutegemm.tile.copy_atoms import universal_copy
    >>> make_tiled_copy(universal_copy(f32, 64), Layout((4, 2), (2, 1)), (8, 1)).threads
    4
    """
    return TiledCopy(atom, layout_tv, tiler_mn)


def make_tiled_copy_tv(atom: CopyAtom, thr_layout: Layout, val_layout: Layout) -> TiledCopy:
    """Return the tiled copy that repeats an atom over a layout of threads and a layout of each thread's values.

    atom         the instruction
    thr_layout   (m, n) -> thread: each of the threads 0, 1, ... occurs once
    val_layout   (m, n) -> value of a thread: each of the values 0, 1, ... occurs once. The values of a thread are
                 adjacent in the tile
    raises       LayoutError if a thread or a value has no coordinate or several; PlanError if the atom does not fit
                 these layouts
    source       CuTe DSL, `make_tiled_copy_tv`

    >>> from cutegemm.dtypes import f32
    >>> from cutegemm.tile.copy_atoms import universal_copy
    >>> make_tiled_copy_tv(universal_copy(f32, 128), Layout((32, 8)), Layout((4, 1))).tiler_mn
    (128, 8)
    """
    tiler_mn, layout_tv = make_layout_tv(thr_layout, val_layout)
    return TiledCopy(atom, layout_tv, tiler_mn)


def make_tiled_copy_A(atom: CopyAtom, tiled_mma: TiledMma) -> TiledCopy:
    """Return the tiled copy that gives each thread exactly the elements of A that the thread holds in a TiledMma.

    atom        the instruction of the copy
    tiled_mma   the MMA whose fragments of A are copied, e.g. from shared memory by ldmatrix
    raises      PlanError if the atom does not divide a thread's values
    source      CuTe DSL, `make_tiled_copy_A`
    """
    return _of_mma(atom, tiled_mma, "A", 0, 2)


def make_tiled_copy_B(atom: CopyAtom, tiled_mma: TiledMma) -> TiledCopy:
    """Return the tiled copy that gives each thread exactly the elements of B that the thread holds in a TiledMma.

    atom        the instruction of the copy
    tiled_mma   the MMA whose fragments of B are copied, e.g. from shared memory by ldmatrix
    raises      PlanError if the atom does not divide a thread's values
    source      CuTe DSL, `make_tiled_copy_B`
    """
    return _of_mma(atom, tiled_mma, "B", 1, 2)


def make_tiled_copy_C(atom: CopyAtom, tiled_mma: TiledMma) -> TiledCopy:
    """Return the tiled copy that gives each thread exactly the elements of C that the thread holds in a TiledMma.

    atom        the instruction of the copy
    tiled_mma   the MMA whose fragments of C are copied, e.g. to shared memory by stmatrix
    raises      PlanError if the atom does not divide a thread's values
    source      CuTe DSL, `make_tiled_copy_C`
    """
    return _of_mma(atom, tiled_mma, "C", 0, 1)


def _of_mma(atom: CopyAtom, tiled_mma: TiledMma, operand: str, i: int, j: int) -> TiledCopy:
    """Return the tiled copy that gives each thread the elements of one operand that the thread holds in a TiledMma.

    atom        the instruction of the copy
    tiled_mma   the MMA whose fragments are copied
    operand     "a", "b" or "c"
    i, j        positions of the operand's two modes in (M, N, K): 0 and 2 for A (M, K), 1 and 2 for B (N, K), 0 and 1
                for C
    """
    require(f"make_tiled_copy_{operand}", tiled_mma, TiledMma, "a TiledMma")
    tile = (tiled_mma.tile_mnk[i], tiled_mma.tile_mnk[j])
    fragment_shape = getattr(tiled_mma, f"partition_shape_{operand}")(tile)
    return TiledCopy(atom, getattr(tiled_mma, f"tv_layout_{operand}_tiled"), tile, fragment_shape)


def make_tiled_copy_C_atom(atom: CopyAtom, tiled_mma: TiledMma) -> TiledCopy:
    """Return the tiled copy of only the first values of each thread's C in a TiledMma, as many as fill one copy atom.

    An epilogue that stores D piece by piece derives the copies of its pieces from this copy. The tile of the copy is
    given by two layouts, which select the rows and columns of C where these values are.

    atom        the instruction of the copy
    tiled_mma   the MMA whose fragments of C are copied
    raises      PlanError if the atom takes more values than a thread holds
    source      CuTe, copy_atom.hpp:545, make_tiled_copy_C_atom
    """
    require("make_tiled_copy_C_atom", tiled_mma, TiledMma, "a TiledMma")
    require("make_tiled_copy_C_atom", atom, CopyAtom, "a copy atom")
    tile = tiled_mma.tile_mnk[:2]
    whole = tiled_mma.tv_layout_C_tiled
    if atom.values > whole[1].size():
        rule = f"the atom takes {atom.values} values of a thread, but a thread of {tiled_mma} holds {whole[1].size()}"
        raise PlanError(f"make_tiled_copy_C_atom of {atom}", [rule])
    layout_tv = composition(whole, Layout((tiled_mma.threads, atom.values)))
    tiler = tuple([filter(composition(Layout(tile, (1, 0) if mode == 0 else (0, 1)), layout_tv)) for mode in (0, 1)])
    in_tile = left_inverse(composition(Layout(tile), tiler))
    return TiledCopy(atom, composition(in_tile, layout_tv), tiler)


def make_tiled_copy_S(atom: CopyAtom, tiled_copy: TiledCopy) -> TiledCopy:
    """Return a tiled copy by another atom that gives each thread the elements that it reads in `tiled_copy`.

    atom         the instruction of the new copy
    tiled_copy   copy whose source elements of a thread are the register elements of the new copy
    raises       PlanError if the atom does not divide a thread's values
    source       CuTe DSL, `make_tiled_copy_S`
    """
    require("make_tiled_copy_S", tiled_copy, TiledCopy, "a TiledCopy")
    return _of_copy(atom, tiled_copy, tiled_copy.layout_src_tv_tiled)


def make_tiled_copy_D(atom: CopyAtom, tiled_copy: TiledCopy) -> TiledCopy:
    """Return a tiled copy by another atom that gives each thread the elements that it writes in `tiled_copy`.

    atom         the instruction of the new copy
    tiled_copy   copy whose destination elements of a thread are the register elements of the new copy
    raises       PlanError if the atom does not divide a thread's values
    source       CuTe DSL, `make_tiled_copy_D`
    """
    require("make_tiled_copy_D", tiled_copy, TiledCopy, "a TiledCopy")
    return _of_copy(atom, tiled_copy, tiled_copy.layout_dst_tv_tiled)


def _of_copy(atom: CopyAtom, tiled_copy: TiledCopy, layout_tv: Layout) -> TiledCopy:
    """Return a tiled copy over the tile of `tiled_copy`, with another atom and other elements per thread.

    atom         the instruction of the new copy
    tiled_copy   copy whose tile is used
    layout_tv    elements of each thread of the new copy: (thread, value) -> colexicographic index in the tile
    """
    fragment = tiled_copy.fragment_shape
    if fragment:
        same = np.array_equal(layout_tv.offsets(), tiled_copy.tv_in_tile.offsets())
        in_order = tiled_copy.retiles_in_element_order
        fragment = fragment if same else (None if in_order else ())  # (): the order of the values is not known
    return TiledCopy(atom, layout_tv, tiled_copy.tiler_mn, fragment)


def _counts_up(order: Layout) -> bool:
    """Return True if the layout maps every index to itself, i.e. its offsets are 0, 1, 2, ... in this order."""
    return coalesce(order) == coalesce(Layout(order.size()))


def _all_offsets(split: Tensor) -> np.ndarray:
    """Return the offset of each element of each thread, as an int64 array (threads, values, rest_m, rest_n, ...).

    A thread's values are numbered in the order of its executions of the copy instruction. The axes rest_m, rest_n, ...
    count the tiles of the copy along the tensor's modes.

    split   tensor grouped by thread, with three modes: the thread; the pair (value within one execution, execution
            within a tile); the tile (rest_m, rest_n, ...)
    """
    threads, values, rest = split.layout.shape
    flat = split.offsets()
    return flat.reshape((product(threads), product(values), *product_each(rest), *flat.shape[1:]), order="F")


def _violations(atom: CopyAtom, layout_tv: Any, tiler_mn: Any) -> list[str]:
    """Return the rules that the fields of a TiledCopy violate, as phrases for an error message; empty if none is.

    atom                  the instruction
    layout_tv, tiler_mn   thread-value layout and tile as the user passed them, so possibly of a wrong type
    """
    if not isinstance(layout_tv, Layout) or len(layout_tv) != 2 or not layout_tv.is_integral:
        return [f"the layout {layout_tv} does not have the two modes (thread, value)"]
    if not isinstance(tiler_mn, tuple) or not all(
        isinstance(t, Layout) or (type(t) is int and t > 0) for t in tiler_mn
    ):
        return [f"the tile {tiler_mn!r} is not a tuple of positive extents and layouts"]
    rules = []
    for t in tiler_mn:
        if isinstance(t, Layout):
            try:
                rest_of(t, 1)
            except LayoutError as error:
                rules.append(
                    f"the mode {t} of the tile {cute_text(tiler_mn)} has no complement, so it cannot be repeated: "
                    f"{error}"
                )
    lowest = sum([min((s - 1) * d, 0) for s, d in zip(*layout_tv.flat(), strict=True)])
    if lowest < 0:
        rules.append(f"the layout {layout_tv} reaches the negative index {lowest}")
    tile = product(as_int_tuple(tuple([t.size() if isinstance(t, Layout) else t for t in tiler_mn])))
    if layout_tv.cosize() > tile:
        rules.append(f"the layout {layout_tv} spans {layout_tv.cosize()} elements, but the tile has {tile}")
    for what, count, divisor in (
        ("threads", layout_tv[0].size(), atom.threads),
        ("values of a thread", layout_tv[1].size(), atom.values),
    ):
        if count % divisor:
            rules.append(f"{count} {what} are not a multiple of the {divisor} that {atom} takes")
    return rules


@lru_cache(maxsize=1024)  # many plans share their copies
def _to_tile(layout_tv: Layout, reference: Layout, side: Layout) -> Layout:
    """Return which elements of the tile each thread reads, or writes: (thread, (value, atom)) -> index in the tile.

    "value" counts the elements of one execution of the copy instruction, "atom" counts the executions.

    layout_tv   (thread, value) -> index in the tile, for the elements that a thread of the tiled copy holds in
                registers
    reference   (thread, value) -> element of one execution of the instruction, for the elements in registers
    side        (thread, value) -> element of one execution, for the elements that are read; or for the written ones
    """
    to_reference = composition(right_inverse(reference), side)
    atoms = zipped_divide(layout_tv, (reference[0].size(), reference[1].size()))
    in_atom, repeats = composition(atoms[0], to_reference), atoms[1]
    threads = concatenate([in_atom[0], repeats[0]])
    values = concatenate([in_atom[1], repeats[1]])
    return concatenate([coalesce(threads), coalesce(values, (1, 1))])
