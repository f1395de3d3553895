"""docs/known_bugs.md, made from the cases."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median

from known_bugs import PUBLIC, TEXTBOOK, Case
from known_bugs.case import REFUSED
from known_bugs.textbook import ELSEWHERE

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "known_bugs.md"

RESULTS = PAGE.parents[1] / "benchmarks" / "results"
TOOLS = "memcheck", "racecheck", "synccheck"

_HEAD = """\
# Known bugs

What [`k.check`](check.md) says of bugs that others have found: {public} with a public thread, and {pairs} pairs of the
textbooks. Each is rebuilt as a small kernel of our own, with a const that chooses between the bug and its mended twin.
A test runs all of them: the bug must be found with its code at its line, and its twin must be clean under two orders.
The kernels are in [tests/known_bugs](../tests/known_bugs). `python -m benchmarks.known_bugs --docs` writes this page,
and a test compares the two.

Beside its verdict is that of compute-sanitizer on an H200: which of memcheck, racecheck and synccheck report an error;
"hangs" and "fails": none does, but the kernel hangs or fails under one, which does not say why. Of the bugs with a
public thread that compile, {reported} of {run} are reported by a tool, and {stuck} more hang or fail; of {pairs_run}
pairs of the textbooks, {pairs_reported} are reported. The tools also report errors of {false} of the {twins} mended
twins: racecheck where mbarriers, a barrier of the cluster or atomic operations order the accesses, synccheck where
warps meet at named barriers. The checks of all bugs together took {ours:.1f} s; the three tools took {tools:.0f} s for
a kernel at the median, with 20 processes at a time, most of it to start.
[All verdicts and times](../benchmarks/results/known_bugs.md) are of `python -m benchmarks.known_bugs`, which needs a
GPU.

## With a public thread

{found} of {public} are found: {findings} by a finding, {refused} by the compiler, which refuses the kernel; {missed}
are missed. A kernel has the mechanism that its thread describes, and nothing else of the code there. Most of the bugs
were shipped; a few were seen in a review (deepseek-ai/DeepEP#293) or planted in a test
(facebookexperimental/CUTracer#106). Some were reported for other GPUs; here they are judged by the rules of PTX.

"""

_TEXTBOOK = """
## Of the textbooks

{variants} variants, half of them racy and half race-free, in {pairs} pairs. All verdicts are as expected. {elsewhere}
of the pairs are in [tests/unit/race_pairs.py](../tests/unit/race_pairs.py) and, the histogram, in
[test_emulator_global_races.py](../tests/unit/test_emulator_global_races.py), which runs them on the IR of both levels.

"""

_NOT_WRITTEN = """
## What cannot be written

These public bugs have no kernel here, since the language has no way to make them:

- An accumulator of `wgmma` that nobody has cleared (NVIDIA/cutlass#2674): a sum of no products is 0.
- Tensor maps that are changed while TMA reads them (deepseek-ai/DeepGEMM#343): the launch makes them.
- Offsets that overflow 32 bits (flagos-ai/FlagGems#4153): an `index` is exact.
"""


def _verdict(case: Case) -> str:
    if case.missed:
        return f"**missed**: {case.missed}"
    return "refused by the compiler" if case.codes == REFUSED else case.codes


@cache
def _measured() -> dict[tuple[str, bool, str], str]:
    """Verdicts by kernel, whether it is mended, and tool, as `benchmarks.known_bugs` keeps them."""
    rows = [json.loads(line) for line in (RESULTS / "known_bugs.jsonl").read_text().splitlines()]
    return {(row["name"], row["safe"], row["tool"]): row["verdict"] for row in rows}


def _tools(case: Case, verdict: str, *, safe: bool = False) -> list[str]:
    """Those with this verdict of the kernel."""
    return [tool for tool in TOOLS if _measured().get((case.name, safe, tool)) == verdict]


def _sanitizer(case: Case) -> str:
    """What compute-sanitizer says."""
    if (case.name, False, "") not in _measured():
        return ""
    for verdict, text in (("errors", ""), ("fails", "fails"), ("hangs", "hangs")):
        if tools := _tools(case, verdict):
            return text or ", ".join(tools)
    return "nothing"


def _seconds(column: int) -> list[float]:
    """Of a column of the table of results."""
    lines = (RESULTS / "known_bugs.md").read_text().splitlines()
    return [float(line.split("|")[column]) for line in lines if re.match(r"\| `\w+` ", line)]


def _compared(cases: Sequence[Case]) -> tuple[int, int, int]:
    """How many ran, how many a tool reports, and how many hang or fail under one that none reports."""
    verdicts = [found for found in map(_sanitizer, cases) if found]
    stuck = sum(found in ("hangs", "fails") for found in verdicts)
    return len(verdicts), len(verdicts) - stuck - verdicts.count("nothing"), stuck


def _options(case: Case) -> str:
    """What the check is told besides the arguments."""
    orders = f", in {case.seeds} orders" if case.seeds else ""
    return orders + (f', with `unwritten="{case.unwritten}"`' if case.unwritten else "")


def _link(source: str) -> str:
    repository, _, number = source.partition("#")
    return f"[{source}](https://github.com/{repository}/issues/{number})"


def page() -> str:
    """The text of docs/known_bugs.md."""
    missed = sum(bool(case.missed) for case in PUBLIC)
    refused = sum(case.codes == REFUSED for case in PUBLIC)
    elsewhere = [(theme, name) for theme, names in ELSEWHERE.items() for name in names]
    pairs = len(TEXTBOOK) + len(elsewhere)
    public, found = len(PUBLIC), len(PUBLIC) - missed
    run, reported, stuck = _compared(PUBLIC)
    pairs_run, pairs_reported, _ = _compared(TEXTBOOK)
    twins = [case for case in (*PUBLIC, *TEXTBOOK) if (case.name, True, "") in _measured()]
    false = [case for case in twins if _tools(case, "errors", safe=True)]
    head = _HEAD.format(
        public=public, pairs=pairs, found=found, findings=found - refused, refused=refused, missed=missed,
        run=run, reported=reported, stuck=stuck, pairs_run=pairs_run, pairs_reported=pairs_reported,
        false=len(false), twins=len(twins), ours=sum(_seconds(3)), tools=median(_seconds(9)),
    )  # fmt: skip
    lines = ["| bug | source | kernel | `k.check` | compute-sanitizer |", "|---|---|---|---|---|"]
    for case in PUBLIC:
        lines.append(
            f"| {case.bug} | {_link(case.source)} | `{case.name}` | {_verdict(case)}{_options(case)} "
            f"| {_sanitizer(case)} |"
        )
    textbook = _TEXTBOOK.format(variants=2 * pairs, pairs=pairs, elsewhere=len(elsewhere))
    rows = ["| theme | pair | the racy one | `k.check` | compute-sanitizer |", "|---|---|---|---|---|"]
    for case in TEXTBOOK:
        rows.append(
            f"| {case.source} | `{case.name}` | {case.bug} | {_verdict(case)}{_options(case)} | {_sanitizer(case)} |"
        )
    for theme, name in elsewhere:
        rows.append(f"| {theme} | `{name}` | in tests/unit | T102 | |")
    return head + "\n".join(lines) + "\n" + textbook + "\n".join(rows) + "\n" + _NOT_WRITTEN
