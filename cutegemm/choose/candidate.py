"""What a choice is made among."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.choose.recipe import Recipe


@dataclass(frozen=True)
class Candidate:
    """A plan among which there is a choice.

    us      microseconds that the model of its family predicts, packing included
    bound   what takes most of them
    """

    recipe: Recipe
    us: float
    bound: str
