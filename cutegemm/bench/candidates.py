"""Plans around the ladder's steps, to choose the next ones from: `--plan @sm90` times the first list."""

from __future__ import annotations

from itertools import product

_PINGPONG = "tile=128x128x64,slots=4"
_WIDE = "tile=128x192x64"
_COOPERATIVE = "schedule=cooperative"

SM90 = tuple(
    [
        *[
            f"sm90:{_PINGPONG},{cluster}raster={raster}{l2}"
            for cluster, raster, l2 in product(
                ("", "cluster=1x2,", "cluster=2x1,"),
                ("along_n", "along_m", "grouped_m:16", "hilbert:8"),
                ("", ",l2=normal+normal+first"),
            )
        ],
        *[
            f"sm90:{_WIDE},slots=3,{cluster}raster={raster}"
            for cluster, raster in product(
                ("", "cluster=1x2,", "cluster=2x1,"), ("along_n", "along_m", "grouped_m:8")
            )
        ],
        f"sm90:{_WIDE},slots=2,cluster=1x2,raster=along_m",
        f"sm90:{_WIDE},slots=2,cluster=2x1,raster=along_m",
        *[
            f"sm90:tile=192x128x64,slots=3,{cluster}raster=grouped_m:8"
            for cluster in ("", "cluster=1x2,", "cluster=2x1,")
        ],
        *[
            f"sm90:tile={tile}x64,{_COOPERATIVE},cluster={cluster},stagger_cycles={cycles},raster={raster}"
            for (tile, cluster), cycles, raster in product(
                (("128x256", "2x1"), ("256x128", "1x2")), (0, 550), ("grouped_m:8", "along_m")
            )
        ],
        f"sm90:tile=256x160x64,{_COOPERATIVE},cluster=2x1",
        f"sm90:tile=256x160x64,{_COOPERATIVE},cluster=1x2",
        f"sm90:tile=256x192x64,{_COOPERATIVE},cluster=2x1,stagger_cycles=800",
        "sm90:tile=64x256x64,slots=4,cluster=2x1,raster=along_n",
        *[
            f"sm90:tile=128x128x64,consumers=3,slots=2,raster=along_n{more}"
            for more in ("", ",cluster=1x2", ",l2=normal+normal+first")
        ],
    ]
)

# For few tiles: parts that fill the multiprocessors, of tiles that load few bytes for each of B. `--suite small`
SM90_SPLIT = tuple(
    [
        *[
            f"{name}/k{parts}"
            for name, some in (
                ("sm90_64x64", (2, 4)),
                ("sm90_64x128", (2, 4, 8)),
                ("sm90_64x256", (2, 4, 8)),
                ("sm90_slots", (2, 4)),
                ("sm90_cluster_1x2", (2, 4)),
                ("sm90_cooperative", (2, 4, 8)),
            )
            for parts in some
        ],
        *[
            f"sm90:{tile},{cluster}split_k={parts}"
            for tile, cluster, parts in (
                ("tile=64x64x64,subtile_n=32", "cluster=1x2,", 2),
                ("tile=64x64x64,subtile_n=32", "cluster=1x4,", 2),
                ("tile=64x128x64,slots=2", "cluster=1x2,", 2),
                ("tile=64x128x128,slots=2", "", 2),
                (f"tile=64x128x64,{_COOPERATIVE},consumers=1", "", 2),
                (f"tile=64x256x64,{_COOPERATIVE},consumers=1", "", 4),
                (f"tile=128x128x64,{_COOPERATIVE}", "", 2),
                (f"tile=128x128x64,{_COOPERATIVE}", "", 4),
            )
        ],
        *[f"transposed:{name}/k{parts}" for name in ("sm90_64x16", "sm90_64x32") for parts in (2, 4)],
        "sm90_64x64/stream",
        "sm90_64x128/stream",
        "sm90_slots/stream",
    ]
)

# For tiles that do not fill the waves: `--suite llama`
SM90_STREAM = tuple(
    [
        *[
            f"{name}/{split}"
            for name in (
                "sm90_cooperative_2x1",
                "sm90_tall_1x2",
                "sm90_wide_2x1",
                "sm90_256x160",
                "sm90_cluster_2x1",
            )
            for split in ("stream", "stream1")
        ],
        "sm90_cooperative_2x1/k2",
        "sm90_tall_1x2/k2",
        f"sm90:tile=256x192x64,{_COOPERATIVE},cluster=2x1,stream=2",
        f"sm90:tile=256x160x64,{_COOPERATIVE},cluster=2x1,stream=2",
    ]
)

# With sums in full, and as wgmma keeps them.
SM90_FP8 = tuple(
    [
        *[
            f"sm90:tile={tile}x128,{_COOPERATIVE},cluster={cluster},two_level=1"
            for tile, cluster in product(("128x128", "128x160", "128x192"), ("1x1", "1x2", "2x1"))
        ],
        *[
            f"sm90:tile={tile}x128,two_level=1,cluster={cluster}"
            for tile, cluster in product(("64x128", "64x192"), ("1x1", "2x1"))
        ],
        *[
            f"sm90:tile=128x{n}x128,cluster={cluster}"
            for n, cluster in product((128, 192), ("1x1", "1x2", "2x1"))
        ],
        *[
            f"sm90:tile={tile}x128,{_COOPERATIVE},cluster={cluster}"
            for tile, cluster in product(("128x256", "256x128"), ("1x1", "1x2", "2x1"))
        ],
    ]
)

_MMA_SYNC = (
    "block=128x256x{k},stages=4,mma_order=m",
    "block=128x256x{k},stages=4,mma_order=n",
    "block=128x256x{k},stages=3,mma_order=m",
    "block=128x256x{k},stages=4,mma_order=m,warps_along=n",
    "block=128x256x{k},stages=4,mma_order=m,raster=grouped_m:16",
    "block=128x256x{k},stages=4,mma_order=m,raster=grouped_n:8",
    "block=128x256x{k},stages=4,mma_order=m,shares=2",
    "block=128x256x{k},stages=4,mma_order=m,cache=ca",
    "block=256x128x{k},stages=4,mma_order=m",
    "block=256x128x{k},stages=4,mma_order=m,raster=grouped_n:8",
    "block=128x128x{k},stages=3,mma_order=m,ctas_per_sm=2",
)
MMA_SYNC = tuple([f"mma_sync:{options.format(k=64)},arch=sm_90" for options in _MMA_SYNC])
MMA_SYNC_TF32 = tuple([f"mma_sync:{options.format(k=32)},arch=sm_90" for options in _MMA_SYNC])

LISTS = {
    "@sm90": SM90,
    "@sm90_split": SM90_SPLIT,
    "@sm90_stream": SM90_STREAM,
    "@sm90_fp8": SM90_FP8,
    "@mma_sync": MMA_SYNC,
    "@mma_sync_tf32": MMA_SYNC_TF32,
}
