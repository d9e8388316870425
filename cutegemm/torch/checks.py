"""Rules that the arguments of the functions must obey. Each function returns the violated rules, a sentence each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.fx import Proxy

from cutegemm.errors import UnsupportedError
from cutegemm.run.graph import carried
from cutegemm.run.torch_ops import DTYPES, FLOAT8, RESULTS
from cutegemm.torch.dispatch import PLAIN_TENSORS
from cutegemm.torch.epilogue import dtype_name

_FOR_FX = " torch.fx traces a function as one node if you pass its name to torch.fx.wrap."


def refuse(called: str, tensors: Mapping[str, Any], rules: Sequence[str]) -> None:
    """Raise UnsupportedError with all rules that a call violates; do nothing if `rules` is empty.

    called    name of the function that the user called, for the message
    tensors   its arguments by name; the message has the shapes of all tensors
    rules     one sentence for each violated rule
    """
    if not rules:
        return
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items() if isinstance(x, torch.Tensor))
    call = f"{called} of {shapes}" if shapes else called
    if len(rules) == 1:
        raise UnsupportedError(f"{call}: {rules[0]}")
    listed = "\n".join(f"  - {rule}" for rule in rules)
    raise UnsupportedError(f"{call}: {len(rules)} rules are broken.\n{listed}")


def signature_of(tensors: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return types, shapes and devices of arguments as a key, so that arguments with equal keys are checked only once.

    tensors   tensors or None
    returns   None if a tensor is of another class, or if a graph is traced: then each call is checked

    >>> signature_of([torch.ones(2, 3), None])
    ((torch.float32, torch.Size([2, 3]), device(type='cpu')), None)
    """
    if is_compiling() or any(x is not None and x.__class__ not in PLAIN_TENSORS for x in tensors):
        return None
    return tuple([None if x is None else (x.dtype, x.shape, x.device) for x in tensors])


def wrong_tensors(tensors: Mapping[str, Any], optional: Sequence[str] = ()) -> list[str]:
    """Return one error message for each argument that is not a tensor; if all are tensors, one if their devices differ.

    tensors    arguments by name
    optional   names of arguments that may be None
    """
    others = [
        f"{name} is a {type(x).__name__}. Pass a torch tensor.{_FOR_FX if isinstance(x, Proxy) else ''}"
        for name, x in tensors.items()
        if not isinstance(x, torch.Tensor) and not (x is None and name in optional)
    ]
    if others:
        return others
    devices = {name: x.device for name, x in tensors.items() if x is not None}
    if len(set(devices.values())) <= 1:
        return []
    listed = ", ".join(f"{name} is on {device}" for name, device in devices.items())
    return [f"{listed}. Pass tensors on one device."]


def wrong_factors(names: tuple[str, str], a: torch.Tensor, b: torch.Tensor) -> list[str]:
    """Return error messages for the element types of the two factors of a GEMM; empty if a kernel can multiply them.

    Both must have the same type, which kernels support. Only float8_e4m3fn and float8_e5m2 may be mixed.

    names   the caller's names for a and b, for the messages
    """
    x, y = names
    rules = []
    if a.dtype != b.dtype and not all(factor.dtype in FLOAT8 for factor in (a, b)):
        rules.append(
            f"{x} is of {dtype_name(a.dtype)}, {y} of {dtype_name(b.dtype)}. Pass two tensors of one type, "
            f"such as {y}.to({x}.dtype), or run it under torch.autocast."
        )
    if a.dtype not in RESULTS:
        served = ", ".join(map(dtype_name, RESULTS))
        rules.append(f"{x} is of {dtype_name(a.dtype)}. Supported are {served}.")
    return rules


def wrong_out_dtype(a: torch.Tensor, out_dtype: torch.dtype | None, given: str = "out_dtype =") -> list[str]:
    """Return a list with one error message if no kernel stores the type that the caller asks for; else [].

    a           the first factor, whose type decides which types of a result are possible
    out_dtype   type of the result; None for the default, which is always possible
    given       words that introduce the type in the message
    """
    allowed = RESULTS.get(a.dtype, ())
    if out_dtype is None or not allowed or out_dtype in allowed:
        return []
    served = " or ".join(map(dtype_name, allowed))
    return [f"{given} {out_dtype}, which is not supported. For {dtype_name(a.dtype)}, pass {served}."]


