"""The layers of a model, and what a plan is chosen for in each: for `cutegemm.prepare`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from cutegemm.errors import UnsupportedError
from cutegemm.run.prepare import asking
from cutegemm.run.question import Question
from cutegemm.torch.known import is_conv1d
from cutegemm.torch.modules import JoinedWeights, Linear
from cutegemm.torch.replace import is_replaced


def questions_of(what: Any, rows: Sequence[int]) -> list[tuple[Question, Sequence[int]]]:
    """What is asked by the layers of modules, of inputs of that many rows.

    raises   UnsupportedError where there is no such layer, or one is not on a CUDA device
    """
    modules = [what] if isinstance(what, nn.Module) else list(what)
    layers = {
        id(layer): layer
        for module in modules
        for layer in module.modules()
        if isinstance(layer, (Linear, JoinedWeights)) or is_replaced(layer)
    }
    if not layers:
        raise UnsupportedError(
            "prepare: cutegemm computes no layer of these modules. Call cutegemm.use(model) first, which replaces them."
        )
    away = sorted({str(_weight(layer).device) for layer in layers.values() if not _weight(layer).is_cuda})
    if away:
        raise UnsupportedError(
            f"prepare: layers are on {', '.join(away)}; kernels are for tensors on a CUDA device. Call "
            "model.cuda() first."
        )
    found: dict[Any, Question] = {}
    with torch.no_grad(), asking() as asked:
        for layer in layers.values():
            weight = _weight(layer)
            layer(weight.new_empty(max(rows), _columns(layer, weight)))
        for question in asked:
            found.setdefault(question.but_rows, question)
    return [(question, rows) for question in found.values()]


def _weight(layer: Any) -> torch.Tensor:
    """The first of a layer, or of the layers inside of it."""
    parameters: Iterable[torch.Tensor] = layer.parameters()
    return next(each for each in parameters if each.dim() == 2)


def _columns(layer: Any, weight: torch.Tensor) -> int:
    """Of the layer's input: transformers' Conv1D keeps its weight as K x N."""
    is_k_by_n = any(is_conv1d(each) for each in layer.modules())
    return int(weight.shape[0] if is_k_by_n else weight.shape[1])
