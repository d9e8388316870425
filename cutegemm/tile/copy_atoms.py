"""Copy atoms: plain vector moves, cp.async, ldmatrix and stmatrix. TMA boxes are in `tma`.

CuTe's headers give the layouts in bits. `recast_layout` converts them to elements of the copied type, as the
CuTe DSL does.
"""

from __future__ import annotations

from cutegemm.dtypes import DType
from cutegemm.errors import LayoutError, PlanError
from cutegemm.layout.layout import Layout
from cutegemm.layout.recast import recast_layout
from cutegemm.tile.atoms import CopyAtom, table_of_atoms

UNIVERSAL_BITS = (8, 16, 32, 64, 128)
GLOBAL_LOAD_BITS = (32, 64, 128)
GLOBAL_LOAD_CACHES = ("kept", "streaming")
CP_ASYNC_BYTES = {"ca": (4, 8, 16), "cg": (16,)}
MATRICES = (1, 2, 4)

_LANES = Layout(32)

# Layouts (lane, value) of ldmatrix in bits, for 1, 2 and 4 matrices of 8 rows of 128 bits: the rows in shared memory,
# and the fragments in registers. One lane supplies the address of a row. With 1 or 2 matrices, the addresses of the
# other lanes are not used (stride 0).
_ROWS = {
    1: Layout(((8, 4), 128), ((128, 0), 1)),
    2: Layout(((16, 2), 128), ((128, 0), 1)),
    4: Layout((32, 128), (128, 1)),
}
_FRAGMENTS = {
    1: Layout((32, 32), (32, 1)),
    2: Layout((32, (32, 2)), (32, (1, 1024))),
    4: Layout((32, (32, 4)), (32, (1, 1024))),
}
_FRAGMENTS_TRANSPOSED = {
    1: Layout(((4, 8), (16, 2)), ((256, 16), (1, 128))),
    2: Layout(((4, 8), (16, 2, 2)), ((256, 16), (1, 128, 1024))),
    4: Layout(((4, 8), (16, 2, 4)), ((256, 16), (1, 128, 1024))),
}


@table_of_atoms
def universal_copy(dtype: DType, bits: int) -> CopyAtom:
    """Return the atom of a plain load or store of one thread: `ld` or `st` of a vector.

    dtype    element type
    bits     8, 16, 32, 64 or 128, and a multiple of the width of the type
    raises   PlanError for another width
    source   CuTe, copy_traits.hpp, Copy_Traits<UniversalCopy>

    >>> from cutegemm.dtypes import f16
    >>> str(universal_copy(f16, 128).layout_src_tv)
    '(1,8):(0,1)'
    """
    rules = []
    if bits not in UNIVERSAL_BITS:
        rules.append(f"bits = {bits} is not {_or(UNIVERSAL_BITS)}")
    return _one_thread(f"copy.{bits}b.{dtype}", dtype, bits, "any", "any", "sm_50", rules, "copy_traits.hpp:66")


@table_of_atoms
def global_load(dtype: DType, bits: int, cache: str = "kept") -> CopyAtom:
    """Return the atom of a load of one thread from global memory to registers.

    The load is coherent: data that another kernel has written just before is seen.

    dtype    element type
    bits     width of the vector: 32, 64 or 128, and a multiple of the width of the type
    cache    "kept" for the default policy; "streaming" for data that is read once: L1 evicts its lines first, and L2
             prefetches the whole line of 128 bytes
    raises   PlanError for another width or cache
    source   PTX ISA, `ld`, .level::eviction_priority and .level::prefetch_size

    >>> from cutegemm.dtypes import bf16
    >>> global_load(bf16, 128, "streaming").name
    'load.128b.streaming.bf16'
    """
    rules = []
    if bits not in GLOBAL_LOAD_BITS:
        rules.append(f"bits = {bits} is not {_or(GLOBAL_LOAD_BITS)}")
    if cache not in GLOBAL_LOAD_CACHES:
        rules.append(f"cache = {cache!r} is not {' or '.join(GLOBAL_LOAD_CACHES)}")
    name = f"load.{bits}b.{cache}.{dtype}"
    return _one_thread(name, dtype, bits, "global", "register", "sm_80", rules, "copy_traits.hpp:66")


@table_of_atoms
def cp_async(dtype: DType, size_bytes: int, cache: str = "ca") -> CopyAtom:
    """Return the atom of cp.async, which copies from global to shared memory without registers.

    dtype        element type
    size_bytes   bytes that one thread copies: 4, 8 or 16, and a multiple of the width of the type
    cache        "ca" also caches the lines in L1; "cg" caches them only in L2, and copies 16 bytes
    raises       PlanError for another size or cache
    source       PTX ISA, `cp.async`; CuTe, copy_traits_sm80.hpp:42,57

    >>> from cutegemm.dtypes import f32
    >>> cp_async(f32, 16, "cg").name
    'cp.async.cg.16B.f32'
    """
    rules = []
    if cache not in CP_ASYNC_BYTES:
        rules.append(f"cache = {cache!r} is not ca or cg")
    elif size_bytes not in CP_ASYNC_BYTES[cache]:
        rules.append(f"size_bytes = {size_bytes}, but cp.async.{cache} copies {_or(CP_ASYNC_BYTES[cache])} bytes")
    name = f"cp.async.{cache}.{size_bytes}B.{dtype}"
    source = f"copy_traits_sm80.hpp:{42 if cache == 'ca' else 57}"
    return _one_thread(name, dtype, size_bytes * 8, "global", "shared", "sm_80", rules, source)


