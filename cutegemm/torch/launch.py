"""Kernels of products: `gemm` for CUDA tensors, `reference.by_torch` for all others.

A kernel reads rows or columns of adjacent elements. torch multiplies views of any strides, so the functions that have
torch's names do too: other views are copied, and a `CopyWarning` names them.

A gated epilogue is lowered for the kernel: a result with all columns of A @ B is replaced by its gate and its up.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from cutegemm.errors import CopyWarning, UnsupportedError
from cutegemm.plan.epilogue import Expression, Half, Tensor
from cutegemm.plan.epilogue.quantized import BlockScale
from cutegemm.run.calls import How, is_batch_invariant, shapes_of
from cutegemm.run.gemm import gemm
from cutegemm.run.scales import new_scales
from cutegemm.torch.activations import dgated
from cutegemm.torch.epilogue import LINEAR, PLAIN, SCALED, Formula, OutDtype, formula, is_gated, text_of
from cutegemm.torch.reference import Outs, by_torch, copied_to, dequantized, gate_and_up_of, result_dtype, result_dtypes

AS_CHOSEN = How()
OF_LAYER = How(varying_rows=True)  # the weight stays, and the number of rows varies from call to call


def in_mode(how: How, batch_invariant: bool | None = None) -> How:
    """Return the options of a GEMM call, with `batch_invariant` set if the call or an enclosing context asks for it.

    how               other options of `gemm`, such as the plan
    batch_invariant   argument of the call: True if each row must have the same bits in every batch; None: True inside
                      of the context `cutegemm.batch_invariant()`

    >>> in_mode(OF_LAYER, True).options == (None, "fast", False, True, False, True), in_mode(OF_LAYER) is OF_LAYER
    (True, True)
    """
    if not is_batch_invariant(batch_invariant):
        return how
    return How(how.plan, how.accumulate, how.allow_tf32, how.varying_rows, how.tune, True)


def refuse_torch(called: str, why: str) -> None:
    """Raise UnsupportedError for a batch-invariant call that no kernel can compute, so that torch would compute it.

    called   name of the operation that is refused
    why      why no kernel of cutegemm computes it, as a phrase for the message
    """
    raise UnsupportedError(
        f"{called}: batch_invariant is asked for, but torch would compute this, because {why}. The order in which "
        "torch adds may depend on the number of rows. Leave out batch_invariant, or change that."
    )


# --- copies -------------------------------------------------------------------------------------------------------


def is_loadable(x: torch.Tensor) -> bool:
    """Return True if a matrix, or each matrix of a batch, has stride 1 along its rows or along its columns.

    A tensor whose elements are negated when they are read, such as `z.conj().imag`, is not loadable.

    >>> x = torch.zeros(4, 6)
    >>> is_loadable(x.t()), is_loadable(x[:, ::2]), is_loadable(x[:1, ::2]), is_loadable(x[0, 0].expand(4, 6))
    (True, False, True, False)
    """
    if x.is_neg():
        return False
    if x.dim() < 2 or x.stride(-1) == 1 or x.stride(-2) == 1:
        return True
    return x.shape[-1] <= 1 or x.shape[-2] <= 1 or x.numel() == 0


def loadable(
    a: torch.Tensor, b: torch.Tensor, operands: Sequence[torch.Tensor], names: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return the factors and operands of a GEMM; those that a kernel cannot load are copied, with a warning.

    a, b       factors
    operands   tensors of the epilogue
    names      names of a, b and the operands, for the warning
    returns    (a, b, operands)

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     a, b, _ = loadable(torch.zeros(4, 6)[:, ::2], torch.zeros(3, 2), (), ("a", "b"))
    >>> a.stride(), str(caught[0].message)[:64]
    ((3, 1), 'product of (4, 3) by (3, 2): a contiguous copy of a is made, bec')
    """
    wrong = [not is_loadable(x) for x in (a, b, *operands)]
    if not any(wrong):
        return a, b, list(operands)
    listed = " and ".join(name for name, is_wrong in zip(names, wrong, strict=False) if is_wrong)
    warnings.warn(
        f"product of {shapes_of(a, b)}: a contiguous copy of {listed} is made, because neither of the last two "
        "dimensions has a stride of 1, or the elements are negated. Pass a contiguous tensor, or a transposed one.",
        CopyWarning,
        stacklevel=caller_level(),
    )
    first, second, *others = wrong
    return (
        _copy(a) if first else a,
        _copy(b.mT).mT if second else b,  # K-major, which kernels of every type read
        [_copy(x) if is_wrong else x for x, is_wrong in zip(operands, others, strict=True)],
    )


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.resolve_neg().contiguous()


