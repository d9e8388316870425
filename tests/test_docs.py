"""The examples in the documents run, and print what the documents show."""

import doctest
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cutegemm.choice import names as of_plans
from docs.evidence.pages.notebooks import executed

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/measured").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PICTURES = sorted((ROOT / "docs").glob("[fp]*s/*.svg"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
_NEW = {"build/sm100.py"}  # named in docs/extending.md as a file to be added
_EXTRAS = (("kernels", "tvm_ffi"), ("torch", "torch"), ("operators", "cutlass.operators"))
_ARGUMENTS = {"sgemm_ladder.py": ("--size", "1024")}  # analysing the traffic of each step for 4096 takes half a second
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it. Only its parents are imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_code_blocks(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code blocks of a document run in order, in one namespace. Plans that they register are removed afterwards."""
    monkeypatch.setattr(of_plans, "_OWN", {})
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for number, block in enumerate(_BLOCK.findall(document.read_text())):
        if any(f"# needs the extra `{extra}`" in block and not is_installed(of) for extra, of in _EXTRAS):
            continue
        if ">>>" not in block:
            exec(compile(block, f"{document.name}[{number}]", "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(block, names, f"{document.name}[{number}]", None, None)
        runner.run(test, clear_globs=False)
        names.update(test.globs)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_files_that_are_named_exist(document: Path) -> None:
    """Paths such as `folder/file.py` exist in the package or the repository; names such as `file.py` in the package."""
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", document.read_text())) - _NEW
    known = {path.name for path in (ROOT / "cutegemm").rglob("*.py")}
    paths = [name for name in named if "/" in name]
    assert [name for name in paths if not any((root / name).exists() for root in (ROOT, ROOT / "cutegemm"))] == []
    assert named - {*paths} <= known


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook(notebook: Path) -> None:
    """The committed outputs of a notebook are those of its code today, and at least two of them are drawings."""
    committed = json.loads(notebook.read_text("utf-8"))
    assert executed(committed) == committed, "run: python -m docs.evidence report"
    outputs = [output for cell in committed["cells"] for output in cell.get("outputs", ())]
    assert sum("image/svg+xml" in output.get("data", ()) for output in outputs) >= 2


def test_the_readme_is_short() -> None:
    """It has at most 900 words outside of code blocks."""
    prose = re.sub(r"^```.*?^```", "", DOCUMENTS[0].read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= 900


def test_notebooks_are_small() -> None:
    assert sum(notebook.stat().st_size for notebook in NOTEBOOKS) < 2**20


def test_every_picture_is_in_the_gallery() -> None:
    gallery = (ROOT / "docs" / "gallery.md").read_text()
    assert len(PICTURES) >= 17
    assert [path.name for path in PICTURES if f"({path.parent.name}/{path.name})" not in gallery] == []


@pytest.mark.thorough
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_example(example: Path) -> None:
    """Every example runs without a GPU and prints something."""
    command = [sys.executable, str(example), *_ARGUMENTS.get(example.name, ())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
