"""Makes the filetests of asynchronous copies: async/copies.tir, mem/cp_async.tir and arith/words.tir."""

from __future__ import annotations

import numpy as np

from tests.filetest import Argument
from tests.filetests.fragment_text import HEADER, argument_text, bits_of, constants_text, kernel_text, tensor_text
from tiledsl.ir.types import DTYPES, DType

__all__ = ["texts"]

NAME = "tests/filetests/make_async.py"
THREADS = 32


def texts() -> dict[str, str]:
    """The text of every file, by its place below this folder."""
    return {"async/copies.tir": _copies_file(), "mem/cp_async.tir": _cp_file(), "arith/words.tir": _words_file()}


# -- tile level ------------------------------------------------------------------------------------

EDGES = (
    ("f32", 16, (6, 12)),
    ("f32", 8, (8, 14)),
    ("f32", 4, (3, 5)),
    ("f16", 16, (7, 24)),
    ("f16", 8, (5, 12)),
    ("bf16", 4, (8, 30)),
    ("u8", 16, (8, 16)),
    ("i8", 8, (1, 40)),
    ("e4m3", 4, (6, 36)),
    ("f64", 16, (9, 2)),
    ("f64", 8, (2, 3)),
)
"""dtype, bytes of an access, extents of the tensor: smaller or larger than the tile, along either axis."""


def _copies_file() -> str:
    text = HEADER.format(NAME, "async.copy, async.cp, async.wait, async.commit_group and async.wait_group.")
    text += "; What lies past the edge of the tensor arrives as zeros.\n"
    for dtype, vec, extents in EDGES:
        text += "\n" + _edges_kernel(DTYPES[dtype], vec, extents, whole=True)
        text += "\n" + _edges_kernel(DTYPES[dtype], vec, extents, whole=False)
    return text + "\n" + _tokens_kernel() + "\n" + _unguarded_kernel()


def _edges_kernel(dtype: DType, vec: int, extents: tuple[int, int], whole: bool) -> str:
    """A tile of 8 rows of 4 accesses: one for each of 32 threads, the copy's own or by hand."""
    width = vec // dtype.bytes
    dims = (8, 4 * width)
    values = bits_of(Argument("X", dtype, extents, "random(3)").array())
    tile = np.zeros(dims, np.uint64)
    rows, columns = min(dims[0], extents[0]), min(dims[1], extents[1])
    tile[:rows, :columns] = values[:rows, :columns]
    type_ = f"shared<{dtype}, [{dims[0]}, {dims[1]}]>"
    shape = f"shape = ({dims[0]}, {dims[1]}), src_axes = (0, 1), dst_axes = (0, 1)"
    body = [*constants_text(1), f"%S = tile.shared_alloc {{type = {type_}}} : {type_}"]
    if whole:
        body += [f"%c = async.copy %X, %0, %0, %S, %0, %0 {{{shape}, vec = {vec}}} : token", "async.wait %c"]
    else:
        body += [
            "%t = gpu.thread_id {axis = 0} : index",
            "%4 = arith.constant 4 : index",
            f"%width = arith.constant {width} : index",
            "%row = arith.floordiv %t, %4 : index",
            "%access = arith.mod %t, %4 : index",
            "%column = arith.mul %access, %width : index",
            f"async.cp %S, %row, %column, %X, %row, %column {{vec = {width}}}",
            "async.commit_group",
            "async.wait_group {pending = 0}",
        ]
    body += ["gpu.barrier", f"tile.copy %S, %0, %0, %Y, %0, %0 {{{shape}, vec = {dtype.bytes}}}"]
    lines = [
        f"; run: {extents[0]} x {extents[1]} elements, {vec} bytes an access",
        f"; in X: {dtype} [{extents[0]}, {extents[1]}] = random(3)",
        argument_text("out", "Y", dtype, dims, tile),
    ]
    extent_names = f"%X: global<{dtype}, [M, K], unit=1, align={vec}>"
    name = f"{'copy' if whole else 'cp'}_{dtype}_{vec}"
    return "\n".join(lines) + "\n" + kernel_text(name, [extent_names, tensor_text("Y", dtype, dims)], THREADS, body)


