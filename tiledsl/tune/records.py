"""Results of the tuner on disk: a file of one line of JSON for each candidate and product.

A line says what it is of: kernel, its code, device, toolchain, product. So files may be joined, and what does not fit
the present setting is skipped. A line is written whole and at once, with a checksum; one that is not whole, as after a
crash of the machine, is skipped.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tiledsl.errors import TileError
from tiledsl.outside import is_time, read_bytes
from tiledsl.tune.search import Result

VERSION = 1
SETTING = ("kernel", "code", "device", "toolchain")
"""What is the same for all records that count."""
VALUES = {name: re.compile(rb'"%b": ("(?:[^"\\]|\\.)*")' % name.encode()) for name in SETTING}
OUTCOMES = ("timed", "refused", "wrong", "failed", "crashed", "hung")


def key_of(consts: Mapping[str, Any]) -> str:
    """Of a candidate within a product."""
    return json.dumps(consts, sort_keys=True)


class Records:
    """The records of a file for one setting. skipped: why others of its lines do not count, with their number."""

    def __init__(self, file: Path, setting: Mapping[str, str]) -> None:
        self.file, self._setting = file, {name: setting[name] for name in SETTING}
        self._known: dict[tuple[str, str], Result] = {}
        self.skipped: Counter[str] = Counter()
        try:
            text = read_bytes(file) if file.exists() else b""
        except OSError as error:
            raise TileError(f"cannot read {file}: {error.strerror or error}\n  fix: give another --records") from None
        # A line that was cut off ends with the next one that is written.
        self._torn = bool(text) and not text.endswith(b"\n")
        self._read(text)

    def find(self, product: str, consts: Mapping[str, Any]) -> Result | None:
        return self._known.get((product, key_of(consts)))

    def add(self, product: str, consts: Mapping[str, Any], result: Result) -> None:
        """On disk when this returns. Raises TileError if it cannot be written."""
        record = {**self._setting, "product": product, "consts": dict(consts), "result": result}
        line = ("\n" if self._torn else "") + _line(record) + "\n"
        try:
            with self.file.open("ab", buffering=0) as out:
                out.write(line.encode())
                os.fsync(out.fileno())
        except OSError as error:
            raise TileError(
                f"cannot write {self.file}: {error.strerror or error}\n  fix: give another --records"
            ) from None
        self._torn = False
        self._known[product, key_of(consts)] = result

    def _read(self, text: bytes) -> None:
        # As they stand in each line that counts; in a text they would have backslashes.
        ours = [(name, f'"{name}": {json.dumps(value)}'.encode()) for name, value in self._setting.items()]
        others: Counter[tuple[str, bytes]] = Counter()
        for line in filter(None, text.split(b"\n")):
            other = next((name for name, there in ours if there not in line), None)
            found = VALUES[other].search(line) if other is not None else None
            if other is not None and found is not None:  # a file may have many: this takes a tenth of `_record`
                others[other, found[1]] += 1
            else:
                self._read_line(line)
        for (name, value), count in others.items():
            with suppress(ValueError):
                self._skip(name, json.loads(value), count)

    def _read_line(self, line: bytes) -> None:
        record = _record(line)
        if record is None:
            self.skipped["damaged"] += 1
            return
        for name in SETTING:
            if record[name] != self._setting[name]:
                self._skip(name, record[name], 1)
                return
        self._known[record["product"], key_of(record["consts"])] = record["result"]

    def _skip(self, name: str, value: str, count: int) -> None:
        self.skipped[f"of another {name} ({value}, here {self._setting[name]})"] += count


def _line(record: Mapping[str, Any]) -> str:
    body = {"version": VERSION, **record}
    return json.dumps({**body, "crc": _crc(body)}, sort_keys=True)


def _record(line: bytes) -> dict[str, Any] | None:
    """Return what `_line` wrote; None for anything else, whatever its checksum is."""
    try:
        record = json.loads(line)
        crc = record.pop("crc")
        fits = type(crc) is int and crc == _crc(record) and record["version"] == VERSION
        texts = all(type(record[name]) is str for name in (*SETTING, "product"))
        return record if fits and texts and isinstance(record["consts"], dict) and _fits(record["result"]) else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _fits(result: Any) -> bool:
    """Return whether it is a result of a candidate. Raises what `_record` expects."""
    timed = result["outcome"] == "timed"
    return is_time(result["us"]) if timed else result["outcome"] in OUTCOMES and type(result["reason"]) is str


def _crc(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
