"""`cutegemm.gemm` for calls that torch has to see: in a graph, under a transformation, or with gradients to record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cutegemm.plan.epilogue import Reduction
from cutegemm.plan.epilogue.quantized import BlockScale, Quantized
from cutegemm.run import checks, torch_ops
from cutegemm.run.calls import BLAS_SCALARS
from cutegemm.run.checks import refused, wrong_devices
from cutegemm.run.scales import separated, wrong_scales
from cutegemm.torch import library as library  # registers the operators
from cutegemm.torch.autograd import product
from cutegemm.torch.block_scales import QUANTIZED, scaled_product, wrong_derivatives
from cutegemm.torch.checks import wrong_gradients
from cutegemm.torch.dispatch import as_autocast
from cutegemm.torch.epilogue import LINEAR, PLAIN, SCALED, constant, formula, text_of_function
from cutegemm.torch.launch import factors_read, scaled_by_torch
from cutegemm.torch.reference import by_torch

_HALF_BYTES = 2  # element types that torch multiplies with float32 accumulators and one rounding
_ONE_OUT = (
    "when torch sees the call: in a graph, with gradients, or on the meta device. There out is supported only "
    "for an epilogue of one result. Leave out `out`."
)


def gemm_in_torch(args: Mapping[str, Any]) -> Any:
    """Compute a call of `gemm` that torch has to record, trace or transform, and return its result.

    args     arguments of `gemm` by name; `operands` are those of the epilogue
    raises   UnsupportedError with every rule that is violated, PlanError for a function that is not an epilogue
    """
    if args["out"] is None:
        cast = ("a", "b") if args["epilogue"] is not None else ("a", "b", "c")
        args = {**args, **dict(zip(cast, as_autocast(*[args[name] for name in cast]), strict=True))}
    a, b, out, how = args["a"], args["b"], args["out"], args["how"]
    if isinstance(out, (tuple, list)):
        raise refused(a, b, [f"out is a {type(out).__name__} {_ONE_OUT}"])
    named = {name: args[name] for name in ("a", "b", "c", "out") if args[name] is not None}
    # The c of an epilogue is an operand, of any type and shape.
    of_gemm = {name: x for name, x in named.items() if name != "c" or args["epilogue"] is None}
    rules = [
        *checks.wrong_choices(how),
        *checks.wrong_dtypes(of_gemm, torch_ops),
        *checks.wrong_extents(of_gemm, most=None),  # a call of the graph has its own rows
        *_wrong_values(args),
        *([] if all(x.is_meta for x in named.values()) else wrong_devices(named)),
    ]
    if rules:
        raise refused(a, b, rules)
    scales, own = separated(args["operands"])
    args = {**args, "operands": own}
    if scales:
        rules = (
            []
            if out is None
            else ["out is not supported together with block scales inside torch.compile. Do not pass out."]
        )
        rules += wrong_scales(a, b, scales)
        rules += wrong_derivatives({"a": a, "b": b, "c": args["c"], **scales, **own})
        if rules:
            raise refused(a, b, rules)
    text, operands, scalars = _epilogue(args)
    rules = wrong_derivatives({"a": a, "b": b, **own, "c": args["c"]}, QUANTIZED) if _quantizes(text) else []
    if rules:
        raise refused(a, b, rules)
    reductions = [each or None for each in _reductions(text).split("\n")]
    count = len(reductions)
    if out is not None and count > 1:
        raise refused(a, b, [f"out is one tensor, and the epilogue returns {count} results {_ONE_OUT}"])
    out_dtype = args["out_dtype"]
    if isinstance(out_dtype, list):
        out_dtype = tuple(out_dtype)
    rules = checks.wrong_out_dtype(a.dtype, out_dtype, torch_ops, reductions, [out] * count)
    if rules:
        raise refused(a, b, rules)
    if out is not None:
        a, (b,) = factors_read(a, (b,), text, scalars)
        torch.ops.cutegemm.gemm_out(a, [b], text, list(operands), list(scalars), out, *how.options)
        return out
    if count == 1 and isinstance(out_dtype, tuple):
        (out_dtype,) = out_dtype
    if out_dtype is None and args["c"] is not None and args["epilogue"] is None:
        out_dtype = args["c"].dtype
    if scales:
        found = scaled_product(a, b, tuple(scales.values()), text, operands, scalars, out_dtype, how)
        return found[0] if count == 1 else tuple(found)
    results = product(a, (b,), text, operands, scalars, out_dtype, how)
    return results[0] if count == 1 else tuple(results[:count])


def gemm_by_torch(args: Mapping[str, Any]) -> Any:
    """Compute a call of `gemm` by operations of torch; return its result, or a tuple if the epilogue has several.

    The arguments were checked before. No gradients are recorded.

    args   arguments of `gemm` by name, all tensors of torch; `out` may be a sequence with a tensor or None for each
           result
    """
    a, b, out, out_dtype = args["a"], args["b"], args["out"], args["out_dtype"]
    scales, own = separated(args["operands"])
    text, operands, scalars = _epilogue({**args, "operands": own})
    a, (b,) = factors_read(a, (b,), text, scalars)
    outs = out if out is None or isinstance(out, (tuple, list)) else (out,)
    if out_dtype is None and args["c"] is not None and args["epilogue"] is None:
        out_dtype = args["c"].dtype
    with torch.no_grad():
        if text == PLAIN and a.dtype.itemsize == _HALF_BYTES and out is None and out_dtype in (None, a.dtype):
            return torch.matmul(a, b)
        types = tuple(out_dtype) if isinstance(out_dtype, list) else out_dtype
        given = (formula(text), [*operands, *scalars], types, outs)
        if scales:
            results = scaled_by_torch(a, b, tuple(scales.values()), *given)
        else:
            results = by_torch(a, b, *given)
    return results[0] if len(results) == 1 else tuple(results)


def _wrong_values(args: Mapping[str, Any]) -> list[str]:
    """Return error messages for wrong arguments of a `gemm` call: alpha, beta, c, epilogue operands, or `out`.

    An `out` is wrong if gradients would be lost.

    Operands without an epilogue, and a beta without c, are errors.

    args   arguments of `gemm` by name
    """
    rules = checks.wrong_numbers({name: args[name] for name in BLAS_SCALARS if args[name] is not None})
    if args["epilogue"] is None and args["operands"]:
        rules.append(checks.without_epilogue(args["operands"]))
    if args["epilogue"] is None and args["c"] is None and args["beta"] != 0:
        rules.append(f"beta = {args['beta']!r}, but no c is given. Pass c, or leave beta at 0.")
    tensors = {name: args[name] for name in ("a", "b", "c")}
    return rules + wrong_gradients({**tensors, **args["operands"]}, args["out"])


def _epilogue(args: Mapping[str, Any]) -> tuple[str, tuple[torch.Tensor, ...], tuple[float, ...]]:
    """Return the epilogue of a call of `gemm` as (text, tensors that it reads, numbers that it reads).

    Without an epilogue, alpha, beta and c form one, such as "lambda acc, alpha: alpha * acc".

    args   arguments of `gemm` by name
    """
    if args["epilogue"] is not None:
        own = {name: args[name] for name in ("c", *BLAS_SCALARS) if args[name] is not None}
        operands = {**args["operands"], **own}
        tensors = {name: x for name, x in operands.items() if isinstance(x, torch.Tensor)}
        numbers = {name: x for name, x in operands.items() if name not in tensors}
        text = text_of_function(args["epilogue"], tuple(tensors), tuple(numbers))
        return text, tuple(tensors.values()), tuple([float(x) for x in numbers.values()])
    alpha, beta = args["alpha"], args["beta"]
    if args["c"] is not None and beta != 0:
        return LINEAR, (args["c"],), (float(alpha), float(beta))
    if alpha != 1:
        return SCALED, (), (float(alpha),)
    return PLAIN, (), ()


@constant
def _reductions(text: str) -> str:
    r"""Return one line for each result of an epilogue that says whether kernels store it in a special way.

    The line is the reduction (sum or maximum over D) if the result is one, a text for the scales of a quantized D, or
    empty for any other result.

    text   the epilogue as text, e.g. "lambda acc, bias: acc + bias"

    >>> _reductions("lambda acc: (acc, row_sum(acc))")
    '\nrow_sum(acc)'
    """
    wide = (Reduction, BlockScale)
    return "\n".join([str(each) if isinstance(each, wide) else "" for each in formula(text).results])


@constant
def _quantizes(text: str) -> str:
    """Return "yes" if an epilogue, given as text, quantizes D to float8 with block scales, else "".

    >>> _quantizes("lambda acc: quantize(acc)"), _quantizes("lambda acc: acc")
    ('yes', '')
    """
    return "yes" if isinstance(formula(text).results[0], Quantized) else ""
