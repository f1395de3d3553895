"""What ptxas made of a kernel: loops, the hottest one by class of instruction, operand reuse or what feeds the tensor
cores, live registers, spills.

`str()` of a `SassReport` is the tables; its `listing()` is every instruction with Python line, PTX line and control
code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tiledsl.backends.ptx.sass.banks import BankCounts, count_banks, fma_of
from tiledsl.backends.ptx.sass.classes import arithmetic_of, class_of, products_of
from tiledsl.backends.ptx.sass.disassemble import sass_listing
from tiledsl.backends.ptx.sass.iteration import full_iteration
from tiledsl.backends.ptx.sass.live import live_registers
from tiledsl.backends.ptx.sass.opcodes import CLASSES
from tiledsl.backends.ptx.sass.program import Loop, Sass, SassProgram
from tiledsl.backends.ptx.sass.scoreboards import awaited
from tiledsl.backends.ptx.sass.tensor import TensorLoop, tensor_loop
from tiledsl.errors import Loc
from tiledsl.tables import table

LINES = 12
"""Python lines shown of the hottest loop."""


@dataclass(frozen=True)
class SassReport:
    """The data behind the tables; places are indices into `program.instructions`. ptx: what the instructions have lines
    of."""

    program: SassProgram
    ptx: str

    @cached_property
    def live(self) -> list[int]:
        """How many registers are alive at each instruction."""
        return [mask.bit_count() for mask in live_registers(self.program)]

    @cached_property
    def awaited(self) -> list[tuple[int, ...]]:
        """Of each instruction the places of those whose scoreboards it waits for."""
        return awaited(self.program)

    @cached_property
    def hottest(self) -> Loop | None:
        """The loop with most multiply-adds of its own, outside the loops in it; where there are none, an innermost
        one. Among equals the longest, then the first. None without a loop."""
        program = self.program

        def weight(loop: Loop) -> tuple[int, bool, int, int]:
            own = program.own(loop)
            products = sum(products_of(program.instructions[i]) for i in own)
            return products, not program.inside(loop), len(own), -loop.header

        return max(program.loops, key=weight, default=None)

    @cached_property
    def histogram(self) -> dict[str, int]:
        """Instructions of the hottest loop by class (see `classes`), or those of the whole kernel."""
        return dict(Counter(class_of(s) for s in self._sasses))

    @cached_property
    def arithmetic(self) -> str:
        """The opcode that makes most of their multiply-adds: "FFMA", "HMMA" and so on; "" without any."""
        products: Counter[str] = Counter()
        for sass in self._sasses:
            products[arithmetic_of(sass)] += products_of(sass)
        return max(products, key=lambda name: products[name], default="") if products.total() else ""

    @cached_property
    def banks(self) -> BankCounts:
        """Their FFMAs against register banks and the operand cache."""
        return count_banks([fma_of(s) for s in self._sasses], loop=self.hottest is not None)

    @cached_property
    def iteration(self) -> list[Sass]:
        """One iteration of the hottest loop, that of a full tile, or the whole kernel."""
        places = self.places if self.hottest is None else full_iteration(self.program, self.hottest)
        return [self.program.instructions[place] for place in places]

    @cached_property
    def tensor(self) -> TensorLoop | None:
        """The matrix instructions of that iteration and what feeds them, if those are the arithmetic; else None."""
        if self.arithmetic in ("", "FFMA"):
            return None
        return tensor_loop(self.iteration, self.program.target, loop=self.hottest is not None)

    @property
    def places(self) -> Sequence[int]:
        """What the histogram is about: the hottest loop, or everything."""
        if self.hottest is not None:
            return self.hottest.body
        return [i for i, s in enumerate(self.program.instructions) if s.base != "NOP"]

    @property
    def _sasses(self) -> list[Sass]:
        return [self.program.instructions[place] for place in self.places]

    @property
    def share(self) -> float:
        """Its arithmetic, FFMAs or matrix instructions, over all instructions of one iteration, that of a full tile."""
        own = sum(arithmetic_of(sass) == self.arithmetic != "" for sass in self.iteration)
        return own / len(self.iteration)

    @property
    def stalls(self) -> int:
        """The sum of an iteration's stall counts, which is how many clocks it takes one warp alone, waits apart."""
        return sum(sass.control.stall for sass in self.iteration)

    @property
    def max_live(self) -> tuple[int, int]:
        """(most general registers alive at once, the first place where they are)."""
        return self._most_alive(range(self.end))

    def _most_alive(self, places: Iterable[int]) -> tuple[int, int]:
        first = max(places, key=lambda place: self.live[place], default=0)
        return self.live[first], first

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """Opcodes whose operands are not fully known: live registers may be more than counted."""
        return tuple(sorted({s.opcode for s in self.program.instructions if not s.operands.known}))

    @cached_property
    def spills(self) -> dict[Loc | None, tuple[int, int]]:
        """(stores, loads) of local memory, by Python line; None: of no line."""
        stores, loads = (Counter(s.loc for s in self.program.instructions if s.base == base) for base in ("STL", "LDL"))
        return {loc: (stores[loc], loads[loc]) for loc in sorted({*stores, *loads}, key=_line_order)}

    @cached_property
    def lines(self) -> dict[Loc | None, tuple[int, int]]:
        """(all instructions, those of its arithmetic) of the hottest loop by Python line, those with most first."""
        total = Counter(s.loc for s in self._sasses)
        own = (s for s in self._sasses if self.arithmetic and arithmetic_of(s) == self.arithmetic)
        arithmetic = Counter(s.loc for s in own)
        ordered = sorted(total, key=lambda loc: (-total[loc], _line_order(loc)))
        return {loc: (total[loc], arithmetic[loc]) for loc in ordered}

    def listing(self, loop: Loop | None = None) -> str:
        """All instructions, or those of `loop`: Python line, PTX line, control code, live registers, text."""
        places = range(self.end) if loop is None else loop.body
        starts = {place: name for name, place in self.program.labels.items()}
        rows = [f"{'python':<24} {'ptx':>6}  {'control':<22} {'live':>4}  instruction"]
        for i in places:
            sass = self.program.instructions[i]
            if i in starts:
                rows.append(f"{starts[i]}:")
            where, ptx_line = _short(sass.loc), sass.ptx_line or ""
            rows.append(
                f"{where:<24} {ptx_line:>6}  {sass.control!s:<22} {self.live[i]:>4}  {sass.address:04x}  {sass.text}"
            )
        return "\n".join(rows)

    @cached_property
    def end(self) -> int:
        """Where the code ends: what follows are the jump to itself and the padding that ptxas puts there."""
        used = (i for i, s in enumerate(self.program.instructions) if s.base not in ("NOP", "BRA"))
        return max(used, default=-1) + 1

    def __str__(self) -> str:
        parts = [self._head(), self._loops(), self._histogram(), self._operands(), self._by_line(), self._spills()]
        return "\n\n".join(part for part in parts if part)

    def _head(self) -> str:
        most, where = self.max_live
        sass = self.program.instructions[where]
        text = (
            f"{self.program.name} for {self.program.target}: {self.end} instructions, at most {most} registers alive "
            f"(at {sass.address:04x}, {_short(sass.loc) or 'no Python line'})"
        )
        if self.unknown:
            text += f"\noperands not known of: {', '.join(self.unknown)}; more registers may be alive"
        return text

    def _loops(self) -> str:
        if not self.program.loops:
            return "no loops"
        rows: list[tuple[str, ...]] = []
        for loop in self.program.loops:
            sasses = [self.program.instructions[i] for i in loop.body]
            first = next((s.loc for s in sasses if s.loc is not None), None)
            mark = " <- hottest" if loop is self.hottest else ""
            rows.append(
                (
                    f"{'  ' * (loop.depth - 1)}{sasses[0].address:04x}-{sasses[-1].address:04x}",
                    _short(first),
                    str(len(sasses)),
                    str(sum(s.base == "FFMA" for s in sasses)),
                    str(sum(class_of(s) == "MMA" for s in sasses)),
                    str(self._most_alive(loop.body)[0]) + mark,
                )
            )
        return table(("loop", "Python line", "instructions", "FFMA", "MMA", "most alive"), rows, (0, 1, 5))

    def _histogram(self) -> str:
        counts = {name: self.histogram[name] for name in CLASSES if name in self.histogram}
        counts["all"] = total = sum(counts.values())
        rows = [(name, str(count), f"{count / total:.1%}") for name, count in counts.items()]
        return table(["hottest loop" if self.hottest else "no loop: all of it", "count", "share"], rows, (0,))

    def _operands(self) -> str:
        banks = self.banks
        if self.tensor is not None:
            return self._tensor(self.tensor)
        if not banks.fmas:
            return ""
        rows = [
            ("reuse flags", *map(str, banks.flags), str(sum(banks.flags))),
            ("from the operand cache", *map(str, banks.hits), str(sum(banks.hits))),
            ("reuse rate", *(f"{r:.1%}" for r in banks.rates), f"{banks.reuse_rate:.1%}"),
        ]
        even, odd = banks.bank_reads
        lines = (
            f"conflicts, 64-bit banks (Volta): {banks.conflicts} of {banks.fmas}; "
            f"{banks.conflicts_with_reuse} with the operand cache",
            f"registers read: {even} even, {odd} odd, in {banks.issued} issue slots",
            f"one read a bank and clock (a model, not confirmed on Hopper): at least {banks.bound} clocks, "
            f"{banks.fmas / banks.bound:.1%} of the FFMA peak",
            f"stall counts of an iteration: {self.stalls} clocks",
        )
        header = ("FFMA operands", "slot a", "slot b", "slot c", "all")
        return "\n".join((table(header, rows, (0,)), *lines))

    def _tensor(self, tensor: TensorLoop) -> str:
        whole, count = sum(self.histogram.values()), len(self.iteration)
        some = "" if count == whole else f"of these {whole}, an iteration of a full tile takes {count}:\n"
        return f"{some}{tensor}\nstall counts of an iteration: {self.stalls} clocks"

    def _by_line(self) -> str:
        lines = list(self.lines.items())
        rows = [(_short(loc) or "(none)", str(count), str(own)) for loc, (count, own) in lines[:LINES]]
        if len(lines) > LINES:
            rows.append((f"{len(lines) - LINES} more", str(sum(count for _, (count, _) in lines[LINES:])), ""))
        return table(("Python line", "instructions", self.arithmetic or "FFMA"), rows, (0,))

    def _spills(self) -> str:
        if not self.spills:
            return "no spills"
        rows = [(_short(loc) or "(no line)", str(stores), str(loads)) for loc, (stores, loads) in self.spills.items()]
        return table(("local memory", "stores", "loads"), rows, (0,))


def sass_report(cubin: bytes, ptx: str) -> SassReport:
    """Read the SASS of a cubin's one kernel. No GPU is needed.

    Raises ToolNotFoundError without nvdisasm, AssemblerError if it cannot read the cubin, TileError for a target whose
    encoding is not known.
    """
    return SassReport(sass_listing(cubin)[0], ptx)


def _line_order(loc: Loc | None) -> tuple[str, int]:
    return ("", 0) if loc is None else (loc.file, loc.line)


def _short(loc: Loc | None) -> str:
    """``maxas.py:31``, with the line of the call for what was inlined."""
    if loc is None:
        return ""
    text = f"{Path(loc.file).name}:{loc.line}"
    return text if loc.caller is None else f"{text} < {loc.caller.line}"
