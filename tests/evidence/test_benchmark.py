"""Contests without a GPU: calls are made up, and what is wrong or fails costs the others nothing."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from cutegemm.build import simt_plan
from cutegemm.dtypes import DType
from cutegemm.errors import CutegemmError, UnsupportedError
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan import Operands, Problem
from cutegemm.run import on_gpu, timing
from cutegemm.run.timing import alternating
from docs.evidence import benchmark, choice, measure, power
from docs.evidence.benchmark import Case, Contest, contests, operands_of, record
from docs.evidence.files import read_record

SQUARE = Problem(16, 8, 32, operands=operands_of("bfloat16", "nt", 16, 8, 32))


def gemm(a, b, *, out, plan, accumulate, allow_tf32):
    """Right, but for plans that are called after what they do wrong."""
    if plan == "fails":
        raise CutegemmError("it does not fit.")
    if plan == "breaks":
        raise RuntimeError("an illegal memory access")
    if plan == "idle":
        return
    torch.matmul(a, b, out=out)
    if plan == "one_wrong":
        out.view(-1)[3] += out.abs().max() / 16


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """Every call is right, of any plan; call number i takes i milliseconds, from 1."""
    for module in (benchmark, measure, on_gpu, timing):
        monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(benchmark, "need_gpu", lambda: None)
    monkeypatch.setattr(benchmark, "compile_ahead", lambda cases: None)
    monkeypatch.setattr(on_gpu, "alternating", lambda calls, seconds: [1e-3 * (i + 1) for i in range(len(calls))])
    monkeypatch.setattr("cutegemm.run.gemm.gemm", gemm)

    def plan_of(a, b, *, out, plan, accumulate, allow_tf32):
        kind = DType.parse({torch.bfloat16: "bf16", torch.float32: "f32"}[a.dtype])
        return SimpleNamespace(name="simt_one", operands=Operands.of(kind))

    monkeypatch.setattr("cutegemm.run.gemm.plan_of", plan_of)


def test_a_row_by_hand():
    """16 x 8 x 32: 8192 operations in 2 ms, where the library takes 1 ms."""
    one = Contest(SQUARE)
    one.enter("p")
    (row,) = one.rows(0.0)
    assert row.pop("difference") == 0.0
    assert row == {
        "m": 16, "n": 8, "k": 32, "l": 1, "layout": "nt", "dtype": "bf16", "plan": "p", "us": 2000.0,
        "tflops": round(8192 / 2e-3 * 1e-12, 3), "library_us": 1000.0, "library_tflops": 0.0, "ratio": 0.5,
    }  # fmt: skip


def test_what_fails_or_is_wrong_costs_the_others_nothing():
    plan = simt_plan(name="mine")
    (rows,) = contests([Case(SQUARE, ["fails", "idle", None, "breaks", "one_wrong", plan])], 0.0)
    assert [(row["plan"], row.get("chosen", False)) for row in rows if "ratio" in row] == [
        ("simt_one", True), ("mine", False),
    ]  # fmt: skip
    errors = {row["plan"]: row["error"] for row in rows if "error" in row}
    assert errors["fails"] == "it does not fit."
    assert errors["breaks"] == "RuntimeError: an illegal memory access"
    assert errors["idle"].startswith("D is nan of its largest element from the library's")
    assert errors["one_wrong"].startswith("D is 0.06")
    assert all(row["m"] == 16 for row in rows)


@pytest.mark.parametrize(("dtype", "is_right"), [("bfloat16", True), ("float32", False)])
def test_how_close_depends_on_the_type(monkeypatch, dtype, is_right):
    """1/1000 of the largest element is rounding for bf16, and wrong for f32."""

    def rough(a, b, *, out, plan, accumulate, allow_tf32):
        torch.matmul(a, b, out=out)
        out += out.abs().max() / 1000

    monkeypatch.setattr("cutegemm.run.gemm.gemm", rough)
    one = Contest(Problem(16, 8, 32, operands=operands_of(dtype, "nn", 16, 8, 32)))
    one.enter("p")
    assert ("ratio" in one.rows(0.0)[0]) == is_right


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_the_matrices_are_those_of_the_problem(layout):
    ops = operands_of("float32", layout, 6, 8, 4, batched=True)
    problem = Problem(6, 8, 4, 3, operands=ops)
    one = Contest(problem)
    assert [tuple(x.shape) for x in (one.a, one.b, one.out)] == [(3, 6, 4), (3, 4, 8), (3, 6, 8)]
    assert [x.stride(2) == 1 for x in (one.a, one.b)] == [letter == "n" for letter in layout]
    assert [x.stride(1) == 1 for x in (one.a, one.b)] == [letter == "t" for letter in layout]
    assert one.out.is_contiguous()
    assert torch.equal(one.wanted, one.a @ one.b)


@pytest.mark.parametrize("dtype", ["float32", "tf32"])
def test_a_plan_may_multiply_by_tf32_where_that_is_the_type(monkeypatch, dtype):
    allowed = []
    monkeypatch.setattr(
        "cutegemm.run.gemm.gemm", lambda a, b, **how: allowed.append(how["allow_tf32"]) or gemm(a, b, **how)
    )
    one = Contest(Problem(16, 8, 32, operands=operands_of(dtype, "nn", 16, 8, 32)))
    one.enter(None)
    assert allowed == [dtype == "tf32"]


def test_integers_are_summed_as_integers():
    ops = operands_of("int8", "nt", 32, 32, 32)
    assert (str(ops.d.dtype), str(ops.b.major)) == ("s32", "k")
    one = Contest(Problem(32, 32, 32, operands=ops))
    assert (one.a.dtype, one.out.dtype) == (torch.int8, torch.int32)
    assert torch.equal(one.wanted, one.a.int() @ one.b.int())


def test_a_file_is_whole_after_each_case(tmp_path):
    file, seen = tmp_path / "found.json", []

    def more():
        for number in range(3):
            seen.append(file.exists() and len(read_record(file)["rows"]))
            yield [{"plan": number}]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record({"machine": {}, "rows": []}, more(), file)
    assert seen == [False, 1, 2]
    assert read_record(file) == {"machine": {}, "rows": [{"plan": n} for n in range(3)]}
    assert list(tmp_path.iterdir()) == [file]


def test_times_of_chosen_plans_and_others_are_written(monkeypatch, tmp_path, capsys):
    for name, fake in {
        "need_gpu": lambda: None,
        "machine": dict,
        "this_device": lambda: DEFAULT_DEVICE,
        "compile_ahead": lambda cases: None,
        "all_timed": lambda cases, seconds, deadline=0.0: (choice.timed(case, seconds) for case in cases),
    }.items():
        monkeypatch.setattr(choice, name, fake)
    how = ["--layout", "nt", "--ways", "2", "--first", "2", "--each", "1", "--times"]
    choice.main(["--shape", "64x64x1024", *how, "--json", str(tmp_path / "a.json")])
    (row,) = read_record(tmp_path / "a.json")["rows"]
    assert (row["m"], row["k"], row["library_us"], row["us"]["simt_one"]) == (64, 1024, 1000.0, 2000.0)
    assert len(row["us"]) > 3
    assert "all: 1 problems, mean 0.500" in capsys.readouterr().out


def test_a_peer_and_the_clock_have_their_place(monkeypatch):
    def call_of(given, problem, a, b, out):
        if given == "gone":
            raise UnsupportedError("--peer gone: the file does not exist.")
        return lambda: torch.matmul(a, b, out=out)

    held = {"tflops": 2.0, "clock_mhz": 1545, "power_w": 678.0, "throttle": {"power cap": 1.0}}
    monkeypatch.setattr(benchmark.peer, "call_of", call_of)
    monkeypatch.setattr(power, "sensors_of_torch", lambda: None)
    monkeypatch.setattr(power, "ceiling", lambda *_: {"tflops": 4.0, "clock_mhz": 1545, "flop_per_cycle": 2589})
    monkeypatch.setattr(power, "alone", lambda *_: held)
    said: list[str] = []
    (rows,) = contests(
        [Case(SQUARE, ["p"])], 0.0, peers=["a/their.py", "gone"], meter=power.Meter(DType.parse("bf16"), 1.0),
        say=said.append,
    )  # fmt: skip
    failed, plan, their = rows
    assert (failed["plan"], failed["error"]) == ("gone", "--peer gone: the file does not exist.")
    assert (plan["plan"], plan["ratio"], their["plan"], their["peer"]) == ("p", 0.5, "their", True)
    assert their["ratio"] == pytest.approx(1 / 3, abs=1e-4)
    for one in (plan["alone"], plan["library_alone"], their["alone"]):
        assert one == {**held, "flop_per_cycle": 1294, "share_at_clock": round(1294 / 2589, 4)}
    assert "1545 MHz, 0.500 of the ceiling at it, 678.0 W, power cap 100%" in said[-1]
    assert "the file does not exist" in said[1]


def test_every_round_runs_each_in_an_order_drawn_anew_and_in_its_reverse(monkeypatch):
    """By a clock of milliseconds that only the calls move: the n-th by n."""
    clock, called = [0.0], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, end):
            return end.at - self.at

    def call(number):
        called.append(number)
        clock[0] += number

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "_FLUSH_BYTES", 16)
    monkeypatch.setattr(timing, "_WARM_SECONDS", 0.0)
    found = alternating([functools.partial(call, n) for n in (1, 2, 3, 4)], 0.0)
    assert found == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3])
    orders = [called[at : at + 4] for at in range(0, len(called), 4)]
    assert [sorted(one) for one in orders] == [[1, 2, 3, 4]] * 8  # a round to warm up, and three
    assert orders[1::2] == [one[::-1] for one in orders[::2]]
    assert len(set(map(tuple, orders[::2]))) > 1


def test_no_ceiling_for_types_that_mma_sync_does_not_take(monkeypatch):
    monkeypatch.setattr(power, "sensors_of_torch", lambda: SimpleNamespace(limits=dict))
    assert power.Meter(DType.parse("e4m3"), 1.0).known() == {"limits": {}, "ceiling": None}
