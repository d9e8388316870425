"""Epilogues: expressions that compute D and auxiliary outputs from the accumulator and from operands.

expression     the nodes of an expression tree: the accumulator, operands, operations
functions      functions that build expressions, such as `relu`, `halves` and `row_sum`
quantized      the two results of `quantize`: float8 values and block scales
epilogue       `Epilogue`: the expressions of all outputs, and a kernel's steps to compute them
symbols        converts a Python function to an epilogue
text           parses an epilogue from text
dependencies   cache keys for Python functions that define epilogues
cost           instructions that a thread executes for an epilogue
"""

from cutegemm.plan.epilogue.cost import operations
from cutegemm.plan.epilogue.epilogue import (
    LINEAR,
    SCALED,
    Epilogue,
    Step,
)
from cutegemm.plan.epilogue.expression import (
    BROADCAST,
    COMPARED,
    Accumulator,
    Add,
    Binary,
    Cast,
    Column,
    Compare,
    Constant,
    Divide,
    Element,
    Expression,
    Function,
    Half,
    Input,
    Maximum,
    Minimum,
    Multiply,
    Negative,
    Reduction,
    Row,
    Scalar,
    Subtract,
    Tensor,
    Tile,
    Where,
)
from cutegemm.plan.epilogue.symbols import epilogue_of
from cutegemm.plan.epilogue.text import parse_epilogue, parse_expression

__all__ = [
    "BROADCAST",
    "COMPARED",
    "LINEAR",
    "SCALED",
    "Accumulator",
    "Add",
    "Binary",
    "Cast",
    "Column",
    "Compare",
    "Constant",
    "Divide",
    "Element",
    "Epilogue",
    "Expression",
    "Function",
    "Half",
    "Input",
    "Maximum",
    "Minimum",
    "Multiply",
    "Negative",
    "Reduction",
    "Row",
    "Scalar",
    "Step",
    "Subtract",
    "Tensor",
    "Tile",
    "Where",
    "epilogue_of",
    "operations",
    "parse_epilogue",
    "parse_expression",
]
