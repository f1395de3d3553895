"""Orders of the FFMAs of an outer product: what ptxas makes of each, and, on a GPU, how fast each one runs.

    python -m benchmarks.ffma_orders                     what ptxas makes of every variant; needs no GPU
    python -m benchmarks.ffma_orders --ptxas PATH        with another ptxas
    python -m benchmarks.ffma_orders --time              and TFLOP/s of each, interleaved, on a GPU

Two loops: `registers_loop` multiplies the same fragments repeatedly, and so shows the cost of operands;
`shared_loop` is the main loop of a GEMM without its global loads: fragments from shared memory, the next ones
loaded while these are multiplied, a barrier every 8 k. A block of 256 threads for each SM.
"""

from __future__ import annotations

import argparse
import os
import sys
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.device import Device, open_device
from benchmarks.machine import ptxas_version
from benchmarks.report import RESULTS, table, write
from tiledsl import (
    Const,
    Global,
    barrier,
    cdiv,
    const,
    f32,
    fma,
    fragment,
    grid,
    i32,
    row_major,
    shared,
    threads,
    tile_kernel,
    unroll,
)
from tiledsl.backends.ptx.sass.report import SassReport, sass_report
from tiledsl.backends.ptx.tools import PTXAS
from tiledsl.dims import K, M, N
from tiledsl.inspect.timing import Clocks, RoundTimes, interleave, quartiles
from tiledsl.layout.orders import ORDERS as OUTER_FMA
from tiledsl.layout.orders import Order, column_pairs, column_quads, pairs, serpentine

__all__ = ["ORDERS", "VARIANTS", "Variant", "kept_order", "main"]

THREADS, DEPTH, COPIES = 256, 8, 4


# -- orders ----------------------------------------------------------------------------------------


def columns_first(m: int, n: int) -> Order:
    return tuple((i, j) for j in range(n) for i in range(m))


def serpentine_columns(m: int, n: int) -> Order:
    """Column by column, every other one backwards."""
    return tuple((i, j) for j, i in serpentine(n, m))


ORDERS: dict[str, Callable[[int, int], Order]] = {
    "rows": OUTER_FMA["rows"],
    "columns": columns_first,
    "serpentine": serpentine,
    "serpentine columns": serpentine_columns,
    "pairs": pairs,
    "column_pairs": column_pairs,
    "column_quads": column_quads,
    "spiral": OUTER_FMA["spiral"],
}
"""Positions (row, column) of an m x n outer product, by the name of their order."""


# -- kernels ---------------------------------------------------------------------------------------


@tile_kernel
def registers_loop(
    X: Global[f32, M, K],
    Y: Global[f32, M, N],
    steps: i32,
    *,
    order: Const[Order],
    rows: const = 8,
    columns: const = 8,
    copies: const = 4,
):
    """Each thread: the outer product of its row of X, [:rows] times [rows:], added up steps * copies times."""
    t = grid(cdiv(M, 256)) * 256 + threads(256)
    a, b = [X[t, i] for i in range(rows)], [X[t, rows + j] for j in range(columns)]
    acc = fragment((rows, columns), f32)
    for _ in range(steps):
        for _ in unroll(copies):
            for i, j in order:
                acc[i, j] = fma(a[i], b[j], acc[i, j])
    for i in unroll(rows):
        for j in unroll(columns):
            Y[t, i * columns + j] = acc[i, j]


