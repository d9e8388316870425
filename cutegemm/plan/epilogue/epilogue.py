"""What a kernel computes at its end: `alpha * acc + beta * c`, or any expression; D, and what else is stored.

An epilogue knows nothing of how a tile is stored. Storage asks it three things: its `head`, which is computed of all
sums before storage begins; the `steps` of its `tail`, each with the operands that it reads, which are fetched first;
and for which values of the scalars a step changes nothing, so that nothing is read for it. These values follow from the
expression:

>>> acc, alpha, beta, c = Accumulator(), Scalar("alpha"), Scalar("beta"), Tile("c")
>>> epilogue = Epilogue(alpha * acc + beta * c)
>>> print(epilogue)
alpha * acc + beta * c
>>> print(epilogue.head, "|", epilogue.tail)
alpha * acc | acc + beta * c
>>> [(str(step), step.tensors, step.idle) for step in epilogue.steps]
[('alpha * acc', (), (('alpha', 1.0),)), ('acc + beta * c', ('c',), (('beta', 0.0),))]

`simulate.values` evaluates an expression by numpy, `kernels.values` by the CuTe DSL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cutegemm.errors import PlanError
from cutegemm.layout import hooks
from cutegemm.plan.epilogue.expression import (
    Accumulator,
    Column,
    Compare,
    Constant,
    Expression,
    Half,
    Input,
    Multiply,
    Reduction,
    Row,
    Scalar,
    Tile,
    distributed,
)

_TAKEN = ("a", "b", "d", "acc")  # names of what is no operand of an epilogue
LARGEST = 256  # operations of an expression: each of them is several instructions for each element of D


@dataclass(frozen=True)
class Step:
    """One operation on all that was computed before it, which it knows as the accumulator.

    aux          other values that are made of the same, by name: auxiliary results
    reductions   sums and maxima of values that are made of the same, by name
    """

    expression: Expression
    aux: tuple[tuple[str, Expression], ...] = ()
    reductions: tuple[tuple[str, Reduction], ...] = ()

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """All that it computes."""
        return (self.expression, *[expression for _, expression in (*self.aux, *self.reductions)])

    @property
    def has_several(self) -> bool:
        """Whether it has results beside D."""
        return bool(self.aux or self.reductions)

    @property
    def tiles(self) -> tuple[str, ...]:
        """The tiles that it reads."""
        return _distinct([expression.tiles for expression in self.expressions])

    @property
    def tensors(self) -> tuple[str, ...]:
        """The operands in the device's memory that it reads."""
        return _distinct([expression.tensors for expression in self.expressions])

    @property
    def scalars(self) -> tuple[str, ...]:
        """The scalars that it takes."""
        return _distinct([expression.scalars for expression in self.expressions])

    @property
    def is_gated(self) -> bool:
        """Whether it is computed of two sums."""
        return any(isinstance(node, Half) for each in self.expressions for node in each.nodes())

    @cached_property
    def idle(self) -> tuple[tuple[str, float], ...]:
        """Scalars and their values, each of which alone makes the step change nothing; nothing is read for it then.

        >>> acc, s, t, e = Accumulator(), Scalar("s"), Scalar("t"), Tile("e")
        >>> Step(acc + s * (t * e)).idle, Step(acc + e).idle
        ((('s', 0.0), ('t', 0.0)), ())
        """
        if self.has_several:
            return ()
        pairs = [(name, value) for name in self.scalars for value in (0.0, 1.0)]
        return tuple([p for p in pairs if self.expression.given(dict([p])) == Accumulator()])

    def is_idle(self, scalars: Mapping[str, float]) -> bool:
        """Whether it changes nothing for these values of the scalars."""
        return any(scalars[name] == value for name, value in self.idle)

    @property
    def is_scaling(self) -> bool:
        """Whether it multiplies by scalars alone, so that parts of a sum may be multiplied before they are added."""
        node = self.expression
        if not isinstance(node, Multiply) or self.tensors or self.has_several or self.is_gated:
            return False
        return [child.has_accumulator for child in node.children].count(True) == 1

    def __str__(self) -> str:
        return _printed(self.expression, (*self.aux, *self.reductions))


