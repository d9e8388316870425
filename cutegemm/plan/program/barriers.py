"""The barriers of a plan, counted from its programs: who arrives, who waits, how many bytes come."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutegemm.plan.program import operations as op
from cutegemm.plan.program.expand import Place, expand
from cutegemm.plan.work.division import WorkTile

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

# In the order in which they lie in shared memory, and in which named barriers are numbered.
NAMES = ("full", "empty", "read", "epi_tile", "c", "order", "splits", "accumulators", "consumed")
_MBARRIERS = ("full", "empty", "c", "accumulators", "consumed")
KINDS = {"read": "cta", **dict.fromkeys(_MBARRIERS, "mbarrier")}  # the others are named


@dataclass(frozen=True)
class Barrier:
    """A barrier, or one for each stage, epilogue stage or consumer.

    kind                "cta" (all threads), "named" (some warps) or "mbarrier"
    count               how many of them
    arrivals            that complete a phase
    transaction_bytes   that a phase waits for besides
    """

    name: str
    kind: str
    count: int
    arrivals: int
    transaction_bytes: int = 0


def barriers_of(plan: GemmPlan) -> tuple[Barrier, ...]:
    """The barriers of a plan whose warps have roles.

    Each role of a CTA is taken through one tile of one k-tile for each consumer, on a ring so long that no stage comes
    twice: what arrives at a barrier then is one phase, or one for each time that bytes are expected. As all CTAs of a
    cluster do the same, as many arrivals come to one as it sends to all.
    """
    pipeline = plan.body
    tiles = [
        WorkTile(number, 0, 1, 1 + plan.split.is_split, 0, 2 * number) for number in range(pipeline.tiles_in_flight)
    ]
    arrivals: defaultdict[tuple[str, int], int] = defaultdict(int)
    phases: Counter[tuple[str, int]] = Counter()
    size_bytes: dict[str, int] = {}
    threads: dict[tuple[str, int], dict[tuple[int, type], int]] = defaultdict(dict)
    for number, role in enumerate(plan.roles):
        for each in expand(plan, plan.program(role.name), Place(0, number), tiles, pipeline.tiles_in_flight + 1):
            if isinstance(each, op.Arrive):
                arrivals[each.barrier, each.index] += each.count * len(each.ctas)
            elif isinstance(each, op.Expect):
                arrivals[each.barrier, each.index] += 1
                phases[each.barrier, each.index] += 1  # each is said once how many bytes come
                size_bytes[each.barrier] = each.size_bytes
            elif isinstance(each, (op.NamedArrive, op.NamedSync)):
                threads[each.barrier, each.index][number, type(each)] = each.threads
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for (name, index), count in arrivals.items():
        found[name][count // max(1, phases[name, index])] += 1
    for (name, _), by_role in threads.items():
        found[name][sum(by_role.values())] += 1
    counts = {"full": plan.stages, "empty": plan.stages, "read": 1}
    if plan.epi_stages is not None:
        counts["c"] = plan.epi_stages.count * pipeline.consumers
    return tuple(
        [
            Barrier(
                name,
                KINDS.get(name, "named"),
                counts.get(name, pipeline.consumers),
                found[name].most_common(1)[0][0],
                size_bytes.get(name, 0),
            )
            for name in NAMES
            if name in found
        ]
    )
