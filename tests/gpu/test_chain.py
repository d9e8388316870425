"""GEMMs one after the other, each of the result of the one before.

A kernel that began before that one has ended waits for it.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.run.gemm import gemm  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("compiled")]

LINKS, REPEATS = 30, 20


@pytest.mark.parametrize(
    ("plan", "kind", "rows", "width"),
    [
        (None, "bfloat16", 1, 4096),
        (None, "bfloat16", 128, 1024),
        ("swap_ab:gemv_16x16_k4", "bfloat16", 16, 2048),
        ("swap_ab:gemv_16x8_pdl", "bfloat16", 8, 2048),
        # 76 CTAs, which let none of the next ones in
        ("swap_ab:sm90_64x16_deep_1x1x2", "bfloat16", 16, 2432),
        ("swap_ab:sm90_64x16_deep_1x1x2_occ2", "bfloat16", 16, 4096),
        ("sm90_64x64", "bfloat16", 128, 1024),
        ("sm90_64x64/k4", "bfloat16", 64, 2048),
        ("sm90_64x32_multistage", "float16", 200, 512),
        ("sm90_cluster_2x1", "bfloat16", 512, 2048),
        ("sm90_64x64+repack", "float32", 130, 512),
        ("mma_64x64", "bfloat16", 200, 512),
        ("mma_32x32/k4", "bfloat16", 64, 1024),
        ("simt_64x64", "float32", 130, 512),
        ("simt_16x64/k16", "float32", 24, 512),
        ("simt_64x64+repack", "float32", 130, 512),
    ],
)
def test_each_reads_what_the_one_before_has_written(plan, kind, rows, width):
    """Weights are permutations, so that each product is exact: the columns of the one before, in another order. All but
    the first are NaN before; in the stream, and as a graph."""
    is_for_hopper = any(family in (plan or "") for family in ("sm90", "gemv"))
    if is_for_hopper and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("such plans are for Hopper")
    of_kind = getattr(torch, kind)
    how = {"plan": plan, "allow_tf32": kind == "float32" and is_for_hopper}
    orders = [torch.randperm(width, device="cuda") for _ in range(LINKS)]
    weights = [torch.eye(width, device="cuda", dtype=of_kind)[order] for order in orders]
    if not (plan or "").endswith("+repack"):  # which copies an n-major B for wgmma
        weights = [weight.t().contiguous().t() for weight in weights]
    first = torch.randint(-64, 65, (rows, width), device="cuda").to(of_kind)
    values = [first, *[torch.empty_like(first) for _ in range(LINKS)]]
    want = first
    for weight in weights:
        want = (want.float() @ weight.float()).to(of_kind)

    def run() -> None:
        for value in values[1:]:
            value.fill_(float("nan"))
        for number, weight in enumerate(weights):
            gemm(values[number], weight, out=values[number + 1], **how)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for number in range(REPEATS):
        graph.replay() if number % 2 else run()
        assert torch.equal(values[-1], want)
