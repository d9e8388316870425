"""The expression of an epilogue in a kernel: its operands, and its operations on elements or on fragments.

Two ways to compute it, for two ways to store:

`element`                the whole expression of one sum, where a thread stores a vector of D as soon as it has its
                         operands
`head`, `carry_out`      first the head, on all sums of a thread where they are; then the tail's steps, on a fragment,
                         each with the tiles that it fetches. A step that changes nothing is left out at run time

Sums that are whole numbers stay what they are where a factor is 1; else a product is one of f32, of which what is no
whole number is cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cutegemm.kernels.arguments import scalar_type
from cutegemm.plan.epilogue import (
    Accumulator,
    Add,
    Constant,
    Epilogue,
    Expression,
    Multiply,
    Scalar,
    Step,
    Tile,
    launch_operands,
)
from cutegemm.plan.plan import GemmPlan


class Values:
    """The operands of an epilogue. Methods without a decorator are plain Python, run while tracing.

    tiles     tensors of global memory by name, or what stands for them
    scalars   numbers of one type by name
    kind      that type, in which products are computed
    """

    def __init__(
        self, epilogue: Epilogue, tiles: Mapping[str, Any], scalars: Mapping[str, Any], kind: Any
    ) -> None:
        self.epilogue, self.tiles, self.scalars, self.kind = epilogue, tiles, scalars, kind

    @staticmethod
    def of(
        plan: GemmPlan, tiles: Sequence[Any], scalars: Sequence[Any], part: Epilogue | None = None
    ) -> Values:
        """Of the operands of a compiled function in their order; or, as `operands_of` gives them, of a part of the
        plan's epilogue."""
        names = launch_operands(plan.epilogue) if part is None else (part.tiles, part.scalars)
        named = [dict(zip(of, given, strict=True)) for of, given in zip(names, (tiles, scalars), strict=True)]
        return Values(plan.epilogue if part is None else part, *named, scalar_type(plan))

    def operands_of(self, part: Epilogue) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The tiles and the scalars of a part of the epilogue, for a kernel that computes no more."""
        tiles = [self.tiles[name] for name in part.tiles]
        return tuple(tiles), tuple([self.scalars[name] for name in part.scalars])

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

    def element(self, expression: Expression, accumulated: Any, tiles: Mapping[str, Any], kind: Any) -> Any:
        """The value of an expression for one element.

        accumulated   in the place of the accumulator
        tiles         the element of each tile, by name
        kind          the type of sums, and of the result
        """
        if isinstance(expression, Accumulator):
            return accumulated
        if isinstance(expression, Constant):
            return self.kind(expression.value)
        if isinstance(expression, Scalar):
            return self.scalars[expression.name]
        if isinstance(expression, Tile):
            return tiles[expression.name]
        left, right = [self.element(child, accumulated, tiles, kind) for child in expression.children]
        # Of scalars alone it is no value of an element yet, and nothing is cut off
        kind = kind if expression.has_accumulator or expression.tiles else self.kind
        if isinstance(expression, Add):
            return left.to(kind) + right.to(kind)
        if isinstance(expression, Multiply):
            return (left.to(self.kind) * right.to(self.kind)).to(kind)
        raise TypeError(f"no kernel has an expression {expression!r}")

    # --- on fragments --------------------------------------------------------------------------------------

    def head(self, sums: cute.Tensor, k_tiles: Any, result: Any) -> cute.Tensor:
        """All sums of a thread as the head makes them: where they are, or as f32 where D is no whole number.

        k_tiles   where there are none, no product has set the sums to 0
        result    the type of D
        """
        if not sums.element_type.is_float and result.is_float:
            out = cute.make_rmem_tensor(sums.layout, Float32)
            for i in range(cute.size(sums)):
                out[i] = sums[i].to(Float32)
            sums = out
        steps = self.epilogue.head.steps
        if not steps:
            self._clear(sums, k_tiles)
        for position, step in enumerate(steps):
            self._head_step(step, sums, k_tiles, position == 0)
        return sums

    @cute.jit
    def _clear(self, sums: cutlass.Constexpr, k_tiles: Int32):
        if k_tiles == 0:
            sums.fill(0)

    @cute.jit
    def _head_step(
        self, step: cutlass.Constexpr, sums: cutlass.Constexpr, k_tiles: Int32, is_first: cutlass.Constexpr
    ):
        if cutlass.const_expr(is_first):
            if self.acts(step) or k_tiles == 0:
                if k_tiles == 0:
                    sums.fill(0)
                self._each(step.expression, sums, {})
        elif self.acts(step):
            self.apply(step, sums, {})

    @cute.jit
    def carry_out(self, step: cutlass.Constexpr, sums: cutlass.Constexpr, fetch: cutlass.Constexpr):
        """A step on a fragment where it changes anything, and then only its tiles are fetched.

        fetch   a tile's values for the fragment, by the tile's name
        """
        if self.acts(step):
            self.apply(step, sums, {name: fetch(name) for name in step.tiles})

    def apply(self, step: Step, sums: cute.Tensor, held: Mapping[str, cute.Tensor]) -> None:
        """A step on a fragment, in its place.

        held   the values of the step's tiles for it, by name
        """
        if self.kind is Float32 and not sums.element_type.is_float:
            self._whole(step.expression, sums, held, step.factors)
        else:
            self._each(step.expression, sums, held)

    @cute.jit
    def _whole(
        self,
        expression: cutlass.Constexpr,
        sums: cutlass.Constexpr,
        held: cutlass.Constexpr,
        factors: cutlass.Constexpr,
    ):
        """Of whole numbers, which f32 does not hold: without each factor that is 1."""
        if cutlass.const_expr(not factors):
            self._each(expression, sums, held)
        else:
            if self.scalars[factors[0]] == 1.0:
                self._whole(expression.given({factors[0]: 1.0}), sums, held, factors[1:])
            else:
                self._whole(expression, sums, held, factors[1:])

    def _each(self, expression: Expression, sums: cute.Tensor, held: Mapping[str, cute.Tensor]) -> None:
        """Register by register: as one vector it takes 150 instructions more."""
        for i in range(cute.size(sums)):
            tiles = {name: tile[i] for name, tile in held.items()}
            sums[i] = self.element(expression, sums[i], tiles, sums.element_type).to(sums.element_type)
