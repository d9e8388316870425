"""Thread schedules whose warps split K (sliced-K)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from cutegemm.errors import UnsupportedError
from cutegemm.plan.program.thread_schedule import ThreadSchedule
from cutegemm.plan.reduction import SlicedK
from cutegemm.tile.tiled_mma import TiledMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


@dataclass(frozen=True)
class SlicedSchedule(ThreadSchedule):
    """Thread schedule whose warps split K: they multiply different k of a tile, and add their accumulators at the end.

    sliced_k   how the warps add their accumulators at the end, through shared memory; the CTAs of a cluster along M may
               split K too
    """

    sliced_k: SlicedK

    slices_k: ClassVar[bool] = True

    @staticmethod
    def of(schedule: ThreadSchedule, sliced_k: SlicedK) -> SlicedSchedule:
        """Return a schedule with the same steps as another thread schedule, whose warps split K.

        schedule   the other schedule
        sliced_k   how the warps (and the CTAs of a cluster along M, if they split K too) add their accumulators
        """
        steps = {field.name: getattr(schedule, field.name) for field in fields(ThreadSchedule)}
        return SlicedSchedule(**steps, sliced_k=sliced_k)

    @property
    def k_warps(self) -> int:
        """Return the number of warps of a CTA that split K in this schedule."""
        return self.sliced_k.warps

    def k_ctas(self, cluster_mn: tuple[int, int]) -> int:
        """Return the number of CTAs of a cluster that split K in this schedule: all along M.

        cluster_mn   number of CTAs of a cluster along M and N
        """
        return cluster_mn[0]

    def stored_mma(self, plan: GemmPlan) -> TiledMma:
        """Return the tiled MMA whose accumulator (C) layout says which thread adds and stores which element of D."""
        return self.sliced_k.added

    def partial_elements(self, plan: GemmPlan) -> int:
        """Return the number of accumulators in shared memory that warps and CTAs of a cluster exchange after the loop.

        plan   not used here, but by the same method of `WarpRoles`
        """
        by_cta = self.sliced_k.by_cta
        return self.sliced_k.by_warp.cosize() + (by_cta.cosize() if by_cta else 0)


def sliced_schedule(plan: GemmPlan) -> SlicedSchedule:
    """Return the thread schedule of a plan whose warps split K (sliced-K), or raise an error.

    raises   UnsupportedError if the warps of the plan do not split K
    """
    if not isinstance(plan.body, SlicedSchedule):
        raise UnsupportedError(f"plan {plan.name!r}: its warps do not split K.")
    return plan.body
