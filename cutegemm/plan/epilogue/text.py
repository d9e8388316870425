"""Epilogues from text: the inverse of printing them. Text is read by a grammar of its own and runs nothing else.

>>> from cutegemm.plan.epilogue import Row
>>> print(parse_epilogue("gelu(acc + bias), preact = acc + bias", {"bias": Row}))
gelu(acc + bias), preact = acc + bias
>>> parse_epilogue("lambda acc, bias: (gelu(acc + bias), acc + bias)", {"bias": Row}).outputs
('d', 'aux')
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cutegemm.dtypes import DTYPES, DType
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan.epilogue import functions
from cutegemm.plan.epilogue.epilogue import Epilogue
from cutegemm.plan.epilogue.expression import (
    Accumulator,
    Add,
    Binary,
    Cast,
    Compare,
    Constant,
    Divide,
    Expression,
    Half,
    Input,
    Multiply,
    Negative,
    Reduction,
    Subtract,
    expression_of,
)
from cutegemm.plan.epilogue.symbols import result_name

_CALLED = (
    *functions.NAMES, "minimum", "maximum", "where", "equal", "not_equal", "clamp", "softcap", "halves", "pairs",
    "swiglu", "geglu", "reglu", "glu", "swiglu_oai", "row_sum", "row_max", "column_sum", "column_max", "total_sum",
    "total_max",
)  # fmt: skip
_CASTS = {kind.name: partial(functions.cast, dtype=kind) for kind in DTYPES}  # as they are printed
_BINARY: dict[type[ast.operator], type[Binary]] = {
    ast.Add: Add,
    ast.Sub: Subtract,
    ast.Mult: Multiply,
    ast.Div: Divide,
}
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_DEEPEST = 200  # operations within each other: Python reads about a thousand


def parse_expression(text: str, kinds: Mapping[str, type[Input]] | None = None) -> Expression:
    """The expression that a text is the print of; also one written by functions that are made of others.

    kinds    what each operand is, by its name
    raises   PlanError where the text is no expression

    >>> from cutegemm.plan.epilogue import Row
    >>> parse_expression("relu(acc + bias)", {"bias": Row}).child.right
    Row(name='bias')
    >>> print(parse_expression("clamp(acc, -1, 1)"))
    minimum(maximum(acc, -1), 1)
    >>> parse_expression("gelu(acc + bais)", {"bias": Row})
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: epilogue 'gelu(acc + bais)': 1 rule is broken.
      - 'bais' is no operand; acc and bias are there.
    """
    return _Reader(text, _symbols(kinds)).expression(_parsed(text))


def parse_epilogue(text: str, kinds: Mapping[str, type[Input]] | None = None) -> Epilogue:
    """The epilogue that a text is the print of: D's expression, then `name = expression` for each further result.

    text     or several expressions, of which the further ones are stored as "aux", "aux2" and so on; or a lambda of the
             sums and of operands by name that returns one or several
    kinds    what each operand is, by its name
    raises   PlanError where the text is no epilogue
    """
    kinds = dict(kinds or {})
    if not isinstance(text, str):
        raise PlanError(f"epilogue {text!r}", ["a text is expected, such as 'relu(acc)'."])
    if text.lstrip().startswith("lambda"):
        function = function_of(text)
        missing = [name for name in operands_of(text) if name not in kinds]
        if missing:
            said = "what it is" if len(missing) == 1 else "what they are"
            raise PlanError(f"epilogue {text!r}", [f"it takes {' and '.join(missing)}; say {said}."])
        given = {name: kinds[name](name) for name in operands_of(text)}
        return _epilogue(text, kinds, [(None, each) for each in _several(function(Accumulator(), **given))])
    try:
        call = ast.parse(f"_({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _no_python(text, error) from error
    reader = _Reader(text, _symbols(kinds))
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "_":
        raise PlanError(f"epilogue {text!r}", ["an expression of acc, the sums of A @ B, is expected."])
    nodes: list[tuple[str | None, ast.expr]] = []
    for each in call.args:
        nodes += [(None, part) for part in each.elts] if isinstance(each, ast.Tuple) else [(None, each)]
    nodes += [(each.arg or "**", each.value) for each in call.keywords]
    return _epilogue(text, kinds, [(name, reader.expression(node)) for name, node in nodes])


def written(expression: Expression) -> str:
    """Text from which an expression is read again; the print of a gate or an up does not say what it is one of.

    >>> from cutegemm.plan.epilogue.functions import relu, swiglu
    >>> print(swiglu(Accumulator()), "|", written(swiglu(Accumulator())), "|", written(relu(Accumulator())))
    silu(acc.gate) * acc.up | silu(halves(acc)[0]) * halves(acc)[1] | relu(acc)
    """
    return str(_spelled(expression))


def _spelled(node: Expression) -> Expression:
    """An expression that prints as the text of another."""
    if isinstance(node, Half):
        return Input(f"{node.by}({written(node.child)})[{node.side}]")
    if isinstance(node, Constant):  # to torch.compile it may be a symbol, whose value is read by this
        return Constant(float.fromhex(node.value.hex()))
    return node.with_children(*[_spelled(child) for child in node.children])


def operands_of(text: str) -> tuple[str, ...]:
    """The names of the operands of a lambda in a text.

    >>> operands_of("lambda acc, bias, scale: acc * scale + bias")
    ('bias', 'scale')
    """
    return tuple([each.arg for each in _lambda(text).args.args[1:]])


def function_of(text: str) -> Callable[..., Any]:
    """The function that a lambda in a text is: of the sums and of operands by name, all of them expressions.

    >>> from cutegemm.plan.epilogue import Row, epilogue_of
    >>> print(epilogue_of(function_of("lambda acc, bias: (relu(acc + bias), acc)"), {"bias": Row}))
    relu(acc + bias), aux = acc
    """
    tree = _lambda(text)
    names, body = tuple([each.arg for each in tree.args.args]), tree.body

    def function(*accumulators: Any, **operands: Any) -> Any:
        given = {**dict(zip(names, accumulators, strict=False)), **operands}
        reader = _Reader(text, {name: expression_of(value) or value for name, value in given.items()})
        if isinstance(body, ast.Tuple):
            return tuple([reader.expression(part) for part in body.elts])
        return reader.expression(body)

    parameter = partial(inspect.Parameter, kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    function.__signature__ = inspect.Signature([parameter(name) for name in names])  # type: ignore[attr-defined]
    return function


def _symbols(kinds: Mapping[str, type[Input]] | None) -> dict[str, Expression]:
    return {"acc": Accumulator(), **{name: kind(name) for name, kind in (kinds or {}).items()}}


def _several(returned: Any) -> tuple[Expression, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def _epilogue(text: str, kinds: Mapping[str, type[Input]], results: list[tuple[str | None, Expression]]) -> Epilogue:
    if not results or results[0][0] is not None:
        raise PlanError(f"epilogue {text!r}", ["it has no expression for D, which comes first, without a name."])
    (_, first), *others = results
    named = [(name or result_name(i), each) for i, (name, each) in enumerate(others)]
    aux = tuple([(name, each) for name, each in named if not isinstance(each, Reduction)])
    reductions = tuple([(name, each) for name, each in named if isinstance(each, Reduction)])
    epilogue = Epilogue(first, aux, reductions)
    unused = [name for name in kinds if name not in epilogue.kinds]
    if unused:
        raise PlanError(
            f"epilogue {text!r}",
            [f"{name!r} is said to be an operand, but does not appear." for name in unused],
        )
    return epilogue


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _no_python(text, error) from error


def _no_python(text: str, error: BaseException) -> PlanError:
    return PlanError(f"epilogue {text!r}", [f"it is no Python: {getattr(error, 'msg', None) or error}."])


def _lambda(text: str) -> ast.Lambda:
    tree = _parsed(text)
    expected = "a lambda of the sums and of operands by name is expected, such as 'lambda acc, bias: relu(acc + bias)'."
    if not isinstance(tree, ast.Lambda):
        raise PlanError(f"epilogue {text!r}", [expected])
    given = tree.args
    if not given.args or (given.vararg or given.kwarg or given.kwonlyargs or given.defaults or given.posonlyargs):
        raise PlanError(f"epilogue {text!r}", [expected])
    return tree


class _Reader:
    """Expressions of parsed text.

    names   what names stand for
    """

    def __init__(self, text: str, names: Mapping[str, Any]) -> None:
        self.text, self.names = text, names

    def refused(self, rule: str) -> PlanError:
        return PlanError(f"epilogue {self.text!r}", [rule])

    def expression(self, node: ast.AST, depth: int = 0) -> Expression:
        """The expression that a node is; of a number, a constant."""
        value = self.value(node, depth)
        try:
            found = expression_of(value)
        except TypeError as error:
            raise self.refused(str(error)) from error
        if found is None:
            raise self.refused(f"{value!r} is no value of an element; an expression or a number is expected.")
        return found

    def value(self, node: ast.AST, depth: int) -> Any:
        """An expression, a number, several expressions of one call, or the name of an element type in quotes."""
        if depth > _DEEPEST:
            raise self.refused(f"its operations lie {_DEEPEST} deep within each other; fewer are expected.")
        if isinstance(node, ast.Constant):
            if isinstance(node.value, int | float | str) and not isinstance(node.value, bool):
                return node.value
        elif isinstance(node, ast.Name):
            if node.id in self.names:
                return self.names[node.id]
            raise self.refused(f"{node.id!r} is no operand; {_and(self.names)} there.")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self.negative(node, depth)
        elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            sides = [self.expression(side, depth + 1) for side in (node.left, node.right)]
            return _BINARY[type(node.op)](*sides)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
            sides = [self.expression(side, depth + 1) for side in (node.left, node.comparators[0])]
            return Compare(_COMPARED[type(node.ops[0])], *sides)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self.called(node, node.func.id, depth)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            several = self.value(node.value, depth + 1)
            place = node.slice.value
            if isinstance(several, tuple) and isinstance(place, int) and 0 <= place < len(several):
                return several[place]
        elif isinstance(node, ast.Attribute) and node.attr in ("gate", "up"):
            of = ast.unparse(node.value)
            side = int(node.attr == "up")
            raise self.refused(f"{of}.{node.attr}: halves({of})[{side}] or pairs({of})[{side}] is expected.")
        raise self.refused(
            f"{ast.unparse(node)} has no place in an epilogue; + - * /, comparisons, numbers and the functions of "
            "cutegemm.epilogue have."
        )

    def negative(self, node: ast.UnaryOp, depth: int) -> Any:
        """A sign is a number's own where it stands right before its digits."""
        inner = node.operand
        is_number = isinstance(inner, ast.Constant) and isinstance(inner.value, int | float)
        if is_number and inner.col_offset == node.col_offset + 1:
            return -inner.value  # type: ignore[attr-defined]
        return Negative(self.expression(inner, depth + 1))

    def called(self, node: ast.Call, name: str, depth: int) -> Any:
        if name == "cast":
            return self.cast(node, depth)
        function = _CASTS.get(name) or (getattr(functions, name, None) if name in _CALLED else None)
        if function is None:
            there = [each for each in _CALLED if hasattr(functions, each)]
            known = ", ".join(["cast", *there, *_CASTS])
            raise self.refused(f"{name} is no function of an epilogue; {known} are there.")
        if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            raise self.refused(f"{ast.unparse(node)}: arguments by their places alone are expected.")
        values = [self.value(each, depth + 1) for each in node.args]
        try:
            return function(*values)
        except TypeError as error:
            raise self.refused(f"{ast.unparse(node)}: {error}") from error

    def cast(self, node: ast.Call, depth: int) -> Expression:
        if len(node.args) != 2 or node.keywords or not isinstance(node.args[1], ast.Constant):
            raise self.refused(f"{ast.unparse(node)}: an expression and a type such as 'bf16' are expected.")
        try:
            return Cast(self.expression(node.args[0], depth + 1), DType.parse(str(node.args[1].value)))
        except UnsupportedError as error:
            raise self.refused(str(error)) from error


def _and(names: Mapping[str, Any]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"
