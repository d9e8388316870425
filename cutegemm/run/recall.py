"""Records of prepared calls on the disk, so that a new process can call its kernels without choosing plans again.

A record has the cache entry of the kernel for a signature, or its key in a loaded library, and how the kernel is
called. Its file name is a hash of the signature, the device, the loaded libraries and the package's files, so that
another version does not find it. Its content follows from these alone. The cache entry that it names is verified like
any other.
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
from cutegemm.compile import exported
from cutegemm.compile.spaces import Sizes, with_workspace
from cutegemm.errors import CutegemmError
from cutegemm.run.calls import ASKING

if TYPE_CHECKING:
    from cutegemm.run.calls import How
    from cutegemm.run.prepare import Prepared

_FOLDER = "calls"  # folder of the cache for the records
_MOST = 256  # number of records that a process writes at most
_written = 0


@dataclass(frozen=True)
class Recalled:
    """A kernel that an earlier process recorded in the disk cache for a kind of `gemm` call, and how to call it.

    It is used without choosing a plan again.

    function   function that launches the kernel, called with a, b, c (only if `reads_c`), d, alpha, and beta (only if
               `reads_c`)
    reads_c    True if the kernel can read C
    strides    for a, b, c and the result: None, or strides with which the tensor is passed instead of its own
    shape      shape of the result
    dtype      torch dtype of the result
    kernel     text of the kernel for error messages
    """

    function: Callable[..., None]
    reads_c: bool
    strides: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: Any
    kernel: str


def find(key: Any, a: Any, how: How) -> Recalled | None:
    """Return the kernel that an earlier process recorded in the disk cache for this kind of `gemm` call, or None.

    None is returned too if calls of this kind are never recorded, such as those with a plan that is an object.

    key   the signature, from `cutegemm.run.gemm`: types, shapes, strides and alignments of the tensors, and the options
    a     any tensor of the call; only its device counts
    how   options of the call
    """
    if not _may_have_record(key, a, how):
        return None
    try:
        record = remembered(_FOLDER, _text(key, a))
        kernel = None if record is None else _kernel(record)
        if kernel is None:
            return None
        function, text = kernel
        sizes, reads_c = record["sizes"], bool(record["reads_c"])
        torch = sys.modules["torch"]
        return Recalled(
            function if sizes is None else with_workspace(function, Sizes(*sizes), 3 + reads_c),
            reads_c,
            tuple([None if strides is None else tuple(strides) for strides in record["strides"]]),
            tuple(record["shape"]),
            getattr(torch, record["dtype"]),
            text,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, CutegemmError):
        return None


def _kernel(record: Any) -> tuple[Callable[..., Any], str] | None:
    """Return the function of the kernel that a record in the disk cache names, and its description for messages.

    The kernel is in an entry of the disk cache, or in a library that `exported.load` has loaded.

    record    data on a call that an earlier process wrote, read from JSON
    returns   None if the kernel is in neither
    """
    if record["library_key"] is not None:
        function = exported.function_of(record["library_key"])
        return None if function is None else (function, record["kernel"])
    if record["entry"] != Path(record["entry"]).name:
        return None
    folder = entries.cache_folder() / record["entry"]
    manifest = entries.intact(folder)
    if manifest is None:
        return None
    from cutegemm.compile.loading import load_function

    return load_function(folder, manifest), record["kernel"]


def keep(key: Any, a: Any, how: How, prepared: Prepared) -> None:
    """Write a record of a prepared call to the disk, so that `find` returns its kernel in later processes.

    Nothing is written for a call whose plan or tensors another process could not have. Errors of the disk are ignored.

    key        signature of the call: types, shapes, strides and alignments of the tensors, and the options
    a          any tensor of the call; only its device counts
    how        options of the call
    prepared   the kernel, and how it is called
    """
    global _written
    kernel = prepared.kernel
    if kernel is None or _written >= _MOST or not _may_have_record(key, a, how):
        return
    if isinstance(how.plan, str):
        from cutegemm.choice.names import is_own, recipe_named

        if is_own(recipe_named(how.plan).name):  # in another process the name may belong to another plan
            return
    with contextlib.suppress(CutegemmError):
        assert prepared.problem is not None
        problem = prepared.problem
        sizes = kernel.sizes(problem.m, problem.n, problem.k, problem.l) if kernel.needs_workspace else None
        record = {
            "entry": kernel.folder.name if kernel.library_key is None else None,
            "library_key": kernel.library_key,
            "kernel": repr(kernel),
            "reads_c": kernel.plan.has_c,
            "sizes": None if sizes is None else [sizes.counters, sizes.zeroed, sizes.total],
            "strides": [view.strides for view in prepared.views],
            "shape": prepared.shape,
            "dtype": str(prepared.dtype).removeprefix("torch."),
        }
        remember(_FOLDER, _text(key, a), record)
        _written += 1


def _may_have_record(key: Any, a: Any, how: How) -> bool:
    """Return True if a later process may use the kernel of this call, so that it makes sense to record it on the disk.

    This is so if all tensors are plain torch tensors on a CUDA device, the plan is chosen or named, and this process
    uses neither tuned plans nor `prepare.asking`.

    key   signature of the call: types, shapes, strides and alignments of the tensors, and the options
    a     any tensor of the call, e.g. the first factor
    how   options of the call
    """
    torch = sys.modules.get("torch")
    if torch is None or not getattr(a, "is_cuda", False):
        return False
    if not all(kind in (torch.Tensor, torch.nn.Parameter) for kind in key if isinstance(kind, type)):
        return False
    tune = sys.modules.get("cutegemm.run.tune")
    uses_tuned = tune is not None and (tune._active is not None or tune._used)
    return not (uses_tuned or ASKING.questions is not None or _depends_on_process(how))


def _depends_on_process(how: How) -> bool:
    """Return True if no record of the call can be written for other processes, because of how its plan is given.

    This is so if the caller passes a plan as an object, whose id has no meaning in another process, or asks for the
    tuner.

    how   options of the call
    """
    return not (how.plan is None or isinstance(how.plan, str)) or bool(how.tune)


def _text(key: Any, a: Any) -> str:
    """Return the key of the disk cache under which data on a kind of `gemm` call are stored, as one text.

    It consists of the DSL version, the loaded libraries, the device and the signature.

    key   signature of the call: types, shapes, strides and alignments of the tensors, and the options
    a     any tensor of the call; only its device counts
    """
    from cutegemm.compile.cuda import device_name

    return f"{entries.dsl_version()}\0{exported.identity()}\0{device_name(a.get_device())}\0{key!r}"


def remembered(kind: str, text: str) -> Any:
    """Return the value that `remember` stored on the disk under the key `text`, in this or an earlier process.

    Values that another version of the package's files stored are not found.

    kind      name of a folder of the cache, one for each kind of value
    text      the key of the value
    returns   the value; None without a file, or if another user can write it
    """
    with contextlib.suppress(OSError, ValueError, CutegemmError):
        return json.loads(_place(kind, text).read_text())
    return None


def remember(kind: str, text: str, value: Any) -> None:
    """Store a value on the disk for later processes. Errors of the disk are ignored.

    kind    name of a folder of the cache, one for each kind of value
    text    the key of the value
    value   value that JSON can represent
    """
    if entries.edited():  # this process runs older code than the files have
        return
    with contextlib.suppress(OSError, CutegemmError):
        place = _place(kind, text)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, staged = tempfile.mkstemp(prefix=".writing-", dir=place.parent)
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(value))
        os.replace(staged, place)


def _place(kind: str, text: str) -> Path:
    """Return the path of the file that holds the value that `remember` stores under the key `text`.

    kind     name of a folder of the cache, one for each kind of value
    text     the key of the value
    raises   OSError if another user can write to the cache
    """
    folder = entries.cache_folder()
    wrong = entries.untrusted(folder) if folder.exists() else None
    if wrong:
        raise OSError(wrong)
    return folder / kind / f"{hashlib.sha256(f'{_files()}{text}'.encode()).hexdigest()[:40]}.json"


@cache
def _files() -> str:
    """Return a hash of the names, sizes and modification times of the package's Python files, for cache keys."""
    facts = sorted(_facts(str(Path(__file__).parents[1])))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _facts(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield (path, modification time in ns, size in bytes) of each Python file in a folder and its subfolders."""
    with os.scandir(folder) as items:
        for item in items:
            if item.is_dir(follow_symlinks=False):
                yield from _facts(item.path)
            elif item.name.endswith(".py"):
                status = item.stat()
                yield item.path, status.st_mtime_ns, status.st_size
