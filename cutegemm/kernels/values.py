"""The epilogue's expression in a kernel: its operands, and its evaluation on elements or on fragments.

There are two ways to evaluate it:

`element`                evaluates the whole expression for one accumulator. It suits threads that store a vector of D
                         as soon as they have its operands
`head`, `carry_out`      apply first the head to all accumulators of a thread in place, then the steps of the tail to a
                         fragment. Each step loads its operands; a step without effect is skipped at run time

Integer accumulators are unchanged on their way to an integer D if no step has an effect. Otherwise all steps are
computed in f64, which represents them exactly. The result is rounded once, to nearest with ties to even, and clamped to
the range of the type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64, Int32
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.kernels import lower
from cutegemm.kernels.arguments import scalar_type
from cutegemm.kernels.assembly import assembler
from cutegemm.kernels.functions import BINARY, function
from cutegemm.plan.epilogue import (
    COMPARED,
    Accumulator,
    Add,
    Cast,
    Compare,
    Constant,
    Divide,
    Epilogue,
    Expression,
    Function,
    Half,
    Maximum,
    Minimum,
    Multiply,
    Negative,
    Scalar,
    Step,
    Subtract,
    Tensor,
    Where,
)
from cutegemm.plan.plan import GemmPlan

WHOLE_BITS = 24  # significand bits of f32


@dsl_user_op
def branch(*, loc=None, ip=None) -> None:
    """Emit an empty assembly statement at the start of a branch, so that the compiler does not move code out of it."""
    asm = assembler(loc, ip)
    asm(None, [], "", "")


@dsl_user_op
def nearest(value: Float32 | Float64, *, loc=None, ip=None) -> Int32:
    """Return the 32-bit integer nearest to a float; ties go to the even one."""
    asm = assembler(loc, ip, has_side_effects=False)
    text, register = ("cvt.rni.s32.f64", "d") if value.dtype is Float64 else ("cvt.rni.s32.f32", "f")
    operands = [value.ir_value(loc=loc, ip=ip)]
    return Int32(asm(T.i32(), operands, f"{text} $0, $1;", f"=r,{register}"))


def as_result(value: Any, kind: Any) -> Any:
    """Convert a value to the type of a result. For an integer type it is rounded to nearest and clamped to its range.

    kind   the DSL type of the result
    """
    if kind.is_float:
        return value.to(kind)
    whole = nearest(value) if value.dtype.is_float else value
    if kind.width < whole.dtype.width:
        ends = 1 << kind.width - 1
        whole = cutlass.min(cutlass.max(whole, Int32(-ends)), Int32(ends - 1))
    return whole.to(kind)


def store_as_results(values: cute.Tensor, results: cute.Tensor) -> None:
    """Convert a fragment to the element type of another fragment of the same size, and store it there.

    values    the fragment that is read
    results   the fragment that is written
    """
    if results.element_type.is_float:
        results.store(values.load().to(results.element_type))
        return
    for i in range(cute.size(values)):
        results[i] = as_result(values[i], results.element_type)


def last_functions(epilogue: Epilogue) -> frozenset[str]:
    """Return the names of the epilogue's functions (such as "gelu") whose values are only stored, not computed with.

    A value that is only stored needs no more precision than the type of the result.

    >>> from cutegemm.plan.epilogue import epilogue_of
    >>> from cutegemm.plan.epilogue.functions import gelu, swiglu
    >>> sorted(last_functions(epilogue_of(lambda acc: gelu(acc), {})))
    ['gelu']
    >>> last_functions(epilogue_of(lambda acc: gelu(acc) * 2, {})) or last_functions(epilogue_of(swiglu, {}))
    frozenset()
    """
    wholes = [each for _, each in (*epilogue.results, *epilogue.reductions)]
    stored = {each.name for _, each in epilogue.results if isinstance(each, Function)}
    inner = {node.name for each in wholes for node in [*each.nodes()][:-1] if isinstance(node, Function)}
    return frozenset(stored - inner)


class Values:
    """Evaluates the expressions of an epilogue in a traced kernel, for which it holds the operands.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    tensors   operands (M, N, L) in global memory, by name
    results   auxiliary outputs (M, N, L), by name; for a reduction its partial results
    scalars   scalars by name, all of type `kind`
    kind      type of all computations
    bits      significand bits of the most precise stored result; functions such as gelu are computed just so accurately
    """

    def __init__(
        self,
        epilogue: Epilogue,
        tensors: Mapping[str, Any],
        results: Mapping[str, Any],
        scalars: Mapping[str, Any],
        kind: Any,
        bits: int,
    ) -> None:
        self.epilogue, self.tensors, self.results = epilogue, tensors, results
        self.scalars, self.kind, self.bits = scalars, kind, bits
        self.last = last_functions(epilogue)
        self.head_part, self.tail_part = epilogue.head, epilogue.tail

    @staticmethod
    def of(
        plan: GemmPlan,
        operands: Sequence[Sequence[Any]],
        scalars: Sequence[Any],
        part: Epilogue | None = None,
    ) -> Values:
        """Sort the arguments of a kernel by the names of the operands of its plan's epilogue.

        operands   (tensors, results), in the order of the epilogue
        scalars    scalars, in the order of the epilogue
        part       section of the epilogue whose operands are passed, as by `operands_of`; None: the whole epilogue
        """
        own = plan.epilogue if part is None else part
        wanted, given = (own.tensors, own.beside, own.scalars), (*operands, scalars)
        named = [dict(zip(of, each, strict=True)) for of, each in zip(wanted, given, strict=True)]
        bits = max([1 + plan.operands.matrix(name).dtype.mantissa_bits for name in ("d", *own.beside)])
        out = Values(own, *named, scalar_type(plan), bits)
        if part is None:
            out.head_part, out.tail_part = plan.head, plan.tail
        return out

    def operands_of(self, part: Epilogue) -> tuple[tuple[tuple[Any, ...], ...], tuple[Any, ...]]:
        """Return the operands of one section of this epilogue, to pass to a kernel that evaluates only this section.

        part      the section of the epilogue, such as its tail
        returns   ((tensors, results), scalars)
        """
        tensors = tuple([self.tensors[name] for name in part.tensors])
        results = tuple([self.results[name] for name in part.beside])
        return (tensors, results), tuple([self.scalars[name] for name in part.scalars])

    def acts(self, step: Step) -> Any:
        """Return whether a step of the epilogue has an effect; "+ beta * C" has none if beta is 0.

        A step without effect does not read its M x N operands. The result is True, or a value known at run time.
        """
        out: Any = True
        for name, value in step.idle:
            differs = self.scalars[name] != self.scalars[name].dtype(value)
            out = differs if out is True else out & differs
        return out

    def reads(self, epilogue: Epilogue, name: str | None = None) -> Any:
        """Return whether the epilogue reads the M x N operand `name`, such as "c"; with None, whether it reads any.

        The result is True, False, or a value known at run time.

        epilogue   the epilogue, or a section of it
        """
        steps = [step for step in epilogue.steps if (name in step.tiles if name else step.tiles)]
        out: Any = False
        for condition in [self.acts(step) for step in steps]:
            if condition is True:
                return True
            out = condition if out is False else out | condition
        return out

    def element(
        self,
        expression: Expression,
        accumulated: Any,
        operands: Mapping[str, Any],
        kind: Any,
        known: dict[Expression, Any] | None = None,
    ) -> Any:
        """Evaluate an expression of the epilogue for one element, and return its value.

        accumulated   value of the accumulator; (gate, up) in a gated epilogue
        operands      the element of each operand in memory, by name; (gate, up) for a row of a gated epilogue
        kind          type of the accumulator, and of sums that contain it
        known         values of subexpressions for this element that have been computed; it is extended. None: start
                      empty
        """
        known = {} if known is None else known
        if expression not in known:
            known[expression] = self._element(expression, accumulated, operands, kind, known)
        return known[expression]

    def _element(self, node: Expression, accumulated: Any, operands: Any, kind: Any, known: Any) -> Any:
        """Evaluate one node of an epilogue expression for one element, by evaluating its children first.

        node          the expression
        accumulated   value of the accumulator; (gate, up) in a gated epilogue
        operands      the element of each operand in memory, by name
        kind          type of the accumulator, and of sums that contain it
        known         values of subexpressions that have been computed
        """
        if isinstance(node, Accumulator):
            return accumulated
        if isinstance(node, Half):
            of_both = accumulated if isinstance(node.child, Accumulator) else operands[node.child.name]
            return of_both[node.side]
        if isinstance(node, Constant):
            return self.kind(node.value)
        if isinstance(node, Scalar):
            return self.scalars[node.name]
        if isinstance(node, Tensor):
            return operands[node.name]
        children = [self.element(child, accumulated, operands, kind, known) for child in node.children]
        works_in = Float64 if kind is Float64 else self.kind
        if isinstance(node, Add):
            kind = kind if node.has_accumulator or node.tensors else works_in
            return self._as(children[0], kind) + self._as(children[1], kind)
        if isinstance(node, Where):
            return self.kind(cutlass.select_(children[0], *[child.to(self.kind) for child in children[1:]]))
        values = [child.to(works_in) for child in children]
        if isinstance(node, Multiply):
            return values[0] * values[1]
        if isinstance(node, Subtract):
            return values[0] - values[1]
        if isinstance(node, Divide):
            return BINARY["divide"](*values)
        if isinstance(node, Negative):
            return -values[0]
        if isinstance(node, Minimum):  # Maximum is a subclass of Minimum
            return BINARY["maximum" if isinstance(node, Maximum) else "minimum"](*values)
        if isinstance(node, Compare):
            return COMPARED[node.symbol](*values)
        if isinstance(node, Cast):
            return as_result(values[0], lower.dtype(node.dtype)).to(self.kind)
        if isinstance(node, Function):
            return function(node.name, self.bits if node.name in self.last else WHOLE_BITS)(values[0])
        raise TypeError(f"no kernel has an expression {node!r}")

    def _as(self, value: Any, kind: Any) -> Any:
        """Convert a value to another type. fp8 is first converted to the type of computations.

        The machine does not convert fp8 to integers directly.
        """
        is_byte = value.dtype.is_float and value.dtype.width == 8
        return value.to(self.kind).to(kind) if is_byte else value.to(kind)

    # --- on fragments --------------------------------------------------------------------------------------

    def head(self, accumulators: cute.Tensor, k_tiles: Any, result: Any) -> cute.Tensor:
        """Multiply a thread's accumulators by the scalars that the epilogue applies first: alpha for alpha * acc + c.

        The accumulators are changed in place. Only if they are integers and D has a floating-point type, they are first
        converted to f32 in new registers.

        k_tiles   number of k-tiles; if it is 0, no MMA has set the accumulators, and they are set to 0
        result    element type of D
        returns   the scaled accumulators
        """
        if not accumulators.element_type.is_float and result.is_float:
            out = cute.make_rmem_tensor(accumulators.layout, Float32)
            for i in range(cute.size(accumulators)):
                out[i] = accumulators[i].to(Float32)
            accumulators = out
        steps = self.head_part.steps
        if not steps:
            self._clear(accumulators, k_tiles)
        for position, step in enumerate(steps):
            self._head_step(step, accumulators, k_tiles, position == 0)
        return accumulators

    @cute.jit
    def _clear(self, accumulators: cutlass.Constexpr, k_tiles: Int32):
        """Set the accumulators to 0 if `k_tiles`, the number of k-tiles, is 0, because no MMA has set them."""
        if k_tiles == 0:
            branch()  # without it the compiler emits a select for each accumulator of every tile
            accumulators.fill(0)

    @cute.jit
    def _head_step(
        self, step: cutlass.Constexpr, accumulators: cutlass.Constexpr, k_tiles: Int32, is_first: cutlass.Constexpr
    ):
        """Apply one leading step of the epilogue (multiplication by scalars) to accumulators, if it has an effect.

        step       the step
        k_tiles    number of k-tiles
        is_first   True for the first step, which also sets the accumulators to 0 if `k_tiles` is 0
        """
        if cutlass.const_expr(is_first):
            if self.acts(step) or k_tiles == 0:
                if k_tiles == 0:
                    accumulators.fill(0)
                self._each(step.expression, accumulators, {})
        elif self.acts(step):
            self.apply(step, accumulators, {})

    @cute.jit
    def carry_out(self, step: cutlass.Constexpr, accumulators: cutlass.Constexpr, fetch: cutlass.Constexpr):
        """Apply a step of the epilogue to a fragment in place if it has an effect. Its operands are loaded only then.

        step           the step, such as "+ beta * C"
        accumulators   the fragment: some accumulators of a thread, in registers
        fetch          function of an operand's name that loads and returns the operand's values for the fragment
        """
        if self.acts(step):
            self.apply(step, accumulators, {name: fetch(name) for name in step.tensors})

    def apply(self, step: Step, accumulators: cute.Tensor, held: Mapping[str, Any]) -> None:
        """Apply a step of the epilogue to a fragment of accumulators in place.

        held   the values of the step's operands for the fragment, by name
        """
        self._each(step.expression, accumulators, held)

    def carry_out_all(self, steps: Sequence[Step], accumulators: cute.Tensor, fetch: Callable[[str], Any]) -> None:
        """Apply steps of the epilogue in order to a fragment in place, each only if it has an effect.

        accumulators   the fragment: some accumulators of a thread, in registers
        fetch          function of an operand's name that loads and returns the operand's values for the fragment
        """
        if not accumulators.element_type.is_float and steps:
            self._whole(tuple(steps), accumulators, fetch)
            return
        for step in steps:
            self.carry_out(step, accumulators, fetch)

    @cute.jit
    def _whole(self, steps: cutlass.Constexpr, accumulators: cutlass.Constexpr, fetch: cutlass.Constexpr):
        """Apply steps of the epilogue to a fragment of integer accumulators exactly: in f64, rounded once at the end.

        accumulators   the fragment, changed in place
        fetch          function of an operand's name that loads and returns the operand's values for the fragment
        """
        if self.any_acts(steps):
            branch()
            wide = cute.make_rmem_tensor(accumulators.shape, Float64)
            for i in cutlass.range_constexpr(cute.size(accumulators)):
                wide[i] = accumulators[i].to(Float64)
            for i in cutlass.range_constexpr(len(steps)):
                self.carry_out(steps[i], wide, fetch)
            for i in cutlass.range_constexpr(cute.size(accumulators)):
                accumulators[i] = nearest(wide[i])

    def any_acts(self, steps: Sequence[Step]) -> Any:
        """Return whether any of these epilogue steps has an effect: True, False, or a value known at run time."""
        out: Any = False
        for acts in [self.acts(step) for step in steps]:
            out = True if acts is True or out is True else acts if out is False else out | acts
        return out

    def worked_out(
        self, epilogue: Epilogue, accumulators: cute.Tensor, fetch: Callable[[str], Any], ups: Any = None
    ) -> Callable[[str, Any], cute.Tensor]:
        """Return a function that evaluates one result of an epilogue on a fragment of accumulators, left unchanged.

        It is used for epilogues with several results, and for gated ones.

        fetch     function of an operand's name that loads and returns its values for the fragment; all operands are
                  loaded first
        ups       up accumulators, if `accumulators` are gates; else None
        returns   function of a result's name and its type, which returns a fragment of its values, computed at each
                  call; for a reduction, the values that are reduced
        """
        held = {name: fetch(name) for name in epilogue.tensors}
        expressions = {
            **dict(epilogue.results),
            **{name: reduction.child for name, reduction in epilogue.reductions},
        }

        def of(name: str, kind: Any) -> cute.Tensor:
            out = cute.make_rmem_tensor(accumulators.shape, kind)
            for i in range(cute.size(accumulators)):
                operands = {operand: values[i] for operand, values in held.items()}
                own = accumulators[i] if ups is None else (accumulators[i], ups[i])
                out[i] = as_result(self.element(expressions[name], own, operands, self.kind), kind)
            return out

        return of

    def _each(self, expression: Expression, accumulators: cute.Tensor, held: Mapping[str, cute.Tensor]) -> None:
        """Evaluate an expression on a fragment of accumulators in place, register by register.

        An expression on whole vectors takes 150 more instructions.

        held   the values of the expression's operands for the fragment, by name
        """
        for i in range(cute.size(accumulators)):
            operands = {name: values[i] for name, values in held.items()}
            accumulators[i] = self.element(expression, accumulators[i], operands, accumulators.element_type).to(
                accumulators.element_type
            )
