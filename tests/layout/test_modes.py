"""Modes: values by hand on layouts, composed layouts and plain tuples, and what is refused."""

from __future__ import annotations

import pytest

import cutegemm.layout as cg
from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, Layout, Swizzle

L = Layout((4, (2, 3), 5))  # strides (1, (4, 8), 24)
C = ComposedLayout(Swizzle(2, 0, 3), 8, L)


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
        (lambda: cg.get(L, 3), "get: (4,(2,3),5) of rank 3 has no mode 3."),
        (lambda: cg.get(L, [1, 2]), "get: (2,3) of rank 2 has no mode 2."),
        (lambda: cg.size(L, [True]), "size: mode [True] is no integer or list of integers."),
        (lambda: cg.select(L, [0, 5]), "select: (4,(2,3),5) of rank 3 has no mode 5."),
        (
            lambda: cg.group_modes(L, 2, 2),
            "group_modes: [2, 2) is no range of modes of (4,(2,3),5), which has 3.",
        ),
        (lambda: cg.append(L, 4), "append: a Layout is expected, not 4."),
        (lambda: cg.slice_(L, (None, 1)), "slice: the coordinate (_,1) does not fit (4,(2,3),5)"),
        (lambda: cg.dice(L, (None, 1)), "dice: (_,1) does not fit (4,(2,3),5)."),
        (lambda: L[3], "the layout (4,(2,3),5):(1,(4,8),24) of rank 3 has no mode 3."),
    ],
)
def test_message(call, message):
    with pytest.raises(LayoutError) as refused:
        call()
    assert message in str(refused.value)


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
