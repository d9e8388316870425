"""SIMT kernels on a GPU: against float64, on ragged shapes, between guard bands, over poisoned outputs."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.build import simt_plan  # noqa: E402
from cutegemm.errors import CopyWarning, CutegemmError, PlanError, UnsupportedError  # noqa: E402
from cutegemm.plan import Operands  # noqa: E402
from cutegemm.run.gemm import gemm, plan_of  # noqa: E402
from tests.gpu.cases import LAYOUTS, SIMT, forms, matrix  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("compiled")]

SCALES = [(1.0, 0.0), (1.5, 0.5), (-0.5, 1.0), (2, 0)]
WIDE = [
    (4, 4, 4),
    (64, 68, 8),
    (132, 68, 132),
    (200, 132, 36),
    (64, 64, 64),
    (8, 300, 4),
    (260, 516, 260),
    (12, 8, 1024),
]
ODD = [
    (1, 1, 1),
    (63, 65, 7),
    (129, 67, 131),
    (200, 130, 33),
    (65, 64, 63),
    (5, 301, 0),
    (301, 7, 1),
    (1, 257, 300),
    (257, 1, 77),
]


def check(
    plan, m, n, k, layout="nn", *, alpha=1.0, beta=0.0, align=16, out_major="n", batch=None,
    dtype="float32", out_dtype=None, fill="normal", c_major=None, gap=0,
):  # fmt: skip
    """One product: its error against float64, the guard bands, the poison."""
    kind = getattr(torch, out_dtype or dtype)
    elems = max(1, align // getattr(torch, dtype).itemsize)
    out_elems = max(1, align // kind.itemsize)
    shift = 0 if align == 16 else elems  # so that nothing is aligned to more than was asked for
    common = {"batch": batch, "shift": shift}
    a = matrix(m, k, transposed=layout[0] == "t", gap=gap, dtype=dtype, fill=fill, align_elems=elems, **common)
    b = matrix(k, n, transposed=layout[1] == "t", gap=gap, dtype=dtype, fill=fill, align_elems=elems, **common)
    c_fill = "nan" if beta == 0 else fill
    c = matrix(m, n, transposed=(c_major or out_major) == "m", dtype=out_dtype or dtype, fill=c_fill,
               align_elems=out_elems, gap=gap, **common)  # fmt: skip
    d = matrix(m, n, transposed=out_major == "m", dtype=out_dtype or dtype, fill="nan", align_elems=out_elems,
               gap=gap, **common)  # fmt: skip
    result = gemm(a.view, b.view, c=c.view, alpha=alpha, beta=beta, out=d.view, plan=plan)
    assert result is d.view
    said = f"{plan} on {m}x{n}x{k}, {layout}, alpha {alpha}, beta {beta}, batch {batch}, {dtype}"
    assert d.outside_is_untouched(), f"{said}: wrote outside of D"
    assert all(x.outside_is_untouched() for x in (a, b, c)), f"{said}: wrote to an input"
    wide_a, wide_b = a.view.double(), b.view.double()
    exact = alpha * (wide_a @ wide_b) + (beta * c.view.double() if beta else 0)
    if fill == "integer":
        assert torch.equal(d.view.double(), exact), f"{said}: not exact"
        return
    ours = (d.view.double() - exact).abs()
    assert torch.isfinite(d.view).all(), f"{said}: D has elements that were not written, or NaN of C"
    library = alpha * (a.view @ b.view).to(kind) + (beta * c.view if beta else 0)
    theirs = (library.double() - exact).abs().max().item() if d.view.numel() else 0.0
    floor = sequential_error(kind, k, exact, alpha * (wide_a.abs() @ wide_b.abs()))
    worst = ours.max().item() if d.view.numel() else 0.0
    assert worst <= 2 * theirs + floor, f"{said}: error {worst:.3g}, the library's {theirs:.3g}"


def sequential_error(kind, k, exact, magnitudes):
    """What one sum after the other may err by, where the library sums in parts.

    Each of k additions rounds a partial sum by up to eps / 2 of it; as a random walk that is about
    eps / 2 * sqrt(k) of the largest. And D itself is rounded once.
    """
    if exact.numel() == 0:
        return 0.0
    eps = torch.finfo(kind).eps
    walk = 0.5 * torch.finfo(torch.float32 if eps > 1e-7 else kind).eps * k**0.5 * exact.abs().max().item()
    return walk + eps * magnitudes.abs().max().item() / max(1, k) ** 0.5 + eps * exact.abs().max().item()


# --- correctness -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out_major", ["n", "m"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("align", [16, 4])
def test_ragged_shapes(align, layout, out_major):
    for i, (m, n, k) in enumerate(WIDE if align == 16 else ODD):
        alpha, beta = SCALES[i % 4]
        gap = [0, 4, 8][i % 3] if align == 16 else [0, 1, 3][i % 3]
        check("simt_64x64", m, n, k, layout, alpha=alpha, beta=beta, align=align, out_major=out_major, gap=gap)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SIMT)
def test_named_plans(name, layout):
    for i, (m, n, k) in enumerate([(300, 528, 132), (256, 256, 256), (4, 1000, 20), (1000, 4, 68)]):
        alpha, beta = SCALES[i]
        check(name, m, n, k, layout, alpha=alpha, beta=beta)
    check(name, 260, 260, 520, layout, fill="integer")


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize("name", SIMT)
def test_named_plans_on_elements(name, layout):
    for i, (m, n, k) in enumerate([(301, 517, 131), (1, 1, 1), (257, 129, 17)]):
        alpha, beta = SCALES[i]
        check(name, m, n, k, layout, alpha=alpha, beta=beta, align=4, gap=i)


@pytest.mark.parametrize("name", list(forms()))
def test_forms(name):
    plan = forms()[name]
    ops = plan.operands
    align = ops.a.align_bytes
    shapes = WIDE if align == 16 else ODD
    for i, (m, n, k) in enumerate(shapes[1:]):
        alpha, beta = SCALES[(i + 1) % 4]
        check(plan, m, n, k, ops.layout, alpha=alpha, beta=beta, align=align, c_major=ops.c.major)
    m, n, k = (196, 200, 264) if align == 16 else (195, 201, 263)
    check(plan, m, n, k, ops.layout, align=align, fill="integer", c_major=ops.c.major)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches(layout):
    for batch, m, n, k in ((3, 68, 132, 20), (1, 128, 64, 8), (5, 4, 4, 4), (2, 64, 64, 0)):
        check("simt_64x64", m, n, k, layout, alpha=1.0, beta=0.5, batch=batch)
    if layout == "nt":
        check("simt_64x64", 67, 33, 21, layout, batch=4, align=4)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_batch_may_share_a_matrix(kind):
    a, b = (torch.randn(*shape, device="cuda").to(kind) for shape in ((5, 64, 32), (32, 48)))
    b = b.expand(5, -1, -1)
    allowed = 1e-4 if kind == torch.float32 else 0.1
    assert (gemm(a, b).float() - a.float() @ b.float()).abs().max().item() < allowed
    rows = a[0, :1].expand(64, -1)  # equal rows
    assert (gemm(rows, b[0]).float() - rows.float() @ b[0].float()).abs().max().item() < allowed


def test_columns_of_one_matrix_side_by_side():
    """The result lies between the columns of an operand, in the same rows."""
    whole = torch.randn(256, 512, device="cuda")
    a, b, out = whole[:, :128], torch.randn(128, 256, device="cuda"), whole[:, 128:384]
    want, kept = a.double() @ b.double(), whole.clone()
    assert gemm(a, b, out=out) is out
    assert (out - want).abs().max().item() < 1e-3
    assert torch.equal(whole[:, :128], kept[:, :128])
    assert torch.equal(whole[:, 384:], kept[:, 384:])


@pytest.mark.usefixtures("much_memory")
def test_offsets_beyond_32_bits():
    """The last rows of matrices of more than 2**31 elements, between matrices that hold them alone."""
    free, _ = torch.cuda.mem_get_info()
    if free < 48 << 30:
        pytest.skip("48 GB of free memory are needed")
    rows, columns = (1 << 31) // 8192 + 512, 8192
    a = torch.zeros(rows, columns, device="cuda")
    a[-512:] = torch.randn(512, columns, device="cuda")
    b = torch.randn(columns, 256, device="cuda")
    assert torch.equal(gemm(a, b)[-512:], gemm(a[-512:].contiguous(), b, plan=plan_of(a, b)))
    wide = torch.empty(rows, columns, device="cuda")
    gemm(a[:, :64], torch.ones(64, columns, device="cuda"), out=wide)  # D that large
    assert torch.allclose(wide[-512:, -1], a[-512:, :64].sum(dim=1), atol=1e-3)
    assert not wide[:-512].any()


@pytest.mark.usefixtures("much_memory")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_stride_beyond_32_bits(kind):
    """Two matrices of a batch, 2**31 + 64 elements apart."""
    free, _ = torch.cuda.mem_get_info()
    if free < 24 << 30:
        pytest.skip("24 GB of free memory are needed")
    pool = torch.empty((1 << 31) + 64 + 128 * 64, dtype=kind, device="cuda")
    a = pool.as_strided((2, 128, 64), ((1 << 31) + 64, 64, 1))
    a.copy_(torch.randn(2, 128, 64, device="cuda"))
    b = torch.randn(2, 64, 128, device="cuda").to(kind)
    want = a.double() @ b.double()
    assert (gemm(a, b).double() - want).abs().max().item() < (1e-4 if kind == torch.float32 else 0.2)


@pytest.mark.parametrize(("dtype", "bits"), [("float64", 64), ("float16", 16), ("bfloat16", 16)])
def test_other_types(dtype, bits):
    for m, n, k in ((64, 64, 64), (136, 72, 200), (200, 8, 16)):
        check("simt_64x64", m, n, k, dtype=dtype, alpha=1.5, beta=0.5)
    check("simt_64x64", 67, 65, 33, dtype=dtype, align=bits // 8)
    if bits == 16:
        check("simt_64x64", 136, 72, 200, dtype=dtype, out_dtype="float32", beta=1.0)


def test_the_plan_that_is_chosen():
    for m, n, k in ((1, 1, 1), (17, 4097, 33), (512, 512, 512), (2048, 1024, 256), (3000, 3001, 500)):
        check(None, m, n, k, align=4)
        check(None, -(-m // 4) * 4, -(-n // 4) * 4, -(-k // 4) * 4, "nt")


def test_the_same_every_time():
    """Races show as differences between runs."""
    a, b = torch.randn(1000, 2000, device="cuda"), torch.randn(2000, 1000, device="cuda")
    for name in SIMT:
        first = gemm(a, b, plan=name)
        out = torch.empty_like(first)
        for _ in range(20):
            out.fill_(float("nan"))
            assert torch.equal(gemm(a, b, out=out, plan=name), first), name


@pytest.mark.usefixtures("much_memory")
def test_more_than_two_to_the_31_elements():
    m, k, n = 66000, 32800, 256
    needed = (m * k + k * n + m * n) * 4 * 1.1
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip("not enough memory")
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    rows = torch.tensor([0, 1, m // 2, m - 200, m - 1], device="cuda")
    exact = a[rows].double() @ b.double()
    for name in ("simt_128x256", "simt_64x64"):
        worst = (gemm(a, b, plan=name)[rows].double() - exact).abs().max().item()
        theirs = (a[rows] @ b - exact).abs().max().item()
        assert worst <= 2 * theirs + sequential_error(torch.float32, k, exact, exact)
    del a, b
    wide = torch.randn(40, 66000 * 1024, device="cuda")[:, :64]  # a leading stride of 2^26 elements
    other = torch.randn(64, 64, device="cuda")
    assert torch.allclose(gemm(wide, other), wide @ other, atol=1e-3)


# --- the public function -----------------------------------------------------------------------------------


def test_empty_extents():
    for m, n, k in ((0, 5, 3), (5, 0, 3), (0, 0, 0)):
        assert gemm(torch.ones(m, k, device="cuda"), torch.ones(k, n, device="cuda")).shape == (m, n)
    a, b, c = (
        torch.ones(4, 0, device="cuda"),
        torch.ones(0, 6, device="cuda"),
        torch.full((4, 6), 3.0, device="cuda"),
    )
    assert torch.equal(gemm(a, b), torch.zeros(4, 6, device="cuda"))
    assert torch.equal(gemm(a, b, c=c, beta=2.0), 2 * c)
    assert gemm(torch.ones(0, 4, 4, device="cuda"), torch.ones(0, 4, 4, device="cuda")).shape == (0, 4, 4)


def test_c_may_be_out():
    a, b, c = (torch.randn(256, 256, device="cuda") for _ in range(3))
    wanted = a @ b + 0.5 * c
    gemm(a, b, c=c, beta=0.5, out=c)
    assert torch.allclose(c, wanted, atol=1e-3)


def test_strides_of_extents_of_one():
    base = torch.randn(64, 7, device="cuda")
    column, row = base[:, 2:3], base.t()[2:3]
    pairs = [
        (column, torch.randn(1, 32, device="cuda")),
        (row, torch.randn(64, 8, device="cuda")),
        (torch.randn(8, 64, device="cuda"), column),
        (torch.randn(64, 1, device="cuda").t(), column),
    ]
    for a, b in pairs:
        assert torch.allclose(gemm(a, b), a @ b, atol=1e-4), (a.stride(), b.stride())
    out = torch.full((64, 5), 7.0, device="cuda")
    gemm(base, torch.ones(7, 1, device="cuda"), out=out[:, 1:2])
    assert torch.allclose(out[:, 1], base.sum(1), atol=1e-4)
    assert (out[:, [0, 2, 3, 4]] == 7.0).all()


def test_addresses_that_are_not_aligned():
    base = torch.randn(130, 132, device="cuda")
    for a in (base[:64, 1:65], base[1:65, 4:68], base.flatten()[3 : 3 + 64 * 64].view(64, 64)):
        assert torch.allclose(gemm(a, base[:64, :64]), a @ base[:64, :64], atol=1e-3)
    assert plan_of(base[:64, 1:65], base[:64, :64]).operands.a.align_bytes == 4
    assert plan_of(base[:64, 4:68], base[:64, :64]).operands.a.align_bytes == 16


def test_no_stride_of_one_is_copied_and_said():
    base = torch.randn(128, 128, device="cuda")
    with pytest.warns(CopyWarning, match="copy of a is made"):
        result = gemm(base[::2, ::2], base[:64, :64])
    assert torch.allclose(result, base[::2, ::2] @ base[:64, :64], atol=1e-3)
    out = torch.full((64, 128), 5.0, device="cuda")
    with pytest.warns(CopyWarning, match="copy of out is made"):
        assert gemm(base[:64, :64], base[:64, :64], out=out[:, ::2]).data_ptr() == out.data_ptr()
    assert torch.allclose(out[:, ::2], base[:64, :64] @ base[:64, :64], atol=1e-3)
    assert (out[:, 1::2] == 5.0).all()


def test_overlaps_are_refused():
    pool = torch.zeros(4 * 4096, device="cuda")
    a, b = pool[:4096].view(64, 64), pool[4096:8192].view(64, 64)
    for first in (0, 100, 4095, 8188):
        with pytest.raises(UnsupportedError, match=r"out overlaps [ab]"):
            gemm(a, b, out=pool[first : first + 4096].view(64, 64))
    gemm(a, b, out=pool[8192 : 8192 + 4096].view(64, 64))
    c = pool[8192 : 8192 + 4096].view(64, 64)
    with pytest.raises(UnsupportedError, match="out overlaps c"):
        gemm(a, b, c=c, beta=1.0, out=pool[8200 : 8200 + 4096].view(64, 64))
    with pytest.raises(UnsupportedError, match="out overlaps c"):
        gemm(a, b, c=c, beta=1.0, out=c.t())
    with pytest.raises(UnsupportedError, match="may share memory"):
        gemm(a, b, out=torch.zeros(64, device="cuda").expand(64, 64))


def test_what_is_refused_names_what_is_served():
    a, b = torch.randn(8, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    for call, words in (
        (lambda: gemm(a, b.cpu()), "b is on cpu. Pass tensors on a CUDA device"),
        (lambda: gemm(a, b.double()), "of one type"),
        (lambda: gemm(a.int(), b.int()), "Supported are float16, bfloat16, float32, float64, .*int8"),
        (lambda: gemm(a, b[:5]), "a has 8 columns, b has 5 rows"),
        (lambda: gemm(a, b, beta=1.0), "no c is given"),
        (lambda: gemm(a, b, plan="simt_1x1"), "no plan is called 'simt_1x1'. Is it simt_"),
        (lambda: gemm(a.detach(), b, out=torch.empty(8, 9, device="cuda")), "out has shape"),
    ):
        with pytest.raises(CutegemmError, match=words):
            call()
    for_tn = simt_plan(Operands.of("f32", layout="tn"), block=(64, 64, 8), warp=(32, 32), thread=(8, 4))
    with pytest.raises(PlanError, match="the plan is made for f32 m-major"):
        gemm(a.detach(), b, plan=for_tn)


def test_gradients_may_be_off():
    a = torch.randn(64, 64, device="cuda", requires_grad=True)
    with torch.no_grad():
        assert torch.allclose(gemm(a, a), a @ a, atol=1e-3)


class OnlyDlpack:
    """An array of another framework."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_other_frameworks_by_dlpack():
    a, b, out = (torch.randn(64, 64, device="cuda") for _ in range(3))
    wanted = a @ b
    assert torch.allclose(gemm(OnlyDlpack(a), OnlyDlpack(b)), wanted, atol=1e-3)
    given = OnlyDlpack(out)
    assert gemm(OnlyDlpack(a), b, out=given) is given
    assert torch.allclose(out, wanted, atol=1e-3)


def test_cupy():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    a, b = cupy.random.rand(64, 32, dtype=cupy.float32), cupy.random.rand(32, 48, dtype=cupy.float32)
    result = gemm(a, b)
    assert isinstance(result, cupy.ndarray)
    assert cupy.allclose(result, a @ b, atol=1e-3)


def test_it_runs_on_the_current_stream():
    a, b, out = (torch.randn(512, 512, device="cuda") for _ in range(3))
    wanted = (2 * a) @ b
    gemm(a, b, out=out)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # a launch on another stream would read `a` before it is doubled
        a.mul_(2)
        gemm(a, b, out=out)
    stream.synchronize()
    assert torch.allclose(out, wanted, atol=1e-2)


def test_a_graph_captures_it():
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    out = torch.empty(512, 512, device="cuda")
    gemm(a, b, out=out)
    gemm(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(a, b, out=out)
        fresh = gemm(a, b)
    a.mul_(3)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.allclose(out, a @ b, atol=1e-2)
    assert torch.equal(out, fresh)


def test_no_warning_where_nothing_is_copied():
    a = torch.randn(64, 64, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gemm(a, a.t())
