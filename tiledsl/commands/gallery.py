"""The examples: matrix products from the simplest kernel up, one idea a step.

    tiledsl gallery list
    tiledsl gallery run shared_tiled --size 100x200x300 --const T=32
    tiledsl gallery show shared_tiled
    tiledsl gallery new first.py

`new` writes a kernel to begin with, which runs and checks itself. A kernel runs on the GPU if there is one, else on the
emulator, and each element is compared with NumPy's product in float64. The examples are in examples/gemm of a checkout,
and no part of the wheel; `new` needs no checkout.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tiledsl.errors import TileError, UsageError
from tiledsl.inspect.arguments import add_color, add_json, print_json, use_color, write_text

SCHEMA = "tiledsl.gallery/1"
FOLDER = Path("examples", "gemm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from tiledsl.inspect.bench import parse_size

    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_json(actions.add_parser("list", help="all examples, and the idea of each"))
    one = actions.add_parser("run", help="run an example on random data, and check it")
    one.add_argument("name", metavar="NAME")
    one.add_argument("--size", type=parse_size, metavar="MxNxK", help="as a rule of no tile's size: 333x217x129")
    one.add_argument("--format", help="of A and B: bf16, f16, e4m3, ...; those of tensor cores take several")
    one.add_argument("--const", action="append", default=[], metavar="T=32", help="a const parameter")
    add_json(one)
    source = actions.add_parser("show", help="print the source of an example")
    source.add_argument("name", metavar="NAME")
    add_color(source)
    add_json(source)
    new = actions.add_parser("new", help="write a kernel to begin with, which runs and checks itself")
    new.add_argument("file", metavar="FILE.py", type=Path)
    add_json(new)


def run(arguments: argparse.Namespace) -> int:
    return {"list": _list, "run": _run, "show": _show, "new": _new}[arguments.action](arguments)


def _folder() -> Path:
    """The folder of the gallery: of the checkout that tiledsl is imported from, else of the current folder."""
    for root in (Path(__file__).parents[2], Path.cwd()):
        if (root / FOLDER / "gallery.py").is_file():
            return root / FOLDER
    fix = "run this in the top folder of a checkout of tiledsl; `tiledsl gallery new FILE.py` needs none"
    raise TileError(f"the gallery is not here: the package has no {FOLDER}, nor has {Path.cwd()}\n  fix: {fix}")


def _gallery() -> Any:
    """The gallery's own module, examples/gemm/gallery.py."""
    from tiledsl.inspect.loading import load_module

    return load_module(_folder() / "gallery.py")


def _entries(gallery: Any) -> dict[str, Any]:
    """By name."""
    return {entry.kernel: entry for entry in (*gallery.GALLERY, *gallery.HOPPER, *gallery.PREPARED)}


def _named(gallery: Any, name: str) -> Any:
    entries = _entries(gallery)
    if name not in entries:
        near = ", ".join(get_close_matches(name, entries, 3))
        fix = f"did you mean {near}? " if near else ""
        raise UsageError(f"no example is called {name!r}\n  fix: {fix}tiledsl gallery list names them all")
    return entries[name]


def _list(arguments: argparse.Namespace) -> int:
    entries, folder = _entries(_gallery()), _folder()
    if arguments.json:
        fields = [
            {"name": name, "idea": e.idea, "file": str(folder / e.file), "formats": [*e.formats]}
            for name, e in entries.items()
        ]
        print_json(SCHEMA, examples=fields)
        return 0
    width = max(map(len, entries)) + 2
    for name, entry in entries.items():
        print(textwrap.fill(entry.idea, 79, initial_indent=f"{name:<{width}}", subsequent_indent=" " * width))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from tiledsl.inspect.loading import parse_consts

    gallery = _gallery()
    entry = _named(gallery, arguments.name)
    format = arguments.format or entry.formats[0]
    if format not in entry.formats:
        raise UsageError(f"{entry.kernel} does not multiply {format}\n  fix: give one of {', '.join(entry.formats)}")
    sizes = arguments.size or gallery.SIZE
    if len(sizes) != 3:
        raise UsageError(f"gallery: --size has {len(sizes)} numbers\n  fix: write it as --size MxNxK")
    kernel = gallery.load(entry)
    size = entry.sized(*sizes)
    consts = gallery.chosen(entry, parse_consts(kernel, arguments.const), *size, format)
    got = gallery.run(kernel, *size, consts, format=format)
    if arguments.json:
        print_json(SCHEMA, run={**asdict(got), "right": got.right})
    else:
        print(got)
    return int(not got.right)


def _show(arguments: argparse.Namespace) -> int:
    from tiledsl.inspect.show import highlight

    entry = _named(_gallery(), arguments.name)
    file = _folder() / entry.file
    text = file.read_text(encoding="utf-8")
    if arguments.json:
        print_json(SCHEMA, name=entry.kernel, file=str(file), source=text)
    else:
        print("\n".join(highlight(text.splitlines(), "python")) if use_color(arguments) else text.rstrip("\n"))
    return 0


def _new(arguments: argparse.Namespace) -> int:
    from tiledsl.commands import starter

    file: Path = arguments.file
    if file.suffix != ".py":
        raise UsageError(f"{file} is not the name of a Python file\n  fix: let it end in .py")
    if file.exists() or file.is_symlink():
        raise UsageError(f"{file} is there already\n  fix: give another name")
    source = Path(starter.__file__).read_text(encoding="utf-8")
    write_text(file, source, "give a file in a folder that is there and can be written")
    steps = [
        f"python {file}",
        f"tiledsl check {file} --size M=70 --size N=68 --size K=56",
        f"tiledsl show {file} --stage ptx",
        f"tiledsl explain {file} banks",
    ]
    if arguments.json:
        print_json(SCHEMA, file=str(file), next=steps)
    else:
        print("\n".join([f"{file}: a kernel to begin with. Next:", *(f"  {step}" for step in steps)]))
    return 0
