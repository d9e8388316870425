"""Checks of the types and bounds of arguments that builders and operations on plans receive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.plan.typed import not_of_types

# Upper bounds of arguments that a builder loops over; more than any machine has room for.
_MOST = dict.fromkeys(("stages", "stream", "vectors", "load_chunks", "warps", "unroll"), 1024)


def check_arguments(
    subject: str,
    operands: Any,
    tiles: Mapping[str, tuple[Any, int]],
    counts: Mapping[str, Any],
    optional: Mapping[str, Any] | None = None,
    typed: Mapping[str, tuple[Any, tuple[type, ...]]] | None = None,
    positive: Mapping[str, Any] | None = None,
) -> None:
    """Check the arguments of a function that builds a plan; raise one error that lists all wrong ones.

    The keys of all mappings are names of arguments.

    subject    name of the function, for the message
    operands   the argument that must be an `Operands`
    tiles      name -> (tile, number of modes). The tile must be a tuple of that many positive integers
    counts     name -> value that must be an integer
    optional   name -> value that must be a positive integer or None
    typed      name -> (value, types). The value must be an instance of one of the types; a bool is not an int
    positive   name -> value that must be a positive integer
    raises     PlanError with every argument that has a wrong type or is out of bounds

    >>> check_arguments("simt_plan", Operands.of("f32"), {"block": ((128, 128), 3)}, {"stages": 2})
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: simt_plan: 1 rule is broken.
      - block = (128, 128); 3 positive integers are expected.
    """
    violations = not_operands(operands)
    positive = {**(positive or {}), **{name: n for name, n in (optional or {}).items() if n is not None}}
    for name, (tile, modes) in tiles.items():
        is_tuple = isinstance(tile, tuple) and len(tile) == modes
        if not is_tuple or any(not _is_integer(extent) or extent < 1 for extent in tile):
            violations.append(f"{name} = {tile!r}; {modes} positive integers are expected.")
    violations += [
        f"{name} = {count!r}; an integer is expected." for name, count in counts.items() if not _is_integer(count)
    ]
    violations += [
        f"{name} = {count!r}; a positive integer is expected."
        for name, count in positive.items()
        if not _is_integer(count) or count < 1
    ]
    violations += [
        f"{name} = {count}; {_MOST[name]} at most is expected."
        for name, count in (*counts.items(), *positive.items())
        if name in _MOST and _is_integer(count) and count > _MOST[name]
    ]
    violations += not_of_types(typed or {})
    if violations:
        raise PlanError(subject, violations)


def not_operands(value: Any) -> list[str]:
    """Return a list with one sentence if `value` is not an `Operands` object, or an empty list if it is one.

    >>> not_operands("bf16")
    ["operands = 'bf16'; Operands are expected, such as Operands.of('bf16', layout='nt')."]
    """
    if isinstance(value, Operands):
        return []
    return [f"operands = {value!r}; Operands are expected, such as Operands.of('bf16', layout='nt')."]


def check_is_plan(operation: str, plan: Any) -> None:
    """Raise an error unless the argument `plan` of a public function is a `GemmPlan`; users often pass a plan's name.

    operation   name of the function, for the message
    plan        the value that the user passed
    raises      UnsupportedError if it is anything else, e.g. a text

    >>> check_is_plan("check", "simt")
    Traceback (most recent call last):
        ...
    cutegemm.errors.UnsupportedError: check: plan = 'simt'; a GemmPlan is expected: plan_named('simt', operands).
    """
    if not isinstance(plan, GemmPlan):
        made = f": plan_named({plan!r}, operands)" if isinstance(plan, str) else ""
        raise UnsupportedError(f"{operation}: plan = {plan!r}; a GemmPlan is expected{made}.")


def _is_integer(value: Any) -> bool:
    """Return whether a value is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)
