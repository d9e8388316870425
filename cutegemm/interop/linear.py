"""Triton's LinearLayout: a linear map over F2 from named inputs, such as register, lane and warp, to named outputs.

source   triton/include/triton/Tools/LinearLayout.h: basis i of an input is where its value 2**i goes; the images of
         the bits of all inputs are XORed
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
_LEVELS = ("reg", "lane", "warp", "block")  # of Gluon, the lowest bits first


@dataclass(frozen=True)
class LinearLayout:
    """What Triton's `LinearLayout.from_bases` takes, as data: this package needs no Triton.

    bases      for each input, the one whose bits are lowest first: its name, and where each of its bits goes, an
               integer for each output, below its size
    out_dims   names and sizes of the outputs, powers of two
    raises     LayoutError with every basis and size that is none

    >>> of_lane = LinearLayout((("lane", ((1, 0), (2, 0), (0, 1))),), (("m", 4), ("n", 2)))
    >>> of_lane(lane=5)
    {'m': 1, 'n': 1}
    """

    bases: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]
    out_dims: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if violations := [*_violations(self.bases, self.out_dims)]:
            raise LayoutError("LinearLayout: " + "\n  ".join(violations))

    def __call__(self, **ins: int) -> dict[str, int]:
        """Where the inputs go; one that is left out is 0.

        raises   LayoutError for an input that there is not, or outside of its size
        """
        images = [0] * len(self.out_dims)
        known = dict(self.bases)
        for name, value in ins.items():
            if name not in known or not 0 <= value < 1 << len(known[name]):
                sizes = ", ".join(f"{each} below {1 << len(bits)}" for each, bits in self.bases)
                raise LayoutError(f"LinearLayout: {name} = {value}; there is {sizes}.")
            for place, basis in enumerate(known[name]):
                if value >> place & 1:
                    images = [image ^ part for image, part in zip(images, basis, strict=True)]
        return {name: image for (name, _), image in zip(self.out_dims, images, strict=True)}

    def to_triton(self) -> Any:
        """Triton's own object.

        raises   ImportError where Triton is not installed
        """
        from triton._C.libtriton.linear_layout import LinearLayout as Theirs

        bases = [(name, [list(basis) for basis in images]) for name, images in self.bases]
        names, sizes = [name for name, _ in self.out_dims], [size for _, size in self.out_dims]
        return Theirs.from_bases(bases, names, sizes, False)


def to_linear(layout: Layout | ComposedLayout, ins: Sizes, outs: Sizes) -> LinearLayout:
    """A layout as Triton's: its index cut into inputs, its offset into outputs, the lowest bits first.

    layout   with extents of powers of two, linear over F2; a thread-value layout, a swizzled tile, ...
    ins      names and sizes: ("lane", 32), ("warp", 4), ("register", 8) of 128 threads with 8 values each
    outs     names and sizes: ("dim0", 128), ("dim1", 8) of a tile whose places count along M first
    raises   LayoutError where it is not linear, or the sizes do not fit it

    >>> thr_val = Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))      # (thread, value) -> place in 8 x 16
    >>> found = to_linear(thr_val, {"lane": 32, "register": 4}, {"dim0": 8, "dim1": 16})
    >>> found.bases[1]
    ('register', ((0, 1), (0, 8)))
    >>> from_linear(found)
    Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))
    """
    given, into = _sizes(ins), _sizes(outs)
    columns = to_f2(layout).columns
    if prod(size for _, size in given) != 1 << len(columns):
        sizes = " x ".join(str(size) for _, size in given)
        raise LayoutError(f"to_linear: {layout} has {1 << len(columns)} indices, and the inputs are {sizes}.")
    if max(columns, default=0) >= prod(size for _, size in into):
        sizes = " x ".join(str(size) for _, size in into)
        raise LayoutError(f"to_linear: {layout} reaches offset {layout.cosize() - 1}, and the outputs are {sizes}.")
    bases, left = [], [*columns]
    for name, size in given:
        bits = size.bit_length() - 1
        bases.append((name, tuple([_cut(column, into) for column in left[:bits]])))
        left = left[bits:]
    return LinearLayout(tuple(bases), into)


def from_linear(linear: Any) -> Layout:
    """The layout of a `LinearLayout`, of this package or Triton's: a mode an input; offsets count the outputs in order.

    linear   anything with `bases`, pairs of a name and the images of its bits, and `out_dims`, pairs of a name and a
             size; or one of Triton's Gluon, with `reg_bases`, `lane_bases`, `warp_bases`, `block_bases` and `shape`
    returns  integer strides where nothing has to be XORed; else strides over F2
    raises   LayoutError where it is none of these, and with what `LinearLayout` refuses

    >>> from_linear(LinearLayout((("offset", ((1,), (2,), (4,), (9,))),), (("x", 16),)))
    Layout(((8, 2),), ((F2(1), F2(9)),))
    """
    found = _plain(linear)
    sizes = [size for _, size in found.out_dims]
    columns = [_joined(image, sizes) for _, images in found.bases for image in images]
    extents = [1 << len(images) for _, images in found.bases]
    return from_f2(F2Matrix(tuple(columns)), tuple(extents))


def _plain(linear: Any) -> LinearLayout:
    """What `from_linear` takes, as data."""
    if isinstance(linear, LinearLayout):
        return linear
    try:
        if hasattr(linear, "reg_bases"):
            bases = [(level, getattr(linear, f"{level}_bases")) for level in _LEVELS]
            outs = [(f"dim{axis}", size) for axis, size in enumerate(linear.shape)]
        else:
            bases, outs = linear.bases, linear.out_dims
        images = tuple([(name, tuple([tuple(image) for image in of])) for name, of in bases])
        sizes = tuple([(name, size) for name, size in outs])
    except (AttributeError, TypeError, ValueError) as error:
        raise LayoutError(f"from_linear: a LinearLayout is expected, not {linear!r}: {error}.") from error
    return LinearLayout(images, sizes)


def _violations(bases: Any, outs: Any) -> Iterator[str]:
    """The sizes that are no powers of two, and the bases that are nowhere in the outputs, in words."""
    for name, size in outs:
        if not _is_power_of_two(size):
            yield f"the output {name} has the size {size!r}; a power of two is expected."
    sizes = ", ".join([f"{name} of {size}" for name, size in outs]) or "none"
    for name, images in bases:
        for place, image in enumerate(images):
            said = f"bit {place} of {name} goes to {tuple(image)}"
            if len(image) != len(outs):
                yield f"{said}; an integer for each of the outputs ({sizes}) is expected."
            elif not all(_is_in(part, size) for part, (_, size) in zip(image, outs, strict=True)):
                yield f"{said}, which is outside of the outputs ({sizes})."


def _is_power_of_two(size: Any) -> bool:
    return isinstance(size, Integral) and int(size).bit_count() == 1 and int(size) > 0


def _is_in(part: Any, size: Any) -> bool:
    """Whether a part of an image is one of an output's; of a size that is none itself, any is."""
    return not isinstance(size, Integral) or (isinstance(part, Integral) and 0 <= int(part) < int(size))


def _sizes(given: Sizes) -> tuple[tuple[str, int], ...]:
    """Names and sizes, which are powers of two."""
    found = tuple([*(given.items() if isinstance(given, Mapping) else given)])
    for name, size in found:
        if not _is_power_of_two(size):
            raise LayoutError(f"to_linear: {name} has the size {size}; a power of two is expected.")
    return found


def _cut(offset: int, outs: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """An offset as an integer for each output."""
    out = []
    for _, size in outs:
        out.append(offset % size)
        offset //= size
    return tuple(out)


def _joined(image: Sequence[int], sizes: Sequence[int]) -> int:
    """The offset of an integer for each output."""
    offset, step = 0, 1
    for part, size in zip(image, sizes, strict=True):
        offset += part * step
        step *= size
    return offset
