"""Layers whose weights are divided, on the CPU: results, gradients, state dicts and messages, against one process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("torch has no distributed", allow_module_level=True)

from tests.torch.distributed import layers  # noqa: E402
from tests.torch.distributed.test_functional import assert_close  # noqa: E402

BOTH = pytest.mark.parametrize("sequence_parallel", [True, False], ids=["sequence", "whole"])


@BOTH
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("activation", [None, "gelu", "swiglu"])
def test_two_layers(ranks, sequence_parallel, has_bias, activation):
    assert_close(ranks.call(layers.layer_pairs, sequence_parallel, has_bias, activation))


@BOTH
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_parallelize_module(ranks, sequence_parallel, is_compiled):
    assert_close(ranks.call(layers.styled_pairs, sequence_parallel, is_compiled))


def test_rows_that_torch_gathers_once(ranks):
    assert_close(ranks.call(layers.styled_pairs, True, False, torch.float64, True))


def test_bfloat16(ranks):
    """Hidden values, results and gradients are rounded a few times each, by 2^-9 of themselves at most."""
    for sequence_parallel in True, False:
        assert_close(ranks.call(layers.layer_pairs, sequence_parallel, True, "swiglu", torch.bfloat16), 2**-6)
        assert_close(ranks.call(layers.styled_pairs, sequence_parallel, False, torch.bfloat16), 2**-6)


def test_inputs_as_dtensors(ranks):
    assert ranks.call(layers.inputs_as_dtensors) == [[True] * 3] * 2


@pytest.mark.parametrize("kind", ["shares", "DTensors"])
def test_state_dicts(ranks, kind):
    for found in ranks.call(layers.restored, kind):
        assert all(found), found


def test_layers_from_sizes(ranks):
    for *found, text in ranks.call(layers.sizes):
        assert all(found), found
        assert text == "RowParallelLinear(in_features=6, out_features=8, bias=True, ranks=2, sequence_parallel=False)"


MESSAGES = [
    (
        "ColumnParallelLinear(4, 5, activation='mish')",
        ["ColumnParallelLinear: 2 rules are broken.", "activation = 'mish' is unknown.", "out_features = 5 is divided"],
    ),
    ("ColumnParallelLinear(4, 6, activation='swiglu')", ["each with gate and up of 'swiglu'. Use a multiple of 4"]),
    ("RowParallelLinear(3, 4)", ["in_features = 3 is divided among 2 ranks. Use a multiple of 2"]),
    ("RowParallelLinear(4, 4, activation='relu')", ["activation = 'relu' is unknown. Use one of None."]),
    ("RowParallelLinear(4, 4, group=1)", ["group is a int."]),
    ("ColumnParallelLinear.from_linear(mlp)", ["the module is a Sequential. Pass a torch.nn.Linear."]),
    ("parallelize_module(mlp, mesh(), {'1': ColumnParallel()})", ["ColumnParallel(sequence_parallel=False): "]),
    ("parallelize_module(mlp, mesh(), {'0': RowParallel()})", ["in_features = 3 is divided among 2 ranks."]),
    (
        "parallelize_module(parallelize_module(GatedMLP(), mesh(), styles(True)), mesh(), styles(True))",
        ["the module is a ColumnParallelLinear. Pass a torch.nn.Linear."],
    ),
    (
        "ColumnParallelLinear(4, 4)(distribute_tensor(torch.ones(4, 4), mesh(), [Shard(1)]))",
        ["ColumnParallelLinear: the input is a DTensor with placements (Shard(dim=1),). Pass one with (Replicate(),)"],
    ),
]


@pytest.mark.parametrize(("made", "parts"), MESSAGES)
def test_messages(ranks, made, parts):
    for said in ranks.call(layers.message, made):
        assert all(part in said for part in parts), said


def test_names_of_the_package():
    """They are imported at first use: torch need not have torch.distributed."""
    import cutegemm.torch

    assert set(cutegemm.torch._OF_SEVERAL_GPUS) <= set(cutegemm.torch.distributed.__all__) & set(dir(cutegemm.torch))
    assert cutegemm.torch.RowParallelLinear is cutegemm.torch.distributed.RowParallelLinear
    with pytest.raises(AttributeError, match="has no attribute 'ParallelLinear'"):
        cutegemm.torch.ParallelLinear  # noqa: B018
