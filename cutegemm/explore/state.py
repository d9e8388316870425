"""The state of a page, which is the query of its link: all choices of the user that differ from their defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
        "plan": "sm90_overlapped_2x1",  # what `gemm` chooses for the other defaults
        "dtype": "",
        "layout": "nt",
        "problem": "4096x4096x4096",
        "device": "h200",
        "epilogue": "",
        "operands": "",
        "groups": "",
        "along": "m",
        "ends": "",
        "sizes": "",
        "last": "",  # query of the last plan that could be built, while a rule is broken; see `State.remembered`
        # the views of a plan
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
_MOST = 4000  # limit of the characters of a value
EDIT = "o."  # prefix of the field names that edit options of a plan


@dataclass(frozen=True)
class State:
    """Holds a user's choices on the explorer's web page, such as view, plan and problem, as the URL's query has them.

    values   text of each choice by name, e.g. "view" -> "banks"; every choice has an entry
    edits    options of the plan that the user edited in a form: name -> text, e.g. "stages" -> "3"
    """

    values: Mapping[str, str]
    edits: Mapping[str, str]

    @staticmethod
    def of(query: str) -> State:
        """Return a user's choices on the explorer's web page, as the query of its URL describes them.

        query   such as "view=banks&plan=simt_64x64". Unknown names are ignored and missing ones have their defaults

        >>> state = State.of("?view=banks&plan=simt_64x64&o.stages=3&nothing=1")
        >>> state.view, state["plan"], state["layout"], dict(state.edits)
        ('banks', 'simt_64x64', 'nt', {'stages': '3'})
        """
        given = {key: value[:_MOST] for key, value in parse_qsl(query.lstrip("?"), keep_blank_values=True)}
        known = {key: value for key, value in given.items() if key in DEFAULTS}
        edits = {key[len(EDIT) :]: value for key, value in given.items() if key.startswith(EDIT)}
        return State({**DEFAULTS, **known}, edits)

    def __getitem__(self, name: str) -> str:
        """Return one of a user's choices on the web page, as text.

        name   name of the choice, such as "plan"
        """
        return self.values[name]

    @property
    def view(self) -> str:
        """Name of the web page's view that the user has chosen, such as "layouts" or "banks"."""
        return self.values["view"]

    def number(self, name: str, below: int, otherwise: int = 0) -> int:
        """Return one of a user's choices on the web page as an integer, clamped to [0, below).

        name        name of the choice, such as "warp"
        below       first value that is not allowed
        otherwise   result if the choice is not an integer
        """
        try:
            return max(0, min(below - 1, int(self.values[name])))
        except ValueError:
            return otherwise

    def with_(self, **changes: str | int) -> State:
        """Return a copy of a user's choices on the web page with some of them changed.

        Plan options that the user edited in a form, such as stages=3, are not copied: they belong to the old page.

        changes   new values by the names of choices, e.g. plan="simt_64x64". The names are the keys of `DEFAULTS`, such
                  as "view", "plan", "problem" and "warp"
        """
        return State({**self.values, **{name: str(value) for name, value in changes.items()}}, {})

    def remembering(self, names: Iterable[str]) -> State:
        """Return a user's choices on the web page, with the present values of `names` also stored in the choice "last".

        So the page keeps the last plan that could be built while the user types another one; `remembered` restores it.

        names   names of choices, such as "plan"
        """
        return replace(self, values={**self.values, "last": urlencode({name: self[name] for name in names})})

    @property
    def remembered(self) -> State | None:
        """A user's choices with the values that `remembering` stored, e.g. the last plan that could be built.

        None if nothing is stored.

        >>> state = State.of("view=banks&plan=simt_64x64").remembering(["plan"])
        >>> State.of(state.with_(plan="simt_64x6").query).remembered["plan"]
        'simt_64x64'
        """
        known = {name: value for name, value in parse_qsl(self["last"], keep_blank_values=True) if name in DEFAULTS}
        return self.with_(**{**known, "last": "", "view": self.view}) if known else None

    @property
    def query(self) -> str:
        """Shortest query of a URL for a user's choices: the view, and the values that differ from their defaults.

        >>> State.of("view=banks&bits=16").with_(warp=2).query
        '?view=banks&warp=2'
        """
        changed = {name: value for name, value in self.values.items() if value != DEFAULTS[name]}
        return "?" + urlencode({"view": self.view, **changed}, safe="(),:/*<>=")
