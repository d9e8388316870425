"""`prepare` chooses the plans that later calls use. Nothing is compiled in these tests."""

from __future__ import annotations

import threading

import pytest

import cutegemm
from cutegemm.errors import CompileError, PlanError
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan import Operands
from cutegemm.run import ahead

SHAPES = [(64, 512, 512), (300, 512, 500), (2048, 2048, 2048)]


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Return the list of the plans that `prepare` compiles. No plan is in the cache before."""
    found = []
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))

    def compile_plans(plans, arch, processes, done):
        found.extend(plans)
        for _ in plans:
            done()
        return [CompileError("no") if plan.name == "simt_bad" else None for plan in plans]

    monkeypatch.setattr(ahead, "compile_plans", compile_plans)
    return found


def test_shapes(compiled, capsys):
    found = cutegemm.prepare([*SHAPES, SHAPES[0]], device="h200")
    assert len(found.plans) == len(compiled) == found.compiled == 3
    assert f"cutegemm: 3 kernels: 3 compiled in {found.seconds:.1f} s, 0 existed before\n" == capsys.readouterr().err
    assert cutegemm.prepare([(64, 512, 512)], dtype="f32", layout="nn").plans[0].family == "simt"


def test_what_was_compiled_is_there(compiled, monkeypatch):
    monkeypatch.setattr(ahead.cache, "intact", lambda folder: {})
    found = cutegemm.prepare(SHAPES)
    assert (compiled, found.compiled) == ([], 0)
    assert str(found).startswith("3 kernels: 0 compiled in")
    assert str(found).endswith("s, 3 existed before")


def test_what_fails_is_told(compiled, monkeypatch):
    plan = cutegemm.simt_plan(name="simt_bad")
    monkeypatch.setattr(ahead, "plans_of", lambda *given: [(plan, "sm_80")])
    found = cutegemm.prepare(SHAPES)
    assert (found.compiled, str(found).splitlines()[1]) == (0, "  simt_bad failed: no")


def test_a_weight_for_any_number_of_rows(compiled):
    found = cutegemm.prepare([(512, 512)], rows=range(1, 8193))
    assert 2 <= len(found.plans) <= 6
    one = cutegemm.prepare([(512, 512)], rows=[64])
    assert len(one.plans) == 1
    assert one.plans[0].key() in {plan.key() for plan in found.plans}


@pytest.mark.parametrize(
    ("what", "options", "words"),
    [
        ([(1, 2)], {}, r"the shape \(1, 2\) is invalid. Pass integers of 1 or more: \(M, N, K\) or \(M, N, K, L\)"),
        (
            [(1, 2, 3)],
            {"rows": [1]},
            r"the shape \(1, 2, 3\) is invalid. Pass integers of 1 or more: \(N, K\), since rows",
        ),
        ([(0, 2, 3), "x"], {}, "(?s)2 rules are broken.*'x' is invalid"),
        ([(4, 4)], {"rows": []}, "Pass numbers of 1 or more"),
        ([(4, 4)], {"rows": range(4)}, "Pass numbers of 1 or more"),
        ([(1, 2, 3, 4)], {"groups": 8}, r"the shape \(1, 2, 3, 4\) is invalid.*\(M, N, K\), since groups"),
        ([(1, 2, 3)], {"groups": 0}, r"groups = 0 is less than 1. Pass 1 or more"),
    ],
)
def test_what_is_refused(compiled, what, options, words):
    with pytest.raises(PlanError, match=words):
        cutegemm.prepare(what, **options)


class TestCalls:
    """`prepare` compiles the plans that `gemm` and layers launch."""

    @pytest.fixture
    def launched(self, monkeypatch):
        pytest.importorskip("torch", reason="torch is not installed")
        from cutegemm.run import fused
        from cutegemm.run.calls import Calls
        from tests.noted import note_launches

        monkeypatch.setattr(fused, "_calls", Calls())
        monkeypatch.setattr(fused, "wrong_devices", lambda given: [])
        return note_launches(monkeypatch, 132)

    @pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
    @pytest.mark.parametrize("shape", [*SHAPES, (8, 16, 24, 3), (1, 512, 256), (40, 33, 21)])
    def test_shapes(self, launched, shape, layout):
        import torch

        m, n, k, *batch = shape
        a = torch.zeros(*batch, k, m).mT if layout[0] == "t" else torch.zeros(*batch, m, k)
        b = torch.zeros(*batch, n, k).mT if layout[1] == "t" else torch.zeros(*batch, k, n)
        for dtype, kind in (("bf16", torch.bfloat16), ("f32", torch.float32)):
            cutegemm.gemm(a.to(kind), b.to(kind))
            operands = Operands.of(dtype, layout=layout, batched=bool(batch))
            ((plan, arch),) = ahead.plans_of([shape], None, operands, DEFAULT_DEVICE)
            assert (plan, arch) == (launched[-1].plan, "sm_90a")

    def test_layers(self, launched):
        """At most six plans serve all numbers of rows of a layer with bias and gelu. Each call uses one of them."""
        import torch

        from cutegemm.epilogue import gelu
        from cutegemm.run.gemm import gemm, layer
        from cutegemm.run.prepare import asking

        w, bias = torch.zeros(1024, 512).bfloat16(), torch.zeros(1024).bfloat16()

        def ending(acc, bias):
            return gelu(acc + bias)

        with asking() as asked:
            layer(torch.zeros(8192, 512).bfloat16(), w, bias, ending)
        (question,) = asked
        assert launched == []
        plans = {plan.key() for plan, _ in ahead.plans_of_layers([(question, range(1, 8193))])}
        assert 2 <= len(plans) <= 6
        for rows in (1, 3, 17, 64, 500, 1023, 5000):
            x = torch.zeros(rows, 512).bfloat16()
            layer(x, w, bias, ending)(x, w, bias)
            gemm(x, w.t(), epilogue=ending, bias=bias, varying_rows=True)
            assert launched[-1].plan.key() in plans
            assert launched[-1].plan == launched[-2].plan

    def test_other_threads_launch_while_plans_are_asked_for(self, launched):
        """A call of another thread is launched. The call that is asked about is not, until the context has ended."""
        import torch

        from cutegemm.run.gemm import gemm
        from cutegemm.run.prepare import asking

        a, b = torch.zeros(8, 16), torch.zeros(16, 24)
        with asking() as asked:
            gemm(a, b)
            other = threading.Thread(target=gemm, args=(a, b))
            other.start()
            other.join()
        assert len(asked) == 1
        assert len(launched[-1].calls) == 1
        gemm(a, b)
        assert len(launched[-1].calls) == 2

    def test_modules(self, launched):
        torch = pytest.importorskip("torch", reason="torch is not installed")
        from cutegemm.errors import UnsupportedError

        with pytest.raises(
            UnsupportedError,
            match=r"none of these modules has a layer that cutegemm computes. Call cutegemm.use\(model\)",
        ):
            cutegemm.prepare(torch.nn.Linear(8, 8))
        with pytest.raises(UnsupportedError, match=r"layers are on cpu, .* Call model.cuda\(\) first"):
            cutegemm.prepare([cutegemm.Linear(8, 8)])


def test_the_few_of_a_weight_are_remembered_on_the_disk(monkeypatch, tmp_path):
    """The recipes of a layer are stored on the disk. Operands of another type get recipes of their own."""
    from cutegemm.run import question

    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        question.recall.entries, "_IMPORTED", float("inf")
    )  # so that editing the source during the tests has no effect
    asked, real = [], question.rows.few
    monkeypatch.setattr(question.rows, "looked_at", lambda: [16, 4096])
    monkeypatch.setattr(question.rows, "few", lambda *of, **how: asked.append(of) or real(*of, **how))

    def few(dtype):
        monkeypatch.setattr(question, "_FEW", {})
        of = Operands.of(dtype, layout="nt")
        return question.few_of(ahead.question_of((64, 512, 512), of, DEFAULT_DEVICE))

    first = few("bf16")
    assert (few("bf16"), len(asked)) == (first, 1)
    few("f16")
    assert len(asked) == 2
    for file in (tmp_path / "few").iterdir():
        file.write_text("{")
    assert (few("bf16"), len(asked)) == (first, 3)
