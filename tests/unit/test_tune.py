"""The tuner without a GPU: what is tried, what is pruned, what is on disk, what crashes and hangs."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cache_faults import one_warning
from tests.unit.tune_stubs import StubDevice, no_gpu, open_fake_builder, open_fake_timer, open_never, open_stub
from tiledsl.__main__ import main
from tiledsl.compilation import cache as cache_module
from tiledsl.errors import TileError
from tiledsl.inspect.contenders import Operands
from tiledsl.inspect.loading import load_kernel
from tiledsl.tune import command
from tiledsl.tune.products import Task, open_builder, size_of
from tiledsl.tune.search import search
from tiledsl.tune.space import space_of
from tiledsl.tune.workers import Worker, answered

ROOT = Path(__file__).parents[2]
KERNEL = """\
from tiledsl import Global, barrier, cdiv, const, grid, threads, shared, f32, tile_kernel, unroll
from tiledsl.dims import K, M, N

SPACE = {"tiled": {"T": (4, 8, 12), "U": (1, 2)}}


@tile_kernel
def tiled(A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N], *, T: const = 4, U: const = 1):
    assert T % 8 == 0 or U == 1, f"T={T} takes U=1, got {U}"
    bx, by = grid(cdiv(N, T), cdiv(M, T))
    tx, ty = threads(T, T)
    S = shared((T, T), f32)
    acc = f32(0)
    for k0 in range(0, K, T):
        S[ty, tx] = B.get(k0 + ty, bx * T + tx, other=0)
        barrier()
        for k in unroll(T):
            acc += A.get(by * T + ty, k0 + k, other=0) * S[k, tx]
        barrier()
    C.put(by * T + ty, bx * T + tx, acc if T != 12 else acc + 1)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "kernels.py"
    made.write_text(KERNEL)
    return made


