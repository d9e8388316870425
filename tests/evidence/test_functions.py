"""Errors of elementwise functions: how they are counted, by hand, and how they are printed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from docs.evidence import functions
from docs.evidence.commands import app

ALL = slice(None)


def test_units_are_those_of_the_exact_result():
    """2 + 2**-22 is one place above 2; its half, 1 + 2**-23, one above 1."""
    got = np.float32([2 + 2**-22, 1])
    found = functions.errors(got, np.array([2.0, 1 + 2**-24]), ALL)
    assert (found.units, found.relative) == (1.0, 2**-23)
    assert found.absolute == 0
    assert found.wrong == 0


def test_small_results_count_by_what_is_off():
    """2**-12 is below 2**-10: no units, but a relative error of 1/4."""
    found = functions.errors(np.float32([2**-12 * 1.25, 1]), np.array([2**-12, 1.0]), ALL)
    assert (found.units, found.relative, found.everywhere, found.absolute) == (0, 0, 0.25, 2**-14)


@pytest.mark.parametrize(
    ("got", "want", "wrong"),
    [
        (np.nan, 1.0, 1), (1.0, np.nan, 1), (np.inf, 1.0, 1), (np.inf, -np.inf, 1), (1.0, np.inf, 1),
        (np.nan, np.nan, 0), (np.inf, np.inf, 0), (np.inf, 1e39, 0), (np.inf, 3.4028e38, 0),
    ],
)  # fmt: skip
def test_what_is_no_number(got, want, wrong):
    assert functions.errors(np.float32([got, 1]), np.array([want, 1.0]), ALL).wrong == wrong


def test_narrow_results():
    """1 + 2**-8 is the middle of two bf16: a hair more is the upper one. f16 tells all of these apart."""
    want = np.array([1 + 2**-8 + 2**-20, 1.0, 1.0, 1.0])
    found = functions.errors(np.float32([1 + 2**-8, 1, 1, 1]), want, ALL)
    assert (found.bf16, found.f16) == (0.25, 0)


def test_inputs_have_all_exponents_and_signs():
    x = functions.inputs("f32", 1 << 22)
    fields = x.view(np.uint32) >> 23
    assert set(fields.tolist()) == set(range(512))
    assert np.isnan(x).any()


def test_the_command_refuses_other_types():
    done = CliRunner().invoke(app, ["functions", "f16"])
    assert "is not one of the types" in str(done.exception)


def test_the_table_has_a_row_for_each(monkeypatch):
    row = {
        "units": 1.0,
        "relative": 1e-7,
        "absolute": 1e-7,
        "everywhere": 1e-7,
        "wrong": 0,
        "bf16": 0.0,
        "f16": 0.0,
    }
    found = {"kind": "f32", "machine": {}, "rows": [{"name": name, **row} for name in functions.NAMES]}
    monkeypatch.setattr(functions, "run", lambda *_: found)
    printed = CliRunner().invoke(app, ["functions"]).stdout
    assert printed.splitlines()[2:] == functions.table(found).splitlines()[2:]
    assert "| `gelu` | 10 + 1 | 1.0 |" in printed
    assert json.loads(CliRunner().invoke(app, ["functions", "--json"]).stdout) == found
