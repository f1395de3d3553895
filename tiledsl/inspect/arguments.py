"""What several commands take: a kernel with its settings, a target, and how the result is printed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl.arch import TARGETS
from tiledsl.errors import CompileErrors, LocatedError, TileError, UsageError

if TYPE_CHECKING:
    from tiledsl.kernel import TileKernel

SCHEMA = "tiledsl.error/1"
EXAMPLE = "for example examples/gemm/naive.py:naive; the name may be left out where the file has one kernel"


def add_kernel(parser: argparse.ArgumentParser, *, optional: bool = False, arch: bool = True) -> None:
    """What `asked_kernel` reads."""
    parser.add_argument("kernel", metavar="FILE:KERNEL", nargs="?" if optional else None, help=EXAMPLE)
    if arch:
        add_arch(parser)
    parser.add_argument("--const", action="append", default=[], metavar="T=32", help="a const parameter")
    parser.add_argument("--dtype", action="append", default=[], metavar="A=f16", help="dtype of a generic tensor")


def add_arch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", default="sm_90a", help=f"target, sm_90a unless given: {', '.join(TARGETS)}")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it as JSON; AGENTS.md says what the fields mean")


def add_color(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-color", action="store_true", help="plain text on a terminal, too; as NO_COLOR does")


def use_color(arguments: argparse.Namespace) -> bool:
    """On a terminal alone, and if pygments is here. (no-color.org: NO_COLOR counts if it is not empty.)"""
    plain = arguments.no_color or os.environ.get("NO_COLOR") or find_spec("pygments") is None
    return sys.stdout.isatty() and not plain


def print_json(schema: str, **fields: Any) -> None:
    """ASCII. A field that is gone, or means something else, is a new number behind the name of the schema; a new field
    is not."""
    print(json.dumps({"schema": schema, **fields}, indent=1))


def print_error(error: TileError) -> None:
    """As JSON: all errors of a compilation, else the one."""
    found = error.errors if isinstance(error, CompileErrors) else (error,)
    print_json(SCHEMA, errors=[_described(each) for each in found])


def _described(error: TileError) -> dict[str, Any]:
    from tiledsl.verdict import location

    text, _, fix = str(error).partition("\n  fix: ")
    place: dict[str, Any] | None = None
    if isinstance(error, LocatedError):
        text, fix, place = error.message, error.fix, location(error.loc)
    return {"kind": type(error).__name__, "code": error.code, "message": text, "fix": fix, "location": place}


def checked_arch(name: str) -> str:
    """The name of a target. Raises UsageError."""
    if name not in TARGETS:
        raise UsageError(f"no target {name!r}\n  fix: one of {', '.join(TARGETS)}")
    return name


def asked_kernel(arguments: argparse.Namespace) -> tuple[TileKernel, dict[str, Any]]:
    """The kernel, and the settings for `compile` besides the target. Raises UsageError."""
    return kernel_of(arguments.kernel, arguments.const, arguments.dtype, getattr(arguments, "arch", None))


def kernel_of(
    text: str, consts: list[str], dtypes: list[str], arch: str | None = None
) -> tuple[TileKernel, dict[str, Any]]:
    from tiledsl.inspect.loading import load_kernel, parse_consts, parse_dtypes

    if arch is not None:
        checked_arch(arch)
    file, _, name = text.partition(":")
    kernel = load_kernel(Path(file), name)
    return kernel, {**parse_consts(kernel, consts), **parse_dtypes(kernel, dtypes)}


def write_text(file: Path, text: str, fix: str) -> None:
    """Raises TileError."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TileError(f"cannot write {file}: {error.strerror or error}\n  fix: {fix}") from error
