"""Makes the filetests of TMA, mbarriers and wgmma: hopper/wgmma.tir, hopper/tma.tir and hopper/thread.tir.

Expected results come from `tests.filetests.reference_mma` and from NumPy, not from the compiler.
"""

from __future__ import annotations

import numpy as np

from tests.filetest import Argument
from tests.filetests.fragment_text import HEADER, Bits, argument_text, bits_of, kernel_text, tensor_text
from tests.filetests.reference_mma import wgmma_bits
from tiledsl.ir.types import DTYPES, DType
from tiledsl.layout.wgmma import WGMMA, WGMMA_ROWS, WgmmaRow, find_wgmma

__all__ = ["texts"]

NAME = "tests/filetests/make_hopper.py"

CONSTANTS = [
    "%0 = arith.constant 0 : index",
    "%even = arith.constant 0 : u32",
    "%no = arith.constant false : bool",
    "%tid = gpu.thread_id {axis = 0} : index",
    "%first = arith.eq %tid, %0 : bool",
]


def texts() -> dict[str, str]:
    """The text of every file, by its place below this folder."""
    files = {"wgmma": _wgmma_file, "tma": _tma_file, "thread": _thread_file}
    return {f"hopper/{name}.tir": write() for name, write in files.items()}


def _once(*body: str) -> list[str]:
    """By the first thread."""
    inside = [f"  {line}" for line in (*body, "control.yield")]
    return ["control.if %first {", *inside, "} else {", "  control.yield", "}"]


def _loaded(tiles: dict[str, tuple[str, tuple[int, int]]], count: int) -> list[str]:
    """Tiles of tensors that begin at their origin, behind an mbarrier that waits for `count` bytes. By name of the tile
    the tensor and the box."""
    loads = [
        f"tma.load %{name}, %0, %0, %{tensor}, %0, %0, %full, %0 {{box = {box}, axes = (0, 1)}}"
        for name, (tensor, box) in tiles.items()
    ]
    return [
        '%full = tile.shared_alloc {layout = "row"} : shared<u64, [1]>',
        *_once("mbarrier.init %full, %0 {count = 1}", "fence.mbarrier_init"),
        "gpu.barrier",
        *_once(f"mbarrier.expect_tx %full, %0 {{bytes = {count}}}", *loads),
        "mbarrier.wait %full, %0, %even",
    ]


# -- wgmma: every product --------------------------------------------------------------------------


def _wgmma_file() -> str:
    text = HEADER.format(NAME, "wgmma.mma: every product, two steps of k, operands by TMA.") + (
        "; Along k; 16-bit operands also along m and n, where a product may take a part of a panel.\n"
    )
    for seed, row in enumerate(WGMMA):
        text += "\n" + _wgmma_kernel(row, seed, turned=False)
        if row.bits == 16 and row.acc == "f32":
            text += "\n" + _wgmma_kernel(row, seed, turned=True)
    row = WGMMA[0]
    return text + "\n" + _wgmma_kernel(row, len(WGMMA), turned=True, n=72, staged=128)


def _wgmma_kernel(row: WgmmaRow, seed: int, turned: bool, n: int = 0, staged: int = 0) -> str:
    """n: columns, by default few. staged: columns of the tile of B, of which the product takes the first n."""
    n, k = n or (16 if turned else 8), 2 * row.k
    dtypes = {"A": DTYPES[row.a], "B": DTYPES[row.b], "D": DTYPES[row.acc]}
    shapes = {"A": (WGMMA_ROWS, k), "B": (staged or n, k)}
    if turned:
        shapes = {name: shape[::-1] for name, shape in shapes.items()}
    sources = {name: f"random({2 * seed + number})" for number, name in enumerate(shapes)}
    a, b = (bits_of(Argument(name, dtypes[name], shapes[name], sources[name]).array()) for name in shapes)
    d = _product(row, a.T if turned else a, (b.T if turned else b)[:n])
    part = f", {n} of {staged} columns" if staged else ""
    lines = [f"; run: {row}, rows along {'m and n' if turned else 'k'}{part}"]
    lines += [f"; in {name}: {dtypes[name]} {list(shapes[name])} = {sources[name]}" for name in shapes]
    lines.append(argument_text("out", "D", dtypes["D"], (WGMMA_ROWS, n), d))
    held = f"fragment<{row.acc}, [{WGMMA_ROWS}, {n}], wgmma.acc(1)>"
    axes = "a_axes = (1, 0), b_axes = (0, 1)" if turned else "a_axes = (0, 1), b_axes = (1, 0)"
    bytes_ = sum(shape[0] * shape[1] * dtypes[name].bytes for name, shape in shapes.items())
    body = [
        *CONSTANTS,
        *(f"%{name.lower()} = {_alloc(dtypes[name], shape)}" for name, shape in shapes.items()),
        *_loaded({name.lower(): (name, shape) for name, shape in shapes.items()}, bytes_),
        f"%begun = wgmma.begin : pending<{held}>",
        "wgmma.fence",
        f"%sum = wgmma.mma %begun, %no, %a, %0, %0, %b, %0, %0 {{k = {k}, {axes}}} : pending<{held}>",
        "wgmma.commit_group",
        f"%d = wgmma.wait %sum : {held}",
        f"matrix.store %d, %D, %0, %0 {{axes = (0, 1), vec = {dtypes['D'].bytes}}}",
    ]
    tensors = [tensor_text(name, dtypes[name], shapes.get(name, (WGMMA_ROWS, n))) for name in dtypes]
    name = f"{row.a}_{row.b}_{row.acc}{'_turned' if turned else ''}{'_part' if staged else ''}"
    return "\n".join(lines) + "\n" + kernel_text(name, tensors, 128, body)


