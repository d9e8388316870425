"""TiledMma and TiledCopy against brute force, seeded and random, for a thread and for the whole CTA."""

from __future__ import annotations

import functools
import pickle
import random

import numpy as np
import pytest

from cutegemm.dtypes import bf16, f16, f32
from cutegemm.errors import LayoutError, PlanError
from cutegemm.layout.layout import Layout
from cutegemm.layout.swizzle import ComposedLayout, Swizzle
from cutegemm.layout.tensor import Tensor, make_identity_tensor
from cutegemm.tile.copy_atoms import ldmatrix, stmatrix, universal_copy
from cutegemm.tile.mma_atoms import fma, mma_sync, wgmma
from cutegemm.tile.tiled_copy import (
    TiledCopy,
    make_tiled_copy_A,
    make_tiled_copy_B,
    make_tiled_copy_C,
    make_tiled_copy_C_atom,
    make_tiled_copy_D,
    make_tiled_copy_S,
    make_tiled_copy_tv,
)
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tv import make_layout_tv
from tests.oracle.tile_cases import random_copy, random_mma, tiled_copy
from tests.tile.naive import MODES, copy_elements, index_in, mma_elements

SIMT = TiledMma(fma(), Layout(((4, 2), (8, 4), 1), ((8, 32), (1, 64), 0)), (Layout((16, 4), (4, 1)), 64, None))
WARPS = TiledMma(mma_sync(bf16, 16), Layout((2, 2, 1)), (32, 32, 16))


@functools.cache
def mmas():
    """Random TiledMmas whose tables are small enough for loops in Python."""
    rng, out = random.Random(7), []
    while len(out) < 60:
        case = random_mma(rng)
        m, n, k = case.extents
        if m * n + n * k + m * k <= 6000:
            out.append((TiledMma(case.atom, case.atom_layout, case.permutation), case.extents, case.threads))
    return out


@pytest.mark.parametrize("operand", "abc")
def test_mma_fragments_are_those_of_the_definition(operand):
    i, j = MODES[operand]
    for mma, extents, threads in mmas():
        shape = (extents[i], extents[j])
        expected = mma_elements(mma, operand, shape)
        offsets = getattr(mma, f"offsets_{operand}")(Layout(shape))
        assert offsets.shape == expected.shape[:-1], mma
        assert (offsets == index_in(shape, expected)).all(), mma
        assert offsets.shape[1:] == tuple(
            Layout(s).size() for s in getattr(mma, f"partition_shape_{operand.upper()}")(shape)
        )
        for thr in threads:
            part = getattr(mma.get_slice(thr), f"partition_{operand.upper()}")(Layout(shape))
            assert (part.offsets() == offsets[thr].reshape(-1, order="F")).all(), (mma, thr)


@pytest.mark.parametrize("operand", "abc")
def test_tv_layouts_are_the_fragments_of_one_tile(operand):
    i, j = MODES[operand]
    for mma, _, _ in mmas():
        tile = (mma.tile_mnk[i], mma.tile_mnk[j])
        layout = getattr(mma, f"tv_layout_{operand.upper()}_tiled")
        assert layout[0].size() == mma.threads
        table = layout.offsets().reshape(mma.threads, -1, order="F")
        expected = index_in(tile, mma_elements(mma, operand, tile)).reshape(mma.threads, -1, order="F")
        assert (table == expected).all(), mma


def test_c_is_held_once_and_a_and_b_as_often_as_their_broadcast():
    for mma, _, _ in mmas():
        _, m, n, k = (mma.thr_layout_vmnk[mode].size() for mode in range(4))
        for operand, others in (("a", n), ("b", m), ("c", k)):
            i, j = MODES[operand]
            held = getattr(mma, f"tv_layout_{operand.upper()}_tiled").offsets()
            counts = np.bincount(held, minlength=mma.tile_mnk[i] * mma.tile_mnk[j])
            shared = {"a": mma.atom.a_source, "b": mma.atom.b_source}.get(operand) == "shared"
            assert (counts == others * (mma.atom.threads if shared else 1)).all(), (mma, operand)


