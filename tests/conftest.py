"""What holds for all tests: the traced architecture, how processes share the tests, and a list of skipped tests."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# The DSL traces for one architecture, which it reads when it is first imported, by whichever test that is.
os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--skipped FILE`: `pytest @FILE` then runs what this run skipped, and nothing else."""
    parser.addoption("--skipped", type=Path, metavar="FILE", help="write the names of skipped tests and files to FILE")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the file that `--skipped` names: one test or file per line."""
    file = config.getoption("skipped")
    if file is not None:
        names = dict.fromkeys(report.nodeid for report in terminalreporter.stats.get("skipped", []))
        file.write_text("".join(f"{name}\n" for name in names))


def pytest_configure(config: pytest.Config) -> None:
    """`-n`: a process takes neighbours, so that what the tests of a file share is made once, not in each.

    A process has one processor: more threads of numpy and torch would wait for each other, three times as long as
    the small products of these tests take.
    """
    if config.getoption("dist", "no") == "load":
        config.option.dist = "worksteal"
        for library in ("OPENBLAS", "OMP"):
            os.environ.setdefault(f"{library}_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests live on: to go through them for garbage takes a sixth of the time to collect them, and of that
    to run them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 100)  # what is left is small, and would be gone through each time it has grown
        gc.enable()


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that let assertions fail: where it runs on a CI, pytest spells out how thousands of numbers differ,
    which takes minutes."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