@dataclass(frozen=True)
class Epilogue(hooks.Shown):
    """What becomes D, and what is stored beside it.

    expression   D's, with the accumulator and operands of names of their own
    aux          auxiliary results of D's extents, by name
    reductions   sums and maxima over rows, columns or all of D, by name
    raises       PlanError with every rule that is broken

    >>> from cutegemm.plan.epilogue import Function, Row
    >>> acc, bias = Accumulator(), Row("bias")
    >>> print(Epilogue(Function("relu", acc + bias), (("preact", acc + bias),)))
    relu(acc + bias), preact = acc + bias
    >>> Epilogue(Scalar("c") * Tile("c"))
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: epilogue c * c: 2 rules are broken.
      - the sums of A @ B do not appear in it. Make it of an Accumulator().
      - 'c' names a Scalar and a Tile. Give each operand a name of its own.
    """

    expression: Expression
    aux: tuple[tuple[str, Expression], ...] = ()
    reductions: tuple[tuple[str, Reduction], ...] = ()

    def __post_init__(self) -> None:
        for each in self._whole.expressions:
            if not isinstance(each, Expression):
                raise PlanError("epilogue", [f"expression = {each!r}; an Expression is expected."])
        object.__setattr__(self, "expression", distributed(self.expression))
        aux = tuple([(name, distributed(expression)) for name, expression in self.aux])
        reductions = tuple([(name, distributed(expression)) for name, expression in self.reductions])
        object.__setattr__(self, "aux", aux)
        object.__setattr__(self, "reductions", reductions)
        violations = list(_violations(self))
        if violations:
            raise PlanError(f"epilogue {self}", violations)

    @property
    def _whole(self) -> Step:
        return Step(self.expression, self.aux, self.reductions)

    @property
    def results(self) -> tuple[tuple[str, Expression], ...]:
        """All of D's extents that is stored, D first.

        >>> [name for name, _ in Epilogue(Accumulator(), (("preact", Accumulator()),)).results]
        ['d', 'preact']
        """
        return (("d", self.expression), *self.aux)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what is stored of D's extents, D first."""
        return tuple([name for name, _ in self.results])

    @property
    def beside(self) -> tuple[str, ...]:
        """The names of all that is stored beside D: what is of its extents, then sums and maxima.

        >>> acc = Accumulator()
        >>> Epilogue(acc, (("preact", acc),), (("largest", Reduction("max", ("n",), acc)),)).beside
        ('preact', 'largest')
        """
        return (*self.outputs[1:], *[name for name, _ in self.reductions])

    @property
    def scalars(self) -> tuple[str, ...]:
        """The scalars that it takes, in the order in which they first appear."""
        return self._whole.scalars

    @property
    def tiles(self) -> tuple[str, ...]:
        """The tiles that it may read."""
        return self._whole.tiles

    @property
    def tensors(self) -> tuple[str, ...]:
        """The operands in the device's memory that it may read."""
        return self._whole.tensors

    @cached_property
    def kinds(self) -> dict[str, type[Input]]:
        """What each operand is, by its name."""
        nodes = [node for each in self._whole.expressions for node in each.nodes()]
        return {node.name: type(node) for node in nodes if isinstance(node, Input)}

    @cached_property
    def gated(self) -> str:
        """Where the two columns of A @ B lie that a column of D is made of, "halves" or "pairs"; "" where it is one.

        >>> from cutegemm.plan.epilogue.functions import swiglu
        >>> Epilogue(swiglu(Accumulator())).gated, LINEAR.gated
        ('halves', '')
        """
        found = [node.by for each in self._whole.expressions for node in each.nodes() if isinstance(node, Half)]
        return found[0] if found else ""

    @property
    def wide(self) -> tuple[str, ...]:
        """Return the results of a gated epilogue that have all columns of A @ B: no kernel stores or reduces these
        beside half of the columns.

        >>> from cutegemm.plan.epilogue.functions import swiglu
        >>> Epilogue(swiglu(Accumulator()), (("preact", Accumulator()),)).wide
        ('preact',)
        """
        if not self.gated:
            return ()
        whole = (*self.results, *self.reductions)
        return tuple([name for name, each in whole if not any(isinstance(node, Half) for node in each.nodes())])

    @cached_property
    def halved(self) -> tuple[str, ...]:
        """The rows that have a number for each column of A @ B, where D has half as many."""
        nodes = [node for each in self._whole.expressions for node in each.nodes()]
        rows = [node.child.name for node in nodes if isinstance(node, Half) and isinstance(node.child, Row)]
        return tuple(dict.fromkeys(rows))

    @property
    def is_whole(self) -> bool:
        """Whether it is one step, as it has several results or is made of two sums."""
        return bool(self.beside) or bool(self.gated)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The operations, the first one on the sums themselves: one on the result of the other is the expression. Of
        several results, or of two sums, there is one step, which computes all."""
        if self.is_whole:
            return (self._whole,)
        return tuple([Step(part) for part in _chain(self.expression)])

    @cached_property
    def head(self) -> Epilogue:
        """The part that is computed of all sums before the first is stored: the steps that scale them."""
        return self._of(self.steps[: self._count(lambda step: step.is_scaling)])

    @cached_property
    def tail(self) -> Epilogue:
        """The part that is computed of the head's values, of a piece after the other."""
        return self._of(self.steps[self._count(lambda step: step.is_scaling) :])

    @cached_property
    def transposed(self) -> Epilogue:
        """Of D^T = B^T A^T: what is a row of D is a column of its transpose.

        >>> from cutegemm.plan.epilogue import Row
        >>> Epilogue(Accumulator() + Row("bias")).transposed.expression.right
        Column(name='bias')
        """
        if self.gated:
            rule = f"it takes {self.gated} of the columns of A @ B, which are rows of D^T = B^T A^T. Take another plan."
            raise PlanError(f"epilogue {self}", [rule])
        aux = tuple([(name, _transposed(each)) for name, each in self.aux])
        reductions = tuple(
            [
                (name, Reduction(each.operation, _TURNED[each.along], _transposed(each.child)))
                for name, each in self.reductions
            ]
        )
        return Epilogue(_transposed(self.expression), aux, reductions)

    @cached_property
    def without_tiles(self) -> Epilogue:
        """The epilogue where all steps that read tiles are idle."""
        return self._of([step for step in self.steps if not step.tiles])

    def acting(self, scalars: Mapping[str, float] | None = None) -> Epilogue:
        """The steps that change something for these values of the scalars; where they are left out, whatever they are.

        >>> print(LINEAR.acting(), "|", LINEAR.acting({"alpha": 2.0, "beta": 0.0}))
        acc | alpha * acc
        """
        if scalars is None:
            return self._of([step for step in self.steps if not step.idle])
        return self._of([step for step in self.steps if not step.is_idle(scalars)])

    def tensors_read(self, scalars: Mapping[str, float]) -> tuple[str, ...]:
        """The operands in the device's memory that are read for these values of the scalars.

        >>> LINEAR.tensors_read({"alpha": 1.0, "beta": 0.5}), LINEAR.tensors_read({"alpha": 1.0, "beta": 0.0})
        (('c',), ())
        """
        return self.acting(scalars).tensors

    def _count(self, fits: Callable[[Step], bool]) -> int:
        """How many of the first steps are of a kind."""
        return next((i for i, step in enumerate(self.steps) if not fits(step)), len(self.steps))

    @staticmethod
    def _of(steps: Sequence[Step]) -> Epilogue:
        whole: Expression = Accumulator()
        for step in steps:
            if step.has_several:
                return Epilogue(step.expression, step.aux, step.reductions)  # there is no other
            whole = step.expression.replaced(Accumulator(), whole)
        return Epilogue(whole)

    def __str__(self) -> str:
        return _printed(self.expression, (*self.aux, *self.reductions))


