"""Count the barriers of a plan from its programs: number, arrivals per phase, and bytes that a phase waits for."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutegemm.plan.program import operations as op
from cutegemm.plan.program.expand import Place, expand
from cutegemm.plan.work.division import WorkTile

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

# The order of mbarriers in shared memory, and of the numbers of named barriers.
NAMES = ("full", "empty", "read", "epi_tile", "c", "order", "splits", "accumulators", "consumed")
_MBARRIERS = ("full", "empty", "c", "accumulators", "consumed")
KINDS = {"read": "cta", **dict.fromkeys(_MBARRIERS, "mbarrier")}  # the others are named


@dataclass(frozen=True)
class Barrier:
    """The barriers of one name in a CTA, e.g. "full": a single one, or one for each stage, epilogue stage or consumer.

    name                name of the barriers, such as "full" or "empty"; one of `NAMES`
    kind                "cta" (all threads of the CTA), "named" (the threads of some warps) or "mbarrier"
    count               number of barriers of this name
    arrivals            arrivals that complete a phase; for "cta" and "named" the number of threads
    transaction_bytes   bytes that must also arrive before a phase of an mbarrier completes; 0 if it waits for none
    """

    name: str
    kind: str
    count: int
    arrivals: int
    transaction_bytes: int = 0


def barriers_of(plan: GemmPlan) -> tuple[Barrier, ...]:
    """Return the barriers of a plan with warp roles, with number, arrivals and bytes, derived from the roles' programs.

    How: the programs of all roles of one CTA are executed for a few tiles of one k-tile, with more stages than k-tiles,
    so that no stage is used twice. Then the arrivals counted at a barrier are those of one phase. If bytes are expected
    several times, each time is one phase. All CTAs of a cluster execute the same program, so a CTA receives as many
    arrivals as it sends. The result is in the order of `NAMES`.
    """
    pipeline = plan.body
    tiles = [
        WorkTile(number, 0, 1, 1 + plan.scheduler.split.is_split, 0, 2 * number)
        for number in range(pipeline.tiles_in_flight)
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
                phases[each.barrier, each.index] += 1  # each phase expects its bytes once
                size_bytes[each.barrier] = each.size_bytes
            elif isinstance(each, (op.NamedArrive, op.NamedSync)):
                threads[each.barrier, each.index][number, type(each)] = each.threads
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for (name, index), count in arrivals.items():
        found[name][count // max(1, phases[name, index])] += 1
    for (name, _), by_role in threads.items():
        found[name][sum(by_role.values())] += 1
    counts = {"full": plan.stages, "empty": plan.stages, "read": 1, **plan.store.barriers(plan)}
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
