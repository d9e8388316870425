"""The TiledMma of a SIMT kernel, from block, warp and thread tiles."""

from __future__ import annotations

from functools import lru_cache

from cutegemm.errors import PlanError
from cutegemm.layout.layout import Layout
from cutegemm.tile.atoms import MmaAtom, require
from cutegemm.tile.mma_atoms import fma
from cutegemm.tile.tiled_mma import TiledMma

LANES = 32  # threads of a warp; CUDA C++ Programming Guide, "SIMT Architecture"


def simt_tiled_mma(
    block_mn: tuple[int, int],
    warp_mn: tuple[int, int],
    thread_mn: tuple[int, int],
    *,
    atom: MmaAtom | None = None,
    quad_mn: tuple[int, int] = (4, 4),
    lanes_along: str = "m",
    warps_along: str = "m",
) -> TiledMma:
    """Return the TiledMma of a CUDA-core GEMM: a CTA tile is cut into warp tiles, and warp tiles into thread tiles.

    block_mn      extents of the CTA tile, in elements
    warp_mn       extents of a warp tile; they divide the block tile
    thread_mn     extents of the tile of a thread; 32 of them make a warp tile
    atom          an instruction of a single thread; None for the FMA of f32
    quad_mn       extents of a quad, a block of elements that a thread reads together; they divide the thread tile. 4
                  elements of 32 bits are one 128-bit load
    lanes_along   "m" or "n": the mode along which the lanes of a warp are counted first
    warps_along   "m" or "n": the mode along which the warps of a block are counted first
    raises        PlanError with every broken rule

    The tile of a thread is divided into quads. The first quads of all lanes of a warp are neighbours, so that a warp
    reads a contiguous run of shared memory. The next quads follow after that run. With 8x8 elements per thread in quads
    of 4x4, and 8 x 4 lanes, the rows of a lane in its warp tile of 64 rows are 4*lane .. 4*lane + 3, and these plus 32.

    Law: for each quad < thread_m / quad_m and row < quad_m, thread t = lane + 32 * warp holds the row

        warp_m * warp_tile_m + quad * (lanes_m * quad_m) + lane_m * quad_m + row

    Its columns follow the same rule. Value (i, j) of `partition_C` is in the i-th of its rows and the j-th of its
    columns.

    >>> mma = simt_tiled_mma((128, 128), (64, 32), (8, 8))
    >>> mma.threads, str(mma.atom_layout_mnk)
    (256, '((8,2),(4,4),1):((1,32),(8,64),0)')
    >>> [str(p) for p in mma.permutation_mnk]
    ['((8,2),(4,2)):((4,64),(1,32))', '((4,4),(4,2)):((4,32),(1,16))', 'None']
    """
    atom = fma() if atom is None else atom
    require("simt_tiled_mma", atom, MmaAtom, "an MMA atom")
    subject = f"simt_tiled_mma of block {_x(block_mn)}, warp {_x(warp_mn)}, thread {_x(thread_mn)}"
    rules = _violations(atom, block_mn, warp_mn, thread_mn, quad_mn, lanes_along, warps_along)
    if rules:
        raise PlanError(subject, rules)
    return _made(atom, block_mn, warp_mn, thread_mn, quad_mn, lanes_along, warps_along)


@lru_cache(maxsize=1024)
def _made(
    atom: MmaAtom,
    block_mn: tuple[int, int],
    warp_mn: tuple[int, int],
    thread_mn: tuple[int, int],
    quad_mn: tuple[int, int],
    lanes_along: str,
    warps_along: str,
) -> TiledMma:
    """Return the TiledMma whose CTA tile is cut into warp tiles, these into thread tiles, these into quads.

    The arguments must be valid; all extents are (M, N) in elements.

    atom                       instruction of a single thread, e.g. an FMA
    block_mn                   extents of the CTA tile
    warp_mn                    extents of a warp tile
    thread_mn                  extents of a thread's tile
    quad_mn                    extents of a block of elements that a thread reads together
    lanes_along, warps_along   "m" or "n": mode along which lanes and warps are counted first
    """
    lanes = (warp_mn[0] // thread_mn[0], warp_mn[1] // thread_mn[1])
    warps = (block_mn[0] // warp_mn[0], block_mn[1] // warp_mn[1])
    lane_strides = (1, lanes[0]) if lanes_along == "m" else (lanes[1], 1)
    warp_strides = (LANES, LANES * warps[0]) if warps_along == "m" else (LANES * warps[1], LANES)
    atom_layout = Layout((*zip(lanes, warps, strict=True), 1), (*zip(lane_strides, warp_strides, strict=True), 0))
    permutation = [
        Layout(
            ((lanes[i], warps[i]), (quad_mn[i], thread_mn[i] // quad_mn[i])),
            ((quad_mn[i], warp_mn[i]), (1, lanes[i] * quad_mn[i])),
        )
        for i in (0, 1)
    ]
    return TiledMma(atom, atom_layout, (permutation[0], permutation[1], None))


def _violations(
    atom: MmaAtom,
    block: tuple[int, int],
    warp: tuple[int, int],
    thread: tuple[int, int],
    quad: tuple[int, int],
    lanes_along: str,
    warps_along: str,
) -> list[str]:
    """Return the rules that the arguments of `simt_tiled_mma` violate, as phrases for an error message.

    All extents are (M, N) in elements.

    atom                       instruction of a single thread, e.g. an FMA
    block, warp, thread        extents of the CTA tile, a warp tile and a thread's tile
    quad                       extents of a block of elements that a thread reads together
    lanes_along, warps_along   "m" or "n": mode along which lanes and warps are counted first
    """
    sizes = {"block": block, "warp": warp, "thread": thread, "quad": quad}
    rules = [
        f"the {name} tile {extents!r} is not a pair of positive extents"
        for name, extents in sizes.items()
        if not (isinstance(extents, tuple) and len(extents) == 2 and all(type(s) is int and s > 0 for s in extents))
    ]
    if not rules:
        for i, mode in enumerate("MN"):
            for outer, inner in (("block", "warp"), ("warp", "thread"), ("thread", "quad")):
                large, small = sizes[outer][i], sizes[inner][i]
                if large % small:
                    rules.append(
                        f"{large} elements of the {outer} tile along {mode} are not a multiple of the {small} of the "
                        f"{inner} tile"
                    )
        lanes = (warp[0] // thread[0], warp[1] // thread[1])
        if lanes[0] * lanes[1] != LANES:
            rules.append(
                f"a warp tile of {_x(warp)} has {lanes[0]} x {lanes[1]} = {lanes[0] * lanes[1]} thread tiles of "
                f"{_x(thread)}, but a warp has {LANES} lanes"
            )
    if atom.threads != 1 or atom.shape_mnk != (1, 1, 1):
        rules.append(f"the atom {atom} is not a single multiply-add of one thread")
    for name, along in (("lanes_along", lanes_along), ("warps_along", warps_along)):
        if along not in ("m", "n"):
            rules.append(f"{name} = {along!r} is not m or n")
    return rules


def _x(extents: object) -> str:
    """Return extents as text for a message: (64, 32) becomes '64x32'."""
    return "x".join(str(s) for s in extents) if isinstance(extents, tuple) else repr(extents)
