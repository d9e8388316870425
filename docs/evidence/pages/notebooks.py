"""Notebooks of the documentation with the outputs of their cells, without Jupyter."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def notebooks(docs: Path) -> dict[str, str]:
    """Return the text of each notebook, executed again, by its path below `docs`."""
    found = {}
    for path in sorted((docs / "notebooks").glob("*.ipynb")):
        notebook = executed(json.loads(path.read_text("utf-8")))
        text = json.dumps(notebook, indent=0, ensure_ascii=False, separators=(",", ":")) + "\n"
        found[path.relative_to(docs).as_posix()] = text
    return found


def executed(notebook: Json) -> Json:
    """Return a notebook with the outputs of its code: what each cell prints, and the value of its last line.

    notebook   in Jupyter's format 4; its cells run in order, in one namespace
    """
    notebook, names, count = deepcopy(notebook), dict[str, Any](), 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = list(_outputs("".join(cell["source"]), names, count))
    return notebook


def _outputs(source: str, names: Json, count: int) -> Iterator[Json]:
    """Yield the outputs of a cell, which runs in the namespace `names`.

    count   number of the cell among those with code, from 1
    """
    *body, last = ast.parse(source).body
    value, printed = None, StringIO()
    with redirect_stdout(printed):
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(body, []), f"<cell {count}>", "exec"), names)
            value = eval(compile(ast.Expression(last.value), f"<cell {count}>", "eval"), names)
        else:
            exec(compile(source, f"<cell {count}>", "exec"), names)
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
    if value is not None:
        yield {"data": _data(value), "execution_count": count, "metadata": {}, "output_type": "execute_result"}


def _data(value: Any) -> dict[str, list[str]]:
    """Return a value as a notebook stores it, by its MIME type: a drawing as SVG, so that any viewer shows it."""
    if not hasattr(value, "_repr_html_"):
        return {"text/plain": repr(value).splitlines(keepends=True)}
    html = value._repr_html_()
    return {"image/svg+xml" if html.startswith("<svg") else "text/html": html.splitlines(keepends=True)}
