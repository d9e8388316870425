"""The calls that a prebuilt library is made for are those that layers make."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cutegemm  # noqa: E402
from cutegemm.choice.models import Model  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.machine.device import DEFAULT_DEVICE  # noqa: E402
from cutegemm.run import fused, tune  # noqa: E402
from cutegemm.run.prepare import asking  # noqa: E402
from cutegemm.run.question import decide  # noqa: E402
from cutegemm.torch import prebuilt  # noqa: E402
from cutegemm.torch.models import replacement  # noqa: E402
from tests.noted import note_launches  # noqa: E402

MODELS = {
    "gated": Model(((512, 256), (256, 256)), up=0, activation="swiglu"),
    "plain": Model(((512, 256), (256, 512)), up=0, activation="gelu"),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_question_without_a_gpu_is_that_of_a_call(monkeypatch, model, dtype):
    """A call that is only asked, for tensors without a GPU, gets the plan that the same call launches on one."""
    launched = note_launches(monkeypatch, DEFAULT_DEVICE.sms)
    monkeypatch.setattr(fused, "wrong_devices", lambda given: [])
    monkeypatch.setattr(tune, "recipe", lambda *given: None)
    for kind in prebuilt.calls_of(MODELS[model], dtype):
        with torch.no_grad(), asking(DEFAULT_DEVICE) as asked:
            kind.call()
        (question,) = asked
        with torch.no_grad():
            kind.call()
        plans = [decide(question, varying_rows=varies).plan.key() for varies in (False, True)]
        assert launched[-1].plan.key() in plans, kind.name


def test_few_plans_have_little_loss(monkeypatch):
    samples = prebuilt.samples_of([MODELS["plain"]], "bf16", DEFAULT_DEVICE, lambda model, kind: range(64, 2048, 64))
    group = [sample for sample in samples if sample.kind == "weight gradient"]
    recipes, loss = prebuilt._Table(group).search()
    assert 1 <= len(recipes) <= len(group) // prebuilt.SAMPLES_PER_PLAN
    assert 0 <= loss < 0.05
    # The types of two bytes have the same recipes, which are searched for once.
    searched = []
    search = prebuilt._Table.search
    monkeypatch.setattr(prebuilt._Table, "search", lambda table: searched.append(table) or search(table))
    found = list(prebuilt.library_plans([MODELS["plain"]], ["bf16", "f16"], DEFAULT_DEVICE))
    half = len(searched)
    assert [one.dtype for one in found] == ["bf16"] * half + ["f16"] * half
    assert found[0].kinds == ("forward",)
    assert [one.recipes for one in found[:half]] == [one.recipes for one in found[half:]]
    assert {plan.operands.a.dtype.name for one in found[half:] for plan in one.plans} == {"f16"}


class TestUseWithRows:
    """`use(model, rows=...)` prepares the kernels, or leaves the model as it was."""

    def test_it_prepares(self, monkeypatch):
        prepared = []
        monkeypatch.setattr(replacement, "prepare", lambda model, **options: prepared.append((model, options)))
        model = torch.nn.Sequential(torch.nn.Linear(8, 8))
        cutegemm.use(model, rows=range(1, 65), processes=2, backward=True)
        assert prepared == [(model, {"rows": range(1, 65), "processes": 2, "backward": True})]

    def test_an_error_undoes_it(self):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8))
        with pytest.raises(UnsupportedError, match="layers are on cpu"):
            cutegemm.use(model, rows=range(1, 65))
        assert type(model[0]) is torch.nn.Linear
