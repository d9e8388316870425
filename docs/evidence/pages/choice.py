"""docs/choice.md: how good the choice is on problems that nobody picked, made from docs/evidence/data/choice_*.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.evidence.choice import by_default, distribution, where_of, with_tuner
from docs.evidence.pages.markdown import recorded, source, table

_FILES = ("choice_h200", "choice_h100")
_CLASSES = ("choice_classes_h200", "choice_classes_h100")
_ODD = "choice_odd_h100"
_LOSERS = 30
_TEXT = """# The choice

`gemm` takes the plan that a model of time holds to be the fastest. `cutegemm explain M N K` prints the candidates,
what is predicted for each, what bounds it, and why it lost:

```console
$ cutegemm explain 98 90 11053 --dtype bf16 --count 3
```

- **Candidates**: for wgmma every tile of `choice/sm90/tiles.py` with its clusters, as it is and for D^T = B^T A^T,
  K whole, split or filled (`/k4`, `/fixup`), or shared by the CTAs of a cluster, with operands packed where TMA cannot
  load them or wgmma not multiply them; for mma.sync every named plan, K whole or split; SIMT plans for f32 and f64.
  They are ranked by one number, microseconds, whatever their family.
- **The model** (`choice/*/time.py`) adds up what a wave of the grid waits for: tensor cores, L2, the latency of loads,
  the store of D, memory, power, the start. Rates of a chip are in `machine/device.py`, measured on an H200 and an H100;
  a device is known by its name.
- **The fit**: `python -m docs.evidence fit-sm90 docs/evidence/data/choice_{fit_*,classes_h200}.json` finds the
  constants of the Hopper model by least squares of logarithms and of what the choice loses, from plans that were timed
  on problems drawn by seeds 1, 2, 3, 33, 101, 102, 201, 301 and 401, on the losers of seed 121, on those of seeds 801
  to 803 that have few tiles and a deep K, on few rows by large weights, by tiles in clusters of four and eight, on 88
  large ones of which half have rows that begin at no sector, on sizes that were asked for, and on 150 linear layers of
  public models; with `--held` each half of the problems is judged by the constants of the other half.

The tables below are of problems that nothing had been fitted to when they were timed: extents alike in their
logarithm from 16 to 16384, a third of the problems with any extents, all four layouts, the types in the proportion
8 bf16 : 3 f16 : 3 e4m3 (nt, half of them with fast accumulation on both sides) : 3 tf32 : 3 f32. Each is the time of
cuBLAS, through torch, over that of `gemm` by default, in turns on the same normally distributed matrices behind a
flush of L2; D is held against the library's.

    python -m docs.evidence choice --seed 150 --count 300 --seconds 0.05 --tune-below 0.97 --json choice_h200.json

Draws, each before what followed from it, from 2026-11-22 on:

