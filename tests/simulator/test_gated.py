"""Gated epilogues, simulated: the columns of B that a tile is made of, and the sums that are pairs."""

from __future__ import annotations

import pytest

from cutegemm.simulator import simulate
from tests.gated import FORMS, held_against_float64, reduces


@pytest.mark.parametrize("form", FORMS)
def test_against_float64(form):
    held_against_float64(simulate, form)


@pytest.mark.parametrize("form", FORMS)
def test_sums_and_maxima_against_float64(form):
    held_against_float64(simulate, form, reduces(form))
