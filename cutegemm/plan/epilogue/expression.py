"""Expression trees of epilogues: an expression has a value for each element of D.

The leaves are the accumulator (an element of A @ B), constants, and operands that the caller passes by name. Python's
operators and the functions in `functions` build expressions. Expressions are frozen and hashable: plans contain them.

>>> acc, bias = Accumulator(), Row("bias")
>>> print((acc + bias) * 0.5)
(acc + bias) * 0.5
>>> print(-acc / (acc - bias))
-acc / (acc - bias)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cutegemm.dtypes import DType
from cutegemm.layout import hooks
from cutegemm.layout.inttuple import shown


class Expression(hooks.Shown):
    """Base class of the expressions of an epilogue: trees of operations.

    An expression has a value for each element of D.

    The operators `+`, `-`, `*`, `/` and comparisons, and Python's `abs`, build larger expressions. They accept
    expressions and numbers.

    precedence   how strongly the printed operator binds: 0 comparison, 1 sum, 2 product, 3 sign, 4 name or call
    """

    precedence: ClassVar[int] = 4

    @property
    def children(self) -> tuple[Expression, ...]:
        """Return the operands of this operation of an epilogue, from left to right; () for a leaf."""
        return ()

    def with_children(self, *children: Expression) -> Expression:
        """Return this operation of an epilogue with other operands.

        children   new operands, in the order of the property `children`
        """
        assert not children
        return self

    def __add__(self, other: Any) -> Expression:
        return _binary(Add, self, other)

    def __radd__(self, other: Any) -> Expression:
        return _binary(Add, other, self)

    def __sub__(self, other: Any) -> Expression:
        return _binary(Subtract, self, other)

    def __rsub__(self, other: Any) -> Expression:
        return _binary(Subtract, other, self)

    def __mul__(self, other: Any) -> Expression:
        return _binary(Multiply, self, other)

    def __rmul__(self, other: Any) -> Expression:
        return _binary(Multiply, other, self)

    def __truediv__(self, other: Any) -> Expression:
        return _binary(Divide, self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return _binary(Divide, other, self)

    def __neg__(self) -> Expression:
        return Negative(self)

    def __abs__(self) -> Expression:
        return Function("abs", self)

    def __lt__(self, other: Any) -> Expression:
        return _compare("<", self, other)

    def __le__(self, other: Any) -> Expression:
        return _compare("<=", self, other)

    def __gt__(self, other: Any) -> Expression:
        return _compare(">", self, other)

    def __ge__(self, other: Any) -> Expression:
        return _compare(">=", self, other)

    def nodes(self) -> Iterator[Expression]:
        """Yield all nodes of this expression tree in postorder: operands from left to right, then itself."""
        for child in self.children:
            yield from child.nodes()
        yield self

    @property
    def has_accumulator(self) -> bool:
        """Return whether this expression contains the accumulator, i.e. depends on A @ B."""
        return any(isinstance(node, Accumulator) for node in self.nodes())

    def names(self, kind: type[Input]) -> tuple[str, ...]:
        """Return the names of this expression's operands of a given class, e.g. all rows, in order of first appearance.

        kind   Scalar, Tile (M x N), Row, Column, Element, or a base class of these
        """
        return tuple(dict.fromkeys([node.name for node in self.nodes() if isinstance(node, kind)]))

    @property
    def scalars(self) -> tuple[str, ...]:
        """Return the names of the scalars in this expression, such as "alpha", in order of first appearance."""
        return self.names(Scalar)

    @property
    def tiles(self) -> tuple[str, ...]:
        """Return the names of the M x N operands in this expression, such as "c", in order of first appearance."""
        return self.names(Tile)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the names of the operands that this expression reads from global memory, such as "c" and "bias".

        They are M x N tiles, rows, columns and single elements, but not scalars.

        >>> (Row("bias") * Scalar("s") + Tile("c")).tensors
        ('bias', 'c')
        """
        return self.names(Tensor)

    def replaced(self, old: Expression, new: Expression) -> Expression:
        """Return this expression with `new` in place of each subexpression that equals `old`."""
        if self == old:
            return new
        return self.with_children(*[child.replaced(old, new) for child in self.children])

    def given(self, values: Mapping[str, float]) -> Expression:
        """Return this expression with numbers in place of some scalars, simplified.

        x * 0 becomes 0, even if x may be NaN or infinite, because BLAS does not read C if beta is 0. x * 1 and x + 0
        become x.

        values   name of a scalar -> the number that replaces it

        >>> linear = Scalar("alpha") * Accumulator() + Scalar("beta") * Tile("c")
        >>> print(linear.given({"beta": 0.0}), "|", linear.given({"alpha": 1.0, "beta": 1.0}))
        alpha * acc | acc + c
        """
        if isinstance(self, Scalar) and self.name in values:
            return Constant(float(values[self.name]))
        return self.with_children(*[child.given(values) for child in self.children]).simplified()

    def simplified(self) -> Expression:
        """Return an equal expression without this operation if it is superfluous, e.g. x for x + 0."""
        return self


