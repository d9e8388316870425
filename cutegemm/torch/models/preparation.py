"""Plans for the layers of a model, chosen before the first call: for `cutegemm.prepare`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from cutegemm.errors import UnsupportedError
from cutegemm.run.prepare import asking
from cutegemm.run.question import Question
from cutegemm.torch.models.recognition import is_conv1d
from cutegemm.torch.models.replacement import is_replaced
from cutegemm.torch.modules import JoinedWeights, Linear


def questions_of(model: Any, rows: Sequence[int]) -> list[tuple[Question, Sequence[int]]]:
    """Return what is needed to choose the kernels for a model: one pair for each different kind of layer.

    The first entry of a pair, a `Question`, describes the GEMM of the layer: types, strides, extents and epilogue. The
    second entry is `rows`, the same for all layers: the numbers of rows that kernels are compiled for.

    model     a module, or several
    rows      numbers of rows that the inputs of layers may have
    returns   list of pairs (`Question`, `rows`)
    raises    UnsupportedError if cutegemm computes no layer of the model, or if a layer is not on a CUDA device
    """
    modules = [model] if isinstance(model, nn.Module) else list(model)
    layers = {
        id(layer): layer
        for module in modules
        for layer in module.modules()
        if isinstance(layer, (Linear, JoinedWeights)) or is_replaced(layer)
    }
    if not layers:
        raise UnsupportedError(
            "prepare: none of these modules has a layer that cutegemm computes. Call cutegemm.use(model) "
            "first, which replaces layers."
        )
    others = sorted({str(_weight(layer).device) for layer in layers.values() if not _weight(layer).is_cuda})
    if others:
        raise UnsupportedError(
            f"prepare: layers are on {', '.join(others)}, but kernels need a CUDA device. Call model.cuda() first."
        )
    with torch.no_grad(), asking() as asked:
        for layer in layers.values():
            weight = _weight(layer)
            # transformers' Conv1D keeps its weight as K x N
            is_k_by_n = any(is_conv1d(each) for each in layer.modules())
            layer(weight.new_empty(max(rows), weight.shape[0 if is_k_by_n else 1]))
    questions: dict[Any, Question] = {}
    for question in asked:
        questions.setdefault(question.but_rows, question)
    return [(question, rows) for question in questions.values()]


def _weight(layer: Any) -> torch.Tensor:
    """Return the weight of a layer or MLP: the first parameter of it or of its children that is a matrix."""
    return next(each for each in layer.parameters() if each.dim() == 2)
