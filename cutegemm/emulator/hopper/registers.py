"""Handlers: registers that move between warpgroups, the lane that is elected, dependent launches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cutegemm.emulator.machine import Machine
from cutegemm.emulator.state import WARP, WARPGROUP, Immediate, Pair, Step, handles
from cutegemm.machine.arch import ARCHS

# PTX ISA, "setmaxnreg"
_LEAST, _MOST, _STEP = 24, 256, 8


@dataclass
class _Pool:
    """Registers of a CTA that no warpgroup has, and what a thread of each warpgroup has.

    launched   what a thread has at first: as many as the kernel's bounds leave to each
    """

    launched: int
    free: int = 0
    held: dict[int, int] = field(default_factory=dict)


def _pool(machine: Machine, slot: int) -> _Pool:
    private = machine.blocks[slot].private
    if "registers" not in private:
        each = ARCHS["sm_90a"].registers_per_sm // (machine.kernel.min_blocks * machine.block_threads)
        private["registers"] = _Pool(min(each // _STEP * _STEP, _MOST))
    return private["registers"]


@handles("setmaxnreg", scope="warpgroup")
def _setmaxnreg(step: Step) -> None:
    """A warpgroup gives registers back, or waits until there are as many as it wants."""
    machine, grows = step.machine, "inc" in step.instruction.opcode
    (count,) = step.operands
    assert isinstance(count, Immediate)
    if not (_LEAST <= count.bits <= _MOST and count.bits % _STEP == 0):
        raise step.fail(f"{count.bits} registers; multiples of {_STEP} from {_LEAST} to {_MOST} are expected.")
    waits = np.zeros(len(step.threads), bool)
    for i in range(0, len(step.threads), WARPGROUP):
        thread = int(step.threads[i])
        pool = _pool(machine, int(machine.block_of[thread]))
        held = pool.held.setdefault(thread, pool.launched)
        more = (count.bits - held) * WARPGROUP
        if more < 0 if grows else more > 0:
            verb = "lowered" if grows else "raised"
            raise step.fail(f"the registers of a thread are {verb} from {held} to {count.bits}.", thread)
        if more > pool.free:
            waits[i : i + WARPGROUP] = True
            continue
        pool.free -= more
        pool.held[thread] = count.bits
        if more:
            machine.notify()
    step.park(waits)


@handles("elect.sync", scope="warp")
def _elect(step: Step) -> None:
    """lane|predicate: the lowest lane of the mask."""
    dest, mask = step.operands
    masks = step.get(mask, np.uint32).reshape(-1, WARP)
    lanes = np.arange(WARP, dtype=np.uint32)
    members = (masks >> lanes & np.uint32(1)).astype(bool)
    if not members.all():  # all 32 stand here
        bad = int(np.flatnonzero(~members.reshape(-1))[0])
        raise step.fail("the mask leaves out a thread that stands here.", int(step.threads[bad]))
    elected = members.argmax(axis=1)
    if isinstance(dest, Pair):
        step.put(dest.first, np.repeat(elected, WARP).astype(np.uint32))
        step.put(dest.second, np.tile(lanes, len(elected)) == np.repeat(elected, WARP))
