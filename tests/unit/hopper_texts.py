"""Kernels of TMA, mbarriers and wgmma in the textual IR, as a frontend would write them, for the tests of what becomes
of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.backends import emulator
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.types import DTYPES
from tiledsl.passes.pipeline import run_pipeline

__all__ = ["SHARED_LIMIT", "Product", "lowered", "one_tile", "one_tile_by_registers", "ring", "run"]

SHARED_LIMIT = 232448
"""Bytes a block may have on sm_90a."""


@dataclass(frozen=True)
class Product:
    """A B into C, a tile of m x n, k at a time. turned_a, turned_b: the tensor's rows run along m (n), not along k.

    span_a, span_b: bytes of the swizzle. warpgroups: that hold the accumulator. staged: columns of B, if more than n.
    """

    a: str = "bf16"
    b: str = ""
    acc: str = "f32"
    out: str = ""
    m: int = 128
    n: int = 128
    k: int = 64
    turned_a: bool = False
    turned_b: bool = False
    span_a: int = 128
    span_b: int = 128
    warpgroups: int = 1
    staged: int = 0

    @property
    def columns(self) -> int:
        """Of B that are staged."""
        return self.staged or self.n

    @property
    def dtypes(self) -> tuple[str, str, str]:
        return self.a, self.b or self.a, self.out or self.acc

    @property
    def bytes(self) -> int:
        """That one step of k brings."""
        a, b, _ = (DTYPES[t].bytes for t in self.dtypes)
        return (self.m * a + self.columns * b) * self.k

    def tile(self, of: str, stages: int = 0) -> str:
        """The type of a tile of A or B."""
        turned, across = (self.turned_a, self.m) if of == "a" else (self.turned_b, self.columns)
        dims = [self.k, across] if turned else [across, self.k]
        dtype = self.dtypes[0] if of == "a" else self.dtypes[1]
        return f"shared<{dtype}, {[stages, *dims] if stages else dims}>"

    def box(self, of: str) -> str:
        turned, across = (self.turned_a, self.m) if of == "a" else (self.turned_b, self.columns)
        return f"{{box = {(self.k, across) if turned else (across, self.k)}, axes = (0, 1)}}"

    def parameters(self) -> str:
        a, b, c = self.dtypes
        shape_a, shape_b = "[K, M]" if self.turned_a else "[M, K]", "[K, N]" if self.turned_b else "[N, K]"
        tensors = (("A", a, shape_a), ("B", b, shape_b), ("C", c, "[M, N]"))
        return ", ".join(f"%{name}: global<{t}, {shape}, unit=1, align=16>" for name, t, shape in tensors)

    def axes(self, of: str, lead: int = 0) -> str:
        """Which axes of a tile are rows and columns of the operand: m, k of A, k, n of B."""
        turned = self.turned_a if of == "a" else not self.turned_b
        return str((lead + 1, lead) if turned else (lead, lead + 1))


_HEAD = """
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %even = arith.constant 0 : u32
  %odd = arith.constant 1 : u32
  %no = arith.constant false : bool
  %yes = arith.constant true : bool
  %tid = gpu.thread_id {axis = 0} : index
  %first = arith.eq %tid, %zero : bool
