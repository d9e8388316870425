"""Products by the names that torch and quack give them, each with its activation in one kernel, and with gradients.

`cutegemm.gemm` computes them on CUDA tensors. torch computes the same on CPU tensors, with a float32 accumulator and
one rounding, so that a model can be tested without a GPU. All work under autograd, torch.compile, torch.export,
torch.vmap and torch.autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from cutegemm.errors import CutegemmError, PendingError, UnsupportedError
from cutegemm.run.calls import ENTERED, Calls, How
from cutegemm.run.checks import wrong_numbers
from cutegemm.run.gemm import gemm, layer
from cutegemm.torch import checks
from cutegemm.torch import library as library  # registers the operators
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
from cutegemm.torch.autograd import layered, needed, product, with_saved
from cutegemm.torch.derivatives import ACC
from cutegemm.torch.dispatch import Route, as_autocast, is_direct, reshaped, route_of, rows_of
from cutegemm.torch.epilogue import LINEAR, SCALED, OutDtype, formula
from cutegemm.torch.launch import AS_CHOSEN, OF_LAYER, in_mode, is_loadable, loadable
from cutegemm.torch.reference import gate_and_up_of, result_dtype

_layers = Calls()  # functions that compute a layer, by the signature of its arguments
_gated_layers = Calls()  # functions that compute gate and up of an MLP


def mm(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a @ b of two matrices, as torch.mm.

    a, b        M x K and K x N, of one type that `cutegemm.gemm` multiplies, or of two float8 types
    out_dtype   torch dtype of the result; None for the default of `gemm` for the type of a
    out         M x N tensor that the result is written to. None for a new tensor. With `out`, no gradients are
                recorded
    raises      UnsupportedError with every rule that is violated

    >>> a, b = torch.arange(6.0).view(2, 3), torch.ones(3, 2)
    >>> mm(a, b)
    tensor([[ 3.,  3.],
            [12., 12.]])
    """
    if out is None:
        a, b = as_autocast(a, b)
        if is_direct(a, b) and a.dim() == b.dim() == 2:
            try:
                return gemm(a, b, out_dtype=out_dtype)
            except (UnsupportedError, RuntimeError):
                checks.refuse("mm", {"a": a, "b": b}, checks.wrong_matrices(a, b, 2, out_dtype, out))
                if is_loadable(a) and is_loadable(b):
                    raise
    checks.refuse("mm", {"a": a, "b": b}, checks.wrong_matrices(a, b, 2, out_dtype, out))
    return product(a, (b,), out_dtype=out_dtype, outs=(out,))[0]


