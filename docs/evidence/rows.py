"""Rows of measurements, as `benchmark` makes them: grouped by plan and shape, and their means over suites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

Row = Mapping[str, Any]
Shape = tuple[int, int, int]

_LLAMA_NK = ((8192, 8192), (28672, 8192), (8192, 28672), (4096, 14336))
# Drawn at random, alike in the logarithm; and some that fill a grid of 128 x 128 badly.
_SHAPES = (
    (1312, 3344, 4032), (72, 1288, 6728), (1488, 5808, 376), (624, 600, 1688), (1040, 264, 544),
    (248, 6128, 3640), (136, 4056, 416), (1280, 400, 256), (4392, 528, 544), (7520, 5264, 696),
    (6792, 1656, 2680), (176, 6680, 2800), (6968, 5672, 720), (368, 456, 424), (88, 728, 2072),
    (64, 2680, 824), (288, 4368, 1352), (296, 1360, 2944), (88, 7512, 280), (2432, 4784, 272),
    (1536, 1536, 1536), (2560, 2560, 2560), (192, 4096, 4096), (384, 4096, 4096), (384, 8192, 8192),
    (512, 28672, 8192), (512, 4096, 14336), (640, 11008, 4096),
)  # fmt: skip
# The sweep is that of the pingpong study: 66 x 72 tiles of 128 x 128, 36 for each of 132 multiprocessors.
SUITES: dict[str, tuple[Shape, ...]] = {
    "sweep": tuple([(8448, 9216, k) for k in (64, 128, 256, 512, 1024, 2048)]),
    "squares": tuple([(n, n, n) for n in (2048, 4096, 8192, 16384)]),
    "shapes": _SHAPES,
    "llama": tuple([(m, n, k) for n, k in _LLAMA_NK for m in (512, 1024, 2048, 4096, 8192)]),
    "small": tuple(
        [(m, n, n) for n in (4096, 8192) for m in (16, 32, 64, 96, 128, 256)] + [(n, n, n) for n in (512, 1024)]
    ),
}
CHOSEN = "chosen by `gemm`"
_RATES = ("tflops", "library_tflops", "ratio")


def without_rates(row: Row) -> Row:
    """Return a row as a file holds it: without what `with_rates` computes from the other values.

    >>> without_rates({"m": 1, "us": 2.0, "library_us": 3.0, "ratio": 1.5}), without_rates({"tflops": {}})
    ({'m': 1, 'us': 2.0, 'library_us': 3.0}, {'tflops': {}})
    """
    return {key: value for key, value in row.items() if key not in _RATES} if _is_timed(row) else row


def with_rates(row: Row) -> Row:
    """Return a row with the TFLOP/s of the plan and of cuBLAS, and their ratio, if it has both times.

    >>> list(with_rates({"m": 1000, "n": 1000, "k": 1000, "us": 10.0, "library_us": 11.0}).values())[-3:]
    [200.0, 181.818, 1.1]
    """
    if not _is_timed(row):
        return row
    mflop = 2e-6 * row["m"] * row["n"] * row["k"] * row.get("l", 1)
    rates = {f"{who}tflops": round(mflop / row[f"{who}us"], 3) for who in ("", "library_")}
    return {**row, **rates, "ratio": round(row["library_us"] / row["us"], 4)}


def _is_timed(row: Row) -> bool:
    return "library_us" in row and isinstance(row.get("us"), (int, float))


def shape_of(row: Row) -> str:
    """Return M×N×K, and the batch if there is one.

    >>> shape_of({"m": 4, "n": 5, "k": 6, "l": 2})
    '4×5×6×2'
    """
    batch = f"×{row['l']}" if row.get("l", 1) != 1 else ""
    return f"{row['m']}×{row['n']}×{row['k']}{batch}"


def by_plan(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """Return rows with a time by plan, then by shape; the chosen plan is called so and comes last.

    If there are several layouts, the names include them.

    >>> rows = [{"m": 1, "n": 1, "k": 1, "layout": "nn", "plan": p, "ratio": 1.0, "chosen": p == "a"} for p in "ab"]
    >>> list(by_plan(rows)), list(by_plan(rows)["b"])
    (['b', 'chosen by `gemm`'], ['1×1×1'])
    """
    timed = sorted((row for row in rows if "ratio" in row), key=lambda row: bool(row.get("chosen")))
    several = len({row["layout"] for row in timed}) > 1
    found: dict[str, dict[str, Row]] = {}
    for row in timed:
        name = CHOSEN if row.get("chosen") else row["plan"]
        found.setdefault(f"{name} {row['layout']}" if several else name, {})[shape_of(row)] = row
    return found


def groups(timed: Mapping[str, Mapping[str, Row]]) -> dict[str, list[str]]:
    """Return the suites whose shapes were all timed, each shape in the first of them; the remaining shapes under "".

    timed   see `by_plan`
    """
    left = list(dict.fromkeys(at for of in timed.values() for at in of))
    found = {}
    for name, suite in SUITES.items():
        shapes = [shape_of({"m": m, "n": n, "k": k}) for m, n, k in suite]
        if all(at in left for at in shapes):
            found[name] = shapes
            left = [at for at in left if at not in shapes]
    return {**found, **({"": left} if left else {})}


def mean_ratio(of: Mapping[str, Row], shapes: Sequence[str]) -> float | None:
    """Return the geometric mean of a plan's ratios over shapes; None if it was not timed at all of them."""
    return geometric_mean([of[at]["ratio"] for at in shapes]) if all(at in of for at in shapes) else None