def caller_level() -> int:
    """Return the number of stack frames up to the innermost call outside of cutegemm and torch.

    Used as the `stacklevel` of a warning, it makes the warning name the user's line.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("cutegemm", "torch"):
        level, frame = level + 1, frame.f_back
    return level


def joined(b: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return matrices side by side as one matrix B: a view if they are adjacent in memory, else a copy.

    b   one K x N matrix, or several of K x N_i such as gate and up weights

    >>> whole = torch.randn(8, 16)
    >>> joined([whole[:4].t(), whole[4:].t()]).data_ptr() == whole.data_ptr()
    True
    >>> joined([whole[4:].t(), whole[:4].t()]).data_ptr() == whole.data_ptr()
    False
    """
    first = b[0]
    if len(b) == 1:
        return first
    if first.__class__ in (torch.Tensor, torch.nn.Parameter) and _are_adjacent(b):
        columns = sum(part.shape[-1] for part in b)
        return first.as_strided((*first.shape[:-1], columns), first.stride())
    return torch.cat(list(b), -1)


def _are_adjacent(b: Sequence[torch.Tensor]) -> bool:
    """Return True if each matrix begins in memory where the columns of the one before it end.

    b   matrices of K x N_i that stand side by side as columns of one
    """
    first = b[0]
    storage, address = first.untyped_storage().data_ptr(), first.data_ptr()
    for part in b:
        if part.data_ptr() != address or part.stride() != first.stride() or part.dtype != first.dtype:
            return False
        if part.untyped_storage().data_ptr() != storage:
            return False
        address += part.shape[-1] * part.stride(-1) * part.element_size()
    return True


