"""Handlers of the cluster barrier, and of mapa, which addresses shared memory of other CTAs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cutegemm.emulator.hopper.proxy import proxy_of
from cutegemm.emulator.machine import Machine
from cutegemm.emulator.state import CLUSTER_SHIFT, GENERIC_SHARED, Immediate, Step, handles

_NO_RANK = 254  # a rank that no cluster has; the last one for which a shared::cluster address fits in 32 bits


@dataclass
class _ClusterBarrier:
    """State of the barrier of one cluster (barrier.cluster). The arrays are over all threads of the machine.

    arrivals   number of times that each thread has arrived
    waited     number of phases that each thread has waited for
    phase      number of complete phases
    """

    arrivals: np.ndarray
    waited: np.ndarray
    phase: int = 0


def _cluster_barrier(machine: Machine, cluster: tuple[int, ...]) -> _ClusterBarrier:
    """Return the state of the barrier (barrier.cluster) of a cluster. The first call creates it.

    cluster   indices of the cluster's CTAs among the CTAs that are emulated together
    """
    key = ("cluster barrier", cluster)
    if key not in machine.private:
        machine.private[key] = _ClusterBarrier(*np.zeros((2, machine.total), np.int64))
        machine.ending.append(lambda threads: _complete(machine, cluster))
    return machine.private[key]


def passed(machine: Machine, slot: int) -> int:
    """Return how often the barrier (barrier.cluster) of a CTA's cluster has completed.

    slot   index of the CTA among the CTAs that are emulated together
    """
    return _cluster_barrier(machine, machine.blocks[slot].cluster).phase


def waited(machine: Machine, thread: int) -> int:
    """Return the number of phases of its cluster's barrier (barrier.cluster) that a thread has waited for.

    thread   number of the thread over all CTAs that are emulated together
    """
    return int(_cluster_barrier(machine, machine.blocks[machine.block_of[thread]].cluster).waited[thread])


def _complete(machine: Machine, cluster: tuple[int, ...]) -> None:
    """Complete the current phase of a cluster's barrier if all threads that have not ended have arrived.

    cluster   indices of the cluster's CTAs among the CTAs that are emulated together
    """
    barrier = _cluster_barrier(machine, cluster)
    members = np.isin(machine.block_of, cluster) & machine.alive
    if members.any() and (barrier.arrivals[members] > barrier.phase).all():
        barrier.phase += 1
        machine.notify()


@handles("barrier.cluster.arrive", scope="warp")
def _cluster_arrive(step: Step) -> None:
    machine = step.machine
    for cluster in {machine.blocks[slot].cluster for slot in np.unique(machine.block_of[step.threads])}:
        barrier = _cluster_barrier(machine, cluster)
        mine = step.threads[np.isin(machine.block_of[step.threads], cluster)]
        twice = mine[barrier.arrivals[mine] > barrier.phase]
        if len(twice):
            raise step.fail("it arrives at the cluster barrier a second time before it has waited.", int(twice[0]))
        barrier.arrivals[mine] += 1
        if machine.clocks is not None and "relaxed" not in step.instruction.opcode:
            machine.clocks.release(("cluster", cluster, barrier.phase & 1), np.unique(machine.agent_of[mine]))
        _complete(machine, cluster)


@handles("barrier.cluster.wait", scope="warp")
def _cluster_wait(step: Step) -> None:
    machine = step.machine
    waits = np.zeros(len(step.threads), bool)
    for cluster in {machine.blocks[slot].cluster for slot in np.unique(machine.block_of[step.threads])}:
        barrier = _cluster_barrier(machine, cluster)
        inside = np.isin(machine.block_of[step.threads], cluster)
        arrivals = barrier.arrivals[step.threads]
        never = inside & (arrivals == 0)
        if never.any():
            raise step.fail("it waits at the cluster barrier before it has arrived.", int(step.threads[never][0]))
        waits |= inside & (arrivals > barrier.phase)
        barrier.waited[step.threads[inside & ~waits]] = arrivals[inside & ~waits]
        for slot in cluster:
            done = step.threads[inside & ~waits & (machine.block_of[step.threads] == slot)]
            if len(done):
                key = ("cluster", cluster, (barrier.phase - 1) & 1)
                proxy_of(machine).learn(key, np.unique(machine.agent_of[done]), slot)
    step.park(waits)


@handles("mapa")
def _mapa(step: Step) -> None:
    """Execute mapa: compute the address of the same shared-memory location in another CTA of the cluster.

    Compilers compute such addresses earlier than the branch that needs them, also for ranks that the cluster does not
    have. An invalid address is therefore an error only when it is used.
    """
    dest, address, rank = step.operands
    kind = np.uint64 if step.instruction.opcode[-1] == "u64" else np.uint32
    if isinstance(address, Immediate):
        at = np.full(len(step.threads), address.bits, np.int64)
    else:
        at = step.get(address, kind).astype(np.int64)
    window = np.where(at >= GENERIC_SHARED, GENERIC_SHARED, 0)
    offset = (at - window) & ((1 << CLUSTER_SHIFT) - 1)
    ranks = np.minimum(step.get(rank, np.uint32).astype(np.int64), _NO_RANK)
    step.put(dest, (window + ((ranks + 1) << CLUSTER_SHIFT) + offset).astype(kind))
