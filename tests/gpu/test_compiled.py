"""That the plans of the suite compile, all of them."""

from __future__ import annotations

import pytest


@pytest.mark.gpu
def test_every_plan_compiles(compiled):
    assert compiled == []
