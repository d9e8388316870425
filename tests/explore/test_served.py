"""The explorer as a server of this machine, and as static files, whose Python needs numpy alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

from cutegemm.cli import app
from cutegemm.errors import UnsupportedError
from cutegemm.explore import answer
from cutegemm.explore.page import asset
from cutegemm.explore.server import POLICY, Explorer
from cutegemm.explore.static import ASSETS, PYODIDE, package, write

# As the npm package htmx.org of version 4.0.1 has it in dist/: under the Zero-Clause BSD licence.
HTMX = "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
# Modules that Python in a browser does not have, and modules that the page must not wait for.
FOREIGN = (
    "rich",
    "typer",
    "click",
    "cutlass",
    "torch",
    "tvm_ffi",
    "platformdirs",
    "multiprocessing",
    "concurrent",
)
PROBE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {foreign}:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, {archive!r})
import cutegemm
from cutegemm.explore import respond
assert cutegemm.__file__.startswith({archive!r}), cutegemm.__file__
for query in sys.stdin.read().split():
    print(len(respond(query)[0]))
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Explorer]:
    with Explorer(0) as explorer:
        threading.Thread(target=explorer.serve_forever, daemon=True).start()
        yield explorer
        explorer.shutdown()


def got(served: Explorer, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = HTTPConnection("127.0.0.1", served.server_address[1], timeout=30)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    reply = connection.getresponse()
    return reply.status, dict(reply.getheaders()), reply.read().decode()


def test_the_page_is_whole_and_htmx_is_answered_a_part(served: Explorer) -> None:
    status, headers, html = got(served, "/?view=rules&plan=simt_64x64&layout=nn")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"] == POLICY
    assert html.startswith("<!DOCTYPE html>")
    content = answer("view=rules&plan=simt_64x64&layout=nn").html
    assert content in html
    status, headers, part = got(served, "/?form=1&view=rules&plan=simt_64x64&layout=nn", HX_Request="true")
    assert part == f"<title>simt_64x64: cutegemm explorer</title>{content}"
    assert headers["HX-Replace-Url"] == "?view=rules&plan=simt_64x64&layout=nn"
    back = got(served, "/?view=rules", HX_Request="true", HX_History_Restore_Request="true")[2]
    assert back.startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("name", ASSETS)
def test_what_the_page_needs_is_served(served: Explorer, name: str) -> None:
    status, headers, text = got(served, f"/assets/{name}")
    assert status == 200
    assert text.encode() == asset(name)
    assert headers["Content-Type"].startswith("text/css" if name.endswith("css") else "text/javascript")
    assert f"assets/{name}" in got(served, "/")[2]


def test_nothing_else_is_served(served: Explorer) -> None:
    for path in (
        "/assets/page.html",
        "/assets/../server.py",
        "/etc/passwd",
        "/assets/worker.js",
        "/index.html",
    ):
        assert got(served, path)[0] == 404
    assert got(served, "/", Host="elsewhere.example")[0] == 403  # a page of somebody else's, under a name of theirs


def test_htmx_is_as_published() -> None:
    assert sha256(asset("htmx.min.js")).hexdigest() == HTMX


def test_static_files(tmp_path: Path) -> None:
    written = write(tmp_path / "site")
    assert all(path.is_file() for path in written)
    page = (tmp_path / "site" / "index.html").read_text()
    assert 'data-python="assets/worker.js"' in page
    for name in (*ASSETS, "worker.js", "python.json", "cutegemm.zip"):
        assert (tmp_path / "site" / "assets" / name).exists()
    said = json.loads((tmp_path / "site" / "assets" / "python.json").read_text())
    assert said == {"pyodide": PYODIDE, "packages": ["cutegemm.zip"]}
    assert sum(path.stat().st_size for path in written) < 1_200_000


def test_pyodide_is_copied_from_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "pyodide"
    folder.mkdir()
    with pytest.raises(UnsupportedError, match=r"has no pyodide-lock\.json that names numpy"):
        write(tmp_path / "site", str(folder))
    (folder / "pyodide-lock.json").write_text('{"packages": {"numpy": {"file_name": "numpy-9.whl"}}}')
    with pytest.raises(UnsupportedError, match=r"lacks numpy-9\.whl"):
        write(tmp_path / "site", str(folder))
    for name in ("numpy-9.whl", "pyodide.mjs", "pyodide.asm.wasm"):
        (folder / name).write_text(name)
    write(tmp_path / "site", str(folder))
    copied = {path.name for path in (tmp_path / "site" / "assets" / "pyodide").iterdir()}
    assert copied == {"pyodide-lock.json", "numpy-9.whl", "pyodide.mjs", "pyodide.asm.wasm"}
    assert '"pyodide/"' in (tmp_path / "site" / "assets" / "python.json").read_text()


def test_the_package_of_the_static_page_is_enough(tmp_path: Path) -> None:
    """Every view, from the zip file, with the standard library and numpy; machine code says what it lacks."""
    archive = tmp_path / "cutegemm.zip"
    archive.write_bytes(package())
    assert archive.read_bytes() == package()  # equal in each process
    views = ("layouts", "rules", "tile", "banks", "pipeline", "report", "code")
    queries = [f"view={view}&problem=512x512x512" for view in views]
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(foreign=FOREIGN, archive=str(archive))],
        input=" ".join(queries), capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(int(length) > 4000 for length in done.stdout.split())
    assert len(done.stdout.split()) == len(queries)
    names = ZipFile(BytesIO(package())).namelist()
    assert not [name for name in names if name.split("/")[1] in ("cli", "kernels", "torch", "emulator")]


def test_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["explore", "--static", str(tmp_path / "site")])
    assert done.exit_code == 0
    assert "serve them by any web server" in done.output
    refused = CliRunner().invoke(app, ["explore", "--pyodide", "x"])
    assert isinstance(refused.exception, UnsupportedError)
    with Explorer(0) as taken:
        again = CliRunner().invoke(app, ["explore", "--no-browser", "--port", str(taken.server_address[1])])
    assert "cannot be opened" in str(again.exception)
