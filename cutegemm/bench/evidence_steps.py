"""What `cutegemm bench evidence` remakes: a row for each file of docs/benchmarks, the most telling ones first.

Seconds are those of an H200 with 16 cores and an empty cache of kernels: 2026-11-20.
"""

from __future__ import annotations

from dataclasses import dataclass

GPU, HOPPER, NCU, SANITIZER = "a GPU", "an sm_90a GPU", "ncu", "compute-sanitizer"
_LIMIT_FACTOR, _LIMIT_SECONDS = 3, 30


@dataclass(frozen=True)
class Step:
    """A file of measurements, and the command that makes it.

    name       of the file, without .json
    proves     what it shows
    argv       arguments of Python, run in an empty folder, where it writes `name`.json
    seconds    that it is expected to take
    needs      of the machine: GPU, HOPPER, NCU, SANITIZER
    prints     whether the command prints the file instead
    statuses   with which the command ends where the file is whole
    """

    name: str
    proves: str
    argv: tuple[str, ...]
    seconds: float
    needs: tuple[str, ...] = ()
    prints: bool = False
    statuses: tuple[int, ...] = (0,)

    @property
    def limit_seconds(self) -> float:
        """After so long it hangs."""
        return _LIMIT_FACTOR * self.seconds + _LIMIT_SECONDS


def _gemm(name: str, proves: str, seconds: float, options: str, needs: tuple[str, ...] = (HOPPER,)) -> Step:
    argv = ("-m", "cutegemm.bench.gemm", *options.split(), "--json", f"{name}.json")
    return Step(name, proves, argv, seconds, needs)


def _ladder(name: str, proves: str, seconds: float, needs: tuple[str, ...] = (GPU,)) -> Step:
    argv = ("-m", "cutegemm", "bench", "ladder", name, "--json")
    return Step(f"ladder_{name}", proves, argv, seconds, needs, prints=True)


def _counters(group: str, proves: str, seconds: float) -> Step:
    argv = ("-m", "cutegemm.profile", group, "--device", "h200", "--out", ".")
    # It ends with 1 where a counter is not what was predicted: the file says so, and the page.
    return Step(f"analysis_{group}", proves, argv, seconds, (HOPPER, NCU), statuses=(0, 1))


def _cpu(name: str, proves: str, seconds: float) -> Step:
    return Step(name, proves, ("-m", "cutegemm", "bench", name, "--json"), seconds, prints=True)


_BF16 = "--dtype bfloat16 --layout nt"
_FP8 = "--shape 4096 --shape 8192 --dtype float8_e4m3fn --layout nt --plan @sm90_fp8 --plan chosen"
_LLAMA_PLANS = " ".join(
    f"--plan {name}"
    for name in (
        "chosen", "sm90_cluster_2x1", "sm90_cooperative_2x1", "sm90_wide_2x1", "sm90_tall_1x2", "sm90_256x160",
        "sm90_64x64", "sm90_64x128",
    )
)  # fmt: skip
_MMA_PLANS = "--shape 4096 --layout nt --plan tensorop_* --plan mma_*"
_POWER = (
    "--shape 4096 --shape 8192 --layout nt --plan mma_128x256 --plan mma_256x128 --plan mma_tma_* --seconds 0.3 "
    "--power 1.5"
)

STEPS: tuple[Step, ...] = (
    _gemm(
        "hopper",
        "bf16 by wgmma beside cuBLAS: K from 64 to 2048, and squares",
        25,
        f"--suite sweep --suite squares {_BF16} --plan chosen --plan sm90_slots --seconds 0.4",
    ),
    Step(
        "simt",
        "f32 beside cuBLAS: squares, unaligned, skinny, deep, batched",
        ("-m", "cutegemm.bench.simt", "--json", "simt.json"),
        100,
        (GPU,),
    ),
    _gemm(
        "simt_host",
        "host time of a call",
        20,
        "--shape 4096 --shape 8192 --plan chosen --host --seconds 0.4",
        (GPU,),
    ),
    _gemm(
        "hopper_llama",
        "bf16: the sizes of language models, and small ones",
        45,
        f"--suite llama --suite small {_BF16} {_LLAMA_PLANS} --seconds 0.2",
    ),
    _gemm(
        "hopper_split",
        "bf16, few tiles: K split among CTAs",
        45,
        f"--suite small {_BF16} --plan @sm90_split --plan chosen --seconds 0.2",
    ),
    _gemm(
        "hopper_stream",
        "bf16, the sizes of language models: k-tiles divided evenly among CTAs",
        50,
        f"--suite llama {_BF16} --plan @sm90_stream --plan chosen --seconds 0.2",
    ),
    _gemm("hopper_fp8", "e4m3 beside the library without fast accumulation", 25, f"{_FP8} --seconds 0.3"),
    _gemm(
        "hopper_fp8_fast",
        "e4m3 beside the library with fast accumulation",
        20,
        f"{_FP8} --fast-accum --seconds 0.3",
    ),
    _gemm(
        "hopper_ladder",
        "each step of the Hopper ladder",
        50,
        f"--suite sweep --suite squares {_BF16} --plan sm90_* --plan chosen --seconds 0.3",
    ),
    _gemm(
        "mma_ladder_tf32",
        "each step of the mma.sync ladder, tf32",
        35,
        f"--dtype tf32 {_MMA_PLANS} --seconds 0.3",
        (GPU,),
    ),
    _gemm(
        "mma_ladder_bf16",
        "each step of the mma.sync ladder, bf16",
        35,
        f"--dtype bfloat16 {_MMA_PLANS} --seconds 0.3",
        (GPU,),
    ),
    _ladder("simt", "each step of the SIMT ladder: speed, resources, predictions, counters", 120),
    _ladder("mma_tf32", "each step of the mma.sync ladder, tf32: resources, predictions, counters too", 100),
    _ladder("mma_bf16", "each step of the mma.sync ladder, bf16: resources, predictions, counters too", 100),
    _gemm(
        "mma_power_tf32", "mma.sync by itself, tf32: clock and power", 30, f"--dtype tf32 {_POWER}", (GPU,)
    ),
    _gemm(
        "mma_power_bf16",
        "mma.sync by itself, bf16: clock and power",
        30,
        f"--dtype bfloat16 {_POWER}",
        (GPU,),
    ),
    _counters("plans", "predictions beside counters: 33 SIMT plans", 50),
    _counters("mma", "predictions beside counters: mma.sync plans", 30),
    _counters("hopper", "predictions beside counters: Hopper plans", 25),
    _counters("traffic", "predicted and counted traffic of DRAM", 35),
    _counters("probes", "predicted and counted wavefronts of single instructions", 60),
    Step(
        "sanitize",
        "small plans of every family under compute-sanitizer",
        ("-m", "cutegemm.profile", "sanitize", "--out", "."),
        240,
        (HOPPER, SANITIZER),
        statuses=(0, 1),
    ),
    _cpu("algebra", "the algebra beside pycute and tensor-layouts", 15),
    _cpu("simulate", "time and memory of the simulator", 10),
)
