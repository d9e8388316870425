"""The registry of step handlers: for each reader of programs, the function that handles a class of steps.

Readers are the expansion to operations, the kernels and the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from cutegemm.errors import UnsupportedError
from cutegemm.plan.program.steps import Step

_Function = TypeVar("_Function", bound=Callable[..., Any])


def reads(*kinds: type[Step]) -> Callable[[_Function], _Function]:
    """Decorate a method of a `StepReader` as the handler of the given classes of program steps.

    A `StepReader` processes the program of a warp role step by step. E.g. `@reads(Wait)` marks the method that it calls
    for each `Wait` step.
    """

    def mark(method: _Function) -> _Function:
        method.handled_steps = kinds  # type: ignore[attr-defined]
        return method

    return mark


class StepReader:
    """Base class of objects that process a warp role's program step by step, such as the simulator.

    For each class of steps there is a handler: a method with the decorator `reads`, or a function of another file that
    `handles` registers, so that a component can define steps of its own:

    >>> from dataclasses import dataclass
    >>> from cutegemm.plan.program.steps import Program
    >>> @dataclass(frozen=True)
    ... class Say(Step):
    ...     word: str
    >>> class Speaker(StepReader):
    ...     pass
    >>> @Speaker.handles(Say)
    ... def say(speaker, step, loudly):
    ...     return step.word.upper() if loudly else step.word
    >>> Speaker().read(Say("tile"), True)
    'TILE'
    """

    _handlers: ClassVar[dict[type[Step], str | Callable[..., Any]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Register the methods of a new subclass that the decorator `reads` marks as handlers of program steps."""
        super().__init_subclass__(**options)
        cls._handlers = {}
        for name, method in vars(cls).items():
            for kind in getattr(method, "handled_steps", ()):
                cls._handlers[kind] = name

    @classmethod
    def handles(cls, *kinds: type[Step]) -> Callable[[_Function], _Function]:
        """Decorate a function outside of this class as the handler of program steps of the classes `kinds`.

        The function is called with the reader, the step, and the other arguments of `read`.
        """

        def register(function: _Function) -> _Function:
            cls._handlers.update(dict.fromkeys(kinds, function))
            return function

        return register

    @classmethod
    def handler_of(cls, kind: type[Step]) -> str | Callable[..., Any] | None:
        """Return the handler of a class of program steps: a method's name, or a function; None if there is no handler.

        Handlers of base classes are included.

        kind   class of a step, such as `Wait`
        """
        for base in cls.__mro__:
            found = vars(base).get("_handlers", {}).get(kind)
            if found is not None:
                return found
        return None

    def read(self, step: Step, *rest: Any) -> Any:
        """Process one program step: call the handler of its class, and return the handler's result.

        rest     further arguments of the handler
        raises   UnsupportedError if no handler is registered for the class
        """
        handler = self.handler_of(type(step))
        if handler is None:
            raise UnsupportedError(
                f"{type(self).__name__}: no function is registered for the step {type(step).__name__}. "
                f"Decorate one with @{type(self).__name__}.handles({type(step).__name__})."
            )
        if isinstance(handler, str):
            return getattr(self, handler)(step, *rest)
        return handler(self, step, *rest)