def _alloc(dtype: DType, shape: tuple[int, int]) -> str:
    """With the widest swizzle that fits a row."""
    span = next(s for s in (128, 64, 32) if shape[1] * dtype.bytes % s == 0)
    return f'tile.shared_alloc {{layout = "swizzle_{span}b"}} : shared<{dtype}, {list(shape)}>'


def _product(row: WgmmaRow, a: Bits, b: Bits) -> Bits:
    """[m, n], from [m, k] and [n, k]."""
    d = np.zeros((len(a), len(b)), np.uint64)
    for first in range(0, a.shape[1], row.k):
        left, right = a[:, first : first + row.k].tolist(), b[:, first : first + row.k].tolist()
        d = np.array(
            [[wgmma_bits(row, x, y, int(c)) for y, c in zip(right, d[i], strict=True)] for i, x in enumerate(left)]
        )
    return d


# -- tensor memory access --------------------------------------------------------------------------

BOXES = (
    ("i16", "swizzle_128b", (16, 128), (12, 80)),
    ("f32", "swizzle_64b", (24, 16), (24, 12)),
    ("u8", "swizzle_32b", (8, 64), (9, 48)),
    ("f64", "row", (8, 8), (5, 6)),
)
"""dtype, layout, extents of the tile, extents of the tensor."""


def _tma_file() -> str:
    text = HEADER.format(NAME, "tma.load and tma.store: what lies past an edge arrives as zeros, and is left out.")
    for dtype, layout, tile, extents in BOXES:
        text += "\n" + _load_kernel(DTYPES[dtype], layout, tile, extents)
        text += "\n" + _store_kernel(DTYPES[dtype], layout, tile, extents)
    text += "\n" + _batch_kernel() + "\n" + _refill_kernel() + "\n" + _multicast_kernel() + "\n" + _written_kernel()
    return text + "".join("\n" + _send_kernel(DTYPES[dtype], vec) for dtype, vec in SENT)


def _iota(dtype: DType, shape: tuple[int, ...]) -> Bits:
    return bits_of(Argument("A", dtype, shape, "iota").array())


def _inside(dtype: DType, tile: tuple[int, int], extents: tuple[int, int]) -> Bits:
    """A tensor of these extents, cut and filled to the tile's."""
    found = np.zeros(tile, np.uint64)
    rows, columns = (min(t, e) for t, e in zip(tile, extents, strict=True))
    found[:rows, :columns] = _iota(dtype, extents)[:rows, :columns]
    return found


def _moved(dtype: DType, tile: tuple[int, int]) -> str:
    """The attributes of a copy of a tile, element by element."""
    return f"{{shape = {tile}, src_axes = (0, 1), dst_axes = (0, 1), vec = {dtype.bytes}}}"


def _load_kernel(dtype: DType, layout: str, tile: tuple[int, int], extents: tuple[int, int]) -> str:
    """The tile, element by element, as indices see it."""
    lines = [
        f"; run: {layout}",
        f"; in A: {dtype} {list(extents)} = iota",
        argument_text("out", "C", dtype, tile, _inside(dtype, tile, extents)),
    ]
    body = [
        *CONSTANTS,
        f'%S = tile.shared_alloc {{layout = "{layout}"}} : shared<{dtype}, {list(tile)}>',
        *_loaded({"S": ("A", tile)}, tile[0] * tile[1] * dtype.bytes),
        f"tile.copy %S, %0, %0, %C, %0, %0 {_moved(dtype, tile)}",
    ]
    tensors = [tensor_text("A", dtype, extents), tensor_text("C", dtype, tile)]
    return "\n".join(lines) + "\n" + kernel_text(f"load_{dtype}_{layout}", tensors, 32, body)


