"""Epilogues as text, which a graph of torch can hold: "lambda acc, bias: gelu(acc + bias)".

The first parameter is the accumulator of A @ B. Tensors come next and numbers last, in the order of the arguments of
the operators in `library`. `cutegemm.plan.epilogue.text` parses the text by a grammar of its own, so that a graph
from a file runs no other code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeAlias

import torch

from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan.epilogue import Accumulator, Expression, Half, Reduction, Scalar, Tensor, epilogue_of
from cutegemm.plan.epilogue.dependencies import state_of
from cutegemm.plan.epilogue.expression import expression_of
from cutegemm.plan.epilogue.quantized import BlockScale
from cutegemm.plan.epilogue.symbols import returned
from cutegemm.plan.epilogue.text import function_of, operands_of, written
from cutegemm.plan.rules.gated import wide_results
from cutegemm.run.calls import Calls
from cutegemm.run.scales import blocks_of
from cutegemm.run.torch_ops import DTYPES

PLAIN = "lambda acc: acc"
SCALED = "lambda acc, factor: factor * acc"
LINEAR = "lambda acc, addend, factor, weight: factor * acc + weight * addend"

# Type of D and of auxiliary outputs, or a type for each result. None stands for the default.
OutDtype: TypeAlias = torch.dtype | tuple[torch.dtype | None, ...] | None

_texts = Calls()  # texts by the state of the caller's function and the names of its operands


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that its results are cached, and that torch.compile treats each result as a constant.

    torch.compile calls the function and puts its value into the graph, instead of tracing its steps.

    function   function of constants, such as texts, that returns a text

    >>> constant(lambda x, y: x + y)("a", "b")
    'ab'
    """
    cached = lru_cache(maxsize=4096)(function)

    @wraps(function)
    def call(*args: Any) -> Any:
        return cached(*args)

    # The mark of torch.compiler.assume_constant_result, which imports Dynamo.
    call._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return call


def dtype_name(dtype: torch.dtype | None) -> str:
    """Return the name of a torch dtype without the prefix "torch.", such as "float16"; "" for None."""
    return "" if dtype is None else str(dtype).removeprefix("torch.")


def is_gated(result: Expression) -> bool:
    """Return True if a result of an epilogue combines gate and up columns of A @ B, so that it is half as wide."""
    return any(isinstance(node, Half) for node in result.nodes())


