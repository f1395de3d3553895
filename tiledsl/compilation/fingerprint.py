"""The key of a compiled kernel on disk: a hash of everything that its code depends on.

That is the kernel's meaning (`tiledsl.meaning`: its source and everything that it reaches), the specialisation, the
target, the compiler's own sources, Python, and the versions of the tools. The IR is not part of it, so that a lookup
does not run the compiler.
"""

from __future__ import annotations

import hashlib
import os
import sys
from functools import lru_cache
from pathlib import Path

from tiledsl.meaning import Meaning, meaning_of
from tiledsl.meaning.walk import Walk
from tiledsl.signatures.signature import Signature, Specialization


class NotUnderstood(Exception):  # noqa: N818 - not an error: the kernel is compiled without the disk cache
    """The kernel depends on something that cannot be hashed. The message says what, and why."""


def entry_key(signature: Signature, spec: Specialization, arch: str, meaning: Meaning) -> str:
    """The name of an entry. Raises NotUnderstood."""
    parts = kernel_key(signature, meaning), specialization_key(spec, arch), compiler_key()
    return hashlib.sha256(b"".join(parts)).hexdigest()


def kernel_key(signature: Signature, meaning: Meaning) -> bytes:
    """Hash of the kernel's parameters, its source, and everything that it reaches. Raises NotUnderstood."""
    walk = Walk()
    walk.add("signature", repr((signature.params, signature.arch)))
    for const in signature.consts:
        walk.add("const", f"{const.name}: {const.type!r}")
    return walk.digest + _understood(meaning)


def specialization_key(spec: Specialization, arch: str) -> bytes:
    """Hash of a specialisation, with its consts, and of the target. Raises NotUnderstood."""
    walk = Walk()
    walk.add("spec", repr((spec.tensors, spec.index_bits, arch)))
    for name, value in spec.consts:
        walk.add("const", name)
        walk.add(type(value).__name__, _understood(meaning_of(value), f"the const {name}: ").hex())
    return walk.digest


def _understood(meaning: Meaning, what: str = "") -> bytes:
    if meaning.reasons:
        raise NotUnderstood(what + meaning.reasons[0])
    return meaning.digest


def compiler_key() -> bytes:
    """Hash of the compiler: the sources of tiledsl, this build of Python, and the backend's tools."""
    from tiledsl.backends.ptx.tools import tool_versions

    python = sys.implementation.cache_tag, sys.version, sys.platform, sys.flags.optimize
    tools = f"{python} {tool_versions()}\n"
    return hashlib.sha256(tools.encode() + sources_key()).digest()


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
