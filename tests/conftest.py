"""How tests are dealt out to processes."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """`-n`: a process takes neighbours, so that what the tests of a file share is made once, not in each."""
    if config.getoption("dist", "no") == "load":
        config.option.dist = "worksteal"
