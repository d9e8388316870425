"""GEMMs with an epilogue compared with torch (eager and compiled), cuBLASLt's own epilogues, and quack.

python -m docs.evidence epilogues --seconds 0.8 --json epilogues.json
python -m docs.evidence epilogues --peer quack --json epilogues.json     # quack too, if quack-kernels is installed
python -m docs.evidence epilogues --table docs/evidence/data/epilogues.json     # the table of a record
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cutegemm.dtypes import DType
from docs.evidence.files import read_record, write_record
from docs.evidence.measure import machine, need_gpu
from docs.evidence.pages.markdown import table
from docs.evidence.peer import QUACK, quack_calls

# (M, N, K) of a type of torch.
CASES = (
    ((8192, 14336, 4096), "bfloat16"),
    ((2048, 16384, 4096), "bfloat16"),
    ((16384, 3072, 768), "bfloat16"),
    ((4096, 4096, 4096), "float32"),
    ((2048, 8192, 1024), "float32"),
)
_SEED = 0
_MESSAGE = 200  # characters of an error

Call = Callable[[], Any]
Calls = dict[str, dict[str, Call]]
Row = dict[str, Any]


def run(shape: tuple[int, int, int], dtype: str, seconds: float, with_quack: bool) -> Row:
    """Return microseconds of every call on operands of one shape, and errors against a reference of higher precision.

    shape        (M, N, K); the weight is N x K
    dtype        "bfloat16" (reference in float32) or "float32" (reference in float64)
    seconds      measuring time
    with_quack   whether to time quack's functions too, which quack tunes for each shape
    raises       UnsupportedError without a GPU, or without quack
    """
    import torch

    from cutegemm.run.on_gpu import alternating

    need_gpu()
    torch.manual_seed(_SEED)
    m, n, k = shape
    kind = getattr(torch, dtype)
    x, w, c = [torch.randn(*of, device="cuda", dtype=kind) for of in ((m, k), (n, k), (m, n))]
    w, bias = w * k**-0.5, torch.randn(n, device="cuda", dtype=kind)
    of_type = _of_bf16 if dtype == "bfloat16" else _of_f32
    calls, exact = of_type(x, w, bias, c)
    failed: dict[str, str] = {}
    if with_quack and dtype == "bfloat16":
        for what, call in quack_calls(x, w.t(), bias, c).items():
            try:
                call()
                calls[what]["quack"] = call
            except Exception as error:  # an error of the peer, such as an unsupported version of the DSL
                failed[what] = f"{type(error).__name__}: {error}"[:_MESSAGE]
    named = [(what, whose) for what, of in calls.items() for whose in of]
    for what, whose in named:
        calls[what][whose]()
    times = alternating([calls[what][whose] for what, whose in named], seconds)
    us: dict[str, dict[str, float]] = {}
    for (what, whose), took in zip(named, times, strict=True):
        us.setdefault(what, {})[whose] = took * 1e6
    errors: dict[str, dict[str, float]] = {}
    for what, wanted in exact.items():
        want = wanted()
        for whose in ("torch", "cutegemm"):
            got = calls[what][whose]().to(want.dtype)
            errors.setdefault(what, {})[whose] = float((got - want).norm() / want.norm())
    row = {"m": m, "n": n, "k": k, "dtype": dtype, "us": us, "errors": errors}
    return {**row, "quack_failed": failed} if failed else row


def _of_bf16(x: Any, w: Any, bias: Any, c: Any) -> tuple[Calls, dict[str, Call]]:
    """Return the calls to time on bf16 operands, and their reference values in f32."""
    import torch
    import torch.nn.functional as F

    from cutegemm import epilogue as e
    from cutegemm import gemm

    def gated(x: Any, w: Any) -> Any:
        gate, up = F.linear(x, w).chunk(2, -1)
        return F.silu(gate) * up

    def act(x: Any, w: Any, bias: Any, approximate: str = "none") -> Any:
        return F.gelu(F.linear(x, w, bias), approximate=approximate)

    compiled = {
        "gelu": torch.compile(act),
        "swiglu": torch.compile(gated),
        "residual": torch.compile(lambda x, w, c: F.linear(x, w) + c),
    }
    wt = w.t()
    calls: Calls = {
        "product": {"torch": lambda: x @ wt, "cutegemm": lambda: gemm(x, wt)},
        "bias": {
            "torch": lambda: F.linear(x, w, bias),
            "cutegemm": lambda: gemm(x, wt, epilogue=lambda acc, bias: acc + bias, bias=bias),
        },
        "bias, gelu": {
            "torch": lambda: act(x, w, bias),
            "torch, compiled": lambda: compiled["gelu"](x, w, bias),
            "cutegemm": lambda: gemm(x, wt, epilogue=lambda acc, bias: e.gelu(acc + bias), bias=bias),
        },
        "bias, gelu_tanh": {
            "torch": lambda: act(x, w, bias, "tanh"),
            "cuBLASLt": lambda: torch._addmm_activation(bias, x, wt, use_gelu=True),
            "cutegemm": lambda: gemm(x, wt, epilogue=lambda acc, bias: e.gelu_tanh(acc + bias), bias=bias),
        },
        "bias, gelu, preact": {
            "cutegemm": lambda: gemm(x, wt, epilogue=lambda acc, bias: (e.gelu(acc + bias), acc + bias), bias=bias)
        },
        "swiglu": {
            "torch": lambda: gated(x, w),
            "torch, compiled": lambda: compiled["swiglu"](x, w),
            "cutegemm": lambda: gemm(x, wt, epilogue=e.swiglu),
        },
        "residual": {
            "torch": lambda: torch.addmm(c, x, wt),
            "torch, compiled": lambda: compiled["residual"](x, w, c),
            "cutegemm": lambda: gemm(x, wt, epilogue=lambda acc, c: acc + c, c=c),
        },
        "row sums of squares": {
            "cutegemm": lambda: gemm(x, wt, epilogue=lambda acc: (acc, e.row_sum(e.square(acc)))),
        },
    }
    exact = {
        "bias, gelu": lambda: act(x.float(), w.float(), bias.float()),
        "swiglu": lambda: gated(x.float(), w.float()),
        "residual": lambda: x.float() @ wt.float() + c.float(),
    }
    return calls, exact


def _of_f32(x: Any, w: Any, bias: Any, c: Any) -> tuple[Calls, dict[str, Call]]:
    """Return the calls to time on f32 operands, and their reference values in f64."""
    import torch
    import torch.nn.functional as F

    from cutegemm import epilogue as e
    from cutegemm import gemm

    wt = w.t()
    calls: Calls = {
        "product": {"torch": lambda: x @ wt, "cutegemm": lambda: gemm(x, wt)},
        "bias, relu": {
            "torch": lambda: F.relu(F.linear(x, w, bias)),
            "cuBLASLt": lambda: torch._addmm_activation(bias, x, wt),
            "cutegemm": lambda: gemm(x, wt, epilogue=lambda acc, bias: e.relu(acc + bias), bias=bias),
        },
    }
    return calls, {"bias, relu": lambda: F.relu(F.linear(x.double(), w.double(), bias.double()))}


def rows_of(found: dict[str, Any]) -> str:
    """Return the table of a record: microseconds, and the ratio to the best of the others."""
    lines = []
    for one in found["rows"]:
        plain = one["us"]["product"]["cutegemm"]
        for what, us in one["us"].items():
            others = {whose: took for whose, took in us.items() if whose != "cutegemm"}
            best = min(others, key=lambda whose: others[whose], default=None)
            lines.append(
                [
                    f"{one['m']}x{one['n']}x{one['k']} {DType.parse(one['dtype'])}",
                    what,
                    f"{us['cutegemm']:.1f}",
                    f"{us['cutegemm'] / plain:.3f}",
                    "" if best is None else f"{others[best]:.1f}, {best}",
                    "" if best is None else f"{others[best] / us['cutegemm']:.2f}",
                ]
            )
    head = ["M x N x K", "epilogue", "µs", "of the product alone", "best of the others, µs", "faster"]
    return table(head, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.evidence epilogues",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=0.8, help="seconds of measuring for each shape")
    parser.add_argument("--peer", choices=[QUACK], help="time its functions too")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="of these shapes alone")
    parser.add_argument("--json", type=Path, help="write all numbers there")
    parser.add_argument("--table", type=Path, help="measure nothing: the table of this record")
    given = parser.parse_args(arguments)
    if given.table:
        print(rows_of(read_record(given.table)))
        return
    found: dict[str, Any] = {"machine": {}, "rows": []}
    for shape, dtype in CASES:
        if given.dtype not in (None, dtype):
            continue
        found["rows"].append(run(shape, dtype, given.seconds, given.peer == QUACK))
        found["machine"] = machine()
        if given.json:
            write_record(given.json, found)
    print(rows_of(found))
