"""Handlers of setmaxnreg, which moves registers between warpgroups, and of elect.sync."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cutegemm.emulator.machine import Machine
from cutegemm.emulator.state import WARP, WARPGROUP, Immediate, Pair, Step, handles
from cutegemm.machine.arch import ARCHS

# Registers of a thread, from the PTX ISA, "setmaxnreg"
_LEAST, _MOST, _STEP = 24, 256, 8


@dataclass
class _Pool:
    """The registers of one CTA that its warpgroups release and request by setmaxnreg.

    launched   registers that each thread has at launch: as many as the launch bounds allow
    free       registers of the CTA that no warpgroup has
    held       number of a warpgroup's first thread -> registers per thread of that warpgroup
    """

    launched: int
    free: int = 0
    held: dict[int, int] = field(default_factory=dict)


def _pool(machine: Machine, slot: int) -> _Pool:
    """Return the registers that the warpgroups of one CTA share and move by setmaxnreg.

    The first call creates the pool.

    slot   index of the CTA among the CTAs that are emulated together
    """
    private = machine.blocks[slot].private
    if "registers" not in private:
        limit = ARCHS["sm_90a"].registers_per_sm // (machine.kernel.min_blocks * machine.block_threads)
        private["registers"] = _Pool(min(limit // _STEP * _STEP, _MOST))
    return private["registers"]


@handles("setmaxnreg", scope="warpgroup")
def _setmaxnreg(step: Step) -> None:
    """Execute setmaxnreg: a warpgroup releases registers, or waits until its CTA has enough free ones."""
    machine, grows = step.machine, "inc" in step.instruction.opcode
    (count,) = step.operands
    assert isinstance(count, Immediate)
    if not (_LEAST <= count.bits <= _MOST and count.bits % _STEP == 0):
        raise step.fail(f"{count.bits} registers per thread; use a multiple of {_STEP} from {_LEAST} to {_MOST}.")
    waits = np.zeros(len(step.threads), bool)
    for i in range(0, len(step.threads), WARPGROUP):
        thread = int(step.threads[i])
        pool = _pool(machine, int(machine.block_of[thread]))
        held = pool.held.setdefault(thread, pool.launched)
        more = (count.bits - held) * WARPGROUP
        if more < 0 if grows else more > 0:
            modifier, verb = ("inc", "lowers") if grows else ("dec", "raises")
            raise step.fail(
                f"setmaxnreg.{modifier} {verb} the registers of a thread from {held} to {count.bits}.", thread
            )
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
    """Execute elect.sync `lane|predicate, mask`: elect the lowest lane of the mask. Only its predicate is true."""
    dest, mask = step.operands
    masks = step.get(mask, np.uint32).reshape(-1, WARP)
    lanes = np.arange(WARP, dtype=np.uint32)
    members = (masks >> lanes & np.uint32(1)).astype(bool)
    if not members.all():  # all 32 threads of each warp execute the instruction
        bad = int(np.flatnonzero(~members.reshape(-1))[0])
        raise step.fail(
            "the mask does not contain this thread, which executes the instruction.", int(step.threads[bad])
        )
    elected = members.argmax(axis=1)
    if isinstance(dest, Pair):
        step.put(dest.first, np.repeat(elected, WARP).astype(np.uint32))
        step.put(dest.second, np.tile(lanes, len(elected)) == np.repeat(elected, WARP))
