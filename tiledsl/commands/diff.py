"""What differs between two kernels, or one with two settings, after two passes, or in two commits: a summary, then a
unified diff of each part.

    tiledsl diff kernels.py:k --const-a T=16 --const-b T=32
    tiledsl diff old.py:k new.py:k --const T=16 --only sass
    tiledsl diff kernels.py:k --arch-b sm_80
    tiledsl diff kernels.py:k --after-a unroll --after-b distribute
    tiledsl diff kernels.py:k --rev-a HEAD~1 -o k.html

--const, --dtype and --arch are for both sides, those with -a and -b for one. Values, registers, labels and addresses
that merely have other numbers are no difference. With --rev-a or --rev-b the side is the file of that commit, with the
files beside it; tiledsl itself is the one that runs. -o writes a page with the reports of both, side by side.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl.errors import UsageError
from tiledsl.inspect.arguments import add_arch, add_color, add_json, kernel_of, print_json, use_color, write_text
from tiledsl.inspect.loading import is_beside

if TYPE_CHECKING:
    from tiledsl.inspect.compare import Difference
    from tiledsl.kernel import TileKernel

SCHEMA = "tiledsl.diff/1"
DIFFERENT = 3
COLORS = {"-": "\x1b[31m", "+": "\x1b[32m", "@": "\x1b[36m"}
OF_A_SIDE = ("const", "dtype", "arch", "after", "rev")
Used = dict[str, tuple[Any, Any]]
"""Resources of both sides, by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from tiledsl.inspect.compare import PARTS

    parser.add_argument("a", metavar="A", help="FILE:KERNEL")
    parser.add_argument("b", metavar="B", nargs="?", help="FILE:KERNEL; A with other settings unless given")
    parser.add_argument("--const", action="append", default=[], metavar="T=32", help="a const parameter")
    parser.add_argument("--dtype", action="append", default=[], metavar="A=f16", help="dtype of a generic tensor")
    add_arch(parser)
    for side in "ab":
        of = f"of {side.upper()}"
        parser.add_argument(f"--const-{side}", action="append", default=[], metavar="T=32", help=of)
        parser.add_argument(f"--dtype-{side}", action="append", default=[], metavar="A=f16", help=of)
        parser.add_argument(f"--arch-{side}", metavar="sm_80", help=of)
        parser.add_argument(f"--after-{side}", metavar="PASS", help=f"{of}: compare the IR, after this pass")
        parser.add_argument(f"--rev-{side}", metavar="HEAD~1", help=f"{of}: the file as this commit has it")
    only = f"of all parts this one alone, or several: {', '.join(PARTS)}"
    parser.add_argument("--only", action="append", choices=PARTS, default=[], metavar="PART", help=only)
    parser.add_argument("-o", "--output", metavar="FILE", help="both reports in one HTML file, side by side")
    parser.add_argument("--exit-code", action="store_true", help=f"exit with {DIFFERENT} if anything differs")
    add_color(parser)
    add_json(parser)


@dataclass(frozen=True)
class _Side:
    """text: what it is called. after: the pass whose IR is compared; "" for the first stage."""

    kernel: TileKernel
    arch: str
    settings: dict[str, Any]
    text: str
    after: str

    @property
    def stage(self) -> str:
        return f"after:{self.after}" if self.after else "tile"


def run(arguments: argparse.Namespace) -> int:
    own = [getattr(arguments, f"{name}_{side}") for name in OF_A_SIDE for side in "ab"]
    if arguments.b is None and not any(own):
        fix = "name another kernel, or give a side its own settings, as --const-b T=32, or --rev-a HEAD~1"
        raise UsageError(f"diff: {arguments.a} is compared with itself\n  fix: {fix}")
    passes = bool(arguments.after_a or arguments.after_b)
    if passes and arguments.only:
        raise UsageError("--after-a and --after-b compare the IR alone\n  fix: leave --only out")
    with ExitStack() as files:  # those of a commit are there until the end
        with _forgotten():
            a = _side(arguments, "a", files)
        with _forgotten():
            b = _side(arguments, "b", files)
        found, used = _compared(a, b, arguments.only, passes)
        if arguments.output:
            _write_page(Path(arguments.output), a, b, found, used)
        if arguments.json:
            _print_json(a, b, found, used)
        else:
            _print(a, b, found, used, use_color(arguments))
        if arguments.output and not arguments.json:
            print(f"\n{arguments.output}: both reports")
    return DIFFERENT if arguments.exit_code and not all(d.same for d in found) else 0


