"""The expressions that epilogues are made of: a value for each element of D.

An expression is a tree of the accumulator (the sums of A @ B) and of operands that the caller passes by name. It is
built by Python's operators and by the functions of `functions`, and is frozen and hashable: part of a plan.

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
    """A value for each element of D.

    `+`, `-`, `*`, `/` and comparisons take another expression or a number; Python's `abs` is there too.
    """

    precedence: ClassVar[int] = 4  # of what is printed: 0 a comparison, 1 a sum, 2 a product, 3 a sign, 4 a name

    @property
    def children(self) -> tuple[Expression, ...]:
        """The expressions that this one is made of."""
        return ()

    def with_children(self, *children: Expression) -> Expression:
        """The same operation on other expressions."""
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
        """All expressions in this one, from left to right; itself last."""
        for child in self.children:
            yield from child.nodes()
        yield self

    @property
    def has_accumulator(self) -> bool:
        """Whether the value follows from the sums of A @ B."""
        return any(isinstance(node, Accumulator) for node in self.nodes())

    def names(self, kind: type[Input]) -> tuple[str, ...]:
        """The operands of a kind, in the order in which they first appear."""
        return tuple(dict.fromkeys([node.name for node in self.nodes() if isinstance(node, kind)]))

    @property
    def scalars(self) -> tuple[str, ...]:
        """The names of its scalars."""
        return self.names(Scalar)

    @property
    def tiles(self) -> tuple[str, ...]:
        """The names of its tiles."""
        return self.names(Tile)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of its operands in the device's memory: tiles, rows, columns and single elements.

        >>> (Row("bias") * Scalar("s") + Tile("c")).tensors
        ('bias', 'c')
        """
        return self.names(Tensor)

    def replaced(self, old: Expression, new: Expression) -> Expression:
        """The expression with another one in the place of each occurrence of a part."""
        if self == old:
            return new
        return self.with_children(*[child.replaced(old, new) for child in self.children])

    def given(self, values: Mapping[str, float]) -> Expression:
        """The expression where some scalars have these values.

        A product with 0 is 0, also where its other factor is not a number: BLAS reads no C where beta is 0. A product
        with 1 and a sum with 0 are the other operand.

        >>> linear = Scalar("alpha") * Accumulator() + Scalar("beta") * Tile("c")
        >>> print(linear.given({"beta": 0.0}), "|", linear.given({"alpha": 1.0, "beta": 1.0}))
        alpha * acc | acc + c
        """
        if isinstance(self, Scalar) and self.name in values:
            return Constant(float(values[self.name]))
        return self.with_children(*[child.given(values) for child in self.children]).simplified()

    def simplified(self) -> Expression:
        """The same value without an operation that its constants make superfluous."""
        return self


@dataclass(frozen=True)
class Accumulator(Expression):
    """The sums of A @ B; in a step of an epilogue, what the steps before it have made of them."""

    def __str__(self) -> str:
        return "acc"


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    """A number. 0 and -0 are two constants: a kernel of one is not taken for that of the other.

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
        is_read_again = float(short) == self.value and short != "-0"  # which Python reads as 0
        return short if is_read_again else repr(self.value)


# --- operands ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input(Expression):
    """A value that the caller passes.

    name   by which it is passed
    """

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Scalar(Input):
    """One number for all of D, known when the kernel is launched."""


@dataclass(frozen=True)
class Tensor(Input):
    """An operand in the device's memory. What it is made of, the `Operands` of a plan say by its name."""


@dataclass(frozen=True)
class Tile(Tensor):
    """A matrix of D's extents: M x N."""


@dataclass(frozen=True)
class Row(Tensor):
    """A number for each column of D: N of them, such as a bias."""


@dataclass(frozen=True)
class Column(Tensor):
    """A number for each row of D: M of them, such as scales of the rows of A."""


@dataclass(frozen=True)
class Element(Tensor):
    """One number for all of D, in the device's memory."""


