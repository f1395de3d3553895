"""Python source lines through LLVM: line directives only, with the chain of inlined calls.

LLVM 22 writes ``.loc`` without the call sites of inlined code. So for LLVM the kernel is one function in one file, and
a line of it is the number of a place: a line of Python, with the chain of its callers. `restore_locations` writes the
directives that PTX has for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.ptx_lines import encode_path
from tiledsl.errors import Loc
from tiledsl.ir.core import Kernel

MAX_COLUMN = 65535
"""LLVM keeps 16 bits of a column."""

LOC = re.compile(r"^\t\.loc\t\d+ (\d+) (\d+).*$", re.MULTILINE)
FILE = re.compile(r"^\t\.file\t.*$", re.MULTILINE)


class DebugInfo:
    """Makes (and shares) the metadata of source locations. `places`: each with its number."""

    def __init__(self, kernel: Kernel, module: Any, function: Any) -> None:
        self.module = module
        self.places: dict[Loc, int] = {}
        self.suffixes: dict[Loc, str] = {}
        token, line = ir.DIToken, self._place(kernel.loc)
        file = self._node("DIFile", filename="places", directory="")
        unit = self._node(
            "DICompileUnit",
            True,
            language=token("DW_LANG_Python"),
            file=file,
            producer="tiledsl",
            runtimeVersion=0,
            isOptimized=True,
            emissionKind=token("DebugDirectivesOnly"),
        )
        module.add_named_metadata("llvm.dbg.cu", unit)
        version = [ir.Constant(ir.IntType(32), 2), "Debug Info Version", ir.Constant(ir.IntType(32), 3)]
        module.add_named_metadata("llvm.module.flags", version)
        self.scope = self._node(
            "DISubprogram",
            True,
            name=kernel.name,
            linkageName=kernel.name,
            scope=file,
            file=file,
            line=line,
            scopeLine=line,
            type=self._node("DISubroutineType", types=module.add_metadata([])),
            unit=unit,
            spFlags=token("DISPFlagDefinition | DISPFlagOptimized"),
        )
        function.set_metadata("dbg", self.scope)

    def _node(self, kind: str, distinct: bool = False, **operands: Any) -> Any:
        return self.module.add_debug_info(kind, operands, is_distinct=distinct)

    def _place(self, loc: Loc) -> int:
        return self.places.setdefault(replace(loc, col=0, end_col=0), len(self.places) + 1)

    def suffix(self, loc: Loc) -> str:
        """What ends an instruction that has the location `loc`; nothing where no line is known."""
        if loc.line and loc not in self.suffixes:
            column = min(loc.col, MAX_COLUMN)
            node = self._node("DILocation", line=self._place(loc), column=column, scope=self.scope)
            self.suffixes[loc] = f", !dbg {node.get_reference()}"
        return self.suffixes.get(loc, "")


def list_places(places: Iterable[Loc]) -> str:
    """Comments for LLVM IR that say what its lines stand for."""
    return "".join(f"; line {n}: {json.dumps(loc.file)}:{loc.line}\n" for n, loc in enumerate(places, 1))


def restore_locations(ptx: str, places: Sequence[Loc]) -> str:
    """Turn the numbers in the ``.loc`` directives of `ptx` back into files, lines and call sites.

    `places` are those of `DebugInfo`, in order. An inlined location is written after those of its callers, and
    names its function by a label of the ``.debug_str`` section. (PTX ISA: .loc)
    """
    files = {places[0].file: 1}
    labels: dict[str, str] = {}

    def position(loc: Loc) -> str:
        return f"{files.setdefault(loc.file, len(files) + 1)} {loc.line} {loc.col}"

    def directives(loc: Loc) -> list[str]:
        if loc.caller is None or not loc.caller.line:
            return [f"\t.loc\t{position(loc)}"]
        label = labels.setdefault(loc.function or "<inlined>", f"$L__function{len(labels)}")
        inlined = f"\t.loc\t{position(loc)}, function_name {label}, inlined_at {position(loc.caller)}"
        return [*directives(loc.caller), inlined]

    def restore(match: re.Match[str]) -> str:
        number, column = int(match[1]), int(match[2])
        return "\n".join(directives(replace(places[number - 1], col=column))) if number else "\t.loc\t1 0 0"

    with_places = LOC.sub(restore, ptx)
    listed = "\n".join(f'\t.file\t{number} "{encode_path(path)}"' for path, number in files.items())
    return FILE.sub(lambda _: listed, with_places) + _debug_strings(labels)


def _debug_strings(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    lines = ["\t.section\t.debug_str", "\t{"]
    for name, label in labels.items():
        lines += [f"{label}:", "\t.b8\t" + ",".join(str(byte) for byte in (*name.encode(), 0))]
    return "\n".join([*lines, "\t}", ""])
