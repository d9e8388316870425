"""Builders: functions that make a complete plan from tile sizes and a few options."""

from cutegemm.build.building import Shared
from cutegemm.build.epilogue import with_epilogue
from cutegemm.build.gemv import gemv_plan
from cutegemm.build.mma_sync import mma_sync_plan
from cutegemm.build.mma_sync_tma import mma_tma_plan
from cutegemm.build.simt import simt_plan
from cutegemm.build.sm90 import sm90_plan

__all__ = ["Shared", "gemv_plan", "mma_sync_plan", "mma_tma_plan", "simt_plan", "sm90_plan", "with_epilogue"]
