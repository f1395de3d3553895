"""The key of a compiled kernel on disk: a hash of everything that its code depends on.

That is the kernel's meaning (`tiledsl.meaning`: its source and everything that it reaches), the specialisation, the
target, the compiler's own sources, Python, and the content of the tools. The IR is not part of it, so that a lookup
does not run the compiler.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from tiledsl.errors import CompileError
from tiledsl.meaning import Meaning, meaning_of
from tiledsl.meaning.walk import Walk
from tiledsl.signatures.signature import Signature, Specialization
from tiledsl.signatures.source import checked_source


class NotUnderstood(Exception):  # noqa: N818 - not an error: the kernel is compiled without the disk cache
    """The kernel depends on something that cannot be hashed. The message says what, and why."""


class UnknownTool(NotUnderstood):
    """The reason why no kernel can be kept: what compiles them cannot be hashed."""


Parts = dict[str, str]
"""What an entry depends on, by name: what can be read as it is, all else as a digest. The key is the digest of all."""


def entry_parts(signature: Signature, spec: Specialization, arch: str, meaning: Meaning) -> Parts:
    """Raises NotUnderstood."""
    return {**_kernel_parts(signature, meaning), **_specialization_parts(spec, arch), **_compiler_parts()}


def entry_key(parts: Parts) -> str:
    """The name of an entry."""
    return _digest(parts).hex()


def kernel_key(signature: Signature, meaning: Meaning) -> bytes:
    """Hash of the kernel's parameters, its source, and everything that it reaches. Raises NotUnderstood."""
    return _digest(_kernel_parts(signature, meaning))


def specialization_key(spec: Specialization, arch: str) -> bytes:
    """Hash of a specialisation, with its consts, and of the target. Raises NotUnderstood."""
    return _digest(_specialization_parts(spec, arch))


def _digest(parts: Parts) -> bytes:
    return hashlib.sha256(json.dumps([*parts.items()]).encode()).digest()


def _kernel_parts(signature: Signature, meaning: Meaning) -> Parts:
    walk = Walk()
    walk.add("signature", repr((signature.params, signature.arch)))
    for const in signature.consts:
        walk.add("const", f"{const.name}: {const.type!r}")
    place = text = ""
    with suppress(CompileError):  # the meaning has this, too, and what is wrong with it
        source = checked_source(signature.fn)
        place, text = f"{source.file}:{source.line}", hashlib.sha256(source.text.encode("utf-8", "replace")).hexdigest()
    parameters, reads = walk.digest.hex(), _understood(meaning).hex()
    return {"place": place, "parameters": parameters, "source": text, "source, and what it reads": reads}


def _specialization_parts(spec: Specialization, arch: str) -> Parts:
    walk = Walk()
    for name, value in spec.consts:
        walk.add("const", name)
        walk.add(type(value).__name__, _understood(meaning_of(value), f"the const {name}: ").hex())
    shown = ", ".join(f"{name}={value!r}" for name, value in spec.consts if isinstance(value, (bool, int, float, str)))
    tensors = ", ".join(f"{name}: {tensor}" for name, tensor in spec.tensors)
    arguments = f"{tensors}; {spec.index_bits}-bit indices"
    return {"arguments": arguments, "consts": shown, "values of consts": walk.digest.hex(), "target": arch}


def _understood(meaning: Meaning, what: str = "") -> bytes:
    if meaning.reasons:
        raise NotUnderstood(what + meaning.reasons[0])
    return meaning.digest


def _compiler_parts() -> Parts:
    """Return the sources of tiledsl, this build of Python, and the backend's tools. Raises UnknownTool."""
    from tiledsl.backends.ptx.tools import PTXAS, tool_versions

    if not PTXAS.content():
        why = "is not an ELF executable, so what it does may change while the file does not"
        raise UnknownTool(f"{PTXAS.path()} {why}")
    python = sys.implementation.cache_tag, sys.version, sys.platform, sys.flags.optimize
    return {"Python": repr(python), **dict(tool_versions()), "sources of tiledsl": sources_key().hex()}


@lru_cache(maxsize=1)
def sources_key() -> bytes:
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in _sources(root):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.digest()


def _sources(root: Path) -> list[Path]:
    # Not rglob: it does not follow the link that backends/ptx is in a checkout.
    files = [Path(folder, name) for folder, _, names in os.walk(root, followlinks=True) for name in names]
    return sorted(path for path in files if path.suffix == ".py")
