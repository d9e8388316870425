"""What `gemm` makes of halves and bytes on Hopper: of all layouts, in a graph, on a stream, a thousand times.

Its tests come in parts that each compile what they run, in a process of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_SHAPES = (
    (512, 768, 256),
    (200, 136, 72),
    (1000, 1001, 999),
    (1, 4096, 64),
    (4096, 8, 640),
    (300, 500, 0),
)
_FULL_SUMS = 2.0**-12  # the error of products of bytes, to the sum of their magnitudes, where sums are added in f32


@dataclass
class Held:
    """Results that were compared with float64.

    torch   the module
    beat    called with the name of what starts
    bad     what was wrong
    """

    torch: Any
    beat: Callable[[str], None]
    bad: list[str] = field(default_factory=list)

    def against(self, want: Any, what: str, a: Any, b: Any, got: Any, of_bytes: float = 2.0**-10) -> None:
        """Holds a product of a and b against its values in float64.

        of_bytes   error of 8-bit GEMMs, as wgmma accumulates them, relative to the sums of the magnitudes
        """
        torch = self.torch
        torch.cuda.synchronize()
        self.beat(what)
        scale = (a.float().abs() @ b.float().abs()).max().item() if a.shape[-1] else 0.0
        part = {
            torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float8_e4m3fn: 2.0**-4, torch.float8_e5m2: 2.0**-3
        }.get(got.dtype, 0)  # fmt: skip
        of_sums = of_bytes if a.element_size() == 1 else 2e-6
        allowed = part * want.abs().max().item() + of_sums * scale + 1e-6
        error = (got.double() - want).abs().max().item()
        if not error <= allowed:
            self.bad.append(f"{what}: error {error:.3g} of {allowed:.3g} allowed")


def saturated(values: Any, kind: Any) -> Any:
    """What lies past the largest value of a type of bytes becomes it, as it does in the kernel."""
    return values.clamp(-kind.largest, kind.largest) if kind.bits == 8 else values


def same_bits(torch: Any, one: Any, other: Any) -> bool:
    """Whether two results are the same, bit by bit."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return torch.equal(one.contiguous().view(whole), other.contiguous().view(whole))


def of_halves(held: Held, dtype: str, layout: str) -> None:
    """Yield the problems of one layout: plain, with C, and with D in float32."""
    from cutegemm import gemm

    torch = held.torch
    kind = getattr(torch, dtype)
    for m, n, k in _SHAPES:
        what = f"{m}x{n}x{k} of {kind}, {layout}"
        held.beat(what)
        a = torch.randn((k, m) if layout[0] == "t" else (m, k), device="cuda").to(kind)
        b = torch.randn((n, k) if layout[1] == "t" else (k, n), device="cuda").to(kind)
        a, b = a.t() if layout[0] == "t" else a, b.t() if layout[1] == "t" else b
        c = torch.randn(m, n, device="cuda").to(kind)
        exact = a.double() @ b.double()
        held.against(exact, what, a, b, gemm(a, b))
        mixed = gemm(a, b, c=c, alpha=1.5, beta=-0.5)
        held.against(1.5 * exact - 0.5 * c.double(), f"{what}, beta", a, b, mixed)
        wide = gemm(a, b, out=torch.empty(m, n, device="cuda"))
        held.against(exact, f"{what}, float32", a, b, wide)


def of_bytes(held: Held) -> None:
    """Both ways of adding up; results of bytes, by rows and by columns, past their largest value too."""
    from cutegemm import gemm
    from cutegemm.dtypes import DType

    torch = held.torch
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8):
        a, b = ((torch.randn(512, 768, device="cuda") * 3).to(kind) for _ in range(2))
        exact = a.double() @ b.double().t()
        held.against(exact, f"{kind}", a, b.t(), gemm(a, b.t()))
        full = gemm(a, b.t(), accumulate="promoted")
        held.against(exact, f"{kind}, in full", a, b.t(), full, _FULL_SUMS)
    mixed = torch.float8_e4m3fn, torch.float8_e5m2
    for of_a, of_b in (mixed, mixed[::-1]):
        for m, n, k in ((512, 768, 1024), (3, 512, 4096), (200, 99, 136)):
            a, b = torch.randn(m, k, device="cuda").to(of_a), torch.randn(n, k, device="cuda").to(of_b)
            exact, what = a.double() @ b.double().t(), f"{of_a} by {of_b}, {m}x{n}x{k}"
            held.against(exact, what, a, b.t(), gemm(a, b.t()))
            held.against(exact, f"{what}, packed", a, b.t(), gemm(a, b.t().contiguous()))
            full = gemm(a, b.t(), accumulate="promoted")
            held.against(exact, f"{what}, in full", a, b.t(), full, _FULL_SUMS)
    for kind in mixed:
        a, b, c = (torch.randn(512, 768, device="cuda").to(kind) for _ in range(3))
        b, c = b.t(), c[:, :512].float()
        for alpha, of_columns in ((0.25, False), (0.25, True), (20.0, False), (20.0, True)):
            out = torch.zeros(512, 512, device="cuda").to(kind)
            out = out.t() if of_columns else out
            exact = saturated(alpha * (a.double() @ b.double()) + 0.5 * c.double(), DType.parse(kind))
            what = f"{kind} to {'columns' if of_columns else 'rows'} of itself, alpha {alpha}"
            held.against(exact, what, a, b, gemm(a, b, c=c, alpha=alpha, beta=0.5, out=out))