def factors_read(
    a: torch.Tensor, b: tuple[torch.Tensor, ...], text: str, scalars: Sequence[float]
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return the factors as a kernel reads them: unchanged, but without columns of a and rows of b if alpha is 0.

    As in BLAS, the factors are not read if alpha is 0, so that a NaN in them has no effect.

    a         the first factor
    b         tuple of matrices that stand side by side as the columns of the second factor
    text      the epilogue as text, e.g. "lambda acc, bias: acc + bias"
    scalars   numbers of the epilogue; for alpha * acc and alpha * acc + beta * c, the first one is alpha
    """
    if text not in (SCALED, LINEAR) or scalars[0] != 0:
        return a, b
    return a[..., :0], tuple([part[..., :0, :] for part in b])


# --- products -----------------------------------------------------------------------------------------------------


def allocated(a: torch.Tensor, b: Sequence[torch.Tensor], text: str, out_dtype: OutDtype) -> list[torch.Tensor]:
    """Allocate the results of a GEMM with an epilogue, row-major and not filled.

    The scales of a quantized D are allocated in the memory order that kernels store.

    A graph of torch.compile takes its fake results, which have only a shape and a type, from here.

    a           M x K, or a batch of such matrices
    b           matrices K x N_i that stand side by side as the columns of B
    text        the epilogue as text, e.g. "lambda acc, bias: acc + bias"
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    """
    read, n = formula(text), sum(part.shape[-1] for part in b)
    dtypes = result_dtypes(a, read.results, out_dtype)
    shapes = read.shapes(a.shape[:-1], n)
    return [
        new_scales(a, shape) if isinstance(result, BlockScale) else a.new_empty(shape, dtype=dtype)
        for result, shape, dtype in zip(read.results, shapes, dtypes, strict=True)
    ]


def compute(
    a: torch.Tensor,
    b: Sequence[torch.Tensor],
    text: str,
    operands: Sequence[torch.Tensor] = (),
    scalars: Sequence[float] = (),
    out_dtype: OutDtype = None,
    how: How = AS_CHOSEN,
    outs: Outs = None,
    scales: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Return the results of an epilogue of a @ b, D first: by a kernel for CUDA tensors, else by torch.

    a           M x K, or a batch of L such matrices
    b           matrices K x N_i that form one matrix side by side, e.g. gate and up weights
    text        the epilogue as text, e.g. "lambda acc, bias: relu(acc + bias)"
    operands    tensors of the epilogue, in the order of its parameters; `scalars` come after them
    scalars     numbers of the epilogue
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    how         options of `gemm`: plan, accumulation, tuning
    outs        for each result a tensor to write it to, or None for a new one; None: all are new
    scales      float32 block scales of a and of b; None without them
    """
    whole = b[0] if len(b) == 1 else joined(b)
    if not a.is_cuda and scales is not None:
        return scaled_by_torch(a, whole, scales, formula(text), [*operands, *scalars], out_dtype, outs)
    if not a.is_cuda:
        if how.batch_invariant:
            refuse_torch(f"product of {shapes_of(a, whole)}", f"the tensors are on {a.device}")
        return by_torch(a, whole, formula(text), [*operands, *scalars], out_dtype, outs)
    return by_gemm(a, whole, text, operands, scalars, out_dtype, how, outs, scales)


def scaled_by_torch(
    a: torch.Tensor,
    b: torch.Tensor,
    scales: Sequence[torch.Tensor],
    read: Formula,
    operands: Sequence[Any],
    out_dtype: OutDtype,
    outs: Outs = None,
) -> list[torch.Tensor]:
    """Compute a block-scaled a @ b with an epilogue by operations of torch, on dequantized factors.

    a, b        factors in float8
    scales      float32 block scales of a and of b, one for 128 elements along K and 1 or 128 rows or columns
    read        the parsed epilogue
    operands    tensors and numbers of the epilogue, in the order of its parameters
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    outs        for each result a tensor to write it to, or None for a new one; None: all are new
    """
    dtypes = tuple(result_dtypes(a, read.results, out_dtype, outs))
    of_a, of_b = dequantized(a, scales[0]), dequantized(b.mT, scales[1].mT).mT
    return by_torch(of_a, of_b, read, operands, dtypes, outs)


def by_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    text: str,
    operands: Sequence[torch.Tensor] = (),
    scalars: Sequence[float] = (),
    out_dtype: OutDtype = None,
    how: How = AS_CHOSEN,
    outs: Outs = None,
    scales: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Compute a @ b with an epilogue by a kernel, and return the results; tensors that it cannot load are copied first.

    a           M x K, or a batch of such matrices
    b           one K x N matrix, or a batch
    text        the epilogue as text, e.g. "lambda acc, bias: acc + bias"; `operands` are its tensors, and `scalars` its
                numbers
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    how         other options of `gemm`, such as the plan
    outs        for each result a tensor to write it to, or None for a new one; None: all are new
    scales      block scales of a and of b; None without them
    """
    read = formula(text)
    a, b, operands = loadable(a, b, operands, ("the first factor", "the second factor", *read.names))
    if outs is not None and not all(out is None or is_loadable(out) for out in outs):
        dtypes = tuple(result_dtypes(a, read.results, out_dtype, outs))
        direct = [out if out is not None and is_loadable(out) else None for out in outs]
        return copied_to(outs, by_gemm(a, b, text, operands, scalars, dtypes, how, direct, scales))
    lowered = _lowered(text, _tiles_in_halves(text, a, b, operands))
    if lowered.interleaved is not None or (outs is not None and len(outs) > 1):
        return _by_halves(lowered, a, b, read, [*operands, *scalars], out_dtype, how, outs)
    keywords: dict[str, Any] = dict(vars(how))
    if scales is not None:
        keywords["scales"] = tuple(scales)
    out = None if outs is None else outs[0]
    if out is not None:
        keywords["out"] = out
    elif out_dtype is not None:
        keywords["out_dtype"] = tuple(result_dtypes(a, read.results, out_dtype))
    if text == PLAIN:
        return [gemm(a, b, **keywords)]
    if text == SCALED:
        return [gemm(a, b, alpha=scalars[0], **keywords)]
    if text == LINEAR and operands[0].shape == (*a.shape[:-1], b.shape[-1]):
        dtype = result_dtype(a, out_dtype) if out is None else out.dtype
        if operands[0].dtype == dtype:
            return [gemm(a, b, c=operands[0], alpha=scalars[0], beta=scalars[1], **keywords)]
    named = lowered.read.named([*operands, *scalars])
    outputs = gemm(a, b, epilogue=lowered.read.function, **keywords, **named)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def dgated_of(
    a: torch.Tensor, b: torch.Tensor, preact: torch.Tensor, activation: str, how: How = AS_CHOSEN
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute by one kernel the gradient of a gated activation's argument, and the gated values act(gate) * up again.

    a, b         factors whose product a @ b is the gradient of the gated values
    preact       argument of the activation: gate columns in the left half, up columns in the right half
    activation   name of the gated activation, such as "swiglu"
    how          other options of `gemm`, such as the plan
    returns      (gradient of `preact`, of its shape; the gated values)
    """
    if not a.is_cuda:
        if how.batch_invariant:
            refuse_torch(f"product of {shapes_of(a, b)}", f"the tensors are on {a.device}")
        return dgated_by_torch(a, b, preact, activation)
    a, b, (preact,) = loadable(a, b, (preact,), ("the first factor", "the second factor", "preact"))
    dx = a.new_empty(preact.shape, dtype=result_dtype(a, None))
    outs, operands = (*dx.split(b.shape[-1], -1), None), preact.split(b.shape[-1], -1)
    return dx, by_gemm(a, b, dgated(activation), operands, (), dx.dtype, how, outs)[2]


def dgated_by_torch(
    a: torch.Tensor, b: torch.Tensor, preact: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (gradient of a gated activation's argument, the gated values again) by differentiable operations of torch.

    a, b         factors whose product a @ b is the gradient of the gated values act(gate) * up
    preact       argument of the activation: gate columns in the left half, up columns in the right half
    activation   name of the gated activation, such as "swiglu"
    returns      (gradient of `preact`, of its shape; the gated values)
    """
    operands = torch.split(preact, b.shape[-1], -1)
    *both, hidden = by_torch(a, b, formula(dgated(activation)), operands, None)
    return torch.cat(both, -1), hidden


# --- gated epilogues ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lowered:
    """Holds a gated (GLU) epilogue after rewriting it for a kernel that handles gate and up columns as two tensors.

    A kernel stores no result that is wider than D, and D is half as wide as A @ B. So each wider result, and each
    operand of the shape of A @ B, is replaced by two: its gate columns and its up columns.

    read          the rewritten epilogue; an operand "c" has become "c_gate" and "c_up"
    interleaved   True if gate and up are columns 2j and 2j + 1 of A @ B, False if they are its left and right half;
                  None if nothing was replaced
    """

    read: Formula
    interleaved: bool | None


@lru_cache(maxsize=1024)
def _lowered(text: str, tiles: tuple[str, ...]) -> Lowered:
    """Return a gated epilogue in the form that a kernel computes, with gate and up as separate results and operands.

    text    the epilogue as text, e.g. "lambda acc, bias: acc + bias"
    tiles   names of the operands of the shape of A @ B that are replaced by their gate and their up columns

    >>> _lowered("lambda acc, c: (reglu(acc + c), acc + c)", ("c",)).read.text
    'lambda acc, c_gate, c_up: (relu(halves(acc)[0] + c_gate) * ..., halves(acc)[0] + c_gate, halves(acc)[1] + c_up)'
    """
    read = formula(text)
    results = split_results(read.results)
    if len(results) == len(read.results) and not tiles:
        return Lowered(read, None)
    results = split_operands(results, tiles)
    names = [part for name in read.names for part in (_gate_and_up_names(name) if name in tiles else (name,))]
    return Lowered(formula(text_of(results, names)), interleaving(read.results))


def interleaving(results: Sequence[Expression]) -> bool | None:
    """Return True if gate and up of an epilogue are adjacent columns of A @ B, False if they are its two halves.

    results   results of the epilogue
    returns   None if the epilogue is not gated
    """
    halves = (node for result in results for node in result.nodes() if isinstance(node, Half))
    return next((half.interleaved for half in halves), None)


def split_results(results: Sequence[Expression]) -> list[Expression]:
    """Return the results of a gated epilogue as a kernel stores them: none is wider than D.

    A result with as many columns as A @ B is replaced by two: its gate columns and its up columns.

    results   results of the epilogue, D first

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> acc = Accumulator()
    >>> gate, up = Half(acc, 0, False), Half(acc, 1, False)
    >>> [str(each) for each in split_results([gate * up, acc + 1.0])]
    ['acc.gate * acc.up', 'halves(acc + 1)[0]', 'halves(acc + 1)[1]']
    """
    interleaved = interleaving(results)
    if interleaved is None:
        return list(results)
    return [
        part
        for result in results
        for part in ([result] if is_gated(result) else [Half(result, side, interleaved) for side in (0, 1)])
    ]


def split_operands(results: Sequence[Expression], tiles: Sequence[str]) -> list[Expression]:
    """Return results of a gated epilogue after replacing each wide operand by two: its gate and its up columns.

    For example, an operand `c` of the shape of A @ B becomes the operands `c_gate` and `c_up`, with half the columns.

    results   expressions of the epilogue
    tiles     names of the wide operands, which have the shape of A @ B

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> print(*split_operands([Half(Accumulator() + Tensor("c"), 1, False)], ["c"]))
    acc.up + c_up
    """

    def half_of(node: Expression, half: Half) -> Expression:
        if isinstance(node, Tensor) and node.name in tiles:
            return Tensor(_gate_and_up_names(node.name)[half.side])
        if not any(name in tiles for name in node.tensors):
            return Half(node, half.side, half.interleaved)
        return node.with_children(*[half_of(child, half) for child in node.children])

    def replaced(node: Expression) -> Expression:
        if isinstance(node, Half):
            return half_of(node.child, node)
        return node.with_children(*[replaced(child) for child in node.children])

    return [replaced(result) for result in results]


def _gate_and_up_names(name: str) -> tuple[str, str]:
    return f"{name}_gate", f"{name}_up"


@lru_cache(maxsize=4096)
def names_in_halves(text: str) -> frozenset[str]:
    """Return the names of operands of a gated epilogue that a kernel reads as two operands: gate and up columns.

    In a gated (GLU) epilogue, half of the columns of A @ B are gates. halves(x) splits x into its left and right half,
    pairs(x) into its even and odd columns. An operand is in the result if the epilogue splits an expression that
    contains it, as `c` in "swiglu(acc + c)". It is also in the result if it occurs in an output as wide as A @ B,
    because a kernel stores the two parts of such an output separately.

    text   the epilogue as text, a lambda of the accumulator and the operands

    >>> sorted(names_in_halves("lambda acc, c, r: (swiglu(acc + c) + r, acc + c)"))
    ['c']
    >>> names_in_halves("lambda acc, c: acc + c")
    frozenset()
    """
    results = split_results(formula(text).results)
    halves = [node for result in results for node in result.nodes() if isinstance(node, Half)]
    return frozenset([name for half in halves for name in half.tensors])


def _tiles_in_halves(text: str, a: torch.Tensor, b: torch.Tensor, operands: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """Return the names of M x N operands that a kernel reads as two operands: gate and up columns.

    These are the operands of the shape of A @ B that a gated epilogue splits into gate and up. For M = 1, a kernel
    reads such operands as rows instead, and the result is empty.

    text       the epilogue as text, e.g. "lambda acc, bias: acc + bias"
    a, b       factors, whose shapes give M and N
    operands   tensors of the epilogue, in order
    """
    names = names_in_halves(text)
    if not names or a.shape[-2] == 1:
        return ()
    whole = (a.shape[-2], b.shape[-1])
    pairs = zip(formula(text).names, operands, strict=False)
    return tuple([name for name, x in pairs if name in names and x.dim() > 1 and x.shape[-2:] == whole])


def _by_halves(
    lowered: Lowered,
    a: torch.Tensor,
    b: torch.Tensor,
    read: Formula,
    operands: Sequence[Any],
    out_dtype: OutDtype,
    how: How,
    outs: Outs,
) -> list[torch.Tensor]:
    """Compute a gated epilogue by one kernel that stores gate and up separately, and return its results.

    A result that is as wide as A @ B is stored as gate and up, into the two halves of one tensor. If gate and up
    columns alternate, two tensors are stored and then joined by a copy.

    lowered     the epilogue that the kernel computes: gate and up are separate results and operands
    a, b        the factors
    read        the epilogue as the caller wrote it
    operands    tensors and numbers of the caller's epilogue, in order
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    how         other options of `gemm`, such as the plan
    outs        the caller's tensor for each result, or None
    """
    dtypes, interleaved = result_dtypes(a, read.results, out_dtype, outs), lowered.interleaved
    outs = outs or [None] * len(dtypes)
    shape, half = (*a.shape[:-1], b.shape[-1]), b.shape[-1] // 2
    is_split = [interleaved is not None and not is_gated(result) for result in read.results]
    wholes: list[torch.Tensor | None] = []  # tensors whose two halves the kernel stores
    targets: list[torch.Tensor | None] = []
    for out, dtype, splits in zip(outs, dtypes, is_split, strict=True):
        whole = None
        if splits and not interleaved:
            whole = a.new_empty(shape, dtype=dtype) if out is None else out
        wholes.append(whole)
        targets += [out] if not splits else [None, None] if whole is None else whole.split(half, -1)
    types = [dtype for dtype, splits in zip(dtypes, is_split, strict=True) for _ in range(1 + splits)]
    named = dict(zip(read.names, operands, strict=True))
    for name in [name for name in read.names if name not in lowered.read.names]:
        both = gate_and_up_of(named.pop(name), bool(interleaved))
        named |= dict(zip(_gate_and_up_names(name), both, strict=True))
    keywords = {**vars(how), **named, "out_dtype": tuple(types), "out": tuple(targets)}
    outputs = gemm(a, b, epilogue=lowered.read.function, **keywords)
    stored = iter(outputs if isinstance(outputs, tuple) else (outputs,))
    results = []
    for out, whole, splits in zip(outs, wholes, is_split, strict=True):
        parts = [next(stored) for _ in range(1 + splits)]
        if splits and whole is None:
            joint = torch.stack(parts, -1).resize_(shape)
            results.append(joint if out is None else out.copy_(joint))
        else:
            results.append(parts[0] if whole is None else whole)
    return results
