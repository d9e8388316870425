"""Calls timed in alternation, with a simulated host and device."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

timing = pytest.importorskip("cutegemm.run.timing", reason="torch is not installed")

FLUSH_US, EVENT_US = 80.0, 1.0


class Machine:
    """A simulated host that queues work, and a device that executes it in order. Times are in microseconds."""

    def __init__(self) -> None:
        self.host, self.device = 0.0, 0.0

    def queue(self, host_us: float, device_us: float) -> None:
        """Queue work that the device starts after it was launched and after all earlier work."""
        self.host += host_us
        self.device = max(self.device, self.host) + device_us

    def wait(self) -> None:
        """Make the host wait until the device has finished all work."""
        self.host = self.device = max(self.host, self.device)

    def event(self, enable_timing: bool) -> SimpleNamespace:
        """Return an event that stores the time when the device reaches it."""
        assert enable_timing
        made = SimpleNamespace()

        def record() -> None:
            self.queue(EVENT_US, 0.0)
            made.at = self.device

        made.record = record
        made.elapsed_time = lambda end: (end.at - made.at) * 1e-3
        return made

    def as_torch(self) -> SimpleNamespace:
        """Return the functions of torch that `timing` uses."""
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
    """Two calls each take 1 us more right after a wait. By the reverse order, both are first equally often."""
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
    """Calls take 20 us more from 130 to 180 ms, which are most rounds of the first measurement, from 100 to 180 ms."""

    def call() -> None:
        machine.queue(9.0, 26.0 if 130e3 < machine.host < 180e3 else 6.0)

    (found,) = timing.alternating([call], 0.08)
    assert round(found * 1e6, 3) == 6.0
    assert machine.host > 260e3


def test_calls_that_are_never_steady_end(machine):
    """A call that gets slower and slower is measured four times; the last measurement is used."""
    (found,) = timing.alternating([lambda: machine.queue(9.0, machine.host * 1e-3)], 0.08)
    assert 340e-6 < found < 420e-6


def test_rounds_that_the_host_delays_are_left_out(machine):
    """Three of four launches take 400 us, much longer than the flush, and their times are not used."""
    number = itertools.count()
    late = lambda: machine.queue(9.0 if next(number) % 4 == 0 else 400.0, 6.0)  # noqa: E731
    found = timing.alternating([late, lambda: machine.queue(9.0, 12.0)], 0.05)
    assert [round(one * 1e6, 3) for one in found] == [6.0, 12.0]


def test_calls_that_the_host_always_delays_count_as_they_are(machine):
    """The host is slower than the device in every round, as for a call of many launches, and the times are used."""
    (found,) = timing.alternating([lambda: machine.queue(200.0, 6.0)], 0.01)
    assert 100 < found * 1e6 < 210
