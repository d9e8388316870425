"""Parser of epilogues from text, the inverse of printing them.

The text is parsed by Python's `ast` and interpreted node by node. It is never executed as Python code.

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
    "total_max", "quantize",
)  # fmt: skip
_CASTS = {kind.name: partial(functions.cast, dtype=kind) for kind in DTYPES}  # a cast is printed as a call of its type
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
_DEEPEST = 200  # nesting of operations; Python's recursion limit is about 1000


def parse_expression(text: str, kinds: Mapping[str, type[Input]] | None = None) -> Expression:
    """Parse the text of an epilogue's expression, such as "relu(acc + bias)", and return the expression tree.

    text     a printed expression; it may also use composed functions, such as `clamp`
    kinds    class of each operand, such as Row or Scalar, by its name; None for no operands
    raises   PlanError if the text is not an expression

    >>> from cutegemm.plan.epilogue import Row
    >>> parse_expression("relu(acc + bias)", {"bias": Row}).child.right
    Row(name='bias')
    >>> print(parse_expression("clamp(acc, -1, 1)"))
    minimum(maximum(acc, -1), 1)
    >>> parse_expression("gelu(acc + bais)", {"bias": Row})
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: epilogue 'gelu(acc + bais)': 1 rule is broken.
      - 'bais' is not an operand; the operands are acc, bias.
    """
    return _Reader(text, _symbols(kinds)).expression(_parsed(text))


def parse_epilogue(text: str, kinds: Mapping[str, type[Input]] | None = None) -> Epilogue:
    """Parse an epilogue from text, such as "relu(acc + bias), pre = acc + bias".

    text     expressions with commas between them. The first is D; each other one is an auxiliary output or reduction,
             with a name ("pre = ...") or without ("aux", "aux2" and so on). Or a lambda of the accumulator and of
             operands by name, such as "lambda acc, bias: relu(acc + bias)"
    kinds    class of each operand, such as Row or Scalar, by its name; None for no operands
    raises   PlanError if the text is not an epilogue
    """
    kinds = dict(kinds or {})
    if not isinstance(text, str):
        raise PlanError(f"epilogue {text!r}", ["a text is expected, such as 'relu(acc)'."])
    if text.lstrip().startswith("lambda"):
        function = function_of(text)
        missing = [name for name in operands_of(text) if name not in kinds]
        if missing:
            said = "its kind" if len(missing) == 1 else "their kinds"
            raise PlanError(f"epilogue {text!r}", [f"it takes {' and '.join(missing)}; pass {said}."])
        given = {name: kinds[name](name) for name in operands_of(text)}
        return _epilogue(text, kinds, [(None, each) for each in _several(function(Accumulator(), **given))])
    try:
        call = ast.parse(f"_({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _no_python(text, error) from error
    reader = _Reader(text, _symbols(kinds))
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "_":
        raise PlanError(f"epilogue {text!r}", ["an expression of acc, the accumulator of A @ B, is expected."])
    results: list[tuple[str | None, Expression]] = [(None, one) for each in call.args for one in reader.results(each)]
    results += [(each.arg or "**", reader.expression(each.value)) for each in call.keywords]
    return _epilogue(text, kinds, results)


def written(expression: Expression) -> str:
    """Return the text of an epilogue's expression in the form that `parse_expression` reads.

    It differs from `str` only for gate and up of a gated epilogue: `acc.gate` does not say whether it comes from
    `halves` or `pairs`, so it is written halves(acc)[0] or pairs(acc)[0].

    >>> from cutegemm.plan.epilogue.functions import relu, swiglu
    >>> print(swiglu(Accumulator()), "|", written(swiglu(Accumulator())), "|", written(relu(Accumulator())))
    silu(acc.gate) * acc.up | silu(halves(acc)[0]) * halves(acc)[1] | relu(acc)
    """
    return str(_spelled(expression))


def _spelled(node: Expression) -> Expression:
    """Replace each gate or up half in an expression by an operand with the name of its call, e.g. "halves(acc)[0]".

    The `str` of the result can be parsed again, whereas `acc.gate` cannot.
    """
    if isinstance(node, Half):
        return Input(f"{node.by}({written(node.child)})[{node.side}]")
    if isinstance(node, Constant):  # in torch.compile the value may be a symbol; `hex` makes it a number
        return Constant(float.fromhex(node.value.hex()))
    return node.with_children(*[_spelled(child) for child in node.children])


def operands_of(text: str) -> tuple[str, ...]:
    """Return the operand names of a lambda that defines an epilogue: its parameters after the accumulator.

    text   source of the lambda

    >>> operands_of("lambda acc, bias, scale: acc * scale + bias")
    ('bias', 'scale')
    """
    return tuple([each.arg for each in _lambda(text).args.args[1:]])


def function_of(text: str) -> Callable[..., Any]:
    """Convert the source of a lambda that defines an epilogue to a function, without executing it as Python.

    text      source of the lambda, such as "lambda acc, bias: relu(acc + bias)"
    returns   a function of the accumulator and of operands by name, with the lambda's parameters. It takes and returns
              expressions

    >>> from cutegemm.plan.epilogue import Row, epilogue_of
    >>> print(epilogue_of(function_of("lambda acc, bias: (relu(acc + bias), acc)"), {"bias": Row}))
    relu(acc + bias), aux = acc
    """
    tree = _lambda(text)
    names, body = tuple([each.arg for each in tree.args.args]), tree.body

    def function(*accumulators: Any, **operands: Any) -> Any:
        """Return the expression, or the tuple of expressions, that the lambda's body computes from these arguments.

        accumulators   the positional arguments: the accumulator
        operands       expressions or numbers by parameter name
        """
        given = {**dict(zip(names, accumulators, strict=False)), **operands}
        reader = _Reader(text, {name: expression_of(value) or value for name, value in given.items()})
        results = reader.results(body)
        return results if len(results) > 1 or isinstance(body, ast.Tuple) else results[0]

    parameter = partial(inspect.Parameter, kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    function.__signature__ = inspect.Signature([parameter(name) for name in names])  # type: ignore[attr-defined]
    return function


def _symbols(kinds: Mapping[str, type[Input]] | None) -> dict[str, Expression]:
    """Return the expression that each name in an epilogue's text stands for: "acc" is the accumulator, others operands.

    kinds   class of each operand, such as Row or Scalar, by its name; None for no operands
    """
    return {"acc": Accumulator(), **{name: kind(name) for name, kind in (kinds or {}).items()}}


def _several(returned: Any) -> tuple[Expression, ...]:
    """Return the results of an epilogue's Python function as a tuple, also if it returned a single expression."""
    return returned if isinstance(returned, tuple) else (returned,)


