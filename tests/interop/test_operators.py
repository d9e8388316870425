"""Operators of nvidia-cutlass-operators: enumeration, metadata, refusals, epilogues, and kernels without a GPU."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass.operators", reason="nvidia-cutlass-operators is not installed")

import cutlass.operators as ops
import torch
from cutlass.operators.metadata import EpilogueMetadata
from torch._subclasses.fake_tensor import FakeTensorMode

from cutegemm.dtypes import bf16, round_to
from cutegemm.errors import UnsupportedError
from cutegemm.interop.operators import operator as own
from cutegemm.interop.operators import register
from cutegemm.interop.operators.epilogue import translated
from cutegemm.interop.operators.operator import Fma
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan.epilogue import epilogue_of
from cutegemm.plan.epilogue.dependencies import state_of
from cutegemm.run.emulated import emulate
from cutegemm.run.question import decide
from cutegemm.simulator import simulate
from tests.noted import note_launches


@pytest.fixture
def provider() -> Any:
    return register()


def matrix(shape: tuple[int, ...], layout: str = "n", dtype: Any = torch.bfloat16, device: str = "cpu") -> Any:
    """Return a tensor without values; layout "t" is column-major."""
    if layout == "n":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.empty((*shape[:-2], shape[-1], shape[-2]), dtype=dtype, device=device).mT


def arguments(
    m: int = 512,
    n: int = 384,
    k: int = 256,
    layout: str = "nt",
    epilogue: Any = None,
    acc: Any = torch.float32,
    **how: Any,
) -> Any:
    """Return GemmArguments for a row-major D of the type of A."""
    a, b, d = matrix((m, k), layout[0], **how), matrix((k, n), layout[1], **how), matrix((m, n), **how)
    return ops.GemmArguments(a, b, d, acc, epilogue)


def found(args: Any, provider: Any, **how: Any) -> list[Any]:
    """Return the operators of cutegemm for Hopper."""
    return ops.get_operators(args, target_sm="90a", providers=[provider], **how)


def test_the_ten_best_plans_are_listed_and_the_first_is_the_choice_of_gemm(provider):
    args = arguments(4096, 4096, 4096)
    operators = found(args, provider)
    assert len(operators) == 10
    names = [each.metadata.design.plan for each in operators]
    assert len(set(names)) == 10
    chosen = decide(own.question_of(args, None)).plan
    assert operators[0]._decision(args).plan == chosen


def test_metadata_describe_the_plan(provider):
    """Of Hopper plans, which wgmma multiplies; of a decode, where A and B are swapped and one row is computed."""
    first = found(arguments(4096, 4096, 4096), provider)[0].metadata
    assert first.provider is provider
    assert first.supported_targets == [ops.TargetSm("90a")]
    assert first.design.mma_instruction_type is ops.mma.HopperWgmma
    assert (first.operands.A.stride, first.operands.B.stride, first.operands.out.stride) == (
        (0, 0, 1),
        (0, 1, 0),
        (0, 0, 1),
    )
    assert first.operands.A.divisibility == 8
    assert first.operands.A.ptr_alignment_bytes == 16
    assert first.operator_name == f"cutegemm.{first.design.plan}_tnt_ABFloat16x8_BBFloat16x8_outBFloat16x8_accFloat32"
    swapped = next(each for each in found(arguments(1, 4096, 4096), provider) if "swap_ab:sm90" in str(each.metadata))
    plan = swapped._decision(arguments(1, 4096, 4096)).plan
    assert swapped.metadata.design.tile_shape == (plan.cta_tile[1], plan.cta_tile[0], plan.cta_tile[2])


def test_simt_plans_multiply_float32(provider):
    operators = found(arguments(dtype=torch.float32), provider)
    assert {each.metadata.design.mma_instruction_type for each in operators} == {Fma}


def test_fake_tensors_get_the_operators_of_real_ones(provider):
    with FakeTensorMode():
        fake = arguments(device="cuda")
    names = [[each.metadata.operator_name for each in found(args, provider)] for args in (fake, arguments())]
    assert names[0] == names[1]
    assert names[0]


@pytest.mark.parametrize("shape", [(1, 384, 256), (512, 1, 256), (512, 384, 8), (33, 17, 19)])
@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_odd_shapes_have_operators(provider, shape, layout):
    assert found(arguments(*shape, layout=layout), provider)


@pytest.mark.parametrize("c_shape", [None, (3, 128, 96), (128, 96)])
def test_a_batch_has_operators(provider, c_shape):
    """A matrix C is read for each matrix of the batch."""
    a, b, d = matrix((3, 128, 64)), matrix((3, 64, 96), "t"), matrix((3, 128, 96))
    epilogue = None
    if c_shape is not None:
        source = "def epilogue(accum, C):\n    D = accum + C\n    return D\n"
        epilogue = ops.EpilogueArguments(source, C=matrix(c_shape), D=d)
    assert found(ops.GemmArguments(a, b, d, torch.float32, epilogue), provider)


def test_a_filter_comes_before_the_limit(provider):
    operators = found(arguments(4096, 4096, 4096), provider, metadata_filter=lambda of: of.design.cluster_shape[0] == 1)
    assert {each.metadata.design.cluster_shape[0] for each in operators} == {1}
    assert len(operators) == 10


def test_nothing_is_listed_without_arguments_or_for_another_target(provider):
    assert ops.get_operators(providers=[provider]) == []
    assert ops.get_operators(arguments(), target_sm="100a", providers=[provider]) == []
    assert ops.get_operators(arguments(), target_sm="80", providers=[provider]) == []


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (lambda: arguments(acc=torch.float16, dtype=torch.float16), "accumulator of torch.float16 is"),
        (lambda: arguments(dtype=torch.uint8, acc=torch.int32), "no plan multiplies torch.uint8"),
        (
            lambda: ops.GemmArguments(matrix((64, 32)), matrix((32, 64)).float(), matrix((64, 64)), torch.float32),
            "no plan multiplies torch.bfloat16 by torch.float32",
        ),
        (
            lambda: ops.GemmArguments(matrix((64, 64))[:, ::2], matrix((32, 64)), matrix((64, 64)), torch.float32),
            "strides of a is 1",
        ),
    ],
)
def test_what_no_plan_can_implement_has_no_operators(provider, args, rule):
    made = args()
    assert found(made, provider) == []
    with pytest.raises(UnsupportedError, match=rule):
        own.question_of(made, None)


def test_an_operator_says_why_it_does_not_support_arguments(provider):
    operator = found(arguments(), provider)[0]
    assert operator.supports(arguments(1024, 768, 320))
    status = operator.supports(arguments(layout="tt"))
    assert "stride[1] to be 1" in str(status.error)
    unaligned = matrix((512, 257))[:, 1:]
    args = ops.GemmArguments(unaligned, matrix((256, 384), "t"), matrix((512, 384)), torch.float32)
    assert "divisible by 8" in str(operator.supports(args).error)
    assert not operator._supports(args)


def test_a_kernel_is_compiled_for_hopper_and_computes_the_product(provider):
    args = arguments(40, 24, 48)
    operator = found(args, provider)[0]
    artifact = operator.compile(args, target_sm="90a")
    assert artifact.operator_obj is operator
    assert str(artifact.compiled_for) == "90a"
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (40, 48)).astype(np.float32), rng.integers(-3, 4, (48, 24)).astype(np.float32)
    assert np.array_equal(emulate(artifact.compiled_obj.plan, a, b).d, a @ b)
    with pytest.raises(UnsupportedError, match="100a is not 90a"):
        operator.compile(args, target_sm="100a")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of the kernels that are launched, as if the CPU were a Hopper GPU with any stream."""
    monkeypatch.setattr(own, "_current", lambda stream, like: nullcontext())
    return note_launches(monkeypatch, DEFAULT_DEVICE.sms)


