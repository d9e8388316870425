"""Strides over F2, matrices, synthesis and derivations."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cutegemm.errors import LayoutError
from cutegemm.layout import (
    F2,
    ComposedLayout,
    E,
    F2Matrix,
    Layout,
    Swizzle,
    Tensor,
    append,
    blocked_product,
    coalesce,
    complement,
    composition,
    crd2idx,
    explain,
    f2,
    filter,
    from_f2,
    left_inverse,
    logical_divide,
    logical_product,
    make_layout,
    make_layout_like,
    max_common_layout,
    max_common_vector,
    nullspace,
    parse,
    prepend,
    raked_product,
    recast_layout,
    right_inverse,
    size,
    synthesize,
    tile_to_shape,
    to_f2,
    to_swizzle,
    to_swizzled,
    to_xor,
    zipped_divide,
)

SWIZZLED = ComposedLayout(Swizzle(3, 0, 3), 0, Layout((8, 8), (8, 1)))
XOR = Layout((8, 8), (F2(9), F2(1)))


def clmul(a, b):
    """A carry-less product: a polynomial's, coefficient by coefficient."""
    bits = [sum((a >> i & 1) * (b >> (place - i) & 1) for i in range(place + 1)) % 2 for place in range(16)]
    return sum(bit << place for place, bit in enumerate(bits))


# (layout, coordinate, offset): the coordinate's bits shift the stride, all XORed
BY_HAND = [
    (XOR, (3, 5), 9 ^ 18 ^ 5),                               # 3 (x) 9 = 9 ^ 18 = 27; 27 ^ 5 = 30
    (XOR, (7, 0), 63),                                       # 9 ^ 18 ^ 36 = 0b111111
    (Layout(4, F2(3)), 3, 5),                                # 3 ^ 6 = 5, where 3 * 3 = 9
    (Layout((2, 2), (F2(1), F2(1))), (1, 1), 0),             # 1 ^ 1
    (Layout((4, 2), (F2(2), F2(6))), (3, 1), 2 ^ 4 ^ 6),     # 0
    (Layout((2, (2, 4)), (F2(8), (F2(1), F2(10)))), (1, (1, 2)), 8 ^ 1 ^ 20),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "coord", "offset"), BY_HAND)
def test_by_hand(layout, coord, offset):
    assert layout(coord) == offset
    assert layout.offsets()[crd2idx(coord, Layout(layout.shape))] == offset


@settings(deadline=None)
@given(a=st.integers(0, 255), b=st.integers(0, 255))
def test_the_carry_less_product(a, b):
    assert F2(b).at(a) == F2(clmul(a, b))


def test_a_swizzled_layout_is_a_layout_with_xor_strides():
    assert np.array_equal(XOR.offsets(), SWIZZLED.offsets())
    assert [XOR(i) for i in range(64)] == XOR.offsets().tolist()
    assert all(XOR(i, j) == SWIZZLED(i, j) for i, j in itertools.product(range(8), range(8)))
    assert to_xor(SWIZZLED) == XOR
    assert to_swizzled(XOR) == SWIZZLED
    assert XOR.cosize() == 64


