"""From a signature and a specialisation to a built kernel: cache, frontend, passes, backend."""

from __future__ import annotations

import gc
import hashlib
import threading
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Callable, TypeVar
from weakref import WeakSet

from tiledsl.arch import target_named
from tiledsl.boundary import stage
from tiledsl.compilation import fingerprint
from tiledsl.compilation.cache import WITHOUT, disk_cache, warn_once
from tiledsl.compilation.compiled import Compiled, Image
from tiledsl.compilation.lowering import WITHOUT_COLLECTOR, lower
from tiledsl.compilation.stages import label_of
from tiledsl.forks import in_child, whole
from tiledsl.meaning import Meaning, meaning_of_kernel
from tiledsl.recursion import deep_recursion
from tiledsl.signatures.signature import Signature, Specialization
from tiledsl.signatures.specialize import const_identity

if TYPE_CHECKING:
    from tiledsl.backends.emulator import Prepared
    from tiledsl.ir.core import Kernel

T = TypeVar("T")
Build = Callable[[Signature, Specialization, str, Meaning], T]
LIMIT = 512
"""Most builds of one kernel that are kept, so that a global that keeps changing does not fill the memory."""


def _collect() -> None:
    """Collects the garbage of this compilation, if Python's collector was enabled before."""
    if WITHOUT_COLLECTOR.before:
        gc.collect(0)


@dataclass(frozen=True)
class Lowered:
    """The thread-level kernel that the emulator runs, and the tensors that it may write."""

    kernel: Kernel
    written: tuple[str, ...]

    @cached_property
    def prepared(self) -> Prepared:
        """The form in which the emulator runs it many times."""
        from tiledsl.backends.emulator import Prepared

        return Prepared(self.kernel)


class Builds:
    """One kernel function and everything that this process built from it. Safe to use from several threads."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._known: dict[Any, Any] = {}
        self._meaning: Meaning | None = None
        self.lock = threading.RLock()
        in_child(self)

    def renew(self) -> None:
        self.lock = threading.RLock()

    def meaning(self) -> Meaning:
        """The kernel's meaning now: walked again when the guards of the last walk no longer hold."""
        with self.lock:
            if self._meaning is None or not self._meaning.holds():
                self._meaning = meaning_of_kernel(self.signature.fn)
            return self._meaning

    def compiled(self, spec: Specialization, arch: str) -> Compiled:
        """The build for `arch`: from memory, else from disk, else compiled."""
        return self._built(compile_kernel, spec, arch)

    def lowered(self, spec: Specialization, arch: str) -> Lowered:
        """The kernel for the emulator."""
        return self._built(lower_for_emulator, spec, arch)

    def known(self, spec: Specialization, arch: str) -> Compiled | None:
        """The build for `arch` if it is in memory."""
        return self._known.get(_key(compile_kernel, self.meaning(), spec, arch))

    def on_disk(self, spec: Specialization, arch: str) -> bool:
        """Is the build for `arch` in the disk cache?"""
        return load_kernel(self.signature, spec, arch, self.meaning()) is not None

    def adopt(self, spec: Specialization, arch: str, image: Image) -> None:
        """Use this build, which another process or machine made of the kernel as it is now."""
        with self.lock:
            meaning = self.meaning()
            made = Compiled(**vars(image), signature=self.signature, spec=spec, cached=True, meaning=meaning)
            self._known[_key(compile_kernel, meaning, spec, arch)] = made

    def _built(self, build: Build[T], spec: Specialization, arch: str) -> T:
        """The known result of `build` for the kernel's current meaning, else a new one."""

        def key_of(meaning: Meaning) -> Any:
            return _key(build, meaning, spec, arch)

        known = self._known
        with whole(), self.lock, WITHOUT_COLLECTOR.inside():
            meaning = self.meaning()
            key = key_of(meaning)
            if key in known:
                return known[key]
            made = build(self.signature, spec, arch, meaning)
            if isinstance(made, Compiled) and made.cached:  # from disk, without the user's code: the same meaning
                _collect()
            elif key_of(self.meaning()) != key:
                # Something that the kernel reads changed meanwhile. Build once more, but not again: compiling may be
                # what changes it, as with a helper that counts its calls.
                made = build(self.signature, spec, arch, self.meaning())
                key = key_of(self.meaning())
            if len(known) >= LIMIT:
                del known[next(iter(known))]
            return known.setdefault(key, made)


def _key(build: Any, meaning: Meaning, spec: Specialization, arch: str) -> Any:
    identities = tuple(const_identity(value) for _, value in spec.consts)
    return build, meaning.digest, spec.tensors, spec.index_bits, identities, arch


def lower_for_emulator(signature: Signature, spec: Specialization, arch: str, meaning: Meaning) -> Lowered:
    """The kernel for the emulator, with checks of bounds."""
    return Lowered(*lower(signature, spec, arch, bounds=True))


