"""Epilogues and products computed by torch: on tensors of any device, differentiable, and the reference of the kernels.

The accumulator is float32 (float64 for float64, int32 for int8). The epilogue is computed on it, and each result is
rounded once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F

from cutegemm.dtypes import DType
from cutegemm.errors import UnsupportedError
from cutegemm.plan import epilogue as nodes
from cutegemm.plan.epilogue import Expression, Half, Reduction
from cutegemm.plan.epilogue.quantized import BlockScale, Blockwise
from cutegemm.plan.mainloop.block_scaled import BLOCK
from cutegemm.run import torch_ops
from cutegemm.torch import quantized
from cutegemm.torch.dispatch import is_direct
from cutegemm.torch.epilogue import Formula, OutDtype, dtype_name

Outs = Sequence[torch.Tensor | None] | None

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in ("abs", "square", "sqrt", "rsqrt", "exp", "log")},
    **{name: getattr(torch, name) for name in ("tanh", "erf", "sigmoid")},
    **{name: getattr(F, name) for name in ("relu", "gelu", "silu")},
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
_INTEGER = ("abs", "square", "relu")  # functions that map integers to integers
_BINARY = {nodes.Add: "add", nodes.Subtract: "sub", nodes.Multiply: "mul", nodes.Divide: "truediv"}
_COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}


class Values:
    """Evaluates symbolic expressions of an epilogue by torch: `values(expression)` returns the tensor of its values.

    Each subexpression is computed only once.

    acc        function without arguments that returns the accumulator
    operands   tensors and numbers by name
    shape      extents of D; needed only for reductions
    known      expression -> value, for values that are known already

    >>> from cutegemm.torch.epilogue import formula
    >>> (result,) = formula("lambda acc, bias: relu(acc + bias)").results
    >>> acc, bias = torch.tensor([[1.0, 2.0], [-3.0, 4.0]]), torch.tensor([0.5, -5.0])
    >>> Values(lambda: acc, {"bias": bias})(result)
    tensor([[1.5000, 0.0000],
            [0.0000, 0.0000]])
    """

    def __init__(
        self,
        acc: Callable[[], torch.Tensor],
        operands: Mapping[str, Any],
        shape: Sequence[int] = (),
        known: Mapping[Expression, torch.Tensor] | None = None,
    ) -> None:
        self._acc, self._operands, self._shape = acc, operands, shape
        self._known: dict[Expression, Any] = dict(known or {})

    def __call__(self, node: Expression) -> Any:
        value = self._known.get(node)
        if value is None:
            value = self._known[node] = self._evaluate(node)
        return value

    def _evaluate(self, node: Expression) -> Any:
        if isinstance(node, nodes.Accumulator):
            return self._acc()
        if isinstance(node, nodes.Constant):
            return node.value
        if isinstance(node, nodes.Input):
            return self._operands[node.name]
        args = [self(child) for child in node.children]
        if isinstance(node, nodes.Binary):
            return getattr(operator, _BINARY[type(node)])(*args)
        if isinstance(node, nodes.Negative):
            return -args[0]
        if isinstance(node, nodes.Function):
            x = tensor_of(args[0])
            return FUNCTIONS[node.name](x if x.is_floating_point() or node.name in _INTEGER else x.float())
        if isinstance(node, nodes.Minimum):
            return _extreme(isinstance(node, nodes.Maximum), *args)
        if isinstance(node, nodes.Compare):
            return getattr(operator, _COMPARISONS[node.symbol])(*args)
        if isinstance(node, nodes.Where):
            condition, left, right = args
            if not isinstance(left, torch.Tensor) and not isinstance(right, torch.Tensor):
                left = torch.as_tensor(left, dtype=self._compared_dtype(node.children[0]))
            return torch.where(tensor_of(condition), left, right)
        if isinstance(node, nodes.Cast):
            return rounded(tensor_of(args[0]), node.dtype)
        if isinstance(node, Reduction):
            return reduced(node, tensor_of(args[0]).expand(self._shape))
        if isinstance(node, Half):
            return half_of(args[0], node)
        if isinstance(node, Blockwise):
            return quantized.evaluated(node, tensor_of(args[0]).expand(self._shape))
        raise TypeError(f"torch cannot evaluate the {type(node).__name__} {node}.")

    def _compared_dtype(self, condition: Expression) -> torch.dtype:
        """Return the dtype of a selection between two Python floats, as in `where(condition, 1.0, 0.0)`.

        It is the type of the first operand of `condition` that is a floating tensor, or float32.
        """
        values = [self(child) for child in condition.children]
        dtypes = [x.dtype for x in values if isinstance(x, torch.Tensor) and x.is_floating_point()]
        return dtypes[0] if dtypes else torch.float32


def tensor_of(value: Any) -> torch.Tensor:
    """Return a number as a tensor without dimensions, and a tensor as it is.

    In torch's type promotion, such a number does not change the type of other tensors.
    """
    if isinstance(value, torch.Tensor):
        return value
    return torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _extreme(is_maximum: bool, left: Any, right: Any) -> Any:
    if not isinstance(left, torch.Tensor):
        left, right = right, left
    if isinstance(right, torch.Tensor):
        return torch.maximum(left, right) if is_maximum else torch.minimum(left, right)
    return torch.clamp(tensor_of(left), **{"min" if is_maximum else "max": right})


def dims_of(node: Reduction) -> list[int]:
    """Return the dimensions of D, -2 (rows) or -1 (columns) or both, that a reduction is taken over."""
    return [{"m": -2, "n": -1}[mode] for mode in node.along]


def reduced(node: Reduction, x: torch.Tensor) -> torch.Tensor:
    """Return the sum or the maximum of x over one or both of its last two dimensions. The maximum of nothing is -inf.

    node   the reduction: sum or maximum, and the dimensions
    x      the values of the elements of D

    >>> reduced(Reduction("max", ("n",), nodes.Constant(0.0)), torch.tensor([[1.0, 3.0], [2.0, torch.nan]]))
    tensor([3., nan])
    """
    dims, x = dims_of(node), x if x.is_floating_point() else x.float()
    if node.operation == "sum":
        return x.sum(dims)
    if any(x.shape[dim] == 0 for dim in dims):
        return x.sum(dims) + node.identity
    return x.amax(dims)


def rounded(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Return x rounded to the nearest values that an element type can represent; the torch dtype of x stays."""
    return stored(x, torch_ops.memory_of(dtype)).to(x.dtype) if dtype.name != "tf32" else x


