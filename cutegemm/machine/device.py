"""Devices: how many multiprocessors, how much cache and bandwidth, which peaks, each with its source.

Peaks are dense and at the clock given. Those of mma.sync on Hopper were measured, since the data sheets give
none. The rate of L2 is a bound: 64 bytes a clock into each multiprocessor, where no white paper says less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from cutegemm.errors import UnsupportedError

if TYPE_CHECKING:
    from cutegemm.tile.atoms import MmaAtom

MIB = 1 << 20


@dataclass(frozen=True)
class Device:
    """One GPU.

    arch            that code is compiled for
    sms             multiprocessors
    l2_bytes        of the whole L2 cache
    l2_partitions   a line that all multiprocessors read is kept once in each
    dram_gb_s       of the memory
    clock_mhz       boost
    l2_bytes_per_clock   that all multiprocessors read from L2 together, at most
    tflops          peak by pipe and type of the operands: "fma.f32", "mma.bf16", "wgmma.bf16", ...
    tpc_rounds      pairs of multiprocessors (TPCs), in the order in which a grid's CTAs are handed out: so many are
                    given one CTA each, then each one more, before the next so many are; () where it is not known
    tpcs_of_two     those of them, by that order, whose CPC has two TPCs instead of three
    """

    name: str
    arch: str
    sms: int
    l2_bytes: int
    l2_partitions: int
    dram_gb_s: float
    clock_mhz: int
    l2_bytes_per_clock: int
    tflops: Mapping[str, float]
    source: str
    tpc_rounds: tuple[int, ...] = ()
    tpcs_of_two: tuple[int, ...] = ()

    def peak_tflops(self, atom: MmaAtom) -> float | None:
        """Of the pipe and type that an MMA atom runs on; None where it is not known."""
        return self.tflops.get(f"{atom.name.split('.')[0]}.{atom.a_dtype}")

    @property
    def l2_bytes_per_s(self) -> float:
        """The most that L2 delivers."""
        return self.l2_bytes_per_clock * self.clock_mhz * 1e6


def _peaks(**tflops: float) -> Mapping[str, float]:
    """Peaks by pipe and type; f16 and bf16, e4m3 and e5m2 are alike."""
    out = {}
    for key, value in tflops.items():
        pipe, kind = key.split("_")
        for name in {"half": ("f16", "bf16"), "fp8": ("e4m3", "e5m2")}.get(kind, (kind,)):
            out[f"{pipe}.{name}"] = value
    return MappingProxyType(out)


_H100_SXM = _peaks(
    fma_f32=66.9, fma_f64=33.5, mma_half=640, mma_tf32=320,
    wgmma_tf32=494.7, wgmma_half=989.4, wgmma_fp8=1978.9, wgmma_s8=1978.9,
)  # fmt: skip

# Of 144 multiprocessors of the chip 132 are on: six of its 24 CPCs have two TPCs. Which ones differs from chip to
# chip; these are one H200's.
_ROUNDS = (12, 8, 8, 8, 7, 7, 7, 7, 2)
_OF_TWO = (1, *range(20, 26), *range(43, 48))

DEVICES = {
    device.name: device
    for device in (
        Device(
            "a100-40gb", "sm_80", 108, 40 * MIB, 2, 1555, 1410, 5120,
            _peaks(fma_f32=19.5, fma_f64=9.7, mma_half=312, mma_tf32=156, mma_s8=624),
            "NVIDIA A100 white paper",
        ),
        Device(
            "a100-80gb", "sm_80", 108, 40 * MIB, 2, 2039, 1410, 5120,
            _peaks(fma_f32=19.5, fma_f64=9.7, mma_half=312, mma_tf32=156, mma_s8=624),
            "NVIDIA A100 80GB data sheet, SXM",
        ),
        Device(
            "rtx3090", "sm_86", 82, 6 * MIB, 1, 936, 1695, 82 * 64,
            _peaks(fma_f32=35.6, mma_half=71, mma_tf32=35.6),
            "NVIDIA GA102 white paper",
        ),
        Device(
            "rtx4090", "sm_89", 128, 72 * MIB, 1, 1008, 2520, 128 * 64,
            _peaks(fma_f32=82.6, mma_half=165.2, mma_tf32=82.6, mma_fp8=330.3),
            "NVIDIA Ada GPU architecture white paper",
        ),
        Device(
            "l40s", "sm_89", 142, 96 * MIB, 1, 864, 2520, 142 * 64,
            _peaks(fma_f32=91.6, mma_half=362, mma_tf32=183, mma_fp8=733),
            "NVIDIA L40S data sheet",
        ),
        Device(
            "h100-pcie", "sm_90a", 114, 50 * MIB, 2, 2039, 1755, 114 * 64,
            _peaks(fma_f32=51.2, fma_f64=25.6, mma_half=490, mma_tf32=245,
                   wgmma_tf32=378, wgmma_half=756, wgmma_fp8=1513, wgmma_s8=1513),
            "NVIDIA H100 white paper; mma scaled from the H200's",
        ),
        Device(
            "h100", "sm_90a", 132, 50 * MIB, 2, 3352, 1980, 132 * 64, _H100_SXM,
            "NVIDIA H100 SXM data sheet; mma as measured on an H200, and its order of TPCs", _ROUNDS, _OF_TWO,
        ),
        Device(
            "h200", "sm_90a", 132, 60 * MIB, 2, 4800, 1980, 132 * 64, _H100_SXM,
            "NVIDIA H200 data sheet; size of L2, mma, order of TPCs measured (2026-11-20)", _ROUNDS, _OF_TWO,
        ),
    )
}  # fmt: skip

H200_MULTIPROCESSORS = DEVICES["h200"].sms  # of a persistent grid, where none are named

_DEFAULT = {"sm_80": "a100-80gb", "sm_86": "rtx3090", "sm_89": "rtx4090"}


def device_named(name: str) -> Device:
    """The device called `name`.

    raises   UnsupportedError for one that is not in the table

    >>> device_named("h200").sms
    132
    """
    try:
        return DEVICES[name.lower()]
    except KeyError:
        raise UnsupportedError(f"device {name!r} is not known; known are {', '.join(DEVICES)}.") from None


def default_device(arch: str) -> Device:
    """The device that stands for an architecture where none is named: an H200 for sm_90 and later."""
    return DEVICES[_DEFAULT.get(arch, "h200")]