def test_text_and_repr():
    assert str(XOR) == "(8,8):(F2(9),F2(1))"
    assert parse(str(XOR)) == XOR
    assert parse(repr(XOR)) == XOR
    assert eval(repr(XOR)) == XOR
    assert hash(parse(str(XOR))) == hash(XOR)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Layout(6, F2(1)),
            "Layout: 6:F2(1) has strides over F2, but the extent 6 is not a power of two.",
        ),
        (
            lambda: Layout((2, 2), (F2(1), 2)),
            "Layout: (2,2):(F2(1),2) has strides over F2, but the stride 2 is not over F2.",
        ),
        (
            lambda: Layout((2, 2), (F2(1), E(0))),
            "Layout: (2,2):(F2(1),1@0) has strides over F2, but the stride 1@0 is not over F2.",
        ),
        (lambda: F2(-1), "F2(value): value -1 is not in [0, 2**1024)."),
        (lambda: XOR(None, 3), "XORed, not added"),
        (lambda: complement(Layout((2, 2), (F2(1), F2(1))), 4), "repeats an offset"),
        (lambda: left_inverse(Layout((2, 2), (F2(1), F2(1)))), "repeats an offset"),
        (lambda: to_f2(Layout(3)), "to_f2: 3:1 has the extent 3, which is not a power of two."),
        (lambda: to_f2(Layout(4, 3)), "index 3 = 1 XOR 2 it gives 9, not 3 XOR 6 = 5"),
        (
            lambda: to_f2(Layout(4, E(0))),
            "to_f2: 4:1@0 has the stride 1@0. Give a layout with offsets of 0 or more.",
        ),
        (
            lambda: to_f2(ComposedLayout(Swizzle(1, 0, 1), 1, Layout(4))),
            "to_f2: S<1,0,1> o 1 o 4:1 has an offset or no swizzle. Give a swizzle of a layout at offset 0.",
        ),
        (
            lambda: to_f2(Swizzle(2, 0, 3), bits=4),
            "to_f2: S<2,0,3> reads or changes 5 bits. Give bits = 5 or more.",
        ),
        (lambda: to_swizzle(F2Matrix((1, 2, 7))), "no swizzle"),
        (lambda: from_f2(F2Matrix((1, 2)), (2, 4)), "does not have 2 bits"),
        (
            lambda: composition(XOR, Layout(3, 1)),
            "composition: no strides over F2 are A o B for A = (8,8):(F2(9),F2(1)) and B = 3:1.",
        ),
        (
            lambda: composition(Layout(2, 3), Layout((4, 2), (F2(1), F2(4)))),
            "A(B(3)) = A(3) = 9, but the offsets of its bits XOR to 5",
        ),
        (
            lambda: composition(Swizzle(1, 0, 1), XOR),
            "ComposedLayout: (8,8):(F2(9),F2(1)) already has strides over F2. Multiply the matrices instead:",
        ),
        (
            lambda: make_layout([Layout(2, F2(1)), Layout(2, 2)]),
            "Layout: (2,2):(F2(1),2) has strides over F2, but the stride 2 is not over F2.",
        ),
        (
            lambda: append(Layout(2, F2(1)), Layout(3, 0)),
            "Layout: (2,3):(F2(1),0) has strides over F2, but the extent 3 is not a power of two.",
        ),
        (
            lambda: prepend(Layout(2, F2(1)), Layout(2, 4)),
            "Layout: (2,2):(4,F2(1)) has strides over F2, but the stride 4 is not over F2.",
        ),
        (
            lambda: blocked_product(Layout(8, F2(5)), Layout(6, 0)),
            "the extent 6 is not a power of two",
        ),
        (
            lambda: raked_product(Layout(8, F2(5)), Layout(6, 0)),
            "the extent 6 is not a power of two",
        ),
        (lambda: recast_layout(8, 16, XOR), "to_swizzled"),
        (lambda: make_layout_like(XOR), "strides over F2, which have no order"),
        (
            lambda: to_f2(3),
            "to_f2(layout, bits): layout is 3, an int; a Layout, a ComposedLayout or a Swizzle is expected.",
        ),
        (
            lambda: from_f2(3),
            ("from_f2(matrix, shape, plain): matrix is 3, an int; an F2Matrix is expected. Make one by `to_f2`."),
        ),
        (
            lambda: from_f2(F2Matrix((1,)), "a"),
            ("from_f2(matrix, shape, plain): shape is 'a', a str; an integer or a tuple of integers is expected."),
        ),
        (lambda: F2(1.5), "F2(value): value is 1.5, a float; an integer is expected."),
    ],
)
def test_refusals(make, message):
    with pytest.raises(LayoutError) as error:
        make()
    assert message in str(error.value)