_TURNED = {("n",): ("m",), ("m",): ("n",), ("m", "n"): ("m", "n")}


def _transposed(node: Expression) -> Expression:
    if isinstance(node, Row):
        return Column(node.name)
    if isinstance(node, Column):
        return Row(node.name)
    return node.with_children(*map(_transposed, node.children)) if node.children else node


def _printed(expression: Expression, aux: Iterable[tuple[str, Expression]]) -> str:
    return ", ".join([str(expression), *[f"{name} = {each}" for name, each in aux]])


def _distinct(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([name for each in names for name in each]))


def _chain(expression: Expression) -> list[Expression]:
    """Expressions of the accumulator, the innermost first, of which each is put in the next one's accumulator."""
    if isinstance(expression, Accumulator):
        return []
    inner = [child for child in expression.children if child.has_accumulator]
    if len(inner) > 1 or isinstance(inner[0], Compare):
        return [expression]
    children = [Accumulator() if child is inner[0] else child for child in expression.children]
    return [*_chain(inner[0]), expression.with_children(*children)]


def _violations(epilogue: Epilogue) -> Iterator[str]:
    if not any(each.has_accumulator for _, each in epilogue.results):
        yield "the sums of A @ B do not appear in it. Make it of an Accumulator()."
    wholes = (*epilogue.results, *epilogue.reductions)
    nodes = [node for _, each in wholes for node in each.nodes()]
    if len(nodes) > LARGEST:
        yield f"it has {len(nodes)} operations; {LARGEST} at most are served."
    kinds: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, Input):
            kinds.setdefault(node.name, set()).add(type(node).__name__)
        if isinstance(node, Constant) and not math.isfinite(node.value):
            yield f"it has the constant {node.value}; finite numbers are served."
    yield from _wrongly_gated(epilogue)
    for name in dict.fromkeys([*kinds, *epilogue.beside]):
        if not name.isidentifier() or name in _TAKEN:
            yield f"{name!r} is no name of an operand: an identifier other than {', '.join(_TAKEN)} is expected."
        found = [*sorted(kinds.get(name, ())), *["result" for other in epilogue.beside if other == name]]
        if len(found) > 1:
            yield f"{name!r} names a {' and a '.join(found)}. Give each operand a name of its own."
    for name, each in epilogue.results:
        if isinstance(each, Compare):
            yield f"{name} is the comparison {each}, no number. Take where({each}, 1, 0)."
    for name, each in wholes:
        whole = each.child if (name, each) in epilogue.reductions and isinstance(each, Reduction) else each
        if isinstance(whole, Compare) and whole is not each:
            yield f"{name} reduces the comparison {whole}, no number. Take where({whole}, 1, 0)."
        for inner in [node for node in whole.nodes() if isinstance(node, Reduction)]:
            yield (
                f"{name} is {each}: {inner} is known when all of D is, and may be no part of it. Return it as a "
                "result of its own, behind the first one."
            )


