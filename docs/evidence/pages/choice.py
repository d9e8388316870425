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

- **Candidates**: for wgmma every tile of `choose/sm90/tiles.py` with its clusters, as it is and for D^T = B^T A^T,
  K whole, split or filled (`/k4`, `/fill`), or shared by the CTAs of a cluster, with operands packed where TMA cannot
  load them or wgmma not multiply them; for mma.sync every named plan, K whole or split; SIMT plans for f32 and f64.
  They are ranked by one number, microseconds, whatever their family.
- **The model** (`choose/*/time.py`) adds up what a wave of the grid waits for: tensor cores, L2, the latency of loads,
  the store of D, memory, power, the start. Rates of a chip are in `machine/device.py`, measured on an H200 and an H100;
  a device is known by its name.
- **The fit**: `python -m docs.evidence fit-sm90 docs/evidence/data/choice_{fit_*,classes_h200}.json` finds the
  constants of the Hopper model by least squares of logarithms and of what the choice loses, from plans that were timed
  on problems drawn by seeds 1, 2, 3, 33, 101, 102, 201, 301 and 401, on the losers of seed 121, on those of seeds 801
  to 803 that have few tiles and a deep K, on few rows by large weights, by tiles in clusters of four and eight, and on
  sizes that were asked for; with `--held` each half of the problems is judged by the constants of the other half.

The tables below are of problems that nothing had been fitted to when they were timed: extents alike in their
logarithm from 16 to 16384, a third of the problems with any extents, all four layouts, the types in the proportion
8 bf16 : 3 f16 : 3 e4m3 (nt, half of them with fast accumulation on both sides) : 3 tf32 : 3 f32. Each is the time of
cuBLAS, through torch, over that of `gemm` by default, in turns on the same normally distributed matrices behind a
flush of L2; D is held against the library's.

    python -m docs.evidence choice --seed 138 --count 300 --seconds 0.05 --json choice_h200.json

By other draws, each before what followed from it, from 2026-11-22 on:

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
| seeds 133, 134 | 1.220, 0.995, 0.807 | below | f32 by twelve rows or columns a thread, widths of 192 and 256 rows |
| seed 135 | 1.208, 0.986, 0.847 | | few rows by more plans, two CTAs to a multiprocessor |
| seed 137 | 1.230, 0.987, 0.839 | | one tile a CTA shared by consumers, slots that take no room of a stage |
| seed 138 | below | | reads joined of rows that begin at no line, the store of a last wave |

All but seeds 1, 101, 102, 105 and 106 were timed on machines of one GPU, where the smallest kernels of either side take
4.3 to 5.6 µs, the others on machines of several, where they take 6 to 7.5: what a kernel's start costs counts for less
there.

From seed 118 on each round runs in an order and in its reverse. A kernel of 5 µs takes up to 1 µs more, or less, where
it is the first for which the device has not been idle: on one H200 (2026-11-24), 96 x 240 x 112 of bf16 took 5.50 and
4.58 µs by `sm90_64x16_multistage`, 5.73 and 4.83 by cuBLAS. Of two calls each is the first in half of the rounds, so
that a median fell on either time by chance: by single orders the same 300 problems gave 1.233, 0.953 and 0.831 on the
H200; of 24 problems of less than 8 µs that were below 0.97 so, 20 were not beside twelve others.

Of the 300 of seed 119 two had 0.291 and 0.542, 26.0 and 25.4 µs by `mma_32x32/k12` and `/k26`; timed again by the tuner
they took 7.1 and 8.0, and 1.13 and 1.85 of cuBLAS. cuBLAS had such a time, 65.9 µs, for a third. So the turns of a
problem are taken again, since then, where the medians of the first rounds and of the last ones are not alike.

With the tuner seed 121 has 1.219, 1.000 and 0.939: 4 of 300 below 0.97, where 16 are by default, and none below 0.92,
where 4 are; seed 122 6, 21, none and 4; seed 123 on an H100 6, 13, 1 and 2; seed 124 10, 24, 2 and 7; seed 126 on an
H200 4, 11, none and 2; seed 127 on an H100 4, 11, 2 and 3; seed 131 on an H200 5, 21, 1 and 2; seed 134 on an
H100 6, 18, none and none.

