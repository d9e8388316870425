"""Accesses as they were carried out, not as a plan has them: what each instruction of a warp cost.

An emulator reports them one by one to `Executed`, which knows nothing of where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cutegemm.analysis.globalmem import sectors, torn
from cutegemm.analysis.shared import DEFAULT_RULES, Rules, Wavefronts, cost
from cutegemm.machine.arch import CACHE_LINE_BYTES, WARP_THREADS

# Operations on shared memory by threads, which an emulator sees.
EXECUTED_OPS = ("load", "store", "ldmatrix", "stmatrix", "cp.async")
_LINE_COPY_BITS = 128  # of a cp.async that goes past L1
_MATRICES = ("ldmatrix", "stmatrix")


@dataclass(frozen=True)
class ExecutedAccesses:
    """What a compiled kernel does to shared memory in all CTAs of a problem.

    counts      by operation: load, store, ldmatrix, stmatrix, cp.async
    rewritten   whether its machine code has wider accesses than the PTX that was executed
    """

    counts: Mapping[str, Wavefronts]
    rewritten: bool = False

    def of(self, op: str) -> Wavefronts:
        """Those of one operation."""
        return self.counts.get(op, Wavefronts(0, 0, 0))


@dataclass(frozen=True)
class GlobalCount:
    """Instructions of warps with an active lane, and the sectors that they touch."""

    requests: int = 0
    sectors: int = 0


class Executed:
    """Sums up accesses by operation: load, store, ldmatrix, stmatrix and cp.async.

    shared    operation -> requests, wavefronts and least wavefronts, in shared memory
    global_   operation -> requests and sectors, in global memory
    lines     (line, operation, bits of a lane) -> what `shared` says, of one instruction of the code

    >>> found, lanes = Executed(), np.arange(32)
    >>> found.seen("load", "shared", 32, lanes, lanes * 8)
    >>> found.seen("store", "global", 32, lanes[:4], lanes[:4] * 4)
    >>> found.shared["load"].wavefronts, found.global_["store"]
    (2, GlobalCount(requests=1, sectors=1))
    """

    def __init__(self, rules: Rules = DEFAULT_RULES) -> None:
        self.rules = rules
        self.shared: dict[str, Wavefronts] = {}
        self.global_: dict[str, GlobalCount] = {}
        self.lines: dict[tuple[int, str, int], Wavefronts] = {}

    def seen(
        self,
        op: str,
        space: str,
        bits: int,
        threads: np.ndarray,
        at: np.ndarray,
        other: np.ndarray | None = None,
        line: int = 0,
    ) -> None:
        """An instruction that some threads carry out together; see `cutegemm.emulator.machine.Watch`."""
        if not len(threads):
            return
        warps, row = np.unique(threads // WARP_THREADS, return_inverse=True)
        place = (row, threads % WARP_THREADS)
        active = np.zeros((len(warps), WARP_THREADS), bool)
        active[place] = True
        table, there = np.zeros((2, *active.shape), np.int64)
        table[place] = at
        if other is not None:
            there[place] = other
        if space == "global":
            self._add_global(op, bits, table, there, active)
        else:
            self._add_shared(op, bits, table, there, active, line)

    def _add_shared(
        self, op: str, bits: int, table: np.ndarray, sources: np.ndarray, active: np.ndarray, line: int
    ) -> None:
        if op in _MATRICES:  # the addresses of the first lanes are used
            used = slice(0, int(active.sum(axis=1).max()))
            table, active = table[:, used], active[:, used]
        found = cost(table[None], bits, op=op, sources=sources[None], rules=self.rules, active=active[None])
        self.shared[op] = _sum(self.shared.get(op), found)
        self.lines[line, op, bits] = _sum(self.lines.get((line, op, bits)), found)

    def _add_global(self, op: str, bits: int, table: np.ndarray, written: np.ndarray, active: np.ndarray) -> None:
        if op == "cp.async" and bits == _LINE_COPY_BITS:
            touched = torn(table, written, CACHE_LINE_BYTES, active)
        else:
            touched = int(sectors(table, bits, active).sum())
        old = self.global_.get(op, GlobalCount())
        self.global_[op] = GlobalCount(old.requests + len(table), old.sectors + touched)


def _sum(old: Wavefronts | None, new: Wavefronts) -> Wavefronts:
    if old is None:
        return new
    worst = max([w for w in (old.worst, new.worst) if w], key=lambda w: w.ways, default=None)
    return Wavefronts(old.requests + new.requests, old.wavefronts + new.wavefronts, old.ideal + new.ideal, worst)
