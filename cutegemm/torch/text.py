"""Epilogues as text, which a graph can hold: "lambda acc, bias: gelu(acc + bias)".

The first parameter is the sums of A @ B. Operands in memory come next, numbers last, in the order in which the
operators of `library` take them. Text is read by a grammar of its own, so that a graph from a file runs nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cutegemm.errors import PlanError
from cutegemm.plan.epilogue import (
    Accumulator,
    Binary,
    Cast,
    Compare,
    Constant,
    Expression,
    Input,
    Negative,
    Scalar,
    Tensor,
    epilogue_of,
    functions,
)
from cutegemm.torch.halves import is_half, text_of_half
from cutegemm.torch.traced import constant

_CALLED = (
    *functions.NAMES, "minimum", "maximum", "where", "equal", "not_equal", "cast", "clamp", "softcap", "halves",
    "pairs",
)  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(functions, name) for name in _CALLED if hasattr(functions, name)
}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_PARTS = (
    ast.Load,
    ast.Tuple,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Call,
    ast.Name,
    ast.Constant,
    ast.Subscript,
)


@dataclass(frozen=True)
class Formula:
    """An epilogue that was read from text.

    text       what was read
    names      of its operands
    function   what `gemm` takes; one object for one text
    results    expressions, D's first, in which every operand is a `Tensor`
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


@lru_cache(maxsize=4096)
def formula(text: str) -> Formula:
    """Reads an epilogue.

    raises   PlanError where the text is no epilogue

    >>> read = formula("lambda acc, bias: (gelu(acc + bias), acc + bias)")
    >>> read.names, [str(each) for each in read.results]
    (('bias',), ['gelu(acc + bias)', 'acc + bias'])
    >>> formula("lambda acc: open('file')")
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: epilogue "lambda acc: open('file')": 1 rule is broken.
      - open('file') has no place in an epilogue; + - * /, comparisons, numbers and functions of cutegemm.epilogue have.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise PlanError(f"epilogue {text!r}", [f"it is no Python: {error.msg}."]) from error
    if not isinstance(tree, ast.Lambda) or not tree.args.args or not _is_plain(tree.args):
        raise PlanError(f"epilogue {text!r}", ["a lambda of the sums, and of operands, is expected."])
    acc, *names = [each.arg for each in tree.args.args]
    for node in ast.walk(tree.body):
        if not _is_allowed(node, {acc, *names}):
            raise PlanError(
                f"epilogue {text!r}",
                [
                    f"{ast.unparse(node)} has no place in an epilogue; + - * /, comparisons, numbers and functions of "
                    "cutegemm.epilogue have."
                ],
            )
    function = eval(compile(ast.Expression(tree), f"<{text}>", "eval"), {"__builtins__": {}, **FUNCTIONS})
    epilogue = epilogue_of(function, dict.fromkeys(names, Tensor))
    return Formula(text, tuple(names), function, tuple([each for _, each in epilogue.results]))


def _is_plain(given: ast.arguments) -> bool:
    return not (given.vararg or given.kwarg or given.kwonlyargs or given.defaults or given.posonlyargs)


def _is_allowed(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Call):
        is_known = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
        return is_known and not any(isinstance(each, ast.Starred) for each in node.args)
    if isinstance(node, ast.Name):
        return node.id in names or node.id in FUNCTIONS
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float) or node.value in _TYPES
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in (0, 1)
    return isinstance(node, (*_PARTS, *_OPERATORS))


_TYPES = ("f16", "bf16", "tf32", "f32", "f64", "e4m3", "e5m2", "s8", "s32")  # arguments of a cast


def text_of(results: Sequence[Expression], names: Sequence[str]) -> str:
    """Expressions as text; `formula` reads the same ones from it.

    >>> from cutegemm.plan.epilogue import Accumulator, Row
    >>> text_of([(Accumulator() + Row("bias")) * (1 / 3)], ["bias"])
    'lambda acc, bias: (acc + bias) * 0.3333333333333333'
    """
    each = [_text(result) for result in results]
    body = each[0] if len(each) == 1 else f"({', '.join(each)})"
    return f"lambda {', '.join(['acc', *names])}: {body}"


def _text(node: Expression) -> str:
    if isinstance(node, Accumulator):
        return "acc"
    if isinstance(node, Constant):
        return f"{node.value:g}" if float(f"{node.value:g}") == node.value else repr(node.value)
    if isinstance(node, Input):
        return node.name
    if isinstance(node, Negative):
        return f"-{_within(node.child, node.precedence)}"
    if isinstance(node, Binary) or (isinstance(node, Compare) and node.symbol[0] in "<>"):
        right = _within(node.right, node.precedence + 1)
        return f"{_within(node.left, node.precedence)} {node.symbol} {right}"
    inside = [_text(child) for child in node.children]
    if is_half(node):
        return text_of_half(node, inside[0])
    if isinstance(node, Compare):
        return f"{'equal' if node.symbol == '==' else 'not_equal'}({', '.join(inside)})"
    if isinstance(node, Cast):
        return f'cast({inside[0]}, "{node.dtype}")'
    return f"{node.called}({', '.join(inside)})"  # type: ignore[attr-defined]


def _within(node: Expression, precedence: int) -> str:
    is_negative = isinstance(node, Constant) and node.value < 0
    return f"({_text(node)})" if node.precedence < precedence or is_negative else _text(node)


@constant
def text_of_function(function: Callable[..., Any], tensors: tuple[str, ...], numbers: tuple[str, ...]) -> str:
    """The text of a caller's function, which is called with symbols once.

    tensors, numbers   the names of its operands
    raises             PlanError as `epilogue_of`

    >>> text_of_function(lambda acc, bias, scale: (acc + bias) * scale, ("bias",), ("scale",))
    'lambda acc, bias, scale: (acc + bias) * scale'
    """
    kinds = {**dict.fromkeys(tensors, Tensor), **dict.fromkeys(numbers, Scalar)}
    epilogue = epilogue_of(function, kinds)
    if epilogue.reductions:
        raise PlanError(
            f"epilogue {epilogue}",
            [
                f"{reduction} is known to `gemm` alone: it has no gradients, and no graph holds it. Call gemm with "
                "tensors that require none, outside of torch.compile."
                for _, reduction in epilogue.reductions
            ],
        )
    return text_of([each for _, each in epilogue.results], (*tensors, *numbers))
