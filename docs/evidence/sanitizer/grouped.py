"""Grouped GEMMs and experts, as cases for compute-sanitizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

_ENDS = (0, 67, 67, 198, 199)  # an empty group first and one in the middle, primes, and a group of one row
_ROWS, _N, _K = 208, 264, 328  # the rows after the last end belong to no group, and are not written
_TOKENS, _CHOSEN = 37, 2


@dataclass(frozen=True)
class GroupedCase:
    """A call that launches kernels of groups. Its plans are those that the call chooses.

    name     name of the case
    making   function, without arguments, that makes the operands on the GPU and returns the call
    """

    name: str
    making: Callable[[], Callable[[], Any]]
    launches: int = 1
    metrics: tuple[str, ...] = ()

    def prepared(self, arch: str, beta: float) -> Callable[[], None]:
        """Return the call, after one that compiles its kernels.

        arch, beta   not read: the call compiles for the current GPU, and has no C
        """
        import torch

        call = self.making()
        call()
        torch.cuda.synchronize()
        return call


def grouped_cases() -> list[GroupedCase]:
    """Return a case for each mode that groups divide, for scales, for pairs of columns and for experts.

    >>> [case.name for case in grouped_cases()][:3]
    ['grouped_m', 'grouped_n', 'grouped_k']
    """
    making: dict[str, Callable[[], Callable[[], Any]]] = {
        "m": partial(_groups, "m"), "n": partial(_groups, "n"), "k": partial(_groups, "k"), "counts": _counts,
        "odd": partial(_groups, "m", _N + 5), "index": _index, "gated": _gated,
        "block_scaled": _block_scaled, "experts": _experts,
        "experts_added": partial(_experts, deterministic=False),
    }  # fmt: skip
    return [GroupedCase(f"grouped_{name}", function) for name, function in making.items()]


def _normal(*shape: int) -> Any:
    import torch

    return torch.randn(shape, device="cuda").bfloat16()


def _ends() -> Any:
    import torch

    return torch.tensor(_ENDS, device="cuda", dtype=torch.int32)


def _groups(mode: str, n: int = _N) -> Callable[[], Any]:
    """Return the call for groups that divide M, N or K; its D has `n` columns, or K groups of them."""
    from cutegemm import grouped_mm

    aligned = mode != "n" and n % 8 == 0  # else torch copies all of D, which then must be written as a whole
    rows = _ROWS if aligned else _ENDS[-1]
    a, b = {
        "m": lambda: (_normal(rows, _K), _normal(len(_ENDS), n, _K).mT),
        "n": lambda: (_normal(len(_ENDS), n, _K), _normal(rows, _K).mT),
        "k": lambda: (_normal(rows, n).mT, _normal(rows, _K)),
    }[mode]()
    return partial(grouped_mm, a, b, offs=_ends())


def _counts() -> Callable[[], Any]:
    """Return the call for matrices with a number of valid rows each."""
    import torch

    from cutegemm import grouped_mm

    counts = torch.tensor([0, 67, 131, 1, 200], device="cuda", dtype=torch.int32)
    return partial(grouped_mm, _normal(5, _ROWS, _K), _normal(5, _N, _K).mT, counts=counts)


def _index() -> Callable[[], Any]:
    """Return the call for rows that an index selects; some are out of range."""
    import torch

    from cutegemm import grouped_mm

    index = torch.randint(-1, 100, (_ROWS,), device="cuda", dtype=torch.int32)
    return partial(grouped_mm, _normal(99, _K), _normal(len(_ENDS), _N, _K).mT, offs=_ends(), a_index=index)


def _gated() -> Callable[[], Any]:
    """Return the call whose epilogue multiplies pairs of columns and reads a bias of each group."""
    from cutegemm import grouped_mm
    from cutegemm.epilogue import swiglu

    a, b = _normal(_ROWS, _K), _normal(len(_ENDS), 2 * _N, _K).mT
    return partial(grouped_mm, a, b, offs=_ends(), epilogue=lambda acc: swiglu(acc))


def _block_scaled() -> Callable[[], Any]:
    """Return the call for float8 with a scale for 128 elements of a row of A, and for 128 x 128 of the weights."""
    import torch

    from cutegemm.torch import quantize, scaled_grouped_mm

    a, of_a = quantize(_normal(_ROWS, 384), (1, 128))
    pairs = [quantize(each, (128, 128)) for each in _normal(len(_ENDS), 256, 384)]
    b, of_b = torch.stack([values for values, _ in pairs]).mT, torch.stack([scale for _, scale in pairs])
    recipes = ("BlockWise1x128", "BlockWise128x128")
    return partial(
        scaled_grouped_mm, a, b, of_a, recipes[0], of_b, recipes[1], offs=_ends(), output_dtype=torch.bfloat16
    )


def _experts(deterministic: bool = True) -> Callable[[], Any]:
    """Return a forward and a backward pass of a mixture of experts."""
    import torch

    from cutegemm import experts

    x, up, down = _normal(_TOKENS, 256), _normal(5, 512, 256), _normal(5, 256, 256)
    weights = torch.rand(_TOKENS, _CHOSEN, device="cuda")
    index = torch.rand(_TOKENS, 5, device="cuda").topk(_CHOSEN, -1).indices
    learned = [each.requires_grad_() for each in (x, weights, up, down)]

    def call() -> Any:
        y = experts(x, index, weights, up, down, deterministic=deterministic)
        return torch.autograd.grad(y.float().square().sum(), learned)

    return call
