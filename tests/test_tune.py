"""The tuner: what is timed, what is kept, who reads it; kernels only note their calls, and times are made up."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("filelock", reason="filelock is not installed")

from cutegemm.compile import cuda  # noqa: E402
from cutegemm.errors import CompileError, PlanError, UnsupportedError  # noqa: E402
from cutegemm.run import fused, prepare, tune  # noqa: E402
from cutegemm.run.calls import Calls  # noqa: E402
from cutegemm.run.gemm import gemm  # noqa: E402
from cutegemm.run.tuned import Record, Table  # noqa: E402
from tests.noted import note_launches  # noqa: E402

BF16 = torch.bfloat16


def name_of(kernel):
    """Of its recipe; D is row-major, unless it is that of the transposed problem."""
    return f"{'swap_ab:' if kernel.plan.operands.d.major == 'm' else ''}{kernel.plan.name}"


class Device:
    """Stands for the GPU: which plan takes how long, and what is asked of it."""

    def __init__(self, kernels):
        self.kernels, self.seconds, self.rounds, self.is_capturing = kernels, {}, [], False

    def timer(self, calls):
        """A plan that nothing is said of takes 10 ms, and a microsecond more than the one before."""
        found = []
        for call in calls:
            before = [len(kernel.calls) for kernel in self.kernels]
            call()
            (name,) = [name_of(k) for k, n in zip(self.kernels, before, strict=True) if len(k.calls) > n]
            found.append(self.seconds.get(name, 1e-2 + 1e-6 * len(found)))
        self.rounds.append(len(found))
        return found


@pytest.fixture
def device(monkeypatch, tmp_path):
    kernels = note_launches(monkeypatch, 132)
    found = Device(kernels)
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(fused, "_calls", Calls())
    monkeypatch.setattr(fused, "wrong_devices", lambda given: [])
    monkeypatch.setattr(cuda, "device_name", lambda index: "NVIDIA Some, 132 multiprocessors")
    monkeypatch.setattr(tune, "_alternating", found.timer)
    monkeypatch.setattr(tune, "_capturing", lambda: found.is_capturing)
    monkeypatch.setattr(tune, "compile_missing", lambda plans, arch: None)
    monkeypatch.setattr(tune, "_used", [])
    monkeypatch.setattr(tune, "_defaults", {})
    return found


def matrices(m=1000, n=2048, k=4096):
    return torch.zeros(m, k, dtype=BF16), torch.zeros(n, k, dtype=BF16).t()


def chosen(device, *given, **options):
    """The plan of a call."""
    before = {id(kernel): len(kernel.calls) for kernel in device.kernels}
    gemm(*given, **options)
    ran = [k for k in device.kernels if len(k.calls) > before.get(id(k), 0)]
    return name_of(ran[-1])


def test_the_fastest_is_taken_and_kept(device, tmp_path, capsys):
    a, b = matrices()
    path = tmp_path / "tuned.json"
    with tune.tuning(cache=path):
        assert chosen(device, a, b)
    (record,) = Table.read(path).records.values()
    assert device.rounds == [tune.BEST]
    assert (len(record.us), record.plan) == (tune.BEST, next(iter(record.us)))
    assert f"tuning 1000x2048x4096 of bf16: {tune.BEST} plans" in capsys.readouterr().err

    name = list(record.us)[4]
    device.seconds[name] = 1e-3
    path.unlink()
    with tune.tuning(cache=path):
        assert chosen(device, a, b) == name
        assert chosen(device, a, b) == name
    assert f"{name} takes 1000.0 us, 10.000 times as fast as" in capsys.readouterr().err
    assert device.rounds == [tune.BEST, tune.BEST]
    with tune.tuning(cache=path):  # from the file
        assert chosen(device, a, b) == name
    assert device.rounds == [tune.BEST, tune.BEST]


def test_kinds_of_plans_are_varied(device, tmp_path):
    """Split, filled, of the transposed problem: one of each that is near the best."""
    a, b = matrices(4096, 4096)
    with tune.tuning(cache=tmp_path / "tuned.json", best=6):
        gemm(a, b)
    (record,) = Table.read(tmp_path / "tuned.json").records.values()
    kinds = {(name.startswith("swap_ab:"), name.partition("/")[2]) for name in record.us}
    assert kinds == {(False, ""), (False, "fixup"), (True, ""), (True, "fixup")}


def test_outside_of_it_nothing_is_timed_and_calls_keep_their_plans(device, tmp_path):
    a, b = matrices()
    with tune.tuning(cache=tmp_path / "tuned.json"):
        inside = chosen(device, a, b)
    other = matrices(64)
    assert chosen(device, a, b) == inside
    assert chosen(device, *other)
    assert len(device.rounds) == 1


def test_a_class_of_shapes_is_timed_once(device, tmp_path):
    with tune.tuning(cache=tmp_path / "tuned.json"):
        names = {chosen(device, *matrices(m)) for m in (961, 1000, 1024)}
        assert len(names) == len(device.rounds) == 1
        gemm(*matrices(1025))
        gemm(matrices(1000)[0].half(), matrices(1000)[1].half())
    assert len(device.rounds) == 3


def test_a_file_is_used_on_a_device_of_its_name_alone(device, tmp_path, monkeypatch):
    a, b = matrices()
    model, path = chosen(device, a, b), tmp_path / "tuned.json"
    with tune.tuning(cache=path):
        gemm(a, b)
    (record,) = Table.read(path).records.values()
    slow = list(record.us)[3]
    device.seconds[slow] = 1e-6
    path.unlink()
    with tune.tuning(cache=path):
        gemm(a, b)
    tune.calls.forget()
    assert chosen(device, a, b) == model
    assert tune.use_tuned(path) == 1
    assert chosen(device, a, b) == slow
    monkeypatch.setattr(cuda, "device_name", lambda index: "NVIDIA Other, 132 multiprocessors")
    tune.calls.forget()
    assert chosen(device, a, b) == model
    assert len(device.rounds) == 2


def test_without_the_dsl_records_of_any_version_of_it_serve(device, tmp_path, monkeypatch):
    a, b = matrices()
    with tune.tuning(cache=tmp_path / "tuned.json"):
        gemm(a, b)
    table = Table.read(tmp_path / "tuned.json")
    (key,) = table.records
    slow = Table({key: Record("sm90_64x64", {})})
    slow.write(tmp_path / "slow.json")
    tune.use_tuned(tmp_path / "slow.json")
    assert chosen(device, a, b) == "sm90_64x64"
    from cutegemm.run import tuned

    tuned.versions.cache_clear()
    monkeypatch.setattr(tuned, "dsl_version", lambda: tuned.NO_DSL)
    tune.calls.forget()
    assert chosen(device, a, b) == "sm90_64x64"
    tuned.versions.cache_clear()
    monkeypatch.setattr(tuned, "dsl_version", lambda: "0.1")
    tune.calls.forget()
    assert chosen(device, a, b) != "sm90_64x64"
    tuned.versions.cache_clear()


def test_nothing_is_timed_while_a_graph_is_captured(device, tmp_path, capsys):
    a, b = matrices()
    model = chosen(device, a, b)
    device.is_capturing = True
    with tune.tuning(cache=tmp_path / "tuned.json"):
        assert chosen(device, a, b) == model
    assert (device.rounds, (tmp_path / "tuned.json").exists()) == ([], False)
    assert (
        "is not tuned, since a CUDA graph is being captured. Call gemm once before the capture."
        in capsys.readouterr().err
    )


def test_one_call_may_ask_for_it(device):
    a, b = matrices()
    gemm(a, b)
    assert device.rounds == []
    gemm(a, b, tune=True)
    gemm(a, b, tune=True)
    assert device.rounds == [tune.BEST]
    assert len(Table.read(tune.default_file()).records) == 1


def test_epilogues_are_tuned_and_nothing_of_the_caller_is_written(device, tmp_path):
    a, b = matrices()
    bias, out = torch.zeros(2048, dtype=BF16), torch.zeros(2048, 1000, dtype=BF16).t()
    with tune.tuning(cache=tmp_path / "tuned.json", best=4):
        gemm(a, b, epilogue=lambda acc, bias: acc + bias, bias=bias, out=out)
        gemm(a, b, epilogue=lambda acc, bias: acc * bias, bias=bias, out=out)
        gemm(a, b, out=out)
    assert device.rounds == [4, 4, 4]
    given = [(kernel, arguments) for kernel in device.kernels for arguments in kernel.calls]
    written = [
        [x for x in arguments[2:] if isinstance(x, torch.Tensor) and x.data_ptr() == out.data_ptr()]
        for _, arguments in given
    ]
    assert sum(1 for each in written if each) == 3  # of the calls themselves
    keys = list(Table.read(tmp_path / "tuned.json").records)
    assert sorted("acc + bias" in key for key in keys) == [False, False, True]


def test_layers_are_tuned(device, tmp_path):
    from cutegemm.run.gemm import layer

    x, w = torch.zeros(64, 4096, dtype=BF16), torch.zeros(2048, 4096, dtype=BF16)
    with tune.tuning(cache=tmp_path / "tuned.json", best=2):
        layer(x, w)(x, w, None)
    assert device.rounds == [2]


def test_a_plan_that_does_not_compile_is_left_out(device, tmp_path, monkeypatch, capsys):
    a, b = matrices()
    with tune.tuning(cache=tmp_path / "tuned.json"):
        gemm(a, b)
    (record,) = Table.read(tmp_path / "tuned.json").records.values()
    violations = record.plan.removeprefix("swap_ab:")
    left = [name for name in record.us if name.removeprefix("swap_ab:") != violations]
    take = prepare.compile_plan

    def fails(plan, arch):
        if plan.name == violations:
            raise CompileError("no")
        return take(plan, arch)

    monkeypatch.setattr(prepare, "compile_plan", fails)
    with tune.tuning(cache=tmp_path / "other.json"):
        assert chosen(device, a, b) in left
    assert "is left out: no" in capsys.readouterr().err
    assert device.rounds == [tune.BEST, len(left)]


def written(folder, text):
    """A file of tuned plans with this text."""
    path = folder / "tuned.json"
    path.write_text(text)
    return path


WRONG = [
    (lambda path: tune.use_tuned(5), UnsupportedError, "path = 5 is not a path. Pass the path of a file"),
    (lambda path: tune.use_tuned(written(path, "[" * 100_000)), UnsupportedError, "recursion"),
    (
        lambda path: tune.use_tuned(written(path, '{"format": 1, "records": {"x": {"plan": 5, "us": {}}}}')),
        UnsupportedError,
        "5 is not the name of a plan",
    ),
    (
        lambda path: tune.use_tuned(path / "none.json"),
        UnsupportedError,
        "none.json does not exist. `cutegemm tune`",
    ),
    (
        lambda path: tune.tuning(best=0).__enter__(),
        PlanError,
        "best = 0 is not a number of plans. Pass an integer of 1 or more",
    ),
    (
        lambda path: gemm(*matrices(), plan="sm90_64x64", tune=True),
        UnsupportedError,
        "which times several plans and uses the fastest. Leave out one",
    ),
    (
        lambda path: gemm(*matrices(), varying_rows=1),
        UnsupportedError,
        "varying_rows = 1 is not a bool. Pass True or False",
    ),
]


@pytest.mark.parametrize(("call", "kind", "words"), WRONG)
def test_what_is_refused(device, tmp_path, call, kind, words):
    with pytest.raises(kind, match=words):
        call(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting property name"),
        ("[]", "not a file of tuned plans of format 1"),
        ('{"format": 7}', "not a file of tuned plans of format 1"),
        ('{"format": 1, "records": {"a": {"plan": "x"}}}', "a record is not valid: KeyError"),
    ],
)
def test_files_that_are_none(tmp_path, text, words):
    (tmp_path / "tuned.json").write_text(text)
    with pytest.raises(UnsupportedError, match=words):
        Table.read(tmp_path / "tuned.json")


def writes(path, number):
    Table({f"question {number}": Record("plan", {"plan": 1.0}), "of all": Record(str(number), {})}).write(path)


def test_processes_write_one_file(tmp_path):
    """All records are there; of what all of them timed, that of the first."""
    path = tmp_path / "tuned.json"
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(writes, [path] * 12, range(12)))
    held = json.loads(path.read_text())["records"]
    assert set(held) == {"of all", *[f"question {number}" for number in range(12)]}
    first = held["of all"]["plan"]
    writes(path, 99)
    assert Table.read(path).records["of all"].plan == first
    assert not list(tmp_path.glob(".tuned.json-*"))


def test_calls_that_record_gradients_are_tuned(device, monkeypatch):
    """The product, and both of its gradients."""
    from cutegemm.torch import launch

    asked, real = [], launch.compute

    def compute(a, b, text, *given, how=launch.AS_CHOSEN, **named):
        how = given[3] if len(given) > 3 else how
        asked.append(how.tune)
        return real(a, b, text, *given[:3], how=how, **named)

    monkeypatch.setattr("cutegemm.torch.autograd.compute", compute)
    monkeypatch.setattr("cutegemm.torch.gemm.wrong_devices", lambda given: [])
    a, b = torch.ones(8, 4, requires_grad=True), torch.ones(4, 8, requires_grad=True)
    gemm(a, b, tune=True).sum().backward()
    assert asked == [True] * 3
