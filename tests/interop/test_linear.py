"""Triton's LinearLayout: by hand, and where Triton is installed against its own object."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.dtypes import bf16, f16
from cutegemm.errors import LayoutError
from cutegemm.interop import LinearLayout, from_linear, to_linear
from cutegemm.layout import F2Matrix, Layout, Swizzle, composition, from_f2, make_composed_layout, to_f2
from cutegemm.tile import mma_sync, smem_atom


def test_the_accumulator_of_mma_m16n8_by_hand() -> None:
    """PTX ISA, m16n8k16, C: row = lane / 4, and 8 further for registers 2 and 3; column = 2 (lane % 4) + register % 2.

    So register 1 is a column further and register 2 eight rows; lanes 1 and 2 are 2 and 4 columns, 4, 8 and 16 one, two
    and four rows further: what Triton's documentation of its MMA layout lists too.
    """
    layout = mma_sync(f16, 16).layout_c_tv
    found = to_linear(layout, (("lane", 32), ("register", 4)), (("dim0", 16), ("dim1", 8)))
    assert dict(found.bases) == {
        "lane": ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)),
        "register": ((0, 1), (8, 0)),
    }
    assert found(lane=5, register=3) == {"dim0": 9, "dim1": 3}


def test_a_swizzled_tile_by_hand() -> None:
    """S<1,0,2> of 4 x 4: rows 0 to 3 in steps of 4; bit 2 of an offset, an odd row, flips its lowest bit."""
    tile = make_composed_layout(Swizzle(1, 0, 2), 0, Layout((4, 4), (4, 1)))
    found = to_linear(tile, {"row": 4, "column": 4}, {"offset": 16})
    assert found.bases == (("row", ((5,), (8,))), ("column", ((1,), (2,))))
    back = from_linear(found)
    assert [back(i) for i in range(16)] == tile.offsets().tolist()


@st.composite
def linear_layouts(draw: st.DrawFn) -> LinearLayout:
    """Any images of up to three inputs in up to three outputs."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    image = st.tuples(*[st.integers(0, (1 << bits) - 1) for bits in sizes])
    bits = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    bases = [(f"in{i}", tuple(draw(image) for _ in range(count))) for i, count in enumerate(bits)]
    return LinearLayout(tuple(bases), tuple([(f"out{i}", 1 << count) for i, count in enumerate(sizes)]))


@given(linear_layouts())
def test_there_and_back(linear: LinearLayout) -> None:
    layout = from_linear(linear)
    ins = [(name, 1 << len(images)) for name, images in linear.bases]
    assert to_linear(layout, ins, linear.out_dims) == linear


@given(st.lists(st.integers(0, 1023), max_size=10).map(lambda columns: from_f2(F2Matrix(tuple(columns)))))
def test_back_and_there(layout: Layout) -> None:
    """Whatever is linear comes back as the same function of the index."""
    again = from_linear(to_linear(layout, {"index": layout.size()}, {"offset": 1024}))
    assert to_f2(again) == to_f2(layout)