@dataclass(frozen=True)
class Half(Expression):
    """Of a gated epilogue: the gate or the up of what has a value for each column of A @ B, two for each of D's.

    child         of the sums, rows, columns and numbers. In an `Epilogue` it is the sums, or a row: see `distributed`
    side          0: the gate, 1: the up
    interleaved   where the two of D's column j lie: at 2 j and 2 j + 1, or else at j and j + N / 2

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
        """Where the two lie, by the name of the function that divides: "halves" or "pairs"."""
        return "pairs" if self.interleaved else "halves"

    def __str__(self) -> str:
        if isinstance(self.child, Accumulator | Row):
            return f"{self.child}.{('gate', 'up')[self.side]}"
        return f"{self.by}({self.child})[{self.side}]"


def distributed(node: Expression) -> Expression:
    """The same value, of halves of the sums and of rows. What is of a kind yet unknown stays in its half.

    >>> print(distributed(Half(Accumulator() + Row("bias") * Column("scale"), 1, False)))
    acc.up + bias.up * scale
    """
    if not isinstance(node, Half):
        return node.with_children(*[distributed(child) for child in node.children])
    if any(type(each) is Tensor or isinstance(each, Tile | Half) for each in node.child.nodes()):
        return node

    def half(of: Expression) -> Expression:
        if isinstance(of, Accumulator | Row):
            return Half(of, node.side, node.interleaved)
        return of.with_children(*[half(child) for child in of.children])

    return half(node.child)


BROADCAST: dict[type[Tensor], tuple[str, ...]] = {  # modes of D along which an operand stays the same
    Tile: (),
    Row: ("m",),
    Column: ("n",),
    Element: ("m", "n"),
}


# --- operations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Negative(Expression):
    """-child."""

    child: Expression

    precedence: ClassVar[int] = 3

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.child,)

    def with_children(self, *children: Expression) -> Expression:
        return Negative(*children)

    def __str__(self) -> str:
        is_number = isinstance(self.child, Constant)  # whose sign would be its own
        return f"-{_in_parentheses(self.child, is_number or self.child.precedence < self.precedence)}"


@dataclass(frozen=True)
class Binary(Expression):
    """An operation on two values.

    symbol   by which it is printed
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
    """left + right."""

    symbol: ClassVar[str] = "+"
    precedence: ClassVar[int] = 1

    def simplified(self) -> Expression:
        left, right = self.children
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant(left.value + right.value)
        return right if _is(left, 0.0) else left if _is(right, 0.0) else self


@dataclass(frozen=True)
class Subtract(Binary):
    """left - right."""

    symbol: ClassVar[str] = "-"
    precedence: ClassVar[int] = 1

    def simplified(self) -> Expression:
        return self.left if _is(self.right, 0.0) else self


@dataclass(frozen=True)
class Multiply(Binary):
    """left * right."""

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
    """left / right."""

    symbol: ClassVar[str] = "/"
    precedence: ClassVar[int] = 2

    def simplified(self) -> Expression:
        return self.left if _is(self.right, 1.0) else self


@dataclass(frozen=True)
class _Called(Expression):
    """An operation that is printed as a call."""

    @property
    def called(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.called}({', '.join([str(child) for child in self.children])})"


@dataclass(frozen=True)
class Minimum(_Called):
    """The lesser of two values; not a number where one of them is none."""

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
    """The greater of two values; not a number where one of them is none."""

    called = "maximum"


COMPARED: dict[str, Callable[[Any, Any], Any]] = {  # by the symbol: on arrays, and on values of a kernel
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Compare(Expression):
    """Whether a comparison of two values holds: the condition of a `Where`.

    symbol   "<", "<=", ">", ">=", "==" or "!="
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
    """One value where a condition holds, else another one; neither matters where it is not taken."""

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
    """A value rounded to what an element type holds.

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
    """A function of one value, by its name: see `functions`."""

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
    """The sum or the maximum of an expression's values along modes of D: a result of its own, and no part of another
    expression.

    operation   "sum" or "max"
    along       modes of D that are reduced: "n" gives a number for each row, "m" one for each column, both one in all
    """

    operation: str
    along: tuple[str, ...]
    child: Expression

    @property
    def called(self) -> str:
        return f"{REDUCED[self.along][0]}_{self.operation}"

    @property
    def kind(self) -> type[Tensor]:
        """What holds it in memory: a Column of M numbers, a Row of N, or an Element."""
        return REDUCED[self.along][1]

    @property
    def identity(self) -> float:
        """What changes nothing: that of no values at all."""
        return 0.0 if self.operation == "sum" else -math.inf

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.child,)

    def with_children(self, *children: Expression) -> Expression:
        return Reduction(self.operation, self.along, *children)


REDUCED: dict[tuple[str, ...], tuple[str, type[Tensor]]] = {  # how it is called, and what it gives
    ("n",): ("row", Column),
    ("m",): ("column", Row),
    ("m", "n"): ("total", Element),
}


def expression_of(value: Any) -> Expression | None:
    """Return an expression as it is, a number as a constant, and None for a value of another kind.

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
    sides = [expression_of(side) for side in (left, right)]
    return NotImplemented if None in sides else node(*sides)  # type: ignore[arg-type]


def _compare(symbol: str, left: Any, right: Any) -> Expression:
    sides = [expression_of(side) for side in (left, right)]
    return NotImplemented if None in sides else Compare(symbol, *sides)  # type: ignore[arg-type]


def _is(expression: Expression, value: float) -> bool:
    """Whether an expression is a number; 0 is equal to -0 here."""
    return isinstance(expression, Constant) and expression.value == value


def _in_parentheses(expression: Expression, needed: bool) -> str:
    return f"({expression})" if needed else str(expression)
