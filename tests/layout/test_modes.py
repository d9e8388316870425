"""Modes: values by hand on layouts, composed layouts and plain tuples, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import cutegemm.layout as cg
from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, Tensor

L = Layout((4, (2, 3), 5))  # strides (1, (4, 8), 24)
C = ComposedLayout(Swizzle(2, 0, 3), 8, L)
T = Tensor(np.arange(120) * 10, L)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (cg.size(L), 120),
        (cg.size(L, [1, 0]), 2),
        (cg.size((4, (2, 3)), [1]), 6),
        (cg.cosize(L), 120),
        (cg.cosize(L, [1]), 21),
        (cg.rank(L), 3),
        (cg.rank(L, [1]), 2),
        (cg.rank(7), 1),
        (cg.depth(L), 2),
        (cg.depth(Layout(4)), 0),
        (cg.depth(()), 1),
        (cg.shape(L), (4, (2, 3), 5)),
        (cg.shape(L, 1), (2, 3)),
        (cg.shape(L, [1, 1]), 3),
        (cg.get(L, 1), Layout((2, 3), (4, 8))),
        (cg.get(L, [1, 1]), Layout(3, 8)),
        (cg.get((4, (2, 3)), [1, 0]), 2),
        (cg.get(C, 0), ComposedLayout(C.inner, 8, Layout(4, 1))),
        (cg.select(L, [2, 0]), Layout((5, 4), (24, 1))),
        (cg.select((4, 8, 3), [2]), (3,)),
        (cg.select(C, [2]), ComposedLayout(C.inner, 8, Layout((5,), (24,)))),
        (cg.flatten(L), Layout((4, 2, 3, 5), (1, 4, 8, 24))),
        (cg.flatten((4, (2, 3))), (4, 2, 3)),
        (cg.flatten(7), 7),
        (cg.group_modes(L, 0, 2), Layout(((4, (2, 3)), 5), ((1, (4, 8)), 24))),
        (cg.group_modes((4, 8, 3), 1), (4, (8, 3))),
        (cg.append(L, Layout(2, 0)), Layout((4, (2, 3), 5, 2), (1, (4, 8), 24, 0))),
        (cg.append((4, 2), 3, 4), (4, 2, 3, 3)),
        (cg.prepend(Layout(4), Layout(2, 8)), Layout((2, 4), (8, 1))),
        (cg.prepend((4,), 1), (1, 4)),
        (cg.slice_(L, (None, (1, None), 2)), Layout((4, 3), (1, 8))),
        (cg.slice_(L, None), L),
        (cg.slice_((4, (2, 3), 5), (None, (1, None), 2)), (4, 3)),
        (cg.slice_(C, (None, 0, 1)), ComposedLayout(C.inner, 32, Layout((4,), (1,)))),
        (cg.slice_and_offset((None, (1, None), 2), L), (Layout((4, 3), (1, 8)), 52)),
        (cg.dice(L, (None, (1, None), 2)), Layout((2, 5), (4, 24))),
        (cg.dice((4, (2, 3), 5), (None, (1, None), 2)), (2, 5)),
        (cg.crd2idx((3, (1, 2), 4), L), 119),
        (cg.crd2idx((3, 5, 4), (4, (2, 3), 5)), 119),
        (cg.make_layout([Layout(4, 8), Layout((2, 4))]), Layout((4, (2, 4)), (8, (1, 2)))),
        (cg.make_layout((4, 8), stride=(8, 1)), Layout((4, 8), (8, 1))),
        (L[1], Layout((2, 3), (4, 8))),
        (L[-1], Layout(5, 24)),
        (Layout(4, 2)[0], Layout(4, 2)),
    ],
)
def test_value(got, want):
    assert got == want


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cg.get(L, 3), "get(value, mode): (4,(2,3),5) of rank 3 has no mode 3. Use 0 to 2."),
        (lambda: cg.get(L, [1, 2]), "get(value, mode): (2,3) of rank 2 has no mode 2. Use 0 to 1."),
        (
            lambda: cg.size(L, [True]),
            "size(value, mode): mode is [True], a list; an integer or a list of integers is expected.",
        ),
        (
            lambda: cg.select(L, [0, 5]),
            "select(value, mode): (4,(2,3),5) of rank 3 has no mode 5. Use 0 to 2.",
        ),
        (
            lambda: cg.group_modes(L, 2, 2),
            ("group_modes(value, begin, end): the range [2, 2) is empty or not within the 3 modes of (4,(2,3),5)."),
        ),
        (
            lambda: cg.append(L, 4),
            "append(value, elem, up_to_rank): elem is 4, an int; a Layout is expected.",
        ),
        (
            lambda: cg.slice_(L, (None, 1)),
            ("slice: coordinate (_,1) does not fit (4,(2,3),5) in (4,(2,3),5):(1,(4,8),24). Give one entry for"),
        ),
        (
            lambda: cg.dice(L, (None, 1)),
            ("dice(value, dicer): coordinate (_,1) does not fit (4,(2,3),5). Give one entry for each mode."),
        ),
        (lambda: L[3], "(4,(2,3),5):(1,(4,8),24) of rank 3 has no mode 3. Use 0 to 2."),
    ],
)
def test_message(call, message):
    with pytest.raises(LayoutError) as refused:
        call()
    assert message in str(refused.value)


def test_with_shape_is_the_same_function_of_the_index():
    for whole, extents in (
        (Layout((4, 8), (8, 1)), (2, 2, 8)),
        (Layout((4, 6), (1, 5)), (4, (2, 3))),
        (C, (4, 30)),
    ):
        reshaped = whole.with_shape(*extents)
        assert reshaped.shape == extents
        assert reshaped.offsets().tolist() == whole.offsets().tolist() == whole.with_shape(extents).offsets().tolist()
    with pytest.raises(LayoutError, match=r"no layout is A o B for A = \(6,2\):\(1,7\) and B = \(4,3\):\(1,4\)"):
        Layout((6, 2), (1, 7)).with_shape(4, 3)
    with pytest.raises(LayoutError, match=r"with_shape\(\*shape\): shape is 'a', a str"):
        Layout(8).with_shape("a")


def test_a_layout_does_not_iterate():
    for layout in (L, C):
        with pytest.raises(TypeError, match="not iterable"):
            iter(layout)


@pytest.mark.parametrize("value", [L, C, Swizzle(2, 0, 3), cg.E(1)])
def test_values_are_immutable_hashable_and_copy(value):
    import copy
    import pickle

    again = pickle.loads(pickle.dumps(value))
    assert again == value == copy.deepcopy(value)
    assert hash(again) == hash(value)
    assert value != 1
    name = next(iter(value.__slots__)).lstrip("_")
    with pytest.raises(AttributeError, match="immutable"):
        setattr(value, name, 1)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: cg.coalesce(x, (1, 1)),
        cg.filter,
        cg.filter_zeros,
        cg.flatten,
        lambda x: cg.composition(x, (2, None)),
        lambda x: cg.group_modes(x, 0, 2),
        lambda x: cg.select(x, [2, 0]),
        lambda x: cg.get(x, [1, 0]),
        lambda x: cg.append(x, Layout(1, 0)),
        lambda x: cg.slice_(x, (None, 0, None)),
        lambda x: cg.dice(x, (None, 0, None)),
    ],
)
def test_an_operation_on_a_tensor_is_that_on_its_layout(operation):
    """A tensor of the same array, with the layout that the operation makes."""
    result = operation(T)
    assert isinstance(result, Tensor)
    assert result.array is T.array
    assert result.layout == operation(L)
    assert result.values().tolist() == (operation(L).offsets() * 10).tolist()


def test_a_slice_of_a_tensor_keeps_its_offset():
    assert cg.slice_(T, (None, 1, 2)).values().tolist() == [520, 530, 540, 550]  # 4*1 + 24*2 = 52


def test_questions_about_a_tensor_are_about_its_layout():
    assert (cg.cosize(T), cg.cosize(T, [1]), cg.rank(T), cg.size(T, [1])) == (120, 21, 3, 6)
    assert cg.max_common_vector(T, L) == 120
    assert cg.max_common_vector(cg.make_identity_tensor((4, 8)), T) == 1  # coordinates are not memory


@pytest.mark.parametrize(
    ("a", "b", "congruent", "weakly"),
    [
        (Layout((4, 8)), Layout((4, 8, 2)), False, False),
        (Layout((4, 8)), Layout((2, 16), (16, 1)), True, True),
        (Layout((4, 8)), (4, 8), True, True),
        (Layout((4, 8)), Layout(32), False, False),
        (Layout(32), Layout((4, 8)), False, True),
        (T, L, True, True),
        (C, (1, 2, 3), False, False),
        ((1, 2, 3), C, False, True),
    ],
)
def test_congruence_of_layouts_is_that_of_their_shapes(a, b, congruent, weakly):
    assert (cg.is_congruent(a, b), cg.is_weakly_congruent(a, b)) == (congruent, weakly)
