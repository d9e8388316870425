"""Compiled kernels carried out on the CPU: the PTX of a plan, instruction by instruction, in numpy.

The simulator carries out a plan; the emulator carries out what the plan was lowered to. It runs the compiled
host function against a stand-in for the CUDA runtime, takes the launches that it makes, and executes every CTA
of every launch. Memory is poisoned, every access is checked, and races are found by vector clocks,
in shared memory as between CTAs.

How an instruction gets its meaning: tables by opcode (`scalar`, `control`, `access`, `asynchronous`, `matrix`), and
`handles`, which registers a handler for all opcodes with a prefix; `hopper` is made of such.

    @handles("mbarrier.try_wait")
    def try_wait(step: Step) -> None:
        predicate, at, parity, *_ = step.operands
        address = step.address(at)                       # int64 (threads,)
        phase = step.get(parity, np.uint32)              # bits, (threads,)
        ...
        step.put(predicate, done)                        # a register of all of step.threads
        step.park(~done)                                 # these stay at this instruction; see below

- `step.threads`: numbers over all CTAs in flight; `step.machine.block_of[t]` is the slot of the CTA,
  `step.machine.blocks[slot]` the `Block` (its cluster, a dict for private state); `warp_of[t]`,
  `lane_of[t]`, `thread_of[t]` (within its CTA). Threads of many CTAs may stand at one instruction; by `scope`
  they are whole warps or warpgroups.
- Waiting: a parked thread runs its instruction again after `machine.notify()`, which whoever completes a phase, a
  barrier or a copy must call. If nothing can run, deferred actions take place, one at a time; if there are none
  either, parked threads run again with `step.late` (bool, (threads,)) set, and try_wait gives up, with a predicate
  of false. If that helps nobody it is a deadlock, which is raised with where each warp stands.
- Asynchronous: `machine.defer(action)` runs `action()` as late as possible: when no thread can run. So a copy
  that is not waited for is not seen.
- Memory: an address of shared memory below 1 << 24 is the thread's own CTA, (rank + 1) << 24 | offset is
  shared::cluster, GENERIC_SHARED + that is generic; `machine.shared_place` checks and resolves them.
- Races: `machine.clocks` is None where they are not looked for, and so is `machine.order`; see `clocks` for shared
  memory, `order` for global memory.
"""

from cutegemm.errors import EmulationError

__all__ = ["EmulationError"]
