"""A text and a position in it: what the parsers of layouts have in common."""

from __future__ import annotations

import re
from typing import NoReturn

from cutegemm.errors import LayoutError

MAX_DIGITS = 1000  # longest integer, in characters
_SHOWN = 100  # characters that a message shows on each side of an error
_SPACE = re.compile(r"\s*")


class Scanner:
    """Base class of parsers: reads a text from left to right, and reports errors with a caret under the character.

    text        the text to read
    operation   name of the operation, for messages

    >>> scanner = Scanner("(4, 8)", "parse")
    >>> scanner.accept("("), scanner.accept(")"), scanner.position
    (True, False, 1)
    >>> scanner.expect(")")
    Traceback (most recent call last):
        ...
    cutegemm.errors.LayoutError: parse: ')' is expected at '4'.
      (4, 8)
       ^
    """

    def __init__(self, text: str, operation: str) -> None:
        self.text, self.operation = text, operation
        self.position = 0

    def here(self) -> int:
        """Move past whitespace, and return the index in the text of the next character."""
        self.position = _SPACE.match(self.text, self.position).end()  # type: ignore[union-attr]
        return self.position

    def accept(self, symbol: str) -> bool:
        """Move past a symbol, such as "(", if it comes next in the text; return True if it does."""
        if not self.text.startswith(symbol, self.here()):
            return False
        self.position += len(symbol)
        return True

    def expect(self, symbol: str, expected: str | None = None) -> None:
        """Move past a symbol of the text, such as ")"; raise LayoutError if it does not come next.

        symbol     the symbol
        expected   description of it for the error; None: the symbol itself
        """
        if not self.accept(symbol):
            self.fail(expected or repr(symbol))

    def value_of(self, digits: str, at: int) -> int:
        """Return the integer that digits, with an optional sign and "_", stand for; raise LayoutError for too many.

        at   position of the digits in the text
        """
        if len(digits) > MAX_DIGITS:
            self.refuse(f"an integer of {len(digits)} characters; at most {MAX_DIGITS} are allowed.", at)
        return int(re.sub(r"[_\s]", "", digits))

    def fail(self, expected: str) -> NoReturn:
        """Raise LayoutError at the current position of the text.

        expected   description of the text that is missing there
        """
        at = self.here()
        found = "the end of the text" if at == len(self.text) else repr(self.text[at])
        self.refuse(f"{expected} is expected at {found}.", at)

    def refuse(self, reason: str, at: int, cause: Exception | None = None) -> NoReturn:
        """Raise LayoutError with a reason, the text around a position, and a caret under it.

        reason   what is wrong
        at       position of the first wrong character
        cause    exception that the error is raised from; None: no other one
        """
        start = max(0, at - _SHOWN)  # a long text is cut on both sides
        before, after = "..." if start else "", "..." if at + _SHOWN < len(self.text) else ""
        shown = before + re.sub(r"\s", " ", self.text[start : at + _SHOWN]) + after
        raise LayoutError(f"{self.operation}: {reason}\n  {shown}\n  {' ' * (at - start + len(before))}^") from cause
