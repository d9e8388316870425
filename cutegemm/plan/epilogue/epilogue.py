"""The `Epilogue` of a kernel: the expressions of D, such as `alpha * acc + beta * c`, and of auxiliary outputs.

An epilogue does not depend on how a tile is stored. The code that stores a tile uses three of its properties:

- `head`: the scaling that is applied to all accumulators before the first store;
- the `steps` of `tail`: each names the operands that it reads, which are loaded before it;
- `idle` of a step: values of scalars for which the step changes nothing, so that its operands are not read.


>>> acc, alpha, beta, c = Accumulator(), Scalar("alpha"), Scalar("beta"), Tile("c")
>>> epilogue = Epilogue(alpha * acc + beta * c)
>>> print(epilogue)
alpha * acc + beta * c
>>> print(epilogue.head, "|", epilogue.tail)
alpha * acc | acc + beta * c
>>> [(str(step), step.tensors, step.idle) for step in epilogue.steps]
[('alpha * acc', (), (('alpha', 1.0),)), ('acc + beta * c', ('c',), (('beta', 0.0),))]

`simulator.values` evaluates an expression by numpy, `kernels.values` by the CuTe DSL.
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
from cutegemm.plan.epilogue.quantized import BlockScale, Blockwise, Quantized

_TAKEN = ("a", "b", "d", "acc")  # names that an operand of an epilogue cannot have
LARGEST = 256  # operations of an epilogue; each is several instructions per element of D


@dataclass(frozen=True)
class Step:
    """One operation of an epilogue. In its expressions, `acc` stands for the result of the step before it.

    For example, alpha * acc + beta * c has the steps `alpha * acc` and `acc + beta * c`.

    expression   result of the step; for the last step, D
    aux          auxiliary outputs that the step computes: (name, expression) pairs
    reductions   reductions that the step computes: (name, reduction) pairs
    """

    expression: Expression
    aux: tuple[tuple[str, Expression], ...] = ()
    reductions: tuple[tuple[str, Reduction], ...] = ()

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """Return the expressions that this step computes: its result, then auxiliary outputs and reductions."""
        return (self.expression, *[expression for _, expression in (*self.aux, *self.reductions)])

    @property
    def has_several(self) -> bool:
        """Return whether this step of an epilogue computes auxiliary outputs or reductions in addition to D."""
        return bool(self.aux or self.reductions)

    @property
    def tiles(self) -> tuple[str, ...]:
        """Return the names of the M x N matrices, such as "c", that this step of the epilogue reads."""
        return _distinct([expression.tiles for expression in self.expressions])

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the names of the operands that this step of the epilogue reads from global memory, such as "c"."""
        return _distinct([expression.tensors for expression in self.expressions])

    @property
    def scalars(self) -> tuple[str, ...]:
        """Return the names of the scalars, such as "alpha", that this step of the epilogue uses."""
        return _distinct([expression.scalars for expression in self.expressions])

    @property
    def is_gated(self) -> bool:
        """Return whether this step of the epilogue combines two accumulators, a gate and an up projection."""
        return any(isinstance(node, Half) for each in self.expressions for node in each.nodes())

    @cached_property
    def idle(self) -> tuple[tuple[str, float], ...]:
        """Return the scalars that can switch this step off, as (name, value) pairs: with that value it changes nothing.

        For acc + beta * c it is (("beta", 0.0),): if beta is 0, the kernel skips the step and does not read c. A step
        with auxiliary outputs or reductions has no such pairs.

        >>> acc, s, t, e = Accumulator(), Scalar("s"), Scalar("t"), Tile("e")
        >>> Step(acc + s * (t * e)).idle, Step(acc + e).idle
        ((('s', 0.0), ('t', 0.0)), ())
        """
        if self.has_several:
            return ()
        pairs = [(name, value) for name in self.scalars for value in (0.0, 1.0)]
        return tuple([p for p in pairs if self.expression.given(dict([p])) == Accumulator()])

    def is_idle(self, scalars: Mapping[str, float]) -> bool:
        """Return whether this step of the epilogue changes nothing for these values of the scalars.

        For example, + beta * c changes nothing if beta is 0.

        scalars   value of each scalar, by its name
        """
        return any(scalars[name] == value for name, value in self.idle)

    @property
    def is_scaling(self) -> bool:
        """Return whether this step of the epilogue only multiplies by scalars, as alpha * acc does.

        Such a step may be applied to the accumulators of each K split before they are added.
        """
        node = self.expression
        if not isinstance(node, Multiply) or self.tensors or self.has_several or self.is_gated:
            return False
        return [child.has_accumulator for child in node.children].count(True) == 1

    def __str__(self) -> str:
        return _printed(self.expression, (*self.aux, *self.reductions))


