"""Settings for all tests: traced architecture, processes, garbage collection, and the list of skipped tests."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# The DSL reads the architecture to trace for when it is first imported, in whichever test that happens.
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
    """With `-n`, give each process consecutive tests, so that fixtures of a file are made once, not in every process.

    A process has one processor. With more threads, numpy and torch take three times as long for the small matrices of
    these tests, since the threads wait for each other.
    """
    if config.getoption("dist", "no") == "load":
        config.option.dist = "worksteal"
        for library in ("OPENBLAS", "OMP"):
            os.environ.setdefault(f"{library}_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Switch off the garbage collector while tests are collected, and exclude all modules and tests from it afterwards.

    They are never freed. Searching them for garbage takes a sixth of the time to collect the tests, and a sixth of the
    time to run them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 100)  # the remaining objects are few; by default they would be searched often
        gc.enable()


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pytest print failed assertions in short form, for tests that make assertions fail on purpose.

    On a CI, pytest explains how thousands of numbers differ, which takes minutes.
    """
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
