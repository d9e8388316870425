"""Functions for writing epilogues. Each takes expressions or numbers and returns an expression.

>>> from cutegemm.plan.epilogue import Accumulator, Row
>>> print(gelu(Accumulator() + Row("bias")))
gelu(acc + bias)
>>> print(clamp(Accumulator(), 0, 6))
minimum(maximum(acc, 0), 6)

The [table of functions](functions.md) gives the instructions and the accuracy of each function.
"""

from __future__ import annotations

from typing import Any

from cutegemm.dtypes import DType, e4m3
from cutegemm.errors import PlanError
from cutegemm.layout.inttuple import shown
from cutegemm.plan.epilogue.expression import (
    Cast,
    Compare,
    Expression,
    Function,
    Half,
    Maximum,
    Minimum,
    Reduction,
    Where,
    expression_of,
)
from cutegemm.plan.epilogue.quantized import BlockScale, Quantized

_LEAST_CAP, _MOST_CAP = 1e-30, 1e30  # bounds of softcap's cap, so that 1 / cap is a float32
# Functions of one value that are nodes of an expression. The other functions are composed of nodes.
NAMES = (
    "abs", "square", "sqrt", "rsqrt", "exp", "log", "tanh", "erf", "sigmoid", "relu", "gelu", "gelu_tanh", "silu",
)  # fmt: skip


def _expression(of: str, value: Any) -> Expression:
    """Convert an argument of an epilogue function, such as `relu`, to an expression; a number becomes a `Constant`.

    of       name of the epilogue function, for the message
    value    the argument
    raises   TypeError if the argument is neither an expression nor a number
    """
    found = expression_of(value)
    if found is None:
        raise TypeError(
            f"{of} of {value!r}: an expression of an epilogue, or a number, is expected. Operands are passed by name: "
            "gemm(a, b, epilogue=lambda acc, bias: gelu(acc + bias), bias=bias)."
        )
    return found


def abs(x: Any) -> Expression:
    """Return the epilogue expression |x|. `x` is an expression or a number."""
    return Function("abs", _expression("abs", x))


def square(x: Any) -> Expression:
    """Return the epilogue expression x * x. `x` is an expression or a number."""
    return Function("square", _expression("square", x))


def sqrt(x: Any) -> Expression:
    """Return the epilogue expression of the square root of x, an expression or a number; NaN where x is negative."""
    return Function("sqrt", _expression("sqrt", x))


def rsqrt(x: Any) -> Expression:
    """Return 1 / sqrt(x)."""
    return Function("rsqrt", _expression("rsqrt", x))


def exp(x: Any) -> Expression:
    """Return the epilogue expression e**x. `x` is an expression or a number."""
    return Function("exp", _expression("exp", x))


def log(x: Any) -> Expression:
    """Return the epilogue expression of the natural logarithm of x, an expression or a number."""
    return Function("log", _expression("log", x))


def tanh(x: Any) -> Expression:
    """Return the epilogue expression of the hyperbolic tangent of x, an expression or a number."""
    return Function("tanh", _expression("tanh", x))


def erf(x: Any) -> Expression:
    """Return the epilogue expression of the error function erf(x). `x` is an expression or a number."""
    return Function("erf", _expression("erf", x))


def sigmoid(x: Any) -> Expression:
    """Return 1 / (1 + exp(-x))."""
    return Function("sigmoid", _expression("sigmoid", x))


def relu(x: Any) -> Expression:
    """Return the epilogue expression max(x, 0): x where x is positive, 0 elsewhere."""
    return Function("relu", _expression("relu", x))


def gelu(x: Any) -> Expression:
    """Return the epilogue expression x * (1 + erf(x / sqrt(2))) / 2, the default `gelu` of torch."""
    return Function("gelu", _expression("gelu", x))


def gelu_tanh(x: Any) -> Expression:
    """Return the epilogue expression x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2.

    It is torch's `gelu` with approximate="tanh".
    """
    return Function("gelu_tanh", _expression("gelu_tanh", x))


