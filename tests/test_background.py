"""`compile_in_background`: torch computes calls until their kernels are ready. The CPU stands for a Hopper GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cutegemm  # noqa: E402
from cutegemm.compile import background, cache  # noqa: E402
from cutegemm.errors import CompileError, PendingError, UnsupportedError  # noqa: E402
from tests.noted import note_launches  # noqa: E402

SECONDS = 20  # until a test that waits for a thread fails


class Worker:
    """A replacement for a worker process. It answers when the test says so."""

    ready = threading.Event()
    answer = None

    def __init__(self, *modules, **options):
        pass

    def __call__(self, task, plan, arch):
        assert self.ready.wait(SECONDS)
        if isinstance(self.answer, Exception) and not isinstance(self.answer, CompileError):
            raise self.answer
        if self.answer is None:
            cache.store(cache.entry(plan, arch), lambda staged: {"plan": plan.name})
        return self.answer

    def kill(self):
        pass


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Return the list of the kernels that `gemm` launches. Compiling waits for `Worker.ready`."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_IMPORTED", float("inf"))
    monkeypatch.setattr(background, "_jobs", background._Jobs())
    monkeypatch.setattr(background.workers, "Worker", Worker)
    monkeypatch.setattr(Worker, "ready", threading.Event())
    monkeypatch.setattr(Worker, "answer", None)
    yield note_launches(monkeypatch, 132)
    finished()


def factors(rows=64, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return torch.randn(rows, 256).to(dtype), torch.randn(128, 256).to(dtype)


def finished():
    """Wait until all jobs are done."""
    Worker.ready.set()
    for job in background._jobs._by_key.values():
        assert job.done.wait(SECONDS)


def test_torch_computes_until_the_kernel_is_ready(launched, capsys):
    x, w = factors()
    with cutegemm.compile_in_background():
        for _ in range(2):
            assert torch.equal(cutegemm.gemm(x, w.t()), x @ w.t())
        assert launched == []
        (named,) = capsys.readouterr().err.splitlines()
        assert named.startswith("cutegemm: torch computes gemm of (64, 256) by (256, 128) until ")
        finished()
        cutegemm.gemm(x, w.t())
        assert len(launched) == len(launched[0].calls) == 1
    assert not background.is_active()


def test_all_forms_of_a_call(launched):
    x, w = factors()
    bias, c, out = torch.randn(128).bfloat16(), torch.randn(64, 128).bfloat16(), torch.empty(64, 128).bfloat16()
    exact = (x.float() @ w.float().t()).bfloat16()
    with cutegemm.compile_in_background():
        assert cutegemm.gemm(x, w.t(), out=out) is out
        torch.testing.assert_close(out, exact)
        torch.testing.assert_close(
            cutegemm.gemm(x, w.t(), c=c, alpha=0.5, beta=2.0), 0.5 * exact + 2 * c, rtol=0.02, atol=0.1
        )
        assert cutegemm.gemm(x, w.t(), out_dtype=torch.float32).dtype == torch.float32
        d, sums = cutegemm.gemm(
            x, w.t(), epilogue=lambda acc, bias: (acc + bias, cutegemm.epilogue.row_sum(acc)), bias=bias
        )
        torch.testing.assert_close(d, exact + bias, rtol=0.02, atol=0.1)
        torch.testing.assert_close(sums, exact.float().sum(1), rtol=0.02, atol=1.0)
        d, _ = cutegemm.gemm(x, w.t(), epilogue=lambda acc, bias: (acc + bias, acc), bias=bias, out=(out, None))
        assert d is out
        assert launched == []


def test_a_layer(launched, monkeypatch):
    from cutegemm.torch import functional

    monkeypatch.setattr(functional, "is_direct", lambda *tensors: True)
    monkeypatch.setattr(functional, "_layers", functional.Calls())
    x, w = factors()
    with cutegemm.compile_in_background():
        torch.testing.assert_close(cutegemm.linear(x, w), x @ w.t())
        assert functional._layers.found == {}
        finished()
        cutegemm.linear(x, w)
        assert len(launched) == len(functional._layers.found) == 1


def test_a_plan_that_does_not_compile_is_a_warning_once(launched):
    Worker.answer = CompileError("ptxas says no")
    x, w = factors()
    with cutegemm.compile_in_background():
        cutegemm.gemm(x, w.t())
        finished()
        with pytest.warns(UserWarning, match=r"torch keeps computing gemm of \(64, 256\) .*ptxas says no"):
            cutegemm.gemm(x, w.t())
        with warnings.catch_warnings(action="error"):
            assert torch.equal(cutegemm.gemm(x, w.t()), x @ w.t())
    assert launched == []


def test_a_worker_that_dies_is_a_warning(launched):
    Worker.answer = background.workers.WorkerExited()
    x, w = factors()
    with cutegemm.compile_in_background():
        cutegemm.gemm(x, w.t())
        finished()
        with pytest.warns(UserWarning, match="perhaps memory ran out. Pass a smaller `processes`"):
            cutegemm.gemm(x, w.t())


@pytest.mark.parametrize("error", [OSError, TypeError])  # what Popen raises without memory, and without a name
def test_a_worker_that_cannot_start_is_a_warning(launched, monkeypatch, error):
    def start(*modules, **options):
        raise error("no process")

    monkeypatch.setattr(background.workers, "Worker", start)
    x, w = factors()
    warned = pytest.warns(UserWarning, match=rf"failed \({error.__name__}\('no process'\)\)")
    with cutegemm.compile_in_background(processes=1), warned:
        cutegemm.gemm(x, w.t())
        finished()
        cutegemm.gemm(x, w.t())


def test_ctrl_c_does_not_reach_worker_processes():
    jobs = background._Jobs()
    worker = jobs._worker()
    try:
        assert os.getpgid(worker.process.pid) != os.getpgrp()
    finally:
        jobs.kill()


def test_a_capture_waits_for_the_compiler(launched, monkeypatch):
    x, w = factors()
    with cutegemm.compile_in_background():
        cutegemm.gemm(x, w.t())
        monkeypatch.setattr("cutegemm.compile.cuda.is_capturing", lambda: True)
        threading.Timer(0.2, Worker.ready.set).start()
        cutegemm.gemm(x, w.t())
    assert len(launched) == 1
    assert all(job.done.is_set() for job in background._jobs._by_key.values())


def test_calls_outside_of_the_context_wait(launched):
    x, w = factors()
    cutegemm.gemm(x, w.t())
    cutegemm.compile_in_background()
    assert cutegemm.plan_of(*factors(32)[:1], w.t()) == launched[-1].plan
    cutegemm.compile_in_background(False)
    cutegemm.gemm(factors(16)[0], w.t())
    assert len(launched) == 3
    assert background._jobs._by_key == {}


def test_batch_invariant_calls_wait_for_the_compiler(launched):
    x, w = factors()
    with cutegemm.compile_in_background():
        cutegemm.gemm(x, w.t(), batch_invariant=True)
        with cutegemm.batch_invariant():
            cutegemm.gemm(x[:1], w.t())
    assert len(launched) == 2
    assert background._jobs._by_key == {}


def test_what_is_refused():
    with pytest.raises(UnsupportedError, match=r"processes = 0 is not a number of processes\. Pass 1 or more"):
        cutegemm.compile_in_background(processes=0)
    assert not background.is_active()
    assert not cutegemm.compile_in_background(False)._before[0]


def test_a_forked_process_has_its_own_jobs(launched):
    x, w = factors()
    with cutegemm.compile_in_background():
        cutegemm.gemm(x, w.t())
        child = os.fork()
        if child == 0:
            os._exit(len(background._jobs._by_key) + background._jobs._threads)
        assert os.waitpid(child, 0)[1] == 0


EXITS = """
import cutegemm
from cutegemm.compile import background
from cutegemm.errors import PendingError

plan = cutegemm.sm90_plan()
cutegemm.compile_in_background()
try:
    background.need(plan, "sm_90a", lambda: "a call")
except PendingError:
    print("pending")
"""


def test_the_exit_waits_for_nothing(tmp_path):
    """A process exits while a worker process compiles, and no process is left."""
    done = subprocess.run(
        [sys.executable, "-c", EXITS],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "CUTEGEMM_CACHE_DIR": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (0, "pending\n")
    assert done.stderr.splitlines() == ["cutegemm: torch computes a call until sm90 is compiled"]


def test_the_error_is_not_one_that_callers_catch():
    assert not issubclass(PendingError, (cutegemm.CutegemmError, ValueError, RuntimeError, TypeError))
