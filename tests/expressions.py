"""Hypothesis strategies for expressions of an epilogue."""

from __future__ import annotations

from hypothesis import strategies as st

from cutegemm.dtypes import bf16, e4m3, e5m2, f16, f32, f64
from cutegemm.plan.epilogue import (
    Accumulator,
    Add,
    Cast,
    Column,
    Compare,
    Constant,
    Divide,
    Element,
    Expression,
    Function,
    Input,
    Maximum,
    Minimum,
    Multiply,
    Negative,
    Row,
    Scalar,
    Subtract,
    Tile,
    Where,
    functions,
)

KINDS: dict[str, type[Input]] = {"row": Row, "column": Column, "tile": Tile, "one": Element, "s": Scalar}
_LEAVES = [Accumulator(), *[kind(name) for name, kind in KINDS.items()]]
# Functions whose error in the value is not much larger than the error in the argument, for all arguments.
SMOOTH = ("abs", "tanh", "erf", "sigmoid", "relu", "gelu", "gelu_tanh", "silu")


def _compared(values: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.builds(Compare, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), values, values)


def any_expressions(leaves: int = 12) -> st.SearchStrategy[Expression]:
    """Return a strategy for all expressions that can be written: all nodes, kinds of operands and finite constants."""
    numbers = st.floats(allow_nan=False, allow_infinity=False).map(Constant)
    return st.recursive(
        st.sampled_from(_LEAVES) | numbers,
        lambda x: (
            st.builds(Negative, x)
            | st.sampled_from([Add, Subtract, Multiply, Divide, Minimum, Maximum]).flatmap(
                lambda of: st.builds(of, x, x)
            )
            | st.builds(Where, _compared(x), x, x)
            | st.builds(Cast, x, st.sampled_from([f16, bf16, f32, f64, e4m3, e5m2]))
            | st.builds(Function, st.sampled_from(functions.NAMES), x)
        ),
        max_leaves=leaves,
    )


def tame_expressions(leaves: int = 6) -> st.SearchStrategy[Expression]:
    """Return a strategy for expressions whose float32 value is close to the float64 value, for operands of about 1.

    They have no differences of large numbers, no poles and no steps.
    """
    numbers = st.integers(-8, 8).map(lambda eighths: Constant(eighths / 8))
    return st.recursive(
        st.sampled_from(_LEAVES) | numbers,
        lambda x: (
            st.builds(Negative, x)
            | st.sampled_from([Add, Subtract, Minimum, Maximum]).flatmap(lambda of: st.builds(of, x, x))
            | st.builds(lambda a, b: Multiply(a, Function("tanh", b)), x, x)
            | st.builds(lambda a, b: Divide(a, Add(Constant(1.0), Function("square", b))), x, x)
            | st.builds(lambda a, b: Where(Compare(">", Accumulator(), Row("row")), a, b), x, x)
            | st.builds(Function, st.sampled_from(SMOOTH), x)
        ),
        max_leaves=leaves,
    )