@dataclass(frozen=True)
class Accumulator(Expression):
    """The accumulator in an epilogue's expression: an element of A @ B.

    In a `Step` of an epilogue, the result so far.
    """

    def __str__(self) -> str:
        return "acc"


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    """A number in an epilogue's expression. 0.0 and -0.0 are different, so that their kernels are cached separately.

    >>> Constant(2.0) == Constant(2), Constant(0.0) == Constant(-0.0)
    (True, False)
    """

    value: float

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Constant):
            return NotImplemented
        return self.value == other.value and math.copysign(1, self.value) == math.copysign(1, other.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        short = f"{self.value:g}"
        is_read_again = float(short) == self.value and short != "-0"  # Python parses "-0" as the integer 0
        return short if is_read_again else repr(self.value)


# --- operands ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input(Expression):
    """Base class of an epilogue's operands, such as a bias, which the caller passes by name.

    name   name of the operand's keyword argument
    """

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Scalar(Input):
    """An operand of an epilogue that is one number for all of D, known when the kernel is launched, such as alpha."""


@dataclass(frozen=True)
class Tensor(Input):
    """Base class of an epilogue's operands that are arrays in global memory, such as a bias.

    Their element types are in the plan's `Operands`, by name.
    """


@dataclass(frozen=True)
class Tile(Tensor):
    """An operand of an epilogue that is a matrix with the extents of D, M x N, such as C or a residual."""


@dataclass(frozen=True)
class Row(Tensor):
    """An operand of an epilogue that is a vector of N elements, one for each column of D, such as a bias."""


@dataclass(frozen=True)
class Column(Tensor):
    """An operand of an epilogue that is a vector of M elements, one for each row of D, such as scales of A's rows."""


@dataclass(frozen=True)
class Element(Tensor):
    """An operand of an epilogue that is a single number for all of D, read from global memory."""


@dataclass(frozen=True)
class Half(Expression):
    """The gate or the up half of the columns of a value, in a gated epilogue (GLU), where two columns give one of D.

    child         value with N columns: an expression of the accumulator, rows, columns and numbers. An `Epilogue`
                  rewrites it so that halves are taken only of the accumulator and of rows
    side          0: the gate, 1: the up projection
    interleaved   True if gate and up of D's column j are columns 2j and 2j + 1, False if they are j and j + N / 2

    >>> print(Half(Accumulator(), 0, False) * Half(Row("bias"), 1, False))
    acc.gate * bias.up
    """

    child: Expression
    side: int
    interleaved: bool

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.child,)

    def with_children(self, *children: Expression) -> Expression:
        return Half(children[0], self.side, self.interleaved)

    @property
    def by(self) -> str:
        """Return how this half's gate and up columns are arranged: "pairs" (2j, 2j + 1) or "halves" (j, j + N / 2)."""
        return "pairs" if self.interleaved else "halves"

    def __str__(self) -> str:
        if isinstance(self.child, Accumulator | Row):
            return f"{self.child}.{('gate', 'up')[self.side]}"
        return f"{self.by}({self.child})[{self.side}]"


def distributed(node: Expression) -> Expression:
    """Move the selections of gate or up columns (`Half`) inwards, to the accumulator and to rows.

    The value is the same.

    For example, the gate of (acc + bias) becomes acc.gate + bias.gate. A `Half` is left as it is if it contains a tile,
    another `Half`, or an operand whose class is not yet known.

    >>> print(distributed(Half(Accumulator() + Row("bias") * Column("scale"), 1, False)))
    acc.up + bias.up * scale
    """
    if not isinstance(node, Half):
        return node.with_children(*[distributed(child) for child in node.children])
    if any(type(each) is Tensor or isinstance(each, Tile | Half) for each in node.child.nodes()):
        return node

    def half(of: Expression) -> Expression:
        """Return the half of an expression that the enclosing call selects: its gate columns, or its up columns."""
        if isinstance(of, Accumulator | Row):
            return Half(of, node.side, node.interleaved)
        return of.with_children(*[half(child) for child in of.children])

    return half(node.child)


