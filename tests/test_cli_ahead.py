"""`cutegemm tune`, `prepare` and `export`: their input files, results and errors."""

from __future__ import annotations

import importlib.util
import inspect
import sys

import pytest
from typer.testing import CliRunner

from cutegemm.cli import app
from cutegemm.cli.ahead import read_shapes
from cutegemm.compile.exported import Kernels
from cutegemm.errors import UnsupportedError
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan import Operands
from cutegemm.run import ahead, tune

TEXT = """m, n, k, dtype, layout, out, l
64, 512, 512, , , ,
32, 512, 256, f32, nn, , 3
1-8192, 512, 512, e4m3, , bf16,
"""


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text(TEXT)
    return path


def test_shapes_are_read(shapes):
    one, batch, layer = read_shapes(shapes)
    assert [line.shape for line in (one, batch)] == [(64, 512, 512), (32, 512, 256, 3)]
    assert (str(one.operands.a), batch.operands.layout) == ("bf16 k-major, 16-byte aligned", "nn")
    assert (str(batch.operands.a.dtype), batch.operands.batched) == ("f32", True)
    assert (layer.rows, layer.columns, layer.is_layer) == (range(1, 8193), (512, 512), True)
    assert [str(x.dtype) for x in (layer.operands.a, layer.operands.d)] == ["e4m3", "bf16"]


def test_a_byte_order_mark_is_no_part_of_a_column(tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("m,n,k\n1,2,3\n", encoding="utf-8-sig")
    assert [line.columns for line in read_shapes(path)] == [(2, 3)]


def test_as_many_plans_are_timed_as_where_a_call_asks_for_it(monkeypatch):
    """The command times as many plans as `gemm(tune=True)`: both read the number from `tune.BEST`."""
    monkeypatch.setattr(tune, "BEST", tune.BEST + 1)
    spec = importlib.util.find_spec("cutegemm.cli.ahead")
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert inspect.signature(again.tune).parameters["best"].default == tune.BEST


def test_many_rows_are_not_looked_at_one_by_one(compiled):
    """Plans for 2^30 numbers of rows are chosen in seconds, from a few numbers in each octave."""
    found = ahead.plans_of([(64, 64)], range(1, 1 << 30), Operands.of("bf16", layout="nt"), DEFAULT_DEVICE)
    assert found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m,n\n1,2\n", "the column 'k' is missing"),
        ("m,n,k,x\n1,2,3,4\n", "unknown column 'x'. The columns are m, n, k, l, dtype, layout, out"),
        ("m,n,k\n", "it has no lines after its header"),
        ("", "the column 'm' is missing"),
        (
            "m,n,k\n1,2,x\n1,2,3\n0,2,3\n",
            "(?s)line 2: invalid literal .*line 4: every extent must be at least 1",
        ),
        ("m,n,k,dtype\n1,2,3,f17\n", "line 2: .*f17"),
        ("m,n,k\n64,64,64,f16\n", "line 2: it has 4 fields for the 3 columns m, n, k"),
        ("m,n,k,m\n1,2,3,4\n", "the column 'm' is named twice"),
        ("m,n,k\n1,2\n", "line 2"),
        ("m,n,k,l\n1-2,2,3,4\n", "line 2: m is a range and l is given"),
        ("m,n,k\n1-2,2,3\n", "line 2: m is the range 1-2. Give one number"),
    ],
)
def test_what_does_not_read(tmp_path, text, words):
    path = tmp_path / "shapes.csv"
    path.write_text(text)
    with pytest.raises(UnsupportedError, match=words):
        read_shapes(path, ranges="1-2,2,3\n" not in text)
    with pytest.raises(UnsupportedError, match="No such file"):
        read_shapes(tmp_path / "none.csv")


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    found = []
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "cache"))

    def compile_plans(plans, arch, processes, done):
        found.extend([(plan.name, arch) for plan in plans])
        return [None] * len(plans)

    monkeypatch.setattr(ahead, "compile_plans", compile_plans)
    return found


