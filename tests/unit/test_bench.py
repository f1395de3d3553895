"""``python -m tiledsl bench`` without a GPU: what counts as a product, what is compared, and how it is shown.

The device is NumPy with a clock; kernels run on the emulator.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tiledsl.__main__ import main
from tiledsl.errors import TileError
from tiledsl.inspect import bench, timing
from tiledsl.inspect.contenders import Operands, Size, cublas, format_of, read_contender, read_roles
from tiledsl.inspect.loading import load_kernel
from tiledsl.inspect.plots import Roof, ladder, roofline
from tiledsl.inspect.timing import interleave

ROOT = Path(__file__).parents[2]
NAIVE = f"{ROOT}/examples/gemm/naive.py"

HEAD = """\
from typing import TypeVar
from tiledsl import Global, const, grid, threads, f32, bf16, i32, tile_kernel
from tiledsl.dims import K, M, N
X = TypeVar("X")
"""
BODY = """
    m, n = grid(M, N)
    threads(1)
    acc = f32(0)
    for k in range(K):
        acc += {a} * {b}
    {c} = acc
"""
NT = (
    HEAD
    + "\n@tile_kernel\ndef nt(A: Global[f32, M, K], B: Global[f32, N, K], C: Global[f32, M, N]):"
    + BODY.format(a="A[m, k]", b="B[n, k]", c="C[m, n]")
)


class HostDevice:
    """NumPy arrays, and a clock that the launches move by themselves."""

    format, itemsizes, blank = "f32", (4, 4), float("nan")

    def __init__(self, refused: str = "") -> None:
        self.refused, self.orders = refused, list[str]()

    def normal(self, rows: int, columns: int, seed: int, batch: int = 0) -> Any:
        shape = (batch, rows, columns) if batch else (rows, columns)
        return np.random.default_rng(seed).standard_normal(shape, np.float32)

    def transposed(self, array: Any) -> Any:
        return array.swapaxes(-1, -2)

    def restored(self, array: Any) -> Any:
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)

    def empty(self, rows: int, columns: int, batch: int = 0) -> Any:
        return np.full((batch, rows, columns) if batch else (rows, columns), self.blank, np.float32)

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        order = "".join("N" if x.flags.c_contiguous else "T" for x in (a, b))
        self.orders.append(order)
        if order == self.refused:
            raise RuntimeError("layout not supported")
        np.matmul(a, b, out=out)
        if order != "NT":
            time.sleep(0.002)

    def worst_share(self, out: Any, a: Any, b: Any) -> float:
        exact = a.astype(np.float64) @ b.astype(np.float64)
        share = np.abs(out - exact) / (1e-5 * np.maximum(1, np.abs(a).astype(np.float64) @ np.abs(b)))
        return float(np.nan_to_num(share, nan=np.inf).max())

    def synchronize(self) -> None: ...

    def event(self) -> list[float]:
        return [0.0]

    def record(self, event: list[float]) -> None:
        event[0] = time.perf_counter()

    def milliseconds(self, start: list[float], end: list[float]) -> float:
        return 1e3 * (end[0] - start[0])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    """Stands in for the GPU that the command would open."""
    found = HostDevice()
    gpu = SimpleNamespace(
        devices=[SimpleNamespace(name="Some GPU", capability=(9, 0), processors=132, handle=0)],
        current_device=lambda: 0,
        check=lambda result, action: result[1],  # pyright: ignore[reportUnknownLambdaType]
        cu=SimpleNamespace(
            CUdevice_attribute=SimpleNamespace(CU_DEVICE_ATTRIBUTE_CLOCK_RATE=13),
            cuDeviceGetAttribute=lambda which, handle: (0, 1_980_000),  # pyright: ignore[reportUnknownLambdaType]
        ),
    )
    monkeypatch.setattr(bench, "driver", lambda: gpu)
    monkeypatch.setattr(bench, "open_device", lambda format: found)
    monkeypatch.setattr(timing, "L2_BYTES", 1 << 12)
    monkeypatch.setattr(bench, "COPIED", 1 << 20)
    return found


# -- what is compared ------------------------------------------------------------------------------------


def write(folder: Path, text: str, name: str = "kernels.py") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_product_is_read_off_the_names_of_its_dimensions(tmp_path: Path) -> None:
    roles = read_roles(load_kernel(Path(NAIVE)))
    assert (roles.a, roles.b, roles.c, roles.layout) == ("A", "B", "C", "NN")
    roles = read_roles(load_kernel(write(tmp_path, NT)))
    assert roles.layout == "NT"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("A: Global[f32, M, K], C: Global[f32, M, N]", "is no product that it knows"),
        ("A: Global[f32, M, K], B: Global[f32, M, K], C: Global[f32, M, N]", "is no product that it knows"),
        ("A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M]", "k(A[M, K], B[K, N], C[M])"),
        ("A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N], s: i32", "k needs s"),
    ],
)
def test_what_is_no_product(tmp_path: Path, parameters: str, message: str) -> None:
    file = write(tmp_path, f"{HEAD}\n@tile_kernel\ndef k({parameters}):\n    grid(1)\n    threads(1)\n")
    with pytest.raises(TileError, match=r"\n  fix: ") as caught:
        read_contender(str(file))
    assert message in str(caught.value)


def test_consts_are_part_of_a_contender() -> None:
    tiled = f"{ROOT}/examples/gemm/shared_tiled.py"
    contender = read_contender(f"{tiled}:shared_tiled:T=32")
    assert (contender.label, contender.consts) == ("shared_tiled T=32", {"T": 32})
    with pytest.raises(TileError, match="no open const 'Q'"):
        read_contender(f"{tiled}:shared_tiled:Q=1")


def test_a_kernel_may_choose_its_consts_by_the_size() -> None:
    contender = read_contender(f"{ROOT}/examples/gemm/fastest.py")
    small, large = (contender.consts_for(Size(n, n, n), "f32") for n in (1000, 4096))
    assert small != large and small["SLICES"] > 1
    fixed = read_contender(f"{ROOT}/examples/gemm/fastest.py:fastest:BM=64")
    assert fixed.consts_for(Size(4096, 4096, 4096), "f32") == {"BM": 64}


def test_the_format_is_that_of_the_kernels_or_asked_for(tmp_path: Path) -> None:
    declared = read_contender(NAIVE)
    generic = NT.replace("f32, M, K", "X, M, K").replace("f32, N, K", "X, N, K").replace("f32, M, N", "X, M, N")
    open_ = read_contender(str(write(tmp_path, generic)))
    assert format_of([declared]) == format_of([open_, declared]) == "f32"
    assert format_of([open_], "bf16") == "bf16"
    with pytest.raises(TileError, match="the dtypes of nt are open\n  fix: give --format"):
        format_of([open_])
    with pytest.raises(TileError, match="naive has f32, where a product of bf16 has bf16"):
        format_of([declared], "bf16")


def test_kernels_get_operands_as_they_declare_them(tmp_path: Path) -> None:
    """B as [N, K] in row order: the same product as for a kernel that wants it as [K, N]."""
    device: Any = HostDevice()
    operands = Operands(device, Size(3, 5, 7), 2)
    seen: list[Any] = []
    contender = read_contender(str(write(tmp_path, NT)))
    launch = contender.launcher(operands)
    operands.check("nt", launch)
    (a, b), c = operands.stored("NT"), operands.results
    seen += [a[0].shape, b[0].shape, c[0].shape]
    assert seen == [(3, 7), (7, 5), (3, 5)]
    assert b[0].T.flags.c_contiguous
    assert np.array_equal(b[0], operands.stored("NN")[1][0])
    assert not np.array_equal(a[0], a[1])  # each set has numbers of its own


def test_a_wrong_result_is_not_timed() -> None:
    device: Any = HostDevice()
    operands = Operands(device, Size(4, 4, 4), 1)
    with pytest.raises(TileError, match="wrong at 4x4x4 is wrong: inf times its error bound"):
        operands.check("wrong", lambda number: None)


def test_cublas_runs_in_its_fastest_layout() -> None:
    device: Any = HostDevice()
    assert cublas(Operands(device, Size(32, 16, 8), 1))[0] == "NT"
    assert set(device.orders) == {"NN", "NT", "TN", "TT"}
    refusing: Any = HostDevice(refused="NT")
    assert cublas(Operands(refusing, Size(32, 16, 8), 1))[0] != "NT"


def test_a_burst_rests_before_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """And launches once more than is timed, to wake up what has gone to sleep."""
    device: Any = HostDevice()
    log: list[str] = []
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: log.append(f"rest {seconds}"))  # pyright: ignore[reportUnknownLambdaType]
    interleave(device, {"a": lambda number: log.append("launch")}, rounds=2, seconds=1e-7, rest=0.15)
    assert log[-6:] == ["rest 0.15", "launch", "launch"] * 2


# -- the command -----------------------------------------------------------------------------------------


def test_the_whole_command(device: HostDevice, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nt, out = write(tmp_path, NT), tmp_path / "out.json"
    arguments = ["--sizes", "8", "9x8x7", "--rounds", "2", "--seconds", "0.001", "--json", str(out)]
    assert main(["bench", NAIVE, str(nt), *arguments, "--cache", "cold", "hot"]) == 0
    printed = capsys.readouterr().out
    assert "| kernel " in printed and "f32, cold, sustained" in printed and "f32, hot, sustained" in printed
    assert "naive: geometric mean" in printed and re.search(r"the roof is 67 TFLOP/s and \d+\.\d\d TB/s", printed)
    found = json.loads(out.read_text())
    assert [c["kernel"] for c in found["cases"][:3]] == ["cuBLAS", "naive", "nt"]
    assert len(found["cases"]) == 3 * 2 * 2 and {c["cache"] for c in found["cases"]} == {"cold", "hot"}
    assert all(c["ratio"] == 1 for c in found["cases"] if c["kernel"] == "cuBLAS")
    case = found["cases"][1]
    assert case["tflops"] == pytest.approx(2e-9 * 8**3 / case["ms"], rel=0.01)
    assert case["intensity"] == pytest.approx(2 * 8**3 / (4 * 3 * 8**2))


def test_kernels_against_each_other(device: HostDevice, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nt = write(tmp_path, NT)
    fast = ["--sizes", "8", "--rounds", "1", "--seconds", "0.001"]
    assert main(["bench", NAIVE, str(nt), *fast, "--base", "nt"]) == 0
    assert "speed / nt" in capsys.readouterr().out
    assert main(["bench", NAIVE, *fast, "--base", "nothing"]) == 2
    assert "no contender 'nothing'; there are naive" in capsys.readouterr().err
    assert main(["bench", NAIVE, "--sizes", "2x8x8x8"]) == 2
    assert "naive takes no batch\n  fix: give MxNxK" in capsys.readouterr().err


def test_each_in_its_best_storage(device: HostDevice, tmp_path: Path) -> None:
    """--stored best is for kernels what cuBLAS has always; otherwise all have what is asked for."""
    text = """
