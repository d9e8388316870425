"""What a Hopper instruction did wrong, before it is known which thread and line it was."""

from __future__ import annotations


class RuleViolation(Exception):
    """A rule of the PTX ISA that is broken, in words; the handlers make an `EmulationError` of it."""
