"""Find a kernel in a file, and read its const parameters and dtypes from texts."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import extract_tb
from types import FunctionType, ModuleType
from typing import Any, Literal, get_args, get_origin

from tiledsl.errors import TileError, UsageError
from tiledsl.kernel import TileKernel
from tiledsl.signatures.signature import REQUIRED


class _Source(SourceFileLoader):
    """Without bytecode: Python takes it for that of a file that was written within the same second, with as many
    bytes."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_module(path: Path) -> ModuleType:
    """Run the Python file at `path` as a module, with its folder importable.

    The folder comes last: a file called json.py must not stand in for the library of that name, neither for us nor for
    the libraries that we import. What the file raises becomes a TileError at its line.
    """
    if path.suffix != ".py" or not path.is_file():
        fix = "give FILE:KERNEL, for example examples/gemm/naive.py:naive"
        raise UsageError(f"there is no Python file {path}\n  fix: {fix}")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)
    name, file = module_name(path), path.resolve()
    spec = importlib.util.spec_from_file_location(name, file, loader=_Source(name, str(file)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(spec.name, None)
        if isinstance(error, (TileError, KeyboardInterrupt)):
            raise
        raise _failed(path, error) from error
    return module


def module_name(path: Path) -> str:
    """In `sys.modules`, of a file that was loaded: one that no library has."""
    return f"_file_{path.stem}"


def is_beside(module: ModuleType | None, folder: Path) -> bool:
    """Is it a module of the user's in this folder?"""
    file = Path(getattr(module, "__file__", None) or "/")
    ours = module is None or module.__name__.partition(".")[0] == "tiledsl"
    return not ours and file.is_relative_to(folder) and "site-packages" not in file.parts


def _failed(path: Path, error: BaseException) -> TileError:
    """What the user's file did when it was run, in one line and at its line."""
    if isinstance(error, SyntaxError) and error.filename:
        return TileError(f"{error.filename}:{error.lineno or 1}: {error.msg}\n  fix: correct the syntax there")
    inside = [frame for frame in extract_tb(error.__traceback__) if frame.filename == str(path.resolve())]
    place = f"{path}:{inside[-1].lineno}" if inside else str(path)
    if isinstance(error, SystemExit):
        fix = 'put what runs as a program under `if __name__ == "__main__":`'
        return TileError(f"{place}: the file ends the program (sys.exit) when it is imported\n  fix: {fix}")
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return TileError(f"{place}: {what}\n  fix: make `python {path}` run without an error first")


def load_kernel(path: Path, name: str = "") -> TileKernel:
    """The kernel `name` of the file at `path`; no name is needed where the file defines just one.

    Raises UsageError for a missing file or kernel; the message lists the kernels that are there.
    """
    return _kernel_of(load_module(path), path, name)


def _kernel_of(module: ModuleType, path: Path, name: str) -> TileKernel:
    kernels = {n: k for n, k in vars(module).items() if isinstance(k, TileKernel)}
    if not kernels:
        fix = "put @tile_kernel above a function in it, or name another file"
        raise UsageError(f"{path} defines no kernel\n  fix: {fix}")
    if not name and len(kernels) == 1:
        return next(iter(kernels.values()))
    if name not in kernels:
        found = f"there is no kernel {name!r} in {path}" if name else f"{path} defines several kernels"
        raise UsageError(f"{found}. It defines: {', '.join(kernels)}\n  fix: give one of these after the colon")
    return kernels[name]


def load_kernel_or_function(path: Path, name: str) -> TileKernel | Callable[..., None]:
    """What is called `name` in the file at `path`: a plain Python function, else as `load_kernel`."""
    module = load_module(path)
    found = vars(module).get(name)
    return found if isinstance(found, FunctionType) else _kernel_of(module, path, name)


def parse_consts(kernel: TileKernel, settings: list[str], *, complete: bool = True) -> dict[str, Any]:
    """``["T=32"]`` as ``{"T": 32}``, each value of the type that the kernel declares. complete: all consts without a
    default must be among them."""
    declared = {c.name: c for c in kernel.signature.consts}
    texts = _settings(kernel, "const", settings, [*declared])
    if complete:
        _require(kernel, "const", {name for name, const in declared.items() if const.default is REQUIRED} - {*texts})
    return {
        name: _const_value(kernel, f"--const {name}={text}", declared[name].type, text) for name, text in texts.items()
    }


def parse_dtypes(kernel: TileKernel, settings: list[str]) -> dict[str, str]:
    """``["A=f16"]`` as ``{"A": "f16"}``, by tensor or by dtype variable. None may stay open."""
    variables = kernel.signature.open_dtypes
    dtypes = _settings(kernel, "dtype", settings, [*variables])
    _require(kernel, "dtype", {*variables.values()} - {variables[name] for name in dtypes})
    return dtypes


def _settings(kernel: TileKernel, option: str, settings: list[str], known: list[str]) -> dict[str, str]:
    """``["T=32"]`` as ``{"T": "32"}``: settings of what is called `known`."""
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            example = "--const T=32" if option == "const" else "--dtype A=f16"
            raise UsageError(f"--{option} {setting}: expected NAME=VALUE\n  fix: write it as {example}")
        if name not in known:
            listed = ", ".join(known) or "none"
            fix = "name one of these" if known else f"leave --{option} out"
            message = f"--{option} {setting}: {kernel.name} has no open {option} {name!r}. It has: {listed}"
            raise UsageError(f"{message}\n  fix: {fix}")
        found[name] = text
    return found


def _require(kernel: TileKernel, option: str, missing: set[str]) -> None:
    for name in sorted(missing):
        raise UsageError(f"{option} {name} of {kernel.name} is not given\n  fix: give --{option} {name}=...")


def _const_value(kernel: TileKernel, setting: str, type_: Any, text: str) -> Any:
    choices = (True, False) if type_ is bool else get_args(type_) if get_origin(type_) is Literal else ()
    if choices:
        named = {str(value): value for value in choices}
        if text in named:
            return named[text]
        expected = f"one of {', '.join(named)}"
    elif type_ in (int, float, str):
        try:
            return type_(text)
        except ValueError:
            expected = f"an {type_.__name__}"
    elif get_origin(type_) is tuple:
        texts = [part.strip() for part in text.strip("()[] ").split(",")]
        parts = get_args(type_)
        try:
            if len(texts) == len(parts) and {*parts} <= {int, float, str}:
                return tuple(part(each) for part, each in zip(parts, texts, strict=True))
        except ValueError:
            pass
        expected = f"a {type_!r}, as 2,1"
    else:
        expected = f"a {type_!r}, which cannot be given on the command line"
    raise UsageError(
        f"{setting}: expected {expected}, got {text!r}\n  fix: call the kernel as {kernel.signature.usage}"
    )