def tune(file: Path, *arguments: str, gpu: Any = open_stub) -> int:
    """The command on a stub of a GPU."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    given = [
        str(file),
        *arguments,
        "--records",
        str(file.parent / "records.jsonl"),
        "--processes",
        "1",
        "--no-graph",
        "--cache",
        "hot",
    ]
    return command.run(parser.parse_args(given), gpu)


# -- processes -------------------------------------------------------------------------------------------


def test_a_process_may_crash_hang_or_raise_and_the_next_job_has_a_new_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = Worker(partial(open_fake_timer, str(log)), limit=2)
    try:
        assert worker.start() == {"device": "fake"}
        found: list[Any] = []
        for name, job in enumerate((("time", 3.0), ("crash", 0), ("hang", 0), ("raise", "some reason"), ("time", 4.0))):
            worker.give(job, name)
            ((_, same, answer),) = answered([worker])
            assert same == name
            found.append((answer.kind, answer.value))
    finally:
        worker.stop()
    assert [kind for kind, _ in found] == ["done", "died", "late", "raised", "done"]
    assert found[1][1] == "ended by SIGABRT: some last words" and found[2][1] == "not done after 2 s"
    assert found[3][1] == "ValueError: some reason" and found[4][1]["us"] == 4.0
    pids = log.read_text().split()
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_process_that_cannot_begin_is_an_error() -> None:
    with pytest.raises(TileError, match="could not begin: it ended with exit code 7"):
        Worker(open_never, 1).start()
    with pytest.raises(TileError, match="there is no GPU"):
        Worker(partial(no_gpu, "f32"), 1).start()


def test_all_candidates_have_a_result() -> None:
    """Whatever becomes of the processes that build and time them."""
    jobs = [
        *(("time", float(us)) for us in range(5, 8)),
        ("refuse", "too many registers"),
        ("crash", 0),
        ("crash in the compiler", 0),
        ("hang", 0),
        ("time", 2.0),
    ]
    timer = Worker(open_fake_timer, limit=1)
    try:
        results = dict(search(jobs, open_fake_builder, timer, processes=2))
    finally:
        timer.stop()
    outcomes = [results[number]["outcome"] for number in range(len(jobs))]
    assert outcomes == ["timed"] * 3 + ["refused", "crashed", "crashed", "hung", "timed"]
    assert results[0] == {"outcome": "timed", "us": 5.0, "registers": 32}
    assert [r for _, r in search(jobs[3:4], open_fake_builder, None)] == [
        {"outcome": "refused", "reason": "too many registers"}
    ]


# -- the space -------------------------------------------------------------------------------------------


def test_a_space_is_all_combinations(file: Path) -> None:
    kernel = load_kernel(file)
    space = space_of(kernel)
    assert len(space) == 6 and space.candidates()[1] == {"T": 4, "U": 2}
    assert space_of(kernel, ["T=16,32"]).values == {"T": (16, 32), "U": (1, 2)}


@pytest.mark.parametrize(
    ("declared", "settings", "message"),
    [
        ("", [], "tiled has no search space\n  fix: give CONST=VALUE,VALUE"),
        ('SPACE = {"tiled": {"Q": (1,)}}', [], "SPACE has 'Q', which is no const of tiled. It has: T, U"),
        ('SPACE = {"tiled": {"T": 1}}', [], "is {'tiled': {'T': 1}}\n  fix: write SPACE = "),
        ("SPACE = 3", [], "SPACE in the file of tiled is 3"),
        ('SPACE = {"tiled": {"T": ()}}', [], "T of tiled has no values"),
        ("", ["T=x"], "T=x: expected an int, got 'x'"),
        ("", ["Q=1"], "tiled has no open const 'Q'"),
        ("", ["T="], "'T=': expected CONST=VALUE,VALUE"),
        ("", ["T"], "'T=': expected CONST=VALUE,VALUE"),
        ('SPACE = {"tiled": {"T": range(400), "U": range(400)}}', [], "160000 combinations of consts; at most 100000"),
    ],
)
def test_spaces_that_are_none(tmp_path: Path, declared: str, settings: list[str], message: str) -> None:
    made = tmp_path / "kernels.py"
    made.write_text(re.sub("SPACE = .*\n", declared + "\n", KERNEL))
    with pytest.raises(TileError) as caught:
        space_of(load_kernel(made), settings)
    assert message in str(caught.value)


# -- builds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", ["NN", "NT", "TN"])
@pytest.mark.parametrize("kernel", ["tiledsl/gemm/ffma.py:fastest", "examples/gemm/naive.py:naive"])
def test_a_build_is_that_of_a_launch(kernel: str, stored: str) -> None:
    """What is built ahead is what the timing asks for."""
    name = kernel.rpartition(":")[2]
    tuned = Task(str(ROOT / kernel.partition(":")[0]), name, (), "f32", stored, "sm_90a").opened()
    device: Any = StubDevice()
    size = size_of((36, 20, 28))
    operands = Operands(device, size, 1)
    contender = tuned.contender_of({"EARLY": True} if name == "fastest" else {})
    dispatcher = tuned.kernel.dispatcher
    a, b = (x[0] for x in operands.stored(stored))
    c, roles = operands.results[0], contender.roles
    a, b, c = (x[None] if roles.batched else x for x in (a, b, c))
    given: dict[str, Any] = {p.name: None for p in tuned.kernel.signature.tensors if p.optional}
    given |= {roles.a: a, roles.b: b, roles.c: c, **contender.consts}
    expected = dispatcher.build_of(dispatcher.launcher.bind((), given), "sm_90a")
    assert tuned.build_of(size, contender.consts, "sm_90a") == expected


def test_what_is_refused_says_why(file: Path) -> None:
    task = Task(str(file), "", (), "", "", "sm_90a")
    build = open_builder(task)[1]
    results = [build(((8, 8, 8), number)) for number in range(6)]
    assert [r["outcome"] for r in results] == ["built", "refused", "built", "built", "built", "refused"]
    assert results[1]["reason"] == "assertion failed at compile time: T=4 takes U=1, got 2"
    assert results[0]["registers"] > 0 and results[2]["shared"] == 8 * 8 * 4


def test_a_file_that_changes_is_not_tuned_on(file: Path) -> None:
    task = Task(str(file), "", (), "", "", "sm_90a", code="0123")
    with pytest.raises(TileError, match="tiled has changed meanwhile\n  fix: run the same command again"):
        task.opened()


# -- the command -----------------------------------------------------------------------------------------


def test_the_whole_command_and_its_resumption(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--sizes", "9x8x7")
    assert tune(file, *sizes) == 0
    printed = capsys.readouterr().out
    assert "[6/6, " in printed and "T=8 U=2: " in printed and "; best " in printed
    assert "refused: assertion failed at compile time: T=4 takes U=1, got 2" in printed
    assert "9x8x7 f32 NN, hot, launched each by itself: 3 of 6 candidates timed" in printed
    assert "  2 refused: assertion failed at compile time: T=N takes U=N, got N\n" in printed
    assert "  1 wrong: " in printed and "speed / cuBLAS" in printed
    records = (file.parent / "records.jsonl").read_text().splitlines()
    assert len(records) == 6
    assert tune(file, *sizes) == 0
    again = capsys.readouterr().out
    assert "6 of 6 results are known" in again and "[" not in again.partition("\n")[0]
    # One is lost: it alone is tried again.
    (file.parent / "records.jsonl").write_text("\n".join(records[1:]) + "\n" + records[0][:50])
    assert tune(file, *sizes) == 0
    third = capsys.readouterr().out
    assert "1 records are ignored: damaged" in third and third.count("[6/6, ") == 1 and "[5/6" not in third
    assert len((file.parent / "records.jsonl").read_text().splitlines()) == 7


def test_records_of_another_gpu_are_named_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ("T=4", "U=1", "--sizes", "4", "--finalists", "0")
    assert tune(file, *only) == 0
    capsys.readouterr()
    assert tune(file, *only, gpu=partial(open_stub, name="another GPU")) == 0
    assert capsys.readouterr().out.count("1 records are ignored: of another device (stub GPU, here another GPU)") == 1


def test_nothing_is_left_of_a_space(file: Path) -> None:
    with pytest.raises(TileError) as caught:
        tune(file, "T=4,12", "U=2", "--sizes", "4")
    expected = "tune: of 2 candidates of tiled for 4x4x4 none is left\n"
    assert str(caught.value).startswith(expected + "  2 refused: assertion failed at compile time: T=N takes")
    assert str(caught.value).endswith("  fix: give other values of consts")


def test_builds_are_carried(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = file.parent / "kernels"
    one = ("U=1", "--kernels", str(kernels), "--sizes", "4")
    assert tune(file, *one, "--build", "sm_90a") == 0
    assert "3 of 3 built in " in capsys.readouterr().out
    assert len(list(kernels.glob("*.kernel"))) == 3
    # There is no assembler: all builds are from the folder.
    monkeypatch.setenv("TILEDSL_PTXAS", "/missing")
    monkeypatch.setenv("TILEDSL_CACHE", "0")
    assert tune(file, *one) == 0
    assert "2 of 3 candidates timed" in capsys.readouterr().out
    monkeypatch.delenv("TILEDSL_PTXAS")
    (kernels / "toolchain.txt").write_text("ptxas 1")
    with pytest.raises(TileError, match=r"none is left\n  1 refused: is not in "):
        tune(file, "U=1", "T=16", *one[1:])
    with pytest.raises(TileError, match="has builds of ptxas 1; here is ptxas"):
        tune(file, *one, "--build", "sm_90a")
    with pytest.raises(TileError, match="--build builds into a folder that is carried"):
        tune(file, "--build", "sm_90a")


def test_a_damaged_build_is_not_carried(file: Path) -> None:
    """A build of other consts is not carried either."""
    folder = file.parent / "kernels"
    tuned = Task(str(file), "", (), "", "", "sm_90a", kernels=str(folder)).opened()
    tuned.carried.begin()
    builds = [tuned.build_of(size_of((4, 4, 4)), {"T": tile, "U": 1}, "sm_90a") for tile in (4, 8)]
    for build in builds:
        tuned.carried.build(tuned.kernel, *build)
        assert tuned.carried.adopt(tuned.kernel, *build) is not None
    one, other = sorted(folder.glob("*.kernel"))
    whole = one.read_bytes()
    content = zlib.decompress(whole)
    changed = [zlib.compress(text) for text in (b"x", content[:-9], content[:40] + content[41:], content + b"x")]
    for damage in (b"", whole[:-1], whole + b"x", other.read_bytes(), *changed):
        cache_module._warned.clear()
        one.write_bytes(damage)
        with one_warning(f"{one.name} is damaged"):
            assert [tuned.carried.adopt(tuned.kernel, *build) for build in builds].count(None) == 1


def test_without_a_disk_cache_builds_need_a_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_CACHE", "0")
    with pytest.raises(TileError, match=r"without a disk cache, .*\n  fix: name a folder with --kernels"):
        tune(file)


def test_without_a_gpu_it_says_so(file: Path) -> None:
    with pytest.raises(TileError, match="there is no GPU"):
        tune(file, gpu=no_gpu)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "there is no Python file missing.py"),
        ([f"{ROOT}/examples/gemm/naive.py"], "naive has no search space"),
        ([f"{ROOT}/examples/gemm/naive.py", "--limit", "0"], "--limit is a time above 0"),
        ([f"{ROOT}/examples/gemm/naive.py", "--limit", "nan"], "got nan"),
        ([f"{ROOT}/examples/gemm/naive.py", "--limit", "inf"], "got inf"),
        ([f"{ROOT}/examples/gemm/shared_tiled.py", "T=8", "--sizes", "2x4x4x4"], "shared_tiled takes no batch"),
        ([f"{ROOT}/examples/gemm/shared_tiled.py", "T=8", "--build", "sm_1", "--kernels", "x"], "sm_1"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *arguments]) == 2
    assert message in capsys.readouterr().err


def _ignore_interrupts() -> None:
    """Ignore the signals that nohup, or the shell for a background job of a script, ignores before it starts it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def test_an_interruption_loses_nothing(file: Path) -> None:
    """SIGINT ends all processes of a tuner that was started with it ignored, and what was known is on disk."""
    text = f"""
import argparse
from tests.unit.tune_stubs import open_stub
from tests.unit.test_tune import tune
from pathlib import Path
tune(Path({str(file)!r}), "T=4,8,16,20,24,28", "U=1,2,4", "--sizes", "64")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    tuner = subprocess.Popen(
        [sys.executable, "-c", text],
        env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=_ignore_interrupts,
    )  # fmt: skip
    assert tuner.stdout is not None
    children: list[int] = []
    for line in tuner.stdout:
        if line.startswith("[2/18"):
            listed = subprocess.run(["ps", "-eo", "ppid=,pid="], capture_output=True, text=True, check=True).stdout
            pairs = [tuple(map(int, row.split())) for row in listed.splitlines()]
            children = [pid for parent, pid in pairs if parent == tuner.pid]
            tuner.send_signal(signal.SIGHUP)  # stays ignored
            tuner.send_signal(signal.SIGINT)
            break
    rest = tuner.stdout.read()
    assert tuner.wait(30) != 0
    known = re.search(r"(\d+) of 18 results are in", rest)
    assert known is not None and "the same command goes on from there" in rest
    written = (file.parent / "records.jsonl").read_text()
    assert len(written.splitlines()) == int(known[1]) >= 2 and written.endswith("\n")
    assert len(children) == 2, "one builds, one times"
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


INTERRUPTED = """
import os, signal
from tiledsl.tune.interruptions import held, interruptible, use_default_signals
number = getattr(signal, {name!r})
before, done = signal.getsignal(number), []
try:
    with interruptible():
        try:
            with held():
                os.kill(os.getpid(), number)
                done.append("held")
            done.append("not stopped")
        finally:
            os.kill(os.getpid(), number)
            done.append("ended")
except KeyboardInterrupt:
    done.append("interrupted")
assert signal.getsignal(number) == before
print(*done, flush=True)
use_default_signals()
os.kill(os.getpid(), number)
"""


@pytest.mark.parametrize(
    ("name", "ignored", "expected"),
    [
        ("SIGINT", False, "held ended interrupted"),
        ("SIGINT", True, "held ended interrupted"),
        ("SIGTERM", True, "held ended interrupted"),
        ("SIGHUP", False, "held ended interrupted"),
        ("SIGHUP", True, "held not stopped ended"),
    ],
)
def test_a_signal_stops_the_tuner_once_and_outside_what_is_held(name: str, ignored: bool, expected: str) -> None:
    """A later signal does not disturb the end; a process that the tuner starts has default signals."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(name=name)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(getattr(signal, name), signal.SIG_IGN if ignored else signal.SIG_DFL),
    )  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == (expected, -getattr(signal, name)), done.stderr
