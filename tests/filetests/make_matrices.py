"""Makes the filetests of ldmatrix and stmatrix at both levels: matrix/ldmatrix.tir and mem/matrices.tir.

Which lane holds what comes from the PTX ISA, not from the compiler.
"""

from __future__ import annotations

import numpy as np

from tests.filetests.fragment_text import (
    HEADER,
    Bits,
    argument_text,
    constants_text,
    kernel_text,
    tensor_text,
    to_shared_text,
)
from tiledsl.ir.types import DTYPES

__all__ = ["texts"]

NAME = "tests/filetests/make_matrices.py"


def texts() -> dict[str, str]:
    """The text of every file, by its place below this folder."""
    return {"matrix/ldmatrix.tir": _ldmatrix_file(), "mem/matrices.tir": _memory_file()}


def _ldmatrix_file() -> str:
    """The rows of the matrices lie one above the other; lanes that have no row point past the end of the tile."""
    text = HEADER.format(NAME, "matrix.ldmatrix and matrix.stmatrix: 1, 2 and 4 matrices, straight and transposed.")
    for num in (1, 2, 4):
        for trans in (False, True):
            text += "\n" + _matrices_kernel(num, trans, load=True) + "\n" + _matrices_kernel(num, trans, load=False)
    return text


def _matrices(num: int, trans: bool) -> tuple[Bits, Bits]:
    """Matrices of u16 that count their elements, and the words of them that the lanes have. (PTX ISA: ldmatrix)"""
    rows = np.arange(64 * num, dtype=np.uint64).reshape(num, 8, 8)
    words = np.zeros((num, 32), np.uint64)
    for lane in range(32):
        g, t = divmod(lane, 4)
        for j in range(num):
            matrix = rows[j].T if trans else rows[j]
            words[j, lane] = matrix[g, 2 * t] | matrix[g, 2 * t + 1] << np.uint64(16)
    return rows, words


def _matrices_kernel(num: int, trans: bool, load: bool) -> str:
    half, u32 = DTYPES["u16"], DTYPES["u32"]
    rows, words = _matrices(num, trans)
    tile, registers = (8 * num, 8), (num, 32)
    body = ["%lane = gpu.thread_id {axis = 0} : index", *constants_text(max(num, 1))]
    attributes = f"{{vec = 8, num = {num}, trans = {str(trans).lower()}}}"
    names = ", ".join(f"%w{i}" for i in range(num))
    if load:
        body += to_shared_text(half, tile, "X")
        body.append(f"{names} = matrix.ldmatrix %S, %lane, %0 {attributes} : {', '.join(['u32'] * num)}")
        body += [f"tile.store %Y, %{i}, %lane, %w{i}" for i in range(num)]
        given, got = (half, tile), (u32, registers)
        lines = [f"; in X: u16 [{8 * num}, 8] = iota", argument_text("out", "Y", u32, registers, words)]
    else:
        alloc = f"shared<u16, [{8 * num}, 8]>"
        body.append(f"%S = tile.shared_alloc {{type = {alloc}}} : {alloc}")
        body += [f"%w{i} = tile.load %X, %{i}, %lane : u32" for i in range(num)]
        body.append(f"matrix.stmatrix %S, %lane, %0, {names} {attributes}")
        copied = f"shape = ({8 * num}, 8), src_axes = (0, 1), dst_axes = (0, 1), vec = 2"
        body += ["gpu.barrier", f"tile.copy %S, %0, %0, %Y, %0, %0 {{{copied}}}"]
        given, got = (u32, registers), (half, tile)
        lines = [argument_text("in", "X", u32, registers, words), argument_text("out", "Y", half, tile, rows)]
    name = f"{'ldmatrix' if load else 'stmatrix'}_x{num}{'_trans' if trans else ''}"
    tensors = [tensor_text("X", *given), tensor_text("Y", *got)]
    return "\n".join([f"; run: {num} matrices", *lines]) + "\n" + kernel_text(name, tensors, 32, body)


