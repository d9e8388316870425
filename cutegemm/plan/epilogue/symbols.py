"""Conversion of a Python function to an epilogue: the function is called once, with symbols as its arguments.

>>> from cutegemm.plan.epilogue import Row
>>> from cutegemm.plan.epilogue.functions import relu
>>> print(epilogue_of(lambda acc, bias: relu(acc + bias), {"bias": Row}))
relu(acc + bias)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from cutegemm.errors import PlanError
from cutegemm.plan.epilogue.epilogue import Epilogue
from cutegemm.plan.epilogue.expression import Accumulator, Expression, Input, Reduction, expression_of

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def result_name(position: int) -> str:
    """Return the default name of an epilogue's unnamed result after D: "aux", "aux2", "aux3" and so on.

    position   index among the results after D; 0 is the first

    >>> result_name(0), result_name(1)
    ('aux', 'aux2')
    """
    return f"aux{position + 1}" if position else "aux"


def returned(epilogue: Epilogue) -> tuple[Expression, ...]:
    """Return the expressions that the Python function of an epilogue returned: D, then further results in its order.

    epilogue   epilogue that `epilogue_of` made from the function, so that its further results are named "aux", "aux2",
               ...

    >>> from cutegemm.plan.epilogue.functions import relu, row_sum
    >>> [str(each) for each in returned(epilogue_of(lambda acc: (relu(acc), row_sum(acc), acc), {}))]
    ['relu(acc)', 'row_sum(acc)', 'acc']
    """
    whole = dict((("d", epilogue.expression), *epilogue.aux, *epilogue.reductions))
    return tuple([whole[name] for name in ("d", *map(result_name, range(len(epilogue.beside))))])


def epilogue_of(function: Callable[..., Any], kinds: Mapping[str, type[Input]]) -> Epilogue:
    """Convert a Python function to an epilogue, by calling the function once with symbols as its arguments.

    function   takes the accumulator as its first parameter, and operands by name. It returns the expression of D, or a
               tuple: the expression of D, then those of auxiliary outputs and reductions, which are named "aux", "aux2"
               and so on
    kinds      class of each operand that the caller passes, by name: Scalar, Row, Column, Tile or Element
    raises     PlanError with every violated rule

    >>> from cutegemm.plan.epilogue import Row
    >>> epilogue_of(lambda acc, bais: acc + bais, {"bias": Row})
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: epilogue (acc, bais): 2 rules are broken.
      - it has the parameter 'bais', which is not passed. Pass bais=...
      - 'bias' is passed, but it has no parameter of this name.
    """
    if not callable(function):
        raise PlanError("epilogue", [f"epilogue = {function!r}; a function of the accumulator is expected."])
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    violations, others = [], parameters[1:]
    if not parameters or parameters[0].kind not in (*_BY_NAME, inspect.Parameter.POSITIONAL_ONLY):
        violations.append("it has no parameters. Its first parameter is the accumulator of A @ B.")
    names = [each.name for each in others if each.kind in _BY_NAME]
    for each in others:
        if each.kind not in _BY_NAME:
            violations.append(f"its parameter {each} is not a single named parameter. Name each operand.")
        elif each.name not in kinds and each.default is each.empty:
            violations.append(f"it has the parameter {each.name!r}, which is not passed. Pass {each.name}=...")
    violations += [f"{name!r} is passed, but it has no parameter of this name." for name in kinds if name not in names]
    if violations:
        raise PlanError(f"epilogue {signature}", violations)
    symbols = {name: kind(name) for name, kind in kinds.items()}
    try:
        returned = function(Accumulator(), **symbols)
    except PlanError:
        raise
    except Exception as error:  # the caller's function may raise anything
        made_of = "Build an epilogue from + - * /, comparisons and the functions of cutegemm.epilogue."
        raise PlanError(f"epilogue {signature}", [f"it raised {type(error).__name__}: {error}. {made_of}"]) from error
    several = returned if isinstance(returned, tuple | list) else (returned,)
    results = [each for each in map(expression_of, several) if each is not None]
    if not several or len(results) < len(several):
        raise PlanError(
            f"epilogue {signature}",
            [f"it returned {returned!r}; an expression of the accumulator, or a tuple of them, is expected."],
        )
    unused = [name for name in kinds if not any(_has(each, name) for each in results)]
    if unused:
        raise PlanError(
            f"epilogue {signature}",
            [f"{name!r} is passed, but what it returns does not use it." for name in unused],
        )
    first_result, *behind = results
    named = [(result_name(i), each) for i, each in enumerate(behind)]
    return Epilogue(
        first_result,
        tuple([(name, each) for name, each in named if not isinstance(each, Reduction)]),
        tuple([(name, each) for name, each in named if isinstance(each, Reduction)]),
    )


def _has(expression: Expression, name: str) -> bool:
    """Return whether an epilogue's expression contains an operand called `name`, such as "bias"."""
    return any(isinstance(node, Input) and node.name == name for node in expression.nodes())
