"""Read and write measurements as JSON, in tables that hold each name once."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: until the new text is complete, the old file stays.

    raises   OSError if it cannot be written
    """
    staged = path.with_name(f".{path.name}.part")
    staged.write_text(text)
    os.replace(staged, path)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record of measurements as JSON, with a table for each list of rows.

    A table has "shared", the keys with one value in all rows; "columns", the other keys; "values", a line for each row,
    with null for a key that a row lacks; and "names", the names that some columns have as indices, separated by spaces.
    A cell with a mapping is a list of indices and values in turn: if the names are "a b", [1, 2.5] is {"b": 2.5}.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.json"
    ...     write_record(path, {"seed": 1, "rows": [{"m": 4, "l": 1, "us": {"a": 1.5}}, {"l": 1, "us": {"b": 2.5}}]})
    ...     print(path.read_text(), read_record(path)["rows"])
    {
    "seed": 1,
    "rows": {"shared": {"l":1},
     "columns": ["m","us"],
     "names": {"us":"a b"},
     "values": [
    [4,[0,1.5]],
    [null,[1,2.5]]
    ]}
    }
     [{'l': 1, 'm': 4, 'us': {'a': 1.5}}, {'l': 1, 'us': {'b': 2.5}}]
    """
    write_whole(path, record_text(record))


def record_text(record: Mapping[str, Any]) -> str:
    """Return the text that `write_record` writes."""
    parts = [f"{json.dumps(key)}: {_written(value)}" for key, value in record.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read_record(path: Path) -> dict[str, Any]:
    """Return a record of measurements, with its tables as lists of rows.

    raises   OSError if the file cannot be read, ValueError if it does not hold a JSON object
    """
    record = json.loads(path.read_text())
    if not isinstance(record, dict):
        raise ValueError(f"{path} holds no measurements: it is not a JSON object")
    return {key: _rows(value) if _is_table(value) else value for key, value in record.items()}


def significant(value: float, digits: int = 4) -> float:
    """Return a measured number with as many significant digits as it means.

    >>> significant(1251.936), significant(0.0025482177734375, 3)
    (1252.0, 0.00255)
    """
    return float(f"{value:.{digits}g}")


def _written(value: Any) -> str:
    """Return a value of a record as JSON: a mapping or list with a line for each of its values."""
    are_rows = isinstance(value, list) and all(isinstance(row, Mapping) and None not in row.values() for row in value)
    if value and are_rows:
        return _table(value)
    if value and isinstance(value, Mapping):
        return "{\n" + ",\n".join([f"{json.dumps(key)}:{_compact(of)}" for key, of in value.items()]) + "\n}"
    return lines(value) if value and isinstance(value, list) else json.dumps(value)


def lines(values: Sequence[Any]) -> str:
    """Return a list as JSON, with a line for each value.

    >>> print(lines([[1, 2.5], {"us": 3.0}]))
    [
    [1,2.5],
    {"us":3}
    ]
    """
    return "[\n" + ",\n".join(map(_compact, values)) + "\n]"


def _table(rows: Sequence[Row]) -> str:
    """Return the table of rows as JSON."""
    every = list(dict.fromkeys(key for row in rows for key in row))
    shared = {column: rows[0][column] for column in every if _is_shared([row.get(column) for row in rows])}
    columns = [column for column in every if column not in shared]
    cells = {column: [row.get(column) for row in rows] for column in columns}
    names = {column: names for column in columns if (names := _names(cells[column]))}
    for column, known in names.items():
        place = {name: number for number, name in enumerate(known)}
        cells[column] = [cell if cell is None else _by_place(cell, place) for cell in cells[column]]
    values = ",\n".join(map(_compact, zip(*cells.values(), strict=True)))
    listed = {key: known if any(" " in name for name in known) else " ".join(known) for key, known in names.items()}
    return (
        f'{{"shared": {_compact(shared)},\n "columns": {_compact(columns)},\n "names": {_compact(listed)},\n '
        f'"values": [\n{values}\n]}}'
    )


def _is_shared(cells: Sequence[Any]) -> bool:
    """Return whether several rows have the same number or string in a column."""
    return len(cells) > 1 and isinstance(cells[0], (int, float, str)) and len(set(map(_compact, cells))) == 1


def _compact(value: Any) -> str:
    """Return a value as JSON without spaces, and whole numbers without a fraction."""
    return json.dumps(_whole(value), separators=(",", ":"))


def _whole(value: Any) -> Any:
    """Return a value with whole floats as integers, inside of lists and mappings too."""
    if isinstance(value, Mapping):
        return {key: _whole(of) for key, of in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(of) for of in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _names(cells: Sequence[Any]) -> list[str]:
    """Return the names of a column whose cells are mappings or repeated strings, the most frequent names first.

    Other columns have none: the list is empty.
    """
    there = [cell for cell in cells if cell is not None]
    if all(isinstance(cell, Mapping) for cell in there):
        return [name for name, _ in Counter([key for cell in there for key in cell]).most_common()]
    counts = Counter(there) if all(isinstance(cell, str) for cell in there) else Counter[str]()
    return [name for name, _ in counts.most_common()] if 2 * len(counts) <= len(there) else []


def _by_place(cell: str | Row, place: Mapping[str, int]) -> int | list[Any]:
    """Return a string as the place of its name, and a mapping as places and values in turn."""
    return place[cell] if isinstance(cell, str) else [x for key, value in cell.items() for x in (place[key], value)]


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"shared", "columns", "names", "values"}


def _rows(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a table that `_table` wrote."""
    names = {key: known.split(" ") if isinstance(known, str) else known for key, known in table["names"].items()}
    found = []
    for line in table["values"]:
        row = {column: cell for column, cell in zip(table["columns"], line, strict=True) if cell is not None}
        found.append({**table["shared"], **row, **{key: _by_name(row[key], names[key]) for key in names if key in row}})
    return found


def _by_name(cell: Any, names: Sequence[str]) -> str | dict[str, Any]:
    """Return the string or mapping that `_by_place` wrote as a cell."""
    if isinstance(cell, int):
        return names[cell]
    return {names[place]: value for place, value in zip(cell[::2], cell[1::2], strict=True)}
