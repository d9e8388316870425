"""Functions that the classes of lower modules call and higher modules provide.

`Layout.parse` needs the parser, and a notebook's display of a layout needs the drawings; both are built on `Layout`.
Each provider registers itself here, so that imports keep going one way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """A function that is provided later.

    >>> double = Hook("double")
    >>> double.register(lambda x: 2 * x)
    >>> double(4)
    8
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._function: Callable[..., Any] | None = None

    def register(self, function: Callable[..., Any]) -> None:
        """Provide the function."""
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        """Call the registered function.

        raises   NotImplementedError if no function is registered
        """
        if self._function is None:
            raise NotImplementedError(f"{self.name}: no function is registered.")
        return self._function(*arguments)


class Shown:
    """The base of what a notebook shows as a drawing, or as text with more than its `str`."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(notebook(self))


composition = Hook("composition")  # (layout, layout) -> layout; registered by `cutegemm.layout`
parse = Hook("parse")  # text -> layout; registered by `cutegemm.layout`
notebook = Hook("notebook")  # what is `Shown` -> HTML; registered by `cutegemm`
