"""TiledMma: an MMA atom repeated over threads, and over the values of each thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from cutegemm.errors import LayoutError, PlanError
from cutegemm.layout import hooks
from cutegemm.layout.algebra import composition
from cutegemm.layout.inttuple import IntTuple, as_int_tuple, as_tuples, ceil_div, integer_of, product_each
from cutegemm.layout.inverses import complement, right_inverse
from cutegemm.layout.layout import Layout, concatenate, cute_text
from cutegemm.layout.modes import on_layout
from cutegemm.layout.swizzle import ComposedLayout
from cutegemm.layout.tensor import Tensor
from cutegemm.layout.tiling import logical_divide, tiled_product, zipped_divide
from cutegemm.tile.atoms import MmaAtom, fields_of, require
from cutegemm.tile.target import Target, as_tensor, layout_of
from cutegemm.tile.tv import numbers_once

# Which of the extents (M, N, K) an operand has.
_MODES = {"a": (0, 2), "b": (1, 2), "c": (0, 1)}


@dataclass(frozen=True)
class TiledMma(hooks.Shown):
    """An MMA atom repeated over threads and values, to cover a tile of M x N x K.

    atom               the instruction
    atom_layout_mnk    (m, n, k) of a repetition -> its number among the repetitions over threads; a shape
                       stands for its compact layout. Hierarchical modes are kept: ((lane_m, warp_m), ...)
    permutation_mnk    for each of M, N and K a layout from place to element of the tile; an extent n for n:1; None
                       for the extent that the threads cover. Places count through the atom first, then through the
                       threads, then through the values
    raises             PlanError with every rule that the three break
    source             CuTe, mma_atom.hpp:208, TiledMMA

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
        """A rule for each operand whose fragments under this permutation are no layouts."""
        rules = []
        for operand in _MODES:
            try:
                getattr(self, f"tv_layout_{operand.upper()}_tiled")
            except LayoutError as error:
                rules.append(
                    f"the permutation {cute_text(self.permutation_mnk)} takes the values of {operand.upper()} in "
                    "the atom apart:\n      " + str(error).replace("\n", "\n    ")
                )
        return rules

    def __reduce__(self) -> tuple[Any, ...]:
        return (TiledMma, fields_of(self))

    def __str__(self) -> str:
        layout, permutation = self.atom_layout_mnk, self.permutation_mnk
        covered = f"{cute_text(self.tile_mnk)} by {self.threads} threads"
        return f"{self.atom} x {layout}, permuted {cute_text(permutation)}: {covered}"

    @property
    def shape_mnk(self) -> tuple[int, int, int]:
        """Extents of the atom, as in CuTe; `tile_mnk` has the extents of the tile."""
        return self.atom.shape_mnk

    @property
    def threads(self) -> int:
        """How many threads take part."""
        return int(self.atom.threads * self.atom_layout_mnk.size())

    @cached_property
    def tile_mnk(self) -> tuple[int, int, int]:
        """Extents of the tile that all threads together cover once."""
        m, n, k = (p.size() if isinstance(p, Layout) else p for p in self._permutation)
        return (m, n, k)

    @cached_property
    def _permutation(self) -> tuple[Any, ...]:
        """`permutation_mnk` with the extent that the threads cover in place of None."""
        return tuple(
            [
                self.atom.shape_mnk[mode] * self.atom_layout_mnk[mode].size() if given is None else given
                for mode, given in enumerate(self.permutation_mnk)
            ]
        )

    @cached_property
    def thr_layout_vmnk(self) -> Layout:
        """(thread of the atom, m, n, k) -> thread, where m, n and k count repetitions of the atom."""
        return tiled_product(self.atom.thr_id, self.atom_layout_mnk)

    def thr_coord(self, thr_idx: Any) -> tuple[Any, Any, Any, Any]:
        """The coordinate (v, m, n, k) under `thr_layout_vmnk` of a thread, or of an array of threads.

        >>> from cutegemm.tile.mma_atoms import fma
        >>> TiledMma(fma(), Layout(((4, 2), (8, 4), 1), ((8, 32), (1, 64), 0))).thr_coord(37 + 64)
        (0, 4, 13, 0)
        """
        layout = self.thr_layout_vmnk
        v, m, n, k = (_index_in(layout[mode], thr_idx) for mode in range(4))
        return v, m, n, k

    @cached_property
    def tv_layout_A_tiled(self) -> Layout:
        """(thread, value) -> colexicographic index in the (M, K) tile of A."""
        return _tv_layout_tiled(self, "a")

    @cached_property
    def tv_layout_B_tiled(self) -> Layout:
        """(thread, value) -> colexicographic index in the (N, K) tile of B."""
        return _tv_layout_tiled(self, "b")

    @cached_property
    def tv_layout_C_tiled(self) -> Layout:
        """(thread, value) -> colexicographic index in the (M, N) tile of C and D."""
        return _tv_layout_tiled(self, "c")

    def thrfrg(self, operand: str, target: Target) -> Any:
        """A tile as ((v, (m, k)), (value, (rest_m, rest_k, ...))): threads first, then values.

        operand   a, b or c
        target    (M, K, ...), (N, K, ...) or (M, N, ...); modes beyond the second stay in the rest
        raises    LayoutError where the target has fewer modes, or no layout holds its parts
        source    CuTe, mma_atom.hpp:246, thrfrg_C
        """
        if not isinstance(operand, str) or operand not in _MODES:
            raise LayoutError(f"TiledMma: the operand {operand!r}; a, b or c is expected.")
        if not isinstance(target, (Layout, ComposedLayout, Tensor)):
            raise LayoutError(f"TiledMma: a layout or a tensor is expected, not {target!r}.")
        if len(layout_of(target)) < 2:
            raise LayoutError(
                f"TiledMma: {layout_of(target)} has one mode; the operand {operand} has two or more."
            )
        return on_layout(
            "TiledMma.thrfrg(operand, target): target", lambda layout: _thrfrg(self, layout, operand), target
        )

    def get_slice(self, thr_idx: int) -> ThrMma:
        """The part of one thread.

        raises   LayoutError for a thread that does not take part
        """
        index = integer_of(thr_idx)
        if index is None or not 0 <= index < self.threads:
            raise LayoutError(f"TiledMma.get_slice: thread {thr_idx} of {self}; threads run from 0.")
        return ThrMma(self, index)

    def partition_shape_A(self, shape_mk: IntTuple) -> IntTuple:
        """The shape (value, rest_m, rest_k, ...) of a thread's part of an A of this shape.

        >>> from cutegemm.tile.mma_atoms import fma
        >>> TiledMma(fma(), Layout((16, 16, 1))).partition_shape_A((128, 8))
        (1, 8, 8)
        """
        return self._partition_shape("a", shape_mk)

    def partition_shape_B(self, shape_nk: IntTuple) -> IntTuple:
        """The shape (value, rest_n, rest_k, ...) of a thread's part of a B of this shape."""
        return self._partition_shape("b", shape_nk)

    def partition_shape_C(self, shape_mn: IntTuple) -> IntTuple:
        """The shape (value, rest_m, rest_n, ...) of a thread's part of a C of this shape."""
        return self._partition_shape("c", shape_mn)

    def _partition_shape(self, operand: str, shape: IntTuple) -> IntTuple:
        tiles = ceil_div(product_each(shape), tuple([self.tile_mnk[m] for m in _MODES[operand]]))
        repeats = [
            self.tile_mnk[m] // self.atom.shape_mnk[m] // self.atom_layout_mnk[m].size()
            for m in _MODES[operand]
        ]
        rest = tuple([t * r for t, r in zip(tiles, repeats, strict=False)]) + tiles[2:]
        return (self.atom.layout_tv(operand)[1].shape, *rest)

    def offsets_a(self, target: Target) -> np.ndarray:
        """The offset of each element of A that each thread holds.

        target    (M, K, ...)
        returns   int64 array (threads, values, rest_m, rest_k, ...); for coordinates one axis more
        """
        return self._offsets("a", target)

    def offsets_b(self, target: Target) -> np.ndarray:
        """The same of B, (N, K, ...): an array (threads, values, rest_n, rest_k, ...)."""
        return self._offsets("b", target)

    def offsets_c(self, target: Target) -> np.ndarray:
        """The same of C, (M, N, ...): an array (threads, values, rest_m, rest_n, ...).

        >>> from cutegemm.tile.mma_atoms import fma
        >>> TiledMma(fma(), Layout((2, 2, 1))).offsets_c(Layout((4, 4)))[3, 0].tolist()
        [[5, 13], [7, 15]]
        """
        return self._offsets("c", target)

    def _offsets(self, operand: str, target: Target) -> np.ndarray:
        split = self.thrfrg(operand, as_tensor(target))
        shape = split.layout.shape
        (v, (p, q)), (values, rest) = shape
        sizes = [Layout(s).size() for s in (v, p, q, values, *rest)]
        flat = split.offsets()
        table: np.ndarray = flat.reshape((*sizes, *flat.shape[1:]), order="F")
        coord = self.thr_coord(np.arange(self.threads))
        i, j = _MODES[operand]
        held: np.ndarray = table[coord[0], coord[i + 1], coord[j + 1]]
        return held


