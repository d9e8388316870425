"""Tables of plans that were timed: what is in them, how a file of them is read, and how several processes write it.

A record says, for one question on one device, which plan was the fastest, and what each that was timed took. Its key is
a line that a person reads: the device, the versions of cutegemm and of the DSL, the recipes that a choice is made
among, the operands and what becomes of the sums, how fp8 is summed up, and the extents' class.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cutegemm.choice.gemv.named import GEMV_PLANS
from cutegemm.choice.mma_sync.named import MMA_SYNC_PLANS
from cutegemm.choice.simt.named import SIMT_PLANS
from cutegemm.choice.sm90.named import SM90_CHOSEN, SM90_PROMOTED
from cutegemm.compile.cache import NO_DSL, dsl_version
from cutegemm.errors import UnsupportedError, how_to_install
from cutegemm.run.question import Question

_FORMAT = 1
_FINE, _COARSE = 16, 64  # elements: of extents up to `_FEW`, and of larger ones
_FEW = 256
_OF_DSL = re.compile(r"DSL [^|]*(?= \|)")


@dataclass(frozen=True)
class Record:
    """What was timed for one question.

    plan   the name of the fastest
    us     microseconds of each plan that was timed, by its name
    """

    plan: str
    us: Mapping[str, float]


@dataclass
class Table:
    """Records by their keys."""

    records: dict[str, Record] = field(default_factory=dict)

    def find(self, question: Question, device: str) -> Record | None:
        """What was timed for a question on a device of that name; without the DSL, by any version of it."""
        key = key_of(question, device)
        if dsl_version() != NO_DSL:
            return self.records.get(key)
        same = {_OF_DSL.sub(f"DSL {NO_DSL}", each): each for each in self.records}
        return self.records[same[key]] if key in same else None

    @staticmethod
    def read(path: Path) -> Table:
        """Of a file; an empty one where there is no file.

        raises   UnsupportedError where the file holds something else
        """
        try:
            held = json.loads(path.read_text())
        except FileNotFoundError:
            return Table()
        except (OSError, ValueError, RecursionError) as error:
            raise UnsupportedError(f"the tuned plans {path}: {error}. Name another file.") from error
        if not isinstance(held, dict) or held.get("format") != _FORMAT:
            raise UnsupportedError(
                f"the tuned plans {path}: it is no file of tuned plans of format {_FORMAT}. Name another file, or tune "
                "anew."
            )
        try:
            records = {
                str(key): Record(_text(one["plan"]), {str(n): float(us) for n, us in one["us"].items()})
                for key, one in held["records"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnsupportedError(f"the tuned plans {path}: a record does not read: {error!r}.") from error
        return Table(records)

    def write(self, path: Path) -> Table:
        """Adds the records to those of a file, which other processes may do at the same time; returns all of them.

        What the file has of a question already stays, so that all processes take the same plan. The file appears at
        once under its name: who reads it meanwhile sees it as it was before.

        raises   UnsupportedError where it cannot be written
        """
        try:
            from filelock import FileLock
        except ImportError as error:
            raise UnsupportedError(
                f"the tuner locks its file with the package filelock, which is not installed. {how_to_install('torch')}"
            ) from error
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{path}.lock"):
                both = Table({**self.records, **Table.read(path).records})
                _replace(path, both.text)
        except OSError as error:
            raise UnsupportedError(f"the tuned plans {path} cannot be written: {error}.") from error
        return both

    @property
    def text(self) -> str:
        """As a file holds it."""
        records: dict[str, Any] = {
            key: {"plan": one.plan, "us": dict(one.us)} for key, one in sorted(self.records.items())
        }
        return json.dumps({"format": _FORMAT, "records": records}, indent=1) + "\n"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no name of a plan")
    return value


def _replace(path: Path, text: str) -> None:
    handle, staged = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(staged, 0o644)
        os.replace(staged, path)
    except BaseException:
        os.unlink(staged)
        raise


def key_of(question: Question, device: str) -> str:
    """The line that names a question on a device."""
    ending = "" if question.ending is None else f"; {question.ending.epilogue}"
    with_c = "; with C" if question.has_c and question.ending is None else ""
    boxed, by_threads = [(of.a.align_bytes, of.b.align_bytes) for of in (question.boxed, question.problem.operands)]
    boxes = "" if boxed == by_threads else f"; boxes aligned to {boxed[0]} and {boxed[1]} bytes"
    parts = [
        device,
        versions(),
        f"recipes {recipe_space()}",
        f"{question.problem.operands}{boxes}{with_c}{ending}",
        question.accumulate,
        "x".join(map(str, shape_class(question.extents))),
    ]
    return " | ".join(parts)


def shape_class(extents: tuple[int, int, int, int]) -> tuple[int, ...]:
    """What stands for extents that have the same tiles: each rounded up, small ones to 16, large ones to 64.

    >>> shape_class((5, 250, 4096, 1)), shape_class((1000, 4097, 100, 3))
    ((16, 256, 4096, 1), (1024, 4160, 112, 3))
    """
    *matrix, batch = extents
    units = [_FINE if extent <= _FEW else _COARSE for extent in matrix]
    return (*[-(-extent // unit) * unit for extent, unit in zip(matrix, units, strict=True)], batch)


@cache
def versions() -> str:
    """Of what makes the kernels."""
    try:
        own = importlib.metadata.version("cutegemm")
    except importlib.metadata.PackageNotFoundError:
        own = "of no version"
    return f"cutegemm {own}, DSL {dsl_version()}"


@cache
def recipe_space() -> str:
    """A digest of the recipes among which a choice is made."""
    recipes = (*SM90_CHOSEN, *SM90_PROMOTED, *SIMT_PLANS, *MMA_SYNC_PLANS, *GEMV_PLANS)
    text = "\n".join([f"{recipe} {sorted(recipe.options.items())}" for recipe in recipes])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