@tile_kernel
def shared_loop(
    X: Global[f32, M, K],
    Y: Global[f32, M, N],
    steps: i32,
    *,
    order: Const[Order],
    rows: const = 8,
    columns: const = 8,
    depth: const = 8,
    swap: Const[bool] = False,
    spread: Const[bool] = False,
    vector: Const[bool] = False,
    turn: const = 0,
    level: const = 3,
):
    """Each block: a GEMM of 16 * rows by 16 * columns by depth from shared memory, added up `steps` times.

    swap: the factors of each fma are swapped. spread: loads are among the FFMAs, not before them.
    vector: results are stored 16 bytes at a time, rotated by `turn` places. level: of the assembler.
    """
    first, t = grid(cdiv(M, 256)) * 256, threads(256, assembler_level=level)
    lane, warp = t % 32, t // 32
    ty, tx = warp // 2 * 4 + lane // 8, warp % 2 * 8 + lane % 8
    As = shared((depth, 16 * rows), f32, layout=row_major)
    Bs = shared((depth, 16 * columns), f32, layout=row_major)
    for k in unroll(depth):
        if t < 16 * rows:
            As[k, t] = X[first + t, k]
        if t < 16 * columns:
            Bs[k, t] = X[first + t, depth + k]
    barrier()
    acc, a, b = fragment((rows, columns), f32), fragment((2, rows), f32), fragment((2, columns), f32)
    for i in unroll(0, rows, 4):
        a[0, i : i + 4] = As.load(0, 4 * ty + 16 * i, vec=16)
    for j in unroll(0, columns, 4):
        b[0, j : j + 4] = Bs.load(0, 4 * tx + 16 * j, vec=16)
    loads = (rows + columns) // 4
    every = len(order) // loads if spread else len(order)
    for _ in range(steps):
        for k in unroll(depth):
            here, there, following = k % 2, (k + 1) % 2, (k + 1) % depth
            for n in unroll(len(order)):
                for load in unroll(loads):
                    if n % every == 0 and (not spread or load == n // every):
                        if load < rows // 4:
                            a[there, 4 * load : 4 * load + 4] = As.load(following, 4 * ty + 64 * load, vec=16)
                        else:
                            j = load - rows // 4
                            b[there, 4 * j : 4 * j + 4] = Bs.load(following, 4 * tx + 64 * j, vec=16)
                i, j = order[n]
                if swap:
                    acc[i, j] = fma(b[here, j], a[here, i], acc[i, j])
                else:
                    acc[i, j] = fma(a[here, i], b[here, j], acc[i, j])
        barrier()
    for i in unroll(rows):
        for j in unroll(0, columns, 4):
            out = fragment(4, f32)
            for e in unroll(4):
                out[e] = acc[i, j + (e + turn) % 4]
            if vector:
                Y.store(first + t, i * columns + j, out)
            else:
                for e in unroll(4):
                    Y[first + t, i * columns + j + e] = out[e]


# -- variants --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """One kernel of the tables. note: the difference from the plain form, made by `settings`."""

    loop: str
    rows: int
    columns: int
    order: str
    note: str = ""
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        note = f", {self.note}" if self.note else ""
        return f"{self.loop} {self.rows}x{self.columns} {self.order}{note}"

    @property
    def consts(self) -> dict[str, Any]:
        places = ORDERS[self.order](self.rows, self.columns)
        return {"order": places, "rows": self.rows, "columns": self.columns, **dict(self.settings)}

    @property
    def turns(self) -> int:
        """Outer products in a step: copies of one, or one for each k."""
        name, plain = ("copies", COPIES) if self.loop == "registers" else ("depth", DEPTH)
        return dict(self.settings).get(name, plain)

    @property
    def kernel(self) -> Any:
        return registers_loop if self.loop == "registers" else shared_loop

    def flops(self, blocks: int, steps: int) -> float:
        return 2.0 * self.rows * self.columns * THREADS * blocks * steps * self.turns


TILES = ((8, 8), (16, 8))
FORMS: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
    ("factors swapped", (("swap", True),)),
    ("loads spread", (("spread", True),)),
    ("16-byte stores", (("vector", True),)),
    ("16-byte stores rotated by 1", (("vector", True), ("turn", 1))),
    ("16-byte stores rotated by 2", (("vector", True), ("turn", 2))),
    ("4 k a step", (("depth", 4),)),
    ("16 k a step", (("depth", 16),)),
)
"""Of the loop fed from shared memory, in serpentine order."""
UNROLLED = (1, 2, 8)
"""Copies of the outer product in a step of the loop on registers alone, besides the plain 4."""
LEVEL: tuple[tuple[str, Any], ...] = (("level", 1),)
LEVEL_FORMS: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = (
    ("loads spread", (("spread", True),)),
    ("16-byte stores rotated by 1", (("vector", True), ("turn", 1))),
)
"""At level 1 of the assembler, which keeps the written order: all orders, and forms of the one made for it."""
VARIANTS: tuple[Variant, ...] = (
    *(Variant(loop, m, n, order) for loop in ("registers", "shared") for m, n in TILES for order in ORDERS),
    *(Variant("shared", m, n, "serpentine", note, settings) for m, n in TILES for note, settings in FORMS),
    *(Variant("registers", 8, 8, "serpentine", f"{c} a step", (("copies", c),)) for c in UNROLLED),
    *(Variant("shared", m, n, order, "level 1", LEVEL) for m, n in TILES for order in ORDERS),
    *(
        Variant("shared", m, n, "column_pairs", f"level 1, {note}", (*LEVEL, *more))
        for m, n in TILES
        for note, more in LEVEL_FORMS
    ),
)
"""Every kernel of the tables."""