def _refill_kernel() -> str:
    """Two planes through one tile: who has read the first one lets TMA overwrite it behind a proxy fence."""
    dtype, planes = DTYPES["i32"], (2, 16, 32)
    lines = [
        "; run: a tile that is filled again",
        f"; in A: {dtype} {list(planes)} = iota",
        argument_text("out", "C", dtype, planes, _iota(dtype, planes)),
    ]
    box = "{box = (1, 16, 32), axes = (1, 2)}"
    copy = "{shape = (16, 32), src_axes = (0, 1), dst_axes = (1, 2), vec = 4}"
    body = [
        *CONSTANTS,
        "%1 = arith.constant 1 : index",
        "%odd = arith.constant 1 : u32",
        '%S = tile.shared_alloc {layout = "swizzle_128b"} : shared<i32, [16, 32]>',
        '%full = tile.shared_alloc {layout = "row"} : shared<u64, [1]>',
        *_once("mbarrier.init %full, %0 {count = 1}", "fence.mbarrier_init"),
        "gpu.barrier",
    ]
    for plane, phase in (("%0", "%even"), ("%1", "%odd")):
        load = f"tma.load %S, %0, %0, %A, {plane}, %0, %0, %full, %0 {box}"
        body += [
            *_once("mbarrier.expect_tx %full, %0 {bytes = 2048}", load),
            f"mbarrier.wait %full, %0, {phase}",
            f"tile.copy %S, %0, %0, %C, {plane}, %0, %0 {copy}",
            "fence.proxy_async",
            "gpu.barrier",
        ]
    tensors = [tensor_text(name, dtype, planes) for name in "AC"]
    return "\n".join(lines) + "\n" + kernel_text("refill", tensors, 64, body)


def _written_kernel() -> str:
    """Threads write a tensor, which TMA loads behind a proxy fence for global memory."""
    dtype, tile = DTYPES["i32"], (4, 32)
    lines = [
        "; run: a tensor that threads have written",
        f"; in A: {dtype} {list(tile)} = iota",
        argument_text("out", "B", dtype, tile, _iota(dtype, tile)),
        argument_text("out", "C", dtype, tile, _iota(dtype, tile)),
    ]
    body = [
        *CONSTANTS,
        f'%S = tile.shared_alloc {{layout = "row"}} : shared<{dtype}, {list(tile)}>',
        f"tile.copy %A, %0, %0, %B, %0, %0 {_moved(dtype, tile)}",
        "gpu.barrier",
        'fence.proxy_async {space = "global"}',
        *_loaded({"S": ("B", tile)}, tile[0] * tile[1] * dtype.bytes),
        f"tile.copy %S, %0, %0, %C, %0, %0 {_moved(dtype, tile)}",
    ]
    return (
        "\n".join(lines) + "\n" + kernel_text("written", [tensor_text(name, dtype, tile) for name in "ABC"], 32, body)
    )


def _store_kernel(dtype: DType, layout: str, tile: tuple[int, int], extents: tuple[int, int]) -> str:
    out = np.zeros(extents, np.uint64)
    rows, columns = (min(t, e) for t, e in zip(tile, extents, strict=True))
    out[:rows, :columns] = _iota(dtype, tile)[:rows, :columns]
    lines = [
        f"; run: {layout}",
        f"; in A: {dtype} {list(tile)} = iota",
        argument_text("out", "C", dtype, extents, out),
    ]
    box = f"{{box = {tile}, axes = (0, 1)}}"
    body = [
        *CONSTANTS,
        f'%S = tile.shared_alloc {{layout = "{layout}"}} : shared<{dtype}, {list(tile)}>',
        f"tile.copy %A, %0, %0, %S, %0, %0 {_moved(dtype, tile)}",
        "fence.proxy_async",
        "gpu.barrier",
        *_once(
            f"tma.store %S, %0, %0, %C, %0, %0 {box}", "tma.commit_group", "tma.wait_group {pending = 0, read = true}"
        ),
    ]
    tensors = [tensor_text("A", dtype, tile), tensor_text("C", dtype, extents)]
    return "\n".join(lines) + "\n" + kernel_text(f"store_{dtype}_{layout}", tensors, 32, body)


