"""Each invariant of the verifier, broken once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tiledsl.errors import CompileError, VerifyError
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.ops import arith, control
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.types import F32, I32, I64, GlobalType
from tiledsl.ir.verifier import verify

TILE = """
kernel k(%A: global<f32, [N], unit=0, align=4>, %n: i32, %p: bool)
  grid(floordiv(N, 32)) threads(32) level(tile) index_bits(32) {
  %i = gpu.thread_id {axis = 0} : index
  %x = tile.load %A, %i : f32
  %r = control.if %p : f32 {
    %y = arith.add %x, %x : f32
    control.yield %y
  } else {
    control.yield %x
  }
  tile.store %A, %i, %r
  control.return
}
"""
THREAD = """
kernel k(%A: ptr<global, f32>, %N: i32)
  grid(N) threads(32) level(thread) index_bits(32) abi(pointer A f32, extent N i32) {
  %x = mem.load %A : f32
  mem.store %A, %x
  control.return
}
"""

COPY = """
kernel k(%A: ptr<global, f32>, %N: i32, %n: i32, %p: bool)
  grid(1) threads(32) level(thread) index_bits(32) shared_bytes(16)
  abi(pointer A f32 [N], extent N i32, scalar n i32, scalar p bool) {{
  %S = mem.shared_base {{dtype = f32, offset = 0, bytes = 16, label = "S"}} : ptr<shared, f32>
  mem.cp_async {}
  control.return
}}
"""
COPIES = [
    (f"%S, %A{given} {{bytes = 16}}", "takes two addresses, how many bytes to read (an i32) and a condition (a bool)")
    for given in (", %p, %n", ", %n, %n", ", %p, %p", ", %n, %p, %p", ", %A")
] + [
    ("%A, %A, %p {bytes = 16}", "is not in shared memory"),
    ("%S, %S, %n, %p {bytes = 16}", "is not in global memory"),
    ("%S, %A, %p {bytes = 12}", "bytes is 12; 4, 8, 16 are possible"),
]
"""What is no copy."""


MAPS = """
kernel k(%A: ptr<global, f32>, %M: i32, %N: i32)
  grid(1) threads(32) level(thread) index_bits(32)
  abi(pointer A f32 [M, N], extent M i32, extent N i32) tensor_maps({}) {{
  mem.tma_prefetch {{map = 0}}
  control.return
}}
"""
TENSOR_MAPS = [
    ("map(B, axes=[1, 0], box=[8, 8], swizzle=0)", "a tensor map of no parameter"),
    ("map(A, axes=[1, 1], box=[8, 8], swizzle=0)", "its axes are not those of the tensor"),
    ("map(A, axes=[1, 0], box=[8], swizzle=0)", "one extent of 1 to 256 an axis"),
    ("map(A, axes=[1, 0], box=[8, 257], swizzle=0)", "one extent of 1 to 256 an axis"),
    ("map(A, axes=[1, 0], box=[8, 8], swizzle=48)", "a swizzle of (0, 32, 64, 128) are needed"),
    ("map(A, axes=[1, 0], box=[6, 8], swizzle=32)", "rows of 24 bytes; multiples of 16 up to the swizzle"),
    ("map(A, axes=[1, 0], box=[36, 8], swizzle=128)", "rows of 144 bytes; multiples of 16 up to the swizzle"),
]


def texts(*changes: tuple[str, str, str]) -> list[tuple[str, str]]:
    return [(TILE.replace(old, new), message) for old, new, message in changes]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *texts(
            ("  control.return\n", "", "a block does not end in a terminator"),
            ("    control.yield %y\n", "    control.yield %y\n    control.yield %y\n", "in the middle of a block"),
            ("    control.yield %x\n", "    control.return\n", "ends in control.return; control.yield is needed"),
            ("    control.yield %x\n", "    control.yield %p\n", "yielded types differ"),
            ("} else {\n    control.yield %x\n  }", "}", "control.if: has 1 blocks, not 2"),
            ("control.if %p : f32", "control.if %n : f32", "condition is i32, not bool"),
            ("arith.add %x, %x", "arith.add %x, %n", "operands differ in dtype"),
            ("arith.add %x, %x", "arith.popc %x", "not defined for f32"),
            ("arith.add %x, %x", "arith.fma %x, %x", "takes 3 operands"),
            ("arith.add %x, %x : f32", "arith.lt %x, %x : f32", "arith.lt: gives bool, not what its results say"),
            ("threads(32)", "threads(32, 0)", "1 to 3 positive extents are needed"),
            ("grid(floordiv(N, 32))", "grid(1, 1, 1, 1)", "a grid of 4 extents"),
            ("grid(floordiv(N, 32))", "grid(floordiv(K, 32))", "the grid needs K, which no parameter gives"),
            ("{axis = 0}", "{axis = 3}", "attribute axis is 3; 0 to 2 are possible"),
            ("{axis = 0}", "{axis = true}", "attribute axis is True, not of type int"),
            ("index_bits(32)", "index_bits(16)", "16 index bits"),
            ("index_bits(32)", "index_bits(32) shared_bytes(16)", "belong to the thread level"),
            ("%n: i32", "%n: ptr<global, f32>", "a parameter of type ptr<global, f32>"),
            ("%n: i32", "%n: index", "a parameter of type index"),
            ("  tile.store %A, %i, %r\n", "  mem.store %A, %r\n", "mem.store: not legal at tile level"),
            ("  %x = tile.load", "  %c = arith.constant 300 : i8\n  %x = tile.load", "300 does not fit i8"),
            ("  %x = tile.load", "  %c = arith.constant 1 : f32\n  %x = tile.load", "a f32 constant holds a float"),
            ("  %x = tile.load", "  %c = arith.constant 0.7 : f32\n  %x = tile.load", "0.7 is no f32"),
            ("  %x = tile.load", "  %c = arith.constant 449.0 : e4m3\n  %x = tile.load", "449.0 is no e4m3"),
            ("  %x = tile.load", "  gpu.sync_warp %A\n  %x = tile.load", "gpu.sync_warp: takes 0 operands, not 1"),
            ("  %x = tile.load", "  %d = tile.dim {axis = 0} : index\n  %x = tile.load", "takes 1 operands, not 0"),
            ("tile.load %A, %i : f32", "tile.load : f32", "tile.load: takes at least 1 operands, not 0"),
            ("tile.load %A, %i : f32", "tile.load %i, %i : f32", "cannot access index"),
            ("  %x = tile.load", "  mbarrier.arrive\n  %x = tile.load", "these operands and attributes together"),
            ("{axis = 0}", "{axis = 99999999999}", "0 to 2 are possible"),
            ("%p : f32 {", "%p {role = (0.5, 1)} : f32 {", "not of items of type int"),
            ("threads(32)", "threads(32) cluster(8, 8, 8)", "at most 8 blocks"),
            ("threads(32)", "threads(32) blocks_per_sm(1000)", "1000 blocks an SM"),
            ("threads(32)", "threads(2000)", "at most 1024 in a block"),
            ("threads(32)", "threads(4, 4, 65)", "64 along z"),
            ("grid(floordiv(N, 32))", "grid(q)", "the grid needs q"),
            ("grid(floordiv(N, 32))", "grid(lt.i32(n, 3))", "the bool lt.i32(n, 3) as an extent"),
            ("grid(floordiv(N, 32))", "grid(add.i8(n, 3))", "of which n need not be a i8; cast.i8(...)"),
            ("grid(floordiv(N, 32))", "grid(add.i8(cast.i8(n), 300))", "of which 300 need not be a i8"),
            ("grid(floordiv(N, 32))", "grid(select(n, 1, 2))", "of which n need not be a bool"),
            ("grid(floordiv(N, 32))", "grid(popc.i8(1))", "no such function of i8"),
            ("grid(floordiv(N, 32))", "grid(cast.f32(1))", "no such function of f32"),
        ),
        (THREAD.replace("%N: i32", "%N: i64"), "the body's arguments are not the abi's"),
        (THREAD.replace("mem.load %A : f32", "tile.load %A : f32"), "tile.load: not legal at thread level"),
        (THREAD.replace("  %x", "  %i = gpu.thread_id {axis = 0} : index\n  %x"), "index at thread level"),
        (THREAD.replace("  %x", "  %i = arith.constant 0 : index\n  %x"), "index at thread level"),
        (THREAD.replace("grid(N)", "grid(M)"), "the grid needs M"),
        (THREAD.replace("threads(32)", "threads(2000)"), "at most 1024 in a block"),
        (THREAD.replace("threads(32)", "threads(32) shared_bytes(9999999)"), "9999999 bytes of shared memory"),
        (
            COPY.format("%S, %A {bytes = 4}").replace("offset = 0, bytes = 16", "offset = 2, bytes = 8"),
            "no multiple of 4",
        ),
        (THREAD.replace("extent N i32", "stride A 1 i32"), "a stride along axis 1 of A, which has no such axis"),
        (THREAD.replace("extent N i32", "extent N u32").replace("%N: i32", "%N: u32"), "extent N of type u32"),
        (COPY.format("%S, %A {bytes = 16}").replace("bytes = 16, label", "bytes = 17, label"), "byte 17 of 16 bytes"),
        *((MAPS.format(given), message) for given, message in TENSOR_MAPS),
        *((COPY.format(given), message) for given, message in COPIES),
    ],
)
def test_text(text: str, message: str) -> None:
    with pytest.raises((VerifyError, CompileError)) as caught:
        verify(parse_kernel(text))
    assert message in caught.value.message


def first(kernel: Kernel, cls: type[Op]) -> Op:
    return next(op for op in kernel.walk() if isinstance(op, cls))


def use_before_definition(kernel: Kernel) -> None:
    ops = kernel.body.ops
    ops.insert(0, ops.pop(1))


def use_of_a_branch_outside(kernel: Kernel) -> None:
    branch = first(kernel, control.If)
    kernel.body.ops[-2].set_operand(2, branch.blocks[0].ops[0].results[0])


def wrong_parent(kernel: Kernel) -> None:
    kernel.body.ops[0].parent = Block()


def wrong_block_parent(kernel: Kernel) -> None:
    first(kernel, control.If).blocks[0].parent = kernel


def twice(kernel: Kernel) -> None:
    kernel.body.ops.insert(2, kernel.body.ops[1])


def forgotten_use(kernel: Kernel) -> None:
    kernel.body.ops[0].results[0].uses.clear()


def invented_use(kernel: Kernel) -> None:
    stray = arith.Constant(value=1, dtype=I32)
    kernel.body.ops[0].results[0].uses[stray, 0] = None


def carried_tensor(kernel: Kernel) -> None:
    tensor = kernel.body.args[0]
    blocks = [Block(), Block()]
    for block in blocks:
        block.append(control.Yield(tensor))
    kernel.body.insert_before(kernel.body.ops[-1], control.If(kernel.body.args[2], blocks=blocks))


def wrong_result_type(kernel: Kernel) -> None:
    kernel.body.ops[1].results[0].type = I64


def unknown_attribute(kernel: Kernel) -> None:
    kernel.body.ops[0].attrs["colour"] = 1


def same_names(kernel: Kernel) -> None:
    kernel.body.args[1].name = "A"


def foreign_result(kernel: Kernel) -> None:
    op = kernel.body.ops[1]
    op.results = [Value(F32, kernel.body, 0)]


def foreign_class(kernel: Kernel) -> None:
    kernel.body.ops[0].__class__ = type("Other", (Op,), {"level": "both"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (use_before_definition, "where it is not visible"),
        (use_of_a_branch_outside, "where it is not visible"),
        (wrong_parent, "gpu.thread_id: does not know its block"),
        (wrong_block_parent, "a block does not know its owner"),
        (twice, "appears twice"),
        (forgotten_use, "does not know of its use as operand 1"),
        (invented_use, "lists a use by arith.constant that does not exist"),
        (carried_tensor, "carries global<f32, [N], unit=0, align=4>"),
        (wrong_result_type, "not what its results say"),
        (unknown_attribute, "does not declare"),
        (same_names, "parameters need distinct names"),
        (foreign_result, "does not know its owner"),
        (foreign_class, "is not a registered op"),
    ],
)
def test_edit(change: Callable[[Kernel], None], message: str) -> None:
    kernel = parse_kernel(TILE)
    verify(kernel)
    change(kernel)
    with pytest.raises(VerifyError) as caught:
        verify(kernel)
    assert message in caught.value.message


def test_tile_parameters() -> None:
    kernel = parse_kernel(TILE)
    assert isinstance(kernel.body.args[0].type, GlobalType)
    verify(kernel.clone())
    verify(parse_kernel(THREAD))
