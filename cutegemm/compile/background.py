"""Compile kernels in worker processes while torch computes the calls that need them.

A thread for each worker process waits for its answer. The threads are daemons, and the processes are killed when this
process exits, so that nothing waits at the exit. A process that is made by `fork` starts with no jobs of its own.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from cutegemm.compile import cache, exported, workers
from cutegemm.compile.plans import compile_error
from cutegemm.errors import CompileError, CutegemmError, PendingError, UnsupportedError

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

_MOST_PROCESSES = 16  # worker processes, if the caller does not say how many


class compile_in_background:
    """Let torch compute GEMM calls until their kernels are compiled, instead of waiting for the compiler.

    It takes effect at once, for all threads of the process; as a context manager, it restores the earlier state at the
    end. A message on stderr names each call that torch computes, once. If a kernel does not compile, a warning says so,
    and torch keeps computing its calls.

    is_enabled   False: calls wait for the compiler, which is the default without this call
    processes    number of processes that compile, which all start when the first kernel is missing; None: the number
                 of processors, at most 16
    raises       UnsupportedError if `processes` is not a number of 1 or more

    torch and the kernel round differently: the results of a call change in their last bits when its kernel is ready. In
    the capture of a CUDA graph, which would keep torch's kernel forever, a call waits for the compiler. So does a
    batch-invariant call, whose bits may not change: see `cutegemm.batch_invariant`.

    >>> with cutegemm.compile_in_background():  # doctest: +SKIP
    ...     d = cutegemm.gemm(a, b)
    cutegemm: torch computes gemm of (64, 4096) by (4096, 4096) until sm90_64x32_deep_1x2 is compiled
    """

    def __init__(self, is_enabled: bool = True, *, processes: int | None = None) -> None:
        global _is_enabled, _processes
        if processes is not None and (isinstance(processes, bool) or not isinstance(processes, int) or processes < 1):
            raise UnsupportedError(
                f"compile_in_background: processes = {processes!r} is not a number of processes. Pass 1 or more."
            )
        self._before = _is_enabled, _processes
        _is_enabled, _processes = bool(is_enabled), processes

    def __enter__(self) -> compile_in_background:
        return self

    def __exit__(self, *error: object) -> None:
        global _is_enabled, _processes
        _is_enabled, _processes = self._before


def is_active() -> bool:
    """Return True if background compilation is on for this thread: torch computes calls until kernels are ready."""
    return _is_enabled and not getattr(_here, "waits", False)


@contextmanager
def waiting() -> Iterator[None]:
    """Make this thread's GEMM calls wait for the compiler in a `with` block, even if background compilation is on."""
    before = getattr(_here, "waits", False)
    _here.waits = True
    try:
        yield
    finally:
        _here.waits = before


def need(plan: GemmPlan, arch: str, call: Callable[[], str]) -> None:
    """Return if a GEMM call can proceed with the kernel of a plan; else start to compile it and raise PendingError.

    The call proceeds if the kernel is ready. It also proceeds, and waits for the compiler, if `compile_in_background`
    is off or a CUDA graph is being captured.

    arch     architecture to compile for, such as "sm_90a"
    call     function that returns the text of the call for messages, such as "gemm of (64, 512) by (512, 256)"
    raises   PendingError if the kernel is not ready: the caller lets torch compute the result
    """
    if not is_active() or exported.loaded(plan, arch) is not None or cache.intact(cache.entry(plan, arch)) is not None:
        return
    from cutegemm.compile.cuda import is_capturing

    if is_capturing():
        _jobs.wait(plan, arch)
        return
    job = _jobs.started(plan, arch)
    if not job.is_named:
        job.is_named = True
        print(f"cutegemm: torch computes {call()} until {plan.name} is compiled", file=sys.stderr)
    if job.done.is_set() and job.error is not None and not job.is_warned:
        job.is_warned = True
        warnings.warn(f"torch keeps computing {call()}, since its kernel did not compile. {job.error}", stacklevel=2)
    if not job.done.is_set() or job.error is not None:
        raise PendingError(plan.name)


class _Job:
    """State of the compilation of one plan in a background process, for the calls that wait for its kernel.

    done        event that is set when the plan was compiled, or has failed
    error       why it failed; None before `done`, and if the plan was compiled
    is_named    True after a message has named the call that torch computes meanwhile
    is_warned   True after a warning has shown the error
    """

    def __init__(self, plan: GemmPlan, arch: str) -> None:
        self.plan, self.arch = plan, arch
        self.done = threading.Event()
        self.error: CutegemmError | None = None
        self.is_named = self.is_warned = False


class _Jobs:
    """Compiles plans in worker processes in the background, at most one time each, and remembers their states."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], _Job] = {}
        self._queue: SimpleQueue[_Job] = SimpleQueue()
        self._lock, self._threads = threading.Lock(), 0
        self._workers: set[workers.Worker] = set()

    def started(self, plan: GemmPlan, arch: str) -> _Job:
        """Return the background compilation of a plan; start it if this is the first call for the plan.

        arch   architecture to compile for, such as "sm_90a"
        """
        key = plan.key(), arch
        with self._lock:
            job = self._by_key.get(key)
            if job is None:
                job = self._by_key[key] = _Job(plan, arch)
                self._queue.put(job)
                # A model needs many kernels soon after the first: all processes start at once
                while self._threads < (_processes or min(_MOST_PROCESSES, workers.processors())):
                    self._threads += 1
                    threading.Thread(target=self._serve, name="cutegemm compiles", daemon=True).start()
        return job

    def wait(self, plan: GemmPlan, arch: str) -> None:
        """Wait until a plan's background compilation has finished; return at once if none was started.

        arch   architecture that it is compiled for, such as "sm_90a"
        """
        with self._lock:
            job = self._by_key.get((plan.key(), arch))
        if job is not None:
            job.done.wait()

    def _serve(self) -> None:
        """Main loop of a thread: take plans from the queue and have a worker process compile them, one after the other.

        If the worker fails, the plan gets a CompileError, and the next plan a new worker.
        """
        worker: workers.Worker | None = None
        with suppress(Exception):  # the first plan tries again, and says why it failed
            worker = self._worker()
        while True:
            job = self._queue.get()
            try:
                if worker is None:
                    worker = self._worker()
                job.error = worker(compile_error, job.plan, job.arch)
            except Exception as error:  # whatever it is, the call that needs the kernel must hear of it
                job.error = CompileError(
                    f"compile_in_background: the process that compiled {job.plan.name} failed ({error!r}); perhaps "
                    "memory ran out. Pass a smaller `processes`."
                )
                if worker is not None:
                    self._workers.discard(worker)
                    worker.kill()
                    worker = None
            finally:
                job.done.set()

    def _worker(self) -> workers.Worker:
        """Start a worker process, which imports the DSL before it gets a plan."""
        worker = workers.Worker("cutegemm.kernels.sm90.kernel", is_background=True)
        self._workers.add(worker)
        return worker

    def kill(self) -> None:
        """Kill the worker processes."""
        for worker in list(self._workers):
            worker.kill()


def _after_fork() -> None:
    """Start with no background compilations in a process made by `fork`.

    The threads and worker processes of the parent do not belong to it.
    """
    global _jobs
    _jobs = _Jobs()


def _at_exit() -> None:
    with suppress(OSError):
        _jobs.kill()


_jobs = _Jobs()
_is_enabled = False
_processes: int | None = None
_here: Any = threading.local()
atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
