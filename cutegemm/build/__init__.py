"""Builders: from tile sizes, and what else a person says, to a plan."""

from cutegemm.build.building import Shared
from cutegemm.build.ending import ending_in
from cutegemm.build.mma_sync import mma_sync_plan
from cutegemm.build.mma_sync_tma import mma_tma_plan
from cutegemm.build.simt import simt_plan
from cutegemm.build.skinny import skinny_plan
from cutegemm.build.sm90 import sm90_plan

__all__ = ["Shared", "ending_in", "mma_sync_plan", "mma_tma_plan", "simt_plan", "skinny_plan", "sm90_plan"]
