"""docs/known_bugs.md, made from the cases."""

from __future__ import annotations

from pathlib import Path

from known_bugs import PUBLIC, TEXTBOOK, Case
from known_bugs.case import REFUSED
from known_bugs.textbook import ELSEWHERE

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "known_bugs.md"

_HEAD = """\
# Known bugs

What [`k.check`](check.md) says of bugs that others have found: {public} with a public thread, and {pairs} pairs of the
textbooks. Each is rebuilt as a small kernel of our own, with a const that chooses between the bug and its mended twin.
A test runs all of them: the bug must be found with its code at its line, and its twin must be clean under two orders.
The kernels are in [tests/known_bugs](../tests/known_bugs). `python -m benchmarks.known_bugs --docs` writes this page,
and a test compares the two.

**The verdicts of compute-sanitizer have not been measured yet.** `python -m benchmarks.known_bugs` runs each kernel
under memcheck, racecheck and synccheck on a GPU, with a time limit, and writes the table of verdicts and times.

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
    head = _HEAD.format(
        public=public, pairs=pairs, found=found, findings=found - refused, refused=refused, missed=missed
    )
    lines = ["| bug | source | kernel | `k.check` |", "|---|---|---|---|"]
    for case in PUBLIC:
        lines.append(f"| {case.bug} | {_link(case.source)} | `{case.name}` | {_verdict(case)}{_options(case)} |")
    textbook = _TEXTBOOK.format(variants=2 * pairs, pairs=pairs, elsewhere=len(elsewhere))
    rows = ["| theme | pair | the racy one | `k.check` |", "|---|---|---|---|"]
    for case in TEXTBOOK:
        rows.append(f"| {case.source} | `{case.name}` | {case.bug} | {_verdict(case)}{_options(case)} |")
    for theme, name in elsewhere:
        rows.append(f"| {theme} | `{name}` | in tests/unit | T102 |")
    return head + "\n".join(lines) + "\n" + textbook + "\n".join(rows) + "\n" + _NOT_WRITTEN