@dataclass(frozen=True)
class Formula:
    """Holds an epilogue in all forms that calls from torch need, parsed from a text.

    text       the text, such as "lambda acc, bias: relu(acc + bias)"
    names      names of the operands, such as ("bias",); the accumulator is not among them
    function   Python function to pass to `gemm` as its epilogue; the same object for the same text
    results    one symbolic expression for each result, D first
    """

    text: str
    names: tuple[str, ...]
    function: Callable[..., Any]
    results: tuple[Expression, ...]

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return operand name -> value, for values in the order of this epilogue's operands.

        raises   PlanError if the number of values differs from the number of operands
        """
        if len(values) != len(self.names):
            names = ", ".join(self.names) or "none"
            rule = f"{len(values)} operands are passed, but the epilogue takes {names}. Pass {len(self.names)}."
            raise PlanError(f"epilogue {self.text!r}", [rule])
        return dict(zip(self.names, values, strict=True))

    def columns_of_d(self, columns: Any) -> Any:
        """Return the number of columns of D: `columns`, those of A @ B, or half of them if this epilogue is gated."""
        return columns // 2 if any(is_gated(result) for result in self.results) else columns

    def shapes(self, rows: Sequence[Any], columns: Any) -> list[tuple[Any, ...]]:
        """Return the shape of each result of this epilogue.

        rows      extents of A without K: (M,) or (L, M)
        columns   number of columns of A @ B

        >>> formula("lambda acc: (swiglu(acc), acc, row_sum(swiglu(acc)), column_max(swiglu(acc)))").shapes((4,), 6)
        [(4, 3), (4, 6), (4,), (3,)]
        """
        d, shapes = (*rows, self.columns_of_d(columns)), []
        for result in self.results:
            if isinstance(result, BlockScale):
                shapes.append((*rows, blocks_of(d[-1])))
            elif isinstance(result, Reduction):
                kept = [extent for mode, extent in zip("mn", d[-2:], strict=True) if mode not in result.along]
                shapes.append((*d[:-2], *kept))
            else:
                shapes.append(d if is_gated(result) else (*rows, columns))
        return shapes


@constant
def types_text(out_dtype: OutDtype) -> str:
    """Return types of results as text, which a graph of torch.compile can contain; `types_read` reads it.

    out_dtype   a torch dtype, None, or a sequence of these

    >>> types_text(torch.float32), types_text((None, torch.float32))
    ('float32', ', float32')
    """
    return ", ".join(map(dtype_name, out_dtype if isinstance(out_dtype, tuple) else (out_dtype,)))


def types_read(text: str | None) -> OutDtype:
    """Return the torch dtypes of results that a text in a graph of torch.compile stands for; None for None.

    text     text that `types_text` has written
    raises   UnsupportedError for the name of a type that no kernel stores

    >>> types_read("float32"), types_read(", float32")
    (torch.float32, (None, torch.float32))
    """
    if text is None:
        return None
    known = {"": None, **{dtype_name(dtype): dtype for dtype in DTYPES}}
    names = text.split(", ")
    unknown = [name for name in names if name not in known]
    if unknown:
        served = ", ".join(filter(None, known))
        raise UnsupportedError(f"out_dtype names {', '.join(unknown)}. Supported are {served}.")
    types = tuple([known[name] for name in names])
    return types if len(types) > 1 else types[0]


@lru_cache(maxsize=4096)
def formula(text: str) -> Formula:
    """Parse the text of an epilogue, such as "lambda acc, bias: relu(acc + bias)".

    text     a lambda of the accumulator and of the operands
    raises   PlanError if the text is not an epilogue

    >>> read = formula("lambda acc, bias: (gelu(acc + bias), acc + bias)")
    >>> read.names, [str(each) for each in read.results]
    (('bias',), ['gelu(acc + bias)', 'acc + bias'])
    >>> formula("lambda acc: acc.real")
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: epilogue 'lambda acc: acc.real': 1 rule is broken.
      - acc.real cannot be used in an epilogue. Use + - * /, comparisons, ...
    """
    names, function = operands_of(text), function_of(text)
    epilogue = epilogue_of(function, dict.fromkeys(names, Tensor))
    return Formula(text, names, function, returned(epilogue))


def text_of(results: Sequence[Expression], names: Sequence[str]) -> str:
    """Return the text of an epilogue with given results, e.g. "lambda acc, bias: acc + bias"; `formula` parses it.

    results   expressions, D first
    names     names of the operands, in order

    >>> from cutegemm.plan.epilogue import Accumulator, Row
    >>> text_of([(Accumulator() + Row("bias")) * (1 / 3)], ["bias"])
    'lambda acc, bias: (acc + bias) * 0.3333333333333333'
    """
    return lambda_of([written(result) for result in results], names)


def lambda_of(results: Sequence[str], names: Sequence[str]) -> str:
    """Return the text of an epilogue, a lambda, from the texts of its results: "lambda acc, bias: (acc + bias, acc)".

    results   text of each result, D first
    names     names of the operands, in order

    >>> lambda_of(["acc", "row_sum(acc)"], [])
    'lambda acc: (acc, row_sum(acc))'
    """
    body = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"lambda {', '.join(['acc', *names])}: {body}"


def text_of_function(function: Callable[..., Any], tensors: tuple[str, ...], numbers: tuple[str, ...]) -> str:
    """Return an epilogue function as text: a lambda that computes the same, for caches and graphs.

    The function is called with symbols to find its text. In eager mode that happens once, and again after a variable
    that it reads has changed. Under torch.compile, Dynamo traces the call, and guards these variables.

    function           the user's function of the accumulator and of the operands
    tensors, numbers   names of the tensor operands, and of the number operands
    raises             PlanError if the function is not an epilogue, or reduces columns that a gated D does not have

    >>> text_of_function(lambda acc, bias, scale: (acc + bias) * scale, ("bias",), ("scale",))
    'lambda acc, bias, scale: (acc + bias) * scale'
    """
    if torch.compiler.is_compiling():
        symbols = {name: Tensor(name) for name in tensors} | {name: Scalar(name) for name in numbers}
        value = function(Accumulator(), **symbols)
        several = value if isinstance(value, (tuple, list)) else (value,)
        results = [each if isinstance(each, Reduction) else expression_of(each) for each in several]
        if not several or any(each is None for each in results):
            return _raise(f"the function returned a {type(value).__name__}; return an expression or a tuple of them.")
        expressions = [each for each in results if each is not None]
        return _checked(text_of(expressions, (*tensors, *numbers)), tensors, numbers)
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
def _raise(rule: str) -> str:
    """Raise a PlanError with the message `rule`.

    Under torch.compile, Dynamo cannot trace a raise statement, so it calls this function instead and takes the "result"
    as a constant.
    """
    raise PlanError("epilogue", [rule])


@constant
def _checked(text: str, tensors: tuple[str, ...], numbers: tuple[str, ...]) -> str:
    """Parse the text of an epilogue, check it, and return it in a normal form that is equal for equal epilogues.

    text               a lambda of the accumulator and of the operands
    tensors, numbers   names of the tensor operands, and of the number operands
    """
    return _text_of(function_of(text), tensors, numbers)


def _text_of(function: Callable[..., Any], tensors: tuple[str, ...], numbers: tuple[str, ...]) -> str:
    """Call an epilogue function with symbols and return the text of what it computes, a lambda.

    function           the user's function of the accumulator and of the operands
    tensors, numbers   names of the tensor operands, and of the number operands
    """
    epilogue = epilogue_of(function, {**dict.fromkeys(tensors, Tensor), **dict.fromkeys(numbers, Scalar)})
    if any(name in epilogue.wide for name, _ in epilogue.reductions):
        raise PlanError(f"epilogue {epilogue}", list(wide_results(epilogue)))
    return text_of(returned(epilogue), (*tensors, *numbers))
