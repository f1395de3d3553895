"""`@tile_kernel`: a Python function becomes a kernel that is called like a function.

A call goes: launcher (a torch launch seen before ends there) -> dispatch (checks, plans, specialisation) ->
compiler (cache, frontend, passes, backend) -> driver or emulator.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Mapping, overload

from tiledsl.arch import EMULATED_ARCH, target_named
from tiledsl.compilation.compiled import Compiled
from tiledsl.compilation.compiler import Builds
from tiledsl.compilation.stages import Unassembled
from tiledsl.errors import CompileError, TileError, from_outside, short_traceback
from tiledsl.function import ByReference, caller_line, require_function
from tiledsl.ir.types import DTYPES, INDEX, DType
from tiledsl.measure import Timing, Verification, time_kernel, verify
from tiledsl.runtime import gpu_arch
from tiledsl.runtime.dispatch import Arguments, Dispatcher
from tiledsl.signatures.annotations import read_signature
from tiledsl.signatures.signature import Signature, Specialization
from tiledsl.signatures.specialize import argument_error, assumed, check_consts
from tiledsl.verdict import Asked, CheckResult, OneKernel, checked


class TileKernel(ByReference):
    """A kernel. Call it with arrays and scalars, and with consts by keyword.

    NumPy arrays run on the GPU if there is one, else on the emulator (``device="emulator"`` asks for
    it); CUDA arrays of any library are used in place, on its current stream. Results are written into
    the arrays. Like a Python function, a kernel uses the current values of its names: if one has changed, the kernel is
    compiled again (docs/caching.md). For torch, a call is a write in place without a gradient: the versions of written
    tensors are incremented, and a tensor that requires a gradient is refused unless gradients are off. A copy of a
    kernel is the kernel itself, and it is pickled by its name, as functions are.
    """

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.builds = Builds(signature)
        self.dispatcher = Dispatcher(self.builds)
        self._launch, self._bind = self.dispatcher.launcher.launch, self.dispatcher.launcher.bind
        functools.update_wrapper(self, signature.fn)

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def fn(self) -> Callable[..., Any]:
        """The Python function."""
        return self.signature.fn

    def __call__(self, /, *args: Any, **kwargs: Any) -> None:
        """Run the kernel. Raises KernelArgumentError, CompileErrors, DeviceError, EmulatorError."""
        try:
            self._launch(args, kwargs)
        except TileError as error:
            __tracebackhide__ = True  # for pytest and IPython
            raise from_outside(error)  # noqa: B904 - the error itself

    # -- asking ------------------------------------------------------------------------------------------

    # A kernel's parameter may have the name of an option below; that name is then the kernel's. So positional arguments
    # of these methods, `self` included, have no names.

    @short_traceback
    def compile(self, target: str | None = None, /, **settings: Any) -> Compiled:
        """Build without arguments: row-major, 16-byte aligned, 32-bit-safe sizes, optional tensors present.

        target, or ``arch=``: by default that of the GPU here, else sm_90a. settings: consts, and the dtypes
        of a generic kernel by type variable (``T=f16``) or by tensor (``A=f16``).
        """
        if "arch" not in self._names:
            target = settings.pop("arch", target)
        return self.builds.compiled(*self.specialized(target, settings))

    @short_traceback
    def lower(self, target: str | None = None, /, **settings: Any) -> Unassembled:
        """`compile` up to the PTX: IR and reports need no tool, LLVM IR and PTX llvmlite, and none of them ptxas."""
        if "arch" not in self._names:
            target = settings.pop("arch", target)
        spec, arch = self.specialized(target, settings)
        target_named(arch)
        return Unassembled(arch=arch, signature=self.signature, spec=spec, meaning=self.builds.meaning())

    def specialized(self, target: str | None, settings: Mapping[str, Any]) -> tuple[Specialization, str]:
        """The specialisation that `compile` builds for these settings, and its target."""
        if target is not None and not isinstance(target, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            message = f"the target is a {type(target).__name__}; expected its name, as 'sm_90a'"
            raise argument_error(self.signature, message, "pass arch='sm_90a', or leave it out")
        variables = self.signature.open_dtypes
        for const in self.signature.consts:
            variables.pop(const.name, None)
        given = {name: value for name, value in settings.items() if name not in variables}
        consts = check_consts(self.signature, given)
        dtypes: dict[str, DType] = {}
        for name in filter(variables.__contains__, settings):
            dtype, variable = self._dtype(name, settings[name]), variables[name]
            if dtypes.setdefault(variable, dtype) != dtype:
                message = f"{variable} is both {dtypes[variable]} and {dtype}"
                raise argument_error(self.signature, message, "give each type variable one dtype", code="C802")
        return assumed(self.signature, dtypes, consts), target or self.signature.arch or gpu_arch() or EMULATED_ARCH

    def _dtype(self, name: str, value: Any) -> DType:
        dtype = DTYPES.get(value) if isinstance(value, str) else getattr(value, "ir", value)
        if not isinstance(dtype, DType) or dtype == INDEX:
            fix = f"pass one of {', '.join(t for t in DTYPES if t != 'index')}"
            raise argument_error(self.signature, f"{name} is {value!r}; expected a dtype", fix, code="C802")
        return dtype

    @short_traceback
    def explain(self, what: str, target: str | None = None, /, **settings: Any) -> object:
        """``lower(target, **settings).explain(what)``; "banks", for example. "sass": of `compile`. Print the result."""
        ask = self.compile if what == "sass" else self.lower
        return ask(target, **settings).explain(what)

    @property
    def _names(self) -> frozenset[str]:
        """Names of the parameters and consts."""
        return frozenset(p.name for p in (*self.signature.params, *self.signature.consts))

    def _options(self, kwargs: dict[str, Any], *names: str) -> dict[str, Any]:
        """Take a method's options out of the keywords of its call, except those that are the kernel's arguments."""
        return {name: kwargs.pop(name) for name in names if name in kwargs and name not in self._names}

    @short_traceback
    def verify(self, reference: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Verification:
        """Run the kernel and ``reference(*args)`` on copies of the arguments and compare each element.

        Options by name: ``bound=0.0``, ``exact=False`` and ``device=None``.

        The reference writes into its arrays or returns what the written tensors should hold (in the
        order of the signature). An element is right if ``|out - ref| <= u |ref| + bound + tiny``: u is
        half an ulp of 1 in the output's dtype, tiny its smallest subnormal, `bound` a number or an array
        (`measure.gemm_bound` gives that of a product). `exact`: equal to the reference rounded to the
        output's dtype instead.
        """
        options = self._options(kwargs, "bound", "exact", "device")
        return verify(self.dispatcher, reference, self._bind(args, kwargs), **options)

    @short_traceback
    def time(self, /, *args: Any, **kwargs: Any) -> Timing:
        """Seconds of the kernel alone: median, least and most of ``repeat=20`` runs after a warm-up.

        Measured with CUDA events on a GPU, to which host arrays are copied once, or with the clock on the emulator.
        Every run writes to the arguments.
        """
        options = self._options(kwargs, "repeat", "device")
        return time_kernel(self.dispatcher, self._bind(args, kwargs), **options)

    def trace(self, block: int | tuple[int, ...] = 0, thread: int | tuple[int, ...] = 0) -> Callable[..., Any]:
        """``k.trace(block=(0, 0), thread=(3, 1))(A, B, C)``: run on the emulator and return that thread's trace."""

        @short_traceback
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._emulated(args, kwargs, trace=(block, thread)).trace

        return run

    @short_traceback
    def check(self, /, *args: Any, **kwargs: Any) -> CheckResult:
        """Run with the emulator's checks. Raises HazardError for a race, a read of memory that was never written or
        was last written through another tile, and a use of data that an asynchronous copy has not delivered.

        Options by name: ``seed=0``, of the order in which warps take turns (0 is the usual one); ``seeds=1``: run under
        the seeds from 0 on, each time on the same inputs; ``raises=True``: else the result says what was found, all of
        it; ``checks=``, ``without=``: names of `findings.CHECKS` or codes, which checks are on; ``baseline=``: a file
        of findings that are accepted; ``algebra=``: a function of the arguments, whose results those of the kernel are
        compared with on integers modulo a prime, in place of floats; the arrays are not written then;
        ``unwritten="C"``: names of arrays that hold nothing yet; ``processors=132``: SMs of the GPU, which limit how
        many blocks can wait for each other (default: those of an H200, or 8 for a grid that depends on them).

        A GPU hides these bugs, and so does a plain run on the emulator. Results are written as by a call.
        """
        names = "seed", "seeds", "raises", "checks", "without", "baseline", "algebra", "unwritten", "processors"
        tensors = [tensor.name for tensor in self.signature.tensors]
        asked = Asked.of(self.signature, [self.name], tensors, **self._options(kwargs, *names))
        return checked(OneKernel(self.dispatcher, self.on_host(args, kwargs), asked.algebra), asked)

    def _emulated(self, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> Any:
        """Run on the emulator with these `Options`. Returns its RunResult."""
        from tiledsl.backends.emulator import Options

        return self.dispatcher.emulate(self.on_host(args, kwargs), Options(**options))[1]

    def on_host(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Arguments:
        """The arguments of a call, for the emulator."""
        arguments = self.dispatcher.arguments(self._bind(args, kwargs), "emulator")
        self.dispatcher.place(arguments)
        return arguments

    def __repr__(self) -> str:
        return f"<tile_kernel {self.signature.usage} at {self.signature.loc.file}:{self.signature.loc.line}>"


@overload
def tile_kernel(fn: Callable[..., Any], /) -> TileKernel: ...
@overload
def tile_kernel(*, arch: str = "") -> Callable[[Callable[..., Any]], TileKernel]: ...
def tile_kernel(fn: Any = None, /, *, arch: str = "") -> Any:
    """Make a kernel of a function: ``@tile_kernel`` or ``@tile_kernel(arch="sm_90a")``.

    Reads the annotations. Raises CompileErrors for errors in them, at the line of the parameter.
    """
    # Annotations that are kept as text may use names of an enclosing function.
    here = inspect.currentframe()
    caller = here.f_back if here is not None else None
    names = dict(caller.f_locals) if caller is not None and caller.f_locals is not caller.f_globals else {}
    loc = caller_line()
    if arch != "":
        target_named(arch, loc)
        if fn is not None:
            message = "expected either a function or arch=, got both"
            raise CompileError(message, loc, f"write @tile_kernel(arch={arch!r}) above the def", code="C101")

    @short_traceback
    def decorate(function: Any) -> TileKernel:
        require_function(function, "tile_kernel", loc)
        return TileKernel(read_signature(function, arch, names))

    return decorate if fn is None else decorate(fn)
