"""The class `TiledMma`: an MMA atom repeated over threads and over the values of each thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from cutegemm.errors import LayoutError, PlanError
from cutegemm.layout import hooks
from cutegemm.layout.algebra import composition
from cutegemm.layout.inttuple import (
    IntTuple,
    as_int_tuple,
    as_tuples,
    ceil_div,
    integer_of,
    product_each,
    wrong_kind,
)
from cutegemm.layout.inverses import complement, right_inverse
from cutegemm.layout.layout import Layout, concatenate, cute_text
from cutegemm.layout.modes import on_layout
from cutegemm.layout.swizzle import ComposedLayout
from cutegemm.layout.tensor import Tensor
from cutegemm.layout.tiling import logical_divide, tiled_product, zipped_divide
from cutegemm.tile.atoms import MmaAtom, fields_of, require
from cutegemm.tile.target import Target, as_tensor, layout_of
from cutegemm.tile.tv import numbers_once

# operand -> positions of its two modes in (M, N, K)
_THRFRG = "TiledMma.thrfrg(operand, target): target"
_MODES = {"a": (0, 2), "b": (1, 2), "c": (0, 1)}


@dataclass(frozen=True)
class TiledMma(hooks.Shown):
    """Describes how threads multiply an M x N x K tile: an MMA atom, repeated over threads and over each one's values.

    atom              the instruction
    atom_layout_mnk   layout from the coordinate (m, n, k) of a repetition over threads to its number, e.g. (2, 2, 1)
                      for 2 x 2 warps; a shape stands for its compact layout. Modes may be hierarchical: ((lane_m,
                      warp_m), ...)
    permutation_mnk   for each of M, N and K: a layout from a position to an element of the tile, an extent n for n:1,
                      or None for the extent that the threads cover. Positions count first through the atom, then
                      through the threads, then through the values
    raises            PlanError with every broken rule
    source            CuTe, mma_atom.hpp:208, TiledMMA

    >>> from cutegemm.tile.mma_atoms import fma
    >>> mma = TiledMma(fma(), Layout((16, 16, 1), (16, 1, 0)), (Layout((16, 4), (4, 1)), 32, None))
    >>> mma.threads, mma.tile_mnk
    (256, (64, 32, 1))
    >>> str(mma.tv_layout_C_tiled)
    '((16,16),(1,(4,2))):((64,4),(0,(1,1024)))'
    """

    atom: MmaAtom
    atom_layout_mnk: Layout = Layout((1, 1, 1))  # noqa: RUF009  (a Layout is immutable)
    permutation_mnk: tuple[Any, Any, Any] = (None, None, None)

    def __post_init__(self) -> None:
        require("TiledMma", self.atom, MmaAtom, "an MMA atom")
        if isinstance(self.atom_layout_mnk, (tuple, list)):
            object.__setattr__(self, "atom_layout_mnk", Layout(as_int_tuple(self.atom_layout_mnk)))
        object.__setattr__(self, "permutation_mnk", as_tuples(self.permutation_mnk))
        rules = _violations(self.atom, self.atom_layout_mnk, self.permutation_mnk) or self._torn()
        if rules:
            raise PlanError(f"TiledMma of {self.atom}", rules)

    def _torn(self) -> list[str]:
        """Return one phrase for each operand (A, B, C) whose elements of a thread cannot be written as a layout.

        This happens if the permutation of the tile splits a thread's values irregularly. Otherwise the list is empty.
        """
        rules = []
        for operand in _MODES:
            try:
                getattr(self, f"tv_layout_{operand.upper()}_tiled")
            except LayoutError as error:
                rules.append(
                    f"the permutation {cute_text(self.permutation_mnk)} splits the values of {operand.upper()} in the "
                    "atom:\n      " + str(error).replace("\n", "\n    ")
                )
        return rules

    def __reduce__(self) -> tuple[Any, ...]:
        return (TiledMma, fields_of(self))

    def __str__(self) -> str:
        layout, permutation = self.atom_layout_mnk, self.permutation_mnk
        tile = f"{cute_text(self.tile_mnk)} by {self.threads} threads"
        return f"{self.atom} x {layout}, permuted {cute_text(permutation)}: {tile}"

    @property
    def shape_mnk(self) -> tuple[int, int, int]:
        """Extents (M, N, K) of this MMA's instruction, as in CuTe. `tile_mnk` has the extents of the whole tile."""
        return self.atom.shape_mnk

    @property
    def threads(self) -> int:
        """Number of threads that execute this tiled MMA together."""
        return int(self.atom.threads * self.atom_layout_mnk.size())

    @cached_property
    def tile_mnk(self) -> tuple[int, int, int]:
        """Extents (M, N, K) of the tile that all threads of this tiled MMA together cover once."""
        m, n, k = (p.size() if isinstance(p, Layout) else p for p in self._permutation)
        return (m, n, k)

    @cached_property
    def _permutation(self) -> tuple[Any, ...]:
        """For M, N and K: the permutation of the tile, i.e. a layout or an extent.

        None in the user's argument is replaced by the extent that the threads cover along the mode.
        """
        return tuple(
            [
                self.atom.shape_mnk[mode] * self.atom_layout_mnk[mode].size() if entry is None else entry
                for mode, entry in enumerate(self.permutation_mnk)
            ]
        )

    @cached_property
    def thr_layout_vmnk(self) -> Layout:
        """Layout of this MMA's threads: (thread of the atom, m, n, k) -> index of the thread.

        m, n and k count the repetitions of the atom over threads.

        source   CuTe, TiledMMA::get_thr_layout_vmnk
        """
        return tiled_product(self.atom.thr_id, self.atom_layout_mnk)

    def thr_coord(self, thr_idx: Any) -> tuple[Any, Any, Any, Any]:
        """Return the coordinate (v, m, n, k) of a thread: v within the MMA atom; m, n, k among the atom's repetitions.

        thr_idx   index of the thread, or an integer array of indices
        returns   four integers, or four arrays

        >>> from cutegemm.tile.mma_atoms import fma
        >>> TiledMma(fma(), Layout(((4, 2), (8, 4), 1), ((8, 32), (1, 64), 0))).thr_coord(37 + 64)
        (0, 4, 13, 0)
        """
        layout = self.thr_layout_vmnk
        v, m, n, k = (_index_in(layout[mode], thr_idx) for mode in range(4))
        return v, m, n, k

    @cached_property
    def tv_layout_A_tiled(self) -> Layout:
        """Layout of the elements of A in each thread: (thread, value) -> colexicographic index in the (M, K) tile."""
        return _tv_layout_tiled(self, "a")

    @cached_property
    def tv_layout_B_tiled(self) -> Layout:
        """Layout of the elements of B in each thread: (thread, value) -> colexicographic index in the (N, K) tile."""
        return _tv_layout_tiled(self, "b")

    @cached_property
    def tv_layout_C_tiled(self) -> Layout:
        """Layout of the elements of C and D in each thread: (thread, value) -> colexicographic index in (M, N)."""
        return _tv_layout_tiled(self, "c")

    def thrfrg(self, operand: str, target: Target) -> Any:
        """Return an operand with its elements grouped by the thread that holds them.

        The result has two modes, for A ((v, (m, k)), (value, (rest_m, rest_k, ...))). The first one is the thread: its
        index v within the atom, and the coordinate (m, k) of its atom among the repetitions over threads. The second
        one counts the thread's values: within the atom, then over the rest of the operand.

        operand   "a", "b" or "c"
        target    layout or tensor of the operand: (M, K, ...), (N, K, ...) or (M, N, ...); modes after the second go to
                  the rest
        returns   a layout if `target` is one, a tensor (a view of it) if `target` is a tensor
        raises    LayoutError if the target has fewer than two modes, or if no layout has this form
        source    CuTe, mma_atom.hpp:246, thrfrg_C
        """
        if not isinstance(operand, str) or operand not in _MODES:
            raise LayoutError(f"TiledMma.thrfrg: operand {operand!r} is not a, b or c.")
        if not isinstance(target, (Layout, ComposedLayout, Tensor)):
            raise wrong_kind(_THRFRG, target, "a Layout, ComposedLayout or Tensor")
        if len(layout_of(target)) < 2:
            raise LayoutError(
                f"TiledMma.thrfrg: {layout_of(target)} has one mode, but operand {operand} has two or more."
            )
        return on_layout(_THRFRG, lambda layout: _thrfrg(self, layout, operand), target)

    def get_slice(self, thr_idx: int) -> ThrMma:
        """Return the view of this tiled MMA for one thread, which partitions operands into the thread's elements.

        thr_idx   index of the thread, from 0
        raises    LayoutError for a thread that does not take part
        """
        index = integer_of(thr_idx)
        if index is None or not 0 <= index < self.threads:
            raise LayoutError(
                f"TiledMma.get_slice: thread {thr_idx} does not take part in {self}. Use 0 to {self.threads - 1}."
            )
        return ThrMma(self, index)

    def partition_shape_A(self, shape_mk: IntTuple) -> IntTuple:
        """Return the shape (value, rest_m, rest_k, ...) of a thread's fragment of A in this MMA.

        shape_mk   shape (M, K, ...) of A

        >>> from cutegemm.tile.mma_atoms import fma
        >>> TiledMma(fma(), Layout((16, 16, 1))).partition_shape_A((128, 8))
        (1, 8, 8)
        """
        return self._partition_shape("a", shape_mk)

    def partition_shape_B(self, shape_nk: IntTuple) -> IntTuple:
        """Return the shape (value, rest_n, rest_k, ...) of a thread's fragment of B in this MMA.

        shape_nk   shape (N, K, ...) of B
        """
        return self._partition_shape("b", shape_nk)

    def partition_shape_C(self, shape_mn: IntTuple) -> IntTuple:
        """Return the shape (value, rest_m, rest_n, ...) of a thread's fragment of C in this MMA.

        shape_mn   shape (M, N, ...) of C
        """
        return self._partition_shape("c", shape_mn)

    def _partition_shape(self, operand: str, shape: IntTuple) -> IntTuple:
        """Return the shape (value, rest, rest, ...) of the fragment of an operand that a thread of this MMA holds.

        E.g. (4, 2, 8) for A means 4 values in each of 2 tiles along M and 8 tiles along K.

        operand   "a", "b" or "c"
        shape     (M, K, ...), (N, K, ...) or (M, N, ...)
        """
        tiles = ceil_div(product_each(shape), tuple([self.tile_mnk[m] for m in _MODES[operand]]))
        repeats = [
            self.tile_mnk[m] // self.atom.shape_mnk[m] // self.atom_layout_mnk[m].size() for m in _MODES[operand]
        ]
        rest = tuple([t * r for t, r in zip(tiles, repeats, strict=False)]) + tiles[2:]
        return (self.atom.layout_tv(operand)[1].shape, *rest)

    def offsets_a(self, target: Target) -> np.ndarray:
        """Return the offset of each element of A that each thread of this MMA holds.

        target    layout or tensor (M, K, ...) of A
        returns   int64 array (threads, values, rest_m, rest_k, ...). A target whose elements are coordinates, such as
                  an identity tensor, adds a last axis for the numbers of a coordinate
        """
        return self._offsets("a", target)

    def offsets_b(self, target: Target) -> np.ndarray:
        """Return the offset of each element of B that each thread of this MMA holds.

        target    layout or tensor (N, K, ...) of B
        returns   int64 array (threads, values, rest_n, rest_k, ...). A target whose elements are coordinates, such as
                  an identity tensor, adds a last axis for the numbers of a coordinate
        """
        return self._offsets("b", target)

    def offsets_c(self, target: Target) -> np.ndarray:
        """Return the offset of each element of C that each thread of this MMA holds.

        target    layout or tensor (M, N, ...) of C
        returns   int64 array (threads, values, rest_m, rest_n, ...). A target whose elements are coordinates, such as
                  an identity tensor, adds a last axis for the numbers of a coordinate

        >>> from cutegemm.tile.mma_atoms import fma
        >>> TiledMma(fma(), Layout((2, 2, 1))).offsets_c(Layout((4, 4)))[3, 0].tolist()
        [[5, 13], [7, 15]]
        """
        return self._offsets("c", target)

    def _offsets(self, operand: str, target: Target) -> np.ndarray:
        """Return the offset of each element of an operand that each thread of this tiled MMA holds, as an int64 array.

        The axes are: the thread, the values that the thread holds of one tile, and the number of the tile along each
        mode of the operand, e.g. (threads, values, rest_m, rest_k) for A.

        operand   "a", "b" or "c"
        target    layout or tensor of the operand: (M, K, ...), (N, K, ...) or (M, N, ...)
        """
        split = self.thrfrg(operand, as_tensor(target))
        shape = split.layout.shape
        (v, (p, q)), (values, rest) = shape
        sizes = [Layout(s).size() for s in (v, p, q, values, *rest)]
        flat = split.offsets()
        table: np.ndarray = flat.reshape((*sizes, *flat.shape[1:]), order="F")
        coord = self.thr_coord(np.arange(self.threads))
        i, j = _MODES[operand]
        by_thread: np.ndarray = table[coord[0], coord[i + 1], coord[j + 1]]
        return by_thread


