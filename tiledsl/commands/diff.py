"""What differs between two kernels, or one kernel with two settings: a summary, then a unified diff of each part.

    tiledsl diff kernels.py:k --const-a T=16 --const-b T=32
    tiledsl diff old.py:k new.py:k --const T=16 --only sass
    tiledsl diff kernels.py:k --arch-b sm_80

--const, --dtype and --arch are for both sides, those with -a and -b for one. Values, registers, labels and addresses
that merely have other numbers are no difference.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl.errors import UsageError
from tiledsl.inspect.arguments import add_arch, add_color, add_json, kernel_of, print_json, use_color
from tiledsl.inspect.loading import is_beside

if TYPE_CHECKING:
    from tiledsl.compilation.compiled import Compiled
    from tiledsl.inspect.compare import Difference

SCHEMA = "tiledsl.diff/1"
DIFFERENT = 3
COLORS = {"-": "\x1b[31m", "+": "\x1b[32m", "@": "\x1b[36m"}
OF_A_SIDE = ("const", "dtype", "arch")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from tiledsl.inspect.compare import PARTS

    parser.add_argument("a", metavar="A", help="FILE:KERNEL")
    parser.add_argument("b", metavar="B", nargs="?", help="FILE:KERNEL; A with other settings unless given")
    parser.add_argument("--const", action="append", default=[], metavar="T=32", help="a const parameter")
    parser.add_argument("--dtype", action="append", default=[], metavar="A=f16", help="dtype of a generic tensor")
    add_arch(parser)
    for side in "ab":
        parser.add_argument(f"--const-{side}", action="append", default=[], metavar="T=32", help=f"of {side.upper()}")
        parser.add_argument(f"--dtype-{side}", action="append", default=[], metavar="A=f16", help=f"of {side.upper()}")
        parser.add_argument(f"--arch-{side}", metavar="sm_80", help=f"of {side.upper()}")
    only = f"of all parts this one alone, or several: {', '.join(PARTS)}"
    parser.add_argument("--only", action="append", choices=PARTS, default=[], metavar="PART", help=only)
    parser.add_argument("--exit-code", action="store_true", help=f"exit with {DIFFERENT} if anything differs")
    add_color(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from tiledsl.inspect.compare import PARTS, compare, resources

    own = [getattr(arguments, f"{name}_{side}") for name in OF_A_SIDE for side in "ab"]
    if arguments.b is None and not any(own):
        fix = "name another kernel, or give a side its own settings, as --const-b T=32"
        raise UsageError(f"diff: {arguments.a} is compared with itself\n  fix: {fix}")
    with _forgotten():
        a = _side(arguments, "a")
    b = _side(arguments, "b")
    found = compare(a, b, arguments.only or PARTS)
    used = {name: (value, resources(b)[name]) for name, value in resources(a).items()}
    if arguments.json:
        sides = {side: {"kernel": each.label, "arch": each.arch} for side, each in (("a", a), ("b", b))}
        parts = [
            {"part": d.part, "same": d.same, "added": d.added, "removed": d.removed, "diff": d.lines} for d in found
        ]
        print_json(SCHEMA, **sides, resources={name: {"a": x, "b": y} for name, (x, y) in used.items()}, parts=parts)
    else:
        _print(a, b, found, used, use_color(arguments))
    return DIFFERENT if arguments.exit_code and not all(d.same for d in found) else 0


@contextmanager
def _forgotten() -> Generator[None]:
    """What is imported here from beside a kernel's file is imported anew later: B may have others of these names."""
    path, known = [*sys.path], {*sys.modules}
    yield
    folders = [Path(folder) for folder in sys.path if folder not in path]
    for name in {*sys.modules} - known:
        if any(is_beside(sys.modules[name], folder) for folder in folders):
            del sys.modules[name]
    sys.path[:] = path


def _side(arguments: argparse.Namespace, side: str) -> Compiled:
    text = arguments.b if side == "b" and arguments.b is not None else arguments.a
    const, dtype, arch = (getattr(arguments, f"{name}_{side}") for name in OF_A_SIDE)
    arch = arch or arguments.arch
    # The last setting of a name counts: that of the side.
    kernel, settings = kernel_of(text, [*arguments.const, *const], [*arguments.dtype, *dtype], arch)
    return kernel.compile(arch, **settings)


def _print(a: Compiled, b: Compiled, found: list[Difference], used: dict[str, tuple[Any, Any]], color: bool) -> None:
    from tiledsl.tables import table

    print(f"A: {a.label} for {a.arch}\nB: {b.label} for {b.arch}\n")
    rows = [(d.part, "same" if d.same else f"-{d.removed} +{d.added} lines") for d in found]
    print(table(("part", "A to B"), rows, {0, 1}))
    changes = [f"{name} {_number(x)} -> {_number(y)}" for name, (x, y) in used.items() if x != y]
    if changes:
        print(f"\n{textwrap.fill(', '.join(changes), 79)}")
    for each in found:
        if not each.same:
            print(f"\n--- A: {each.part}\n+++ B: {each.part}")
            for line in each.lines:
                print(f"{COLORS[line[0]]}{line}\x1b[0m" if color and line[0] in COLORS else line)


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
