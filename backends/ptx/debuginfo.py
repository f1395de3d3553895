"""Python source lines through LLVM: line directives only, with the chain of inlined calls.

LLVM 22 writes ``.loc`` without the call sites of inlined code. So a location travels through LLVM as a
number, in the place of its column, and `restore_locations` writes the directive that PTX has for it.
"""

from __future__ import annotations

import os
import re
from typing import Any, Sequence

from tiledsl.backends.ptx.llvm import ir
from tiledsl.backends.ptx.ptx_lines import encode_path
from tiledsl.errors import Loc
from tiledsl.ir.core import Kernel

MAX_COLUMN = 65535
"""LLVM keeps 16 bits of a column; locations after so many have a line only."""

LOC = re.compile(r"^\t\.loc\t(\d+) (\d+) (\d+).*$", re.MULTILINE)
FILE = re.compile(r'^\t\.file\t(\d+) "(.*)"$', re.MULTILINE)


class DebugInfo:
    """Makes (and shares) the metadata of source locations.

    The kernel is one subprogram; every inlined `@tile_function` another one, reached by `inlinedAt`.
    """

    def __init__(self, kernel: Kernel, module: Any, function: Any) -> None:
        self.module = module
        self.cache: dict[Loc, Any] = {}
        self.locations: list[Loc] = []
        token = ir.DIToken
        self.file_of_kernel = kernel.loc.file
        self.unit = self._node(
            "DICompileUnit",
            True,
            language=token("DW_LANG_Python"),
            file=self.file(kernel.loc.file),
            producer="tiledsl",
            runtimeVersion=0,
            isOptimized=True,
            emissionKind=token("DebugDirectivesOnly"),
        )
        module.add_named_metadata("llvm.dbg.cu", self.unit)
        version = [ir.Constant(ir.IntType(32), 2), "Debug Info Version", ir.Constant(ir.IntType(32), 3)]
        module.add_named_metadata("llvm.module.flags", version)
        self.type = self._node("DISubroutineType", types=module.add_metadata([]))
        self.subprograms: dict[tuple[str, str], Any] = {}
        self.root = self.subprogram(kernel.name, kernel.loc)
        function.set_metadata("dbg", self.root)

    def _node(self, kind: str, distinct: bool = False, **operands: Any) -> Any:
        return self.module.add_debug_info(kind, operands, is_distinct=distinct)

    def file(self, path: str) -> Any:
        directory, name = os.path.split(path)
        return self._node("DIFile", filename=name, directory=directory)

    def subprogram(self, name: str, loc: Loc) -> Any:
        key = (name, loc.file)
        if key not in self.subprograms:
            file, flags = self.file(loc.file), ir.DIToken("DISPFlagDefinition | DISPFlagOptimized")
            self.subprograms[key] = self._node(
                "DISubprogram",
                True,
                name=name,
                linkageName=name,
                scope=file,
                file=file,
                line=loc.line,
                scopeLine=loc.line,
                type=self.type,
                unit=self.unit,
                spFlags=flags,
            )
        return self.subprograms[key]

    def location(self, loc: Loc) -> Any:
        """The DILocation of `loc`, or None where nothing is known."""
        if not loc.line:
            return None
        if loc not in self.cache:
            self.locations.append(loc)
            number = len(self.locations)
            column = number if number <= MAX_COLUMN else 0
            scope, caller = self.scope(loc), self.location(loc.caller) if loc.caller is not None else None
            inlined = {} if caller is None else {"inlinedAt": caller}
            self.cache[loc] = self._node("DILocation", line=loc.line, column=column, scope=scope, **inlined)
        return self.cache[loc]

    def suffix(self, loc: Loc) -> str:
        """What ends an instruction that has the location `loc`."""
        node = self.location(loc)
        return "" if node is None else f", !dbg {node.get_reference()}"

    def scope(self, loc: Loc) -> Any:
        if loc.caller is not None and loc.caller.line:
            return self.subprogram(loc.function or "<inlined>", loc)
        if loc.file == self.file_of_kernel:
            return self.root
        return self._node("DILexicalBlockFile", scope=self.root, file=self.file(loc.file), discriminator=0)


def restore_locations(ptx: str, locations: Sequence[Loc]) -> str:
    """Turn the numbers in the ``.loc`` directives of `ptx` back into columns and call sites.

    `locations` is `DebugInfo.locations`. An inlined location is written after those of its callers, and
    names its function by a label of the ``.debug_str`` section. (PTX ISA: .loc)
    """
    files = {_unescaped(path): int(number) for number, path in FILE.findall(ptx)}
    labels: dict[str, str] = {}

    def position(loc: Loc) -> str:
        return f"{files.get(loc.file, 1)} {loc.line} {loc.col}"

    def directives(loc: Loc) -> list[str]:
        if loc.caller is None or not loc.caller.line:
            return [f"\t.loc\t{position(loc)}"]
        label = labels.setdefault(loc.function or "<inlined>", f"$L__function{len(labels)}")
        inlined = f"\t.loc\t{position(loc)}, function_name {label}, inlined_at {position(loc.caller)}"
        return [*directives(loc.caller), inlined]

    def restore(match: re.Match[str]) -> str:
        file, line, number = match.groups()
        if line == "0" or not 0 < int(number) <= len(locations):
            return f"\t.loc\t{file} {line} 0"
        return "\n".join(directives(locations[int(number) - 1]))

    with_files = FILE.sub(lambda m: f'\t.file\t{m.group(1)} "{encode_path(_unescaped(m.group(2)))}"', ptx)
    return LOC.sub(restore, with_files) + _debug_strings(labels)


def _unescaped(path: str) -> str:
    """The path behind LLVM's octal and backslash escapes."""
    return path.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")


def _debug_strings(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    lines = ["\t.section\t.debug_str", "\t{"]
    for name, label in labels.items():
        lines += [f"{label}:", "\t.b8\t" + ",".join(str(byte) for byte in (*name.encode(), 0))]
    return "\n".join([*lines, "\t}", ""])