@deep_recursion()
def compile_kernel(signature: Signature, spec: Specialization, arch: str, meaning: Meaning) -> Compiled:
    """Build one specialisation for `arch`, or load it from the disk cache.

    Raises CompileErrors for errors in the kernel, AssemblerError, ToolNotFoundError, and CacheError for invalid
    settings of the cache. A cache that cannot be used is a warning.
    """
    target_named(arch)
    if (found := load_kernel(signature, spec, arch, meaning)) is not None:
        return found
    cache = disk_cache()
    parts = disk_parts(signature, spec, arch, meaning) if cache is not None else {}
    image = build(signature, spec, arch)
    # Not kept if something that the kernel reads, or a tool, changed during the compilation.
    if cache is not None and parts and parts == disk_parts(signature, spec, arch, meaning) and meaning.holds():
        note = {"name": signature.name, "label": label_of(signature.name, spec), "parts": parts}
        key = fingerprint.entry_key(parts)
        content = sealed(image, key)
        if unsealed(content, key, signature, spec, arch) is None:
            _warn_unkept(signature, "its cubin is not one that can be checked when it is loaded")
        else:
            cache.store(key, content, note)
    return Compiled(**vars(image), signature=signature, spec=spec, meaning=meaning)


def load_kernel(signature: Signature, spec: Specialization, arch: str, meaning: Meaning) -> Compiled | None:
    """The build from the disk cache, if it is there. Raises CacheError for invalid settings of the cache."""
    cache = disk_cache()
    parts = disk_parts(signature, spec, arch, meaning) if cache is not None else {}
    if cache is None or not parts:
        return None
    key = fingerprint.entry_key(parts)
    image = cache.read(key, lambda content: unsealed(content, key, signature, spec, arch))
    if image is None:
        return None
    return Compiled(**vars(image), signature=signature, spec=spec, cached=True, meaning=meaning)


def sealed(image: Image, key: str) -> bytes:
    """Return the bytes of an image for a file that is called `key`."""
    content = image.to_bytes()
    return _seal(key, content) + content


def _seal(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + content).digest()


def unsealed(content: bytes, key: str, signature: Signature, spec: Specialization, arch: str) -> Image | None:
    """Return the image that `sealed` wrote. None if it is not one of this specialization, or its code is not that of
    its PTX: whoever wrote that had a fault, however right a checksum is."""
    from tiledsl.backends.ptx.cubin import is_cubin_of

    size = len(_seal("", b""))
    rest = content[size:]
    image = Image.from_bytes(rest) if _seal(key, rest) == content[:size] else None
    if image is None or (image.name, image.arch) != (signature.name, arch):
        return None
    tensors = [(arg.name, arg.dtype) for arg in image.abi if arg.kind == "pointer"]
    named = {name for name, _ in tensors}
    fits = tensors == [(name, tensor.dtype) for name, tensor in spec.tensors if tensor is not None]
    known = named.issuperset((*image.written, *(each.tensor for each in image.tensor_maps)))
    return image if fits and known and is_cubin_of(image, image.block) else None


_WARNED: WeakSet[Any] = WeakSet()


def disk_parts(signature: Signature, spec: Specialization, arch: str, meaning: Meaning) -> fingerprint.Parts:
    """What the key in the disk cache is made of; nothing for a kernel that cannot be kept there, with one warning."""
    try:
        return fingerprint.entry_parts(signature, spec, arch, meaning)
    except fingerprint.UnknownTool as found:
        warn_once(f"{found}\n  fix: set TILEDSL_PTXAS to the program that it runs\n{WITHOUT}")
        return {}
    except fingerprint.NotUnderstood as found:
        _warn_unkept(signature, str(found))
        return {}


def _warn_unkept(signature: Signature, why: str) -> None:
    if signature.fn not in _WARNED:
        _WARNED.add(signature.fn)
        message = f"{signature.name}() is compiled again by each process: {why}"
        warnings.warn_explicit(message, RuntimeWarning, signature.loc.file, signature.loc.line)


def build(signature: Signature, spec: Specialization, arch: str, *, stamps: bool = False) -> Image:
    """Compile, whatever is cached. `stamps`: with stamps of the clock, for a run that is measured."""
    from tiledsl.backends import ptx
    from tiledsl.ir.ops.barriers import GridDependency

    def meanwhile() -> None:
        kernel.body.discard()
        _collect()

    with WITHOUT_COLLECTOR.inside():
        kernel, written = lower(signature, spec, arch, stamps=stamps)
        waits = any(isinstance(op, GridDependency) and op.wait for op in kernel.walk())
        with stage("the PTX backend", signature.name, signature.loc):
            binary = ptx.build(kernel, ptx.TARGETS[arch], meanwhile=meanwhile)
    return Image(
        **vars(binary), abi=kernel.abi, grid=tuple(map(str, kernel.grid)), threads=kernel.threads,
        shared_bytes=kernel.shared_bytes, written=written, cluster=kernel.cluster, tensor_maps=kernel.tensor_maps,
        dependent=waits,
    )  # fmt: skip