BROADCAST: dict[type[Tensor], tuple[str, ...]] = {  # modes of D along which an operand is broadcast
    Tile: (),
    Row: ("m",),
    Column: ("n",),
    Element: ("m", "n"),
}


# --- operations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Negative(Expression):
    """The negated value -child, as an expression of an epilogue."""

    child: Expression

    precedence: ClassVar[int] = 3

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.child,)

    def with_children(self, *children: Expression) -> Expression:
        return Negative(*children)

    def __str__(self) -> str:
        is_number = isinstance(self.child, Constant)  # -(2) is not printed as -2, which is a constant
        return f"-{_in_parentheses(self.child, is_number or self.child.precedence < self.precedence)}"


@dataclass(frozen=True)
class Binary(Expression):
    """Base class of operators with two operands in an epilogue's expression, such as the sum `left + right`.

    symbol   text that is printed between the operands, such as "+"
    """

    left: Expression
    right: Expression

    symbol: ClassVar[str]

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.left, self.right)

    def with_children(self, *children: Expression) -> Expression:
        return type(self)(*children)

    def __str__(self) -> str:
        left = _in_parentheses(self.left, self.left.precedence < self.precedence)
        right = _in_parentheses(self.right, self.right.precedence <= self.precedence)
        return f"{left} {self.symbol} {right}"


@dataclass(frozen=True)
class Add(Binary):
    """The sum left + right in an epilogue's expression."""

    symbol: ClassVar[str] = "+"
    precedence: ClassVar[int] = 1

    def simplified(self) -> Expression:
        left, right = self.children
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant(left.value + right.value)
        return right if _is(left, 0.0) else left if _is(right, 0.0) else self


@dataclass(frozen=True)
class Subtract(Binary):
    """The difference left - right in an epilogue's expression."""

    symbol: ClassVar[str] = "-"
    precedence: ClassVar[int] = 1

    def simplified(self) -> Expression:
        return self.left if _is(self.right, 0.0) else self


@dataclass(frozen=True)
class Multiply(Binary):
    """The product left * right in an epilogue's expression."""

    symbol: ClassVar[str] = "*"
    precedence: ClassVar[int] = 2

    def simplified(self) -> Expression:
        left, right = self.children
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant(left.value * right.value)
        if _is(left, 0.0) or _is(right, 0.0):
            return Constant(0.0)
        return right if _is(left, 1.0) else left if _is(right, 1.0) else self


@dataclass(frozen=True)
class Divide(Binary):
    """The quotient left / right in an epilogue's expression."""

    symbol: ClassVar[str] = "/"
    precedence: ClassVar[int] = 2

    def simplified(self) -> Expression:
        return self.left if _is(self.right, 1.0) else self


@dataclass(frozen=True)
class _Called(Expression):
    """Base class of operations in an epilogue's expression that are printed like a function call, such as relu(acc)."""

    @property
    def called(self) -> str:
        """Return the name under which this operation is printed as a call, such as "minimum"."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.called}({', '.join([str(child) for child in self.children])})"


@dataclass(frozen=True)
class Minimum(_Called):
    """The lesser of two values in an epilogue's expression; NaN if one of them is NaN.

    left, right   the values
    """

    left: Expression
    right: Expression

    called = "minimum"

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.left, self.right)

    def with_children(self, *children: Expression) -> Expression:
        return type(self)(*children)


@dataclass(frozen=True)
class Maximum(Minimum):
    """The greater of two values in an epilogue's expression; NaN if one of them is NaN."""

    called = "maximum"


COMPARED: dict[str, Callable[[Any, Any], Any]] = {  # for arrays, and for the CuTe DSL's values in a kernel
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Compare(Expression):
    """A comparison of two values in an epilogue's expression, for use as the condition of a `Where`.

    It is a part of the expression tree and is evaluated in the kernel, so it has no truth value in Python.

    left, right   the values that are compared
    symbol        "<", "<=", ">", ">=", "==" or "!="
    """

    symbol: str
    left: Expression
    right: Expression

    precedence: ClassVar[int] = 0

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.left, self.right)

    def with_children(self, *children: Expression) -> Expression:
        return Compare(self.symbol, *children)

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self} differs from element to element of D and has no truth value. Take where({self}, x, y); "
            "minimum and maximum in the place of min and max."
        )

    def __str__(self) -> str:
        left, right = [_in_parentheses(child, child.precedence <= 0) for child in self.children]
        return f"{left} {self.symbol} {right}"


