"""Functions that the ranks of `test_distributed` call, each on its GPU: they return faults, as sentences."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from cutegemm.ranks import FORMS, OPERATIONS, forms_of
from cutegemm.torch import distributed
from cutegemm.torch.activations import activated
from cutegemm.torch.distributed.calls import ranks_of, request_of
from cutegemm.torch.distributed.engine import Request, Work
from cutegemm.torch.distributed.work import Gathered, Reduced
from docs.evidence.rank_process import compile_all

CALLS = 4
DRAWN = 3  # random shapes for a seed
_ROUNDING = 2.0**-8  # half a unit in the last place of 1 as bfloat16


def device() -> torch.device:
    """Return the GPU of this rank."""
    return torch.device("cuda", dist.get_rank())


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return random numbers, others on each rank."""
    return torch.randn(shape, device=device()).to(dtype)


def has_engine() -> bool:
    """Return whether the ranks access each other's memory."""
    group = dist.distributed_c10d._get_default_group()
    return ranks_of(str(group.group_name), device()).engine is not None


def every(x: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of all ranks."""
    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x.contiguous())
    return found


def extents(count: int, seed: int) -> list[tuple[int, int, int]]:
    """Return random extents, the same on all ranks: few and many rows, and columns that are aligned or not."""
    chance = random.Random(seed)
    fixed = [(2, 8, 8), (128, 256, 512), (2048, 1024, 1024)]
    drawn = [(2 * chance.randint(1, 700), 8 * chance.randint(1, 90), 8 * chance.randint(1, 90)) for _ in range(count)]
    return [*fixed, *drawn, (34, 77, 45), (1030, 129, 333)]


def prepare(seeds: Sequence[int]) -> None:
    """Compile the kernels of `gathers` and `reduces` in parallel, on the first rank."""
    if dist.get_rank() == 0:
        compile_all(_works(seeds), dist.get_world_size())
    dist.barrier()


def _works(seeds: Sequence[int]) -> Iterator[tuple[Request, Work]]:
    """Yield calls of all shapes, operations and forms."""
    ranks, kinds = dist.get_world_size(), (torch.bfloat16, torch.bfloat16)
    for m, n, k in {shape for seed in seeds for shape in extents(DRAWN, seed)}:
        x, w, bias, d = normal(m, k), normal(n, k).t(), normal(n), normal(m, n)
        text = activated("relu", ("bias",))
        for operation in OPERATIONS:
            for form in forms_of(operation):
                request = request_of(operation, ranks, m, n, k, *kinds, form, device().index)
                if operation == "all_gather":
                    yield request, Gathered(x[: m // ranks], [w], text, [bias], (), [d])
                else:
                    rows = m // ranks if operation == "reduce_scatter" else m
                    yield request, Reduced(x, w, bias, d[:rows])


def _off(d: torch.Tensor, wanted: torch.Tensor, limit: float) -> str:
    """Return "" if a result is close to the right one in float64; else how far it is off."""
    off = (d.double() - wanted).abs().max().item()
    return "" if off <= limit else f"off by {off:.3g}, where {limit:.3g} is the most"


def gathers(seed: int) -> list[str]:
    """Compare `all_gather_mm` with float64: calls without a pause, of different shapes and inputs, in both forms."""
    torch.manual_seed(seed + dist.get_rank())
    faults = []
    for m, n, k in extents(DRAWN, seed):
        for form in forms_of("all_gather"):
            xs, w, bias = [normal(m // 2, k) for _ in range(CALLS)], normal(n, k).t(), normal(n)
            found = [distributed.all_gather_mm(x, w, bias, "relu", form=form) for x in xs]
            for x, d in zip(xs, found, strict=True):
                wanted = torch.relu(torch.cat(every(x)).double() @ w.double() + bias.double())
                if fault := _off(d, wanted, 2 * _ROUNDING * wanted.abs().max().item()):
                    faults.append(f"all_gather {form} {m} x {n} x {k}: {fault}")
    return faults


def reduces(called: str, seed: int, has_bias: bool) -> list[str]:
    """Compare a reduction with float64 and its bound of the error; and its bits with those of a second call."""
    torch.manual_seed(seed + dist.get_rank())
    function, faults = getattr(distributed, called), []
    for m, n, k in extents(DRAWN, seed):
        for form in FORMS:
            xs, w = [normal(m, k) for _ in range(CALLS)], normal(n, k).t()
            bias = every(normal(n))[0] if has_bias else None
            found = [function(x, w, bias, form=form) for x in xs]
            again = [function(x, w, bias, form=form) for x in xs]
            for x, d, other in zip(xs, found, again, strict=True):
                partials = torch.stack(every(x.double() @ w.double()))
                wanted = partials.sum(0) + (0.0 if bias is None else bias.double())
                ranks = len(partials)
                limit = _ROUNDING * (ranks * partials.abs().max().item() + wanted.abs().max().item())
                mine = wanted.chunk(ranks)[dist.get_rank()] if called == "mm_reduce_scatter" else wanted
                if fault := _off(d, mine, limit):
                    faults.append(f"{called} {form} {m} x {n} x {k}: {fault}")
                if not torch.equal(d, other):
                    faults.append(f"{called} {form} {m} x {n} x {k}: a second call has other bits")
                if called == "mm_all_reduce" and not torch.equal(*every(d)[:2]):
                    faults.append(f"{called} {form} {m} x {n} x {k}: the ranks have different bits")
    return faults


def chunks(operation: str) -> list[str]:
    """Compare reductions by shard in several chunks with those in the form "whole"."""
    torch.manual_seed(dist.get_rank())
    group, faults = dist.distributed_c10d._get_default_group(), []
    engine = ranks_of(str(group.group_name), device()).engine
    for m, n, k in [(1024, 512, 512), (24, 264, 72)]:
        for count in (2, 3):
            x, w = normal(m, k), normal(n, k).t()
            whole = {"reduce_scatter": distributed.mm_reduce_scatter, "all_reduce": distributed.mm_all_reduce}
            wanted = whole[operation](x, w, form="whole").double()
            for call in range(CALLS):
                d = torch.empty(wanted.shape, dtype=x.dtype, device=device())
                engine.run(Request(operation, m, n, k, x.dtype, x.dtype, "by_shard", count), Reduced(x, w, None, d))
                if fault := _off(d, wanted, 4 * _ROUNDING * wanted.abs().max().item()):
                    faults.append(f"{operation} of {m} rows in {count} chunks, call {call}: {fault}")
    return faults


def _mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, form: str) -> torch.Tensor:
    gathers = form if form in forms_of("all_gather") else None
    hidden = distributed.all_gather_mm(x, up, activation="gelu", form=gathers)
    y = distributed.mm_reduce_scatter(hidden, down, form=form)
    return distributed.all_gather_mm(y, up, form=gathers)


def captures(form: str) -> list[str]:
    """Compare replays of a CUDA graph of three calls with eager calls, in turn, with new inputs each time."""
    up, down = normal(384, 256).t(), normal(256, 384).t()
    x = normal(64, 256)
    _mlp(x, up, down, form)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = _mlp(x, up, down, form)
    faults = []
    for replay in range(CALLS):
        values = normal(64, 256)
        wanted = _mlp(values, up, down, form) if replay % 2 else None
        x.copy_(values)
        graph.replay()
        graph.replay()
        found = y.clone()
        wanted = _mlp(values, up, down, form) if wanted is None else wanted
        if not torch.equal(found, wanted):
            faults.append(f"{form}: replay {replay} differs from eager calls")
    return faults


def refuses_capture() -> str:
    """Return the error message of a first call inside of a capture."""
    x, w = normal(10, 24), normal(40, 24).t()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            distributed.all_gather_mm(x, w)
    except Exception as error:
        return str(error)
    return ""


def waits(form: str) -> list[str]:
    """Compare calls if one rank is late: once on its GPU, once on its host; and calls on another stream."""
    x, w, faults = normal(256, 512), normal(384, 512).t(), []
    wanted = distributed.mm_reduce_scatter(x, w, form=form).clone()
    stream = torch.cuda.Stream()

    def on_gpu() -> None:
        torch.cuda._sleep(100_000_000)

    def on_host() -> None:
        torch.cuda.synchronize()
        time.sleep(0.3)

    pauses: dict[str, Callable[[], Any]] = {"late on the GPU": on_gpu, "late on the host": on_host}
    for late_rank in range(dist.get_world_size()):
        for name, pause in pauses.items():
            if dist.get_rank() == late_rank:
                pause()
            found = [distributed.mm_reduce_scatter(x, w, form=form) for _ in range(3)]
            with torch.cuda.stream(stream):
                found.append(distributed.mm_reduce_scatter(x, w, form=form))
            found.append(distributed.mm_reduce_scatter(x, w, form=form))
            torch.cuda.synchronize()
            if not all(torch.equal(d, wanted) for d in found):
                faults.append(f"{form}: rank {late_rank} {name}: other results")
    return faults


def gives_up() -> str:
    """Return the error of the first rank if the second one does not make its call, with a short time limit."""
    x, w = normal(256, 512), normal(384, 512).t()
    distributed.mm_reduce_scatter(x, w)
    torch.cuda.synchronize()
    if dist.get_rank():
        return ""
    distributed.set_timeout(1.0)
    try:
        distributed.mm_reduce_scatter(x, w)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
