"""Every plan that the GPU tests name or build, so that all are compiled at once before the first is run."""

from __future__ import annotations

from cutegemm.plan import GemmPlan


def all_plans(arch: str) -> list[GemmPlan]:
    """Return the plans of all files, each once."""
    from tests.gpu import cases, test_ladder, test_mma_sync, test_sm90

    found = [
        *cases.all_plans(),
        *test_ladder.all_plans(),
        *test_mma_sync.all_plans(arch),
        *(test_sm90.all_plans() if arch == "sm_90a" else []),
    ]
    return list({plan.key(): plan for plan in found}.values())
