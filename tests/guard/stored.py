"""The file of the guard's record: a line for each plan, and for each plan that is chosen, with its problems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Sections with a value for each plan. A plan without roles has no interleavings.
OF_PLANS = ("machine_code", "programs", "interleavings")
CHOICES = "choices"

Section = Mapping[str, Any]


def text_of(dsl: str, sections: Mapping[str, Section]) -> str:
    """Return the text of the file.

    dsl        version of the DSL that the sections were made with
    sections   `OF_PLANS` and `CHOICES`, each with its values by label

    >>> one = {"machine_code": {"a": "1", "b": "2"}, "programs": {"a": "3", "b": "4"}, "interleavings": {"b": [[], 5]}}
    >>> print(text_of("4", {**one, "choices": {"8x8x8": ["p", "q"]}}))
    {
    "dsl": "4",
    "plans": {
    "a":["1","3",null],
    "b":["2","4",[[],5]]
    },
    "choices": {
    "p: q":"8x8x8"
    }
    }
    <BLANKLINE>
    """
    labels = sorted({label for name in OF_PLANS for label in sections[name]})
    plans = {label: [sections[name].get(label) for name in OF_PLANS] for label in labels}
    problems: dict[str, str] = {}
    for label, (name, built) in sorted(sections[CHOICES].items()):
        chosen = f"{name}: {built}"
        problems[chosen] = f"{problems[chosen]} {label}" if chosen in problems else label
    return f'{{\n"dsl": {json.dumps(dsl)},\n"plans": {_lines(plans)},\n"choices": {_lines(problems)}\n}}\n'


def read(text: str) -> tuple[str, dict[str, Section]]:
    """Return the arguments of `text_of` that make a text.

    >>> of_plans = {"machine_code": {"a": "1"}, "programs": {"a": "2"}, "interleavings": {"a": [[], 5]}}
    >>> read(text_of("4", {**of_plans, "choices": {}})) == ("4", {**of_plans, "choices": {}})
    True
    """
    held = json.loads(text)
    of_plans = {
        name: {label: values[place] for label, values in held["plans"].items() if values[place] is not None}
        for place, name in enumerate(OF_PLANS)
    }
    choices = {
        label: chosen.split(": ", 1) for chosen, labels in held["choices"].items() for label in labels.split(" ")
    }
    return held["dsl"], {**of_plans, CHOICES: choices}


def _lines(values: Section) -> str:
    """Return a JSON object with a line for each label, in alphabetical order."""
    lines = [f"{json.dumps(label)}:{json.dumps(values[label], separators=(',', ':'))}" for label in sorted(values)]
    return "{\n" + ",\n".join(lines) + "\n}"
