"""Functions that the classes of lower modules call and higher modules provide.

`Layout.parse` needs the parser, and the display of a layout in a notebook needs the drawings. Both are built on
`Layout`. Each of them registers its function here, so that imports go in one direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """Stands for a function that a module imported later provides, so that modules need not import each other.

    Calls of the object are passed to the function that was registered; before that, they raise an error.

    name   name for the error message of a call before the registration

    >>> double = Hook("double")
    >>> double.register(lambda x: 2 * x)
    >>> double(4)
    8
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._function: Callable[..., Any] | None = None

    def register(self, function: Callable[..., Any]) -> None:
        """Set the function that calls of this hook are passed to."""
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        """Call the registered function and return its result.

        raises   NotImplementedError if no function is registered
        """
        if self._function is None:
            raise NotImplementedError(f"{self.name}: no function is registered.")
        return self._function(*arguments)


class Shown:
    """Base class of objects, such as layouts, that a Jupyter notebook displays as a drawing or as formatted text."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return the HTML that a Jupyter notebook displays for this object."""
        return str(notebook(self))


class Listing(Shown):
    """Base class of warp programs: a Jupyter notebook displays their text with each line's first word in bold."""

    __slots__ = ()


composition = Hook("composition")  # (layout, layout) -> layout; registered by `cutegemm.layout`
parse = Hook("parse")  # text -> layout; registered by `cutegemm.layout`
fused = Hook("fused")  # (epilogue, kinds of its operands) -> FusedEpilogue; registered by `cutegemm`
notebook = Hook("notebook")  # an object of a subclass of `Shown` -> HTML; registered by `cutegemm`
