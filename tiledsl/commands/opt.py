"""Run passes on kernels in the textual IR, and print what becomes of them.

    tiledsl opt kernels.tir --pass canonicalize,cse

What is printed can be read again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tiledsl.arch import target_named
from tiledsl.errors import UsageError
from tiledsl.inspect.arguments import add_arch, add_json, checked_arch, print_json
from tiledsl.outside import read_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .tir file, or - for the standard input")
    parser.add_argument("--pass", dest="passes", metavar="NAME,NAME", default="", help="in this order; without it, all")
    add_arch(parser)
    parser.add_argument("--locs", action="store_true", help="with the location of every op")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from tiledsl.ir.parser import parse_kernels
    from tiledsl.ir.printer import print_kernel
    from tiledsl.passes.manager import run_passes
    from tiledsl.passes.pipeline import named_passes

    target = target_named(checked_arch(arguments.arch))
    known = named_passes(shared_limit=target.shared_per_block, target=target.name)
    asked = [name.strip() for name in arguments.passes.split(",")] if arguments.passes else list(known)
    for name in asked:
        if name not in known:
            raise UsageError(f"no pass is called {name!r}\n  fix: they are {', '.join(known)}")
    found: list[dict[str, str]] = []
    for kernel in parse_kernels(*_read(arguments.file)):
        run_passes(kernel, [known[name] for name in asked], verify_each=True)
        text = print_kernel(kernel, locs=arguments.locs)
        if arguments.json:
            found.append({"name": kernel.name, "text": text})
        else:
            print(text)
    if arguments.json:
        print_json("tiledsl.opt/1", arch=target.name, passes=asked, kernels=found)
    return 0


def _read(file: str) -> tuple[str, str]:
    """The text of a file, and its name for messages."""
    if file == "-":
        return sys.stdin.read(), "<stdin>"
    try:
        return read_text(Path(file)), file
    except (OSError, UnicodeDecodeError) as error:
        fix = "pass a text file, or - for the standard input"
        why = error.strerror or error if isinstance(error, OSError) else error
        raise UsageError(f"cannot read {file}: {why}\n  fix: {fix}") from error