def silu(x: Any) -> Expression:
    """Return the epilogue expression x * sigmoid(x), also called swish."""
    return Function("silu", _expression("silu", x))


def minimum(x: Any, y: Any) -> Expression:
    """Return the epilogue expression of the lesser of x and y; NaN where one of them is NaN, as in torch."""
    return Minimum(_expression("minimum", x), _expression("minimum", y))


def maximum(x: Any, y: Any) -> Expression:
    """Return the epilogue expression of the greater of x and y; NaN where one of them is NaN, as in torch."""
    return Maximum(_expression("maximum", x), _expression("maximum", y))


def clamp(x: Any, low: Any = None, high: Any = None) -> Expression:
    """Return the epilogue expression of x limited to the range [low, high].

    x           an expression, such as the accumulator
    low, high   bounds: expressions or numbers; None: no bound on this side
    """
    out = _expression("clamp", x)
    out = out if low is None else maximum(out, low)
    return out if high is None else minimum(out, high)


def softcap(x: Any, cap: float) -> Expression:
    """Return the epilogue expression cap * tanh(x / cap): nearly x for small x, and always below `cap` in magnitude.

    cap      number of magnitude 1e-30 to 1e30, or an expression
    raises   TypeError for another number

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> print(softcap(Accumulator(), 50))
    50 * tanh(acc * 0.02)
    """
    if isinstance(cap, int | float) and not _LEAST_CAP <= max(cap, -cap) <= _MOST_CAP:
        raise TypeError(f"softcap: cap is {shown(cap)}; a number of magnitude {_LEAST_CAP} to {_MOST_CAP} is expected.")
    return cap * tanh(_expression("softcap", x) * (1 / cap))


def where(condition: Any, x: Any, y: Any) -> Expression:
    """Return the epilogue expression that is x where the condition is true, and y elsewhere, element by element of D.

    condition   a comparison of expressions by <, <=, > or >=, or the result of `equal` or `not_equal`
    raises      TypeError if the condition is not a comparison

    >>> from cutegemm.plan.epilogue import Accumulator, Tile
    >>> print(where(Tile("preact") > 0, Accumulator(), 0))
    where(preact > 0, acc, 0)
    """
    if not isinstance(condition, Compare):
        raise TypeError(f"where: the condition is {condition!r}; a comparison such as acc > 0 is expected.")
    return Where(condition, _expression("where", x), _expression("where", y))


def equal(x: Any, y: Any) -> Expression:
    """Return the condition "x equals y", element by element of D, for use in `where`.

    Python's `==` cannot be used for this: it compares expression trees.
    """
    return Compare("==", _expression("equal", x), _expression("equal", y))


def not_equal(x: Any, y: Any) -> Expression:
    """Return the condition "x differs from y", element by element of D, for use in `where`.

    Python's `!=` cannot be used for this: it compares expression trees.
    """
    return Compare("!=", _expression("not_equal", x), _expression("not_equal", y))


def row_sum(x: Any) -> Expression:
    """Return the reduction that adds x over each row of D: M numbers, one for each row.

    An epilogue returns it after D, as a separate result. The values are added before they are rounded to D's type.

    x   an expression or a number

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> print(row_sum(square(Accumulator())))
    row_sum(square(acc))
    """
    return Reduction("sum", ("n",), _expression("row_sum", x))


def row_max(x: Any) -> Expression:
    """Return the reduction to the maximum of x in each row of D: M numbers; NaN if one of the values is NaN.

    An epilogue returns it after D, as a separate result.
    """
    return Reduction("max", ("n",), _expression("row_max", x))


def column_sum(x: Any) -> Expression:
    """Return the reduction that adds x over each column of D: N numbers, one for each column.

    An epilogue returns it after D, as a separate result.
    """
    return Reduction("sum", ("m",), _expression("column_sum", x))