def stored(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values converted to the type of a result, as a kernel stores them: rounded to nearest, ties to even.

    If the type has one byte (float8, int8) or is another integer type, values out of its range are set to the nearest
    end of the range. Values too large for float16 or bfloat16 become infinite.

    x       the values
    dtype   torch dtype of the result

    >>> stored(torch.tensor([500.0]), torch.float8_e4m3fn).float()
    tensor([448.])
    """
    if dtype == x.dtype:
        return x
    if not dtype.is_floating_point and x.dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return x.round().clamp(limits.min, limits.max).to(dtype)
    if dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        return x.clamp(-limit, limit).to(dtype)
    return x.to(dtype)


# --- gate and up projections --------------------------------------------------------------------------------------


def half_of(x: torch.Tensor, node: Any) -> torch.Tensor:
    """Return the gate columns or the up columns of a matrix x, i.e. half of its columns.

    node   expression that selects the columns: `node.side` is 0 for gate and 1 for up. `node.interleaved` is True if
           gate and up alternate, False if they are the left and the right half

    >>> [half_of(torch.arange(4), Half(Expression(), 1, interleaved)) for interleaved in (True, False)]
    [tensor([1, 3]), tensor([2, 3])]
    """
    if node.interleaved:
        return x[..., node.side :: 2]
    half = x.shape[-1] // 2
    return x[..., node.side * half : (node.side + 1) * half]


def gate_and_up_of(x: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gate columns and the up columns of x as operands for a kernel.

    interleaved   True: they are columns 2j and 2j + 1, and are copied; False: views of the two halves
    """
    if interleaved:
        return x[..., 0::2].contiguous(), x[..., 1::2].contiguous()
    gate, up = torch.split(x, x.shape[-1] // 2, -1)
    return gate, up


def interleave(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Interleave two matrices by columns: columns 2j and 2j + 1 of the result are column j of `gate` and of `up`.

    >>> interleave(torch.tensor([1, 2]), torch.tensor([3, 4]))
    tensor([1, 3, 2, 4])
    """
    # Batched gradients have no rule for flatten
    return torch.stack([gate, up], -1).view(*gate.shape[:-1], 2 * gate.shape[-1])


def join_halves(halves: Sequence[tuple[Any, torch.Tensor]]) -> torch.Tensor:
    """Return the gradient of a matrix of the shape of A @ B, from the gradients of its gate and of its up columns.

    Gate and up are the left and the right half of the columns, or the even and the odd columns (interleaved). Columns
    without a gradient get 0.

    halves   pairs (half, gradient). `half` is an expression that selects one of the two sets of columns: its attribute
             `side` is 0 for gate and 1 for up, and `interleaved` is True or False. `gradient` is a tensor with half
             as many columns as the result

    >>> gate = Half(Expression(), 0, False)
    >>> join_halves([(gate, torch.tensor([1, 2]))])
    tensor([1, 2, 0, 0])
    """
    zeros, whole = torch.zeros_like(halves[0][1]), None
    for interleaved in {node.interleaved for node, _ in halves}:
        sides = {node.side: g for node, g in halves if node.interleaved == interleaved}
        pair = [sides.get(side, zeros) for side in (0, 1)]
        both = interleave(*pair) if interleaved else torch.cat(pair, -1)
        whole = both if whole is None else whole + both
    assert whole is not None
    return whole


# --- products -----------------------------------------------------------------------------------------------------


def result_dtype(a: torch.Tensor, out_dtype: OutDtype) -> torch.dtype:
    """Return the torch dtype of D: that of `out_dtype`, or the default of `gemm` for the type of `a`.

    a           the first factor
    out_dtype   a torch dtype, None for the default, or a sequence with one of these for each result, D first
    raises      UnsupportedError if no kernel multiplies the type of `a`
    """
    if a.dtype not in torch_ops.RESULTS:
        served = ", ".join(map(dtype_name, torch_ops.RESULTS))
        raise UnsupportedError(f"product of {a.dtype}: the type is not supported. Use one of {served}.")
    return torch_ops.result_dtypes(a.dtype, (False,), out_dtype)[0]


def result_dtypes(
    a: torch.Tensor, results: Sequence[Expression], out_dtype: OutDtype, outs: Outs = None
) -> list[torch.dtype]:
    """Return the torch dtype of each result of an epilogue.

    Reductions over D, and the scales of a quantized D, are float32, or float64 if `a` is. Results beyond those that
    `out_dtype` names have the type of D.

    a           the first factor
    results     expressions of the results, D first
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    outs        for each result a tensor to write it to, whose type takes precedence, or None; None: all are new
    raises      UnsupportedError if no kernel multiplies the type of `a`
    """
    result_dtype(a, out_dtype)  # checks the type of a
    out_dtype = torch_ops.of_quantized(results[0], out_dtype)
    is_wide = [isinstance(each, (Reduction, BlockScale)) for each in results]
    dtypes = torch_ops.result_dtypes(a.dtype, is_wide, out_dtype)
    if outs is None:
        return dtypes
    return [dtype if out is None else out.dtype for dtype, out in zip(dtypes, outs, strict=True)]


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of a GEMM's accumulator for factors of type `dtype`.

    It is float32; float64 for float64, and int32 for integers.
    """
    if not dtype.is_floating_point:
        return torch.int32
    return dtype if dtype == torch.float64 else torch.float32


def accumulator(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b in the type of a GEMM's accumulator, with torch.autocast, which would round it, switched off.

    16-bit matrices on a GPU are multiplied by tensor cores, if torch has nothing to record or trace.
    """
    dtype = accumulator_dtype(a.dtype)
    is_short = a.dtype == b.dtype in (torch.float16, torch.bfloat16) and a.dim() in (2, 3)
    if is_short and a.shape[:-2] == b.shape[:-2] and a.numel() and b.numel() and is_direct(a, b):
        with suppress(TypeError, NotImplementedError):  # torch before 2.8 has no out_dtype
            return (torch.mm if a.dim() == 2 else torch.bmm)(a, b, out_dtype=dtype)
    with torch.autocast(a.device.type, enabled=False):
        return torch.matmul(a.to(dtype), b.to(dtype))


def dequantized(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return a matrix of float8 in float32, with each element multiplied by its block scale.

    x        (rows, K), or a batch of such matrices
    scales   (rows, K / 128), or (rows / 128, K / 128), extents rounded up

    >>> dequantized(torch.ones(2, 130).to(torch.float8_e4m3fn), torch.tensor([[1.0, 2.0]]))[1, 126:]
    tensor([1., 1., 2., 2.])
    """
    rows, k = x.shape[-2:]
    if scales.shape[-2] != rows:
        scales = scales.repeat_interleave(BLOCK, -2)[..., :rows, :]
    return x.float() * scales.repeat_interleave(BLOCK, -1)[..., :k]


def by_torch(
    a: torch.Tensor,
    b: torch.Tensor,
    read: Formula,
    operands: Sequence[Any],
    out_dtype: OutDtype,
    outs: Outs = None,
) -> list[torch.Tensor]:
    """Compute a @ b with an epilogue by operations of torch, which can be differentiated and transformed.

    a, b        factors
    read        the parsed epilogue
    operands    tensors and numbers of the epilogue, in the order of its parameters
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    outs        for each result a tensor to write it to, or None for a new one; None: all are new
    """
    rows, columns = a.shape[:-1], b.shape[-1]
    operands = [_widened(x, accumulator_dtype(a.dtype)) for x in operands]
    values = Values(lambda: accumulator(a, b), read.named(operands), (*rows, read.columns_of_d(columns)))
    dtypes = result_dtypes(a, read.results, out_dtype, outs)
    results, sources = [], [*operands]
    for result, shape, dtype in zip(read.results, read.shapes(rows, columns), dtypes, strict=True):
        source = tensor_of(values(result))
        value = stored(source, dtype)
        value = value if value.shape == shape else value.expand(shape)
        # A result has memory of its own, also if it is an operand, a view of the accumulator, or an earlier result.
        is_shared = value._is_view() or any(source is each for each in sources)
        if isinstance(result, BlockScale):  # contiguous along the rows
            results.append(value)
        else:
            results.append(value.clone(memory_format=torch.contiguous_format) if is_shared else value.contiguous())
        sources.append(source)
    return copied_to(outs, results)


def copied_to(outs: Outs, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy results of an epilogue to the caller's tensors, and return these.

    outs      for each result the caller's tensor, or None to return the result itself; None: return all results
    results   the computed results
    """
    if outs is None:
        return list(results)
    return [each if out is None else out.copy_(each) for each, out in zip(results, outs, strict=True)]


def _widened(x: Any, dtype: torch.dtype) -> Any:
    """Return an operand in the type of the accumulator, as a kernel reads it; unchanged if its own type is wider.

    x       a tensor, or a number, which is returned as it is
    dtype   type of the accumulator
    """
    is_narrow = isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype.itemsize < dtype.itemsize
    return x.to(dtype) if is_narrow and dtype.is_floating_point else x
