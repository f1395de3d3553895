"""The textual IR: what prints how, and errors of the parser at their line and column."""

from __future__ import annotations

import math

import pytest

from tiledsl.errors import CompileError, Loc
from tiledsl.ir.core import Block, Kernel
from tiledsl.ir.expr import parse_expr
from tiledsl.ir.lexer import MOST_NESTING
from tiledsl.ir.ops import arith, control, debug, gpu
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.types import F32, I32, INDEX, GlobalType
from tiledsl.passes.pipeline import run_pipeline

HEADER = "kernel k(%x: i32)\n  grid(1) threads(32) {\n"


def made(*ops: object) -> Kernel:
    block = Block([I32], ["x"])
    for op in (*ops, control.Return()):
        block.append(op)  # type: ignore[arg-type]
    return Kernel("k", block, (parse_expr("1"),), (32,))


def body(kernel: Kernel) -> list[str]:
    return [line.strip() for line in print_kernel(kernel).splitlines()[2:-2]]


@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, 1e300, 5e-324, math.inf, -math.inf, math.nan])
def test_floats_are_exact(value: float) -> None:
    kernel = parse_kernel(print_kernel(made(arith.Constant(value=value, dtype=F32))))
    assert repr(kernel.body.ops[0].attrs["value"]) == repr(value)


def test_attributes_of_all_kinds() -> None:
    assert body(made(debug.Breakpoint(names=()))) == ["debug.breakpoint"]
    quoted = debug.Print(format='a "quoted" \\ line\nwith ünïcode')
    assert parse_kernel(print_kernel(made(quoted))).body.ops[0].attrs == quoted.attrs
    assert body(made(gpu.ThreadId(axis=1))) == ["%0 = gpu.thread_id {axis = 1} : index"]
    assert body(made(gpu.ThreadId(axis=1, dtype=I32))) == ["%0 = gpu.thread_id {axis = 1} : i32"]
    assert body(made(arith.Constant(value=True, dtype=INDEX))) == ["%0 = arith.constant true : index"]


def test_names_are_unique_hints() -> None:
    constants = [arith.Constant(value=n, dtype=I32) for n in range(5)]
    for op, name in zip(constants, ("x", "x", "x_1", "1 odd", ""), strict=True):
        op.result.name = name
    assert [line.split()[0] for line in body(made(*constants))] == ["%x_1", "%x_2", "%x_1_1", "%0", "%1"]


@pytest.mark.parametrize(
    "type_", ["global<f32, [M, K], unit=1, align=16>", "global<f32, [M, K], unit=1, align=16, whole>"]
)
def test_rows_of_whole_vectors(type_: str) -> None:
    text = f"kernel k(%A: {type_})\n  grid(1) threads(32) {{\n  control.return\n}}"
    kernel = parse_kernel(text)
    assert kernel.body.args[0].type == GlobalType(F32, ("M", "K"), 1, 16, whole=type_.endswith("whole>"))
    assert f"%A: {type_}" in print_kernel(kernel)


def test_locations() -> None:
    caller = Loc("main.py", 9, 2)
    op = arith.Constant(value=1, dtype=I32, loc=Loc('a "b".py', 3, 5, 9, "helper", caller))
    text = print_kernel(made(op), locs=True)
    assert '@ "a \\"b\\".py":3:5-9 in "helper" from "main.py":9:2' in text
    assert parse_kernel(text).body.ops[0].loc == op.loc
    assert parse_kernel(print_kernel(made(op)), "text.tir").body.ops[0].loc == Loc("text.tir", 3, 8, 22)


