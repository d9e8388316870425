"""Seconds from the import of cutegemm until calls run at full speed, in new processes with an empty cache.

python -m docs.evidence start --library DIR --json start.json

Each case runs in a process of its own. torch and its CUDA context are started before the clock. The cases:

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

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from cutegemm.compile.exported import VARIABLE
from docs.evidence.files import write_record

CASES = ("first", "rows", "model")
WAYS = ("empty", "background", "library", "full")
_STEADY, _LAST = (
    1.2,
    10,
)  # a round is steady up to this multiple of the median of the last _LAST rounds
_ROWS = 64


def at_speed(rounds: Sequence[float]) -> float:
    """Return the seconds until all later rounds are steady.

    rounds   seconds of each round

    >>> at_speed([5.0, 0.1, 2.0] + [0.1] * 20)
    7.1
    """
    usual = median(rounds[-_LAST:])
    slow = [index for index, seconds in enumerate(rounds) if seconds > _STEADY * usual]
    return sum(rounds[: slow[-1] + 1]) if slow else 0.0


def run_case(case: str, is_in_background: bool, seconds: float) -> dict[str, float]:
    """Run a case in this process, and return its seconds by name.

    case               one of `CASES`
    is_in_background   whether kernels are compiled in the background
    seconds            time that the rounds of "model" take at most
    """
    import torch

    torch.ones(1, device="cuda").sum().item()
    started = time.perf_counter()
    import cutegemm

    if is_in_background:
        cutegemm.compile_in_background()
    if case == "model":
        rounds = _model_rounds(cutegemm, started, started + seconds)
        return {"at speed": at_speed(rounds), "round": median(rounds[-_LAST:]), "rounds": len(rounds)}
    w = torch.randn(4096, 4096, device="cuda").bfloat16()
    x = torch.randn(_ROWS * 61, 4096, device="cuda").bfloat16()
    times = []
    for rows in range(61, (2 if case == "first" else _ROWS + 1) * 61, 61):
        cutegemm.gemm(x[:rows], w.t(), varying_rows=case == "rows")
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return {"first": times[0], "others": times[-1] - times[0]}


def _model_rounds(cutegemm: Any, started: float, until: float) -> list[float]:
    """Return the seconds of rounds of a decoder, each of a training step and a generated token.

    started   time.perf_counter() at the import, where the first round begins
    until     time.perf_counter() after which no round begins
    """
    import torch

    from docs.evidence.decoders import SIZES, stack, through

    size = SIZES["llama"]
    model: Any = stack("llama", type(size)(**{**vars(size), "layers": 2})).cuda().bfloat16()
    cutegemm.use(model)
    x = torch.randn(size.batch, size.tokens, size.width, device="cuda").bfloat16()
    rounds: list[float] = []
    while len(rounds) < 3 * _LAST or (time.perf_counter() < until and at_speed(rounds[-2 * _LAST :]) > 0):
        through(model, x).sum().backward()
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            through(model, x[:1, :1])
        torch.cuda.synchronize()
        rounds.append(time.perf_counter() - started - sum(rounds))
    return rounds


def measured(ways: Sequence[str], library: Path | None, seconds: float) -> dict[str, dict[str, dict[str, float]]]:
    """Return way -> case -> name -> seconds. Each case runs in a new process.

    ways      some of `WAYS`; "full" follows "empty"
    library   folder of the library; None: "library" is left out
    seconds   see `run_case`
    raises    subprocess.CalledProcessError if a case fails
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in ways:
            if way == "library" and library is None:
                continue
            found[way] = {}
            for case in CASES:
                cache = Path(folder) / f"{'empty' if way == 'full' else way}-{case}"
                named = str(library.resolve()) if library is not None and way == "library" else ""
                done = subprocess.run(
                    [sys.executable, "-m", "docs.evidence", "start", "--case", case, "--way", way]
                    + ["--seconds", str(seconds)],
                    env={**os.environ, "CUTEGEMM_CACHE_DIR": str(cache), VARIABLE: named},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                found[way][case] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the seconds as text, one line for each way.

    >>> cases = {"first": {"first": 6.2}, "rows": {"first": 6.0, "others": 3.2}, "model": {"at speed": 40.0}}
    >>> print(table({"empty": cases}))
                 first gemm   63 more rows   model at speed
    empty              6.20           3.20            40.00
    """
    lines = [f"{'':10} {'first gemm':>12} {'63 more rows':>14} {'model at speed':>16}"]
    for way, cases in found.items():
        first, others, model = cases["first"]["first"], cases["rows"]["others"], cases["model"]["at speed"]
        lines.append(f"{way:10} {first:12.2f} {others:14.2f} {model:16.2f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.evidence start",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--library", type=Path, help="folder of `cutegemm export --models`")
    parser.add_argument("--way", action="append", choices=WAYS, help="may be repeated; default all")
    parser.add_argument("--case", choices=CASES, help="run this case in this process, with the present cache")
    parser.add_argument("--seconds", type=float, default=120.0, help="time that the rounds of a model take at most")
    parser.add_argument("--json", type=Path, help="write all numbers there")
    given = parser.parse_args(arguments)
    from docs.evidence.measure import machine, need_gpu

    need_gpu()
    ways = given.way or WAYS
    if given.case:
        print(json.dumps(run_case(given.case, "background" in ways, given.seconds)))
        return
    found = measured([way for way in WAYS if way in ways], given.library, given.seconds)
    print(table(found))
    if given.json:
        write_record(given.json, {"machine": machine(), "seconds": found})
