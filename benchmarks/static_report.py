"""Registers, spills and main loop of every kernel of the gallery, for each target. Needs no GPU.

    python -m benchmarks.static_report
    python -m benchmarks.static_report --only mma_fastest --targets sm_90a

Registers, bytes of shared memory, spills and stack as ptxas says them; instructions of the hottest loop and of one
iteration of it on a full tile, what arithmetic dominates it and its share of the iteration, as read from SASS
(`explain("sass")`). A kernel that chooses consts by size and target is compiled with those for 4096 x 4096 x 4096.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gallery import chosen_consts, dtype_settings, gallery_kernels, reference
from benchmarks.machine import ptxas_version
from benchmarks.report import RESULTS, table, write
from tiledsl.errors import CompileError

__all__ = ["examine", "labelled_kernels", "main"]

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_120a")
SIZE = (4096, 4096, 4096)
NUMBERS = ("registers", "shared", "spills", "stack", "loop", "turn", "arithmetic", "share", "blocks/SM")
HEADER = ("kernel", "target", *NUMBERS)


def labelled_kernels() -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """(label, format, kernel, consts) of every kernel, variant and format of the gallery."""
    for format in reference().FORMATS:
        for label, (kernel, consts) in gallery_kernels(format).items():
            name, *settings = label.split(" ")
            shown = [] if format == "f32" else [format]
            yield " ".join([name, *shown, *settings]), format, kernel, consts


def examine(label: str, format: str, kernel: Any, consts: dict[str, Any], target: str) -> dict[str, Any]:
    """One row. A kernel that does not compile for `target` has "refused" with the reason."""
    chosen = chosen_consts(kernel.name, consts, SIZE, format, arch=target)
    case: dict[str, Any] = {"kernel": label, "format": format, "consts": _plain(chosen), "target": target}
    try:
        compiled = kernel.compile(arch=target, **dtype_settings(kernel, format), **chosen)
    except CompileError as error:
        return {**case, "refused": error.message}
    report = compiled.explain("sass")
    tensor = None if report.tensor is None else asdict(report.tensor) | {"bounds": report.tensor.bounds}
    return {
        **case,
        **asdict(compiled.resources),
        "loop": sum(report.histogram.values()) if report.hottest is not None else None,
        "turn": len(report.iteration) if report.hottest is not None else None,
        "histogram": report.histogram,
        "arithmetic": report.arithmetic,
        "share": report.share,
        "max_live": report.max_live[0],
        "tensor": tensor,
    }


def _plain(consts: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, int | str) else str(value) for name, value in consts.items()}


def as_row(case: dict[str, Any]) -> tuple[str, ...]:
    """The cells of `HEADER`."""
    first = case["kernel"], case["target"]
    if "refused" in case:
        return *first, "refused", *[""] * (len(NUMBERS) - 1)
    loop, turn = (str(case[name] or "none") for name in ("loop", "turn"))
    spills = case["spill_stores"] + case["spill_loads"]
    numbers = (case["registers"], case["shared"], spills, case["stack"])
    share = f"{case['share']:.1%}"
    return *first, *map(str, numbers), loop, turn, case["arithmetic"], share, str(case["blocks_per_sm"])


def _as_text(cases: Sequence[dict[str, Any]]) -> str:
    refused = [f"- {c['kernel']} for {c['target']}: {c['refused'].splitlines()[0]}" for c in cases if "refused" in c]
    text = table(HEADER, [as_row(case) for case in cases])
    return "\n".join([text, "", *refused]) if refused else text


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="LABEL", help="kernels whose label starts with one of these")
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    only: list[str] = args.only or [""]
    chosen = [row for row in labelled_kernels() if row[0].startswith(tuple(only))]
    if not chosen:
        there = ", ".join(label for label, *_ in labelled_kernels())
        parser.error(f"no label begins with {' or '.join(only)}; there are {there}")
    cases = [examine(*row, target) for row in chosen for target in args.targets]
    version = ptxas_version()
    data = {"ptxas": version, "size": list(SIZE), "cases": cases}
    write("static_report", f"The gallery as assembled, ptxas {version}", _as_text(cases), data, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