# --- laws ---------------------------------------------------------------------------------------------------

columns = st.lists(st.integers(0, 63), min_size=0, max_size=6)


@st.composite
def xor_layouts(draw, injective=False):
    """Layouts with strides over F2, of any columns, or of independent ones."""
    given_columns = draw(columns)
    if injective:
        kept = []
        for c in given_columns:
            if F2Matrix((*kept, c)).rank == len(kept) + 1:
                kept.append(c)
        given_columns = kept
    matrix = F2Matrix(tuple(given_columns))
    shape, left = [], len(given_columns)
    while left:
        bits = draw(st.integers(1, left))
        shape.append(1 << bits)
        left -= bits
    return from_f2(matrix, tuple(shape) or 1, plain=False)


@settings(deadline=None)
@given(xor_layouts())
def test_to_a_matrix_and_back(layout):
    matrix = to_f2(layout)
    assert [matrix(i) for i in range(layout.size())] == layout.offsets().tolist()
    assert np.array_equal(from_f2(matrix).offsets(), layout.offsets())
    assert np.array_equal(from_f2(matrix, layout.shape).offsets(), layout.offsets())


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(0, 3), st.integers(-4, 4))
def test_swizzles_as_matrices(bits, base, shift):
    if abs(shift) < bits:
        return
    swizzle = Swizzle(bits, base, shift)
    matrix = to_f2(swizzle, 12)
    assert [matrix(i) for i in range(1 << 12)] == [swizzle(i) for i in range(1 << 12)]
    assert matrix @ matrix == to_f2(Swizzle(0, 0, 0), 12)
    back = to_swizzle(matrix)
    assert to_f2(back, 12) == matrix


@settings(deadline=None)
@given(xor_layouts())
@example(Layout((2, 2), (F2(1), F2(2))))
def test_coalesce(layout):
    found = coalesce(layout)
    assert np.array_equal(found.offsets(), layout.offsets())
    assert coalesce(found) == found
    extents, strides = found.flat()
    for i in range(1, len(extents)):  # no two neighbours are one: the second would begin where the first ends
        assert strides[i] != strides[i - 1].at(extents[i - 1])
    assert all(e > 1 for e in extents) or len(extents) == 1


@settings(max_examples=100, deadline=None)
@given(a=xor_layouts(), data=st.data())
def test_composition_of_xor_with_plain(a, data):
    bits = (a.size() - 1).bit_length()
    order = data.draw(st.permutations(range(bits)))
    taken = order[: data.draw(st.integers(0, bits))]
    b = Layout(tuple([2] * len(taken)) or 1, tuple([1 << t for t in taken]) or 0)
    found = composition(a, b)
    assert [found(i) for i in range(b.size())] == [a(b(i)) for i in range(b.size())]
    assert size(found) == size(b)


@settings(max_examples=100, deadline=None)
@given(a=xor_layouts(), b=xor_layouts())
def test_composition_of_xor_with_xor(a, b):
    wide = from_f2(F2Matrix((*to_f2(a).columns, *[64 << i for i in range(8)])), plain=False)
    found = composition(wide, b)
    assert [found(i) for i in range(b.size())] == [wide(b(i)) for i in range(b.size())]


def run_on(layout, index):
    """A layout at an index, past its end along the last mode: by the definition alone."""
    out = 0
    for extent, stride in list(zip(*layout.flat(), strict=True))[:-1]:
        out += index % extent * stride
        index //= extent
    return out + index * layout.flat()[1][-1]


