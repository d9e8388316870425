"""The tuner: times the best few plans of the ranking on the device, once, and remembers which was the fastest.

The model of time errs by some per cent; of its best few, the fastest seldom is not among them. Nothing is timed unless
it is asked for: `with cutegemm.tuning(cache=path):`, `gemm(..., tune=True)`, or `cutegemm tune`. What was timed is kept
in a file, which other processes and other machines with such a device read: `cutegemm.use_tuned(path)`.

Which plans are timed: `varied`. How: `timing.alternating`. What is kept: `tuned`.
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

BEST = 12
_WITHIN = 1.3  # times the least prediction, of a plan of another kind
_SECONDS_OF_EACH = 0.03  # of the device, beside a tenth of a second to warm it

Timer = Callable[[Sequence[Callable[[], Any]]], Sequence[float]]
Trial = Callable[[Decision], Callable[[], Any]]


@contextmanager
def tuning(cache: str | Path | None = None, best: int = BEST) -> Iterator[None]:
    """Meanwhile the best few plans for what is new are timed, and the fastest is taken.

    cache    the file that keeps what was timed, and says what was; that of this user where left out
    best     how many plans are timed for each signature
    raises   UnsupportedError where the file is no file of tuned plans, or cannot be written; PlanError for fewer than
             one plan

    It is for all threads of the process. A signature is tuned when it is first called: its plans are compiled, in
    parallel, then timed on the tensors of the call, which takes some seconds and is said on stderr. While a CUDA graph
    is being captured nothing is timed. Calls that were made inside keep their plans.

    >>> with cutegemm.tuning(cache="tuned.json"):  # doctest: +SKIP
    ...     d = cutegemm.gemm(a, b)
    """
    global _active
    if isinstance(best, bool) or not isinstance(best, int) or best < 1:
        raise PlanError("tuning", [f"best = {best!r}; a whole number from 1 on is expected."])
    before, _active = _active, Tuner(default_file() if cache is None else Path(cache), best)
    calls.forget()
    try:
        yield
    finally:
        _active = before


def use_tuned(path: str | Path) -> int:
    """Lets calls take the plans that were timed to be the fastest on a device like theirs: for all of this process.

    path      a file that the tuner wrote, here or on another machine
    returns   how many records it has, of all devices and versions
    raises    UnsupportedError where it is no such file

    Of several files the one that was named last is asked first.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise UnsupportedError(f"the tuned plans {path!r}: the path of a file is expected.")
    path = Path(path)
    if not path.exists():
        raise UnsupportedError(f"the tuned plans {path}: there is no such file. `cutegemm tune` writes one.")
    table = Table.read(path)
    _used.insert(0, table)
    calls.forget()
    return len(table.records)


def default_file() -> Path:
    """Where the tuner keeps what it timed, if no file is named."""
    return cache_folder() / "tuned.json"


def recipe(question: Question, wanted: bool, trial: Trial, device: Callable[[], str]) -> Recipe | None:
    """What was timed to be the fastest, is timed now, or None: the model chooses.

    wanted   whether this call asks for it
    trial    what makes a call of a decision, which writes to nothing of the caller's
    device   gives the name of the device
    """
    tuner = _active or (_default() if wanted else None)
    if tuner is None and not _used:
        return None
    name = device()
    found = recorded(question, name, [] if tuner is None else [tuner.table])
    return found if found is not None or tuner is None else tuner.tune(question, trial, name)


def recorded(question: Question, device: str, first: Sequence[Table] = ()) -> Recipe | None:
    """What was timed to be the fastest on a device of that name, by a table that is used.

    first   tables that are asked before those
    """
    for table in (*first, *_used):
        record = table.find(question, device)
        if record is not None:
            found = recipe_named(record.plan)
            if question.served(found) is not None:
                return found
    return None


