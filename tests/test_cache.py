"""The disk cache of compiled kernels: names of entries, access rights, and errors. Nothing is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutegemm.build import simt_plan
from cutegemm.compile import cache
from cutegemm.compile import plans as compiler
from cutegemm.errors import CompileError
from cutegemm.plan import GemmPlan

PLAN = simt_plan()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_IMPORTED", float("inf"))  # so that editing the source during the tests has no effect
    return tmp_path / "cache"


def builds(staged: Path) -> cache.Manifest:
    (staged / "kernel").write_text("code")
    return {"plan": "p"}


def test_an_entry_is_stored_once_and_found(folder: Path) -> None:
    place = cache.entry(PLAN, "sm_80")
    assert place.parent == folder
    assert cache.intact(place) is None
    assert cache.store(place, builds)["plan"] == "p"
    assert cache.intact(place) is not None
    cache.store(place, builds)  # as if another process had stored it first
    assert [path.name for path in folder.iterdir()] == [place.name]


def test_a_failed_build_leaves_nothing(folder: Path) -> None:
    def fails(staged: Path) -> cache.Manifest:
        builds(staged)
        raise CompileError("no")

    with pytest.raises(CompileError, match="no"):
        cache.store(cache.entry(PLAN, "sm_80"), fails)
    assert list(folder.iterdir()) == []


def test_edited_source_has_entries_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source file changes an hour after the import, so that the process runs older code than the files have."""
    source = tmp_path / "source.py"
    source.write_text("")
    monkeypatch.setattr(cache, "_sources", lambda: (source,))
    monkeypatch.setattr(cache, "_toolchain", lambda: "as it was first read")
    monkeypatch.setattr(cache, "_IMPORTED", source.stat().st_mtime)
    before = cache.entry(PLAN, "sm_80")
    os.utime(source, (0, source.stat().st_mtime + 3600))
    edited = cache.entry(PLAN, "sm_80")
    assert edited != before
    assert edited == cache.entry(PLAN, "sm_80")  # the process finds its own entries again
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert cache.entry(PLAN, "sm_80") not in (before, edited)
    source.unlink()
    assert cache.entry(PLAN, "sm_80") != before


def test_the_real_sources_are_looked_at() -> None:
    names = {path.name for path in cache._sources()}
    assert {"cache.py", "plans.py", "layout.py", "plan.py", "mainloop.py", "lower.py"} <= names


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(CompileError, match=r"cannot be written.*Set CUTEGEMM_CACHE_DIR to another folder"):
        cache.store(cache.entry(PLAN, "sm_80"), builds)


def test_a_folder_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", os.devnull)
    with pytest.raises(CompileError, match=r"cannot be read: .*Set CUTEGEMM_CACHE_DIR to another folder"):
        cache.entry(PLAN, "sm_80")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("CUTEGEMM_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(CompileError, match=r"has no home folder\. Set CUTEGEMM_CACHE_DIR to a folder"):
        cache.entry(PLAN, "sm_80")


def test_entries_differ_by_all_that_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def place(plan: GemmPlan = PLAN, arch: str = "sm_80") -> Path:
        return cache.entry(plan, arch)

    first = place()
    assert place(arch="sm_90a") != first
    assert place(simt_plan(stages=3)) != first
    assert place(simt_plan(name="another")) == first
    monkeypatch.setattr(cache, "_toolchain", lambda: "another DSL")
    assert place() != first


def test_what_does_not_load_is_built_again_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that cannot be loaded is compiled again. If that cannot be loaded either, an error is raised."""
    built: list[Path] = []

    def build(plan: GemmPlan, arch: str, staged: Path) -> cache.Manifest:
        built.append(staged)
        return builds(staged)

    def load(entry: Path, manifest: cache.Manifest) -> str:
        if len(built) < needed:
            raise OSError("libother.so.1: cannot open shared object file")
        return "loaded"

    monkeypatch.setattr(compiler, "_build", build)
    monkeypatch.setattr(compiler, "load_function", load)
    cache.store(cache.entry(PLAN, "sm_80"), builds)
    needed = 1
    compiler.compile_plan.cache_clear()
    assert compiler.compile_plan(PLAN, "sm_80").function == "loaded"
    needed = 9
    compiler.compile_plan.cache_clear()
    with pytest.raises(CompileError, match=r"was compiled, but cannot be loaded: libother\.so\.1"):
        compiler.compile_plan(PLAN, "sm_80")
    assert len(built) == 2
    compiler.compile_plan.cache_clear()


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """A script that compiles in parallel is not run again by the worker processes."""
    script = tmp_path / "script.py"
    script.write_text(
        "from cutegemm.compile.plans import compile_plans\n"
        "from cutegemm.build import sm90_plan\n"
        "print(*[type(error).__name__ for error in compile_plans([sm90_plan()] * 2, 'sm_80', processes=2)])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(cache.__file__).parents[2])},
    )  # fmt: skip
    assert done.stdout == "PlanError PlanError\n"


def test_a_process_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compiler, "compile_error", os.kill
    )  # its arguments are not numbers: the worker raises an error and exits
    with pytest.raises(CompileError, match=r"one of 2 processes exited early; perhaps memory ran out"):
        compiler.compile_plans([PLAN, PLAN], processes=2)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return the folder of the only entry of a cache."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "cache"))
    folder = cache.cache_folder() / "entry"

    def build(staged):
        (staged / "kernel.so").write_bytes(b"code")
        return {}

    cache.store(folder, build)
    return folder


def test_a_cache_of_this_user_alone_is_used(kept):
    assert cache.untrusted(kept) is None
    assert cache.untrusted(kept.parent) is None
    assert cache.intact(kept) is not None


def test_a_folder_that_others_may_write_is_refused(kept):
    kept.parent.chmod(0o777)
    with pytest.raises(
        CompileError, match="may be written by everybody, who could run code with the rights of this user"
    ):
        cache.entry(PLAN, "sm_80")
    kept.parent.chmod(0o775)
    assert "may be written by the group" in str(cache.untrusted(kept.parent))


def test_an_entry_that_others_may_write_is_compiled_anew(kept):
    kept.chmod(0o777)
    assert cache.intact(kept) is None
    kept.chmod(0o755)
    (kept / "kernel.so").chmod(0o666)
    assert cache.intact(kept) is None


def test_an_entry_of_another_user_is_used_by_choice_only(kept, monkeypatch):
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    if owner == 0:
        monkeypatch.setattr(cache, "_ROOT", owner + 2)  # the test runs as root, and files of root are always trusted
    assert cache.intact(kept) is None
    assert f"belongs to the user {owner}" in str(cache.untrusted(kept))
    monkeypatch.setenv("CUTEGEMM_CACHE_TRUST", "1")
    assert cache.intact(kept) is not None
    kept.chmod(0o777)
    assert cache.intact(kept) is None, "nobody vouches for what everybody may write"


def test_a_parent_that_everybody_may_rename_in_is_seen(kept):
    kept.parent.parent.chmod(0o777)
    assert "may be written by everybody" in str(cache.untrusted(kept))
    kept.parent.parent.chmod(0o1777)
    assert cache.untrusted(kept) is None
