"""The real CuTe DSL as an oracle, on the CPU: static layouts are evaluated while a function is traced.

`ask` runs many cases in one traced function of another process, which has the DSL imported and serves all questions of
the tests. Ill-formed arguments can kill the DSL's process (a division by zero in its C++), so each trace runs in a
forked child: a child that dies answers for the case that killed it, and the next one continues after it.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import pickle
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cutegemm.compile.workers import Worker
from cutegemm.layout.layout import Layout
from cutegemm.layout.stride import ScaledBasis
from cutegemm.layout.swizzle import ComposedLayout, Swizzle


@dataclass(frozen=True)
class Case:
    """An operation by its name, with arguments in this package's types or plain nested integers."""

    operation: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = [text(a) for a in self.args] + [f"{k}={text(v)}" for k, v in self.options.items()]
        return f"{self.operation}({', '.join(given)})"


@dataclass(frozen=True)
class Refused:
    """The DSL raised, or its process died."""

    reason: str


def text(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(text(v) for v in value) + ")"
    return str(value)


def missing() -> str | None:
    """Why the DSL cannot be used here; None if it can."""
    if importlib.util.find_spec("cutlass") is None:
        return "the CuTe DSL is not installed (pip install nvidia-cutlass-dsl)"
    if not hasattr(os, "fork"):
        return "the oracle forks its process, which this system cannot do"
    return None


def ask(cases: list[Any], evaluate: Callable[[Any], Any] | None = None) -> list[Any]:
    """The DSL's answer to each case: a layout, an integer, a tuple, or Refused.

    evaluate   a function of a module, which answers one case while the DSL traces; default: a function for `Case`s
    """
    return _process()(_answers, cases, evaluate or _evaluate)


@functools.cache
def _process() -> Worker:
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")
    worker = Worker()
    atexit.register(worker.end)
    return worker


def _answers(cases: list[Any], evaluate: Callable[[Any], Any]) -> list[Any]:
    import cutlass.cute  # noqa: F401  (once, for all children)

    answers: list[Any] = []
    while len(answers) < len(cases):
        answers.extend(_in_child(cases[len(answers) :], evaluate))
    return answers


def _in_child(cases: list[Any], evaluate: Callable[[Any], Any]) -> Iterator[Any]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(write, "wb") as sink:
            _trace(cases, evaluate, sink)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as source:
        while True:
            try:
                yield pickle.load(source)
            except EOFError:
                break
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        yield Refused(f"died of {signal.Signals(os.WTERMSIG(status)).name}")
    elif status:
        raise RuntimeError(f"a child ended with status {status}")


def _trace(cases: list[Any], evaluate: Callable[[Any], Any], sink: Any) -> None:
    import cutlass.cute as cute

    def answer_each() -> None:
        for case in cases:
            pickle.dump(evaluate(case), sink)
            sink.flush()
        os._exit(0)  # the traced function itself is never compiled

    @cute.jit
    def traced():
        answer_each()

    traced()


def _evaluate(case: Case) -> Any:
    import cutlass.cute as cute

    try:
        options = {k: to_dsl(v) for k, v in case.options.items()}
        args = [to_dsl(a) for a in case.args]
        call = args.pop(0) if case.operation == "call" else getattr(cute, case.operation)
        return from_dsl(call(*args, **options))
    except Exception as error:
        return Refused(f"{type(error).__name__}: {error}".splitlines()[0][:200])


def to_dsl(value: Any) -> Any:
    import cutlass.cute as cute

    if isinstance(value, Layout):
        return cute.make_layout(value.shape, stride=to_dsl(value.stride))
    if isinstance(value, ComposedLayout):
        return cute.make_composed_layout(to_dsl(value.inner), value.offset, to_dsl(value.outer))
    if isinstance(value, Swizzle):
        return cute.make_swizzle(value.bits, value.base, value.shift)
    if isinstance(value, ScaledBasis):
        return value.value * cute.E(list(value.mode))
    return tuple(to_dsl(v) for v in value) if isinstance(value, tuple) else value


def from_dsl(value: Any) -> Any:
    import cutlass
    import cutlass.cute as cute

    if isinstance(value, (int, bool)):
        return value
    if isinstance(value, cutlass.Int16):
        return value.value
    if isinstance(value, tuple):
        return tuple(from_dsl(v) for v in value)
    if isinstance(value, cute.ScaledBasis):
        return ScaledBasis(value.value, tuple(value.mode))
    if isinstance(value, cute.Swizzle):
        return Swizzle(*map(int, re.findall(r"-?\d+", str(value))))
    if isinstance(value, cute.ComposedLayout):
        return ComposedLayout(from_dsl(value.inner), from_dsl(value.offset), from_dsl(value.outer))
    return Layout(value.shape, from_dsl(value.stride))