@settings(max_examples=300, deadline=None)
@given(
    modes=st.lists(
        st.tuples(st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 3, 4, 5, 8, 16, 32])),
        min_size=1,
        max_size=3,
    ),
    b=xor_layouts(),
)
@example(modes=[(2, 3)], b=Layout((2, 2), (F2(1), F2(2))))  # A(3) = 9, where 3 XOR 6 = 5
@example(modes=[(2, 3)], b=Layout((2,), (F2(2),)))  # A(2) = 6: only one bit is reached
def test_a_plain_layout_that_runs_on_is_followed_or_refused(modes, b):
    a = Layout(tuple([s for s, _ in modes]), tuple([d for _, d in modes]))
    want = [run_on(a, b(i)) for i in range(b.size())]
    if all(want[i ^ j] == want[i] ^ want[j] for i in range(len(want)) for j in range(len(want))):
        assert composition(a, b).offsets().tolist() == want
    else:
        with pytest.raises(LayoutError, match="XOR to"):
            composition(a, b)


def test_an_array_seen_through_xor_strides():
    seen = Tensor(np.arange(64) * 10, XOR)
    assert (seen[3, 5], seen.numpy()[3, 5]) == (300, 300)  # 3 (x) 9 XOR 5 = 30, above
    assert sorted(seen.values().tolist()) == [10 * i for i in range(64)]
    with pytest.raises(LayoutError, match="has offsets from 0 to 63"):
        Tensor(np.arange(63), XOR)


def test_offsets_over_f2_of_any_size():
    layout = Layout((2, 4), (F2(1), F2(2**70)))
    assert layout.offsets().tolist() == [layout(i) for i in range(8)]


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [
        (XOR, Layout((8, 8), (8, 1)), 8),  # both hold 0..7 in row 0; XOR has 9 at index 1, not 8
        (XOR, XOR, 64),
        (XOR, Layout((8, 6), (8, 1)), 4),  # of 6, a power of two
        (XOR, Layout((8, 8)), 1),  # index 1 holds 9 in one, 1 in the other
        (Layout(8, F2(1)), Layout(8), 8),
    ],
)
def test_the_common_vector_of_layouts_over_f2(a, b, length):
    for x, y in ((a, b), (b, a)):
        found = max_common_layout(x, y)
        assert max_common_vector(x, y) == size(found) == length
        assert all(x(found(i)) == y(found(i)) == i for i in range(length))


def test_a_stride_of_zero_over_f2_stands_still():
    layout = Layout((8, 2), (F2(1), F2(0)))
    assert filter(layout) == Layout(8, F2(1))
    assert nullspace(layout) == Layout(2, 8)


@pytest.mark.parametrize("layout", [XOR, SWIZZLED, Layout((4, 2), (1, 1)), Layout(())], ids=str)
@pytest.mark.parametrize(
    ("operation", "more"),
    [
        (coalesce, ()), (right_inverse, ()), (left_inverse, ()), (complement, (16,)),
        (composition, (Layout(3, 1),)), (composition, (None,)), (logical_divide, (Layout(3, 1),)),
    ],
)  # fmt: skip
def test_explanations_end_with_the_answer_or_its_refusal(operation, more, layout):
    try:
        last = f"= {operation(layout, *more)}"
    except LayoutError as error:
        last = f"refused: {error}"
    assert explain(operation, layout, *more).endswith(f"\n{last}")


def test_a_divide_by_a_tile_without_complement_is_explained():
    said = explain("logical_divide", Layout(8), Layout((2, 2), (1, 1)))
    assert "the tile has no complement" in said
    assert "refused: logical_divide" in said


@pytest.mark.parametrize("arguments", [(Layout(4),), (Layout(4), 3, 4), (None, None)])
def test_explanations_of_wrong_arguments(arguments):
    with pytest.raises(LayoutError, match="explain"):
        explain("composition", *arguments)


@settings(deadline=None)
@given(b=xor_layouts(), stride=st.integers(0, 5))
def test_composition_of_plain_with_xor(b, stride):
    a = Layout((8, 32), (32 << stride, 1 << stride))
    found = composition(a, b)
    assert [found(i) for i in range(b.size())] == [a(b(i)) for i in range(b.size())]


