"""`cutegemm explore`: serve the explorer on this machine, or write it as static files."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from cutegemm.errors import UnsupportedError

_PORT = 8420  # always the same, so that links to pages stay valid


def explore(
    port: Annotated[
        int | None, typer.Option(help=f"Port of the server. By default {_PORT}, or any free port if {_PORT} is taken.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
    static: Annotated[
        Path | None,
        typer.Option(help="Write the explorer as static files into this folder. Its Python runs in the browser."),
    ] = None,
    pyodide: Annotated[
        str | None,
        typer.Option(
            help="With --static: the address to load Pyodide from, or a folder with Pyodide, which is copied."
        ),
    ] = None,
) -> None:
    """Open the explorer, a web page with pictures of layouts, and with banks, pipelines, times and code of plans."""
    from cutegemm.explore.static import PYODIDE, write

    if pyodide is not None and static is None:
        raise UnsupportedError(
            "explore: --pyodide has an effect only with --static. Add --static FOLDER or leave out --pyodide."
        )
    if static is not None:
        written = write(static, pyodide or PYODIDE)
        size = sum(path.stat().st_size for path in written)
        print(f"{len(written)} files, {size / 1e6:.1f} MB, in {static}: serve them by any web server")
        return
    _serve(port, browser)


def _serve(port: int | None, browser: bool) -> None:
    """Serve the explorer (the web page of this package) from a local port until Ctrl-C.

    port      None for the default port, or any free one if that is taken
    browser   True to open a browser
    raises    UnsupportedError if `port` cannot be opened
    """
    from cutegemm.explore.server import Explorer

    try:
        explorer = Explorer(_PORT if port is None else port)
    except (OSError, OverflowError) as error:
        if port is not None:
            raise UnsupportedError(
                f"explore: port {port} cannot be opened: {error}. Give another port, or leave out --port."
            ) from None
        explorer = Explorer(0)
    with explorer:
        print(f"{explorer.url} (Ctrl-C ends it)", flush=True)
        if browser:
            threading.Thread(target=webbrowser.open, args=(explorer.url,), daemon=True).start()
        try:
            explorer.serve_forever()
        except KeyboardInterrupt:
            print()