@dataclass(frozen=True)
class ThrMma:
    """One thread of a TiledMma."""

    tiled_mma: TiledMma
    thr_idx: int

    def partition_A(self, target: Target) -> Tensor:
        """The elements of A that the thread holds: (value, rest_m, rest_k, ...).

        target    a tensor (M, K, ...); a layout stands for the tensor of its offsets
        returns   a view of it; the elements of the view of a layout are offsets

        >>> from cutegemm.layout.tensor import make_identity_tensor
        >>> from cutegemm.tile.mma_atoms import fma
        >>> TiledMma(fma(), Layout((4, 1, 2))).get_slice(5).partition_A(make_identity_tensor((8, 4)))
        Tensor<coordinates at (1, 1) o (1,2,2):(0,4@0,2@1)>
        """
        return self._partition("a", target)

    def partition_B(self, target: Target) -> Tensor:
        """The elements of B that the thread holds: (value, rest_n, rest_k, ...)."""
        return self._partition("b", target)

    def partition_C(self, target: Target) -> Tensor:
        """The elements of C that the thread holds: (value, rest_m, rest_n, ...)."""
        return self._partition("c", target)

    def _partition(self, operand: str, target: Target) -> Tensor:
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
    """The TiledMma of an atom; see `TiledMma`.

    source   CuTe DSL, `make_tiled_mma`

    >>> from cutegemm.tile.mma_atoms import fma
    >>> make_tiled_mma(fma(), (16, 16, 1)).tile_mnk
    (16, 16, 1)
    """
    layout = atom_layout_mnk if isinstance(atom_layout_mnk, Layout) else Layout(atom_layout_mnk)
    return TiledMma(atom, layout, (None, None, None) if permutation_mnk is None else permutation_mnk)


