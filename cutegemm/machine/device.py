"""Devices: how many multiprocessors, how much cache and bandwidth, which rates, each with its source.

What a data sheet says and what kernels were seen to reach are different quantities, and each has a name of its own: the
first are fields of `Device`, the second of `Measured`. Peaks are dense and at the clock given. Those of mma.sync on
Hopper were measured, since the data sheets give none. The rate of L2 is a bound: 64 bytes a clock into each
multiprocessor, where no white paper says less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from cutegemm.errors import UnsupportedError
from cutegemm.machine.arch import MAX_CLUSTER_CTAS

if TYPE_CHECKING:
    from cutegemm.tile.atoms import MmaAtom

MIB = 1 << 20
# Multiprocessors of a CPC of Hopper with three pairs of them (TPCs), and with two: they share a port to L2. Inferred
# from which CTAs go ahead of the others (H200, 2026-11-20): see `analysis.pace`.
CPC_SMS_OF_THREE, CPC_SMS_OF_TWO = 6, 4

# Results a clock of a multiprocessor, of f32 and of the special-function unit. CUDA C++ Programming Guide, "Arithmetic
# Instructions", table "Throughput of Native Arithmetic Instructions".
_FP32_PER_CLOCK, _FP32_PER_CLOCK_OF = 128, {"sm_80": 64}
SPECIAL_PER_CLOCK = 16
_GPC_SMS = 18  # multiprocessors of a whole GPC of Hopper


@dataclass(frozen=True)
class Measured:
    """What kernels were seen to reach on a device, where a data sheet says nothing or what no kernel reaches.

    ffma_tflops             of f32, by a loop of FFMA on registers alone
    wgmma_tflops            of elements of 16 bits, by a long GEMM at the power limit
    tma_read_gb_s           A and B of a GEMM from DRAM by TMA, behind a flush of L2
    thread_read_gb_s        A and B of a GEMM from DRAM by cp.async
    pack_along_k_gb_s       read and written by the kernel that packs operands along K, as wgmma multiplies them
    pack_along_mn_gb_s      the same along M or N, as threads multiply them
    sm_l2_gb_s              into each multiprocessor from L2 by TMA, when all of them read
    sums_gb_s               sums of parts of K that one kernel writes and the next one reads, through L2
    l2_kept_bytes           of A and B together, or of D, up to which L2 keeps them from one use to the next
    cpc_bytes_per_clock     that the multiprocessors of a CPC take from L2 together
    """

    ffma_tflops: float
    wgmma_tflops: float
    tma_read_gb_s: float
    thread_read_gb_s: float
    pack_along_k_gb_s: float
    pack_along_mn_gb_s: float
    sm_l2_gb_s: float
    sums_gb_s: float
    l2_kept_bytes: float
    cpc_bytes_per_clock: float


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
    source          of all these
    tpc_rounds      pairs of multiprocessors (TPCs), in the order in which a grid's CTAs are handed out: so many are
                    given one CTA each, then each one more, before the next so many are; () where it is not known
    tpcs_of_two     those of them, by that order, whose CPC has two TPCs instead of three
    own_rates       what was measured on it; None where nothing was: see `measured`
    """

    name: str
    arch: str
    sms: int
    l2_bytes: int
    l2_partitions: int
    dram_gb_s: float
    clock_mhz: int
    l2_bytes_per_clock: int
    tflops: Mapping[str, float] = field(hash=False)
    source: str
    tpc_rounds: tuple[int, ...] = ()
    tpcs_of_two: tuple[int, ...] = ()
    own_rates: Measured | None = None

    def peak_tflops(self, atom: MmaAtom) -> float | None:
        """Of the pipe and type that an MMA atom runs on; None where it is not known."""
        return self.tflops.get(f"{atom.name.split('.')[0]}.{atom.a_dtype}")

    @property
    def fp32_per_clock(self) -> int:
        """Instructions of f32, of threads, that a multiprocessor takes in a clock.

        >>> device_named("a100-80gb").fp32_per_clock, device_named("h200").fp32_per_clock
        (64, 128)
        """
        return _FP32_PER_CLOCK_OF.get(self.arch, _FP32_PER_CLOCK)

    @cached_property
    def gpc_sms(self) -> tuple[int, ...]:
        """Multiprocessors of each GPC, within which the CTAs of a cluster lie: in a round each GPC that has a pair left
        is given a CTA. Where the rounds are not known, GPCs have 18 multiprocessors each, and the last one the rest.

        >>> device_named("h100").gpc_sms
        (18, 18, 16, 16, 16, 16, 16, 8, 2, 2, 2, 2)
        """
        if not self.tpc_rounds:
            return (*[_GPC_SMS] * (self.sms // _GPC_SMS), self.sms % _GPC_SMS)
        return tuple(sorted([2 * pairs for pairs in Counter(self.gpc_of_tpc).values()], reverse=True))

    @cached_property
    def gpc_of_tpc(self) -> tuple[int, ...]:
        """The GPC of each pair of multiprocessors, in the order in which pairs are handed CTAs; () where that is not
        known. A shorter round lacks the GPCs that came first in the one before. A pair that no cluster of more than two
        CTAs reaches counts as a GPC. By `%smid` of clusters of two to eight CTAs, an H200 and an H100 (2026-11-23).

        >>> device_named("h100").gpc_of_tpc[:20]
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11)
        """
        most = max(self.tpc_rounds, default=0)
        return tuple([most - count + place for count in self.tpc_rounds for place in range(count)])

    @cached_property
    def clusters_by_size(self) -> tuple[int, ...]:
        """Clusters that run at a time, of 0, 1, 2, ... CTAs, where each CTA takes a multiprocessor for itself.

        Those of an H100 are what cudaOccupancyMaxActiveClusters said of two of them (2026-11-22).

        >>> device_named("h100").clusters_by_size
        (0, 132, 66, 39, 30, 22, 17, 15, 15)
        """
        return (0, *[sum(sms // size for sms in self.gpc_sms) for size in range(1, MAX_CLUSTER_CTAS + 1)])

    @property
    def l2_bytes_per_s(self) -> float:
        """The most that L2 delivers."""
        return self.l2_bytes_per_clock * self.clock_mhz * 1e6

    @cached_property
    def measured(self) -> Measured:
        """What kernels reach. Where it was not measured: what they reach on an H200, by the ratio of the data sheets.

        >>> [round(device_named(name).measured.tma_read_gb_s) for name in ("h200", "h100", "h100-pcie")]
        [4280, 2900, 1818]
        """
        if self.own_rates is not None:
            return self.own_rates
        like, seen = DEFAULT_DEVICE, _H200_MEASURED
        dram = self.dram_gb_s / like.dram_gb_s
        tensor = self._tensor_tflops / like._tensor_tflops
        return replace(
            seen,
            ffma_tflops=seen.ffma_tflops * self.tflops["fma.f32"] / like.tflops["fma.f32"],
            wgmma_tflops=seen.wgmma_tflops * tensor,
            tma_read_gb_s=seen.tma_read_gb_s * dram,
            thread_read_gb_s=seen.thread_read_gb_s * dram,
            pack_along_k_gb_s=seen.pack_along_k_gb_s * dram,
            pack_along_mn_gb_s=seen.pack_along_mn_gb_s * dram,
            sm_l2_gb_s=seen.sm_l2_gb_s * self.clock_mhz / like.clock_mhz,
            sums_gb_s=seen.sums_gb_s * self.l2_bytes_per_s / like.l2_bytes_per_s,
            l2_kept_bytes=seen.l2_kept_bytes * self.l2_bytes / like.l2_bytes,
        )

    @property
    def _tensor_tflops(self) -> float:
        return self.tflops.get("wgmma.bf16", self.tflops["mma.bf16"])

    def with_sms(self, sms: int) -> Device:
        """The same chip with so many multiprocessors, as other cards and parts of a card have it.

        What each multiprocessor does stays as it is, and so do the memory, the L2 cache and the power limit.

        >>> part = device_named("h200").with_sms(66)
        >>> part.sms, part.tflops["fma.f32"], part.dram_gb_s
        (66, 33.45, 4800)
        """
        if sms == self.sms:
            return self
        share, rates = sms / self.sms, self.measured
        return replace(
            self,
            sms=sms,
            l2_bytes_per_clock=round(self.l2_bytes_per_clock * share),
            tflops=MappingProxyType({pipe: peak * share for pipe, peak in self.tflops.items()}),
            tpc_rounds=(),
            tpcs_of_two=(),
            own_rates=replace(rates, ffma_tflops=rates.ffma_tflops * share),
        )


def _peaks(**tflops: float) -> Mapping[str, float]:
    """Peaks by pipe and type; f16 and bf16, e4m3 and e5m2 are alike."""
    out = {}
    for key, value in tflops.items():
        pipe, kind = key.split("_")
        for name in {"half": ("f16", "bf16"), "fp8": ("e4m3", "e5m2")}.get(kind, (kind,)):
            out[f"{pipe}.{name}"] = value
    return MappingProxyType(out)


# mma.sync of float8 converts operands to f16, and is no faster.
_H100_SXM = _peaks(
    fma_f32=66.9, fma_f64=33.5, mma_half=640, mma_tf32=320, mma_fp8=640,
    wgmma_tf32=494.7, wgmma_half=989.4, wgmma_fp8=1978.9, wgmma_s8=1978.9,
)  # fmt: skip

# Of one H200, 2026-11-20. The rates of reading, packing, L2 and sums, l2_kept_bytes and wgmma_tflops are those with
# which the models of `choose` err least (`docs.evidence`, fit_sm90 and fit_simt); the loop of FFMA was timed by itself;
# the port follows from the times of tiles: see `analysis.pace`.
_H200_MEASURED = Measured(
    ffma_tflops=63.8,
    wgmma_tflops=700,
    tma_read_gb_s=4280,
    thread_read_gb_s=3800,
    pack_along_k_gb_s=4200,
    pack_along_mn_gb_s=3500,
    sm_l2_gb_s=126.3,
    sums_gb_s=3000,
    l2_kept_bytes=50e6,
    cpc_bytes_per_clock=256.0,
)

# Of one H100 SXM, 2026-11-22 to 24: tma_read_gb_s as plans for few rows read weights; wgmma_tflops, sm_l2_gb_s and
# l2_kept_bytes those with which the model of Hopper plans errs least. The others are the H200's, those of memory by the
# ratio.
_H100_MEASURED = replace(
    _H200_MEASURED,
    wgmma_tflops=650,
    tma_read_gb_s=2900,
    thread_read_gb_s=2650,
    pack_along_k_gb_s=2930,
    pack_along_mn_gb_s=2440,
    sm_l2_gb_s=110,
    l2_kept_bytes=42e6,
)

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
            _peaks(fma_f32=51.2, fma_f64=25.6, mma_half=490, mma_tf32=245, mma_fp8=490,
                   wgmma_tf32=378, wgmma_half=756, wgmma_fp8=1513, wgmma_s8=1513),
            "NVIDIA H100 white paper; mma scaled from the H200's",
        ),
        Device(
            "h100", "sm_90a", 132, 50 * MIB, 2, 3352, 1980, 132 * 64, _H100_SXM,
            "NVIDIA H100 SXM data sheet; mma as measured on an H200, and its order of TPCs", _ROUNDS, _OF_TWO,
            _H100_MEASURED,
        ),
        Device(
            "h200", "sm_90a", 132, 60 * MIB, 2, 4800, 1980, 132 * 64, _H100_SXM,
            "NVIDIA H200 data sheet; size of L2, mma, order of TPCs measured (2026-11-20)", _ROUNDS, _OF_TWO,
            _H200_MEASURED,
        ),
    )
}  # fmt: skip

# That plans are chosen for, and whose multiprocessors a persistent grid fills, where no other is named.
DEFAULT_DEVICE = DEVICES["h200"]

_DEFAULT = {"sm_80": "a100-80gb", "sm_86": "rtx3090", "sm_89": "rtx4090"}


def device_named(name: str) -> Device:
    """The device called `name`.

    raises   UnsupportedError for one that is not in the table

    >>> device_named("h200").sms
    132
    """
    found = DEVICES.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise UnsupportedError(f"device {name!r} is not known; known are {', '.join(DEVICES)}.")
    return found


def default_device(arch: str) -> Device:
    """The device that stands for an architecture where none is named: an H200 for sm_90 and later."""
    name = _DEFAULT.get(arch)
    return DEFAULT_DEVICE if name is None else DEVICES[name]


def device_called(name: str, arch: str, sms: int) -> Device:
    """The device of a name as CUDA gives it, with so many multiprocessors; for others that which stands for the
    architecture.

    >>> [device_called(name, "sm_90a", 132).name for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200")]
    ['h100', 'h200', 'h200']
    >>> device_called("NVIDIA H100 PCIe", "sm_90a", 114).name, device_called("NVIDIA A10", "sm_86", 72).sms
    ('h100-pcie', 72)
    """
    words = set(name.lower().replace("-", " ").split())
    known = sorted(DEVICES, key=len, reverse=True)  # that which says more first
    found = next((key for key in known if words >= set(key.split("-"))), None)
    return (default_device(arch) if found is None else DEVICES[found]).with_sms(sms)
