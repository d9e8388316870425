"""The pingpong protocol under many interleavings, and faults planted in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutegemm.build.sm90 import sm90_plan
from cutegemm.plan.plan import Barrier
from cutegemm.simulate.protocol.interleavings import play_interleavings, search_interleavings
from cutegemm.simulate.protocol.machine import Machine
from cutegemm.simulate.protocol.program import (
    Arrive,
    BeginRead,
    EndRead,
    Expect,
    Load,
    NamedArrive,
    NamedSync,
    Program,
    Protocol,
    ProtocolError,
    Wait,
)
from cutegemm.simulate.protocol.queue import pingpong_barriers, pingpong_protocol, protocol_of
from tests.simulate.plans import broken

STAGES = 3
CLUSTERS = [(1, 1), (2, 1), (1, 2), (2, 2)]


def sound(k_blocks=4, tiles=3, cluster_mn=(1, 1), order="mbarrier", stages=STAGES, **options):
    barriers = pingpong_barriers(stages, cluster_mn, order=order)
    return pingpong_protocol(
        barriers=barriers, stages=stages, k_blocks=k_blocks, tiles=tiles, cluster_mn=cluster_mn, **options
    )


def texts(protocol, **options):
    return " | ".join(fault.text for fault in play_interleavings(protocol, **options).faults)


@pytest.mark.parametrize("cluster_mn", CLUSTERS)
@pytest.mark.parametrize("k_blocks", [0, 1, STAGES - 1, STAGES, STAGES + 1, 11])
def test_the_sound_protocol_has_no_faults(k_blocks, cluster_mn):
    for tiles in (1, 2, 3):
        for order in ("mbarrier", "named"):
            assert texts(sound(k_blocks, tiles, cluster_mn, order), random_runs=6) == ""


@pytest.mark.parametrize(
    ("stages", "k_blocks", "tiles"), [(1, 1, 1), (1, 2, 3), (2, 1, 3), (2, 2, 2), (2, 3, 3), (3, 2, 3)]
)
@pytest.mark.parametrize("order", ["mbarrier", "named"])
def test_small_cases_in_all_orders(stages, k_blocks, tiles, order):
    report = search_interleavings(sound(k_blocks, tiles, order=order, stages=stages))
    assert report.exhaustive
    assert report.faults == ()


def test_a_cluster_in_all_orders():
    report = search_interleavings(sound(1, 1, (2, 1), stages=1))
    assert report.exhaustive
    assert report.faults == ()
    assert report.states > 1000


@pytest.mark.parametrize("cluster_mn", CLUSTERS)
def test_consumers_that_share_a_tile(cluster_mn):
    barriers = pingpong_barriers(STAGES, cluster_mn, turns=1, readers=2)
    for k_blocks in (0, 1, STAGES, STAGES + 1):
        protocol = pingpong_protocol(
            barriers=barriers, stages=STAGES, k_blocks=k_blocks, tiles=2, cluster_mn=cluster_mn, turns=1
        )
        assert texts(protocol, random_runs=6) == ""
    too_few = protocol.with_barrier("empty", arrivals=barriers[1].arrivals - 1)
    assert "overwritten stage" in texts(too_few) or "wrong arrival count" in texts(too_few)


def test_an_epilogue_that_needs_no_order():
    barriers = tuple([b for b in pingpong_barriers(STAGES) if b.name != "order epilogue"])
    assert texts(pingpong_protocol(barriers=barriers, stages=STAGES, k_blocks=4, tiles=3)) == ""


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("schedule", ["pingpong", "cooperative"])
def test_the_protocol_of_plans(schedule, cluster):
    plan = sm90_plan(schedule=schedule, cluster=cluster)
    for k_blocks in (1, plan.stages + 1):
        assert texts(protocol_of(plan, k_blocks=k_blocks, tiles=3), random_runs=4) == ""
    wrong = {"arrivals": max(1, plan.barrier("empty").arrivals - 4)}
    assert texts(protocol_of(plan, k_blocks=9, tiles=3).with_barrier("empty", **wrong)) != ""
    more = {"transaction_bytes": plan.barrier("full").transaction_bytes + 2}
    barriers = tuple([replace(b, **more) if b.name == "full" else b for b in plan.barriers])
    assert "deadlock" in texts(
        protocol_of(broken(plan, barriers=barriers), k_blocks=9, tiles=3), random_runs=4
    )


@pytest.mark.parametrize("fewer", [1, 4])
@pytest.mark.parametrize("cluster_mn", CLUSTERS[1:])
def test_too_few_arrivals_on_empty(cluster_mn, fewer):
    """A warp, or a warpgroup: then the phases end as they should, but before all have read."""
    protocol = sound(cluster_mn=cluster_mn)
    found = texts(protocol.with_barrier("empty", arrivals=protocol.barriers[1].arrivals - fewer))
    assert "overwritten stage" in found or "wrong arrival count" in found


@pytest.mark.parametrize("cluster_mn", CLUSTERS)
def test_one_arrival_too_many_on_empty(cluster_mn):
    protocol = sound(cluster_mn=cluster_mn)
    too_many = protocol.with_barrier("empty", arrivals=protocol.barriers[1].arrivals + 1)
    assert "deadlock" in texts(too_many) or "wrong arrival count" in texts(too_many)


def test_a_forgotten_release():
    def forget(program, op):
        return (
            None if isinstance(op, Arrive) and op.barrier == "empty" and program.role == "consumer 1" else op
        )

    assert "waits for parity" in texts(sound().edited(forget))


def test_a_release_before_the_read_has_ended():
    protocol = sound()
    programs = []
    for program in protocol.programs:
        ops = list(program.ops)
        for i in [i for i, op in enumerate(ops) if isinstance(op, EndRead)]:
            ops[i], ops[i + 1] = ops[i + 1], ops[i]
        programs.append(replace(program, ops=tuple(ops)))
    assert "which is being read: overwritten stage" in texts(replace(protocol, programs=tuple(programs)))


@pytest.mark.parametrize("order", ["mbarrier", "named"])
@pytest.mark.parametrize("name", ["order mainloop", "order epilogue"])
def test_a_forgotten_order_barrier(name, order):
    def forget(program, op):
        return None if isinstance(op, (Wait, Arrive, NamedArrive, NamedSync)) and op.barrier == name else op

    resource = "tensor cores" if name == "order mainloop" else "shared tile of D"
    assert f"takes the {resource} while consumer" in texts(sound(order=order).edited(forget))


@pytest.mark.parametrize("skip", [3, 5, 0])
def test_a_wrong_skip(skip):
    found = texts(sound(skip=skip))
    assert "wrong read" in found or "deadlock" in found or "early read" in found


def test_a_wrong_phase_of_the_producer():
    def flip(program, op):
        wrong = program.role == "producer" and isinstance(op, Wait)
        return replace(op, parity=op.parity ^ 1) if wrong else op

    assert "deadlock: producer of CTA 0 waits for parity 0 of empty[0]" in texts(sound().edited(flip))


def test_a_wrong_phase_of_a_consumer():
    def flip(program, op):
        wrong = program.role == "consumer 0" and isinstance(op, Wait) and op.barrier == "full"
        return replace(op, parity=op.parity ^ 1) if wrong else op

    assert "early read" in texts(sound().edited(flip))


def test_a_phase_that_is_never_turned():
    def stay(program, op):
        return replace(op, parity=0) if isinstance(op, Wait) and op.barrier == "full" else op

    assert "read" in texts(sound(k_blocks=5).edited(stay))


@pytest.mark.parametrize("size_bytes", [16384, 65536])
def test_a_wrong_number_of_bytes(size_bytes):
    def expect(program, op):
        return replace(op, size_bytes=size_bytes) if isinstance(op, Expect) else op

    found = texts(sound().edited(expect))
    assert "bytes" in found if size_bytes > 32768 else "read" in found


@pytest.mark.parametrize("cluster_mn", CLUSTERS[1:])
def test_a_producer_that_ends_too_early(cluster_mn):
    """Without waiting for the queue to empty, a CTA is gone when others arrive at its barriers."""
    protocol = sound(cluster_mn=cluster_mn)
    programs = [replace(p, ops=p.ops[:-STAGES]) if p.role == "producer" else p for p in protocol.programs]
    assert "which has ended: its shared memory is gone" in texts(replace(protocol, programs=tuple(programs)))


def test_a_multicast_that_leaves_a_cta_out():
    def own_only(program, op):
        return replace(op, ctas=(program.cta,)) if isinstance(op, Load) and op.part.startswith("B") else op

    assert "deadlock" in texts(sound(cluster_mn=(2, 1)).edited(own_only))


def test_the_exhaustive_search_finds_what_needs_one_order():
    """Two loads to one stage, and a read that is only then too early when the second lands late."""
    barriers = (Barrier("full", "mbarrier", 1, 1),)
    producer = (
        Expect("full", 0, 8),
        Load("full", 0, 0, "A", (0, 0), 8, (0,)),
        Load("full", 0, 0, "B", (0, 0), 0, (0,)),
    )
    consumer = (Wait("full", 0, 0), BeginRead(0, (0, 0)), EndRead(0))
    protocol = Protocol(
        barriers, (Program(0, "producer", producer), Program(0, "consumer", consumer)), (("A", "B"),)
    )
    report = search_interleavings(protocol)
    assert report.exhaustive
    assert any("part B has" in fault.text for fault in report.faults)
    assert "consumer of CTA 0: BeginRead" in report.faults[0].trace[-1]


def test_a_search_that_is_cut_short_says_so():
    report = search_interleavings(sound(), max_states=50)
    assert not report.exhaustive
    assert report.states == 50


def test_what_is_never_read_is_told():
    barriers = (Barrier("full", "mbarrier", 1, 1),)
    producer = (Expect("full", 0, 8), Load("full", 0, 0, "A", (0, 0), 8, (0,)), Wait("full", 0, 0))
    protocol = Protocol(barriers, (Program(0, "producer", producer),), (("A",),))
    assert texts(protocol) == "stage 0 of CTA 0 is filled, but 1 of its reads never happen."


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
    report = play_interleavings(sound(skip=3))
    assert len(report.faults[0].trace) <= 12
    assert str(report.faults[0]).startswith(
        f"{report.faults[0].text} ({report.faults[0].interleaving})\n    "
    )
