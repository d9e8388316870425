"""What lower.py makes of a Hopper plan's parts, held against the plan and the DSL's own, while tracing."""

from __future__ import annotations

import re

import pytest

cute = pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")

from cutegemm.build.epi_stages import swizzled  # noqa: E402
from cutegemm.dtypes import bf16  # noqa: E402
from cutegemm.kernels import lower  # noqa: E402
from cutegemm.kernels.sm90 import kernel as sm90  # noqa: E402
from cutegemm.machine.arch import arch_named  # noqa: E402
from cutegemm.plan.signature import signature_of  # noqa: E402
from cutegemm.tile.mma_atoms import ROWS_IN_BANKS  # noqa: E402
from cutegemm.tile.smem_atoms import widest_smem_kind  # noqa: E402
from cutegemm.tile.tiled_copy import TiledCopy  # noqa: E402
from cutegemm.tile.tiled_mma import TiledMma  # noqa: E402
from tests.kernels.plans import traced  # noqa: E402
from tests.kernels.sm90_forms import ALONE, PAIRS, covering, form  # noqa: E402
from tests.marks import with_thorough  # noqa: E402
from tests.oracle.dsl import from_dsl  # noqa: E402

COVERING = (*ALONE, *PAIRS)
THROUGH_SLOTS = [name for name in COVERING if form(name).store.stage_copy is not None]
BY_TMA = [
    name
    for name in THROUGH_SLOTS
    if form(name).store.stored_by_tma and not form(name).repacks  # boxes that belong to another buffer
]


class _Enough(Exception):
    """All answers are recorded; nothing is compiled."""


def on_the_host(plan, question):
    """What `question` makes of (M, K, L), (N, K, L), (M, N, L) in a host function that is being traced."""
    made, answers = sm90.host_function(plan, arch_named(plan.arch)), []

    @cute.jit
    def host(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
        seen = made.seen_as("a", a, 0, 1), made.seen_as("b", b, 1, 0), made.seen_as("d", d, 0, 1)
        answers.append(question(made, *seen))
        raise _Enough

    names = [argument.name for argument in signature_of(plan)]
    given = dict(zip(names, sm90.fake_arguments(plan), strict=False))
    try:
        cute.compile(host, given["a"], given["b"], given["d"])
    except Exception:
        if not answers:
            raise
    return answers[0]


@pytest.mark.parametrize("name", BY_TMA)
def test_boxes(name):
    """A box's extents, its contiguous mode first, those of all CTAs of a multicast together."""
    plan = form(name)
    bm, bn, bk = plan.loaded_tile
    store = plan.store

    def ask(made, mA, mB, mD):
        parts = [
            (plan.a.load, mA, plan.a.smem, (bm, bk)),
            (plan.b.load, mB, plan.b.smem, (bn, bk)),
            (store.box, mD, store.smem, made.storage.box_tile),
        ]
        if store.fetched is not None:
            parts.append((store.fetched, mD, store.smem, store.epi_tile))
        return [(box, str(lower.tma_atom(box, *rest)[0].type)) for box, *rest in parts]

    majors = [plan.operands.a.major, plan.operands.b.major, plan.operands.d.major, plan.operands.c.major]
    for (box, text), major in zip(on_the_host(plan, ask), majors, strict=False):
        extents, first, second = re.search(r'tma_gbasis = <"\(([0-9,]+)\):\((1@\d),(1@\d)', text).groups()
        rows = box.box[1] * box.multicast  # the DSL's box has all rows, if a box may have that many
        assert tuple(map(int, extents.split(",")))[:2] == (box.box[0], rows if rows <= 256 else box.box[1])
        in_order = ("1@1", "1@0") if major in ("k", "n") and (major, box) != ("n", plan.b.load) else ("1@0", "1@1")
        assert (first, second) == in_order
        assert ("tma_store" in text) == (box.direction == "store")
        assert ("multicast" in text) == (box.multicast > 1)


@pytest.mark.parametrize("name", covering())
def test_who_multiplies_what(name):
    plan = form(name)
    tile = plan.consumer_tile
    atom = plan.tiled_mma.atom
    rows = ROWS_IN_BANKS if atom.a_source == "register" else None
    ours = TiledMma(atom, permutation_mnk=(rows, None, None))

    def ask():
        mma = lower.tiled_mma(plan.consumer_mma)
        layouts = mma.tv_layout_A_tiled, mma.tv_layout_B_tiled, mma.tv_layout_C_tiled
        return [from_dsl(one) for one in layouts], mma.get_slice(0).partition_shape_C(tile)

    layouts, shape = traced(ask)
    wanted = [ours.tv_layout_A_tiled, ours.tv_layout_B_tiled, ours.tv_layout_C_tiled]
    assert [one.offsets().tolist() for one in layouts] == [one.offsets().tolist() for one in wanted]
    assert shape == ours.partition_shape_C(tile)


@pytest.mark.parametrize("name", with_thorough(THROUGH_SLOTS, {*THROUGH_SLOTS} & {*PAIRS}))
def test_who_stores_what(name):
    store = form(name).store
    parts = (store.stage_copy, store.from_shared, store.line_copy)
    copies = [copy for copy in parts if isinstance(copy, TiledCopy)]

    def ask():
        lowered = [lower.tiled_copy(copy) for copy in copies]
        return [(from_dsl(one.layout_src_tv_tiled), from_dsl(one.layout_dst_tv_tiled)) for one in lowered]

    for copy, (source, destination) in zip(copies, traced(ask), strict=True):
        assert source.offsets().tolist() == copy.layout_src_tv_tiled.offsets().tolist()
        assert destination.offsets().tolist() == copy.layout_dst_tv_tiled.offsets().tolist()


@pytest.mark.parametrize("second_major", [True, False])
@pytest.mark.parametrize("extents", [(64, 64), (128, 64), (64, 128), (96, 64), (160, 64), (192, 32), (256, 128)])
def test_shared_memory_is_the_dsls_canonical_layout(extents, second_major):
    """The DSL's atom swizzles bytes and ours elements; tiled, their plain layouts are the same."""
    from cutlass.cute.nvgpu import warpgroup

    ours = swizzled(bf16, second_major, extents, (3,))
    kind = widest_smem_kind(bf16, extents[1] if second_major else extents[0])
    name = f"{'K' if second_major else 'MN'}_SW{kind.removesuffix('B')}"

    def ask():
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind[name], lower.dtype(bf16))
        return from_dsl(cute.tile_to_shape(atom, (*extents, 3), (0, 1, 2) if second_major else (1, 0, 2)).outer)

    assert traced(ask).offsets().tolist() == ours.outer.offsets().tolist()
