"""What a person reads when the algebra has no answer: the operation, their arguments, a witness, advice."""

from __future__ import annotations

import numpy as np
import pytest

import cutegemm.layout as cg
from cutegemm.errors import CutegemmError, LayoutError, PlanError, UnsupportedError
from cutegemm.layout import F2, ComposedLayout, E, Layout, ScaledBasis, Swizzle, Tensor

CASES = [
    (
        lambda: cg.composition(Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3))),
        """\
composition: no layout is A o B for A = (6,2):(1,7) and B = (3,2):(2,3).
  A(B(2,1)) = A(7) = 8, but the strides (2,3), which its other offsets require, give 7.
  Choose the strides of B so that each divides, or is divided by, the extents of A: 6, 2.""",
    ),
    (
        lambda: cg.composition(Layout((4, 6, 8), (2, 3, 5)), Layout(6, 3)),
        """\
composition: no layout is A o B for A = (4,6,8):(2,3,5) and B = 6:3.
  A(B(3)) = 8, but no strides over 6 elements give the offsets 0, 6, 7, 8, ....
  Choose the strides of B so that each divides, or is divided by, the extents of A: 4, 6, 8.""",
    ),
    (
        lambda: cg.composition(Layout((4, 2), (1, 8)), Layout(3, -1)),
        """\
composition: B = 3:-1 has negative offsets. A = (4,2):(1,8) has several modes, so it has no negative indices.
  Reverse a mode of A instead, or start B at an offset.""",
    ),
    (
        lambda: cg.slice_((None, 3), Layout((4, 8))),
        (
            "slice_(value, coord): coord is Layout((4, 8), (1, 4)), a Layout; an integer, None or a "
            "tuple of them is expected. Check the order of the arguments."
        ),
    ),
    (
        lambda: cg.composition(Layout((4, 8)), (2, 2, 2)),
        (
            "composition: the tiler (2,2,2) has 3 entries, (4,8):(1,4) has 2 modes. Give one entry for "
            "each mode, or fewer."
        ),
    ),
    (
        lambda: cg.composition(Layout(8), ComposedLayout(Swizzle(1, 0, 1), 0, Layout(4))),
        (
            "composition: rhs S<1,0,1> o 0 o 4:1 cannot follow the layout 8:1; a composed layout has "
            "its swizzle on the left. Compose in the other order."
        ),
    ),
    (
        lambda: cg.complement(Layout((3, 2), (2, 3)), 24),
        """\
complement: (3,2):(2,3) interleaves its modes:
  the stride of mode 2:3 is below 6, the period of the modes with smaller strides.
  In ascending order, each stride must be at least the extent times stride before it.""",
    ),
    (
        lambda: cg.complement(Layout(4, -1), 8),
        "complement: 4:-1 has the negative stride -1. Reverse that mode; offsets must be 0 or more.",
    ),
    (
        lambda: cg.left_inverse(Layout((4, 8), (1, 2))),
        """\
left_inverse: (4,8):(1,2) has no left inverse: the mode 8:2 repeats offsets of other modes.
  In ascending order, each stride must be at least the extent times stride before it.""",
    ),
    (
        lambda: Layout((4, 2), (E(0), 4)),
        """\
Layout: (4,2):(1@0,4) mixes coordinates with offsets: its stride 4 is an integer, others are basis vectors.
  Give every mode a basis vector or 0.""",
    ),
    (
        lambda: cg.blocked_product(Layout((4, 1, 4), (16, 1, 1)), Layout((4, 3), (3, 1))),
        """\
blocked_product(block=(4,1,4):(16,1,1), tiler=(4,3):(3,1)) failed.
  composition: no layout is A o B for A = (4,3):(4,64) and B = (4,3,1):(3,1,0).
  A(B(3,0,0)) = 132, but no strides over 4 elements give the offsets 0, 12, 72, 132.
  Choose the strides of B so that each divides, or is divided by, the extents of A: 4, 3.""",
    ),
    (
        lambda: cg.zipped_divide(Layout((4, 8)), (2, Layout((2, 2), (1, 3)))),
        """\
zipped_divide(target=(4,8):(1,4), tiler=(2,(2,2):(1,3))) failed.
  complement: tiles of (2,2):(1,3) do not cover all elements:
  the stride of mode 2:3 is not a multiple of 2, the period of the modes with smaller strides.
  In ascending order, each stride must be a multiple of the extent times stride before it.""",
    ),
    (
        lambda: cg.logical_divide(Layout((4, 8)), (2, 2, 2)),
        """\
logical_divide(target=(4,8):(1,4), tiler=(2,2,2)) failed.
  logical_divide: the tiler (2,2,2) has 3 entries, (4,8):(1,4) has 2 modes. Give one entry for each mode, or fewer.""",
    ),
    (
        lambda: cg.logical_divide(Layout(8), 0),
        """\
logical_divide(target=8:1, tiler=0) failed.
  tiler = 0 is not positive. Give a tile of 1 element or more.""",
    ),
    (
        lambda: cg.tile_to_shape(Layout((2, 2, 2)), (4, 4), (0, 1)),
        """\
tile_to_shape(block=(2,2,2):(1,2,4), trg_shape=(4,4), order=(0,1)) failed.
  block (2,2,2):(1,2,4) has 3 modes, trg_shape (4,4) has 2. Give an extent for each mode of the block.""",
    ),
    (
        lambda: cg.recast_layout(32, 16, Layout((8, 3), (1, 3))),
        (
            "recast_layout: (8,3):(1,3) cannot be written in elements 2 times as wide: elements at "
            "different coordinates would share a wide element."
        ),
    ),
    (
        lambda: cg.recast_layout(8, 16, Layout(4, 2)),
        """\
recast_layout: each element of 4:2 becomes 2 neighbours, but no mode has stride 1 to hold them.
  Append a mode 1:1 to the layout.""",
    ),
    (
        lambda: cg.coalesce(Layout(8), (1, 1)),
        ("coalesce: target_profile (1,1) has 2 entries, 8:1 has 1 mode. Give one entry for each mode, or fewer."),
    ),
    (
        lambda: cg.make_ordered_layout((4, 8), (0, 1, 2)),
        ("make_ordered_layout(shape, order): order (0,1,2) does not fit shape (4,8). Give one entry for each mode."),
    ),
    (
        lambda: Layout((4, 8), (1,)),
        """\
Layout: the stride (1) is not congruent with the shape (4,8). Give one stride for each extent, in the \
same hierarchy.""",
    ),
    (lambda: Layout((4, -8)), "Layout: the shape (4,-8) has the negative extent -8. Give 0 or more."),
    (
        lambda: Layout((4, 2.5)),
        (
            "Layout(shape, stride): shape is (4, 2.5); its leaf is 2.5, a float; an integer or a tuple "
            "of integers is expected."
        ),
    ),
    (
        lambda: Layout((4, 8))(1, 2, 3),
        "(4,8):(1,4)(coord): coordinate (1, 2, 3) of rank 3 does not fit shape (4, 8) of rank 2.",
    ),
    (
        lambda: Swizzle(3, -1, 2),
        """\
Swizzle(3, -1, 2): base = -1 is negative; |shift| = 2 is below bits = 3, so the two bit fields overlap.""",
    ),
    (
        lambda: ScaledBasis(1, -1),
        ("ScaledBasis(value, mode): mode -1 is out of bounds. Use indices from 0 to 999, and at most 100 of them."),
    ),
    (
        lambda: ComposedLayout(Swizzle(1, 0, 1), 0, Layout(4, E(0))),
        "ComposedLayout: S<1,0,1> permutes offsets, but 4:1@0 returns coordinates.",
    ),
    (
        lambda: Tensor(np.zeros(8), Layout((4, 4))),
        "Tensor: (4,4):(1,4) at offset 0 has offsets from 0 to 15, but the array has 8 elements.",
    ),
    (
        lambda: cg.coalesce((4, 8)),
        (
            "coalesce(layout, target_profile): layout is (4, 8), a tuple; a Layout, ComposedLayout or "
            "Tensor is expected."
        ),
    ),
    (
        lambda: cg.composition(Layout((4, 0, 2), (1, 8, 3)), Layout(3, 4)),
        "composition: lhs (4,0,2):(1,8,3) is empty, so rhs 3:4 has no offset in it.",
    ),
    (
        lambda: cg.composition(Layout((4, 8)), Layout(2, E(2))),
        """\
composition: no layout is A o B for A = (4,8):(1,4) and B = 2:1@2, along 1@2:
  get(value, mode): (4,8) of rank 2 has no mode 2. Use 0 to 1.""",
    ),
    (
        lambda: Layout((2, 2), (E(1), E((1, 0)))),
        (
            "Layout: (2,2):(1@1,1@0@1) moves along 1@1 and along 1@0@1, which lies within that mode. "
            "Give both the same path."
        ),
    ),
    (
        lambda: cg.complement(Layout(4, E(1)), 16),
        (
            "complement: 4:1@1 moves along 1@1; the cotarget 16 does not have that mode. Give an extent "
            "for each mode of the coordinate."
        ),
    ),
    (
        lambda: cg.make_layout_image_mask(Layout((4, 8)), (0, 0), 1),
        (
            "make_layout_image_mask(lay, coord, mode): mode 1 of (4,8):(1,4) at (0,0) has the offsets "
            "[0, 4, 8, 12, 16, 20, 24, 28]. Give a layout with offsets from 0 to 15, the bits of a "
            "mask."
        ),
    ),
    (
        lambda: cg.make_layout_like(cg.make_identity_tensor((4, 8))),
        (
            "make_layout_like(layout): layout is Tensor<coordinates at (0, 0) o (4,8):(1@0,1@1)>, a "
            "Tensor; a Layout is expected. Check the order of the arguments."
        ),
    ),
    (
        lambda: cg.domain_offset((1, 0), Tensor(None, Layout((4, 8), (F2(1), F2(4))))),
        ("domain_offset: (4,8):(F2(1),F2(4)) has strides over F2; the contribution of (1, 0) is XORed, not added."),
    ),
    (
        lambda: cg.composition(Layout((2, 8), (2, 1)), Layout((2, 2**40), (F2(5), F2(16)))),
        """\
composition: no strides over F2 are A o B for A = (2,8):(2,1) and B = (2,1099511627776):(F2(5),F2(16)).
  B has 2199023255552 coordinates; at most 1048576 are evaluated.""",
    ),
]


