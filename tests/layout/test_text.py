"""CuTe's notation and this package's repr, both ways; the caret of a malformed text."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, E, Layout, ScaledBasis, Swizzle, make_identity_layout, parse
from tests.layout import cases

NAMES = {
    "Layout": Layout,
    "ComposedLayout": ComposedLayout,
    "Swizzle": Swizzle,
    "ScaledBasis": ScaledBasis,
}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("((2,4),8):((1,16),2)", Layout(((2, 4), 8), ((1, 16), 2))),
        ("(4,8)", Layout((4, 8), (1, 4))),
        ("8", Layout(8, 1)),
        ("(8):(1)", Layout((8,), (1,))),
        ("(8,):(1,)", Layout((8,), (1,))),
        ("():()", Layout((), ())),
        ("(4,8):(-1,0)", Layout((4, 8), (-1, 0))),
        ("(0,4):(1,0)", Layout((0, 4), (1, 0))),
        (" ( 4 ,\n8 )\t: ( 8 , - 1 ) ", Layout((4, 8), (8, -1))),
        ("4:3@1", Layout(4, 3 * E(1))),
        ("4:2@0@1", Layout(4, 2 * E((1, 0)))),
        ("4:2@(1,0)", Layout(4, 2 * E((1, 0)))),
        ("4:2 @ (1, 0)", Layout(4, 2 * E((1, 0)))),
        ("(4,(2,3)):(1@0,(1@0@1,1@1@1))", make_identity_layout((4, (2, 3)))),
        ("(_4,_8):(_8,_-1)", Layout((4, 8), (8, -1))),
        ("S<3,4,3> o 0 o (8,64):(64,1)", ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1)))),
        ("Sw<2,0,-3> o 16 o 8", ComposedLayout(Swizzle(2, 0, -3), 16, Layout(8))),
        ("(4,8):(8,1) o 3 o 8:2", ComposedLayout(Layout((4, 8), (8, 1)), 3, Layout(8, 2))),
        ("Layout((2, 2), (1, 8))", Layout((2, 2), (1, 8))),
        ("Layout(8)", Layout(8)),
        ("Layout((8), (2))", Layout(8, 2)),
        ("Layout((8,), (2,))", Layout((8,), (2,))),
        ("Layout(4, ScaledBasis(3, (1,)))", Layout(4, 3 * E(1))),
        (
            "ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1)))",
            ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1))),
        ),
        (f"4:{2**70}", Layout(4, 2**70)),
    ],
)
def test_parse(text, want):
    assert parse(text) == want == Layout.parse(text)


@given(rng=st.randoms(use_true_random=False), spaces=st.booleans())
def test_str_and_repr_read_back(rng, spaces):
    layout = cases.maybe_composed(rng, cases.layout(rng, "pgzrnb"))
    text = str(layout)
    if spaces:
        text = text.replace(",", " , ").replace(":", " :  ")
    assert parse(text) == layout
    assert parse(repr(layout)) == layout == eval(repr(layout), dict(NAMES))


def test_numbers_of_numpy_print_as_integers():
    layout = Layout((np.int64(4), np.int32(8)))
    assert (str(layout), repr(layout)) == ("(4,8):(1,4)", "Layout((4, 8), (1, 4))")


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("", 0, "a layout, 'S<' or a repr is expected at the end of the text."),
        ("-4", 0, "a layout, 'S<' or a repr is expected at '-'."),
        ("(4,8", 4, "',' or ')' is expected at the end of the text."),
        ("(4,8:(1,4)", 4, "',' or ')' is expected at ':'."),
        ("(4,x):(1,4)", 3, "an extent of 0 or more is expected at 'x'."),
        ("(4,-8)", 3, "an extent of 0 or more is expected at '-'."),
        ("(,4)", 1, "an extent of 0 or more is expected at ','."),
        ("(4,8):", 6, "a stride is expected at the end of the text."),
        ("(4,8):(1 4)", 9, "',' or ')' is expected at '4'."),
        ("4:1@", 4, "a mode of 0 or more is expected at the end of the text."),
        ("4:1@-1", 4, "a mode of 0 or more is expected at '-'."),
        ("4:1@()", 4, "a path of modes is expected."),
        ("4:1@((1,0),2)", 4, "a path of modes is expected."),
        ("4 p", 2, "'o' or the end of the text is expected at 'p'."),
        ("S<3,4>", 5, "',' is expected at '>'."),
        ("S<3,4,3> 0", 9, "'o' is expected at '0'."),
        ("S<3,4,3> o o 8", 11, "an offset is expected at 'o'."),
        ("S<3,4,3> o 0 o 8:1 o", 19, "the end of the text is expected at 'o'."),
        ("Layout(4, 1", 11, "')' is expected at the end of the text."),
        ("(4,8):(1)", 6, "the stride (1) is not congruent with the shape (4,8)."),
        ("S<3,4,1> o 0 o 8", 0, "|shift| = 1 is below bits = 3, so the two bit fields overlap."),
        ("(4,\n8:1", 5, "',' or ')' is expected at ':'."),
    ],
)
def test_a_malformed_text_is_shown_with_a_caret(text, at, expected):
    with pytest.raises(LayoutError) as refused:
        parse(text)
    reason, shown, caret = str(refused.value).split("\n")
    assert expected in reason
    assert shown == "  " + text.replace("\n", " ")
    assert caret == "  " + " " * at + "^"


@pytest.mark.parametrize("value", [None, 8, (4, 8), b"8"])
def test_only_a_text_is_parsed(value):
    with pytest.raises(LayoutError, match=r"parse\(text\): text is .*; a str is expected"):
        parse(value)


def test_a_text_too_deep_to_read_is_refused():
    for text in ("(" * 100_000, "(" * 400 + "4" + ")" * 400, "4:" + "(" * 102 + "1" + ")" * 102):
        with pytest.raises(LayoutError, match="nested more than 100 deep"):
            parse(text)
    deepest = parse("(" * 100 + "4" + ")" * 100)
    assert parse(str(deepest)) == parse(repr(deepest)) == deepest
    assert isinstance(hash(deepest), int)


def test_integers_and_texts_have_bounds():
    assert parse("9" * 1000).size() == int("9" * 1000)
    for text in ("9" * 1001, "4:" + "9" * 5000, "S<" + "9" * 5000 + ",0,0> o 0 o 8:1"):
        with pytest.raises(LayoutError, match="at most 1000 are allowed") as refused:
            parse(text)
        assert len(str(refused.value)) < 500
    with pytest.raises(LayoutError, match="past bit 512"):
        parse("S<3,4,99999999999> o 0 o 8:1")
    huge = Layout(10**5000)
    assert str(huge) == "<an integer of 16610 bits>:1"


def test_the_time_to_read_is_linear_in_the_length():
    def seconds(count):
        text = "(" + ",".join(["2"] * count) + ")"
        start = time.process_time()
        parse(text)
        return time.process_time() - start

    assert min(seconds(40_000) for _ in range(3)) < 16 * min(seconds(5_000) for _ in range(3))