@dataclass(frozen=True)
class ThrMma:
    """The part of a TiledMma that one thread executes: it selects the elements of A, B and C that this thread holds.

    tiled_mma   the MMA of all threads
    thr_idx     index of the thread, from 0
    """

    tiled_mma: TiledMma
    thr_idx: int

    def partition_A(self, target: Target) -> Tensor:
        """Return the elements of A that this thread holds: (value, rest_m, rest_k, ...).

        target    tensor (M, K, ...); a layout is taken as a tensor whose elements are the offsets
        returns   Tensor, a view of the target; the view of a layout has offsets as elements

        >>> from cutegemm.layout.tensor import make_identity_tensor
        >>> from cutegemm.tile.mma_atoms import fma
        >>> TiledMma(fma(), Layout((4, 1, 2))).get_slice(5).partition_A(make_identity_tensor((8, 4)))
        Tensor<coordinates at (1, 1) o (1,2,2):(0,4@0,2@1)>
        """
        return self._partition("a", target)

    def partition_B(self, target: Target) -> Tensor:
        """Return the elements of B that this thread holds: (value, rest_n, rest_k, ...).

        target    tensor (N, K, ...); a layout is taken as a tensor whose elements are the offsets
        returns   Tensor, a view of the target
        """
        return self._partition("b", target)

    def partition_C(self, target: Target) -> Tensor:
        """Return the elements of C that this thread holds: (value, rest_m, rest_n, ...).

        target    tensor (M, N, ...); a layout is taken as a tensor whose elements are the offsets
        returns   Tensor, a view of the target
        """
        return self._partition("c", target)

    def _partition(self, operand: str, target: Target) -> Tensor:
        """Return the elements of one operand that this thread holds, as a tensor (value, rest, rest, ...).

        "value" counts the elements in one tile, and the rest modes count tiles: rest_m and rest_k for A.

        operand   "a", "b" or "c"
        target    tensor that contains the whole operand: (M, K, ...), (N, K, ...) or (M, N, ...). A layout is taken as
                  the tensor whose elements are the layout's offsets
        """
        split = self.tiled_mma.thrfrg(operand, as_tensor(target))
        coord = self.tiled_mma.thr_coord(self.thr_idx)
        i, j = _MODES[operand]
        rest = len(split.layout.shape[1][1])
        part: Tensor = split[(coord[0], (coord[i + 1], coord[j + 1])), (None, (None,) * rest)]
        return part


