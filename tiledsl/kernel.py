"""`@tile_kernel`: a Python function becomes a kernel that is called like a function.

A call goes: launcher (a torch launch seen before ends there) -> dispatch (checks, specialisation) ->
compiler (cache, frontend, passes, backend) -> driver or emulator.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, Mapping, cast, overload

from tiledsl.annotations import read_signature
from tiledsl.compiled import Compiled
from tiledsl.compiler import Program
from tiledsl.errors import KernelArgumentError, TileError
from tiledsl.function import TileFunction, tile_function
from tiledsl.ir.types import DTYPES, INDEX, DType
from tiledsl.measure import Timing, Verification
from tiledsl.runtime.dispatch import EMULATED_ARCH, Dispatcher
from tiledsl.signature import GlobalParam, Signature
from tiledsl.specialize import argument_error, assumed, check_consts

if TYPE_CHECKING:
    from tiledsl.explain import Report

__all__ = ["TileFunction", "TileKernel", "tile_function", "tile_kernel"]


class TileKernel:
    """A kernel. Call it with arrays and scalars, and with consts by keyword.

    NumPy arrays run on the GPU if there is one, else on the emulator (``device="emulator"`` asks for
    it); CUDA arrays of any library are used in place, on its current stream. Results are written into
    the arrays. A kernel sees what its names mean now, like a Python function: what has changed since it was
    compiled is compiled anew (docs/caching.md).
    """

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.program = Program(signature)
        self.dispatcher = Dispatcher(self.program)
        self._launcher = self.dispatcher.launcher
        functools.update_wrapper(self, signature.fn)

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def fn(self) -> Callable[..., Any]:
        """The Python function."""
        return self.signature.fn

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the kernel. Raises KernelArgumentError, CompileErrors, DeviceError, EmulatorError."""
        try:
            self._launcher.launch(*args, **kwargs)
        except TypeError:
            given = {name: value for name, value in kwargs.items() if name != "device"}
            try:
                self._bind(args, given)  # says what is wrong with the call, if that is what it was
            except KernelArgumentError as wrong:
                raise wrong from None
            raise

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments and consts by name, MISSING where none was given. Raises KernelArgumentError."""
        signature = self.signature
        fix = f"call it as {signature.usage}"
        ordinary = [p.name for p in signature.params if not p.keyword]
        if len(args) > len(ordinary):
            message = f"{len(args)} arguments by position; it takes {len(ordinary)} ({', '.join(ordinary)})"
            raise argument_error(signature, message, fix)
        known = {p.name for p in signature.params} | {c.name for c in signature.consts}
        for name in kwargs:
            if name not in known:
                consts = ", ".join(c.name for c in signature.consts) or "none"
                raise argument_error(signature, f"unknown argument or const {name}; its consts: {consts}", fix)
            if name in ordinary[: len(args)]:
                raise argument_error(signature, f"{name} is given twice, by position and by name", fix)
        given = {**dict(zip(ordinary, args, strict=False)), **kwargs}
        return self.dispatcher.launcher.with_defaults(given)

    # -- asking ------------------------------------------------------------------------------------------

    def compile(self, arch: str | None = None, **settings: Any) -> Compiled:
        """Build without arguments: row-major, 16-byte aligned, 32-bit-safe sizes, optional tensors present.

        arch: a target, by default that of the GPU here, else sm_90a. settings: consts, and the dtypes
        of a generic kernel by type variable (``T=f16``) or by tensor (``A=f16``).
        """
        dtypes = {name: settings.pop(name) for name in self._dtype_names() & settings.keys()}
        consts = check_consts(self.signature, settings)
        spec = assumed(self.signature, self._variables(dtypes), consts)
        return self.program.compiled(spec, arch or self.signature.arch or self._gpu_arch() or EMULATED_ARCH)

    def explain(self, what: str, arch: str | None = None, **settings: Any) -> Report:
        """``compile(arch, **settings).explain(what)``: "banks" for shared memory, ...; print it."""
        return self.compile(arch, **settings).explain(what)

    def _gpu_arch(self) -> str:
        from tiledsl.runtime import gpu_arch

        return gpu_arch()

    def _dtype_names(self) -> set[str]:
        generic = {p.name for p in self.signature.tensors if isinstance(p.dtype, str)}
        consts = {c.name for c in self.signature.consts}
        return (generic | set(self.signature.dtype_variables)) - consts

    def _variables(self, given: Mapping[str, Any]) -> dict[str, DType]:
        """dtypes by type variable, from settings that name variables or tensors."""
        tensors: dict[str, GlobalParam] = {p.name: p for p in self.signature.tensors}
        found: dict[str, DType] = {}
        for name, value in given.items():
            dtype = DTYPES.get(value) if isinstance(value, str) else getattr(value, "ir", value)
            if not isinstance(dtype, DType) or dtype == INDEX:
                fix = f"pass one of {', '.join(t for t in DTYPES if t != 'index')}"
                raise argument_error(self.signature, f"{name} is {value!r}; expected a dtype", fix)
            variable = name if name in self.signature.dtype_variables else str(tensors[name].dtype)
            if found.setdefault(variable, dtype) != dtype:
                message = f"{variable} is both {found[variable]} and {dtype}"
                raise argument_error(self.signature, message, "give each type variable one dtype")
        return found

    def verify(
        self,
        reference: Callable[..., Any],
        *args: Any,
        bound: Any = 0.0,
        exact: bool = False,
        device: str | None = None,
        **kwargs: Any,
    ) -> Verification:
        """Run the kernel and ``reference(*args)`` on copies of the arguments and compare each element.

        The reference writes into its arrays or returns what the written tensors should hold (in the
        order of the signature). An element is right if ``|out - ref| <= u |ref| + bound + tiny``: u is
        half an ulp of 1 in the output's dtype, tiny its smallest subnormal, `bound` a number or an array
        (`measure.gemm_bound` gives that of a product). `exact`: equal to the reference rounded to the
        output's dtype instead.
        """
        from tiledsl.measure import verify

        return verify(self, reference, self._bind(args, kwargs), bound=bound, exact=exact, device=device)

    def time(self, *args: Any, repeat: int = 20, device: str | None = None, **kwargs: Any) -> Timing:
        """Seconds of the kernel alone: median, least and most of `repeat` runs after a first one.

        By CUDA events on a GPU, where host arrays are copied there once; by the clock on the emulator.
        The arguments are written to, once a run.
        """
        from tiledsl.measure import time_kernel

        return time_kernel(self, self._bind(args, kwargs), repeat=repeat, device=device)

    def trace(self, block: int | tuple[int, ...] = 0, thread: int | tuple[int, ...] = 0) -> Callable[..., Any]:
        """``k.trace(block=(0, 0), thread=(3, 1))(A, B, C)``: run on the emulator and give that thread's trace."""

        def run(*args: Any, **kwargs: Any) -> Any:
            return self._emulated(args, kwargs, trace=(block, thread)).trace

        return run

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Run on the emulator with its checks: a race, a read of what was never written or a use of what an
        asynchronous copy has not delivered yet is a HazardError.

        A GPU hides these bugs, and so does a plain run on the emulator. Results are written as by a call.
        """
        self._emulated(args, kwargs, checks=True)

    def _emulated(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], **options: Any) -> Any:
        """Run on the emulator under these of its `Options`; its RunResult."""
        from tiledsl.backends.emulator import Options

        arguments = self.dispatcher.arguments(self._bind(args, kwargs))
        self.dispatcher.place(arguments, "emulator")
        return self.dispatcher.emulate(arguments, Options(**options))

    def __repr__(self) -> str:
        return f"<tile_kernel {self.signature.usage} at {self.signature.loc.file}:{self.signature.loc.line}>"


@overload
def tile_kernel(fn: Callable[..., Any], /) -> TileKernel: ...
@overload
def tile_kernel(*, arch: str = "") -> Callable[[Callable[..., Any]], TileKernel]: ...
def tile_kernel(fn: Callable[..., Any] | None = None, /, *, arch: str = "") -> Any:
    """Make a kernel of a function: ``@tile_kernel`` or ``@tile_kernel(arch="sm_90a")``.

    The annotations are read here: CompileErrors for what they get wrong, at the parameter's line.
    """
    # The names of an enclosing function, which annotations kept as text may use.
    here = inspect.currentframe()
    caller = here.f_back if here is not None else None
    names = dict(caller.f_locals) if caller is not None and caller.f_locals is not caller.f_globals else {}
    if fn is not None:
        return _make(fn, "", names)
    if arch:
        from tiledsl.backends.ptx.targets import target_named

        target_named(arch)

    def decorate(function: Callable[..., Any]) -> TileKernel:
        return _make(function, arch, names)

    return decorate


def _make(fn: Any, arch: str, names: Mapping[str, Any]) -> TileKernel:
    if isinstance(fn, (TileFunction, TileKernel)):
        name = cast(TileKernel, fn).name
        raise TileError(f"{name} is already a {type(cast(object, fn)).__name__}\n  fix: decorate a function once")
    if not inspect.isfunction(fn):
        raise TileError(f"@tile_kernel takes a function, got a {type(fn).__name__}\n  fix: put it above a def")
    return TileKernel(read_signature(fn, arch, names))
