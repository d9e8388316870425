"""`cutegemm explore`: the explorer on this machine, or as static files."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from cutegemm.errors import UnsupportedError

_PORT = 8420  # the same each time, so that links to pages stay


def explore(
    port: Annotated[
        int | None, typer.Option(help=f"Of the page; {_PORT} where left out, or any if that is taken.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open a browser.")] = True,
    static: Annotated[
        Path | None,
        typer.Option(help="Write the page into a folder instead; its Python runs in the browser."),
    ] = None,
    pyodide: Annotated[
        str | None,
        typer.Option(help="With --static: where Pyodide is loaded from; a folder that has it is copied."),
    ] = None,
) -> None:
    """Layouts typed and seen, and plans with their banks, pipelines, times and machine code, in a browser."""
    from cutegemm.explore.static import PYODIDE, write

    if pyodide is not None and static is None:
        raise UnsupportedError("explore: --pyodide is for --static; a page on this machine needs none.")
    if static is not None:
        written = write(static, pyodide or PYODIDE)
        size = sum(path.stat().st_size for path in written)
        print(f"{len(written)} files, {size / 1e6:.1f} MB, in {static}: serve them by any web server")
        return
    _serve(port, browser)


def _serve(port: int | None, browser: bool) -> None:
    from cutegemm.explore.server import Explorer

    try:
        explorer = Explorer(_PORT if port is None else port)
    except (OSError, OverflowError) as error:
        if port is not None:
            raise UnsupportedError(f"explore: port {port} cannot be had: {error}. Give another one, or none.") from None
        explorer = Explorer(0)
    with explorer:
        print(f"{explorer.url} (Ctrl-C ends it)", flush=True)
        if browser:
            threading.Thread(target=webbrowser.open, args=(explorer.url,), daemon=True).start()
        try:
            explorer.serve_forever()
        except KeyboardInterrupt:
            print()