def _batch_kernel() -> str:
    """Of a tensor of three axes one plane: a box past its edge gets no rows of the next one."""
    dtype, extents, tile = DTYPES["u8"], (3, 6, 32), (8, 32)
    out = np.zeros(tile, np.uint64)
    out[:6] = _iota(dtype, extents)[1]
    lines = ["; run: one plane", f"; in A: {dtype} {list(extents)} = iota", argument_text("out", "C", dtype, tile, out)]
    load = "tma.load %S, %0, %0, %A, %1, %0, %0, %full, %0 {box = (1, 8, 32), axes = (1, 2)}"
    body = [
        *CONSTANTS,
        "%1 = arith.constant 1 : index",
        f'%S = tile.shared_alloc {{layout = "row"}} : shared<{dtype}, {list(tile)}>',
        '%full = tile.shared_alloc {layout = "row"} : shared<u64, [1]>',
        *_once("mbarrier.init %full, %0 {count = 1}", "fence.mbarrier_init"),
        "gpu.barrier",
        *_once("mbarrier.expect_tx %full, %0 {bytes = 256}", load),
        "mbarrier.wait %full, %0, %even",
        f"tile.copy %S, %0, %0, %C, %0, %0 {_moved(dtype, tile)}",
    ]
    tensors = [tensor_text("A", dtype, extents), tensor_text("C", dtype, tile)]
    return "\n".join(lines) + "\n" + kernel_text("batch", tensors, 32, body)


SENT = (("f32", 1), ("u32", 4), ("f64", 2))
"""Elements of a st.async: of 4, 16 and 16 bytes."""


def _send_kernel(dtype: DType, vec: int) -> str:
    """Each of two blocks stores its row in the other one's memory."""
    shape = (2, 32 * vec)
    sent, axes = _iota(dtype, shape), "src_axes = (0,), dst_axes = (1,)"
    lines = [
        f"; run: {vec} x {dtype} a thread, to the other block",
        f"; in A: {dtype} {list(shape)} = iota",
        argument_text("out", "C", dtype, shape, sent[::-1]),
    ]
    body = [
        *CONSTANTS,
        f"%vec = arith.constant {vec} : index",
        "%own = arith.constant 1 : i32",
        f'%S = tile.shared_alloc {{layout = "row"}} : shared<{dtype}, [{32 * vec}]>',
        '%bars = tile.shared_alloc {layout = "row"} : shared<u64, [1]>',
        *_once("mbarrier.init %bars, %0 {count = 1}", "fence.mbarrier_init"),
        "cluster.arrive",
        "cluster.wait",
        "%rank = cluster.rank : i32",
        "%other = arith.xor %rank, %own : i32",
        "%row = arith.cast %rank : index",
        "%at = arith.mul %tid, %vec : index",
        *_once(f"mbarrier.expect_tx %bars, %0 {{bytes = {32 * vec * dtype.bytes}}}"),
        f"%x = tile.load %A, %row, %at {{vec = {vec}}} : {dtype if vec == 1 else f'fragment<{dtype}, [{vec}]>'}",
        f"async.send %S, %at, %bars, %0, %other, %x {{vec = {vec}}}",
        "mbarrier.wait %bars, %0, %even",
        f"tile.copy %S, %0, %C, %row, %0 {{shape = ({32 * vec},), {axes}, vec = {dtype.bytes}}}",
    ]
    text = kernel_text(f"send_{dtype}", [tensor_text("A", dtype, shape), tensor_text("C", dtype, shape)], 32, body)
    return "\n".join(lines) + "\n" + text.replace("grid(1)", "grid(2)").replace(" {", " cluster(2, 1, 1) {", 1)


