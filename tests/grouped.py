"""Plans of grouped GEMMs, their arguments, and what they compute in float64."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from cutegemm.build import sm90_plan
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.memory.groups import with_group_ends, with_index
from cutegemm.plan.problem import D_INDEX
from tests.epilogues import CASES, reference

LAYOUTS = {"m": ("nt", "n"), "n": ("nt", "m"), "k": ("tn", "n")}  # layout of A and B, and majorness of D

_SMALL = {"tile": (64, 64, 64), "stages": 3, "epi_tile_n": 32}
_ONE_CONSUMER = {**_SMALL, "schedule": "cooperative", "consumers": 1}

# name: (mode that groups divide, arguments of sm90_plan, name of an epilogue of tests/epilogues.py)
FORMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "m": ("m", _SMALL, ""),
    "m_cooperative_2x1": ("m", {**_ONE_CONSUMER, "cluster": (2, 1)}, ""),
    "m_128_1x2": ("m", {**_SMALL, "tile": (128, 64, 64), "schedule": "cooperative", "cluster": (1, 2)}, ""),
    "m_along_n": ("m", {**_SMALL, "raster": "along_n"}, ""),
    "m_bands": ("m", {**_SMALL, "tile": (64, 32, 64), "raster": "even_n:2"}, ""),
    "m_direct": ("m", {**_SMALL, "store": "direct", "epi_tile_n": None}, ""),
    "m_warps": ("m", {**_SMALL, "store": "tma_warp"}, ""),
    "m_overlapped": ("m", {**_SMALL, "schedule": "cooperative", "tile": (128, 64, 64), "overlapped": True}, ""),
    "n_overlapped": ("n", {**_ONE_CONSUMER, "overlapped": True}, ""),
    "k_overlapped_2x1": ("k", {**_ONE_CONSUMER, "cluster": (2, 1), "overlapped": True}, ""),
    "m_lines": ("m", {**_SMALL, "shared_d": "padded"}, ""),
    "m_gated_lines": ("m", {**_SMALL, "shared_d": "padded"}, "geglu_bias"),
    "n": ("n", _SMALL, ""),
    "n_lines": ("n", {**_SMALL, "shared_d": "padded"}, ""),
    "n_cooperative_1x2": ("n", {**_ONE_CONSUMER, "cluster": (1, 2)}, ""),
    "n_2x1": ("n", {**_SMALL, "cluster": (2, 1)}, ""),
    "k": ("k", _SMALL, ""),
    "k_cooperative_2x1": ("k", {**_ONE_CONSUMER, "cluster": (2, 1)}, ""),
    "k_1x2": ("k", {**_SMALL, "cluster": (1, 2)}, ""),
    "m_index": ("m", _SMALL, ""),
    "m_index_1x2": ("m", {**_SMALL, "tile": (128, 64, 64), "schedule": "cooperative", "cluster": (1, 2)}, ""),
    "m_index_deep": ("m", {**_ONE_CONSUMER, "tile": (64, 64, 128)}, "scales"),
    "m_index_gated": ("m", _SMALL, "geglu_bias"),
    "n_index_2x1": ("n", {**_SMALL, "cluster": (2, 1)}, ""),
    "m_added": ("m", _SMALL, ""),
    "m_added_scales": (
        "m",
        {**_SMALL, "tile": (128, 64, 64), "schedule": "cooperative", "store": "tma_warp"},
        "scales",
    ),
    "m_index_added_overlapped": ("m", {**_ONE_CONSUMER, "overlapped": True}, ""),
    "n_added": ("n", _SMALL, ""),
    "n_added_1x2": ("n", {**_ONE_CONSUMER, "epi_tile_n": 64, "cluster": (1, 2)}, ""),
    "m_bias": ("m", _SMALL, "bias_gelu"),
    "m_weights": ("m", _ONE_CONSUMER, "scales"),
    "m_residual": ("m", {**_SMALL, "with_c": True}, "residual"),
    "m_gated": ("m", _SMALL, "geglu_bias"),
    "m_preact": ("m", _ONE_CONSUMER, "preact"),
    "n_weights": ("n", _SMALL, "scales"),
    "n_residual": ("n", {**_SMALL, "with_c": True}, "residual"),
    "k_lines": ("k", {**_SMALL, "shared_d": "padded"}, ""),
    "k_bias": ("k", _SMALL, "bias_relu"),
    "k_residual": ("k", {**_ONE_CONSUMER, "with_c": True}, "residual"),
}


@cache
def form(name: str, ctas: int = 4, out: str = "f32") -> GemmPlan:
    """Return the plan of a form, for a persistent grid of `ctas` CTAs."""
    groups, options, case = FORMS[name]
    layout, major = LAYOUTS[groups]
    operands = Operands.of("bf16", layout=layout, batched=True, groups=groups, out=out, out_major=major)
    if "_index" in name:
        operands = with_index(with_group_ends(operands))
    if "_added" in name:
        operands = with_index(with_group_ends(operands), D_INDEX)
    plan = sm90_plan(operands, name=f"grouped_{name}", ctas=ctas, **options)
    return CASES[case].on(plan) if case else plan


def bounds(ends: Sequence[int], extent: int) -> list[tuple[int, int]]:
    """Return (first, past the last) of each group, for ends that may be negative, decrease or exceed the extent."""
    clipped = np.clip(ends, 0, extent).tolist()
    return [(begin, max(begin, end)) for begin, end in zip([0, *clipped], clipped, strict=False)]


def arguments(name: str, m: int, n: int, k: int, ends: Sequence[int], seed: int = 0) -> dict[str, Any]:
    """Return A, B, `ends` and the operands of the epilogue as the caller has them. A and B are small integers.

    If rows of A, or columns of B, are gathered, there are half as many as in D. Some indices are out of range.
    """
    (groups, _, case), rng = FORMS[name], np.random.default_rng([seed, m, n, k])
    front, is_gathered = (len(ends),), "_index" in name
    rows, columns = m, n
    if is_gathered:
        rows, columns = (m // 2 + 3, n) if groups == "m" else (m, n // 2 + 3)
    a, b = ((*front * (groups == "n"), rows, k), (*front * (groups == "m"), k, columns))
    given: dict[str, Any] = {x: rng.integers(-4, 5, shape).astype(np.float32) for x, shape in (("a", a), ("b", b))}
    given["ends"] = np.array(ends, np.int64)
    if is_gathered:
        given["index"] = rng.integers(-1, (rows if groups == "m" else columns) + 1, m if groups == "m" else n)
    if "_added" in name:
        count = m if groups == "m" else n
        given["d_index"] = rng.integers(-1, 1 + count // 3, count) * 3
    if case:
        operands = form(name).operands
        for key, value in CASES[case].operands(rng, m, n, len(ends)).items():
            given[key] = value if not np.ndim(value) or operands.has_batch(key) else value[0]
    return given


def gathered(a: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the rows of a matrix that an index selects; zeros for a row that the matrix does not have."""
    return np.stack([a[row] if 0 <= row < len(a) else np.zeros_like(a[0]) for row in index])


