"""Two compiled kernels, part by part: what differs, as unified diffs that leave out what is merely numbered anew."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from difflib import SequenceMatcher
from itertools import takewhile

from tiledsl.backends.protocol import Resources
from tiledsl.compilation.compiled import Compiled, seen
from tiledsl.compilation.explain import printed_stages
from tiledsl.compilation.stages import Stages
from tiledsl.inspect.source_lines import read_ptx, read_sass

CONTEXT = 3
"""Equal lines around those that differ."""

NUMBERS = (
    (re.compile(r"%(?:\d+|(\w+?)_\d+)\b"), r"%\1"),  # values of the IR
    (re.compile(r"%(rd|rs|r|fd|f|p|h|b)\d+\b"), r"%\1"),  # registers of PTX
    (re.compile(r"(\$L_+[A-Za-z]+)[\d_]+"), r"\1"),  # labels of PTX
    (re.compile(r"\b(U?R|U?P|B)\d+\b"), r"\1"),  # registers of SASS
    (re.compile(r"\.L_x_\d+"), ".L_x"),
    (re.compile(r"^\s*/\*[0-9a-f]{4,}\*/"), ""),  # addresses of SASS
)
"""What a compiler numbers. Lines that are equal without them count as equal."""


@dataclass(frozen=True)
class Difference:
    """Of one part. `lines`: a unified diff, without a head; none where the two are the same."""

    part: str
    added: int
    removed: int
    lines: list[str]

    @property
    def same(self) -> bool:
        return not self.lines


def compare(a: Compiled, b: Compiled, parts: Sequence[str]) -> list[Difference]:
    """In the order of `parts`, which are of `PARTS`. Raises ToolNotFoundError for SASS without nvdisasm."""
    sides = _texts(a, parts), _texts(b, parts)
    return [_difference(part, *(texts[part] for texts in sides)) for part in parts]


def compare_stages(a: Stages, b: Stages, stages: tuple[str, str]) -> Difference:
    """The IR at two stages, names that `Stages.ir` takes."""
    return _difference("ir", *(side.ir(stage).splitlines() for side, stage in zip((a, b), stages, strict=True)))


def resources(compiled: Compiled) -> dict[str, object]:
    return {field.name: getattr(compiled.resources, field.name) for field in fields(Resources)}


def _signature(compiled: Compiled) -> Iterator[str]:
    yield f"kernel {compiled.name}"
    yield f"target {compiled.arch}"
    params = {param.name: param for param in compiled.signature.tensors}
    for name, spec in compiled.spec.tensors:
        dims = ", ".join(map(str, params[name].dims))
        yield f"tensor {name}: [{dims}] {seen(spec)}{', written' if name in compiled.written else ''}"
    for param in compiled.signature.scalars:
        yield f"scalar {param.name}: {param.dtype}"
    for name, value in compiled.spec.consts:
        yield f"const {name} = {getattr(value, '__name__', repr(value))}"
    yield f"grid ({', '.join(compiled.grid)}), block {compiled.block}, cluster {compiled.cluster}"


def _decisions(compiled: Compiled) -> Iterator[str]:
    """Without the kernel's name, consts and target, which `_signature` has."""
    for what in ("banks", "roles", "pipeline"):
        text = str(compiled.explain(what)).replace(f"{compiled.label} for {compiled.arch}", "the kernel")
        yield from (line for line in text.splitlines() if line.strip("- "))
        yield ""


def _resources(compiled: Compiled) -> Iterator[str]:
    return (f"{name} {value}" for name, value in resources(compiled).items())


LINES: dict[str, Callable[[Compiled], Iterator[str]]] = {
    "signature": _signature,
    "decisions": _decisions,
    "resources": _resources,
    "ptx": lambda compiled: (line.text for line in read_ptx(compiled.ptx)),
    "sass": lambda compiled: (line.text for line in read_sass(compiled.sass)),
}
"""How the lines of a part are had."""

STAGES = {"tile-ir": "tile", "thread-ir": "thread"}
PARTS = ("signature", "decisions", "resources", *STAGES, "ptx", "sass")


def _texts(compiled: Compiled, parts: Sequence[str]) -> dict[str, list[str]]:
    """The lines of each part. The passes run once for both stages of the IR, of which others are not printed."""
    texts = {part: [*LINES[part](compiled)] for part in parts if part in LINES}
    stages = {part: STAGES[part] for part in parts if part in STAGES}
    if stages:
        printed = printed_stages(compiled.signature, compiled.spec, compiled.arch, False, only=[*stages.values()])
        texts |= {part: printed[stage].splitlines() for part, stage in stages.items()}
    return texts


def _difference(part: str, a: list[str], b: list[str]) -> Difference:
    keys = [_key(line) for line in a], [_key(line) for line in b]
    before = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*keys, strict=False)))
    # What is equal at the start costs nothing, and is most of many kernels; the context of the first hunk stays.
    start = max(0, before - CONTEXT)
    matcher = SequenceMatcher(None, keys[0][start:], keys[1][start:])
    lines: list[str] = []
    added = removed = 0
    for group in matcher.get_grouped_opcodes(CONTEXT):
        first, last = group[0], group[-1]
        lines.append(f"@@ -{_span(start, first[1], last[2])} +{_span(start, first[3], last[4])} @@")
        for what, i, j, k, m in group:
            if what == "equal":
                lines += (f" {line}" for line in b[start + k : start + m])
                continue
            lines += (f"-{line}" for line in a[start + i : start + j])
            lines += (f"+{line}" for line in b[start + k : start + m])
            added, removed = added + m - k, removed + j - i
    return Difference(part, added, removed, lines)


def _key(line: str) -> str:
    for pattern, instead in NUMBERS:
        line = pattern.sub(instead, line)
    return " ".join(line.split())


def _span(start: int, first: int, last: int) -> str:
    """As diff has it: the line number of a range, and how many lines it has."""
    count = last - first
    return f"{start + first + (count > 0)},{count}"
