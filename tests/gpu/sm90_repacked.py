"""What `gemm` makes of operands that it packs for wgmma: every layout, ragged, batched, on streams, in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

PARTS = 5  # processes that share the cases, as each compiles what it runs
RUNS = 3
_RAGGED = (1001, 1003, 997)
_BY_NAME = "sm90_epi_stages+repack"


def cases(torch: Any) -> Iterator[tuple[Any, str, tuple[int, ...], str | None]]:
    """(type, layout, (M, N, K) or (M, N, K, L), plan): float32 as tf32; None: the chosen plan."""
    aligned, e4m3 = (1024, 1008, 1040), torch.float8_e4m3fn
    for layout in ("nn", "tn", "tt"):
        yield torch.float32, layout, (4096, 4224, 4096), None if layout == "tt" else "sm90_overlapped_2x1+repack"
        yield torch.float32, layout, _RAGGED, _BY_NAME
        yield e4m3, layout, aligned, None
        yield e4m3, layout, _RAGGED, None
        yield torch.int8, layout, _RAGGED, None
    for layout in ("nn", "nt", "tn", "tt"):
        yield torch.bfloat16, layout, _RAGGED, _BY_NAME
    yield torch.float32, "tn", (300, 264, 128, 3), f"{_BY_NAME}/k2"
    yield torch.int8, "tn", aligned, None
    yield torch.int8, "nn", (7, 2000, 513), None
    yield torch.float8_e5m2, "nn", _RAGGED, None
    yield e4m3, "tn", (200, 137, 129, 3), None
    yield e4m3, "nn", (1, 1, 1), None
    yield torch.float16, "nn", _RAGGED, _BY_NAME
    yield torch.bfloat16, "nn", (4097, 4095, 4093), None
    yield torch.bfloat16, "nt", (200, 137, 129, 3), "sm90_64x128+repack/stream"


def made(torch: Any, kind: Any, shape: tuple[int, ...], turned: bool) -> Any:
    """Normal data, or small integers, stored by columns if the operand is transposed."""
    *front, rows, columns = shape
    stored = (*front, columns, rows) if turned else shape
    if kind.is_floating_point:
        found = torch.randn(stored, device="cuda").to(kind)
    else:
        found = torch.randint(-9, 10, stored, device="cuda").to(kind)
    return found.mT if turned else found


def allowed(torch: Any, a: Any, b: Any, want: Any, result: Any) -> float:
    """Return the largest allowed error of an accumulator of these types, rounded to the type of the result."""
    if not a.dtype.is_floating_point:
        return 2.0 if want.abs().max() > 2**24 or result.dtype.is_floating_point else 0.0
    of_sums = {torch.float32: 2.0**-10, torch.float8_e4m3fn: 2.0**-10, torch.float8_e5m2: 2.0**-10}
    of_result = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
    scale = (a.float().abs() @ b.float().abs()).max().item()
    largest = want.abs().max().item()
    return of_result.get(result.dtype, 0.0) * largest + of_sums.get(a.dtype, 2e-6) * scale + 1e-6


def poison_what_is_free(torch: Any, bytes_of: int) -> None:
    """Fill the memory that the allocator returns next with NaN."""
    filled = torch.full((max(1, bytes_of),), 0xFF, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    del filled


def check(part: int, beat: Callable[[str], None]) -> list[str]:
    """Complaints about one in PARTS of the cases, from `part` on; part 0 has streams and a graph too.

    beat   called with the name of what starts
    """
    import torch

    from cutegemm import gemm
    from cutegemm.plan.memory.workspace import workspace_bytes
    from cutegemm.plan.problem import Problem
    from cutegemm.run.gemm import plan_of

    bad: list[str] = []
    for kind, layout, (m, n, k, *batch), plan in islice(cases(torch), part, None, PARTS):
        what = f"{m}x{n}x{k} {batch} of {kind}, {layout}, {plan or 'chosen'}"
        beat(what)
        a = made(torch, kind, (*batch, m, k), layout[0] == "t")
        b = made(torch, kind, (*batch, k, n), layout[1] == "t")
        options = {"plan": plan, "allow_tf32": kind == torch.float32}
        taken = plan_of(a, b, **options)
        beat(what)  # the kernel is compiled
        if plan is not None and not taken.repacks:
            bad.append(f"{what}: {taken.name} packs nothing")
        size, _ = workspace_bytes(taken, Problem(m, n, k, batch[0] if batch else 1, taken.operands))
        exact = a.double() @ b.double()
        first = gemm(a, b, **options)
        for run in range(RUNS):
            poison_what_is_free(torch, size)
            got = gemm(a, b, **options)
            if not torch.equal(got, first):
                bad.append(f"{what}: run {run} differs")
        error, most = (first.double() - exact).abs().max().item(), allowed(torch, a, b, exact, first)
        if not error <= most:
            bad.append(f"{what}: error {error:.3g} of {most:.3g} allowed")
        if (m, n, k) == _RAGGED:
            c = made(torch, first.dtype, (*batch, m, n), False)
            plan_of(a, b, c=c, **options)
            beat(what)
            mixed = gemm(a, b, c=c, alpha=1.5, beta=-0.5, **options)
            want = 1.5 * exact - 0.5 * c.double()
            error, most = (mixed.double() - want).abs().max().item(), 2 * allowed(torch, a, b, want, mixed)
            most += 0 if mixed.dtype.is_floating_point else 0.5  # the nearest whole number
            if not error <= most:
                bad.append(f"{what}, with C: error {error:.3g} of {most:.3g} allowed")
        beat(what)
    if part > 0:
        return bad
    beat("streams")
    bad += on_streams(torch, gemm)
    beat("a graph")
    return bad + in_a_graph(torch, gemm)


def on_streams(torch: Any, gemm: Any) -> list[str]:
    """Two streams, each with a workspace of its own, many calls at a time."""
    pairs = [[torch.randn(1024, 1024, device="cuda") for _ in "ab"] for _ in range(2)]
    wanted = [gemm(a, b, plan=_BY_NAME) for a, b in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    torch.cuda.synchronize()
    found: list[list[Any]] = [[], []]
    for _ in range(50):
        for stream, (a, b), kept in zip(streams, pairs, found, strict=True):
            with torch.cuda.stream(stream):
                kept.append(gemm(a, b, plan=_BY_NAME))
    torch.cuda.synchronize()
    differ = sum(not torch.equal(got, want) for kept, want in zip(found, wanted, strict=True) for got in kept)
    return [f"{differ} of 100 results differ on two streams"] if differ else []


def in_a_graph(torch: Any, gemm: Any) -> list[str]:
    """Captured once, replayed on other data."""
    a, b = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
    out = gemm(a, b, plan=_BY_NAME)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(a, b, out=out, plan=_BY_NAME)
    bad = []
    for replay in range(RUNS):
        a.normal_()
        want = gemm(a, b, plan=_BY_NAME)
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(out, want):
            bad.append(f"replay {replay} of a graph gives another result")
    return bad
