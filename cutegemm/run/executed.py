"""Count the memory accesses of a kernel by emulating its PTX on the CPU: of a plan's compiled kernel, or of any PTX.

The compiler merges some accesses of a plan to wider ones, and removes others. So the accesses of the kernel can
differ from those of the plan. Only a few tiles of a plan are emulated: a full tile, and tiles at the edges of the
problem. Each is emulated with enough k-tiles to fill the pipeline, and with a few more. The difference is the cost of
these k-tiles, which is multiplied for the k-tiles that are left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cutegemm.analysis.executed import Executed, ExecutedAccesses
from cutegemm.analysis.shared import DEFAULT_RULES, Rules, Wavefronts
from cutegemm.compile.cubin import ResourceReport
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import DType
from cutegemm.emulator.decode import programs
from cutegemm.emulator.launch import Launch
from cutegemm.emulator.ptx import Kernel
from cutegemm.emulator.state import FULL, GlobalMemory
from cutegemm.errors import UnsupportedError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.run.emulated import emulate, execute

_SHARED_ACCESS = re.compile(r"\b(ld|st)\.shared(?:::cta)?(?:\.v(\d))?\.[bfsu](\d+)")
_BEYOND_STAGES = 2  # with this many k-tiles more than stages, each further k-tile costs the same
_BUFFER = re.compile(r"(\w+)\[(\d+)\]")
_NUMBER = re.compile(r"-?\d+")
_GRID_DIMENSIONS = 3


def executed_accesses(
    plan: GemmPlan, problem: Problem, arch: str = DEFAULT_ARCH, rules: Rules = DEFAULT_RULES
) -> ExecutedAccesses | None:
    """Return the shared-memory accesses of all CTAs of a problem, as the compiled kernel executes them.

    arch      architecture that the plan is compiled for
    rules     how accesses of a warp are divided into wavefronts
    returns   counts of requests and wavefronts by operation (load, store, ldmatrix, stmatrix, cp.async). None if the
              plan splits K or has groups, since its CTAs then differ; if an extent is 0; or if the rows of one tile
              are shorter than the alignment of D, so that it cannot be computed alone
    raises    CompileError if the plan does not compile; EmulationError if the kernel makes a faulty access
    """
    if plan.scheduler.split.is_split or plan.operands.groups or 0 in (problem.m, problem.n, problem.k, problem.l):
        return None
    tiles, d = [*_cluster_tiles(plan, problem)], plan.operands.d
    if any((m if d.major == "m" else n) % d.align_elems for _, m, n in tiles):
        return None
    totals: dict[str, list[int]] = {}
    for count, m, n in tiles:
        for op, numbers in _count_for_tile(plan, problem, m, n, arch, rules).items():
            total = totals.setdefault(op, [0, 0, 0])
            for i, number in enumerate(numbers):
                total[i] += count * number
    compiled = compile_plan(plan, arch)
    counts = {op: Wavefronts(total[0], total[1], total[2]) for op, total in totals.items()}
    return ExecutedAccesses(counts, _is_wider(compiled.ptx, compiled.resources))


def _is_wider(ptx: str, code: ResourceReport) -> bool:
    """Return True if the machine code has more 64- or 128-bit shared-memory accesses than the PTX it is compiled from.

    In this case ptxas has merged accesses, so counts of the PTX's accesses do not hold for the machine code.

    ptx    PTX of the kernel
    code   instruction counts of its machine code

    >>> code = ResourceReport("k", 32, 0, 0, 64, {"LDS": 1, "LDS.128": 1})
    >>> _is_wider("ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r0];", code)
    False
    >>> _is_wider("ld.shared.b32 %r1, [%r0];", code)
    True
    """
    in_ptx: Counter[tuple[str, int]] = Counter()
    for op, count, bits in _SHARED_ACCESS.findall(ptx):
        in_ptx[op, int(count or 1) * int(bits)] += 1
    return any(
        code.instructions.get(f"{mnemonic}.{bits}", 0) > in_ptx[op, bits]
        for op, mnemonic in (("ld", "LDS"), ("st", "STS"))
        for bits in (64, 128)
    )


def _cluster_tiles(plan: GemmPlan, problem: Problem) -> Iterator[tuple[int, int, int]]:
    """Yield (count, M, N) for each size of a cluster's output tile in a problem: full, at an edge, and in the corner.

    returns   `count` is the number of clusters whose tile has M x N elements
    """
    sizes = []  # [(count, extent of a tile)] along M, and along N
    for extent, tile, across in zip((problem.m, problem.n), plan.d_tile, plan.cluster_mn, strict=True):
        full, rest = divmod(extent, tile * across)
        sizes.append([(full, tile * across)] * bool(full) + [(1, rest)] * bool(rest))
    for count_m, m in sizes[0]:
        for count_n, n in sizes[1]:
            yield count_m * count_n * problem.l, m, n


def _count_for_tile(
    plan: GemmPlan, problem: Problem, m: int, n: int, arch: str, rules: Rules
) -> dict[str, tuple[int, int, int]]:
    """Return how often one cluster accesses shared memory to compute an m x n tile over the whole K.

    Only some k-tiles are emulated; the counts of the others are extrapolated.

    m, n      extents of the tile in elements
    arch      architecture that the plan is compiled for
    rules     how accesses of a warp are divided into wavefronts
    returns   operation -> (requests, wavefronts, least possible wavefronts)
    """
    bk, aligned = plan.cta_tile[2], max(plan.loaded.a.align_elems, plan.loaded.b.align_elems)
    step = aligned // math.gcd(aligned, bk)  # k-tiles of a step: K may shrink by steps and keeps its alignment
    spare = plan.k_tiles(problem) - plan.stages - _BEYOND_STAGES - step
    steps_left_out = max(0, spare // step)
    longer = _count(plan, problem, (m, n, problem.k - steps_left_out * step * bk), arch, rules)
    if not steps_left_out:
        return longer
    shorter = _count(plan, problem, (m, n, problem.k - (steps_left_out + 1) * step * bk), arch, rules)
    out = {}
    for op, numbers in longer.items():
        fewer = shorter.get(op, (0, 0, 0))
        requests, waves, ideal = (a + steps_left_out * (a - b) for a, b in zip(numbers, fewer, strict=True))
        out[op] = (requests, waves, ideal)
    return out


def _count(
    plan: GemmPlan, problem: Problem, extents: tuple[int, int, int], arch: str, rules: Rules
) -> dict[str, tuple[int, int, int]]:
    """Emulate the kernel on one problem whose matrices are zero, and count its shared-memory accesses.

    extents   M, N and K of the emulated problem, in place of the extents of `problem`
    rules     how accesses of a warp are divided into wavefronts
    arch      architecture that the plan is compiled for
    returns   operation -> (requests, wavefronts, least possible wavefronts)
    """
    (m, n, k), operands = extents, plan.operands
    small = replace(problem, m=m, n=n, k=k, l=1, ld=())
    batch = (1,) if operands.batched else ()
    further: dict[str, Any] = {
        name: np.zeros((*batch, *small.layout(name).shape[:2]), np.float32) for name in operands.of_mainloop
    }
    small = replace(small, ld=tuple([(name, _aligned_stride(small, name)) for name in further]))
    columns = n * 2 if operands.gated else n
    a, b = np.zeros((*batch, m, k), np.float32), np.zeros((*batch, k, columns), np.float32)
    if plan.swap_ab:  # `emulate` takes the matrices of the caller's problem, before A and B are swapped
        a, b, small = np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2), small.transposed
    counts = Executed(rules)
    emulate(plan, a, b, problem=small, arch=arch, check_races=False, watch=counts, **further)
    return {op: (one.requests, one.wavefronts, one.ideal) for op, one in counts.shared.items()}


def _aligned_stride(problem: Problem, name: str) -> int:
    """Return the smallest stride between rows (or columns) of an operand, in elements, with the problem's alignment.

    problem   extents, and the alignment of each operand
    name      name of the operand, such as "a"
    """
    operand = problem.operands.matrix(name)
    along = next(mode for mode in problem.operands.modes(name) if mode[0] == operand.major)
    return -(-problem.extent(name, along) // operand.align_elems) * operand.align_elems


# --- any PTX ---------------------------------------------------------------------------------------------------------


def executed_ptx(
    text: str,
    arguments: Sequence[str] = (),
    *,
    kernel: str = "",
    grid: tuple[int, ...] = (1,),
    block: tuple[int, ...] = (128,),
    shared_bytes: int = 0,
    cluster: int = 1,
    rules: Rules = DEFAULT_RULES,
) -> Executed:
    """Emulate one launch of a kernel given as PTX, and return its memory accesses, counted by instruction.

    text           PTX module
    arguments      one text for each parameter: an integer, or a buffer of zeros such as "f32[4096]"
    kernel         name of the kernel, or the start of it; "" if the module has one kernel
    grid, block    up to three extents; the threads of a block must be a whole number of warps
    shared_bytes   bytes of dynamic shared memory
    cluster        CTAs of a cluster, along x
    rules          how accesses of a warp are divided into wavefronts
    raises         UnsupportedError if the arguments do not fit the parameters, or for an instruction that the
                   emulator does not implement; EmulationError for an access out of bounds or not aligned

    >>> counts = executed_ptx('''
    ... .version 8.0
    ... .target sm_80
    ... .visible .entry stride_two() {
    ...   .reg .b32 %r<5>; .shared .align 16 .b8 tile[256];
    ...   mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 3; mov.u32 %r3, tile; add.s32 %r4, %r3, %r2;
    ...   st.shared.b32 [%r4], %r1;
    ...   ret; }''', block=(32,))
    >>> counts.shared["store"].wavefronts, counts.shared["store"].ideal
    (2, 1)
    """
    decoded = programs(text)
    name = _full_name(kernel, [*decoded])
    entry, program = decoded[name]
    memory = GlobalMemory()
    dims = [(*extents, *[1] * (_GRID_DIMENSIONS - len(extents))) for extents in (grid, block)]
    launch = Launch(
        name, (dims[0][0], dims[0][1], dims[0][2]), (dims[1][0], dims[1][1], dims[1][2]), cluster, shared_bytes,
        _params(entry, arguments, memory),
    )  # fmt: skip
    accesses, opcodes = Executed(rules), Counter[str]()
    for _ in execute(entry, program, launch, memory, False, None, opcodes, accesses):
        pass
    return accesses


def _full_name(start: str, names: list[str]) -> str:
    """Return the only kernel name in a PTX module that starts with `start`.

    names    names of the kernels in the module
    raises   UnsupportedError if no name starts with it, or several do
    """
    matching = [name for name in names if name.startswith(start)]
    if not names:
        raise UnsupportedError("check: the PTX does not have a kernel. Pass a module with an .entry.")
    if len(matching) != 1:
        listed = ", ".join(name[:60] for name in names)
        raise UnsupportedError(
            f"check: {len(matching)} kernels of the PTX have a name that starts with {start!r}. Pass --kernel with the "
            f"start of one of these names: {listed}."
        )
    return matching[0]


def _params(kernel: Kernel, arguments: Sequence[str], memory: GlobalMemory) -> np.ndarray:
    """Return the bytes of all parameters of a kernel, after adding the buffers to the emulated memory.

    kernel      the kernel, which declares its parameters
    arguments   a text for each parameter: an integer, or a buffer of zeros such as "f32[4096]"
    memory      emulated global memory, which gets these buffers
    returns     uint8 array
    """
    if len(arguments) != len(kernel.params):
        shown = ", ".join(f"{p.name} ({p.size} bytes)" for p in kernel.params)
        raise UnsupportedError(
            f"check: the number of arguments is {len(arguments)}, but the parameters are {shown}. Pass a number, or a "
            "buffer such as f32[4096], for each."
        )
    out = np.zeros(kernel.param_bytes, np.uint8)
    for param, text in zip(kernel.params, arguments, strict=True):
        buffer = _BUFFER.fullmatch(text.strip())
        if buffer is not None:
            size = int(buffer[2]) * DType.parse(buffer[1]).bits // 8
            value = memory.add(param.name, np.zeros(size, np.uint8), np.full(size, FULL, np.uint8)).base
        elif _NUMBER.fullmatch(text.strip()):
            value = int(text)
        else:
            raise UnsupportedError(
                f"check: the argument {text!r} is not valid. Pass a whole number, or a buffer such as f32[4096]."
            )
        if param.size > 8:
            raise UnsupportedError(
                f"check: the parameter {param.name} has {param.size} bytes, but 8 is the most. Use a kernel with "
                "smaller parameters."
            )
        raw = (value & ((1 << 8 * param.size) - 1)).to_bytes(param.size, "little")
        out[param.offset : param.offset + param.size] = np.frombuffer(raw, np.uint8)
    return out