def _tokens_kernel() -> str:
    """Two copies, the first waited for while the second goes on; a third waits for nothing but itself."""
    f32 = DTYPES["f32"]
    type_ = "shared<f32, [4, 32]>"
    shape = "{shape = (4, 32), src_axes = (0, 1), dst_axes = (0, 1), vec = 16}"
    body = [
        *constants_text(13),
        "%t = gpu.thread_id {axis = 0} : index",
        "%31 = arith.constant 31 : index",
        "%u = arith.sub %31, %t : index",
        *(f"%{s} = tile.shared_alloc {{type = {type_}}} : {type_}" for s in "PQR"),
        f"%p = async.copy %X, %0, %0, %P, %0, %0 {shape} : token",
        f"%q = async.copy %X, %4, %0, %Q, %0, %0 {shape} : token",
        "async.wait %p",
        "gpu.barrier",
        f"%r = async.copy %X, %8, %0, %R, %0, %0 {shape} : token",
    ]
    for tile, token, first in (("P", "", 0), ("Q", "q", 4), ("R", "r", 8)):
        body += [f"async.wait %{token}", "gpu.barrier"] if token else []
        for i in range(4):
            body.append(f"%{tile}{i} = tile.load %{tile}, %{i}, %u : f32")
            body.append(f"tile.store %Y, %{first + i}, %t, %{tile}{i}")
    values = bits_of(Argument("X", f32, (12, 32), "iota").array())
    lines = [
        "; run: three copies, each waited for by itself; threads read what others have copied",
        "; in X: f32 [12, 32] = iota",
        argument_text("out", "Y", f32, (12, 32), values[:, ::-1]),
    ]
    tensors = [tensor_text("X", f32, (12, 32)), tensor_text("Y", f32, (12, 32))]
    return "\n".join(lines) + "\n" + kernel_text("tokens", tensors, THREADS, body)


def _unguarded_kernel() -> str:
    """Groups by hand: the first of three has arrived when two may be on their way."""
    f32 = DTYPES["f32"]
    type_ = "shared<f32, [3, 32]>"
    body = [
        *constants_text(3),
        "%t = gpu.thread_id {axis = 0} : index",
        f"%S = tile.shared_alloc {{type = {type_}}} : {type_}",
    ]
    for i in range(3):
        body += [f"async.cp %S, %{i}, %t, %X, %{i}, %t {{guard = false}}", "async.commit_group"]
    for i in range(3):
        body += [
            f"async.wait_group {{pending = {2 - i}}}",
            f"%v{i} = tile.load %S, %{i}, %t : f32",
            f"tile.store %Y, %{i}, %t, %v{i}",
        ]
    values = bits_of(Argument("X", f32, (3, 32), "iota").array())
    lines = [
        "; run: three groups, waited for one after the other",
        "; in X: f32 [3, 32] = iota",
        argument_text("out", "Y", f32, (3, 32), values),
    ]
    tensors = [tensor_text("X", f32, (3, 32)), tensor_text("Y", f32, (3, 32))]
    return "\n".join(lines) + "\n" + kernel_text("groups", tensors, THREADS, body)


# -- thread level ----------------------------------------------------------------------------------


def _thread_kernel(name: str, dtype: DType, shared: int, body: list[str]) -> str:
    head = (
        f"kernel {name}(%X: ptr<global, {dtype}>, %Y: ptr<global, {dtype}>, %N: i32)\n"
        f"  grid(1) threads({THREADS}) level(thread) index_bits(32) shared_bytes({shared})\n"
        f"  abi(pointer X {dtype} [N], pointer Y {dtype} [N], extent N i32) {{"
    )
    return "\n".join([head, *(f"  {line}" for line in [*body, "control.return"]), "}", ""])


PREDICATE = (
    "%three = arith.constant 3 : i32",
    "%only = arith.constant 1 : i32",
    "%third = arith.mod %t, %three : i32",
    "%on = arith.ne %third, %only : bool",
)


def _cp_file() -> str:
    text = HEADER.format(NAME, "Thread level: mem.cp_async reads some of the bytes, the others arrive as zeros.")
    text += "; Where its predicate is false, nothing is copied, and what lay there stays.\n"
    for vec in (4, 8, 16):
        for sized in (True, False):
            text += "\n" + _cp_kernel(vec, sized)
        for sized in (True, False):
            text += "\n" + _cp_kernel(vec, sized, predicated=True)
    return text


