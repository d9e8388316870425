"""Products as torch and quack name them, with activations, in one kernel each, and with gradients.

Each is computed by `cutegemm.gemm` on CUDA tensors. On tensors of a CPU torch computes the same: sums in float32, the
epilogue on them, one rounding; so that a model can be tested where there is no GPU. All work under autograd,
torch.compile, torch.export and torch.vmap, and with torch.autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch

from cutegemm.errors import CutegemmError, UnsupportedError
from cutegemm.run.calls import Calls
from cutegemm.run.checks import wrong_numbers
from cutegemm.run.gemm import gemm, layer
from cutegemm.torch import library as library  # the operators are registered by it
from cutegemm.torch.activations import (
    ACTIVATIONS,
    GATED,
    SCALE,
    activated,
    dactivated,
    dgated,
    gated,
    wrong_activation,
)
from cutegemm.torch.copies import is_loadable, loadable
from cutegemm.torch.gradients import needed, with_kept
from cutegemm.torch.halves import halves_of
from cutegemm.torch.launch import AS_CHOSEN, LINEAR, OF_LAYER, SCALED, Outs, result_dtype
from cutegemm.torch.product import layered, product
from cutegemm.torch.pullback import ACC
from cutegemm.torch.refusals import (
    refuse,
    wrong_factors,
    wrong_gradients,
    wrong_operand,
    wrong_operand_dtypes,
    wrong_out_dtype,
    wrong_product,
    wrong_tensors,
)
from cutegemm.torch.route import Route, as_autocast, is_direct, reshaped, route_of, rows_of
from cutegemm.torch.text import OutDtype, formula

_layers = Calls()  # what computes a layer, by the signature of its arguments


def mm(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a @ b of two matrices, as torch.mm.

    a, b       M x K and K x N, of one type, or of two types of float8, that `cutegemm.gemm` multiplies
    out_dtype  type of the result; None is the first type that `gemm` gives for a's type
    out        tensor that the result is written to; no gradients are recorded then
    raises     UnsupportedError with every rule that is broken

    >>> a, b = torch.arange(6.0).view(2, 3), torch.ones(3, 2)
    >>> mm(a, b)
    tensor([[ 3.,  3.],
            [12., 12.]])
    """
    if out is None:
        a, b = as_autocast(a, b)
    if out is None and is_direct(a, b):
        try:
            return _matrices(a, b, out_dtype)
        except (UnsupportedError, RuntimeError):
            _check_matrices("mm", a, b, 2, out_dtype, out)
            if is_loadable(a) and is_loadable(b):
                raise
    _check_matrices("mm", a, b, 2, out_dtype, out)
    return _multiplied(a, b, out_dtype, out)


def _matrices(a: Any, b: Any, out_dtype: torch.dtype | None) -> torch.Tensor:
    """Return `mm` of plain CUDA tensors without gradients."""
    if a.dim() != 2 or b.dim() != 2:
        raise UnsupportedError("mm: two matrices are expected.")
    return gemm(a, b, out_dtype=out_dtype)


