"""The exception for a violated rule of the PTX ISA, before its thread and line are known."""

from __future__ import annotations


class RuleViolation(Exception):
    """A violated rule of the PTX ISA, described by a message.

    The caller turns it into an `EmulationError`, which also names the line of the PTX and the thread.
    """
