"""Load a copy of a shared library, with some of its imported functions replaced.

Other copies of the library, and other processes, are not affected.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutegemm.errors import UnsupportedError

_DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL, _DT_PLTRELSZ = 5, 6, 7, 8, 23, 2
_PT_LOAD, _PT_DYNAMIC = 1, 2
_RELA = struct.Struct("<QQq")  # address, symbol << 32 | kind, addend
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size


def load_with(path: Path, functions: Mapping[str, Any]) -> ctypes.CDLL:
    """Load a private copy of a shared library, and make it call Python callbacks in place of functions that it imports.

    path        ELF file of the library, which is copied first
    functions   name of the import -> ctypes callback; the caller keeps them alive as long as the library is used
    raises      UnsupportedError if the file is not a 64-bit little-endian ELF library
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name  # under another path, the loader loads the library once more
        copy.write_bytes(path.read_bytes())
        library = ctypes.CDLL(str(copy), mode=os.RTLD_LOCAL | os.RTLD_LAZY)
    places, symbols = _imports(path)
    base = _base(library, symbols)
    for name, function in functions.items():
        for place in places.get(name, ()):
            _write(base + place, ctypes.cast(function, ctypes.c_void_p).value or 0)
    return library


def _base(library: ctypes.CDLL, symbols: dict[str, int]) -> int:
    """Return the load address of a library, computed from the address of one of its symbols.

    symbols   name of a symbol -> its offset from the load address, or 0 for an import
    """
    name, value = next((name, value) for name, value in symbols.items() if value)
    address = ctypes.cast(library[name], ctypes.c_void_p).value  # `getattr` does not find names like __this__
    assert address is not None
    return address - value


def _write(address: int, value: int) -> None:
    """Overwrite a pointer in memory of a loaded library, although the loader has made its page read-only.

    address   address of the pointer
    value     its new value
    """
    page = address & ~(mmap.PAGESIZE - 1)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE):
        raise OSError(ctypes.get_errno(), "mprotect")
    ctypes.c_uint64.from_address(address).value = value


def _imports(path: Path) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Read from an ELF library where it keeps the pointers to imported functions, and the values of its symbols.

    path      file of the library
    returns   (imported name -> addresses of the pointers to it, symbol's name -> value), relative to the load address
    raises    UnsupportedError if the file is not a 64-bit little-endian ELF library
    """
    image = path.read_bytes()
    if image[:6] != b"\x7fELF\x02\x01":
        raise UnsupportedError(f"emulate: {path} is not a 64-bit little-endian ELF library.")
    (at,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", image, at + i * size) for i in range(count)]

    def offset(address: int) -> int:
        for kind, _, start, virtual, _, length, *_ in headers:
            if kind == _PT_LOAD and virtual <= address < virtual + length:
                return int(start + address - virtual)
        raise UnsupportedError(f"emulate: {path} has no segment that contains address {address:#x}.")

    start, length = next((h[2], h[5]) for h in headers if h[0] == _PT_DYNAMIC)
    dynamic = dict(struct.iter_unpack("<qQ", image[start : start + length]))
    strings, table = offset(dynamic[_DT_STRTAB]), offset(dynamic[_DT_SYMTAB])

    def symbol(number: int) -> tuple[str, int]:
        name, _, _, _, value, _ = _SYMBOL.unpack_from(image, table + number * _SYMBOL.size)
        end = image.index(b"\0", strings + name)
        return image[strings + name : end].decode(), int(value)

    places: dict[str, list[int]] = {}
    values: dict[str, int] = {}
    for where, size_tag in ((_DT_RELA, _DT_RELASZ), (_DT_JMPREL, _DT_PLTRELSZ)):
        if where not in dynamic or size_tag not in dynamic:
            continue
        first = offset(dynamic[where])
        for place, info, _ in _RELA.iter_unpack(image[first : first + dynamic[size_tag]]):
            if info >> 32:
                name, value = symbol(info >> 32)
                values[name] = value
                places.setdefault(name, []).append(place)
    return places, values
