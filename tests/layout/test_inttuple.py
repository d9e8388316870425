"""Hierarchical integers: values by hand, and the laws between coordinates and indices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.errors import LayoutError
from cutegemm.layout import inttuple as it
from cutegemm.layout import make_ordered_layout
from tests.layout import cases, naive

shapes = st.recursive(st.integers(1, 5), lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=4)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (it.flatten(((1, (2,)), 3)), (1, 2, 3)),
        (it.flatten(5), (5,)),
        (it.flatten(()), ()),
        (it.unflatten((1, 2, 3), (0, (0, 0))), (1, (2, 3))),
        (it.product((4, (2, 3))), 24),
        (it.product(()), 1),
        (it.product((4, 0)), 0),
        (it.product_each((4, (2, 3))), (4, 6)),
        (it.inner_product((1, (2, 3)), (10, (100, 1000))), 3210),
        (it.is_congruent((1, (2, 3)), (4, (5, 6))), True),
        (it.is_congruent((1, 2), 3), False),
        (it.is_congruent((1, 2), (1, 2, 3)), False),
        (it.is_weakly_congruent((1, 2), (1, (2, 3))), True),
        (it.is_weakly_congruent((1, (2, 3)), (1, 2)), False),
        (it.transform_leaf(lambda a, b: a - b, (4, (2, 3)), (1, (1, 1))), (3, (1, 2))),
        (it.prefix_product((4, (2, 3))), (1, (4, 8))),
        (it.prefix_product((4, 2), start=3), (3, 12)),
        (it.ceil_div((10, 7, 3), (4, 2)), (3, 4, 3)),
        (it.ceil_div(-1, 2), 0),
        (it.ceil_div((2, 3), 4), 2),
        (it.round_up((10, 7), (4, 2)), (12, 8)),
        (it.round_up(12, 4), 12),
        (it.shape_div(12, 4), 3),
        (it.shape_div(4, 12), 1),
        (it.shape_div((12, 4), 6), (2, 4)),
        (it.shape_div((4, 12), 8), (1, 6)),
        (it.elem_less((3, (1, 1)), (4, (2, 2))), True),
        (it.elem_less((3, (1, 2)), (4, (2, 2))), False),
        (it.idx2crd(13, (4, (2, 3))), (1, (1, 1))),
        (it.idx2crd((1, 3), (4, (2, 3))), (1, (1, 1))),
        (it.idx2crd(30, (4, 6)), (2, 7)),
        (it.idx2crd(10, (4, 8), (8, 1)), (1, 2)),  # 10 = 1 * 8 + 2 * 1
        (it.idx2crd((3, 13), (4, (2, 8)), (1, (8, 1))), (3, (1, 5))),  # 13 = 1 * 8 + 5 * 1
        (it.idx2crd(5, (1, 8), (0, 1)), (0, 5)),
        (it.increment_coord((3, (1, 2)), (4, (2, 3))), (0, (0, 0))),
        (it.increment_coord((3, (1, 1)), (4, (2, 3))), (0, (0, 2))),
        (it.as_int_tuple([np.int64(4), (2, [3])]), (4, (2, (3,)))),
    ],
)
def test_value(got, want):
    assert got == want


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: it.unflatten((1, 2), (0, (0, 0))), "unflatten: 2 leaves (1, 2) do not fill the profile"),
        (lambda: it.inner_product((1, 2), 3), "inner_product(a, b): a = (1, 2) and b = 3 are not congruent."),
        (lambda: it.ceil_div(4, 0), "ceil_div(a, tiler): the tiler 0 is not positive. Divide by 1 or more."),
        (lambda: it.ceil_div(4, (2, 2)), "ceil_div(a, tiler): the tiler (2, 2) has more modes than a = 4."),
        (lambda: it.round_up(4, (2, 2)), "round_up(a, b): b = (2, 2) has more modes than a = 4."),
        (lambda: it.shape_div(6, 4), "shape_div(a, b): neither of a = 6 and b = 4 divides the other."),
        (
            lambda: it.elem_less((1, 2), (1, 2, 3)),
            "elem_less(a, b): a = (1, 2) and b = (1, 2, 3) differ in rank.",
        ),
        (
            lambda: it.idx2crd((1, 2), 4),
            "idx2crd(index, shape, stride): index (1, 2) is nested deeper than shape 4.",
        ),
        (lambda: it.idx2crd(5, (4, 2), (0, 1)), "stride 0 of the extent 4 is not positive"),
        (lambda: it.idx2crd(5, (4, 2), 1), "stride 1 is not congruent with shape (4, 2)"),
        (lambda: it.idx2crd(-1, (4, 2), (1, 4)), "index -1 is negative"),
        (lambda: it.shape_div(4, 0), "neither of a = 4 and b = 0 divides the other"),
        (lambda: it.prefix_product((2, 3), (1, 2)), "start is (1, 2), a tuple; an integer is expected"),
        (
            lambda: it.idx2crd(-1, (4, 2)),
            "idx2crd(index, shape, stride): index -1 into shape (4, 2) is negative. Count from 0.",
        ),
        (
            lambda: it.crd2crd(0, 4, 5),
            ("crd2crd(coord, shape, target): shape 4 has 4 elements, target 5 has 5. Give two shapes of one size."),
        ),
        (
            lambda: it.as_int_tuple(True, "extent"),
            "extent is True, a bool; an integer or a tuple of integers is expected.",
        ),
        (
            lambda: it.as_int_tuple((4, 2.0), "extent"),
            "extent is (4, 2.0); its leaf is 2.0, a float; an integer or a tuple of integers is expected.",
        ),
    ],
)
def test_message(call, message):
    with pytest.raises(LayoutError) as refused:
        call()
    assert message in str(refused.value)


@given(shapes)
def test_coordinates_count_colexicographically(shape):
    coords = [it.idx2crd(i, shape) for i in range(naive.size(shape))]
    steps = naive.leaves(it.prefix_product(shape))
    for index, coord in enumerate(coords):
        assert it.is_congruent(coord, shape)
        assert it.elem_less(coord, shape)
        assert sum(c * s for c, s in zip(naive.leaves(coord), steps, strict=True)) == index
        assert it.increment_coord(coord, shape) == coords[(index + 1) % len(coords)]


@given(shapes, st.randoms(use_true_random=False))
def test_idx2crd_with_a_stride_inverts_a_compact_layout(shape, rng):
    extents = naive.leaves(shape)
    order = it.unflatten(rng.sample(range(len(extents)), len(extents)), shape)
    layout = make_ordered_layout(shape, order)
    for coord in (it.idx2crd(i, shape) for i in range(naive.size(shape))):
        assert it.idx2crd(layout(coord), layout.shape, layout.stride) == coord


@given(shapes, st.randoms(use_true_random=False))
def test_crd2crd_keeps_the_index(shape, rng):
    target = tuple(rng.sample(naive.leaves(shape), len(naive.leaves(shape))))
    index = rng.randrange(naive.size(shape))
    assert it.crd2crd(it.idx2crd(index, shape), shape, target) == it.idx2crd(index, target)


@given(shapes)
def test_flatten_and_unflatten_are_inverse(shape):
    assert it.unflatten(it.flatten(shape), shape) == shape
    assert it.flatten(shape) == tuple(naive.leaves(shape))


@given(shapes, st.randoms(use_true_random=False))
def test_weak_congruence_is_what_a_coordinate_needs(shape, rng):
    coord = cases.coord(rng, shape)
    assert it.is_weakly_congruent(coord, shape)
    assert len(it.flat_coord(coord, shape)) == len(naive.leaves(shape))


@given(st.integers(1, 200), st.integers(1, 20))
def test_ceil_div_and_round_up(a, b):
    assert (it.ceil_div(a, b) - 1) * b < a <= it.ceil_div(a, b) * b == it.round_up(a, b)
