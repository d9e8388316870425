"""Steps of `python -m docs.evidence run`: one for each file of docs/evidence/data, the most important ones first.

Seconds are the times on an H200 with 16 cores (2026-11-20), with most kernels compiled anew, plus a quarter.
"""

from __future__ import annotations

from dataclasses import dataclass

from docs.evidence.counters.random_plans import DEVICES, FAMILIES

GPU, HOPPER, TWO_GPUS = "a GPU", "an sm_90a GPU", "two GPUs"
NCU, SANITIZER = "ncu", "compute-sanitizer"
_LIMIT_FACTOR, _LIMIT_SECONDS = 3, 30


@dataclass(frozen=True)
class Step:
    """A file of measurements, and the command that makes it.

    name       name of the file, without .json
    proves     what it shows
    argv       arguments of Python, run in an empty folder, where it writes `name`.json
    seconds    expected time
    needs      requirements on the machine: GPU, HOPPER, TWO_GPUS, NCU, SANITIZER
    prints     whether the command prints the file instead of writing it
    statuses   exit statuses with which the file is complete
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
        """Time limit of the command, in seconds."""
        return _LIMIT_FACTOR * self.seconds + _LIMIT_SECONDS


def _gemm(name: str, seconds: float, proves: str, options: str, needs: tuple[str, ...] = (HOPPER,)) -> Step:
    argv = ("-m", "docs.evidence", "gemm", *options.split(), "--json", f"{name}.json")
    return Step(name, proves, argv, seconds, needs)


def _choice(name: str, seconds: float, proves: str, options: str) -> Step:
    argv = ("-m", "docs.evidence", "choice", *options.split(), "--json", f"{name}.json")
    return Step(name, proves, argv, seconds, (HOPPER,))


def _ladder(name: str, seconds: float, proves: str) -> Step:
    argv = ("-m", "docs.evidence", "ladder", name, "--json")
    proves = f"each step of the {proves}: speed, resources, predictions, counters"
    return Step(f"ladder_{name}", proves, argv, seconds, (GPU,), prints=True)


def _counters(group: str, seconds: float, proves: str) -> Step:
    argv = ("-m", "docs.evidence", "counters", group, "--device", "h200", "--out", ".")
    # It ends with 1 where a counter is not what was predicted: the file says so, and the page.
    return Step(f"analysis_{group}", proves, argv, seconds, (HOPPER, NCU), statuses=(0, 1))


def _proof(family: str, device: str) -> Step:
    options = ("--family", family, "--plans", "60", "--seed", "2026", "--device", device, "--out", ".")
    proves = f"predictions next to counters: 60 random plans and ragged problems, {family}, on an {device}"
    # As for the counters of plans that were chosen.
    return Step(
        f"proof_{family}_{device}",
        proves,
        ("-m", "docs.evidence", "proof", *options),
        50,
        (HOPPER, NCU),
        statuses=(0, 1),
    )


_BF16 = "--dtype bfloat16 --layout nt"
_LAYOUTS = "--layout nt --layout nn --layout tn --layout tt"
_FP8 = "--shape 4096 --shape 8192 --dtype float8_e4m3fn --layout nt --plan @sm90_fp8 --plan chosen --seconds 0.3"
_LLAMA_PLANS = (
    "--plan chosen --plan sm90_cluster_2x1 --plan sm90_fixup --plan sm90_wide_2x1 --plan sm90_wide_2x1/fixup "
    "--plan sm90_overlapped_2x1 --plan sm90_overlapped_2x1/fixup --plan sm90_overlapped_tall_1x2/fixup "
    "--plan sm90_128x176_2x1 --plan sm90_128x176_2x1/fixup"
)
_SMALL_PLANS = (
    "--plan chosen --plan sm90_64* --plan sm90_cluster_2x1 --plan sm90_epi_stages --plan swap_ab:sm90_64x16 "
    "--plan swap_ab:sm90_64x32"
)
_ASKED = (
    "--shape 768x3072x16384 --shape 777x11008x4096 --shape 1024 --shape 1536 --shape 2048 --shape 3072 --shape 4096 "
    "--shape 5000 --shape 6144 --shape 8192 --shape 16384 --shape 5120x5120x2048 --shape 2048x4096x11008 "
    "--shape 25088x256x2304 --shape 64x2112x7168 --shape 512x4096x4096 --shape 256x8192x28672"
)
_HARD = (
    "--shape 777x11008x4096 --shape 768x3072x16384 --shape 1536 --shape 25088x256x2304 --shape 2320x2064x7072 "
    "--shape 5120x5120x2048 --shape 1984x496x3200 --shape 608x5536x768 --shape 2048 --shape 4096 --shape 5000"
)
_LOST = (
    "--shape 3408x400x14624 --shape 2432x688x2816 --shape 624x896x1744 --shape 640x1152x4848 --shape 2352x720x1728 "
    "--shape 1040x6464x1360 --shape 8944x2352x5264 --shape 848x32x7728"
)
_LARGE = (
    "--shape 2336x1088x2224 --shape 8000x320x6320 --shape 3160x1256x6856 --shape 5376x3040x448 "
    "--shape 1120x2880x8192 --shape 1712x1568x1200 --shape 2616x3440x12120 --shape 1880x3752x4328 "
    "--shape 4016x320x5216 --shape 3216x6224x2640 --shape 2096x2336x3216 --shape 3040x8128x6128 "
    "--shape 392x2728x5504 --shape 3024x2160x776 --shape 384x1248x6912 --shape 2520x984x10112 "
    "--shape 5144x560x1144 --shape 3560x3360x4336 --shape 1760x3976x1520 --shape 432x4896x2368 "
    "--shape 2544x1424x4520 --shape 7888x480x1440 --shape 848x6984x688 --shape 2368x1360x1936 "
    "--shape 320x1584x10576 --shape 1904x368x8256 --shape 5824x616x1112 --shape 4688x928x4592 "
    "--shape 2848x1744x9216 --shape 5320x4976x872 --shape 6208x4192x688 --shape 4336x2896x864 "
    "--shape 5472x3840x1328 --shape 5952x2264x4840 --shape 2424x1920x7120 --shape 1752x5384x584 "
    "--shape 1696x1088x3968 --shape 936x5136x2000 --shape 2304x5152x2944 --shape 3312x800x1576 "
    "--shape 1312x488x6040 --shape 2496x1728x9600 --shape 5440x1056x592 --shape 816x5080x10704"
)
_LARGER = (
    "--shape 944x4312x1552 --shape 320x3200x9520 --shape 512x1568x8720 --shape 4328x3704x10288 "
    "--shape 432x3856x2864 --shape 2304x256x5552 --shape 3328x4160x9984 --shape 5360x4880x5808 "
    "--shape 6336x1136x4576 --shape 1456x4944x1904 --shape 800x1936x8640 --shape 1088x1136x11056 "
    "--shape 6432x1696x11968 --shape 488x5456x2200 --shape 704x5760x2288 --shape 1488x5136x992 "
    "--shape 5632x3376x4224 --shape 6704x680x992 --shape 2320x1168x2480 --shape 4320x768x7360 "
    "--shape 576x1184x11552 --shape 7648x4720x2656 --shape 736x768x10784 --shape 7584x1664x3400 "
    "--shape 3640x328x4784 --shape 3712x256x5840 --shape 336x3152x4080 --shape 3496x2536x616 "
    "--shape 1640x976x2288 --shape 1472x1528x3064 --shape 2352x4704x4496 --shape 768x3200x1968 "
    "--shape 488x7928x1920 --shape 5536x400x4736 --shape 2080x5376x9744 --shape 1888x2176x2768 "
    "--shape 968x960x3328 --shape 3456x432x10224 --shape 280x5704x3072 --shape 2848x2072x3080 "
    "--shape 5992x1616x808 --shape 912x5856x1232 --shape 736x2224x10512 --shape 4512x7008x928"
)
_SHORT = (
    "--shape 224x11904x80 --shape 14592x256x48 --shape 4096x1024x64 --shape 512x8192x96 --shape 8192x512x128 "
    "--shape 2048x2048x48 --shape 3072x768x112 --shape 320x6400x160 --shape 6400x1600x32 --shape 1200x1200x240"
)
_RAGGED = (
    "--shape 277x89x2125 --shape 566x8260x45 --shape 4872x201x15604 --shape 1179x206x1365 --shape 14271x27x144 "
    "--shape 1157x221x7353 --shape 976x731x210 --shape 219x46x5681 --shape 657x141x5067 "
    "--shape 1041x14976x1667 --shape 1862x1380x20 --shape 29x469x1680 --shape 4865x4029x239 "
    "--shape 688x38x4804 --shape 102x13641x1094 --shape 2532x228x53 --shape 3554x990x127 --shape 2415x970x82 "
    "--shape 1301x518x1541 --shape 6429x283x201"
)
_CLUSTERED = (
    "--shape 1232x400x8784 --shape 2400x240x3536 --shape 48x3520x3648 --shape 400x4416x848 --shape 13568x80x1616 "
    "--shape 1824x48x7440 --shape 160x6784x480 --shape 896x48x10512"
)
_FEW = " ".join(
    f"--shape {mnk}"
    for mnk in (
        "16x4096x4096", "16x8192x8192", "16x28672x8192", "16x8192x28672", "16x14336x4096", "16x4096x14336",
        "16x6144x2048", "16x2048x8192", "16x1024x4096", "12x5120x5120", "32x4096x4096", "32x14336x4096",
    )
)  # fmt: skip
_POWER = (
    "--shape 4096 --shape 8192 --layout nt --plan mma_128x256 --plan mma_256x128 --plan mma_tma_* --seconds 0.3 "
    "--power 1.5"
)

_SMALL = " ".join(
    f"--shape {mnk}"
    for mnk in (
        "24x40x640", "32x96x1040", "256x32x1536", "64x64x2048", "48x192x3072", "64x64x4096", "128x32x8192",
        "288x16x10272", "112x32x12032", "16x368x15792", "48x16x16160",
    )
)  # fmt: skip

STEPS: tuple[Step, ...] = (
    _choice(
        "choice_h200", 140, "the choice on problems that nobody picked",
        "--seed 150 --count 300 --seconds 0.05 --tune-below 0.97"
    ),
    _choice(
        "choice_classes_h200", 150, "the choice on sizes that were asked for, and what it is fitted to",
        f"{_ASKED} --dtype bfloat16 --tune-below 1.015 --seconds 0.12",
    ),
    _choice(
        "choice_classes_h100", 200, "the same, of an H100",
        f"{_ASKED} --dtype bfloat16 --tune-below 1.015 --seconds 0.12",
    ),
    _choice(
        "choice_h100", 140, "the same, of an H100", "--seed 155 --count 300 --seconds 0.05 --tune-below 0.97"
    ),
    _choice(
        "choice_fit_h200", 150, "what the choice is fitted to",
        "--seed 2 --count 160 --first 12 --others 8 --times",
    ),
    _choice(
        "choice_fit_h100", 150, "the same, of an H100", "--seed 3 --count 160 --first 12 --others 8 --times"
    ),
    *[
        _choice(
            f"choice_fit_seed1_{chip}", 100, f"the same: more problems, of an {chip.upper()}",
            "--seed 1 --count 300 --first 8 --times",
        )
        for chip in ("h200", "h100")
    ],
    _choice(
        "choice_fit_seed33_h100", 50, "the same: plans that a later model ranks first, of an H100",
        "--seed 33 --count 64 --first 9 --others 3 --seconds 0.05 --times",
    ),
    *[
        _choice(
            f"choice_fit_seed{seed}_{chip}", 75, f"the same: what a later model chose, of an {chip.upper()}",
            f"--seed {seed} --count 300 --first 3 --times",
        )
        for seed, chip in ((101, "h200"), (102, "h100"))
    ],
    _choice(
        "choice_fit_seed301_h100", 130, "the same: plans in clusters of four, of an H100",
        "--seed 301 --count 110 --first 20 --others 6 --seconds 0.08 --times",
    ),
    _choice(
        "choice_fit_seed601_h200", 120, "f32 alone",
        "--seed 601 --count 360 --dtype float32 --first 10 --others 8 --times --seconds 0.12",
    ),
    _choice(
        "choice_fit_seed121_h200", 220, "the same: what lost by a later model, and what the tuner timed of it",
        "--seed 121 --count 300 --tune-below 0.98 --seconds 0.08",
    ),
    *[
        _choice(
            f"choice_fit_shared_{chip}", 90, "the same: few tiles with a deep K, by plans of each way to take K",
            f"--seed {seed} --count {count} --deep --ways 4 --seconds 0.2 --times",
        )
        for chip, seed, count in (("h200", 801, 220), ("h100", 802, 230))
    ],
    _choice(
        "choice_fit_shared_small_h100", 120, "the same: of these the small ones, by plans of each family",
        "--seed 803 --count 600 --small --deep --each 4 --seconds 0.12 --times",
    ),
    _choice(
        "choice_fit_few_h200", 30, "the same: few rows by large weights",
        f"{_FEW} --layout nt --dtype bfloat16 --first 12 --seconds 0.12 --times",
    ),
    _choice(
        "choice_fit_seed401_h200", 140, "the same: plans in clusters of four and eight",
        "--seed 401 --count 191 --dtype bfloat16 --dtype float16 --dtype float8_e4m3fn --dtype tf32 --first 14 "
        "--others 8 --seconds 0.06 --times",
    ),
    *[
        _choice(
            f"choice_fit_seed201_{chip}", 130, f"the same: plans of one warpgroup, of an {chip.upper()}",
            "--seed 201 --count 300 --first 18 --seconds 0.06 --times",
        )
        for chip in ("h200", "h100")
    ],
    *[
        _choice(
            f"choice_fit_clusters_{chip}", 55,
            f"the same: tiles of any width in clusters of four and eight, of an {chip.upper()}",
            f"{_CLUSTERED} {_LAYOUTS} --first 12 --seconds 0.1 --times",
        )
        for chip in ("h200", "h100")
    ],
    _choice(
        "choice_fit_regressions_h100", 100, "the same: problems of these seeds that were chosen badly, of an H100",
        f"{_LOST} {_LAYOUTS} --first 24 --times",
    ),
    _choice(
        "choice_fit_lines_h100", 150, "the same: large problems, some of whose rows begin at no sector, of an H100",
        f"{_LARGE} --layout tn --layout nt --first 18 --others 6 --seconds 0.25 --times",
    ),
    _choice(
        "choice_fit_lines_more_h100", 190, "the same: more of them, of an H100",
        f"{_LARGER} --layout tn --layout nn --layout tt --first 16 --others 5 --seconds 0.2 --times",
    ),
    _choice(
        "choice_fit_small_h100", 90, "the same: small problems of bf16, by plans of each family, of an H100",
        "--seed 502 --count 260 --small --each 8 --dtype bfloat16 --seconds 0.06 --times",
    ),
    _choice(
        "choice_fit_gemv_h100", 60, "small problems, and plans with cluster split-K, of an H100",
        f"{_SMALL} --layout nt --dtype bfloat16 --dtype float8_e4m3fn --dtype tf32 --first 30 --times",
    ),
    _choice(
        "choice_fit_families_h200", 100, "the same: small problems, and plans of each family",
        "--seed 77 --count 160 --small --each 5 --times",
    ),
    _choice(
        "choice_fit_layers_h100", 120, "the same: linear layers of public models, of an H100",
        "--layers --seed 2611 --count 150 --first 9 --others 5 --seconds 0.3 --times --limit 540",
    ),
    _choice(
        "choice_layers_h100", 150, "linear layers of public models that nothing is fitted to, of an H100",
        "--layers --seed 3107 --count 60 --first 9 --seconds 0.3 --times --limit 150",
    ),
    _choice(
        "choice_fit_hard", 120, "the same: sizes that were chosen badly",
        f"{_HARD} --layout nt --layout tn --first 64 --times",
    ),
    Step(
        "scaled_h100", "block-scaled fp8 GEMMs and torch's scaled_mm, of an H100",
        ("-m", "docs.evidence", "scaled", "--json", "scaled_h100.json"), 200, (HOPPER,),
    ),
    Step(
        "scaled_random_h100", "the same: 300 random problems, by the plan that `gemm` chooses, of an H100",
        ("-m", "docs.evidence", "scaled", "--seed", "1", "--count", "300", "--json", "scaled_random_h100.json"), 250,
        (HOPPER,),
    ),
    Step(
        "grouped_h100", "grouped GEMMs, torch's grouped_mm, and a loop over the groups, of an H100",
        ("-m", "docs.evidence", "grouped", "--json", "grouped_h100.json"), 120, (HOPPER,),
    ),
    Step(
        "grouped_random_h100", "the same: 20 random problems whose groups divide rows or K, of an H100",
        (
            "-m", "docs.evidence", "grouped", "--form", "m", "--form", "k", "--random", "20", "--seed", "7", "--plans",
            "0", "--seconds", "0.2", "--json", "grouped_random_h100.json",
        ), 100, (HOPPER,),
    ),
    Step(
        "experts_h100", "mixtures of experts, and eager torch with its grouped_mm, of an H100",
        ("-m", "docs.evidence", "experts", "--json", "experts_h100.json"), 150, (HOPPER,),
    ),
    Step(
        "gathered_h100", "the first product of these mixtures, with tokens that are gathered or copied, of an H100",
        ("-m", "docs.evidence", "gathered", "--json", "gathered_h100.json"), 100, (HOPPER,),
    ),
    Step(
        "ranks_h100", "GEMMs of two GPUs, NCCL with cuBLAS, and torch's fused operators, of two H100",
        ("-m", "docs.evidence", "ranks", "--json", "ranks_h100.json"), 150, (HOPPER, TWO_GPUS),
    ),
    Step(
        "ranks_random_h100", "the same: 60 random problems, of two H100",
        ("-m", "docs.evidence", "ranks", "--seed", "1", "--count", "60", "--json", "ranks_random_h100.json"), 240,
        (HOPPER, TWO_GPUS),
    ),
    Step(
        "instructions", "which properties of an MMA instruction change the bits of D",
        ("-m", "docs.evidence", "instructions", "--json", "instructions.json"), 60, (HOPPER,),
    ),
    Step(
        "invariant_h100", "batch-invariant GEMMs, those chosen freely, and cuBLAS, of an H100",
        ("-m", "docs.evidence", "invariant", "--json", "invariant_h100.json"), 240, (HOPPER,),
    ),
    Step(
        "decode", "few rows by many weights, in one CUDA graph",
        ("-m", "docs.evidence", "decode", "--json", "decode.json"), 40, (HOPPER,),
    ),
    Step(
        "decode_random", "the same of rows and weights that are drawn",
        ("-m", "docs.evidence", "decode", "--seed", "1", "--count", "60", "--json", "decode_random.json"), 50,
        (HOPPER,),
    ),
    Step(
        "chain", "GEMMs one after the other, in one CUDA graph",
        ("-m", "docs.evidence", "chain", "--json", "chain.json"), 40, (HOPPER,),
    ),
    _gemm(
        "hopper", 15, "bf16 by wgmma and cuBLAS: K from 64 to 2048, and squares",
        f"--suite sweep --suite squares {_BF16} --plan chosen --plan sm90_epi_stages --plan sm90_wide_along_n_1x2 "
        "--plan sm90_cluster_2x1 --seconds 0.4",
    ),
    _gemm(
        "hopper_alone", 45, "bf16, short K: each kernel by itself, with clock and power",
        f"--shape 8448x9216x64 --shape 8448x9216x128 --shape 8448x9216x256 {_BF16} --plan chosen "
        "--plan sm90_wide_along_n_1x2 --seconds 0.3 --power 1.5",
    ),
    Step(
        "simt_fit_small_h100", "what the choice among SIMT plans is fitted to: small and middling problems",
        ("-m", "docs.evidence", "fit-simt", "--measure", "simt_fit_small_h100.json"), 60, (GPU,),
    ),
    Step(
        "simt_fit_short_h100", "the same: problems with a short K, of an H100",
        ("-m", "docs.evidence", "fit-simt", "--measure", "simt_fit_short_h100.json", "--seed", "901", "--short"), 600,
        (GPU,),
    ),
    *[
        Step(
            f"simt_fit_twelve_{chip}", f"the same: tiles of twelve rows or columns a thread, of an {chip.upper()}",
            ("-m", "docs.evidence", "fit-simt", "--measure", f"simt_fit_twelve_{chip}.json", "--seed", seed), 60,
            (GPU,),
        )
        for chip, seed in (("h200", "950"), ("h100", "951"))
    ],
    _choice(
        "simt_fit_hard_h100", 60, "the same: problems that were chosen badly, of an H100",
        f"{_LOST} {_LAYOUTS} --dtype float32 --first 40 --times",
    ),
    _choice(
        "mma_sync_fit_hard_h100", 60, "the same of plans by mma.sync, of an H100",
        f"{_LOST} {_LAYOUTS} --dtype tf32 --dtype bfloat16 --first 40 --times",
    ),
    _choice(
        "mma_sync_fit_short_h100", 50, "the same: tf32 with a short K, by plans of each family, of an H100",
        f"{_SHORT} --layout tn --layout nn --layout tt --dtype tf32 --each 9 --seconds 0.1 --times",
    ),
    _choice(
        "mma_sync_fit_ragged_h100", 300, "the same: rows that TMA does not load, by plans of each family, of an H100",
        f"{_RAGGED} {_LAYOUTS} --dtype bfloat16 --dtype tf32 --each 9 --seconds 0.08 --times",
    ),
    _choice(
        "simt_fit_repacked_h100", 60, "the same: plans that pack operands, of an H100",
        "--seed 302 --count 106 --first 12 --times",
    ),
    Step(
        "simt", "f32 and cuBLAS: squares, unaligned, skinny, deep, batched",
        ("-m", "docs.evidence", "simt", "--json", "simt.json"), 80, (GPU,),
    ),
    _gemm(
        "simt_host", 15, "host time of a call",
        "--shape 4096 --shape 8192 --plan chosen --host --seconds 0.4", (GPU,),
    ),
    _gemm(
        "hopper_llama", 30, "bf16: the sizes of language models",
        f"--suite llama {_BF16} {_LLAMA_PLANS} --seconds 0.5",
    ),
    _gemm(
        "hopper_small", 20, "bf16: few rows, and small problems",
        f"--suite small {_BF16} {_SMALL_PLANS} --seconds 0.3",
    ),
    _gemm(
        "hopper_shapes", 20, "bf16: sizes of all kinds", f"--suite shapes {_BF16} --plan chosen --seconds 0.3",
    ),
    _gemm(
        "hopper_tiles", 90, "bf16: every tile on sizes of all kinds, which the choice is fitted to",
        f"--suite shapes --suite sweep --shape 4096 --shape 8192 {_BF16} --plan @sm90_tiles --seconds 1.2 --times",
    ),
    _gemm(
        "hopper_tf32", 40, "tf32, every layout: by wgmma, an m-major A out of registers, and packed first",
        "--shape 1024 --shape 2048 --shape 4096 --shape 8192 --shape 1856x14176x7232 --shape 11712x624x11952 "
        f"--dtype tf32 {_LAYOUTS} --plan chosen --plan sm90_overlapped_2x1+repack --seconds 0.1",
    ),
    _gemm(
        "hopper_unaligned", 20, "bf16 rows that TMA cannot load, packed first",
        f"--shape 1001x1003x997 --shape 4097x4095x4093 --dtype bfloat16 {_LAYOUTS} --plan chosen --seconds 0.4",
    ),
    _gemm("hopper_fp8", 20, "e4m3 and the library without fast accumulation", _FP8),
    _gemm("hopper_fp8_fast", 12, "e4m3 and the library with fast accumulation", f"{_FP8} --fast-accum"),
    _gemm(
        "hopper_ladder", 30, "each step of the Hopper ladder: speed",
        f"--suite sweep --suite squares {_BF16} --plan sm90_* --plan chosen --seconds 0.3",
    ),
    _ladder("simt", 60, "SIMT ladder"),
    _ladder("mma_tf32", 50, "mma.sync ladder, tf32, and named plans"),
    _ladder("mma_bf16", 50, "mma.sync ladder, bf16, and named plans"),
    *(
        _gemm(
            f"mma_layouts_{name}", 25, f"mma.sync, {name}, every layout; with --peer also CUTLASS's example",
            f"--shape 4096 --shape 8192 --dtype {dtype} {_LAYOUTS} --plan mma_tma_256x128 --plan mma_tma_128x256 "
            "--seconds 0.5",
        )
        for name, dtype in (("bf16", "bfloat16"), ("f16", "float16"), ("tf32", "tf32"))
    ),
    _gemm(
        "mma_power_tf32", 40, "mma.sync by itself, tf32: clock and power", f"--dtype tf32 {_POWER}", (GPU,)
    ),
    _gemm(
        "mma_power_bf16", 40, "mma.sync by itself, bf16: clock and power", f"--dtype bfloat16 {_POWER}", (GPU,)
    ),
    Step(
        "mma_sync_fit", "mma.sync, what wgmma does not take as it is: times that the choice is fitted to",
        ("-m", "docs.evidence", "fit-mma-sync", "--measure", "mma_sync_fit.json"), 80, (HOPPER,),
    ),
    Step(
        "epilogues", "GEMMs with an epilogue compared with torch: eager, compiled, and cuBLASLt's",
        ("-m", "docs.evidence", "epilogues", "--json", "epilogues.json"), 90, (HOPPER,),
    ),
    Step(
        "epilogues_f32_h100", "the same of f32 by SIMT, of an H100",
        ("-m", "docs.evidence", "epilogues", "--dtype", "float32", "--json", "epilogues_f32_h100.json"), 60, (HOPPER,),
    ),
    Step(
        "models", "models of the sizes of Llama and GPT-2 before and after `use(model)`: errors, tokens per second",
        ("-m", "docs.evidence", "models", "--model", "llama", "--model", "gpt2", "--json", "models.json"),
        180, (HOPPER,),
    ),
    Step(
        "models_gpt2_h100", "the same of GPT-2 alone, of an H100",
        ("-m", "docs.evidence", "models", "--model", "gpt2", "--json", "models_gpt2_h100.json"), 90, (HOPPER,),
    ),
    Step(
        "models_llama_h100", "the same of four layers of transformers' Llama, with prefill and decode, of an H100",
        ("-m", "docs.evidence", "models", "--model", "llama", "--json", "models_llama_h100.json"), 120, (HOPPER,),
    ),
    Step(
        "models_qwen3_moe_h100", "the same of a mixture of experts of transformers, of an H100",
        ("-m", "docs.evidence", "models", "--model", "qwen3_moe", "--json", "models_qwen3_moe_h100.json"),
        150, (HOPPER,),
    ),
    Step(
        "start_h100", "time until calls run at full speed, with and without a prebuilt library, of an H100",
        ("-m", "docs.evidence", "start", "--library", "prebuilt", "--json", "start_h100.json"), 500, (HOPPER,),
    ),
    Step(
        "prebuilt_h100", "plans of a prebuilt library and those chosen freely, on other models, of an H100",
        ("-m", "docs.evidence", "prebuilt", "--library", "prebuilt", "--measure", "60", "--json", "prebuilt_h100.json"),
        300, (HOPPER,),
    ),
    Step(
        "prebuilt_predicted_h100",
        "share of the calls of other models that a prebuilt library serves, and their predicted loss, of an H100",
        ("-m", "docs.evidence", "prebuilt", "--device", "h100", "--json", "prebuilt_predicted_h100.json"), 150,
    ),
    *(_proof(family, device) for device in DEVICES for family in FAMILIES),
    _counters("plans", 55, "predictions next to counters: 33 SIMT plans"),
    _counters("mma", 30, "predictions next to counters: mma.sync plans"),
    _counters("hopper", 25, "predictions next to counters: Hopper plans"),
    _counters("traffic", 40, "predicted and counted traffic of DRAM"),
    _counters("probes", 55, "predicted and counted wavefronts of single instructions"),
    Step(
        "sanitize", "small plans of every family under compute-sanitizer",
        ("-m", "docs.evidence", "sanitize", "--out", "."), 160, (HOPPER, SANITIZER), statuses=(0, 1),
    ),
    Step(
        "choosing", "how long a choice takes", ("-m", "docs.evidence", "choosing", "--json"), 5, prints=True
    ),
)  # fmt: skip
