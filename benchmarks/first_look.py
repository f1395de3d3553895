"""How long it takes to see something: commands from a cold shell, a page in a browser, and a newcomer's first report.

    python -m benchmarks.first_look                    # needs no GPU; the browser's figures need `make browser` once
    python -m benchmarks.first_look --install          # a newcomer's steps too, in an environment of their own

Each command is a new process whose disk cache is empty. Of the browser: from the navigation to the first paint, and
until the script has drawn all, of a fresh page; from a click until the page is laid out again, the median of some, of
the slowest pane.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gallery import chosen_consts, dtype_settings
from benchmarks.report import RESULTS, table, write
from benchmarks.static_report import SIZE, labelled_kernels
from tiledsl.errors import CompileError

__all__ = ["main"]

ROOT = Path(__file__).parent.parent
HOPPER = [
    "examples/gemm/hopper_fastest.py:hopper_fastest",
    "--dtype",
    "D=bf16",
    "--dtype",
    "E=bf16",
    "--dtype",
    "F=bf16",
]
CHECKED = [option for size in ("M=256", "N=256", "K=512", "L=1") for option in ("--check", size)]
LARGE = "tests/browser/kernels.py:large"
PANES = ("Python", "IR", "PTX", "SASS")

PAINTED = "performance.getEntriesByName('first-contentful-paint').length"
CLICKS = """(pane) => [3, 5, 4, 6, 3, 5, 4].map((i) => {
    const row = document.querySelectorAll(`section[aria-label="${pane}"] .row`)[i], begun = performance.now();
    row.click();
    document.body.getBoundingClientRect();
    return performance.now() - begun;
})"""
PAINTS = """() => [performance.getEntriesByName("first-contentful-paint")[0].startTime,
    performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd]"""

Row = tuple[str, float, float, str]
"""(what, value, most, unit)"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--install", action="store_true", help="a newcomer's steps: some 300 MB of wheels")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    rows: list[Row] = []
    details: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        rows += _commands(Path(folder), args.repeats)
        rows += _pages(Path(folder), args.repeats)
    shares = dict(_unmapped())
    worst = max(shares.values())
    rows.append(("SASS without a Python line, the worst kernel of the gallery", worst, 5.0, "%"))
    details["sass_without_a_line_percent"] = shares
    if args.install:
        steps = _newcomer()
        rows.append(("a newcomer, from pip install to a first report", sum(steps.values()), 180.0, "s"))
        details["newcomer_seconds"] = steps
    shown = [
        (what, f"{n:.3g} {unit}", f"{most:g} {unit}", "" if n <= most else "missed") for what, n, most, unit in rows
    ]
    text = table(("figure", "measured", "at most", ""), shown)
    figures = [{"figure": what, "value": value, "most": most, "unit": unit} for what, value, most, unit in rows]
    write("first_look", "How long until something is seen", text, {"figures": figures, **details}, args.out)
    return int(any(value > most for _, value, most, _ in rows))


def _commands(folder: Path, repeats: int) -> Iterator[Row]:
    for stage in ("ir", "ptx", "sass"):
        seconds = _median([_seconds(["show", *HOPPER, "--stage", stage]) for _ in range(repeats)])
        yield f"show hopper_fastest --stage {stage}, cold shell", seconds, 1.0, "s"
    for name, options in (("report", []), ("report --check", CHECKED)):
        page = folder / "hopper.html"
        seconds = _median([_seconds(["report", *HOPPER, *options, "-o", str(page)]) for _ in range(repeats)])
        yield f"{name} of hopper_fastest, cold shell", seconds, 5.0, "s"
        yield f"its size ({name})", page.stat().st_size / 1e6, 3.0, "MB"
    _seconds(["report", LARGE, "-o", str(folder / "large.html")])


def _seconds(command: Sequence[str]) -> float:
    """Of a new process, with nothing in the disk cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TILEDSL_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
        begun = time.perf_counter()
        run = [sys.executable, "-m", "tiledsl", *command]
        subprocess.run(run, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begun


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _pages(folder: Path, repeats: int) -> Iterator[Row]:
    from tests.browser.chromium import chromium

    with chromium() as browser:
        for name, what in (("hopper", "hopper_fastest"), ("large", "20,014 instructions")):
            painted: list[list[float]] = []
            for _ in range(repeats):
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                page.goto((folder / f"{name}.html").as_uri())
                while not page.evaluate(PAINTED):  # the page's policy forbids what wait_for_function does
                    page.wait_for_timeout(10)
                painted.append(page.evaluate(PAINTS))
                if len(painted) < repeats:
                    page.close()
            yield f"{what}: first paint", _median([first for first, _ in painted]), 1000.0, "ms"
            yield f"{what}: all drawn", _median([drawn for _, drawn in painted]), 1000.0, "ms"
            clicks = {pane: _median(page.evaluate(CLICKS, pane)) for pane in PANES}
            yield f"{what}: a click, the slowest pane", max(clicks.values()), 50.0, "ms"


def _unmapped() -> Iterator[tuple[str, float]]:
    """The share of instructions without a Python line, in percent, of every kernel, variant and format."""
    for label, format, kernel, consts in labelled_kernels():
        target = kernel.signature.arch or "sm_90a"
        try:
            chosen = chosen_consts(kernel.name, consts, SIZE, format, arch=target)
            found = kernel.compile(arch=target, **dtype_settings(kernel, format), **chosen).explain("sass")
        except CompileError:
            continue
        lines = [each.loc is None or not each.loc.line for each in found.program.instructions]
        yield label, 100 * sum(lines) / len(lines)


def _newcomer() -> dict[str, float]:
    """Seconds of each step in an empty folder. Packages come from where pip gets them."""
    steps: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        binary = home / "venv" / "bin"
        steps_taken: tuple[tuple[str, list[str]], ...] = (
            ("python -m venv venv", [sys.executable, "-m", "venv", "venv"]),
            ("pip install tiledsl", [f"{binary}/pip", "install", "--no-cache-dir", "--quiet", str(ROOT)]),
            ("tiledsl doctor", [f"{binary}/tiledsl", "doctor"]),
            ("tiledsl gallery new first.py", [f"{binary}/tiledsl", "gallery", "new", "first.py"]),
            ("python first.py", [f"{binary}/python", "first.py"]),
            ("tiledsl report first.py", [f"{binary}/tiledsl", "report", "first.py"]),
        )
        for name, command in steps_taken:
            begun = time.perf_counter()
            environment = {**os.environ, "TILEDSL_CACHE_DIR": f"{home}/cache", "PYTHONPATH": ""}
            subprocess.run(command, check=True, cwd=home, env=environment, stdout=subprocess.DEVNULL)
            steps[name] = time.perf_counter() - begun
        assert [*home.glob("*.html")]
    return steps


if __name__ == "__main__":
    raise SystemExit(main())
