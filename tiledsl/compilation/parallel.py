"""Builds of many kernels at once: worker processes compile them into the disk cache, from which this one loads them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tiledsl.compilation.cache import disk_cache
from tiledsl.errors import TileError
from tiledsl.signatures.signature import Specialization

Job = tuple[Any, Specialization, str]
"""A kernel, a specialisation of it, and the target."""
WORKER = "from tiledsl.compilation.parallel import work; work()"


def build_all(jobs: Sequence[Job]) -> None:
    """Build all, several at a time where there is a disk cache. Raises what compiling raises.

    A kernel that a worker cannot find by its name, in a module that it can import, is compiled by this process.
    """
    missing = [job for job in jobs if not _is_built(*job)]
    if len(missing) > 1 and disk_cache() is not None:
        count = min(len(missing), len(os.sched_getaffinity(0)))
        own, *shares = (missing[i::count] for i in range(count))
        workers = [_started(share) for share in shares]
        try:
            _build(own)
            for worker in workers:
                worker.wait()
        finally:
            for worker in workers:  # still running only if this process was interrupted, or failed
                worker.kill()
                worker.wait()
    _build(jobs)


def _is_built(kernel: Any, spec: Specialization, arch: str) -> bool:
    return kernel.builds.known(spec, arch) is not None or kernel.builds.on_disk(spec, arch)


def _build(jobs: Sequence[Job]) -> None:
    for kernel, spec, arch in jobs:
        kernel.builds.compiled(spec, arch)


def _started(share: Sequence[Job]) -> subprocess.Popen[bytes]:
    """A process that builds these. What goes wrong there is found, and reported, when this process builds the rest."""
    texts: list[bytes] = []
    for job in share:
        try:
            texts.append(pickle.dumps(job))
        except (TileError, pickle.PicklingError):
            continue
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    worker = subprocess.Popen(
        [sys.executable, "-P", "-c", WORKER],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    assert worker.stdin is not None
    with worker.stdin as to:
        to.write(pickle.dumps(texts))
    return worker


def work() -> None:
    """The program of a worker."""
    for text in pickle.load(sys.stdin.buffer):
        try:
            _build([pickle.loads(text)])
        except Exception:  # of one job: the others are still of use
            continue
