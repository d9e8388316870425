"""Control flow and synchronization of threads: branches, exits, barriers of a CTA, fences.

A function such as `_bra` takes an instruction and returns the action that executes it; None if the form of the
instruction is not implemented.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cutegemm.emulator.machine import Action, Group, Machine
from cutegemm.emulator.order import scope_of
from cutegemm.emulator.scheduler import Arrival, when_converged
from cutegemm.emulator.state import WARP, Immediate, Instruction, Register


def _bra(instruction: Instruction) -> Action | None:
    target = instruction.target
    assert target is not None
    if instruction.guard is None:

        def go(m: Machine, group: Group) -> bool:
            m.resume(target, group.threads)
            return True

        return go
    register, negated = instruction.guard
    index = register.index

    def branch(m: Machine, group: Group) -> bool | None:
        if m.origins:
            m.require_written((index,), group, "the predicate of a branch")
        taken = m.value(index, group.sel)
        if negated:
            taken = ~taken
        if taken.all():
            m.resume(target, group.threads)
            return True
        if not taken.any():
            return None
        at = m.at
        m.resume(target, group.threads[taken])
        m.resume(at + 1, group.threads[~taken])
        return True

    return branch


def _ret(instruction: Instruction) -> Action | None:
    def end(m: Machine, group: Group) -> bool:
        m.end(group)
        return True

    return end


def _count(operand: Any) -> Callable[[Machine, Group], np.ndarray]:
    """Return a function that reads an operand of a PTX barrier instruction: a barrier number or a thread count.

    operand   register or immediate
    returns   function of (machine, group of threads) -> the value for each thread, (threads,)
    """
    if isinstance(operand, Immediate):
        bits = operand.bits
        return lambda m, group: np.full(group.n, bits)
    assert isinstance(operand, Register)
    index = operand.index
    return lambda m, group: m.value(index, group.sel).astype(np.int64)


def _barrier(instruction: Instruction) -> Action | None:
    """Return the function that executes `bar.sync a{, n}` or `bar.arrive a, n`; None if the form is not implemented.

    These are the named barriers of a CTA. Threads arrive as whole warps.
    """
    waits = "arrive" not in instruction.opcode
    operands = [o for o in instruction.operands if o is not None]
    number = _count(operands[0])
    count = _count(operands[1]) if len(operands) > 1 else None

    def meet(m: Machine, group: Group) -> bool | None:
        complete = m.converged(group, "warp")
        if complete is None:
            return True
        numbers = number(m, complete)
        counts = count(m, complete) if count else np.full(complete.n, m.warps * WARP)
        at = m.at
        slots = m.block_of[complete.threads]
        if complete.sel is None and not m.waiting and count is None:  # all threads of all CTAs are here: nobody waits
            if m.clocks is not None:
                for slot in range(len(m.blocks)):
                    m.clocks.barrier(slot, slot * m.clocks.agents + np.arange(m.warps))
            return None
        keys = slots * 16 + numbers
        for key in np.unique(keys):
            here = keys == key
            mine = complete.threads[here]
            slot, name = divmod(int(key), 16)
            _arrive(m, at, slot, name, mine, int(counts[here][0]), waits)
        if not waits:
            m.resume(at + 1, complete.threads)
        return True

    return meet


def _arrive(m: Machine, at: int, slot: int, name: int, mine: np.ndarray, needed: int, waits: bool) -> None:
    """Let threads of a CTA arrive at a named barrier, and open the barrier if enough threads have arrived.

    at       index of the barrier instruction
    slot     index of the CTA among the CTAs that are emulated together
    name     number of the barrier
    mine     numbers of the arriving threads
    needed   threads that open the barrier
    waits    True for bar.sync, False for bar.arrive
    raises   EmulationError if more than `needed` threads arrive
    """
    arrived = m.waiting.setdefault((slot, name), [])
    known = None if m.clocks is None else m.clocks.arrive(np.unique(m.agent_of[mine]))
    arrived.append(Arrival(at, mine, waits, known))
    present = sum(len(arrival.threads) for arrival in arrived)
    if present > needed:
        raise m.error(
            m.program[at].instruction,
            int(mine[0]),
            f"{present} threads arrive at barrier {name}, which expects {needed}.",
        )
    ended = 0 if needed != m.warps * WARP else int((~m.alive[m.block_of == slot]).sum())
    if present + ended < needed:
        return
    del m.waiting[slot, name]
    for arrival in arrived:
        if arrival.waits:
            if m.clocks is not None:
                together = np.max([other.known for other in arrived if other.known is not None], axis=0)
                m.clocks.learn(slot, np.unique(m.agent_of[arrival.threads]), together)
            m.resume(arrival.at + 1, arrival.threads)
    m.notify()


def _nothing(instruction: Instruction) -> Action | None:
    return lambda m, group: None


def _grid_wait(instruction: Instruction) -> Action | None:
    """Return the function that executes griddepcontrol.wait, the wait for the previous launch (PDL): it does nothing.

    The emulator runs launches one after another, so the previous launch has ended.
    """

    def wait(m: Machine, group: Group) -> None:
        if m.early is not None:
            m.early[group.threads] = False

    return wait


def _fence(instruction: Instruction) -> Action | None:
    """Return the function that executes a memory fence (fence.acq_rel, fence.sc, membar); None for an unknown form."""
    scope = scope_of(instruction)

    def fence(m: Machine, group: Group) -> None:
        if m.order is not None:
            m.order.fence(group.threads, scope)

    return fence


def _warp_sync(instruction: Instruction) -> Action | None:
    """Return the function that executes bar.warp.sync: threads wait for the rest of their warp.

    Race detection needs nothing here, because it treats a warp as one unit.
    """
    return when_converged("warp", lambda m, group: None)


CONTROL: dict[str, Callable[[Instruction], Action | None]] = {
    "bra": _bra,
    "ret": _ret,
    "exit": _ret,
    "bar.sync": _barrier,
    "bar.arrive": _barrier,
    "barrier.sync": _barrier,
    "barrier.cta.sync": _barrier,
    "barrier.cta.arrive": _barrier,
    "bar.warp.sync": _warp_sync,
    "fence.acq_rel": _fence,
    "fence.sc": _fence,
    "membar": _fence,
    "griddepcontrol.wait": _grid_wait,
    "griddepcontrol.launch_dependents": _nothing,
    "nanosleep": _nothing,
}
