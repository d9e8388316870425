"""How kernels overlap, in code: see `plan.launches`."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from cutegemm.plan.launches import Launch

SMEM_CARVEOUT_PERCENT = 100  # of the L1 cache and shared memory: as much shared memory as there is


def begin(launch: Launch) -> None:
    """All threads of a kernel, where its prologue ends and its work in global memory begins."""
    launches_dependents = _launches_dependents(launch)  # ahead of the wait
    wait(launch)
    if not launch.late:
        _release(launches_dependents)


def end(launch: Launch) -> None:
    """All threads of a kernel, behind the last of its work."""
    if launch.late:
        release(launch)


def wait(launch: Launch) -> None:
    """For the end of the kernel before, if this one is launched ahead of that."""
    if launch.waits:
        cute.arch.griddepcontrol_wait()


def release(launch: Launch) -> None:
    """Lets the next kernel begin, when all CTAs have come here or ended."""
    _release(_launches_dependents(launch))


def _launches_dependents(launch: Launch) -> Any:
    """Whether it does so: where that depends on its CTAs, a value that the kernel finds."""
    if launch.room is None:
        return launch.releases
    across, down, deep = cute.arch.grid_dim()
    return launch.room.is_left(across * down * deep, cute.arch.nsmid())


@cute.jit
def _release(launches_dependents):
    if launches_dependents:
        cute.arch.griddepcontrol_launch_dependents()
