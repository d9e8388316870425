"""What `cutegemm.backends()` says is here, and why the rest is not."""

from __future__ import annotations

import pytest

import cutegemm
from cutegemm.compile import backends


def test_what_is_missing_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    found = cutegemm.backends()
    assert not any(backend.available for backend in found.backends)
    assert found["CuTe DSL"].detail == (
        "nvidia-cutlass-dsl is not installed. Run pip install -e '.[kernels]' in a clone of cutegemm."
    )
    assert "torch, which finds GPUs, is not installed" in str(found)


@pytest.mark.parametrize(
    ("capability", "available", "text"),
    [((9, 0), True, "H, sm_90a"), ((7, 5), False, "capability 7.5; plans exist for 8.0")],
)
def test_gpus(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], available: bool, text: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert cutegemm.backends()["torch"].detail == f"torch {torch.__version__}"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H")
    gpu = cutegemm.backends()["GPU"]
    assert gpu.available == available
    assert text in gpu.detail


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "sees no CUDA device" in cutegemm.backends()["GPU"].detail