@pytest.mark.parametrize(
    ("layout", "ins", "outs", "said"),
    [
        (Layout((3, 4)), {"x": 16}, {"y": 16}, "the extent 3, which is not a power of two"),
        (Layout((2, 2), (1, 1)), {"x": 4}, {"y": 4}, "not linear over F2"),
        (Layout(8), {"x": 4}, {"y": 8}, "has 8 indices, but the inputs are 4"),
        (Layout(8), {"x": 2, "y": 4}, {"z": 4}, "reaches offset 7, but the outputs are 4"),
        (Layout(8), {"x": 8}, {"z": 12}, "z has the size 12, which is not a power of two"),
    ],
)
def test_what_is_refused(layout: Layout, ins: dict[str, int], outs: dict[str, int], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        to_linear(layout, ins, outs)


def test_what_is_no_linear_layout() -> None:
    with pytest.raises(LayoutError, match="is not a LinearLayout"):
        from_linear(Layout(4))
    of_lane = LinearLayout((("lane", ((1,), (2,))),), (("x", 4),))
    for wrong in ({"lane": 4}, {"lane": -1}, {"warp": 0}):
        with pytest.raises(LayoutError, match="The inputs are lane below 4"):
            of_lane(**wrong)


@given(linear_layouts(), st.data())
def test_a_basis_that_is_nowhere_in_the_outputs(linear: LinearLayout, data: st.DataObject) -> None:
    """One part too few or too many, a part that is as large as its output, or none below 0: by data alike."""
    at = data.draw(st.sampled_from(range(len(linear.bases))))
    name, images = linear.bases[at]
    image = data.draw(st.sampled_from(images or ((0,) * len(linear.out_dims),)))
    out = data.draw(st.sampled_from(range(len(image))))
    size = linear.out_dims[out][1]
    wrong, said = data.draw(
        st.sampled_from(
            [
                (image[:-1], "Give one integer per output"),
                ((*image, 0), "Give one integer per output"),
                ((*image[:out], size + image[out], *image[out + 1 :]), "outside the outputs"),
                ((*image[:out], -1, *image[out + 1 :]), "outside the outputs"),
                ((*image[:out], 0.5, *image[out + 1 :]), "outside the outputs"),
            ]
        )
    )
    bases = [*linear.bases]
    bases[at] = (name, (*images, wrong))
    for made in (
        lambda: from_linear(SimpleNamespace(bases=bases, out_dims=linear.out_dims)),
        lambda: LinearLayout(tuple(bases), linear.out_dims),
    ):
        with pytest.raises(LayoutError) as caught:
            made()
        assert f"bit {len(images)} of {name} is {wrong}" in str(caught.value)
        assert said in str(caught.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    """An offset of outputs is their bits side by side: for sizes that are not powers of two, no offset is an XOR."""
    with pytest.raises(LayoutError) as caught:
        LinearLayout((("lane", ((1, 0), (0, 1, 0))), ("warp", ((0, 2),))), (("m", 3), ("n", 2)))
    assert str(caught.value).splitlines() == [
        "LinearLayout: the output m has the size 3, which is not a power of two.",
        "  the image of bit 1 of lane is (0, 1, 0). Give one integer per output (m of 3, n of 2).",
        "  the image of bit 0 of warp is (0, 2), which is outside the outputs (m of 3, n of 2).",
    ]


@pytest.mark.parametrize(
    "given",
    [
        SimpleNamespace(bases=[("lane", [1, 2])], out_dims=[("m", 4)]),
        SimpleNamespace(bases=[("lane",)], out_dims=[("m", 4)]),
        SimpleNamespace(bases=[("lane", [[1]])], out_dims=["out"]),
        SimpleNamespace(reg_bases=[[1, 0]], lane_bases=[], shape=[4, 2]),
        SimpleNamespace(bases=[]),
    ],
    ids=str,
)
def test_what_is_like_a_linear_layout_and_is_none(given: SimpleNamespace) -> None:
    with pytest.raises(LayoutError, match=r"from_linear: .* is not a LinearLayout"):
        from_linear(given)


def test_a_distributed_layout_of_gluon() -> None:
    """By its attributes: registers, lanes, warps and blocks in this order."""
    given = SimpleNamespace(
        reg_bases=[[0, 1]], lane_bases=[[0, 2], [1, 0]], warp_bases=[[2, 0]], block_bases=[], shape=[4, 4]
    )
    layout = from_linear(given)
    assert layout.shape[-1] == 1
    assert layout(1, 3, 1, 0) == (0 + 1 + 2) + 4 * (1 + 2)


@pytest.mark.parametrize(
    ("layout", "ins", "outs"),
    [
        (mma_sync(bf16, 16).layout_c_tv, (("lane", 32), ("register", 4)), (("dim0", 16), ("dim1", 8))),
        (smem_atom(bf16, "k", "128B"), (("row", 8), ("column", 64)), (("offset", 512),)),
        (Layout((8, (4, 2)), (1, (16, 8))), (("a", 4), ("b", 16)), (("x", 2), ("y", 32))),
    ],
)
def test_against_triton(layout: Layout, ins: tuple, outs: tuple) -> None:
    """Their object has the same bases, maps every input as ours does, and comes back; so do products of theirs."""
    pytest.importorskip("triton._C.libtriton.linear_layout", reason="Triton is not installed", exc_type=ImportError)
    ours = to_linear(layout, ins, outs)
    theirs = ours.to_triton()
    assert [(name, tuple(map(tuple, images))) for name, images in theirs.bases] == [*ours.bases]
    assert [*theirs.out_dims] == [*ours.out_dims]
    (first, size), (second, _) = (*ins, ("", 1))[:2]
    for index in range(layout.size()):
        values = {first: index % size, **({second: index // size} if second else {})}
        assert theirs.apply(values) == ours(**values)
        place, step = 0, 1
        for name, extent in outs:
            place, step = place + theirs.apply(values)[name] * step, step * extent
        assert place == layout(index)
    assert to_f2(from_linear(theirs)) == to_f2(layout)


def test_products_are_tritons() -> None:
    """Composition: first a thread-value layout, then where a tile's places lie in swizzled shared memory."""
    pytest.importorskip("triton._C.libtriton.linear_layout", reason="Triton is not installed", exc_type=ImportError)
    held = Layout(((4, 8), (2, 8)), ((2, 64), (1, 8)))  # (lane, register) -> place in 64 columns of 8 rows
    shared = make_composed_layout(Swizzle(3, 3, 3), 0, Layout(512))
    lanes = to_linear(held, {"lane": 32, "register": 16}, {"place": 512}).to_triton()
    memory = to_linear(shared, {"place": 512}, {"offset": 512}).to_triton()
    assert to_f2(from_linear(lanes.compose(memory))) == to_f2(composition(shared, held))
