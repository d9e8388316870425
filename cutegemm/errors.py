"""The errors and warnings that cutegemm raises for whatever a user can cause."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class CutegemmError(Exception):
    """Base class of all errors of this package."""


class LayoutError(CutegemmError, ValueError):
    """Raised if an operation of the layout algebra has no result for its arguments, or does not accept one of them.

    The message names the operation, the arguments, the condition that fails, a coordinate that violates it (if
    there is one), and a remedy.
    """


class PlanError(CutegemmError, ValueError):
    """Raised if a kernel plan, or an argument that it is built from, breaks a rule of the algebra or the hardware.

    subject      the operation and its argument, such as "sm90_plan(cluster=(3, 1))"
    violations   one sentence for each broken rule
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
    """Raised if a kernel plan that is simulated on the CPU computes wrong results or makes a faulty access.

    subject   what was simulated: the plan and the problem, as text
    faults    one `cutegemm.simulator.Fault` for each kind of fault, with examples
    """

    def __init__(self, subject: str, faults: Sequence[Any]) -> None:
        self.subject = subject
        self.faults = tuple(faults)
        super().__init__(subject, self.faults)

    def __str__(self) -> str:
        return "\n".join([f"{self.subject} went wrong.", *(f"  {fault}" for fault in self.faults)])


class EmulationError(CutegemmError):
    """Raised if a compiled kernel that is executed on the CPU makes a faulty access or ends in a deadlock.

    The message names the kernel, the line of its PTX, the CTA, the thread and the address.
    """


class UnsupportedError(CutegemmError):
    """Raised for a request that this package or this machine does not support. The message lists what is supported."""


class CompileError(CutegemmError):
    """Raised if the CuTe DSL, ptxas or the linker fails on a kernel plan. The message includes that of the tool."""


def how_to_install(*extras: str) -> str:
    """Return the sentence that tells a user how to install optional dependencies of this package.

    extras   names of groups of optional dependencies, such as "torch"

    >>> how_to_install("kernels", "torch")
    "Run pip install -e '.[kernels,torch]' in a clone of cutegemm."
    """
    return f"Run pip install -e '.[{','.join(extras)}]' in a clone of cutegemm."


class PendingError(Exception):
    """Raised inside `gemm` if the kernel of a call is still being compiled in the background.

    The caller catches it and lets torch compute the call instead. Users never see it.
    """


class CopyWarning(UserWarning):
    """Issued if `gemm` copies an operand before the launch; the message names the operand.

    The result is right, but the call is slower.
    """


@contextmanager
def ended_in_words(program: str) -> Iterator[None]:
    """Turn an error that the user can correct into a message on stderr and exit status 2, within a `with` block.

    program   name of the program, which the message starts with
    raises    SystemExit instead of a CutegemmError, an OSError or a MemoryError; other errors pass through

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
        message = f"not enough memory: {error}"
    else:
        return
    print(f"{program}: {message}", file=sys.stderr)
    sys.exit(2)
