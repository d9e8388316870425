"""What a plan of the tests consists of, and which forms hold every component alone and every pair that meets.

Two components meet if one reads or writes what the other one does: a barrier, registers, shared memory, the workspace,
or an address of D. Others have no code in common, so that forms of each alone hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from cutegemm.plan import GemmPlan
from cutegemm.plan.store import StagedStore, TmaStore
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

Components = dict[str, str]
Item = tuple[tuple[str, str], ...]

# Each component is combined with each other one that it meets. What a plan does not have, such as C, is not one of its
# components.
_MEETING = {
    # Consumers wait and signal by the program of their role: for stages, turns, C, parts of K, CTAs of the cluster
    "roles": "mainloop consumers store c k grid multicast_a multicast_b",
    "consumers": "mainloop",
    # Products of a k-tile: their accumulators, their operands, and when their stage is released
    "mainloop": "accumulator k pack columns multicast_a multicast_b",
    "kind": "repack",
    "accumulator": "d k",
    # The boxes of A and B: how they lie, and how CTAs share them
    "a": "b multicast_a",
    "b": "multicast_b columns",
    "columns": "multicast_b",
    "multicast_a": "multicast_b k",
    "multicast_b": "k deferred",
    # The tiles and k-tiles that a CTA takes
    "k": "store c batch grid pack deferred",
    # The way of the accumulators to D, and of C to them
    "d": "store c epilogue tile",
    "store": "c batch epilogue tile epilogue stages deferred",
    "c": "epi_tile",
    "overlapped": "stagger",
    # By mma.sync: how threads bring an operand to shared memory, how it lies there, and how they read it
    "load": "a b kind stages",
    "read": "a b kind lies",
    "lies": "a b kind load",
    "stages": "shares fragments",
    "split": "store",
    "rounding": "read",
}


def hopper_components(plan: GemmPlan) -> Components:
    """Return the components of a plan by wgmma, by what they decide."""
    pipeline, store, operands = plan.body, plan.store, plan.operands
    in_halves = plan.consumer_mma_tile[1] != plan.tiled_mma.atom.shape_mnk[1]
    found = {
        "roles": pipeline.kind,
        "kind": "/".join(dict.fromkeys((operands.a.dtype.name, operands.b.dtype.name))),
        "accumulator": operands.acc.name,
        "a": operands.a.major,
        "b": operands.b.major,
        "d": f"{operands.d.dtype.bits} bits, {operands.d.major}-major",
        "store": _store(plan),
    }
    present = {
        "consumers": (pipeline.consumers != 2, str(pipeline.consumers)),
        "mainloop": (
            plan.tiled_mma.atom.a_source == "register" or pipeline.promoted or in_halves,
            ("two levels" if pipeline.promoted else plan.tiled_mma.atom.a_source) + ", halves" * in_halves,
        ),
        "c": (plan.has_c, "by TMA" if store.fetched is not None else "by threads"),
        "multicast_b": (plan.cluster_mn[0] > 1, "by two" if plan.cluster_mn[0] == 2 else "by more"),
        "multicast_a": (plan.cluster_mn[1] > plan.cluster_k, "by two"),
        "k": (plan.scheduler.split.is_split or plan.cluster_k > 1, _division(plan)),
        "repack": (bool(plan.repacks), "".join(repack.name for repack in plan.repacks)),
        "columns": (plan.loaded_tile[1] != plan.mma_tile[1], "of the next tile"),
        "batch": (operands.batched, "batched"),
        "grid": (not plan.scheduler.grid.is_persistent, "a tile a CTA"),
        "order": (len(set(getattr(plan.scheduler.order, "rounds", ()))) > 1, "of the GPCs"),
        "overlapped": (pipeline.overlapped, "overlapped"),
        "stagger": (pipeline.stagger_cycles > 0, "staggered"),
        "occupancy": (plan.ctas_per_sm > 1, str(plan.ctas_per_sm)),
        "policy": (
            isinstance(plan.a.load, TmaBox) and plan.a.load.l2_policy != "evict_normal",
            "of L2",
        ),
        "epi_tile": (isinstance(store, StagedStore) and store.epi_tile[1] % 16 > 0, "of eights of columns"),
        "epi_stages": (isinstance(store, StagedStore) and store.has_remainder(pipeline.consumer_tile), "left over"),
    }
    return {**found, **{name: value for name, (is_there, value) in present.items() if is_there}}


def mma_sync_components(plan: GemmPlan) -> Components:
    """Return the components of a plan by mma.sync, by what they decide."""
    operands, schedule = plan.operands, None if plan.body.has_roles else plan.body
    found = {
        "kind": operands.a.dtype.name,
        "accumulator": operands.acc.name,
        "atom": str(plan.tiled_mma.atom.shape_mnk),
        "a": operands.a.major,
        "b": operands.b.major,
        "load": f"{operands.a.align_bytes} bytes" if isinstance(plan.a.load, TiledCopy) else "by TMA",
        "read": " ".join(dict.fromkeys((_name(plan.a.read), _name(plan.b.read)))),
        "lies": type(plan.a.smem).__name__,
        "d": f"{operands.d.dtype.bits} bits, {operands.d.major}-major",
        "store": _store(plan) if plan.body.has_roles else _copies_of_d(plan),
        "rounding": plan.rounding,
        "order": plan.mma_order,
    }
    present = {
        "register": (isinstance(plan.a.load, TiledCopy) and not plan.a.load.atom.is_async, "by registers"),
        "stages": (not plan.body.has_roles and plan.stages != 3, str(plan.stages)),
        "fragments": (schedule is not None and schedule.fragments == 1, "1"),
        "load_chunks": (
            schedule is not None and any(getattr(step, "chunks", 1) > 1 for step in schedule.k_tile),
            "several",
        ),
        "split": (
            plan.scheduler.split.is_split,
            f"{_division(plan)}, {plan.scheduler.split.order}, {plan.scheduler.split.reduction}",
        ),
        "batch": (operands.batched, "batched"),
        "blocks": (plan.k_blocks in (1, 3), str(plan.k_blocks)),
        "warps": (plan.tiled_mma.threads != 128, str(plan.tiled_mma.threads)),
    }
    return {**found, **{name: value for name, (is_there, value) in present.items() if is_there}}


def _name(atom: CopyAtom | None) -> str:
    assert atom is not None
    return atom.name.split(".")[0] + " transposed" * ("trans" in atom.name)


def _copies_of_d(plan: GemmPlan) -> str:
    atom = plan.store.atom if plan.store.line_copy is None else plan.store.line_copy.atom
    return f"{atom.bits} bits " + ("from registers" if plan.store.line_copy is None else "through shared memory")


def _store(plan: GemmPlan) -> str:
    store = plan.store
    if store.layout is None:
        return "elements from registers" if plan.store.atom.values == 1 else "vectors from registers"
    if isinstance(store, TmaStore):
        by_warp = store.box.box[1] < store.epi_tile[0] and plan.operands.d.major == "n"
        return "by TMA, a warp's rows" if by_warp else "by TMA"
    return "lines by threads" if store.rotates_lines else "vectors by threads"


def _division(plan: GemmPlan) -> str:
    if plan.cluster_k > 1:
        return "by the cluster"
    return "filled" if plan.scheduler.split.fixup else "evenly" if plan.scheduler.split.waves else "in parts"


def items(components: Mapping[str, str]) -> set[Item]:
    """Return the components alone, and the pairs of them that meet."""
    alone: set[Item] = {(each,) for each in components.items()}
    pairs: set[Item] = {
        (one, other)
        for one, other in combinations(sorted(components.items()), 2)
        if other[0] in _MEETING.get(one[0], "").split() or one[0] in _MEETING.get(other[0], "").split()
    }
    return alone | pairs


def covering(held: Mapping[str, set[Item]]) -> list[str]:
    """Return names whose items are together those of all names. Without any of them an item would be missing.

    The name with the most items that are missing yet is taken first, of equals the first one.

    held   the items of each name
    """
    left, chosen = set().union(*held.values()), []
    while left:
        chosen.append(max(held, key=lambda name: len(held[name] & left)))
        left -= held[chosen[-1]]
    for name in list(chosen):
        if held[name] <= union(held[other] for other in chosen if other != name):
            chosen.remove(name)
    return chosen


def union(sets: Iterable[set[Item]]) -> set[Item]:
    """Return the items of all sets."""
    return set().union(*sets)