| problems | H200: mean, one in ten below, least | H100 | since |
| --- | --- | --- | --- |
| seed 1 | 1.106, 0.871, 0.261 | 1.081, 0.879, 0.248 | a D that TMA does not store, small f32, the models |
| seeds 101, 102 | 1.184, 0.962, 0.566 | 1.155, 0.940, 0.732 | clusters of four, small problems, the models |
| seeds 103, 104 | 1.216, 0.926, 0.782 | 1.160, 0.930, 0.801 | deep k-tiles where K is split alone |
| seeds 105, 106 | 1.185, 0.961, 0.787 | 1.159, 0.952, 0.660 | one warpgroup a tile, 128 x 16, 128 x 32, deep k-tiles |
| seeds 107, 108 | 1.207, 0.957, 0.790 | 1.148, 0.935, 0.452 | late rounds left out, 128 x 32 for few columns alone |
| seed 109 | 1.209, 0.978, 0.623 | | clusters of eight, deep k-tiles in clusters, 96 and 224 columns, a fourth stage |
| seeds 111, 110 | 1.196, 0.981, 0.860 | 1.197, 0.971, 0.858 | A of tf32 out of registers, five stages, power |
| seed 113 | 1.234, 0.969, 0.834 | | B alone copied where A is read into registers, twelve plans for the tuner |
| seed 114 | 1.238, 0.974, 0.862 | | costs of deep rings and of clusters of four |
| seeds 116, 115 | 1.202, 0.965, 0.897 | 1.178, 0.948, 0.767 | columns by eight, three stages, pairs; L2 of an H100 |
| seed 117 | 1.216, 0.960, 0.828 | 1.199, 0.960, 0.846 | stages released earlier, bands by the cluster, fours shared |
| seed 118 | 1.238, 0.986, 0.829 | 1.216, 0.990, 0.762 | the order of the GPCs; turns in both orders |
| seed 119 | 1.245, 0.990, 0.291 | | mma.sync for few rows and a deep K, tiles of two wgmmas |
| seed 120 | 1.198, 0.998, 0.648 | 1.186, 0.993, 0.668 | what the first k-tile costs; turns that are steady |
| seed 121 | 1.213, 0.989, 0.876 | | costs of f32 plans and of parts of K; mma.sync not for aligned tf32 |
| seed 122 | 1.189, 0.978, 0.799 | | loads to registers that nothing waits for, lines that all CTAs ask for, 128 x 80 |
| seed 123 | | 1.243, 0.998, 0.915 | launches ahead of the end of the kernel before |
| seed 124 | 1.230, 0.979, 0.854 | | boxes of any number of rows in large clusters, 192 x 128 and 144 |
| seeds 126, 127 | 1.272, 1.005, 0.893 | 1.212, 0.990, 0.730 | K shared by the CTAs of a cluster |
| seeds 128, 129 | 1.187, 0.974, 0.810 | 1.208, 0.998, 0.859 | 64 x 16 whose K two CTAs share |
| seed 130 | 1.229, 0.994, 0.891 | | two CTAs to a multiprocessor for short K, rows along M and N |
| seed 131 | 1.258, 0.979, 0.880 | | lines of several rows; K shared where A is read into registers |
| seeds 133, 134 | 1.220, 0.995, 0.807 | 1.221, 0.992, 0.920 | f32 by twelve rows or columns a thread, more widths |
| seed 135 | 1.208, 0.986, 0.847 | | few rows by more plans, two CTAs to a multiprocessor |
| seed 137 | 1.230, 0.987, 0.839 | | one tile a CTA shared by consumers, epilogue stages that take no room of a stage |
| seed 138 | 1.259, 1.012, 0.828 | | reads joined of rows that begin at no line, the store of a last wave |
| seed 139 | | 1.216, 1.002, 0.918 | nothing: an H100, by the plans of seed 138 |
| seed 140 | 1.220, 0.985, 0.841 | | owners' reads, rows of 64 bytes at the power limit |
| seed 141 | 1.236, 1.003, 0.684 | | tiles of an odd number of groups of eight columns |
| seeds 142, 143 | 1.271, 1.003, 0.908 | 1.227, 0.997, 0.842 | whole lines of a B along N, lines that L2 looks up |
| seed 144 | | 1.225, 1.001, 0.880 | what columns beside a tile take |
| seed 145 | | 1.229, 0.993, 0.788 | the last tile of plans of mma.sync |
| seed 146 | | 1.221, 1.000, 0.784 | narrow accesses of mma.sync |
| seed 147 | | 1.221, 0.992, 0.870 | nothing: the same plans again |
| seed 148 | | 1.198, 0.992, 0.798 | clusters of eight for 128 x 112 and 128 x 128, short runs of lanes |
| seed 149 | | 1.247, 0.984, 0.814 | starts of one warpgroup, skinny plans by rows that begin at no line |
| seed 150 | below | | long lines of a D that TMA does not store, owners by four stages |
| seed 151 | | 1.200, 0.991, 0.898 | second halves of lines; f32 with a short K |
| seed 152 | | 1.245, 0.991, 0.898 | nothing: the same plans again |
| seed 153 | | 1.225, 0.997, 0.882 | the start of a packing kernel |
| seed 154 | | 1.209, 0.985, 0.865 | f32 with more columns than rows a thread |
| seed 155 | | below | |

Problems that a seed has drawn are in the fit, if at all, after that seed's row.

## How it is timed

- Each round runs all plans in one order and in its reverse: a kernel of 5 µs takes up to 1 µs more or less where it is
  the first behind an idle device. The turns of a problem are taken again where the medians of the first rounds and of
  the last ones are not alike.
- All seeds but 1, 101, 102, 105 and 106 were timed on machines of one GPU, where the smallest kernels of either side
  take 4.3 to 5.6 µs. On machines of several they take 6 to 7.5, and what a kernel's start costs counts for less.
- `--tune-below 0.97` times the tuner's plans besides, where the ratio is lower. Of the 300 problems of seed 121 4 are
  below 0.97 then, 16 by default; of seed 131 5 and 21; of seed 134 6 and 18; of seed 147 3 and 12;
  of seed 149 7 and 16; of seeds 152 to 155 15 and 58 of 1,200.
- Of kernels of milliseconds 0.05 seconds are few, and the chip's clock is not yet steady: 10336 x 11008 x 8128 tn had
  0.825 with seed 146, 1.022 where the tuner timed it again; 15088 x 15264 x 3536 nn 0.935 with seed 145, 1.003 in 1.2
  seconds.

## What the choice loses

