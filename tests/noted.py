"""Stands for kernels and the GPU beneath them, where a test asks what is launched and not what it computes."""

from __future__ import annotations

from cutegemm.compile import cuda
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.run import gemm as launch
from cutegemm.run import prepare, torch_ops
from cutegemm.run.calls import Calls


class Noted:
    """Stands for a compiled kernel; notes what it is called with."""

    def __init__(self, plan, arch):
        self.plan, self.arch, self.calls = plan, arch, []

    def function(self, *arguments):
        self.calls.append(arguments)

    def for_problem(self, m, n, k, l):  # noqa: E741
        """What is called for a problem; where the plan needs a workspace, its kernel would get one here."""
        assert min(m, n, l) > 0 <= k
        return self.function


def note_launches(monkeypatch, multiprocessors):
    """The kernels that gemm takes from here on, as if the CPU were a Hopper GPU of so many multiprocessors."""
    kernels = []

    def take(plan, arch):
        assert arch == "sm_90a"
        assert plan.violations(arch) == []
        kernels.append(Noted(plan, arch))
        return kernels[-1]

    monkeypatch.setattr(launch, "_calls", Calls())
    monkeypatch.setattr(prepare, "compile_plan", take)
    monkeypatch.setattr(prepare, "wrong_devices", lambda given: [])
    monkeypatch.setattr(torch_ops, "device_arch", lambda index: "sm_90a")
    monkeypatch.setattr(torch_ops, "device_of", lambda index: DEFAULT_DEVICE.with_sms(multiprocessors))
    monkeypatch.setattr(cuda, "devices", lambda: 1)
    return kernels