def added(rows: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the sum of the rows without NaN that an index adds to each row of a matrix of the same shape."""
    sums = np.zeros_like(rows)
    for row, target in zip(rows, index, strict=True):
        if 0 <= target < len(sums) and not np.isnan(row).any():
            sums[target] += row
    return sums


def expected(name: str, given: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return all results in float64 by name; NaN where no group has an element."""
    (groups, _, case), (a, b, ends) = FORMS[name], (given["a"], given["b"], given["ends"])
    if "index" in given:
        a, b = (gathered(a, given["index"]), b) if groups == "m" else (a, gathered(b.T, given["index"]).T)
    (m, k), n = a.shape[-2:], b.shape[-1]
    shape = (len(ends), m, n) if groups == "k" else (m, n)
    acc, owner = np.zeros(shape), np.full(shape[-2:], -1)
    for group, (begin, end) in enumerate(bounds(ends, {"m": m, "n": n, "k": k}[groups])):
        own = slice(begin, end)
        if groups == "m":
            acc[own], owner[own] = a[own].astype(float) @ b[group], group
        elif groups == "n":
            acc[:, own], owner[:, own] = a[group].astype(float) @ b[:, own], group
        else:
            acc[group] = a[:, own].astype(float) @ b[own]
    if not case:
        results = {"d": acc}
    else:
        operands = {x: value for x, value in given.items() if x not in ("a", "b", "ends", "index", "d_index")}
        if groups != "k":  # operands of each group: those of the group of each row, or of each column
            operands = {
                x: value
                if np.ndim(value) < 3
                else (value[owner[:, 0], 0] if groups == "m" else value[owner[0], :, 0].T)
                for x, value in operands.items()
            }
        results = reference(CASES[case].epilogue, acc, operands)
    if groups != "k":
        for values in results.values():
            values.setflags(write=True)
            values[owner[:, : values.shape[1]] < 0] = np.nan
    if "d_index" in given:
        results["d"] = (
            added(results["d"], given["d_index"]) if groups == "m" else added(results["d"].T, given["d_index"]).T
        )
    return results


def check_results(name: str, given: dict[str, Any], results: dict[str, np.ndarray], places: float = 1e-5) -> None:
    """Compare the results of a form with float64, where a group has elements.

    places   largest relative error of a result that an epilogue computes; without an epilogue, D is exact
    """
    wanted = expected(name, given)
    assert {*wanted} == {*results}
    for result, values in wanted.items():
        is_written = ~np.isnan(values)
        assert results[result].shape == values.shape
        if not FORMS[name][2]:
            np.testing.assert_array_equal(results[result][is_written], values[is_written])
        else:
            np.testing.assert_allclose(results[result][is_written], values[is_written], rtol=places, atol=1e-4)
