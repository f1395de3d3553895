"""From a signature and a specialisation to a built kernel: cache, frontend, passes, backend."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from tiledsl.boundary import deep_recursion, stage
from tiledsl.compiled import Compiled, Image
from tiledsl.ir.types import GlobalType
from tiledsl.runtime.cache import disk_cache
from tiledsl.signature import Signature, Specialization
from tiledsl.specialize import const_identity

if TYPE_CHECKING:
    from tiledsl.ir.core import Kernel

__all__ = ["Program", "compile_kernel", "lower", "written_tensors"]

Observer = Callable[[str, "Kernel"], None]


class _Collector:
    """Python's garbage collector, and how many compilations want it off.

    The IR is a web of live objects in cycles: looking through it again and again finds nothing, and takes as long as
    the passes do. It is on again when the last of those that compile at once has ended, if it was on before the first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiling = 0
        self._was_on = False

    @contextmanager
    def off(self) -> Generator[None]:
        with self._lock:
            if self._compiling == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._compiling += 1
        try:
            yield
        finally:
            with self._lock:
                self._compiling -= 1
                if self._compiling == 0 and self._was_on:
                    gc.enable()

    def collect(self) -> None:
        """Take away what this compilation has left behind, if the collector would do so as soon as it is on again."""
        if self._was_on:
            gc.collect(0)


_COLLECTOR = _Collector()


class Program:
    """One kernel function and all that was built of it in this process. Safe to use from several threads."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._compiled: dict[Any, Compiled] = {}
        self._lowered: dict[Any, tuple[Kernel, frozenset[str]]] = {}
        self._lock = threading.RLock()

    def compiled(self, spec: Specialization, arch: str) -> Compiled:
        """Built for `arch`: from memory, else from disk, else compiled."""
        key = _identity(spec, arch)
        with self._lock:
            if key not in self._compiled:
                self._compiled[key] = compile_kernel(self.signature, spec, arch)
            return self._compiled[key]

    def lowered(self, spec: Specialization, arch: str) -> tuple[Kernel, frozenset[str]]:
        """The thread-level kernel that the emulator runs, and the tensors that it may write."""
        key = _identity(spec, arch)
        with self._lock:
            if key not in self._lowered:
                self._lowered[key] = lower(self.signature, spec, arch)
            return self._lowered[key]


def _identity(spec: Specialization, arch: str) -> Any:
    return spec, arch, tuple(const_identity(value) for _, value in spec.consts)


@deep_recursion()
def compile_kernel(signature: Signature, spec: Specialization, arch: str) -> Compiled:
    """Build one specialisation for `arch`, or take it from the disk cache.

    Raises CompileErrors for what is wrong in the kernel, AssemblerError, ToolNotFoundError, CacheError.
    """
    from tiledsl.backends.ptx.targets import target_named

    target_named(arch)
    cache = disk_cache()
    key = _key(signature, spec, arch) if cache is not None else ""
    if cache is not None and key:
        entry = cache.load(key)
        if entry is not None:
            return Compiled(signature, spec, Image.from_entry(entry), cached=True)
    image = _build(signature, spec, arch)
    if cache is not None and key:
        cache.store(key, image.to_entry())
    return Compiled(signature, spec, image)


def _key(signature: Signature, spec: Specialization, arch: str) -> str:
    """The key in the disk cache; "" for a kernel that uses a value without a readable content."""
    import hashlib

    from tiledsl.runtime import fingerprint

    try:
        parts = fingerprint.kernel_key(signature), fingerprint.specialization_key(spec, arch)
    except fingerprint.Unhashable:
        return ""
    return hashlib.sha256(b"".join((*parts, fingerprint.compiler_key()))).hexdigest()


def _build(signature: Signature, spec: Specialization, arch: str) -> Image:
    from tiledsl.backends import ptx

    started = time.perf_counter()
    with _COLLECTOR.off():
        kernel, written, timings = _lower(signature, spec, arch, None)
        lowered = time.perf_counter()
        with stage("the PTX backend", signature.name, signature.loc):
            binary = ptx.build(kernel, ptx.TARGETS[arch], meanwhile=_COLLECTOR.collect)
    timings |= {"backend": time.perf_counter() - lowered, "total": time.perf_counter() - started}
    return Image(
        kernel.name, arch, kernel.abi, kernel.grid, kernel.threads, kernel.shared_bytes, written,
        binary.resources, binary.llvm, binary.ptx, binary.cubin, timings,
        kernel.cluster, kernel.tensor_maps, _waits_for_grid(kernel),
    )  # fmt: skip


def _waits_for_grid(kernel: Kernel) -> bool:
    """True if the kernel waits by itself until the grid before it in its stream has ended."""
    from tiledsl.ir.ops.barriers import GridDependency

    return any(isinstance(op, GridDependency) and op.wait for op in kernel.walk())


def lower(
    signature: Signature, spec: Specialization, arch: str, *, observe: Observer | None = None
) -> tuple[Kernel, frozenset[str]]:
    """The thread-level kernel and the tensors it writes. `observe` gets the IR at each stage, by name."""
    with _COLLECTOR.off(), deep_recursion():
        kernel, written, _ = _lower(signature, spec, arch, observe)
    return kernel, written


def _lower(
    signature: Signature, spec: Specialization, arch: str, observe: Observer | None
) -> tuple[Kernel, frozenset[str], dict[str, float]]:
    from tiledsl import frontend
    from tiledsl.backends.ptx.targets import target_named
    from tiledsl.passes.pipeline import run_pipeline

    started = time.perf_counter()
    run = partial(run_pipeline, shared_limit=target_named(arch).shared_per_block, target=arch)
    with stage("the frontend", signature.name, signature.loc):
        kernel = frontend.build(signature, spec, arch)
    built = time.perf_counter()
    written = written_tensors(kernel)
    if observe is None:
        kernel = run(kernel)
    else:
        show = observe
        show("tile", kernel)
        kernel = run(kernel, observe=lambda name, k: show(f"after:{name}", k))
        show("thread", kernel)
    return kernel, written, {"frontend": built - started, "passes": time.perf_counter() - built}


def written_tensors(kernel: Kernel) -> frozenset[str]:
    """Names of the tensors that a tile-level kernel may write. What a copy reads is not written."""
    from tiledsl.passes.pipeline_body import accesses

    tensors = {arg: arg.name for arg in kernel.body.args if isinstance(arg.type, GlobalType)}
    return frozenset(
        tensors[memory] for op in kernel.walk() for memory, writes in accesses(op) if writes and memory in tensors
    )