@dataclass(frozen=True)
class Epilogue(hooks.Shown):
    """The formulas that a kernel applies to its accumulators: D, auxiliary outputs and reductions, as expression trees.

    For example, D = relu(alpha * acc + bias), with an auxiliary output alpha * acc + bias and a sum over rows.

    expression   expression of D. A name stands for the same operand in all expressions
    aux          auxiliary outputs with the extents of D: (name, expression) pairs. If D is quantized, also its scales,
                 one for every 128 columns of a row
    reductions   sums and maxima over rows, columns or all of D: (name, reduction) pairs
    raises       PlanError with every violated rule

    >>> from cutegemm.plan.epilogue import Function, Row
    >>> acc, bias = Accumulator(), Row("bias")
    >>> print(Epilogue(Function("relu", acc + bias), (("preact", acc + bias),)))
    relu(acc + bias), preact = acc + bias
    >>> Epilogue(Scalar("c") * Tile("c"))
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: epilogue c * c: 2 rules are broken.
      - it does not use the accumulator. Build it from Accumulator().
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
        """Return all expressions of this epilogue as one step, for use if it cannot be divided into several."""
        return Step(self.expression, self.aux, self.reductions)

    @property
    def results(self) -> tuple[tuple[str, Expression], ...]:
        """Return (name, expression) of each M x N matrix that this epilogue stores: "d", then the auxiliary outputs.

        >>> [name for name, _ in Epilogue(Accumulator(), (("preact", Accumulator()),)).results]
        ['d', 'preact']
        """
        return (("d", self.expression), *[(name, each) for name, each in self.aux if name not in self.scales])

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the names of the M x N matrices that this epilogue stores: "d", then the auxiliary outputs."""
        return tuple([name for name, _ in self.results])

    @property
    def beside(self) -> tuple[str, ...]:
        """Return the names of all results other than D: auxiliary outputs, scales of a quantized D, then reductions.

        >>> acc = Accumulator()
        >>> Epilogue(acc, (("preact", acc),), (("largest", Reduction("max", ("n",), acc)),)).beside
        ('preact', 'largest')
        """
        return (*self.outputs[1:], *self.scales, *self.reduced)

    @property
    def reduced(self) -> tuple[str, ...]:
        """Return the names of this epilogue's reductions: sums or maxima over rows, columns or all of D."""
        return tuple([name for name, _ in self.reductions])

    @property
    def scales(self) -> tuple[str, ...]:
        """Return the name of the scales of a quantized D, in a tuple; () if D is not quantized."""
        return tuple([name for name, each in self.aux if isinstance(each, BlockScale)])

    @cached_property
    def quantized(self) -> Epilogue | None:
        """Return the epilogue that computes D before it is quantized; None if this epilogue does not quantize.

        A kernel computes all columns of a tile by it, then the scales, and only then stores the first value.

        >>> from cutegemm.plan.epilogue.functions import quantize, relu
        >>> values, scales = quantize(relu(Accumulator()))
        >>> print(Epilogue(values, (("scales", scales),)).quantized)
        relu(acc)
        """
        return Epilogue(self.expression.child) if isinstance(self.expression, Quantized) else None

    @property
    def scalars(self) -> tuple[str, ...]:
        """Return the names of this epilogue's scalars, such as "alpha", in order of first appearance."""
        return self._whole.scalars

    @property
    def tiles(self) -> tuple[str, ...]:
        """Return the names of this epilogue's M x N operands, such as "c".

        For some values of the scalars a kernel does not read them: e.g. not c if beta is 0.
        """
        return self._whole.tiles

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the names of this epilogue's operands in global memory, such as "c" and "bias".

        For some values of the scalars a kernel does not read them: e.g. not c if beta is 0.
        """
        return self._whole.tensors

    @cached_property
    def kinds(self) -> dict[str, type[Input]]:
        """Return the class of each operand of this epilogue by its name: Row, Column, Tile, Element or Scalar."""
        nodes = [node for each in self._whole.expressions for node in each.nodes()]
        return {node.name: type(node) for node in nodes if isinstance(node, Input)}

    @cached_property
    def gated(self) -> str:
        """Return how a gated epilogue (GLU) pairs the columns of A @ B: "halves" or "pairs"; "" if not gated.

        "halves": columns j and j + N / 2 give column j of D. "pairs": columns 2j and 2j + 1 do.

        >>> from cutegemm.plan.epilogue.functions import swiglu
        >>> Epilogue(swiglu(Accumulator())).gated, LINEAR.gated
        ('halves', '')
        """
        found = [node.by for each in self._whole.expressions for node in each.nodes() if isinstance(node, Half)]
        return found[0] if found else ""

    @property
    def wide(self) -> tuple[str, ...]:
        """Return the names of a gated epilogue's results that have N columns, like A @ B, although D has N / 2.

        They are an error: no kernel stores or reduces them together with D. () if the epilogue is not gated.

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
        """Return the names of a gated epilogue's row operands that have N elements, although D has N / 2 columns."""
        nodes = [node for each in self._whole.expressions for node in each.nodes()]
        rows = [node.child.name for node in nodes if isinstance(node, Half) and isinstance(node.child, Row)]
        return tuple(dict.fromkeys(rows))

    @property
    def is_whole(self) -> bool:
        """Return whether this epilogue cannot be divided into steps, because it has several results or is gated."""
        return bool(self.beside) or bool(self.gated)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Return the operations of this epilogue in the order of their execution by a kernel.

        The first step takes the accumulator, each further step the result of the one before. An epilogue that has
        several results or is gated is a single step.
        """
        if self.is_whole:
            return (self._whole,)
        return tuple([Step(part) for part in _chain(self.expression)])

    @cached_property
    def head(self) -> Epilogue:
        """Return the leading scaling of this epilogue: its first steps, as long as they only multiply by scalars.

        A kernel applies them to all accumulators before the first store. For alpha * acc + beta * c it is alpha * acc;
        if there are none, it is acc.
        """
        return self._of(self.steps[: self._count(lambda step: step.is_scaling)])

    @cached_property
    def tail(self) -> Epilogue:
        """Return the rest of this epilogue after its leading scaling (`head`), as an epilogue of its own.

        A kernel applies it to one epilogue tile after the other; for alpha * acc + beta * c it is acc + beta * c. If D
        is quantized, it is the accumulator alone, because the values are complete before the first store.
        """
        if self.quantized is not None:
            return Epilogue(Accumulator())
        return self._of(self.steps[self._count(lambda step: step.is_scaling) :])

    @cached_property
    def transposed(self) -> Epilogue:
        """Return the epilogue of D^T = B^T A^T: this one with rows and columns exchanged.

        For example, a Row operand becomes a Column.

        raises   PlanError if the epilogue is gated or quantizes

        >>> from cutegemm.plan.epilogue import Row
        >>> Epilogue(Accumulator() + Row("bias")).transposed.expression.right
        Column(name='bias')
        """
        if self.gated:
            rule = (
                f"it takes {self.gated} of the columns of A @ B; with swap A/B these are rows, of D^T = B^T A^T. "
                "Use another plan."
            )
            raise PlanError(f"epilogue {self}", [rule])
        if self.quantized is not None:
            rule = "it quantizes rows of D; with swap A/B these are columns, of D^T = B^T A^T. Use another plan."
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
        """Return this epilogue without the steps that read M x N operands, such as C."""
        return self._of([step for step in self.steps if not step.tiles])

    def acting(self, scalars: Mapping[str, float] | None = None) -> Epilogue:
        """Return this epilogue without the steps that change nothing for the given values of the scalars.

        For example, with beta 0 the step + beta * c is left out.

        scalars   value of each scalar, by its name; None leaves out all steps that some values of the scalars switch
                  off

        >>> print(LINEAR.acting(), "|", LINEAR.acting({"alpha": 2.0, "beta": 0.0}))
        acc | alpha * acc
        """
        if scalars is None:
            return self._of([step for step in self.steps if not step.idle])
        return self._of([step for step in self.steps if not step.is_idle(scalars)])

    def tensors_read(self, scalars: Mapping[str, float]) -> tuple[str, ...]:
        """Return the names of the operands that this epilogue reads from global memory for these values of the scalars.

        scalars   value of each scalar, by its name. For example, c is not read if beta is 0

        >>> LINEAR.tensors_read({"alpha": 1.0, "beta": 0.5}), LINEAR.tensors_read({"alpha": 1.0, "beta": 0.0})
        (('c',), ())
        """
        return self.acting(scalars).tensors

    def _count(self, fits: Callable[[Step], bool]) -> int:
        """Return how many of this epilogue's first steps satisfy `fits`, up to the first one that fails."""
        return next((i for i, step in enumerate(self.steps) if not fits(step)), len(self.steps))

    @staticmethod
    def _of(steps: Sequence[Step]) -> Epilogue:
        """Build an epilogue from steps, where each step takes the result of the step before as its accumulator."""
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
    """Return the expression with rows and columns exchanged: each Row becomes a Column, each Column a Row."""
    if isinstance(node, Row):
        return Column(node.name)
    if isinstance(node, Column):
        return Row(node.name)
    return node.with_children(*map(_transposed, node.children)) if node.children else node


