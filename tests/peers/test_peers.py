"""The tests of other implementations of CuTe's layouts, run on this one; see `differences`.

They are not part of this repository: $CUTEGEMM_PEER_TESTS names a folder with one for each peer, `pycute` and
`tensor_layouts`, of files whose tests need the peer alone. The peers have to be installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.peers.adapter import OPERATIONS
from tests.peers.differences import DIFFERENCES

ROOT = Path(__file__).parents[2]
FOLDER = os.environ.get("CUTEGEMM_PEER_TESTS")


def failures(peer: str, files: list[Path]) -> tuple[set[str], int]:
    """The names of the tests that fail, and how many pass."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.peers.adapter", "-c", os.devnull,
         "--rootdir", str(files[0].parent), "--tb=no", *map(str, files)],
        env={**os.environ, "CUTEGEMM_PEER": peer, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    return {*re.findall(r"^FAILED \S*::(\S+)", done.stdout, re.M)}, int(passed[1]) if passed else 0


@pytest.mark.parametrize("peer", DIFFERENCES)
def test_each_difference_is_a_row_of_the_table(peer):
    if FOLDER is None or importlib.util.find_spec(peer) is None:
        pytest.skip("CUTEGEMM_PEER_TESTS names no folder of tests, or the peer is not installed")
    files = sorted(p for p in (Path(FOLDER) / peer).glob("*.py") if p.name != "conftest.py")
    failed, passed = failures(peer, files)
    assert failed == set(DIFFERENCES[peer])
    assert passed > 5 + 2 * len(failed)


def test_the_table_is_about_the_peers_that_are_adapted():
    assert DIFFERENCES.keys() == OPERATIONS.keys()
    assert all(why.strip() for rows in DIFFERENCES.values() for why in rows.values())
