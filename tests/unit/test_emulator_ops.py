"""The other op families on the emulator: warps, debugging, raw PTX, fragments, traces."""

from __future__ import annotations

import io
import math
import sys
from typing import Any

import numpy as np
import pytest
from emulator_kernels import naive_tile
from numpy.typing import NDArray

from tiledsl.backends.emulator import Options, run
from tiledsl.errors import EmulatorError, KernelArgumentError
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel

HEAD = "%t = gpu.thread_id {axis = 0} : index\n%ti = arith.cast %t {to = i32} : i32\n"


def kernel(body: str, threads: str = "64", grid: str = "1", dtype: str = "i32") -> Kernel:
    head = f"kernel k(%x: global<{dtype}, [N], unit=0, align=4>) grid({grid}) threads({threads})"
    return parse_kernel(f"{head} {{\n{HEAD}{body}\ncontrol.return\n}}")


def result(body: str, threads: int = 64, dtype: str = "i32") -> NDArray[Any]:
    x = np.zeros(threads, {"i32": np.int32, "u32": np.uint32, "f32": np.float32, "bool": np.bool_}[dtype])
    run(kernel(body + "\ntile.store %x, %t, %r", str(threads), dtype=dtype), {"x": x})
    return x


# -- warps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [32, 8])
@pytest.mark.parametrize("mode", ["idx", "up", "down", "xor"])
@pytest.mark.parametrize("amount", [0, 1, 3, 31])
def test_shuffles(mode: str, amount: int, width: int) -> None:
    x = result(
        f'%l = arith.constant {amount} : i32\n%r = warp.shuffle %ti, %l {{mode = "{mode}", width = {width}}} : i32'
    )
    for t in range(64):
        lane, start = t % width, t - t % width
        source = {"idx": amount % width, "up": lane - amount, "down": lane + amount, "xor": lane ^ amount}[mode]
        assert x[t] == (start + source if 0 <= source < width else t)


def test_votes_and_lanes_that_the_block_does_not_have() -> None:
    limit = "%c = arith.constant 35 : i32\n%p = arith.{} %ti, %c : bool\n"
    x = result(limit.format("lt") + '%r = warp.vote %p {mode = "ballot"} : u32', 40, "u32")
    assert x[0] == 0xFFFFFFFF
    assert x[39] == 0b111
    assert result(limit.format("lt") + '%r = warp.vote %p {mode = "all"} : bool', 40, "bool").sum() == 32
    assert result(limit.format("ge") + '%r = warp.vote %p {mode = "any"} : bool', 40, "bool").sum() == 8
    assert result(
        '%c = arith.constant 0 : i32\n%p = arith.ge %ti, %c : bool\n%r = warp.vote %p {mode = "all"} : bool', 40, "bool"
    ).all()


def test_a_shuffle_in_part_of_a_warp_is_an_error() -> None:
    body = """
    %c = arith.constant 5 : i32
    %p = arith.lt %ti, %c : bool
    control.if %p {
      %r = warp.shuffle %ti, %c {mode = "idx"} : i32
      control.yield
    } else { control.yield }
    """
    with pytest.raises(EmulatorError, match="takes part with all 32 lanes"):
        run(kernel(body), {"x": np.zeros(1, np.int32)})


def test_positions_in_three_dimensions() -> None:
    """Every thread writes its linear index at the place that its coordinates name."""
    grid, threads = (5, 6, 2), (2, 3, 4)
    extents = {"tx": 2, "ty": 3, "tz": 4, "bx": 5, "by": 6, "bz": 2}
    lines = ["%w = gpu.warp_id : index", "%l = gpu.lane_id : index", "%c32 = arith.constant 32 : index"]
    lines += ["%wl = arith.mul %w, %c32 : index", "%linear = arith.add %wl, %l : index"]
    lines += ["%li = arith.cast %linear {to = i32} : i32", "%sum_bz = gpu.block_id {axis = 2} : index"]
    above = "bz"
    for name in ("by", "bx", "tz", "ty", "tx"):
        kind = "block" if name[0] == "b" else "thread"
        lines += [
            f"%{name} = gpu.{kind}_id {{axis = {'xyz'.index(name[1])}}} : index",
            f"%n_{name} = arith.constant {extents[name]} : index",
            f"%mul_{name} = arith.mul %sum_{above}, %n_{name} : index",
            f"%sum_{name} = arith.add %mul_{name}, %{name} : index",
        ]
        above = name
    lines.append("tile.store %x, %sum_tx, %li")
    x = np.zeros(24 * 60, np.int32)
    run(kernel("\n".join(lines), ", ".join(map(str, threads)), ", ".join(map(str, grid))), {"x": x})
    np.testing.assert_array_equal(x, np.tile(np.arange(24), 60))


# -- debugging -------------------------------------------------------------------------------------


def test_print_is_in_thread_order_and_looks_like_python() -> None:
    out = io.StringIO()
    body = """
    %c = arith.constant 2 : i32
    %p = arith.lt %ti, %c : bool
    control.if %p {
      %f = arith.constant 0.10000000149011612 : f32
      debug.print %ti, %f, %p {format = "t = {}, {} {}"}
      control.yield
    } else { control.yield }
    """
    run(kernel(body, grid="2"), {"x": np.zeros(1, np.int32)}, options=Options(stdout=out))
    assert out.getvalue() == "t = 0, 0.1 True\nt = 1, 0.1 True\n" * 2


def test_assert_names_the_message_and_the_thread() -> None:
    body = '%c = arith.constant 40 : i32\n%p = arith.lt %ti, %c : bool\ndebug.assert %p {message = "too many"}'
    with pytest.raises(
        EmulatorError, match=r"assertion failed: too many; thread \(40, 0, 0\) of block \(0, 0, 0\) and 23"
    ):
        run(kernel(body), {"x": np.zeros(1, np.int32)})


