"""The number of registers that a thread of a plan may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutegemm.machine.arch import MAX_REGISTERS_PER_THREAD, REGISTER_UNIT, WARP_THREADS, Arch

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


def register_budget(plan: GemmPlan, arch: Arch) -> int:
    """Return the registers that each thread may use so that `plan.ctas_per_sm` CTAs fit an SM of `arch`.

    It is at most 255, the most that an instruction can address. A warp's registers are allocated in units of 256.
    """
    warps = plan.ctas_per_sm * plan.threads // WARP_THREADS
    per_warp = arch.registers_per_sm // max(1, warps) // REGISTER_UNIT * REGISTER_UNIT
    return min(MAX_REGISTERS_PER_THREAD, per_warp // WARP_THREADS)
