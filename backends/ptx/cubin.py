"""Check that bytes are the cubin of a kernel: an ELF file with the code of its entry, assembled from its PTX."""

from __future__ import annotations

import re
import struct

from tiledsl.backends.protocol import Binary

HEADER, SECTION, SEGMENT = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IIQQQQQQ")
"""The layout of the header of a 64-bit ELF file, and of a row of its tables of sections and of segments."""
START = b"\x7fELF\x02\x01\x01"
CUDA = 190
"""The number that an ELF header has for the machine."""
NOBITS = 8
"""The type of a section without bytes in the file."""
PTX = b".nv_debug_ptx_txt"
"""The section in which ptxas keeps the PTX, because of --generate-line-info."""
DROPPED = re.compile(rb"//[^\n\0]*|/\*.*?\*/|\.(?:loc|file)\b[^\n\0]*", re.DOTALL)
"""The parts of PTX that ptxas leaves out of that section."""


def is_cubin_of(binary: Binary, block: tuple[int, int, int]) -> bool:
    """Return whether the cubin is a complete ELF file with the kernel's code, assembled from its PTX, and whether this
    is for its target and for blocks of this size."""
    try:
        sections = _sections(binary.cubin)
    except (struct.error, ValueError, OverflowError):
        return False
    code, kept, ptx = sections.get(b".text." + binary.name.encode()), sections.get(PTX), binary.ptx
    _, entry, rest = ptx.partition(f".entry {binary.name}(")
    head = rest.partition("{")[0]
    declared = ".reqntid {}, {}, {}\n".format(*block)
    same = kept is None or _bare(kept) == _bare(ptx.encode())
    return bool(code and entry) and same and f".target {binary.arch}\n" in ptx and declared in head


def _sections(cubin: bytes) -> dict[bytes, bytes]:
    """Return the content of each section by its name. Raises ValueError, OverflowError, or struct.error."""
    fields = HEADER.unpack_from(cubin)
    ident, machine, segments_at, sections_at = fields[0], fields[2], fields[5], fields[6]
    segment_size, segment_count, section_size, section_count, names_at = fields[9:]
    if not ident.startswith(START) or machine != CUDA or (section_size, segment_size) != (SECTION.size, SEGMENT.size):
        raise ValueError
    rows: list[tuple[int, ...]] = [
        SECTION.unpack_from(cubin, sections_at + number * SECTION.size) for number in range(section_count)
    ]
    pieces = [(row[4], row[5] if row[1] != NOBITS else 0) for row in rows]
    for number in range(segment_count):
        _, _, offset, _, _, size, *_ = SEGMENT.unpack_from(cubin, segments_at + number * SEGMENT.size)
        pieces.append((offset, size))
    if any(offset + size > len(cubin) for offset, size in pieces) or names_at >= section_count:
        raise ValueError
    contents: list[bytes] = [cubin[offset : offset + size] for offset, size in pieces]
    names = contents[int(names_at)]
    return {names[row[0] : names.index(b"\0", row[0])]: contents[number] for number, row in enumerate(rows)}


def _bare(ptx: bytes) -> bytes:
    """Return the PTX as far as ptxas keeps it, without white space."""
    return DROPPED.sub(b"", ptx.partition(b".section")[0]).translate(None, b" \t\r\n\0")