def test_breakpoint_shows_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def hook() -> None:
        frame = sys._getframe(1)
        seen.update(frame.f_locals, line=frame.f_lineno, file=frame.f_code.co_filename, name=frame.f_code.co_name)

    monkeypatch.setattr(sys, "breakpointhook", hook)
    k = kernel('%d = arith.add %ti, %ti : i32\ndebug.breakpoint %d, %t {names = ("double", "t")}', "4")
    line = next(op.loc for op in k.walk() if op.name == "debug.breakpoint")
    run(k, {"x": np.zeros(1, np.int32)})
    assert seen["double"].tolist() == [0, 2, 4, 6]
    assert seen["thread"].tolist() == [[t, 0, 0] for t in range(4)]
    assert (seen["line"], seen["file"]) == (max(line.line, 1), line.file)
    assert seen["name"] == (line.function or "<kernel>")


def test_trace_of_one_thread() -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    options = Options(trace=((0, 0), (1, 2)))
    rows = run(naive_tile(), {"A": a, "B": a.T.copy(), "C": np.zeros((3, 3), np.float32)}, options=options).trace
    sums = [float(r.values[0]) for r in rows if r.name == "arith.fma"]
    assert sums == np.cumsum(a[2] * a[1]).tolist()
    assert [r.loc.line for r in rows if r.name == "arith.fma"] == [5] * 4
    assert rows[-1].name == "tile.put"
    assert str(rows[-1]) == f"line {rows[-1].loc.line}: tile.put"
    assert str(next(r for r in rows if r.name == "arith.fma")) == f"line 5: arith.fma {sums[0]}"
    with pytest.raises(KernelArgumentError, match="trace: block"):
        run(naive_tile(), {"A": a, "B": a.T.copy(), "C": np.zeros((3, 3), np.float32)}, options=Options(trace=(1, 0)))


# -- raw PTX and fragments -------------------------------------------------------------------------

LOP3 = """%r = ptx.inline %ti, %ti {{text = "add.s32 $0, $1, $2;", outputs = (i32,){}}} : i32"""


def test_inline_ptx_runs_its_emulation() -> None:
    k = kernel(LOP3.format(', emulate = "f"') + "\ntile.store %x, %t, %r")
    k.externals["f"] = lambda a, b: a + b
    x = np.zeros(64, np.int32)
    run(k, {"x": x})
    np.testing.assert_array_equal(x, 2 * np.arange(64))
    k.externals["f"] = lambda a, b: (a, b)
    with pytest.raises(EmulatorError, match="returned 2 values, but it has 1 outputs"):
        run(k, {"x": x})
    for wrong in (
        lambda a, b: a + 0.5,
        lambda a, b: np.zeros((3, 5), np.int32),
        lambda a, b: np.zeros((1, 1, 1, 1), int),
    ):
        k.externals["f"] = wrong
        with pytest.raises(EmulatorError, match=r"returned \w+\[.*\] for an output that is i32; expected \[2, 32\]"):
            run(k, {"x": x})


def test_an_emulation_that_raises_names_the_kernels_line() -> None:
    def broken(a: Any, b: Any) -> Any:
        raise ValueError("of its own")

    k = kernel(LOP3.format(', emulate = "f"') + "\ntile.store %x, %t, %r")
    k.externals["f"] = broken
    with pytest.raises(ValueError, match="of its own") as caught:
        run(k, {"x": np.zeros(64, np.int32)})
    assert "in emulate= of 'add.s32 $0, $1, $2;', run by the emulator" in caught.value.__notes__[0]


def test_an_emulation_takes_one_array_per_operand() -> None:
    k = kernel(LOP3.format(', emulate = "f"') + "\ntile.store %x, %t, %r")
    k.externals["f"] = lambda a: a
    with pytest.raises(EmulatorError) as caught:
        run(k, {"x": np.zeros(64, np.int32)})
    assert caught.value.code == "T904" and caught.value.loc.line > 0


def test_inline_ptx_without_emulation_is_an_error() -> None:
    with pytest.raises(EmulatorError, match=r"cannot run the PTX 'add.s32(.|\n)*pass emulate="):
        run(kernel(LOP3.format("")), {"x": np.zeros(1, np.int32)})


def test_fragments_through_control_flow() -> None:
    x = result(
        """
        %z = arith.constant 0 : i32
        %one = arith.constant 1 : i32
        %two = arith.constant 2 : i32
        %f = tile.pack %z {type = fragment<i32, [2, 2]>} : fragment<i32, [2, 2]>
        %g = control.for %z, %ti, %one, %f : fragment<i32, [2, 2]> (%k: i32, %h: fragment<i32, [2, 2]>) {
          %e = tile.extract %h {at = (1, 0)} : i32
          %e2 = arith.add %e, %two : i32
          %h2 = tile.insert %h, %e2 {at = (1, 0)} : fragment<i32, [2, 2]>
          control.yield %h2
        }
        %p = arith.lt %ti, %two : bool
        %s = arith.select %p, %f, %g : fragment<i32, [2, 2]>
        %r = tile.extract %s {at = (1, 0)} : i32
        """
    )
    np.testing.assert_array_equal(x, [0 if t < 2 else 2 * t for t in range(64)])


def test_casts_and_scalars_in_lanes() -> None:
    x = result("%f = arith.cast %ti {to = f32} : f32\n%r = arith.sqrt %f : f32", dtype="f32")
    assert x.tolist() == [float(np.float32(math.sqrt(t))) for t in range(64)]