# -- what ptxas makes of them ----------------------------------------------------------------------


def kept_order(report: SassReport) -> float:
    """The share of adjacent FFMAs of the hottest loop that are adjacent, in the same order, in the PTX too."""
    lines = sorted({n for n, line in enumerate(report.ptx.splitlines(), 1) if "fma.rn.f32" in line})
    sasses = [report.program.instructions[i] for i in report.places]
    ranks = [bisect_left(lines, s.ptx_line) for s in sasses if s.base == "FFMA"]
    following = sum(b == a + 1 for a, b in pairwise(ranks))
    return following / (len(ranks) - 1)


def examine(variant: Variant) -> tuple[SassReport, int]:
    """The report on a variant for sm_90a, and its registers."""
    compiled = variant.kernel.compile(arch="sm_90a", **variant.consts)
    return sass_report(compiled.cubin, compiled.ptx), compiled.resources.registers


def figures(variant: Variant) -> dict[str, Any]:
    """The figures of one variant in the tables; rates and reads are per FFMA."""
    report, registers = examine(variant)
    banks = report.banks
    even, odd = (reads / banks.fmas for reads in banks.bank_reads)
    return {
        "variant": variant.label,
        "ffma_share": report.share,
        "kept_order": kept_order(report),
        "reuse": [*banks.rates, banks.reuse_rate],
        "conflicts": banks.conflicts / banks.fmas,
        "conflicts_with_reuse": banks.conflicts_with_reuse / banks.fmas,
        "reads": [even, odd],
        "model_bound": banks.fmas / banks.bound,
        "stalls": report.stalls / banks.fmas,
        "registers": registers,
    }


HEADER = (
    "loop, tile, order",
    "FFMA",
    "PTX order",
    "reuse a",
    "b",
    "a+b+c",
    "conflicts",
    "with reuse",
    "even reads",
    "odd",
    "bound",
    "registers",
)


def as_row(case: dict[str, Any]) -> tuple[str, ...]:
    a, b, _, every = case["reuse"]
    even, odd = case["reads"]
    shares = (case["ffma_share"], case["kept_order"], a, b, every, case["conflicts"], case["conflicts_with_reuse"])
    percents = [f"{100 * share:.1f}" for share in shares]
    bound = f"{100 * case['model_bound']:.1f}"
    return case["variant"], *percents, f"{even:.2f}", f"{odd:.2f}", bound, str(case["registers"])


# -- time ------------------------------------------------------------------------------------------


def multiprocessors(device: Device) -> int:
    """SMs of the GPU in use."""
    from cuda.bindings import driver

    from benchmarks.nvcc import check

    device.synchronize()
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return check(driver.cuDeviceGetAttribute(attribute, check(driver.cuCtxGetDevice())))


def time_variants(device: Device, chosen: list[Variant], rounds: int, seconds: float) -> tuple[RoundTimes, int, int]:
    """Milliseconds of each variant, interleaved after their results were checked; blocks, and steps."""
    blocks, steps = multiprocessors(device), 4000
    height = blocks * THREADS
    widest = max(v.rows * v.columns for v in chosen)
    x, y = device.normal(height, 2 * 16, 1), device.empty(height, widest)

    def launch(variant: Variant, count: int, _: int) -> None:
        variant.kernel(x, y, count, **variant.consts)

    for variant in chosen:
        launch(variant, 2, 0)
        check_result(variant, to_host(x), to_host(y), 2)
    contenders = {v.label: partial(launch, v, steps) for v in chosen}
    return interleave(device, contenders, rounds=rounds, seconds=seconds), blocks, steps


def to_host(array: Any) -> Any:
    """A framework's array as a NumPy array."""
    return array.get() if hasattr(array, "get") else array.cpu().numpy()


