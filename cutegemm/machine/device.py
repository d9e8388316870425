"""Devices: number of multiprocessors, cache, bandwidths and rates of each GPU, with their sources.

Numbers of a data sheet and rates that kernels reach are different quantities with different names: the former
are fields of `Device`, the latter of `Measured`. Peaks are for dense operands at the given clock. The peaks of
mma.sync on Hopper were measured, because the data sheets have none. The rate of L2 is an upper bound: 64 bytes
per clock into each multiprocessor, unless a white paper gives less.
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
# Multiprocessors of a CPC of Hopper with three TPCs (pairs of multiprocessors) and with two. A CPC shares a port to L2.
# Inferred from the progress of CTAs (H200, 2026-11-20): see `analysis.pace`.
CPC_SMS_OF_THREE, CPC_SMS_OF_TWO = 6, 4

# Results per clock of a multiprocessor, for f32 and for the special-function unit. CUDA C++ Programming Guide,
# "Arithmetic Instructions", table "Throughput of Native Arithmetic Instructions".
_FP32_PER_CLOCK, _FP32_PER_CLOCK_OF = 128, {"sm_80": 64}
SPECIAL_PER_CLOCK = 16
_GPC_SMS = 18  # multiprocessors of a complete GPC of Hopper


@dataclass(frozen=True)
class Measured:
    """Measured rates of a device, for quantities without a data-sheet value or with one that no kernel reaches.

    ffma_tflops            f32 rate of a loop of FFMA on registers, in TFLOP/s
    wgmma_tflops           rate of a long GEMM of 16-bit elements at the power limit, in TFLOP/s
    tma_read_gb_s          rate of TMA loads of A and B from DRAM in a GEMM, after L2 was flushed, in GB/s
    thread_read_gb_s       rate of cp.async loads of A and B from DRAM in a GEMM, in GB/s
    repack_along_k_gb_s    bytes read plus bytes written by the repack kernel for K-major operands of wgmma, in GB/s
    repack_along_mn_gb_s   bytes read plus bytes written by the repack kernel for M-major or N-major operands, in GB/s
    sm_l2_gb_s             rate of TMA loads from L2 into each multiprocessor if all of them load, in GB/s
    partials_gb_s          rate of partial accumulators that one kernel writes to L2 and the next one reads, in GB/s
    l2_kept_bytes          largest size of A and B together, or of D, that L2 keeps from one use to the next, in bytes
    cpc_bytes_per_clock    bytes per clock that the multiprocessors of a CPC read from L2 together
    """

    ffma_tflops: float
    wgmma_tflops: float
    tma_read_gb_s: float
    thread_read_gb_s: float
    repack_along_k_gb_s: float
    repack_along_mn_gb_s: float
    sm_l2_gb_s: float
    partials_gb_s: float
    l2_kept_bytes: float
    cpc_bytes_per_clock: float


@dataclass(frozen=True)
class Device:
    """Numbers of one GPU: multiprocessors, cache, bandwidth, clock and peak rates.

    name                 name in the table, such as h200
    arch                 architecture that code is compiled for
    sms                  number of multiprocessors
    l2_bytes             size of the whole L2 cache in bytes
    l2_partitions        number of L2 partitions; each keeps its own copy of a line that all multiprocessors
                         read
    dram_gb_s            memory bandwidth in GB/s
    clock_mhz            boost clock in MHz
    l2_bytes_per_clock   largest number of bytes per clock that all multiprocessors read from L2 together
    tflops               peak rate in TFLOP/s by pipe and operand type: "fma.f32", "mma.bf16", "wgmma.bf16", ...
    source               source of these numbers
    tpc_rounds           number of TPCs (pairs of multiprocessors) in each round of CTA assignment: in a round,
                         these TPCs receive one CTA each, then a second one each; () if it is not known
    tpcs_of_two          TPCs whose CPC has two TPCs instead of three, as indices in the order of assignment
    own_rates            rates measured on this device; None without measurements, see `measured`

    >>> device_named("h200").sms, device_named("h200").tflops["wgmma.bf16"]
    (132, 989.4)
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
        """Return the peak rate in TFLOP/s of the pipe and operand type of an MMA atom; None if it is not known.

        atom   MMA atom: decides the pipe (fma, mma or wgmma) and the operand type

        >>> from cutegemm.tile.mma_atoms import fma
        >>> device_named("h200").peak_tflops(fma("f32"))
        66.9
        """
        return self.tflops.get(f"{atom.name.split('.')[0]}.{atom.a_dtype}")

    @property
    def fp32_per_clock(self) -> int:
        """Number of f32 instructions of threads that a multiprocessor executes per clock.

        >>> device_named("a100-80gb").fp32_per_clock, device_named("h200").fp32_per_clock
        (64, 128)
        """
        return _FP32_PER_CLOCK_OF.get(self.arch, _FP32_PER_CLOCK)

    @cached_property
    def gpc_sms(self) -> tuple[int, ...]:
        """Number of multiprocessors of each GPC, largest first. The CTAs of a cluster run within one GPC.

        In every round of `tpc_rounds`, each GPC with a TPC left receives a CTA. If the rounds are not known,
        every GPC has 18 multiprocessors and the last one has the rest.

        >>> device_named("h100").gpc_sms
        (18, 18, 16, 16, 16, 16, 16, 8, 2, 2, 2, 2)
        """
        if not self.tpc_rounds:
            return (*[_GPC_SMS] * (self.sms // _GPC_SMS), self.sms % _GPC_SMS)
        return tuple(sorted([2 * pairs for pairs in Counter(self.gpc_of_tpc).values()], reverse=True))

    @cached_property
    def gpc_of_tpc(self) -> tuple[int, ...]:
        """Index of the GPC of each TPC; TPCs are sorted by their first CTA. () if that order is not known.

        A round that is shorter than the one before lacks the GPCs that came first in it. A TPC that no cluster
        of more than two CTAs reaches counts as a GPC of its own. Read from `%smid` of clusters of two to eight
        CTAs (H200 and H100, 2026-11-23).

        >>> device_named("h100").gpc_of_tpc[:20]
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11)
        """
        most = max(self.tpc_rounds, default=0)
        return tuple([most - count + place for count in self.tpc_rounds for place in range(count)])

    @cached_property
    def clusters_by_size(self) -> tuple[int, ...]:
        """Number of clusters of 0, 1, 2, ... CTAs that run at the same time, if every CTA occupies a multiprocessor.

        cudaOccupancyMaxActiveClusters returns these numbers on two H100 (2026-11-22).

        >>> device_named("h100").clusters_by_size
        (0, 132, 66, 39, 30, 22, 17, 15, 15)
        """
        return (0, *[sum(sms // size for sms in self.gpc_sms) for size in range(1, MAX_CLUSTER_CTAS + 1)])

    @property
    def l2_bytes_per_s(self) -> float:
        """Highest rate of reads from L2 by all multiprocessors together, in bytes per second."""
        return self.l2_bytes_per_clock * self.clock_mhz * 1e6

    @cached_property
    def measured(self) -> Measured:
        """Rates that kernels reach on the device.

        If they were not measured on this device, they are those of an H200, scaled by the data sheets.

        >>> [round(device_named(name).measured.tma_read_gb_s) for name in ("h200", "h100", "h100-pcie")]
        [4280, 2900, 1818]
        """
        if self.own_rates is not None:
            return self.own_rates
        base, rates = DEFAULT_DEVICE, _H200_MEASURED
        dram = self.dram_gb_s / base.dram_gb_s
        tensor = self._tensor_tflops / base._tensor_tflops
        return replace(
            rates,
            ffma_tflops=rates.ffma_tflops * self.tflops["fma.f32"] / base.tflops["fma.f32"],
            wgmma_tflops=rates.wgmma_tflops * tensor,
            tma_read_gb_s=rates.tma_read_gb_s * dram,
            thread_read_gb_s=rates.thread_read_gb_s * dram,
            repack_along_k_gb_s=rates.repack_along_k_gb_s * dram,
            repack_along_mn_gb_s=rates.repack_along_mn_gb_s * dram,
            sm_l2_gb_s=rates.sm_l2_gb_s * self.clock_mhz / base.clock_mhz,
            partials_gb_s=rates.partials_gb_s * self.l2_bytes_per_s / base.l2_bytes_per_s,
            l2_kept_bytes=rates.l2_kept_bytes * self.l2_bytes / base.l2_bytes,
        )

    @property
    def _tensor_tflops(self) -> float:
        """Peak rate of the tensor cores for bf16 in TFLOP/s: of wgmma if the device has it, else of mma.sync."""
        return self.tflops.get("wgmma.bf16", self.tflops["mma.bf16"])

    def with_sms(self, sms: int) -> Device:
        """Return the device with another number of multiprocessors, as a smaller card or a part of a card has it.

        The rate of each multiprocessor, the memory, the L2 cache and the power limit stay the same.

        sms   number of multiprocessors

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
    """Return peaks by pipe and type: `mma_half=640` stands for mma.f16 and mma.bf16, `fp8` for e4m3 and e5m2."""
    out = {}
    for key, value in tflops.items():
        pipe, kind = key.split("_")
        for name in {"half": ("f16", "bf16"), "fp8": ("e4m3", "e5m2")}.get(kind, (kind,)):
            out[f"{pipe}.{name}"] = value
    return MappingProxyType(out)


# mma.sync of float8 converts the operands to f16, so it is not faster than f16.
_H100_SXM = _peaks(
    fma_f32=66.9, fma_f64=33.5, mma_half=640, mma_tf32=320, mma_fp8=640,
    wgmma_tf32=494.7, wgmma_half=989.4, wgmma_fp8=1978.9, wgmma_s8=1978.9,
)  # fmt: skip

# One H200, 2026-11-20. All rates but two minimise the loss of `choose` on recorded times (`docs.evidence`,
# fit_sm90 and fit_simt). The FFMA loop was timed alone. cpc_bytes_per_clock follows from the times of tiles: see
# `analysis.pace`.
_H200_MEASURED = Measured(
    ffma_tflops=63.8,
    wgmma_tflops=740,
    tma_read_gb_s=4280,
    thread_read_gb_s=3800,
    repack_along_k_gb_s=4200,
    repack_along_mn_gb_s=3500,
    sm_l2_gb_s=126.3,
    partials_gb_s=3000,
    l2_kept_bytes=56e6,
    cpc_bytes_per_clock=256.0,
)

# H100 SXM, 2026-11-22 to 26. GEMV-like plans load weights at tma_read_gb_s. `choose` loses least on recorded times by
# these values of wgmma_tflops, sm_l2_gb_s and l2_kept_bytes. The other rates are those of the H200; the memory rates
# among them are scaled by the bandwidth.
_H100_MEASURED = replace(
    _H200_MEASURED,
    wgmma_tflops=730,
    tma_read_gb_s=2900,
    thread_read_gb_s=2650,
    repack_along_k_gb_s=2930,
    repack_along_mn_gb_s=2440,
    sm_l2_gb_s=110,
    l2_kept_bytes=30.6e6,
)

# 132 of the chip's 144 multiprocessors are enabled: six of its 24 CPCs have two TPCs. They differ between chips; these
# are those of one H200.
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
            "NVIDIA H100 SXM data sheet; mma and order of TPCs measured on an H200", _ROUNDS, _OF_TWO,
            _H100_MEASURED,
        ),
        Device(
            "h200", "sm_90a", 132, 60 * MIB, 2, 4800, 1980, 132 * 64, _H100_SXM,
            "NVIDIA H200 data sheet; size of L2, mma, order of TPCs measured (2026-11-20)", _ROUNDS, _OF_TWO,
            _H200_MEASURED,
        ),
    )
}  # fmt: skip

# Device for the choice of plans and for the size of a persistent grid, if no device is named
DEFAULT_DEVICE = DEVICES["h200"]

_DEFAULT = {"sm_80": "a100-80gb", "sm_86": "rtx3090", "sm_89": "rtx4090"}


def device_named(name: str) -> Device:
    """Return the device with a given name.

    name     such as h200, in any case
    raises   UnsupportedError for a name that is not in the table

    >>> device_named("h200").sms
    132
    """
    device = DEVICES.get(name.lower()) if isinstance(name, str) else None
    if device is None:
        raise UnsupportedError(f"device {name!r} is not known. Use one of {', '.join(DEVICES)}.")
    return device


def default_device(arch: str) -> Device:
    """Return the device that represents an architecture if no device is named: an H200 for sm_90 and later.

    >>> default_device("sm_80").name, default_device("sm_90a").name
    ('a100-80gb', 'h200')
    """
    name = _DEFAULT.get(arch)
    return DEFAULT_DEVICE if name is None else DEVICES[name]


def device_called(name: str, arch: str, sms: int) -> Device:
    """Return the device for a name that CUDA reports, with the given number of multiprocessors.

    name      as cudaGetDeviceProperties reports it
    arch      architecture of the device
    sms       number of multiprocessors
    returns   the device of the table whose name appears in `name`, else the one that represents the
              architecture

    >>> names = ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200")
    >>> [device_called(name, "sm_90a", 132).name for name in names]
    ['h100', 'h200', 'h200']
    >>> device_called("NVIDIA H100 PCIe", "sm_90a", 114).name, device_called("NVIDIA A10", "sm_86", 72).sms
    ('h100-pcie', 72)
    """
    words = set(name.lower().replace("-", " ").split())
    known = sorted(DEVICES, key=len, reverse=True)  # the most specific name first
    matching = next((key for key in known if words >= set(key.split("-"))), None)
    return (default_device(arch) if matching is None else DEVICES[matching]).with_sms(sms)
