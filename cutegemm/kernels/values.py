"""The expression of an epilogue in a kernel: its operands, and its operations on elements or on fragments.

Two ways to compute it, for two ways to store:

`element`                the whole expression of one sum, where a thread stores a vector of D as soon as it has its
                         operands
`head`, `carry_out`      first the head, on all sums of a thread where they are; then the tail's steps, on a fragment,
                         each with the operands that it fetches. A step that changes nothing is left out at run time

Sums that are whole numbers, on their way to a D of such, stay what they are where no step changes anything; else all
steps are computed in f64, which holds them, and their result is rounded once: to nearest, ties to even, or to the least
or the greatest number, where it is past that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Float64, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.kernels import lower
from cutegemm.kernels.arguments import scalar_type
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

WHOLE_BITS = 24  # of f32


@dsl_user_op
def branch(*, loc=None, ip=None) -> None:
    """Nothing; but what stands behind it in a branch is not moved out of the branch."""
    asm = functools.partial(llvm.inline_asm, has_side_effects=True, is_align_stack=False, loc=loc, ip=ip)
    asm(None, [], "", "", asm_dialect=llvm.AsmDialect.AD_ATT)


@dsl_user_op
def nearest(value: Float32 | Float64, *, loc=None, ip=None) -> Int32:
    """The nearest whole number of 32 bits, of two the even one."""
    asm = functools.partial(llvm.inline_asm, has_side_effects=False, is_align_stack=False, loc=loc, ip=ip)
    text, register = ("cvt.rni.s32.f64", "d") if value.dtype is Float64 else ("cvt.rni.s32.f32", "f")
    operands = [value.ir_value(loc=loc, ip=ip)]
    return Int32(asm(T.i32(), operands, f"{text} $0, $1;", f"=r,{register}", asm_dialect=llvm.AsmDialect.AD_ATT))


def as_result(value: Any, kind: Any) -> Any:
    """A value in the type of a result: of whole numbers the nearest one, and the ends of the type beyond them."""
    if kind.is_float:
        return value.to(kind)
    whole = nearest(value) if value.dtype.is_float else value
    if kind.width < whole.dtype.width:
        ends = 1 << kind.width - 1
        whole = cutlass.min(cutlass.max(whole, Int32(-ends)), Int32(ends - 1))
    return whole.to(kind)


def store_as_results(values: cute.Tensor, results: cute.Tensor) -> None:
    """A fragment in the type of another one, which has as many elements."""
    if results.element_type.is_float:
        results.store(values.load().to(results.element_type))
        return
    for i in range(cute.size(values)):
        results[i] = as_result(values[i], results.element_type)


def last_functions(epilogue: Epilogue) -> frozenset[str]:
    """Functions whose values are stored as they are, wherever they appear: those may be as exact as what is stored.

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
    """The operands of an epilogue. Methods without a decorator are plain Python, run while tracing.

    tensors   (M, N, L) in global memory by name, or what stands for them
    results   where what is stored beside D goes, likewise; of a reduction its partial results
    scalars   numbers of one type by name
    kind      that type, in which all is computed
    bits      of the significand with which results are stored, at most
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
        """Of the operands of a compiled function in their order; or, as `operands_of` gives them, of a part of the
        plan's epilogue.

        operands   tensors, and results
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
        """Tensors and results, and the scalars, of a part of the epilogue, for a kernel that computes no more."""
        tensors = tuple([self.tensors[name] for name in part.tensors])
        results = tuple([self.results[name] for name in part.beside])
        return (tensors, results), tuple([self.scalars[name] for name in part.scalars])

    def acts(self, step: Step) -> Any:
        """Whether a step changes anything, and so reads its tiles: True, or known when the kernel runs."""
        out: Any = True
        for name, value in step.idle:
            differs = self.scalars[name] != self.scalars[name].dtype(value)
            out = differs if out is True else out & differs
        return out

    def reads(self, epilogue: Epilogue, name: str | None = None) -> Any:
        """Whether a tile, or one at all, is read: True, False, or known when the kernel runs."""
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
        """The value of an expression for one element.

        accumulated   in the place of the accumulator; of a gated epilogue (gate, up)
        operands      the element of each operand in memory, by name; (gate, up) of a row beside a gated B
        kind          the type of sums, and of the result
        known         values of this element that have been worked out, which are not worked out again
        """
        known = {} if known is None else known
        if expression not in known:
            known[expression] = self._element(expression, accumulated, operands, kind, known)
        return known[expression]

    def _element(self, node: Expression, accumulated: Any, operands: Any, kind: Any, known: Any) -> Any:
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
        if isinstance(node, Minimum):  # a Maximum is one
            return BINARY["maximum" if isinstance(node, Maximum) else "minimum"](*values)
        if isinstance(node, Compare):
            return COMPARED[node.symbol](*values)
        if isinstance(node, Cast):
            return as_result(values[0], lower.dtype(node.dtype)).to(self.kind)
        if isinstance(node, Function):
            return function(node.name, self.bits if node.name in self.last else WHOLE_BITS)(values[0])
        raise TypeError(f"no kernel has an expression {node!r}")

    def _as(self, value: Any, kind: Any) -> Any:
        """A value in another type: there is no instruction from 8 bits of a float to whole numbers."""
        is_byte = value.dtype.is_float and value.dtype.width == 8
        return value.to(self.kind).to(kind) if is_byte else value.to(kind)

    # --- on fragments --------------------------------------------------------------------------------------

    def head(self, accumulators: cute.Tensor, k_tiles: Any, result: Any) -> cute.Tensor:
        """All sums of a thread as the head makes them: where they are, or as f32 where D is no whole number.

        k_tiles   where there are none, no product has set the sums to 0
        result    the type of D
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
        if k_tiles == 0:
            branch()  # or each sum would be selected, of all tiles
            accumulators.fill(0)

    @cute.jit
    def _head_step(
        self, step: cutlass.Constexpr, accumulators: cutlass.Constexpr, k_tiles: Int32, is_first: cutlass.Constexpr
    ):
        if cutlass.const_expr(is_first):
            if self.acts(step) or k_tiles == 0:
                if k_tiles == 0:
                    accumulators.fill(0)
                self._each(step.expression, accumulators, {})
        elif self.acts(step):
            self.apply(step, accumulators, {})

    @cute.jit
    def carry_out(self, step: cutlass.Constexpr, accumulators: cutlass.Constexpr, fetch: cutlass.Constexpr):
        """A step on a fragment where it changes anything, and then only what it reads is fetched.

        fetch   an operand's values for the fragment, by the operand's name
        """
        if self.acts(step):
            self.apply(step, accumulators, {name: fetch(name) for name in step.tensors})

    def apply(self, step: Step, accumulators: cute.Tensor, held: Mapping[str, Any]) -> None:
        """A step on a fragment, in its place.

        held   the values of the step's operands for it, by name
        """
        self._each(step.expression, accumulators, held)

    def carry_out_all(self, steps: Sequence[Step], accumulators: cute.Tensor, fetch: Callable[[str], Any]) -> None:
        """Steps on a fragment, each where it changes anything: see `carry_out`."""
        if not accumulators.element_type.is_float and steps:
            self._whole(tuple(steps), accumulators, fetch)
            return
        for step in steps:
            self.carry_out(step, accumulators, fetch)

    @cute.jit
    def _whole(self, steps: cutlass.Constexpr, accumulators: cutlass.Constexpr, fetch: cutlass.Constexpr):
        """Steps on whole numbers, rounded behind the last one."""
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
        """Whether one of some steps changes anything."""
        out: Any = False
        for acts in [self.acts(step) for step in steps]:
            out = True if acts is True or out is True else acts if out is False else out | acts
        return out

    def worked_out(
        self, epilogue: Epilogue, accumulators: cute.Tensor, fetch: Callable[[str], Any], ups: Any = None
    ) -> Callable[[str, Any], cute.Tensor]:
        """What an epilogue of several results, or a gated one, makes of a fragment, which stays as it is.

        fetch     an operand's values for the fragment, by the operand's name; all are fetched first
        ups       of a gated epilogue, whose fragment is the gates
        returns   of the name of a result and its type: a fragment of its values, worked out when it is asked for; of
                  a reduction those that it takes
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
        """Register by register: as one vector it takes 150 instructions more."""
        for i in range(cute.size(accumulators)):
            operands = {name: values[i] for name, values in held.items()}
            accumulators[i] = self.element(expression, accumulators[i], operands, accumulators.element_type).to(
                accumulators.element_type
            )
