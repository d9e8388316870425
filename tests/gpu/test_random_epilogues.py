"""Random epilogues on a GPU, by their seeds: operands of all kinds, types and strides, values against float64."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.errors import PlanError, UnsupportedError  # noqa: E402
from tests.random_epilogues import EXTENTS, hold, random_call  # noqa: E402

pytestmark = pytest.mark.usefixtures("arch")

GROUPS, OF_A_GROUP = 45, 8  # each call is a kernel of its own, nearly


@pytest.mark.gpu
@pytest.mark.parametrize("group", range(GROUPS))
def test_against_float64(group):
    for seed in range(1000 + group * OF_A_GROUP, 1000 + (group + 1) * OF_A_GROUP):
        call = random_call(random.Random(seed).choice, (*EXTENTS, 520, 1000))
        try:
            hold(call, "cuda", seed)
        except (PlanError, UnsupportedError):
            assert call.options["plan"] is not None, seed
        except Exception as error:
            raise AssertionError(f"seed {seed}: {call}: {error}") from error
