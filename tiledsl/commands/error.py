"""Explain what a code of the check means; without one, list them."""

from __future__ import annotations

import argparse

from tiledsl.findings import explain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", metavar="T101", nargs="?", default="", help="all are listed without one")


def run(arguments: argparse.Namespace) -> int:
    print(explain(arguments.code))
    return 0
