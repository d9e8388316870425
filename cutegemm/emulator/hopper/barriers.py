"""Handlers of mbarrier instructions, and of the fences that they need."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutegemm.emulator.hopper.clusters import passed, waited
from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.mbarrier import MBARRIER_BYTES, MBarrier, MBarriers
from cutegemm.emulator.hopper.proxy import proxy_of
from cutegemm.emulator.machine import Group, Machine
from cutegemm.emulator.state import ASYNC_STORE, EMPTY, Memory, Step, handles

_MOST_REPORTED = 6  # barriers that a deadlock report lists for one instruction


def barriers_of(machine: Machine, slot: int) -> MBarriers:
    """Return the mbarriers of one CTA. The first call creates an empty set of them.

    slot   index of the CTA among the CTAs that are emulated together
    """
    private = machine.blocks[slot].private
    if "mbarriers" not in private:
        private["mbarriers"] = MBarriers()
    return private["mbarriers"]


def barrier_key(slot: int, offset: int, phase: int) -> tuple[str, int, int, int]:
    """Return a key for one phase of an mbarrier, under which the race detector stores the clocks of arriving warps.

    It names the phase by CTA, mbarrier and number.

    slot     index of the CTA among the CTAs that are emulated together
    offset   offset of the mbarrier in its shared memory
    phase    number of the phase
    """
    return ("mbarrier", slot, offset, phase & 1)


def check_reachable(step: Step, thread: int, slot: int, barrier: MBarrier) -> None:
    """Check that an mbarrier is ready for use by a thread of another CTA, or by TMA; raise an error if not.

    step     the instruction that uses it, as it is executed
    thread   number of the thread that uses it
    slot     index of the CTA whose shared memory holds the mbarrier, among those that are emulated together
    raises   RuleViolation if the initialisation is not fenced, if no cluster barrier orders it before the use, or if
             the CTA has ended
    """
    machine = step.machine
    if not barrier.published:
        raise RuleViolation(
            f"{barrier} is used by another CTA or by TMA, with no fence.mbarrier_init since its initialisation."
        )
    if machine.block_of[thread] == slot:
        return
    block = machine.blocks[slot]
    if not machine.alive[machine.block_of == slot].any():
        raise RuleViolation(f"{barrier} is in CTA {block.index}, which has ended.")
    if waited(machine, thread) <= barrier.born:
        raise RuleViolation(
            f"{barrier} in CTA {block.index} is used by a thread that has not waited at barrier.cluster since its "
            "initialisation."
        )


def _is_known_to_cluster(machine: Machine, slot: int, offset: int) -> bool:
    """Return whether the initialisation of an mbarrier is visible to the whole cluster.

    It is if a fence has published it, and the cluster barrier has been passed since.

    slot     index of the CTA among the CTAs that are emulated together
    offset   offset of the mbarrier in the CTA's shared memory
    """
    barrier = barriers_of(machine, slot).get(offset)
    return barrier is not None and barrier.published and passed(machine, slot) > barrier.born


def note_use(step: Step, slots: np.ndarray, offsets: np.ndarray, writes: bool) -> None:
    """Record uses of mbarriers in the race detector, once for each warp.

    An initialisation counts as a write, every other use as a read. An mbarrier that was published by a fence and a
    cluster barrier needs no check.

    slots, offsets   (threads,): for each thread of the step, the CTA (index among the CTAs that are emulated together)
                     and the offset of the mbarrier that it uses
    writes           True for an initialisation
    raises           EmulationError for a use that nothing orders after the initialisation
    """
    machine = step.machine
    if machine.clocks is None:
        return
    flat = slots * machine.shared.size + offsets
    warps = machine.agent_of[step.threads] * machine.shared.data.size
    _, first = np.unique(warps + flat, return_index=True)
    chosen = [
        i
        for i in first
        if machine.block_of[step.threads[i]] == slots[i]
        and not _is_known_to_cluster(machine, int(slots[i]), int(offsets[i]))
    ]
    if chosen:
        group = Group(step.threads[chosen], machine.total)
        machine.note_access(group, flat[chosen], MBARRIER_BYTES, writes)


# --- mbarrier ----------------------------------------------------------------------------------------------


def _count(step: Step, operands: list[Any]) -> np.ndarray:
    """Read the optional last operand of an mbarrier instruction for each thread: a number of arrivals or of bytes.

    operands   the operands from the count on; [] if it is absent
    returns    (threads,); 1 for each thread if the count is absent
    """
    if not operands:
        return np.ones(len(step.threads), np.int64)
    return step.get(operands[0], np.uint32).astype(np.int64)


@handles("mbarrier.init")
def _init(step: Step) -> None:
    """Execute mbarrier.init `[mbarrier], arrivals` for the step's threads: create an mbarrier at each address.

    `arrivals` is the number of arrivals that complete each phase.
    """
    at, count = step.operands
    counts = step.get(count, np.uint32)
    slots, offsets = step.machine.shared_place(step, step.address(at), MBARRIER_BYTES)
    note_use(step, slots, offsets, writes=True)
    for i, thread in enumerate(step.threads):
        slot, offset = int(slots[i]), int(offsets[i])
        try:
            barrier = barriers_of(step.machine, slot).init(offset, int(counts[i]))
        except RuleViolation as violations:
            raise step.fail(str(violations), int(thread)) from None
        barrier.born = passed(step.machine, slot)
        step.machine.shared.state[slot, offset : offset + MBARRIER_BYTES] = EMPTY
        step.machine.shared.reserved[slot, offset : offset + MBARRIER_BYTES] = True


@handles("mbarrier.inval")
def _inval(step: Step) -> None:
    """Execute mbarrier.inval `[mbarrier]`: remove the mbarrier, so that its memory can be used again."""
    slots, offsets = step.machine.shared_place(step, step.address(step.operands[0]), MBARRIER_BYTES)
    note_use(step, slots, offsets, writes=True)
    for i, thread in enumerate(step.threads):
        slot, offset = int(slots[i]), int(offsets[i])
        try:
            barriers_of(step.machine, slot).inval(offset)
        except RuleViolation as violations:
            raise step.fail(str(violations), int(thread)) from None
        step.machine.shared.reserved[slot, offset : offset + MBARRIER_BYTES] = False


@handles("mbarrier.arrive", "mbarrier.expect_tx", "mbarrier.complete_tx")
def _arrive(step: Step) -> None:
    """Execute mbarrier.arrive, .expect_tx or .complete_tx `{state, }[mbarrier]{, count}` for the step's threads.

    `count` is a number of arrivals, or with .expect_tx and .complete_tx a number of bytes. `state` receives the token
    of the phase.
    """
    machine, opcode = step.machine, step.instruction.opcode
    place = next(i for i, operand in enumerate(step.operands) if isinstance(operand, Memory))
    counts = _count(step, list(step.operands[place + 1 :]))
    slots, offsets = machine.shared_place(step, step.address(step.operands[place]), MBARRIER_BYTES)
    note_use(step, slots, offsets, writes=False)
    tokens = np.zeros(len(step.threads), np.uint64)
    for i, thread in enumerate(step.threads):
        slot, offset, count = int(slots[i]), int(offsets[i]), int(counts[i])
        try:
            barrier = barriers_of(machine, slot).at(offset)
            if machine.block_of[thread] != slot:
                check_reachable(step, int(thread), slot, barrier)
            if machine.clocks is not None and "relaxed" not in opcode:
                agent = machine.agent_of[thread : thread + 1]
                machine.clocks.release(barrier_key(slot, offset, barrier.phase), agent)
            if opcode[1] == "arrive":
                expected = count if "expect_tx" in opcode else 0
                arrivals = 1 if "expect_tx" in opcode else count
                tokens[i] = barrier.arrive(arrivals, expected, "noComplete" not in opcode)
            elif opcode[1] == "expect_tx":
                barrier.expect_tx(count)
            else:
                barrier.complete_tx(count)
        except RuleViolation as violations:
            raise step.fail(str(violations), int(thread)) from None
    if place and step.operands[0] is not None:
        step.put(step.operands[0], tokens)
    machine.notify()


def _explain(step: Step) -> list[str]:
    """Return lines for a deadlock report: what the mbarrier phases still lack that the threads of a step wait for."""
    _, at, asked, *_ = step.operands
    slots, offsets = step.machine.shared_place(step, step.address(at), MBARRIER_BYTES)
    wanted = step.get(asked, np.uint32 if "parity" in step.instruction.opcode else np.uint64)
    waits = sorted({*zip(slots.tolist(), offsets.tolist(), wanted.tolist(), strict=True)})
    lines = [
        f"CTA {step.machine.blocks[slot].index} waits for parity {want}: "
        f"{barriers_of(step.machine, slot).at(offset).status()}"
        for slot, offset, want in waits[:_MOST_REPORTED]
    ]
    return lines + [f"and {len(waits) - _MOST_REPORTED} more"] * (len(waits) > _MOST_REPORTED)


@handles("mbarrier.try_wait", "mbarrier.test_wait", explain=_explain)
def _wait(step: Step) -> None:
    """Execute mbarrier.try_wait or test_wait `done, [mbarrier], parity or state{, time limit}` for the step's threads.

    `done` is set to whether the phase is complete.
    """
    machine, opcode = step.machine, step.instruction.opcode
    done_in, at, asked, *_ = step.operands
    by_parity = "parity" in opcode
    wanted = step.get(asked, np.uint32 if by_parity else np.uint64).astype(np.int64)
    slots, offsets = machine.shared_place(step, step.address(at), MBARRIER_BYTES)
    note_use(step, slots, offsets, writes=False)
    done = np.zeros(len(step.threads), bool)
    places = slots * machine.shared.size + offsets
    for place, want in {*zip(places.tolist(), wanted.tolist(), strict=True)}:
        here = (places == place) & (wanted == want)
        slot, offset = divmod(place, machine.shared.size)
        try:
            barrier = barriers_of(machine, slot).at(offset)
            complete = barrier.completed(want) if by_parity else barrier.completed_state(want)
        except RuleViolation as violations:
            raise step.fail(str(violations), int(step.threads[here][0])) from None
        done[here] = complete
        if complete and machine.clocks is not None and "relaxed" not in opcode:
            agents = np.unique(machine.agent_of[step.threads[here]])
            proxy_of(machine).learn(barrier_key(slot, offset, barrier.phase - 1), agents, slot)
    step.put(done_in, done)
    if opcode[1] == "try_wait":
        step.park(~done & ~step.late)


@handles("fence.mbarrier_init")
def _fence_init(step: Step) -> None:
    """Execute fence.mbarrier_init: make the initialised mbarriers of the CTA visible to its cluster and to TMA."""
    for slot in np.unique(step.machine.block_of[step.threads]):
        for barrier in barriers_of(step.machine, int(slot)):
            barrier.published = True


@handles("fence.proxy.async")
def _fence_proxy(step: Step) -> None:
    """Execute fence.proxy.async: make earlier stores visible to TMA and wgmma, and publish the CTA's mbarriers to them.

    The stores are those of the executing threads' warps, and those that st.async made to their CTA.
    """
    machine = step.machine
    for slot in np.unique(machine.block_of[step.threads]):
        here = step.threads[machine.block_of[step.threads] == slot]
        warps = np.unique(machine.thread_of[here]) // 32
        unfenced = machine.shared.unfenced[slot]
        unfenced[np.isin(unfenced, np.unique(warps) + 1) | (unfenced == ASYNC_STORE)] = 0
        for barrier in barriers_of(machine, int(slot)):
            barrier.published = True