def column_max(x: Any) -> Expression:
    """Return the reduction to the maximum of x in each column of D: N numbers; NaN if one of the values is NaN.

    An epilogue returns it after D, as a separate result.
    """
    return Reduction("max", ("m",), _expression("column_max", x))


def total_sum(x: Any) -> Expression:
    """Return the reduction that adds x over all of D: one number for each matrix of the batch.

    An epilogue returns it after D, as a separate result.
    """
    return Reduction("sum", ("m", "n"), _expression("total_sum", x))


def total_max(x: Any) -> Expression:
    """Return the reduction to the maximum of x over all of D: one number for each matrix of the batch.

    An epilogue returns it after D, as a separate result. The maximum of abs(x) gives the scale for quantizing x to fp8.
    """
    return Reduction("max", ("m", "n"), _expression("total_max", x))


def cast(x: Any, dtype: DType | str) -> Expression:
    """Return the epilogue expression of x rounded to an element type, to nearest even.

    dtype   the element type or its name, such as "bf16"

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> print(cast(Accumulator(), "bf16") * 2)
    bf16(acc) * 2
    """
    return Cast(_expression("cast", x), DType.parse(dtype))


def quantize(x: Any, dtype: DType | str = e4m3, power_of_two: bool = False) -> tuple[Expression, Expression]:
    """Return (values, scales): x in float8, and one f32 scale for every 128 columns of each row of D.

    An epilogue returns both, and nothing else. They have the form that block-scaled GEMMs take as an operand: (M, N)
    values and (M, N/128) scales, N/128 rounded up. `cutegemm.quantize` makes the same from a matrix in memory.

    x              an expression
    dtype          element type of the values, e4m3 or e5m2
    power_of_two   whether scales are rounded up to powers of two
    raises         TypeError for another type

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> print(*quantize(relu(Accumulator())))
    quantize(relu(acc), 'e4m3')[0] quantize(relu(acc), 'e4m3')[1]
    """
    kind, whole = DType.parse(dtype), _expression("quantize", x)
    if kind.bits != 8 or not kind.is_float:
        raise TypeError(f"quantize: dtype is {kind}; e4m3 or e5m2 is expected.")
    return Quantized(whole, kind, bool(power_of_two)), BlockScale(whole, kind, bool(power_of_two))


# --- gated: an element of D is computed from two columns of A @ B, and D has N / 2 columns ------------------------


def halves(x: Any) -> tuple[Expression, Expression]:
    """Split the columns of x into gate and up for a gated activation (GLU): the first half and the second half.

    Columns j and j + N / 2 of x are gate and up of column j of D. x has the N columns of A @ B, D has N / 2.

    x         an expression of the accumulator, rows of N numbers, columns and numbers
    returns   (gate, up), two expressions with N / 2 columns
    raises    PlanError if x contains a gate or an up already

    >>> from cutegemm.plan.epilogue import Accumulator, Epilogue, Row
    >>> gate, up = halves(Accumulator() + Row("bias"))
    >>> print(Epilogue(silu(gate) * up))
    silu(acc.gate + bias.gate) * (acc.up + bias.up)
    """
    return _divided(x, False)


def pairs(x: Any) -> tuple[Expression, Expression]:
    """Split the columns of x into gate and up for a gated activation (GLU): the even and the odd columns.

    Columns 2j and 2j + 1 of x are gate and up of column j of D. x has the N columns of A @ B, D has N / 2.

    x         an expression of the accumulator, rows of N numbers, columns and numbers
    returns   (gate, up), two expressions with N / 2 columns
    raises    PlanError if x contains a gate or an up already
    """
    return _divided(x, True)


def _divided(x: Any, interleaved: bool) -> tuple[Expression, Expression]:
    """Split x into a gate and an up expression for a gated activation (GLU); each has half of the N columns of x.

    interleaved   how the columns of x are arranged. False: columns j and j + N / 2 are gate and up of column j of D.
                  True: columns 2j and 2j + 1 are
    returns       (gate, up)
    raises        PlanError if x contains a gate or an up already
    """
    by = "pairs" if interleaved else "halves"
    whole = _expression(by, x)
    if any(isinstance(node, Half) for node in whole.nodes()):
        raise PlanError(f"{by}({whole})", ["it already uses a gate or an up value. Divide the accumulator once."])
    return Half(whole, 0, interleaved), Half(whole, 1, interleaved)