def _compared(a: _Side, b: _Side, only: list[str], passes: bool) -> tuple[list[Difference], Used]:
    from tiledsl.inspect.compare import PARTS, compare, compare_stages, resources

    if passes:
        x, y = (side.kernel.lower(side.arch, **side.settings) for side in (a, b))
        return [compare_stages(x, y, (a.stage, b.stage))], {}
    before, after = (side.kernel.compile(side.arch, **side.settings) for side in (a, b))
    used, then = resources(before), resources(after)
    return compare(before, after, only or PARTS), {name: (value, then[name]) for name, value in used.items()}


def _write_page(file: Path, a: _Side, b: _Side, found: list[Difference], used: Used) -> None:
    from tiledsl.inspect.report.beside import beside
    from tiledsl.inspect.report.collect import collect

    reports = [collect(side.kernel, side.arch, side.settings, []) for side in (a, b)]
    at = [f"#ir-{side.after}-1" if side.after else "" for side in (a, b)]
    changes = {name: (_number(x), _number(y)) for name, (x, y) in used.items() if x != y}
    write_text(file, beside(reports, [a.text, b.text], at, found, changes), "give another file with -o")


def _print_json(a: _Side, b: _Side, found: list[Difference], used: Used) -> None:
    from tiledsl.compilation.stages import label_of

    sides = {
        side: {"kernel": label_of(each.kernel.name, each.kernel.specialized(each.arch, each.settings)[0]),
               "arch": each.arch, "stage": each.stage if not used else "", "text": each.text}
        for side, each in (("a", a), ("b", b))
    }  # fmt: skip
    parts = [{"part": d.part, "same": d.same, "added": d.added, "removed": d.removed, "diff": d.lines} for d in found]
    print_json(SCHEMA, **sides, resources={name: {"a": x, "b": y} for name, (x, y) in used.items()}, parts=parts)


@contextmanager
def _forgotten() -> Generator[None]:
    """What is imported here from beside a kernel's file is imported anew later: the other side may have others of these
    names."""
    path, known = [*sys.path], {*sys.modules}
    yield
    folders = [Path(folder) for folder in sys.path if folder not in path]
    for name in {*sys.modules} - known:
        if any(is_beside(sys.modules[name], folder) for folder in folders):
            del sys.modules[name]
    sys.path[:] = path


def _side(arguments: argparse.Namespace, side: str, files: ExitStack) -> _Side:
    from tiledsl.compilation.stages import label_of
    from tiledsl.inspect.revisions import at_revision
    from tiledsl.passes.pipeline import stages

    text = arguments.b if side == "b" and arguments.b is not None else arguments.a
    const, dtype, arch, after, revision = (getattr(arguments, f"{name}_{side}") for name in OF_A_SIDE)
    if after and after not in stages():
        raise UsageError(f"no pass is called {after!r}\n  fix: they are {', '.join(stages())}")
    if revision:
        file, colon, name = text.partition(":")
        text = f"{files.enter_context(at_revision(Path(file), revision))}{colon}{name}"
    arch = arch or arguments.arch
    # The last setting of a name counts: that of the side.
    kernel, settings = kernel_of(text, [*arguments.const, *const], [*arguments.dtype, *dtype], arch)
    label = label_of(kernel.name, kernel.specialized(arch, settings)[0])
    said = f"{label} for {arch}"
    if after or arguments.after_a or arguments.after_b:
        said += f", after {after}" if after else ", the first stage"
    return _Side(kernel, arch, settings, f"{said}, of {revision}" if revision else said, after or "")


def _print(a: _Side, b: _Side, found: list[Difference], used: Used, color: bool) -> None:
    from tiledsl.tables import table

    print(f"A: {a.text}\nB: {b.text}\n")
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
