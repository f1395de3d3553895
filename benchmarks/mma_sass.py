"""What ptxas makes of every product of `mma.sync`, for each target. Needs no GPU.

    python -m benchmarks.mma_sass

Two tables: the instructions of one product, read from SASS by the PTX line that they belong to; and the clocks that
ptxas plans, by stall counts, from one matrix instruction to an independent one with nothing in between.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.machine import ptxas_version
from benchmarks.report import RESULTS, table, write
from tiledsl.arch import TARGETS, Target
from tiledsl.backends.ptx.assemble import assemble
from tiledsl.backends.ptx.sass.classes import class_of
from tiledsl.backends.ptx.sass.disassemble import sass_listing
from tiledsl.backends.ptx.sass.program import Sass
from tiledsl.ir.types import DTYPES, U32, DType
from tiledsl.layout.mma import TABLE, MmaRow

__all__ = ["assembled", "made_of", "main", "operand_registers", "planned_clocks", "product_line", "ptx_name"]

PTX_NAMES = {"i8": "s8", "i32": "s32"}
INDEPENDENT = 8
"""Consecutive products whose stall counts are added."""


# -- PTX -------------------------------------------------------------------------------------------


def ptx_name(dtype: str) -> str:
    """PTX's name of an operand's type."""
    return PTX_NAMES.get(dtype, dtype)


def operand_registers(row: MmaRow) -> tuple[tuple[str, int], tuple[str, int], tuple[str, int]]:
    """For A, B and C: the PTX type of a lane's registers, and their number."""
    shape = row.shape
    counts = (row.a, shape.m * shape.k), (row.b, shape.k * shape.n), (row.acc, shape.m * shape.n)
    a, b, acc = (_registers(DTYPES[name], elements) for name, elements in counts)
    return a, b, acc


def _registers(dtype: DType, elements: int) -> tuple[str, int]:
    own = dtype.name in ("f32", "f64")
    return dtype.name if own else "b32", elements * dtype.bits // (32 * (dtype.bits if own else U32.bits))


def product_line(row: MmaRow, a: str, b: str, c: str) -> str:
    """``mma.sync`` on registers whose names start with `a`, `b` and `c`; D is C."""
    names = (ptx_name(name) for name in (row.acc, row.a, row.b, row.acc))
    lists = [
        ", ".join(f"{p}{i}" for i in range(n)) for p, (_, n) in zip((a, b, c), operand_registers(row), strict=True)
    ]
    left, right, acc = (f"{{{text}}}" for text in lists)
    return f"mma.sync.aligned.{row.shape}.row.col.{'.'.join(names)} {acc}, {left}, {right}, {acc};"


def _entry(name: str, row: MmaRow, count: int) -> str:
    """`count` products with one A, operands from and results to global memory; each is on a line of its own.
    More than one are in a loop, with nothing else between them."""
    a, b, c = operand_registers(row)
    each = [(f"%{name}{i}_", kind) for i in range(count) for name, kind in (("b", b), ("c", c))]
    operands = [("%a", a), *each]
    declared = [f".reg .{kind} {name}<{n}>;" for name, (kind, n) in operands]
    places = [(f"{name}{i}", kind) for name, (kind, n) in operands for i in range(n)]
    loads = [f"ld.global.{kind} {name}, [%p+{8 * at}];" for at, (name, kind) in enumerate(places)]
    stores = [f"st.global.{kind} [%p+{8 * at}], {name};" for at, (name, kind) in enumerate(places) if "c" in name]
    products = [product_line(row, "%a", f"%b{i}_", f"%c{i}_") for i in range(count)]
    registers = [".reg .u64 %p;", ".reg .u32 %n;", ".reg .pred %q;", *declared]
    begin = ["ld.param.u64 %p, [p];", "cvta.to.global.u64 %p, %p;", "ld.param.u32 %n, [n];"]
    again = ["sub.u32 %n, %n, 1;", "setp.ne.u32 %q, %n, 0;", "@%q bra again;"]
    middle = products if count == 1 else ["again:", *products, *again]
    body = "\n".join([*registers, *begin, *loads, *middle, *stores, "ret;"])
    return f".visible .entry {name}(.param .u64 p, .param .u32 n)\n{{\n{body}\n}}\n"


