"""Makes the filetests of which thread holds what of a fragment: matrix/load.tir, store.tir and fragments.tir.

Which thread holds what comes from the PTX ISA's formulas (`fragment_text`), not from the compiler.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.filetest import Argument
from tests.filetests.fragment_text import (
    HEADER,
    argument_text,
    bits_of,
    constants_text,
    fragment_text,
    kernel_text,
    place_of,
    size_of,
    tensor_text,
    to_shared_text,
)
from tiledsl.ir.types import DTYPES

__all__ = ["texts"]

NAME = "tests/filetests/make_fragments.py"


def texts() -> dict[str, str]:
    """The text of every file, by its place below this folder."""
    return {
        "matrix/load.tir": _load_file(),
        "matrix/store.tir": _store_file(),
        "matrix/fragments.tir": _fragments_file(),
    }


# -- matrix.load and matrix.store: which thread holds what -----------------------------------------

# Layout, dtype, block tile, grid of warps, whether the tile's unit-stride axis is the fragment's other one.
LOADS: tuple[tuple[str, str, str, tuple[int, int], tuple[int, int], bool], ...] = (
    ("m16n8k16", "a", "f16", (64, 32), (2, 1), False),
    ("m16n8k16", "a", "bf16", (32, 16), (1, 2), True),
    ("m16n8k16", "b", "f16", (32, 32), (1, 2), False),
    ("m16n8k16", "b", "f16", (16, 16), (1, 1), True),
    ("m16n8k16", "acc", "f16", (32, 16), (1, 1), False),
    ("m16n8k16", "acc", "f16", (16, 32), (1, 2), True),
    ("m16n8k8", "a", "f16", (32, 8), (1, 1), False),
    ("m16n8k8", "b", "bf16", (8, 32), (1, 1), True),
    ("m16n8k32", "a", "e4m3", (32, 64), (2, 1), False),
    ("m16n8k16", "a", "i8", (16, 32), (1, 1), False),
    ("m16n8k32", "b", "u8", (64, 16), (1, 1), True),
    ("m16n8k8", "a", "tf32", (32, 16), (1, 1), False),
    ("m16n8k8", "b", "tf32", (16, 16), (1, 1), True),
    ("m16n8k4", "a", "tf32", (32, 8), (2, 1), False),
)
PLAIN: tuple[tuple[str, str, str, tuple[int, int], tuple[int, int], bool], ...] = (
    ("m16n8k16", "a", "f16", (32, 32), (2, 1), False),
    ("m16n8k16", "b", "f16", (16, 16), (1, 2), False),
    ("m16n8k32", "b", "i8", (32, 16), (1, 1), False),
    ("m16n8k8", "b", "tf32", (16, 16), (1, 1), False),
    ("m16n8k16", "acc", "f32", (32, 16), (2, 1), False),
    ("m16n8k16", "acc", "i32", (32, 16), (2, 1), True),
    ("m8n8k4", "a", "f64", (16, 8), (1, 1), False),
    ("m16n8k8", "a", "f64", (16, 8), (1, 1), False),
    ("m16n8k16", "b", "f64", (16, 8), (1, 1), False),
    ("m16n8k4", "acc", "f64", (16, 16), (1, 1), False),
)


def _held(shape: str, operand: str, bits: int, dims: tuple[int, int], warps: tuple[int, int]) -> NDArray[np.int64]:
    """[elements, threads]: the index in the block tile, row by row, of what each thread holds."""
    rows, columns = size_of(shape, operand)
    along = {"a": (warps[0], 1), "b": (1, warps[1]), "acc": warps}[operand]
    part = dims[0] // along[0], dims[1] // along[1]
    tiles = [(i, j) for i in range(part[0] // rows) for j in range(part[1] // columns)]
    place = place_of(shape, operand, bits)
    found: list[list[int]] = []
    for i, j in tiles:
        for element in range(rows * columns // 32):
            held: list[int] = []
            for thread in range(32 * warps[0] * warps[1]):
                warp, lane = divmod(thread, 32)
                at_m, at_n = divmod(warp, warps[1])
                row, column = place(lane // 4, lane % 4, element)
                row += i * rows + (0 if operand == "b" else at_m * part[0])
                column += j * columns + (0 if operand == "a" else at_n * part[1])
                held.append(row * dims[1] + column)
            found.append(held)
    return np.array(found)


def _load_file() -> str:
    text = HEADER.format(
        NAME, "matrix.load: each thread writes what it holds; by ldmatrix, .trans where the tile is the other way."
    )
    for seed, case in enumerate(LOADS):
        text += "\n" + _load_kernel(*case, seed, shared=True, vec=0)
    text += "\n; Plain loads, of shared and of global memory.\n"
    for seed, case in enumerate(PLAIN):
        for shared in (True, False):
            text += "\n" + _load_kernel(*case, seed, shared=shared, vec=DTYPES[case[2]].bytes)
    return text


def _load_kernel(
    shape: str, operand: str, dtype_name: str, dims: tuple[int, int], warps: tuple[int, int], other: bool, seed: int,
    *, shared: bool, vec: int,
) -> str:  # fmt: skip
    dtype = DTYPES[dtype_name]
    memory = dims[::-1] if other else dims
    threads = 32 * warps[0] * warps[1]
    source = "iota" if dtype.bits > 8 else f"random({seed})"
    values = bits_of(Argument("X", dtype, memory, source).array())
    held = (values.T if other else values).ravel()[_held(shape, operand, dtype.bits, dims, warps)]
    lines = [
        f"; run: {'transposed' if other else 'straight'}",
        f"; in X: {dtype} [{memory[0]}, {memory[1]}] = {source}",
        argument_text("out", "Y", dtype, held.shape, held),
    ]
    type_ = fragment_text(dtype, dims, f"{shape}.{operand}({warps[0]}, {warps[1]})")
    axes = "(1, 0)" if other else "(0, 1)"
    body = ["%t = gpu.thread_id {axis = 0} : index", *constants_text(len(held))]
    if shared:
        body += to_shared_text(dtype, memory, "X")
    where = "S" if shared else "X"
    body.append(f"%f = matrix.load %{where}, %0, %0 {{type = {type_}, axes = {axes}, vec = {vec}}} : {type_}")
    for i in range(len(held)):
        body.append(f"%v{i} = tile.extract %f {{at = ({i},)}} : {dtype}")
        body.append(f"tile.store %Y, %{i}, %t, %v{i}")
    kind = ("ldmatrix" if vec == 0 else "shared" if shared else "global") + ("_trans" if other else "")
    tensors = [tensor_text("X", dtype, memory), tensor_text("Y", dtype, held.shape)]
    return "\n".join(lines) + "\n" + kernel_text(f"{shape}_{operand}_{dtype}_{kind}", tensors, threads, body)


STORES: tuple[tuple[str, str, str, tuple[int, int], tuple[int, int], bool, int], ...] = (
    ("m16n8k16", "acc", "f16", (32, 32), (2, 2), False, 0),
    ("m16n8k16", "acc", "bf16", (16, 32), (1, 1), True, 0),
    ("m16n8k16", "a", "f16", (32, 16), (2, 1), False, 0),
    ("m16n8k8", "acc", "f16", (16, 8), (1, 1), False, 0),
    ("m16n8k16", "acc", "f16", (32, 16), (2, 1), False, 4),
    ("m16n8k16", "acc", "f32", (32, 16), (2, 1), False, 8),
    ("m16n8k16", "acc", "f32", (32, 16), (2, 1), True, 4),
    ("m16n8k16", "acc", "f64", (32, 16), (2, 1), False, 16),
    ("m16n8k32", "acc", "i32", (16, 24), (1, 1), False, 8),
)
"""As `LOADS`, and bytes of an access: 0 stands for stmatrix."""


def _store_file() -> str:
    text = HEADER.format(
        NAME, "matrix.store: what the threads hold goes to shared memory (by stmatrix if vec is 0) or a tensor."
    )
    for case in STORES:
        text += "\n" + _store_kernel(*case, shared=True)
        if case[-1]:
            text += "\n" + _store_kernel(*case, shared=False)
    return text


def _store_kernel(
    shape: str, operand: str, dtype_name: str, dims: tuple[int, int], warps: tuple[int, int], other: bool, vec: int,
    *, shared: bool,
) -> str:  # fmt: skip
    dtype = DTYPES[dtype_name]
    memory = dims[::-1] if other else dims
    held = _held(shape, operand, dtype.bits, dims, warps)
    values = bits_of(Argument("X", dtype, held.shape, "iota").array())
    matrix = np.zeros(dims[0] * dims[1], np.uint64)
    matrix[held] = values
    expected = matrix.reshape(dims).T if other else matrix.reshape(dims)
    lines = [
        f"; run: {'transposed' if other else 'straight'}",
        f"; in X: {dtype} [{held.shape[0]}, {held.shape[1]}] = iota",
        argument_text("out", "Y", dtype, memory, expected),
    ]
    type_ = fragment_text(dtype, dims, f"{shape}.{operand}({warps[0]}, {warps[1]})")
    axes = "(1, 0)" if other else "(0, 1)"
    body = ["%t = gpu.thread_id {axis = 0} : index", *constants_text(len(held))]
    body += [f"%v{i} = tile.load %X, %{i}, %t : {dtype}" for i in range(len(held))]
    elements = ", ".join(f"%v{i}" for i in range(len(held)))
    body.append(f"%f = tile.pack {elements} {{type = {type_}}} : {type_}")
    where = "S" if shared else "Y"
    if shared:
        alloc = f"shared<{dtype}, [{memory[0]}, {memory[1]}]>"
        body.append(f"%S = tile.shared_alloc {{type = {alloc}}} : {alloc}")
    body.append(f"matrix.store %f, %{where}, %0, %0 {{axes = {axes}, vec = {vec}}}")
    if shared:
        copied = f"shape = ({memory[0]}, {memory[1]}), src_axes = (0, 1), dst_axes = (0, 1), vec = {dtype.bytes}"
        body += ["gpu.barrier", f"tile.copy %S, %0, %0, %Y, %0, %0 {{{copied}}}"]
    kind = ("stmatrix" if vec == 0 else "shared" if shared else "global") + ("_trans" if other else "")
    tensors = [tensor_text("X", dtype, held.shape), tensor_text("Y", dtype, memory)]
    name = f"{shape}_{operand}_{dtype}_{kind}_{vec}"
    return "\n".join(lines) + "\n" + kernel_text(name, tensors, len(held[0]), body)


# -- what else fragments hold ----------------------------------------------------------------------


def _fragments_file() -> str:
    text = HEADER.format(NAME, "matrix.coordinates, matrix.convert, matrix.from_words and matrix.to_words.")
    text += (
        "\n" + _coordinates_kernel("m16n8k16", (64, 32), (2, 2)) + "\n" + _coordinates_kernel("m8n8k4", (8, 16), (1, 1))
    )
    for dtype in ("f16", "bf16"):
        text += "\n" + _convert_kernel(dtype, (32, 32), (2, 1))
    for shape, dtype in (("m16n8k16", "f16"), ("m16n8k32", "e5m2"), ("m16n8k16", "u8"), ("m16n8k8", "tf32")):
        text += "\n" + _words_kernel(shape, dtype)
    return text


def _coordinates_kernel(shape: str, dims: tuple[int, int], warps: tuple[int, int]) -> str:
    i32 = DTYPES["i32"]
    held = _held(shape, "acc", 32, dims, warps)
    expected = np.concatenate([held // dims[1], held % dims[1]])
    type_ = fragment_text(DTYPES["index"], dims, f"{shape}.acc({warps[0]}, {warps[1]})")
    body = ["%t = gpu.thread_id {axis = 0} : index", *constants_text(len(expected))]
    for axis, name in enumerate("rc"):
        body.append(f"%{name} = matrix.coordinates {{type = {type_}, axis = {axis}}} : {type_}")
        for i in range(len(held)):
            at = axis * len(held) + i
            body.append(f"%x{at} = tile.extract %{name} {{at = ({i},)}} : index")
            body.append(f"%y{at} = arith.cast %x{at} : i32")
            body.append(f"tile.store %Y, %{at}, %t, %y{at}")
    lines = ["; run: rows, then columns", argument_text("out", "Y", i32, expected.shape, expected)]
    name = f"coordinates_{shape}_{warps[0]}x{warps[1]}"
    return "\n".join(lines) + "\n" + kernel_text(name, [tensor_text("Y", i32, expected.shape)], held.shape[1], body)


def _convert_kernel(dtype_name: str, dims: tuple[int, int], warps: tuple[int, int]) -> str:
    """What a warp has accumulated is the left operand of its next product."""
    dtype = DTYPES[dtype_name]
    values = bits_of(Argument("X", dtype, dims, "iota").array()).ravel()
    held = values[_held("m16n8k16", "a", dtype.bits, dims, warps)]
    acc, a = (fragment_text(dtype, dims, f"m16n8k16.{operand}({warps[0]}, {warps[1]})") for operand in ("acc", "a"))
    body = ["%t = gpu.thread_id {axis = 0} : index", *constants_text(len(held))]
    body.append(f"%f = matrix.load %X, %0, %0 {{type = {acc}, axes = (0, 1), vec = 4}} : {acc}")
    body.append(f"%g = matrix.convert %f {{type = {a}}} : {a}")
    for i in range(len(held)):
        body.append(f"%v{i} = tile.extract %g {{at = ({i},)}} : {dtype}")
        body.append(f"tile.store %Y, %{i}, %t, %v{i}")
    lines = [
        "; run: accumulators as the left operand",
        f"; in X: {dtype} [{dims[0]}, {dims[1]}] = iota",
        argument_text("out", "Y", dtype, held.shape, held),
    ]
    tensors = [tensor_text("X", dtype, dims), tensor_text("Y", dtype, held.shape)]
    return "\n".join(lines) + "\n" + kernel_text(f"convert_{dtype}", tensors, held.shape[1], body)


def _words_kernel(shape: str, dtype_name: str) -> str:
    """Words to elements, which are written, and back to words."""
    dtype, u32 = DTYPES[dtype_name], DTYPES["u32"]
    dims = size_of(shape, "a")
    shared, count = 32 // dtype.bits, dims[0] * dims[1] // 32
    words = bits_of(Argument("X", u32, (count // shared, 32), "random(7)").array())
    mask = np.uint64((1 << dtype.bits) - 1)
    elements = np.array([words[i // shared] >> np.uint64(dtype.bits * (i % shared)) & mask for i in range(count)])
    type_ = fragment_text(dtype, dims, f"{shape}.a(1, 1)")
    body = ["%t = gpu.thread_id {axis = 0} : index", *constants_text(count)]
    body += [f"%w{i} = tile.load %X, %{i}, %t : u32" for i in range(len(words))]
    body.append(f"%f = matrix.from_words {', '.join(f'%w{i}' for i in range(len(words)))} {{type = {type_}}} : {type_}")
    for i in range(count):
        body.append(f"%v{i} = tile.extract %f {{at = ({i},)}} : {dtype}")
        body.append(f"tile.store %Y, %{i}, %t, %v{i}")
    results = ", ".join(f"%z{i}" for i in range(len(words)))
    body.append(f"{results} = matrix.to_words %f : {', '.join(['u32'] * len(words))}")
    body += [f"tile.store %Z, %{i}, %t, %z{i}" for i in range(len(words))]
    lines = [
        "; run: elements of words, and back",
        f"; in X: u32 [{len(words)}, 32] = random(7)",
        argument_text("out", "Y", dtype, elements.shape, elements),
        argument_text("out", "Z", u32, words.shape, words),
    ]
    shapes = ("X", u32, words.shape), ("Y", dtype, elements.shape), ("Z", u32, words.shape)
    name = f"words_{shape}_{dtype}"
    return "\n".join(lines) + "\n" + kernel_text(name, [tensor_text(*s) for s in shapes], 32, body)
