"""The `Role` of warps that run the same program, such as a producer or a consumer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Role:
    """A warp role: consecutive warps of a CTA that run the same program, e.g. the producer that loads by TMA.

    name        name of the role, such as "producer" or "consumer 0"
    warps       number of warps. A plan lists its roles in the order of their warps: this role's begin after the
                previous role's
    registers   32-bit registers per thread that the role sets by `setmaxnreg`; None if the compiler decides
    """

    name: str
    warps: int
    registers: int | None = None
