"""Find a kernel in a file, and read its const parameters and dtypes from texts."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from types import FunctionType, ModuleType
from typing import Any, Literal, get_args, get_origin

from tiledsl.errors import TileError
from tiledsl.ir.types import DTYPES
from tiledsl.kernel import TileKernel
from tiledsl.signatures.signature import REQUIRED


def load_module(path: Path) -> ModuleType:
    """Run the Python file at `path` as a module, with its folder importable.

    The folder comes last: a file called json.py must not stand in for the library of that name, neither for us nor for
    the libraries that we import. What the file raises becomes a TileError at its line.
    """
    fix = "give FILE:KERNEL, for example examples/gemm/naive.py:naive"
    if path.is_dir():
        raise TileError(f"{path} is a folder; expected a Python file\n  fix: {fix}")
    if not path.is_file():
        raise TileError(f"no such file: {path}\n  fix: {fix}")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(_free_name(path), path.resolve())
    if spec is None or spec.loader is None:
        raise TileError(
            f"cannot load {path}: expected a Python file (.py)\n  fix: name the file that defines the kernel"
        )
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


def _free_name(path: Path) -> str:
    """The file's own name, unless a library has it."""
    name = path.stem
    try:
        found = importlib.util.find_spec(name) if name.isidentifier() else None
        taken = found is not None and found.origin != str(path.resolve())
    except (ImportError, ValueError):
        taken = True
    return f"_file_{name}" if taken or name in sys.stdlib_module_names or not name.isidentifier() else name


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

    Raises TileError for a missing file or kernel; the message lists the kernels that are there.
    """
    return _kernel_of(load_module(path), path, name)


def _kernel_of(module: ModuleType, path: Path, name: str) -> TileKernel:
    kernels = {n: k for n, k in vars(module).items() if isinstance(k, TileKernel)}
    if not kernels:
        raise TileError(
            f"{path} defines no kernel\n  fix: put @tile_kernel above a function in it, or name another file"
        )
    listed = ", ".join(kernels)
    if not name:
        if len(kernels) > 1:
            raise TileError(
                f"{path} defines several kernels: {listed}\n  fix: say which, as {path}:{next(iter(kernels))}"
            )
        return next(iter(kernels.values()))
    if name not in kernels:
        raise TileError(f"no kernel {name!r} in {path}. It defines: {listed}\n  fix: give one of these after the colon")
    return kernels[name]


def load_kernel_or_function(path: Path, name: str) -> TileKernel | Callable[..., None]:
    """What is called `name` in the file at `path`: a plain Python function, else as `load_kernel`."""
    module = load_module(path)
    found = vars(module).get(name)
    return found if isinstance(found, FunctionType) else _kernel_of(module, path, name)


def parse_consts(kernel: TileKernel, settings: list[str]) -> dict[str, Any]:
    """``["T=32"]`` as ``{"T": 32}``, each value of the type that the kernel declares."""
    declared = {c.name: c for c in kernel.signature.consts}
    consts: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise TileError(f"--const {setting}: expected NAME=VALUE, for example --const T=32")
        if name not in declared:
            known = ", ".join(declared) or "none"
            raise TileError(f"--const {setting}: {kernel.signature.name} has no const {name!r}. It has: {known}")
        consts[name] = _const_value(setting, declared[name].type, text)
    missing = [name for name, const in declared.items() if const.default is REQUIRED and name not in consts]
    if missing:
        raise TileError(
            f"const {missing[0]} of {kernel.signature.name} has no default\n  fix: give --const {missing[0]}=..."
        )
    return consts


def parse_dtypes(kernel: TileKernel, settings: list[str]) -> dict[str, str]:
    """``["A=f16"]`` as ``{"A": "f16"}``, by tensor or by dtype variable. None may stay open."""
    signature = kernel.signature
    variables = {v: v for v in signature.dtype_variables}
    variables |= {p.name: p.dtype for p in signature.tensors if isinstance(p.dtype, str)}
    dtypes: dict[str, str] = {}
    for setting in settings:
        name, equals, dtype = setting.partition("=")
        if not equals or dtype not in DTYPES:
            raise TileError(f"--dtype {setting}: expected NAME=DTYPE with one of {', '.join(DTYPES)}")
        if name not in variables:
            known = ", ".join(variables) or "none"
            raise TileError(f"--dtype {setting}: no dtype of {signature.name} is open under that name. Open: {known}")
        dtypes[name] = dtype
    given = {variables[name] for name in dtypes}
    for variable in signature.dtype_variables:
        if variable not in given:
            raise TileError(
                f"the dtype variable {variable} of {signature.name} is open\n  fix: give --dtype {variable}=f32"
            )
    return dtypes


def _const_value(setting: str, type_: Any, text: str) -> Any:
    if type_ is bool:
        if text not in ("True", "False"):
            raise TileError(f"--const {setting}: expected True or False, got {text!r}")
        return text == "True"
    if type_ in (int, float, str):
        try:
            return type_(text)
        except ValueError:
            raise TileError(f"--const {setting}: expected an {type_.__name__}, got {text!r}") from None
    if get_origin(type_) is Literal:
        named = {str(value): value for value in get_args(type_)}
        if text not in named:
            raise TileError(f"--const {setting}: expected one of {', '.join(named)}, got {text!r}")
        return named[text]
    raise TileError(f"--const {setting}: a const of type {type_!r} cannot be given on the command line")
