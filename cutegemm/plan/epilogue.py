"""What a kernel computes at its end, as an expression: `alpha * acc + beta * c`.

An expression is a tree of the accumulator (the sums of A @ B) and of operands that the caller passes by name. It is
built by Python's operators, evaluated element by element, and knows nothing of how a tile is stored:

>>> acc, alpha, beta, c = Accumulator(), Scalar("alpha"), Scalar("beta"), Tile("c")
>>> epilogue = Epilogue(alpha * acc + beta * c)
>>> print(epilogue)
alpha * acc + beta * c
>>> print(epilogue.head, "|", epilogue.tail)
alpha * acc | acc + beta * c

Storage asks an epilogue three things: its `head`, which is computed of the accumulator before storage begins; the
`steps` of its `tail`, each with the tiles that it reads, which are fetched first; and for which values of the scalars
a step changes nothing, so that its tiles are not read. These values follow from the expression:

>>> [(str(step), step.tiles, step.idle) for step in epilogue.steps]
[('alpha * acc', (), (('alpha', 1.0),)), ('acc + beta * c', ('c',), (('beta', 0.0),))]

`simulate.values` evaluates an expression by numpy, `kernels.values` by the CuTe DSL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from cutegemm.errors import PlanError

_TAKEN = ("a", "b", "d", "acc")  # names of what is no operand of an epilogue


class Expression:
    """A value for each element of D.

    `+` and `*` take another expression or a number.
    """

    precedence: ClassVar[int] = 2  # of what is printed: 0 a sum, 1 a product, 2 a name

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

    def __mul__(self, other: Any) -> Expression:
        return _binary(Multiply, self, other)

    def __rmul__(self, other: Any) -> Expression:
        return _binary(Multiply, other, self)

    def nodes(self) -> Iterator[Expression]:
        """All expressions in this one, from left to right; itself last."""
        for child in self.children:
            yield from child.nodes()
        yield self

    @property
    def has_accumulator(self) -> bool:
        """Whether the value follows from the sums of A @ B."""
        return any(isinstance(node, Accumulator) for node in self.nodes())

    def names(self, kind: type[Operand]) -> tuple[str, ...]:
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

    def replaced(self, old: Expression, new: Expression) -> Expression:
        """The expression with another one in the place of each occurrence of a part."""
        if self == old:
            return new
        return self.with_children(*[child.replaced(old, new) for child in self.children])

    def given(self, values: Mapping[str, float]) -> Expression:
        """The expression where some scalars have these values.

        A product with 0 is 0, also where its other factor is not a number: BLAS reads no C where beta is 0. A product
        with 1 and a sum with 0 are the other operand.

        >>> linear = LINEAR.expression
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


@dataclass(frozen=True)
class Constant(Expression):
    """A number."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Operand(Expression):
    """A value that the caller passes.

    name   by which it is passed
    """

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Scalar(Operand):
    """One number for all of D."""


@dataclass(frozen=True)
class Tile(Operand):
    """A matrix of D's extents: M x N. Its type, majorness and alignment are those of C."""


@dataclass(frozen=True)
class _Binary(Expression):
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
class Add(_Binary):
    """left + right."""

    symbol: ClassVar[str] = "+"
    precedence: ClassVar[int] = 0

    def simplified(self) -> Expression:
        left, right = self.children
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant(left.value + right.value)
        return right if left == Constant(0.0) else left if right == Constant(0.0) else self


@dataclass(frozen=True)
class Multiply(_Binary):
    """left * right."""

    symbol: ClassVar[str] = "*"
    precedence: ClassVar[int] = 1

    def simplified(self) -> Expression:
        left, right = self.children
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant(left.value * right.value)
        if Constant(0.0) in (left, right):
            return Constant(0.0)
        return right if left == Constant(1.0) else left if right == Constant(1.0) else self


@dataclass(frozen=True)
class Step:
    """One operation on all that was computed before it, which it knows as the accumulator."""

    expression: Expression

    @property
    def tiles(self) -> tuple[str, ...]:
        """The tiles that it reads."""
        return self.expression.tiles

    @property
    def scalars(self) -> tuple[str, ...]:
        """The scalars that it takes."""
        return self.expression.scalars

    @cached_property
    def idle(self) -> tuple[tuple[str, float], ...]:
        """Scalars and their values, each of which alone makes the step change nothing; its tiles are not read then.

        >>> acc, s, t, e = Accumulator(), Scalar("s"), Scalar("t"), Tile("e")
        >>> Step(acc + s * (t * e)).idle, Step(acc + e).idle
        ((('s', 0.0), ('t', 0.0)), ())
        """
        pairs = [(name, value) for name in self.scalars for value in (0.0, 1.0)]
        return tuple([p for p in pairs if self.expression.given(dict([p])) == Accumulator()])

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """Scalars that it multiplies by, and need not where they are 1: those by which it is idle then left out."""
        products = _products(self.expression)
        saves = [name for name in self.scalars if _products(self.expression.given({name: 1.0})) < products]
        return tuple([name for name in saves if (name, 1.0) not in self.idle])

    def is_idle(self, scalars: Mapping[str, float]) -> bool:
        """Whether it changes nothing for these values of the scalars."""
        return any(scalars[name] == value for name, value in self.idle)

    @property
    def is_scaling(self) -> bool:
        """Whether it multiplies by scalars alone, so that parts of a sum may be multiplied before they are added."""
        node = self.expression
        if not isinstance(node, Multiply) or self.tiles:
            return False
        return [child.has_accumulator for child in node.children].count(True) == 1

    def __str__(self) -> str:
        return str(self.expression)


