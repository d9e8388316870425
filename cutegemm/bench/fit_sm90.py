"""From times to the table that `choose_sm90` decides by: `python -m cutegemm.bench.fit_sm90 FILE.json ...`

FILE.json is what `python -m cutegemm.bench.gemm --suite sweep --suite squares --suite llama --json FILE.json` wrote.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from cutegemm.errors import CutegemmError, ended_in_words
from cutegemm.plan.choice import H200_MULTIPROCESSORS
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.plan.sm90_catalog import TURN_K, sm90_named
from cutegemm.plan.sm90_choice import FAR_BYTES, START_US, TURN_K_TILE

Row = dict[str, Any]
_LEAST_EXTENT = 512  # of D: with fewer rows or columns it is the streaming of an operand that takes the time


def turns_of(plan: GemmPlan, m: int, n: int, multiprocessors: int = H200_MULTIPROCESSORS) -> int:
    """Tiles that the busiest multiprocessor takes, one after the other.

    >>> from cutegemm.plan.sm90 import sm90_plan
    >>> turns_of(sm90_plan(), 8448, 9216)
    36
    """
    (bm, bn, _), (cm, cn) = plan.cta_tile, plan.cluster_mn
    clusters = -(-m // (bm * cm)) * -(-n // (bn * cn))
    return -(-clusters // max(1, multiprocessors // (cm * cn)))


def table(rows: Iterable[Row]) -> dict[str, tuple[list[float | None], float | None]]:
    """By plan: microseconds of a turn for each of `TURN_K`, and those of a k-tile where A and B are far."""
    near: dict[str, dict[int, float]] = {}
    far: dict[str, list[float]] = {}
    for row in rows:
        if "us" not in row or not row["plan"].startswith("sm90") or row.get("chosen"):
            continue
        try:
            plan = sm90_named(row["plan"], Operands.of(row["dtype"], layout=row["layout"]))
        except CutegemmError:
            continue
        if plan is None or plan.split.is_split:
            continue
        m, n, k = row["m"], row["n"], row["k"]
        turn = (row["us"] - START_US) / turns_of(plan, m, n)
        if min(m, n) < _LEAST_EXTENT:
            continue
        if (m + n) * k * plan.operands.a.dtype.bits // 8 > FAR_BYTES:
            far.setdefault(row["plan"], []).append(turn / (k / TURN_K_TILE))
        elif (m, n) == (8448, 9216) or (m, n, k) == (4096, 4096, 4096):
            near.setdefault(row["plan"], {})[k] = turn
    return {
        name: (
            [near.get(name, {}).get(k) for k in TURN_K],
            geometric_mean(far[name]) if name in far else None,
        )
        for name in {**near, **far}
    }


def main(files: Sequence[str]) -> None:
    """Prints a line a plan."""
    rows = [row for file in files for row in json.loads(Path(file).read_text())["rows"]]
    for name, (turn_us, far_us) in table(rows).items():
        cells = ", ".join("?" if t is None else f"{t:.2f}" for t in turn_us)
        print(f"{name}: ({cells}), {'?' if far_us is None else f'{far_us:.3f}'}")


if __name__ == "__main__":
    with ended_in_words("bench.fit_sm90"):
        main(sys.argv[1:])