def wrong_product(
    names: tuple[str, str],
    a: torch.Tensor,
    b: torch.Tensor,
    rank: int,
    out_dtype: torch.dtype | None,
    called: str = "out_dtype",
) -> list[str]:
    """Return error messages for two factors: their ranks, their extents K, their types, and the type of the result.

    names       the caller's names for a and b, for the messages
    rank        2 for two matrices; 3 for two batches, or a batch and a matrix
    out_dtype   type of the result; None for the default
    called      the caller's name for out_dtype
    """
    x, y = names
    rules = wrong_factors(names, a, b) + wrong_out_dtype(a, out_dtype, f"{called} =")
    ranks = (2,) if rank == 2 else (2, 3)
    if a.dim() not in ranks or b.dim() not in ranks or rank not in (2, 3, a.dim()):
        wanted = "two matrices" if rank == 2 else "two matrices, or two batches of matrices"
        return [*rules, f"{x} has shape {tuple(a.shape)}, {y} {tuple(b.shape)}. Pass {wanted}."]
    if a.shape[-1] != b.shape[-2]:
        remedy = f" Pass {y}.mT, which fits." if a.shape[-1] == b.shape[-1] else ""
        rules.append(f"{x} has {a.shape[-1]} columns, {y} has {b.shape[-2]} rows, but both are K.{remedy}")
    lengths = (a.shape[0], b.shape[0]) if a.dim() == b.dim() == 3 else (1, 1)
    if lengths[0] != lengths[1] and lengths[0] != 1 and lengths[1] != 1:
        rules.append(
            f"{x} is a batch of {a.shape[0]} matrices, {y} of {b.shape[0]}. Pass batches of one length, or of 1."
        )
    return rules


def wrong_matrices(a: torch.Tensor, b: torch.Tensor, rank: int, out_dtype: torch.dtype | None, out: Any) -> list[str]:
    """Return error messages for the arguments of `mm` (rank 2: matrices) or `bmm` (rank 3: batches); empty if all fit.

    a, b        factors
    out_dtype   type of the result; None for the default
    out         tensor to write the result to, or None
    """
    tensors = {"a": a, "b": b}
    if rules := wrong_tensors(tensors):
        return rules
    rules = wrong_product(("a", "b"), a, b, rank, out_dtype)
    if not rules:
        batch = [batch_length(a, b)] if rank == 3 else []
        rules = wrong_out(out, (*batch, a.shape[-2], b.shape[-1]), a)
        if rank == 3 and a.dim() == b.dim() == 2:
            rules.append("a and b are matrices, not batches. Call mm.")
    return rules + wrong_gradients(tensors, out)


def batch_length(*matrices: torch.Tensor) -> int:
    """Return the number of products in a batch of matrix products: the first length that is not 1, else 1.

    matrices   factors, (M, K) or (L, M, K). A matrix, or a batch of length 1, is used in each product
    """
    lengths = [x.shape[0] for x in matrices if x.dim() == 3]
    return next((length for length in lengths if length != 1), 1)


def wrong_operand_dtypes(a: torch.Tensor, **operands: torch.Tensor | None) -> list[str]:
    """Return one error message for each operand of an epilogue whose type a kernel cannot read.

    a          the first factor. If its type is floating, operands must be floating too, of any type that a kernel
               reads; torch rejects integers too. If it is int8, operands may also be int8 or int32
    operands   operands by name; None for one that is not passed
    """
    rules = []
    is_float = a.dtype.is_floating_point
    for name, x in operands.items():
        if x is None or (x.dtype in DTYPES and (x.dtype.is_floating_point or not is_float)):
            continue
        wanted, remedy = "float64, float32, float16, bfloat16 or float8", str(a.dtype)
        if not is_float:
            wanted, remedy = f"{wanted}, or int32 or int8", "torch.float32"
        rules.append(f"{name} is of {dtype_name(x.dtype)}. Pass {wanted}, such as {name}.to({remedy}).")
    return rules


def wrong_operand(name: str, x: Any, shape: Sequence[int]) -> list[str]:
    """Return a list with one error message if an operand of an epilogue does not broadcast to the result; else [].

    name    name of the operand, for the message
    x       the operand
    shape   shape of the result, at least two extents
    """
    if x is None:
        return []
    own, wide = tuple(x.shape), tuple(shape)
    pairs = zip(own[::-1], wide[::-1], strict=False)
    # One comparison for each extent: `in` does not compare the value of a symbolic extent.
    if len(own) <= len(wide) and all(extent == 1 or extent == of for extent, of in pairs):
        return []
    *batch, m, n = wide
    listed = ", ".join(map(str, [(n,), (m, 1), (m, n), *([(*batch, m, n)] if batch else [])]))
    return [f"{name} has shape {own}. Pass a number, {listed}, or a shape that broadcasts to the last."]


def wrong_bias(name: str, bias: torch.Tensor | None, n: int) -> list[str]:
    """Return a list with one error message if a bias does not have the shape (n,); [] if it does, or is None.

    name   the caller's name for the bias
    n      number of columns of the result
    """
    if bias is None or tuple(bias.shape) == (n,):
        return []
    return [f"{name} has shape {tuple(bias.shape)}. Pass a tensor of shape {(n,)}."]