def _index_in(layout: Layout, thr_idx: Any) -> Any:
    """The index of a thread, or of an array of threads, in one mode of a thread layout."""
    index: Any = thr_idx * 0
    running = 1
    for extent, stride in zip(*layout.flat(), strict=True):
        if extent > 1:
            index = index + thr_idx // stride % extent * running
        running *= extent
    return index


def _violations(atom: MmaAtom, atom_layout: Any, permutation: Any) -> list[str]:
    if not isinstance(atom_layout, Layout) or len(atom_layout) != 3 or not atom_layout.is_integral:
        return [f"the atom layout {atom_layout} does not have the three modes (M, N, K)"]
    if not isinstance(permutation, tuple) or len(permutation) != 3:
        return [f"the permutation {permutation!r} does not have one entry for each of M, N and K"]
    rules = []
    if not numbers_once(atom_layout):
        rules.append(
            f"the atom layout {atom_layout} does not number its {atom_layout.size()} repetitions "
            f"0 .. {atom_layout.size() - 1}, each once"
        )
    for mode, (name, given) in enumerate(zip("MNK", permutation, strict=True)):
        if given is not None:
            rules += _permutation_rules(name, given, atom.shape_mnk[mode], atom_layout[mode])
    return rules


def _permutation_rules(name: str, given: Any, atom_extent: int, repeats: Layout) -> list[str]:
    covered = atom_extent * repeats.size()
    if isinstance(given, Layout):
        if not given.is_integral or not numbers_once(given):
            return [f"the permutation {given} of {name} does not take each of 0 .. {given.size() - 1} once"]
        extent = given.size()
    elif type(given) is int and given > 0:
        extent = given
    else:
        return [f"the permutation {given!r} of {name} is no layout, no positive extent and not None"]
    if extent % covered:
        return [
            f"the permutation {given} of {name} has {extent} elements, no multiple of the {covered} that the "
            "atoms of all threads cover"
        ]
    try:
        places = Layout((atom_extent, repeats.shape, extent // covered))
        composition(given if isinstance(given, Layout) else Layout(given, 1), places)
    except LayoutError:
        return [
            f"the permutation {given} of {name} is no layout from (place in the atom, repetition over "
            f"threads, value), whose extents are {cute_text(places.shape)}: its modes do not end where these do"
        ]
    return []


@lru_cache(maxsize=1024)  # most plans multiply as others do
def _thrfrg(mma: TiledMma, layout: Layout, operand: str) -> Layout:
    i, j = _MODES[operand]
    permuted = logical_divide(layout, (mma._permutation[i], mma._permutation[j]))
    extents = mma.atom.shape_mnk
    atoms = zipped_divide(permuted, (Layout(extents[i]), Layout(extents[j])))
    held = composition(atoms[0], mma.atom.layout_tv(operand))  # (thread of the atom, value)
    repeats = mma.thr_layout_vmnk
    spread = zipped_divide(atoms[1], (Layout(repeats[i + 1].shape), Layout(repeats[j + 1].shape)))
    return concatenate([concatenate([held[0], spread[0]]), concatenate([held[1], spread[1]])])


@lru_cache(maxsize=1024)
def _tv_layout_tiled(mma: TiledMma, operand: str) -> Layout:
    i, j = _MODES[operand]
    split = mma.thrfrg(operand, Layout((mma.tile_mnk[i], mma.tile_mnk[j])))
    # The threads of one repetition along the mode that an operand lacks hold the same of it.
    repeats = [Layout(mma.thr_layout_vmnk[mode + 1].size(), 0) for mode in range(3)]
    repeats[i], repeats[j] = split[0][1][0], split[0][1][1]
    threads = concatenate([split[0][0], *repeats])
    covered = concatenate([mma.thr_layout_vmnk, complement(mma.thr_layout_vmnk, 1)])
    coord_of_thread = composition(right_inverse(covered), Layout((mma.threads, 1), (1, 0)))
    return concatenate([composition(threads, coord_of_thread[0]), split[1]])