def test_coordinates_and_batches():
    """An identity tensor gives coordinates; modes beyond the second stay whole in the rest."""
    identity = make_identity_tensor((64, 64, 3))
    coords = WARPS.offsets_c(identity)
    assert coords.shape == (128, 4, 2, 4, 3, 3)
    expected = mma_elements(WARPS, "c", (64, 64))
    for batch in range(3):
        assert (coords[..., batch, :2] == expected).all()
        assert (coords[..., batch, 2] == batch).all()
    part = WARPS.get_slice(37).partition_C(identity)
    assert str(part.layout) == "((2,2),2,4,3):((1@1,8@0),32@0,16@1,1@2)"
    assert part[0, 0, 0, 0] == (17, 2, 0)


def test_swizzled_targets_keep_their_swizzle():
    smem = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((64, 64), (64, 1)))
    plain, swizzled = WARPS.offsets_a(smem.outer), WARPS.offsets_a(smem)
    assert (swizzled == smem.inner(plain)).all()
    part = WARPS.get_slice(93).partition_A(smem)
    assert (part.offsets() == swizzled[93].reshape(-1, order="F")).all()
    copy = make_tiled_copy_A(ldmatrix(bf16, 4), WARPS)
    assert (copy.offsets_s(smem) == smem.inner(copy.offsets_s(smem.outer))).all()
    assert (copy.get_slice(93).partition_S(smem).offsets() == copy.offsets_s(smem)[93].reshape(-1, order="F")).all()


