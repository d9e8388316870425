"""Convert layouts from and to Triton's LinearLayout.

A LinearLayout is a linear map over F2 from named inputs, such as register, lane and warp, to named outputs. Basis i of
an input is the image of its value 2**i. The image of any input is the XOR of the images of its bits.

source   triton/include/triton/Tools/LinearLayout.h
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import Any

from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, F2Matrix, Layout, from_f2, to_f2

Sizes = Sequence[tuple[str, int]] | Mapping[str, int]
_LEVELS = ("reg", "lane", "warp", "block")  # inputs of Gluon's layout, lowest bits first


@dataclass(frozen=True)
class LinearLayout:
    """A layout that joins offsets by XOR, from named inputs to named outputs, in the form of Triton's `LinearLayout`.

    For example, it maps (register, lane, warp) to (dim0, dim1). Each bit of an input has an image, i.e. one integer per
    output. The result for an input is the XOR of the images of its 1 bits. Triton need not be installed.

    bases      (name, images) for each input; the first input has the lowest bits of the index. `images` has the image
               of each bit, lowest bit first; its integers are below the sizes of the outputs
    out_dims   (name, size) for each output; sizes are powers of two
    raises     LayoutError that names every invalid size and image

    >>> lanes = LinearLayout((("lane", ((1, 0), (2, 0), (0, 1))),), (("m", 4), ("n", 2)))
    >>> lanes(lane=5)
    {'m': 1, 'n': 1}
    """

    bases: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
    out_dims: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if violations := [*_violations(self.bases, self.out_dims)]:
            raise LayoutError("LinearLayout: " + "\n  ".join(violations))

    def __call__(self, **ins: int) -> dict[str, int]:
        """Return the output coordinates that this linear layout maps an input to, as a dict from output name to value.

        ins      value of each named input, e.g. lane=5, warp=1; an input that is left out is 0
        raises   LayoutError if an input is unknown, or not below its size
        """
        images = [0] * len(self.out_dims)
        known = dict(self.bases)
        for name, value in ins.items():
            if name not in known or not 0 <= value < 1 << len(known[name]):
                sizes = ", ".join(f"{label} below {1 << len(bits)}" for label, bits in self.bases)
                raise LayoutError(f"LinearLayout: {name} = {value}. The inputs are {sizes}.")
            for place, basis in enumerate(known[name]):
                if value >> place & 1:
                    images = [image ^ part for image, part in zip(images, basis, strict=True)]
        return {name: image for (name, _), image in zip(self.out_dims, images, strict=True)}

    def to_triton(self) -> Any:
        """Return this linear layout as an object of Triton's own LinearLayout class.

        raises   ImportError if Triton is not installed
        """
        from triton._C.libtriton.linear_layout import LinearLayout as Theirs

        bases = [(name, [list(basis) for basis in images]) for name, images in self.bases]
        names, sizes = [name for name, _ in self.out_dims], [size for _, size in self.out_dims]
        return Theirs.from_bases(bases, names, sizes, False)


def to_linear(layout: Layout | ComposedLayout, ins: Sizes, outs: Sizes) -> LinearLayout:
    """Convert a layout to Triton's form: its index is split into named inputs, and its offset into named outputs.

    layout   layout that is linear over F2 and has extents that are powers of two, such as a thread-value layout or a
             swizzled tile
    ins      name and size of each input, lowest bits first. 128 threads with 8 values each are ("lane", 32), ("warp",
             4), ("register", 8)
    outs     name and size of each output, lowest bits first. A column-major 128 x 8 tile is ("dim0", 128), ("dim1", 8)
    raises   LayoutError if the layout is not linear, or if its size or its offsets do not fit `ins` and `outs`

    >>> thr_val = Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))      # (thread, value) -> index in 8 x 16
    >>> linear = to_linear(thr_val, {"lane": 32, "register": 4}, {"dim0": 8, "dim1": 16})
    >>> linear.bases[1]
    ('register', ((0, 1), (0, 8)))
    >>> from_linear(linear)
    Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))
    """
    in_dims, out_dims = _sizes(ins), _sizes(outs)
    columns = to_f2(layout).columns
    if prod(size for _, size in in_dims) != 1 << len(columns):
        sizes = " x ".join(str(size) for _, size in in_dims)
        raise LayoutError(
            f"to_linear: {layout} has {1 << len(columns)} indices, but the inputs are {sizes}. The product of their "
            "sizes must be the number of indices."
        )
    if max(columns, default=0) >= prod(size for _, size in out_dims):
        sizes = " x ".join(str(size) for _, size in out_dims)
        raise LayoutError(
            f"to_linear: {layout} reaches offset {layout.cosize() - 1}, but the outputs are {sizes}. The product of "
            "their sizes must be larger."
        )
    bases, left = [], [*columns]
    for name, size in in_dims:
        bits = size.bit_length() - 1
        bases.append((name, tuple([_cut(column, out_dims) for column in left[:bits]])))
        left = left[bits:]
    return LinearLayout(tuple(bases), out_dims)


def from_linear(linear: Any) -> Layout:
    """Convert a Triton LinearLayout (or this package's `LinearLayout`) to a layout with one mode per input.

    Such a layout maps an index to the XOR of the images of its bits. The offset is the column-major index of the
    outputs. Strides are plain integers if adding the images gives the same offsets. Otherwise they are strides over F2,
    such as F2(9), whose contributions are joined by XOR.

    linear   an object with `bases`, pairs (name, images of the bits), and `out_dims`, pairs (name, size); or a layout
             of Triton's Gluon with `reg_bases`, `lane_bases`, `warp_bases`, `block_bases` and `shape`
    raises   LayoutError if `linear` has another form, or has a size or an image that `LinearLayout` does not allow

    >>> from_linear(LinearLayout((("offset", ((1,), (2,), (4,), (9,))),), (("x", 16),)))
    Layout(((8, 2),), ((F2(1), F2(9)),))
    """
    plain = _plain(linear)
    sizes = [size for _, size in plain.out_dims]
    columns = [_joined(image, sizes) for _, images in plain.bases for image in images]
    extents = [1 << len(images) for _, images in plain.bases]
    return from_f2(F2Matrix(tuple(columns)), tuple(extents))


def _plain(linear: Any) -> LinearLayout:
    """Convert Triton's LinearLayout, or a Gluon layout with `reg_bases` etc., to this package's `LinearLayout`.

    linear   object of one of these classes; its attributes are read, so Triton is not imported
    raises   LayoutError if `linear` lacks these attributes
    """
    if isinstance(linear, LinearLayout):
        return linear
    try:
        if hasattr(linear, "reg_bases"):
            bases = [(level, getattr(linear, f"{level}_bases")) for level in _LEVELS]
            outs = [(f"dim{axis}", size) for axis, size in enumerate(linear.shape)]
        else:
            bases, outs = linear.bases, linear.out_dims
        in_bases = tuple([(name, tuple([tuple(image) for image in images])) for name, images in bases])
        sizes = tuple([(name, size) for name, size in outs])
    except (AttributeError, TypeError, ValueError) as error:
        raise LayoutError(f"from_linear: {linear!r} is not a LinearLayout: {error}.") from error
    return LinearLayout(in_bases, sizes)


def _violations(bases: Any, outs: Any) -> Iterator[str]:
    """Yield an error message for each output size that is not a power of two, and for each image outside the outputs.

    bases   (name, images) of each input of a linear layout; `images` has the image of each bit: one integer per output
    outs    (name, size) of each output
    """
    for name, size in outs:
        if not _is_power_of_two(size):
            yield f"the output {name} has the size {size!r}, which is not a power of two."
    sizes = ", ".join([f"{name} of {size}" for name, size in outs]) or "none"
    for name, images in bases:
        for place, image in enumerate(images):
            start = f"the image of bit {place} of {name} is {tuple(image)}"
            if len(image) != len(outs):
                yield f"{start}. Give one integer per output ({sizes})."
            elif not all(_is_in(value, size) for value, (_, size) in zip(image, outs, strict=True)):
                yield f"{start}, which is outside the outputs ({sizes})."


def _is_power_of_two(size: Any) -> bool:
    """Return True if the size is an integer and a power of two."""
    return isinstance(size, Integral) and int(size).bit_count() == 1 and int(size) > 0


def _is_in(value: Any, size: Any) -> bool:
    """Return True if a value is an integer in [0, size).

    Also True if the size is not an integer, because the caller reports that separately.
    """
    return not isinstance(size, Integral) or (isinstance(value, Integral) and 0 <= int(value) < int(size))


def _sizes(dims: Sizes) -> tuple[tuple[str, int], ...]:
    """Return the (name, size) pairs of inputs or outputs as a tuple; raise LayoutError if a size is not a power of two.

    dims   the pairs, or a dict from name to size
    """
    pairs = tuple([*(dims.items() if isinstance(dims, Mapping) else dims)])
    for name, size in pairs:
        if not _is_power_of_two(size):
            raise LayoutError(f"to_linear: {name} has the size {size}, which is not a power of two.")
    return pairs


def _cut(offset: int, outs: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """Split an offset into one integer per output, as digits of mixed radix; the first output is the lowest digit.

    For example, offset 11 for outputs ("m", 4), ("n", 8) is (3, 2).

    outs   (name, size) of each output
    """
    values = []
    for _, size in outs:
        values.append(offset % size)
        offset //= size
    return tuple(values)


def _joined(image: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the offset of output coordinates as digits of mixed radix; the first output is the lowest digit.

    For example, (3, 2) with sizes (4, 8) is 3 + 4 * 2 = 11.

    image   value of each output
    sizes   size of each output
    """
    offset, step = 0, 1
    for value, size in zip(image, sizes, strict=True):
        offset += value * step
        step *= size
    return offset
