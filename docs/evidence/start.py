"""Seconds from the import of cutegemm until calls run at full speed, in new processes with an empty cache.

python -m docs.evidence start --library DIR --json start_h100.json

Each case runs in a process of its own: see `start_case`. torch, its CUDA context and cuBLAS are started before the
clock, and the model has been computed by torch. The cases:

    first       the first `gemm` of the process
    rows        64 numbers of rows of one weight, as the input of a layer has them
    model       a decoder of two layers after `cutegemm.use`: training steps and generated tokens, until they are steady

and the ways that kernels get there:

    empty       an empty cache, and no library
    background  an empty cache, with `cutegemm.compile_in_background()`
    library     an empty cache, and the library of `cutegemm export --models`
    full        the cache that `empty` has filled
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cutegemm.compile.exported import VARIABLE
from docs.evidence.arguments import parser_of, to_measure
from docs.evidence.files import write_record
from docs.evidence.pages.markdown import table as markdown
from docs.evidence.prebuilt import library_in
from docs.evidence.start_case import CASES, STEADY

WAYS = ("empty", "background", "library", "full")
_TITLES = {
    "empty": "an empty cache",
    "background": "an empty cache, `compile_in_background()`",
    "library": "an empty cache, a prebuilt library",
    "full": "a full cache",
}

Seconds = Mapping[str, Mapping[str, float]]  # case -> name -> seconds


def measured(ways: Sequence[str], library: Path | None, seconds: float) -> Iterator[tuple[str, Seconds]]:
    """Yield each way with its seconds by case and name. Each case runs in a new process.

    A case also has "compiled", the number of kernels in its cache at its end.

    ways      some of `WAYS`; "full" follows "empty"
    library   folder of the library; None: "library" is left out
    seconds   see `start_case.run_case`
    raises    subprocess.CalledProcessError if a case fails
    """
    with tempfile.TemporaryDirectory() as folder:
        for way in ways:
            if way == "library" and library is None:
                continue
            found: dict[str, dict[str, float]] = {}
            for case in CASES:
                cache = Path(folder) / f"{'empty' if way == 'full' else way}-{case}"
                named = str(library.resolve()) if library is not None and way == "library" else ""
                done = subprocess.run(
                    [sys.executable, "-m", "docs.evidence.start_case", case, "--seconds", str(seconds)]
                    + ["--background"] * (way == "background"),
                    env={**os.environ, "CUTEGEMM_CACHE_DIR": str(cache), VARIABLE: named},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                compiled = len([*cache.rglob("kernel.cubin")])
                found[case] = {**json.loads(done.stdout.splitlines()[-1]), "compiled": compiled}
            yield way, found


def table_of(record: Mapping[str, Any]) -> str:
    """Return the seconds of a record as a table in Markdown, one line for each way.

    A time has ">" in front if the last rounds were slower than those of torch alone, so that kernels were missing.

    >>> model = {"at speed": 40.0, "round": 0.03, "torch round": 0.03, "compiled": 30}
    >>> cases = {"first": {"first": 6.2}, "rows": {"others": 3.2, "compiled": 6}, "model": model}
    >>> print(table_of({"seconds": {"empty": cases}}).splitlines()[-1])
    | an empty cache | 6.20 | 3.20 | 40.0 | 30 |
    """
    lines = []
    for way, cases in record["seconds"].items():
        model = cases["model"]
        is_slow = model["round"] > STEADY * model["torch round"]
        times = f"{cases['first']['first']:.2f}", f"{cases['rows']['others']:.2f}", f"{model['at speed']:.1f}"
        lines.append([_TITLES[way], *times[:2], "> " * is_slow + times[2], str(model["compiled"])])
    return markdown(
        ["seconds, with", "first `gemm`", "63 more numbers of rows", "model at full speed", "kernels compiled for it"],
        lines,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = parser_of("start", __doc__)
    parser.add_argument(
        "--library", type=Path, help="folder of `cutegemm export --models`; it is built if it does not exist"
    )
    parser.add_argument("--way", action="append", choices=WAYS, help="may be repeated; default all")
    parser.add_argument("--seconds", type=float, default=120.0, help="time that the rounds of a model take at most")
    given = to_measure(parser, arguments, table_of)
    if given is None:
        return
    from docs.evidence.measure import machine, need_gpu

    need_gpu()
    ways = given.way or WAYS
    if given.library is not None:
        library_in(given.library)
    record: dict[str, Any] = {"machine": machine(), "seconds": {}}
    for way, found in measured([way for way in WAYS if way in ways], given.library, given.seconds):
        record["seconds"][way] = found
        print(json.dumps({way: found}), flush=True)
        if given.json:
            write_record(given.json, record)
    print(table_of(record))
