"""The operators of torch.library, which graphs of torch.compile and torch.export hold, and transformations see.

| operator               | gives                                                                                     |
|------------------------|-------------------------------------------------------------------------------------------|
| `cutegemm::mm`         | a @ b, of matrices or of batches                                                          |
| `cutegemm::mm_out`     | the same into `out`                                                                       |
| `cutegemm::gemm`       | the results of an epilogue of a @ b; the epilogue and types as `text`, b in parts         |
| `cutegemm::gemm_out`   | the same into `out`: D alone                                                              |
| `cutegemm::mm_parts`   | a @ b^T, b in parts side by side: the gradient by `a`; it records no gradients            |
| `cutegemm::gemm_dgated`| the backward pass of a gated activation; it records no gradients                          |

Each has a kernel for CUDA and for CPU tensors, a fake from the function that allocates, and a formula that counts its
operations. `mm` and `gemm` have derivatives and a rule for vmap: a batch of products with one b is one product with
more rows; other batches are batches of `gemm`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cutegemm.run.calls import How
from cutegemm.torch.batches import batched_gemm, batched_mm
from cutegemm.torch.flops import register_flops
from cutegemm.torch.gradients import Call
from cutegemm.torch.launch import OF_LAYER, PLAIN, allocated, compute, dgated_of, joined
from cutegemm.torch.product import backward, keep
from cutegemm.torch.text import types_read

# Of `gemm` no argument has a default: torch leaves those out that equal it, and then takes the gradients of a call with
# lists of tensors for too many.
_PRODUCT = "Tensor a, Tensor[] b, str epilogue, Tensor[] operands, float[] scalars"
_HOW = "str? plan, str accumulate, bool allow_tf32, bool varying_rows, bool tune"
_OPTIONS = len(How().options)
SCHEMAS = {
    "cutegemm::mm": "(Tensor a, Tensor b, ScalarType? out_dtype=None, bool varying_rows=False) -> Tensor",
    "cutegemm::mm_out": "(Tensor a, Tensor b, Tensor(a!) out) -> ()",
    "cutegemm::gemm": f"({_PRODUCT}, str? out_dtype, {_HOW}) -> Tensor[]",
    "cutegemm::gemm_out": f"({_PRODUCT}, Tensor(a!) out, {_HOW}) -> ()",
    "cutegemm::mm_parts": "(Tensor a, Tensor[] b, ScalarType? out_dtype=None) -> Tensor",
    "cutegemm::gemm_dgated": "(Tensor a, Tensor b, Tensor preact, str activation, bool varying_rows=False) "
    "-> (Tensor, Tensor)",
}


def _mm(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, varying_rows: bool = False
) -> torch.Tensor:
    return compute(a, (b,), PLAIN, out_dtype=out_dtype, how=How(varying_rows=varying_rows))[0]


def _mm_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    compute(a, (b,), PLAIN, outs=(out,))


def _gemm(*given: Any) -> list[torch.Tensor]:
    """given   as in the schema, which ends with the types of the results and the fields of a `How`"""
    *product, types = given[:-_OPTIONS]
    run: Callable[..., list[torch.Tensor]] = compute
    return run(*product, types_read(types), how=How(*given[-_OPTIONS:]))


def _gemm_out(*given: Any) -> None:
    *product, out = given[:-_OPTIONS]
    run: Callable[..., list[torch.Tensor]] = compute
    run(*product, how=How(*given[-_OPTIONS:]), outs=(out,))


def _mm_parts(
    a: torch.Tensor, b: Sequence[torch.Tensor], out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    return compute(a, (joined(b).mT,), PLAIN, out_dtype=out_dtype, how=OF_LAYER)[0]


def _fake_mm_parts(
    a: torch.Tensor, b: Sequence[torch.Tensor], out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    return allocated(a, (b[0].mT,), PLAIN, out_dtype)[0]


def _dgated(
    a: torch.Tensor, b: torch.Tensor, preact: torch.Tensor, activation: str, varying_rows: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return dgated_of(a, b, preact, activation, how=How(varying_rows=varying_rows))


def _fake_dgated(
    a: torch.Tensor, b: torch.Tensor, preact: torch.Tensor, activation: str, varying_rows: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    (hidden,) = allocated(a, (b,), PLAIN, None)
    return hidden.new_empty(preact.shape), hidden


def _fake_mm(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, varying_rows: bool = False
) -> torch.Tensor:
    return allocated(a, (b,), PLAIN, out_dtype)[0]


def _fake_gemm(*given: Any) -> list[torch.Tensor]:
    a, b, epilogue, _, _, types, *_ = given
    return allocated(a, b, epilogue, types_read(types))


def _keep_mm(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, out_dtype, varying_rows = inputs
    how = How(varying_rows=varying_rows)
    keep(ctx, Call(PLAIN, (), out_dtype, how), 1, (a, b), (output,), _wanting(a, b))


def _backward_mm(ctx: Any, upstream: torch.Tensor | None) -> tuple[Any, ...]:
    return (*backward(ctx, (upstream,), ctx.needs), None, None)


def _keep_gemm(ctx: Any, inputs: tuple[Any, ...], output: Sequence[torch.Tensor]) -> None:
    a, b, epilogue, operands, scalars, types, *how = inputs
    tensors = (a, *b, *operands)
    keep(
        ctx,
        Call(epilogue, tuple(scalars), types_read(types), How(*how)),
        len(b),
        tensors,
        output,
        _wanting(*tensors),
    )


def _backward_gemm(ctx: Any, upstream: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    a, *others = backward(ctx, upstream, ctx.needs)
    of_scalars: Any = None if ctx.call.scalars else []  # as torch flattens lists: an empty one has no leaf
    return a, others[: ctx.parts], None, others[ctx.parts :], of_scalars, *[None] * (1 + _OPTIONS)


def _wanting(*tensors: torch.Tensor) -> tuple[bool, ...]:
    return tuple([x.requires_grad for x in tensors])


def _define() -> None:
    for name, schema in SCHEMAS.items():
        torch.library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
    kernels = {
        "cutegemm::mm": _mm,
        "cutegemm::mm_out": _mm_out,
        "cutegemm::gemm": _gemm,
        "cutegemm::gemm_out": _gemm_out,
        "cutegemm::mm_parts": _mm_parts,
        "cutegemm::gemm_dgated": _dgated,
    }
    for name, kernel in kernels.items():
        torch.library.impl(name, ("cpu", "cuda"), kernel)
    torch.library.register_fake("cutegemm::mm", _fake_mm)
    torch.library.register_fake("cutegemm::gemm", _fake_gemm)
    torch.library.register_fake("cutegemm::mm_parts", _fake_mm_parts)
    torch.library.register_fake("cutegemm::gemm_dgated", _fake_dgated)
    for name in ("cutegemm::mm_out", "cutegemm::gemm_out"):
        torch.library.register_fake(name, lambda *given, **named: None)
    torch.library.register_autograd("cutegemm::mm", _backward_mm, setup_context=_keep_mm)
    torch.library.register_autograd("cutegemm::gemm", _backward_gemm, setup_context=_keep_gemm)
    torch.library.register_vmap("cutegemm::mm", batched_mm)
    torch.library.register_vmap("cutegemm::gemm", batched_gemm)
    register_flops(SCHEMAS)


_define()