def _epilogue(text: str, kinds: Mapping[str, type[Input]], results: list[tuple[str | None, Expression]]) -> Epilogue:
    """Build an epilogue from the expressions that were parsed from its text.

    text      the text, for messages
    kinds     class of each operand that the caller passes, by name
    results   (name or None, expression) of each result. D comes first, without a name
    raises    PlanError if D is missing or one of the operands in `kinds` does not appear
    """
    if not results or results[0][0] is not None:
        raise PlanError(f"epilogue {text!r}", ["the first expression has a name; it is D, which has none."])
    (_, first), *others = results
    named = [(name or result_name(i), each) for i, (name, each) in enumerate(others)]
    aux = tuple([(name, each) for name, each in named if not isinstance(each, Reduction)])
    reductions = tuple([(name, each) for name, each in named if isinstance(each, Reduction)])
    epilogue = Epilogue(first, aux, reductions)
    unused = [name for name in kinds if name not in epilogue.kinds]
    if unused:
        raise PlanError(
            f"epilogue {text!r}",
            [f"{name!r} is declared as an operand, but does not appear." for name in unused],
        )
    return epilogue


def _parsed(text: str) -> ast.expr:
    """Parse the text of an epilogue as one Python expression, and return its syntax tree.

    raises   PlanError if the text is not a Python expression
    """
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _no_python(text, error) from error


def _no_python(text: str, error: BaseException) -> PlanError:
    """Return the error to raise for an epilogue's text that is not a Python expression, with Python's own message.

    error   what `ast.parse` raised
    """
    return PlanError(f"epilogue {text!r}", [f"it is not Python: {getattr(error, 'msg', None) or error}."])


def _lambda(text: str) -> ast.Lambda:
    """Parse the source of a lambda that defines an epilogue, and return its syntax tree.

    raises   PlanError if the text is not a lambda of one or more plain parameters (no defaults, *args or **kwargs)
    """
    tree = _parsed(text)
    expected = (
        "a lambda of the accumulator and of operands by name is expected, such as 'lambda acc, bias: relu(acc + bias)'."
    )
    if not isinstance(tree, ast.Lambda):
        raise PlanError(f"epilogue {text!r}", [expected])
    given = tree.args
    if not given.args or (given.vararg or given.kwarg or given.kwonlyargs or given.defaults or given.posonlyargs):
        raise PlanError(f"epilogue {text!r}", [expected])
    return tree


