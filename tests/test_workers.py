"""The number of processes that compile plans."""

from __future__ import annotations

import os

from cutegemm.compile.workers import processors


def test_processors_that_this_process_may_not_run_on_do_not_count():
    all_of_them = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(all_of_them)})
        assert processors() == 1
    finally:
        os.sched_setaffinity(0, all_of_them)
    assert processors() == len(all_of_them)
