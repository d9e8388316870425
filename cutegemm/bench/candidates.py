"""Plans around the ladder's steps, to choose the next ones from: `--plan @sm90` times them all."""

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
                ("along_n", "along_m", "grouped_m:16"),
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
    ]
)
