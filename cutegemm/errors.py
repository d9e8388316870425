"""The errors that cutegemm raises for anything that a user can cause."""

from __future__ import annotations

from collections.abc import Sequence


class CutegemmError(Exception):
    """The base of every error of this package."""


class LayoutError(CutegemmError, ValueError):
    """An operation of the layout algebra whose arguments admit no answer.

    The message names the operation, the arguments as given, the condition that fails, a coordinate that
    shows it where there is one, and what to do.
    """


class PlanError(CutegemmError, ValueError):
    """A plan that breaks rules of the algebra or of the hardware.

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


class UnsupportedError(CutegemmError):
    """A request that is meaningful but that this package or this machine does not serve; says what is."""
