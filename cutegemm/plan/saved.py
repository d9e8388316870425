"""Save plans as JSON, and load them.

Every dataclass is saved as the name of its class and its fields, so a new field needs no code here.

| value                       | JSON                                                      |
|-----------------------------|-----------------------------------------------------------|
| dataclass                   | `{"type": "plan.work.split.KSplit", "splits": 1, ...}`    |
| `Layout`, `ComposedLayout`  | `{"layout": "S<3,3,3> o 0 o (8,64):(64,1)"}`              |
| `DType`                     | `{"dtype": "bf16"}`                                       |
| tuple                       | array                                                     |
| None, bool, int, float, str | the same; floats are finite                               |
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from cutegemm.dtypes import DType
from cutegemm.errors import CutegemmError, UnsupportedError
from cutegemm.layout import ComposedLayout, Layout, parse
from cutegemm.layout.inttuple import shown
from cutegemm.version import __version__

_PACKAGE = "cutegemm."
_ROOMS = ("plan.", "tile.")  # subpackages whose dataclasses may be loaded
_TYPE = "type"  # JSON key of the name of a dataclass


def saved(plan: Any) -> str:
    """Convert a plan to JSON text, with the version of the package. Equal plans give equal texts.

    raises   UnsupportedError if a field holds a value that cannot be saved: only dataclasses of the package, layouts,
             element types, tuples, None, booleans, numbers and texts can
    """
    return json.dumps({"cutegemm": __version__, "plan": _to_data(plan)}, indent=1, allow_nan=False)


def loaded(text: str) -> Any:
    """Return the plan that `saved` converted to the JSON `text`. The rules of plans are checked again.

    raises   UnsupportedError if the text is not a saved plan, or was saved by another version of the package; PlanError
             if the plan violates a rule
    """
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsupportedError(f"GemmPlan.from_json: {shown(text)} is not JSON: {error}") from error
    if not isinstance(data, dict) or data.keys() != {"cutegemm", "plan"}:
        raise UnsupportedError("GemmPlan.from_json: the text is not a saved plan. Pass what `plan.to_json()` returned.")
    if data["cutegemm"] != __version__:
        raise UnsupportedError(
            f"GemmPlan.from_json: the plan was saved by cutegemm {data['cutegemm']}, and this is {__version__}. Build "
            "the plan again with this version."
        )
    return _from_data(data["plan"])


def _to_data(value: Any) -> Any:
    """Convert a value of a plan to data that `json.dumps` accepts.

    For example, a layout becomes {"layout": "(8,64):(64,1)"}. A dataclass becomes its class name and its fields, a
    tuple becomes a list.

    raises   UnsupportedError if the value has a type that cannot be saved
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value) is tuple:
        return [_to_data(entry) for entry in value]
    if isinstance(value, (Layout, ComposedLayout)):
        return {"layout": str(value)}
    if isinstance(value, DType):
        return {"dtype": value.name}
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix(_PACKAGE)
    if not is_dataclass(value) or not name.startswith(_ROOMS):
        raise UnsupportedError(f"plan.to_json: a {kind.__name__} cannot be saved: {shown(value)}.")
    return {_TYPE: name, **{field.name: _to_data(getattr(value, field.name)) for field in fields(value)}}


def _from_data(data: Any) -> Any:
    """Convert data that was read from JSON back to a value of a plan: the inverse of `_to_data`.

    raises   UnsupportedError if a class is unknown, or its fields are not those of this version of the package
    """
    if isinstance(data, list):
        return tuple([_from_data(entry) for entry in data])
    if not isinstance(data, dict):
        return data
    for key, read in (("layout", parse), ("dtype", DType.parse)):
        if data.keys() == {key}:
            return read(data[key])
    kind = _class_named(data.get(_TYPE))
    known = {field.name for field in fields(kind)} | {_TYPE}
    if data.keys() != known:
        strange = ", ".join(sorted(data.keys() ^ known))
        raise _of_another_version(f"{kind.__name__} has other fields: {strange}")
    values = {name: _from_data(value) for name, value in data.items() if name != _TYPE}
    try:
        return kind(**values)
    except CutegemmError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise _of_another_version(f"{kind.__name__} cannot be made: {error}") from error


def _class_named(name: Any) -> Any:
    """Return the dataclass of this package for a name in a saved plan, such as "plan.work.split.KSplit".

    raises   UnsupportedError if the subpackages `plan` and `tile` have no dataclass of this name
    """
    module, _, short = str(name).rpartition(".")
    try:
        kind = getattr(import_module(f"{_PACKAGE}{module}"), short) if str(name).startswith(_ROOMS) else None
    except (ImportError, AttributeError):
        kind = None
    if not (isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == f"{_PACKAGE}{module}"):
        raise _of_another_version(f"the class {shown(name)} is unknown")
    return kind


def _of_another_version(what: str) -> UnsupportedError:
    """Return the error to raise for a saved plan whose classes or fields are not those of this version of the package.

    what   what is wrong, such as "the class X is unknown"
    """
    return UnsupportedError(
        f"GemmPlan.from_json: the plan was saved by another version of cutegemm, or changed: {what}. Build the plan "
        "again with this version."
    )
