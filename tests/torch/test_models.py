"""`python -m docs.evidence models`: what it measures, small and on a CPU."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.run import on_gpu  # noqa: E402
from docs.evidence import decoders, models  # noqa: E402


@pytest.mark.parametrize("has_transformers", [False, True])
def test_models(has_transformers, monkeypatch, tmp_path, capsys):
    if has_transformers:
        pytest.importorskip("transformers", reason="transformers is not installed")
    else:
        monkeypatch.setattr(decoders, "find_spec", lambda name: None)
    models.main(["--tiny", "--json", str(tmp_path / "models.json")])
    found = json.loads((tmp_path / "models.json").read_text())
    assert list(found["models"]) == ["llama", "gpt2", "qwen3_moe"][: 3 if has_transformers else 2]
    for of in found["models"].values():
        assert of["left"] == {}
        assert of["replaced"] >= 8
        assert ("decode" in of["errors"]["torch"]) is has_transformers
        for what, theirs in of["errors"]["torch"].items():
            assert 0 < of["errors"]["cutegemm"][what] <= 2 * theirs
        assert of["errors"]["cutegemm"]["output"] < 0.05
    assert "error of cutegemm" in capsys.readouterr().out


def test_every_pass_is_timed(monkeypatch, capsys):
    """The passes run once, small, on a CPU and without a compiler, as if each took a second."""
    pytest.importorskip("transformers", reason="transformers is not installed")

    def timed(calls, seconds):
        for call in calls:
            call()
        return [1.0] * len(calls)

    monkeypatch.setattr(models, "need_gpu", lambda: None)
    monkeypatch.setattr(models, "_machine", lambda is_tiny: {})
    monkeypatch.setattr(decoders, "SIZES", decoders.TINY)
    monkeypatch.setattr(torch, "compile", lambda model, **how: model)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(on_gpu, "alternating", timed)
    models.main(["--model", "qwen3_moe"])
    shown = capsys.readouterr().out
    size = decoders.TINY["qwen3_moe"]
    for kind, tokens in (("forward", size.tokens), ("training", size.tokens), ("prefill", size.tokens), ("decode", 16)):
        assert f"tokens/s, {kind}: torch {size.batch * tokens}, torch, compiled {size.batch * tokens}" in shown


def test_an_error_is_seen():
    exact = [torch.ones(4), torch.ones(4)]
    wrong = [torch.ones(4), torch.tensor([1.0, 1, 1, 3])]
    assert models.errors(wrong, exact) == {"output": 0.0, "gradients": 1.0, "worst_gradient": 1.0}
