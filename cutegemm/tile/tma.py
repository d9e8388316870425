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
TMA_INNER_ALIGNED_BYTES = 16  # of the inner extent of a box, the global address and the global strides
TMA_SMEM_ALIGNED_BYTES = 128
TMA_MAX_MULTICAST = 16  # CTAs of a cluster: the mask has 16 bits
# kind: bits of the swizzle on bytes, and its span, the most that the inner extent of a box may take
TMA_SWIZZLES = {"none": (0, None), "32B": (1, 32), "64B": (2, 64), "128B": (3, 128)}

DIRECTIONS = ("load", "store", "reduce_add")
L2_POLICIES = ("evict_normal", "evict_first", "evict_last")  # PTX ISA, "createpolicy"


@dataclass(frozen=True)
class TmaBox:
    """A box of a tensor, moved by one thread with one instruction.

    direction   load: global to shared; store and reduce_add: shared to global
    dtype       of the elements
    box         extents, the contiguous mode first
    swizzle     none, 32B, 64B or 128B: how the rows are permuted in shared memory
    multicast   CTAs of a cluster into which a load writes the same box; 1 for no multicast
    l2_policy   evict_normal, evict_first or evict_last: the priority of its lines in the L2 cache
    raises      PlanError with every rule that is broken
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
            raise PlanError(subject, [f"the box {self.box!r} is no tuple of extents"])
        if type(self.multicast) is not int:
            raise PlanError(subject, [f"multicast = {self.multicast!r}; an integer is expected"])
        rules = _violations(*fields_of(self))
        if rules:
            raise PlanError(f"TmaBox {self.direction} of {self.dtype} {'x'.join(map(str, self.box))}", rules)

    @property
    def name(self) -> str:
        """Instruction, box and element type."""
        multicast = f".multicast{self.multicast}" if self.multicast > 1 else ""
        return f"tma.{self.direction}.{'x'.join(map(str, self.box))}.{self.dtype}.{self.swizzle}{multicast}"

    @property
    def size_bytes(self) -> int:
        """Bytes of a box: the transaction count of the barrier, in each CTA that receives it."""
        return product(self.box) * self.dtype.bits // 8

    @property
    def smem_layout(self) -> ComposedLayout:
        """Where the elements of the box lie in shared memory, in elements.

        raises   UnsupportedError where the inner extent does not fill the span of the swizzle
        """
        bits, span = TMA_SWIZZLES[self.swizzle]
        inner_bytes = self.box[0] * self.dtype.bits // 8
        if span is not None and inner_bytes != span:
            raise UnsupportedError(
                f"{self.name}: its {inner_bytes} inner bytes do not fill the {span} of the swizzle; this "
                "package describes full rows."
            )
        return ComposedLayout(Swizzle(bits, 4, 3).recast(8, self.dtype.bits), 0, Layout(self.box))

    def runs_on(self, arch: str) -> bool:
        """Whether `arch` has TMA."""
        return runs_on(self.min_arch, arch)

    def __str__(self) -> str:
        return self.name


def _violations(
    direction: str, dtype: DType, box: tuple[int, ...], swizzle: str, multicast: int, l2_policy: str
) -> list[str]:
    rules = []
    if l2_policy not in L2_POLICIES:
        rules.append(f"the L2 policy {l2_policy!r}; {', '.join(L2_POLICIES)} are expected")
    if direction not in DIRECTIONS:
        rules.append(f"the direction {direction!r}; {', '.join(DIRECTIONS)} are expected")
    if not 1 <= len(box) <= TMA_MAX_RANK:
        rules.append(f"a box of rank {len(box)}; 1 to {TMA_MAX_RANK} are expected")
    for mode, extent in enumerate(box):
        if not 1 <= extent <= TMA_MAX_BOX_EXTENT:
            rules.append(f"extent {extent} of mode {mode}; 1 to {TMA_MAX_BOX_EXTENT} are expected")
    inner_bits = box[0] * dtype.bits if box else 0
    if inner_bits % (TMA_INNER_ALIGNED_BYTES * 8):
        rules.append(
            f"the inner extent, {box[0]} elements of {dtype}, takes {inner_bits / 8:g} bytes, no multiple of "
            f"{TMA_INNER_ALIGNED_BYTES}"
        )
    if not isinstance(swizzle, str) or swizzle not in TMA_SWIZZLES:
        rules.append(f"the swizzle {swizzle!r}; {', '.join(TMA_SWIZZLES)} are expected")
    else:
        span = TMA_SWIZZLES[swizzle][1]
        if span is not None and inner_bits > span * 8:
            rules.append(
                f"the inner extent, {box[0]} elements of {dtype}, takes {inner_bits / 8:g} bytes, more than "
                f"the {span} that the {swizzle} swizzle spans"
            )
    if not 1 <= multicast <= TMA_MAX_MULTICAST:
        rules.append(f"multicast to {multicast} CTAs; 1 to {TMA_MAX_MULTICAST} are expected")
    elif multicast > 1 and direction != "load":
        rules.append(f"a {direction} is never multicast, only a load is")
    return rules