@pytest.mark.parametrize(("call", "message"), CASES, ids=[m.split("\n")[0][:60] for _, m in CASES])
def test_message(call, message):
    with pytest.raises(LayoutError) as refused:
        call()
    assert str(refused.value) == message


def test_a_plan_error_lists_every_violation():
    one, two = PlanError("plan P", ["a is odd"]), PlanError("plan P", ["a is odd", "b is 0"])
    assert str(one) == "plan P: 1 rule is broken.\n  - a is odd"
    assert str(two) == "plan P: 2 rules are broken.\n  - a is odd\n  - b is 0"
    assert two.violations == ("a is odd", "b is 0")


def test_a_plan_error_survives_pickling():
    import pickle

    error = pickle.loads(pickle.dumps(PlanError("plan P", ["a is odd"])))
    assert (error.subject, error.violations) == ("plan P", ("a is odd",))


def test_one_base_class_catches_all():
    for error in (LayoutError, PlanError, UnsupportedError):
        assert issubclass(error, CutegemmError)
    assert issubclass(LayoutError, ValueError)


A_LAYOUT = Layout((4, 2))


def nested(depth):
    value = 2
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: cg.product("ab"),
            "product(value): value is 'ab', a str; an integer or a tuple of integers is expected.",
        ),
        (
            lambda: cg.make_layout([Layout(4), Layout(2)], stride=(1, 2)),
            "make_layout(shape, stride): stride (1,2) is given together with layouts, which have their own",
        ),
        (
            lambda: cg.make_layout(Layout(4), stride=1),
            ("make_layout(shape, stride): stride 1 is given together with layouts, which have their own strides."),
        ),
        (
            lambda: cg.idx2crd(5, Layout((2, 3))),
            ("idx2crd(index, shape, stride): shape is Layout((2, 3), (1, 2)), a Layout; an integer or a tuple of"),
        ),
        (
            lambda: cg.ceil_div((3, 8), Layout(2)),
            ("ceil_div(a, tiler): tiler is Layout(2, 1), a Layout; an integer or a tuple of integers is expected."),
        ),
        (
            lambda: cg.inner_product(Layout(2), 2),
            ("inner_product(a, b): a is Layout(2, 1), a Layout; an integer or a tuple of integers is expected."),
        ),
        (
            lambda: cg.prefix_product(Layout(2)),
            ("prefix_product(shape, start): shape is Layout(2, 1), a Layout; an integer or a tuple of integers is"),
        ),
        (lambda: Layout(nested(200)), "nested more than 100 deep"),
        (lambda: cg.flatten(nested(200)), "nested more than 100 deep"),
        (lambda: cg.composition(Layout(8), (2, 4)), "the tiler (2,4) has 2 entries, 8:1 has 1 mode"),
        (
            lambda: Layout((4, 8))((5,)),
            "(4,8):(1,4)(coord): coordinate (5,) of rank 1 does not fit shape (4, 8) of rank 2.",
        ),
        (lambda: Layout(8)((5,)), "8:1(coord): coordinate (5,) is nested deeper than shape 8."),
        (
            lambda: cg.ceil_div("a", 2),
            "ceil_div(a, tiler): a is 'a', a str; an integer or a tuple of integers is expected.",
        ),
        (
            lambda: cg.idx2crd("a", (4, 8)),
            ("idx2crd(index, shape, stride): index is 'a', a str; an integer or a tuple of integers is expected."),
        ),
        (
            lambda: cg.idx2crd(1.5, 8),
            ("idx2crd(index, shape, stride): index is 1.5, a float; an integer or a tuple of integers is expected."),
        ),
        (
            lambda: cg.size(A_LAYOUT, None),
            "size(value, mode): mode is None; an integer or a list of integers is expected.",
        ),
        (
            lambda: cg.to_swizzle(A_LAYOUT),
            ("to_swizzle(matrix): matrix is Layout((4, 2), (1, 4)), a Layout; an F2Matrix is expected. Make one"),
        ),
        (
            lambda: cg.synthesize(Layout((8, 8), (F2(9), F2(1)))),
            ("synthesize(offsets, shape): offsets is Layout((8, 8), (F2(9), F2(1))); integers are expected, in a"),
        ),
        (
            lambda: cg.local_tile(A_LAYOUT, (2, 2), (0, 0)),
            "local_tile(target, tiler, coord, proj): target is Layout((4, 2), (1, 4)), a Layout; a Tensor is",
        ),
        (
            lambda: cg.local_tile(Tensor(None, A_LAYOUT), None, 0),
            ("local_tile(target, tiler, coord, proj): tiler is None; an extent or a tuple with one for each mode"),
        ),
        (
            lambda: cg.local_partition(A_LAYOUT, (2, 2), 0),
            ("local_partition(target, tiler, index, proj): target is Layout((4, 2), (1, 4)), a Layout; a Tensor"),
        ),
        (
            lambda: cg.local_partition(Tensor(None, A_LAYOUT), (0, 2), 0),
            ("local_partition(target, tiler, index, proj): tiler (0,2):(1,0) is empty. Give extents of 1 or more."),
        ),
        (
            lambda: cg.unflatten(5, (1,)),
            "unflatten(leaves, profile): leaves is 5, an int; a list or tuple is expected.",
        ),
        (lambda: cg.transform_leaf(max, (1, 2), (1, 2, 3)), "(1, 2) and (1, 2, 3) are not congruent"),
        (lambda: cg.transform_leaf(max, (1, 2), 1), "not congruent"),
        (
            lambda: cg.increment_coord((9, 9), (4, 2)),
            "increment_coord(coord, shape): coord (9, 9) lies outside of shape (4, 2).",
        ),
        (
            lambda: cg.size(None),
            "size(value, mode): value is None; a layout, a tensor or a shape is expected.",
        ),
        (
            lambda: cg.cosize(4),
            "cosize(value, mode): value is 4, an int; a Layout, ComposedLayout or Tensor is expected.",
        ),
        (
            lambda: cg.crd2idx((1, 1), "(4,2)"),
            ("crd2idx(coord, layout): layout is '(4,2)', a str; an integer or a tuple of integers is expected."),
        ),
        (lambda: A_LAYOUT["a"], "has no mode 'a'"),
        (lambda: A_LAYOUT[0:1], "has no mode slice(0, 1, None)"),
        (
            lambda: cg.group_modes(A_LAYOUT, "a"),
            "group_modes(value, begin, end): begin is 'a', a str; an integer is expected.",
        ),
        (
            lambda: cg.make_layout(5.5),
            "make_layout: Layout(shape, stride): shape is 5.5, a float; an integer or a tuple of integers is",
        ),
        (
            lambda: cg.make_composed_layout(Swizzle(1, 0, 1), "a", A_LAYOUT),
            "make_composed_layout: ComposedLayout(inner, offset, outer): offset is 'a', a str; an integer is",
        ),
        (
            lambda: cg.make_composed_layout(Swizzle(1, 0, 1), 1.5, A_LAYOUT),
            ("make_composed_layout: ComposedLayout(inner, offset, outer): offset is 1.5, a float; an integer is"),
        ),
        (
            lambda: Swizzle(3, 3, 3)(1.5),
            "S<3,3,3>(offset): offset is 1.5, a float; an integer or an integer array is expected.",
        ),
        (
            lambda: ScaledBasis("a", 0),
            "ScaledBasis(value, mode): value is 'a', a str; an integer is expected.",
        ),
        (lambda: Tensor([1, 2], Layout(2)), "a numpy array or None is expected"),
        (
            lambda: cg.complement(Layout(8), -20),
            "complement(layout, cotarget): cotarget has -20 elements. Give extents of 0 or more.",
        ),
        (
            lambda: cg.recast_layout(0, 8, Layout(8)),
            ("recast_layout(new_bits, old_bits, layout): new_bits = 0 is not positive. Give a width of 1 bit or"),
        ),
        (
            lambda: cg.recast_layout(8, "16", Layout(8)),
            "recast_layout(new_bits, old_bits, layout): old_bits is '16', a str; an integer is expected.",
        ),
        (
            lambda: cg.recast_layout(-8, 8, Layout(8)),
            ("recast_layout(new_bits, old_bits, layout): new_bits = -8 is not positive. Give a width of 1 bit or"),
        ),
        (
            lambda: cg.synthesize([]),
            "synthesize(offsets, shape): offsets is empty. Give at least the offset of coordinate 0.",
        ),
        (
            lambda: cg.synthesize([0, 2**70]),
            ("synthesize(offsets, shape): offsets is [0, 1180591620717411303424], of type object; integers of at"),
        ),
        (
            lambda: cg.synthesize([[0, 1], [2]]),
            ("synthesize(offsets, shape): offsets is [[0, 1], [2]]; integers are expected, in a list or an array"),
        ),
        (
            lambda: cg.local_partition(cg.make_identity_tensor((8, 8)), A_LAYOUT, 99),
            ("local_partition(target, tiler, index, proj): tiler (4,2):(1,4) has no coordinate for index 99. Give"),
        ),
        (
            lambda: cg.local_partition(cg.make_identity_tensor((8, 8)), A_LAYOUT, -1),
            ("local_partition(target, tiler, index, proj): tiler (4,2):(1,4) has no coordinate for index -1. Give"),
        ),
        (lambda: cg.local_partition(cg.make_identity_tensor((8, 8)), Layout((2, 4), (1, 1)), 3), "index 3"),
        (
            lambda: cg.local_partition(cg.make_identity_tensor((8, 8)), 8, 3),
            "local_partition(target, tiler, index, proj): tiler 8:1 has no modes. Write (8,).",
        ),
    ],
)
def test_arguments_of_another_kind_are_named(call, said):
    with pytest.raises(LayoutError) as error:
        call()
    assert said in str(error.value)
