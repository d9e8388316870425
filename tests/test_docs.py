"""The examples in the documents are run, and print what the documents say that they print."""

import ast
import doctest
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cutegemm.choice import names as of_plans

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/measured").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PICTURES = sorted((ROOT / "docs").glob("[fp]*s/*.svg"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
_NEW = {"build/sm100.py"}  # named by docs/extending.md as what is not there yet
_EXTRAS = (("kernels", "tvm_ffi"), ("torch", "torch"))
_ARGUMENTS = {"sgemm_ladder.py": ("--size", "1024")}  # the traffic of each step at 4096 takes half a second
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_code_blocks(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a document run one after the other in one namespace; plans that they name are gone after them."""
    monkeypatch.setattr(of_plans, "_OWN", {})
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for number, block in enumerate(_BLOCK.findall(document.read_text())):
        if any(f"# needs the extra `{extra}`" in block and find_spec(of) is None for extra, of in _EXTRAS):
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
    """`room/file.py`, in the package or from the root of the repository; and `file.py`, anywhere in the package."""
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", document.read_text())) - _NEW
    known = {path.name for path in (ROOT / "cutegemm").rglob("*.py")}
    paths = [name for name in named if "/" in name]
    assert [name for name in paths if not any((root / name).exists() for root in (ROOT, ROOT / "cutegemm"))] == []
    assert named - {*paths} <= known


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook(notebook: Path) -> None:
    """Its cells run one after the other in one namespace, and what ends a cell can be shown; the site has the rest."""
    names: dict[str, object] = {}
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []
    drawings = 0
    for number, cell in enumerate(cells):
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), f"{notebook.name}[{number}]", "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), f"{notebook.name}[{number}]", "eval"), names)
            drawings += hasattr(shown, "_repr_html_") and "<svg" in shown._repr_html_()
    assert drawings >= 2


def test_every_picture_is_in_the_gallery() -> None:
    gallery = (ROOT / "docs" / "gallery.md").read_text()
    assert len(PICTURES) >= 19
    assert [path.name for path in PICTURES if f"({path.parent.name}/{path.name})" not in gallery] == []


@pytest.mark.thorough
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_example(example: Path) -> None:
    """Every example runs without a GPU and says something."""
    command = [sys.executable, str(example), *_ARGUMENTS.get(example.name, ())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
