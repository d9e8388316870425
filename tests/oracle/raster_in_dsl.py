"""Run as a program: rasters traced by the DSL with values known at run time only, then run on the CPU."""

from __future__ import annotations

from cutegemm.tile.raster import Raster

RASTERS = ("along_m", "along_n", "grouped_m:3", "grouped_n:4", "hilbert:4")
GRID = (5, 7)
POSITIONS = range(0, 70, 9)


def show_all() -> None:
    """Prints (m_tile, n_tile, l) of each raster at each position, a line each."""
    import cutlass
    import cutlass.cute as cute

    def show_each(position, grid_m, grid_n):
        for text in RASTERS:
            cute.printf("%d %d %d", *Raster.parse(text).tile(position, grid_m, grid_n, cutlass.min))

    @cute.jit
    def show(position, grid_m, grid_n):
        show_each(position, grid_m, grid_n)

    for position in POSITIONS:
        show(cutlass.Int32(position), *map(cutlass.Int32, GRID))


if __name__ == "__main__":
    show_all()