def _printed(expression: Expression, aux: Iterable[tuple[str, Expression]]) -> str:
    """Return the text of an epilogue: D's expression, then ", name = expression" for each further result.

    aux   (name, expression) pairs of the auxiliary outputs and reductions
    """
    return ", ".join([str(expression), *[f"{name} = {each}" for name, each in aux]])


def _distinct(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names in several tuples without repetition, in order of first appearance."""
    return tuple(dict.fromkeys([name for each in names for name in each]))


def _chain(expression: Expression) -> list[Expression]:
    """Split an epilogue's expression into a list of operations, each applied to the result of the one before.

    In each operation, `acc` stands for that result. For example, alpha * acc + beta * c gives [alpha * acc, acc + beta
    * c].
    """
    if isinstance(expression, Accumulator):
        return []
    inner = [child for child in expression.children if child.has_accumulator]
    if len(inner) > 1 or isinstance(inner[0], Compare):
        return [expression]
    children = [Accumulator() if child is inner[0] else child for child in expression.children]
    return [*_chain(inner[0]), expression.with_children(*children)]


def _violations(epilogue: Epilogue) -> Iterator[str]:
    """Yield a sentence for each rule that an epilogue violates, e.g. that it must use the accumulator."""
    if not any(each.has_accumulator for _, each in epilogue.results):
        yield "it does not use the accumulator. Build it from Accumulator()."
    wholes = (*epilogue.results, *epilogue.reductions)
    nodes = [node for _, each in wholes for node in each.nodes()]
    if len(nodes) > LARGEST:
        yield f"it has {len(nodes)} operations; at most {LARGEST} are supported."
    kinds: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, Input):
            kinds.setdefault(node.name, set()).add(type(node).__name__)
        if isinstance(node, Constant) and not math.isfinite(node.value):
            yield f"it has the constant {node.value}, which is not finite. Use a finite number."
    yield from _wrongly_gated(epilogue)
    yield from _wrongly_quantized(epilogue)
    for name in dict.fromkeys([*kinds, *epilogue.beside]):
        if not name.isidentifier() or name in _TAKEN:
            yield f"{name!r} is not a name of an operand. Use an identifier other than {', '.join(_TAKEN)}."
        found = [*sorted(kinds.get(name, ())), *["result" for other in epilogue.beside if other == name]]
        if len(found) > 1:
            yield f"{name!r} names a {' and a '.join(found)}. Give each operand a name of its own."
    for name, each in epilogue.results:
        if isinstance(each, Compare):
            yield f"{name} is the comparison {each}, not a number. Use where({each}, 1, 0)."
    for name, each in wholes:
        whole = each.child if (name, each) in epilogue.reductions and isinstance(each, Reduction) else each
        if isinstance(whole, Compare) and whole is not each:
            yield f"{name} reduces the comparison {whole}, not a number. Use where({whole}, 1, 0)."
        for inner in [node for node in whole.nodes() if isinstance(node, Reduction)]:
            yield (
                f"{name} is {each}: the reduction {inner} is complete only after all of D, so no expression "
                "can use it. Return it as a result of its own, after the first one."
            )


def _wrongly_quantized(epilogue: Epilogue) -> Iterator[str]:
    """Yield a sentence for each wrong use of `quantize` in an epilogue."""
    wholes = [epilogue.expression, *[each for _, each in (*epilogue.aux, *epilogue.reductions)]]
    if not any(isinstance(node, Blockwise) for each in wholes for node in each.nodes()):
        return
    values, *others = wholes
    is_pair = isinstance(values, Quantized) and others == [BlockScale(values.child, values.dtype, values.power_of_two)]
    if not is_pair or any(isinstance(node, Blockwise) for node in [*values.nodes()][:-1]):
        yield (
            "quantize() must be its last operation, and both results of quantize() its only results. Return "
            "quantize(x), where x is an expression that does not quantize."
        )
    elif values.tiles:
        yield f"it quantizes with the M x N operand {values.tiles[0]}. Add it in the GEMM or kernel before."


def _wrongly_gated(epilogue: Epilogue) -> Iterator[str]:
    """Yield a sentence for each wrong use of gate and up columns in a gated epilogue (GLU); none if it is not gated."""
    by, wholes = epilogue.gated, [each for _, each in (*epilogue.results, *epilogue.reductions)]
    if not by:
        return
    halves = {node for each in wholes for node in each.nodes() if isinstance(node, Half)}
    if len({node.by for node in halves}) > 1:
        yield "it uses both halves() and pairs() of the accumulator. Use one of them."
    for each in halves:
        for node in each.child.nodes():
            if isinstance(node, Tile):
                yield (
                    f"{node} is an argument of {by}(), but a tile operand has the N / 2 columns of D. Pass the "
                    f"gate and the up columns as two tiles, and add each to its output of {by}(acc)."
                )
    for result in wholes:
        outside = [*_outside(result)]
        if not any(isinstance(node, Half) for node in outside):
            continue
        if any(isinstance(node, Accumulator) for node in outside):
            yield f"acc is used both in {by}() and outside of it, where D has N / 2 columns. Use gate and up alone."
        for name in epilogue.halved:
            if Row(name) in outside:
                yield (
                    f"{name!r} is used in {by}(), as a row of N numbers, and outside of it, as a row of N / 2. "
                    "Pass two rows."
                )


def _outside(node: Expression) -> Iterator[Expression]:
    """Yield the nodes of an expression that do not lie inside of a gate or up projection (`Half`).

    The `Half` nodes themselves are included.
    """
    yield node
    for child in () if isinstance(node, Half) else node.children:
        yield from _outside(child)


_ACC, _ALPHA = Accumulator(), Scalar("alpha")
LINEAR = Epilogue(_ALPHA * _ACC + Scalar("beta") * Tile("c"))  # the epilogue of BLAS
SCALED = Epilogue(_ALPHA * _ACC)  # for kernels that do not read C
