"""The command line, ``python -m tiledsl``: show, explain, report, check, error, opt, bench, tune, choose, ..."""

from __future__ import annotations

import sys

if __name__ == "__main__" and sys.path[:1] != [""] and not sys.flags.safe_path:
    # `python -m` puts the current folder first: a json.py in it would stand in for the library's. The rest stays found.
    sys.path.append(sys.path.pop(0))

import argparse
import os
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl.arch import target_named
from tiledsl.compilation.explain import EXPLAIN
from tiledsl.errors import TileError
from tiledsl.inspect import bench, check
from tiledsl.inspect.contenders import LAYOUTS
from tiledsl.tune import command as tune

if TYPE_CHECKING:
    from tiledsl.kernel import TileKernel


def main(argv: list[str] | None = None) -> int:
    """Run one command. An error is one message without a traceback, and exit code 1 (2 for arguments)."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - it was closed before Python began
        return _fail("the output is closed\n  fix: leave stdout open, or send it to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # of characters that the terminal lacks
    try:
        try:
            arguments = _parser().parse_args(argv)
            return arguments.run(arguments)
        finally:
            sys.stdout.flush()  # here, where an error can still be reported
    except TileError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # `show ... | head`
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        return _fail(f"cannot write the output: {error.strerror or error}\n  fix: send it where there is room")


def _fail(message: str, code: int = 1) -> int:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        print(message, file=sys.stderr)
    return code


def _drop_output() -> None:
    """Discard buffered output, which Python would fail to write again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tiledsl", description="Tiled GEMM kernels: look at them, run them.")
    commands = parser.add_subparsers(dest="command", required=True)

    show = commands.add_parser("show", help="print one stage of a kernel, the Python line beside each line")
    _add_kernel(show, _show)
    show.add_argument("--stage", choices=["ir", "llvm", "ptx", "sass"], default="ir")
    show.add_argument("--after", metavar="PASS", help="with --stage ir: the IR after this pass, not the first")
    show.add_argument("--no-color", action="store_true", help="plain text on a terminal, too")
    show.add_argument("--no-source", action="store_true", help="without the Python lines")

    explain = commands.add_parser("explain", help="print what was decided for a kernel, and what became of it")
    _add_kernel(explain, _explain)
    explain.add_argument("what", choices=EXPLAIN)

    report = commands.add_parser("report", help="write all that is known of a kernel into one HTML file")
    _add_kernel(report, _report)
    report.add_argument("-o", "--output", metavar="FILE", help="KERNEL.html unless given; - for the standard output")
    report.add_argument("--json", action="store_true", help="the data alone, to the standard output unless -o is given")
    sizes = "run the kernel on the emulator with its checks, on zeros: sizes and scalars by name"
    report.add_argument("--check", action="append", default=[], metavar="M=64", help=sizes)

    checked = commands.add_parser("check", help="run a kernel on the emulator with its checks")
    checked.description, checked.formatter_class = check.__doc__, argparse.RawDescriptionHelpFormatter
    _add_kernel(checked, _check, arch=False)
    check.add_arguments(checked)

    error = commands.add_parser("error", help="explain what a code of the check means")
    error.add_argument("code", metavar="T101", nargs="?", default="", help="all are listed without one")
    error.set_defaults(run=_error)

    opt = commands.add_parser("opt", help="run passes on kernels in the textual IR, and print what becomes of them")
    opt.add_argument("file", metavar="FILE", help="a .tir file, or - for the standard input")
    opt.add_argument("--pass", dest="passes", metavar="NAME,NAME", default="", help="in this order; without it, all")
    _add_arch(opt)
    opt.add_argument("--locs", action="store_true", help="with the location of every op")
    opt.set_defaults(run=_opt)

    timed = commands.add_parser("bench", help="time kernels against cuBLAS and each other, on a GPU")
    timed.description, timed.formatter_class = bench.__doc__, argparse.RawDescriptionHelpFormatter
    bench.add_arguments(timed)
    timed.set_defaults(run=bench.run)

    tuned = commands.add_parser("tune", help="find the fastest consts of a kernel for a product, on a GPU")
    tuned.description, tuned.formatter_class = tune.__doc__, argparse.RawDescriptionHelpFormatter
    tune.add_arguments(tuned)
    tuned.set_defaults(run=tune.run)

    choose = commands.add_parser("choose", help="say how gemm computes a product, and why")
    choose.add_argument("sizes", nargs="+", type=bench.parse_size, metavar="[BATCHx]MxNxK")
    choose.add_argument("--format", default="bf16", help="dtype of A and B; bf16 unless given")
    choose.add_argument("--out", help="dtype of C; that of A unless given")
    choose.add_argument("--stored", choices=LAYOUTS, default="NN", help="A and B: N in rows, T transposed")
    choose.add_argument("--bias", action="store_true", help="with a bias or an epilogue")
    choose.add_argument("--add-c", action="store_true", help="with a beta that is not 0")
    choose.add_argument("--batch-invariant", action="store_true", help="the bits of a row must not depend on M")
    choose.add_argument("--processors", type=int, default=132, help="SMs of the GPU; 132 unless given")
    choose.add_argument("--top", type=int, default=2, help="how many candidates are shown; 2 unless given")
    _add_arch(choose)
    choose.set_defaults(run=_choose)

    export = commands.add_parser("export", help="write cubins, a manifest and a C header for programs without Python")
    _add_kernel(export, _export, optional=True)
    export.add_argument("--gemm", nargs="+", type=bench.parse_size, metavar="[BATCHx]MxNxK", help="what gemm launches")
    export.add_argument("--format", default="bf16", metavar="bf16", help="with --gemm: dtype of A and B")
    export.add_argument("--out", metavar="f32", help="with --gemm: dtype of C, that of A and B unless given")
    stored = "with --gemm: how A and B are stored, N in rows, T transposed"
    export.add_argument("--stored", choices=LAYOUTS, default="NN", help=stored)
    export.add_argument("-o", "--output", metavar="FOLDER", required=True)

    cache = commands.add_parser("cache", help="the on-disk cache of compiled kernels")
    cache.add_argument("action", choices=["info", "clear"])
    cache.set_defaults(run=_cache)
    return parser