@pytest.mark.parametrize("shape", [(512, 384, 256), (1, 4096, 512), (33, 17, 19), (512, 1, 256)])
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_a_run_launches_the_plan_that_was_compiled(provider, launched, shape, layout):
    args = arguments(*shape, layout=layout)
    for operator in found(args, provider):
        operator.run(args, compiled_artifact=object())
        assert launched[-1].plan == operator._decision(args).plan
        passed = launched[-1].passed()
        assert [passed[name].data_ptr() for name in "abd"] == [x.data_ptr for x in (args.A, args.B, args.out)]


def linear(accum, alpha, bias, C):
    F = accum * alpha + bias
    D = relu(F) * 2.0 + C / 4  # noqa: F821
    return D, F


def test_an_epilogue_is_fused(provider, launched):
    """D and F are those of numpy, from the simulated plan; a run passes all tensors to the kernel of this plan."""
    m, n, k = 40, 24, 48
    c, bias, d, f = matrix((m, n)), matrix((1, n))[0], matrix((m, n)), matrix((m, n))
    epilogue = ops.EpilogueArguments(linear, alpha=0.5, bias=bias, C=c, D=d, F=f)
    args = ops.GemmArguments(matrix((m, k)), matrix((k, n), "t"), d, torch.float32, epilogue)
    operator = found(args, provider)[0]
    assert operator.metadata.epilogue is not None
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n), (1, n))]
    a, b, c_values, bias_values = arrays
    plan = operator._decision(args).plan
    values = {"C": c_values, "bias": bias_values, "alpha": 0.5}
    result = simulate(plan, a, b, **operator._ending.operands(values))
    expected = a @ b * 0.5 + bias_values
    assert np.array_equal(result.aux["aux"], expected)
    assert np.array_equal(result.d, round_to(bf16, np.maximum(expected, 0) * 2 + c_values / 4))
    operator.run(args, compiled_artifact=object())
    assert launched[-1].plan == plan
    passed = launched[-1].passed()
    names = {f"x{index}": name for index, name in enumerate(operator._ending.inputs)} | {"d": "D", "aux": "F"}
    tensors = {"C": c, "bias": bias, "D": d, "F": f}
    assert {names[each] for each in passed if each in names} == {*tensors, "alpha"}
    for each, name in names.items():
        assert passed[each] == 0.5 if name == "alpha" else passed[each].data_ptr() == tensors[name].data_ptr()


