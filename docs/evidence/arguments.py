"""Arguments of the commands that measure: where the record goes, and the table of a record."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.evidence.files import read_record


def parser_of(command: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a command that measures, with its arguments `--json` and `--table`.

    command       name of the command, such as "experts"
    description   docstring of its module
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m docs.evidence {command}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="write all numbers there")
    parser.add_argument("--table", type=Path, help="measure nothing: the table of this record")
    return parser


def to_measure(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, table_of: Callable[[Mapping[str, Any]], str]
) -> argparse.Namespace | None:
    """Return the arguments of a measurement; None if only the table of a record was wanted, which is then printed.

    arguments   arguments of the command; None: those of this process
    table_of    function from a record to its table

    >>> parser = parser_of("experts", None)
    >>> to_measure(parser, ["--json", "a.json"], str).json.name
    'a.json'
    """
    given = parser.parse_args(arguments)
    if given.table is None:
        return given
    print(table_of(read_record(given.table)))
    return None
