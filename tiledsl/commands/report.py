"""Write all that is known of a kernel into one HTML file.

    tiledsl report kernels.py:k -o k.html
    tiledsl report kernels.py:k --check M=64 --check N=64 --check K=64
    tiledsl report kernels.py:k --check N=64 --trace k.json

It needs no GPU, and the file no network. docs/report.md says what is in it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tiledsl.errors import UsageError
from tiledsl.inspect.arguments import add_kernel, asked_kernel, write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="KERNEL.html unless given; - for the standard output")
    parser.add_argument("--json", action="store_true", help="the data alone, to the standard output unless -o is given")
    sizes = "run the kernel on the emulator with its checks, on zeros: sizes and scalars by name"
    parser.add_argument("--check", action="append", default=[], metavar="M=64", help=sizes)
    parser.add_argument("--trace", metavar="FILE", help="what warps did in that run, for ui.perfetto.dev")


def run(arguments: argparse.Namespace) -> int:
    from tiledsl.inspect.inputs import sizes_needed
    from tiledsl.inspect.report.collect import collect
    from tiledsl.inspect.report.page import page
    from tiledsl.inspect.report.timeline import trace_events

    kernel, settings = asked_kernel(arguments)
    if arguments.trace and not arguments.check:
        how = " ".join(f"--check {name}=..." for name in sizes_needed(kernel))
        raise UsageError(
            f"--trace {arguments.trace}: the kernel does not run\n  fix: give {how or '--check, with a size'}"
        )
    found = collect(kernel, arguments.arch, settings, arguments.check)
    text = found.to_json(indent=1) + "\n" if arguments.json else page(found)
    if arguments.trace:
        events = json.dumps(trace_events(found), separators=(",", ":")) + "\n"
        write_text(Path(arguments.trace), events, "give another file with --trace")
    output = arguments.output or ("-" if arguments.json else f"{kernel.name}.html")
    if output == "-":
        sys.stdout.write(text)
        return 0
    write_text(Path(output), text, "give another file with -o")
    print(f"{output}: {len(text) / 2**20:.2f} MiB, {len(found.findings)} findings")
    return 0
