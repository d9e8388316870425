"""Two processes with gloo, once for each module of tests."""

from __future__ import annotations

import pytest

from tests.torch.distributed.processes import running


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Two ranks, as `processes.Ranks`."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("torch has no gloo")
    with running(tmp_path_factory.mktemp("ranks")) as found:
        yield found
