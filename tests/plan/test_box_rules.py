"""Shared memory of plans with TMA: one layout for the boxes, for wgmma and for the kernel, or a rule is broken."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cutegemm.build import mma_tma_plan, sm90_plan
from cutegemm.dtypes import DType, bf16
from cutegemm.errors import PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, tile_to_shape
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.rules.boxes import _misplaced, _not_stated, _Tile, places
from cutegemm.simulator.boxes import box_tables, check_boxes
from cutegemm.simulator.report import Report
from cutegemm.tile.smem_atoms import KINDS, smem_atom
from cutegemm.tile.tiled_copy import make_tiled_copy_tv
from cutegemm.tile.tma import TmaBox
from tests.streams import stream_changes

SWIZZLES = {"interleave": "none", "32B": "32B", "64B": "64B", "128B": "128B"}


def rules_of(plan: GemmPlan, **changes: Any) -> str:
    try:
        plan.with_(**stream_changes(plan, **changes))
    except PlanError as error:
        return "\n".join(error.violations)
    return ""


def in_atoms(dtype: DType, major: str, kind: str, shape: tuple[int, int, int]) -> ComposedLayout:
    """A canonical layout, its atoms side by side along the major mode last."""
    order = (0, 1, 2) if major == "k" else (1, 0, 2)
    return tile_to_shape(smem_atom(dtype, major, kind), shape, order)


@pytest.mark.parametrize(
    ("swizzle", "said"),
    [
        (
            Swizzle(2, 3, 3),
            "A(m 4, k 0) is at the offset 256, TMA places it at 288",
        ),  # 4 << 6 | 4 << 3 against the lower 2 bits
        (None, "A(m 1, k 0) is at the offset 64, TMA places it at 72"),
        (Swizzle(3, 3, 4), "A(m 1, k 0) is at the offset 64, TMA places it at 72"),
    ],
)
def test_another_swizzle_than_that_of_the_boxes(swizzle: Swizzle | None, said: str) -> None:
    plan = sm90_plan()
    outer = plan.a.smem.outer
    found = rules_of(plan, smem_a=outer if swizzle is None else ComposedLayout(swizzle, 0, outer))
    assert "does not agree with its TMA boxes of 64 x 128 and swizzle '128B'" in found
    assert said in found


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (
            "S<3,3,3> o 0 o (128,64,6):(1,128,8192)",
            "A(m 0, k 1) is 128 elements after A(m 0, k 0); in a box it is 1.",
        ),
        (
            "S<3,3,3> o 0 o (128,64,6):(72,1,9216)",
            "A(m 1, k 0) is 72 elements after A(m 0, k 0); in a box it is 64.",
        ),
        ("S<3,3,3> o 0 o (128,64,6):(64,1,8200)", "do not start at a multiple of 128 bytes, which TMA needs."),
        ("S<3,3,3> o 0 o (128,64,6):(64,1,8256)", "groups of 8 rows must start at multiples of 1024 bytes."),
        ("S<3,3,3> o 8 o (128,64,6):(64,1,8192)", "begins with the offset 8; expected the offset 0."),
        ("(128,64,6):(64,1,0)", "places two elements at one offset."),
        ("S<3,3,3> o 0 o (128,64,6):(-64,1,8192)", "has negative offsets"),
        ("S<3,3,3> o 0 o (128,64,6):(64,1,4611686018427387904)", "elements, too many for a 64-bit offset."),
        ("S<3,3,3> o 0 o (128,64,60000):(64,1,8192)", "elements, more than any shared memory holds."),
    ],
)
def test_another_place_than_that_of_the_boxes(layout: str, said: str) -> None:
    assert said in rules_of(sm90_plan(), smem_a=Layout.parse(layout))


def test_a_layout_of_a_layout_is_no_shared_memory() -> None:
    plan = sm90_plan()
    given = ComposedLayout(Layout(1 << 20), 0, plan.a.smem.outer)
    assert "is a composition with a layout; expected a layout, or a composition with a swizzle." in rules_of(
        plan, smem_a=given
    )


def test_the_rule_is_what_the_simulator_finds() -> None:
    """Layouts and boxes by chance: a rule is broken exactly where an element is not at the place of the box."""
    chance = random.Random(3)
    tile = (32, 64)
    agreed = {True: 0, False: 0}
    for _ in range(300):
        inner = chance.randrange(2)
        width, rows = chance.choice([16, 32, 64]), chance.choice([8, 16, 32])
        if tile[inner] % width or tile[1 - inner] % rows:
            continue
        kind = chance.choice([k for k, (_, b) in KINDS.items() if b >= 2 * width or k == "interleave"])
        box = TmaBox("load", bf16, (width, rows), SWIZZLES[kind])
        columns, down = tile[inner] // width, tile[1 - inner] // rows
        pitch = chance.choice([width, width, width, width + 8])
        side, below = chance.choice([(pitch * rows * down, pitch * rows), (pitch * rows, pitch * rows * columns)])
        first, second = Layout((width, columns), (1, side)), Layout((rows, down), (pitch, below))
        modes = (first, second) if inner == 0 else (second, first)
        outer = Layout((*[m.shape for m in modes], 2), (*[m.stride for m in modes], 2 * pitch * tile[0] * tile[1]))
        swizzle = chance.choice([Swizzle(bits, 3, 3) for bits in (KINDS[kind][0], KINDS[kind][0], 0, 2)])
        layout = ComposedLayout(swizzle, 0, outer)
        report = Report()
        check_boxes(box_tables("A", ("m", "k"), box, layout, tile, inner), report)
        said = [
            rule
            for rule in _misplaced(_Tile("A", ("m", "k"), bf16, tile, inner), box.box, box.swizzle, layout)
            if "does not agree with its TMA boxes of" in rule
        ]
        is_right = not report.faults()
        assert is_right == (not said), (box, layout, said, report.faults())
        agreed[is_right] += 1
    assert min(agreed.values()) > 40


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("major", ["k", "mn"])
def test_a_descriptor_states_every_canonical_layout(kind: str, major: str) -> None:
    layout = in_atoms(bf16, major, kind, (128, 64, 3))
    tile = _Tile("A", ("m", "k"), bf16, (128, 64), 1 if major == "k" else 0)
    assert _not_stated(tile, layout, 64, 16, "wgmma") == ()
    turned = ComposedLayout(layout.inner, 0, tile_to_shape(smem_atom(bf16, major, kind), (128, 64, 3), (1, 0, 2)).outer)
    assert _not_stated(tile, turned, 64, 16, "wgmma") == ()


@pytest.mark.parametrize(
    ("layout", "inner", "said"),
    [
        # Swizzles of PTX XOR bits 4.. of addresses with those 3 above
        ("S<2,2,3> o 0 o (128,32):(32,1)", 1, "its swizzle is S<2,2,3>"),
        ("S<3,3,4> o 0 o (128,64):(64,1)", 1, "its swizzle is S<3,3,4>"),
        # Rows of 64 bytes under the swizzle of 128
        ("S<3,3,3> o 0 o (128,32):(32,1)", 1, "groups of 8 elements 64 elements apart"),
        # Plain rows: core matrices of 8 x 16 bytes are expected
        ("(128,64):(64,1)", 1, "groups of 8 elements 8 elements apart"),
        # The second group of 8 rows of an instruction further away than the third from the second
        ("S<3,3,3> o 0 o ((8,2,8),64):((64,1024,1536),1)", 1, "at equal distances are needed"),
        # Instructions of 16 along K that are torn
        ("S<3,3,3> o 0 o (128,(8,8)):(64,(1,8192))", 1, "16 elements side by side"),
        # mn-major: 64 rows end within a line
        ("S<3,3,3> o 0 o ((64,2),(8,8)):((1,512),(64,1024))", 0, None),
        ("S<3,3,3> o 0 o ((32,4),(8,8)):((1,4096),(64,512))", 0, "64 elements side by side"),
        ("S<3,3,3> o 0 o ((64,2),(8,8)):((1,520),(64,1040))", 0, "must start at multiples of 1024 bytes"),
    ],
)  # fmt: skip
def test_what_no_descriptor_states(layout: str, inner: int, said: str | None) -> None:
    given = Layout.parse(layout)
    extents = (128, given.size() // 128)
    found = _not_stated(_Tile("A", ("m", "k"), bf16, extents, inner), given, 64, 16, "wgmma.m64n128k16")
    assert (len(found) == 1 and said in found[0]) if said else not found


@pytest.mark.parametrize("kind", ["32B", "64B", "128B", "interleave"])
def test_narrower_rows_make_a_plan_with_boxes_as_narrow(kind: str) -> None:
    """What the builder does not make, a plan may still have: all parts of it agree."""
    plan = sm90_plan(tile=(128, 64, 64), stages=3)
    width = KINDS[kind][1] // 2
    layout = in_atoms(bf16, "k", kind, (128, 64, 3))
    box = replace(plan.a.load, box=(width, 128), swizzle=SWIZZLES[kind])
    assert plan.with_(**stream_changes(plan, smem_a=layout, load_a=box)).a.smem == layout
    if kind != "128B":
        assert "does not agree with its TMA boxes of" in rules_of(plan, smem_a=layout)
        assert "does not agree with its TMA boxes of" in rules_of(plan, load_a=box)


@pytest.mark.parametrize(("layout", "major", "kind", "rows"), [("nt", "k", "interleave", 64), ("tn", "mn", "32B", 8)])
def test_what_the_rules_allow_is_what_the_hardware_reads(layout: str, major: str, kind: str, rows: int) -> None:
    """Other canonical layouts than the builder's, compiled and carried out on the CPU: boxes, descriptors, sums."""
    pytest.importorskip("cutlass")
    from cutegemm.run.emulated import emulate

    plan = sm90_plan(Operands.of("bf16", layout=layout), tile=(64, 64, 64), stages=2, ctas=2, epi_tile_n=32)
    order = (0, 1, 2)  # the atoms along M first: boxes of 8 rows where M is contiguous
    given = tile_to_shape(smem_atom(bf16, major, kind), (64, 64, 2), order)
    box = replace(plan.a.load, box=(KINDS[kind][1] // 2, rows), swizzle=SWIZZLES[kind])
    numbers = np.random.default_rng(0)
    a, b = (numbers.integers(-2, 3, shape).astype(np.float32) for shape in ((80, 144), (144, 80)))
    assert np.array_equal(emulate(plan.with_(**stream_changes(plan, smem_a=given, load_a=box)), a, b).d, a @ b)


def test_mma_sync_reads_whatever_the_boxes_write() -> None:
    """No descriptor: plain rows of 128 bytes, which conflict in their banks but are where they should be."""
    plan = mma_tma_plan(Operands.of("bf16", layout="nt"), block=(64, 64, 64), warp=(32, 32), stages=2)
    plain = Layout((64, 64, 2), (64, 1, 4096))
    box = replace(plan.a.load, swizzle="none")
    assert plan.with_(**stream_changes(plan, smem_a=plain, load_a=box)).a.smem == plain
    assert "does not agree with its TMA boxes of" in rules_of(plan, smem_a=plain)
    wgmma = sm90_plan(tile=(64, 64, 64), stages=2)
    found = rules_of(wgmma, smem_a=plain, load_a=replace(wgmma.a.load, swizzle="none"))
    assert "no descriptor of wgmma.m64n64k16" in found
    assert "does not agree with" not in found


def test_another_majorness_than_that_of_the_instruction() -> None:
    plan = sm90_plan()
    turned = Operands.of("bf16", layout="tt")
    found = rules_of(plan, operands=turned)
    assert "A is m-major in shared memory, but wgmma.m64n128k16.f32.bf16.k_k.ss reads it k-major." in found


def test_slots_that_are_not_where_the_boxes_are() -> None:
    plan = sm90_plan()
    outer = plan.store.layout.outer
    turned = Layout((64, 64, 2, 2), (1, 64, 4096, 8192))
    for given in (outer, turned, ComposedLayout(Swizzle(2, 3, 3), 0, outer)):
        assert "the shared memory of D" in rules_of(plan, store=replace(plan.store, smem=given))
        assert "does not agree with its TMA boxes of 64 x 64" in rules_of(plan, store=replace(plan.store, smem=given))
    both = Layout((64, 64, 2, 2), (64, 1, 4096, 4096))
    assert "places two elements at one offset." in rules_of(plan, store=replace(plan.store, smem=both))
    store = plan.store
    for box, said in (
        (replace(store.box, box=(32, 64), swizzle="64B"), "does not agree with its TMA boxes of 32 x 64"),
        (replace(store.box, box=(64, 48)), "boxes of 64 x 48 of D do not divide an epilogue tile, whose"),
        (replace(store.box, direction="load"), "expected a store of bf16 without multicast."),
        (replace(store.box, box=(64,)), "which has 1 modes. Boxes of a tile have 2."),
    ):
        assert said in rules_of(plan, store=replace(store, box=box))


def test_padded_slots_are_stored_by_threads_in_aligned_rows() -> None:
    plan = sm90_plan(shared_d="padded")
    shape, (pitch, _, epi_stage, consumer) = plan.store.layout.shape, plan.store.layout.stride
    assert plan.with_(store=replace(plan.store, smem=Layout(shape, (pitch + 8, 1, 2 * epi_stage, 2 * consumer))))
    found = rules_of(plan, store=replace(plan.store, smem=Layout(shape, (pitch + 1, 1, 2 * epi_stage, 2 * consumer))))
    assert "stmatrix.x4.bf16 accesses epilogue stages in rows of 128 bits at a time" in found
    assert "the copy of D reads 128 bits at a time" in found


def test_lines_that_are_turned_are_dense_and_copied_by_powers_of_two() -> None:
    """128 threads take 32 neighbours of 4 lines at a time; 192 elements of 16 bits, 200 from line to line."""
    operands = Operands.of("bf16", layout="nt")
    odd = replace(operands, d=replace(operands.d, align_bytes=2))
    plan = sm90_plan(odd, tile=(64, 192, 64), shared_d="padded")
    store, atom = plan.store, plan.store.line_copy.atom
    shape, strides = plan.store.layout.shape, plan.store.layout.stride
    assert (strides, store.copy.tiler_mn) == ((200, 1, 12800, 12800), (4, 32))
    spread = Layout(shape, (400, 2, 2 * strides[2], 2 * strides[3]))
    assert "has vectors of less than 16 bytes, the elements" in rules_of(plan, store=replace(plan.store, smem=spread))
    swizzled = ComposedLayout(Swizzle(2, 3, 3), 0, plan.store.layout)
    assert "has vectors of less than 16 bytes, the elements" in rules_of(plan, store=replace(plan.store, smem=swizzled))
    several = make_tiled_copy_tv(atom, Layout((4, 32), (32, 1)), Layout((2, 1)))
    assert "has vectors of less than 16 bytes and rotates rows:" in rules_of(plan, store=replace(store, copy=several))


def test_boxes_of_a_share_begin_where_tma_can_write() -> None:
    assert places(Layout(8, 3).offsets()) == 8
    plan = sm90_plan(tile=(64, 64, 64), stages=2)
    layout = Layout.parse("S<3,3,3> o 0 o ((8,8),64,2):((64,544),1,8704)")
    found = rules_of(plan, smem_a=layout, load_a=replace(plan.a.load, box=(64, 8)))
    assert "must start at multiples of 1024 bytes" in found
    assert "does not agree with" not in found


def test_lines_of_b_are_loaded_and_the_columns_of_the_tile_multiplied() -> None:
    """112 columns along N come as 128, two boxes in a row; of a tile of 64 columns, or of 32, no more come."""
    nn = Operands.of("bf16", layout="nn")
    plan = sm90_plan(nn, tile=(128, 112, 64), stages=3)
    assert (plan.loaded_tile, plan.b.load.box) == ((128, 128, 64), (64, 64))
    assert str(plan.b.smem) == "S<3,3,3> o 0 o ((64,2),64,3):((1,4096),64,8192)"
    assert plan.barrier("full").transaction_bytes == 2 * 64 * (128 + 128)
    for columns in (32, 64):
        assert sm90_plan(nn, tile=(128, columns, 64)).loaded_tile[1] == columns
    for other in (64, 192):  # less than the tile, and a row of boxes that none of its columns need
        given = in_atoms(bf16, "mn", "128B", (other, 64, 3))
        assert "the tile and the stages need (112, 64, 3)" in rules_of(plan, smem_b=given)


def test_two_instructions_read_whole_rows() -> None:
    """The second of two wgmmas of 88 columns would begin in a row of a box."""
    tile = _Tile("B", ("n", "k"), bf16, (192, 64), 0)
    layout = in_atoms(bf16, "mn", "128B", (192, 64, 1))
    assert _not_stated(tile, layout, 176, 16, "wgmma", 176) == ()
    (said,) = _not_stated(tile, layout, 88, 16, "wgmma", 176)
    assert "the 88 elements along N that an instruction reads end inside a row of 64" in said