@cache
def _programs(target: Target) -> dict[tuple[MmaRow, int], tuple[int, tuple[Sass, ...]]]:
    """See `assembled`. All are in one module, since nvdisasm takes longer to start than to read it."""
    cases = {
        f"products_{number}_{count}": (row, count)
        for number, row in enumerate(TABLE)
        for count in (1, INDEPENDENT)
        if row.capability <= target.capability
    }
    head = f".version {target.ptx // 10}.{target.ptx % 10}\n.target {target.name}\n.address_size 64\n"
    made = assemble(head + "".join(_entry(name, *case) for name, case in cases.items()), target, name=next(iter(cases)))
    lines, found = made.ptx.splitlines(), {}
    for program in sass_listing(made.cubin):
        start = next(n for n, line in enumerate(lines) if f".entry {program.name}(" in line)
        product = next(n for n, line in enumerate(lines[start:], start + 1) if line.startswith("mma.sync"))
        found[cases[program.name]] = product, program.instructions
    return found


def assembled(row: MmaRow, target: Target, count: int = 1) -> tuple[int, tuple[Sass, ...]]:
    """SASS of `count` independent products, and the line of the first of them in the PTX."""
    return _programs(target)[row, count]


# -- the instructions ------------------------------------------------------------------------------


def made_of(row: MmaRow, target: Target) -> dict[str, int]:
    """Instructions of one product by opcode, without filler; the tensor core's first."""
    number, sasses = assembled(row, target)
    mine = [s for s in sasses if s.ptx_line == number and not s.operands.never]
    counts = Counter(s.opcode for s in sorted(mine, key=lambda s: class_of(s) != "MMA"))
    return dict(counts)


def planned_clocks(row: MmaRow, target: Target) -> int | None:
    """The most frequent sum of stall counts from one matrix instruction to the next; None for a product that needs
    other instructions, too."""
    if len(made_of(row, target)) > 1:
        return None
    _, sasses = assembled(row, target, INDEPENDENT)
    places = [i for i, s in enumerate(sasses) if class_of(s) == "MMA"]
    sums = Counter(sum(s.control.stall for s in sasses[a:b]) for a, b in pairwise(places))
    return sums.most_common(1)[0][0]


def as_text(made: dict[str, int]) -> str:
    """``2 HMMA.16816.F32, 4 FADD``."""
    return ", ".join(opcode if n == 1 else f"{n} {opcode}" for opcode, n in made.items())


def examine() -> list[dict[str, Any]]:
    """A record for each product and target that has it."""
    return [
        {
            "product": str(row),
            "target": target.name,
            "sass": made_of(row, target),
            "clocks": planned_clocks(row, target),
        }
        for row in TABLE
        for target in TARGETS.values()
        if target.capability >= row.capability
    ]


# -- tables ----------------------------------------------------------------------------------------


def sass_rows(cases: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """(product, targets, SASS): targets that agree share a row; "all" are those that have the product."""
    rows: list[tuple[str, str, str]] = []
    for product in dict.fromkeys(case["product"] for case in cases):
        mine = [case for case in cases if case["product"] == product]
        for text in dict.fromkeys(as_text(case["sass"]) for case in mine):
            targets = [case["target"] for case in mine if as_text(case["sass"]) == text]
            rows.append((product, "all" if len(targets) == len(mine) else " ".join(targets), text))
    return rows


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of texts, with the first row as its header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ruled = (rows[0], ["-" * width for width in widths], *rows[1:])
    cells = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in ruled)
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def clock_rows(cases: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """(product, planned clocks on each target); products of one shape that agree share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for product in dict.fromkeys(case["product"] for case in cases):
        clocks = {case["target"]: str(case["clocks"] or "") for case in cases if case["product"] == product}
        shape, operand, *_ = product.split()
        kinds = rows.setdefault((shape, *(clocks.get(target, "") for target in TARGETS)), [])
        kinds += [] if operand in kinds else [operand]
    return [(f"{shape} {', '.join(kinds)}", *cells) for (shape, *cells), kinds in rows.items()]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    version = ptxas_version()
    cases = examine()
    instructions = text_table([("product", "targets", "SASS"), *sass_rows(cases)])
    clocks = table(("planned clocks of one matrix instruction", *TARGETS), clock_rows(cases))
    name = f"mma_sass_ptxas_{version.rpartition('.')[0]}"
    title = f"mma.sync in SASS, ptxas {version}"
    write(name, title, f"{instructions}\n\n{clocks}", {"ptxas": version, "cases": cases}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