Few tiles with a deep K lost most until seed 126: 432 x 304 x 7552 tt had 0.875, 768 x 128 x 10144 nt 0.921 and 224 x
656 x 10224 nn 0.924, by plans whose parts of K met in global memory. Since [CTAs of a cluster share
K](hopper.md#k-shared-by-a-cluster) 47 problems of seed 801 with few tiles and a deep K have 1.260 in the mean and 0.943
at the least (H200), 38 of seed 802 1.192 and 1.002 (H100), both before anything was fitted to them. What such plans
take besides was found from these: of 122 problems, the plan that is chosen since is 1.1% slower than the best of those
that were timed beside it.

Beside the losers of seeds 122 and 123 stood, by the library's names of its kernels (`nvjet_..._64x80_64x11_4x2`),
tiles of few columns in clusters of four and eight, whose shares were refused here until boxes had [any number of
rows](hopper.md#which-tile). Of 70 problems for which another plan is chosen since, 45 of them drawn by a seed (555)
and 25 of sizes of language models, the new one was 1.004 times as fast as the one before (one H200), by a model of
eight constants fewer. Those that it was slower on, by up to 6%, gave the start of a large cluster, of a first k-tile
and what helpers of owners read along M and N their costs back: four constants are fewer.

What the choice itself loses is little: on the 1,496 problems of the fit for wgmma, the plan that it takes is 1.7%
slower than the best of those that were timed beside it; on 371 of f32 1.2%. Of
150 drawn problems (seed 401, f32 left out) with 19 plans each, the best one was below 0.97 of cuBLAS on 6 with an H200,
the one that was taken on 11. The losers of seed 115, by the twelve plans that the tuner timed on each: what was taken
was 3.1% slower than the best of them, and 2.2% since an H100 has a rate of L2 of its own; of seed 116 2.4 and 1.9%.
Few rows with a deep K, where cuBLAS adds the parts by a second kernel, lost until plans of mma.sync that do so were
considered beside those of wgmma: [their model](mma_sync.md#the-model-of-time).
29 x 12212 x 24 had 0.648 of cuBLAS by `mma_32x32_short`, 8.4 µs: all CTAs ask for the same 11 lines, which the model
of mma.sync counts since; by `mma_16x128_short`, which is chosen now, it took 5.4. Some f32 with k-major operands had
0.80 to 0.92 where CTAs share k-tiles evenly: their [loads to registers](simt.md#loads-to-registers) were waited for.
Small f32 that is packed first lost (4624 x 661 x 105 tn, 30.9 µs by `simt_32x32+pack`, 28.7 by `simt_256x128`, which
is chosen now, cuBLAS 28.8; 4969 x 203 x 74 tn, 14.4 and 12.8 by `simt_256x16`, 13.1): a pack takes 2.7 µs to begin,
as it does beside wgmma, and D takes less than the model had it.
7840 x 5216 x 2000 of e4m3 on two levels has 0.799 by `transposed:sm90_two_level_128x192`, without a cluster, 1.031 by
`transposed:sm90_two_level_2x1`: multiprocessors of a GPC join few of their reads where rows begin at no line. The model
knows that since.
3971 x 99 x 7186 tn of seed 127 has 0.730 on an H100: no box of TMA loads A, whose rows have 7942 bytes; to copy it
takes half of the 83 µs, and mma.sync, which loads it element by element, takes 92.
32 x 6416 x 12880 tn of tf32, seed 128, has 0.810: B, 330 MB along N, is read into registers by tiles of 128 x 64 in two
parts, 104 CTAs of 132, at 2.9 TB/s, where cuBLAS reaches 3.5. Since then CTAs share K [where A is read
so](hopper.md#a-out-of-registers).
19 x 3292 x 8219 nt of tf32 has 0.915: rows of 32876 bytes, which no box of TMA loads, by mma.sync.
Few rows by weights along N lost from the day on which two CTAs shared the K of 64 x 16: 16 x 11248 x 11408 tn of seed
129 had 0.938 by `transposed:sm90_64x16_deep_1x1x2`, 114 µs on an H100. Since then the model has memory read the faster
the more of a row the tiles of a cluster have: by `transposed:sm90_128x32_deep_4x1`, which is chosen now, it takes 97.
Of 53 such problems of bf16 and f16 the plan of 19 became another one, 1.038 times as fast (H200); of 1,283 problems of
seed 990 that of 63 did, by this and by two CTAs to a multiprocessor, 1.022 times as fast, from 0.85 to 1.16 times. Of
the eleven problems of seeds 129 and 130 below 0.92 seven have a short K, four of them rows of 16 bytes. A line that
holds several rows is asked for once for each, by every CTA. Since seed 130 the model counts that for the first k-tile;
a wait of every k-tile for such lines, which it had instead, was not worth a constant.
Beside the losers of seeds 130 and 131, and of some drawn apart, stood tiles of the library that exactly fill 132
multiprocessors, or nearly: 176 x 192 for 560 x 7664 x 2704, 128 x 144 in clusters of four for 4528 x 432 x 11808, 320 x
64 for 1408 x 1920 x 80. [More widths](hopper.md#which-tile) are considered since. Of f32 3452 x 1335 x 49 tt had 0.880
by `simt_64x64`; by `simt_96x192`, which is chosen now, 24.8 µs in place of 27.8. Of 54 problems of f32 that were drawn
apart, and six losers (one H200), what is chosen had 1.143 of cuBLAS in the mean and 0.877 at the least by the tiles
there were, 1.192 and 0.961 with those of [twelve rows or columns a thread](simt.md#twelve-rows-or-columns-a-thread).
144 x 864 x 12832 tn of seed 133 has 0.807 by `transposed:sm90_64x96_2x2/k4`: 144 are two times 96 but for 48; and one
time 144, but of its columns CTAs would have to share K by three or six, no number that fills the grid with 14 tiles.
16368 x 32 x 128 tt of seed 135 has 0.847 by `sm90_64x32_multistage`, and 32 x 15856 x 128 of e4m3 0.928 by the same:
two tiles to a multiprocessor, the store of the first of which nothing hides. Of few rows such plans had been considered
for any number of tiles since that day, and are for no more tiles than multiprocessors again.
Plans whose consumers take turns lost where a CTA has one tile, which one consumer multiplies and stores while the
other is idle, and so did stores that are deferred behind a next tile that does not come. Since seed 135 such tiles
are [shared by the consumers](hopper.md#one-tile-a-cta): of 216 pairs of plans, on problems of one wave, those were
1.2% faster on the mean. What multiprocessors of a GPC read of rows that begin at no line is joined in part: 4720 x
624 x 3488 of seed 137 has 0.909 by `sm90_128x224_4x1`, 37.0 µs, and took 33.4 by `transposed:sm90_128x192_coop_1x2`,
which is chosen now. Both were found from 275 problems that were timed apart, of one wave and by tiles of each size of
clusters, 115 of them drawn by a seed (2201). Of the sizes below, nt and tn, the H200 has 1.007 and 0.987 at 1024³
since then, 0.993 and 0.991 at 1536³, 0.999 and 0.998 at 2048³, 0.986 and 0.995 at 512 x 4096 x 4096 (2026-11-25).
What loses most on seed 138 are two tiles to a multiprocessor with a short K (13360 x 368 x 96 tn of f16), and 86 x
5552 x 8752 of e4m3 on two levels by two CTAs that share K.
What still loses: 5000 x 5000 x 5000, for which cuBLAS has 256 x 152 in clusters of two ([what was
tried](hopper.md#which-tile)); short K in few tiles of many rows, for which cuBLAS has 288 x 128 and 96 x 384 (14416 x
288 x 624: 128 x 288 here was no faster than 128 x 144); e4m3 with a K of 16 bytes, where clusters along one mode of D
take 15% longer than along the other; some f32 by tiles of 16 and 32 rows. Further constants, for the runs of D that a
cluster stores, for pieces of rows that come from memory, for rows in parts of a line and for subtiles of a warp,
lessened what the choice loses, 1.7%, by less than 0.02% on 1,567 problems, or not at all.
Neither more stages nor [boxes asked for ahead](hopper.md#which-tile) mend these.
Large tf32 that is not k-major lost most while it was copied first: 11712 x 624 x 11952 tt of seed 109 had 0.623, has
1.007 since A is [read into registers](hopper.md#a-out-of-registers). Where neither operand is k-major both were copied
when seed 113 was timed, and the smaller one alone since.
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
    worst = [
        [_problem(row), f"`{row['plan']}`", f"{row['us']:.1f}", f"{row['ratio']:.3f}"]
        for row in rows[:_LOSERS]
    ]
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
