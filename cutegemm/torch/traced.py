"""How tracers see this package: constants for Dynamo, modules as leaves for torch.fx, advice for TorchScript."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from torch import nn
from torch.fx import Proxy

from cutegemm.errors import UnsupportedError

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


def leaf(module: nn.Module, x: Any) -> Any:
    """Return the call of a module with x as one node of the graph that torch.fx traces.

    x         the input
    returns   None if x is not a proxy of torch.fx, or if the module is the one that is traced
    """
    if not isinstance(x, Proxy):
        return None
    tracer: Any = x.tracer
    path = tracer.path_of_module(module)
    return tracer.create_proxy("call_module", path, (x,), {}) if path else None


def as_node(function: Callable[..., Any], *given: Any) -> Any:
    """Return the value of a function, or its call as one node of a graph if an argument is a proxy of torch.fx."""
    proxies = [x for x in given if isinstance(x, Proxy)]
    if not proxies:
        return function(*given)
    return proxies[0].tracer.create_proxy("call_function", function, given, {})


class Unscriptable(nn.Module):  # type: ignore[misc]
    """A module whose forward TorchScript cannot compile: `torch.jit.script` raises an error with advice."""

    def __prepare_scriptable__(self) -> Any:
        raise UnsupportedError(
            f"torch.jit.script: cutegemm computes {type(self).__name__}, and TorchScript cannot compile that. Script a "
            "model before `use`, or after `undo()`. torch.jit.trace, torch.compile and torch.export take this one."
        )