import time

def product(A, B, C):
    C[...] = A @ B
    time.sleep(0 if (A.flags.c_contiguous, B.flags.c_contiguous) == (False, True) else 0.002)
"""
    file, out = write(tmp_path, text, "product.py"), tmp_path / "out.json"
    fast = ["--rounds", "1", "--seconds", "0.001", "--sizes", "32x16x8", "--format", "f32", "--json", str(out)]
    for asked, expected in (("best", "TN"), ("NT", "NT")):
        assert main(["bench", f"{file}:product", *fast, "--stored", asked]) == 0
        cases = json.loads(out.read_text())["cases"]
        assert [case["stored"] for case in cases] == [{"product": expected}] * 2
        assert cases[0]["layout"] == "NT"


def test_what_cannot_run_is_left_out(device: HostDevice, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    eight = HEAD + "\n@tile_kernel\ndef eight(A: Global[f32, M, K], B: Global[f32, K, 8], C: Global[f32, M, 8]):"
    file = write(
        tmp_path, eight + BODY.format(a="A[m, k]", b="B[k, n]", c="C[m, n]").replace("grid(M, N)", "grid(M, 8)")
    )
    fast = ["--rounds", "1", "--seconds", "0.001"]
    assert main(["bench", NAIVE, str(file), "--sizes", "9x8x7", "9x9x7", *fast]) == 0
    printed = capsys.readouterr().out
    assert "eight at 9x9x7: left out: NN: eight(): B has shape (7, 9); axis 1 of [K, 8] is fixed at 8" in printed
    assert printed.count("| eight ") == 1 and printed.count("| naive ") == 2


def test_without_a_gpu_or_a_library_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench", NAIVE]) == 1
    expected = r"a benchmark needs an NVIDIA GPU, and torch for arrays and cuBLAS: .*torch"
    assert re.match(expected, capsys.readouterr().err)


@pytest.mark.parametrize("text", ["x", "1x2", "0", "1x2x3x4x5"])
def test_sizes_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", NAIVE, "--sizes", text])
    assert f"expected N, MxNxK or BATCHxMxNxK, got '{text}'" in capsys.readouterr().err


# -- plots -----------------------------------------------------------------------------------------------


def test_a_ladder_has_bars_in_proportion() -> None:
    text = ladder("4096", {"naive": 100.0, "tuned": 800.0, "cuBLAS": 400.0}, "cuBLAS", width=40)
    bars = {line.split()[0]: line.count("█") for line in text.splitlines()[1:]}
    assert bars == {"naive": 5, "tuned": 40, "cuBLAS": 20}
    assert "2.000" in text and "0.250" in text


def test_a_roofline_has_points_below_its_roof() -> None:
    roof = Roof(1000.0, 4.0)
    assert (roof.at(10), roof.at(1000), Roof(0, 4.0).at(1000)) == (40, 1000, 4000)
    points = [("slow", 600, 10), ("fast", 600, 500), ("fast", 20, 30)]
    lines = roofline("title", roof, points).splitlines()
    row = {letter: next(i for i, line in enumerate(lines) if f"{letter}" in line[10:]) for letter in "ab"}
    roof_row = next(i for i, line in enumerate(lines) if "___" in line)
    assert roof_row < row["b"] < row["a"]
    assert "a slow, b fast" in lines[-1]
