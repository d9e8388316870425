"""Replacements for compiled kernels and the GPU, for tests of what `gemm` launches."""

from __future__ import annotations

from cutegemm.compile import cuda
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan.signature import signature_of
from cutegemm.run import fused, prepare, torch_ops
from cutegemm.run import gemm as launch
from cutegemm.run.calls import Calls
from tests.signatures import mismatches


class Noted:
    """A replacement for a compiled kernel. It records its arguments, and asserts that the kernel accepts them."""

    def __init__(self, plan, arch):
        self.plan, self.arch, self.calls = plan, arch, []

    def function(self, *arguments):
        self.calls.append(arguments)
        assert mismatches(self.plan, arguments) == []

    def passed(self):
        """Return the arguments of the last call, by name."""
        names = [*[argument.name for argument in signature_of(self.plan)], *self.plan.epilogue.scalars]
        return dict(zip(names, self.calls[-1], strict=True))

    def for_problem(self, m, n, k, l):  # noqa: E741
        """Return the function to call for a problem. A real kernel would get its workspace here."""
        assert min(m, n, l) > 0 <= k
        return self.function


def note_launches(monkeypatch, multiprocessors):
    """Make `gemm` use `Noted` kernels, as if the CPU were a Hopper GPU, and return the list of these kernels.

    multiprocessors   number of SMs of that GPU
    """
    kernels = []

    def take(plan, arch):
        assert arch == "sm_90a"
        assert plan.violations(arch) == []
        kernels.append(Noted(plan, arch))
        return kernels[-1]

    for module in (launch, fused):
        monkeypatch.setattr(module, "_calls", Calls())
    for module in (prepare, fused):
        monkeypatch.setattr(module, "wrong_devices", lambda given: [])
    monkeypatch.setattr(prepare, "compile_plan", take)
    monkeypatch.setattr(torch_ops, "device_arch", lambda index: "sm_90a")
    monkeypatch.setattr(torch_ops, "device_of", lambda index: DEFAULT_DEVICE.with_sms(multiprocessors))
    monkeypatch.setattr(cuda, "devices", lambda: 1)
    return kernels
