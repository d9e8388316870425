"""Programmatic dependent launch in the code of kernels: see `plan.launches`."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from cutegemm.plan.launches import Launch

SMEM_CARVEOUT_PERCENT = 100  # percentage of an SM's L1 cache and shared memory that is shared memory: all of it


def begin(launch: Launch) -> None:
    """Begin a kernel with programmatic dependent launch: wait for the previous kernel, and let the next one start.

    All threads call it at the end of the kernel's prologue, before their first access to global memory. If the plan
    starts the next kernel late, `end` does that instead.

    launch   how this kernel overlaps with the kernels before and after it
    """
    launches_dependents = _launches_dependents(launch)  # computed before the wait
    wait(launch)
    if not launch.late:
        _release(launches_dependents)


def end(launch: Launch) -> None:
    """Let the next kernel in the stream start (PDL), if the plan says that this happens at the end of this kernel.

    All threads call it after the last of their work.

    launch   how this kernel overlaps with the kernels before and after it
    """
    if launch.late:
        release(launch)


def wait(launch: Launch) -> None:
    """Wait for the end of the previous kernel in the stream, if this kernel may start before that (PDL).

    launch   how this kernel overlaps with the kernels before and after it
    """
    if launch.waits:
        cute.arch.griddepcontrol_wait()


def release(launch: Launch) -> None:
    """Let the next kernel in the stream start as soon as all CTAs have called this or ended (PDL), if the plan says so.

    launch   how this kernel overlaps with the kernels before and after it
    """
    _release(_launches_dependents(launch))


def _launches_dependents(launch: Launch) -> Any:
    """Return whether this kernel lets the next one in the stream start early (PDL): True, False, or a run-time value.

    It is a value known at run time if it depends on the size of the grid.

    launch   how this kernel overlaps with the kernels before and after it
    """
    if launch.room is None:
        return launch.releases
    across, down, deep = cute.arch.grid_dim()
    return launch.room.is_left(across * down * deep, cute.arch.nsmid())


@cute.jit
def _release(launches_dependents):
    """Let the next kernel in the stream start (programmatic dependent launch), if a run-time condition holds.

    launches_dependents   the condition
    """
    if launches_dependents:
        cute.arch.griddepcontrol_launch_dependents()
