"""What the choice of a plan depends on, from the arguments of an operator of `cutlass.operators`."""

from __future__ import annotations

import math
from typing import Any

import cutlass.cute as cute
import torch
from cutlass.operators.arguments import DenseTensor, GemmArguments
from cutlass.operators.metadata import DenseTensorConstraints, GemmOperandsMetadata
from cutlass.operators.utils.dtype import cutlass_type_from_torch_type, torch_type_from_cutlass_type
from cutlass.operators.utils.tensor import TensorWrapper

from cutegemm.choice.recipe import Recipe
from cutegemm.errors import UnsupportedError
from cutegemm.interop.operators.epilogue import Translated
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.epilogue import Scalar, epilogue_of
from cutegemm.plan.problem import Operand, Operands
from cutegemm.run.ahead import chip
from cutegemm.run.checks import wanted_mode
from cutegemm.run.fused import kind_of, operand_of
from cutegemm.run.question import EpilogueSpec, Question
from cutegemm.run.torch_ops import DTYPES, RESULTS, memory_of
from cutegemm.run.views import ALIGN_BYTES, MODES, View, operands_of

ARCH = "sm_90a"


def tensor_of(wrapped: Any) -> torch.Tensor:
    """Return the torch tensor that a TensorWrapper of `cutlass.operators` holds.

    For a fake tensor, or an array of another framework, it is a tensor on the meta device, i.e. without memory.

    wrapped   the TensorWrapper
    raises    UnsupportedError for a `cute.Tensor`, which does not lead back to the tensor that it was made of
    """
    own = wrapped._runtime_tensor
    if isinstance(own, torch.Tensor):
        return own
    if isinstance(own, cute.Tensor):
        raise UnsupportedError(
            "gemm does not take a cute.Tensor. Pass tensors of a framework, and set "
            "cutlass.operators.GlobalOptions().use_tvm_ffi = True, without which they are converted to cute.Tensor."
        )
    dtype = torch_type_from_cutlass_type(wrapped.dtype)
    return torch.empty_strided(tuple(wrapped.shape), tuple(wrapped.stride), dtype=dtype, device="meta")


def question_of(args: Any, ending: Translated | None) -> Question:
    """Return everything that the choice of a plan depends on, read from the arguments of a `cutlass.operators` call.

    args      a `GemmArguments`
    ending    the epilogue of the call, as a function that `gemm` takes; None without one
    returns   a description of the GEMM: types, extents, strides, alignments, epilogue and device
    raises    UnsupportedError with every rule that the arguments break
    """
    if not isinstance(args, GemmArguments) or any(not isinstance(x, DenseTensor) for x in (args.A, args.B, args.out)):
        raise UnsupportedError(
            "the arguments are not a dense GEMM. Pass GemmArguments whose A, B and out are tensors without scales."
        )
    tensors = {"a": tensor_of(args.A.tensor), "b": tensor_of(args.B.tensor), "out": tensor_of(args.out.tensor)}
    _check_types(tensors, args.accumulator_type)
    m, n, k, l = args.problem_size  # noqa: E741
    batched, spec = len(args.A.shape) == 3, None
    if ending is not None:
        _check_d(args.out, args.epilogue.tensors["D"])
        spec, c = _spec_of(args.epilogue.tensors, ending, (m, n, l if batched else None))
        tensors |= {} if c is None else {"c": c}
    views = _views_of(tensors, batched)
    kinds = {name: DTYPES[tensor.dtype] for name, tensor in tensors.items()}
    return Question(
        lambda by_box: operands_of(views, kinds["a"], kinds["out"], batched, by_box, kinds.get("c"), kinds["b"]),
        (m, n, k, l),
        "c" in tensors,
        spec,
        "fast",
        ARCH,
        device(),
    )


def signature_of(args: Any) -> tuple[Any, ...]:
    """Return a hashable key of the arguments of an operator: types, shapes, strides and alignments of all tensors.

    Arguments with equal keys have the same plan, so plans are cached under this key.

    args   a `GemmArguments`
    """
    values = [getattr(operand, "tensor", operand) for operand in (args.A, args.B, args.out)]
    if args.epilogue is not None:
        values += args.epilogue.parameters
    return (
        args.accumulator_type,
        *[
            (value.dtype, value.shape, value.stride, value.data_ptr % ALIGN_BYTES)
            if isinstance(value, TensorWrapper)
            else type(value)
            for value in values
        ],
    )


def _views_of(tensors: dict[str, torch.Tensor], batched: bool) -> dict[str, View]:
    """Return the memory layout (majorness, alignment, strides) of each matrix of a GEMM: "a", "b", "c" and "out".

    tensors   the matrices by name. Without a "c", the result has the layout of "out" for it
    batched   True if the matrices have a batch mode in front
    raises    UnsupportedError if D is empty, or if neither of the last two strides of a tensor is 1
    """
    if not tensors["out"].numel():
        raise UnsupportedError("D is empty. There is nothing to launch.")
    views = {
        name: View.of(name, tensor, batched, wanted_mode(None, name, tensor.element_size(), ""))
        for name, tensor in tensors.items()
    }
    without = [name for name, view in views.items() if view.major is None]
    if without:
        raise UnsupportedError(
            f"neither of the last two strides of {' and of '.join(without)} is 1. Pass contiguous tensors."
        )
    return {"c": views["out"], **views}


