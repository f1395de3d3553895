"""Builds that are carried in a folder from the machine that builds to the one that times.

The folder was named by the user, who vouches for it: what is in it runs on the GPU. A file is one build, with a
checksum; its name says kernel, specialisation and compiler, but no version of ptxas, which the machine that times does
not need. `toolchain.txt` says what built.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from tiledsl.compilation import fingerprint
from tiledsl.compilation.cache import packed, unpacked, warn_once
from tiledsl.compilation.compiled import Image
from tiledsl.compilation.compiler import sealed, unsealed
from tiledsl.errors import TileError
from tiledsl.kernel import TileKernel
from tiledsl.outside import read_bytes
from tiledsl.signatures.specialize import Specialization

NOTE, OTHER = "toolchain.txt", "  fix: name another folder with --kernels"


class Carried:
    """Builds of any kernels. folder: "" for none: they come from the disk cache and the compiler alone."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @property
    def toolchain(self) -> str:
        """What made the builds: on the machine which they are carried from, else here."""
        return self._noted() or toolchain()

    def begin(self) -> None:
        """Make the folder, and note there what builds. Raises TileError if something else has built there."""
        if self.toolchain != toolchain():
            raise TileError(f"tune: {self.folder} has builds of {self.toolchain}; here is {toolchain()}\n{OTHER}")
        try:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
            Path(self.folder, NOTE).write_text(self.toolchain)
        except OSError as error:
            raise TileError(f"tune: cannot write {self.folder}: {error.strerror or error}\n{OTHER}") from None

    def adopt(self, kernel: TileKernel, spec: Specialization, arch: str) -> Image | None:
        """Return the build from the folder, which launches use from now on; None if there is none, or a damaged one."""
        file = self._file(kernel, spec, arch)
        if file is None or not file.exists():
            return None
        content = unpacked(self._content(file))
        image = unsealed(content, file.name, kernel.signature, spec, arch) if content is not None else None
        if image is None:
            warn_once(f"the build {file} is damaged; the kernel is compiled again")
        else:
            kernel.builds.adopt(spec, arch, image)
        return image

    def build(self, kernel: TileKernel, spec: Specialization, arch: str) -> Image:
        """From the folder, else compiled, and put there. Raises TileError."""
        if (image := self.adopt(kernel, spec, arch)) is not None:
            return image
        if self._noted() not in ("", toolchain()):
            raise TileError(f"is not in {self.folder}, whose builds are by {self.toolchain}")
        image = kernel.builds.compiled(spec, arch)
        if (file := self._file(kernel, spec, arch)) is not None:
            draft = file.with_suffix(f".{os.getpid()}")
            draft.write_bytes(packed(sealed(image, file.name)))
            draft.replace(file)
        return image

    def _noted(self) -> str:
        file = Path(self.folder, NOTE)
        return self._content(file).decode(errors="replace") if self.folder and file.exists() else ""

    def _content(self, file: Path) -> bytes:
        """Return the content of a file. Raises TileError for what is no file, or cannot be read."""
        try:
            return read_bytes(file)
        except OSError as error:
            raise TileError(f"tune: cannot read {file}: {error.strerror or error}\n{OTHER}") from None

    def _file(self, kernel: TileKernel, spec: Specialization, arch: str) -> Path | None:
        if not self.folder:
            return None
        key = fingerprint.specialization_key(spec, arch) + fingerprint.sources_key()
        return Path(self.folder, f"{kernel.name}-{code_of(kernel)}-{hashlib.sha256(key).hexdigest()[:32]}.kernel")


def code_of(kernel: TileKernel) -> str:
    """Digest of a kernel and all that it reaches. Raises TileError if it cannot be known."""
    try:
        return fingerprint.kernel_key(kernel.signature, kernel.builds.meaning()).hex()[:16]
    except fingerprint.NotUnderstood as found:
        raise TileError(f"tune: whether {kernel.name} changes cannot be told: {found}") from None


def toolchain() -> str:
    """Return what compiles here, in the same words on each machine that has the same.

    Raises TileError if ptxas is a script: neither builds nor records could say what they are of.
    """
    from tiledsl.backends.ptx.tools import PTXAS, llvmlite_version

    content, release = PTXAS.content(), _release(str(PTXAS.path()))
    if not content:
        what = f"tune: {PTXAS.path()} is not an ELF executable, so that builds by it cannot be told apart"
        raise TileError(f"{what}\n  fix: set TILEDSL_PTXAS to the program that it runs")
    sources = fingerprint.sources_key().hex()[:8]
    return f"ptxas {release} {content[:8]}, llvmlite {llvmlite_version()}, tiledsl {sources}"


@cache
def _release(path: str) -> str:
    from tiledsl.backends.ptx.tools import PTXAS

    return PTXAS.release().rpartition(" ")[2]