@settings(deadline=None)
@given(layout=xor_layouts(injective=True), total=st.integers(1, 200))
@example(layout=XOR, total=200)
def test_complement_covers_once(layout, total):
    found = complement(layout, total)
    both = (layout.offsets()[:, None] ^ found.offsets()[None, :]).reshape(-1)
    assert sorted(both.tolist()) == list(range(len(both)))
    assert len(both) >= total
    least = max(total, layout.cosize() if layout.size() > 1 else 1)
    assert len(both) < 2 * least  # the least power of two that is enough


@settings(deadline=None)
@given(layout=xor_layouts(injective=True))
@example(layout=Layout((4, 4), (F2(5), F2(1))))
def test_inverses(layout):
    left = left_inverse(layout)
    assert [left(layout(i)) for i in range(layout.size())] == list(range(layout.size()))
    right = right_inverse(layout)
    assert [layout(right(i)) for i in range(right.size())] == list(range(right.size()))
    reached = set(layout.offsets().tolist())
    assert right.size() not in reached or right.size() & (right.size() - 1)


@pytest.mark.parametrize("tiler", [(2, 4), (Layout(2, 2), Layout(4, 1)), (Layout(4), 8), Layout((4, 4), (1, 8)), 16])
@pytest.mark.parametrize("divide", [logical_divide, zipped_divide])
def test_dividing_a_swizzled_layout(tiler, divide):
    """As the composed form divides: its outer layout, the swizzle kept."""
    if divide is zipped_divide and tiler == 16:
        tiler = (8, 2)
    want = divide(SWIZZLED, tiler)
    found = divide(XOR, tiler)
    assert np.array_equal(found.offsets(), want.offsets())
    assert size(found) == 64


def test_products_of_a_swizzled_atom():
    tiled = tile_to_shape(XOR, (16, 16), (0, 1))
    want = tile_to_shape(SWIZZLED, (16, 16), (0, 1))
    assert np.array_equal(tiled.offsets(), want.offsets())
    copies = logical_product(XOR, Layout((2, 2)))
    assert sorted(copies.offsets().tolist()) == list(range(256))


# Laws by themselves prove little: a stub must break them.
STUBS = [
    ("composition", lambda a, b: a),
    ("composition", lambda a, b: b),
    ("complement", lambda layout, total: Layout(1, 0)),
    ("complement", lambda layout, total: layout),
    ("left_inverse", lambda layout: layout),
    ("right_inverse", lambda layout: Layout(1, 0)),
    ("right_inverse", lambda layout: layout),
    ("coalesce", lambda layout: layout),
]


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("name", "stub"), STUBS)
def test_a_stub_breaks_a_law(name, stub, monkeypatch):
    monkeypatch.setattr(f2, name, stub)
    laws = {
        "composition": [test_composition_of_xor_with_plain, test_composition_of_xor_with_xor],
        "complement": [test_complement_covers_once],
        "left_inverse": [test_inverses],
        "right_inverse": [test_inverses],
        "coalesce": [test_coalesce],
    }[name]
    violations = 0
    for law in laws:
        try:
            law()
        except Exception:
            violations += 1
    assert violations, f"{name} replaced by a stub, and no law notices"


# --- synthesis ----------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-9, 40)), min_size=1, max_size=4).filter(
        lambda modes: np.prod([s for s, _ in modes]) < 500
    )
)
def test_synthesis_finds_the_coalesced_layout(modes):
    layout = Layout(tuple([s for s, _ in modes]), tuple([d for _, d in modes]))
    found = synthesize(layout.offsets())
    assert np.array_equal(found.offsets(), layout.offsets())
    assert found == coalesce(layout)
    shaped = synthesize(layout.offsets(), layout.shape)
    assert np.array_equal(shaped.offsets(), layout.offsets())


