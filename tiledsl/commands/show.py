"""Print one stage of a kernel, with the Python line beside each line.

    tiledsl show kernels.py:k --stage sass --const T=32
    tiledsl show kernels.py:k --stage ir --after expand

Of a kernel that does not compile it prints the last stage that there is, then the error; the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
from shutil import get_terminal_size

from tiledsl.errors import UsageError
from tiledsl.inspect.arguments import add_color, add_json, add_kernel, asked_kernel, print_json, use_color

SCHEMA = "tiledsl.show/1"
LEAST = 20
"""Columns of the Python lines on a narrow terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser)
    parser.add_argument("--stage", choices=["ir", "llvm", "ptx", "sass"], default="ir")
    parser.add_argument("--after", metavar="PASS", help="with --stage ir: the IR after this pass, not the first")
    parser.add_argument("--no-source", action="store_true", help="without the Python lines")
    add_color(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from tiledsl.inspect.show import WIDTH, read_stage, render
    from tiledsl.inspect.source_lines import READERS
    from tiledsl.passes.pipeline import stages
    from tiledsl.verdict import location

    after = arguments.after
    if after and arguments.stage != "ir":
        message = f"--after {after} goes with --stage ir, not with --stage {arguments.stage}"
        raise UsageError(f"{message}\n  fix: leave it out")
    if after and after not in stages():
        raise UsageError(f"no pass is called {after!r}\n  fix: they are {', '.join(stages())}")
    kernel, settings = asked_kernel(arguments)
    stage, text, error = read_stage(kernel, arguments.arch, settings, arguments.stage, after)
    if arguments.json:
        lines = [{"number": n.number, "text": n.text, "location": location(n.loc)} for n in READERS[stage](text)]
        found = {"stage": stage, "after": after, "lines": lines, "error": str(error) if error else ""}
        print_json(SCHEMA, kernel=kernel.name, arch=arguments.arch, **found)
    else:
        width = max(LEAST, min(WIDTH, get_terminal_size().columns * 2 // 5)) if sys.stdout.isatty() else WIDTH
        for line in render(text, stage, color=use_color(arguments), source=not arguments.no_source, width=width):
            print(line)
    if error is None:
        return 0
    print(error, file=sys.stderr)
    return 1
