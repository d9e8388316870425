"""What a kernel computes at its end, as expressions of its sums and of operands.

expression   the nodes: the accumulator, operands, operations
functions    what an expression may be made of, by the names of the field
epilogue     expressions in the order in which a kernel computes them
symbols      from a Python function to expressions
text         from their print
cost         instructions of a thread for them
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
