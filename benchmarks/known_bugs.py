"""Known bugs of GPU kernels under compute-sanitizer, beside the verdict of `k.check`. Needs a GPU.

    python -m benchmarks.known_bugs                    # all; --jobs 8, --gpus 1 and --seconds 30 by default
    python -m benchmarks.known_bugs --only NAME NAME   # some
    python -m benchmarks.known_bugs --docs             # write docs/known_bugs.md; needs no GPU

Each kernel of tests/known_bugs runs with its bug and mended, without a tool and under each: a process each, which is
killed after a time limit, since a bug may hang or end its context. Those that the compiler refuses do not run. What has
been measured is kept in known_bugs.jsonl, so that a run that was cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, table, write

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from known_bugs import PUBLIC, TEXTBOOK, Case  # noqa: E402
from known_bugs.case import REFUSED  # noqa: E402
from known_bugs.page import PAGE, page  # noqa: E402

__all__ = ["main", "verdict"]

TOOLS = ("", "memcheck", "racecheck", "synccheck")
"""The first is a run without a tool."""
FOUND = 99
"""Exit status of compute-sanitizer where it reports an error."""
CASES = {case.name: case for case in (*PUBLIC, *TEXTBOOK)}


def launch(name: str, safe: bool) -> None:
    """Run one kernel on the GPU, once."""
    case = CASES[name]
    case.kernel(**{**case.arguments(safe), case.const: safe}, device="gpu")


def verdict(status: int | None) -> str:
    """What a tool's exit status says; None: it was killed at the time limit."""
    if status is None:
        return "hangs"
    return {0: "clean", FOUND: "errors"}.get(status, "fails")


def measured(sanitizer: str, name: str, safe: bool, tool: str, seconds: float, gpu: int) -> dict[str, Any]:
    """The verdict and the time of one process on this GPU, with the end of what it printed."""
    tool_of = [sanitizer, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", str(FOUND)]
    under = tool_of if tool else []
    command = [*under, sys.executable, "-m", "benchmarks.known_bugs", "--launch", name, str(int(safe))]
    started = time.perf_counter()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=env, **pipes)
    try:
        text, status = process.communicate(timeout=seconds)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # compute-sanitizer has children; this group is the process's own
        text, status = process.communicate()[0], None
    took = round(time.perf_counter() - started, 2)
    return {"name": name, "safe": safe, "tool": tool, "verdict": verdict(status), "seconds": took, "text": text[-1500:]}


def checked(case: Case) -> tuple[str, float]:
    """What `k.check` says of the bug, and its time."""
    started = time.perf_counter()
    result = case.check(safe=False, seeds=case.seeds)
    codes = ", ".join(sorted({finding.code for finding in result.findings}))
    return codes or ("refused" if result.verdict == "error" else result.verdict), time.perf_counter() - started


def tabled(done: dict[tuple[str, bool, str], dict[str, Any]], names: list[str]) -> str:
    head = ["kernel", "`k.check`", "s", *(tool or "run" for tool in TOOLS), "mended", "s of the tools"]
    rows: list[list[str]] = []
    for name in names:
        codes, seconds = checked(CASES[name])
        bug = [done.get((name, False, tool)) for tool in TOOLS]
        twin = [done.get((name, True, tool)) for tool in TOOLS]
        mended = sorted({each["verdict"] for each in twin if each})
        total = sum(each["seconds"] for each in bug[1:] if each)
        cells = [each["verdict"] if each else "" for each in bug]
        rows.append([f"`{name}`", codes, f"{seconds:.2f}", *cells, ", ".join(mended), f"{total:.1f}"])
    return table(head, rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("--gpus", type=int, default=1, help="on which they take turns")
    parser.add_argument("--seconds", type=float, default=30, help="time limit of a process")
    parser.add_argument("--sanitizer", default=shutil.which("compute-sanitizer"), help="its path")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--docs", action="store_true", help="write docs/known_bugs.md, and nothing else")
    parser.add_argument("--launch", nargs=2, metavar=("NAME", "SAFE"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.docs:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if args.launch:
        launch(args.launch[0], bool(int(args.launch[1])))
        return 0
    if not args.sanitizer:
        raise SystemExit("compute-sanitizer is not on the PATH\n  fix: pass --sanitizer PATH, of a CUDA toolkit")
    os.environ.setdefault("TILEDSL_MAX_STEPS", "5000")

    args.out.mkdir(parents=True, exist_ok=True)
    log = args.out / "known_bugs.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    done = {(each["name"], each["safe"], each["tool"]): each for each in map(json.loads, lines)}
    todo = [
        (name, safe, tool)
        for name in args.only
        for safe in (True, False)
        for tool in TOOLS
        if (name, safe, tool) not in done and (safe or CASES[name].codes != REFUSED)
    ]
    with ThreadPoolExecutor(args.jobs) as pool, log.open("a") as file:
        gpus = [at % args.gpus for at in range(len(todo))]
        for each in pool.map(lambda what, gpu: measured(args.sanitizer, *what, args.seconds, gpu), todo, gpus):
            done[each["name"], each["safe"], each["tool"]] = each
            file.write(json.dumps(each) + "\n")
            file.flush()
    title = "Known bugs: k.check and compute-sanitizer"
    write("known_bugs", title, tabled(done, args.only), {"seconds": args.seconds, "jobs": args.jobs}, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