def _multicast_kernel() -> str:
    """Each of two blocks loads half of a tile for both, and tells the other when it has read all of it."""
    dtype, tile = DTYPES["u8"], (16, 32)
    both = np.stack([_iota(dtype, tile)] * 2)
    lines = [
        "; run: two blocks of a cluster",
        f"; in A: {dtype} {list(tile)} = iota",
        argument_text("out", "C", dtype, both.shape, both),
    ]
    body = [
        *CONSTANTS,
        "%1 = arith.constant 1 : index",
        "%8 = arith.constant 8 : index",
        "%mask = arith.constant 3 : u16",
        "%own = arith.constant 1 : i32",
        '%S = tile.shared_alloc {layout = "swizzle_32b"} : shared<u8, [16, 32]>',
        '%bars = tile.shared_alloc {layout = "row"} : shared<u64, [2]>',
        *_once("mbarrier.init %bars, %0 {count = 1}", "mbarrier.init %bars, %1 {count = 1}", "fence.mbarrier_init"),
        "cluster.arrive",
        "cluster.wait",
        "%rank = cluster.rank : i32",
        "%other = arith.xor %rank, %own : i32",
        "%index = arith.cast %rank : index",
        "%row = arith.mul %index, %8 : index",
        *_once(
            "mbarrier.expect_tx %bars, %0 {bytes = 512}",
            'tma.load %S, %row, %0, %A, %row, %0, %bars, %0, %mask {box = (8, 32), axes = (0, 1), multicast = "m"}',
        ),
        "mbarrier.wait %bars, %0, %even",
        "tile.copy %S, %0, %0, %C, %index, %0, %0 {shape = (16, 32), src_axes = (0, 1), dst_axes = (1, 2), vec = 1}",
        "gpu.barrier",
        *_once("mbarrier.arrive %bars, %1, %other"),
        "mbarrier.wait %bars, %1, %even",
        "cluster.arrive",
        "cluster.wait",
    ]
    tensors = [tensor_text("A", dtype, tile), tensor_text("C", dtype, both.shape)]
    text = kernel_text("multicast", tensors, 32, body)
    return "\n".join(lines) + "\n" + text.replace("grid(1)", "grid(2)").replace(" {", " cluster(2, 1, 1) {", 1)


# -- thread level ----------------------------------------------------------------------------------

THREAD = """\
kernel thread(%A: ptr<global, bf16>, %B: ptr<global, bf16>, %C: ptr<global, bf16>, %D: ptr<global, f32>,
    %a: i32, %b: i32, %c: i32, %d: i32)
  grid(1) threads(128) level(thread) index_bits(32) shared_bytes(2312)
  abi(pointer A bf16 [64, 16], pointer B bf16 [8, 16], pointer C bf16 [64, 16], pointer D f32 [64, 8],
    stride A 0 i32, stride B 0 i32, stride C 0 i32, stride D 0 i32)
  tensor_maps(map(A, axes=[1, 0], box=[16, 64], swizzle=32), map(B, axes=[1, 0], box=[16, 8], swizzle=32),
    map(C, axes=[1, 0], box=[16, 64], swizzle=32)) {
  %0 = arith.constant 0 : i32
  %1 = arith.constant 1 : i32
  %2 = arith.constant 2 : i32
  %3 = arith.constant 3 : i32
  %8 = arith.constant 8 : i32
  %16 = arith.constant 16 : i32
  %even = arith.constant 0 : u32
  %no = arith.constant false : bool
  %tid = gpu.thread_id {axis = 0, dtype = i32} : i32
  %first = arith.eq %tid, %0 : bool
  %left = mem.shared_base {dtype = bf16, offset = 0, bytes = 2048, label = "left"} : ptr<shared, bf16>
  %right = mem.shared_base {dtype = bf16, offset = 2048, bytes = 256, label = "right"} : ptr<shared, bf16>
  %full = mem.shared_base {dtype = u64, offset = 2304, bytes = 8, label = "full"} : ptr<shared, u64>
  control.if %first {
    mem.tma_prefetch {map = 0}
    mbarrier.init %full {count = 1}
    fence.mbarrier_init
    control.yield
  } else {
    control.yield
  }
  gpu.barrier
  control.if %first {
    mbarrier.expect_tx %full {bytes = 2304}
    mem.tma_load %left, %full, %0, %0 {map = 0}
    mem.tma_load %right, %full, %0, %0 {map = 1}
    control.yield
  } else {
    control.yield
  }
  mbarrier.wait %full, %even
  %begun0, %begun1, %begun2, %begun3 = ptx.wgmma_registers {dtype = f32, count = 4} : f32, f32, f32, f32
  %of_left = ptx.wgmma_descriptor %left {leading = 16, stride = 256, swizzle = 32} : i64
  %of_right = ptx.wgmma_descriptor %right {leading = 16, stride = 256, swizzle = 32} : i64
  wgmma.fence
  %sum0, %sum1, %sum2, %sum3 = ptx.wgmma %no, %of_left, %of_right, %begun0, %begun1, %begun2, %begun3
      {n = 8, a = bf16, b = bf16, acc = f32} : f32, f32, f32, f32
  wgmma.commit_group
  %d0, %d1, %d2, %d3 = ptx.wgmma_wait %sum0, %sum1, %sum2, %sum3 : f32, f32, f32, f32
  control.if %first {
    mem.tma_store %left, %0, %0 {map = 2}
    tma.commit_group
    tma.wait_group {pending = 0}
    control.yield
  } else {
    control.yield
  }
  %warp = gpu.warp_id {dtype = i32} : i32
  %lane = gpu.lane_id {dtype = i32} : i32
  %g = arith.shr %lane, %2 : i32
  %t = arith.and %lane, %3 : i32
  %above = arith.mul %warp, %16 : i32
  %row = arith.add %above, %g : i32
  %low = arith.add %row, %8 : i32
  %column = arith.mul %t, %2 : i32
  %at_row = arith.mul %row, %d : i32
  %at_low = arith.mul %low, %d : i32
  %high_place = arith.add %at_row, %column : i32
  %low_place = arith.add %at_low, %column : i32
  %high = mem.offset %D, %high_place : ptr<global, f32>
  %high_next = mem.offset %high, %1 : ptr<global, f32>
  %below = mem.offset %D, %low_place : ptr<global, f32>
  %below_next = mem.offset %below, %1 : ptr<global, f32>
  mem.store %high, %d0
  mem.store %high_next, %d1
  mem.store %below, %d2
  mem.store %below_next, %d3
  control.return
}
"""


