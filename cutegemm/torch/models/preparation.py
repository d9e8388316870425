"""Plans for the layers of a model, and kernels of its experts, chosen before the first call: for `cutegemm.prepare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cutegemm.errors import UnsupportedError
from cutegemm.plan.memory.rows import RowKernel
from cutegemm.plan.plan import GemmPlan
from cutegemm.run.prepare import asking
from cutegemm.run.question import Question
from cutegemm.run.views import ALIGN_BYTES
from cutegemm.torch.grouped.mixture import compute_both_passes
from cutegemm.torch.grouped.preparation import sampled_rows
from cutegemm.torch.models.experts import (
    NAME,
    activation_of_experts,
    experts_forward,
    is_expert_parallel,
    is_experts,
    is_float8,
    parameters_of_experts,
)
from cutegemm.torch.models.recognition import is_conv1d
from cutegemm.torch.models.replacement import ReplacedExperts, is_replaced
from cutegemm.torch.modules import JoinedWeights, Linear


def questions_of(
    model: Any, rows: Sequence[int], backward: bool = False
) -> tuple[list[tuple[Question, Sequence[int]]], list[tuple[GemmPlan | RowKernel, str]]]:
    """Return what is needed to choose the kernels for a model: one pair for each different kind of layer.

    The first entry of a pair, a `Question`, describes the GEMM of the layer: types, strides, extents and epilogue. The
    second entry is `rows`, the same for all layers: the numbers of rows that kernels are compiled for.

    model      a module, or several
    rows       numbers of rows that the inputs of layers may have, and of tokens of experts
    backward   whether the kernels of experts for training are returned, too
    returns    list of pairs (`Question`, `rows`), and list of (kernel, architecture) of the experts
    raises     UnsupportedError if cutegemm computes no layer of the model, or if a layer is not on a CUDA device
    """
    modules = [model] if isinstance(model, nn.Module) else list(model)
    every = list({id(layer): layer for module in modules for layer in module.modules()}.values())
    layers = [layer for layer in every if isinstance(layer, (Linear, JoinedWeights)) or is_replaced(layer)]
    mixtures = [layer for layer in every if is_computed(layer)]
    if not layers and not mixtures:
        raise UnsupportedError(
            "prepare: none of these modules has a layer that cutegemm computes. Call cutegemm.use(model) "
            "first, which replaces layers."
        )
    others = sorted({str(_weight(layer).device) for layer in (*layers, *mixtures) if not _weight(layer).is_cuda})
    if others:
        raise UnsupportedError(
            f"prepare: layers are on {', '.join(others)}, but kernels need a CUDA device. Call model.cuda() first."
        )
    kernels: list[tuple[GemmPlan | RowKernel, str]] = []
    with torch.no_grad(), asking(kernels=kernels) as asked:
        for layer in layers:
            weight = _weight(layer)
            # transformers' Conv1D keeps its weight as K x N
            is_k_by_n = any(is_conv1d(each) for each in layer.modules())
            layer(weight.new_empty(max(rows), weight.shape[0 if is_k_by_n else 1]))
        parents = {id(child): module for module in every for child in module.children()}
        ask_experts([(layer, parents.get(id(layer))) for layer in mixtures], rows, backward)
    questions: dict[Any, Question] = {}
    for question in asked:
        questions.setdefault(question.but_rows, question)
    return [(question, rows) for question in questions.values()], kernels


def is_computed(module: Any) -> bool:
    """Return whether a module holds experts that cutegemm computes, after `use` or by their implementation's name."""
    if isinstance(module, ReplacedExperts):
        return True
    if not is_experts(module) or is_float8(module):  # kernels of float8 experts are compiled at their first call
        return False
    return getattr(module.config, "_experts_implementation", None) == NAME


def _weight(layer: Any) -> torch.Tensor:
    """Return the weight of a layer, MLP or mixture: the first parameter of it or of its children that is a matrix.

    The weights of the experts of a mixture are one parameter.
    """
    return next(each for each in layer.parameters() if each.dim() in (2, 3))


# --- experts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Router:
    """What a router passes to its experts.

    k         number of experts of each token
    index     type of the index
    weights   type of the weights
    """

    k: int
    index: torch.dtype
    weights: torch.dtype


class _Routed(Exception):
    """Ends the forward of the parent of experts when it calls them. `router` says what it passes."""

    def __init__(self, router: Router) -> None:
        self.router = router


def router_of(module: Any, parent: Any) -> Router:
    """Return what a router passes to experts, as the forward of their parent does for one token.

    The parent is called with one argument, (batch, tokens, K). If that fails, or if there is no parent, k comes from
    the module's configuration, and the weights have the type of the experts.
    """
    up = parameters_of_experts(module)[0]

    def ended(module: Any, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> None:
        _, index, weights = [*args, *kwargs.values()]
        raise _Routed(Router(index.shape[-1], index.dtype, weights.dtype))

    handle = module.register_forward_pre_hook(ended, with_kwargs=True)
    try:
        if parent is not None:
            parent(up.new_zeros(1, 1, up.shape[2]))
    except _Routed as routed:
        return routed.router
    except (TypeError, ValueError, RuntimeError):
        pass
    finally:
        handle.remove()
    return Router(module.config.num_experts_per_tok, torch.int64, up.dtype)


def ask_experts(mixtures: Sequence[tuple[Any, Any]], rows: Sequence[int], backward: bool) -> None:
    """Call each different kind of experts for numbers of tokens that have all kernels, for `prepare.asking`.

    mixtures   (experts, their parent or None)
    rows       numbers of tokens
    backward   whether both passes are computed for training, too. Experts with an activation that no kernel has are
               called for the forward pass only
    """
    done = set()
    for module, parent in mixtures:
        router, parameters = router_of(module, parent), parameters_of_experts(module)
        activation, interleaved = activation_of_experts(module)
        key = (
            router,
            activation,
            interleaved,
            is_expert_parallel(module),
            *[
                None if x is None else (x.dtype, x.shape, x.stride(), x.data_ptr() % ALIGN_BYTES, x.requires_grad)
                for x in parameters
            ],
        )
        if key in done:
            continue
        done.add(key)
        up = parameters[0]
        for tokens in sampled_rows(rows, router.k, up.shape[0]):
            x = up.new_empty(tokens, up.shape[2])
            index = torch.zeros(tokens, router.k, dtype=router.index, device=up.device)
            weights = up.new_empty(tokens, router.k, dtype=router.weights)
            experts_forward(module, x, index, weights)
            if backward and not callable(activation):
                inputs = x, index, weights, *parameters
                compute_both_passes(activation, interleaved, is_expert_parallel(module), inputs)
