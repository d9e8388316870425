"""The explorer as static files: the same page, whose Python runs in the browser, under Pyodide."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from cutegemm.errors import UnsupportedError
from cutegemm.explore.page import asset, document

PYODIDE = "https://cdn.jsdelivr.net/pyodide/v314.0.7/full/"
ASSETS = ("explore.css", "explore.js", "htmx.min.js", "tile.css", "tile.js")
_WORKER, _CONFIGURATION, _PACKAGE = "worker.js", "python.json", "cutegemm.zip"
# What runs without a compiler, a GPU and a terminal.
_ROOMS = (
    "analysis", "build", "choice", "compile", "draw", "explore", "layout", "machine", "parse", "plan", "profile", "run",
    "simulator", "tile",
)  # fmt: skip
_OF_PYODIDE = (
    "pyodide.mjs", "pyodide.js", "pyodide.asm.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip",
    "pyodide-lock.json",
)  # fmt: skip


def write(folder: Path, pyodide: str = PYODIDE) -> list[Path]:
    """Writes the page into a folder, which is made; the paths of what was written.

    pyodide   the address of a distribution of Pyodide, from which a browser loads it; or a folder that has one,
              which is then copied: the files of the npm package `pyodide`, and the wheel of numpy that its
              pyodide-lock.json names
    raises    UnsupportedError for a folder that lacks some of it
    """
    local = None if "://" in pyodide else _distribution(Path(pyodide))
    assets = folder / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    page = folder / "index.html"
    page.write_text(document(None, f' data-python="assets/{_WORKER}"'), encoding="utf-8")
    out = [page]
    for name in (*ASSETS, _WORKER):
        (assets / name).write_bytes(asset(name))
        out.append(assets / name)
    (assets / _PACKAGE).write_bytes(package())
    where = pyodide if local is None else "pyodide/"
    said = {"pyodide": where if where.endswith("/") else f"{where}/", "packages": [_PACKAGE]}
    (assets / _CONFIGURATION).write_text(json.dumps(said) + "\n", encoding="utf-8")
    out += [assets / _PACKAGE, assets / _CONFIGURATION]
    for file in local or ():
        (assets / "pyodide").mkdir(exist_ok=True)
        out.append(Path(shutil.copy2(file, assets / "pyodide" / file.name)))
    return out


def package() -> bytes:
    """The modules that the browser's Python needs, as a zip file of the same bytes each time."""
    held, root = io.BytesIO(), Path(__file__).parent.parent
    with ZipFile(held, "w", ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            within = file.relative_to(root)
            needed = len(within.parts) == 1 or within.parts[0] in _ROOMS
            if needed and file.suffix in (".py", ".html", ".css", ".js", ".json"):
                entry = ZipInfo((Path(root.name) / within).as_posix())  # of 1980, whenever it is made
                archive.writestr(entry, file.read_bytes(), ZIP_DEFLATED)
    return held.getvalue()


def _distribution(folder: Path) -> list[Path]:
    """The files of a distribution of Pyodide, with numpy."""
    try:
        lock = json.loads((folder / "pyodide-lock.json").read_text(encoding="utf-8"))
        numpy = lock["packages"]["numpy"]["file_name"]
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedError(
            f"explore: {folder} is no distribution of Pyodide: its pyodide-lock.json says nothing of numpy ({error!r})."
            " Give the folder of the npm package `pyodide`, or an address."
        ) from None
    found = [folder / name for name in _OF_PYODIDE if (folder / name).exists()]
    if not (folder / numpy).exists():
        raise UnsupportedError(
            f"explore: {folder} has no {numpy}, which its pyodide-lock.json names. Load it from {PYODIDE}{numpy}."
        )
    return [*found, folder / numpy]
