"""Handlers of wgmma, and the check that nothing else uses its registers while it is under way.

A wgmma is executed when the warpgroup waits for its group, with the contents of shared memory at that time. Until then,
no other instruction may use its registers. Earlier uses of them must be ordered before it by `wgmma.fence`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.proxy import Request, proxy_of
from cutegemm.emulator.hopper.wgmma import Descriptor, Shape, a_of_registers, matrix_of_units
from cutegemm.emulator.machine import Action, Decoded, Group, Machine
from cutegemm.emulator.state import WARPGROUP, Immediate, Instruction, Negated, Register, Step, Vector, handles


@dataclass(frozen=True)
class _Wgmma:
    """A wgmma that one warpgroup has issued and whose result is not written yet.

    shape          shape and types of the instruction
    accumulators   indices of the registers of D
    a              descriptor of A in shared memory, or the values of A's registers, uint32 (128 threads, registers)
    b              descriptor of B in shared memory
    a_registers    indices of A's registers; () if A is in shared memory
    accumulates    whether D is added to the product
    signs          1 or -1 for A and for B
    mn_major       for A and for B: whether the matrix in shared memory is MN-major
    """

    instruction: Instruction
    shape: Shape
    accumulators: tuple[int, ...]
    a: Descriptor | np.ndarray
    b: Descriptor
    a_registers: tuple[int, ...]
    accumulates: bool
    signs: tuple[int, int]
    mn_major: tuple[bool, bool]


@dataclass
class _Warpgroup:
    """The wgmma instructions that one warpgroup has issued and that are not finished, in groups.

    first     number of the warpgroup's first thread
    open      wgmmas that have not been committed to a group yet
    groups    committed groups of wgmmas, the oldest first
    touched   registers that other instructions have used since the last wgmma.fence; None before the first fence
    """

    first: int
    open: list[_Wgmma] = field(default_factory=list)
    groups: list[list[_Wgmma]] = field(default_factory=list)
    touched: set[int] | None = None

    @property
    def pending(self) -> Iterator[_Wgmma]:
        """Yield all unfinished wgmma instructions of this warpgroup, the oldest first."""
        for group in (*self.groups, self.open):
            yield from group

    def busy(self) -> frozenset[int]:
        """Return the indices of the registers that unfinished wgmmas of this warpgroup use."""
        return frozenset([r for p in self.pending for r in (*p.accumulators, *p.a_registers)])


def _warpgroups(machine: Machine) -> dict[int, _Warpgroup]:
    """Return the unfinished wgmmas of each warpgroup, as a dictionary: number of its first thread -> wgmmas."""
    if "warpgroups" not in machine.private:
        machine.private["warpgroups"] = {}
    return machine.private["warpgroups"]


def _warpgroups_of(step: Step) -> Iterator[tuple[int, _Warpgroup]]:
    """Yield for each warpgroup that executes a step: the position of its first thread, and its unfinished wgmmas.

    The position is an index in `step.threads`.
    """
    warpgroups = _warpgroups(step.machine)
    for i in range(0, len(step.threads), WARPGROUP):
        first = int(step.threads[i])
        yield i, warpgroups.setdefault(first, _Warpgroup(first))


# --- registers of wgmmas under way -------------------------------------------------------------------------


def watch(program: list[Decoded]) -> list[Decoded]:
    """Add a check to each instruction that uses registers of a wgmma: it fails while that wgmma is not finished.

    program   the instructions of a kernel, ready for execution
    returns   `program` with some of its instructions replaced
    """
    owned = {r for d in program if _is_wgmma(d.instruction) for r in _registers(d.instruction)}
    if not owned:
        return program
    return [
        d if _is_wgmma(d.instruction) or not owned.intersection((*d.reads, *d.writes)) else _watched(d, owned)
        for d in program
    ]


def _is_wgmma(instruction: Instruction) -> bool:
    """Return whether an instruction is a wgmma."""
    return instruction.opcode[:2] == ("wgmma", "mma_async")


def _registers(instruction: Instruction) -> list[int]:
    """Return the indices of the registers that a wgmma uses: those of D, and those of A if A is in registers."""
    vectors = [operand for operand in instruction.operands if isinstance(operand, Vector)]
    return [r.index for v in vectors for r in v.items if isinstance(r, Register)]


def _watched(decoded: Decoded, owned: set[int]) -> Decoded:
    """Return a variant of an instruction that first checks that no unfinished wgmma uses its registers.

    decoded   the instruction, with the function that executes it
    owned     registers that some wgmma of the program uses; if the instruction uses none of them, it is returned itself
    """
    used = owned.intersection((*decoded.reads, *decoded.writes))
    action: Action = decoded.action

    def act(m: Machine, group: Group) -> bool | None:
        warpgroups = _warpgroups(m)
        for first in group.warpgroups if warpgroups else ():
            warpgroup = warpgroups.get(first)
            if warpgroup is None:
                continue
            if warpgroup.touched is not None:
                warpgroup.touched |= used
            clash = used & warpgroup.busy() if warpgroup.groups or warpgroup.open else ()
            if clash:
                name = m.kernel.registers[min(clash)].name
                wgmma = next(p for p in warpgroup.pending if min(clash) in (*p.accumulators, *p.a_registers))
                raise m.error(
                    decoded.instruction,
                    int(group.threads[group.threads >= first][0]),
                    f"it uses {name} while the wgmma of line {wgmma.instruction.line} is under way: "
                    "wgmma.wait_group is missing before it.",
                )
        return action(m, group)

    return replace(decoded, action=act)


# --- instructions ------------------------------------------------------------------------------------------


@handles("wgmma.fence", scope="warpgroup")
def _fence(step: Step) -> None:
    for _, warpgroup in _warpgroups_of(step):
        warpgroup.touched = set()


@handles("wgmma.commit_group", scope="warpgroup")
def _commit(step: Step) -> None:
    for _, warpgroup in _warpgroups_of(step):
        warpgroup.groups.append(warpgroup.open)
        warpgroup.open = []


@handles("wgmma.wait_group", scope="warpgroup")
def _wait(step: Step) -> None:
    """Execute wgmma.wait_group: finish all groups of wgmma instructions of the warpgroup but the `count` latest."""
    (count,) = step.operands
    assert isinstance(count, Immediate)
    for _, warpgroup in _warpgroups_of(step):
        due = max(0, len(warpgroup.groups) - count.bits)
        wgmmas = [wgmma for group in warpgroup.groups[:due] for wgmma in group]
        del warpgroup.groups[:due]
        _execute(step.machine, warpgroup, wgmmas)


@handles("wgmma.mma_async", scope="warpgroup")
def _mma_async(step: Step) -> None:
    """Issue wgmma `{accumulators}, a, b, scale-d{, signs of a and b{, MN-major flags}}` for each warpgroup of the step.

    The result is computed later, by wgmma.wait_group.
    """
    accumulators, a, b, scale, *more = step.operands
    flags = [operand.bits for operand in more]
    signs = (flags[0], flags[1]) if len(flags) >= 2 else (1, 1)
    from_registers = isinstance(a, Vector)
    mn_major = (False, bool(flags[2])) if from_registers and len(flags) == 3 else (False, False)
    if len(flags) == 4:
        mn_major = (bool(flags[2]), bool(flags[3]))
    try:
        shape = Shape.parse(step.instruction.opcode)
    except RuleViolation as violations:
        raise step.fail(str(violations)) from None
    registers = tuple([r.index for r in accumulators.items])
    a_registers = tuple([r.index for r in a.items]) if from_registers else ()
    if len(registers) != shape.registers:
        raise step.fail(f"{len(registers)} accumulator registers; the shape has {shape.registers}.")
    adds = _predicate(step, scale)
    for i, warpgroup in _warpgroups_of(step):
        here = slice(i, i + WARPGROUP)
        _check_free(step, warpgroup, shape, registers, a_registers)
        a_operand: Descriptor | np.ndarray
        if from_registers:
            a_operand = np.stack([step.get(r, np.uint32)[here] for r in a.items], axis=1)
        else:
            a_operand = Descriptor.decode(_uniform(step, a, here, np.uint64, "descriptor of A"))
        warpgroup.open.append(
            _Wgmma(
                step.instruction,
                shape,
                registers,
                a_operand,
                Descriptor.decode(_uniform(step, b, here, np.uint64, "descriptor of B")),
                a_registers,
                bool(_same(step, adds[here], here, "scale-d")),
                signs,
                mn_major,
            )
        )


def _predicate(step: Step, scale: Any) -> np.ndarray:
    """Return a boolean for each thread: the value of a predicate register, or of an immediate that all threads share.

    scale   an operand of wgmma such as scale-d, which says whether the accumulators are kept
    """
    if isinstance(scale, (Register, Negated)):
        return step.get(scale, bool)
    assert isinstance(scale, Immediate)
    return np.full(len(step.threads), scale.bits != 0)


def _uniform(step: Step, operand: Any, here: slice, kind: Any, name: str) -> int:
    """Return the value of a wgmma operand that must be equal in all threads of a warpgroup, as an integer.

    here     slice of the warpgroup's threads in `step.threads`
    kind     numpy type of the value
    name     what the value is, for the message
    raises   EmulationError if the threads have different values
    """
    return int(_same(step, step.get(operand, kind)[here], here, name))


def _same(step: Step, values: np.ndarray, here: slice, name: str) -> Any:
    """Return the value that all threads of a warpgroup have in common.

    values   (threads,) value of each thread of the step
    here     slice of the warpgroup's threads in `step.threads`
    name     what the value is, for the message
    raises   EmulationError if the values differ
    """
    differ = np.flatnonzero(values != values[0])
    if len(differ):
        raise step.fail(f"the {name} differs within the warpgroup.", int(step.threads[here][differ[0]]))
    return values[0]


def _check_free(
    step: Step, warpgroup: _Warpgroup, shape: Shape, accumulators: tuple[int, ...], a_registers: tuple[int, ...]
) -> None:
    """Raise EmulationError if a wgmma may not use its registers now.

    It may not if wgmma.fence is missing before it, or if another unfinished wgmma uses the registers. Only wgmmas of
    the same shape may share accumulators.

    warpgroup                   the warpgroup, with its unfinished wgmmas
    accumulators, a_registers   indices of the registers of D, and of A; () if A is in shared memory
    """
    touched = warpgroup.touched
    if touched is None or touched.intersection((*accumulators, *a_registers)):
        what = "its first wgmma" if touched is None else "using the registers of this wgmma"
        raise step.fail(f"no wgmma.fence between {what} and what came before.", warpgroup.first)
    for other in warpgroup.pending:
        shared = set(other.accumulators) & set(accumulators)
        alike = (other.accumulators, other.shape) == (accumulators, shape)
        if (
            (shared and not alike)
            or set(other.accumulators) & set(a_registers)
            or set(other.a_registers) & set(accumulators)
        ):
            raise step.fail(
                f"it uses registers of the wgmma of line {other.instruction.line}, which is still under way.",
                warpgroup.first,
            )


# --- multiplication ----------------------------------------------------------------------------------------


def _execute(machine: Machine, warpgroup: _Warpgroup, wgmmas: list[_Wgmma]) -> None:
    """Compute the results of wgmma instructions of a warpgroup, in the order of the list.

    Accumulators are written to registers after the last of them.

    wgmmas   the instructions
    """
    here = slice(warpgroup.first, warpgroup.first + WARPGROUP)
    accumulators: dict[tuple[int, ...], tuple[Shape, np.ndarray]] = {}
    for wgmma in wgmmas:
        shape, key = wgmma.shape, wgmma.accumulators
        before = None
        if wgmma.accumulates:
            if key in accumulators:
                before = accumulators[key][1]
            else:
                _require_written(machine, wgmma, here)
                before = shape.from_registers(np.stack([machine.value(r, here) for r in key], axis=1))
        a, b = _operands(machine, warpgroup, wgmma)
        accumulators[key] = shape, shape.multiply(a, b, before)
    for key, (shape, values) in accumulators.items():
        columns = np.ascontiguousarray(shape.to_registers(values).T)
        threads = np.arange(here.start, here.stop)
        for register, column in zip(key, columns, strict=True):
            machine.value(register, None)[here] = column
            if register in machine.origins:
                machine.set_origins(register, threads, 0)


def _require_written(machine: Machine, wgmma: _Wgmma, here: slice) -> None:
    """Raise EmulationError if an accumulator that a wgmma adds to is uninitialized.

    here   slice of the warpgroup's threads
    """
    if machine.origins:
        machine.require_written(
            wgmma.accumulators, Group(np.arange(here.start, here.stop), machine.total), "an accumulator"
        )


def _operands(machine: Machine, warpgroup: _Warpgroup, wgmma: _Wgmma) -> tuple[np.ndarray, np.ndarray]:
    """Return the operands A (64, K) and B (N, K) of a wgmma as arrays, with their signs applied.

    machine     the emulated CTAs, whose shared memory is read
    warpgroup   the warpgroup that issued the wgmma
    wgmma       the instruction with its descriptors or registers
    """
    shape = wgmma.shape
    if isinstance(wgmma.a, Descriptor):
        a = _matrix(machine, warpgroup, wgmma, wgmma.a, 64, shape.a, wgmma.mn_major[0])
    else:
        a = a_of_registers(wgmma.a, shape.a)
    b = _matrix(machine, warpgroup, wgmma, wgmma.b, shape.n, shape.b, wgmma.mn_major[1])
    return (a if wgmma.signs[0] == 1 else -a), (b if wgmma.signs[1] == 1 else -b)


def _matrix(
    machine: Machine,
    warpgroup: _Warpgroup,
    wgmma: _Wgmma,
    descriptor: Descriptor,
    rows: int,
    dtype: Any,
    mn_major: bool,
) -> np.ndarray:
    """Read an operand of wgmma from shared memory as an array (rows, K). All four warps count as its readers.

    warpgroup    the warpgroup that issued the wgmma
    descriptor   where the matrix lies in shared memory
    rows         M or N
    dtype        element type
    mn_major     whether the matrix is MN-major in shared memory
    raises       EmulationError for a bad descriptor, a race, or bytes that are unwritten or unfenced
    """
    first = warpgroup.first
    try:
        units = descriptor.units(rows, dtype.bits, mn_major)
    except RuleViolation as violations:
        raise machine.error(wgmma.instruction, first, str(violations)) from None
    agents = tuple([int(machine.agent_of[first + lane]) for lane in range(0, WARPGROUP, 32)])
    slot = int(machine.block_of[first])
    request = Request(machine, wgmma.instruction, first, slot, units.reshape(-1), warps=agents)
    raw = proxy_of(machine).read(request)
    return matrix_of_units(raw.reshape(*units.shape, -1), dtype, mn_major)