def device() -> Device:
    """Return the device that plans are chosen for: that of this machine, or `DEFAULT_DEVICE` without a Hopper GPU."""
    own = chip(None)
    return own if own.arch == ARCH else DEFAULT_DEVICE


def _check_d(out: Any, d: Any) -> None:
    """Raise UnsupportedError if an epilogue's tensor D has another type or layout than the operand `out` of the call.

    Only D is written; `out` describes it.

    out   operand `out` of the `GemmArguments`
    d     tensor that the epilogue stores D to
    """
    if (out.dtype, out.shape, out.stride) != (d.dtype, d.shape, d.stride):
        raise UnsupportedError(
            f"D of the epilogue is {d.dtype} of shape {d.shape} and strides {d.stride}, but out is {out.dtype} of "
            f"shape {out.shape} and strides {out.stride}. Pass one tensor for both."
        )


def _check_types(tensors: dict[str, torch.Tensor], accumulator: Any) -> None:
    """Raise UnsupportedError if `gemm` does not have the element types of a GEMM.

    tensors       "a", "b" and "out"
    accumulator   type of the accumulator in `cutlass.operators`
    """
    a, b, out = [tensors[name].dtype for name in ("a", "b", "out")]
    both_float8 = a.itemsize == b.itemsize == 1 and a.is_floating_point and b.is_floating_point
    if (a != b and not both_float8) or out not in RESULTS.get(a, ()):
        raise UnsupportedError(f"no plan multiplies {a} by {b} with a result of {out}.")
    own = cutlass_type_from_torch_type(memory_of(Operands.of(DTYPES[a]).acc))
    if accumulator != own:
        raise UnsupportedError(f"the accumulator of {a} is {own}, not {accumulator}. Pass accumulator_type={own}.")


def _spec_of(
    values: dict[str, Any], ending: Translated, extents: tuple[int, int, int | None]
) -> tuple[EpilogueSpec, torch.Tensor | None]:
    """Return an epilogue with the types of its tensors, and the tensor that the kernel reads as C; None without one.

    values    tensors and numbers of the epilogue by their names in `cutlass.operators`
    ending    the epilogue as a function that `gemm` takes
    extents   M, N, and number of matrices of a batch or None
    raises    UnsupportedError if the shape of a tensor fits no operand of an epilogue
    """
    m, n, l = extents  # noqa: E741
    batched = l is not None
    given = ending.operands(values)
    tensors = {name: tensor_of(value) for name, value in given.items() if isinstance(value, TensorWrapper)}
    kinds = {name: kind_of(tuple(tensor.shape), m, n, l) for name, tensor in tensors.items()}
    others = [type(x).__name__ for x in given.values() if not isinstance(x, TensorWrapper | int | float)]
    unfit = [str(tuple(tensors[name].shape)) for name, kind in kinds.items() if kind is None]
    untyped = [str(tensor.dtype) for tensor in tensors.values() if tensor.dtype not in DTYPES]
    if others or unfit or untyped:
        raise UnsupportedError(f"gemm's epilogues cannot read a tensor of {', '.join([*others, *unfit, *untyped])}.")
    epilogue = epilogue_of(ending.function, {name: kinds.get(name) or Scalar for name in given})
    tiles = epilogue.tiles
    aux = {
        name: operand_of(kinds[name], tensor, batched)  # type: ignore[arg-type]
        for name, tensor in tensors.items()
        if name not in tiles[:1]
    }
    for name, output in zip(epilogue.beside, ending.outputs[1:], strict=True):
        result = tensor_of(values[output])
        view = View.of("out", result, batched)
        aux[name] = Operand(DTYPES[result.dtype], MODES["out"][view.major or 0], view.align)
    c = tensors[tiles[0]] if tiles else None
    return EpilogueSpec(epilogue, aux), c if c is None or l is None else c.expand(l, m, n)


def operands_metadata(args: Any, question: Question, recipe: Recipe) -> Any:
    """Return which operands a plan accepts, as a `GemmOperandsMetadata` of `cutlass.operators`.

    args       a `GemmArguments` that the plan can implement
    question   what the choice of its plan depends on: types, extents, alignments
    recipe     named options that the plan is built from; they decide how operands are loaded and must be aligned
    """
    operands = question.all_operands(recipe.boxes(question.boxed))
    of_plan = {"A": operands.a, "B": operands.b, "out": operands.d}
    constraints = {
        name: _constraints(getattr(args, name), operand, MODES[name.lower()]) for name, operand in of_plan.items()
    }
    return GemmOperandsMetadata(**constraints, accumulator_type=args.accumulator_type)


def _constraints(tensor: Any, operand: Operand, modes: str) -> Any:
    """Return which tensors a plan accepts as one operand, as a `DenseTensorConstraints`: type, majorness, alignment.

    tensor    a tensor that the plan can read; its type and number of modes count, and strides that limit the alignment
    operand   type, majorness and alignment that the plan needs
    modes     letters of the operand's two modes: "mk" for A, "kn" for B, "mn" for D
    """
    is_row_major = operand.major == modes[1]
    elements = operand.align_bytes * 8 // operand.dtype.bits
    major = len(tensor.shape) - (1 if is_row_major else 2)
    others = [stride for mode, stride in enumerate(tensor.stride) if mode != major]
    return DenseTensorConstraints(
        tensor.dtype, (0, 0, 1) if is_row_major else (0, 1, 0), math.gcd(elements, *others), operand.align_bytes
    )
