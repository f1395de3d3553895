"""Write a standalone script that repeats a compilation, or with sizes a run on the emulator with its checks.

    tiledsl repro kernels.py:k --const T=32 --arch sm_80
    tiledsl repro kernels.py:k --size M=70 --size N=68 --seed 3 -o repro.py

The script has the text of the kernel's file, and of the modules beside it that this imports; settings, sizes and seed;
the versions, and what came of it here. It needs tiledsl and nothing else of yours. Arrays are those of tiledsl check.
"""

from __future__ import annotations

import argparse
import ast
import platform
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tiledsl.errors import KernelArgumentError, TileError
from tiledsl.inspect.arguments import add_kernel, asked_kernel, write_text
from tiledsl.inspect.loading import is_beside, module_name
from tiledsl.inspect.versions import version, versions

if TYPE_CHECKING:
    from tiledsl.kernel import TileKernel

BESIDE = """\
import pathlib as _pathlib
import sys as _sys
import tempfile as _tempfile

_folder = _tempfile.TemporaryDirectory()
for _name, _text in {{
{files}}}.items():
    _file = _pathlib.Path(_folder.name, _name)
    _file.parent.mkdir(parents=True, exist_ok=True)
    _file.write_text(_text, encoding="utf-8")
_sys.path.insert(0, _folder.name)
"""
"""Puts modules in a folder that is found first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kernel(parser)
    parser.add_argument("--size", action="append", default=[], metavar="M=64", help="an extent, or a scalar, of a run")
    parser.add_argument("--seed", type=int, default=0, help="of the schedule of a run; 0, the usual one, unless given")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="repro_KERNEL.py unless given; - for the standard output"
    )


def run(arguments: argparse.Namespace) -> int:
    kernel, settings = asked_kernel(arguments)
    module = sys.modules[module_name(Path(arguments.kernel.partition(":")[0]))]
    name = next(name for name, value in vars(module).items() if value is kernel)
    if arguments.size:
        lines, came = _run(kernel, name, settings, arguments)
    else:
        lines, came = _compilation(kernel, name, settings, arguments.arch)
    output = arguments.output or f"repro_{kernel.name}.py"
    text = _script(module, lines, came)
    if output == "-":
        sys.stdout.write(text)
        return 0
    write_text(Path(output), text, "give another file with -o")
    print(f"{output}: python {output} gives\n{textwrap.indent(came, '  ')}")
    return 0


def _compilation(kernel: TileKernel, name: str, settings: dict[str, Any], arch: str) -> tuple[list[str], str]:
    """The lines of the script, and what came of it here."""
    given = "".join(f", {key}={value!r}" for key, value in settings.items())
    try:
        came = repr(kernel.compile(arch, **settings))
    except KernelArgumentError:
        raise
    except TileError as error:
        came = str(error)
    return [f"print({name}.compile({arch!r}{given}))"], came


def _run(
    kernel: TileKernel, name: str, settings: dict[str, Any], arguments: argparse.Namespace
) -> tuple[list[str], str]:
    from tiledsl.inspect.inputs import arguments_of, random_arrays, values_of

    values = values_of(kernel, "--size", arguments.size)
    given = arguments_of(kernel, settings, values, random_arrays())
    lines = ["import sys", "", "import ml_dtypes", "import numpy as np", ""]
    lines += ["from tiledsl.inspect.inputs import random_arrays", "", "make = random_arrays()"]
    passed: list[str] = []
    for key, value in given.items():
        array = hasattr(value, "shape")
        if array:
            of = "ml_dtypes" if type(value.dtype.type(0)).__module__ == "ml_dtypes" else "np"
            lines.append(f"{key} = make({value.shape}, np.dtype({of}.{value.dtype.name}))")
        passed.append(f"{key}={key if array else repr(value)}")
    lines.append(f"result = {name}.check({', '.join(passed)}, seed={arguments.seed}, raises=False)")
    lines += ["print(result)", "sys.exit(not result)"]
    return lines, str(kernel.check(**given, seed=arguments.seed, raises=False))


def _script(module: ModuleType, lines: list[str], came: str) -> str:
    file = Path(str(module.__file__))
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    source = text.splitlines()
    for node in reversed(tree.body):
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            del source[node.lineno - 1 : node.end_lineno]  # what it does as a program
    if beside := _beside(module, file.parent):
        source[_begin(tree) : _begin(tree)] = ["", *_written(beside).splitlines(), ""]
    made = {**versions(), "NumPy": version("numpy"), "ml_dtypes": version("ml_dtypes"), "on": platform.platform()}
    made_with = ", ".join(f"{name} {number}" for name, number in made.items())
    about = textwrap.wrap(
        f"Made by tiledsl repro of {file}, with {made_with}. There it gave", 110, break_on_hyphens=False
    )
    comment = "\n".join(f"# {line}".rstrip() for line in (*about, *(f"  {line}" for line in came.splitlines())))
    body, program = "\n".join(source).strip("\n"), textwrap.indent("\n".join(lines), "    ")
    # In a function: the kernel may read a global of the same name.
    program = f'def _repro():\n{program}\n\n\nif __name__ == "__main__":\n    _repro()\n'
    return f"{comment}\n\n{body}\n\n\n{program}"


def _begin(tree: ast.Module) -> int:
    """How many lines a docstring and imports from __future__ take, which must be first."""
    last = 0
    for node in tree.body:
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not future and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            break
        last = node.end_lineno or 0
    return last


def _beside(module: ModuleType, folder: Path) -> dict[str, str]:
    """The modules in `folder` that this one imports, and those that they do: their texts by file name."""
    found: dict[str, str] = {}
    todo = [module]
    while todo:
        for name in _imported(todo.pop()):
            other = sys.modules.get(name)
            if other is None or not is_beside(other, folder):
                continue
            file = Path(str(other.__file__))
            relative = str(file.relative_to(folder))
            if relative not in found:
                found[relative] = file.read_text(encoding="utf-8")
                todo.append(other)
    return found


def _imported(module: ModuleType) -> Iterator[str]:
    """Names of modules that the file of `module` imports anywhere, with the packages that they are in."""
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.__package__ or "")
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _written(files: dict[str, str]) -> str:
    def quoted(text: str) -> str:
        return "".join(f"        {line!r}\n" for line in text.splitlines(keepends=True)) or "        ''\n"

    return BESIDE.format(files="".join(f"    {name!r}: (\n{quoted(text)}    ),\n" for name, text in files.items()))
