"""The on-disk cache of compiled kernels."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["info", "clear"])


def run(arguments: argparse.Namespace) -> int:
    from tiledsl.compilation.cache import disk_cache

    cache = disk_cache()
    if cache is None:
        print("there is no disk cache: TILEDSL_CACHE=0 switches it off, or no home folder is known")
    elif arguments.action == "clear":
        print(f"{cache.clear()} kernels removed from {cache.folder}")
    else:
        entries, size = cache.info()
        print(f"{cache.folder}: {entries} kernels, {size / 2**20:.1f} of at most {cache.limit / 2**20:.0f} MiB")
    return 0
