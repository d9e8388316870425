"""The command line and the output of compute-sanitizer.

Every line of the tool begins with =========. A message is a line without indentation and the indented lines below it.
Thread, block and address are removed, so that a message of many threads is one message with a count. The last message
is the tool's own summary.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_MOST_MESSAGES = 100_000  # messages that are counted; the tool's default is 100
_PREFIX = re.compile(r"^=========(?P<text>.*)$")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY:\s*(?P<text>.*)")
_COUNTS = re.compile(r"(\d+) (error|warning|hazard)s?\b")
_AT = re.compile(r"\bat (?P<where>\S.*)$")
_INSTANCE = re.compile(r"0x[0-9a-fA-F]+|\(\d+,\s*\d+,\s*\d+\)|\b\d+ bytes (?:after|before)\b")
_OF_THE_TOOL = ("COMPUTE-SANITIZER", "LEAK SUMMARY", "Saved host backtrace")
_NOT_RUN = ("Target application", "Error: process didn't", "Error: Target", "Internal Sanitizer Error")
_CALLS = "CUDA API call"


@dataclass(frozen=True)
class Message:
    """A message of a tool.

    text    its first line, without addresses and thread numbers
    where   the first place in code that it names; for a race those of both accesses
    count   how often it is printed
    """

    text: str
    where: str
    count: int

    @property
    def is_of_the_host(self) -> bool:
        """Return whether it is about a failed call of the host, not about the kernel."""
        return _CALLS in self.text

    def __str__(self) -> str:
        times = f"{self.count} times: " if self.count > 1 else ""
        return f"{times}{self.text}" + (f" at {self.where}" if self.where else "")


@dataclass(frozen=True)
class Outcome:
    """Result of a tool in one run.

    summary    the tool's last line, or the reason why it is missing
    finished   whether the tool printed its summary
    errors     number of errors that the tool counts
    warnings   number of warnings that the tool counts
    messages   the most frequent first
    """

    summary: str
    finished: bool
    errors: int
    warnings: int
    messages: tuple[Message, ...]

    @property
    def is_clean(self) -> bool:
        """Whether the tool ran to its end and reported nothing."""
        return self.finished and not self.errors and not self.warnings and not self.messages

    def to_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        messages = [{"text": m.text, "where": m.where, "count": m.count} for m in self.messages]
        return {
            "summary": self.summary, "finished": self.finished, "errors": self.errors,
            "warnings": self.warnings, "messages": messages,
        }  # fmt: skip


def command(target: Sequence[str], tool: str, *, sanitizer: str = "compute-sanitizer") -> list[str]:
    """Return the command line that runs `target` under a tool.

    tool   one of `TOOLS`

    >>> " ".join(command(["python", "x.py"], "racecheck")[:4])
    'compute-sanitizer --tool racecheck --print-limit'
    """
    out = [sanitizer, "--tool", tool, "--print-limit", str(_MOST_MESSAGES), "--target-processes", "all"]
    if tool == "racecheck":
        out += ["--racecheck-report", "analysis"]
    return [*out, *target]


def parse(text: str) -> Outcome:
    """Parse the output of a tool, which may be mixed with that of the target.

    >>> found = parse('''hello
    ... ========= COMPUTE-SANITIZER
    ... ========= Invalid __global__ write of size 2 bytes
    ... =========     at kernel+0x1a0
    ... =========     by thread (3,0,0) in block (0,0,0)
    ... =========
    ... ========= ERROR SUMMARY: 1 error''')
    >>> found.errors, str(found.messages[0])
    (1, 'Invalid __global__ write of size 2 bytes at kernel+0x1a0')
    """
    said: Counter[tuple[str, str]] = Counter()
    summary, errors, warnings, complaint = "", 0, 0, ""
    for head, details in _messages(text):
        ends = _SUMMARY.search(head)
        if ends is not None:
            summary = ends["text"].strip()
            counts = {what: int(number) for number, what in _COUNTS.findall(summary)}
            errors = counts.get("error", counts.get("hazard", 0))
            warnings = counts.get("warning", 0)
        elif head.startswith(_NOT_RUN):
            complaint = complaint or head
        elif not head.startswith(_OF_THE_TOOL):
            said[_without_instance(head), _where(head, details)] += 1
    messages = tuple([Message(text, where, count) for (text, where), count in said.most_common()])
    finished = bool(summary) and not complaint
    return Outcome(complaint or summary or "no summary", finished, errors, warnings, messages)


def _messages(text: str) -> list[tuple[str, list[str]]]:
    """Yield each message: its first line, and the indented lines below it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        match = _PREFIX.match(line)
        body = "" if match is None else match["text"]
        if not body.strip():
            continue
        if body.startswith("  "):
            if found:
                found[-1][1].append(body.strip())
        else:
            found.append((body.strip(), []))
    return found


def _without_instance(text: str) -> str:
    """Return a line without the numbers that differ between threads.

    >>> _without_instance("Potential WAR hazard detected at __shared__ 0x10 in block (0, 0, 0) :")
    'Potential WAR hazard detected at __shared__ ... in block ...'
    """
    return _INSTANCE.sub("...", text).rstrip(" :")


def _where(head: str, details: Sequence[str]) -> str:
    """Return the places in code that a message names."""
    if "race" in head.lower():  # both accesses: one in the first line, the others below
        lines = [head, *(line for line in details if "ccess" in line)]
        places = [found["where"] for line in lines for found in [_AT.search(line)] if found]
        return ", ".join(place.split(" [")[0] for place in places)
    found = next((match for line in details if (match := re.match(r"at (?P<where>.*)$", line))), None)
    return "" if found is None else found["where"]
