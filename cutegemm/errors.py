"""The errors that cutegemm raises for anything that a user can cause."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class CutegemmError(Exception):
    """The base of every error of this package."""


class LayoutError(CutegemmError, ValueError):
    """An operation of the layout algebra has no answer for its arguments, or refuses an argument.

    The message names the operation, the arguments as given, the condition that fails, a coordinate at which it
    fails (where there is one), and a remedy.
    """


class PlanError(CutegemmError, ValueError):
    """A plan breaks rules of the algebra or of the hardware.

    violations   every broken rule, a sentence each
    """

    def __init__(self, subject: str, violations: Sequence[str]) -> None:
        self.subject = subject
        self.violations = tuple(violations)
        super().__init__(subject, self.violations)

    def __str__(self) -> str:
        rules = "\n".join(f"  - {violation}" for violation in self.violations)
        count = len(self.violations)
        return f"{self.subject}: {count} {'rule is' if count == 1 else 'rules are'} broken.\n{rules}"


class SimulationError(CutegemmError):
    """A plan computes wrong results, or makes a faulty access, when it is simulated on the CPU.

    faults   one for each kind of fault, with examples in words; see `cutegemm.simulator.Fault`
    """

    def __init__(self, subject: str, faults: Sequence[Any]) -> None:
        self.subject = subject
        self.faults = tuple(faults)
        super().__init__(subject, self.faults)

    def __str__(self) -> str:
        return "\n".join([f"{self.subject} went wrong.", *(f"  {fault}" for fault in self.faults)])


class EmulationError(CutegemmError):
    """A compiled kernel makes a faulty access, or ends in a deadlock, when it is executed on the CPU.

    The message names the kernel, the line of its PTX, the CTA, the thread and the address.
    """


class UnsupportedError(CutegemmError):
    """A meaningful request that this package or this machine does not support; the message lists what it does."""


class CompileError(CutegemmError):
    """The DSL, ptxas or the linker refused a plan; the message holds their messages."""


def how_to_install(*extras: str) -> str:
    """Return the sentence that says how extras of this package are installed from a clone of its repository.

    extras   names of optional dependencies in pyproject.toml

    >>> how_to_install("kernels", "torch")
    "Run pip install -e '.[kernels,torch]' in a clone of cutegemm."
    """
    return f"Run pip install -e '.[{','.join(extras)}]' in a clone of cutegemm."


class CopyWarning(UserWarning):
    """Warns that an operand is copied before it is multiplied: correct, but slower. The message names the operand."""


@contextmanager
def ended_in_words(program: str) -> Iterator[None]:
    """Ends a program with a message and status 2 where the error is one that its user can mend.

    >>> with ended_in_words("cutegemm"):
    ...     open("/no/such/file")
    Traceback (most recent call last):
        ...
    SystemExit: 2
    """
    try:
        yield
    except CutegemmError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except MemoryError as error:
        message = f"this does not fit into memory: {error}"
    else:
        return
    print(f"{program}: {message}", file=sys.stderr)
    sys.exit(2)