def bmm(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a @ b of batches of matrices, as torch.bmm.

    a, b             L x M x K and L x K x N. A batch of 1, or a single matrix, is a factor of each product
    out_dtype        torch dtype of the result; None for the default of `gemm` for the type of a
    out              L x M x N tensor to write the result to, without gradients; None for a new tensor
    raises           UnsupportedError with every rule that is violated

    >>> bmm(torch.ones(4, 2, 3), torch.ones(3, 5)).shape
    torch.Size([4, 2, 5])
    """
    if out is None:
        a, b = as_autocast(a, b)
    checks.refuse("bmm", {"a": a, "b": b}, checks.wrong_matrices(a, b, 3, out_dtype, out))
    if b.dim() == 2 and out is None:
        return reshaped(product(rows_of(a), (b,), out_dtype=out_dtype)[0], (*a.shape[:-1], b.shape[-1]))
    length = checks.batch_length(a, b)
    a, b = a.expand(length, *a.shape[-2:]), b.expand(length, *b.shape[-2:])
    return product(a, (b,), out_dtype=out_dtype, outs=(out,))[0]


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

    As in BLAS, a tensor that is multiplied by 0 is not read: input if beta is 0, mat1 and mat2 if alpha is 0. So NaN or
    infinity in such a tensor does not reach the result.

    input         (N,), (M, 1), (M, N) or one element: a shape that broadcasts to M x N
    mat1, mat2    M x K and K x N
    beta, alpha   real numbers
    out_dtype     torch dtype of the result; None for the default of `gemm` for the type of mat1
    out           M x N tensor to write the result to, without gradients; None for a new tensor
    raises        UnsupportedError with every rule that is violated

    >>> addmm(torch.tensor([1.0, 2.0]), torch.ones(1, 3), torch.ones(3, 2), beta=10)
    tensor([[13., 23.]])
    """
    if out is None:
        mat1, mat2, input = as_autocast(mat1, mat2, input)
    tensors = {"input": input, "mat1": mat1, "mat2": mat2}
    rules = checks.wrong_tensors(tensors)
    if not rules:
        rules = checks.wrong_product(("mat1", "mat2"), mat1, mat2, 2, out_dtype)
        if mat1.dim() == mat2.dim() == 2:
            shape = (mat1.shape[0], mat2.shape[1])
            rules += checks.wrong_operand("input", input, shape) + checks.wrong_out(out, shape, mat1)
        rules += checks.wrong_operand_dtypes(mat1, input=input)
        rules += checks.wrong_gradients(tensors, out)
    rules += wrong_numbers({"beta": beta, "alpha": alpha})
    checks.refuse("addmm", tensors, rules)
    if beta != 0:
        factors = (float(alpha), float(beta))
        return product(mat1, (mat2,), LINEAR, (input,), factors, out_dtype, outs=(out,))[0]
    result = product(mat1, (mat2,), SCALED, (), (float(alpha),), out_dtype, outs=(out,))[0]
    if out is None and input.requires_grad and torch.is_grad_enabled():
        zero = torch.where(input.new_zeros((), dtype=torch.bool), input, 0)  # its gradient by input is 0
        return result + zero.to(result.dtype)
    return result


def linear(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    batch_invariant: bool | None = None,
) -> torch.Tensor:
    """Return act(x @ w.T + bias), as torch.nn.functional.linear with an activation in the same kernel.

    x                 (..., K)
    w                 N x K
    bias              (N,), of a floating type, which may differ from the type of x; None for no bias
    activation        None, "relu", "relu_sq", "gelu", "gelu_tanh", "silu", "sigmoid" or "tanh"
    batch_invariant   True if each row must have the same bits in every batch; None: True inside of the context
                      `cutegemm.batch_invariant()`
    returns           (..., N)
    raises            UnsupportedError with every rule that is violated

    >>> x, w, bias = torch.tensor([[[1.0, 2.0]]]), torch.eye(2), torch.tensor([0.0, -3.0])
    >>> linear(x, w, bias, "relu")
    tensor([[[1., 0.]]])
    """
    if batch_invariant is None:
        batch_invariant = bool(ENTERED)
    if is_direct(x, w, bias):
        try:
            key = _signature_of_layer(x, w, bias, activation, batch_invariant)
            call = _layers.found.get(key)
            if call is None:
                _check_linear(x, w, bias, activation)
                call = _layer(x, w, bias, activation, batch_invariant)
                _layers.keep(key, call)
            return call(x, w, bias)
        except PendingError:  # the call below computes it by torch
            pass
        except CutegemmError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:
            _check_linear(x, w, bias, activation)
            raise CutegemmError(f"linear of {tuple(x.shape)} by {tuple(w.shape)}: {error}") from error
    x, w, bias = as_autocast(x, w, bias)
    _check_linear(x, w, bias, activation)
    result = layered(rows_of(x), (w.t(),), bias, activation, how=in_mode(OF_LAYER, batch_invariant))[0]
    if x.dim() == 2:
        return result
    is_read = not torch.compiler.is_compiling() and _is_read(activation, bias is not None)
    return reshaped(result, (*x.shape[:-1], w.shape[0]), is_read)


def gated_linear(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> torch.Tensor | None:
    """Return act(x @ gate.T + bias[:H]) * (x @ up.T + bias[H:]), by one kernel; None if it cannot be launched directly.

    It is launched directly on CUDA tensors that no tracer, transformation or autocast sees, once its kernel is ready.

    x            (..., K)
    gate, up     H x K, adjacent in memory in this order; both have been checked
    bias         (2H,), or None for no bias
    activation   name of the gated activation, such as "swiglu"
    returns      (..., H), without gradients
    """
    if torch.is_grad_enabled() or not is_direct(x, gate, bias):
        return None
    batch_invariant, (rows, columns) = bool(ENTERED), gate.shape
    weight = gate.as_strided((2 * rows, columns), gate.stride())
    key = _signature_of_layer(x, weight, bias, activation, batch_invariant)
    call = _gated_layers.found.get(key)
    if call is None:
        if not all(is_loadable(each) for each in (rows_of(x), gate, up, bias) if each is not None):
            return None
        try:
            call = _layer(x, weight, bias, activation, batch_invariant)
        except (CutegemmError, PendingError):  # `gemm_gated` says what is wrong, or lets torch compute it meanwhile
            return None
        _gated_layers.keep(key, call)
    result: torch.Tensor = call(x, weight, bias)
    return result


def _signature_of_layer(x: Any, w: Any, bias: Any, activation: Any, batch_invariant: bool) -> Any:
    """Return all that the kernel of a linear layer depends on."""
    return (
        x.dtype, x.shape, x.stride(), (x.data_ptr() or 0.5) % 16, x.get_device(), x.is_neg(),
        w.dtype, w.shape, w.stride(), (w.data_ptr() or 0.5) % 16, w.get_device(), w.is_neg(), activation,
        batch_invariant,
        bias if bias is None else (
            bias.dtype, bias.shape, bias.stride(), (bias.data_ptr() or 0.5) % 16, bias.get_device(), bias.is_neg(),
        ),
    )  # fmt: skip


def _check_linear(x: Any, w: Any, bias: Any, activation: Any) -> None:
    tensors = {"x": x, "w": w, "bias": bias}
    rules = checks.wrong_tensors(tensors, ("bias",))
    if not rules:
        rules = wrong_activation(activation, ACTIVATIONS) + checks.wrong_factors(("x", "w"), x, w)
        if w.dim() != 2 or x.dim() == 0:
            rules.append(
                f"x has shape {tuple(x.shape)}, w {tuple(w.shape)}. Pass x of shape (..., K) and w of shape (N, K)."
            )
        else:
            if x.shape[-1] != w.shape[1]:
                remedy = " Pass w.t(), which fits." if x.shape[-1] == w.shape[0] else ""
                rules.append(f"x has rows of {x.shape[-1]}, w of {w.shape[1]}, but both are K.{remedy}")
            rules += checks.wrong_bias("bias", bias, w.shape[0])
        rules += checks.wrong_operand_dtypes(x, bias=bias)
    checks.refuse("linear", tensors, rules)


@cache
def _is_read(activation: str | None, has_bias: bool) -> bool:
    """Return True if the backward pass of `linear` reads the layer's result, as that of relu does.

    activation   name of the activation; None for none
    has_bias     True if the layer adds a bias
    """
    names = ("bias",) if has_bias else ()
    text = with_saved(activated(activation, names), len(names))
    return 0 in needed(text, frozenset([ACC, *names])).results


def _layer(x: Any, w: Any, bias: Any, activation: str | None, batch_invariant: bool = False) -> Callable[..., Any]:
    """Return a function (x, w, bias) -> d that computes `linear` for CUDA tensors like these, without any checks.

    If the activation is gated, w is gate and up, one above the other: the function computes `gated_linear`.

    It is the fast path for calls without gradients: the kernel is found once and then launched directly. The tensors
    must have the same types, shapes, strides, alignments and device as those that are passed here.

    x, w, bias        tensors of `linear`; bias may be None
    activation        name of the activation; None for none
    batch_invariant   True if each row must have the same bits in every batch
    """
    flat = rows_of(x)
    if not all(is_loadable(each) for each in (flat, w, bias) if each is not None):
        return partial(_copied_linear, activation=activation, batch_invariant=batch_invariant)
    epilogue = None if bias is None and activation is None else _function(activation, bias is not None)
    call = layer(flat, w, bias, epilogue, batch_invariant)
    if flat is x:
        return call
    columns = w.shape[0] // 2 if activation in GATED else w.shape[0]
    flat_shape, d_shape = tuple(flat.shape), (*x.shape[:-1], columns)
    if flat.data_ptr() == x.data_ptr():
        # torch parses extents as separate arguments sooner than a tuple of them.
        return lambda x, w, bias: call(x.view(*flat_shape), w, bias).resize_(*d_shape)
    return lambda x, w, bias: call(x.reshape(flat_shape), w, bias).resize_(d_shape)


def _copied_linear(x: Any, w: Any, bias: Any, activation: str | None, batch_invariant: bool) -> torch.Tensor:
    """Compute act(x @ w.T + bias) after copying each tensor that a kernel cannot load because no stride is 1.

    x, w, bias        (..., K), N x K, and (N,) or None
    activation        name of the activation; None for none
    batch_invariant   True if each row must have the same bits in every batch
    """
    flat, columns, others = loadable(rows_of(x), w.t(), [] if bias is None else [bias], ("x", "w", "bias"))
    bias = others[0] if others else None
    result = linear(flat, columns.t(), bias, activation, batch_invariant=batch_invariant)
    return result if x.dim() == 2 else reshaped(result, (*x.shape[:-1], w.shape[0]))


@cache
def _function(activation: str | None, has_bias: bool) -> Any:
    """Return the epilogue act(acc + bias), or act(acc) without a bias, as a Python function to pass to `gemm`.

    Equal arguments give the same object.

    activation   name of the activation, gated or not; None for none
    has_bias     True if a bias is added
    """
    names = ("bias",) if has_bias else ()
    is_gated = activation in GATED
    return formula(gated(activation, names, False, False) if is_gated else activated(activation, names)).function


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

    a, b                      M x K and K x N, or batches of them
    bias                      (N,)
    c                         M x N, or a shape that broadcasts to it
    activation                None, "relu", "relu_sq", "gelu", "gelu_tanh", "silu", "sigmoid" or "tanh"
    store_preact              True to return preact; False to return None for it, unless `preact_out` is given
    out_dtype                 type of preact; None is the default of `gemm` for the type of a
    alpha                     a number, or a tensor of one element
    postact_dtype             type of postact; None for the type of preact
    preact_out, postact_out   M x N tensors that the results are written to. No gradients are recorded with them
    returns                   preact and postact, both M x N
    raises                    UnsupportedError with every rule that is violated

    >>> preact, postact = gemm_act(torch.tensor([[1.0, -2.0]]), torch.eye(2), activation="relu")
    >>> preact, postact
    (tensor([[ 1., -2.]]), tensor([[1., 0.]]))
    """
    dtypes, outs = (out_dtype, postact_dtype), (preact_out, postact_out)
    options = (store_preact, alpha, dtypes, outs, in_mode(AS_CHOSEN))
    return _forward("gemm_act", a, (b,), bias, c, activation, None, *options)


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

    a, b                       M x K and K x N, or batches of them. b may be a pair (gate, up), each K x N/2. Two
                               views that are adjacent in the memory of one weight are read in place; other pairs are
                               copied together first
    bias                       (N,)
    activation                 "swiglu", "geglu", "geglu_tanh", "reglu" or "glu": silu, gelu, gelu_tanh, relu or
                               sigmoid of the gate; "swiglu_oai" of gpt-oss: silu with clamped operands and a scale
    interleaved                True: gate and up are columns 2j and 2j + 1; False: columns j and j + N/2
    varying_rows               True if the number of rows of a varies from call to call, so that few kernels are
                               compiled
    c                          M x N, or a shape that broadcasts to it
    store_preact               True to return preact; False to return None for it, unless `preact_out` is given
    out_dtype, postact_dtype   torch dtypes of preact and of postact; None: the default of `gemm`, and that of preact
    alpha                      a number, or a tensor of one element
    preact_out, postact_out    tensors to write the results to, without gradients; None for new ones
    returns                    preact, M x N, and postact, M x N/2
    raises                     UnsupportedError with every rule that is violated

    >>> preact, postact = gemm_gated(torch.tensor([[1.0, 3.0]]), torch.eye(2), activation="reglu")
    >>> postact
    tensor([[3.]])
    """
    parts = tuple(b) if isinstance(b, (tuple, list)) else (b,)
    dtypes, outs = (out_dtype, postact_dtype), (preact_out, postact_out)
    options = (store_preact, alpha, dtypes, outs, in_mode(OF_LAYER if varying_rows else AS_CHOSEN))
    return _forward("gemm_gated", a, parts, bias, c, activation, bool(interleaved), *options)


def _forward(
    called: str,
    a: Any,
    parts: tuple[Any, ...],
    bias: Any,
    c: Any,
    activation: Any,
    interleaved: bool | None,
    store_preact: bool,
    alpha: Any,
    dtypes: tuple[torch.dtype | None, torch.dtype | None],
    outs: tuple[Any, Any],
    how: How,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Check the arguments of `gemm_act` or `gemm_gated`, and return its results (preact, postact).

    preact is the argument of the activation, and postact the activated values. preact is None if it is not stored.

    called                                        name of the function, for messages
    a, bias, c, activation, store_preact, alpha   arguments of that function
    parts                                         (b,), or (gate, up)
    interleaved                                   None for `gemm_act`; True if gate and up are columns 2j and 2j + 1
                                                  of b, False for two halves
    dtypes                                        types of preact and postact; None for the defaults
    outs                                          tensors to write preact and postact to, or None
    how                                           other options of `gemm`, such as the plan
    """
    is_gated = interleaved is not None
    a, bias, c, *parts = as_autocast(a, bias, c, *parts)  # type: ignore[assignment]
    a, *parts = _of_one_length(a, *parts)  # type: ignore[assignment]
    names = ["b"] if len(parts) == 1 else [f"b[{i}]" for i in range(len(parts))]
    tensors = {"a": a, **dict(zip(names, parts, strict=True)), "bias": bias, "c": c}
    tensors |= {"alpha": alpha} if isinstance(alpha, torch.Tensor) else {}
    rules = checks.wrong_tensors(tensors, ("bias", "c"))
    if not rules:
        rules = wrong_activation(activation, GATED if is_gated else ACTIVATIONS)
        for name, x in zip(names, parts, strict=True):
            rules += checks.wrong_product(("a", name), a, x, a.dim(), dtypes[0])
        rules += checks.wrong_alpha(alpha) + checks.wrong_operand_dtypes(a, bias=bias, c=c)
        if all(x.dim() in (2, 3) for x in (a, *parts)):
            n = sum(x.shape[-1] for x in parts)
            preact_shape = (*a.shape[:-1], n)
            if is_gated:
                rules += _wrong_gate_and_up(parts, n, bool(interleaved))
            rules += checks.wrong_operand("bias", bias, preact_shape)
            rules += checks.wrong_operand("c", c, preact_shape)
            postact_shape = (*a.shape[:-1], n // 2 if is_gated else n)
            shapes = {"preact_out": (outs[0], preact_shape), "postact_out": (outs[1], postact_shape)}
            rules += checks.wrong_results(a, tensors, dtypes[1], shapes)
    checks.refuse(called, tensors, rules)
    addends = {name: x for name, x in (("bias", bias), ("c", c)) if x is not None}
    keys, operands, scalars = tuple(addends), tuple(addends.values()), ()
    if isinstance(alpha, torch.Tensor):
        keys, operands = (*keys, SCALE), (*operands, alpha)
    elif alpha != 1:
        keys, scalars = (*keys, SCALE), (float(alpha),)  # type: ignore[assignment]
    stores = store_preact or outs[0] is not None
    if is_gated:
        text = gated(activation, keys, bool(interleaved), stores)
    else:
        text = activated(activation, keys, stores)
    types: OutDtype = dtypes[1] or dtypes[0]
    if stores and dtypes[1] is not None:
        types = (dtypes[1], result_dtype(a, dtypes[0]))
    memory = outs[::-1] if stores else outs[1:]
    results = product(a, tuple(parts), text, operands, scalars, types, how, memory)
    return (results[1] if stores else None), results[0]


def _wrong_gate_and_up(parts: Sequence[Any], n: int, interleaved: bool) -> list[str]:
    """Return error messages if the second factor does not have as many gate columns as up columns; empty if it does.

    parts         (b,), with gate and up columns, or (gate, up)
    n             number of columns of all parts
    interleaved   True if gate and up are adjacent columns of one b
    """
    if len(parts) > 2:
        return [f"b has {len(parts)} matrices. Pass one, or a pair of gate and up."]
    if n % 2:
        return [f"b has {n} columns. Pass an even number of them, for gate and up."]
    if len(parts) == 2 and (interleaved or parts[0].shape != parts[1].shape):
        return [
            f"b is a pair of {tuple(parts[0].shape)} and {tuple(parts[1].shape)}, interleaved = {interleaved}. "
            "Pass two matrices of one shape, or one matrix if gate and up are interleaved."
        ]
    return []


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
    """Return dx = (a @ b) * act'(preact) and postact = act(preact) by one kernel: the backward pass of `gemm_act`.

    a, b                  M x K and K x N: the gradient of the next layer's result, and the transposed weight of that
                          layer
    preact                M x N, from `gemm_act`
    activation            None, "relu", "relu_sq", "gelu", "gelu_tanh", "silu", "sigmoid" or "tanh"
    out_dtype             type of dx; None is the default of `gemm` for the type of a
    postact_dtype         type of postact; None for the type of dx
    dx_out, postact_out   M x N tensors that the results are written to. No gradients are recorded with them
    colvec_scale          (M,) or (M, 1): multiplies the rows of dx and postact, as the router weights of a mixture of
                          experts do
    colvec_reduce         True for a third result: the row sums of (a @ b) * act(preact), which are the
                          gradient of `colvec_scale`
    returns               dx, the gradient of preact, and postact, both M x N; then the row sums, (M,) of float32
    raises                UnsupportedError with every rule that is violated

    >>> dx, postact = gemm_dact(torch.ones(1, 1), torch.ones(1, 2), torch.tensor([[-1.0, 2.0]]), "relu")
    >>> dx, postact
    (tensor([[0., 1.]]), tensor([[0., 2.]]))
    """
    outs, dtypes, columns = (dx_out, postact_out), (out_dtype, postact_dtype), (colvec_scale, colvec_reduce)
    return _backward("gemm_dact", a, b, preact, activation, None, dtypes, outs, *columns)


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
    """Return dx, the gradient of preact, and postact by one kernel: the backward pass of `gemm_gated`.

    a, b                       M x K and K x N: the gradient of the next layer's result, and the transposed weight of
                               that layer
    preact                     M x 2N, from `gemm_gated`
    activation                 "swiglu", "geglu", "geglu_tanh", "reglu", "glu" or "swiglu_oai"
    interleaved                True: gate and up are columns 2j and 2j + 1 of preact; False: columns j and j + N
    out_dtype, postact_dtype   torch dtypes of dx and of postact; None: the default of `gemm`, and that of dx
    dx_out, postact_out        tensors, M x 2N and M x N, to write the results to, without gradients; None for new
                               ones
    colvec_scale               (M,) or (M, 1): multiplies the rows of both results, as router weights of a mixture of
                               experts
    colvec_reduce              True for a third result: the row sums of (a @ b) times the activated values
    returns                    dx, M x 2N, in the column order of preact, and postact, M x N; then the row sums, (M,)
                               of float32
    raises                     UnsupportedError with every rule that is violated

    >>> dx, postact = gemm_dgated(torch.ones(1, 1), torch.ones(1, 1), torch.tensor([[2.0, 5.0]]), "reglu")
    >>> dx, postact
    (tensor([[5., 2.]]), tensor([[10.]]))
    """
    outs, dtypes, columns = (dx_out, postact_out), (out_dtype, postact_dtype), (colvec_scale, colvec_reduce)
    return _backward("gemm_dgated", a, b, preact, activation, bool(interleaved), dtypes, outs, *columns)


def _backward(
    called: str,
    a: Any,
    b: Any,
    preact: Any,
    activation: Any,
    interleaved: bool | None,
    dtypes: tuple[torch.dtype | None, torch.dtype | None],
    outs: tuple[Any, Any],
    scale: Any,
    reduces: bool,
) -> tuple[torch.Tensor, ...]:
    """Check the arguments of `gemm_dact` or `gemm_dgated`, and return its results: dx, postact and perhaps row sums.

    dx is the gradient of the activation's argument, and postact the activated values.

    called                     name of the function, for messages
    a, b, preact, activation   arguments of that function
    interleaved                None for `gemm_dact`; True if gate and up are columns 2j and 2j + 1 of preact, False
                               for two halves
    dtypes                     types of dx and postact; None for the defaults
    outs                       tensors to write dx and postact to, or None
    scale                      tensor that multiplies the rows of both results, or None
    reduces                    True to return the row sums of (a @ b) times the activated values too
    """
    is_gated = interleaved is not None
    a, b, preact = as_autocast(a, b, preact)
    a, b = _of_one_length(a, b)
    tensors = {"a": a, "b": b, "preact": preact, "colvec_scale": scale}
    rules = checks.wrong_tensors(tensors, ("colvec_scale",))
    if not rules:
        rules = wrong_activation(activation, GATED if is_gated else ACTIVATIONS)
        rules += checks.wrong_product(("a", "b"), a, b, a.dim(), dtypes[0])
        rules += checks.wrong_operand_dtypes(a, preact=preact, colvec_scale=scale)
        if a.dim() in (2, 3) and b.dim() in (2, 3):
            rows, n = tuple(a.shape[:-1]), b.shape[-1]
            postact_shape, dx_shape = (*rows, n), (*rows, 2 * n if is_gated else n)
            if not is_gated:
                rules += checks.wrong_operand("preact", preact, dx_shape)
            elif tuple(preact.shape) != dx_shape:
                rules.append(
                    f"preact has shape {tuple(preact.shape)}. Pass the preactivations of gate and up, of shape "
                    f"{dx_shape}."
                )
            rules += checks.wrong_column("colvec_scale", scale, rows)
            shapes = {"dx_out": (outs[0], dx_shape), "postact_out": (outs[1], postact_shape)}
            rules += checks.wrong_results(a, tensors, dtypes[1], shapes)
    checks.refuse(called, tensors, rules)
    if scale is not None and tuple(scale.shape) in (rows, rows[-1:]):
        scale = scale.unsqueeze(-1)
    scales = () if scale is None else (scale,)
    others = (outs[1], *[None] * reduces)  # postact and the row sums
    if not is_gated:
        types: OutDtype = dtypes[0] if dtypes[1] is None else dtypes
        text = dactivated(activation, scale is not None, reduces)
        results = product(a, (b,), text, (preact, *scales), (), types, outs=(outs[0], *others))
        return tuple(results[: 1 + len(others)])
    text = dgated(activation, scale is not None, reduces)
    operands = (*gate_and_up_of(preact, bool(interleaved)), *scales)
    types = dtypes[0] if dtypes[1] is None else (dtypes[0], *dtypes)
    written = [out for out in outs if out is not None]
    if not interleaved and route_of(a, b, preact, *scales, *written) is Route.DIRECT:
        # One kernel writes both gradients into the halves of dx
        dx = a.new_empty(preact.shape, dtype=result_dtype(a, dtypes[0])) if outs[0] is None else outs[0]
        results = product(a, (b,), text, operands, (), types, outs=(*dx.split(n, -1), *others))
        return (dx, *results[2:])
    dgate, dup, *more = product(a, (b,), text, operands, (), types, outs=(None, None, *others))
    dx = reshaped(torch.stack([dgate, dup], -1), preact.shape) if interleaved else torch.cat([dgate, dup], -1)
    return (dx if outs[0] is None else outs[0].copy_(dx), *more[: len(others)])


def _of_one_length(*matrices: Any) -> tuple[Any, ...]:
    """Return the factors of a batch of products as batches of the same length.

    Matrices, and batches of length 1, are expanded to the length of the others. If other lengths differ, all are
    returned unchanged.

    matrices   M x K or L x M x K tensors; other values are returned unchanged
    """
    if any(not isinstance(x, torch.Tensor) or x.dim() not in (2, 3) for x in matrices):
        return matrices
    length = checks.batch_length(*matrices)
    if all(x.dim() == 2 for x in matrices) or any(x.dim() == 3 and x.shape[0] not in (1, length) for x in matrices):
        return matrices
    return tuple([x.expand(length, *x.shape[-2:]) for x in matrices])
