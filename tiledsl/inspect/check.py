"""Run a kernel on the emulator with its checks, under one or several schedules.

    tiledsl check kernels.py:k --size M=70 --size N=68 --size K=56
    tiledsl check kernels.py:k --size M=70 --seeds 8 --sarif check.sarif
    tiledsl check kernels.py:k --size M=70 --without T2 --baseline known.json
    tiledsl check kernels.py:k --size M=70 --algebra product

Arrays have random numbers, the same each time; integers of more than 8 bits are zeros. Exit codes: 0: clean; 1: the
check itself failed, or the kernel does not compile; 2: wrong arguments, or no such file; 3: findings; 4: no finding,
but something was not looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from tiledsl.errors import UsageError
from tiledsl.findings import CHECKS
from tiledsl.inspect.arguments import add_kernel, asked_kernel, write_text
from tiledsl.inspect.inputs import arguments_of, random_arrays, values_of
from tiledsl.verdict import Verdict

EXIT_CODES: Mapping[Verdict, int] = {"clean": 0, "error": 1, "findings": 3, "incomplete": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser, arch=False)
    parser.add_argument("--size", action="append", default=[], metavar="M=64", help="an extent, or a scalar")
    schedule = parser.add_mutually_exclusive_group()
    schedule.add_argument("--seed", type=int, help="of the one schedule; 0, the usual one, unless given")
    schedule.add_argument("--seeds", type=int, metavar="N", help="run under the schedules 0 to N - 1")
    parser.add_argument("--checks", metavar="NAMES", help=f"only these: {', '.join(CHECKS)}; codes, as T101 or T1")
    parser.add_argument("--without", default="", metavar="NAMES", help="all but these")
    parser.add_argument(
        "--algebra", metavar="NAME", help="compute on integers; NAME: the reference, of the kernel's file"
    )
    parser.add_argument("--unwritten", default="", metavar="NAMES", help="arrays that hold nothing yet, as C")
    of_gpu = "SMs of the GPU (default: 132; 8 if the grid depends on them)"
    parser.add_argument("--processors", type=int, metavar="N", help=of_gpu)
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="accept the findings that it lists")
    parser.add_argument("--write-baseline", type=Path, metavar="FILE", help="add the findings to it")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--sarif", type=Path, metavar="FILE", help="write it as SARIF 2.1.0, too")


def run(arguments: argparse.Namespace) -> int:
    """Check and print. Returns the exit code."""
    kernel, settings = asked_kernel(arguments)
    values = values_of(kernel, "--size", arguments.size)
    given = arguments_of(kernel, settings, values, random_arrays())
    names = "seed", "seeds", "checks", "without", "baseline", "unwritten", "processors"
    options = {name: getattr(arguments, name) for name in names}
    if arguments.algebra is not None:
        options["algebra"] = kernel.fn.__globals__.get(arguments.algebra)
        if not callable(options["algebra"]):
            file = kernel.signature.loc.file
            raise UsageError(f"{file} has no function {arguments.algebra}\n  fix: name one of it with --algebra")
    result = kernel.check(**given, **options, raises=False)
    if arguments.write_baseline is not None:
        result = result.write_baseline(arguments.write_baseline)
    if arguments.sarif is not None:
        write_text(arguments.sarif, result.to_sarif(indent=1) + "\n", "give another file with --sarif")
    print(result.to_json(indent=1) if arguments.json else result)
    return EXIT_CODES[result.verdict]
