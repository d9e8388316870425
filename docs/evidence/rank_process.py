"""A process of `docs.evidence.ranks`: measures problems on one GPU, together with the processes of the other ranks.

python -m docs.evidence.rank_process RANK RANKS STORE ROUNDS SECONDS forms|chosen links|none PROBLEM...

The first rank prints a line for the machine, and two for each problem: that it has begun, and its row.
"""

from __future__ import annotations

import datetime
import functools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # registers torch's fused operators

from cutegemm import gemm
from cutegemm.ranks import forms_of
from cutegemm.run.ahead import compiled
from cutegemm.run.prepare import asking
from cutegemm.run.question import decide
from cutegemm.torch import distributed
from cutegemm.torch.distributed import calls as distributed_calls
from cutegemm.torch.distributed.engine import Engine, Memory, Request, Work
from cutegemm.torch.distributed.groups import gather_into, reduce_scatter_into
from cutegemm.torch.distributed.memory import SymmetricMemory
from cutegemm.torch.distributed.work import Gathered, Reduced
from cutegemm.torch.epilogue import PLAIN
from docs.evidence import links
from docs.evidence.measure import machine
from docs.evidence.ranks import Problem

_FLUSH_BYTES = 256 << 20
_SLEEP_CYCLES = 500_000  # about 0.3 ms, enough for the host to issue a call
_TIMEOUT_SECONDS = 25.0
_CHECKED_ROWS = 64
_LEAST_SAMPLES = 3
OURS = "ours"

Call = Callable[[], Any]


