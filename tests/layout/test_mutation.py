"""The laws are strong enough: for each operation, stubs put in its place break its law."""

from __future__ import annotations

from random import Random

import pytest

from cutegemm.errors import LayoutError
from cutegemm.layout import Layout, ScaledBasis
from tests.layout import cases, laws
from tests.layout.test_laws import perform

SAMPLES = 60


def identity(operation, result, args):
    """One of the arguments, as it came."""
    return next((a for a in args if type(a) is type(result)), args[0])


def constant(operation, result, args):
    if isinstance(result, int):
        return 1
    return (Layout(1, 0), 0) if isinstance(result, tuple) and operation == "slice_and_offset" else Layout(1, 0)


def one_stride_more(operation, result, args):
    return _on_last(result, lambda s, d: (s, d + 1 if isinstance(d, int) else 2 * d))


def one_element_more(operation, result, args):
    return _on_last(result, lambda s, d: (s + 1, d))


def one_element_less(operation, result, args):
    return _on_last(result, lambda s, d: (s - 1, d) if s > 1 else (s + 1, d))


def modes_swapped(operation, result, args):
    if isinstance(result, Layout) and isinstance(result.shape, tuple) and len(result.shape) > 1:
        return Layout(result.shape[::-1], result.stride[::-1])
    return one_stride_more(operation, result, args)


def _on_last(result, change):
    """A result whose last leaf is changed; an integer, or the last of a tuple, likewise."""
    if isinstance(result, int):
        extent, stride = change(result, result)
        return extent if extent != result else stride
    if isinstance(result, ScaledBasis):
        return 2 * result
    if isinstance(result, tuple):
        return (*result[:-1], _on_last(result[-1], change))
    if not isinstance(result, Layout):
        return result.with_outer(_on_last(result.outer, change))
    shape, stride = _last(result.shape, result.stride, change)
    return Layout(shape, stride)


def _last(shape, stride, change):
    if isinstance(shape, tuple):
        if not shape:
            return (2,), (1,)
        inner = _last(shape[-1], stride[-1], change)
        return (*shape[:-1], inner[0]), (*stride[:-1], inner[1])
    return change(shape, stride)


MUTANTS = (identity, constant, one_stride_more, one_element_more, one_element_less, modes_swapped)


def samples(operation: str):
    rng = Random(f"mutation of {operation}")
    for _ in range(SAMPLES):
        args, options = cases.ARGUMENTS[operation](rng)
        try:
            yield perform(operation, *args, **options), args, options
        except LayoutError:
            continue


def breaks(operation, mutant, result, args, options) -> bool:
    """Whether the law finds the mutant out; a mutant that no law can evaluate is found out too."""
    try:
        changed = mutant(operation, result, args)
        return changed != result and laws.LAWS[operation](changed, *args, **options) is not None
    except (AttributeError, IndexError, TypeError, ValueError):
        return True


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("operation", laws.LAWS)
def test_the_law_finds_the_mutant_out(operation, mutant):
    found = [breaks(operation, mutant, *sample) for sample in samples(operation)]
    assert sum(found) >= 5, (
        f"{mutant.__name__} in place of {operation} passes {len(found) - sum(found)} of {len(found)}"
    )


@pytest.mark.parametrize("operation", laws.UNANSWERABLE)
def test_refusing_everything_is_found_out(operation):
    answers = [laws.UNANSWERABLE[operation](*args, **options) for _, args, options in samples(operation)]
    assert sum(answer is not None for answer in answers) >= len(answers) // 2
