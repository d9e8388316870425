"""Clocks, power and peers of the benchmark: what is read, what is refused, what a row then holds."""

from __future__ import annotations

import sys
import textwrap
import time

import pytest

from cutegemm.errors import UnsupportedError
from cutegemm.plan import Operands, Problem
from docs.evidence import power
from docs.evidence.power import Nvml, Sample, Watch, with_rate_per_cycle


class FakeNvml:
    """Functions of NVML with one GPU, "GPU-1": 1545 MHz, 678 W, held down by its power cap."""

    def __init__(self, instant: bool = True) -> None:
        self.instant = instant

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, device):
        return 0 if uuid == b"GPU-1" else 6

    def nvmlDeviceGetClockInfo(self, device, kind, out):
        assert kind == 1  # clock of the multiprocessors: nvml.h, NVML_CLOCK_SM
        out._obj.value = 1545
        return 0

    def nvmlDeviceGetMaxClockInfo(self, device, kind, out):
        out._obj.value = 1980
        return 0

    def nvmlDeviceGetEnforcedPowerLimit(self, device, out):
        out._obj.value = 700_000
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device, out):
        out._obj.value = 0x4
        return 0

    def nvmlDeviceGetFieldValues(self, device, count, field):
        assert (count, field._obj.field) == (1, 186)  # NVML_FI_DEV_POWER_INSTANT
        field._obj.value, field._obj.status = 678_000, 0 if self.instant else 3
        return 0

    def nvmlDeviceGetPowerUsage(self, device, out):
        out._obj.value = 655_000
        return 0


def test_a_sample_holds_clock_power_and_reasons():
    sensors = Nvml("GPU-1", FakeNvml())
    assert sensors.sample() == Sample(1545, 678.0, 0x4)
    assert sensors.limits() == {"max_clock_mhz": 1980, "power_limit_w": 700.0}
    assert Nvml("GPU-1", FakeNvml(instant=False)).sample().power_w == 655.0


def test_a_field_is_as_the_header_has_it():
    """nvmlFieldValue_t: two unsigned, two long long, two enumerations, a union of 8 bytes: 40."""
    import ctypes

    field = power._Field
    assert (ctypes.sizeof(field), field.status.offset, field.value.offset) == (40, 28, 32)


def test_what_nvml_refuses_is_told():
    with pytest.raises(UnsupportedError, match="nvmlDeviceGetHandleByUUID of NVML ended with status 6"):
        Nvml("GPU-2", FakeNvml())


def test_a_watch_samples_while_it_lasts():
    with Watch(Nvml("GPU-1", FakeNvml()), period_seconds=0.001) as watch:
        time.sleep(0.05)
    seen = len(watch.samples)
    assert seen >= 3
    time.sleep(0.01)
    assert len(watch.samples) == seen
    assert power.summary(watch.samples)["throttle"] == {"power cap": 1.0}
    assert power.summary([]) == {"samples": 0}


def test_the_share_at_a_clock_is_free_of_the_clock():
    base = with_rate_per_cycle({"tflops": 640.0, "clock_mhz": 1755})
    assert base["flop_per_cycle"] == round(640e12 / 1755e6)
    for clock in (1300, 1980):
        found = with_rate_per_cycle({"tflops": 0.9 * 640 * clock / 1755, "clock_mhz": clock}, base)
        assert found["share_at_clock"] == pytest.approx(0.9, abs=1e-4)
    assert with_rate_per_cycle({"tflops": 1.0, "samples": 0}, base) == {"tflops": 1.0, "samples": 0}


@pytest.mark.parametrize(("out", "known"), [("int32", True), ("float32", False)])
def test_a_plan_is_timed_alone_where_torch_multiplies_no_such_types(monkeypatch, out, known):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from cutegemm.choice.catalog import plan_named
    from cutegemm.run import on_gpu

    monkeypatch.setattr(on_gpu, "need_gpu", lambda: None)
    monkeypatch.setattr(on_gpu, "alternating", lambda calls, seconds: [1e-3, 2e-3][: len(calls)])
    of = Operands.of("s8", layout="nt", out={"int32": "s32", "float32": "f32"}[out])
    a, b = torch.zeros((64, 32), dtype=torch.int8), torch.zeros((64, 32), dtype=torch.int8).t()
    tensors = {"a": a, "b": b, "out": torch.zeros((64, 64), dtype=getattr(torch, out))}
    found = on_gpu.time_plan(plan_named("sm90_epi_stages", of), tensors, Problem(64, 64, 32, operands=of))
    assert found.pop("us") == 1000.0
    assert found.pop("tflops") == pytest.approx(2 * 64 * 64 * 32 * 1e3 * 1e-12)
    theirs = {"cublas_tflops": pytest.approx(64 * 64 * 32 * 1e3 * 1e-12), "ratio": 2.0}
    assert found == (theirs if known else {})


