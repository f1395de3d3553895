"""Compiles LLVM IR for this machine's CPU, some milliseconds a function. The rest of tiledsl works without llvmlite.

A fork waits until no other thread compiles, since locks that it holds would stay locked in the child.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Callable

from tiledsl.forks import whole

if TYPE_CHECKING:
    from numpy.typing import NDArray


@cache
@whole()
def available() -> bool:
    """Is llvmlite here?"""
    try:
        import_module("llvmlite.binding")
    except ImportError:
        return False
    return True


@cache
@whole()
def compiled(source: str, arguments: int) -> Callable[..., int]:
    """The function `run` of an LLVM IR module; all its parameters are pointers or i64."""
    llvm: Any = import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host = {"cpu": llvm.get_host_cpu_name(), "features": llvm.get_host_cpu_features().flatten()}
    machine = llvm.Target.from_default_triple().create_target_machine(**host, opt=3)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(source), machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * arguments)(engine.get_function_address("run"))
    _ENGINES.append(engine)
    return function


_ENGINES: list[Any] = []
"""Keeps compiled code alive."""


def splat(name: str, type_: str, value: str, lanes: int) -> str:
    """Defines the vector ``%name`` with `value` in every place."""
    vector = f"<{lanes} x {type_}>"
    return f"""
  %{name}.one = insertelement {vector} poison, {type_} {value}, i32 0
  %{name} = shufflevector {vector} %{name}.one, {vector} poison, <{lanes} x i32> zeroinitializer"""


def address_of(array: NDArray[Any]) -> int:
    """As an argument of a compiled function."""
    return array.ctypes.data
