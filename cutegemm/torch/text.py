"""Epilogues as text, which a graph can hold: "lambda acc, bias: gelu(acc + bias)".

The first parameter is the sums of A @ B. Operands in memory come next, numbers last, in the order in which the
operators of `library` take them. `plan.epilogue.text` reads it, by a grammar of its own, so that a graph from a file
runs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan.epilogue import (
    Accumulator,
    Expression,
    Reduction,
    Scalar,
    Tensor,
    epilogue_of,
)
from cutegemm.plan.epilogue.dependencies import state_of
from cutegemm.plan.epilogue.expression import expression_of
from cutegemm.plan.epilogue.symbols import returned
from cutegemm.plan.epilogue.text import function_of, operands_of, written
from cutegemm.plan.rules.gated import wide_results
from cutegemm.run.calls import Calls
from cutegemm.run.torch_ops import DTYPES
from cutegemm.torch.halves import in_halves, is_gated, is_half
from cutegemm.torch.traced import constant

_texts = Calls()  # by the key of a caller's function, and by the names of its operands


@dataclass(frozen=True)
class Formula:
    """An epilogue that was read from text.

    text       what was read
    names      of its operands
    function   what `gemm` takes; one object for one text
    results    expressions in the order of what is returned, D's first; every operand in them is a `Tensor`
    """

    text: str
    names: tuple[str, ...]
    function: Callable[..., Any]
    results: tuple[Expression, ...]

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """The values of operands by name.

        raises   PlanError where there are more or fewer of them
        """
        if len(values) != len(self.names):
            names = ", ".join(self.names) or "none"
            raise PlanError(
                f"epilogue {self.text!r}", [f"{len(values)} operands are passed; {names} are expected."]
            )
        return dict(zip(self.names, values, strict=True))

    def columns_of_d(self, columns: Any) -> Any:
        """Return the number of columns of D: half of those of A @ B if the epilogue is gated."""
        return columns // 2 if any(is_gated(result) for result in self.results) else columns

    def shapes(self, rows: Sequence[Any], columns: Any) -> list[tuple[Any, ...]]:
        """Return the shape of each result.

        rows      extents of A without K: (M,), or (L, M)
        columns   of A @ B

        >>> formula("lambda acc: (swiglu(acc), acc, row_sum(swiglu(acc)), column_max(swiglu(acc)))").shapes((4,), 6)
        [(4, 3), (4, 6), (4,), (3,)]
        """
        d, found = (*rows, self.columns_of_d(columns)), []
        for result in self.results:
            if isinstance(result, Reduction):
                kept = [extent for mode, extent in zip("mn", d[-2:], strict=True) if mode not in result.along]
                found.append((*d[:-2], *kept))
            else:
                found.append(d if is_gated(result) else (*rows, columns))
        return found


# The type of D and of auxiliary results; or one for each result, with None in the place of one that is not asked for.
OutDtype: TypeAlias = torch.dtype | tuple[torch.dtype | None, ...] | None


@constant
def types_text(out_dtype: OutDtype) -> str:
    """Return the types of results as text, which a graph holds.

    >>> types_text(torch.float32), types_text((None, torch.float32))
    ('float32', ', float32')
    """
    kinds = out_dtype if isinstance(out_dtype, tuple) else (out_dtype,)
    return ", ".join(["" if kind is None else str(kind).removeprefix("torch.") for kind in kinds])


def types_read(text: str | None) -> OutDtype:
    """Return the types of results from the text of a graph; None for no text.

    raises   UnsupportedError for the name of a type that no kernel stores

    >>> types_read("float32"), types_read(", float32")
    (torch.float32, (None, torch.float32))
    """
    if text is None:
        return None
    known = {"": None, **{str(kind).removeprefix("torch."): kind for kind in DTYPES}}
    names = text.split(", ")
    strange = [name for name in names if name not in known]
    if strange:
        served = ", ".join(filter(None, known))
        raise UnsupportedError(f"out_dtype names {', '.join(strange)}; {served} are served.")
    kinds = tuple([known[name] for name in names])
    return kinds if len(kinds) > 1 else kinds[0]


@lru_cache(maxsize=4096)
def formula(text: str) -> Formula:
    """Read an epilogue from its text.

    raises   PlanError where the text is no epilogue

    >>> read = formula("lambda acc, bias: (gelu(acc + bias), acc + bias)")
    >>> read.names, [str(each) for each in read.results]
    (('bias',), ['gelu(acc + bias)', 'acc + bias'])
    >>> formula("lambda acc: acc.real")
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: epilogue 'lambda acc: acc.real': 1 rule is broken.
      - acc.real has no place in an epilogue; + - * /, comparisons, numbers and the functions of cutegemm.epilogue have.
    """
    names, function = operands_of(text), function_of(text)
    epilogue = epilogue_of(function, dict.fromkeys(names, Tensor))
    return Formula(text, names, function, returned(epilogue))


@lru_cache(maxsize=4096)
def names_in_halves(text: str) -> frozenset[str]:
    """Return the operands of a gated epilogue that stand inside of halves() or pairs(), or in a result without these.

    >>> sorted(names_in_halves("lambda acc, c, r: (swiglu(acc + c) + r, acc + c)"))
    ['c']
    >>> names_in_halves("lambda acc, c: acc + c")
    frozenset()
    """
    results = in_halves(formula(text).results)[0]
    halves = [node for result in results for node in result.nodes() if is_half(node)]
    return frozenset([name for half in halves for name in half.tensors])


def text_of(results: Sequence[Expression], names: Sequence[str]) -> str:
    """Expressions as text; `formula` reads the same ones from it.

    >>> from cutegemm.plan.epilogue import Accumulator, Row
    >>> text_of([(Accumulator() + Row("bias")) * (1 / 3)], ["bias"])
    'lambda acc, bias: (acc + bias) * 0.3333333333333333'
    """
    each = [written(result) for result in results]
    body = each[0] if len(each) == 1 else f"({', '.join(each)})"
    return f"lambda {', '.join(['acc', *names])}: {body}"


def text_of_function(function: Callable[..., Any], tensors: tuple[str, ...], numbers: tuple[str, ...]) -> str:
    """Return the text of a caller's function.

    Dynamo follows the call of the function, so a graph is compiled anew after something that the function reads has
    changed. Otherwise the function is called if it is new, if something that it reads has changed, or if that cannot be
    found out.

    tensors, numbers   the names of its operands
    raises             PlanError as `epilogue_of`, and for a sum or maximum of columns that a gated D does not have

    >>> text_of_function(lambda acc, bias, scale: (acc + bias) * scale, ("bias",), ("scale",))
    'lambda acc, bias, scale: (acc + bias) * scale'
    """
    if torch.compiler.is_compiling():
        symbols = {name: Tensor(name) for name in tensors} | {name: Scalar(name) for name in numbers}
        value = function(Accumulator(), **symbols)
        several = value if isinstance(value, (tuple, list)) else (value,)
        results = [each if isinstance(each, Reduction) else expression_of(each) for each in several]
        if not several or any(each is None for each in results):
            kind = type(value).__name__
            return _refused(f"it returned a {kind}; an expression, or a tuple of them, is expected.")
        expressions = [each for each in results if each is not None]
        return _read(text_of(expressions, (*tensors, *numbers)), tensors, numbers)
    state = state_of(function)
    if state is None:
        return _text_of(function, tensors, numbers)
    key = state, tensors, numbers
    text: str | None = _texts.found.get(key)
    if text is None:
        text = _text_of(function, tensors, numbers)
        _texts.keep(key, text)
    return text


@constant
def _refused(rule: str) -> str:
    """Raises PlanError with a rule: in Dynamo, which does not follow how an error is made."""
    raise PlanError("epilogue", [rule])


@constant
def _read(text: str, tensors: tuple[str, ...], numbers: tuple[str, ...]) -> str:
    """The text of an epilogue that obeys the rules, as `_text_of` writes it."""
    return _text_of(function_of(text), tensors, numbers)


def _text_of(function: Callable[..., Any], tensors: tuple[str, ...], numbers: tuple[str, ...]) -> str:
    """The text of a function, which is called with symbols; the arguments are those of `text_of_function`."""
    kinds = {**dict.fromkeys(tensors, Tensor), **dict.fromkeys(numbers, Scalar)}
    epilogue = epilogue_of(function, kinds)
    if any(name in epilogue.wide for name, _ in epilogue.reductions):
        raise PlanError(f"epilogue {epilogue}", list(wide_results(epilogue)))
    return text_of(returned(epilogue), (*tensors, *numbers))
