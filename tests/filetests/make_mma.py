"""Makes the filetests of products of matrices: ptx/mma_sync.tir and matrix/mma.tir.

Expected results come from `tests.filetests.reference_mma`, not from the compiler.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.filetest import Argument
from tests.filetests.fragment_text import (
    HEADER,
    Bits,
    argument_text,
    bits_of,
    constants_text,
    fragment_text,
    kernel_text,
    place_of,
    size_of,
    tensor_text,
)
from tests.filetests.reference import FORMATS
from tests.filetests.reference_mma import dot_bits
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DTYPES, TF32, DType
from tiledsl.layout.mma import SHAPES, TABLE, MmaRow, find_row

__all__ = ["texts"]

NAME = "tests/filetests/make_mma.py"


def texts() -> dict[str, str]:
    """The text of every file, by its place below this folder."""
    return {"ptx/mma_sync.tir": _mma_sync_file(), "matrix/mma.tir": _mma_file()}


# -- ptx.mma_sync: every product, from registers ---------------------------------------------------


def _mma_sync_file() -> str:
    text = HEADER.format(NAME, "ptx.mma_sync: registers as the PTX ISA lays them out, one warp.") + (
        "; Rows of A are ordinary numbers, exponents apart, subnormals, any finite bits, infinities and NaNs.\n"
    )
    return text + "".join("\n" + _mma_sync_kernel(row, seed) for seed, row in enumerate(TABLE))


def _mma_sync_kernel(row: MmaRow, seed: int) -> str:
    rng = np.random.default_rng(seed)
    shape = str(row.shape)
    kinds = {"a": DTYPES[row.a], "b": DTYPES[row.b], "acc": DTYPES[row.acc]}
    a, b, c = (_numbers(rng, kinds[o], size_of(shape, o), rows=o == "a") for o in ("a", "b", "acc"))
    d = _product(row, a, b, c)
    packed = [_registers(shape, o, kinds[o], m) for o, m in (("a", a), ("b", b), ("acc", c), ("acc", d))]
    types = [_register_type(kinds[o]) for o in ("a", "b", "acc", "acc")]
    lines = [f"; run: {row}"]
    lines += [argument_text("in", n, t, p.shape, p) for n, t, p in zip("ABC", types, packed, strict=False)]
    lines.append(argument_text("out", "D", types[3], packed[3].shape, packed[3]))
    counts = [len(p) for p in packed]
    body = ["%lane = gpu.thread_id {axis = 0} : index", *constants_text(max(counts))]
    for name, count, type_ in zip("ABC", counts, types, strict=False):
        body += [f"%{name.lower()}{i} = tile.load %{name}, %{i}, %lane : {type_}" for i in range(count)]
    operands = [f"%{name.lower()}{i}" for name, count in zip("ABC", counts, strict=False) for i in range(count)]
    results = [f"%d{i}" for i in range(counts[3])]
    attributes = f'{{shape = "{shape}", a = {row.a}, b = {row.b}, acc = {row.acc}}}'
    out = ", ".join(str(types[3]) for _ in results)
    body.append(f"{', '.join(results)} = ptx.mma_sync {', '.join(operands)} {attributes} : {out}")
    body += [f"tile.store %D, %{i}, %lane, %d{i}" for i in range(counts[3])]
    tensors = [tensor_text(n, t, p.shape) for n, t, p in zip("ABCD", types, packed, strict=True)]
    name = f"{shape}_{row.a}_{row.b}_{row.acc}"
    return "\n".join(lines) + "\n" + kernel_text(name, tensors, 32, body)


def _product(row: MmaRow, a: Bits, b: Bits, c: Bits) -> Bits:
    left, right = a.tolist(), b.T.tolist()
    return np.array(
        [[dot_bits(row, x, y, int(c[i, j])) for j, y in enumerate(right)] for i, x in enumerate(left)], np.uint64
    )


def _register_type(dtype: DType) -> DType:
    return DTYPES["u32"] if dtype.bits < 32 else dtype


def _registers(shape: str, operand: str, dtype: DType, matrix: Bits) -> Bits:
    """[registers, 32]: what the lanes hold; narrow elements share a register, the first one lowest."""
    place, shared = place_of(shape, operand, dtype.bits), max(1, 32 // dtype.bits)
    found = np.zeros((matrix.size // 32 // shared, 32), np.uint64)
    for lane in range(32):
        for i in range(matrix.size // 32):
            element = int(matrix[place(lane // 4, lane % 4, i)])
            found[i // shared, lane] |= np.uint64(element << dtype.bits * (i % shared))
    return found


def _numbers(rng: np.random.Generator, dtype: DType, size: tuple[int, int], rows: bool) -> Bits:
    """Bits of a matrix. rows: they differ in what kind of numbers they have."""
    any_bits = rng.integers(0, (1 << dtype.bits) - 1, size, np.uint64, endpoint=True)
    if dtype.is_integer:
        return any_bits
    numbers = rng.standard_normal(size)
    if rows:
        numbers[5:9] *= np.exp2(rng.integers(-5, 5, numbers[5:9].shape))
    bits = _rounded(numbers, dtype)
    if not rows:
        return bits
    sign = np.uint64(1 << (dtype.bits - 1))
    fraction = 23 if dtype == TF32 else FORMATS[dtype.name].fraction
    top = ((1 << (dtype.bits - 1)) - 1) >> fraction << fraction
    bits[9:11] = any_bits[9:11] & ~np.uint64(top)  # subnormals
    bits[11:13] = np.where((any_bits & np.uint64(top)) == top, any_bits & sign, any_bits)[11:13]
    specials = [top, top | int(sign), top + 1, 0, int(sign)]
    if dtype.name == "e4m3":
        specials = [0x7F, 0x7E, 0, 0x80]
    for i in range(13, len(bits)):
        bits[i, rng.integers(0, size[1])] = specials[i % len(specials)]
        bits[i, 0] = specials[(i + 1) % 2] if i == 15 else bits[i, 0]
    return bits


def _rounded(numbers: Any, dtype: DType) -> Bits:
    return bits_of(numbers.astype(np.float32).astype(numpy_dtype(dtype)))


# -- matrix.mma: whole block tiles -----------------------------------------------------------------


def _mma_file() -> str:
    text = HEADER.format(
        NAME, "matrix.mma on operands read from global memory: k in ascending order, block tiles of warps."
    )
    for seed, row in enumerate(TABLE):
        s = row.shape
        text += "\n" + _mma_kernel(row, (s.m, 2 * s.n, 2 * s.k), (1, 1), seed)
    for a in ("f16", "i8"):
        row = find_row(SHAPES["m16n8k16"], a, a, "f32" if a == "f16" else "i32")
        assert row is not None
        text += "\n" + _mma_kernel(row, (32, 32, 16), (2, 2), 99)
    return text


def _mma_kernel(row: MmaRow, extents: tuple[int, int, int], warps: tuple[int, int], seed: int) -> str:
    m, n, k = extents
    kinds = {"a": DTYPES[row.a], "b": DTYPES[row.b], "acc": DTYPES[row.acc]}
    sizes = {"a": (m, k), "b": (k, n), "acc": (m, n)}
    sources = {o: f"random({3 * seed + i})" for i, o in enumerate(sizes)}
    a, b, d = (bits_of(Argument(o, kinds[o], sizes[o], sources[o]).array()) for o in sizes)
    step = row.shape.k
    for first in range(0, k, step):
        part = slice(first, first + step)
        d = _product(row, a[:, part], b[part], d)
    lines = [f"; run: {m} x {n} x {k} by {warps[0]} x {warps[1]} warps"]
    for name, operand in zip("ABC", sizes, strict=True):
        extent = ", ".join(map(str, sizes[operand]))
        lines.append(f"; in {name}: {kinds[operand]} [{extent}] = {sources[operand]}")
    lines.append(argument_text("out", "D", kinds["acc"], (m, n), d))
    body = ["%0 = arith.constant 0 : index"]
    types: dict[str, str] = {}
    for name, operand in zip("abc", sizes, strict=True):
        layout = f"{row.shape}.{operand}({warps[0]}, {warps[1]})"
        types[operand] = type_ = fragment_text(kinds[operand], sizes[operand], layout)
        vec = kinds[operand].bytes
        attributes = f"{{type = {type_}, axes = (0, 1), vec = {vec}}}"
        body.append(f"%{name} = matrix.load %{name.upper()}, %0, %0 {attributes} : {type_}")
    body.append(f"%d = matrix.mma %a, %b, %c : {types['acc']}")
    body.append(f"matrix.store %d, %D, %0, %0 {{axes = (0, 1), vec = {kinds['acc'].bytes}}}")
    tensors = [tensor_text(name, kinds[o], sizes[o]) for name, o in zip("ABCD", (*sizes, "acc"), strict=True)]
    name = f"{row.shape}_{row.a}_{row.b}_{row.acc}_{warps[0]}x{warps[1]}"
    return "\n".join(lines) + "\n" + kernel_text(name, tensors, 32 * warps[0] * warps[1], body)
