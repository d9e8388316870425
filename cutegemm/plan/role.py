"""Roles: warps that run one program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Role:
    """Warps that run one program.

    warps       how many, counted on from those of the role before
    registers   per thread while it runs (setmaxnreg), or None where the compiler decides
    """

    name: str
    warps: int
    registers: int | None = None