def _memory_file() -> str:
    text = HEADER.format(NAME, "Thread level: mem.ldmatrix, then mem.stmatrix to where nothing was.")
    for num in (1, 2, 4):
        for trans in (False, True):
            text += "\n" + _memory_kernel(num, trans)
    return text


def _memory_kernel(num: int, trans: bool) -> str:
    """Lanes write the matrices, two neighbours at a time; lanes that have no row of their own give another's."""
    rows, words = _matrices(num, trans)
    size = rows.size * 2
    attributes = f"{{num = {num}, trans = {str(trans).lower()}}}"
    names, types = ", ".join(f"%w{i}" for i in range(num)), ", ".join(["u32"] * num)
    base = '%{} = mem.shared_base {{dtype = u16, offset = {}, bytes = {}, label = "{}"}} : ptr<shared, u16>'
    body = [
        "%lane = gpu.thread_id {axis = 0} : i32",
        *(f"%{i} = arith.constant {i} : i32" for i in (2, 8, 32, 64, 8 * num)),
        base.format("S", 0, size, "S"),
        base.format("T", size, size, "T"),
        "%pair = arith.mul %lane, %2 : i32",
        f"%row = arith.mod %lane, %{8 * num} : i32",
        "%at = arith.mul %row, %8 : i32",
        "%from = mem.offset %S, %at : ptr<shared, u16>",
        "%to = mem.offset %T, %at : ptr<shared, u16>",
    ]
    body = list(dict.fromkeys(body))
    for j in range(num):
        body += [
            f"%step{j} = arith.constant {64 * j} : i32",
            f"%i{j} = arith.add %pair, %step{j} : i32",
            f"%x{j} = mem.offset %X, %i{j} : ptr<global, u16>",
            f"%s{j} = mem.offset %S, %i{j} : ptr<shared, u16>",
            f"%a{j}, %b{j} = mem.load %x{j} {{vec = 2}} : u16, u16",
            f"mem.store %s{j}, %a{j}, %b{j} {{vec = 2}}",
        ]
    body += [
        "gpu.barrier",
        f"{names} = mem.ldmatrix %from {attributes} : {types}",
        f"mem.stmatrix %to, {names} {attributes}",
    ]
    body.append("gpu.barrier")
    for j in range(num):
        body += [
            f"%row{j} = arith.constant {32 * j} : i32",
            f"%k{j} = arith.add %lane, %row{j} : i32",
            f"%y{j} = mem.offset %Y, %k{j} : ptr<global, u32>",
            f"mem.store %y{j}, %w{j}",
            f"%t{j} = mem.offset %T, %i{j} : ptr<shared, u16>",
            f"%z{j} = mem.offset %Z, %i{j} : ptr<global, u16>",
            f"%c{j}, %d{j} = mem.load %t{j} {{vec = 2}} : u16, u16",
            f"mem.store %z{j}, %c{j}, %d{j} {{vec = 2}}",
        ]
    name = f"matrices_x{num}{'_trans' if trans else ''}"
    head = (
        f"kernel {name}(%X: ptr<global, u16>, %Y: ptr<global, u32>, %Z: ptr<global, u16>)\n"
        f"  grid(1) threads(32) level(thread) index_bits(32) shared_bytes({2 * size})\n"
        f"  abi(pointer X u16 [{rows.size}], pointer Y u32 [{words.size}], pointer Z u16 [{rows.size}]) {{"
    )
    lines = [
        f"; run: {num} matrices",
        f"; in X: u16 [{rows.size}] = iota",
        argument_text("out", "Y", DTYPES["u32"], (words.size,), words),
        argument_text("out", "Z", DTYPES["u16"], (rows.size,), rows),
    ]
    return "\n".join([*lines, head, *(f"  {line}" for line in [*body, "control.return"]), "}", ""])
