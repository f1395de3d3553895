"""The on-disk cache of compiled kernels.

    tiledsl cache list
    tiledsl cache explain kernels.py:k --const T=32
    tiledsl cache clear

The list begins with the entry that was used last. explain says whether a compilation is a miss now, and why; it takes
arrays to be contiguous and aligned, as k.compile does. docs/caching.md has the rule.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from tiledsl.inspect.arguments import add_json, add_kernel, asked_kernel, print_json

if TYPE_CHECKING:
    from tiledsl.compilation.cache import DiskCache, Entry

SCHEMA = "tiledsl.cache/1"
OFF = "there is no disk cache: TILEDSL_CACHE=0 switches it off, or no home folder is known"
DIGEST = 64
"""Characters of a part that is no more than a digest."""
WIDTH = 42
"""Characters of a kernel's name and consts in the list."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, about in (("list", "all entries"), ("info", "the folder, and how full it is"), ("clear", "remove all")):
        add_json(actions.add_parser(name, help=about))
    explain = actions.add_parser("explain", help="why a kernel is compiled, and not taken from the cache")
    add_kernel(explain)
    add_json(explain)


def run(arguments: argparse.Namespace) -> int:
    from tiledsl.compilation.cache import disk_cache

    cache = disk_cache()
    asked = _explain(arguments, cache) if arguments.action == "explain" else None
    if cache is None:
        text, fields = OFF, {}
    elif asked is not None:
        text, fields = asked
    elif arguments.action == "clear":
        removed = cache.clear()
        text, fields = f"{removed} kernels removed from {cache.folder}", {"removed": removed}
    else:
        text, fields = _list(cache, arguments.action == "list")
    if arguments.json:
        print_json(SCHEMA, folder=str(cache.folder) if cache else None, **fields)
    else:
        print(text)
    return 0


def _list(cache: DiskCache, with_entries: bool) -> tuple[str, dict[str, Any]]:
    from tiledsl.tables import table

    entries, size = cache.info()
    text = f"{cache.folder}: {entries} kernels, {size / 2**20:.1f} of at most {cache.limit / 2**20:.0f} MiB"
    fields: dict[str, Any] = {"kernels": entries, "bytes": size, "limit": cache.limit}
    if not with_entries:
        return text, fields
    found = cache.entries()
    fields["entries"] = [
        {"key": e.key, "kernel": _label(e), "target": _target(e), "bytes": e.bytes, "used": _date(e)} for e in found
    ]
    rows = [(_cut(_label(e)), _target(e), f"{e.bytes / 1024:.0f}", _date(e)) for e in found]
    return f"{table(('kernel', 'target', 'KiB', 'last used'), rows, {0, 1, 3})}\n\n{text}" if rows else text, fields


def _explain(arguments: argparse.Namespace, cache: DiskCache | None) -> tuple[str, dict[str, Any]] | None:
    """Whether the kernel is in the cache; if it is not, how the entry of that kernel differs that comes closest."""
    from tiledsl.compilation import fingerprint
    from tiledsl.compilation.stages import label_of

    kernel, settings = asked_kernel(arguments)
    if cache is None:
        return None
    spec, arch = kernel.specialized(arguments.arch, settings)
    label = label_of(kernel.name, spec)
    known: list[Entry] = []
    hit, changed, more = False, list[dict[str, str]](), ""
    try:
        parts = fingerprint.entry_parts(kernel.signature, spec, arch, kernel.builds.meaning())
    except fingerprint.NotUnderstood as found:
        why = f"it is never kept: {found}"
    else:
        key, entries = fingerprint.entry_key(parts), cache.entries()
        known = [entry for entry in entries if entry.note.get("name") == kernel.name]
        here = next((entry for entry in entries if entry.key == key), None)
        hit = here is not None
        why = f"it is in the cache, and was used last on {_date(here)}" if here else "it is not in the cache"
        if not known:
            why += f", and no other kernel called {kernel.name} is"
        elif not hit:
            nearest = min(known, key=lambda entry: len(_changed(entry, parts)))  # of several the one used last
            changed = _changed(nearest, parts)
            more = f"\nthe entry that comes closest, {_label(nearest)}, last used on {_date(nearest)}, differs in"
            more += "".join(map(_shown, changed))
    fields = {"kernel": label, "arch": arch, "hit": hit, "why": why, "changed": changed}
    return f"{label} for {arch}: {why}{more}", fields


def _shown(change: Mapping[str, str]) -> str:
    then, now = change["then"], change["now"]
    if all(len(text) == DIGEST and text.isalnum() for text in (then, now)):
        return f"\n  {change['part']}"
    return f"\n  {change['part']}\n    then {then}\n    now  {now}"


def _changed(entry: Entry, parts: Mapping[str, str]) -> list[dict[str, str]]:
    """The parts of the key that differ. What holds others says so only if none of these does."""
    then = _parts(entry)
    differ = {
        name: {"part": name, "then": str(then.get(name, "")), "now": now}
        for name, now in parts.items()
        if then.get(name) != now
    }
    for whole, its in HOLDS.items():
        if whole in differ and any(part in differ for part in its):
            del differ[whole]
    return [*differ.values()]


HOLDS = {"source, and what it reads": ("place", "source"), "values of consts": ("consts",)}
"""Parts of the key that depend on others."""


def _label(entry: Entry) -> str:
    return str(entry.note.get("label", "of another version of tiledsl"))


def _parts(entry: Entry) -> Mapping[str, Any]:
    parts = entry.note.get("parts")
    return cast(dict[str, Any], parts) if isinstance(parts, dict) else {}


def _target(entry: Entry) -> str:
    return str(_parts(entry).get("target", ""))


def _date(entry: Entry) -> str:
    try:
        return datetime.fromtimestamp(entry.used).isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):  # a damaged file system has dates beyond the year 9999
        return "a time that is no date"


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