"""

_NOTHING = "\n      control.yield\n    } else {\n      control.yield\n    }"


def one_tile(p: Product) -> str:
    """A block a tile of C, one stage: load, wait, multiply, wait."""
    held = f"fragment<{p.acc}, [{p.m}, {p.n}], wgmma.acc({p.warpgroups})>"
    return _one_tile(
        p,
        f"%next = wgmma.mma %sum, %more, %a, %zero, %zero, %b, %zero, %zero "
        f"{{k = {p.k}, a_axes = {p.axes('a')}, b_axes = {p.axes('b')}}} : pending<{held}>",
    )


def one_tile_by_registers(p: Product) -> str:
    """The same, with A loaded from shared memory to registers by ldmatrix, before TMA loads the next step there."""
    held = f"fragment<{p.acc}, [{p.m}, {p.n}], wgmma.acc({p.warpgroups})>"
    left = f"fragment<{p.a}, [{p.m}, {p.k}], wgmma.a({p.warpgroups})>"
    return _one_tile(
        p,
        f"%left = matrix.load %a, %zero, %zero {{axes = {p.axes('a')}}} : {left}\n    wgmma.fence\n"
        f"    %next = wgmma.mma %sum, %more, %left, %b, %zero, %zero "
        f"{{k = {p.k}, b_axes = {p.axes('b')}}} : pending<{held}>",
        read="fence.proxy_async\n    ",
    )


def _one_tile(p: Product, product: str, read: str = "") -> str:
    """read: what threads do that have read a tile themselves."""
    held = f"fragment<{p.acc}, [{p.m}, {p.n}], wgmma.acc({p.warpgroups})>"
    pending = f"pending<{held}>"
    at_a = "%at, %m" if p.turned_a else "%m, %at"
    at_b = "%at, %n" if p.turned_b else "%n, %at"
    return f"""kernel one({p.parameters()})
  grid(floordiv(add(N, {p.n - 1}), {p.n}), floordiv(add(M, {p.m - 1}), {p.m})) threads({128 * p.warpgroups}) {{{_HEAD}
  %rows = arith.constant {p.m} : index
  %columns = arith.constant {p.n} : index
  %deep = arith.constant {p.k} : index
  %bx = gpu.block_id {{axis = 0}} : index
  %by = gpu.block_id {{axis = 1}} : index
  %n = arith.mul %bx, %columns : index
  %m = arith.mul %by, %rows : index
  %k = tile.dim %A {{axis = {0 if p.turned_a else 1}}} : index
  %a = tile.shared_alloc {{layout = "swizzle_{p.span_a}b"}} : {p.tile("a")}
  %b = tile.shared_alloc {{layout = "swizzle_{p.span_b}b"}} : {p.tile("b")}
  %full = tile.shared_alloc {{layout = "row"}} : shared<u64, [1]>
  control.if %first {{
      mbarrier.init %full, %zero {{count = 1}}
      fence.mbarrier_init{_NOTHING}
  gpu.barrier
  %begun = wgmma.begin : {pending}
  %last, %acc, %any = control.for %zero, %k, %deep, %even, %begun, %no : u32, {pending}, bool
      (%at: index, %parity: u32, %sum: {pending}, %more: bool) {{
    control.if %first {{
      mbarrier.expect_tx %full, %zero {{bytes = {p.bytes}}}
      tma.load %a, %zero, %zero, %A, {at_a}, %full, %zero {p.box("a")}
      tma.load %b, %zero, %zero, %B, {at_b}, %full, %zero {p.box("b")}{_NOTHING}
    mbarrier.wait %full, %zero, %parity
    wgmma.fence
    {product}
    wgmma.commit_group
    %waited = wgmma.wait %next {{pending = 0, finish = false}} : {pending}
    {read}gpu.barrier
    %flipped = arith.xor %parity, %odd : u32
    control.yield %flipped, %waited, %yes
  }}
  %done = wgmma.wait %acc : {held}
  matrix.store %done, %C, %m, %n {{axes = (0, 1), vec = {DTYPES[p.acc].bytes}}}
  control.return
}}
"""


def ring(p: Product, stages: int = 4, blocks: int = 132, registers: tuple[int, int] = (40, 232)) -> str:
    """Persistent blocks of a role that loads and one that multiplies, and a ring of stages between them; C is of 16-bit
    elements and leaves by stmatrix and TMA, 64 columns at a time out of two buffers."""
    assert p.out and p.n % 64 == 0
    groups = p.warpgroups
    layout = f"wgmma.acc({groups}, 4)"
    held = f"fragment<{p.acc}, [{p.m}, {p.n}], {layout}>"
    pending = f"pending<{held}>"
    size = p.m * p.n // (128 * groups)
    given = 65536 // (128 + 128 * groups) // 8 * 8
    casts = "".join(
        f"\n      %e{i} = tile.extract %done {{at = ({i},)}} : {p.acc}\n      %h{i} = arith.cast %e{i} : {p.out}"
        for i in range(size)
    )
    packed = ", ".join(f"%h{i}" for i in range(size))
    parts = "".join(_part(p, layout, number) for number in range(p.n // 64))
    step = """
        %s = arith.add %slot, %one : index
        %wraps = arith.eq %s, %stages : bool
        %flipped = arith.xor %phase, %odd : u32
        %following = arith.select %wraps, %zero, %s : index
        %parity = arith.select %wraps, %flipped, %phase : u32"""
    at_a, at_b = "%k, %m" if p.turned_a else "%m, %k", "%k, %n" if p.turned_b else "%n, %k"
    place = """
      %ti = arith.floordiv %t, %tn : index
      %tj = arith.mod %t, %tn : index
      %m = arith.mul %ti, %rows : index
      %n = arith.mul %tj, %columns : index"""
    return f"""kernel ring({p.parameters()})
  grid({blocks}) threads({128 + 128 * groups}) {{{_HEAD}
  %stages = arith.constant {stages} : index
  %deep = arith.constant {p.k} : index
  %rows = arith.constant {p.m} : index
  %columns = arith.constant {p.n} : index
  %a = tile.shared_alloc {{layout = "swizzle_{p.span_a}b"}} : {p.tile("a", stages)}
  %b = tile.shared_alloc {{layout = "swizzle_{p.span_b}b"}} : {p.tile("b", stages)}
  %out = tile.shared_alloc {{layout = "swizzle_128b"}} : shared<{p.out}, [2, {p.m}, 64]>
  %full = tile.shared_alloc {{layout = "row"}} : shared<u64, [{stages}]>
  %empty = tile.shared_alloc {{layout = "row"}} : shared<u64, [{stages}]>
  %warp = gpu.warp_id : index
  %block = gpu.block_id {{axis = 0}} : index
  %blocks = arith.constant {blocks} : index
  %K = tile.dim %A {{axis = {0 if p.turned_a else 1}}} : index
  %M = tile.dim %C {{axis = 0}} : index
  %N = tile.dim %C {{axis = 1}} : index
  %m1 = arith.constant {p.m - 1} : index
  %n1 = arith.constant {p.n - 1} : index
  %mm = arith.add %M, %m1 : index
  %nn = arith.add %N, %n1 : index
  %tm = arith.floordiv %mm, %rows : index
  %tn = arith.floordiv %nn, %columns : index
  %tiles = arith.mul %tm, %tn : index
  control.if %first {{
      control.for %zero, %stages, %one (%i: index) {{
        mbarrier.init %full, %i {{count = 1}}
        mbarrier.init %empty, %i {{count = {groups}}}
        control.yield
      }}
      fence.mbarrier_init{_NOTHING}
  gpu.barrier
  %four = arith.constant 4 : index
  %loads = arith.lt %warp, %four : bool
  control.if %loads {{role = (0, 4)}} {{
    gpu.setmaxnreg {{registers = {registers[0]}, increase = false}}
    control.if %first {{
      %slot_end, %phase_end = control.for %block, %tiles, %blocks, %zero, %odd : index, u32
          (%t: index, %slot_in: index, %phase_in: u32) {{{place}
      %slot_out, %phase_out = control.for %zero, %K, %deep, %slot_in, %phase_in : index, u32
          (%k: index, %slot: index, %phase: u32) {{
        mbarrier.wait %empty, %slot, %phase
        mbarrier.expect_tx %full, %slot {{bytes = {p.bytes}}}
        tma.load %a, %slot, %zero, %zero, %A, {at_a}, %full, %slot {p.box("a")}
        tma.load %b, %slot, %zero, %zero, %B, {at_b}, %full, %slot {p.box("b")}{step}
        control.yield %following, %parity
      }}
      control.yield %slot_out, %phase_out
      }}{_NOTHING}
    control.yield
  }} else {{
    control.yield
  }}
  %multiplies = arith.ge %warp, %four : bool
  control.if %multiplies {{role = (4, {4 * groups})}} {{
    gpu.setmaxnreg {{registers = {registers[1]}, increase = {str(registers[1] > given).lower()}}}
    %group = arith.constant 128 : index
    %leads = arith.eq %tid, %group : bool
    %within = arith.mod %tid, %group : index
    %frees = arith.eq %within, %zero : bool
    %slot_end, %phase_end = control.for %block, %tiles, %blocks, %zero, %even : index, u32
        (%t: index, %slot_in: index, %phase_in: u32) {{{place}
      %begun = wgmma.begin : {pending}
      %slot_out, %phase_out, %acc, %any, %held = control.for %zero, %K, %deep, %slot_in, %phase_in, %begun, %no, %zero
          : index, u32, {pending}, bool, index
          (%k: index, %slot: index, %phase: u32, %sum: {pending}, %more: bool, %before: index) {{
        mbarrier.wait %full, %slot, %phase
        wgmma.fence
        %next = wgmma.mma %sum, %more, %a, %slot, %zero, %zero, %b, %slot, %zero, %zero
            {{k = {p.k}, a_axes = {p.axes("a", 1)}, b_axes = {p.axes("b", 1)}}} : {pending}
        wgmma.commit_group
        %waited = wgmma.wait %next {{pending = 1, finish = false}} : {pending}
        %release = arith.and %frees, %more : bool
        control.if %release {{
          mbarrier.arrive %empty, %before{_NOTHING}{step}
        control.yield %following, %parity, %waited, %yes, %slot
      }}
      %done = wgmma.wait %acc : {held}
      %release = arith.and %frees, %any : bool
      control.if %release {{
        mbarrier.arrive %empty, %held{_NOTHING}{casts}
      %o = tile.pack {packed} : fragment<{p.out}, [{p.m}, {p.n}], {layout}>{parts}
      control.yield %slot_out, %phase_out
    }}
    tma.wait_group {{pending = 0, read = true}}
    control.yield
  }} else {{
    control.yield
  }}
  control.return
}}
"""


def _part(p: Product, layout: str, number: int) -> str:
    """64 columns of C by way of one of two buffers."""
    barrier = f"gpu.named_barrier {{number = 2, threads = {128 * p.warpgroups}}}"
    return f"""
      control.if %leads {{
        tma.wait_group {{pending = 1, read = true}}{_NOTHING}
      {barrier}
      %part{number} = matrix.slice %o {{columns = ({64 * number}, 64)}} : fragment<{p.out}, [{p.m}, 64], {layout}>
      %buffer{number} = arith.constant {number % 2} : index
      matrix.store %part{number}, %out, %buffer{number}, %zero, %zero {{axes = (1, 2), vec = 0}}
      fence.proxy_async
      {barrier}
      control.if %leads {{
        %ahead{number} = arith.constant {64 * number} : index
        %column{number} = arith.add %n, %ahead{number} : index
        tma.store %out, %buffer{number}, %zero, %zero, %C, %m, %column{number} {{box = ({p.m}, 64), axes = (0, 1)}}
        tma.commit_group{_NOTHING}"""


def lowered(text: str) -> Kernel:
    """The kernel after all passes."""
    return run_pipeline(parse_kernel(text), shared_limit=SHARED_LIMIT, verify_each=True)


def run(kernel: Kernel, p: Product, extents: Mapping[str, int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """C on the emulator, and what it should be: of small integers, so that every sum is exact."""
    random = np.random.default_rng(0)
    a, b, c = (numpy_dtype(DTYPES[t]) for t in p.dtypes)
    m, n, k = (extents[name] for name in "MNK")
    least = 0 if "u8" in p.dtypes else -3
    left, right = random.integers(least, 4, (m, k)), random.integers(least, 4, (k, n))
    given = {
        "A": np.ascontiguousarray(left.T if p.turned_a else left).astype(a),
        "B": np.ascontiguousarray(right if p.turned_b else right.T).astype(b),
        "C": np.zeros((m, n), c),
    }
    emulator.run(kernel, given)
    return given["C"], (left @ right).astype(np.float64).astype(c)