@settings(deadline=None)
@given(xor_layouts())
def test_synthesis_of_xor(layout):
    assert np.array_equal(synthesize(layout.offsets(), layout.shape).offsets(), layout.offsets())
    found = synthesize(layout.offsets())
    assert np.array_equal(found.offsets(), layout.offsets())
    if isinstance(found, Layout):  # else the swizzle of a plain layout, which is preferred
        assert len(found.flat()[0]) <= len(coalesce(layout).flat()[0])
    else:
        assert not found.outer.is_xor


def test_synthesis_by_hand():
    assert synthesize(SWIZZLED.offsets(), (8, 8)) == SWIZZLED
    assert synthesize(np.arange(12).reshape(3, 4)) == Layout((3, 4), (4, 1))
    assert synthesize([0]) == Layout(1, 0)
    # Columns 3 and 5. Of (2,2):(2,5), whose offsets are 0, 2, 5, 7, bit 0 becomes its xor with bit 1: 0, 3, 5, 6.
    assert synthesize([0, 3, 5, 6]) == ComposedLayout(Swizzle(1, 0, 1), 0, Layout((2, 2), (2, 5)))


@pytest.mark.parametrize(
    ("table", "shape", "message"),
    [
        ([1, 2, 3], None, "the first offset is 1"),
        ([0, 1, 3, 2, 4], None, "do not give 3 at index 2"),
        ([0, 1, 2, 4], None, "index 3 has offset 4, but the offsets of its bits XOR to 3"),
        ([0, 1, 2, 3, 4, 9], (2, 3), "at coordinate (1,2)"),
        ([0.5, 1], None, "of type float64; integers of at most 64 bits are expected"),
        ([0, 1], (2, 2), "do not fill"),
    ],
)
def test_synthesis_refuses_with_a_reason(table, shape, message):
    with pytest.raises(LayoutError) as error:
        synthesize(table, shape)
    assert message in str(error.value)


# --- derivations --------------------------------------------------------------------------------------------

EXPLAINED = [
    (coalesce, (Layout((2, (1, 6)), (1, (6, 2))),)),
    (composition, (Layout((4, 8), (8, 1)), Layout((2, 2), (1, 4)))),
    (composition, (Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3)))),
    (composition, (Layout((4, 6, 8), (2, 3, 5)), Layout(6, 3))),
    (composition, (Layout((4, 8), (8, 1)), (2, Layout(4, 2)))),
    (composition, (XOR, Layout((4, 4), (16, 1)))),
    (complement, (Layout((2, 2), (1, 6)), 24)),
    (complement, (Layout((2, 2), (1, 1)), 8)),
    (logical_divide, (Layout((4, 8), (8, 1)), (2, Layout(4, 2)))),
    (logical_divide, (Layout(24, 3), Layout(4, 2))),
    (right_inverse, (Layout((4, 8), (8, 1)),)),
    (right_inverse, (Layout((4, 8), (1, 5)),)),
    (left_inverse, (Layout((4, 8), (1, 5)),)),
    (left_inverse, (XOR,)),
]


@pytest.mark.parametrize(("operation", "arguments"), EXPLAINED)
def test_a_derivation_ends_with_the_operation_itself(operation, arguments):
    text = explain(operation, *arguments)
    assert text == explain(operation.__name__, *arguments)
    assert len(text.splitlines()) >= 3
    if "refused: " in text:
        with pytest.raises(LayoutError) as error:
            operation(*arguments)
        assert text.split("refused: ")[1] == str(error.value)
    else:
        assert text.splitlines()[-1] == f"= {operation(*arguments)}"


def test_a_derivation_by_hand():
    assert explain(composition, Layout((4, 8), (8, 1)), Layout((2, 2), (1, 4))).splitlines() == [
        "composition A o B for A = (4,8):(8,1), B = (2,2):(1,4)",
        "  2:1 of B takes 2 steps of 1 through A:",
        "    4:8: 2 steps of 1 fit, each 1 * 8 = 8: 2:8",
        "  2:4 of B takes 2 steps of 4 through A:",
        "    a step passes over all of 4:8: in the next mode it is 4 / 4 = 1",
        "    8:1: 2 steps of 1 fit, each 1 * 1 = 1: 2:1",
        "= (2,2):(8,1)",
    ]


