"""The protocols of programs under many interleavings, and faults planted in operations and barriers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cutegemm.build import simt_plan, sm90_plan
from cutegemm.errors import UnsupportedError
from cutegemm.plan import Barrier
from cutegemm.plan.program.operations import (
    Arrive,
    BeginRead,
    EndRead,
    Enter,
    Expect,
    Load,
    NamedArrive,
    NamedSync,
    Wait,
)
from cutegemm.simulator import play_interleavings, protocol_of, search_interleavings
from cutegemm.simulator.protocol.machine import Machine
from cutegemm.simulator.protocol.protocol import Process, Protocol, ProtocolError

STAGES = 3
CLUSTERS = [(1, 1), (2, 1), (1, 2), (2, 2)]
SMALL = {"tile": (64, 128, 64), "stages": STAGES, "store": "direct"}


def sound(k_tiles=4, tiles=3, cluster=(1, 1), **options):
    plan = sm90_plan(**{**SMALL, "cluster": cluster, **options})
    return protocol_of(plan, k_tiles=k_tiles, tiles=tiles)


def texts(protocol, **options):
    return " | ".join(fault.text for fault in play_interleavings(protocol, **options).faults)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("k_tiles", [0, 1, STAGES, 2 * STAGES + 1])
@pytest.mark.parametrize("schedule", ["pingpong", "cooperative"])
def test_the_sound_protocol_has_no_faults(schedule, k_tiles, cluster):
    options = {"schedule": schedule, "tile": (128, 128, 64) if schedule == "cooperative" else (64, 128, 64)}
    for tiles in (3,) if cluster == (2, 2) else (1, 3):
        assert texts(sound(k_tiles, tiles, cluster, **options), random_runs=2) == ""


@pytest.mark.parametrize(("stages", "k_tiles", "tiles"), [(2, 1, 3), (2, 2, 2), (2, 3, 2), (3, 2, 2)])
def test_small_cases_in_all_orders(stages, k_tiles, tiles):
    report = search_interleavings(sound(k_tiles, tiles, stages=stages))
    assert (report.faults, report.exhaustive) == ((), True)


@pytest.mark.thorough
def test_a_cluster_in_all_orders():
    one = {"schedule": "cooperative", "consumers": 1, "stages": 2}
    report = search_interleavings(sound(2, 1, (2, 1), **one))
    assert (report.faults, report.exhaustive) == ((), True)
    assert report.states > 1000


def test_a_plan_of_one_schedule_has_no_protocol():
    with pytest.raises(UnsupportedError, match="the plan 'simt' has no warp roles"):
        protocol_of(simt_plan(), k_tiles=3)


@pytest.mark.parametrize("fewer", [1, 4])
@pytest.mark.parametrize("cluster", CLUSTERS[1:])
def test_too_few_arrivals_on_empty(cluster, fewer):
    """A warp, or a warpgroup: then the phases end as they should, but before all have read."""
    protocol = sound(cluster=cluster)
    found = texts(protocol.with_barrier("empty", arrivals=protocol.barriers[1].arrivals - fewer))
    assert "overwritten stage" in found or "wrong arrival count" in found


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_one_arrival_too_many_on_empty(cluster):
    protocol = sound(cluster=cluster)
    too_many = protocol.with_barrier("empty", arrivals=protocol.barriers[1].arrivals + 1)
    assert "deadlock" in texts(too_many) or "wrong arrival count" in texts(too_many)


@pytest.mark.parametrize("more", [-1024, 2])
def test_bytes_that_nobody_brings(more):
    protocol = sound()

    def expect(process, op):
        return replace(op, size_bytes=op.size_bytes + more) if isinstance(op, Expect) else op

    found = texts(protocol.edited(expect))
    assert "deadlock" in found if more > 0 else "read" in found


def test_a_forgotten_release():
    def forget(process, op):
        is_one = isinstance(op, Arrive) and op.barrier == "empty" and process.role == "consumer 1"
        return None if is_one else op

    assert "waits for parity" in texts(sound().edited(forget))


def test_products_that_still_read_a_stage_that_was_released():
    protocol = sound()
    processes = []
    for process in protocol.processes:
        ops = list(process.ops)
        for i in [i for i, op in enumerate(ops) if isinstance(op, EndRead)]:
            ops[i], ops[i + 1] = ops[i + 1], ops[i]
        processes.append(replace(process, ops=tuple(ops)))
    assert "which is being read: overwritten stage" in texts(replace(protocol, processes=tuple(processes)))


def test_a_turn_that_nobody_waits_for():
    def forget(process, op):
        return None if isinstance(op, (NamedArrive, NamedSync)) and op.barrier == "order" else op

    assert "takes the tensor cores while consumer" in texts(sound().edited(forget))


def test_a_wrong_phase_of_the_producer():
    def flip(process, op):
        wrong = process.role == "producer" and isinstance(op, Wait)
        return replace(op, parity=op.parity ^ 1) if wrong else op

    assert "deadlock: producer of CTA 0 waits for parity 0 of empty[0]" in texts(sound().edited(flip))


def test_a_wrong_phase_of_a_consumer():
    def flip(process, op):
        wrong = process.role == "consumer 0" and isinstance(op, Wait) and op.barrier == "full"
        return replace(op, parity=op.parity ^ 1) if wrong else op

    assert "early read" in texts(sound().edited(flip))


def test_a_phase_that_is_never_turned():
    def stay(process, op):
        return replace(op, parity=0) if isinstance(op, Wait) and op.barrier == "full" else op

    assert "read" in texts(sound(k_tiles=5).edited(stay))


@pytest.mark.parametrize("cluster", CLUSTERS[1:])
def test_a_producer_that_ends_too_early(cluster):
    """Without waiting until all stages are released, a CTA is gone when others arrive at its barriers."""
    protocol = sound(cluster=cluster)
    processes = [replace(p, ops=p.ops[:-STAGES]) if p.role == "producer" else p for p in protocol.processes]
    assert "which has ended: its shared memory is gone" in texts(replace(protocol, processes=tuple(processes)))


def test_a_multicast_that_leaves_a_cta_out():
    def own_only(process, op):
        return replace(op, ctas=(process.cta,)) if isinstance(op, Load) and op.operand.startswith("B") else op

    assert "deadlock" in texts(sound(cluster=(2, 1)).edited(own_only))


def test_the_exhaustive_search_finds_what_needs_one_order():
    """Two loads to one stage, and a read that is only then too early when the second lands late."""
    barriers = (Barrier("full", "mbarrier", 1, 1),)
    producer = (
        Expect("full", 0, 8),
        Load("full", 0, 0, "A", (0, 0), 8, (0,)),
        Load("full", 0, 0, "B", (0, 0), 0, (0,)),
    )
    consumer = (Wait("full", 0, 0), BeginRead(0, (0, 0)), EndRead(0))
    protocol = Protocol(barriers, (Process(0, "producer", producer), Process(0, "consumer", consumer)), (("A", "B"),))
    report = search_interleavings(protocol)
    assert report.exhaustive
    assert any("operand B in the stage is" in fault.text for fault in report.faults)
    assert "consumer of CTA 0: BeginRead" in report.faults[0].trace[-1]


def test_a_search_that_is_cut_short_says_so():
    report = search_interleavings(sound(), max_states=50)
    assert not report.exhaustive
    assert report.states == 50


def test_what_is_never_read_is_told():
    barriers = (Barrier("full", "mbarrier", 1, 1),)
    producer = (Expect("full", 0, 8), Load("full", 0, 0, "A", (0, 0), 8, (0,)), Wait("full", 0, 0))
    protocol = Protocol(barriers, (Process(0, "producer", producer),), (("A",),))
    assert texts(protocol) == "stage 0 of CTA 0 is filled, but 1 of its reads never happen."


def test_what_two_roles_have_at_once():
    protocol = Protocol((), (Process(0, "one", (Enter("x"),)), Process(0, "two", (Enter("x"),))), (("A",),))
    assert "takes the x while" in texts(protocol)


@pytest.mark.parametrize(
    "options", [{"cluster": (2, 1)}, {"schedule": "pingpong", "store": "tma"}, {"split_k": 3}, {"stream": 1}]
)
def test_the_choices_are_what_is_ready_after_every_step(options):
    """They are kept from step to step, and seen again where something has changed."""
    options = {"tile": (64, 64, 64), "stages": STAGES, "epi_tile_n": 32, "ctas": 2, **options}
    machine, rng = Machine(protocol_of(sm90_plan(**options), k_tiles=7, tiles=3)), random.Random(0)
    count = len(machine.at)
    while choices := machine.choices():
        ready = [number for number in range(count) if machine.is_ready(number)]
        assert choices == [*ready, *range(count, count + machine.copies)]
        machine.step(rng.choice(choices))
        if rng.random() < 0.1:
            machine = machine.copy()
    assert machine.finished


def mbarrier(arrivals):
    return Machine(Protocol((Barrier("b", "mbarrier", 1, arrivals),), (), (("A",),)))


def test_an_mbarrier_counts_arrivals_and_bytes():
    """PTX ISA, mbarrier: a phase ends when no arrivals are pending and no bytes outstanding."""
    machine = mbarrier(2)
    key = ("b", 0, 0)
    for count, size, state in [
        (1, 64, (0, 1, 64)),  # arrive.expect_tx
        (0, -64, (0, 1, 0)),  # complete_tx before the last arrival
        (1, 0, (1, 2, 0)),  # the phase ends
        (0, -32, (1, 2, -32)),  # bytes may come before they are expected
        (1, 32, (1, 1, 0)),
        (1, 0, (2, 2, 0)),
    ]:
        machine._count("b", 0, 0, count, size, "a test")
        assert machine.bars[key] == state


def test_an_mbarrier_refuses_arrivals_past_its_count():
    machine = mbarrier(1)
    machine._count("b", 0, 0, 1, 8, "a test")
    with pytest.raises(ProtocolError, match=r"once more than the 1 times"):
        machine._count("b", 0, 0, 1, 0, "a test")


def test_a_fault_is_told_with_what_came_before():
    def flip(process, op):
        return replace(op, parity=op.parity ^ 1) if isinstance(op, Wait) and op.barrier == "full" else op

    report = play_interleavings(sound().edited(flip))
    assert len(report.faults[0].trace) <= 12
    assert str(report.faults[0]).startswith(f"{report.faults[0].text} ({report.faults[0].interleaving})\n    ")