def test_partitions_of_arrays_are_views():
    array = np.zeros(128 * 64)
    c = Tensor(array, Layout((128, 64), (64, 1)))
    for thr in range(SIMT.threads):
        part = SIMT.get_slice(thr).partition_C(c)
        part[(None,) * len(part.shape)] = thr + 1
    _, counts = np.unique(array, return_counts=True)
    assert array.min() == 1
    assert (counts == 128 * 64 // SIMT.threads).all()


def test_tiles_that_do_not_divide_run_over_the_end():
    """A (100, 50) C under a (32, 32) tile has 4 x 2 tiles, as a divide of layouts rounds up."""
    part = WARPS.get_slice(0).partition_C(make_identity_tensor((100, 50)))
    assert part.shape == ((2, 2), 4, 4)
    assert WARPS.partition_shape_C((100, 50)) == ((2, 2), 4, 4)
    assert part[(1, 1), 3, 3] == (8 + 96, 1 + 48)


@functools.cache
def copies():
    """TiledCopies, as TiledMmas above."""
    rng = random.Random(11)
    cases = [random_copy(rng) for _ in range(200)]
    small = [c for c in cases if c.maker != "c_atom" and int(np.prod(c.extents)) <= 6000]
    return [(tiled_copy(case), case) for case in small[:60]]


@pytest.mark.parametrize("side", "sd")
def test_copies_are_those_of_the_definition(side):
    checked = 0
    for copy, case in copies():
        expected = index_in(case.extents, copy_elements(copy, side, case.extents))
        offsets = getattr(copy, f"offsets_{side}")(Layout(case.extents))
        assert np.array_equal(offsets, expected), case
        tiled = copy.layout_src_tv_tiled if side == "s" else copy.layout_dst_tv_tiled
        one = index_in(copy.tiler_mn, copy_elements(copy, side, copy.tiler_mn))
        assert (tiled.offsets().reshape(copy.threads, -1, order="F") == one.reshape(*one.shape[:2])).all(), case
        for thr in case.threads:
            part = getattr(copy.get_slice(thr), f"partition_{side.upper()}")(Layout(case.extents))
            assert (part.offsets() == offsets[thr].reshape(-1, order="F")).all(), case
        checked += 1
    assert checked == 60


def fragment_of(mma, operand, thr, shape):
    """(the fragment's layout, the coordinates of its elements in the order of its offsets)."""
    part = getattr(mma.get_slice(thr), f"partition_{operand.upper()}")(make_identity_tensor(shape))
    return Layout(getattr(mma, f"partition_shape_{operand.upper()}")(shape)), part.offsets()


@pytest.mark.parametrize("thr", [0, 37, 127])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("operand", "abc")
def test_retile_pairs_what_is_copied_with_what_is_multiplied(operand, transpose, thr):
    """At ((v, atom), i, j) the retiled fragment holds the element that the copy moves there."""
    make = {"a": make_tiled_copy_A, "b": make_tiled_copy_B, "c": make_tiled_copy_C}[operand]
    atom = stmatrix(bf16, 4, transpose) if operand == "c" else ldmatrix(bf16, 4, transpose)
    copy, shape = make(atom, WARPS), (96, 64)
    layout, coords = fragment_of(WARPS, operand, thr, shape)
    retiled = copy.retile(layout)
    assert retiled.size() == layout.size()
    assert (np.sort(retiled.offsets()) == np.arange(layout.size())).all()
    side = "partition_S" if operand == "c" else "partition_D"
    moved = getattr(copy.get_slice(thr), side)(make_identity_tensor(shape))
    assert [Layout(s).size() for s in moved.shape] == [Layout(s).size() for s in retiled.shape]
    assert (coords[retiled.offsets()] == moved.offsets()).all()


def test_c_atom_copies_store_the_accumulators_in_parts():
    mma = TiledMma(wgmma(bf16, 128), Layout((2, 1, 1)))
    copy = make_tiled_copy_C_atom(stmatrix(bf16, 4), mma)
    assert copy.threads == 256
    assert copy.layout_tv[1].size() == 8
    layout, coords = fragment_of(mma, "c", 200, (128, 128))
    tiles = copy.get_slice(200).partition_S(make_identity_tensor((128, 128)))
    assert tiles.size() == layout.size()
    assert {tuple(c) for c in tiles.offsets().tolist()} == {tuple(c) for c in coords.tolist()}


def test_copies_after_the_source_or_the_destination_of_another():
    load = make_tiled_copy_A(ldmatrix(bf16, 4), WARPS)
    by_rows = make_tiled_copy_S(universal_copy(bf16, 128), load)
    assert (by_rows.layout_src_tv_tiled.offsets() == load.layout_src_tv_tiled.offsets()).all()
    by_values = make_tiled_copy_D(universal_copy(bf16, 32), load)
    assert (by_values.layout_dst_tv_tiled.offsets() == load.layout_dst_tv_tiled.offsets()).all()


def test_plans_may_use_them_as_keys():
    again = TiledMma(fma(), SIMT.atom_layout_mnk, SIMT.permutation_mnk)
    assert again == SIMT
    assert hash(again) == hash(SIMT)
    assert again != WARPS
    before = pickle.dumps(again)
    SIMT.offsets_a(Layout((64, 8)))
    assert pickle.dumps(SIMT) == before
    assert pickle.loads(before) == SIMT
    copy = make_tiled_copy_tv(universal_copy(f32, 128), Layout((32, 8)), Layout((4, 1)))
    assert pickle.loads(pickle.dumps(copy)) == copy
    assert len({copy, pickle.loads(pickle.dumps(copy))}) == 1
    with pytest.raises(AttributeError):
        copy.tiler_mn = (1, 1)  # type: ignore[misc]
    assert str(copy) == "copy.128b.f32 by (256,4):(4,1), tile (128,8): 256 threads"
    assert str(WARPS) == "mma.m16n8k16.f32.bf16 x (2,2,1):(1,2,0), permuted (32,32,16): (32,32,16) by 128 threads"


def permuted_mmas(count, seed):
    """Random TiledMmas whose permutations run values in any order, against that of elements too."""
    rng, out = random.Random(seed), []
    while len(out) < count:
        atom = rng.choice([fma(), mma_sync(bf16, 16), mma_sync(bf16, 8)])
        repeats = (rng.choice([1, 2]), rng.choice([1, 2]), 1)
        permutation = []
        for extent, threads in zip(atom.shape_mnk[:2], repeats[:2], strict=True):
            values = rng.choice([[1], [2], [2, 2], [4], [2, 3]])
            sizes = [extent, threads, *values]
            strides, running = [0] * len(sizes), 1
            for mode in rng.sample(range(len(sizes)), len(sizes)):
                strides[mode] = running
                running *= sizes[mode]
            permutation.append(rng.choice([None, Layout(tuple(sizes), tuple(strides))]))
        try:
            out.append(TiledMma(atom, Layout(repeats), (*permutation, None)))
        except PlanError:
            continue  # a permutation that tears atoms apart
    return out


def retiled_wrongly(mma, copy, operand, thr, shape):
    """How many registers of a retiled fragment do not hold the element that the copy moves there."""
    layout, coords = fragment_of(mma, operand, thr, shape)
    side = "partition_S" if operand == "c" else "partition_D"
    moved = getattr(copy.get_slice(thr), side)(make_identity_tensor(shape)).offsets()
    retiled = copy.retile(layout).offsets()
    assert sorted(retiled) == list(range(layout.size()))
    return int((coords[retiled] != moved).any(axis=1).sum())


def test_retile_follows_the_permutation_of_the_mma():
    """Whatever the permuted order of a thread's values."""
    against, checked = 0, 0
    for mma in permuted_mmas(150, 23):
        for operand, (i, j) in MODES.items():
            makers = {"a": make_tiled_copy_A, "b": make_tiled_copy_B, "c": make_tiled_copy_C}
            values = mma.atom.layout_tv(operand)[1].size()
            atoms = [universal_copy(f32, 32)] + ([ldmatrix(bf16, 2)] if mma.atom.threads == 32 else [])
            for atom in atoms if operand != "c" else atoms[:1]:
                try:
                    copy = makers[operand](atom, mma)
                except PlanError:
                    continue  # the values are not whole vectors of this atom
                shape = (2 * mma.tile_mnk[i], mma.tile_mnk[j] * random.Random(values).choice([1, 2]))
                for thr in (0, mma.threads - 1):
                    assert retiled_wrongly(mma, copy, operand, thr, shape) == 0, (mma, operand, atom)
                checked += 1
                against += not copy.retiles_in_element_order
    assert checked > 200
    assert against > 50


def test_the_order_of_elements_is_said():
    """The two plans that CuTe's retile gets wrong: it pairs registers with elements of other places."""
    two_by_two = TiledMma(fma(), Layout((1, 1, 1)), (None, Layout((2, 2), (2, 1)), None))
    warp = TiledMma(mma_sync(bf16, 16), Layout((1, 1, 1)), (None, Layout((8, 2, 2), (1, 16, 8)), None))
    assert not make_tiled_copy_B(universal_copy(f32, 32), two_by_two).retiles_in_element_order
    assert not make_tiled_copy_B(ldmatrix(bf16, 2), warp).retiles_in_element_order
    assert make_tiled_copy_A(ldmatrix(bf16, 4), WARPS).retiles_in_element_order
    assert retiled_wrongly(warp, make_tiled_copy_B(ldmatrix(bf16, 4), warp), "b", 5, (32, 32)) == 0
    load = make_tiled_copy_B(ldmatrix(bf16, 4), warp)
    by_values = make_tiled_copy_D(universal_copy(bf16, 32), load)
    assert retiled_wrongly(warp, by_values, "b", 5, (32, 32)) == 0
    by_rows = make_tiled_copy_S(universal_copy(bf16, 128), load)
    with pytest.raises(LayoutError, match="was made for a TiledMma with a permutation"):
        by_rows.retile(Layout(warp.partition_shape_B((32, 32))))


REFUSED = [
    (
        lambda: TiledCopy(universal_copy(f32, 32), Layout((4, 2), (-1, 4)), (4, 2)),
        ["reaches the negative index -3"],
    ),
    (
        lambda: TiledCopy(universal_copy(f32, 32), Layout((4, 2)), (Layout((2, 2), (1, 3)), 2)),
        ["the mode (2,2):(1,3) of the tile"],
    ),
    (lambda: TiledMma(fma(), Layout((4, 2))), ["does not have the three modes"]),
    (
        lambda: TiledMma(fma(), Layout((4, 2, 1), (1, 2, 0))),
        ["does not number its 8 repetitions from 0 to 7"],
    ),
    (
        lambda: TiledMma(fma(), Layout((4, 2, 1)), (3, None, None)),
        ["the permutation 3 of M has 3 elements, which is not a multiple of the 4"],
    ),
    (
        lambda: TiledMma(mma_sync(bf16, 16), Layout((2, 2, 1), (1, 1, 0)), (Layout((8, 8), (1, 16)), 0, 8)),
        [
            "(2,2,1):(1,1,0)",
            "(8,8):(1,16) of M does not contain each of 0 to 63 once",
            "0 of N",
            "8 of K has 8 elements",
        ],
    ),
    (
        lambda: TiledMma(mma_sync(bf16, 16), permutation_mnk=(None, Layout((12, 2), (2, 1)), None)),
        ["do not fit the extents (8,1,3)"],
    ),
    (
        lambda: TiledMma(wgmma(f16, 88), permutation_mnk=(None, Layout((44, 4), (4, 1)), None)),
        ["splits the values of C in the atom"],
    ),
    (
        lambda: TiledCopy(ldmatrix(f16, 4), Layout((16, 12)), (16, 8)),
        ["spans 192", "16 threads", "12 values"],
    ),
    (
        lambda: TiledCopy(universal_copy(f32, 64), Layout(32), (32,)),
        ["does not have the two modes (thread, value)"],
    ),
    (
        lambda: TiledCopy(universal_copy(f32, 64), Layout((16, 2)), (32, 0)),
        ["is not a tuple of positive extents"],
    ),
    (
        lambda: make_tiled_copy_tv(universal_copy(f32, 64), Layout((2, 4)), Layout((3, 2))),
        ["does not divide into blocks of 1 threads by 2 values"],
    ),
    (
        lambda: make_tiled_copy_C_atom(stmatrix(f16, 4), TiledMma(mma_sync(f16, 16))),
        ["takes 8 values of a thread, but a thread of"],
    ),
]


@pytest.mark.parametrize(("make", "messages"), REFUSED)
def test_every_broken_rule_is_reported(make, messages):
    with pytest.raises(PlanError) as raised:
        make()
    assert len(raised.value.violations) == len(messages)
    for message, violation in zip(messages, raised.value.violations, strict=True):
        assert message in violation


@pytest.mark.parametrize(
    ("threads", "values", "said"),
    [
        (Layout(4, 2), Layout(2), "thr_layout = 4:2 does not map one coordinate to each of the 4 threads"),
        (Layout((4, 8), (8, 1)), Layout((2, 2), (4, 1)), r"val_layout = \(2,2\):\(4,1\) does not"),
        (
            Layout((4, 8), (0, 1)),
            Layout((2, 2)),
            r"thr_layout = \(4,8\):\(0,1\) does not map one coordinate to each of the 32",
        ),
        (Layout((4, 8)), Layout((2, 2), (1, -2)), "does not map one coordinate to each of the 4 values"),
        (make_identity_tensor((4,)).layout, Layout(2), "does not map one coordinate to each"),
        (Layout(4), 2, "val_layout is 2, an int; a Layout is expected"),
    ],
)
def test_threads_and_values_are_numbered_once(threads, values, said):
    for make in (make_layout_tv, lambda t, v: make_tiled_copy_tv(universal_copy(f32, 32), t, v)):
        with pytest.raises(LayoutError, match=said):
            make(threads, values)


def test_threads_that_take_no_part_are_refused():
    with pytest.raises(LayoutError, match="thread 128"):
        WARPS.get_slice(128)
    with pytest.raises(LayoutError, match="thread -1"):
        make_tiled_copy_A(ldmatrix(bf16, 4), WARPS).get_slice(-1)
    with pytest.raises(LayoutError, match="one mode"):
        WARPS.offsets_a(Layout(64))
    with pytest.raises(LayoutError, match="fewer modes"):
        make_tiled_copy_A(ldmatrix(bf16, 4), WARPS).offsets_s(Layout(64))


def test_modes_of_extent_1_keep_their_coordinate():
    """An (M, 1) tile still has rows of two coordinates, whichever mode is the short one."""
    mma = TiledMma(fma(), Layout((4, 1, 1)))
    assert mma.offsets_a(make_identity_tensor((8, 1)))[3].tolist() == [[[[3, 0]], [[7, 0]]]]
    assert mma.offsets_b(make_identity_tensor((1, 2)))[3].tolist() == [[[[0, 0], [0, 1]]]]
    assert mma.get_slice(3).partition_A(make_identity_tensor((8, 1)))[0, 1, 0] == (7, 0)
    copy = make_tiled_copy_tv(universal_copy(f32, 32), Layout((4, 1)), Layout((1, 1)))
    assert copy.offsets_s(make_identity_tensor((4, 1, 2)))[2].tolist() == [[[[[2, 0, 0], [2, 0, 1]]]]]
    assert copy.get_slice(2).partition_D(make_identity_tensor((4, 1)))[0, 0, 0] == (2, 0)
