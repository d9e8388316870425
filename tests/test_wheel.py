"""A wheel that is built from the repository has every file of the package, and works without the clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_NOT_BUILT = ("__pycache__", "prebuilt")  # folders of the package that no wheel has

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(find_spec("pip") is None, reason="pip is not installed")]


def run(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without the clone on the path of Python, and with a cache in the folder."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["CUTEGEMM_CACHE_DIR"] = str(folder / "cache")
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=variables, cwd=folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel in a copy of the repository, where no earlier build has left files."""
    folder = tmp_path_factory.mktemp("wheel")
    clone = folder / "clone"
    clone.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    shutil.copytree(ROOT / "cutegemm", clone / "cutegemm", ignore=shutil.ignore_patterns(*_NOT_BUILT))
    built = run(folder, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, clone)
    if "No matching distribution found for setuptools" in built.stderr:
        pytest.skip("pip cannot download setuptools, which builds the wheel")
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    files = (path.relative_to(ROOT) for path in (ROOT / "cutegemm").rglob("*") if path.is_file())
    expected = {path.as_posix() for path in files if not set(_NOT_BUILT) & set(path.parts)}
    built = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("cutegemm/")}
    assert built == expected


def test_the_first_command_of_the_readme_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """The packages that cutegemm needs are those of this environment; cutegemm itself is that of the wheel."""
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    venv.create(tmp_path / "venv", symlinks=True)
    programs = tmp_path / "venv" / "bin"
    pip = Path(find_spec("pip").origin).parent  # pip of this environment, which installs for the Python that runs it
    installed = run(
        tmp_path, programs / "python", pip, "install", "-q", "--no-compile", "--no-deps", "--no-index", wheel
    )
    assert installed.returncode == 0, installed.stderr
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "needed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    where = run(tmp_path, programs / "python", "-c", "import cutegemm; print(cutegemm.__file__)").stdout
    assert Path(where.strip()).is_relative_to(site)
    done = run(tmp_path, programs / "cutegemm", "gemm", 512, 512, 512)
    assert done.returncode == 0, done.stderr
    assert "compiled" in done.stdout, done.stdout
