"""GEMMs of two GPUs: results against float64, bits, gradients, CUDA graphs, late ranks and time limits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.gpu import ranks as calls  # noqa: E402
from tests.torch.distributed import layers, products  # noqa: E402
from tests.torch.distributed.processes import RANKS, running  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("arch")]

SEEDS = (0, 1)
NONE = [[]] * RANKS  # faults of all ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    if torch.cuda.device_count() < RANKS:
        pytest.skip(f"needs {RANKS} GPUs")
    with running(tmp_path_factory.mktemp("ranks"), "nccl") as found:
        found.call(calls.prepare, SEEDS)
        yield found


def assert_close(found, tolerance):
    for pairs in found:
        for name, (x, y) in pairs.items():
            assert (x.double() - y.double()).abs().max() <= tolerance * y.abs().max(), name


def test_the_ranks_access_each_other(ranks):
    assert ranks.call(calls.has_engine) == [True] * RANKS


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_gathered(ranks, seed):
    assert ranks.call(calls.gathers, seed) == NONE


@pytest.mark.parametrize(("seed", "has_bias"), [(0, True), (1, False)])
@pytest.mark.parametrize("called", ["mm_reduce_scatter", "mm_all_reduce"])
def test_products_are_added(ranks, called, seed, has_bias):
    assert ranks.call(calls.reduces, called, seed, has_bias) == NONE


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_reduce"])
def test_chunks(ranks, operation):
    assert ranks.call(calls.chunks, operation) == NONE


@pytest.mark.parametrize("form", calls.FORMS)
def test_ranks_may_be_late(ranks, form):
    assert ranks.call(calls.waits, form) == NONE


@pytest.mark.parametrize("activation", [None, "gelu", "swiglu"])
@pytest.mark.parametrize("called", ["all_gather_mm", "replicated_mm"])
def test_gradients_of_columns(ranks, called, activation):
    """Values and gradients are rounded to bfloat16 several times: 2^-6 of the largest one covers three roundings."""
    assert_close(ranks.call(products.column_pairs, called, activation, True, torch.bfloat16), 2**-6)


@pytest.mark.parametrize("called", ["mm_reduce_scatter", "mm_all_reduce"])
def test_gradients_of_sums(ranks, called):
    assert_close(ranks.call(products.sum_pairs, called, True, torch.bfloat16), 2**-6)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_layers(ranks, sequence_parallel):
    assert_close(ranks.call(layers.layer_pairs, sequence_parallel, True, "swiglu", torch.bfloat16), 2**-6)
    assert_close(ranks.call(layers.styled_pairs, sequence_parallel, False, torch.bfloat16), 2**-6)


def test_groups(ranks):
    assert ranks.call(products.groups) == [True] * RANKS


@pytest.mark.parametrize("form", calls.FORMS)
def test_a_cuda_graph(ranks, form):
    assert ranks.call(calls.captures, form) == NONE


def test_a_first_call_is_not_captured(ranks):
    for message in ranks.call(calls.refuses_capture):
        assert "Make the call once on all ranks before the capture." in message


def test_a_rank_that_does_not_come(ranks):
    """The last test of the module: it ends the CUDA context of the first rank."""
    message, _ = ranks.call(calls.gives_up)
    assert "CUDA error" in message
