"""Who holds what, by brute force: from the definition of the partition, an element at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from cutegemm.layout.inttuple import product
from cutegemm.layout.layout import Layout
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma

MODES = {"a": (0, 2), "b": (1, 2), "c": (0, 1)}


def mma_elements(mma: TiledMma, operand: str, shape: tuple[int, int]) -> np.ndarray:
    """(thread, value, rest_i, rest_j) -> the coordinate (i, j) of the element, for a shape of whole tiles.

    Along each mode an element stands at the place: within the atom, + atom * repetition over threads,
    + atom * repetitions * rest. The permutation says which element of the tile stands at a place.
    """
    i, j = MODES[operand]
    vmnk = thread_coords(mma.thr_layout_vmnk)
    held = mma.atom.layout_tv(operand)
    atom_i, atom_j = mma.atom.shape_mnk[i], mma.atom.shape_mnk[j]
    repeats_i, repeats_j = mma.atom_layout_mnk[i].size(), mma.atom_layout_mnk[j].size()
    rests = (shape[0] // atom_i // repeats_i, shape[1] // atom_j // repeats_j)
    out = np.empty((mma.threads, held[1].size(), *rests, 2), np.int64)
    for thread, value, rest_i, rest_j in itertools.product(*map(range, out.shape[:4])):
        coord = vmnk[thread]
        element = held(coord[0], value)
        place_i = element % atom_i + atom_i * (coord[i + 1] + repeats_i * rest_i)
        place_j = element // atom_i + atom_j * (coord[j + 1] + repeats_j * rest_j)
        out[thread, value, rest_i, rest_j] = (
            permuted(mma.permutation_mnk[i], place_i),
            permuted(mma.permutation_mnk[j], place_j),
        )
    return out


def thread_coords(layout: Layout) -> dict[int, tuple[int, ...]]:
    """thread -> (v, m, n, k), from the whole table of a thread layout."""
    sizes = [layout[mode].size() for mode in range(4)]
    return {layout(*coord): coord for coord in itertools.product(*map(range, sizes))}


def permuted(permutation: Any, place: int) -> int:
    if not isinstance(permutation, Layout):
        return place
    size = permutation.size()
    return permutation(place % size) + place // size * size


def copy_elements(copy: TiledCopy, side: str, shape: tuple[int, ...]) -> np.ndarray:
    """(thread, value, rest...) -> the coordinate of the element, for a tile of extents alone.

    Thread t of an atom holds, as value v, the element that the atom's layout says; the thread and value
    that hold that element in registers are looked up in the reference layout, and `layout_tv` says where in
    the tile they stand.
    """
    atom = copy.atom
    given = atom.layout_src_tv if side == "s" else atom.layout_dst_tv
    reference = atom.layout_ref_tv
    holder = {reference(t, v): (t, v) for t in range(reference[0].size()) for v in range(reference[1].size())}
    tile = copy.tiler_mn
    rests = [s // t for s, t in zip(shape, tile, strict=False)] + list(shape[len(tile) :])
    values = given[1].size() * (copy.layout_tv[1].size() // atom.values)
    out = np.empty((copy.threads, values, *rests, len(shape)), np.int64)
    for thread, value in itertools.product(range(copy.threads), range(values)):
        atom_thread, block = thread % atom.threads, thread // atom.threads
        atom_value, repeat = value % given[1].size(), value // given[1].size()
        t, v = holder[given(atom_thread, atom_value)]
        at = copy.layout_tv(t + atom.threads * block, v + atom.values * repeat)
        within = []
        for extent in tile:
            within.append(at % extent)
            at //= extent
        for rest in itertools.product(*map(range, rests)):
            out[(thread, value, *rest)] = [
                (within[m] + tile[m] * r if m < len(tile) else r) for m, r in enumerate(rest)
            ]
    return out


def index_in(shape: tuple[int, ...], coords: np.ndarray) -> np.ndarray:
    """The colexicographic index of rows of coordinates."""
    strides = [product(shape[:m]) for m in range(len(shape))]
    return coords @ np.array(strides, np.int64)