def problem(kind="bf16", layout="nn"):
    return Problem(512, 128, 256, operands=Operands.of(kind, layout=layout))


def test_a_peer_that_is_not_there_is_refused(tmp_path):
    from docs.evidence import peer

    with pytest.raises(UnsupportedError, match="the file does not exist"):
        peer.call_of(str(tmp_path / "none.py"), problem(), None, None, None)
    (tmp_path / "other.py").write_text("x = 1\n")
    with pytest.raises(UnsupportedError, match="it has no class TensorOpGemm"):
        peer.call_of(str(tmp_path / "other.py"), problem(), None, None, None)
    (tmp_path / "wrong.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(UnsupportedError, match="cannot be imported: ModuleNotFoundError"):
        peer.call_of(str(tmp_path / "wrong.py"), problem(), None, None, None)
    with pytest.raises(UnsupportedError, match="bf16 or f16, not f32"):
        peer.call_of(str(tmp_path / "other.py"), problem("f32"), None, None, None)


def test_a_peer_that_cannot_be_imported_is_refused(monkeypatch):
    from types import ModuleType

    from docs.evidence import peer

    class Broken(ModuleType):
        def __getattr__(self, name):
            raise RuntimeError("made for another library")

    monkeypatch.setitem(sys.modules, "quack", ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", Broken("quack.gemm_interface"))
    with pytest.raises(UnsupportedError, match=r"cannot be imported: .*made for another library"):
        peer.call_of("quack", problem(), None, None, None)


_PEER = """
    import cutlass.cute as cute

    SEEN = []

    class TensorOpGemm:
        def __init__(self, ab, c, acc, atoms):
            SEEN.append((ab.__name__, c.__name__, acc.__name__, atoms))

        @cute.jit
        def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream):
            SEEN.extend((x.shape, x.stride) for x in (a, b, c))
            self.kernel(a, c).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

        @cute.kernel
        def kernel(self, a: cute.Tensor, c: cute.Tensor):
            c[0, 0, 0] = a[0, 0, 0]
"""


def test_a_peer_sees_the_problem_as_cute_has_it(tmp_path):
    """A is (M, K, L), B is (N, K, L), C is (M, N, L); rows of A, and of the stored B^T, are contiguous."""
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    from docs.evidence import peer
    from docs.evidence.kernels.peer import compile_tensorop

    path = tmp_path / "example.py"
    path.write_text(textwrap.dedent(_PEER))
    assert callable(compile_tensorop(peer.load(path), problem(layout="nt")))
    types, *tensors = sys.modules["peer_example"].SEEN
    assert types == ("BFloat16", "BFloat16", "Float32", (2, 2, 1))
    assert tensors == [
        ((512, 256, 1), (256, 1, 0)), ((128, 256, 1), (256, 1, 0)), ((512, 128, 1), (128, 1, 0)),
    ]  # fmt: skip


def test_the_ceiling_is_mma_sync_and_nothing_else(tmp_path):
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    from cutegemm.compile.cubin import disassemble, instructions
    from cutegemm.dtypes import bf16, tf32
    from docs.evidence.kernels.ceiling import RegisterLoop, compile_loop

    for kind in (bf16, tf32):
        folder = tmp_path / kind.name
        folder.mkdir()
        loop = RegisterLoop(kind, 8)
        compile_loop(loop, f"--keep-cubin --dump-dir {folder}")
        (cubin,) = folder.glob("*.cubin")
        found = instructions(disassemble(cubin))
        products = sum(n for name, n in found.items() if name.startswith("HMMA"))
        # 4 x 8 atoms of 16 x 8 in a tile of 64 x 64, twice: 64; each is 2 * 16 * 8 * k operations.
        assert products == 64
        assert loop.flops == 8 * 64 * 2 * 16 * 8 * 256 // kind.bits
        assert not [name for name in found if name.startswith(("LDS", "LDL", "STL", "BAR"))]
