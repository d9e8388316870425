"""Named lists of plans for `gemm --plan @NAME`, such as `@sm90_tiles`."""

from __future__ import annotations

import re
from itertools import product

from cutegemm.choice.recipe import SWAP_AB
from cutegemm.choice.sm90.named import SM90_CHOSEN


def spelled(text: str) -> tuple[str, ...]:
    """Return a text for each combination of the alternatives in braces; the last braces vary fastest.

    >>> spelled("a{|,b=1}/{x|y}")
    ('a/x', 'a/y', 'a,b=1/x', 'a,b=1/y')
    """
    parts = [re.split(r"[{}]", line) for line in text.split()]
    return tuple(
        ["".join(chosen) for part in parts for chosen in product(*[alternatives.split("|") for alternatives in part])]
    )


_TILES = tuple([recipe.name for recipe in SM90_CHOSEN])

LISTS = {
    # The candidates of `choose`, for D and for its transpose: `--suite shapes`
    "@sm90_tiles": (*_TILES, *(SWAP_AB + name for name in _TILES)),
    # fp8 with promoted accumulators, and with those of wgmma alone
    "@sm90_fp8": spelled("""
        sm90:tile=128x{128|160|192}x128,schedule=cooperative,cluster={1x1|1x2|2x1},promoted=1
        sm90:tile=64x{128|192}x128,promoted=1,cluster={1x1|2x1}
        sm90:tile=128x{128|192}x128,cluster={1x1|1x2|2x1}
        sm90:tile={128x256|256x128}x128,schedule=cooperative,cluster={1x1|1x2|2x1}{|,deferred=1,stagger_cycles=300}
    """),
}
