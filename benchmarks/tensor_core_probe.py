"""Compares mma.sync bit for bit: every product of `layout.mma` on a GPU against `ir.tensor_core`.

    python -m benchmarks.tensor_core_probe                    on a GPU: one row a case
    python -m benchmarks.tensor_core_probe --raw results.npz  and the GPU's results, to try rules on later
    python -m benchmarks.tensor_core_probe --emulator         the same kernels on the emulator: nothing differs

Where results differ, other rules are tried on the same inputs, and those that give all results are named. The outcome
changes `ir/tensor_core.py`, and the list of its open points.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

import tiledsl
from benchmarks.report import RESULTS, table, write
from benchmarks.tensor_core_inputs import Batch, Bits, batches
from tiledsl import Const, Global, Scalar, fragment, grid, ptx, threads, tile_kernel, unroll
from tiledsl.arch import target_named
from tiledsl.backends.emulator.native import loops as native
from tiledsl.dims import J, K, N, P
from tiledsl.ir.semantics import numpy_dtype
from tiledsl.ir.tensor_core import DOTS, Dot, mma
from tiledsl.ir.types import DTYPES, F64
from tiledsl.layout.fragments import FragmentLayout, Operand
from tiledsl.layout.mma import TABLE, MmaRow, find_row

__all__ = ["Case", "by_rule", "compare", "consts", "main", "on_device", "probe", "products", "rivals"]

W = TypeVar("W", bound=Scalar)
Lanes = Literal[32]
Rule = Callable[[Bits, Bits, Bits], Bits]

OPERANDS: tuple[Operand, ...] = ("a", "b", "acc")

RAW_PRODUCTS = 32
"""The number of products of each case whose results `--raw` keeps."""

SHOWN = 3
"""Mismatches that a record shows in full."""


@tile_kernel
def products(
    A: Global[W, N, Lanes, J],
    B: Global[W, N, Lanes, K],
    C: Global[W, N, Lanes, P],
    D: Global[W, N, Lanes, P],
    *,
    shape: Const[str],
    dtypes: Const[tuple[type[Any], type[Any], type[Any]]],
    counts: Const[tuple[int, int, int]],
):
    """One product a block, from registers packed by the host. counts: of A's, B's and C's, in a lane."""
    n = grid(N)
    t = threads(32)
    a, b, c = fragment((counts[0],), A.dtype), fragment((counts[1],), A.dtype), fragment((counts[2],), A.dtype)
    for i in unroll(counts[0]):
        a[i] = A[n, t, i]
    for i in unroll(counts[1]):
        b[i] = B[n, t, i]
    for i in unroll(counts[2]):
        c[i] = C[n, t, i]
    d = ptx.mma_sync(shape, a, b, c, dtypes=dtypes)
    for i in unroll(counts[2]):
        D[n, t, i] = d[i].bitcast(A.dtype)


# -- registers -------------------------------------------------------------------------------------


def _register(row: MmaRow) -> np.dtype[Any]:
    """The unit that the kernel moves: f64, or 32-bit words of one or more elements."""
    return np.dtype(np.float64 if row.a == "f64" else np.uint32)


def _places(row: MmaRow, operand: Operand, bits: int) -> tuple[Any, Any]:
    """Row and column of each element: [lanes, elements of a lane]."""
    layout = FragmentLayout(row.shape, operand, (1, 1))
    lanes = np.arange(32)
    places = [layout.place(layout.tile, bits, element, 0, lanes) for element in range(layout.tile_size)]
    rows, columns = (np.stack([np.broadcast_to(p[axis], 32) for p in places], axis=1) for axis in (0, 1))
    return rows, columns


def _packed(row: MmaRow, operand: Operand, matrices: Bits) -> Bits:
    """[products, rows, columns] as registers [products, lanes, registers]."""
    rows, columns = _places(row, operand, matrices.itemsize * 8)
    register = _register(row)
    words = rows.shape[1] * matrices.itemsize // register.itemsize
    packed = np.empty((len(matrices), 32, words), register)
    packed.view(matrices.dtype)[...] = matrices[:, rows, columns]
    return packed


def _unpacked(row: MmaRow, registers: Bits, unsigned: np.dtype[Any]) -> Bits:
    """The result's registers as matrices [products, m, n]."""
    rows, columns = _places(row, "acc", unsigned.itemsize * 8)
    matrices = np.empty((len(registers), row.shape.m, row.shape.n), unsigned)
    matrices[:, rows, columns] = np.ascontiguousarray(registers).view(unsigned)
    return matrices


