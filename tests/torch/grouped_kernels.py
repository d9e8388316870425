"""Kernels of grouped GEMMs on tensors of the CPU: simulated plans, or emulated compiled kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from cutegemm.machine.device import device_named
from cutegemm.plan.memory.groups import operand_of_sizes
from cutegemm.torch.grouped import launch


def run_by(execute, monkeypatch):
    """Let `launch.compute_grouped` run its kernels by `simulate` or `emulate`. Returns the list of plans that ran."""
    plans = []

    def compile_plan(plan, arch):
        outputs = ("d", *plan.epilogue.beside)
        names = (*plan.operands.of_mainloop, *plan.epilogue.tensors, *outputs, *plan.epilogue.scalars)

        def function(a, b, *others):
            given = dict(zip(names, others, strict=True))
            assert not any(x.is_neg() for x in (a, b, *others) if isinstance(x, torch.Tensor))  # kernels read memory
            assert given[operand_of_sizes(plan.operands)].is_contiguous()  # as the kernel is compiled
            read = {name: _operand(plan, name, x) for name, x in given.items() if name not in outputs}
            found = execute(plan, _array(a), _array(b), **read)
            for name, array in {"d": found.d, **found.aux}.items():
                values = torch.from_numpy(np.asarray(array, np.float32))
                if plan.operands.scattered:  # the simulated D has as many rows as are added
                    assert not values[len(given["d"]) :].any()
                    values = values[: len(given["d"])]
                given[name].copy_(torch.where(values.isnan(), given[name].float(), values))

        plans.append(plan)
        return SimpleNamespace(function=function)

    monkeypatch.setattr(launch, "_calls", type(launch._calls)())
    monkeypatch.setattr(launch, "compile_plan", compile_plan)
    monkeypatch.setattr(launch, "on_device", lambda function: function)
    monkeypatch.setattr(launch.torch_ops, "device_arch", lambda index: "sm_90a")
    monkeypatch.setattr(launch.torch_ops, "device_of", lambda index: device_named("h100"))
    return plans


def _array(x):
    return x.float().numpy() if x.dtype.is_floating_point else x.numpy()


def _operand(plan, name, x):
    """An operand in the shape that the caller of `grouped_mm` has: a row is (L, 1, N), a column (M, 1) or (L, M, 1)."""
    if not isinstance(x, torch.Tensor) or name == operand_of_sizes(plan.operands):
        return _array(x) if isinstance(x, torch.Tensor) else x
    broadcast = plan.operands.matrix(name).broadcast
    rows, columns = ("n", "m") if plan.swap_ab else ("m", "n")
    if broadcast == (rows,):
        return _array(x)[..., None, :]
    return _array(x)[..., None] if broadcast == (columns,) else _array(x)
