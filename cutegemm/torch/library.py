"""Operators of torch.library, which graphs of torch.compile and torch.export hold, and which transformations see.

| operator               | returns                                                                                  |
|------------------------|------------------------------------------------------------------------------------------|
| `cutegemm::mm`         | a @ b, of matrices or of batches                                                         |
| `cutegemm::mm_out`     | nothing; a @ b is written to `out`                                                       |
| `cutegemm::gemm`       | the results of an epilogue of a @ b; the epilogue and types as text, b in parts          |
| `cutegemm::gemm_out`   | nothing; D is written to `out`                                                           |
| `cutegemm::scaled_gemm`| the results of an epilogue of a block-scaled a @ b; it has no gradients                  |
| `cutegemm::quantize`   | values of float8 and block scales of a matrix; it has no gradients                       |
| `cutegemm::mm_parts`   | a @ b^T, b in parts side by side: the gradient by `a`; it records no gradients           |
| `cutegemm::gemm_dgated`| the backward pass of a gated activation; it records no gradients                         |

Each operator has a kernel for CUDA and CPU tensors, a fake for graphs, and a formula that counts its floating-point
operations. `mm` and `gemm` also have derivatives and a rule for torch.vmap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from cutegemm.plan.epilogue import Reduction
from cutegemm.run.calls import How
from cutegemm.torch.autograd import Call, backward, save
from cutegemm.torch.epilogue import PLAIN, formula, types_read, types_text
from cutegemm.torch.launch import AS_CHOSEN, allocated, compute, dgated_of, joined
from cutegemm.torch.quantization import quantized, results

Tensors = Sequence[torch.Tensor]
Shape = Sequence[int]

# No argument of `gemm` has a default: torch omits arguments that equal their default, and then rejects the gradients of
# a call with lists of tensors as too many.
_PRODUCT = "Tensor a, Tensor[] b, str epilogue, Tensor[] operands, float[] scalars"
_HOW = "str? plan, str accumulate, bool allow_tf32, bool varying_rows, bool tune, bool batch_invariant"
_OPTIONS = len(How().options)
SCHEMAS = {
    "cutegemm::mm": "(Tensor a, Tensor b, ScalarType? out_dtype=None, bool varying_rows=False) -> Tensor",
    "cutegemm::mm_out": "(Tensor a, Tensor b, Tensor(a!) out) -> ()",
    "cutegemm::gemm": f"({_PRODUCT}, str? out_dtype, {_HOW}) -> Tensor[]",
    "cutegemm::gemm_out": f"({_PRODUCT}, Tensor(a!) out, {_HOW}) -> ()",
    "cutegemm::scaled_gemm": "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, str epilogue, Tensor[] operands, "
    f"float[] scalars, str? out_dtype, {_HOW}) -> Tensor[]",
    "cutegemm::quantize": "(Tensor x, int rows, ScalarType dtype, bool power_of_two) -> (Tensor, Tensor)",
    "cutegemm::mm_parts": "(Tensor a, Tensor[] b, ScalarType? out_dtype=None, bool batch_invariant=False) -> Tensor",
    "cutegemm::gemm_dgated": "(Tensor a, Tensor b, Tensor preact, str activation, bool varying_rows=False, "
    "bool batch_invariant=False) -> (Tensor, Tensor)",
}


# --- kernels and fakes --------------------------------------------------------------------------------------------


def _mm(a: torch.Tensor, b: torch.Tensor, out_dtype: Any = None, varying_rows: bool = False) -> torch.Tensor:
    return compute(a, (b,), PLAIN, out_dtype=out_dtype, how=How(varying_rows=varying_rows))[0]


def _fake_mm(a: Any, b: Any, out_dtype: Any = None, varying_rows: bool = False) -> torch.Tensor:
    return allocated(a, (b,), PLAIN, out_dtype)[0]


def _mm_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    compute(a, (b,), PLAIN, outs=(out,))


def _gemm(*args: Any) -> list[torch.Tensor]:
    """Compute the operator cutegemm::gemm: return the results of an epilogue of a @ b, D first.

    args   a, b, text of the epilogue, its tensors, its numbers, text of the result types, and the options of `How`
    """
    a, b, text, operands, scalars, types = args[:-_OPTIONS]
    return compute(a, b, text, operands, scalars, types_read(types), How(*args[-_OPTIONS:]))


def _fake_gemm(*args: Any) -> list[torch.Tensor]:
    a, b, text, _, _, types, *_ = args
    return allocated(a, b, text, types_read(types))


def _gemm_out(*args: Any) -> None:
    a, b, text, operands, scalars, out = args[:-_OPTIONS]
    compute(a, b, text, operands, scalars, None, How(*args[-_OPTIONS:]), (out,))


def _scaled_gemm(*args: Any) -> list[torch.Tensor]:
    """Compute the operator cutegemm::scaled_gemm: return the results of an epilogue of a block-scaled a @ b.

    args   a, b, float32 block scales of a and of b, text of the epilogue, its tensors, its numbers, text of the
           result types, and the options of `How`
    """
    a, b, of_a, of_b, text, operands, scalars, types = args[:-_OPTIONS]
    how = How(*args[-_OPTIONS:])
    return compute(a, (b,), text, operands, scalars, types_read(types), how, scales=(of_a, of_b))


def _fake_scaled_gemm(*args: Any) -> list[torch.Tensor]:
    a, b, _, _, text, _, _, types, *_ = args
    return allocated(a, (b,), text, types_read(types))


def _fake_quantize(x: torch.Tensor, rows: int, dtype: torch.dtype, power_of_two: bool) -> tuple[Any, Any]:
    return results(x, rows, dtype)


def _mm_parts(a: torch.Tensor, b: Tensors, out_dtype: Any = None, batch_invariant: bool = False) -> torch.Tensor:
    how = How(varying_rows=True, batch_invariant=batch_invariant)
    return compute(a, (joined(b).mT,), PLAIN, out_dtype=out_dtype, how=how)[0]


def _fake_mm_parts(a: torch.Tensor, b: Tensors, out_dtype: Any = None, batch_invariant: bool = False) -> torch.Tensor:
    return allocated(a, (b[0].mT,), PLAIN, out_dtype)[0]


def _dgated(
    a: Any, b: Any, preact: Any, activation: str, varying_rows: bool = False, batch_invariant: bool = False
) -> tuple[Any, Any]:
    how = How(varying_rows=varying_rows, batch_invariant=batch_invariant)
    return dgated_of(a, b, preact, activation, how)


def _fake_dgated(a: Any, b: Any, preact: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    (hidden,) = allocated(a, (b,), PLAIN, None)
    return hidden.new_empty(preact.shape), hidden


def _fake_out(*args: Any, **kwargs: Any) -> None:
    """Do nothing: an operator that writes to `out` needs no fake result in a graph."""


# --- derivatives --------------------------------------------------------------------------------------------------


def _save_mm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, out_dtype, varying_rows = inputs
    call = Call(PLAIN, (), out_dtype, How(varying_rows=varying_rows))
    save(ctx, call, 1, (a, b), (output,), [a.requires_grad, b.requires_grad])


def _backward_mm(ctx: Any, upstream: torch.Tensor | None) -> tuple[Any, ...]:
    return (*backward(ctx, (upstream,), ctx.needs), None, None)


def _save_gemm(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    a, b, text, operands, scalars, types, *how = inputs
    tensors = (a, *b, *operands)
    call = Call(text, tuple(scalars), types_read(types), How(*how))
    save(ctx, call, len(b), tensors, output, [x.requires_grad for x in tensors])


def _backward_gemm(ctx: Any, upstream: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    a, *others = backward(ctx, upstream, ctx.needs)
    scalars: Any = None if ctx.call.scalars else []  # torch flattens lists: an empty one has no leaf
    return a, others[: ctx.parts], None, others[ctx.parts :], scalars, *[None] * (1 + _OPTIONS)


# --- batches ------------------------------------------------------------------------------------------------------


def _batched_mm(
    info: Any, in_dims: Any, a: Any, b: Any, out_dtype: Any = None, varying_rows: bool = False
) -> tuple[Any, Any]:
    """Return the result of the operator cutegemm::mm under torch.vmap, and the dimension of vmap's batch in it.

    info                            object of torch that has the length of vmap's batch
    in_dims                         dimension of vmap's batch in each argument; None if it is the same for all
    a, b, out_dtype, varying_rows   arguments of the operator
    """
    types = None if out_dtype is None else types_text(out_dtype)
    dims: Any = (in_dims[0], [in_dims[1]], None, [])
    how = How(varying_rows=varying_rows)
    results, _ = _batched_gemm(info, dims, a, [b], PLAIN, [], [], types, *how.options)
    return results[0], 0


def _batched_gemm(
    info: Any, in_dims: Any, a: Any, b: Any, text: str, operands: Any, scalars: Any, types: Any, *how: Any
) -> tuple[Any, Any]:
    """Return the results of the operator cutegemm::gemm under torch.vmap, and the dimension of vmap's batch in each.

    If all products have the same b, they are computed as one product with more rows; else as a batch.

    info                                        object of torch that has the length of vmap's batch
    in_dims                                     dimension of vmap's batch in each argument; None if it is the same for
                                                all
    a, b, text, operands, scalars, types, how   arguments of the operator
    """

    def multiply(a: torch.Tensor, b: Tensors, operands: Tensors, shape: Sequence[int]) -> tuple[Any, Any]:
        """Multiply tensors whose first dimension contains the batch of torch.vmap; return results with a batch axis 0.

        a, b, operands   factors and epilogue tensors of the operator cutegemm::gemm
        shape            extents that the first dimension of each result is split into, such as (vmap batch, rows)
        returns          the results, and for each result the axis of vmap's batch, 0
        """
        if text == PLAIN and len(b) == 1 and how == AS_CHOSEN.options:
            results = [torch.ops.cutegemm.mm(a, b[0], types_read(types))]
        else:
            results = torch.ops.cutegemm.gemm(a, list(b), text, list(operands), list(scalars), types, *how)
        return [each.unflatten(0, tuple(shape)) for each in results], [0] * len(results)

    size, a_dim = info.batch_size, in_dims[0]
    b_dims, operand_dims = _per_tensor(in_dims[1], b), _per_tensor(in_dims[3], operands)
    rank = a.dim() - (a_dim is not None)
    rows = a.movedim(a_dim, 0) if a_dim is not None else a.expand(size, *a.shape)
    shares_b = a_dim is not None and rank == 2 and all(dim is None for dim in b_dims)
    reduces_rows = any(isinstance(each, Reduction) and "m" in each.along for each in formula(text).results)
    shares_operands = all(dim is None and x.dim() < 2 for dim, x in zip(operand_dims, operands, strict=True))
    if shares_b and shares_operands and not reduces_rows:
        return multiply(rows.flatten(0, -2), b, operands, (size, rows.shape[1]))
    inner = () if rank == 2 else (rows.shape[1],)

    def stacked(x: torch.Tensor, dim: int | None, own: int) -> torch.Tensor:
        """Return a tensor whose first dimension joins vmap's batch and the tensor's own batch.

        x     the tensor
        dim   dimension of vmap's batch; None: the tensor has none and is expanded
        own   rank of the result
        """
        x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        while x.dim() < own + 1:
            x = x.unsqueeze(1)
        return x.expand(size, *inner, *x.shape[-2:]).flatten(0, -3)

    b = [stacked(x, dim, rank) for x, dim in zip(b, b_dims, strict=True)]
    operands = [stacked(x, dim, rank) for x, dim in zip(operands, operand_dims, strict=True)]
    return multiply(rows.flatten(0, -3), b, operands, (size, *inner))


def _per_tensor(dims: Any, tensors: Tensors) -> Sequence[int | None]:
    return list(dims) if isinstance(dims, (list, tuple)) else [dims] * len(tensors)


# --- floating-point operations ------------------------------------------------------------------------------------


def _flops_mm(a: Shape, b: Shape, *_: Any, **__: Any) -> int:
    """Return 2 M N K, times the batch length, of a @ b: the operations that torch's counter adds for cutegemm::mm.

    a, b   shapes, M x K and K x N, with L in front for a batch. Epilogues do not count

    >>> _flops_mm((4, 8), (8, 3)), _flops_mm((2, 4, 8), (2, 8, 3))
    (192, 384)
    """
    return 2 * prod(a) * b[-1]


def _flops_gemm(a: Shape, b: Sequence[Shape], *_: Any, **__: Any) -> int:
    """Return 2 M N K of a @ b: the floating-point operations that torch's counter adds for cutegemm::gemm.

    a   shape M x K
    b   shapes K x N_i of the matrices that stand side by side as the columns of B; N is the sum of N_i
    """
    return 2 * prod(a) * sum(part[-1] for part in b)


def _flops_mm_parts(a: Shape, b: Sequence[Shape], *_: Any, **__: Any) -> int:
    """Return 2 M N K of a @ b^T: the floating-point operations that torch's counter adds for cutegemm::mm_parts.

    a   shape M x K
    b   shapes N x K_i of the matrices that stand side by side as the columns of b; K is the sum of K_i
    """
    return 2 * prod(a) * b[0][-2]


def _no_flops(*_: Any, **__: Any) -> int:
    """Return 0, the operations that torch's counter adds for cutegemm::quantize, because it multiplies no matrices."""
    return 0