On the 2,178 problems of the fit for wgmma, the plan that is taken is 1.65% slower than the best of those that were
timed beside it, and more than 8% slower on 3.2% of them; on 816 of f32 1.1% and 2.3%; on 531 of mma.sync 1.5% and
5.5%. Of the 150 linear layers among them, the choice loses 2.0% on those of nn, 2.0 of tn and 1.4 of nt. More
constants were tried: for the runs of D that a cluster stores, for pieces of rows that come from memory, for epilogue
tiles of a warp. None lessened that by more than 0.02%. With the lines that L2 looks up
([which tile](hopper.md#which-tile)) five others could go: for rows that begin at no line, for rows of 64 bytes, for
pairs, for three stages, and one of two for reads that are joined. A refit with the linear layers let ten more go:
for the first k-tile, rows of 32 bytes, sums on two levels, sectors, the larger operand, deep rings, writes of D to
memory, each part of K, CTAs that share K, and runs along M or N. By itself none of these is worth more than 0.05%.

60 linear layers of public models that nothing is fitted to: 1.083 of cuBLAS in geometric mean, 1.129 of `nt` (forward),
1.025 of `nn` (data gradient), 1.073 of `tn` (weight gradient), least 0.917. No layer loses more than 7% to the best
plan timed beside it (one H100, 2026-11-26, seed 3107; before the refit 1.078, least 0.863, and 3.3% lost more than 8%).

Of 132 large problems that were drawn for that fit, nn, tn and tt, the fastest of 21 plans that were timed was never
below 0.97 of cuBLAS, and 1.09 on the mean; what was chosen was 1.06. So the choice loses, not what it chooses from.

How much could be won by more of a model: boosted trees were given all that this one knows of a plan and of its problem,
and what the model predicts; judged by problems that they had not seen, what they choose of 1,911 problems loses 1.43%
where the model's choice loses 1.70, and 2.7% of them lose more than 8% where 3.3 do. Times of the same plan in several
sessions, between which kernels changed too, have a standard deviation of 2.9%. So few constants are near what there is
to know.

What loses most on the seeds from 138 on:

- Rows that no box of TMA loads, where plans that copy them compete with those of mma.sync, and each is predicted within
  10%: 206 x 12978 x 30 tn of f16 0.784, 164 x 457 x 6465 of tf32 0.863, 82 x 6656 x 2997 tt of bf16 0.912, by
  `mma_128x64/k2`, which takes 65 µs, and `swap_ab:sm90_64x96_4x1+repack` 53 (H100).
- Short K: 62 x 13840 x 48 of e4m3 0.852 (H100), by two CTAs to a multiprocessor, 20% slower than 128 x 64 in clusters;
  512 x 12880 x 48 nn 0.891 (H200), by 192 x 64 in clusters of 1 x 2, 13% slower than in 2 x 1; neither is explained.
- f32 with a short K, until more of it was in the model ([the choice](simt.md#the-choice)): 15927 x 819 x 56 tn 0.898,
  242 x 8926 x 33 nn 0.887 (H100). Of 184 problems of f32 that were drawn since, the least is 0.885: 1664 x 1280 x 12656
  nt by `simt_192x128+repack/s132`; 1.00 by `simt_128x256x16/k2`, which was predicted to take 2% longer.
- D of few columns and a K of 16: 10608 x 80 tt 0.865, 10864 x 112 nt 0.882 (H100), which take 6.3 to 7.2 µs; no
  plan of twelve was ahead.
- Few tiles with a deep K: 304 x 800 x 14496 tn 0.866 (H200), the best of twelve plans; 448 x 320 x 16128 nt 0.870
  (H100), by 64 x 128 whose K four CTAs share, and 0.960 by 64 x 80 in clusters of 2 x 4 and three parts.
- Clusters of four that fill a wave less well than pairs: 1616 x 1776 x 2928 tt 0.896 (H100), by 128 x 224 in clusters
  of 2 x 2; 1.017 by `swap_ab:sm90_128x192_2x1`.
- 5000 x 5000 x 5000: 0.960 to 0.972 (H200; tn 0.896 by 256 x 192 with owners, which is considered no more), 0.973 to
  1.041 (H100).
- 1536 x 1536 x 1536 tn 0.932 (H100), by 128 x 160 in clusters of 4 x 2; 1.027 by 192 x 96 in 2 x 1.
- Short K, two tiles to a multiprocessor: 13360 x 368 x 96 tn, 0.828 (H200). Nothing hides the store of the first one.
- e4m3 on two levels, few tiles with a deep K: 86 x 5552 x 8752, 0.847 (H200), whose K two CTAs share.
- Few tiles of large tn or tt: 3488 x 752 x 5808 tt, 0.842 (H100), by 128 x 160 in clusters of 1 x 2, whose rows of
  64 bytes no cluster shares; 0.99 in clusters of 2 x 1.

What earlier rows of the table found is told where it was mended: [K shared by a
cluster](hopper.md#k-shared-by-a-cluster), [one tile a CTA](hopper.md#one-tile-a-cta), [A out of
registers](hopper.md#a-out-of-registers), [which tile](hopper.md#which-tile), [loads to
registers](simt.md#loads-to-registers), [twelve rows or columns a
thread](simt.md#twelve-rows-or-columns-a-thread), [mma.sync's model](mma_sync.md#the-model-of-time).
"""


def pages(benchmarks: Path) -> dict[str, str]:
    """Text by file name; nothing where no measurement is there."""
    found = recorded(benchmarks, [*_FILES, *_CLASSES, _ODD])
    parts = [_TEXT]
    for name in _FILES:
        if name in found:
            parts += _drawn(name, found[name])
    if _ODD in found:
        parts += _odd(found[_ODD])
    for name in _CLASSES:
        if name in found:
            parts += _classes(name, found[name])
    return {"choice.md": "\n".join(parts)} if len(parts) > 1 else {}


def _drawn(name: str, found: Mapping[str, Any]) -> list[str]:
    rows = by_default(found["rows"])
    machine, tuned = found["machine"], with_tuner(found["rows"])
    failed = [row for row in found["rows"] if "error" in row]
    said = f"{len(rows)} problems of seed {found['seed']}; {len(failed)} others failed. {found.get('note', '')}".strip()
    has_tuned = any(row.get("tuner") for row in found["rows"])
    heads, by_type = ["problem", "chosen", "µs", "ratio"], _by_type(rows)
    worst = [[_problem(row), f"`{row['plan']}`", f"{row['us']:.1f}", f"{row['ratio']:.3f}"] for row in rows[:_LOSERS]]
    if has_tuned:
        heads.append("tuned")
        worst = [[*cells, f"{tuned[where_of(row)]:.3f}"] for cells, row in zip(worst, rows, strict=False)]
        by_type.append(["all, tuned", *_distribution(sorted(tuned.values()))])
    return [
        f"\n## {machine['gpu']}, seed {found['seed']}: the losers first\n",
        table(heads, worst),
        f"\n### {machine['gpu']}, seed {found['seed']}: all\n",
        table(("type", "problems", "geometric mean", "one in ten below", "least"), by_type),
        f"\n{said} {source(machine, f'{name}.json')}\n",
    ]


def _by_type(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    made = []
    for kind in [*sorted({row["dtype"] for row in rows}), "all"]:
        made.append([kind, *_distribution([row["ratio"] for row in rows if kind in ("all", row["dtype"])])])
    return made


def _distribution(ratios: Sequence[float]) -> list[str]:
    """`distribution`, as the cells of a table."""
    count, *numbers = distribution(ratios)
    return [str(count), *[f"{number:.3f}" for number in numbers]]


def _odd(found: Mapping[str, Any]) -> list[str]:
    """Problems whose D TMA does not store, as they were drawn and since."""
    cells = [
        [_problem(row), f"{row['then']['us']:.1f}", f"{row['then']['ratio']:.3f}",
         f"`{row['plan']}`", f"{row['us']:.1f}", f"{row['ratio']:.3f}"]
        for row in sorted(found["rows"], key=lambda row: row["ratio"])
        if "then" in row
    ]  # fmt: skip
    return [
        f"\n## {found['machine']['gpu']}: a D that TMA does not store\n",
        "Of 300 problems of seed 1, those whose D is not aligned to 16 bytes: straight out of registers, and by "
        f"[whole lines](hopper.md), as plans have it since. {found['note']}\n",
        table(("problem", "µs then", "ratio then", "plan", "µs", "ratio"), cells),
        f"\n{source(found['machine'], f'{_ODD}.json')}\n",
    ]


def _classes(name: str, found: Mapping[str, Any]) -> list[str]:
    tuned = with_tuner(found["rows"])
    rows = sorted(
        (row for row in found["rows"] if "ratio" in row and not row.get("tuner")),
        key=lambda row: row["ratio"],
    )
    cells = [
        [
            _problem(row),
            f"`{row['plan']}`",
            f"{row['tflops']:.0f}",
            f"{row['ratio']:.3f}",
            f"{tuned[where_of(row)]:.3f}",
        ]
        for row in rows
    ]
    said = f"{found.get('note', '')} {source(found['machine'], f'{name}.json')}".strip()
    return [
        f"\n## {found['machine']['gpu']}: sizes that were asked for\n",
        table(("problem", "chosen", "TFLOP/s", "ratio", "tuned"), cells),
        f"\n{said}\n",
    ]


def _problem(row: Mapping[str, Any]) -> str:
    return f"{row['m']}×{row['n']}×{row['k']} {row['layout']} {row['dtype']}"
