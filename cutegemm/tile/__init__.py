"""Atoms (single instructions), tiled copies and MMAs that repeat them over threads, and rasters (tile orders)."""

from cutegemm.tile.atoms import CopyAtom, MmaAtom
from cutegemm.tile.copy_atoms import cp_async, ldmatrix, stmatrix, universal_copy
from cutegemm.tile.mma_atoms import fma, mma_atom, mma_atoms, mma_sync, wgmma
from cutegemm.tile.raster import Raster
from cutegemm.tile.simt import simt_tiled_mma
from cutegemm.tile.smem_atoms import smem_atom, widest_smem_kind
from cutegemm.tile.tiled_copy import (
    ThrCopy,
    TiledCopy,
    make_tiled_copy,
    make_tiled_copy_A,
    make_tiled_copy_B,
    make_tiled_copy_C,
    make_tiled_copy_C_atom,
    make_tiled_copy_D,
    make_tiled_copy_S,
    make_tiled_copy_tv,
)
from cutegemm.tile.tiled_mma import ThrMma, TiledMma, make_tiled_mma
from cutegemm.tile.tma import TmaBox
from cutegemm.tile.tv import make_layout_tv

__all__ = [
    "CopyAtom",
    "MmaAtom",
    "Raster",
    "ThrCopy",
    "ThrMma",
    "TiledCopy",
    "TiledMma",
    "TmaBox",
    "cp_async",
    "fma",
    "ldmatrix",
    "make_layout_tv",
    "make_tiled_copy",
    "make_tiled_copy_A",
    "make_tiled_copy_B",
    "make_tiled_copy_C",
    "make_tiled_copy_C_atom",
    "make_tiled_copy_D",
    "make_tiled_copy_S",
    "make_tiled_copy_tv",
    "make_tiled_mma",
    "mma_atom",
    "mma_atoms",
    "mma_sync",
    "simt_tiled_mma",
    "smem_atom",
    "stmatrix",
    "universal_copy",
    "wgmma",
    "widest_smem_kind",
]
