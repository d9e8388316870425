"""Emulate the compiled kernel of a plan on the CPU, and check all of its memory accesses."""

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

_THREADS_AT_ONCE = 4096  # threads that are emulated at once if CTAs do not wait for each other


@dataclass(frozen=True)
class Emulation:
    """The result of `emulate`: D, and what the emulated kernels executed.

    d              array D, of the shape that `gemm` returns
    aux            the results of the epilogue other than D, by name
    instructions   opcode -> number of threads that executed it, summed over all kernels; the most frequent first
    launches       the kernel launches: the GEMM, and helpers such as a kernel that copies A before
    seconds        time of the emulation, without compiling
    """

    d: np.ndarray
    aux: dict[str, np.ndarray]
    instructions: dict[str, int]
    launches: tuple[Launch, ...]
    seconds: float

    @property
    def ctas(self) -> int:
        """Return the number of CTAs that were emulated, over all launches."""
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
    """Return D = alpha * A @ B + beta * C, computed by the compiled kernel of a plan, whose PTX is emulated in numpy.

    Every CTA is executed. D and the workspace start with values that are recognised if a kernel reads them unwritten;
    a D that rows are added to starts with zeros.
    No thread may access the gaps between the rows of the matrices.

    a, b, c            arrays M x K, K x N and M x N, with L in front if batched; c is None if beta is 0
    problem            extents and leading strides; None: those of the arrays, with gaps between the rows
    alpha, beta        factors of A @ B and of C
    arch               architecture that the plan is compiled for
    check_races        True to look for unordered accesses to shared and to global memory. This takes a quarter to a
                       half of the time
    seed               None: all warps advance together, and asynchronous copies arrive as late as they can. An
                       integer: seed of random numbers that decide which warp advances and when copies arrive
    ptx                PTX to emulate instead of the compiled one, with the same kernels and parameters; None: the
                       compiled one
    progress           function that is called repeatedly with the fraction of the CTAs that are finished
    watch              object that is called for every memory access of the GEMM kernel, such as `analysis.Executed`
    operands           other operands of the plan's epilogue by name, as arrays or numbers
    raises             PlanError if the arrays or the problem do not fit the plan; CompileError if it does not
                       compile; UnsupportedError for an instruction that the emulator does not implement;
                       EmulationError for an access out of bounds or not aligned, a race, a deadlock, a result that
                       depends on unwritten memory, or an element of D that is not written exactly once,
                       or not added to as often as an index of rows says

    >>> from cutegemm.build import simt_plan
    >>> plan = simt_plan(block=(32, 32, 8), warp=(32, 32), thread=(8, 4))
    >>> emulate(plan, np.ones((2, 8)), np.eye(8)[:, :4], alpha=2).d  # doctest: +SKIP
    array([[2., 2., 2., 2.],
           [2., 2., 2., 2.]], dtype=float32)
    """
    named = {"a": a, "b": b, "c": c, "alpha": alpha, "beta": beta, **operands}
    arrays, scalars = given_operands("emulate", plan, named)
    arrays, problem = seen_by_plan("emulate", plan, arrays, problem)
    violations = list(problem_rules(plan, problem))
    if violations:
        raise PlanError(f"emulate: plan {plan.name!r} on {problem}", violations)
    compiled = compile_plan(plan, arch)
    started = time.perf_counter()
    decoded = programs(compiled.ptx if ptx is None else ptx)
    reduced = dict(plan.epilogue.reductions)
    written = ("d", *plan.epilogue.beside)
    matrices = laid_out(problem, arrays, written)
    memory = GlobalMemory()
    buffers = {name: _placed(memory, matrix, EMPTY if name in written else FULL) for name, matrix in matrices.items()}
    if plan.operands.scattered:  # rows are added to zeros
        buffers["d"].data[:] = 0
        buffers["d"].state[buffers["d"].state == EMPTY] = FULL
    buffers["a"].is_settled = plan.pdl
    tensors = []
    for name in plan.epilogue.tensors:
        if name not in matrices and plan.operands.matrix(name) == plan.operands.d:
            tensors.append("d")  # `gemm` passes D in the place of a C that is not read
            continue
        if name not in matrices:  # with these scalars it is not read, so that any access to it is a fault
            matrices[name] = GlobalMatrix(problem, name)
            buffers[name] = _placed(memory, matrices[name], GlobalMemory.OUTSIDE)
        tensors.append(name)
    loaded = ("b", "a") if plan.swap_ab else ("a", "b")
    in_order = (*loaded, *plan.operands.of_mainloop, *tensors, *written)
    arguments = [_argument(plan, matrices[name], buffers[name], name) for name in in_order]
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
        watch_here = watch if re.match(GEMM_KERNELS, launch.kernel) else None
        for count in execute(kernel, program, launch, memory, check_races, seed, counts, watch_here):
            done += count
            if progress is not None:
                progress(done / total)
    for name in written:
        _check_written(plan, buffers[name], matrices[name])
    if len(spaces) == 2 and spaces[0][1].data.any():
        raise EmulationError(
            f"emulate: {plan.name} leaves semaphores that are not 0. The next launch on this stream needs zeros."
        )
    batched = plan.operands.has_batch("d") if plan.operands.groups else arrays["a"].ndim == 3
    results = {name: _values(matrices[name], buffers[name]) for name in written}
    results = {name: values if batched else values[0] for name, values in results.items()}
    results = {
        name: without_modes(values, reduced[name].along) if name in reduced else as_caller_has(plan, values)
        for name, values in results.items()
    }
    profile = dict(counts.most_common())
    d = results.pop("d")
    return Emulation(d, results, profile, tuple(launches), time.perf_counter() - started)


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
    """Emulate the CTAs of a kernel launch, several at a time; a generator that yields the number of finished CTAs.

    kernel        the kernel in PTX
    program       its decoded instructions
    launch        grid, block, cluster, shared memory and parameters
    memory        global memory, which the launch reads and writes
    check_races   True to look for unordered accesses to the same memory
    seed          None: all warps advance together, and asynchronous copies arrive late; an integer: random order
    counts        opcode -> number of threads that executed it; this launch is added
    watch         object that is called for every memory access; None for none
    """
    threads, total = launch.block[0] * launch.block[1] * launch.block[2], launch.ctas
    together = max(1, _THREADS_AT_ONCE // threads)
    if any(d.instruction.name.startswith("ld.acquire") for d in program):
        together = total  # a CTA may wait for another CTA
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
    """Add a matrix to the emulated global memory and return its buffer.

    matrix   values, extents and strides of the matrix
    state    FULL for an operand, EMPTY for a result that nobody has written, OUTSIDE if every access is a fault.
             Memory between its rows is OUTSIDE
    """
    bits = exact_bits(matrix.dtype, matrix.buffer)
    size = bits.dtype.itemsize
    inside = np.where(matrix.inside, state, GlobalMemory.OUTSIDE).astype(np.uint8)
    if state != FULL:
        bits = np.full_like(bits, np.iinfo(bits.dtype).max)

    def describe(offset: int) -> str:
        """Return a name for the byte at `offset` in the buffer, such as "D(m 3, n 5)", for messages about faults.

        Bytes that are not in the matrix are named by their distance from its first element.
        """
        place = offset // size - matrix.base
        if place < 0 or not matrix.inside[min(offset // size, len(matrix.inside) - 1)]:
            return f"the memory outside of {matrix.name}, {place} elements from its first"
        number = np.arange(len(matrix.buffer))
        at = np.argwhere(matrix.view(number) == offset // size)[0]
        names = ", ".join(f"{mode} {x}" for mode, x in zip(matrix.modes, at, strict=True))
        return f"{matrix.name}({names})"

    return memory.add(matrix.name, bits.view(np.uint8), np.repeat(inside, size), describe, given=state == FULL)


def _argument(plan: GemmPlan, matrix: GlobalMatrix, buffer: Buffer, name: str) -> TensorArgument:
    """Return the tensor argument of a kernel for a matrix that lies in the emulated memory.

    matrix    type, extents and strides of the matrix
    buffer    the memory that holds it
    name      "a", "b", "c", "d", or the name of another operand or result
    returns   address, type, and extents and strides as the caller has them: (rows, columns), with L in front if batched
    """
    kind = f32 if matrix.dtype is tf32 else matrix.dtype
    # The plan has B as (N, K), the caller has K x N. If the plan swaps A and B, the caller has K x M and N x M instead.
    # Further operands of the mainloop are (rows or columns, k) in both.
    is_transposed = (name == "b") != plan.swap_ab and not plan.operands.matrix(name).modes
    order: tuple[int, ...] = (1, 0) if is_transposed else (0, 1)
    broadcast = plan.operands.matrix(name).broadcast
    if broadcast:
        order = (0,) if "m" not in broadcast else (1,)
    if plan.operands.has_batch(name):
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
    """Return the workspace arguments of an emulated kernel with their buffers, in the order of the kernel's arguments.

    If warps have roles and the plan splits K, there are two: an int32 tensor of semaphores, which may be empty, and
    the workspace. Other plans have the workspace alone, whose first bytes may be semaphores. Semaphores are 0; all
    other bytes are marked as not written.

    memory   emulated global memory; the buffers are added to it
    """
    size, zeroed = workspace_bytes(plan, problem)
    if not plan.body.has_roles or not plan.scheduler.split.is_split:
        return [_workspace(memory, size, zeroed)]
    counters, buffer = _workspace(memory, zeroed, zeroed)
    words = replace(counters, kind="s32", shape=(zeroed // 4,))
    return [(words, buffer), _workspace(memory, size - zeroed, 0)]


def _workspace(memory: GlobalMemory, size: int, zeroed: int) -> tuple[TensorArgument, Buffer]:
    """Add a workspace of `size` bytes to the emulated memory; return it as a kernel argument, and its buffer.

    memory   emulated global memory; the workspace is added to it
    size     size in bytes
    zeroed   number of bytes at the start that are 0; all others are marked as not written
    """
    data = np.full(size, 0xFF, np.uint8)
    data[:zeroed] = 0
    state = np.full(size, EMPTY, np.uint8)
    state[:zeroed] = FULL
    buffer = memory.add("the workspace", data, state)
    return TensorArgument(buffer.base, "u8", (size,), (1,)), buffer


def _values(matrix: GlobalMatrix, buffer: Buffer) -> np.ndarray:
    """Return the values of a result matrix in the emulated memory as an array (L, M, N).

    matrix   extents and strides of the result
    buffer   the memory that holds it
    """
    size = matrix.dtype.bits // 8
    raw = buffer.data[: len(matrix.buffer) * size].view(f"u{size}")
    return np.moveaxis(matrix.view(values_of(matrix.dtype, raw)), 2, 0).copy()


def _check_written(plan: GemmPlan, buffer: Buffer, matrix: GlobalMatrix) -> None:
    """Raise EmulationError unless the emulated kernel wrote each element of a result as often as it must: mostly once.

    buffer   emulated memory of the result, with the state of each byte and the number of bytes stored
    matrix   extents and strides of the result
    raises   EmulationError with the number of wrong elements, and the first one that was never written
    """
    size = matrix.dtype.bits // 8
    state = buffer.state[: len(matrix.buffer) * size].reshape(-1, size)
    never = np.flatnonzero(matrix.inside & (state != FULL).any(axis=1))
    if len(never):
        raise EmulationError(
            f"emulate: {plan.name} never writes {len(never)} elements of {matrix.name}; the first is "
            f"{buffer.place(int(never[0]) * size)}."
        )
    extra = buffer.stored_bytes // size - int(matrix.times.sum())
    if extra:
        how = "more" if extra > 0 else "less"
        than = "the index says" if plan.operands.scattered else "once"
        raise EmulationError(f"emulate: {plan.name} writes {abs(extra)} elements of {matrix.name} {how} than {than}.")
