"""Calls timed in turns, on a device and a host that are made up: what the host delays is left out."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

timing = pytest.importorskip("cutegemm.run.timing", reason="torch is not installed")

FLUSH_US, EVENT_US = 80.0, 1.0


class Machine:
    """A host that queues work, and a device that does it in order. Times in microseconds."""

    def __init__(self) -> None:
        self.host, self.device = 0.0, 0.0

    def queue(self, host_us: float, device_us: float) -> None:
        """Work that the device begins when it has been launched, and all before it is done."""
        self.host += host_us
        self.device = max(self.device, self.host) + device_us

    def wait(self) -> None:
        """Until the device has done all."""
        self.host = self.device = max(self.host, self.device)

    def event(self, enable_timing: bool) -> SimpleNamespace:
        """One that notes when the device comes to it, and when it was recorded."""
        assert enable_timing
        made = SimpleNamespace()

        def record() -> None:
            self.queue(EVENT_US, 0.0)
            made.at = self.device

        made.record = record
        made.elapsed_time = lambda end: (end.at - made.at) * 1e-3
        return made

    def as_torch(self) -> SimpleNamespace:
        """What `timing` asks torch for."""
        flush = SimpleNamespace(zero_=lambda: self.queue(5.0, FLUSH_US))
        cuda = SimpleNamespace(Event=self.event, synchronize=self.wait)
        return SimpleNamespace(empty=lambda *_, **__: flush, cuda=cuda, int8=None)


@pytest.fixture
def machine(monkeypatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(timing, "torch", made.as_torch())
    monkeypatch.setattr(timing.time, "perf_counter", lambda: made.host * 1e-6)
    return made


def test_medians_of_what_the_device_took(machine):
    found = timing.alternating([lambda: machine.queue(9.0, 6.0), lambda: machine.queue(9.0, 12.0)], 0.01)
    assert [round(one * 1e6, 3) for one in found] == [6.0, 12.0]


def test_both_times_of_a_round_count(machine):
    """Two calls take 1 us more where they are the first behind a wait: as often as each other, by the reverse order."""
    waited = []
    machine.wait, wait = lambda: (wait(), waited.append(True)), machine.wait
    timing.torch.cuda.synchronize = machine.wait

    def call(us: float):
        def queued() -> None:
            machine.queue(9.0, us + bool(waited))
            waited.clear()

        return queued

    found = timing.alternating([call(6.0), call(7.0)], 0.01)
    assert [round(one * 1e6, 3) for one in found] == [6.5, 7.5]


def test_disturbed_rounds_are_timed_again(machine):
    """From 130 ms on each call takes 20 us more, for 50 ms: most of the rounds between 100 and 180 ms."""

    def call() -> None:
        machine.queue(9.0, 26.0 if 130e3 < machine.host < 180e3 else 6.0)

    (found,) = timing.alternating([call], 0.08)
    assert round(found * 1e6, 3) == 6.0
    assert machine.host > 260e3


def test_calls_that_are_never_steady_end(machine):
    """Slower and slower: the fourth time counts."""
    (found,) = timing.alternating([lambda: machine.queue(9.0, machine.host * 1e-3)], 0.08)
    assert 340e-6 < found < 420e-6


def test_rounds_that_the_host_delays_are_left_out(machine):
    """Three launches of four take 400 us, far longer than the flush hides."""
    number = itertools.count()
    late = lambda: machine.queue(9.0 if next(number) % 4 == 0 else 400.0, 6.0)  # noqa: E731
    found = timing.alternating([late, lambda: machine.queue(9.0, 12.0)], 0.05)
    assert [round(one * 1e6, 3) for one in found] == [6.0, 12.0]


def test_calls_that_the_host_always_delays_count_as_they_are(machine):
    """A call of many launches: the device waits for its host in every round."""
    (found,) = timing.alternating([lambda: machine.queue(200.0, 6.0)], 0.01)
    assert 100 < found * 1e6 < 210
