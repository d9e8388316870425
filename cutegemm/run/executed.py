"""What a compiled kernel does to shared memory, counted while its PTX is executed on the CPU.

The compiler joins accesses of the plan to wider ones, and leaves others out where a branch does; so the plan's own
accesses are not always those of the kernel. Here a few tiles are executed, one of each kind that the problem has, with
as many k-tiles as fill the pipeline and with one more: what that one adds is a k-tile's.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cutegemm.analysis.executed import Executed, ExecutedAccesses
from cutegemm.analysis.shared import DEFAULT_RULES, Rules, Wavefronts
from cutegemm.compile.cubin import ResourceReport
from cutegemm.compile.plans import compile_plan
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.run.emulated import emulate

_SHARED_ACCESS = re.compile(r"\b(ld|st)\.shared(?:::cta)?(?:\.v(\d))?\.[bfsu](\d+)")
_BEYOND_STAGES = 2  # k-tiles more than stages, from which on each costs the same


def executed_accesses(
    plan: GemmPlan, problem: Problem, arch: str = DEFAULT_ARCH, rules: Rules = DEFAULT_RULES
) -> ExecutedAccesses | None:
    """Of all CTAs of a problem, by operation: load, store, ldmatrix, stmatrix, cp.async. Compiles the plan.

    returns   None of plans that split K, whose CTAs do not all do the same, and of problems without elements
    raises    CompileError; EmulationError
    """
    if plan.split.is_split or 0 in (problem.m, problem.n, problem.k, problem.l):
        return None
    total: dict[str, list[int]] = {}
    for count, m, n in _units(plan, problem):
        for op, found in _of_unit(plan, problem, m, n, arch, rules).items():
            accumulators = total.setdefault(op, [0, 0, 0])
            for i, value in enumerate(found):
                accumulators[i] += count * value
    compiled = compile_plan(plan, arch)
    counts = {op: Wavefronts(accumulators[0], accumulators[1], accumulators[2]) for op, accumulators in total.items()}
    return ExecutedAccesses(counts, _is_wider(compiled.ptx, compiled.resources))


def _is_wider(ptx: str, code: ResourceReport) -> bool:
    """Whether machine code has more of the wide accesses to shared memory than its PTX.

    >>> code = ResourceReport("k", 32, 0, 0, 64, {"LDS": 1, "LDS.128": 1})
    >>> _is_wider("ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r0];", code)
    False
    >>> _is_wider("ld.shared.b32 %r1, [%r0];", code)
    True
    """
    found: Counter[tuple[str, int]] = Counter()
    for op, count, bits in _SHARED_ACCESS.findall(ptx):
        found[op, int(count or 1) * int(bits)] += 1
    return any(
        code.instructions.get(f"{mnemonic}.{bits}", 0) > found[op, bits]
        for op, mnemonic in (("ld", "LDS"), ("st", "STS"))
        for bits in (64, 128)
    )


def _units(plan: GemmPlan, problem: Problem) -> Iterator[tuple[int, int, int]]:
    """(how often, M, N) of what a cluster works on: full, on either edge, and in the corner."""
    parts = []
    for extent, tile, across in zip((problem.m, problem.n), plan.d_tile, plan.cluster_mn, strict=True):
        full, rest = divmod(extent, tile * across)
        parts.append([(full, tile * across)] * bool(full) + [(1, rest)] * bool(rest))
    for often_m, m in parts[0]:
        for often_n, n in parts[1]:
            yield often_m * often_n * problem.l, m, n


def _of_unit(
    plan: GemmPlan, problem: Problem, m: int, n: int, arch: str, rules: Rules
) -> dict[str, tuple[int, int, int]]:
    bk, aligned = plan.cta_tile[2], max(plan.loaded.a.align_elems, plan.loaded.b.align_elems)
    step = aligned // math.gcd(aligned, bk)  # k-tiles, by which rows stay aligned
    spare = plan.k_tiles(problem) - plan.stages - _BEYOND_STAGES - step
    steps_left_out = max(0, spare // step)
    last = _count(plan, problem, (m, n, problem.k - steps_left_out * step * bk), arch, rules)
    if not steps_left_out:
        return last
    before = _count(plan, problem, (m, n, problem.k - (steps_left_out + 1) * step * bk), arch, rules)
    out = {}
    for op, found in last.items():
        had = before.get(op, (0, 0, 0))
        requests, waves, ideal = (a + steps_left_out * (a - b) for a, b in zip(found, had, strict=True))
        out[op] = (requests, waves, ideal)
    return out


def _count(
    plan: GemmPlan, problem: Problem, extents: tuple[int, int, int], arch: str, rules: Rules
) -> dict[str, tuple[int, int, int]]:
    m, n, k = extents
    small = replace(problem, m=m, n=n, k=k, l=1, ld=())
    batch = (1,) if plan.operands.batched else ()
    columns = n * 2 if plan.operands.gated else n
    a, b = np.zeros((*batch, m, k), np.float32), np.zeros((*batch, k, columns), np.float32)
    if plan.swap_ab:  # which is given those of the problem whose transpose this is
        a, b, small = np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2), small.transposed
    heard = Executed(rules)
    emulate(plan, a, b, problem=small, arch=arch, check_races=False, watch=heard)
    return {op: (one.requests, one.wavefronts, one.ideal) for op, one in heard.shared.items()}
