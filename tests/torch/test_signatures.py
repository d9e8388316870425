"""Functions that take the arguments of a function of torch have its places, names and defaults.

Each difference is listed here with a reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import cutegemm  # noqa: E402

FACTORS = "the factors of all products have one pair of names here, that of `gemm`"
LAYER = "x and w are the names of `gemm`'s documentation, of `gemm_gated` and of `mlp`"


@dataclass
class Claim:
    """A function of ours that takes the arguments of one of torch.

    theirs    a function or class with a Python signature, or the name of an operator of aten with all its overloads
    renamed   our name for one of their arguments, and the reason
    more      an argument of ours alone, and the reason
    """

    ours: Callable[..., Any]
    theirs: Any
    renamed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    more: Mapping[str, str] = field(default_factory=dict)


ACTIVATION = {"activation": "what `linear` adds: an activation in the kernel of the product"}
OF_LINEAR = {**ACTIVATION, "batch_invariant": "torch has no such mode for a single call"}
OF_SCALED_MM = {"quantize": "values and scales of a block-scaled result, which torch makes by further kernels"}
OF_GROUPS = {
    "a_index": "rows of a in any order, without a copy",
    "counts": "groups that are padded to matrices of one size, which torch has no product of",
    **dict.fromkeys(("epilogue", "plan", "operands"), "an epilogue of each group, as `gemm` has it"),
}
CLAIMS = {
    "mm": Claim(cutegemm.mm, "mm", {"self": ("a", FACTORS), "mat2": ("b", FACTORS)}),
    "bmm": Claim(cutegemm.bmm, "bmm", {"self": ("a", FACTORS), "mat2": ("b", FACTORS)}),
    "addmm": Claim(cutegemm.addmm, "addmm", {"self": ("input", "the name that torch.addmm gives to self")}),
    "linear": Claim(cutegemm.linear, "linear", {"input": ("x", LAYER), "weight": ("w", LAYER)}, more=OF_LINEAR),
    "scaled_mm": Claim(cutegemm.scaled_mm, getattr(F, "scaled_mm", None), more=OF_SCALED_MM),
    "scaled_grouped_mm": Claim(cutegemm.scaled_grouped_mm, getattr(F, "scaled_grouped_mm", None)),
    "grouped_mm": Claim(cutegemm.grouped_mm, getattr(F, "grouped_mm", None), more=OF_GROUPS),
    "Linear": Claim(cutegemm.Linear, nn.Linear, more=ACTIVATION),
    "Linear.forward": Claim(cutegemm.Linear.forward, nn.Linear.forward),
}  # fmt: skip
# Overloads that are not served, and why.
LEFT = {"linear.out": "torch.nn.functional.linear has no argument out, as the operator has"}


def signatures(theirs: Any) -> Iterator[tuple[str, list[Parameter]]]:
    """The parameters of each overload, by its name."""
    if not isinstance(theirs, str):
        yield theirs.__name__, list(inspect.signature(theirs).parameters.values())
        return
    operator = getattr(torch.ops.aten, theirs)
    for overload in operator.overloads():
        name = f"{theirs}.{overload}"
        if name in LEFT:
            continue
        yield (
            name,
            [
                Parameter(
                    each.name,
                    Parameter.KEYWORD_ONLY if each.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD,
                    default=each.default_value if each.has_default_value() else Parameter.empty,
                )
                for each in getattr(operator, overload)._schema.arguments
            ],
        )


@pytest.mark.parametrize("name", CLAIMS)
def test_our_arguments_are_theirs(name):
    claim = CLAIMS[name]
    if claim.theirs is None:
        pytest.skip(f"torch {torch.__version__} has no {name}")
    ours = dict(inspect.signature(claim.ours).parameters)
    own = list(ours)
    taken = set()
    for overload, parameters in signatures(claim.theirs):
        for place, theirs in enumerate(parameters):
            called = claim.renamed.get(theirs.name, (theirs.name,))[0]
            assert called in ours, (overload, theirs.name)
            taken.add(called)
            if theirs.kind is Parameter.KEYWORD_ONLY:
                assert ours[called].kind is not Parameter.POSITIONAL_ONLY, (overload, called)
            else:
                assert (own.index(called), ours[called].kind) == (place, theirs.kind), (overload, called)
            if theirs.default is not Parameter.empty:
                assert ours[called].default == theirs.default, (overload, called)
    assert set(own) - taken == set(claim.more), "arguments of ours alone, without a reason"
    more = [ours[each] for each in claim.more]
    needed = [each.name for each in more if each.default is Parameter.empty and each.kind is not Parameter.VAR_KEYWORD]
    assert not needed, f"{needed} have no default"


def test_calls_by_place_and_by_name():
    a, b, c = torch.ones(2, 3).bfloat16(), torch.ones(3, 4).bfloat16(), torch.ones(4).bfloat16()
    for wide in (cutegemm.mm(a, b, torch.float32), cutegemm.addmm(c, a, b, torch.float32, beta=2, alpha=1)):
        assert wide.dtype == torch.float32
    assert cutegemm.bmm(a[None], b[None], torch.float32).dtype == torch.float32
    layer = cutegemm.Linear(3, 4, True, "cpu", torch.bfloat16)
    assert torch.equal(layer(input=a), layer(a))
    with pytest.raises(TypeError):
        cutegemm.Linear(3, 4, True, "cpu", torch.bfloat16, "gelu")


def test_every_function_that_names_one_of_torch_is_compared():
    """A function claims to be one of torch if the first line of its documentation says "as torch."."""
    claimed = {
        name
        for name in dir(cutegemm)
        if getattr(getattr(cutegemm, name), "__module__", "").startswith("cutegemm.torch")
        and ", as torch." in (getattr(cutegemm, name).__doc__ or "").split("\n")[0]
    }
    assert claimed >= {"mm", "bmm", "addmm", "linear", "scaled_mm"}
    assert claimed <= set(CLAIMS)