SEND = """\
kernel send(%A: ptr<global, u32>, %C: ptr<global, u32>, %a: i32, %c: i32)
  grid(2) threads(32) cluster(2, 1, 1) level(thread) index_bits(32) shared_bytes(136)
  abi(pointer A u32 [2, 32], pointer C u32 [2, 32], stride A 0 i32, stride C 0 i32) {
  %0 = arith.constant 0 : i32
  %1 = arith.constant 1 : i32
  %even = arith.constant 0 : u32
  %tid = gpu.thread_id {axis = 0, dtype = i32} : i32
  %first = arith.eq %tid, %0 : bool
  %room = mem.shared_base {dtype = u32, offset = 0, bytes = 128, label = "room"} : ptr<shared, u32>
  %full = mem.shared_base {dtype = u64, offset = 128, bytes = 8, label = "full"} : ptr<shared, u64>
  control.if %first {
    mbarrier.init %full {count = 1}
    fence.mbarrier_init
    mbarrier.expect_tx %full {bytes = 128}
    control.yield
  } else {
    control.yield
  }
  cluster.arrive
  cluster.wait
  %rank = cluster.rank : i32
  %other = arith.xor %rank, %1 : i32
  %of_a = arith.mul %rank, %a : i32
  %of_c = arith.mul %rank, %c : i32
  %at_a = arith.add %of_a, %tid : i32
  %at_c = arith.add %of_c, %tid : i32
  %from = mem.offset %A, %at_a : ptr<global, u32>
  %place = mem.offset %room, %tid : ptr<shared, u32>
  %into = mem.offset %C, %at_c : ptr<global, u32>
  %x = mem.load %from : u32
  mem.send %place, %full, %other, %x
  mbarrier.wait %full, %even
  %y = mem.load %place : u32
  mem.store %into, %y
  control.return
}
"""


def _thread_file() -> str:
    """One product as `expand` would leave it; A goes out again as it came. And stores to another block."""
    text = HEADER.format(NAME, "TMA and wgmma at thread level.")
    dtype, extents, row = DTYPES["bf16"], {"A": (WGMMA_ROWS, 16), "B": (8, 16)}, find_wgmma("bf16", "bf16", "f32")
    assert row is not None
    a, b = (bits_of(Argument(name, dtype, shape, f"random({ord(name)})").array()) for name, shape in extents.items())
    lines = ["; run: one product"]
    lines += [f"; in {name}: bf16 {list(shape)} = random({ord(name)})" for name, shape in extents.items()]
    lines.append(argument_text("out", "C", dtype, a.shape, a))
    lines.append(argument_text("out", "D", DTYPES["f32"], (WGMMA_ROWS, 8), _product(row, a, b)))
    u32, shape = DTYPES["u32"], (2, 32)
    sent = ["; run: to the other block", f"; in A: u32 {list(shape)} = iota"]
    sent.append(argument_text("out", "C", u32, shape, _iota(u32, shape)[::-1]))
    return "\n".join([text, *lines, THREAD, *sent, SEND])
