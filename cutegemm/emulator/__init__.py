"""Emulation of compiled kernels on the CPU: executes the PTX of a plan, instruction by instruction, in numpy.

The simulator executes a plan; the emulator executes the code that the plan was compiled to. It runs the compiled host
function against a stand-in for the CUDA runtime, records its launches, and executes every CTA of every launch. Memory
is poisoned, every access is checked, and vector clocks find races in shared memory and between CTAs.

The meaning of an instruction comes from a table by opcode (`scalar`, `control`, `loadstore`, `asynchronous`, `matrix`)
or from a handler. `handles` registers a handler for all opcodes with a prefix; the package `hopper` consists of them:

    @handles("mbarrier.try_wait")
    def try_wait(step: Step) -> None:
        predicate, at, parity, *_ = step.operands
        address = step.address(at)                       # int64 (threads,)
        phase = step.get(parity, np.uint32)              # bits, (threads,)
        ...
        step.put(predicate, done)                        # writes a register of all of step.threads
        step.park(~done)                                 # these threads wait at this instruction

- Threads: `step.threads` has numbers over all CTAs in flight. `machine.block_of[t]` is the slot of thread t's CTA,
  `machine.blocks[slot]` its `Block` (cluster, and a dict for state of handlers); `warp_of[t]`, `lane_of[t]` and
  `thread_of[t]` (number within the CTA) are arrays as well. Threads of many CTAs may execute an instruction together.
  With scope "warp" or "warpgroup" they form whole warps or warpgroups.
- Waiting: a parked thread executes its instruction again after `machine.notify()`. Code that completes a phase, a
  barrier or a copy must call it. If no thread can run, the deferred actions take place, one at a time. If no action is
  left, parked threads run again with `step.late` set, and `try_wait` returns false. If that does not help either, it
  is a deadlock: an error that lists where each warp waits.
- Asynchronous copies: `machine.defer(action)` runs `action()` as late as possible, when no thread can run. So a thread
  that does not wait for a copy does not see its result.
- Addresses of shared memory: below 1 << 24 in the thread's own CTA; (rank + 1) << 24 | offset in another CTA of the
  cluster; GENERIC_SHARED + either of these as a generic address. `machine.shared_place` checks and resolves them.
- Uninitialized values: a register remembers which read of unwritten memory its value comes from (see `Machine`).
  Arithmetic propagates this. Storing such a value to global memory, branching on it, or using it as an address is an
  error.
- Races: `machine.clocks` checks shared memory (see `clocks`), `machine.order` global memory (see `order`). Both are
  None if races are not checked.
"""

from cutegemm.errors import EmulationError

__all__ = ["EmulationError"]
