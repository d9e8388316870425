"""Costs of the accesses that a compiled kernel executes, counted warp by warp.

An emulator reports each access to `Executed`, which does not depend on the emulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cutegemm.analysis.globalmem import sectors, torn
from cutegemm.analysis.shared import DEFAULT_RULES, Rules, Wavefronts, cost
from cutegemm.machine.arch import CACHE_LINE_BYTES, WARP_THREADS

# Operations on shared memory that threads execute.
EXECUTED_OPS = ("load", "store", "ldmatrix", "stmatrix", "cp.async")
_LINE_COPY_BITS = 128  # width of a cp.async that bypasses L1
_MATRICES = ("ldmatrix", "stmatrix")


@dataclass(frozen=True)
class ExecutedAccesses:
    """Cost of a compiled kernel's shared-memory accesses, counted by executing its PTX on the CPU for all CTAs.

    counts      cost by operation: "load", "store", "ldmatrix", "stmatrix", "cp.async"
    rewritten   True if the machine code has wider accesses than the PTX that was executed, so that counts differ
    """

    counts: Mapping[str, Wavefronts]
    rewritten: bool = False

    def of(self, op: str) -> Wavefronts:
        """Return the cost of one shared-memory operation of this kernel, such as "load"; zero if it is not executed."""
        return self.counts.get(op, Wavefronts(0, 0, 0))


@dataclass(frozen=True)
class GlobalCount:
    """Counts the global-memory accesses of a kernel that was executed on the CPU, for one operation such as "load".

    requests   warp instructions with at least one active lane
    sectors    32-byte sectors that these instructions touch
    """

    requests: int = 0
    sectors: int = 0


class Executed:
    """Adds up the memory accesses of a kernel while the emulator executes its PTX on the CPU.

    The operations are "load", "store", "ldmatrix", "stmatrix" and "cp.async".

    shared    dict from operation to requests, wavefronts and fewest wavefronts in shared memory
    global_   dict from operation to requests and 32-byte sectors in global memory
    lines     dict from (PTX line, operation, bits of a lane) to the same counts as in `shared`, for that instruction

    >>> executed, lanes = Executed(), np.arange(32)
    >>> executed.seen("load", "shared", 32, lanes, lanes * 8)
    >>> executed.seen("store", "global", 32, lanes[:4], lanes[:4] * 4)
    >>> executed.shared["load"].wavefronts, executed.global_["store"]
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
        """Count one memory instruction that some threads of the emulated kernel execute together.

        op        load, store, ldmatrix, stmatrix or cp.async
        space     "shared" or "global"
        bits      bits that a lane accesses
        threads   indices of the threads
        at        byte address of each thread
        other     cp.async: byte address of each thread in the other memory; None for other operations
        line      line of the PTX
        """
        if not len(threads):
            return
        warps, row = np.unique(threads // WARP_THREADS, return_inverse=True)
        place = (row, threads % WARP_THREADS)
        active = np.zeros((len(warps), WARP_THREADS), bool)
        active[place] = True
        table, other_table = np.zeros((2, *active.shape), np.int64)
        table[place] = at
        if other is not None:
            other_table[place] = other
        if space == "global":
            self._add_global(op, bits, table, other_table, active)
        else:
            self._add_shared(op, bits, table, other_table, active, line)

    def _add_shared(
        self, op: str, bits: int, table: np.ndarray, sources: np.ndarray, active: np.ndarray, line: int
    ) -> None:
        """Count one instruction that accesses shared memory.

        bits      bits that a lane accesses
        table     byte address in shared memory of each thread; a row for each warp, a column for each lane
        sources   cp.async: byte addresses in global memory
        active    boolean array of the same shape: True for lanes that execute the instruction
        op        load, store, ldmatrix, stmatrix or cp.async
        line      line of the PTX
        """
        if op in _MATRICES:  # only the first lanes give addresses
            used = slice(0, int(active.sum(axis=1).max()))
            table, active = table[:, used], active[:, used]
        added = cost(table[None], bits, op=op, sources=sources[None], rules=self.rules, active=active[None])
        self.shared[op] = _sum(self.shared.get(op), added)
        self.lines[line, op, bits] = _sum(self.lines.get((line, op, bits)), added)

    def _add_global(self, op: str, bits: int, table: np.ndarray, written: np.ndarray, active: np.ndarray) -> None:
        """Count one instruction that accesses global memory.

        bits      bits that a lane accesses
        table     byte address in global memory of each thread; a row for each warp, a column for each lane
        written   cp.async: byte addresses in shared memory
        active    boolean array of the same shape: True for lanes that execute the instruction
        op        load, store or cp.async
        """
        if op == "cp.async" and bits == _LINE_COPY_BITS:
            touched = torn(table, written, CACHE_LINE_BYTES, active)
        else:
            touched = int(sectors(table, bits, active).sum())
        old = self.global_.get(op, GlobalCount())
        self.global_[op] = GlobalCount(old.requests + len(table), old.sectors + touched)


def _sum(old: Wavefronts | None, new: Wavefronts) -> Wavefronts:
    """Add the costs of two groups of shared-memory accesses; the sum has the worse of their two bank conflicts.

    old   cost so far; None for the first group
    new   cost to add
    """
    if old is None:
        return new
    worst = max([w for w in (old.worst, new.worst) if w], key=lambda w: w.ways, default=None)
    return Wavefronts(old.requests + new.requests, old.wavefronts + new.wavefronts, old.ideal + new.ideal, worst)
