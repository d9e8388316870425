"""Functions of several ranks on the CPU: results, gradients, graphs and messages, against one process in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch.distributed import set_timeout  # noqa: E402
from tests.torch.distributed import products  # noqa: E402


def assert_close(found, tolerance=1e-12):
    """Compare the pairs of all ranks."""
    for rank, pairs in enumerate(found):
        for name, (x, y) in pairs.items():
            assert x.shape == y.shape, (rank, name)
            off = (x.double() - y.double()).abs().max().item()
            assert off <= tolerance * max(1.0, y.abs().max().item()), (rank, name, off)


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("activation", [None, "gelu", "swiglu"])
@pytest.mark.parametrize("called", ["all_gather_mm", "replicated_mm"])
def test_columns(ranks, called, activation, has_bias):
    assert_close(ranks.call(products.column_pairs, called, activation, has_bias))


@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("called", ["mm_reduce_scatter", "mm_all_reduce"])
def test_sums(ranks, called, has_bias):
    assert_close(ranks.call(products.sum_pairs, called, has_bias))


def test_bfloat16(ranks):
    """A sum of two rounded partial results: each has an error of 2^-9 of itself at most, and so has the sum."""
    assert_close(ranks.call(products.sum_pairs, "mm_all_reduce", True, torch.bfloat16), 2**-6)
    assert_close(ranks.call(products.column_pairs, "all_gather_mm", "gelu", True, torch.bfloat16), 2**-6)


def test_several_weights(ranks):
    assert_close(ranks.call(products.several_pairs))


def test_warm_calls(ranks):
    assert_close(ranks.call(products.warm_pairs))


def test_leading_dimensions(ranks):
    assert_close(ranks.call(products.leading_pairs))


def test_an_epilogue(ranks):
    assert_close(ranks.call(products.epilogue_pairs))


@pytest.mark.parametrize("named_by", ["name", "group", "mesh", "default"])
def test_a_graph(ranks, named_by):
    assert_close(ranks.call(products.compiled_pairs, named_by))


def test_groups(ranks):
    assert ranks.call(products.groups) == [True, True]


def test_float8(ranks):
    """Collectives that do not know float8 send its bytes."""
    assert_close(ranks.call(products.float8_pairs))


@pytest.mark.parametrize("called", ["all_gather_mm", "replicated_mm", "mm_reduce_scatter", "mm_all_reduce"])
def test_transformations_are_refused(ranks, called):
    """They would drop the tangents of what other ranks send."""
    for messages in ranks.call(products.transformed, called):
        assert len(messages) == 4
        for said in messages:
            assert said.startswith(f"{called} of a (4, 4), b (4, 3): torch.vmap, torch.func and forward-mode")


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e12, None])
def test_a_timeout_is_a_number(seconds):
    with pytest.raises(UnsupportedError, match=r"set_timeout: seconds = .*, but a number from 0 to 1000000000"):
        set_timeout(seconds)


MESSAGES = [
    ("mm_reduce_scatter", [(5, 4), (4, 3)], {}, ["a has 5 rows, and 2 ranks share them. Pad a to a multiple of 2."]),
    ("mm_reduce_scatter", [(4, 4), (3, 3)], {"form": "fast"}, ["both are K", "form = 'fast' is unknown."]),
    ("mm_all_reduce", [(4, 4), (4, 3), (4,)], {}, ["bias has shape (4,). Pass a tensor of shape (3,)."]),
    ("all_gather_mm", [(4,), (4, 3)], {}, ["a has shape (4,). Pass rows of K elements"]),
    ("all_gather_mm", [(2, 4), (4, 3)], {"activation": "mish"}, ["activation = 'mish' is unknown."]),
    ("all_gather_mm", [(2, 4), (4, 3)], {"activation": "swiglu"}, ["b has 3 columns, an odd number."]),
    ("all_gather_mm", [(2, 4), (4, 3)], {"scale": 2.0}, ["scale belong to an epilogue, and none is passed."]),
    ("all_gather_mm", [(2, 4), (4, 3)], {"epilogue": max, "scale": None}, ["scale = None is not a real number."]),
    ("all_gather_mm", [(2, 4), (4, 3)], {"group": 3}, ["group is a int."]),
    ("all_gather_mm", [(2, 4), (4, 3)], {"group": "none"}, ["group = 'none' is not the name of a process group"]),
]


@pytest.mark.parametrize(("called", "shapes", "keywords", "parts"), MESSAGES)
def test_messages(ranks, called, shapes, keywords, parts):
    for said in ranks.call(products.message, called, shapes, keywords):
        assert said.startswith((called, "group"))
        assert all(part in said for part in parts), said
