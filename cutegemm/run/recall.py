"""What plain calls were prepared as, remembered on the disk: the first calls of a process import no plans then.

A record says which entry of the cache of compiled kernels serves a signature, and how it is called. It is found by a
hash of the signature, of the device, and of the package's files, so that another version finds none. What is in it
follows from these alone; the entry that it names is verified as any other is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutegemm.compile import cache as entries
from cutegemm.compile.spaces import Sizes, with_workspace
from cutegemm.errors import CutegemmError

if TYPE_CHECKING:
    from cutegemm.run.calls import How
    from cutegemm.run.prepare import Prepared

_FOLDER = "calls"  # of the cache
_MOST = 256  # records that a process writes
_written = 0


@dataclass(frozen=True)
class Recalled:
    """What a record says.

    function   takes a, b, c if the kernel can read one, d, and the numbers of the plan's epilogue
    reads_c    whether the kernel can read a C
    strides    of a, b, c and the result: those that it is to see; None for the tensor's own
    shape      of the result, and `dtype`, in torch
    kernel     in words
    """

    function: Callable[..., None]
    reads_c: bool
    strides: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: Any
    kernel: str


def find(key: Any, a: Any, how: How) -> Recalled | None:
    """What the disk has of a signature, where nothing else is to be asked: no tuner, and no kernels loaded by name.

    key   see `cutegemm.run.gemm`; one that is not the same in all processes has no record
    a     a tensor of the call
    how   its options
    """
    if not _can_implement(key, a, how):
        return None
    try:
        held = remembered(_FOLDER, _text(key, a))
        if held is None or held["entry"] != Path(held["entry"]).name:
            return None
        folder = entries.cache_folder() / held["entry"]
        manifest = entries.intact(folder)
        if manifest is None:
            return None
        from cutegemm.compile.loading import load_function

        function = load_function(folder, manifest)
        sizes, reads_c = held["sizes"], bool(held["reads_c"])
        torch = sys.modules["torch"]
        return Recalled(
            function if sizes is None else with_workspace(function, Sizes(*sizes), 3 + reads_c),
            reads_c,
            tuple([None if each is None else tuple(each) for each in held["strides"]]),
            tuple(held["shape"]),
            getattr(torch, held["dtype"]),
            f"<CompiledKernel {manifest['plan']} for {manifest['arch']}>",
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, CutegemmError):
        return None


def keep(key: Any, a: Any, how: How, prepared: Prepared) -> None:
    """Write the record that `find` reads, if the signature may have one; do nothing if the disk cannot be written."""
    global _written
    kernel = prepared.kernel
    if kernel is None or _written >= _MOST or not _can_implement(key, a, how):
        return
    if isinstance(how.plan, str):
        from cutegemm.choice.names import is_own, recipe_named

        if is_own(recipe_named(how.plan).name):  # another process may give the name to another plan
            return
    with contextlib.suppress(CutegemmError):
        assert prepared.problem is not None
        of = prepared.problem
        sizes = kernel.sizes(of.m, of.n, of.k, of.l) if kernel.needs_workspace else None
        record = {
            "entry": kernel.folder.name,
            "reads_c": kernel.plan.has_c,
            "sizes": None if sizes is None else [sizes.counters, sizes.zeroed, sizes.total],
            "strides": [view.strides for view in prepared.views],
            "shape": prepared.shape,
            "dtype": str(prepared.dtype).removeprefix("torch."),
        }
        remember(_FOLDER, _text(key, a), record)
        _written += 1


def _can_implement(key: Any, a: Any, how: How) -> bool:
    """Whether a signature may have a record: of plain tensors on a CUDA device, and of a plan that has a name."""
    torch = sys.modules.get("torch")
    if torch is None or not getattr(a, "is_cuda", False):
        return False
    if not all(each in (torch.Tensor, torch.nn.Parameter) for each in key if isinstance(each, type)):
        return False
    tuner, loaded, asked = (
        sys.modules.get(f"cutegemm.{name}") for name in ("run.tune", "compile.exported", "run.prepare")
    )
    in_use = tuner is not None and (tuner._active is not None or tuner._used)
    is_first = loaded is None or not loaded._LOADED
    return not in_use and is_first and (asked is None or asked._asked is None) and not _is_of_process(how)


def _is_of_process(how: How) -> bool:
    """Whether the signature tells the plan by its id, or the tuner is asked for."""
    return not (how.plan is None or isinstance(how.plan, str)) or bool(how.tune)


def _text(key: Any, a: Any) -> str:
    from cutegemm.compile.cuda import device_name

    return f"{entries.dsl_version()}\0{device_name(a.get_device())}\0{key!r}"


def remembered(kind: str, text: str) -> Any:
    """What this package's files have on the disk for a text; None where nothing is, or where others may write it."""
    with contextlib.suppress(OSError, ValueError, CutegemmError):
        return json.loads(_place(kind, text).read_text())
    return None


def remember(kind: str, text: str, value: Any) -> None:
    """Writes what a text stands for, if it may; nothing is said where the disk is full or not ours."""
    if entries.edited():  # what this process does is no longer what the files say
        return
    with contextlib.suppress(OSError, CutegemmError):
        place = _place(kind, text)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, staged = tempfile.mkstemp(prefix=".writing-", dir=place.parent)
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(value))
        os.replace(staged, place)


def _place(kind: str, text: str) -> Path:
    folder = entries.cache_folder()
    wrong = entries.untrusted(folder) if folder.exists() else None
    if wrong:
        raise OSError(wrong)
    return folder / kind / f"{hashlib.sha256(f'{_files()}{text}'.encode()).hexdigest()[:40]}.json"


@cache
def _files() -> str:
    """A hash of which files the package has, of their sizes, and of when they were written."""
    found = sorted(_facts(str(Path(__file__).parents[1])))
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _facts(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as inside:
        for each in inside:
            if each.is_dir(follow_symlinks=False):
                yield from _facts(each.path)
            elif each.name.endswith(".py"):
                facts = each.stat()
                yield each.path, facts.st_mtime_ns, facts.st_size
