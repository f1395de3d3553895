"""Print one stage of a kernel with the Python line beside each line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tiledsl.errors import AssemblerError, CompileError, Loc, ToolNotFoundError
from tiledsl.inspect.source_lines import READERS
from tiledsl.outside import source_line

if TYPE_CHECKING:
    from tiledsl.ir.core import Kernel
    from tiledsl.kernel import TileKernel

WIDTH = 50
"""Columns for the Python source: two thirds of a kernel's lines fit whole."""

# IR reads like LLVM; SASS has no lexer of its own, assembly in general comes close.
_LEXERS = {"python": "python", "ir": "llvm", "llvm": "llvm", "ptx": "ptx", "sass": "gas"}


def read_stage(
    kernel: TileKernel, arch: str, settings: Mapping[str, Any], stage: str, after: str | None = None
) -> tuple[str, str, CompileError | None]:
    """(name, text, error) of the stage asked for; if `kernel` does not compile, of the last one up to it that there is.

    Raises the error itself where there is none.
    """
    from tiledsl.compilation.lowering import lower
    from tiledsl.ir.printer import print_kernel

    asked = f"after:{after}" if after else "tile" if stage == "ir" else "thread"
    try:
        compiled = kernel.compile(arch, **settings)
        return stage, _ir(kernel, arch, settings, after) if stage == "ir" else getattr(compiled, stage), None
    except ToolNotFoundError:
        if stage == "sass":
            raise
        lowered = kernel.lower(arch, **settings)
        return stage, _ir(kernel, arch, settings, after) if stage == "ir" else getattr(lowered, stage), None
    except CompileError as error:
        if isinstance(error, AssemblerError) and stage != "ir":
            last = "ptx" if stage == "sass" else stage
            return last, error.stages[last], error
        texts: dict[str, str] = {}

        def observe(name: str, kernel: Kernel) -> None:
            texts[name] = print_kernel(kernel, locs=True)

        with suppress(CompileError):
            lower(kernel.signature, *kernel.specialized(arch, settings), observe=observe)
        if not texts:
            raise
        return "ir", texts.get(asked, [*texts.values()][-1]), error


def _ir(kernel: TileKernel, arch: str, settings: Mapping[str, Any], after: str | None) -> str:
    """The IR after a pass, or that of the frontend; no pass runs that comes later."""
    from tiledsl.compilation.explain import printed_stages
    from tiledsl.passes.pipeline import stages

    spec, target = kernel.specialized(arch, settings)
    asked = f"after:{after}" if after else "tile"
    until = after or stages()[0]
    return printed_stages(kernel.signature, spec, target, True, only=[asked], until=until)[asked]


def render(text: str, stage: str, *, color: bool, source: bool = True, width: int = WIDTH) -> Iterator[str]:
    """The lines of `text`, which is the stage `stage`, each behind the Python line it came from.

    A Python line is printed once for a run of lines that share it, in `width` columns. Without `source`, the stage
    alone.
    """
    lines = list(READERS[stage](text))
    shown = highlight([line.text for line in lines], stage) if color else [line.text for line in lines]
    if not source:
        yield from shown
        return
    main = next((line.source.file for line in lines if line.source), "")
    last: Loc | None = None
    for line, body in zip(lines, shown, strict=True):
        new = line.source if line.source != last else None
        margin = f"{_margin(new, main, width) if new else '':<{width}}"
        last = line.source or last
        shaded = f"\x1b[36m{margin}\x1b[0m" if color else margin
        yield f"{shaded} │ {body}".rstrip()


def _margin(source: Loc, main: str, width: int) -> str:
    """Number and text of a Python line; the file's name where it is not `main`."""
    place = f"{source.line:4d}" if source.file == main else f"{Path(source.file).name}:{source.line}"
    text = f"{place} {source_line(source.file, source.line).strip()}"
    return text if len(text) <= width else text[: width - 1] + "…"


def highlight(lines: list[str], stage: str) -> list[str]:
    """`lines` with terminal colours, still one string a line."""
    # pygments has no type information.
    lexers, formatters, terminal, token = (
        cast(Any, import_module(f"pygments.{name}"))
        for name in ("lexers", "formatters", "formatters.terminal", "token")
    )
    lexer = lexers.get_lexer_by_name(_LEXERS[stage], stripnl=False, ensurenl=False)
    # What a lexer does not know, as it is no lexer of ours, is no error.
    scheme = {**terminal.TERMINAL_COLORS, token.Error: ("", "")}
    code: str = import_module("pygments").highlight(
        "\n".join(lines), lexer, formatters.TerminalFormatter(colorscheme=scheme)
    )
    colored = code.split("\n")
    return [*colored, *[""] * (len(lines) - len(colored))][: len(lines)]
