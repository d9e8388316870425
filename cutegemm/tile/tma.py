"""TMA boxes: the part of a tensor that one bulk tensor copy moves between global and shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.dtypes import DType
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.layout.inttuple import as_int_tuple, product
from cutegemm.layout.layout import Layout
from cutegemm.layout.swizzle import ComposedLayout, Swizzle
from cutegemm.tile.atoms import fields_of, require, runs_on

# CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, "cp.async.bulk.tensor".
TMA_MAX_RANK = 5
TMA_MAX_BOX_EXTENT = 256
TMA_INNER_ALIGNED_BYTES = 16  # alignment of the inner extent, the global address and the global strides
TMA_SMEM_ALIGNED_BYTES = 128
TMA_MAX_MULTICAST = 16  # CTAs of a cluster; the mask has 16 bits
# swizzle -> (bits of the swizzle, its span in bytes: the longest inner extent of a box)
TMA_SWIZZLES = {"none": (0, None), "32B": (1, 32), "64B": (2, 64), "128B": (3, 128)}

DIRECTIONS = ("load", "store", "reduce_add")
L2_POLICIES = ("evict_normal", "evict_first", "evict_last")  # PTX ISA, "createpolicy"


@dataclass(frozen=True)
class TmaBox:
    """Describes one TMA copy: a box of a tensor that one instruction of one thread loads, stores or adds.

    direction   "load" from global to shared memory; "store" or "reduce_add" (which adds to what is there) from shared
                to global memory
    dtype       element type
    box         extents in elements, contiguous mode first; at most 5 modes of at most 256 elements
    swizzle     permutation of 16-byte chunks in shared memory: "none", "32B", "64B" or "128B"
    multicast   number of CTAs of a cluster that receive the box of a load; 1 for no multicast
    l2_policy   eviction priority of the box's lines in L2: "evict_normal", "evict_first" or "evict_last"
    raises      PlanError with every broken rule
    source      CUDA driver API, `cuTensorMapEncodeTiled`; PTX ISA, `cp.async.bulk.tensor`

    >>> from cutegemm.dtypes import bf16
    >>> box = TmaBox("load", bf16, (64, 128), "128B")
    >>> box.size_bytes, str(box.smem_layout)
    (16384, 'S<3,3,3> o 0 o (64,128):(1,64)')
    """

    direction: str
    dtype: DType
    box: tuple[int, ...]
    swizzle: str = "none"
    multicast: int = 1
    l2_policy: str = "evict_normal"

    min_arch = "sm_90"

    def __post_init__(self) -> None:
        subject = f"TmaBox {self.direction} of {self.dtype}"
        require(subject, self.dtype, DType, "an element type")
        object.__setattr__(self, "box", as_int_tuple(self.box, "TmaBox: box"))
        if not isinstance(self.box, tuple) or any(isinstance(extent, tuple) for extent in self.box):
            raise PlanError(subject, [f"box = {self.box!r} is not a tuple of extents"])
        if type(self.multicast) is not int:
            raise PlanError(subject, [f"multicast = {self.multicast!r} is not an integer"])
        rules = _violations(*fields_of(self))
        if rules:
            raise PlanError(f"TmaBox {self.direction} of {self.dtype} {'x'.join(map(str, self.box))}", rules)

    @property
    def name(self) -> str:
        """Name of this TMA box: a text with its direction, extents, element type, swizzle and multicast."""
        multicast = f".multicast{self.multicast}" if self.multicast > 1 else ""
        return f"tma.{self.direction}.{'x'.join(map(str, self.box))}.{self.dtype}.{self.swizzle}{multicast}"

    @property
    def size_bytes(self) -> int:
        """Size of this TMA box in bytes: the transaction count that the mbarrier of each receiving CTA expects."""
        return product(self.box) * self.dtype.bits // 8

    @property
    def smem_layout(self) -> ComposedLayout:
        """Layout of this TMA box in shared memory, with its swizzle; offsets count elements.

        raises   UnsupportedError if the inner extent is shorter than the span of the swizzle
        """
        bits, span = TMA_SWIZZLES[self.swizzle]
        inner_bytes = self.box[0] * self.dtype.bits // 8
        if span is not None and inner_bytes != span:
            raise UnsupportedError(
                f"{self.name}: the inner extent has {inner_bytes} bytes, but the swizzle spans {span}. Choose an inner "
                "extent of the span of the swizzle."
            )
        return ComposedLayout(Swizzle(bits, 4, 3).recast(8, self.dtype.bits), 0, Layout(self.box))

    def runs_on(self, arch: str) -> bool:
        """Return True if the architecture `arch` has TMA: sm_90 and its successors.

        arch   name such as sm_90a
        """
        return runs_on(self.min_arch, arch)

    def __str__(self) -> str:
        return self.name


def _violations(
    direction: str, dtype: DType, box: tuple[int, ...], swizzle: str, multicast: int, l2_policy: str
) -> list[str]:
    """Return the rules that the fields of a TmaBox violate, as phrases for an error message; empty if none is.

    direction   "load", "store" or "reduce_add"
    dtype       element type
    box         extents in elements, contiguous mode first
    swizzle     "none", "32B", "64B" or "128B"
    multicast   number of CTAs that receive the box
    l2_policy   eviction priority in L2
    """
    rules = []
    if l2_policy not in L2_POLICIES:
        rules.append(f"l2_policy = {l2_policy!r} is not one of {', '.join(L2_POLICIES)}")
    if direction not in DIRECTIONS:
        rules.append(f"direction = {direction!r} is not one of {', '.join(DIRECTIONS)}")
    if not 1 <= len(box) <= TMA_MAX_RANK:
        rules.append(f"the box has {len(box)} modes; 1 to {TMA_MAX_RANK} are allowed")
    for mode, extent in enumerate(box):
        if not 1 <= extent <= TMA_MAX_BOX_EXTENT:
            rules.append(f"mode {mode} of the box has {extent} elements; 1 to {TMA_MAX_BOX_EXTENT} are allowed")
    inner_bits = box[0] * dtype.bits if box else 0
    if inner_bits % (TMA_INNER_ALIGNED_BYTES * 8):
        rules.append(
            f"the inner extent, {box[0]} elements of {dtype}, is {inner_bits / 8:g} bytes, which is not a multiple of "
            f"{TMA_INNER_ALIGNED_BYTES}"
        )
    if not isinstance(swizzle, str) or swizzle not in TMA_SWIZZLES:
        rules.append(f"swizzle = {swizzle!r} is not one of {', '.join(TMA_SWIZZLES)}")
    else:
        span = TMA_SWIZZLES[swizzle][1]
        if span is not None and inner_bits > span * 8:
            rules.append(
                f"the inner extent, {box[0]} elements of {dtype}, is {inner_bits / 8:g} bytes, more than "
                f"the {span} bytes that the {swizzle} swizzle spans"
            )
    if not 1 <= multicast <= TMA_MAX_MULTICAST:
        rules.append(f"multicast = {multicast} CTAs; 1 to {TMA_MAX_MULTICAST} are allowed")
    elif multicast > 1 and direction != "load":
        rules.append(f"a {direction} cannot be multicast; only a load can")
    return rules