def test_where_divisibility_fails_the_offsets_are_shown():
    """A(3 i) = 0, 6, 7, 8, ...: index 6 is (2, 1), 2 * 2 + 3 = 7; 9 is (1, 2), 2 + 6 = 8; 12 is (0, 3), 9;
    15 is (3, 3), 15."""
    text = explain(composition, Layout((4, 6, 8), (2, 3, 5)), Layout(6, 3))
    assert "    4:2: 6 steps of 3 pass its end, and 3 does not divide 4" in text.splitlines()
    assert "    so the offsets decide: A at 0, 3, 6, 9, 12, 15 is 0, 6, 7, 8, 9, 15" in text.splitlines()
    assert "refused: " in text


def test_explaining_a_refusal_of_a_negative_step_does_not_fail():
    assert explain(composition, Layout((4, 8), (1, 10)), Layout(3, -1)).startswith("composition A o B")


# The steps claim modes as "extent:stride". Put together they must be the answer: a step that is wrong shows.
_MODE = re.compile(r"(\d+):(\d+)$")


def claimed(lines):
    return [(int(m[1]), int(m[2])) for m in (_MODE.search(line.split("; covered")[0]) for line in lines) if m]


def layout_of(modes):
    return Layout(tuple([s for s, _ in modes]) or 1, tuple([d for _, d in modes]) or 0)


small_modes = st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(0, 24)), min_size=1, max_size=3)


@settings(max_examples=300, deadline=None)
@given(modes=small_modes, extent=st.integers(2, 12), stride=st.integers(1, 12))
def test_the_steps_of_a_composition_are_its_modes(modes, extent, stride):
    a, b = layout_of(modes), Layout(extent, stride)
    lines = explain(composition, a, b).splitlines()
    offsets = [coalesce(a)(i * stride) for i in range(extent)]
    if any("offsets decide" in line for line in lines):
        shown = next(line for line in lines if "offsets decide" in line).split(" is ")[1]
        assert [int(v) for v in shown.replace(", ...", "").split(", ")] == offsets[:8]
        return
    walk = [line for line in lines if " fit, each " in line]
    assert layout_of(claimed(walk)).offsets().tolist() == offsets
    assert "refused" not in lines[-1]


@settings(max_examples=300, deadline=None)
@given(modes=small_modes, total=st.integers(1, 300))
def test_the_steps_of_a_complement_are_its_modes(modes, total):
    lines = explain(complement, layout_of(modes), total).splitlines()
    if "refused: " in "\n".join(lines):
        assert any("the modes are interleaved" in line for line in lines)
        return
    pieces = claimed([line for line in lines if "the gap is filled" in line or "copies fill" in line])
    answer = complement(layout_of(modes), total)
    assert coalesce(layout_of(pieces)) == coalesce(answer)


@settings(max_examples=300, deadline=None)
@given(modes=small_modes)
def test_the_steps_of_the_inverses_are_their_modes(modes):
    layout = layout_of(modes)
    lines = explain(right_inverse, layout).splitlines()
    pieces = [(int(m[1]), int(m[2])) for m in (re.search(r"gives (\d+):(\d+) of R", x) for x in lines) if m]
    assert coalesce(layout_of(pieces)) == coalesce(right_inverse(layout))
    lines = explain(left_inverse, layout).splitlines()
    if lines[-1].startswith("="):
        pieces = claimed([x for x in lines if " steps of " in x or "the last mode" in x])
        assert coalesce(layout_of(pieces)) == coalesce(left_inverse(layout))


def test_other_operations_are_not_explained():
    with pytest.raises(LayoutError, match="logical_divide"):
        explain("flatten", XOR)