def define(
    name: str, schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], flops: Callable[..., int]
) -> None:
    """Define an operator of torch.library, and register its kernel, its fake and its flop count.

    name     name with the namespace, such as "cutegemm::mm"
    schema   arguments and results, in torch's language of schemas
    kernel   function that computes it, for tensors on a CPU and on a GPU
    fake     function that returns results with only shapes and types, for graphs
    flops    function that returns the number of floating-point operations, from the shapes of the arguments
    """
    torch.library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(name, ("cpu", "cuda"), kernel)
    torch.library.register_fake(name, fake)
    register_flop_formula(getattr(torch.ops.cutegemm, name.partition("::")[2]))(flops)


def _define() -> None:
    """Define the operators of torch.library, and register their kernels, shapes, gradients, batches and flop counts."""
    functions: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., int]]] = {
        "cutegemm::mm": (_mm, _fake_mm, _flops_mm),
        "cutegemm::mm_out": (_mm_out, _fake_out, _flops_mm),
        "cutegemm::gemm": (_gemm, _fake_gemm, _flops_gemm),
        "cutegemm::gemm_out": (_gemm_out, _fake_out, _flops_gemm),
        "cutegemm::scaled_gemm": (_scaled_gemm, _fake_scaled_gemm, _flops_mm),
        "cutegemm::quantize": (quantized, _fake_quantize, _no_flops),
        "cutegemm::mm_parts": (_mm_parts, _fake_mm_parts, _flops_mm_parts),
        "cutegemm::gemm_dgated": (_dgated, _fake_dgated, _flops_mm),
    }
    for name, (kernel, fake, flops) in functions.items():
        define(name, SCHEMAS[name], kernel, fake, flops)
    torch.library.register_autograd("cutegemm::mm", _backward_mm, setup_context=_save_mm)
    torch.library.register_autograd("cutegemm::gemm", _backward_gemm, setup_context=_save_gemm)
    torch.library.register_vmap("cutegemm::mm", _batched_mm)
    torch.library.register_vmap("cutegemm::gemm", _batched_gemm)


_define()
