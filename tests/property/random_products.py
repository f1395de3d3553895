"""Random products of f16 matrices by a pipelined loop: warps, tiles, layouts, stages, depths that end inside a tile."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel

__all__ = ["Product", "random_product"]

HEAD = """kernel product(%A: global<f16, [M, K], unit=1, align=16>, %B: global<f16, [K, N], unit={unit}, align=16>,
    %OUT: global<f32, [M, N], unit=1, align=16>)
  grid(1) threads({threads}) level(tile) index_bits(32) {{
  %0 = arith.constant 0 : index
  %step = arith.constant {bk} : index
  %K = tile.dim %A {{axis = 1}} : index
  %As = tile.shared_alloc {{layout = "{layouts[0]}"}} : shared<f16, [{m}, {bk}]>
  %Bs = tile.shared_alloc {{layout = "{layouts[1]}"}} : shared<f16, [{stored}]>
  %none = arith.constant 0.0 : f32
  %start = tile.pack %none : {acc}
  %sum = control.for %0, %K, %step, %start {{stages = {stages}, fragments = {fragments}}} : {acc} (%k: index,
      %acc0: {acc}) {{
    {copy} %A, %0, %k, %As, %0, %0 {{shape = ({m}, {bk}), src_axes = (0, 1), dst_axes = (0, 1), vec = {vec_a}}}{token}
    {copy} %B, %k, %0, %Bs, %0, %0 {{shape = ({bk}, {n}), src_axes = (0, 1), dst_axes = {axes}, vec = {vec_b}}}{token}
"""
STEP = """    %at{s} = arith.constant {at} : index
    %a{s} = matrix.load %As, %0, %at{s} {{axes = (0, 1)}} : {a}
    %b{s} = matrix.load %Bs, {place} {{axes = {axes}}} : {b}
    %acc{next} = matrix.mma %a{s}, %b{s}, %acc{s} : {acc}
"""
TAIL = """    control.yield %acc{last}
  }}
  matrix.store %sum, %OUT, %0, %0 {{axes = (0, 1), vec = 8}}
  control.return
}}
"""


@dataclass(frozen=True)
class Product:
    """OUT = A B with one block of `warps` along m and n, each 16 x 16, with `bk` of the depth at a time.

    tall: B has stride 1 along k, in memory and in its tile. layout: of A's tile.
    """

    warps: tuple[int, int]
    bk: int
    tall: bool
    layout: str
    stages: int
    fragments: int
    is_async: bool
    depth: int
    seed: int

    def arguments(self) -> dict[str, Any]:
        """Fresh ones; equal for equal products."""
        rng = np.random.default_rng(self.seed)
        m, n = (16 * count for count in self.warps)
        a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((m, self.depth), (self.depth, n)))
        return {"A": a, "B": np.asfortranarray(b) if self.tall else b, "OUT": np.zeros((m, n), np.float32)}

    def kernel(self) -> Kernel:
        """The steps of a tile are unrolled."""
        m, n = (16 * count for count in self.warps)
        along = f"mma.m16n8k16.{{}}({self.warps[0]}, {self.warps[1]})"
        a, b, acc = (
            f"fragment<{dtype}, [{rows}, {columns}], {along.format(name)}>"
            for dtype, rows, columns, name in (("f16", m, 16, "a"), ("f16", 16, n, "b"), ("f32", m, n, "acc"))
        )
        axes = "(1, 0)" if self.tall else "(0, 1)"
        vec_a, vec_b = (16 if self.bk // count % 16 == 0 else 8 for count in reversed(self.warps))
        text = HEAD.format(
            unit=0 if self.tall else 1, threads=32 * self.warps[0] * self.warps[1], bk=self.bk,
            layouts=(self.layout, "auto"), m=m, n=n, stored=f"{n}, {self.bk}" if self.tall else f"{self.bk}, {n}",
            acc=acc, stages=self.stages, fragments=self.fragments,
            copy="%t = async.copy" if self.is_async else "tile.copy",
            vec_a=vec_a, vec_b=vec_b, axes=axes, token=" : token" if self.is_async else "",
        )  # fmt: skip
        for s in range(self.bk // 16):
            place = f"%0, %at{s}" if self.tall else f"%at{s}, %0"
            text += STEP.format(s=s, at=16 * s, a=a, b=b, acc=acc, place=place, axes=axes, next=s + 1)
        text = text.replace("%t =", "%ta =", 1).replace("%t =", "%tb =", 1)
        return parse_kernel(text + TAIL.format(last=self.bk // 16), "random.tir")


def random_product(random: Random, *, is_async: bool) -> Product:
    bk = random.choice([16, 32, 48])
    layouts = {16: ["auto", "padded(24)"], 32: ["auto", "swizzled(unit=8, span=4)"], 48: ["auto", "padded(56)"]}
    return Product(
        warps=random.choice([(1, 1), (2, 1), (1, 2), (2, 2)]),
        bk=bk,
        tall=random.random() < 0.5,
        layout=random.choice(layouts[bk]),
        stages=random.randint(1, 4),
        fragments=random.choice([0, 1]),
        is_async=is_async,
        depth=8 * random.randint(1, 20),
        seed=random.randrange(1 << 30),
    )
