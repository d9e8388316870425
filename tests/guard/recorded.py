"""What the guard records of a plan: its machine code, its programs and the faults that interleavings find."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cutegemm.choice.catalog import chosen
from cutegemm.compile.cubin import code_of
from cutegemm.compile.plans import compiled_into
from cutegemm.errors import CutegemmError
from cutegemm.plan import GemmPlan, Problem
from cutegemm.simulator import play_interleavings, protocol_of, search_interleavings
from cutegemm.simulator.protocol.protocol import Protocol

_DIGITS = 12  # kept in the record
_STATES = 100  # the search of a protocol ends after these
_RANDOM_RUNS = 1


def digest(*texts: str | bytes) -> str:
    """Return a short hash of texts.

    >>> digest("a", "b") == digest("a", b"b") != digest("ab")
    True
    """
    whole = hashlib.sha256()
    for text in texts:
        whole.update((text.encode() if isinstance(text, str) else text) + b"\0")
    return whole.hexdigest()[:_DIGITS]


def machine_code(plan: GemmPlan, arch: str) -> str:
    """Return a hash of the machine code of all kernels of a plan, without their names and addresses.

    The plan is compiled anew. "error: ..." is returned if it does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            compiled_into(Path(folder), plan, arch)
        except CutegemmError as error:
            return f"error: {error}"
        return digest(*sorted(code_of((Path(folder) / "kernel.cubin").read_bytes()).values()))


def programs(plan: GemmPlan) -> str:
    """Return a hash of the printed programs of a plan's roles, or of its schedule."""
    if not plan.body.has_roles:
        return digest(str(plan.body))
    return digest(*[f"{name}\n{program}" for name, program in sorted(plan.programs.items())])


def interleavings(plan: GemmPlan) -> list[Any] | None:
    """Return [faults, interleavings played, states searched, states that end] of the plan's protocol.

    The protocol has three tiles of stages + 1 k-tiles. None is returned for a plan without roles.
    """
    if not plan.body.has_roles:
        return None
    return _played(protocol_of(plan, k_tiles=plan.stages + 1, tiles=3 if plan.scheduler.grid.is_persistent else 1))


@cache
def _played(protocol: Protocol) -> list[Any]:
    """Return the record of a protocol, which plans that differ only in their data share."""
    played = play_interleavings(protocol, random_runs=_RANDOM_RUNS)
    searched = search_interleavings(protocol, max_states=_STATES)
    faults = [fault.text for fault in (*played.faults, *searched.faults)]
    return [faults, played.interleavings, searched.states, searched.interleavings]


def choices(problems: Sequence[Problem]) -> list[list[Any]]:
    """Return [recipe, what the plan is made of] of the first choice for each problem.

    The second entry is the tile, the cluster, the splits of K, the threads (T), the bytes of shared memory (B) and the
    stages (S). It has no name in it, so that a plan that is only renamed is recognised.
    """
    return [_choice(problem) for problem in problems]


def _choice(problem: Problem) -> list[Any]:
    try:
        recipe, plan = chosen(problem.operands, problem)
    except CutegemmError as error:
        return [f"error: {error}", ""]
    tile = "x".join(map(str, plan.cta_tile))
    cluster = "x".join(map(str, (*plan.cluster_mn, plan.cluster_k)))
    shared = sum(plan.smem_bytes().values())
    form = f"{tile} {cluster} K/{plan.split_k} {plan.threads}T {shared}B {plan.stages}S"
    return [str(recipe), f"D^T {form}" if recipe.swap_ab else form]