def _add_arch(command: argparse.ArgumentParser) -> None:
    command.add_argument("--arch", default="sm_90a", help="target, sm_90a unless given")


def _add_kernel(
    command: argparse.ArgumentParser, run: Callable[..., int], *, optional: bool = False, arch: bool = True
) -> None:
    command.set_defaults(run=run)
    count, example = "?" if optional else None, "for example examples/gemm/naive.py:naive"
    command.add_argument("kernel", metavar="FILE:KERNEL", nargs=count, help=example)
    if arch:
        _add_arch(command)
    command.add_argument("--const", action="append", default=[], metavar="T=32", help="a const parameter")
    command.add_argument("--dtype", action="append", default=[], metavar="A=f16", help="dtype of a generic tensor")


def _asked(arguments: argparse.Namespace) -> tuple[TileKernel, dict[str, Any]]:
    """The kernel, and the settings for `compile` besides the target."""
    from tiledsl.inspect.loading import load_kernel, parse_consts, parse_dtypes

    file, _, name = arguments.kernel.partition(":")
    kernel = load_kernel(Path(file), name)
    return kernel, {**parse_consts(kernel, arguments.const), **parse_dtypes(kernel, arguments.dtype)}


def _explain(arguments: argparse.Namespace) -> int:
    kernel, settings = _asked(arguments)
    print(kernel.compile(arguments.arch, **settings).explain(arguments.what))
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from tiledsl.inspect.report.collect import collect
    from tiledsl.inspect.report.page import page

    kernel, settings = _asked(arguments)
    found = collect(kernel, arguments.arch, settings, arguments.check)
    text = found.to_json(indent=1) + "\n" if arguments.json else page(found)
    output = arguments.output or ("-" if arguments.json else f"{kernel.name}.html")
    if output == "-":
        sys.stdout.write(text)
        return 0
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise TileError(
            f"cannot write {output}: {error.strerror or error}\n  fix: give another file with -o"
        ) from error
    print(f"{output}: {len(text) / 2**20:.2f} MiB, {len(found.findings)} findings")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    return check.run(arguments, _asked)


def _error(arguments: argparse.Namespace) -> int:
    from tiledsl.findings import explain

    print(explain(arguments.code))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from tiledsl.export.command import export_kernel, export_products

    if (arguments.kernel is None) == (arguments.gemm is None):
        raise TileError("export takes a FILE:KERNEL or --gemm with sizes\n  fix: give one of them")
    folder = Path(arguments.output)
    if arguments.gemm is not None:
        print(export_products(arguments.gemm, arguments, folder))
        return 0
    kernel, settings = _asked(arguments)
    print(export_kernel(kernel, arguments.arch, settings, folder))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from tiledsl.inspect.show import read_stage, render

    if arguments.after and arguments.stage != "ir":
        raise TileError(f"--after {arguments.after} goes with --stage ir, not with --stage {arguments.stage}")
    kernel, settings = _asked(arguments)
    stage, text, error = read_stage(kernel, arguments.arch, settings, arguments.stage, arguments.after)
    color = sys.stdout.isatty() and not arguments.no_color and "NO_COLOR" not in os.environ
    for line in render(text, stage, color=color, source=not arguments.no_source):
        print(line)
    if error is None:
        return 0
    print(error, file=sys.stderr)
    return 1


def _choose(arguments: argparse.Namespace) -> int:
    from tiledsl.gemm.chosen import run

    return run(arguments)


def _opt(arguments: argparse.Namespace) -> int:
    from tiledsl.ir.parser import parse_kernels
    from tiledsl.ir.printer import print_kernel
    from tiledsl.passes.manager import run_passes
    from tiledsl.passes.pipeline import named_passes

    target = target_named(arguments.arch)
    known = named_passes(shared_limit=target.shared_per_block, target=target.name)
    asked = [name.strip() for name in arguments.passes.split(",")] if arguments.passes else list(known)
    for name in asked:
        if name not in known:
            raise TileError(f"no pass is called {name!r}\n  fix: they are {', '.join(known)}")
    for kernel in parse_kernels(*_read(arguments.file)):
        run_passes(kernel, [known[name] for name in asked], verify_each=True)
        print(print_kernel(kernel, locs=arguments.locs))
    return 0


def _read(file: str) -> tuple[str, str]:
    """The text of a file, and its name for messages."""
    if file == "-":
        return sys.stdin.read(), "<stdin>"
    try:
        return Path(file).read_text(encoding="utf-8"), file
    except (OSError, UnicodeDecodeError) as error:
        raise TileError(f"cannot read {file}: {error}\n  fix: pass a text file, or - for the standard input") from error


def _cache(arguments: argparse.Namespace) -> int:
    from tiledsl.compilation.cache import disk_cache

    cache = disk_cache()
    if cache is None:
        print("there is no disk cache: TILEDSL_CACHE=0 switches it off, or no home folder is known")
    elif arguments.action == "clear":
        print(f"{cache.clear()} kernels removed from {cache.folder}")
    else:
        entries, size = cache.info()
        print(f"{cache.folder}: {entries} kernels, {size / 2**20:.1f} of at most {cache.limit / 2**20:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
