"""Batch-invariant GEMMs, those that `gemm` chooses freely, and cuBLAS, alternating in one process.

python -m docs.evidence invariant --json docs/evidence/data/invariant_h100.json

Each layer of the models is multiplied for 1 to 8192 rows. Every row is also compared, bit for bit, with the same row in
the largest batch. The whole run takes less than 4 minutes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from docs.evidence.arguments import parser_of, to_measure
from docs.evidence.files import write_record
from docs.evidence.measure import DEVICE, machine, need_gpu
from docs.evidence.pages.markdown import table

# N x K of the linear layers of Llama 3.1 8B (queries, keys and values together; gate and up together) and Llama 3.2 1B
LAYERS = (
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192),
)  # fmt: skip
ROWS = (1, 8, 32, 128, 256, 512, 1024, 2048, 8192)
MANY = 256  # smallest number of rows with the targets for many rows
# ratio -> (least with fewer than MANY rows, or None; least with MANY rows or more)
TARGETS: Mapping[str, tuple[float | None, float]] = {"to_free": (0.90, 0.97), "to_library": (None, 0.95)}

Row = dict[str, Any]


def compile_ahead(layers: Iterable[tuple[int, int]], rows: Iterable[int], dtype: Any) -> None:
    """Compile the kernels of all calls in many processes."""
    import torch

    from cutegemm.compile.plans import compile_missing
    from cutegemm.run.gemm import gemm
    from cutegemm.run.prepare import asking
    from cutegemm.run.question import decide

    with asking() as questions:
        for n, k in layers:
            for count in rows:
                a = torch.empty(count, k, dtype=dtype, device=DEVICE)
                b = torch.empty(n, k, dtype=dtype, device=DEVICE).t()
                for batch_invariant in (False, True):
                    gemm(a, b, batch_invariant=batch_invariant)
    compile_missing([decide(question).plan for question in questions])


def measured(n: int, k: int, rows: Sequence[int], dtype: Any, seconds: float) -> list[Row]:
    """Return a row for each number of rows: microseconds, ratios, plans, and whether the bits are those of the batch.

    n, k      weight
    rows      numbers of rows; the last is the largest
    seconds   measuring time of each number of rows
    """
    import torch

    from cutegemm.run.gemm import gemm, plan_of
    from cutegemm.run.on_gpu import alternating

    x, w = torch.randn(rows[-1], k, device=DEVICE).to(dtype), torch.randn(n, k, device=DEVICE).to(dtype)
    whole, found = gemm(x, w.t(), batch_invariant=True), []
    for count in rows:
        a, first = x[-count:], rows[-1] - count
        plans = [plan_of(a, w.t(), batch_invariant=mode) for mode in (True, False)]
        calls: list[Any] = [functools.partial(gemm, a, w.t(), batch_invariant=mode) for mode in (True, False)]
        identical = bool(torch.equal(calls[0](), whole[first:]))
        calls.append(functools.partial(torch.matmul, a, w.t()))
        us, free, library = [each * 1e6 for each in alternating(calls, seconds)]
        found.append(
            {
                "m": count, "n": n, "k": k, "plan": str(plans[0]), "swap_ab": plans[0].swap_ab,
                "free_plan": str(plans[1]), "us": round(us, 3), "free_us": round(free, 3),
                "library_us": round(library, 3), "to_free": round(free / us, 4), "to_library": round(library / us, 4),
                "identical": identical,
            }
        )  # fmt: skip
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> Row:
    """Return the geometric mean and the minimum of each ratio, for few and many rows, and whether all bits agree.

    >>> found = summary([{"m": 1, "to_free": 0.9, "to_library": 1.0, "identical": True}])
    >>> found["to_free"], found["identical"]
    ({'few rows': {'mean': 0.9, 'least': 0.9, 'target': 0.9}}, True)
    """
    out: Row = {"identical": all(row["identical"] for row in rows)}
    for name, targets in TARGETS.items():
        out[name] = {}
        for title, target, is_of in zip(("few rows", "many rows"), targets, (False, True), strict=True):
            ratios = [row[name] for row in rows if (row["m"] >= MANY) == is_of]
            if ratios:
                mean = round(geometric_mean(ratios), 4)
                out[name][title] = {"mean": mean, "least": min(ratios), "target": target}
    return out


def table_of(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown: for each number of rows, the ratios over all layers.

    >>> row = {"m": 8, "to_free": 0.9, "to_library": 1.0}
    >>> print(table_of({"rows": [row, {**row, "to_free": 0.95}]}).splitlines()[-1])
    | 8 | 0.925 | 0.900 | 1.000 | 1.000 |
    """
    lines = []
    for rows in dict.fromkeys(row["m"] for row in record["rows"]):
        cells = [f"{rows}"]
        for name in TARGETS:
            ratios = [row[name] for row in record["rows"] if row["m"] == rows]
            cells += [f"{geometric_mean(ratios):.3f}", f"{min(ratios):.3f}"]
        lines.append(cells)
    return table(["rows", "free choice / invariant", "least", "cuBLAS / invariant", "least"], lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the layers, print a table and the summary, and write both as JSON; or print the table of a record.

    raises   UnsupportedError without a GPU
    """
    parser = parser_of("invariant", __doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"), help="type of x and w")
    parser.add_argument("--seconds", type=float, default=0.8, help="measuring time for each number of rows")
    args = to_measure(parser, arguments, table_of)
    if args is None:
        return
    need_gpu()
    import torch

    dtype, rows = getattr(torch, args.dtype), []
    compile_ahead(LAYERS, ROWS, dtype)
    print(f"{'M x N x K':>20} {'us':>9} {'free':>9} {'cuBLAS':>9} {'to free':>8} {'to cuBLAS':>9}  plan")
    for n, k in LAYERS:
        for row in measured(n, k, ROWS, dtype, args.seconds):
            rows.append(row)
            times = " ".join([f"{row[name]:9.1f}" for name in ("us", "free_us", "library_us")])
            other = "" if row["identical"] else "  OTHER BITS"
            shape = f"{row['m']} x {n} x {k}"
            print(f"{shape:>20} {times} {row['to_free']:8.3f} {row['to_library']:9.3f}  {row['plan']}{other}")
    found = {"machine": machine(), "dtype": args.dtype, "summary": summary(rows), "rows": rows}
    print(json.dumps(found["summary"], indent=1))
    if args.json:
        write_record(args.json, found)
