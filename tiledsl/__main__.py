"""The command line, ``tiledsl`` or ``python -m tiledsl``: show, explain, report, check, ...

Each command is a module with ``add_arguments(parser)`` and ``run(arguments)``, which returns the exit code. Only the
module of the command that is asked for is imported.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and sys.path[:1] != [""] and not sys.flags.safe_path:
    # `python -m` puts the current folder first: a json.py in it would stand in for the library's. The rest stays found.
    sys.path.append(sys.path.pop(0))

import argparse
import os
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn

from tiledsl.errors import KernelArgumentError, TileError, UsageError

WRONG_ARGUMENTS, INTERRUPTED = 2, 130

COMMANDS = {
    "doctor": ("tiledsl.commands.doctor", "say what works on this machine, and how to mend what does not"),
    "gallery": ("tiledsl.commands.gallery", "the examples: list, run and show them; new writes a kernel to begin with"),
    "show": ("tiledsl.commands.show", "print one stage of a kernel, the Python line beside each line"),
    "explain": ("tiledsl.commands.explain", "print what was decided for a kernel, and what became of it"),
    "report": ("tiledsl.commands.report", "write all that is known of a kernel into one HTML file"),
    "check": ("tiledsl.inspect.check", "run a kernel on the emulator with its checks"),
    "diff": ("tiledsl.commands.diff", "what differs between two kernels, or a kernel with two settings"),
    "repro": ("tiledsl.commands.repro", "write a standalone script that repeats a compilation or a run"),
    "error": ("tiledsl.commands.error", "explain the code of an error or a finding"),
    "opt": ("tiledsl.commands.opt", "run passes on kernels in the textual IR, and print what becomes of them"),
    "bench": ("tiledsl.inspect.bench", "time kernels against cuBLAS and each other, on a GPU"),
    "tune": ("tiledsl.tune.command", "find the fastest consts of a kernel for a product, on a GPU"),
    "choose": ("tiledsl.gemm.chosen", "say how gemm computes a product, and why"),
    "export": ("tiledsl.export.command", "write cubins, a manifest and a C header for programs without Python"),
    "cache": ("tiledsl.commands.cache", "the on-disk cache of compiled kernels"),
    "completion": ("tiledsl.commands.completion", "print what completes commands and options in bash, zsh or fish"),
}
"""Module and help of each command."""

EXIT_CODES = """\
exit codes: 0: done; 1: an error; 2: wrong arguments, or no such file or kernel; 130: interrupted.
check and diff have 3, check has 4, too: see their --help.
"""


class _Help(argparse.HelpFormatter):
    """Fills paragraphs, and leaves indented lines as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        parts = text.strip("\n").split("\n\n")
        return "\n\n".join([part if part.startswith(" ") else fill(part, width, indent) for part in parts])


class _Version(argparse.Action):
    """Looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from tiledsl.inspect.versions import version

        print(f"tiledsl {version('tiledsl')}")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    command = ""
    """The one that is asked for, whose help has what this parser does not know."""

    def error(self, message: str) -> NoReturn:
        program = f"{self.prog} {self.command}".rstrip()
        self.exit(WRONG_ARGUMENTS, f"{program}: {message}\n  fix: {program} --help says what it takes\n")


def main(argv: list[str] | None = None) -> int:
    """Run one command. An error is one message without a traceback; `EXIT_CODES` has the exit codes."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] - it was closed before Python began
        return _fail("the output is closed\n  fix: leave stdout open, or send it to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # of characters that the terminal lacks
    try:
        try:
            argv = sys.argv[1:] if argv is None else argv
            asked = next((argument for argument in argv if not argument.startswith("-")), "")
            arguments = _parser(asked).parse_args(argv)
            return _run(arguments)
        finally:
            sys.stdout.flush()  # here, where an error can still be reported
    except TileError as error:
        return _fail(str(error), WRONG_ARGUMENTS if isinstance(error, (UsageError, KernelArgumentError)) else 1)
    except MemoryError as error:
        return _fail(f"there is not enough memory: {error or 'no more of it'}\n  fix: give smaller sizes")
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # `show ... | head`
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        return _fail(f"cannot write the output: {error.strerror or error}\n  fix: send it where there is room")


def _run(arguments: argparse.Namespace) -> int:
    """With --json what goes wrong is data, too."""
    try:
        return arguments.run(arguments)
    except TileError as error:
        if getattr(arguments, "json", None) is True:  # of `bench` it is a file
            from tiledsl.inspect.arguments import print_error

            print_error(error)
        raise


def _fail(message: str, code: int = 1) -> int:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        print(message, file=sys.stderr)
    return code


def _drop_output() -> None:
    """Discard buffered output, which Python would fail to write again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(*asked: str) -> argparse.ArgumentParser:
    """Of other commands than those that are asked for it knows the names."""
    about = "Tiled GEMM kernels: look at them, check them, run them."
    parser = _Parser(prog="tiledsl", description=about, epilog=EXIT_CODES, formatter_class=_Help)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit; doctor shows more")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, about) in COMMANDS.items():
        command = commands.add_parser(name, help=about, formatter_class=_Help)
        if name in asked:
            parser.command = name
            handler = import_module(module)
            command.description = handler.__doc__
            handler.add_arguments(command)
            command.set_defaults(run=handler.run, whole=lambda: _parser(*COMMANDS))
    return parser


if __name__ == "__main__":
    sys.exit(main())
