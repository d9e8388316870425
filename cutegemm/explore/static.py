"""Write the explorer as static files. Its Python runs in the browser, under Pyodide."""

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
# Subpackages that the explorer needs. They run without a compiler, a GPU or a terminal.
_ROOMS = (
    "analysis", "build", "choice", "compile", "draw", "explore", "layout", "machine", "parse", "plan", "profile", "run",
    "simulator", "tile",
)  # fmt: skip
_OF_PYODIDE = (
    "pyodide.mjs", "pyodide.js", "pyodide.asm.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip",
    "pyodide-lock.json",
)  # fmt: skip


def write(folder: Path, pyodide: str = PYODIDE) -> list[Path]:
    """Write the explorer's web page as static files into a folder, and return the paths of the files.

    Its Python then runs in the browser.

    folder    created if it does not exist
    pyodide   where the browser loads Pyodide (Python for browsers) from: a URL, or a local folder whose files are
              copied. The folder has the files of the npm package `pyodide` and the numpy wheel that its
              pyodide-lock.json names
    raises    UnsupportedError if a local folder lacks some of these files
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
    settings = {"pyodide": where if where.endswith("/") else f"{where}/", "packages": [_PACKAGE]}
    (assets / _CONFIGURATION).write_text(json.dumps(settings) + "\n", encoding="utf-8")
    out += [assets / _PACKAGE, assets / _CONFIGURATION]
    for file in local or ():
        (assets / "pyodide").mkdir(exist_ok=True)
        out.append(Path(shutil.copy2(file, assets / "pyodide" / file.name)))
    return out


def package() -> bytes:
    """Return a zip file of cutegemm's Python modules that the static web page needs, as bytes.

    The bytes depend only on the sources. Styles and scripts are not in it: the browser loads them itself.
    """
    buffer, root = io.BytesIO(), Path(__file__).parent.parent
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            within = file.relative_to(root)
            needed = len(within.parts) == 1 or within.parts[0] in _ROOMS
            if needed and file.suffix in (".py", ".html", ".json"):
                entry = ZipInfo(
                    (Path(root.name) / within).as_posix()
                )  # dated 1980, so that the bytes do not depend on the time
                archive.writestr(entry, file.read_bytes(), ZIP_DEFLATED, 9)
    return buffer.getvalue()


def _distribution(folder: Path) -> list[Path]:
    """Return the files of Pyodide (Python for browsers) and of the numpy wheel in a local folder.

    raises   UnsupportedError if the folder lacks pyodide-lock.json or the wheel
    """
    try:
        lock = json.loads((folder / "pyodide-lock.json").read_text(encoding="utf-8"))
        numpy = lock["packages"]["numpy"]["file_name"]
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedError(
            f"explore --pyodide {folder}: it has no pyodide-lock.json that names numpy ({error!r}). Give the folder of "
            "the npm package `pyodide`, or a URL."
        ) from None
    files = [folder / name for name in _OF_PYODIDE if (folder / name).exists()]
    if not (folder / numpy).exists():
        raise UnsupportedError(
            f"explore --pyodide {folder}: it lacks {numpy}, which pyodide-lock.json names. Download {PYODIDE}{numpy}."
        )
    return [*files, folder / numpy]