def check_result(variant: Variant, x: Any, y: Any, steps: int) -> None:
    """Raise SystemExit unless y is the kernel's result for x, within its error bound."""
    import numpy as np

    m, n, turns = variant.rows, variant.columns, variant.turns
    wide = x.astype(np.float64)
    if variant.loop == "registers":
        exact = turns * np.einsum("ti,tj->tij", wide[:, :m], wide[:, m : m + n])
        size = np.abs(exact)
    else:
        blocks = wide.reshape(-1, THREADS, wide.shape[1])
        a, b = blocks[:, : 16 * m, :turns], blocks[:, : 16 * n, turns : 2 * turns]
        exact, size = (_each_thread(np.einsum("bik,bjk->bij", *f), m, n) for f in ((a, b), (abs(a), abs(b))))
    got = _rotated_back(y[:, : m * n].reshape(-1, m, n).astype(np.float64), dict(variant.settings).get("turn", 0))
    bound = steps * size * (turns * steps * 2.0**-23) + 2.0**-149
    if not (abs(got - steps * exact) <= bound).all():
        raise SystemExit(f"{variant.label} computed a wrong result")


def _each_thread(product: Any, m: int, n: int) -> Any:
    """The m x n elements of each thread of each block, in the kernel's own mapping."""
    import numpy as np

    t = np.arange(THREADS)
    ty, tx = t // 64 * 4 + t % 32 // 8, t // 32 % 2 * 8 + t % 8
    i, j = np.arange(m), np.arange(n)
    rows = 4 * ty[:, None] + 64 * (i // 4) + i % 4
    columns = 4 * tx[:, None] + 64 * (j // 4) + j % 4
    return product[:, rows[:, :, None], columns[:, None, :]].reshape(-1, m, n)


def _rotated_back(got: Any, turn: int) -> Any:
    """The elements in their original order: out[e] was acc[(e + turn) % 4] of each four."""
    import numpy as np

    fours = got.reshape(*got.shape[:2], -1, 4)
    return np.roll(fours, turn, axis=3).reshape(got.shape)


def add_times(cases: list[dict[str, Any]], chosen: list[Variant], timing: RoundTimes, blocks: int, steps: int) -> None:
    """TFLOP/s of each variant, and its speed over that of the same loop and tile in row order."""
    for case, variant in zip(cases, chosen, strict=True):
        flops = variant.flops(blocks, steps)
        case["tflops"] = flops / timing.median(variant.label) / 1e9
        base = Variant(variant.loop, variant.rows, variant.columns, "rows").label
        if base in timing.rounds:
            low, middle, high = quartiles(timing.speed_ratios(variant.label, base))
            case["over_rows"], case["over_rows_quartiles"] = middle, [low, high]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ptxas", type=Path, help="the assembler to use instead of the one in the wheel")
    parser.add_argument("--only", default="", metavar="TEXT", help="variants whose label contains this")
    parser.add_argument("--time", action="store_true", help="time them, too: needs a GPU")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.05, help="per variant and round")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    if args.ptxas is not None:
        os.environ[PTXAS.env] = str(args.ptxas)

    chosen = [v for v in VARIANTS if args.only in v.label]
    if not chosen:
        parser.error(f"no variant contains {args.only!r}; for example {VARIANTS[0].label!r} is one")
    version = ptxas_version()
    device = open_device() if args.time else None
    cases = [figures(variant) for variant in chosen]
    data: dict[str, Any] = {"ptxas": version, "arch": "sm_90a", "cases": cases}
    header: tuple[str, ...] = HEADER
    rows = [as_row(case) for case in cases]
    if device is not None:
        with Clocks() as clocks:
            timing, blocks, steps = time_variants(device, chosen, args.rounds, args.seconds)
            data |= {"blocks": blocks, "steps": steps, "rounds": args.rounds, **clocks.since(0.0)}
        add_times(cases, chosen, timing, blocks, steps)
        header = (*HEADER, "TFLOP/s", "over rows")
        timed = [(f"{c['tflops']:.1f}", f"{c.get('over_rows', float('nan')):.3f}") for c in cases]
        rows = [(*row, *times) for row, times in zip(rows, timed, strict=True)]
    name = "ffma_orders_time" if args.time else f"ffma_orders_ptxas_{version.rpartition('.')[0]}"
    write(name, f"Orders of FFMAs, ptxas {version}, sm_90a (percent)", table(header, rows), data, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
