"""What a page shows, as the query of its link: every choice is in it, and what is as by default is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import parse_qsl, urlencode

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "view": "layouts",
        # layouts
        "expr": "zipped_divide((8,12):(12,1), (4,3))",
        "bits": "16",
        "cells": "offsets",
        "color": "bank",
        # a plan
        "plan": "sm90_pingpong",
        "dtype": "",
        "layout": "nt",
        "problem": "4096x4096x4096",
        "device": "h200",
        "epilogue": "",
        "operands": "",
        # its views
        "m": "0",
        "n": "0",
        "access": "",
        "warp": "",
        "request": "",
        "t": "0",
        "role": "",
        "find": "",
    }
)
_MOST = 4000  # characters of a value: what a link may hold
EDIT = "o."  # what the names of options of a plan begin with, where they are edited


@dataclass(frozen=True)
class State:
    """The choices of a page.

    edits   options of the plan that were edited, by name
    """

    values: Mapping[str, str]
    edits: Mapping[str, str]

    @staticmethod
    def of(query: str) -> State:
        """The state that a query stands for; names that there are not are passed over.

        >>> state = State.of("?view=banks&plan=simt_64x64&o.stages=3&nothing=1")
        >>> state.view, state["plan"], state["layout"], dict(state.edits)
        ('banks', 'simt_64x64', 'nt', {'stages': '3'})
        """
        given = {key: value[:_MOST] for key, value in parse_qsl(query.lstrip("?"), keep_blank_values=True)}
        known = {key: value for key, value in given.items() if key in DEFAULTS}
        edits = {key[len(EDIT) :]: value for key, value in given.items() if key.startswith(EDIT)}
        return State({**DEFAULTS, **known}, edits)

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    @property
    def view(self) -> str:
        """The view that is shown."""
        return self.values["view"]

    def number(self, name: str, below: int, otherwise: int = 0) -> int:
        """A value as a number of a list of so many; otherwise where it is none."""
        try:
            return max(0, min(below - 1, int(self.values[name])))
        except ValueError:
            return otherwise

    def with_(self, **changes: str | int) -> State:
        """The state with other values, and nothing edited any more."""
        return State({**self.values, **{name: str(value) for name, value in changes.items()}}, {})

    @property
    def query(self) -> str:
        """The query of the link to it.

        >>> State.of("view=banks&bits=16").with_(warp=2).query
        '?view=banks&warp=2'
        """
        told = {name: value for name, value in self.values.items() if value != DEFAULTS[name]}
        told = {"view": self.view, **told}
        return "?" + urlencode(told, safe="(),:/*<>=")