def wrong_alpha(alpha: Any) -> list[str]:
    """Return a list with one error message if alpha is neither a real number nor a floating tensor of one element."""
    if isinstance(alpha, torch.Tensor):
        if alpha.numel() == 1 and alpha.dtype.is_floating_point:
            return []
        kind = f"is of {dtype_name(alpha.dtype)} and has shape {tuple(alpha.shape)}"
        return [f"alpha {kind}. Pass one floating-point number."]
    if isinstance(alpha, (int, float)) and not isinstance(alpha, bool):
        return []
    return [f"alpha = {alpha!r} is not a number. Pass a number, or a tensor of one element."]


def wrong_column(name: str, x: torch.Tensor | None, rows: Sequence[int]) -> list[str]:
    """Return a list with one error message if a tensor does not have one number for each row of D; else [].

    name   name of the tensor, for the message
    x      the tensor, or None, which is accepted
    rows   extents of a without K: (M,) or (L, M)
    """
    shapes = [tuple(rows), (*rows, 1), *([(rows[-1],), (rows[-1], 1)] if len(rows) > 1 else [])]
    if x is None or tuple(x.shape) in shapes:
        return []
    listed = " or ".join(map(str, shapes))
    return [f"{name} has shape {tuple(x.shape)}. Pass {listed}, one number for each row."]


def wrong_out(out: Any, shape: tuple[int, ...], a: torch.Tensor, name: str = "out") -> list[str]:
    """Return error messages for a tensor that a result is to be written to: its kind, shape, type and device.

    out     the caller's tensor
    shape   shape of the result
    a       the first factor, which decides the possible types and the device
    name    name of the argument, for the messages
    """
    if out is None:
        return []
    if not isinstance(out, torch.Tensor):
        return [f"{name} is a {type(out).__name__}. Pass a torch tensor."]
    if tuple(out.shape) != shape:
        return [f"{name} has shape {tuple(out.shape)}. Pass a tensor of shape {shape}."]
    if out.device != a.device:
        return [f"{name} is on {out.device}, a on {a.device}. Pass tensors on one device."]
    return wrong_out_dtype(a, out.dtype, f"{name} is of")


def wrong_results(
    a: torch.Tensor,
    tensors: Mapping[str, Any],
    postact_dtype: torch.dtype | None,
    outs: Mapping[str, tuple[Any, tuple[int, ...]]],
) -> list[str]:
    """Return error messages for the type of an activated result, and for tensors that results are to be written to.

    a               the first factor
    tensors         tensors that the call reads, by name
    postact_dtype   type of the activated result; None for the default
    outs            argument name -> (tensor to write a result to, or None; shape of the result)
    """
    rules = wrong_out_dtype(a, postact_dtype, "postact_dtype =")
    for name, (out, shape) in outs.items():
        rules += wrong_out(out, shape, a, name) or wrong_gradients(tensors, out, name)
    written = {name: out for name, (out, _) in outs.items() if isinstance(out, torch.Tensor)}
    if len(written) > 1 and len({out.data_ptr() for out in written.values() if out.numel()}) == 1:
        rules.append(f"{' and '.join(written)} begin at the same address. Pass tensors that do not overlap.")
    return rules


def wrong_gradients(tensors: Mapping[str, Any], out: torch.Tensor | None, called: str = "out") -> list[str]:
    """Return a list with one error message if a call that writes to the tensor `out` would lose gradients; else [].

    A call that writes its result to a tensor of the caller is not recorded by autograd, so that its gradients would be
    lost.

    tensors   tensors that the call reads by name, or None
    out       tensor to write the result to; None: the list is empty
    called    name of the argument `out`, for the message
    """
    if out is None:
        return []
    named = {**tensors, called: out}
    if carried(named.values()):
        return [f"{called} is passed, but forward-mode derivatives are not recorded into it. Leave out `{called}`."]
    names = requiring_gradients(named)
    if not names:
        return []
    return [
        f"{require_gradients(names)}, but a call with {called}= does not record them. Leave out `{called}`, or call it "
        "under torch.no_grad()."
    ]


def requiring_gradients(tensors: Mapping[str, Any]) -> list[str]:
    """Return the names of those tensors that autograd would record gradients for; [] under torch.no_grad().

    tensors   tensors by name; other values are ignored
    """
    if not torch.is_grad_enabled():
        return []
    return [name for name, x in tensors.items() if isinstance(x, torch.Tensor) and x.requires_grad]


def require_gradients(names: Sequence[str]) -> str:
    """Return the beginning of a sentence for a message: "x requires gradients", or "x and w require gradients"."""
    return f"{' and '.join(names)} {'requires' if len(names) == 1 else 'require'} gradients"