def _gated(activation: Any, x: Any, interleaved: bool) -> Expression:
    """Return the expression activation(gate) * up, where gate and up are the two halves of the columns of x.

    activation    function of an expression, such as `silu`
    x             expression with the N columns of A @ B
    interleaved   how the columns of x are arranged. False: columns j and j + N / 2 are gate and up of column j of D.
                  True: columns 2j and 2j + 1 are
    """
    gate, up = (pairs if interleaved else halves)(x)
    out: Expression = activation(gate) * up
    return out


def swiglu(x: Any, interleaved: bool = False) -> Expression:
    """Return the gated activation silu(gate) * up, where gate and up are the two halves of the N columns of x.

    x             expression of the accumulator, rows of N numbers, columns and numbers
    interleaved   how the columns of x are arranged. False: columns j and j + N / 2 are gate and up of column j of D.
                  True: columns 2j and 2j + 1 are

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> print(swiglu(Accumulator()), "|", swiglu(Accumulator(), interleaved=True))
    silu(acc.gate) * acc.up | silu(acc.gate) * acc.up
    """
    return _gated(silu, x, interleaved)


def geglu(x: Any, interleaved: bool = False) -> Expression:
    """Return the gated activation gelu(gate) * up, where gate and up are the two halves of the N columns of x.

    x             expression of the accumulator, rows of N numbers, columns and numbers
    interleaved   how the columns of x are arranged. False: columns j and j + N / 2 are gate and up of column j of D.
                  True: columns 2j and 2j + 1 are
    """
    return _gated(gelu, x, interleaved)


def reglu(x: Any, interleaved: bool = False) -> Expression:
    """Return the gated activation relu(gate) * up, where gate and up are the two halves of the N columns of x.

    x             expression of the accumulator, rows of N numbers, columns and numbers
    interleaved   how the columns of x are arranged. False: columns j and j + N / 2 are gate and up of column j of D.
                  True: columns 2j and 2j + 1 are
    """
    return _gated(relu, x, interleaved)


def glu(x: Any, interleaved: bool = False) -> Expression:
    """Return the gated activation sigmoid(gate) * up, where gate and up are the two halves of the N columns of x.

    torch's `glu` applies the sigmoid to the second half instead.

    x             expression of the accumulator, rows of N numbers, columns and numbers
    interleaved   how the columns of x are arranged. False: columns j and j + N / 2 are gate and up of column j of D.
                  True: columns 2j and 2j + 1 are
    """
    return _gated(sigmoid, x, interleaved)


def swiglu_oai(x: Any, interleaved: bool = False, alpha: float = 1.702, limit: float | None = 7.0) -> Expression:
    """Return the gated activation of gpt-oss: gate * sigmoid(alpha * gate) * (up + 1).

    Gate and up are the two halves of the N columns of x.

    x             expression of the accumulator, rows of N numbers, columns and numbers
    interleaved   how the columns of x are arranged. False: columns j and j + N / 2 are gate and up of column j of D.
                  True: columns 2j and 2j + 1 are
    alpha         factor of the gate inside the sigmoid
    limit         bound applied first: gate is clamped to at most `limit`, up to [-limit, limit]. None applies no bound
    source        GptOssExperts of transformers, whose gate and up are interleaved

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> print(swiglu_oai(Accumulator(), limit=None))
    acc.gate * sigmoid(1.702 * acc.gate) * (acc.up + 1)
    """
    gate, up = (pairs if interleaved else halves)(x)
    if limit is not None:
        gate, up = minimum(gate, limit), clamp(up, -limit, limit)
    return gate * sigmoid(alpha * gate) * (up + 1)