def make_tiled_mma(
    atom: MmaAtom,
    atom_layout_mnk: Any = (1, 1, 1),
    permutation_mnk: tuple[Any, Any, Any] | None = None,
) -> TiledMma:
    """Return the TiledMma that repeats an atom over threads and over the values of each thread.

    atom              the instruction
    atom_layout_mnk   layout from the coordinate (m, n, k) of a repetition over threads to its number, or a shape,
                      e.g. (2, 2, 1) for 2 x 2 warps
    permutation_mnk   for each of M, N and K a layout from a position to an element of the tile, an extent, or None
                      for the extent that the threads cover. None stands for (None, None, None)
    raises            PlanError with every violated rule
    source            CuTe DSL, `make_tiled_mma`

    >>> from cutegemm.tile.mma_atoms import fma
    >>> make_tiled_mma(fma(), (16, 16, 1)).tile_mnk
    (16, 16, 1)
    """
    layout = atom_layout_mnk if isinstance(atom_layout_mnk, Layout) else Layout(atom_layout_mnk)
    return TiledMma(atom, layout, (None, None, None) if permutation_mnk is None else permutation_mnk)


def _index_in(layout: Layout, thr_idx: Any) -> Any:
    """Return the coordinate of a thread along one mode of the layout of all threads of an MMA.

    E.g. if the mode counts the repetitions of the MMA instruction along M, the result says which of them the thread
    executes.

    layout    this mode, as a layout to the index of a thread
    thr_idx   index of the thread, or an array of indices, which gives an array of coordinates
    """
    index: Any = thr_idx * 0
    running = 1
    for extent, stride in zip(*layout.flat(), strict=True):
        if extent > 1:
            index = index + thr_idx // stride % extent * running
        running *= extent
    return index


