"""Compose the tiles of a GEMM: from a matrix in memory to the elements that one thread multiplies.

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
    # D is 256 x 128, stored row by row. A CTA takes tiles of 64 x 32.
    matrix = Layout((256, 128), (128, 1))
    tiles = zipped_divide(matrix, (64, 32))
    print(f"matrix                {matrix}")
    print(f"((tile), (grid))      {tiles}")
    print(f"tile (1, 2) begins at offset {tiles((0, 0), (1, 2))} = 64 * 128 + 2 * 32\n")

    # 32 threads as 8 x 4, each with 4 x 4 elements: a 32 x 16 warp tile.
    tile, tv = make_layout_tv(Layout((8, 4), (1, 8)), Layout((4, 4), (1, 4)))
    print(f"warp tile             {tile}")
    print(f"(thread, value)       {tv}")
    print(f"thread 9, value 6 holds the element {idx2crd(tv(9, 6), tile)} of it\n")

    # The elements of that thread in the memory of D: compose its tile with the thread-value layout.
    warp_tile = zipped_divide(tiles[0], tile)[0]
    held = composition(warp_tile, tv)
    print(f"warp tile in memory   {warp_tile}")
    print(f"(thread, value) there {held}")
    print(f"thread 9 holds the offsets {held(9, None).offsets().tolist()}\n")

    # Predicates are layouts too: the coordinates of a ragged matrix, tiled as the data is.
    ragged = local_tile(make_identity_tensor((100, 50)), (64, 32), (1, 1))
    print(f"last tile of a 100 x 50 matrix: its element (40, 20) is {ragged[40, 20]} of the matrix\n")

    # A composition that is no layout is refused, with the coordinate that shows it.
    try:
        composition(Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3)))
    except LayoutError as error:
        print(error)


if __name__ == "__main__":
    main()
