"""The judgement of a library on models that it was not selected by."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.choice.models import MODELS
from cutegemm.compile.exported import key_of
from cutegemm.machine.device import DEFAULT_DEVICE
from docs.evidence import prebuilt
from docs.evidence.prebuilt import HELD_OUT, Built, predicted


def test_no_model_is_in_both_lists():
    """Models of both lists may share a width, but no model has the layers of another one."""
    assert not HELD_OUT.keys() & MODELS.keys()
    known = {frozenset(model.weights) for model in MODELS.values()}
    assert not [name for name, model in HELD_OUT.items() if frozenset(model.weights) in known]


def test_calls_that_are_served(monkeypatch):
    """The fastest plan of each call has no loss. Without a kernel, no call is served."""
    from cutegemm.torch.prebuilt import samples_of

    model = {"XLM-R large": HELD_OUT["XLM-R large"]}
    monkeypatch.setattr(prebuilt, "HELD_OUT", model)
    samples = samples_of(model.values(), "fp8", DEFAULT_DEVICE, prebuilt.rows_of(1))
    fastest = [next(sample.question.ranked()).recipe for sample in samples]
    plans = [(str(recipe), s.question.served(recipe).plan) for recipe, s in zip(fastest, samples, strict=True)]
    built = Built([(name, key_of(plan, DEFAULT_DEVICE.arch)) for name, plan in plans], DEFAULT_DEVICE.arch)
    *rows, every = predicted(built, ["fp8"], DEFAULT_DEVICE, 1)
    assert {row.kind for row in rows} >= {"forward", "data gradient"}
    assert (every.calls, every.served, every.loss) == (len(samples), 1.0, 0.0)
    *_, every = predicted(Built([], DEFAULT_DEVICE.arch), ["fp8"], DEFAULT_DEVICE, 1)
    assert (every.served, every.loss) == (0.0, 0.0)
