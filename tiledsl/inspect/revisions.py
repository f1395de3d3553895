"""A file as a commit has it, with all that is around it there."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tiledsl.errors import UsageError


@contextmanager
def at_revision(file: Path, revision: str) -> Generator[Path]:
    """Where `file` is in a copy of its repository at `revision`, which git understands. The copy is gone at the end;
    the repository is only read. Raises UsageError."""
    folder = file.resolve().parent
    while not folder.is_dir():  # the commit may have folders that are gone now
        folder = folder.parent
    top = Path(_git(folder, revision, "rev-parse", "--show-toplevel").decode().strip())
    commit = _git(top, revision, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()
    content = _git(top, revision, "archive", "--format=tar", commit)
    with TemporaryDirectory(prefix="tiledsl-") as copy:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(copy, filter="data")
        found = Path(copy, file.resolve().relative_to(top))
        if not found.is_file():
            raise UsageError(f"{revision} has no file {file}\n  fix: name a commit that has it, or the file of then")
        yield found


def _git(folder: Path, revision: str, *command: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, check=False)
    except OSError as error:
        raise UsageError(f"revision {revision}: git does not run: {error}\n  fix: install git") from error
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip() or f"{folder} has no such commit"
        fix = "name a commit of the repository that the file is in, as HEAD~1"
        raise UsageError(f"revision {revision}: {why}\n  fix: {fix}")
    return done.stdout