def on_device(row: MmaRow, batch: Batch, device: str) -> Bits:
    """The products, by the instruction, on the "gpu" or the "emulator"."""
    a, b, c = (_packed(row, operand, bits) for operand, bits in zip(OPERANDS, batch, strict=True))
    d = np.zeros_like(c)
    products(a, b, c, d, **consts(row), device=device)
    return _unpacked(row, d, batch[2].dtype)


def consts(row: MmaRow) -> dict[str, Any]:
    """The consts of `products` for this row."""
    names = {"a": row.a, "b": row.b, "acc": row.acc}
    counts: list[int] = []
    for operand in OPERANDS:
        size, dtype = FragmentLayout(row.shape, operand, (1, 1)).tile_size, DTYPES[names[operand]]
        counts.append(size * dtype.bytes // _register(row).itemsize)
    dtypes = tuple(getattr(tiledsl, name) for name in names.values())
    return {"shape": str(row.shape), "dtypes": dtypes, "counts": tuple(counts)}


# -- rules -----------------------------------------------------------------------------------------


def by_rule(row: MmaRow, batch: Batch, rule: Rule | None = None) -> Bits:
    """The products by `ir.tensor_core`, or by another rule on arrays of the row's dtypes."""
    names = row.a, row.b, row.acc
    a, b, c = (bits.view(numpy_dtype(DTYPES[name])) for bits, name in zip(batch, names, strict=True))
    return (rule or partial(_mma, row))(a, b, c).view(batch[2].dtype)


def _mma(row: MmaRow, a: Bits, b: Bits, c: Bits) -> Bits:
    return mma(row, a, b, c, _fma)


def _fma(a: Bits, b: Bits, c: Bits) -> Bits:
    """The fma of f64, compiled."""
    flat = (np.ascontiguousarray(x).reshape(1, -1, 32) for x in (a, b, c))
    return np.asarray(native.fma(F64)(*flat)).reshape(c.shape)


def rivals(row: MmaRow) -> dict[str, Rule]:
    """Other rules that the instruction might follow, by name."""
    found: dict[str, Rule] = {}
    if row.a == "f64":
        found["k descending"] = lambda a, b, c: _mma(row, a[..., ::-1], b[..., ::-1, :], c)
    if row.a in DOTS:
        own = DOTS[row.a]
        for steps in (2, 4, 8, 16):
            for bits in range(22, 29):
                other = replace(own, products=steps, bits=bits)
                if steps <= row.shape.k and other != replace(own, products=min(own.products, row.shape.k)):
                    found[f"{steps} products a step, {bits} bits"] = partial(_with_dot, row, other)
    if row.acc == "f16":
        found["as into f32, then to nearest"] = partial(_through_f32, row, np.float16)
        found["as into f32, then truncated"] = partial(_through_f32, row, _truncated)
    return found


@contextmanager
def _dot(name: str, dot: Dot) -> Generator[None]:
    saved, DOTS[name] = DOTS[name], dot
    try:
        yield
    finally:
        DOTS[name] = saved


def _with_dot(row: MmaRow, dot: Dot, a: Bits, b: Bits, c: Bits) -> Bits:
    with _dot(row.a, dot):
        return mma(row, a, b, c)


def _through_f32(row: MmaRow, to_f16: Callable[[Bits], Any], a: Bits, b: Bits, c: Bits) -> Bits:
    wide = find_row(row.shape, row.a, row.b, "f32")
    assert wide is not None
    with np.errstate(all="ignore"):
        result = np.asarray(to_f16(mma(wide, a, b, c.astype(np.float32))), np.float16)
    return np.where(result == 0, np.float16(0), result)


def _truncated(wide: Bits) -> Bits:
    """f32 to f16, rounded towards zero; infinities and NaNs unchanged."""
    nearest = wide.astype(np.float16)
    beyond = np.isfinite(wide) & (np.abs(nearest.astype(np.float32)) > np.abs(wide))
    return (nearest.view(np.uint16) - beyond).view(np.float16)


# -- comparing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """The outcome of one batch of products. kinds: the number of mismatches of each kind. shown: the first ones, in
    hex. fits: other rules that give every result."""

    product: str
    case: str
    results: int
    mismatches: int
    kinds: dict[str, int] = field(default_factory=dict[str, int])
    shown: tuple[dict[str, Any], ...] = ()
    fits: tuple[str, ...] = ()


def compare(row: MmaRow, name: str, batch: Batch, got: Bits) -> Case:
    """Every result against the rule, bit for bit."""
    expected = by_rule(row, batch)
    wrong = np.argwhere(got != expected)
    if not len(wrong):
        return Case(str(row), name, got.size, 0)
    at = tuple(wrong.T)
    dtype = numpy_dtype(DTYPES[row.acc])
    pairs = zip(expected[at].view(dtype), got[at].view(dtype), expected[at], got[at], strict=True)
    kinds = Counter(_kind(*pair) for pair in pairs)
    fits = tuple(rival for rival, rule in rivals(row).items() if np.array_equal(by_rule(row, batch, rule), got))
    shown = tuple(_in_hex(batch, expected, got, *map(int, place)) for place in wrong[:SHOWN])
    return Case(str(row), name, got.size, len(wrong), dict(kinds), shown, fits)


def _kind(expected: Any, got: Any, expected_bits: Any, got_bits: Any) -> str:
    """The kind of difference between two results with different bits."""
    nans = np.isnan(expected), np.isnan(got)
    if all(nans):
        return "bits of a NaN"
    if any(nans):
        return "NaN or not"
    if expected == got:
        return "sign of a zero"
    return "one ulp" if abs(int(expected_bits) - int(got_bits)) == 1 else "more than one ulp"


def _in_hex(batch: Batch, expected: Bits, got: Bits, product: int, row: int, column: int) -> dict[str, Any]:
    a, b, c = batch
    digits = [f"0{2 * bits.itemsize}x" for bits in batch]
    return {
        "place": [product, row, column],
        "a": [format(int(x), digits[0]) for x in a[product, row]],
        "b": [format(int(x), digits[1]) for x in b[product, :, column]],
        "c": format(int(c[product, row, column]), digits[2]),
        "expected": format(int(expected[product, row, column]), digits[2]),
        "got": format(int(got[product, row, column]), digits[2]),
    }


def probe(row: MmaRow, count: int, device: str, seed: int = 0) -> Iterator[tuple[Case, Bits]]:
    """All cases of one kind of product, and the results of the device."""
    for name, batch in batches(row, count, seed).items():
        got = on_device(row, batch, device)
        yield compare(row, name, batch, got), got


# -- the report ------------------------------------------------------------------------------------


def as_table(cases: list[Case]) -> str:
    header = ["product", "case", "mismatches", "of", "kinds", "rules that fit"]
    rows = [
        [
            c.product, c.case, c.mismatches, c.results, ", ".join(f"{n} {kind}" for kind, n in c.kinds.items()),
            "the table" if not c.mismatches else "; ".join(c.fits) or "none",
        ]
        for c in cases
    ]  # fmt: skip
    return table(header, rows)


def _examples(cases: list[Case]) -> str:
    """The first mismatch of each case that has one."""
    lines: list[str] = []
    for c in cases:
        for one in c.shown[:1]:
            lines.append(f"{c.product}, {c.case}: c {one['c']}, expected {one['expected']}, got {one['got']}")
            lines.append(f"  a {' '.join(one['a'])}\n  b {' '.join(one['b'])}")
    return "\n".join(lines)


def _rows(wanted: str, device: str) -> list[MmaRow]:
    """The rows whose text contains `wanted`, as far as the GPU has them."""
    rows = [row for row in TABLE if wanted in str(row)]
    if device == "emulator":
        return rows
    from tiledsl.runtime.driver import available

    gpu = available()
    if gpu is None:
        raise SystemExit("this needs an NVIDIA GPU; --emulator runs the same kernels without one")
    capability = target_named(gpu.target_of(gpu.current_device())).capability
    for row in rows:
        if row.capability > capability:
            print(f"{row}: left out, this GPU does not have it", flush=True)
    return [row for row in rows if row.capability <= capability]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulator", action="store_true", help="run on the emulator; no result is written")
    parser.add_argument("--products", type=int, default=512, help="per case (default 512)")
    parser.add_argument("--rows", default="", help="only products whose text contains this, as 'f16 x f16 -> f16'")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--raw", type=Path, help=f"keep the results of {RAW_PRODUCTS} products a case in this .npz")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    device = "emulator" if args.emulator else "gpu"
    cases: list[Case] = []
    raw: dict[str, Bits] = {}
    for row in _rows(args.rows, device):
        for case, got in probe(row, args.products, device, args.seed):
            cases.append(case)
            raw[f"{row}, {case.case}"] = got[:RAW_PRODUCTS]
        done = [c for c in cases if c.product == str(row)]
        print(f"{row}: {sum(c.mismatches for c in done)} mismatches of {sum(c.results for c in done)}", flush=True)
    if args.raw:
        np.savez_compressed(args.raw, **raw)  # pyright: ignore[reportArgumentType]
    text = f"{as_table(cases)}\n\n{_examples(cases)}".rstrip()
    if args.emulator:
        print(text)
    else:
        data = {"products": args.products, "seed": args.seed, "cases": [vars(c) for c in cases]}
        write("tensor_core_probe", "mma.sync against ir/tensor_core.py", text, data, args.out)
    return int(any(c.mismatches for c in cases))


if __name__ == "__main__":
    sys.exit(main())