class _Reader:
    """Converter of an epilogue's text, parsed by Python's `ast`, to an expression tree. It never executes the text.

    text    the text that was parsed, for messages
    names   expression that each name in the text stands for, such as "acc"
    """

    def __init__(self, text: str, names: Mapping[str, Any]) -> None:
        self.text, self.names = text, names

    def refused(self, rule: str) -> PlanError:
        """Return the error to raise for an epilogue's text that violates a rule, with the text in its message.

        rule   sentence that says what is wrong
        """
        return PlanError(f"epilogue {self.text!r}", [rule])

    def expression(self, node: ast.AST, depth: int = 0) -> Expression:
        """Convert a Python syntax node of an epilogue's text to an expression; a number becomes a `Constant`.

        depth    number of operations that enclose the node; the nesting is limited
        raises   PlanError if the node is neither an expression nor a number
        """
        value = self.value(node, depth)
        try:
            found = expression_of(value)
        except TypeError as error:
            raise self.refused(str(error)) from error
        if found is None:
            raise self.refused(f"{value!r} is not a value of an element. Use an expression or a number.")
        return found

    def results(self, node: ast.AST) -> tuple[Expression, ...]:
        """Return the expressions of a syntax node: one, those of a tuple, or the two that `quantize` returns.

        raises   PlanError if the node is not made of expressions and numbers
        """
        if isinstance(node, ast.Tuple):
            return tuple([each for part in node.elts for each in self.results(part)])
        value = self.value(node, 0) if isinstance(node, ast.Call) else None
        return value if isinstance(value, tuple) else (self.expression(node),)

    def value(self, node: ast.AST, depth: int) -> Any:
        """Return the value of a Python syntax node: an expression, a number, a string, or a tuple (gate, up).

        depth    number of operations that enclose the node; the nesting is limited
        raises   PlanError if the node is not allowed in an epilogue
        """
        if depth > _DEEPEST:
            raise self.refused(f"its operations are nested {_DEEPEST} deep or more. Use fewer in each other.")
        if isinstance(node, ast.Constant):
            if isinstance(node.value, int | float | str) and not isinstance(node.value, bool):
                return node.value
        elif isinstance(node, ast.Name):
            if node.id in self.names:
                return self.names[node.id]
            raise self.refused(f"{node.id!r} is not an operand; the operands are {', '.join(self.names)}.")
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
            f"{ast.unparse(node)} cannot be used in an epilogue. Use + - * /, comparisons, numbers and the "
            "functions of cutegemm.epilogue."
        )

    def negative(self, node: ast.UnaryOp, depth: int) -> Any:
        """Return the negated value of a syntax node: a negative number for "-2", an expression for "-(2)" and "-acc".

        node    the unary minus
        depth   number of operations that enclose the node; the nesting is limited
        """
        inner = node.operand
        is_number = isinstance(inner, ast.Constant) and isinstance(inner.value, int | float)
        if is_number and inner.col_offset == node.col_offset + 1:
            return -inner.value  # type: ignore[attr-defined]
        return Negative(self.expression(inner, depth + 1))

    def called(self, node: ast.Call, name: str, depth: int) -> Any:
        """Return the result of a call in an epilogue's text, such as the expression of "relu(acc)".

        node     the call
        name     name of the called epilogue function
        depth    number of operations that enclose the node; the nesting is limited
        raises   PlanError if the function is unknown or refuses its arguments
        """
        if name == "cast":
            return self.cast(node, depth)
        function = _CASTS.get(name) or (getattr(functions, name, None) if name in _CALLED else None)
        if function is None:
            there = [each for each in _CALLED if hasattr(functions, each)]
            known = ", ".join(["cast", *there, *_CASTS])
            raise self.refused(f"{name} is not a function of an epilogue; the functions are {known}.")
        if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            raise self.refused(
                f"{ast.unparse(node)}: keyword and starred arguments are not supported. Pass positional arguments."
            )
        values = [self.value(each, depth + 1) for each in node.args]
        try:
            return function(*values)
        except TypeError as error:
            raise self.refused(f"{ast.unparse(node)}: {error}") from error

    def cast(self, node: ast.Call, depth: int) -> Expression:
        """Return the expression of a call like `cast(acc, "bf16")` in an epilogue's text.

        depth    number of operations that enclose the node; the nesting is limited
        raises   PlanError if the arguments are not an expression and a type's name
        """
        if len(node.args) != 2 or node.keywords or not isinstance(node.args[1], ast.Constant):
            raise self.refused(f"{ast.unparse(node)}: an expression and a type such as 'bf16' are expected.")
        try:
            return Cast(self.expression(node.args[0], depth + 1), DType.parse(str(node.args[1].value)))
        except UnsupportedError as error:
            raise self.refused(str(error)) from error
