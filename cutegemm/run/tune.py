"""The tuner: time the plans with the lowest predicted times on the GPU, and remember the fastest.

Predicted times are off by a few per cent, so the fastest plan is nearly always one of the best few. Nothing is timed
unless the user asks for it by `with cutegemm.tuning(cache=path):`, `gemm(..., tune=True)` or `cutegemm tune`. The
results are kept in a file. Other processes, and other machines with the same GPU, read it by
`cutegemm.use_tuned(path)`.

`varied` chooses the plans to time, `timing.alternating` times them, and `tuned` keeps the results.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from cutegemm.choice.candidate import Candidate
from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import Recipe
from cutegemm.compile.cache import cache_folder
from cutegemm.compile.plans import compile_missing
from cutegemm.errors import CutegemmError, PlanError, UnsupportedError
from cutegemm.run import calls
from cutegemm.run.question import Decision, Question
from cutegemm.run.tuned import Record, Table, key_of

BEST = 12  # plans that are timed for a signature
_WITHIN = 1.3  # plans of other kinds are preferred up to this multiple of the least predicted time
_SECONDS_OF_EACH = 0.03  # time to measure each plan, in seconds

Timer = Callable[[Sequence[Callable[[], Any]]], Sequence[float]]  # calls -> seconds of each
Trial = Callable[[Decision], Callable[[], Any]]  # decision -> a call of its kernel


@contextmanager
def tuning(cache: str | Path | None = None, best: int = BEST) -> Iterator[None]:
    """Time the best few plans for each new kind of `gemm` call, and use the fastest, while the context is active.

    In the first call of a kind (types, shapes, strides, options), plans are compiled in parallel and timed on its
    tensors. This takes a few seconds, and messages are printed to stderr. Nothing is timed while a CUDA graph is
    captured. The plan is kept after the context ends. The context affects all threads of the process.

    cache    file of tuned plans, which is read and extended; None: tuned.json in the cache folder of this user
    best     number of plans that are timed for each kind of call, 1 or more
    raises   UnsupportedError if the file is not a file of tuned plans, or cannot be written; PlanError if `best` is
             not an integer of 1 or more

    >>> with cutegemm.tuning(cache="tuned.json"):  # doctest: +SKIP
    ...     d = cutegemm.gemm(a, b)
    """
    global _active
    if isinstance(best, bool) or not isinstance(best, int) or best < 1:
        raise PlanError("tuning", [f"best = {best!r} is not a number of plans. Pass an integer of 1 or more."])
    before, _active = _active, Tuner(default_file() if cache is None else Path(cache), best)
    calls.forget()
    try:
        yield
    finally:
        _active = before


def use_tuned(path: str | Path) -> int:
    """Make later calls of `gemm` in this process use the tuned plans that a file has for their device.

    Several files can be in use. A record in a file that was passed later takes precedence.

    path      file that the tuner wrote, on this machine or on another one
    returns   number of records in the file, for all devices and versions
    raises    UnsupportedError if the file does not exist or is not a file of tuned plans
    """
    if not isinstance(path, (str, os.PathLike)):
        raise UnsupportedError(f"use_tuned: path = {path!r} is not a path. Pass the path of a file of tuned plans.")
    path = Path(path)
    if not path.exists():
        raise UnsupportedError(f"use_tuned: the file {path} does not exist. `cutegemm tune` writes such a file.")
    table = Table.read(path)
    _used.insert(0, table)
    calls.forget()
    return len(table.records)


def default_file() -> Path:
    """Return the path of the file that the tuner writes its results to if the caller does not name one."""
    return cache_folder() / "tuned.json"


def recipe(question: Question, wanted: bool, trial: Trial, device: Callable[[], str]) -> Recipe | None:
    """Return the recipe of the plan that was measured to be fastest for a call; None to decide by predicted times.

    A recipe is a named set of options that gives a plan. The files that were passed to `use_tuned` are searched. If the
    tuner is on, by `tuning()` or tune=True, its own file is searched first, and plans are timed now if no file has the
    call.

    question   what the choice of the call's plan depends on: types, extents, strides, epilogue
    wanted     True if the call has tune=True
    trial      function that gets a plan and its problem, and returns a function without arguments that launches the
               plan's kernel, for the tuner to time. The launch must not write to the caller's tensors
    device     function that returns the name of the device
    """
    tuner = _active or (_default() if wanted else None)
    if tuner is None and not _used:
        return None
    name = device()
    known = recorded(question, name, [] if tuner is None else [tuner.table])
    return known if known is not None or tuner is None else tuner.tune(question, trial, name)


def recorded(question: Question, device: str, first: Sequence[Table] = ()) -> Recipe | None:
    """Return the fastest recipe (named plan options) that tables of tuned plans have for a call on a device, or None.

    question   what the choice of the call's plan depends on: types, extents, strides, epilogue
    device     name of the device
    first      tables to search before those of `use_tuned`
    returns    the recipe; None if no table has one that works
    """
    for table in (*first, *_used):
        record = table.find(question, device)
        if record is not None:
            fastest = recipe_named(record.plan)
            if question.served(fastest) is not None:
                return fastest
    return None


@dataclass
class Tuner:
    """Finds the fastest plan of a `gemm` call by timing the best few on the GPU, and writes the results to a file.

    path        file of tuned plans
    best        number of plans that are timed for a call
    timer       function that gets a list of functions, each launching a kernel, and returns the seconds of each; None:
                `timing.alternating`
    capturing   function that returns True while a CUDA graph is captured; None: ask torch
    say         function that prints a message
    table       content of the file
    """

    path: Path
    best: int = BEST
    timer: Timer | None = None
    capturing: Callable[[], bool] | None = None
    say: Callable[[str], None] = lambda text: print(f"cutegemm: {text}", file=sys.stderr)
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        self.table = Table.read(self.path)

    def tune(self, question: Question, trial: Trial, device: str) -> Recipe | None:
        """Time the best few plans for a call, add the result to this tuner's file, and return the fastest recipe.

        question   what the choice of the call's plan depends on: types, extents, strides, epilogue
        trial      function that gets a plan and its problem, and returns a function without arguments that launches the
                   plan's kernel, to be timed. The launch must not write to the caller's tensors
        device     name of the device
        returns    the recipe (named plan options); None if a CUDA graph is being captured, or if none of the plans can
                   run
        """
        subject = f"{question.problem} of {question.problem.operands.a.dtype}"
        if (self.capturing or _capturing)():
            self.say(
                f"{subject} is not tuned, since a CUDA graph is being captured. Call gemm once before the capture."
            )
            return None
        started = time.perf_counter()
        chosen = list(islice(to_time(question), self.best))
        if not chosen:
            return None
        chosen.sort(key=lambda pair: pair[0].us)
        self.say(f"tuning {subject}: {len(chosen)} plans")
        compile_missing([decision.plan for _, decision in chosen], question.arch)
        calls_by_name = {}
        for candidate, decision in chosen:
            try:
                calls_by_name[str(candidate.recipe)] = run = trial(decision)
                run()
            except CutegemmError as error:
                calls_by_name.pop(str(candidate.recipe), None)
                self.say(f"{candidate.recipe} is left out: {error}")
        if not calls_by_name:
            return None
        times = (self.timer or _alternating)(list(calls_by_name.values()))
        us = {name: round(seconds * 1e6, 3) for name, seconds in zip(calls_by_name, times, strict=True)}
        record = Record(min(us, key=lambda name: us[name]), us)
        self.table = Table({key_of(question, device): record}).write(self.path)
        kept = self.table.find(question, device) or record
        first = next(iter(us))
        gain = f", {us[first] / us[record.plan]:.3f} times as fast as {first}" if record.plan != first else ""
        took = time.perf_counter() - started
        self.say(f"{subject}: {record.plan} takes {us[record.plan]:.1f} us{gain} ({took:.1f} s)")
        return recipe_named(kept.plan)


def to_time(question: Question) -> Iterator[tuple[Candidate, Decision]]:
    """Yield the candidates that can compute a call, with their plans, in the order in which they should be timed.

    question   what the choice of the call's plan depends on: types, extents, strides, epilogue
    """
    for candidate in varied(question.compared()):
        decision = question.served(candidate.recipe)
        if decision is not None:
            yield candidate, decision


def varied(compared: Sequence[Candidate]) -> list[Candidate]:
    """Sort candidates (named plan options with predicted times) so that the most promising are timed first.

    First come the fastest candidates of each kind, then the fastest of each further tile size, and then the rest. Kinds
    differ in how K is split, in copies of operands before the GEMM (repack passes), and in swapping A and B. Candidates
    of the first two groups have a predicted time of at most 1.3 times the least.

    compared   candidates, the one with the lowest predicted time first

    >>> from cutegemm.choice.catalog import candidates
    >>> from cutegemm.plan.problem import Operands, Problem
    >>> ordered = varied(candidates(Operands.of("bf16", layout="nt"), Problem(4096, 4096, 4096)))
    >>> sorted({_kind(candidate.recipe) for candidate in ordered[:6]})
    [(False, False, ''), (False, False, 'fixup'), (True, False, ''), (True, False, 'fixup')]
    """
    if not compared:
        return []
    ordered: dict[Recipe, Candidate] = {}
    kinds, tiles = set(), set()
    near = [candidate for candidate in compared if candidate.us <= compared[0].us * _WITHIN]
    for candidate in near:
        if _kind(candidate.recipe) not in kinds:
            kinds.add(_kind(candidate.recipe))
            tiles.add(candidate.recipe.name)
            ordered[candidate.recipe] = candidate
    for candidate in near:
        if candidate.recipe.name not in tiles:
            tiles.add(candidate.recipe.name)
            ordered[candidate.recipe] = candidate
    ordered |= {candidate.recipe: candidate for candidate in compared if candidate.recipe not in ordered}
    return list(ordered.values())


def _kind(recipe: Recipe) -> tuple[bool, bool, str]:
    """Return the kind of a plan, so that the tuner times at least one plan of each kind.

    Kinds differ in what makes plans behave differently.

    recipe    named options that the plan is built from
    returns   (True if A and B are swapped, True if an operand is copied before the GEMM, how K is split). The last is
              "split_k", "stream" for stream-K, "fixup" for stream-K on the tiles of the last wave, or "" if K is not
              split
    """
    split = recipe.split
    how = "" if split is None else "fixup" if split.fixup else "stream" if split.waves else "split_k"
    return recipe.swap_ab, recipe.is_repacked, how


def _capturing() -> bool:
    """Return True if a CUDA graph is being captured. torch is not imported for this."""
    from cutegemm.compile.cuda import is_capturing

    return is_capturing()


def _alternating(runs: Sequence[Callable[[], Any]]) -> Sequence[float]:
    """Return the median seconds of each function, which launches a kernel, measured in alternation on the GPU.

    runs   functions without arguments
    """
    from cutegemm.run.timing import alternating

    return alternating(runs, _SECONDS_OF_EACH * len(runs))


def _default() -> Tuner:
    """Return the tuner for calls with tune=True outside of the context `tuning`; it writes to `default_file()`."""
    path = default_file()
    if path not in _defaults:
        _defaults[path] = Tuner(path)
    return _defaults[path]


_active: Tuner | None = None  # the tuner of `tuning`, while it is active
_used: list[Table] = []  # tables of `use_tuned`, the last one first
_defaults: dict[Path, Tuner] = {}  # tuners of `_default` by file
