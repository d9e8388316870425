"""Tables of tuned plans, and the file format that several processes read and write.

A record has the time of each plan that was timed for a question on a device, and the fastest of them. Its key is
readable text: the device, the versions of cutegemm and of the DSL, a hash of the recipes, the operands and the
epilogue, the accumulation of float8, and the extents, rounded up.
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
_FINE, _COARSE = 16, 64  # extents are rounded up to multiples of these: those up to `_FEW`, and larger ones
_FEW = 256
_OF_DSL = re.compile(r"DSL [^|]*(?= \|)")


@dataclass(frozen=True)
class Record:
    """The measured times of plans for one kind of GEMM (types, rounded extents, epilogue) on one device.

    plan   name of the fastest plan
    us     plan name -> microseconds, for each plan that was timed
    """

    plan: str
    us: Mapping[str, float]


@dataclass
class Table:
    """The content of a file of tuned plans: which plan was the fastest, by kind of GEMM and device.

    records   dict from a text that describes the GEMM and the device, made by `key_of`, to the measured times of plans
    """

    records: dict[str, Record] = field(default_factory=dict)

    def find(self, question: Question, device: str) -> Record | None:
        """Return this table's measured times for a GEMM on a device; None if the table has none.

        The versions of cutegemm and of the CuTe DSL must be those of the record. If the DSL is not installed here, its
        version is not compared.

        question   types, extents, alignments and epilogue of the GEMM
        device     name of the device
        """
        key = key_of(question, device)
        if dsl_version() != NO_DSL:
            return self.records.get(key)
        without_dsl = {_OF_DSL.sub(f"DSL {NO_DSL}", recorded_key): recorded_key for recorded_key in self.records}
        return self.records[without_dsl[key]] if key in without_dsl else None

    @staticmethod
    def read(path: Path) -> Table:
        """Return the table of tuned plans (measured times) in a file; an empty table if the file does not exist.

        path     the file
        raises   UnsupportedError if the file cannot be read or is not a file of tuned plans
        """
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            return Table()
        except (OSError, ValueError, RecursionError) as error:
            raise UnsupportedError(f"the tuned plans {path} cannot be read: {error}. Pass another file.") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise UnsupportedError(
                f"the tuned plans {path}: this is not a file of tuned plans of format {_FORMAT}. Pass another file, or "
                "tune again."
            )
        try:
            records = {
                str(key): Record(_text(record["plan"]), {str(n): float(us) for n, us in record["us"].items()})
                for key, record in content["records"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnsupportedError(
                f"the tuned plans {path}: a record is not valid: {error!r}. Pass another file, or tune again."
            ) from error
        return Table(records)

    def write(self, path: Path) -> Table:
        """Add the records of this table to a file of tuned plans, and return all records of the file.

        Several processes may do this at the same time. A record that the file has already is not replaced, so that all
        processes use the same plan. The file is replaced as a whole, so that readers never see half of it.

        raises   UnsupportedError if the file cannot be written
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
            raise UnsupportedError(
                f"the tuned plans {path} cannot be written: {error}. Pass a file in another folder."
            ) from error
        return both

    @property
    def text(self) -> str:
        """Return the JSON text of a file of tuned plans with the records of this table."""
        records: dict[str, Any] = {
            key: {"plan": record.plan, "us": dict(record.us)} for key, record in sorted(self.records.items())
        }
        return json.dumps({"format": _FORMAT, "records": records}, indent=1) + "\n"


def _text(value: Any) -> str:
    """Return a value that was read from a file if it is a str (the name of a plan); else raise TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not the name of a plan")
    return value


def _replace(path: Path, text: str) -> None:
    """Write a text to a file so that readers never see half of it.

    It is written to a temporary file in the same folder. This file is then renamed.

    path   the file, which may exist
    text   its new content
    """
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
    """Return the key of a GEMM in a table of tuned plans, as one line of readable text.

    question   types, extents, alignments and epilogue of the GEMM
    device     name of the device
    """
    ending = "" if question.ending is None else f"; {question.ending.epilogue}"
    with_c = "; with C" if question.has_c and question.ending is None else ""
    boxed, by_threads = [
        (operands.a.align_bytes, operands.b.align_bytes) for operands in (question.boxed, question.problem.operands)
    ]
    boxes = "" if boxed == by_threads else f"; boxes aligned to {boxed[0]} and {boxed[1]} bytes"
    invariant = "; batch invariant" if question.batch_invariant else ""
    fields = [
        device,
        versions(),
        f"recipes {recipe_space()}",
        f"{question.problem.operands}{boxes}{with_c}{ending}{invariant}",
        question.accumulate,
        "x".join(map(str, shape_class(question.extents))),
    ]
    return " | ".join(fields)


def shape_class(extents: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Return M, N and K rounded up, and L unchanged. GEMMs with equal results share a record of tuned plans.

    Extents up to 256 are rounded up to multiples of 16, larger ones to multiples of 64.

    extents   M, N, K and L

    >>> shape_class((5, 250, 4096, 1)), shape_class((1000, 4097, 100, 3))
    ((16, 256, 4096, 1), (1024, 4160, 112, 3))
    """
    *matrix, batch = extents
    units = [_FINE if extent <= _FEW else _COARSE for extent in matrix]
    return (*[-(-extent // unit) * unit for extent, unit in zip(matrix, units, strict=True)], batch)


@cache
def versions() -> str:
    """Return the versions of cutegemm and of the DSL as text, such as "cutegemm 1.0, DSL 4.3.0"."""
    try:
        own = importlib.metadata.version("cutegemm")
    except importlib.metadata.PackageNotFoundError:
        own = "of no version"
    return f"cutegemm {own}, DSL {dsl_version()}"


@cache
def recipe_space() -> str:
    """Return a hash of the names and options of all built-in plans, as part of the key of measured times.

    If a version of this package changes a plan, the hash changes, so that measurements of the old plans are not used.
    """
    recipes = (*SM90_CHOSEN, *SM90_PROMOTED, *SIMT_PLANS, *MMA_SYNC_PLANS, *GEMV_PLANS)
    text = "\n".join([f"{recipe} {sorted(recipe.options.items())}" for recipe in recipes])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
