"""Print what was decided for a kernel, and what became of it.

    tiledsl explain kernels.py:k banks        wavefronts of each shared access
    tiledsl explain kernels.py:k pipeline     pipelined loops, groups of copies
    tiledsl explain kernels.py:k roles        roles, and the rings between them
    tiledsl explain kernels.py:k resources    blocks of an SM, and their limits
    tiledsl explain kernels.py:k tensor-maps  boxes that TMA moves
    tiledsl explain kernels.py:k sass         loops, registers, instructions

No GPU is needed.
"""

from __future__ import annotations

import argparse

from tiledsl.compilation.explain import ASSEMBLED, EXPLAIN
from tiledsl.inspect.arguments import add_json, add_kernel, asked_kernel, print_json

SCHEMA = "tiledsl.explain/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser)
    parser.add_argument("what", choices=EXPLAIN, metavar="WHAT", help=", ".join(EXPLAIN))
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    kernel, settings = asked_kernel(arguments)
    asked = (kernel.compile if arguments.what in ASSEMBLED else kernel.lower)(arguments.arch, **settings)
    found = asked.explain(arguments.what)
    if not arguments.json:
        print(found)
        return 0
    from tiledsl.inspect.report.explained import explained

    print_json(SCHEMA, kernel=asked.label, arch=asked.arch, what=arguments.what, found=explained(found))
    return 0
