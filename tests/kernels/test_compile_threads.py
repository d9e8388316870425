"""Compiling in several threads, and in processes that `fork` made."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import simt_plan, sm90_plan
from cutegemm.compile import cache
from cutegemm.compile import plans as compiler
from cutegemm.compile.plans import compile_plan
from cutegemm.errors import PlanError
from cutegemm.plan import Operands

SECONDS = 120  # until a process that hangs is killed
SMALL = {"block": (64, 32, 8), "warp": (32, 16), "thread": (4, 4)}
FIRST, SECOND = [
    simt_plan(Operands.of("f32", layout=layout), name=f"small {layout}", **SMALL) for layout in ("nn", "nt")
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Compile into an empty cache, and forget what this process has compiled."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    compile_plan.cache_clear()
    yield tmp_path
    compile_plan.cache_clear()


def in_a_fork(run):
    """Run a function in a process that `fork` makes, and return its exit status: 0 if it raised nothing."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            run()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_a_first_call_from_several_threads_compiles_once(folder, monkeypatch):
    built, real = [], compiler._build
    monkeypatch.setattr(compiler, "_build", lambda plan, *rest: (built.append(plan), real(plan, *rest))[1])
    gate = threading.Barrier(4)

    def call(plan):
        gate.wait()
        return compile_plan(plan)

    with ThreadPoolExecutor(4) as threads:
        kernels = list(threads.map(call, [FIRST, SECOND] * 2))
    assert sorted(plan.name for plan in built) == ["small nn", "small nt"]
    assert {kernel.plan.name for kernel in kernels} == {"small nn", "small nt"}
    assert all(cache.intact(kernel.folder) for kernel in kernels)


def test_a_fork_compiles_and_loads_what_the_parent_compiled():
    first = compile_plan(FIRST)
    assert in_a_fork(lambda: (compile_plan(FIRST).ptx == first.ptx or os._exit(2), compile_plan(SECOND))) == 0
    assert cache.intact(cache.entry(SECOND, "sm_90a")) is not None


def test_a_fork_while_another_thread_compiles():
    """The lock of that thread is not held in the new process, which compiles in a process of its own."""
    with compiler._compiling:
        assert in_a_fork(lambda: compile_plan(FIRST)) == 0
    assert cache.intact(cache.entry(FIRST, "sm_90a")) is not None
    assert not compiler._was_forked_while_compiling


def test_errors_of_the_process_of_a_fork(monkeypatch):
    monkeypatch.setattr(compiler, "_was_forked_while_compiling", True)
    with pytest.raises(PlanError, match="sm_80"):
        compile_plan(sm90_plan(), "sm_80")
