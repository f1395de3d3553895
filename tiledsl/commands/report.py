"""Write all that is known of a kernel into one HTML file.

    tiledsl report kernels.py:k -o k.html
    tiledsl report kernels.py:k --check M=64 --check N=64 --check K=64
    tiledsl report kernels.py:k --check N=64 --trace k.json
    tiledsl report kernels.py:k --measure N=4096 --save-stamps k.stamps
    tiledsl report kernels.py:k --stamps k.stamps

It needs no GPU but for --measure, and the file no network. docs/report.md says what is in it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl.errors import UsageError
from tiledsl.inspect.arguments import add_kernel, asked_kernel, write_text

if TYPE_CHECKING:
    from tiledsl.inspect.report.measure import Run
    from tiledsl.kernel import TileKernel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="KERNEL.html unless given; - for the standard output")
    parser.add_argument("--json", action="store_true", help="the data alone, to the standard output unless -o is given")
    sizes = "run the kernel on the emulator with its checks, on zeros: sizes and scalars by name"
    parser.add_argument("--check", action="append", default=[], metavar="M=64", help=sizes)
    measure = "run it on the GPU here, on random data of these sizes: its time, and when each warp waits for whom"
    parser.add_argument("--measure", action="append", default=[], metavar="M=4096", help=measure)
    parser.add_argument("--save-stamps", metavar="FILE", help="what was measured, for --stamps")
    parser.add_argument("--stamps", metavar="FILE", help="what was measured before, perhaps on another machine")
    parser.add_argument("--trace", metavar="FILE", help="what warps did in these runs, for ui.perfetto.dev")


def run(arguments: argparse.Namespace) -> int:
    from tiledsl.inspect.report.collect import collect
    from tiledsl.inspect.report.page import page
    from tiledsl.inspect.report.trace import trace_events

    kernel, settings = asked_kernel(arguments)
    _refuse_if_nothing_runs(kernel, arguments)
    measured = _measured(kernel, settings, arguments)
    found = collect(kernel, arguments.arch, settings, arguments.check, measured)
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


def _refuse_if_nothing_runs(kernel: TileKernel, arguments: argparse.Namespace) -> None:
    """Raises UsageError for options that go with others."""
    from tiledsl.inspect.inputs import sizes_needed

    def how(option: str) -> str:
        return " ".join(f"{option} {name}=..." for name in sizes_needed(kernel)) or f"{option}, with a size"

    if arguments.trace and not (arguments.check or arguments.measure or arguments.stamps):
        message = f"--trace {arguments.trace}: the kernel does not run"
        raise UsageError(f"{message}\n  fix: give {how('--check')}")
    if arguments.save_stamps and not arguments.measure:
        message = f"--save-stamps {arguments.save_stamps}: nothing is measured"
        raise UsageError(f"{message}\n  fix: give {how('--measure')}")
    if arguments.stamps and arguments.measure:
        raise UsageError("--measure and --stamps are two runs\n  fix: give one of them; --save-stamps writes a file")


def _measured(kernel: TileKernel, settings: dict[str, Any], arguments: argparse.Namespace) -> Run | None:
    from tiledsl.inspect.report.measure import measure, read_run

    if arguments.stamps:
        return read_run(arguments.stamps)
    if not arguments.measure:
        return None
    found = measure(kernel, arguments.arch, settings, arguments.measure)
    if arguments.save_stamps:
        write_text(Path(arguments.save_stamps), found.to_json(), "give another file with --save-stamps")
    return found