@dataclass(frozen=True)
class Epilogue:
    """The expression that becomes D.

    expression   with the accumulator and operands of names of their own
    raises       PlanError with every rule that is broken

    >>> Epilogue(Scalar("c") * Tile("c"))
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: epilogue c * c: 2 rules are broken.
      - the sums of A @ B do not appear in it. Make it of an Accumulator().
      - 'c' names a Scalar and a Tile. Give each operand a name of its own.
    """

    expression: Expression

    def __post_init__(self) -> None:
        if not isinstance(self.expression, Expression):
            raise PlanError("epilogue", [f"expression = {self.expression!r}; an Expression is expected."])
        broken = list(_broken(self.expression))
        if broken:
            raise PlanError(f"epilogue {self.expression}", broken)

    @property
    def scalars(self) -> tuple[str, ...]:
        """The scalars that it takes, in the order in which they first appear."""
        return self.expression.scalars

    @property
    def tiles(self) -> tuple[str, ...]:
        """The tiles that it may read."""
        return self.expression.tiles

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The operations, the first one on the sums themselves: one on the result of the other is the expression."""
        return tuple([Step(part) for part in _chain(self.expression)])

    @cached_property
    def head(self) -> Epilogue:
        """The part that needs no tile: the steps before the first that reads one."""
        return self._of(self.steps[: self._count(lambda step: not step.tiles)])

    @cached_property
    def tail(self) -> Epilogue:
        """The part computed of the head's values: the steps from the first that reads a tile."""
        return self._of(self.steps[self._count(lambda step: not step.tiles) :])

    @cached_property
    def of_parts(self) -> Epilogue:
        """Of a split K: the factors by which each part's sums may be multiplied before they are added."""
        return self._of(self.steps[: self._count(lambda step: step.is_scaling)])

    @cached_property
    def of_total(self) -> Epilogue:
        """Of a split K: the steps on the total of the parts, after `of_parts`."""
        return self._of(self.steps[self._count(lambda step: step.is_scaling) :])

    @cached_property
    def without_tiles(self) -> Epilogue:
        """The epilogue where all steps that read tiles are idle."""
        return self._of([step for step in self.steps if not step.tiles])

    def tiles_read(self, scalars: Mapping[str, float]) -> tuple[str, ...]:
        """The tiles that are read for these values of the scalars.

        >>> LINEAR.tiles_read({"alpha": 1.0, "beta": 0.5}), LINEAR.tiles_read({"alpha": 1.0, "beta": 0.0})
        (('c',), ())
        """
        read = [step.tiles for step in self.steps if not step.is_idle(scalars)]
        return tuple(dict.fromkeys(sum(read, ())))

    def _count(self, fits: Any) -> int:
        """How many of the first steps are of a kind."""
        return next((i for i, step in enumerate(self.steps) if not fits(step)), len(self.steps))

    @staticmethod
    def _of(steps: Any) -> Epilogue:
        whole: Expression = Accumulator()
        for step in steps:
            whole = step.expression.replaced(Accumulator(), whole)
        return Epilogue(whole)

    def __str__(self) -> str:
        return str(self.expression)


def _binary(node: type[_Binary], left: Any, right: Any) -> Expression:
    sides = [Constant(float(x)) if isinstance(x, int | float) else x for x in (left, right)]
    return node(*sides) if all(isinstance(side, Expression) for side in sides) else NotImplemented


def _in_parentheses(expression: Expression, needed: bool) -> str:
    return f"({expression})" if needed else str(expression)


def _products(expression: Expression) -> int:
    return sum(isinstance(node, Multiply) for node in expression.nodes())


def _chain(expression: Expression) -> list[Expression]:
    """Expressions of the accumulator, the innermost first, of which each is put in the next one's accumulator."""
    if isinstance(expression, Accumulator):
        return []
    inner = [child for child in expression.children if child.has_accumulator]
    if len(inner) > 1:
        return [expression]
    children = [Accumulator() if child is inner[0] else child for child in expression.children]
    return [*_chain(inner[0]), expression.with_children(*children)]


def _broken(expression: Expression) -> Iterator[str]:
    if not expression.has_accumulator:
        yield "the sums of A @ B do not appear in it. Make it of an Accumulator()."
    kinds: dict[str, set[str]] = {}
    for node in expression.nodes():
        if isinstance(node, Operand):
            kinds.setdefault(node.name, set()).add(type(node).__name__)
    for name, found in kinds.items():
        if not name.isidentifier() or name in _TAKEN:
            yield f"{name!r} is no name of an operand: an identifier other than {', '.join(_TAKEN)} is expected."
        if len(found) > 1:
            yield f"{name!r} names a {' and a '.join(sorted(found))}. Give each operand a name of its own."


_ACC, _ALPHA = Accumulator(), Scalar("alpha")
LINEAR = Epilogue(_ALPHA * _ACC + Scalar("beta") * Tile("c"))  # BLAS's
SCALED = Epilogue(_ALPHA * _ACC)  # of a kernel that reads no C


def launch_operands(epilogue: Epilogue) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tiles and the scalars that a compiled function takes: BLAS's, whether they are read or not, then further
    ones. Every plan is so called alike: (a, b, *tiles, d, *scalars).

    >>> launch_operands(SCALED)
    (('c',), ('alpha', 'beta'))
    """
    tiles = dict.fromkeys([*LINEAR.tiles, *epilogue.tiles])
    scalars = dict.fromkeys([*LINEAR.scalars, *epilogue.scalars])
    return tuple(tiles), tuple(scalars)
