"""The kernels of a call in launch order, and how they overlap by programmatic dependent launch (PDL).

Without PDL a kernel begins after the previous kernel in the stream has ended. With PDL, from sm_90 on:

- A kernel begins as soon as all CTAs of the previous kernel in the stream, of the same call or not, have executed
  `griddepcontrol.launch_dependents` or ended. It initializes its barriers, then executes `griddepcontrol.wait`, which
  returns when the previous kernel has ended and its writes are visible. Before the wait it accesses no global memory
  except its own parameters.
- Each kernel of a call except the last executes `launch_dependents` after its own wait, so that a kernel never begins
  before the second to last one has ended. There are two exceptions. A GEMM whose K splits are added by a second kernel
  executes it when it begins to write accumulators. A repack pass executes it at its end if several CTAs of the GEMM
  share an SM. Triggered at the start of the repack pass, those CTAs crowd on few SMs: a 48 x 3728 x 13424 f32 GEMM with
  32 x 64 tiles took 1454 us, and 304 us with the late trigger, which costs 0.1 to 0.4 us (H100, 2026-11-22).
- The last kernel executes `launch_dependents` only if the next call's CTAs may run on any SM, see
  `launches_dependents`, and if all or next to none of them fit at once, see `Room`.

After a large repack pass the GEMM is launched without PDL: see `MAX_REPACKED_BYTES`. PDL saves 1 to 2 us there, but a
4096 x 4096 x 4096 tf32 GEMM that repacks 64 MiB takes 404 us with it and 386 us without, and a 2048 x 2048 x 2048 one
that repacks 32 MiB 71.6 and 69.7 us (H200, 2026-11-22). A likely reason is that CTAs which start as others end are not
placed on the SMs in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import Arch
from cutegemm.plan.work.gpcs import LEAST_ORDERED, PAIR

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

OVERLAP = "dependent_launch"  # name of the architecture feature
REPACK, GEMM, SUMS = "repack", "gemm", "accumulators"
_OUT_OF_REACH = 11  # clusters of 4 and more CTAs cannot use one SM in 11, as a cluster lies within a GPC
MAX_REPACKED_BYTES = 12 << 20  # most bytes of a repack pass that the GEMM overlaps by PDL


@dataclass(frozen=True)
class Room:
    """How many CTAs of one kernel fit a device at once, to decide whether the next kernel may start early (PDL).

    ctas_per_sm    number of CTAs that an SM holds
    cluster_ctas   number of CTAs of a cluster; 1 without clusters
    """

    ctas_per_sm: int = 1
    cluster_ctas: int = 1

    def is_left(self, ctas: Any, sms: Any) -> Any:
        """Return whether an early start of the next kernel pays off: if the grid fills at most 1/2, or at least 7/8.

        These are fractions of the CTAs that fit the device at once. Below 1/2, all CTAs of an equal next kernel fit
        next to this grid; above 7/8, nearly none. In between, some start early, and the kernel ends with the late ones.

        ctas   CTAs of the grid: an integer, or a traced value in a kernel
        sms    SMs of the device, likewise

        Measured (CUDA graphs, H200, 2026-11-25): of 28 plans that fill between 1/2 and 7/8, 22 are slower with an early
        launch, by up to 8.7 us. 142 other plans are 3% faster on average; 11 of them are slower, by up to 0.9 us.

        >>> [Room().is_left(ctas, 132) for ctas in (1, 66, 67, 115, 116, 300)]
        [True, True, False, False, True, True]
        >>> Room(cluster_ctas=4).is_left(64, 132), Room(ctas_per_sm=2).is_left(128, 132)
        (False, True)
        """
        room = sms * self.ctas_per_sm
        if self.cluster_ctas > PAIR:
            room = room - room // _OUT_OF_REACH
        return (2 * ctas <= room) | (8 * ctas >= 7 * room)


@dataclass(frozen=True)
class Launch:
    """How one kernel of a GEMM call overlaps with its neighbours in the stream by programmatic dependent launch (PDL).

    waits      True if the kernel executes `griddepcontrol.wait`, which waits for the previous kernel's end. Such a
               kernel is usually launched before that end. A GEMM after a large repack pass (a kernel that copies A or B
               first) is not
    releases   True if the kernel executes `griddepcontrol.launch_dependents`, so that the next one begins while it runs
    late       True if it executes `launch_dependents` at its end, not at its start
    room       condition on the grid (`Room.is_left`) for `launch_dependents`; None for no condition
    """

    waits: bool
    releases: bool
    late: bool = False
    room: Room | None = None


def launches_of(plan: GemmPlan, arch: Arch | None = None) -> dict[str, Launch]:
    """Return the kernels that a call of a plan launches, in order: name -> how it overlaps with its neighbours.

    The names are "repack" (copies A or B to a better layout), "gemm", "accumulators" (adds the accumulators of K
    splits), and "reduce NAME" for each reduction NAME of the epilogue. Only "gemm" is always there.

    arch   architecture, which decides whether kernels overlap by PDL (programmatic dependent launch); None for one with
           PDL

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Operands
    >>> for name, launch in launches_of(simt_plan(Operands.of("f32"), repack="ab", split_k=2)).items():
    ...     print(name, launch)
    repack Launch(waits=True, releases=True, late=False, room=None)
    gemm Launch(waits=True, releases=True, late=False, room=None)
    accumulators Launch(waits=True, releases=False, late=False, room=None)
    """
    adds = not plan.body.has_roles and plan.scheduler.split.is_split and plan.scheduler.split.reduction == "kernel"
    names = [
        *([REPACK] if plan.repacks else []),
        GEMM,
        *([SUMS] if adds else []),
        *[reduce_name(name) for name, _ in plan.epilogue.reductions],
    ]
    overlap = arch is None or arch.has(OVERLAP)
    crowds = overlap and plan.ctas_per_sm > 1
    found = {name: Launch(overlap, overlap and name != names[-1], late=crowds and name == REPACK) for name in names}
    if overlap and names[-1] == GEMM and launches_dependents(plan):
        room = None if plan.pdl else Room(plan.ctas_per_sm, product(plan.cluster_mn))
        found[GEMM] = Launch(waits=True, releases=True, room=room)
    return found


def launches_dependents(plan: GemmPlan) -> bool:
    """Return whether a plan's GEMM, as the last kernel of a call, lets the next kernel in the stream begin early (PDL).

    It does for GEMV-like plans, and for wgmma plans with small tiles and one CTA per SM. A kernel that begins early
    gets the SMs that become free first. Effects (CUDA graphs of equal GEMMs, H200, 2026-11-24):

    - Small tiles are faster: 128 x 1024 x 1024 takes 3.83 us, and 4.29 us without.
    - Large tiles lose the GPC-aware rasterization: 512 x 4096 x 4096 in 128 x 128 tiles takes 26.8 us, 24.4 us without.
    - If several CTAs share an SM, they crowd on few SMs: 512 x 512 x 512 in f32 takes 20.7 us, 13.7 us without.

    >>> from cutegemm.build import simt_plan, gemv_plan, sm90_plan
    >>> plans = gemv_plan(), sm90_plan(tile=(64, 64, 64)), sm90_plan(), simt_plan()
    >>> [launches_dependents(plan) for plan in plans]
    [True, True, False, False]
    >>> launches_dependents(sm90_plan(tile=(64, 64, 64), schedule="single", ctas_per_sm=2))
    False
    """
    is_small = plan.tiled_mma.atom.is_of_warpgroup and product(plan.cta_tile[:2]) < LEAST_ORDERED
    return plan.body.slices_k or (is_small and plan.ctas_per_sm == 1)


def uses_pdl(launch: Launch, repacked_bytes: Any = 0) -> Any:
    """Return whether a kernel is launched with PDL (programmatic dependent launch), before the previous kernel ends.

    The kernel must wait for that end by itself (`launch.waits`). A GEMM after a repack pass that writes more than 12
    MiB is launched without PDL.

    launch           how the kernel overlaps with the kernels before and after it
    repacked_bytes   bytes that the repack pass (a copy of A or B to a better layout) writes before this kernel: an
                     integer, or a traced value in the kernel's host function; 0 without a repack pass

    >>> gemm = Launch(waits=True, releases=False)
    >>> uses_pdl(gemm, 1 << 20), uses_pdl(gemm, 1 << 30), uses_pdl(Launch(waits=False, releases=True))
    (True, False, False)
    """
    return repacked_bytes <= MAX_REPACKED_BYTES if launch.waits else False


def reduce_name(result: str) -> str:
    """Return the name of the kernel that combines the partial results of a reduction in the epilogue.

    result   name of the reduction, such as "totals"

    >>> reduce_name("totals")
    'reduce totals'
    """
    return f"reduce {result}"
