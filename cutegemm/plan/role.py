"""The `Role` of warps that run the same program, such as a producer or a consumer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Role:
    """A group of consecutive warps of a CTA that run the same program.

    name        name of the role, such as "producer"
    warps       number of warps. They follow the warps of the previous role
    registers   registers per thread, set by setmaxnreg; None if the compiler decides
    """

    name: str
    warps: int
    registers: int | None = None
