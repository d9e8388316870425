"""docs/pingpong.md is what `python -m docs.evidence listing` makes of the plan and of its machine code."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import sm90_plan
from cutegemm.compile.listing import Listing, listing
from cutegemm.errors import CutegemmError
from cutegemm.plan.program import steps
from docs.evidence.pages import listing as page

TEXT = (Path(__file__).parents[2] / "docs" / page.FILE).read_text()
DSL = "nvidia-cutlass-dsl"


@pytest.fixture(scope="module")
def compiled() -> Listing:
    return listing(page.plan(), page.ARCH)


def test_the_page_is_up_to_date(compiled: Listing) -> None:
    known = re.search(rf"{DSL} (\S+):", TEXT)
    if known is None or known[1] != version(DSL):
        pytest.skip("the page shows the machine code of another compiler")
    assert page.page(compiled, version(DSL)) == TEXT, "run: python -m docs.evidence listing"


def test_each_line_of_a_program_has_a_note() -> None:
    walked = [step for role in ("producer", "consumer 0") for step in page.plan().program(role).walk()]
    assert len({page.note(step) for step in walked}) > 20
    assert sum(bool(re.match(r"\| [PC]\d+ \|", line)) for line in TEXT.splitlines()) == len(walked)


def test_the_mainloop_has_the_mmas_of_a_k_tile(compiled: Listing) -> None:
    """128 x 128 x 64 by wgmma m64n128k16: 2 x 1 x 4 of them."""
    assert sum(one.text.startswith("HGMMA.64x128x16") for one in compiled.instructions) == 8
    assert len(re.findall(r"^[0-9a-f]{4} .* HGMMA\.64x128x16", TEXT, re.MULTILINE)) == 8


def test_a_step_without_a_note_is_refused() -> None:
    overlapped = sm90_plan(tile=(128, 256, 64), schedule="cooperative", overlapped=True).program("consumer 0")
    with pytest.raises(CutegemmError, match="no note for the step"):
        [page.note(step) for step in overlapped.walk()]
    assert page.note(steps.WaitMma(1)) != page.note(steps.WaitMma(0))