def bmm(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a @ b of batches of matrices, as torch.bmm. A batch of 1, or a single matrix, is a factor of each product.

    a, b       L x M x K and L x K x N
    out_dtype, out, raises   as of `mm`

    >>> bmm(torch.ones(4, 2, 3), torch.ones(3, 5)).shape
    torch.Size([4, 2, 5])
    """
    if out is None:
        a, b = as_autocast(a, b)
    _check_matrices("bmm", a, b, 3, out_dtype, out)
    if b.dim() == 2 and out is None:
        return reshaped(_multiplied(rows_of(a), b, out_dtype, None), (*a.shape[:-1], b.shape[-1]))
    length = _length(a, b)
    return _multiplied(a.expand(length, *a.shape[-2:]), b.expand(length, *b.shape[-2:]), out_dtype, out)


def addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return beta * input + alpha * (mat1 @ mat2), as torch.addmm.

    As in BLAS, what is multiplied by 0 is not read: input if beta is 0, mat1 and mat2 if alpha is 0. NaN and infinity
    in them do not count.

    input        (N,), (M, 1), (M, N) or one element: what broadcasts to M x N
    mat1, mat2   M x K and K x N
    beta, alpha  real numbers
    out_dtype, out, raises   as of `mm`

    >>> addmm(torch.tensor([1.0, 2.0]), torch.ones(1, 3), torch.ones(3, 2), beta=10)
    tensor([[13., 23.]])
    """
    if out is None:
        mat1, mat2, input = as_autocast(mat1, mat2, input)
    given = {"input": input, "mat1": mat1, "mat2": mat2}
    rules = wrong_tensors(given)
    if not rules:
        rules = wrong_product(("mat1", "mat2"), mat1, mat2, 2, out_dtype)
        if mat1.dim() == mat2.dim() == 2:
            shape = (mat1.shape[0], mat2.shape[1])
            rules += wrong_operand("input", input, shape) + _wrong_out(out, shape, mat1)
        rules += wrong_operand_dtypes(mat1, input=input)
        rules += wrong_gradients(given, out)
    rules += wrong_numbers({"beta": beta, "alpha": alpha})
    refuse("addmm", given, rules)
    operands, numbers, text = (input,), (float(alpha), float(beta)), LINEAR
    if beta == 0:
        operands, numbers, text = (), (float(alpha),), SCALED  # type: ignore[assignment]
    if out is not None:
        return product(mat1, (mat2,), text, operands, numbers, outs=(out,))[0]
    found = product(mat1, (mat2,), text, operands, numbers, out_dtype)[0]
    if beta == 0 and input.requires_grad and torch.is_grad_enabled():
        unread = torch.where(input.new_zeros((), dtype=torch.bool), input, 0)  # whose gradient is 0
        return found + unread.to(found.dtype)
    return found


def linear(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None
) -> torch.Tensor:
    """Return act(x @ w.T + bias), as torch.nn.functional.linear.

    x            (..., K)
    w            N x K
    bias         (N,), of a floating type, which may be another one than that of x
    activation   None, "relu", "relu_sq", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"
    returns      (..., N)
    raises       UnsupportedError with every rule that is broken

    >>> x, w, bias = torch.tensor([[[1.0, 2.0]]]), torch.eye(2), torch.tensor([0.0, -3.0])
    >>> linear(x, w, bias, "relu")
    tensor([[[1., 0.]]])
    """
    if is_direct(x, w, bias):
        try:
            key = (
                x.dtype, x.shape, x.stride(), (x.data_ptr() or 0.5) % 16, x.get_device(), x.is_neg(),
                w.dtype, w.shape, w.stride(), (w.data_ptr() or 0.5) % 16, w.get_device(), w.is_neg(), activation,
                bias if bias is None else (
                    bias.dtype, bias.shape, bias.stride(), (bias.data_ptr() or 0.5) % 16, bias.get_device(),
                    bias.is_neg(),
                ),
            )  # fmt: skip
            call = _layers.found.get(key)
            if call is None:
                _check_linear(x, w, bias, activation)
                call = _layer(x, w, bias, activation)
                _layers.keep(key, call)
            return call(x, w, bias)
        except CutegemmError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:
            _check_linear(x, w, bias, activation)
            raise CutegemmError(f"linear of {tuple(x.shape)} by {tuple(w.shape)}: {error}") from error
    x, w, bias = as_autocast(x, w, bias)
    _check_linear(x, w, bias, activation)
    flat = rows_of(x)
    found = layered(flat, (w.t(),), bias, activation)[0]
    if x.dim() == 2:
        return found
    is_read = not torch.compiler.is_compiling() and _is_read(activation, bias is not None)
    return reshaped(found, (*x.shape[:-1], w.shape[0]), is_read)


@cache
def _is_read(activation: str | None, has_bias: bool) -> bool:
    """Whether the backward pass of `linear` reads its result, as that of relu does."""
    names = ("bias",) if has_bias else ()
    text = with_kept(activated(activation, names), len(names))
    return 0 in needed(text, frozenset([ACC, *names])).results


def _layer(x: Any, w: Any, bias: Any, activation: str | None) -> Callable[..., Any]:
    """Return what computes `linear` of plain CUDA tensors like these, without gradients: (x, w, bias) -> d."""
    flat = rows_of(x)
    if not all(is_loadable(each) for each in (flat, w, bias) if each is not None):
        return partial(_copied, activation=activation)
    epilogue = None if bias is None and activation is None else _function(activation, bias is not None)
    call = layer(flat, w, bias, epilogue)
    if flat is x:
        return call
    of_x, of_d = tuple(flat.shape), (*x.shape[:-1], w.shape[0])
    if flat.data_ptr() == x.data_ptr():
        # Extents one by one: torch reads them sooner than a tuple.
        return lambda x, w, bias: call(x.view(*of_x), w, bias).resize_(*of_d)
    return lambda x, w, bias: call(x.reshape(of_x), w, bias).resize_(of_d)


def _copied(x: Any, w: Any, bias: Any, activation: str | None) -> torch.Tensor:
    """Return `linear` of tensors some of which are to be copied first."""
    flat, columns, others = loadable(rows_of(x), w.t(), [] if bias is None else [bias], ("x", "w", "bias"))
    found = linear(flat, columns.t(), others[0] if others else None, activation)
    return found if x.dim() == 2 else reshaped(found, (*x.shape[:-1], w.shape[0]))


@cache
def _function(activation: str | None, has_bias: bool) -> Any:
    """One object for one epilogue."""
    return formula(activated(activation, ("bias",) if has_bias else ())).function


def gemm_act(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    activation: str | None = None,
    store_preact: bool = True,
    out_dtype: torch.dtype | None = None,
    *,
    alpha: float | torch.Tensor = 1.0,
    postact_dtype: torch.dtype | None = None,
    preact_out: torch.Tensor | None = None,
    postact_out: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return preact = alpha * (a @ b) + bias + c and postact = act(preact), by one kernel.

    a, b            M x K and K x N, or batches of them
    bias            (N,)
    c               M x N, or what broadcasts to it
    activation      as of `linear`
    store_preact    whether preact is wanted; None is returned for it otherwise, unless `preact_out` is given
    out_dtype       type of preact
    alpha           a number, or a tensor of one element
    postact_dtype   type of postact; None for the type of preact
    preact_out, postact_out   tensors that the results are written to; no gradients are recorded then
    returns         preact, postact
    raises          UnsupportedError with every rule that is broken

    >>> preact, postact = gemm_act(torch.tensor([[1.0, -2.0]]), torch.eye(2), activation="relu")
    >>> preact, postact
    (tensor([[ 1., -2.]]), tensor([[1., 0.]]))
    """
    a, b, bias, c = as_autocast(a, b, bias, c)
    a, b = _of_one_length(a, b)
    given = {"a": a, "b": b, "bias": bias, "c": c, **_if_tensor("alpha", alpha)}
    rules = wrong_tensors(given, ("bias", "c")) or [
        *wrong_activation(activation, ACTIVATIONS),
        *wrong_product(("a", "b"), a, b, a.dim(), out_dtype),
        *wrong_operand("bias", bias, (*a.shape[:-1], b.shape[-1])),
        *wrong_operand("c", c, (*a.shape[:-1], b.shape[-1])),
        *wrong_operand_dtypes(a, bias=bias, c=c),
        *_wrong_alpha(alpha),
    ]
    if not rules and _is_any(postact_dtype, preact_out, postact_out):
        shape = (*a.shape[:-1], b.shape[-1])
        memory = {"preact_out": (preact_out, shape), "postact_out": (postact_out, shape)}
        rules = _wrong_results(a, given, postact_dtype, memory)
    refuse("gemm_act", given, rules)
    names, operands, scalars = _addends(alpha, bias=bias, c=c)
    keeps = store_preact or preact_out is not None
    types, outs = _of_activation(a, keeps, out_dtype, postact_dtype, preact_out, postact_out)
    found = product(a, (b,), activated(activation, names, keeps), operands, scalars, types, outs=outs)
    return (found[1] if keeps else None), found[0]


def gemm_gated(
    a: torch.Tensor,
    b: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    bias: torch.Tensor | None = None,
    activation: str = "swiglu",
    store_preact: bool = True,
    interleaved: bool = False,
    out_dtype: torch.dtype | None = None,
    varying_rows: bool = False,
    *,
    c: torch.Tensor | None = None,
    alpha: float | torch.Tensor = 1.0,
    postact_dtype: torch.dtype | None = None,
    preact_out: torch.Tensor | None = None,
    postact_out: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return preact = alpha * (a @ b) + bias + c, and postact = act(gate) * up of its columns, by one kernel.

    a, b           M x K and K x N, or batches of them. b may be a pair (of gate, of up), each K x N/2: two views of one
                   weight that lie side by side in memory are read as they are, others are copied together first
    bias           (N,)
    activation     "swiglu", "geglu", "geglu_tanh", "reglu" or "glu": silu, gelu, gelu_tanh, relu, sigmoid of the gate;
                   "swiglu_oai" of gpt-oss: see `cutegemm.epilogue.swiglu_oai`
    interleaved    whether gate and up are columns 2j and 2j + 1; else j and j + N/2
    varying_rows   whether a has other numbers of rows in other calls: see `cutegemm.gemm`
    c              M x N, or what broadcasts to it
    store_preact, out_dtype, alpha, postact_dtype, preact_out, postact_out   as of `gemm_act`
    returns        preact, M x N, and postact, M x N/2
    raises         UnsupportedError with every rule that is broken

    >>> preact, postact = gemm_gated(torch.tensor([[1.0, 3.0]]), torch.eye(2), activation="reglu")
    >>> postact
    tensor([[3.]])
    """
    parts = tuple(b) if isinstance(b, (tuple, list)) else (b,)
    a, bias, c, *parts = as_autocast(a, bias, c, *parts)  # type: ignore[assignment]
    a, *parts = _of_one_length(a, *parts)  # type: ignore[assignment]
    names = ("b",) if len(parts) == 1 else ("b[0]", "b[1]")
    weights = dict(zip(names, parts, strict=False))
    given = {"a": a, **weights, "bias": bias, "c": c, **_if_tensor("alpha", alpha)}
    rules = wrong_tensors(given, ("bias", "c")) or [
        *wrong_activation(activation, GATED),
        *[
            rule
            for name, x in zip(names, parts, strict=True)
            for rule in wrong_product(("a", name), a, x, a.dim(), out_dtype)
        ],
        *_wrong_alpha(alpha),
    ]
    n = sum(x.shape[-1] for x in parts) if not rules else 0
    if not rules and n % 2:
        rules.append(f"b has {n} columns; an even number of them is expected, of gate and up.")
    if not rules and len(parts) == 2 and (interleaved or parts[0].shape != parts[1].shape):
        rules.append(
            f"b is a pair of {tuple(parts[0].shape)} and {tuple(parts[1].shape)}, interleaved = {interleaved}; two "
            "halves of one shape are expected. Pass one matrix if they are interleaved."
        )
    if not rules:
        rows = a.shape[:-1]
        rules = [
            *wrong_operand("bias", bias, (*rows, n)),
            *wrong_operand("c", c, (*rows, n)),
            *wrong_operand_dtypes(a, bias=bias, c=c),
        ]
        if _is_any(postact_dtype, preact_out, postact_out):
            memory = {"preact_out": (preact_out, (*rows, n)), "postact_out": (postact_out, (*rows, n // 2))}
            rules += _wrong_results(a, given, postact_dtype, memory)
    refuse("gemm_gated", given, rules)
    names, operands, scalars = _addends(alpha, bias=bias, c=c)  # type: ignore[assignment]
    keeps = store_preact or preact_out is not None
    text = gated(activation, names, interleaved, keeps)
    types, outs = _of_activation(a, keeps, out_dtype, postact_dtype, preact_out, postact_out)
    how = OF_LAYER if varying_rows else AS_CHOSEN
    found = product(a, tuple(parts), text, operands, scalars, types, how, outs)
    return (found[1] if keeps else None), found[0]


def gemm_dact(
    a: torch.Tensor,
    b: torch.Tensor,
    preact: torch.Tensor,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    postact_dtype: torch.dtype | None = None,
    dx_out: torch.Tensor | None = None,
    postact_out: torch.Tensor | None = None,
    colvec_scale: torch.Tensor | None = None,
    colvec_reduce: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Return dx = (a @ b) * act'(preact) and postact = act(preact), by one kernel: the way back through `gemm_act`.

    a, b            M x K and K x N: the gradient of what follows, and the transposed weight of it
    preact          M x N, of `gemm_act`
    activation      as of `linear`
    out_dtype       type of dx
    postact_dtype   type of postact; None for the type of dx
    dx_out, postact_out   tensors that the results are written to; no gradients are recorded then
    colvec_scale    (M,) or (M, 1): multiplies the rows of dx and of postact, as a router's weights of a mixture of
                    experts do
    colvec_reduce   whether the row sums of (a @ b) * act(preact), the gradient of `colvec_scale`, are a third result
    returns         dx, the gradient of preact, and postact, both M x N; and the row sums, (M,) of float32
    raises          UnsupportedError with every rule that is broken

    >>> dx, postact = gemm_dact(torch.ones(1, 1), torch.ones(1, 2), torch.tensor([[-1.0, 2.0]]), "relu")
    >>> dx, postact
    (tensor([[0., 1.]]), tensor([[0., 2.]]))
    """
    a, b, preact = as_autocast(a, b, preact)
    a, b = _of_one_length(a, b)
    given = {"a": a, "b": b, "preact": preact, "colvec_scale": colvec_scale}
    rules = wrong_tensors(given, ("colvec_scale",)) or [
        *wrong_activation(activation, ACTIVATIONS),
        *wrong_product(("a", "b"), a, b, a.dim(), out_dtype),
        *wrong_operand("preact", preact, (*a.shape[:-1], b.shape[-1])),
        *wrong_operand_dtypes(a, preact=preact, colvec_scale=colvec_scale),
        *_wrong_column("colvec_scale", colvec_scale, a.shape[:-1]),
    ]
    if not rules and _is_any(postact_dtype, dx_out, postact_out):
        shape = (*a.shape[:-1], b.shape[-1])
        memory = {"dx_out": (dx_out, shape), "postact_out": (postact_out, shape)}
        rules = _wrong_results(a, given, postact_dtype, memory)
    refuse("gemm_dact", given, rules)
    text = dactivated(activation, colvec_scale is not None, colvec_reduce)
    operands = (preact, *_columns(colvec_scale, a.shape[:-1]))
    outs = (dx_out, postact_out, *[None] * colvec_reduce)
    types = out_dtype if postact_dtype is None else (out_dtype, postact_dtype)
    found = product(a, (b,), text, operands, (), types, outs=outs)
    return tuple(found[: len(outs)])


def gemm_dgated(
    a: torch.Tensor,
    b: torch.Tensor,
    preact: torch.Tensor,
    activation: str = "swiglu",
    interleaved: bool = False,
    out_dtype: torch.dtype | None = None,
    *,
    postact_dtype: torch.dtype | None = None,
    dx_out: torch.Tensor | None = None,
    postact_out: torch.Tensor | None = None,
    colvec_scale: torch.Tensor | None = None,
    colvec_reduce: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Return dx, the gradient of preact, and postact, by one kernel: the way back through `gemm_gated`.

    a, b          M x K and K x N: the gradient of what follows, and the transposed weight of it
    preact        M x 2N, of `gemm_gated`
    activation    as of `gemm_gated`, and `interleaved`
    out_dtype, postact_dtype, dx_out, postact_out, colvec_scale, colvec_reduce   as of `gemm_dact`
    returns       dx, M x 2N, in the order of preact, and postact, M x N; and the row sums, (M,) of float32
    raises        UnsupportedError with every rule that is broken

    >>> dx, postact = gemm_dgated(torch.ones(1, 1), torch.ones(1, 1), torch.tensor([[2.0, 5.0]]), "reglu")
    >>> dx, postact
    (tensor([[5., 2.]]), tensor([[10.]]))
    """
    a, b, preact = as_autocast(a, b, preact)
    a, b = _of_one_length(a, b)
    given = {"a": a, "b": b, "preact": preact, "colvec_scale": colvec_scale}
    rules = wrong_tensors(given, ("colvec_scale",)) or [
        *wrong_activation(activation, GATED),
        *wrong_product(("a", "b"), a, b, a.dim(), out_dtype),
        *_wrong_column("colvec_scale", colvec_scale, a.shape[:-1]),
    ]
    if not rules:
        shape, expected = (*a.shape[:-1], b.shape[-1]), (*a.shape[:-1], 2 * b.shape[-1])
        if tuple(preact.shape) != expected:
            rules.append(f"preact has shape {tuple(preact.shape)}; {expected} is expected, of gate and up.")
        rules += wrong_operand_dtypes(a, preact=preact, colvec_scale=colvec_scale)
        if _is_any(postact_dtype, dx_out, postact_out):
            memory = {"dx_out": (dx_out, expected), "postact_out": (postact_out, shape)}
            rules += _wrong_results(a, given, postact_dtype, memory)
    refuse("gemm_dgated", given, rules)
    n, scales = b.shape[-1], _columns(colvec_scale, a.shape[:-1])
    text = dgated(activation, colvec_scale is not None, colvec_reduce)
    operands = (*halves_of(preact, interleaved), *scales)
    types = out_dtype if postact_dtype is None else (out_dtype, out_dtype, postact_dtype)
    beside = (postact_out, *[None] * colvec_reduce)
    given_outs = [each for each in (dx_out, postact_out) if each is not None]
    if not interleaved and route_of(a, b, preact, *scales, *given_outs) is Route.DIRECT:
        # One kernel writes both gradients into the halves of dx
        dx = a.new_empty(preact.shape, dtype=result_dtype(a, out_dtype)) if dx_out is None else dx_out
        found = product(a, (b,), text, operands, (), types, outs=(*dx.split(n, -1), *beside))
        return (dx, *found[2:])
    dgate, dup, *others = product(a, (b,), text, operands, (), types, outs=(None, None, *beside))
    dx = reshaped(torch.stack([dgate, dup], -1), preact.shape) if interleaved else torch.cat([dgate, dup], -1)
    return (dx if dx_out is None else dx_out.copy_(dx), *others[: len(beside)])


def _multiplied(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None, out: torch.Tensor | None
) -> torch.Tensor:
    return product(a, (b,), out_dtype=out_dtype, outs=(out,))[0]


def _if_tensor(name: str, x: Any) -> dict[str, torch.Tensor]:
    return {name: x} if isinstance(x, torch.Tensor) else {}


def _addends(
    alpha: float | torch.Tensor, **given: torch.Tensor | None
) -> tuple[tuple[str, ...], tuple[torch.Tensor, ...], tuple[float, ...]]:
    """Return the names of an epilogue's operands, the tensors among them, and the numbers among them.

    given   what is added to the product, by name; None if it is not added
    """
    there = {name: x for name, x in given.items() if x is not None}
    if isinstance(alpha, torch.Tensor):
        return (*there, SCALE), (*there.values(), alpha), ()
    if alpha == 1:
        return tuple(there), tuple(there.values()), ()
    return (*there, SCALE), tuple(there.values()), (float(alpha),)


def _wrong_alpha(alpha: Any) -> list[str]:
    if isinstance(alpha, torch.Tensor):
        if alpha.numel() == 1 and alpha.dtype.is_floating_point:
            return []
        kind = str(alpha.dtype).removeprefix("torch.")
        return [
            f"alpha is of {kind} and has shape {tuple(alpha.shape)}; one floating-point number is expected."
        ]
    if isinstance(alpha, (int, float)) and not isinstance(alpha, bool):
        return []
    return [f"alpha = {alpha!r}; a number, or a tensor of one element, is expected."]


def _wrong_column(name: str, x: torch.Tensor | None, rows: Sequence[int]) -> list[str]:
    """Return why a tensor does not have one number for each row of D.

    rows   extents of a without K
    """
    shapes = [tuple(rows), (*rows, 1), *([(rows[-1],), (rows[-1], 1)] if len(rows) > 1 else [])]
    if x is None or tuple(x.shape) in shapes:
        return []
    return [
        f"{name} has shape {tuple(x.shape)}; {' or '.join(map(str, shapes))} is expected, one number for each row."
    ]


def _columns(x: torch.Tensor | None, rows: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Return a tensor with one number for each row of D as a column, as an operand of an epilogue; none for None."""
    if x is None:
        return ()
    return (x.unsqueeze(-1) if tuple(x.shape) in (tuple(rows), (rows[-1],)) else x,)


def _of_activation(
    a: torch.Tensor,
    keeps: bool,
    out_dtype: torch.dtype | None,
    postact_dtype: torch.dtype | None,
    preact_out: torch.Tensor | None,
    postact_out: torch.Tensor | None,
) -> tuple[OutDtype, Outs]:
    """Return types and memory of postact and, if it is kept, of preact, as `product` takes them."""
    if not keeps:
        return postact_dtype or out_dtype, (postact_out,)
    types = out_dtype if postact_dtype is None else (postact_dtype, result_dtype(a, out_dtype))
    return types, (postact_out, preact_out)


def _is_any(*given: Any) -> bool:
    """Return whether one of some arguments is given."""
    return any(each is not None for each in given)


def _wrong_results(
    a: torch.Tensor,
    given: Mapping[str, Any],
    postact_dtype: torch.dtype | None,
    memory: Mapping[str, tuple[Any, tuple[int, ...]]],
) -> list[str]:
    """Return what is wrong with types and memory of results.

    memory   tensors that are written to, with the shapes of the results, by the names of the arguments
    """
    rules = [rule.replace("out_dtype", "postact_dtype") for rule in wrong_out_dtype(a, postact_dtype)]
    for name, (out, shape) in memory.items():
        rules += _wrong_out(out, shape, a, name) or wrong_gradients(given, out, name)
    tensors = {name: out for name, (out, _) in memory.items() if isinstance(out, torch.Tensor)}
    if len(tensors) > 1 and len({out.data_ptr() for out in tensors.values() if out.numel()}) == 1:
        rules.append(f"{' and '.join(tensors)} begin at the same address; each needs memory of its own.")
    return rules


def _length(*matrices: torch.Tensor) -> int:
    """Of a batch; one of 1 is that of each product."""
    lengths = [x.shape[0] for x in matrices if x.dim() == 3]
    return next((length for length in lengths if length != 1), 1)


def _of_one_length(*matrices: Any) -> tuple[Any, ...]:
    """Matrices, and batches of 1, as batches as long as the others; as they are where these are of several lengths."""
    if any(not isinstance(x, torch.Tensor) or x.dim() not in (2, 3) for x in matrices):
        return matrices
    length = _length(*matrices)
    if all(x.dim() == 2 for x in matrices) or any(
        x.dim() == 3 and x.shape[0] not in (1, length) for x in matrices
    ):
        return matrices
    return tuple([x.expand(length, *x.shape[-2:]) for x in matrices])


def _check_matrices(
    called: str, a: Any, b: Any, rank: int, out_dtype: torch.dtype | None, out: torch.Tensor | None
) -> None:
    given = {"a": a, "b": b}
    rules = wrong_tensors(given)
    if not rules:
        rules = wrong_product(("a", "b"), a, b, rank, out_dtype)
        if not rules:
            length = [_length(a, b)] if rank == 3 else []
            rules = _wrong_out(out, (*length, a.shape[-2], b.shape[-1]), a)
            if rank == 3 and a.dim() == b.dim() == 2:
                rules.append("a and b are matrices, not batches: mm multiplies them.")
        rules += wrong_gradients(given, out)
    refuse(called, given, rules)


def _wrong_out(out: Any, shape: tuple[int, ...], a: torch.Tensor, name: str = "out") -> list[str]:
    if out is None:
        return []
    if not isinstance(out, torch.Tensor):
        return [f"{name} is a {type(out).__name__}; a torch tensor is expected."]
    if tuple(out.shape) != shape:
        return [f"{name} has shape {tuple(out.shape)}; {shape} is expected."]
    if out.device != a.device:
        return [f"{name} is on {out.device}, a on {a.device}; all must be on one device."]
    return [rule.replace("out_dtype = ", f"{name} is of ") for rule in wrong_out_dtype(a, out.dtype)]


def _check_linear(x: Any, w: Any, bias: Any, activation: Any) -> None:
    given = {"x": x, "w": w, "bias": bias}
    rules = wrong_tensors(given, ("bias",))
    if not rules:
        rules = wrong_activation(activation, ACTIVATIONS) + wrong_factors(("x", "w"), x, w)
        if w.dim() != 2 or x.dim() == 0:
            rules.append(
                f"x has shape {tuple(x.shape)}, w {tuple(w.shape)}; (..., K) and N x K are expected."
            )
        else:
            if x.shape[-1] != w.shape[1]:
                turned = " Pass w.t(), which fits." if x.shape[-1] == w.shape[0] else ""
                rules.append(f"x has rows of {x.shape[-1]}, w of {w.shape[1]}; both are K.{turned}")
            if bias is not None and tuple(bias.shape) != (w.shape[0],):
                rules.append(f"bias has shape {tuple(bias.shape)}; {(w.shape[0],)} is expected.")
        rules += wrong_operand_dtypes(x, bias=bias)
    refuse("linear", given, rules)
