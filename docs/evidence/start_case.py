"""One case of `start`, in a process of its own, which imports nothing of cutegemm before the clock.

python -m docs.evidence.start_case model --seconds 60
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

CASES = ("first", "rows", "model")
LAYERS = 2  # decoder blocks of the model
STEADY, _LAST = 1.2, 10  # a round is steady up to this multiple of the median of the last _LAST rounds
_ROWS = 64
_BY_TORCH = 12  # rounds of the model by torch alone, before the clock


def at_speed(rounds: Sequence[float]) -> float:
    """Return the seconds until all later rounds are steady.

    rounds   seconds of each round

    >>> at_speed([5.0, 0.1, 2.0] + [0.1] * 20)
    7.1
    """
    usual = median(rounds[-_LAST:])
    slow = [index for index, seconds in enumerate(rounds) if seconds > STEADY * usual]
    return sum(rounds[: slow[-1] + 1]) if slow else 0.0


def run_case(case: str, is_in_background: bool, seconds: float) -> dict[str, float]:
    """Run a case in this process, and return its seconds by name.

    case               one of `CASES`
    is_in_background   whether kernels are compiled in the background
    seconds            time that the rounds of "model" take at most
    returns            "first" and "others": the first GEMM, and those with other numbers of rows. For "model", "at
                       speed": until all later rounds are steady, "round": median of the last rounds, "torch round": of
                       torch's rounds before the clock, "rounds": their number
    """
    import torch

    if case == "model":
        return _model(is_in_background, seconds)
    w = torch.randn(4096, 4096, device="cuda").bfloat16()
    x = torch.randn(_ROWS * 61, 4096, device="cuda").bfloat16()
    torch.mm(x, w.t()).sum().item()
    started = time.perf_counter()
    cutegemm = _imported(is_in_background)
    times = []
    for rows in range(61, (2 if case == "first" else _ROWS + 1) * 61, 61):
        cutegemm.gemm(x[:rows], w.t(), varying_rows=case == "rows")
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return {"first": times[0], "others": times[-1] - times[0]}


def _imported(is_in_background: bool) -> Any:
    """Import cutegemm, and return it."""
    import cutegemm

    if is_in_background:
        cutegemm.compile_in_background()
    return cutegemm


def _model(is_in_background: bool, seconds: float) -> dict[str, float]:
    """Run a decoder by torch, then import cutegemm, replace its layers, and run it until its rounds are steady.

    While torch computes calls whose kernels are missing, rounds may be steady too, but slower than those of torch.
    """
    import torch

    from docs.evidence.decoders import SIZES, stack, through

    size = SIZES["llama"]
    with torch.device("cuda"):
        model: Any = stack("llama", type(size)(**{**vars(size), "layers": LAYERS})).bfloat16()
    x = torch.randn(size.batch, size.tokens, size.width, device="cuda").bfloat16()

    def one_round() -> None:
        """Compute a training step and one generated token."""
        through(model, x).sum().backward()
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            through(model, x[:1, :1])
        torch.cuda.synchronize()

    by_torch = median([_seconds(one_round) for _ in range(_BY_TORCH)][-_LAST:])
    started = time.perf_counter()
    _imported(is_in_background).use(model)
    rounds: list[float] = []
    is_done = False
    while not is_done or len(rounds) < 3 * _LAST:
        one_round()
        rounds.append(time.perf_counter() - started - sum(rounds))
        is_steady = at_speed(rounds[-2 * _LAST :]) == 0 and median(rounds[-_LAST:]) <= STEADY * by_torch
        is_done = is_steady or time.perf_counter() > started + seconds
    times = {"at speed": at_speed(rounds), "round": median(rounds[-_LAST:]), "torch round": by_torch}
    return {**times, "rounds": len(rounds)}


def _seconds(call: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module, which prints the seconds of a case as JSON."""
    parser = argparse.ArgumentParser(prog="python -m docs.evidence.start_case", description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--background", action="store_true", help="compile kernels in the background")
    parser.add_argument("--seconds", type=float, default=120.0, help="time that the rounds of a model take at most")
    given = parser.parse_args(arguments)
    print(json.dumps(run_case(given.case, given.background, given.seconds)))


if __name__ == "__main__":
    main()
