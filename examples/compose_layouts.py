"""Compose the tile layouts of a GEMM, from a matrix in memory to the elements of one thread.

Run it anywhere: python examples/compose_layouts.py
"""

from cutegemm import (
    Layout,
    LayoutError,
    composition,
    idx2crd,
    local_tile,
    make_identity_tensor,
    make_layout_tv,
    zipped_divide,
)


def main() -> None:
    """Print the layouts of a CTA tile, a warp tile and a thread, and the offsets of a thread's elements."""
    # D is 256 x 128, row-major. The tile of a CTA is 64 x 32.
    matrix = Layout((256, 128), (128, 1))
    tiles = zipped_divide(matrix, (64, 32))
    print(f"matrix                {matrix}")
    print(f"((tile), (grid))      {tiles}")
    print(f"tile (1, 2) starts at offset {tiles((0, 0), (1, 2))} = 64 * 128 + 2 * 32\n")

    # 8 x 4 threads with 4 x 4 elements each: a 32 x 16 warp tile.
    tile, tv = make_layout_tv(Layout((8, 4), (1, 8)), Layout((4, 4), (1, 4)))
    print(f"warp tile             {tile}")
    print(f"(thread, value)       {tv}")
    print(f"value 6 of thread 9 is the element {idx2crd(tv(9, 6), tile)} of the warp tile\n")

    # Offsets of a thread's elements in D: the layout of the warp tile in memory, composed with the thread-value layout.
    warp_tile = zipped_divide(tiles[0], tile)[0]
    offsets = composition(warp_tile, tv)
    print(f"warp tile in memory   {warp_tile}")
    print(f"(thread, value) in D  {offsets}")
    print(f"thread 9 has the elements at the offsets {offsets(9, None).offsets().tolist()}\n")

    # For predicates, tile the coordinates of the matrix in the same way as its elements.
    ragged = local_tile(make_identity_tensor((100, 50)), (64, 32), (1, 1))
    print(f"100 x 50 matrix: element (40, 20) of its last tile is element {ragged[40, 20]} of the matrix, so outside\n")

    # If no layout is the composition, the error names a coordinate that shows it.
    try:
        composition(Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3)))
    except LayoutError as error:
        print(error)


if __name__ == "__main__":
    main()