@dataclass(frozen=True)
class Where(_Called):
    """The choice, element by element of D, of `left` where a condition is true and `right` elsewhere.

    The value that is not selected may be NaN.
    """

    condition: Expression
    left: Expression
    right: Expression

    called = "where"

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.condition, self.left, self.right)

    def with_children(self, *children: Expression) -> Expression:
        return Where(*children)


@dataclass(frozen=True)
class Cast(_Called):
    """A value in an epilogue's expression, rounded to an element type.

    child   the value
    dtype   the element type
    """

    child: Expression
    dtype: DType

    @property
    def called(self) -> str:
        return str(self.dtype)

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.child,)

    def with_children(self, *children: Expression) -> Expression:
        return Cast(children[0], self.dtype)


@dataclass(frozen=True)
class Function(_Called):
    """A function of one value in an epilogue's expression, such as relu(acc).

    child   argument of the function
    name    one of `functions.NAMES`, such as "relu"
    """

    name: str
    child: Expression

    @property
    def called(self) -> str:
        return self.name

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.child,)

    def with_children(self, *children: Expression) -> Expression:
        return Function(self.name, *children)


@dataclass(frozen=True)
class Reduction(_Called):
    """The sum or maximum of an expression over rows, columns or all of D: a separate result of an epilogue.

    It cannot be an operand of another expression.

    operation   "sum" or "max"
    child       expression whose values are reduced
    along       modes of D that are reduced: ("n",) gives a number for each row, ("m",) for each column, ("m", "n") one
                number
    """

    operation: str
    along: tuple[str, ...]
    child: Expression

    @property
    def called(self) -> str:
        return f"{REDUCED[self.along][0]}_{self.operation}"

    @property
    def kind(self) -> type[Tensor]:
        """Return the class of this reduction's result in memory: Column (M numbers), Row (N numbers) or Element."""
        return REDUCED[self.along][1]

    @property
    def identity(self) -> float:
        """Return the neutral element of this reduction: 0 for a sum, -infinity for a maximum."""
        return 0.0 if self.operation == "sum" else -math.inf

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.child,)

    def with_children(self, *children: Expression) -> Expression:
        return Reduction(self.operation, self.along, *children)


REDUCED: dict[tuple[str, ...], tuple[str, type[Tensor]]] = {  # prefix of the function's name, class of the result
    ("n",): ("row", Column),
    ("m",): ("column", Row),
    ("m", "n"): ("total", Element),
}


def expression_of(value: Any) -> Expression | None:
    """Convert a number to a `Constant`; return an expression unchanged, and None for any other value.

    raises   TypeError for an integer that is too large for a float

    >>> expression_of(2), expression_of("two")
    (Constant(value=2.0), None)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return Constant(float(value))
        except OverflowError:
            raise TypeError(f"{shown(value)} is too large for a float; use a number that float32 holds.") from None
    return value if isinstance(value, Expression) else None


def _binary(node: type[Binary], left: Any, right: Any) -> Expression:
    """Build the expression `left OPERATOR right`; numbers become constants.

    node      class of the operation, such as Add
    returns   NotImplemented if an operand is neither an expression nor a number, so that Python raises a TypeError
    """
    sides = [expression_of(side) for side in (left, right)]
    return NotImplemented if None in sides else node(*sides)  # type: ignore[arg-type]


def _compare(symbol: str, left: Any, right: Any) -> Expression:
    """Build the comparison `left SYMBOL right`; numbers become constants.

    symbol    "<", "<=", ">", ">=", "==" or "!="
    returns   NotImplemented if an operand is neither an expression nor a number, so that Python raises a TypeError
    """
    sides = [expression_of(side) for side in (left, right)]
    return NotImplemented if None in sides else Compare(symbol, *sides)  # type: ignore[arg-type]


def _is(expression: Expression, value: float) -> bool:
    """Return whether an expression is a constant that equals `value`; -0.0 counts as 0.0 here."""
    return isinstance(expression, Constant) and expression.value == value


def _in_parentheses(expression: Expression, needed: bool) -> str:
    """Return the text of an expression, in parentheses if `needed`."""
    return f"({expression})" if needed else str(expression)
