"""What holds for all tests: the architecture that is traced for, and how tests are dealt out to processes."""

import os

import pytest

# The DSL traces for one architecture, which it reads when it is first imported, by whichever test that is.
os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")


def pytest_configure(config: pytest.Config) -> None:
    """`-n`: a process takes neighbours, so that what the tests of a file share is made once, not in each."""
    if config.getoption("dist", "no") == "load":
        config.option.dist = "worksteal"
