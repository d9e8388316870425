"""Plans around the ladder's steps, to choose the next ones from: `--plan @sm90` times the first list."""

from __future__ import annotations

import re
from itertools import product

from cutegemm.choose.recipe import TRANSPOSED
from cutegemm.choose.sm90.named import SM90_CHOSEN


def spelled(text: str) -> tuple[str, ...]:
    """A line for each choice among the alternatives in braces; the last ones change first.

    >>> spelled("a{|,b=1}/{x|y}")
    ('a/x', 'a/y', 'a,b=1/x', 'a,b=1/y')
    """
    parts = [re.split(r"[{}]", line) for line in text.split()]
    return tuple(
        [
            "".join(chosen)
            for part in parts
            for chosen in product(*[alternatives.split("|") for alternatives in part])
        ]
    )


_TILES = tuple([recipe.name for recipe in SM90_CHOSEN])

LISTS = {
    # What `choose` considers, as it is and transposed: `--suite shapes`
    "@sm90_tiles": (*_TILES, *(TRANSPOSED + name for name in _TILES)),
    "@sm90": spelled("""
        sm90:tile=128x128x64,slots=4{|,cluster=1x2|,cluster=2x1},raster={along_n|along_m|grouped_m:16|hilbert:8}{|,l2=normal+normal+first}
        sm90:tile=128x192x64,slots=3{|,cluster=1x2|,cluster=2x1},raster={along_n|along_m|grouped_m:8}
        sm90:tile=128x192x64,slots=2,cluster={1x2|2x1},raster=along_m
        sm90:tile=192x128x64,slots=3{|,cluster=1x2|,cluster=2x1},raster=grouped_m:8
        sm90:tile={128x256x64,schedule=cooperative,cluster=2x1|256x128x64,schedule=cooperative,cluster=1x2},stagger_cycles={0|550},raster={grouped_m:8|along_m}
        sm90:tile={128x256x64,cluster=2x1|256x128x64,cluster=1x2},schedule=cooperative,deferred=1,stagger_cycles={0|500|1000},store={tma|tma_warp}
        sm90:tile=256x160x64,schedule=cooperative,cluster={2x1|1x2}
        sm90:tile=256x192x64,schedule=cooperative,cluster=2x1,stagger_cycles=800
        sm90:tile=64x256x64,slots=4,cluster=2x1,raster=along_n
        sm90:tile=128x128x64,consumers=3,slots=2,raster=along_n{|,cluster=1x2|,l2=normal+normal+first}
    """),
    # For few tiles: parts that fill the multiprocessors, of tiles that load few bytes for each of B. `--suite small`
    "@sm90_split": spelled("""
        sm90_64x64/k{2|4}
        sm90_64x{128|256}/k{2|4|8}
        sm90_{slots|cluster_1x2}/k{2|4}
        sm90_cooperative/k{2|4|8}
        sm90:tile=64x64x64,subtile_n=32,cluster={1x2|1x4},split_k=2
        sm90:tile=64x128x{64,slots=2,cluster=1x2|128,slots=2|64,schedule=cooperative,consumers=1},split_k=2
        sm90:tile=64x256x64,schedule=cooperative,consumers=1,split_k=4
        sm90:tile=128x128x64,schedule=cooperative,split_k={2|4}
        transposed:sm90_64x{16|32}/k{2|4}
        sm90_{64x64|64x128|slots}/stream
    """),
    # For tiles that do not fill the waves: `--suite llama`
    "@sm90_stream": spelled("""
        sm90_{cooperative_2x1|tall_1x2|wide_2x1|256x160|cluster_2x1}/stream{|1}
        sm90_{deferred_2x1|deferred_tall_1x2|cluster_2x1|wide_2x1|wide_1x2|128x160_2x1|128x176_2x1|256x160_1x2}/fill
        sm90_{cooperative_2x1|tall_1x2}/k2
        sm90:tile=256x{192|160}x64,schedule=cooperative,cluster=2x1,stream=2
        sm90:tile=128x256x64,schedule=cooperative,cluster=2x1,stagger_cycles=500,{stages=3,slots=4|store=tma_warp}{|,deferred=1}
    """),
    # With sums in full, and as wgmma keeps them.
    "@sm90_fp8": spelled("""
        sm90:tile=128x{128|160|192}x128,schedule=cooperative,cluster={1x1|1x2|2x1},two_level=1
        sm90:tile=64x{128|192}x128,two_level=1,cluster={1x1|2x1}
        sm90:tile=128x{128|192}x128,cluster={1x1|1x2|2x1}
        sm90:tile={128x256|256x128}x128,schedule=cooperative,cluster={1x1|1x2|2x1}{|,deferred=1,stagger_cycles=300}
    """),
    **{
        name: spelled(f"""
            mma_sync:block=128x256x{k},stages=4,mma_order={{m|n}},arch=sm_90
            mma_sync:block=128x256x{k},stages=3,mma_order=m,arch=sm_90
            mma_sync:block=128x256x{k},stages=4,mma_order=m,{{warps_along=n|raster=grouped_m:16|raster=grouped_n:8|shares=2|cache=ca}},arch=sm_90
            mma_sync:block=256x128x{k},stages=4,mma_order=m{{|,raster=grouped_n:8}},arch=sm_90
            mma_sync:block=128x128x{k},stages=3,mma_order=m,ctas_per_sm=2,arch=sm_90
        """)
        for name, k in (("@mma_sync", 64), ("@mma_sync_tf32", 32))
    },
}
