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
    """Measured rates of kernels on one GPU: those that its data sheet does not have, or that no kernel reaches.

    The time models of plans use them.

    ffma_tflops            f32 rate of a loop of FFMA on registers, in TFLOP/s
    wgmma_tflops           rate of a long GEMM of 16-bit elements at the power limit, in TFLOP/s
    tma_read_gb_s          rate of TMA loads of A and B from DRAM in a GEMM, after L2 was flushed, in GB/s
    thread_read_gb_s       rate of cp.async loads of A and B from DRAM in a GEMM, in GB/s
    repack_along_k_gb_s    rate of the kernel that copies a K-major operand before the GEMM: bytes read plus written, in
                           GB/s
    repack_along_mn_gb_s   rate of that kernel for an M-major or N-major operand, in GB/s
    sm_l2_gb_s             rate of TMA loads from L2 into each multiprocessor (SM) if all of them load, in GB/s
    partials_gb_s          rate of split-K accumulators that one kernel writes to L2 and the next one reads, in GB/s
    l2_kept_bytes          largest size of A and B together, or of D, that L2 keeps from one use to the next, in bytes
    cpc_bytes_per_clock    bytes per clock that the 4 or 6 SMs of a CPC (SMs that share an L2 port) read from L2
                           together
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
    """Data of one GPU: multiprocessors (SMs), caches, bandwidths, clock and peak rates, most of them from data sheets.

    name                 name in the table, such as h200
    arch                 architecture that code is compiled for, such as sm_90a
    sms                  number of SMs
    l2_bytes             size of the whole L2 cache in bytes
    l2_partitions        number of L2 partitions; each keeps its own copy of a line that all SMs read
    dram_gb_s            memory bandwidth in GB/s
    clock_mhz            boost clock in MHz
    l2_bytes_per_clock   bytes per clock that all SMs together read from L2, at most
    tflops               peak rates in TFLOP/s; keys such as "fma.f32", "mma.bf16" or "wgmma.bf16"
    source               source of these numbers
    tpc_rounds           order of CTAs at a launch: CTAs go round by round to TPCs (pairs of SMs), one TPC of each GPC a
                         round. Entry i is the number of TPCs of round i; () if unknown
    tpcs_of_two          indices, in that order, of the TPCs whose CPC (part of a GPC) has two TPCs instead of three
    own_rates            rates measured on this device; None: see `measured`

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
        """Return the peak rate in TFLOP/s of this device for an MMA atom (instruction); None if it is not known.

        atom   decides the pipe (fma, mma or wgmma) and the operand type

        >>> from cutegemm.tile.mma_atoms import fma
        >>> device_named("h200").peak_tflops(fma("f32"))
        66.9
        """
        return self.tflops.get(f"{atom.name.split('.')[0]}.{atom.a_dtype}")

    @property
    def fp32_per_clock(self) -> int:
        """Number of scalar f32 operations, such as FFMA, that one SM of this device executes per clock.

        >>> device_named("a100-80gb").fp32_per_clock, device_named("h200").fp32_per_clock
        (64, 128)
        """
        return _FP32_PER_CLOCK_OF.get(self.arch, _FP32_PER_CLOCK)

    @cached_property
    def gpc_sms(self) -> tuple[int, ...]:
        """Number of multiprocessors (SMs) in each GPC of this device, largest first. A cluster must fit in one GPC.

        The numbers add up to the SMs of the device. They are counted from `gpc_of_tpc`, which has the GPC of each pair
        of SMs. If that is not known, every GPC is taken to have 18 SMs, and the last one has the rest.

        >>> device_named("h100").gpc_sms
        (18, 18, 16, 16, 16, 16, 16, 8, 2, 2, 2, 2)
        """
        if not self.tpc_rounds:
            return (*[_GPC_SMS] * (self.sms // _GPC_SMS), self.sms % _GPC_SMS)
        return tuple(sorted([2 * pairs for pairs in Counter(self.gpc_of_tpc).values()], reverse=True))

    @cached_property
    def gpc_of_tpc(self) -> tuple[int, ...]:
        """Index of the GPC that each TPC (pair of SMs) of this device belongs to; () if it is not known.

        Entry i is for the TPC that gets its first CTA as the i-th one at a launch. The hardware assigns these CTAs in
        rounds: each round takes one TPC from every GPC that has one left, in the same order of GPCs. E.g. GPCs of 1, 2
        and 2 TPCs give (0, 1, 2, 1, 2): a round of three GPCs, then a round without GPC 0, which has no TPC left.

        The order was read from `%smid` of clusters of two to eight CTAs (H200 and H100, 2026-11-23). A TPC that only
        clusters of at most two CTAs reach counts as a GPC of its own.

        >>> device_named("h100").gpc_of_tpc[:20]
        (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11)
        """
        most = max(self.tpc_rounds, default=0)
        return tuple([most - count + place for count in self.tpc_rounds for place in range(count)])

    @cached_property
    def clusters_by_size(self) -> tuple[int, ...]:
        """Number of clusters that run on this device at a time, by their size: entry i is for clusters of i CTAs.

        There are entries 0 to 8; entry 0 is 0. A GPC with s SMs holds s // i clusters of i CTAs, since every CTA
        occupies a whole SM. cudaOccupancyMaxActiveClusters returns these numbers on two H100 (2026-11-22).

        >>> device_named("h100").clusters_by_size
        (0, 132, 66, 39, 30, 22, 17, 15, 15)
        """
        return (0, *[sum(sms // size for sms in self.gpc_sms) for size in range(1, MAX_CLUSTER_CTAS + 1)])

    @property
    def l2_bytes_per_s(self) -> float:
        """Largest rate at which all multiprocessors of this device together read from L2, in bytes per second."""
        return self.l2_bytes_per_clock * self.clock_mhz * 1e6

    @cached_property
    def measured(self) -> Measured:
        """Rates that kernels reach on this device, such as DRAM reads by TMA loads in a GEMM.

        A device that was not measured has the rates of an H200, each scaled by the ratio of the two devices' data
        sheets.

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
        """Peak rate of this device's tensor cores for bf16 in TFLOP/s: by wgmma if it has wgmma, else by mma.sync."""
        return self.tflops.get("wgmma.bf16", self.tflops["mma.bf16"])

    def with_sms(self, sms: int) -> Device:
        """Return this device with another number of multiprocessors (SMs), e.g. for a smaller card or part of a card.

        Peak rates and the L2 rate are scaled. The rates of each SM, the memory, the size of L2 and the power limit stay
        the same.

        sms   new number of SMs

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
    """Return peak rates as a mapping for `Device.tflops`, e.g. `mma_half=640` as {"mma.f16": 640, "mma.bf16": 640}.

    tflops   rates in TFLOP/s; a keyword is an instruction (fma, mma, wgmma), "_" and an operand type. The type half
             means f16 and bf16; fp8 means e4m3 and e5m2
    """
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
    """Return the data of a GPU (SMs, cache, bandwidth, peak rates), looked up by its short name.

    name     such as "h200", in upper or lower case
    raises   UnsupportedError for a name that is not in the table; the message lists the known names

    >>> device_named("h200").sms
    132
    """
    device = DEVICES.get(name.lower()) if isinstance(name, str) else None
    if device is None:
        raise UnsupportedError(f"device {name!r} is not known. Use one of {', '.join(DEVICES)}.")
    return device


def default_device(arch: str) -> Device:
    """Return the GPU that stands for an architecture if the user names none: an H200 for sm_90 and later.

    sm_80, sm_86 and sm_89 have an A100, an RTX 3090 and an RTX 4090. Any other architecture has the H200.

    arch   name of the architecture, such as sm_80

    >>> default_device("sm_80").name, default_device("sm_90a").name
    ('a100-80gb', 'h200')
    """
    name = _DEFAULT.get(arch)
    return DEFAULT_DEVICE if name is None else DEVICES[name]


def device_called(name: str, arch: str, sms: int) -> Device:
    """Return the table entry for a GPU whose name CUDA reports, with the given number of multiprocessors (SMs).

    name   as cudaGetDeviceProperties reports it, e.g. "NVIDIA H100 80GB HBM3"
    arch   architecture of the device, e.g. sm_90a; if no entry matches `name`, the default device of this architecture
           is used
    sms    number of SMs; if the entry has another number, its peak rates and L2 rate are scaled to this one

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