def test_prepare(compiled, shapes):
    done = CliRunner().invoke(app, ["prepare", str(shapes), "--device", "h100"])
    assert done.exit_code == 0, done.output
    assert 3 <= len(compiled) <= 8
    assert {arch for _, arch in compiled} == {"sm_90a"}
    assert f"{len(compiled)} kernels: {len(compiled)} compiled in" in done.output


def test_export(monkeypatch, shapes, tmp_path):
    written = []

    def export(plans, path, arch, processes, done):
        written.append(([(plan.name, plan.swap_ab) for plan in plans], path, arch))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
        return Kernels(path, (), "1")

    monkeypatch.setattr("cutegemm.compile.export.export", export)
    out = tmp_path / "kernels.so"
    shapes.write_text("m,n,k\n2048,512,512\n")
    given = ["export", "sm90_64x64", "simt_64x64", "swap_ab:sm90_64x64", str(shapes), "-o", str(out)]
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    assert done.exit_code == 0
    (((*named, last), path, arch),) = written
    # The plans are those that gemm launches. Plans for D^T take the tensors of the caller.
    assert named == [("sm90_64x64", False), ("simt_64x64", False), ("sm90_64x64", True)]
    assert (path, arch) == (out, "sm_90a")
    assert last[0].startswith("sm90_")


def test_export_of_models(monkeypatch, tmp_path):
    """The kernels of a model's layers are written to kernels.so in the folder, each once."""
    pytest.importorskip("torch", reason="torch is not installed")
    from cutegemm.choice.models import MODELS
    from cutegemm.cli import ahead as command
    from cutegemm.torch import prebuilt as library

    written = []

    def export(plans, path, arch, processes, done):
        written.append((list(plans), path, arch))
        path.parent.mkdir()
        path.write_bytes(b"")
        return Kernels(path, (), "1")

    monkeypatch.setattr("cutegemm.compile.export.export", export)
    monkeypatch.setattr(command, "MODELS", {"ViT-L/16": MODELS["ViT-L/16"]})
    monkeypatch.setattr(library, "sampled_rows", lambda model, kind: [197])
    given = ["export", "--models", "--dtype", "bf16", "--device", "h100", "-o", str(tmp_path / "library")]
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    ((plans, path, arch),) = written
    assert (path, arch) == (tmp_path / "library" / "kernels.so", "sm_90a")
    assert len(plans) == len({plan.key() for plan in plans}) > 10
    assert {str(plan.epilogue) for plan in plans} >= {"alpha * acc", "acc + bias"}
    assert "bf16 weight gradient: " in done.output


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "pass plan names or shapes files, or else --models"),
        (["sm90_64x64", "--models"], "pass plan names or shapes files, or else --models"),
        (["--models", "--dtype", "f32"], "dtype = 'f32' is unknown. Use one of bf16, f16, fp8"),
        (["--models", "--device", "a100-80gb"], "a100-80gb has the architecture sm_80. Pass --device with a Hopper"),
    ],
)
def test_what_export_refuses(tmp_path, given, words):
    if "--dtype" in given:
        pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(UnsupportedError, match=words):
        CliRunner().invoke(app, ["export", "-o", str(tmp_path / "k.so"), *given], catch_exceptions=False)


def test_export_of_models_says_that_torch_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cutegemm.torch.prebuilt", None)
    with pytest.raises(UnsupportedError, match=r"described by torch, but .* is not installed. Run pip install"):
        CliRunner().invoke(app, ["export", "-o", str(tmp_path), "--models"], catch_exceptions=False)


def test_tune_says_that_torch_is_missing(shapes, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "cutegemm.run.on_gpu", raising=False)
    shapes.write_text("m,n,k\n64,64,64\n")
    with pytest.raises(UnsupportedError, match=r"torch is not installed. Run pip install -e '\.\[kernels,torch\]'"):
        CliRunner().invoke(app, ["tune", str(shapes)], catch_exceptions=False)


def test_tune_asks_for_a_gpu(shapes):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    shapes.write_text("m,n,k\n2048,512,512\n")
    with pytest.raises(UnsupportedError, match="need a CUDA device"):
        CliRunner().invoke(app, ["tune", str(shapes)], catch_exceptions=False)
