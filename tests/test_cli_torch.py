"""`cutegemm gemm` on a GPU, with torch on the CPU in place of the GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.parse.plan import operands_for
from cutegemm.run.torch_ops import DTYPES, RESULTS
from tests.test_cli import run


@pytest.mark.parametrize("known", [True, False])
def test_gemm_on_a_gpu(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """The report of a run, without the GPU, the kernel and the times. e4m3 accumulators of wgmma have 14 bits."""
    monkeypatch.setattr("cutegemm.cli.job._compiled", lambda *_: {"arch": "sm_90a", "skipped": "no"})
    error = 1e-3
    times = {"us": 1.0, "tflops": 2.5, **({"cublas_tflops": 2.0, "ratio": 1.25} if known else {})}
    gpu = {"name": "a GPU", "arch": "sm_90a", "device": DEFAULT_DEVICE}
    monkeypatch.setattr("cutegemm.cli.gemm._gpu", lambda: gpu)
    monkeypatch.setattr("cutegemm.run.torch_ops.from_numpy", lambda a, b, c, operands: {"a": a, "b": b})
    monkeypatch.setattr(
        "cutegemm.run.on_gpu.run_plan",
        lambda plan, t, alpha, beta: (1 + error) * alpha * (t["a"] @ t["b"]),
    )
    monkeypatch.setattr("cutegemm.run.on_gpu.time_plan", lambda plan, tensors, problem, swap_ab: times)
    sizes = ("gemm", "64", "64", "64", "--layout", "nt", "--out-dtype", "f32")
    said = run(*sizes, "--dtype", "e4m3")
    assert "ran on a GPU" in said
    assert "correct: relative error 1.00e-03" in said
    assert ("2.5 TFLOP/s, cuBLAS 2.0, ratio 1.250" in said) is known
    assert ("2.5 TFLOP/s, torch has nothing for these types and shapes" in said) is not known
    assert "WRONG" in run(*sizes, "--dtype", "bf16", status=1)


def test_the_type_of_d_is_that_of_the_function_on_a_gpu() -> None:
    for dtype, results in RESULTS.items():
        assert operands_for(DTYPES[dtype], "nt").d.dtype == DTYPES[results[0]]
