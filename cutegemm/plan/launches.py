"""The kernels of a call, in the order in which they are launched, and how far they overlap.

By itself a kernel begins when the one before it in the stream has ended. From sm_90 on kernels overlap, by programmatic
dependent launch:

- Each begins as soon as all CTAs of the kernel before it in the stream, of the same call or not, have said
  `griddepcontrol.launch_dependents`, or ended. It sets up its barriers, then waits by `griddepcontrol.wait` until the
  one before has ended and all that it wrote is seen. Before that it touches no global memory but its own parameters.
- All but the last one of a call say `launch_dependents` behind their own wait, so that no kernel begins before the last
  but one has ended; a GEMM whose parts another kernel adds, when it begins to write their sums; and what packs operands
  at its end, where several CTAs of the GEMM share a multiprocessor. Those that came in at its start were crowded on few
  multiprocessors, perhaps the first to have room, until they ended: 48 x 3728 x 13424 of f32 in tiles of 32 x 64 took
  1454 us so, and 304 since; the later launch costs 0.1 to 0.4 us (H100, 2026-11-22).
- The last one says it as well where the next call's CTAs may lie on any multiprocessor: see `launches_dependents`; and
  only where all of them find room at once, or next to none: see `Room`.

Where much is packed the GEMM is launched when that has ended. An early launch gains 1 to 2 us; but 4096 x 4096 x 4096
of tf32, with 64 MiB packed, took 404 us by one and 386 without, 2048 x 2048 x 2048 with 32 MiB 71.6 and 69.7 us (H200,
2026-11-22), perhaps because CTAs that come in as others leave do not lie on the device in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import Arch
from cutegemm.plan.work.gpcs import LEAST_ORDERED, PAIR

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

OVERLAP = "dependent_launch"  # the feature of an architecture
REPACK, GEMM, SUMS = "repack", "gemm", "accumulators"
_OUT_OF_REACH = 11  # of so many multiprocessors one, for larger clusters: they lie within a GPC
MAX_REPACKED_BYTES = 12 << 20  # by a kernel beside which the GEMM begins


@dataclass(frozen=True)
class Room:
    """Where the CTAs of a kernel lie: so many to a multiprocessor, in clusters of so many."""

    ctas_per_sm: int = 1
    cluster_ctas: int = 1

    def is_left(self, ctas: Any, sms: Any) -> Any:
        """Whether the CTAs of a kernel like this one find room beside it all at once, or none of them does, or nearly
        none; also of values that a kernel has.

        Else some begin ahead of the others, and the kernel ends when the last one does: in a graph of such products
        12 x 9344 x 13440 in 74 CTAs took 76.6 us where the next one was let in, 67.9 where it was not; 16 x 8768 x 2368
        in 132 CTAs 13.4 and 14.3. Of 28 plans that took between one half and seven eighths of the room 22 were slower
        so, by up to 8.7 us; of 142 others 11, by up to 0.9, and all of them gained 3% in the mean (one H200,
        2026-11-25). Clusters of four and more do not reach one multiprocessor in eleven.

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
    """A kernel of a call.

    waits      it is launched before the one before it has ended, and waits for the end of that; a GEMM behind what
               packs its operands only where these are not too large, see `uses_pdl`
    releases   it lets the next one begin while it runs itself
    late       it does so at its end
    room       where it does so only as room `is_left`: the last one of a call
    """

    waits: bool
    releases: bool
    late: bool = False
    room: Room | None = None


def launches_of(plan: GemmPlan, arch: Arch | None = None) -> dict[str, Launch]:
    """Return the kernels of a call by name, in the order of their launches.

    They are "repack"; "gemm"; "accumulators", which adds those of the K splits; and for each reduction of the epilogue
    a kernel that makes its result of partial ones, see `reduce_name`.

    arch   on which none overlap where it cannot; where left out, one that can

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Operands
    >>> for name, launch in launches_of(simt_plan(Operands.of("f32"), repack="ab", split_k=2)).items():
    ...     print(name, launch)
    repack Launch(waits=True, releases=True, late=False, room=None)
    gemm Launch(waits=True, releases=True, late=False, room=None)
    accumulators Launch(waits=True, releases=False, late=False, room=None)
    """
    adds = not plan.body.has_roles and plan.split.is_split and plan.split.reduction == "kernel"
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
    """Whether a GEMM lets the kernel behind it in the stream begin while it runs.

    The CTAs of that kernel go to the multiprocessors that have room first. Small tiles gain by it: 128 x 1024 x 1024
    takes 3.83 us in a graph of such products, and 4.29 where each begins behind the one before. Large tiles lose the
    order of the GPCs: 512 x 4096 x 4096 by 128 x 128 took 26.8 us with it, 24.4 without. Where several CTAs share a
    multiprocessor they are crowded on few: 512 x 512 x 512 of f32 took 20.7 us and 13.7 (H200, 2026-11-24).

    >>> from cutegemm.build import simt_plan, gemv_plan, sm90_plan
    >>> plans = gemv_plan(), sm90_plan(tile=(64, 64, 64)), sm90_plan(), simt_plan()
    >>> [launches_dependents(plan) for plan in plans]
    [True, True, False, False]
    >>> launches_dependents(sm90_plan(tile=(64, 64, 64), schedule="single", ctas_per_sm=2))
    False
    """
    is_small = plan.tiled_mma.atom.is_of_warpgroup and product(plan.cta_tile[:2]) < LEAST_ORDERED
    return plan.sliced_k is not None or (is_small and plan.ctas_per_sm == 1)


def uses_pdl(launch: Launch, repacked_bytes: Any = 0) -> Any:
    """Whether a kernel is launched before the one before it has ended; also of values that a host function has.

    repacked_bytes   of packed operands that the one before writes

    >>> gemm = Launch(waits=True, releases=False)
    >>> uses_pdl(gemm, 1 << 20), uses_pdl(gemm, 1 << 30), uses_pdl(Launch(waits=False, releases=True))
    (True, False, False)
    """
    return repacked_bytes <= MAX_REPACKED_BYTES if launch.waits else False


def reduce_name(result: str) -> str:
    """The name of the kernel that makes the result of a reduction.

    >>> reduce_name("totals")
    'reduce totals'
    """
    return f"reduce {result}"
