"""`grouped_mm`: products of groups of rows, columns or k by matrices of their own, with an epilogue and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from cutegemm.plan.epilogue import Accumulator, Expression, Reduction, Tensor
from cutegemm.plan.memory.groups import COUNTS, ENDS
from cutegemm.plan.problem import INDEX
from cutegemm.run.calls import Calls, How, is_batch_invariant
from cutegemm.run.checks import wrong_choices, wrong_numbers
from cutegemm.torch import checks
from cutegemm.torch.autograd import product as batched_product
from cutegemm.torch.dispatch import as_autocast
from cutegemm.torch.epilogue import PLAIN, constant, formula, text_of, text_of_function
from cutegemm.torch.grouped.forms import Form, is_wide
from cutegemm.torch.grouped.library import product, wrong_mode
from cutegemm.torch.launch import in_mode

_right = Calls()  # signatures of calls of `grouped_mm` whose arguments are right
_RANKS = ((2, 3), (3, 2), (2, 2))


def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
    a_index: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    epilogue: Callable[..., Any] | None = None,
    plan: Any = None,
    **operands: Any,
) -> Any:
    """Return the products of groups, as torch.nn.functional.grouped_mm, with an epilogue of each group.

    | mat_a     | mat_b     | groups divide                     | result    |
    |-----------|-----------|-----------------------------------|-----------|
    | (M, K)    | (L, K, N) | the rows of mat_a, M              | (M, N)    |
    | (L, M, K) | (K, N)    | the columns of mat_b, N           | (M, N)    |
    | (M, K)    | (K, N)    | K                                 | (L, M, N) |
    | (L, M, K) | (L, K, N) | nothing: a batch, without `offs`  | (L, M, N) |
    | (L, M, K) | (L, K, N) | the rows of mat_a, with `counts`  | (L, M, N) |

    offs        (L,) int32 on the device of mat_a: the end of each group. Ends must not decrease; groups may be empty.
                Rows and columns after the last end are not written. The host does not read it
    counts      (L,) int32: the number of valid rows of each matrix of mat_a, instead of `offs`. The other rows are not
                written
    a_index     (M,) int32: row r of the product has row a_index[r] of mat_a, which then has any number of rows; for
                groups of rows only. The kernel loads each row from mat_a, so that no copy of the rows is needed. A row
                that mat_a does not have counts as zeros. Gradients and torch.compile copy the rows first
    bias        (N,), or (L, N) for a bias of each group, added before the epilogue's function
    out_dtype   type of the result; None: that of mat_a, or bfloat16 for float8
    epilogue    function of the accumulator and of `operands` by name, as for `cutegemm.gemm`, without reductions
    plan        name of a plan, or a plan; None: the one with the lowest predicted time
    operands    numbers and tensors of the epilogue: (), (N,) or (L, 1, N) for columns, (M, 1) or (L, M, 1) for rows, or
                the shape of the result; with `counts`, (L, M, 1) for rows
    returns     the result; a tuple if the epilogue returns several
    raises      UnsupportedError with every rule that is violated

    >>> x, w = torch.ones(4, 2), torch.stack([torch.eye(2), 3 * torch.eye(2)])
    >>> grouped_mm(x, w, offs=torch.tensor([1, 4], dtype=torch.int32), bias=torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    tensor([[1., 2.],
            [5., 6.],
            [5., 6.],
            [5., 6.]])

    Rows 0 and 2 of the product are the same row of x, by different weights:

    >>> x, index = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 0, 1], dtype=torch.int32)
    >>> grouped_mm(x, w, offs=torch.tensor([1, 3], dtype=torch.int32), a_index=index)
    tensor([[ 3.,  4.],
            [ 3.,  6.],
            [ 9., 12.]])
    """
    mat_a, mat_b = as_autocast(mat_a, mat_b)
    tensors = {"mat_a": mat_a, "mat_b": mat_b, "offs": offs, "counts": counts, "a_index": a_index, "bias": bias}
    tensors |= {name: x for name, x in operands.items() if isinstance(x, torch.Tensor)}
    kinds = checks.signature_of(tuple(tensors.values()))
    how = How(plan=plan)
    key = kinds, tuple(operands), str(out_dtype), epilogue is None, type(plan)
    if kinds is None or is_batch_invariant() or key not in _right.found:
        rules = wrong_choices(how) + wrong_arguments(tensors, out_dtype)
        if not rules and operands and epilogue is None:
            is_or_are = "is" if len(operands) == 1 else "are"
            rules.append(
                f"{' and '.join(operands)} {is_or_are} passed without an epilogue. Pass epilogue=, a function of the "
                "accumulator and of operands."
            )
        checks.refuse("grouped_mm", tensors, rules)
        if kinds is not None:
            _right.keep(key, True)
    names = tuple([name for name, x in operands.items() if isinstance(x, torch.Tensor)])
    others = tuple([name for name in operands if name not in names])
    if others:
        checks.refuse("grouped_mm", tensors, wrong_numbers({name: operands[name] for name in others}))
    text = PLAIN if epilogue is None else text_of_function(epilogue, names, others)
    values, numbers = [operands[name] for name in names], [float(operands[name]) for name in others]
    if bias is not None:
        text, values = _with_bias(text), [row_of_groups(bias), *values]
    results = multiplied("grouped_mm", tensors, text, values, numbers, out_dtype, how)
    return results[0] if len(results) == 1 else results


def row_of_groups(bias: torch.Tensor) -> torch.Tensor:
    """Return a bias (N,), or (L, N) for one of each group, as an operand of an epilogue."""
    return bias.unsqueeze(1) if bias.dim() == 2 else bias


def multiplied(
    called: str,
    tensors: Mapping[str, Any],
    text: str,
    values: Sequence[torch.Tensor],
    numbers: Sequence[float],
    out_dtype: torch.dtype | None,
    how: How,
) -> tuple[torch.Tensor, ...]:
    """Check the operands of an epilogue, and return its results: those of groups, or of a batch without `offs`.

    called    name of the function, for error messages
    tensors   arguments of the call by name, as `wrong_arguments` accepts them
    text      the epilogue
    values    its tensors, in order
    numbers   its numbers
    """
    a, b, ends, index = tensors["mat_a"], tensors["mat_b"], tensors["offs"], tensors.get("a_index")
    ends = tensors.get("counts") if ends is None else ends
    if values or text != PLAIN:
        checks.refuse(called, tensors, _wrong_operands(Form.of(a, b, ends, index), text, a, values, index is not None))
    if ends is None:
        results = batched_product(a, (b,), text, tuple(values), tuple(numbers), out_dtype, in_mode(how))
    else:
        results = product(a, b, ends, text, values, numbers, out_dtype, how, index=index)
    return tuple(results[: _count(text)])


@constant
def _with_bias(text: str) -> str:
    """Return the epilogue of the accumulator plus a bias, which becomes its first operand.

    >>> _with_bias("lambda acc, scale: relu(acc * scale)")
    'lambda acc, bias, scale: relu((acc + bias) * scale)'
    """

    def biased(node: Expression) -> Expression:
        """Return an expression with the accumulator replaced by its sum with the bias."""
        if isinstance(node, Accumulator):
            return node + Tensor("bias")
        return node.with_children(*[biased(child) for child in node.children])

    read = formula(text)
    return text_of([biased(result) for result in read.results], ("bias", *read.names))


def wrong_arguments(tensors: Mapping[str, Any], out_dtype: torch.dtype | None) -> list[str]:
    """Return error messages for the ranks, extents and types of the factors, and for the ends of groups.

    tensors     arguments by name: mat_a, mat_b, operands; and offs, counts, a_index and bias, which may be None
    out_dtype   type of the result; None for the default
    """
    if rules := checks.wrong_tensors(tensors, ("offs", "counts", "a_index", "bias")):
        return rules
    a, b, offs = tensors["mat_a"], tensors["mat_b"], tensors["offs"]
    if (index := tensors.get("a_index")) is not None:
        rules = _wrong_index(a, b, offs, index)
    if (counts := tensors.get("counts")) is not None:
        rules += checks.wrong_factors(("mat_a", "mat_b"), a, b) + checks.wrong_out_dtype(a, out_dtype)
        return rules + _wrong_counts(a, b, offs, counts) + wrong_mode()
    rules += checks.wrong_factors(("mat_a", "mat_b"), a, b) + checks.wrong_out_dtype(a, out_dtype)
    ranks = a.dim(), b.dim()
    if offs is None:
        if ranks != (3, 3):
            rules.append(f"mat_a has {ranks[0]} dimensions and mat_b {ranks[1]}. Pass offs, the end of each group.")
        return rules
    rules += wrong_mode()
    if ranks == (3, 3):
        return [*rules, "mat_a and mat_b are batches, whose groups have equal sizes. Leave out offs."]
    if ranks not in _RANKS:
        shapes = f"mat_a has shape {tuple(a.shape)}, mat_b {tuple(b.shape)}"
        return [*rules, f"{shapes}. Pass (M, K) by (L, K, N), (L, M, K) by (K, N), or (M, K) by (K, N)."]
    if a.shape[-1] != b.shape[-2]:
        remedy = " Pass mat_b.mT, which fits." if a.shape[-1] == b.shape[-1] else ""
        rules.append(f"mat_a has {a.shape[-1]} columns, mat_b has {b.shape[-2]} rows, but both are K.{remedy}")
    if offs.dim() != 1 or offs.dtype != torch.int32:
        rules.append(f"offs has shape {tuple(offs.shape)} and is of {offs.dtype}. Pass one dimension of int32.")
    else:
        batch = [x.shape[0] for x in (a, b) if x.dim() == 3]
        if batch and offs.shape[0] != batch[0]:
            rules.append(f"offs has {offs.shape[0]} elements, but there are {batch[0]} matrices. Pass one end of each.")
    return rules


def _wrong_index(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None, index: torch.Tensor) -> list[str]:
    """Return error messages for an index of the rows of a."""
    rules = []
    if (a.dim(), b.dim()) != (2, 3) or offs is None:
        shapes = f"mat_a has shape {tuple(a.shape)}, mat_b {tuple(b.shape)}"
        rules.append(f"a_index selects rows for groups of rows, but {shapes}. Pass (T, K), (L, K, N) and offs.")
    if index.dim() != 1 or index.dtype != torch.int32:
        rules.append(f"a_index has shape {tuple(index.shape)} and is of {index.dtype}. Pass one dimension of int32.")
    return rules


def _wrong_counts(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None, counts: torch.Tensor) -> list[str]:
    """Return error messages for a call with the number of valid rows of each matrix."""
    if offs is not None:
        return ["offs and counts are passed. Pass offs for groups in one matrix, or counts for a matrix of each group."]
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[-1] != b.shape[-2]:
        shapes = f"mat_a has shape {tuple(a.shape)}, mat_b {tuple(b.shape)}"
        return [f"{shapes}. With counts, pass (L, M, K) by (L, K, N)."]
    if tuple(counts.shape) != (a.shape[0],) or counts.dtype != torch.int32:
        shape = f"counts has shape {tuple(counts.shape)} and is of {counts.dtype}"
        return [f"{shape}. Pass {a.shape[0]} numbers of int32, one for each matrix."]
    return []


def _wrong_operands(
    form: Form, text: str, a: torch.Tensor, tensors: Sequence[torch.Tensor], gathers: bool
) -> list[str]:
    """Return error messages for operands whose shape or type fits no kind, and for reductions in an epilogue.

    gathers   whether an index selects the rows of a
    """
    names, wide, columns, reduces = _read(text)
    rules = checks.wrong_operand_dtypes(a, **dict(zip(names, tensors, strict=False)))
    shapes = [(form.n,), (form.l, 1, form.n), (form.m, 1), (form.l, form.m, 1)]
    if form.is_padded:
        del shapes[2]
    elif form.groups in ("m", "n"):
        del shapes[3 if form.groups == "m" else 1]
    rules += [
        f"{name} has shape {tuple(x.shape)}, which does not broadcast to groups. Pass (), "
        f"{', '.join(map(str, shapes))}, or the shape of the result."
        for name, x in zip(names, tensors, strict=False)
        if form.operand(x, form.n if name in wide else form.n // columns) is None
    ]
    own = (ENDS, COUNTS, INDEX) if gathers else (ENDS, COUNTS)
    for name in {*names} & {*own} if form.groups else ():
        rules.append(f"an operand has the name {name!r}, which a kernel uses itself. Rename it and its parameter.")
    if columns == 2 and form.groups == "n":
        rules.append(
            "groups divide the columns of mat_b, which the epilogue takes as gate and up. Pass groups of rows: mat_a "
            "of shape (M, K), mat_b of (L, K, N)."
        )
    if reduces:
        rules.append("the epilogue reduces, but grouped kernels cannot. Reduce the result instead.")
    return rules


@constant
def _read(text: str) -> tuple[tuple[str, ...], tuple[str, ...], int, bool]:
    """Read an epilogue and return the facts that the checks of its operands need.

    text      the epilogue, such as "relu(acc + bias)"
    returns   (names of all operands, names of row operands with as many columns as b, number of columns of b per column
              of D: 1 or 2, True if the epilogue reduces)
    """
    read = formula(text)
    wide = tuple([name for name in read.names if is_wide(read, name)])
    return read.names, wide, 2 // read.columns_of_d(2), any(isinstance(each, Reduction) for each in read.results)


@constant
def _count(text: str) -> int:
    """Return the number of results of an epilogue."""
    return len(formula(text).results)