def _one_thread(
    name: str, dtype: DType, bits: int, src: str, dst: str, arch: str, rules: list[str], source: str
) -> CopyAtom:
    """Return the copy atom of an instruction with which one thread moves one vector.

    name       name of the atom
    dtype      element type
    bits       bits of the vector
    src, dst   memories that are read and written: "global", "shared", "register" or "any"
    arch       first architecture with the instruction, such as sm_80
    rules      phrases for rules that the caller has already found violated, e.g. "bits must be 32 or 64"; empty if none
    source     text for the field `source` of the atom: header and line
    raises     PlanError with all phrases of `rules`, and if the vector does not contain whole elements
    """
    if bits % dtype.bits or bits <= 0:
        rules.append(f"a vector of {bits} bits does not contain whole elements of {dtype}, which has {dtype.bits} bits")
    if rules:
        raise PlanError(name, rules)
    vector = Layout((1, bits // dtype.bits), (0, 1))
    return CopyAtom(
        name, dtype, bits, Layout(1, 0), vector, vector, vector, src, dst, arch, f"CuTe, {source}", bits // 8
    )


@table_of_atoms
def ldmatrix(dtype: DType, matrices: int, transpose: bool = False) -> CopyAtom:
    """Return the atom of ldmatrix, which loads 8x8 matrices from shared memory into MMA fragments.

    The instruction moves 16-bit elements. An element of 8 or 32 bits is moved as half of one, or as two.

    dtype       element type of at most 32 bits; of at most 16 bits for `transpose`
    matrices    number of matrices: 1, 2 or 4
    transpose   True to transpose each matrix
    raises      PlanError for another number, or for a type that `transpose` would split
    source      PTX ISA, `ldmatrix`; CuTe, copy_traits_sm75.hpp:42-136

    >>> from cutegemm.dtypes import bf16
    >>> str(ldmatrix(bf16, 4).layout_dst_tv)
    '(32,(2,4)):(2,(1,64))'
    """
    lines = {1: (42, 93), 2: (59, 110), 4: (76, 127)}
    rows, fragments = _matrix_layouts("ldmatrix", dtype, matrices, transpose)
    return CopyAtom(
        _matrix_name("ldmatrix", dtype, matrices, transpose), dtype, 32 * matrices, _LANES, rows, fragments, fragments,
        "shared", "register", "sm_75", f"CuTe, copy_traits_sm75.hpp:{lines[matrices][transpose]}", 16,
    )  # fmt: skip


@table_of_atoms
def stmatrix(dtype: DType, matrices: int, transpose: bool = False) -> CopyAtom:
    """Return the atom of stmatrix, which stores MMA fragments to 8x8 matrices in shared memory.

    The instruction moves 16-bit elements. An element of 8 or 32 bits is moved as half of one, or as two.

    dtype       element type of at most 32 bits; of at most 16 bits for `transpose`
    matrices    number of matrices: 1, 2 or 4
    transpose   True to transpose each matrix
    raises      PlanError for another number, or for an element type that the instruction would split
    source      PTX ISA, `stmatrix`; CuTe, copy_traits_sm90.hpp:41-110

    >>> from cutegemm.dtypes import bf16
    >>> stmatrix(bf16, 2, transpose=True).name
    'stmatrix.x2.trans.bf16'
    """
    rows, fragments = _matrix_layouts("stmatrix", dtype, matrices, transpose)
    return CopyAtom(
        _matrix_name("stmatrix", dtype, matrices, transpose), dtype, 32 * matrices, _LANES, fragments, rows, fragments,
        "register", "shared", "sm_90", "CuTe, copy_traits_sm90.hpp:41", 16,
    )  # fmt: skip


def _matrix_name(instruction: str, dtype: DType, matrices: int, transpose: bool) -> str:
    """Return the name of an ldmatrix or stmatrix atom, such as "stmatrix.x2.trans.bf16".

    instruction   "ldmatrix" or "stmatrix"
    dtype         element type
    matrices      number of 8x8 matrices: 1, 2 or 4
    transpose     True if each matrix is transposed
    """
    return f"{instruction}.x{matrices}{'.trans' if transpose else ''}.{dtype}"


def _matrix_layouts(instruction: str, dtype: DType, matrices: int, transpose: bool) -> tuple[Layout, Layout]:
    """Return the two layouts of ldmatrix or stmatrix: elements by lane in shared memory, and in registers.

    Both map (lane, value) to the index of an element among the 8x8 matrices. The first layout gives a lane the row
    whose shared-memory address this lane supplies. The second gives a lane the elements in its registers.

    instruction   "ldmatrix" or "stmatrix"
    dtype         element type
    matrices      number of 8x8 matrices: 1, 2 or 4
    transpose     True if each matrix is transposed
    raises        PlanError for arguments that the instruction does not have
    """
    rules = []
    if matrices not in MATRICES:
        rules.append(f"matrices = {matrices} is not {_or(MATRICES)}")
    if dtype.bits > (16 if transpose else 32):
        rules.append(
            f"{dtype} has {dtype.bits} bits, but the instruction "
            + ("transposes elements of at most 16 bits" if transpose else "moves 32 bits per lane and matrix")
        )
    if rules:
        raise PlanError(_matrix_name(instruction, dtype, matrices, transpose), rules)
    table = _FRAGMENTS_TRANSPOSED if transpose else _FRAGMENTS
    try:
        rows, fragments = (recast_layout(dtype.bits, 1, layouts[matrices]) for layouts in (_ROWS, table))
    except LayoutError as error:
        raise PlanError(_matrix_name(instruction, dtype, matrices, transpose), [str(error)]) from error
    return rows, fragments


def _or(numbers: tuple[int, ...]) -> str:
    """Return a list of numbers as text for a message: (1, 2, 4) becomes '1, 2 or 4'."""
    *first, last = [str(n) for n in numbers]
    return f"{', '.join(first)} or {last}" if first else last
