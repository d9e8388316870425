"""The roofline as bars: the minimum time of each level of the machine. The longest bar is the bound."""

from __future__ import annotations

from cutegemm.analysis.roofline import Roofline
from cutegemm.explore.html import Html, el

_MEANING = {
    "compute": "arithmetic at the peak of its pipe",
    "issue": "instructions that the warp schedulers issue",
    "register": "bytes to and from registers",
    "shared": "wavefronts of shared memory",
    "L2": "bytes through L2",
    "DRAM": "bytes to and from DRAM",
    "epilogue": "arithmetic of the epilogue",
}


def bars(roof: Roofline) -> Html:
    """Return HTML bars with the minimum time that each level of the machine, such as DRAM, takes for a GEMM.

    The longest bar is the bound of the speed. A level whose rate is not known is left out.

    roof   the levels with their times
    """
    rows = []
    for level in roof.levels:
        if level.seconds is None:
            continue
        share = level.seconds / roof.seconds if roof.seconds else 0.0
        binds = level.name == roof.bound.name
        time = f"{level.seconds * 1e3:.3f} ms"
        bar = el(
            "span",
            class_="bar binds" if binds else "bar",
            style=f"width:{100 * share:.1f}%",
            aria_hidden="true",
        )
        name = el("dt", el("b", level.name), " ", el("small", _MEANING[level.name]))
        value = el("span", f"{time}{', binds' if binds else ''}")
        rows.append(el("div", name, el("dd", el("span", bar, class_="track"), value)))
    total = f"at least {roof.seconds * 1e3:.3f} ms, so {roof.tflops:.1f} TFLOP/s at most"
    return el("div", el("dl", *rows, class_="bars"), el("p", total, class_="result"))
