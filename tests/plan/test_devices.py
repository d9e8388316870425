"""Devices: what kernels are held to reach is below what the data sheets say, and parts of a chip are what they are."""

from __future__ import annotations

from dataclasses import fields

import pytest

from cutegemm.choice.catalog import choose
from cutegemm.machine.device import DEFAULT_DEVICE, DEVICES, Measured, device_named
from cutegemm.plan import Operands, Problem


@pytest.mark.parametrize("name", DEVICES)
def test_what_is_reached_is_below_the_peak(name):
    device = device_named(name)
    seen = device.measured
    assert all(getattr(seen, one.name) > 0 for one in fields(Measured))
    assert seen.ffma_tflops < device.tflops["fma.f32"]
    assert seen.wgmma_tflops < device.tflops.get("wgmma.bf16", device.tflops["mma.bf16"])
    assert max(seen.tma_read_gb_s, seen.thread_read_gb_s) < device.dram_gb_s
    assert seen.partials_gb_s * 1e9 < device.l2_bytes_per_s
    assert seen.l2_kept_bytes < device.l2_bytes


def test_where_nothing_was_measured_the_data_sheets_are_compared():
    """By hand: an A100 80GB reads 2039 of an H200's 4800 GB/s, and has 19.5 of its 66.9 TFLOP/s in FFMA."""
    seen, like = device_named("a100-80gb").measured, DEFAULT_DEVICE.measured
    assert seen.tma_read_gb_s == pytest.approx(4280 * 2039 / 4800)
    assert seen.ffma_tflops == pytest.approx(63.8 * 19.5 / 66.9)
    assert seen.l2_kept_bytes == pytest.approx(like.l2_kept_bytes * 40 / 60)
    assert DEFAULT_DEVICE.measured is like is DEFAULT_DEVICE.own_rates


def test_a_part_of_a_chip():
    """Each multiprocessor is as fast as before, and the memory too: 44 of 132 have a third of what they have alone."""
    part = DEFAULT_DEVICE.with_sms(44)
    assert part.tflops["wgmma.bf16"] == pytest.approx(DEFAULT_DEVICE.tflops["wgmma.bf16"] / 3)
    assert part.measured.ffma_tflops == pytest.approx(63.8 / 3)
    assert part.l2_bytes_per_clock * 3 == DEFAULT_DEVICE.l2_bytes_per_clock
    assert part.measured.tma_read_gb_s == DEFAULT_DEVICE.measured.tma_read_gb_s
    assert (part.tpc_rounds, part.tpcs_of_two) == ((), ())  # which of them are on is not known
    assert DEFAULT_DEVICE.with_sms(132) is DEFAULT_DEVICE
    assert part.with_sms(44) == part == DEFAULT_DEVICE.with_sms(44)


def test_a_choice_for_a_device_is_remembered():
    operands, problem = Operands.of("bf16", layout="nt"), Problem(4096, 4096, 4096)
    found = [choose(operands, problem, device=DEFAULT_DEVICE.with_sms(sms)) for sms in (114, 114, 132)]
    assert found[0] is found[1]
    assert [plan.scheduler.grid.ctas for plan in found] == [114, 114, 132]
    assert choose(operands, problem, device=device_named("h100-pcie")).scheduler.grid.ctas == 114
