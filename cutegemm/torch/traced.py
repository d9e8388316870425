"""What Dynamo computes while it traces, and takes the value of."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

_MOST = 4096


def constant(function: Callable[..., str]) -> Callable[..., str]:
    """A function of constants, called once for each: torch.compile puts its value into the graph, and not its steps.

    >>> constant(lambda x, y: x + y)("a", "b")
    'ab'
    """
    cached = lru_cache(maxsize=_MOST)(function)

    @wraps(function)
    def call(*given: Any) -> str:
        return cached(*given)

    marked: Any = call
    marked._dynamo_marked_constant = (
        True  # as torch.compiler.assume_constant_result does, which imports Dynamo
    )
    return call
