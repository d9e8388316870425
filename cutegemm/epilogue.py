"""Functions for the epilogue of `gemm`: activations, gated activations, reductions and arithmetic.

>>> from cutegemm.epilogue import gelu, softcap, where
>>> from cutegemm.plan.epilogue import Row, epilogue_of
>>> print(epilogue_of(lambda acc, bias: gelu(acc + bias), {"bias": Row}))
gelu(acc + bias)
"""

from cutegemm.plan.epilogue.functions import (
    abs,
    cast,
    clamp,
    column_max,
    column_sum,
    equal,
    erf,
    exp,
    geglu,
    gelu,
    gelu_tanh,
    glu,
    halves,
    log,
    maximum,
    minimum,
    not_equal,
    pairs,
    quantize,
    reglu,
    relu,
    row_max,
    row_sum,
    rsqrt,
    sigmoid,
    silu,
    softcap,
    sqrt,
    square,
    swiglu,
    swiglu_oai,
    tanh,
    total_max,
    total_sum,
    where,
)

__all__ = [
    "abs", "cast", "clamp", "column_max", "column_sum", "equal", "erf", "exp", "geglu", "gelu", "gelu_tanh",
    "glu", "halves", "log", "maximum", "minimum", "not_equal", "pairs", "quantize", "reglu", "relu", "row_max",
    "row_sum", "rsqrt", "sigmoid", "silu", "softcap", "sqrt", "square", "swiglu", "swiglu_oai", "tanh", "total_max",
    "total_sum", "where",
]  # fmt: skip