class Contest:
    """The matrices of one problem on this rank, and the calls that compute it.

    group   the ranks
    forms   forms of schedules to time
    """

    def __init__(self, problem: Problem, group: dist.ProcessGroup, forms: tuple[str, ...]) -> None:
        self.problem, self.group, self.forms = problem, group, forms
        self.rank, self.ranks = group.rank(), group.size()
        self.gathers = problem.operation == "all_gather"
        made: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        m, n, k = problem[1:]
        rows = m // self.ranks
        if self.gathers:
            n //= self.ranks
            self.x = torch.randn(rows, k, **made)
            self.whole = torch.empty(m, k, **made)
            gather_into(self.whole, self.x, group=group)
        else:
            k //= self.ranks
            self.x = self.whole = torch.randn(m, k, **made)
        self.w = torch.randn(n, k, **made).t()
        self.product = torch.empty(m, n, **made)
        self.shard = torch.empty(rows, n, **made)
        self.own = slice(self.rank * rows, (self.rank + 1) * rows)

    def ours(self, x: torch.Tensor, form: str | None) -> torch.Tensor:
        """Return the result of our call."""
        function = {
            "all_gather": distributed.all_gather_mm,
            "reduce_scatter": distributed.mm_reduce_scatter,
            "all_reduce": distributed.mm_all_reduce,
        }[self.problem.operation]
        result: torch.Tensor = function(x, self.w, group=self.group, form=form)
        return result

    def by_nccl(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result of a collective of NCCL and a GEMM of cuBLAS."""
        if self.gathers:
            gather_into(self.whole, x, group=self.group)
            return torch.matmul(self.whole, self.w, out=self.product)
        torch.matmul(x, self.w, out=self.product)
        if self.problem.operation == "all_reduce":
            dist.all_reduce(self.product, group=self.group)
            return self.product
        reduce_scatter_into(self.shard, self.product, group=self.group)
        return self.shard

    def calls(self) -> dict[str, Call]:
        """Return all calls by name."""
        name = self.group.group_name
        calls: dict[str, Call] = {
            "cublas": lambda: torch.matmul(self.whole, self.w, out=self.product),
            "gemm": lambda: gemm(self.whole, self.w, out=self.product),
            "nccl": lambda: self.by_nccl(self.x),
        }
        fused = torch.ops.symm_mem
        if self.gathers:
            calls["symm_mem"] = lambda: fused.fused_all_gather_matmul(self.x, [self.w], 0, name, return_A=False)
        elif self.problem.operation == "reduce_scatter":
            calls["symm_mem"] = lambda: fused.fused_matmul_reduce_scatter(self.x, self.w, "sum", 0, name)
        for form in self.forms:
            calls[f"{OURS} {form}"] = functools.partial(self.ours, self.x, form)
        return calls

    def chosen(self) -> Request:
        """Return the call with the form that is chosen."""
        return request_of(self.problem, self.ranks)

    def off(self, form: str) -> tuple[float, float, bool]:
        """Return the errors of our results and of NCCL's, and whether our bits are the same again.

        Several calls with different inputs follow each other, so that data of an earlier call would be seen.
        """
        inputs = [self.x, -self.x, self.x.flip(0)]
        found = [self.ours(x, form) for x in inputs]
        again = [self.ours(x, form) for x in inputs]
        ours = max(self._error(x, d) for x, d in zip(inputs, found, strict=True))
        theirs = max(self._error(x, self.by_nccl(x).clone()) for x in inputs)
        repeats = all(torch.equal(d, other) for d, other in zip(found, again, strict=True))
        return ours, theirs, repeats

    def _error(self, x: torch.Tensor, d: torch.Tensor) -> float:
        """Return the largest error of some rows, compared with float64, divided by the largest value."""
        m = self.problem.m
        index = torch.tensor(sorted(random.Random(0).sample(range(m), min(m, _CHECKED_ROWS))), device="cuda")
        a = x
        if self.gathers:
            a = torch.empty_like(self.whole)
            gather_into(a, x, group=self.group)
        wanted = a[index].double() @ self.w.double()
        if not self.gathers:
            dist.all_reduce(wanted, group=self.group)
        if d.shape[0] != m:
            mine = (index >= self.own.start) & (index < self.own.stop)
            index, wanted = index[mine] - self.own.start, wanted[mine]
        if not len(index):
            return 0.0
        return float((d[index].double() - wanted).abs().max() / wanted.abs().max())


def timed(
    calls: dict[str, Call], rounds: int, group: dist.ProcessGroup, meet: Call
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the microseconds of each call, the median of the slowest rank, and those of the host of this rank.

    meet   launches a barrier of the ranks
    """
    order, chance, event = list(calls), random.Random(0), torch.cuda.Event
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    spans: dict[str, list[tuple[float, bool]]] = {name: [] for name in calls}
    host: dict[str, list[float]] = {name: [] for name in calls}
    for name in order:
        calls[name]()
    for _ in range(rounds):
        chance.shuffle(order)
        for names in (order, order[::-1]):
            events = []
            for name in names:
                begun, start, end = (event(enable_timing=True) for _ in range(3))
                before = time.perf_counter()
                begun.record()
                flush.zero_()
                torch.cuda._sleep(_SLEEP_CYCLES)
                meet()
                start.record()
                called = time.perf_counter()
                calls[name]()
                host[name].append((time.perf_counter() - called) * 1e6)
                end.record()
                events.append((name, begun, start, end, time.perf_counter() - before))
            torch.cuda.synchronize()
            for name, begun, start, end, seconds in events:
                spans[name].append((start.elapsed_time(end) * 1e3, seconds * 1e3 <= begun.elapsed_time(start)))
    own = torch.tensor([[[us, hidden] for us, hidden in spans[name]] for name in calls], device="cuda")
    every = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(every, own, group=group)
    slowest = torch.stack(every).cpu()
    found = {}
    for i, name in enumerate(calls):
        us, hidden = slowest[:, i, :, 0].amax(0).tolist(), slowest[:, i, :, 1].amin(0).tolist()
        sample = [x for x, is_hidden in zip(us, hidden, strict=True) if is_hidden]
        found[name] = round(statistics.median(sample if len(sample) >= _LEAST_SAMPLES else us), 2)
    return found, {name: round(statistics.median(times), 1) for name, times in host.items()}


def row_of(contest: Contest, rounds: int, meet: Call) -> dict[str, Any]:
    """Return the row of a problem, with the same keys on all ranks."""
    calls, failed = contest.calls(), {}
    for name in list(calls):
        error = ""
        try:
            calls[name]()
            torch.cuda.synchronize()
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"[:300]
        errors: list[Any] = [None] * contest.ranks
        dist.all_gather_object(errors, error, group=contest.group)
        if any(errors):
            failed[name] = next(filter(None, errors))
            del calls[name]
    row: dict[str, Any] = {**contest.problem._asdict(), "ranks": contest.ranks}
    row |= {"form": contest.chosen().form, "chunks": contest.chosen().chunks}
    off: dict[str, float] = {}
    repeats: dict[str, bool] = {}
    for form in contest.forms:
        if f"{OURS} {form}" in calls:
            ours, theirs, repeated = contest.off(form)
            worst = torch.tensor([ours, theirs, float(not repeated)], device="cuda")
            dist.all_reduce(worst, dist.ReduceOp.MAX, group=contest.group)
            off |= {form: float(f"{worst[0]:.2g}"), "nccl": float(f"{worst[1]:.2g}")}
            repeats[form] = not worst[2]
    us, host = timed(calls, rounds, contest.group, meet)
    alone = [us[name] for name in ("cublas", "gemm") if name in us]
    best = [us[name] for name in ("nccl", "symm_mem") if name in us]
    mine = us.get(f"{OURS} {row['form']}")
    if mine is not None:
        row |= {"of_gemm": round(mine / min(alone), 4), "of_best": round(mine / min(best), 4)}
    return {**row, "us": us, "host_us": host, "off": off, "repeats": repeats, **({"failed": failed} if failed else {})}


def request_of(problem: Problem, ranks: int, form: str | None = None) -> Request:
    """Return a problem as all ranks know it, with the schedule of the lowest predicted time.

    form   None: either
    """
    operation, m, n, k = problem
    n, k = (n // ranks, k) if operation == "all_gather" else (n, k // ranks)
    kinds = torch.bfloat16, torch.bfloat16
    return distributed_calls.request_of(operation, ranks, m, n, k, *kinds, form, torch.cuda.current_device())


class Alone:
    """Memory of one rank without others, for an engine that only compiles kernels."""

    rank, size_bytes, flags = 0, 0, 1 << 10

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def reserve(self, size_bytes: int, keeps: bool = False) -> bool:
        return False

    def exchange(self, operation: str, rows: Sequence[torch.Tensor]) -> None:
        """Have no kernel: each rank compiles the few that exchange rows."""

    def matrix(self, rank: int, offset_bytes: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        bytes_of = torch.empty(offset_bytes % 16 + rows * columns * dtype.itemsize, dtype=torch.uint8, device="cuda")
        return bytes_of[offset_bytes % 16 :].view(dtype).view(rows, columns)


def compile_all(calls: Iterable[tuple[Request, Work]], ranks: int) -> None:
    """Compile the kernels of calls in parallel.

    calls   calls whose tensors need not be filled. A generator of them may call `gemm` for further kernels
    """
    plans: list[Any] = []
    device = torch.device("cuda", torch.cuda.current_device())
    with asking() as questions:
        for request, work in calls:
            Engine(cast(Memory, Alone(ranks)), device).rehearse(request, work)
            plans += [(decide(question).plan, question.arch) for question in questions]
            questions.clear()
    compiled(plans, time.perf_counter(), None)


def works(problems: Sequence[Problem], ranks: int) -> Iterator[tuple[Request, Work]]:
    """Yield the calls of problems in both forms."""
    made: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    for problem in problems:
        for form in forms_of(problem.operation):
            request = request_of(problem, ranks, form)
            m, n, k = request.m, request.n, request.k
            w, d = torch.empty(n, k, **made).t(), torch.empty(m, n, **made)
            if problem.operation == "all_gather":
                yield request, Gathered(torch.empty(m // ranks, k, **made), [w], PLAIN, (), (), [d])
            else:
                rows = m // ranks if problem.operation == "reduce_scatter" else m
                yield request, Reduced(torch.empty(m, k, **made), w, None, d[:rows])
            if form == "whole":
                gemm(torch.empty(m, k, **made), w, out=d)


def main(arguments: list[str]) -> None:
    """Measure the problems that the command names."""
    rank, ranks, rounds = int(arguments[0]), int(arguments[1]), int(arguments[3])
    deadline = time.monotonic() + float(arguments[4])
    problems = [Problem.parse(text) for text in arguments[7:]]
    torch.cuda.set_device(rank)
    torch.manual_seed(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{arguments[2]}", rank=rank, world_size=ranks, device_id=device,
        timeout=datetime.timedelta(seconds=4 * _TIMEOUT_SECONDS),
    )  # fmt: skip
    group = dist.distributed_c10d._get_default_group()
    distributed.set_timeout(_TIMEOUT_SECONDS)
    if rank == 0:
        print("MACHINE", json.dumps(machine()))
        try:
            compile_all(works(problems, ranks), ranks)
        except Exception as error:
            print(f"kernels are compiled by the first calls: {error!r}")
    dist.barrier(group)

    def contest(problem: Problem) -> Contest:
        forms = forms_of(problem.operation) if arguments[5] == "forms" else (request_of(problem, ranks).form,)
        return Contest(problem, group, forms)

    engine = distributed_calls.ranks_of(str(group.group_name), device).engine
    one = torch.zeros(1, device="cuda")
    meet = (lambda: dist.all_reduce(one, group=group)) if engine is None else engine.memory.barrier
    if arguments[6] == "links" and engine is not None:
        us, host = timed(links.calls(cast(SymmetricMemory, engine.memory)), rounds, group, meet)
        if rank == 0:
            print("LINKS", json.dumps({"us": us, "host_us": host}))
    for problem in problems:
        late = torch.tensor([float(time.monotonic() > deadline)], device="cuda")
        dist.all_reduce(late, dist.ReduceOp.MAX, group=group)
        if late:
            break
        if rank == 0:
            print("BEGUN", problem)
        row = row_of(contest(problem), rounds, meet)
        if rank == 0:
            print("ROW", problem, json.dumps(row))
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
