"""A compiled plan carried out on the CPU: `emulate`."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cutegemm.compile.cubin import GEMM_KERNELS
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import f32, tf32
from cutegemm.emulator.decode import programs
from cutegemm.emulator.launch import Launch, TensorArgument, host_function
from cutegemm.emulator.machine import Decoded, Machine, Watch, launch_blocks
from cutegemm.emulator.order import GlobalOrder, smallest_access
from cutegemm.emulator.ptx import Kernel
from cutegemm.emulator.scalar import exact_bits, values_of
from cutegemm.emulator.state import EMPTY, FULL, Buffer, GlobalMemory
from cutegemm.errors import EmulationError, PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.plan.memory.workspace import needs_workspace, workspace_bytes
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.rules.violations import problem_rules
from cutegemm.simulator.arguments import as_caller_has, given_operands, laid_out, seen_by_plan
from cutegemm.simulator.memory import GlobalMatrix
from cutegemm.simulator.reductions import without_modes

_THREADS_AT_ONCE = 4096  # of the CTAs that are in flight together, where they need not be


@dataclass(frozen=True)
class Emulation:
    """D, and what was executed.

    aux            results of the epilogue beside D, by name
    instructions   how many threads have carried out each opcode, over all kernels; the most frequent first
    launches       the kernel launches of the host function
    seconds        it took, without compiling
    """

    d: np.ndarray
    aux: dict[str, np.ndarray]
    instructions: dict[str, int]
    launches: tuple[Launch, ...]
    seconds: float

    @property
    def ctas(self) -> int:
        """CTAs that ran, of all launches."""
        return sum(launch.ctas for launch in self.launches)


def emulate(
    plan: GemmPlan,
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    problem: Problem | None = None,
    arch: str = DEFAULT_ARCH,
    check_races: bool = True,
    seed: int | None = None,
    ptx: str | None = None,
    progress: Callable[[float], None] | None = None,
    watch: Watch | None = None,
    **operands: Any,
) -> Emulation:
    """D = alpha * A @ B + beta * C by the compiled kernel of a plan: its PTX, executed in numpy.

    Every CTA is executed. D and the workspace are poisoned; the matrices lie in memory as `simulate` lays them
    out, with gaps between their rows that nobody may touch.

    a, b, c, problem   as `simulate` takes them
    arch               that the plan is compiled for
    check_races        look for accesses to shared and to global memory that nothing orders; takes a quarter to a half
                       of the time
    seed               None: all warps go in step, and what is copied asynchronously comes as late as can be. A number:
                       warps go on, and copies come, by chance
    ptx                another text to execute instead of the compiled one, with the same kernels and parameters
    progress           called now and then with the fraction of the CTAs that is done
    watch              hears of every access of the GEMM's own kernel to memory; `analysis.executed` counts them
    operands           further ones of the plan's epilogue, as `simulate` takes them
    raises             PlanError where the arrays or the problem do not fit the plan; CompileError; UnsupportedError for
                       an instruction that the emulator does not know; EmulationError for an access out of bounds or not
                       aligned, a race, a deadlock, a result that comes from memory to which nothing was written, an
                       element of D that is written never or twice

    >>> from cutegemm.build import simt_plan
    >>> plan = simt_plan(block=(32, 32, 8), warp=(32, 32), thread=(8, 4))
    >>> emulate(plan, np.ones((2, 8)), np.eye(8)[:, :4], alpha=2).d  # doctest: +SKIP
    array([[2., 2., 2., 2.],
           [2., 2., 2., 2.]], dtype=float32)
    """
    named = {"a": a, "b": b, "c": c, "alpha": alpha, "beta": beta, **operands}
    given, scalars = given_operands("emulate", plan, named)
    given, problem = seen_by_plan("emulate", plan, given, problem)
    violations = list(problem_rules(plan, problem))
    if violations:
        raise PlanError(f"emulate: plan {plan.name!r} on {problem}", violations)
    compiled = compile_plan(plan, arch)
    started = time.perf_counter()
    decoded = programs(compiled.ptx if ptx is None else ptx)
    outputs, reduced = plan.epilogue.outputs, dict(plan.epilogue.reductions)
    written = (*outputs, *reduced)
    matrices = laid_out(problem, given, written)
    memory = GlobalMemory()
    buffers = {name: _placed(memory, matrix, EMPTY if name in written else FULL) for name, matrix in matrices.items()}
    buffers["a"].is_settled = plan.pdl
    tensors = []
    for name in plan.epilogue.tensors:
        if name not in matrices and plan.operands.matrix(name) == plan.operands.d:
            tensors.append("d")  # as `gemm` passes it
            continue
        if name not in matrices:  # not read for these scalars: nobody's memory
            matrices[name] = GlobalMatrix(problem, name)
            buffers[name] = _placed(memory, matrices[name], GlobalMemory.OUTSIDE)
        tensors.append(name)
    loaded = ("b", "a") if plan.swap_ab else ("a", "b")
    named = (*loaded, *plan.operands.of_mainloop, *tensors, *written)
    arguments = [_argument(plan, matrices[name], buffers[name], name) for name in named]
    spaces = _workspaces(memory, plan, problem) if needs_workspace(plan) else []
    arguments += [argument for argument, _ in spaces]
    host = host_function(compiled.folder / "kernel.so")
    launches = host.launches(
        {name: kernel for name, (kernel, _) in decoded.items()}, arguments, tuple(scalars.values())
    )
    counts: Counter[str] = Counter()
    total = sum(launch.ctas for launch in launches)
    done = 0
    for launch in launches:
        kernel, program = decoded[launch.kernel]
        heard = watch if re.match(GEMM_KERNELS, launch.kernel) else None
        for count in execute(kernel, program, launch, memory, check_races, seed, counts, heard):
            done += count
            if progress is not None:
                progress(done / total)
    for name in written:
        _check_written(plan, buffers[name], matrices[name])
    if len(spaces) == 2 and spaces[0][1].data.any():
        raise EmulationError("the counters of arrivals are not left at zero, as the next launch needs them.")
    batched = given["a"].ndim == 3
    found = {name: _values(matrices[name], buffers[name]) for name in written}
    found = {name: values if batched else values[0] for name, values in found.items()}
    found = {
        name: without_modes(values, reduced[name].along) if name in reduced else as_caller_has(plan, values)
        for name, values in found.items()
    }
    profile = dict(counts.most_common())
    d = found.pop("d")
    return Emulation(d, found, profile, tuple(launches), time.perf_counter() - started)


def execute(
    kernel: Kernel,
    program: list[Decoded],
    launch: Launch,
    memory: GlobalMemory,
    check_races: bool,
    seed: int | None,
    counts: Counter[str],
    watch: Watch | None = None,
) -> Any:
    """Runs the CTAs of a launch, some at a time; yields how many have ended."""
    threads, total = launch.block[0] * launch.block[1] * launch.block[2], launch.ctas
    together = max(1, _THREADS_AT_ONCE // threads)
    if any(d.instruction.name.startswith("ld.acquire") for d in program):
        together = total  # a CTA may wait for another one
    together = max(launch.cluster, together // launch.cluster * launch.cluster)
    grain = smallest_access(program, "shared")
    order = GlobalOrder(program, total, threads)
    for first in range(0, total, together):
        blocks = launch_blocks(launch.grid, launch.cluster, first, min(together, total - first))
        size = kernel.static_shared + launch.shared_bytes
        machine = Machine(
            kernel,
            program,
            blocks,
            threads,
            size,
            launch.params,
            memory,
            check_races,
            grain,
            seed,
            (order, first),
            launch.uses_pdl,
        )
        machine.watch = watch
        machine.run()
        for decoded, count in zip(program, machine.executions(), strict=True):
            counts[decoded.instruction.name] += int(count)
        yield len(blocks)


def _placed(memory: GlobalMemory, matrix: GlobalMatrix, state: int) -> Buffer:
    """A matrix in global memory, whose elements are FULL, EMPTY or OUTSIDE; what lies between its rows belongs to
    nobody."""
    bits = exact_bits(matrix.dtype, matrix.buffer)
    size = bits.dtype.itemsize
    inside = np.where(matrix.inside, state, GlobalMemory.OUTSIDE).astype(np.uint8)
    if state != FULL:
        bits = np.full_like(bits, np.iinfo(bits.dtype).max)

    def describe(offset: int) -> str:
        place = offset // size - matrix.base
        if place < 0 or not matrix.inside[min(offset // size, len(matrix.inside) - 1)]:
            return f"the memory beside {matrix.name}, {place} elements from its first"
        number = np.arange(len(matrix.buffer))
        at = np.argwhere(matrix.view(number) == offset // size)[0]
        names = ", ".join(f"{mode} {x}" for mode, x in zip(matrix.modes, at, strict=True))
        return f"{matrix.name}({names})"

    return memory.add(matrix.name, bits.view(np.uint8), np.repeat(inside, size), describe, given=state == FULL)


def _argument(plan: GemmPlan, matrix: GlobalMatrix, buffer: Buffer, name: str) -> TensorArgument:
    """The matrix as the caller of the kernel has it: rows, columns, with L in front where batched."""
    kind = f32 if matrix.dtype is tf32 else matrix.dtype
    # (N, K) is K x N to the caller; where the plan is transposed, (M, K) is, and D is N x M
    is_exchanged = (name == "b") != plan.swap_ab and not plan.operands.matrix(name).modes
    order: tuple[int, ...] = (1, 0) if is_exchanged else (0, 1)
    broadcast = plan.operands.matrix(name).broadcast
    if broadcast:
        order = (0,) if "m" not in broadcast else (1,)
    if plan.operands.batched:
        order = (2, *order)
    extents, strides = list(matrix.extents), list(matrix.strides)
    if len(broadcast) == 2:
        extents[1], strides[1] = 1, 1
    return TensorArgument(
        buffer.base + matrix.base * (kind.bits // 8),
        kind,
        tuple([extents[i] for i in order]),
        tuple([strides[i] for i in order]),
    )


def _workspaces(memory: GlobalMemory, plan: GemmPlan, problem: Problem) -> list[tuple[TensorArgument, Buffer]]:
    """What a kernel takes after D: bytes, of which the counters of arrivals come first and are zero. One with a
    pipeline that splits K has these, as words, for an argument of their own, of which there may be none."""
    size, zeroed = workspace_bytes(plan, problem)
    if not plan.body.has_roles or not plan.split.is_split:
        return [_workspace(memory, size, zeroed)]
    counters, buffer = _workspace(memory, zeroed, zeroed)
    words = replace(counters, kind="s32", shape=(zeroed // 4,))
    return [(words, buffer), _workspace(memory, size - zeroed, 0)]


def _workspace(memory: GlobalMemory, size: int, zeroed: int) -> tuple[TensorArgument, Buffer]:
    data = np.full(size, 0xFF, np.uint8)
    data[:zeroed] = 0
    state = np.full(size, EMPTY, np.uint8)
    state[:zeroed] = FULL
    buffer = memory.add("the workspace", data, state)
    return TensorArgument(buffer.base, "u8", (size,), (1,)), buffer


def _values(matrix: GlobalMatrix, buffer: Buffer) -> np.ndarray:
    """(L, M, N) of D."""
    size = matrix.dtype.bits // 8
    raw = buffer.data[: len(matrix.buffer) * size].view(f"u{size}")
    return np.moveaxis(matrix.view(values_of(matrix.dtype, raw)), 2, 0).copy()


def _check_written(plan: GemmPlan, buffer: Buffer, matrix: GlobalMatrix) -> None:
    """raises EmulationError where an element of D was written never or twice"""
    size = matrix.dtype.bits // 8
    state = buffer.state[: len(matrix.buffer) * size].reshape(-1, size)
    never = np.flatnonzero(matrix.inside & (state != FULL).any(axis=1))
    if len(never):
        raise EmulationError(
            f"emulate: {plan.name} never writes {len(never)} elements of {matrix.name}; the first is "
            f"{buffer.place(int(never[0]) * size)}."
        )
    extra = buffer.stored_bytes - int(matrix.inside.sum()) * size
    if extra:
        raise EmulationError(f"emulate: {plan.name} writes {extra // size} elements of {matrix.name} more than once.")
