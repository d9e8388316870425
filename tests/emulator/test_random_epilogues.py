"""Random epilogues of `gemm`: values from emulated kernels, and argument checks by their host functions."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.build import simt_plan, sm90_plan, with_epilogue  # noqa: E402
from cutegemm.compile.plans import compile_plan  # noqa: E402
from cutegemm.dtypes import bf16, f32  # noqa: E402
from cutegemm.emulator.decode import programs  # noqa: E402
from cutegemm.emulator.launch import TensorArgument, host_function  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.plan import Operand, Operands  # noqa: E402
from cutegemm.plan.epilogue import Column, Row, Tile, parse_epilogue  # noqa: E402
from cutegemm.plan.signature import signature_of  # noqa: E402
from tests.emulator.on_cpu import KINDS, emulate_launches  # noqa: E402
from tests.random_epilogues import Place, hold, random_call  # noqa: E402
from tests.signatures import refusals  # noqa: E402

SMALL = (1, 7, 8, 16, 24, 40, 72)
SEEDS = range(8)
MORE_SEEDS = range(8, 40)


@pytest.mark.parametrize("seed", [*SEEDS, *[pytest.param(seed, marks=pytest.mark.thorough) for seed in MORE_SEEDS]])
def test_values(monkeypatch, seed):
    """Small problems agree with float64. The memory around the tensors is poison."""
    emulate_launches(monkeypatch, 132)
    hold(random_call(random.Random(seed).choice, SMALL, may_name=False), "cpu", seed)


def plans():
    """Return plans of several families, with operands and results of different types and majorness."""
    ending = parse_epilogue("acc * row + column + tile, aux = acc", {"row": Row, "column": Column, "tile": Tile})
    aux = {
        "row": Operand.of_kind(Row, f32, align_bytes=16),
        "column": Operand.of_kind(Column, bf16),
        "tile": Operand(f32, "m", 8),
        "aux": Operand(f32, "n", 4),
    }
    simt = simt_plan(Operands.of("f32", layout="tn"), block=(32, 32, 8), warp=(32, 32), thread=(8, 4))
    made = [
        simt,
        simt_plan(Operands.of("f32", batched=True), block=(32, 32, 8), warp=(32, 32), thread=(8, 4)),
        sm90_plan(Operands.of("bf16", layout="nt"), tile=(64, 64, 64)),
        sm90_plan(Operands.of("bf16", layout="nt"), tile=(64, 64, 64)).with_(swap_ab=True),
    ]
    return [with_epilogue(ending, plan, aux) for plan in made]


@pytest.mark.parametrize("number", range(4))
def test_arguments_that_a_host_function_rejects(number):
    """The host function rejects exactly those random arguments for which `refusals` returns a reason."""
    plan = plans()[number]
    kernel, expected = compile_plan(plan), signature_of(plan)
    kernels = {name: of for name, (of, _) in programs(kernel.ptx).items()}
    host, rng = host_function(kernel.folder / "kernel.so"), np.random.default_rng(number)
    refused = 0
    for _ in range(200):
        tensors = [changed(argument, rng) for argument in expected]
        given = [TensorArgument(x.data_ptr(), KINDS[x.dtype], tuple(x.shape), x.stride()) for x in tensors]
        words = [what for of, x in zip(expected, tensors, strict=True) for what in refusals(of, x)]
        said = None
        try:
            host.launches(kernels, given, ())
        except UnsupportedError as error:
            said = str(error)
        assert (said is None) == (not words), (said, words)
        refused += said is not None
    assert 50 < refused < 150


def changed(argument, rng):
    """Return a tensor that fits an argument, or in one of eight cases one that differs slightly.

    It may differ in type, rank, strides, extents or alignment.
    """
    of = {f32: torch.float32, bf16: torch.bfloat16}[argument.dtype]
    extents = {"l": 2, "m": 32, "n": 48, "k": 16}
    shape = tuple([extents[mode] for mode in argument.modes])
    by_columns = len(shape) > 1 and argument.strides[-1] is not None
    kind = rng.integers(40)
    if kind == 0:
        of = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float16}[of]
    if kind == 1:
        by_columns = len(shape) > 1 and not by_columns
    if kind == 2:
        shape = (*shape[:-1], shape[-1] - 1)
    if kind == 3:
        shape = (1, *shape)
    place = Place(of, shape, by_columns, pad=int(kind == 4) or 8, offset=int(kind == 5))
    return place.memory("cpu").as_strided(place.shape, place.strides, place.offset)