@dataclass
class Tuner:
    """What times, and where it keeps what it timed.

    timer      seconds of each of some calls
    capturing  whether a CUDA graph is being captured
    say        is told what is being done
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
        """Times the best few plans for a question; None where nothing can be timed."""
        subject = f"{question.problem} of {question.problem.operands.a.dtype}"
        if (self.capturing or _capturing)():
            self.say(f"{subject} is not tuned: a CUDA graph is being captured. Call it once before.")
            return None
        started = time.perf_counter()
        served = ((one, question.served(one.recipe)) for one in varied(question.compared()))
        decided = list(islice(((one, of) for one, of in served if of is not None), self.best))
        if not decided:
            return None
        decided.sort(key=lambda each: each[0].us)
        self.say(f"tuning {subject}: {len(decided)} plans")
        compile_missing([of.plan for _, of in decided], question.arch)
        calls_of = {}
        for one, of in decided:
            try:
                calls_of[str(one.recipe)] = run = trial(of)
                run()
            except CutegemmError as error:
                calls_of.pop(str(one.recipe), None)
                self.say(f"{one.recipe} is left out: {error}")
        if not calls_of:
            return None
        seconds = (self.timer or _alternating)(list(calls_of.values()))
        us = {name: round(each * 1e6, 3) for name, each in zip(calls_of, seconds, strict=True)}
        record = Record(min(us, key=lambda name: us[name]), us)
        self.table = Table({key_of(question, device): record}).write(self.path)
        kept = self.table.find(question, device) or record
        first = next(iter(us))
        gain = f", {us[first] / us[record.plan]:.3f} times as fast as {first}" if record.plan != first else ""
        took = time.perf_counter() - started
        self.say(f"{subject}: {record.plan} takes {us[record.plan]:.1f} us{gain} ({took:.1f} s)")
        return recipe_named(kept.plan)


def varied(compared: Sequence[Candidate]) -> list[Candidate]:
    """A ranking in the order in which its plans are worth to be timed.

    A kind is how K is split, what is packed, and whether the transposed problem is computed. The best of each kind come
    first, as far as they are near the best of all; then other tiles in their order, and what is left.

    >>> from cutegemm.choice.catalog import candidates
    >>> from cutegemm.plan.problem import Operands, Problem
    >>> found = varied(candidates(Operands.of("bf16", layout="nt"), Problem(4096, 4096, 4096)))
    >>> sorted({_kind(one.recipe) for one in found[:6]})
    [(False, False, ''), (False, False, 'fixup'), (True, False, ''), (True, False, 'fixup')]
    """
    if not compared:
        return []
    taken: dict[Recipe, Candidate] = {}
    kinds, tiles = set(), set()
    near = [one for one in compared if one.us <= compared[0].us * _WITHIN]
    for one in near:
        if _kind(one.recipe) not in kinds:
            kinds.add(_kind(one.recipe))
            tiles.add(one.recipe.name)
            taken[one.recipe] = one
    for one in near:
        if one.recipe.name not in tiles:
            tiles.add(one.recipe.name)
            taken[one.recipe] = one
    taken |= {one.recipe: one for one in compared if one.recipe not in taken}
    return list(taken.values())


def _kind(recipe: Recipe) -> tuple[bool, bool, str]:
    """Return whether D^T is computed, whether operands are packed, and how K is split ("" if it is not)."""
    split = recipe.split
    how = "" if split is None else "fixup" if split.fixup else "stream" if split.waves else "split_k"
    return recipe.swap_ab, recipe.is_repacked, how


def _capturing() -> bool:
    from cutegemm.compile.cuda import is_capturing

    return is_capturing()


def _alternating(runs: Sequence[Callable[[], Any]]) -> Sequence[float]:
    from cutegemm.run.timing import alternating

    return alternating(runs, _SECONDS_OF_EACH * len(runs))


def _default() -> Tuner:
    """The tuner of calls that ask for it outside of `tuning`."""
    path = default_file()
    if path not in _defaults:
        _defaults[path] = Tuner(path)
    return _defaults[path]


_active: Tuner | None = None
_used: list[Table] = []
_defaults: dict[Path, Tuner] = {}