def _violations(atom: MmaAtom, atom_layout: Any, permutation: Any) -> list[str]:
    """Return the rules that the arguments of a TiledMma violate, as phrases for an error message; empty if none is.

    The arguments are as the user passed them, so possibly of a wrong type.

    atom          the MMA instruction
    atom_layout   layout from (m, n, k) of a repetition over threads to its number
    permutation   for each of M, N and K a layout, an extent or None
    """
    if not isinstance(atom_layout, Layout) or len(atom_layout) != 3 or not atom_layout.is_integral:
        return [f"the atom layout {atom_layout} does not have the three modes (M, N, K)"]
    if not isinstance(permutation, tuple) or len(permutation) != 3:
        return [f"the permutation {permutation!r} does not have an entry for each of M, N and K"]
    rules = []
    if not numbers_once(atom_layout):
        rules.append(
            f"the atom layout {atom_layout} does not number its {atom_layout.size()} repetitions from 0 to "
            f"{atom_layout.size() - 1}, each once"
        )
    for mode, (name, entry) in enumerate(zip("MNK", permutation, strict=True)):
        if entry is not None:
            rules += _permutation_rules(name, entry, atom.shape_mnk[mode], atom_layout[mode])
    return rules


def _permutation_rules(name: str, permutation: Any, atom_extent: int, repeats: Layout) -> list[str]:
    """Return the rules that the permutation of one mode of a TiledMma violates, as phrases for an error message.

    name          the mode: "M", "N" or "K"
    permutation   layout from a position, counted through atom, threads and values, to an index in the tile; or the
                  extent of the tile
    atom_extent   extent of the atom along the mode
    repeats       layout of the atom's repetitions over threads along the mode
    """
    covered = atom_extent * repeats.size()
    if isinstance(permutation, Layout):
        if not permutation.is_integral or not numbers_once(permutation):
            return [
                f"the permutation {permutation} of {name} does not contain each of 0 to {permutation.size() - 1} once"
            ]
        extent = permutation.size()
    elif type(permutation) is int and permutation > 0:
        extent = permutation
    else:
        return [f"the permutation {permutation!r} of {name} is not a layout, a positive extent or None"]
    if extent % covered:
        return [
            f"the permutation {permutation} of {name} has {extent} elements, which is not a multiple of the {covered} "
            "that the atoms of all threads cover"
        ]
    try:
        places = Layout((atom_extent, repeats.shape, extent // covered))
        composition(permutation if isinstance(permutation, Layout) else Layout(permutation, 1), places)
    except LayoutError:
        return [
            f"the modes of the permutation {permutation} of {name} do not fit the extents {cute_text(places.shape)} of "
            "(position in the atom, repetition over threads, value)"
        ]
    return []


@lru_cache(maxsize=1024)  # many plans share their MMAs
def _thrfrg(mma: TiledMma, layout: Layout, operand: str) -> Layout:
    """Return an operand's layout with its elements grouped by the thread of a tiled MMA that holds them.

    The result has two modes. The first one, (v, (m, k)) for A, is the thread: its index v within the MMA instruction,
    and the coordinate (m, k) of its instruction among the repetitions over threads. The second one, (value, (rest_m,
    rest_k, ...)), counts the thread's elements: within the instruction, then over the rest of the operand.

    mma       the tiled MMA
    layout    layout (M, K, ...) of A, (N, K, ...) of B or (M, N, ...) of C
    operand   "a", "b" or "c"
    """
    i, j = _MODES[operand]
    permuted = logical_divide(layout, (mma._permutation[i], mma._permutation[j]))
    extents = mma.atom.shape_mnk
    atoms = zipped_divide(permuted, (Layout(extents[i]), Layout(extents[j])))
    in_atom = composition(atoms[0], mma.atom.layout_tv(operand))  # (thread of the atom, value)
    repeats = mma.thr_layout_vmnk
    spread = zipped_divide(atoms[1], (Layout(repeats[i + 1].shape), Layout(repeats[j + 1].shape)))
    return concatenate([concatenate([in_atom[0], spread[0]]), concatenate([in_atom[1], spread[1]])])


@lru_cache(maxsize=1024)
def _tv_layout_tiled(mma: TiledMma, operand: str) -> Layout:
    """Return the thread-value layout of an operand: (thread, value) -> colexicographic index in the operand's tile.

    mma       the tiled MMA
    operand   "a", "b" or "c"; its tile is (M, K), (N, K) or (M, N)
    """
    i, j = _MODES[operand]
    split = mma.thrfrg(operand, Layout((mma.tile_mnk[i], mma.tile_mnk[j])))
    # Threads that differ only along the mode that the operand lacks hold the same elements.
    repeats = [Layout(mma.thr_layout_vmnk[mode + 1].size(), 0) for mode in range(3)]
    repeats[i], repeats[j] = split[0][1][0], split[0][1][1]
    threads = concatenate([split[0][0], *repeats])
    covered = concatenate([mma.thr_layout_vmnk, complement(mma.thr_layout_vmnk, 1)])
    coord_of_thread = composition(right_inverse(covered), Layout((mma.threads, 1), (1, 0)))
    return concatenate([composition(threads, coord_of_thread[0]), split[1]])