def of_long_sums(held: Held) -> None:
    """K is split, by plans that are named and by those that are chosen; a graph gives the same bits."""
    from cutegemm import gemm

    torch = held.torch
    for m, n, k, named in (
        (64, 128, 16384, "sm90_64x32_deep/k8"),
        (200, 256, 20000, "sm90_64x64/k4"),
        (1, 512, 65536, "swap_ab:sm90_64x16_deep/k6"),
    ):
        a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
        for plan in (named, None):
            what = f"{m}x{n}x{k}, {plan or 'chosen'}"
            got = gemm(a, b.t(), plan=plan)
            held.against(a.double() @ b.double().t(), what, a, b.t(), got)
            graph, out = torch.cuda.CUDAGraph(), torch.empty_like(got)
            with torch.cuda.graph(graph):
                gemm(a, b.t(), out=out, plan=plan)
            for _ in range(3):
                out.zero_()
                graph.replay()
                torch.cuda.synchronize()
                if not same_bits(torch, got, out):
                    held.bad.append(f"{what}: a graph gives another result")


def of_few_rows(held: Held) -> None:
    """By plans for the transposed problem."""
    from cutegemm import gemm

    torch = held.torch
    for plan in ("sm90_64x16", "sm90_64x32", "sm90_epi_stages"):
        for m in (1, 16, 40):
            a = torch.randn(m, 1000, device="cuda").bfloat16()
            b = torch.randn(1000, 1048, device="cuda").bfloat16()
            what = f"{m} rows by swap_ab:{plan}"
            held.against(a.double() @ b.double(), what, a, b, gemm(a, b, plan=f"swap_ab:{plan}"))


def again_and_again(held: Held) -> None:
    """A thousand times, and in a graph on another stream: always the same bits."""
    from cutegemm import gemm
    from cutegemm.run.gemm import plan_of

    torch = held.torch
    a, b = (torch.randn(1024, 1024, device="cuda").bfloat16() for _ in range(2))
    first = gemm(a, b).clone()
    if plan_of(a, b).family != "sm90":
        held.bad.append(f"{plan_of(a, b).name} was chosen for halves")
    held.beat("a thousand times")
    if not all(torch.equal(first, gemm(a, b)) for _ in range(1000)):
        held.bad.append("two of a thousand runs differ")
    stream, graph, out = torch.cuda.Stream(), torch.cuda.CUDAGraph(), torch.empty_like(first)
    with torch.cuda.stream(stream):
        gemm(a, b, out=out)
        with torch.cuda.graph(graph, stream=stream):
            gemm(a, b, out=out)
    out.zero_()
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    if not torch.equal(first, out):
        held.bad.append("a graph gives another result")


def int8_sums(held: Held) -> None:
    """int8 sums whose partial sums pass 32 bits, by plans with every way to add up and by the chosen one.

    A sum that fits int32 is exact; others wrap.
    """
    from cutegemm import Operands, gemm, sm90_plan
    from tests.int8_sums import EXACT, A, B

    torch = held.torch
    a, b = (torch.from_numpy(matrix).cuda() for matrix in (A, B))
    b = b.t().contiguous().t()
    want = torch.from_numpy(EXACT.astype("int32")).cuda()
    operands = Operands.of("s8", layout="nt", out="s32")
    split = {"split_k": 3}, {"stream": 1}, {"cluster_k": 2, "schedule": "cooperative", "consumers": 1}
    plans = [
        sm90_plan(operands, name=f"sm90 {options}", tile=(64, 32, 128), epi_tile_n=16, **options)
        for options in ({}, *split)
    ]
    for plan in (*plans, None):
        held.beat(what := f"int8 sums past 32 bits, {plan.name if plan else 'chosen'}")
        got = gemm(a, b, plan=plan, out_dtype=torch.int32)
        if not torch.equal(got, want):
            held.bad.append(f"{what}: {got.tolist()} instead of {want.tolist()}")


_OTHERS = {
    "bytes": of_bytes,
    "int8 sums": int8_sums,
    "long sums": of_long_sums,
    "few rows": of_few_rows,
    "again": again_and_again,
}
_HALVES = {
    f"{dtype} {layout}": (dtype, layout) for dtype in ("bfloat16", "float16") for layout in ("nn", "nt", "tn", "tt")
}
PARTS = (*_HALVES, *_OTHERS)


def check(part: str, beat: Callable[[str], None]) -> list[str]:
    """Complaints about one of PARTS.

    beat   called with the name of what starts
    """
    import torch

    held = Held(torch, beat)
    if part in _HALVES:
        of_halves(held, *_HALVES[part])
    else:
        _OTHERS[part](held)
    return held.bad
