"""mbarrier objects: phases, parities and counts, derived by hand."""

from __future__ import annotations

import pytest

from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.mbarrier import MAX_COUNT, MBarrier, MBarriers


def test_a_phase_ends_with_its_last_arrival_or_its_last_byte():
    # (what happens, phase, pending arrivals, pending bytes) of a barrier of 2 arrivals
    barrier = MBarrier(64, 2)
    steps = [
        (lambda: barrier.arrive(expected_bytes=96), 0, 1, 96),
        (lambda: barrier.complete_tx(64), 0, 1, 32),
        (lambda: barrier.arrive(), 0, 0, 32),  # all arrivals have come, but 32 bytes are missing
        (lambda: barrier.complete_tx(32), 1, 2, 0),  # the phase ends; the next one needs 2 arrivals
        (lambda: barrier.complete_tx(16), 1, 2, -16),  # bytes may come before they are expected
        (lambda: barrier.expect_tx(16), 1, 2, 0),
        (lambda: barrier.arrive(2), 2, 2, 0),
    ]
    for act, *expected in steps:
        act()
        assert [barrier.phase, barrier.pending, barrier.tx_bytes] == expected


def test_parity_tells_the_current_phase_from_the_one_before():
    # During phase 0, parity 0 is not complete, but parity 1 is: it stands for the phase before phase 0. So a producer
    # that waits for parity 1 first does not block on an empty pipeline.
    barrier = MBarrier(0, 1)
    seen = []
    for _ in range(3):
        seen.append((barrier.completed(0), barrier.completed(1)))
        barrier.arrive()
    assert seen == [(False, True), (True, False), (False, True)]


def test_tokens_of_the_current_or_the_previous_phase():
    barrier = MBarrier(0, 2)
    first = barrier.arrive()
    assert not barrier.completed_state(first)
    assert barrier.arrive() == first
    assert barrier.completed_state(first)
    barrier.arrive(2)
    with pytest.raises(RuleViolation, match="neither of its current phase"):
        barrier.completed_state(first)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda b: b.arrive(3), "too many arrivals"),
        (lambda b: b.arrive(0), "may make 1 to"),
        (lambda b: b.arrive(2, may_complete=False), "noComplete"),
        (lambda b: b.completed(2), "0 or 1"),
        (lambda b: b.expect_tx(2**20), "its range is"),
        (lambda b: [b.complete_tx(2**19) for _ in range(3)], "its range is"),
    ],
)
def test_violations_name_the_address_of_the_barrier(act, says):
    with pytest.raises(RuleViolation, match=says) as raised:
        act(MBarrier(4096, 2))
    assert "4096" in str(raised.value)


def test_a_barrier_lives_from_init_to_inval():
    barriers = MBarriers()
    barriers.init(128, 1)
    with pytest.raises(RuleViolation, match="initialised again"):
        barriers.init(128, 1)
    with pytest.raises(RuleViolation, match="no mbarrier is initialised at shared address 136; mbarriers: 128"):
        barriers.at(136)
    with pytest.raises(RuleViolation, match="not a multiple of 8"):
        barriers.init(132, 1)
    with pytest.raises(RuleViolation, match="arrivals"):
        barriers.init(136, MAX_COUNT + 1)
    barriers.inval(128)
    assert barriers.get(128) is None
    barriers.init(128, 3)
    assert barriers.at(128).pending == 3
