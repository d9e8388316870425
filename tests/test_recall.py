"""The first call in a new process whose kernels are recorded on the disk: its imports, and calls without a record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

import cutegemm  # noqa: E402

# The CPU stands for a Hopper GPU until the kernel is called, which refuses the tensors. The second call splits K.
CALLS = """
import json, sys
import torch
import cutegemm
from cutegemm.compile import cuda
from cutegemm.run import recall

recall._may_have_record = lambda key, a, how: not recall._depends_on_process(how)
cuda.device_name = lambda index: "Some"
cuda.devices = lambda: 1
torch.cuda.is_current_stream_capturing = lambda: False
cuda.current_stream = lambda index: 0
if sys.argv[1] == "first":
    from cutegemm.machine.device import DEFAULT_DEVICE
    from cutegemm.run import prepare, torch_ops
    prepare.wrong_devices = lambda given: []
    torch_ops.device_arch, torch_ops.device_of = lambda index: "sm_90a", lambda index: DEFAULT_DEVICE

def call(rows, **options):
    a, b = torch.zeros(rows, 16384).bfloat16(), torch.zeros(640, 16384).bfloat16().t()
    try:
        cutegemm.gemm(a, b, **options)
    except cutegemm.CutegemmError as error:
        return str(error).splitlines()[0]

said = [call(512), call(256)]
watched = "cutlass", "cutegemm.plan", "cutegemm.choice", "cutegemm.run.prepare"
heavy = [name for name in watched if name in sys.modules]
from cutegemm.run.calls import How
from cutegemm.run.gemm import _calls
found = []
for key in list(_calls.found):
    given = torch.zeros(1), How()
    found.append(recall.find(key, *given) is not None)
    found.append(recall.find((*key, "more"), *given) is not None)
    cuda.device_name = lambda index: "Other"
    found.append(recall.find(key, *given) is not None)
    cuda.device_name = lambda index: "Some"
print(json.dumps([said, heavy, found]))
"""


def run(cache: Path, how: str):
    package = str(Path(cutegemm.__file__).parents[1])
    env = {**os.environ, "CUTEGEMM_CACHE_DIR": str(cache), "PYTHONPATH": package}
    given = [sys.executable, "-c", CALLS, how]
    done = subprocess.run(given, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nothing_heavy_is_imported(tmp_path):
    """A recorded kernel is launched without importing plans and the DSL. Other signatures and devices have no record.

    The kernel refuses the tensors on the CPU with the same message as without a record.
    """
    cache = tmp_path / "cache"
    said, heavy, _ = run(cache, "first")
    assert "cutegemm.plan" in heavy
    assert all("by <CompiledKernel sm90_" in each for each in said), said
    assert any("/k" in each for each in said), said
    records = [json.loads(each.read_text()) for each in (cache / "calls").iterdir()]
    assert sorted(record["sizes"] is not None for record in records) == [False, True]
    assert run(cache, "again") == [said, [], [True, False, False] * 2]
    with (cache / records[0]["entry"] / "kernel.so").open("ab") as file:
        file.write(b"x")  # damages the cache entry
    again, heavy, _ = run(cache, "first")
    assert (again, "cutegemm.run.prepare" in heavy) == (said, True)


def test_a_name_of_ones_own_has_no_record(monkeypatch):
    """A plan that the user registered has no record, since its name may mean another plan in another process."""
    from types import SimpleNamespace

    from cutegemm.choice import names
    from cutegemm.run import recall
    from cutegemm.run.calls import How

    written = []
    monkeypatch.setattr(recall, "_may_have_record", lambda key, a, how: True)
    monkeypatch.setattr(recall, "_text", lambda key, a: "")
    monkeypatch.setattr(recall, "remember", lambda kind, text, record: written.append(record))
    monkeypatch.setattr(names, "_OWN", {})
    names.register_plan("own_of_recall", "simt:block=64x48x8,warp=32x24,thread=4x6,quad=4x2")
    kernel = SimpleNamespace(
        needs_workspace=False, folder=Path("entry"), library_key=None, plan=SimpleNamespace(has_c=False)
    )
    problem = SimpleNamespace(m=1, n=1, k=1, l=1)
    prepared = SimpleNamespace(kernel=kernel, problem=problem, views=[], shape=(1, 1), dtype=torch.float32)
    for plan, count in ((None, 1), ("simt_64x64", 2), ("own_of_recall", 2), ("swap_ab:own_of_recall", 2)):
        recall.keep((), None, How(plan=plan), prepared)
        assert len(written) == count, plan


def test_what_has_no_record():
    from cutegemm.run import recall, tune
    from cutegemm.run.calls import How

    class OnDevice:
        is_cuda = True

    key = (torch.Tensor, "fast", False)
    assert recall._may_have_record(key, OnDevice(), How())
    assert recall._may_have_record(key, OnDevice(), How(plan="sm90_128x128"))
    assert not recall._may_have_record(key, OnDevice(), How(plan=cutegemm.sm90_plan()))
    assert not recall._may_have_record(key, OnDevice(), How(tune=True))
    assert not recall._may_have_record((int, *key[1:]), OnDevice(), How())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "_used", ["a table"])
        assert not recall._may_have_record(key, OnDevice(), How())


def test_a_record_of_a_library(monkeypatch):
    """A record names the kernel by its key in the library. It is not found in a process with other libraries."""
    from types import SimpleNamespace

    from cutegemm.compile import cuda, exported
    from cutegemm.run import recall

    monkeypatch.setattr(cuda, "device_name", lambda index: "Some")
    without = recall._text("signature", torch.zeros(1))
    path = Path(__file__)
    kernel = exported.Exported("plan", False, "sm_90a", "a key", "symbol")
    library = exported.Kernels(path, (kernel,), "1"), SimpleNamespace(symbol="its function")
    monkeypatch.setattr(exported, "_LIBRARIES", [library])
    assert recall._text("signature", torch.zeros(1)) != without
    record = {"entry": None, "library_key": "a key", "kernel": "<CompiledKernel plan for sm_90a>"}
    assert recall._kernel(record) == ("its function", "<CompiledKernel plan for sm_90a>")
    assert recall._kernel({**record, "library_key": "another key"}) is None