def _cp_kernel(vec: int, sized: bool, predicated: bool = False) -> str:
    """Thread t copies `vec` bytes, of which it reads t modulo (vec + 1), by way of shared memory that held ones.
    `predicated`: threads whose t modulo 3 is 1 copy nothing."""
    u8 = DTYPES["u8"]
    size = THREADS * vec
    values = bits_of(Argument("X", u8, (size,), "random(11)").array()).reshape(THREADS, vec)
    expected = values.copy()
    if sized:
        expected[np.arange(vec) >= (np.arange(THREADS) % (vec + 1))[:, None]] = 0
    if predicated:
        expected[np.arange(THREADS) % 3 == 1] = 1
    names, types = ", ".join(f"%v{i}" for i in range(vec)), ", ".join(["u8"] * vec)
    body = [
        "%t = gpu.thread_id {axis = 0} : i32",
        f"%vec = arith.constant {vec} : i32",
        f"%limit = arith.constant {vec + 1} : i32",
        "%one = arith.constant 1 : u8",
        "%at = arith.mul %t, %vec : i32",
        "%size = arith.mod %t, %limit : i32",
        f'%S = mem.shared_base {{dtype = u8, offset = 0, bytes = {size}, label = "S"}} : ptr<shared, u8>',
        "%x = mem.offset %X, %at : ptr<global, u8>",
        "%y = mem.offset %Y, %at : ptr<global, u8>",
        "%s = mem.offset %S, %at : ptr<shared, u8>",
        f"mem.store %s, {', '.join(['%one'] * vec)} {{vec = {vec}}}",
        "gpu.barrier",
        *(PREDICATE if predicated else ()),
        f"mem.cp_async %s, %x{', %size' if sized else ''}{', %on' if predicated else ''} {{bytes = {vec}}}",
        "async.commit_group",
        "async.wait_group {pending = 0}",
        f"{names} = mem.load %s {{vec = {vec}}} : {types}",
        f"mem.store %y, {names} {{vec = {vec}}}",
    ]
    if not sized:
        body = [line for line in body if not line.startswith(("%limit", "%size"))]
    name = f"cp_{vec}{'_sized' if sized else ''}{'_predicated' if predicated else ''}"
    lines = [
        f"; run: {f'0 to {vec}' if sized else 'all'} of {vec} bytes{', of some threads' if predicated else ''}",
        f"; in X: u8 [{size}] = random(11)",
        argument_text("out", "Y", u8, (size,), expected),
    ]
    return "\n".join(lines) + "\n" + _thread_kernel(name, u8, size, body)


# -- words -----------------------------------------------------------------------------------------


def _words_file() -> str:
    text = HEADER.format(NAME, "arith.pack_word and arith.unpack_word: the first element is the lowest.")
    for dtype in ("f16", "bf16", "i16", "u8", "i8", "e4m3", "e5m2"):
        text += "\n" + _words_kernel(DTYPES[dtype])
    return text


def _words_kernel(dtype: DType) -> str:
    """A word's elements in reverse order, as elements and as a word."""
    count = 32 // dtype.bits
    words = bits_of(Argument("X", DTYPES["u32"], (THREADS,), "random(13)").array())
    shifts = np.arange(count, dtype=np.uint64) * np.uint64(dtype.bits)
    parts = words[:, None] >> shifts & np.uint64((1 << dtype.bits) - 1)
    turned = (parts[:, ::-1] << shifts).sum(axis=1, dtype=np.uint64)
    names = [f"%e{i}" for i in range(count)]
    body = [
        "%t = gpu.thread_id {axis = 0} : i32",
        f"%count = arith.constant {count} : i32",
        "%x = mem.offset %X, %t : ptr<global, u32>",
        "%z = mem.offset %Z, %t : ptr<global, u32>",
        "%at = arith.mul %t, %count : i32",
        f"%y = mem.offset %Y, %at : ptr<global, {dtype}>",
        "%w = mem.load %x : u32",
        f"{', '.join(names)} = arith.unpack_word %w {{to = {dtype}}} : {', '.join([str(dtype)] * count)}",
        f"mem.store %y, {', '.join(names)} {{vec = {count}}}",
        f"%r = arith.pack_word {', '.join(names[::-1])} : u32",
        "mem.store %z, %r",
    ]
    lines = [
        f"; run: {count} elements a word",
        f"; in X: u32 [{THREADS}] = random(13)",
        argument_text("out", "Y", dtype, (THREADS * count,), parts),
        argument_text("out", "Z", DTYPES["u32"], (THREADS,), turned),
    ]
    head = (
        f"kernel words_{dtype}(%X: ptr<global, u32>, %Y: ptr<global, {dtype}>, %Z: ptr<global, u32>)\n"
        f"  grid(1) threads({THREADS}) level(thread) index_bits(32)\n"
        f"  abi(pointer X u32 [{THREADS}], pointer Y {dtype} [{THREADS * count}], pointer Z u32 [{THREADS}]) {{"
    )
    return "\n".join([*lines, head, *(f"  {line}" for line in [*body, "control.return"]), "}", ""])