def test_an_operator_takes_an_epilogue_by_its_metadata(provider):
    """Programs choose an operator first and fuse an epilogue into it later, such as torch's NVGEMM backend."""
    metadata = found(arguments(), provider)[0].metadata
    d, bias = matrix((512, 384)), matrix((1, 384))[0]
    source = "def epilogue(accum, bias):\n    D = relu(accum + bias)\n    return D\n"
    args = arguments(epilogue=ops.EpilogueArguments(source, D=d, bias=bias))
    bound = metadata.operator_class(replace(metadata, epilogue=EpilogueMetadata.from_args(args.epilogue)))
    assert bound.supports(args)
    assert str(bound._decision(args).plan.epilogue) == "relu(acc + x0)"


TEXTS = [
    ("D = maximum(accum, 0.0) - minimum(accum, 1.0)", "maximum(acc, 0) - minimum(acc, 1)"),
    ("D = silu(accum) * sigmoid(accum) + tanh(accum)", "silu(acc) * sigmoid(acc) + tanh(acc)"),
    ("D = gelu(accum) / exp(accum)", "gelu(acc) / exp(acc)"),
    ("D = hardswish(accum)", "acc * minimum(maximum(acc + 3, 0), 6) * 0.16666666666666666"),
    ("D = multiply_add(accum, 2.0, 3.0)", "acc * 2 + 3"),
    ("D = identity(accum)", "acc"),
]


@pytest.mark.parametrize(("line", "text"), TEXTS)
def test_operations_are_translated(line, text):
    source = f"def epilogue(accum):\n    {line}\n    return D\n"
    args = arguments(epilogue=ops.EpilogueArguments(source, D=matrix((512, 384))))
    ending = translated(args.epilogue)
    assert str(epilogue_of(ending.function, {})) == text
    assert state_of(ending.function) is not None  # so that gemm finds the prepared call without calling the function


REFUSED = [
    ("total = sum(accum)\n    D = accum", "D, total", {"total": torch.zeros(1)}, "total is combined with what"),
    ("D = permute(accum, indices=(0, 2, 1))", "D", {}, "permute and reshape are not supported"),
]


@pytest.mark.parametrize(("lines", "returned", "tensors", "rule"), REFUSED)
def test_what_gemm_cannot_fuse_is_refused(provider, lines, returned, tensors, rule):
    source = f"def epilogue(accum):\n    {lines}\n    return {returned}\n"
    d = matrix((384, 384))
    args = arguments(384, epilogue=ops.EpilogueArguments(source, D=d, **tensors))
    assert found(args, provider) == []
    with pytest.raises(UnsupportedError, match=rule):
        translated(args.epilogue)


def test_a_transport_and_another_d_are_refused(provider):
    source = "def epilogue(accum, C):\n    D = accum + C\n    return D\n"
    c, d = matrix((512, 384)), matrix((512, 384))
    by_copy = ops.EpilogueArguments(source, C=ops.Load(c, via="async_gmem_load"), D=d)
    with pytest.raises(UnsupportedError, match="C has the transport 'async_gmem_load'"):
        translated(arguments(epilogue=by_copy).epilogue)
    args = arguments(epilogue=ops.EpilogueArguments(source, C=c, D=d.float()))
    with pytest.raises(UnsupportedError, match="Pass one tensor for both"):
        own.question_of(args, translated(args.epilogue))


def test_tensors_that_were_converted_to_cute_are_refused(provider):
    """Without TVM-FFI, the package converts tensors when the arguments are made."""
    options = ops.GlobalOptions()
    before = options.save()
    try:
        options.use_tvm_ffi = False
        args = arguments()
    finally:
        options.restore(before)
    assert found(args, provider) == []
    with pytest.raises(UnsupportedError, match="use_tvm_ffi = True"):
        own.question_of(args, None)


def test_registering_may_be_repeated_and_may_come_first():
    before = dict(ops.available_providers)
    try:
        register(first=True)
        assert next(iter(ops.available_providers)) == "cutegemm"
        assert register() is register()
        assert set(ops.available_providers) >= {"cutedsl", "cutegemm"}
    finally:
        ops.available_providers.clear()
        ops.available_providers.update(before)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cutlass.operators", None)
    with pytest.raises(UnsupportedError, match=r"nvidia-cutlass-operators cannot be imported .*operators\]'"):
        register()


def test_an_unknown_version_is_refused(monkeypatch):
    monkeypatch.setattr(ops, "__version__", "1.0.0")
    with pytest.raises(UnsupportedError, match=r"nvidia-cutlass-operators 1\.0\.0 is installed"):
        register()