@pytest.mark.parametrize(
    ("text", "line", "col", "message"),
    [
        ("kernel k() grid(1) threads(32) {\n  ? }", 2, 3, "expected an op, found '?'"),
        ("kernel k() grid(1) {\n}", 1, 20, "the kernel has no threads(...)"),
        ("kernel k() grid(sin(N, 1)) threads(1) {\n}", 1, 17, "not a host expression: 'sin(N, 1)'"),
        ("kernel k() grid(1) threads(1) level(warp) {\n}", 1, 37, "a kernel's level is tile or thread, not warp"),
        ("kernel k() grid(1) threads(1) size(1) {\n}", 1, 31, "a kernel has no 'size'"),
        ("kernel k() grid(1) threads(1) {\n} more", 2, 3, "expected 'kernel', found 'more'"),
        ("kernel k() grid(1) threads(1) {\n} kernel l() grid(1) threads(1) {\n}", 2, 3, "a second kernel in the text"),
        (HEADER + "  %y = arith.plus %x, %x : i32\n}", 3, 8, "no such op: arith.plus"),
        (HEADER + "  %y = arith.add %x, %z : i32\n}", 3, 22, "%z is not defined here"),
        (HEADER + "  %x = arith.neg %x : i32\n}", 3, 3, "%x is defined twice"),
        (HEADER + "  %y, %z = arith.neg %x : i32\n}", 3, 12, "arith.neg has 1 results, 2 are named"),
        (HEADER + "  %y = arith.neg %x : f31\n}", 3, 23, "no such type: f31"),
        (HEADER + "  gpu.fence {range = 1}\n}", 3, 14, "gpu.fence has no attribute range"),
        (HEADER + "  %y = gpu.thread_id : index\n}", 3, 8, "gpu.thread_id needs attribute axis"),
        (HEADER + "  gpu.fence {reach = }\n}", 3, 22, "expected an attribute's value, found '}'"),
        (HEADER + "  %y = arith.add\n}", 3, 8, "cannot infer its result"),
        (HEADER + "  %y = tile.shared_alloc : shared<f32, [N]>\n}", 3, 41, "expected an integer, found 'N'"),
        (HEADER + "  gpu.barrier\n", 4, 1, "'}' is missing"),
        (HEADER + "  gpu.barrier @ 3\n}", 3, 17, "expected a string, found '3'"),
        (HEADER + "  control.if %x\n  {\n  } else gpu.barrier\n}", 5, 10, "expected a block, found 'gpu.barrier'"),
        ("kernel k() grid(0x1p99999) threads(1) {\n}", 1, 17, "not a number"),
        (f"kernel k() grid({'9' * 5000}) threads(1) {{\n}}", 1, 17, "not a number"),
        ("kernel k() grid(1) threads(99999999999999999999) {\n}", 1, 28, "an integer of more than 64 bits"),
        (HEADER + "  %y = mem.ldmatrix %x {num = 1000000000}\n}", 3, 8, "num is 1000000000; 1, 2, 4 are possible"),
        (HEADER + '  %y = arith.add %x, %x @ "k.py":0:1\n}', 3, 36, "lines and columns count from 1"),
        (HEADER + '  %y = arith.add %x, %x @ "k.py":1:0\n}', 3, 36, "lines and columns count from 1"),
    ],
)
def test_errors(text: str, line: int, col: int, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_kernel(text, "bad.tir")
    assert message in caught.value.message
    assert (caught.value.loc.file, caught.value.loc.line, caught.value.loc.col) == ("bad.tir", line, col)


@pytest.mark.parametrize(
    "text",
    [
        f"kernel k() grid({'add(1, ' * 3000}1{')' * 3000}) threads(1) {{ control.return }}",
        f"kernel k(%p: bool) grid(1) threads(1) {{ {'control.if %p { ' * 3000}",
        f"kernel k() grid(1) threads(1) {{ gpu.fence {{reach = {'(' * 3000}{')' * 3000}}} }}",
        f"kernel k(%x: {'pending<' * 3000}f32{'>' * 3000}) grid(1) threads(1) {{ control.return }}",
        'kernel k() @ "f":1:1' + ' in "g" from "f":1:1' * 3000 + " grid(1) threads(1) { control.return }",
    ],
    ids=["grid", "blocks", "attribute", "type", "location"],
)
def test_what_is_nested_too_deep(text: str) -> None:
    with pytest.raises(CompileError, match=f"more than {MOST_NESTING} levels inside each other"):
        parse_kernel(text)


def test_blocks_as_deep_as_passes_can_follow() -> None:
    depth = MOST_NESTING - 1
    opened = "".join(f"control.if %p {{ %y{n} = arith.add %x, %x : i32\n" for n in range(depth))
    text = f"kernel k(%x: i32, %p: bool) grid(1) threads(32) {{ {opened}"
    text += "control.yield } else { control.yield }\n" * depth + "control.return }"
    kernel = parse_kernel(text)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    run_pipeline(kernel, verify_each=True)


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        ("global<f32, [], unit=0, align=4>", "has 0 axes; 1 to 5 are possible"),
        ("global<f32, [M, -1], unit=1, align=16>", "an extent that is not from 0 to 2147483647"),
        ("global<f32, [8, 4], unit=64, align=16>", "has no axis 64"),
        ("global<f32, [8, 4], unit=1, align=3>", "elements of 4 bytes at multiples of 3"),
        ("global<index, [N], unit=0, align=8>", "an index has no size in memory"),
        ("shared<f32, [0]>", "an extent that is not from 1 to 2147483647"),
        ("shared<f32, [65536, 65536]>", "has more than 2147483647 bytes"),
        ("fragment<f32, [100000]>", "has more than 65536 elements a thread"),
        ("fragment<f32, [16, 8], mma.m16n8k8.acc(0, 1)>", "a block has 1 to 32 warps"),
        ("fragment<f32, [16, 9], mma.m16n8k8.acc(1, 1)>", "columns come in multiples of 8"),
        ("pending<fragment<f32, [64, 64]>>", "is no accumulator of warpgroups"),
    ],
)
def test_types_that_no_kernel_can_have(type_: str, message: str) -> None:
    """Refused where they are read, and by the verifier where the compiler makes one."""
    with pytest.raises(CompileError) as caught:
        parse_kernel(f"kernel k(%x: {type_}) grid(1) threads(32) {{ control.return }}")
    assert message in caught.value.message


def test_an_error_shows_the_line_of_a_text_without_a_file() -> None:
    with pytest.raises(CompileError) as caught:
        parse_kernel(HEADER + "  %y = arith.plus %x, %x : i32\n}")
    assert "%y = arith.plus %x, %x : i32" in str(caught.value)
    assert "^^^^^^^^^^" in str(caught.value)
