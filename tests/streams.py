"""Changes of the operand streams of a plan, for tests that plant faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cutegemm.plan import GemmPlan

_FIELDS = ("load", "smem", "read")


def stream_changes(plan: GemmPlan, **changes: Any) -> dict[str, Any]:
    """Return the arguments of `GemmPlan.with_`, with `load_a`, `smem_b` and the like as changed streams.

    >>> from cutegemm.build import simt_plan
    >>> sorted(stream_changes(simt_plan(), smem_b=None, rounding="rna"))
    ['rounding', 'streams']
    """
    streams = []
    for stream in plan.streams:
        own = {field: changes.pop(f"{field}_{stream.name}", getattr(stream, field)) for field in _FIELDS}
        streams.append(replace(stream, **own))
    return changes if tuple(streams) == plan.streams else {**changes, "streams": tuple(streams)}