def _wrongly_gated(epilogue: Epilogue) -> Iterator[str]:
    by, wholes = epilogue.gated, [each for _, each in (*epilogue.results, *epilogue.reductions)]
    if not by:
        return
    halves = {node for each in wholes for node in each.nodes() if isinstance(node, Half)}
    if len({node.by for node in halves}) > 1:
        yield "it has both halves() and pairs() of the sums. Take one of them."
    for each in halves:
        for node in each.child.nodes():
            if isinstance(node, Tile):
                yield (
                    f"{node} stands inside of {by}(), but a tile has the columns of D, half of N. Pass the columns of "
                    f"the gates and of the ups as two tiles, and add each to its part of {by}(acc)."
                )
    for result in wholes:
        outside = [*_outside(result)]
        if not any(isinstance(node, Half) for node in outside):
            continue
        if any(isinstance(node, Accumulator) for node in outside):
            yield f"acc stands inside of {by}() and outside of it, where D has half of N. Take gate and up alone."
        for name in epilogue.halved:
            if Row(name) in outside:
                yield (
                    f"{name!r} stands inside of {by}(), as a row of N numbers, and outside of it, as N / 2. "
                    "Pass two rows."
                )


def _outside(node: Expression) -> Iterator[Expression]:
    """The parts of an expression that are in no half."""
    yield node
    for child in () if isinstance(node, Half) else node.children:
        yield from _outside(child)


_ACC, _ALPHA = Accumulator(), Scalar("alpha")
LINEAR = Epilogue(_ALPHA * _ACC + Scalar("beta") * Tile("c"))  # BLAS's
SCALED = Epilogue(_ALPHA * _ACC)  # of a kernel that reads no C
