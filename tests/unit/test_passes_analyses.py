"""Uniformity, divisibility, sums and the layout of shared memory, value by value on small kernels."""

from __future__ import annotations

import pytest

from tests.property.random_kernels import random_case
from tiledsl.ir.core import Kernel, Op, Value
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.types import I32, Type
from tiledsl.passes.analysis.divisibility import LIMIT, Divisibility
from tiledsl.passes.analysis.structure import loops_around
from tiledsl.passes.analysis.sums import Sums
from tiledsl.passes.analysis.uniformity import LEVELS, PlainlyUniform, Uniformity, least_uniform
from tiledsl.passes.banks.shared_layout import lay_out_shared

HEADER = "kernel k(%A: global<f32, [M, N], unit=1, align=16>, %n: i32)\n  grid(M) threads({}) {{\n"


def kernel(body: str, threads: str = "64") -> tuple[Kernel, dict[str, Value]]:
    """A kernel with this body, and all of its values by name."""
    made = parse_kernel(HEADER.format(threads) + body + "\n  control.return\n}")
    values = {v.name: v for op in made.walk() for v in [*op.results, *(a for b in op.blocks for a in b.args)]}
    return made, values | {a.name: a for a in made.body.args}


POSITIONS = """
  %tx = gpu.thread_id {axis = 0} : index
  %ty = gpu.thread_id {axis = 1} : index
  %b = gpu.block_id {axis = 0} : index
  %w = gpu.warp_id : index
  %l = gpu.lane_id : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %c5 = arith.constant 5 : index
  %c32 = arith.constant 32 : index
"""


SOME = "%p = arith.lt %tx, %c5\n"


def branch(then: str, orelse: str) -> str:
    """%r is one or the other, by a condition that differs from thread to thread."""
    return SOME + f"%r = control.if %p : index {{\n control.yield {then}\n }} else {{\n control.yield {orelse}\n }}"


def loop(bounds: str, carried: str, *ops: str, result: str = "%r", induction: str = "%i") -> str:
    """%s is carried; it becomes `carried` after `ops`."""
    head = f"{result} = control.for {bounds} : index ({induction}: index, %s: index) {{"
    return "\n".join([head, *ops, f"control.yield {carried}", "}"])


def while_below(limit: str) -> str:
    return (
        f"%r = control.while %c0 : index (%s: index) {{\n %g = arith.lt %s, {limit}\n control.condition %g, %s\n }} "
        "do (%m: index) {\n %x = arith.add %m, %c1\n control.yield %x\n }"
    )


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        ("64", {"tx": "thread", "ty": "grid", "w": "warp", "l": "thread", "b": "cta", "c1": "grid", "n": "grid"}),
        ("16, 4", {"tx": "thread", "ty": "thread", "w": "warp"}),
        ("32, 4", {"tx": "thread", "ty": "warp"}),
        ("1, 64", {"tx": "grid", "ty": "thread"}),
        ("8, 4", {"ty": "thread", "w": "grid"}),
        ("1", {"tx": "grid", "w": "grid", "l": "grid"}),
    ],
)
def test_uniformity_of_positions(threads: str, expected: dict[str, str]) -> None:
    made, values = kernel(POSITIONS, threads)
    uniformity = Uniformity(made)
    assert {name: uniformity.of(values[name]) for name in expected} == expected


def test_what_a_short_look_shows_to_be_uniform_is_so() -> None:
    shown = others = 0
    for seed in range(20):
        made = random_case(seed, 40).kernel
        plain, uniformity = PlainlyUniform(made), Uniformity(made)
        for op in made.walk():
            for value in (*op.results, *(arg for block in op.blocks for arg in block.args)):
                of_the_block = uniformity.of(value) in ("grid", "cta")
                assert of_the_block or not plain.of(value)
                shown += plain.of(value)
                others += not of_the_block
    assert shown > 100 < others


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%r = arith.add %b, %c1", "cta"),
        ("%r = arith.add %b, %w", "warp"),
        ("%r = arith.floordiv %tx, %c32", "warp"),
        ("%r = arith.shr %tx, %c5", "warp"),
        ("%r = arith.shr %tx, %c3", "thread"),
        ("%r = arith.floordiv %tx, %c5", "thread"),
        ("%x = arith.constant -32 : index\n %r = arith.floordiv %tx, %x", "thread"),  # changes behind 0, 32, ...
        ("%r = arith.lt %tx, %c32", "warp"),
        ("%r = arith.lt %tx, %c5", "thread"),
        ("%r = arith.gt %tx, %c32", "thread"),
        ("%r = arith.eq %w, %c1", "warp"),
        ("%r = arith.ge %w, %c4", "warpgroup"),
        ("%x = arith.sub %w, %c4\n %r = arith.floordiv %x, %c4", "warpgroup"),
        ("%x = arith.sub %w, %c1\n %r = arith.floordiv %x, %c4", "warp"),
        ("%x = arith.floordiv %tx, %c32\n %r = arith.lt %x, %c4", "warpgroup"),
        ("%x = arith.cast %w : i32\n %y = arith.constant 2 : i32\n %r = arith.shr %x, %y", "warpgroup"),
        ("%x = arith.floordiv %w, %c4\n %r = arith.mod %x, %c3", "warpgroup"),
        ("%r = arith.eq %tx, %c0", "thread"),
        ("%r = tile.dim %A {axis = 0}", "grid"),
        ("%r = tile.load %A, %b, %c1 : f32", "cta"),
        ("%r = tile.load %A, %b, %tx : f32", "thread"),
        (SOME + '%r = warp.vote %p {mode = "all"} : bool', "warp"),
        ('%p = arith.lt %b, %c5\n %r = warp.vote %p {mode = "any"} : bool', "cta"),
        ('%p = arith.lt %b, %c5\n %r = warp.vote %p {mode = "ballot"} : u32', "warp"),
        ('%r = ptx.inline {text = "mov.u32 $0, %laneid;", outputs = (u32,)} : u32', "thread"),
        ("%r = warp.elect : bool", "thread"),
        ("%r = cluster.rank : i32", "cta"),
        (branch("%c1", "%c3"), "thread"),
        (branch("%b", "%b"), "cta"),
        (loop("%c0, %tx, %c1, %c0", "%s"), "grid"),
        (loop("%c0, %tx, %c1, %c0", "%t", "%t = arith.add %s, %c4"), "thread"),
        (loop("%c0, %b, %c1, %c0", "%i"), "cta"),
        (loop("%c0, %c4, %c1, %c0", "%x", "%x = arith.add %s, %w"), "warp"),
        (loop("%c0, %c32, %w, %c0", "%s", result="%q", induction="%r"), "warp"),
        (while_below("%tx"), "thread"),  # all count alike, but leave after trips of their own
        (while_below("%b"), "cta"),
        (while_below("%w"), "warp"),
    ],
)
def test_uniformity_rules(text: str, expected: str) -> None:
    made, values = kernel(POSITIONS + text)
    uniformity = Uniformity(made)
    assert uniformity.of(values["r"]) == expected
    assert (uniformity.cause(values["r"]) is None) == (expected == "grid")


@pytest.mark.parametrize(("threads", "expected"), [("48, 2", "thread"), ("64, 2", "warp"), ("48", "warp")])
def test_a_row_that_ends_inside_a_warp_divides_it(threads: str, expected: str) -> None:
    """Of 48 x 2 threads, warp 1 has the last 16 of row 0 and the first 16 of row 1."""
    made, values = kernel(POSITIONS + "%r = arith.lt %tx, %c32", threads)
    assert Uniformity(made).of(values["r"]) == expected


STORE = "%v = arith.constant 1.0 : f32\n %o = arith.constant 0.0 : f32\n"
TILES = """
  %S = tile.shared_alloc : shared<f32, [8]>
  %T = tile.shared_alloc : shared<f32, [8]>
  %U = tile.shared_alloc %S : shared<f32, [4]>
"""
LOAD, WRITE = "%r = tile.load %S, %c0 : f32", "tile.store %S, %c1, %v"
SIDES = SOME + "%q = control.if %p : f32 {{\n {} }} else {{\n {} }}"
MANY = "control.for %c0, %c5, %c1 (%i: index) {\n BODY\n control.yield\n}"


@pytest.mark.parametrize(
    "write",
    [
        "tile.store %A, %tx, %c1, %v",
        "tile.put %A, %tx, %c1, %v",
        "%w1 = tile.atomic_add %A, %tx, %c1, %v : f32",
        "tile.copy %S, %c0, %c0, %A, %c0, %c0 {shape = (8, 4), src_axes = (0, 1), dst_axes = (0, 1), vec = 4}",
        "tma.store %S, %c0, %c0, %A, %b, %c0 {box = (8, 4), axes = (0, 1)}",
        'ptx.inline %n {text = "st.global.u32 [a], $0;", outputs = (), volatile = true}',
    ],
)
@pytest.mark.parametrize("load", ["%r = tile.load %A, %b, %c1 : f32", "%r = tile.get %A, %b, %c1, %o : f32"])
def test_what_the_kernel_writes_anywhere_is_no_uniform_load(write: str, load: str) -> None:
    """A fast thread may write it before a slow one has read it; a barrier of the block orders no other block."""
    tile = "%S = tile.shared_alloc : shared<f32, [8, 4]>\n"
    made, values = kernel(f"{POSITIONS}{STORE}{tile}{load}\n gpu.barrier\n{write}")
    assert Uniformity(made).of(values["r"]) == "thread"
    other = write.replace("%A", "%C")
    made = parse_kernel(
        HEADER.format(64).replace("%n: i32", "%C: global<f32, [M, N], unit=1, align=16>, %n: i32")
        + f"{POSITIONS}{STORE}{tile}{load}\n{other}\n control.return\n}}"
    )
    (read,) = [op for op in made.walk() if op.name in ("tile.load", "tile.get")]
    assert Uniformity(made).of(read.result) == ("thread" if "inline" in write else "cta")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{WRITE}\n gpu.barrier\n {LOAD}", "grid"),
        (f"{LOAD}\n gpu.barrier\n {WRITE}", "grid"),
        (f"{WRITE}\n {LOAD}", "thread"),
        (f"{LOAD}\n {WRITE}", "thread"),
        (f"{WRITE}\n gpu.sync_warp\n {LOAD}", "warp"),
        (f"{WRITE}\n gpu.barrier\n {LOAD}\n gpu.sync_warp\n {WRITE}", "warp"),
        (f"{LOAD}\n gpu.fence\n {WRITE}", "thread"),
        (f"{WRITE}\n gpu.named_barrier {{number = 1, threads = 64}}\n {LOAD}", "grid"),
        # Who only arrives there has not waited for the others.
        (f"{WRITE}\n gpu.named_barrier {{number = 1, threads = 64, wait = false}}\n {LOAD}", "thread"),
        (f"{WRITE.replace('%S', '%T')}\n {LOAD}", "grid"),
        (f"{WRITE.replace('%S', '%U')}\n {LOAD}", "thread"),  # %U lies over %S
        (
            SOME
            + f"{WRITE}\n control.if %p {{\n gpu.barrier\n control.yield\n }} else {{\n control.yield\n }}\n {LOAD}",
            "thread",
        ),
        # Some threads may write on one side while others read on the other.
        (SIDES.format(f"{LOAD}\n control.yield %r", f"{WRITE}\n control.yield %v"), "thread"),
        (SIDES.format(f"{WRITE}\n control.yield %v", f"{LOAD}\n control.yield %r"), "thread"),
        (SIDES.format(f"{WRITE}\n control.yield %v", f"gpu.barrier\n {LOAD}\n control.yield %r"), "grid"),
        (SIDES.format(f"{WRITE}\n gpu.barrier\n control.yield %v", f"{LOAD}\n control.yield %r"), "grid"),
        # The next iteration writes what this one reads, and no barrier stands at the end of the body.
        (MANY.replace("BODY", f"{WRITE}\n gpu.barrier\n {LOAD}"), "thread"),
        (MANY.replace("BODY", f"{WRITE}\n gpu.barrier\n {LOAD}\n gpu.barrier"), "grid"),
    ],
)
def test_a_load_of_a_shared_tile_is_uniform_where_barriers_keep_writes_away(body: str, expected: str) -> None:
    made, values = kernel(POSITIONS + STORE + TILES + body)
    assert Uniformity(made).of(values["r"]) == expected


@pytest.mark.parametrize(("offset", "expected"), [(0, "thread"), (60, "thread"), (64, "grid"), (128, "grid")])
def test_at_thread_level_tiles_overlap_by_their_bytes(offset: int, expected: str) -> None:
    """The load reads 64 bytes from `offset` on, the store writes bytes 0 to 63, and no barrier is between."""
    made = parse_kernel(f"""kernel k(%n: i32) grid(1) threads(64) level(thread) shared_bytes(192) abi(scalar n i32) {{
  %S = mem.shared_base {{dtype = i32, offset = 0, bytes = 64, label = "S"}} : ptr<shared, i32>
  %T = mem.shared_base {{dtype = i32, offset = {offset}, bytes = 64, label = "T"}} : ptr<shared, i32>
  %s = mem.offset %S, %n : ptr<shared, i32>
  mem.store %s, %n
  %t = mem.offset %T, %n : ptr<shared, i32>
  %r = mem.load %t : i32
  control.return
}}""")
    (load,) = [op for op in made.walk() if op.name == "mem.load"]
    assert Uniformity(made).of(load.result) == expected


def test_an_op_that_nobody_thought_of_is_not_uniform() -> None:
    """What has no rule and does not say that it follows its operands may give each thread something else."""

    class Odd(Op):
        def infer(self) -> list[Type]:
            return [I32]

    made, _ = kernel("%x = arith.constant 1 : i32")
    odd = Odd(made.body.ops[0].result)
    made.body.insert_before(made.body.terminator, odd)
    assert Uniformity(made).of(odd.result) == "thread"


def test_uniformity_reaches_its_fixpoint() -> None:
    """What is uniform in the first round of a loop may not be in the second."""
    made, values = kernel(
        POSITIONS
        + """
  %x, %y, %z = control.for %c0, %c4, %c1, %c0, %c0, %c0 : index, index, index
      (%i: index, %p: index, %q: index, %r: index) {
    %next = arith.add %tx, %c1
    control.yield %q, %r, %next
  }"""
    )
    uniformity = Uniformity(made)
    assert [uniformity.of(values[name]) for name in ("i", "p", "q", "r", "x")] == ["grid", *["thread"] * 4]


def test_join() -> None:
    assert least_uniform() == "grid"
    assert [least_uniform("cta", level) for level in LEVELS] == ["cta", "cta", "warpgroup", "warp", "thread"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%r = arith.mul %tx, %c4", 4),
        ("%r = arith.shl %tx, %c3", 8),
        ("%r = arith.mul %c32, %c32", LIMIT),
        ("%x = arith.mul %tx, %c4\n %r = arith.add %x, %c3", 1),
        ("%x = arith.mul %tx, %c4\n %r = arith.sub %c32, %x", 4),
        ("%x = arith.mul %tx, %c32\n %y = arith.mul %b, %c4\n %r = arith.mod %x, %y", 4),
        ("%x = arith.mul %tx, %c32\n %r = arith.floordiv %x, %c4", 8),
        ("%x = arith.mul %tx, %c32\n %r = arith.floordiv %x, %c3", 1),
        ("%x = arith.mul %tx, %c32\n %r = arith.shr %x, %c3", 4),
        ("%x = arith.mul %tx, %c32\n %r = arith.and %x, %b", 32),
        ("%x = arith.mul %tx, %c32\n %y = arith.cast %x : i32\n %r = arith.neg %y", 32),
        ("%x = arith.mul %tx, %c32\n %r = arith.max %x, %c4", 4),
        ("%r = tile.stride %A {axis = 0}", 4),
        ("%r = tile.stride %A {axis = 1}", 1),
        ("%r = tile.dim %A {axis = 1}", 1),
        (SOME + "%r = arith.select %p, %c4, %c32", 4),
        (branch("%c4", "%c0"), 4),
        (loop("%c0, %b, %c4, %c0", "%s", result="%q", induction="%r"), 4),
        (loop("%c0, %b, %c1, %c32", "%t", "%t = arith.add %s, %c4"), 4),
        (loop("%c0, %b, %c1, %c32", "%t", "%t = arith.add %s, %c32"), 32),
        (
            "%r = control.while %c32 : index (%s: index) {\n %g = arith.lt %s, %b\n control.condition %g, %s\n } "
            "do (%m: index) {\n %t = arith.add %m, %c4\n control.yield %t\n }",
            4,
        ),
    ],
)
def test_divisibility(text: str, expected: int) -> None:
    made, values = kernel(POSITIONS + text)
    assert Divisibility(made).of(values["r"]) == expected


@pytest.mark.parametrize(
    ("x", "y", "distance"),
    [
        ("add %tx, %c4", "add %c1, %tx", 3),
        ("mul %tx, %c4", "shl %tx, %c1", None),
        ("shl %p, %c3", "mul %q, %c4", 4),  # (t + 1) * 8 and 4 * (2t + 1)
        ("sub %p, %tx", "neg %c3", 4),
        ("floordiv %p, %c3", "floordiv %r, %c3", 0),
        ("floordiv %p, %c3", "floordiv %tx, %c3", None),
        ("mul %tx, %b", "mul %b, %tx", None),  # equal, but products of two unknowns are not looked into
        ("mod %l, %c5", "mod %l, %c4", None),
    ],
)
def test_sums(x: str, y: str, distance: int | None) -> None:
    """Indices with the same terms have a known distance; how they were computed does not matter."""
    some = """%p = arith.add %tx, %c1 : index\n %r = arith.add %c1, %tx : index
%two = arith.add %tx, %tx : index\n %q = arith.add %two, %c1 : index"""
    made, values = kernel(f"{POSITIONS}{some}\n %x = arith.{x} : index\n %y = arith.{y} : index")
    sums = Sums(made)
    a, b = sums.of(values["x"]), sums.of(values["y"])
    assert (a.constant - b.constant if a.terms == b.terms else None) == distance


def test_equal_sums_of_two_dtypes_are_two_values() -> None:
    """200 + 100 is 44 in u8 and 300 in i32."""
    made, values = kernel("""
  %a = arith.constant 200 : u8
  %b = arith.constant 100 : u8
  %c = arith.constant 200 : i32
  %d = arith.constant 100 : i32
  %ab = arith.add %a, %b : u8
  %cd = arith.add %c, %d : i32
  %x = arith.cast %ab : index
  %y = arith.cast %cd : index""")
    sums = Sums(made)
    assert sums.of(values["x"]) != sums.of(values["y"])


def test_what_lanes_hold_of_a_matrix_is_their_own() -> None:
    """From the same address, too: each lane gets other elements. What all elements are filled with is the same."""
    a = "fragment<f16, [16, 16], mma.m16n8k16.a(1, 1)>"
    b, acc = (f"fragment<f16, [16, 8], mma.m16n8k16.{operand}(1, 1)>" for operand in ("b", "acc"))
    made, values = kernel(
        f"""
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f16
  %S = tile.shared_alloc : shared<f16, [16, 16]>
  %w = matrix.ldmatrix %S, %c0, %c0 {{vec = 8, num = 1}} : u32
  %a = matrix.load %S, %c0, %c0 {{type = {a}, axes = (0, 1)}} : {a}
  %b = tile.pack %zero : {b}
  %acc = tile.pack %zero : {acc}
  %d = matrix.mma %a, %b, %acc : {acc}
  %row = matrix.coordinates {{type = {acc.replace("f16", "index")}, axis = 0}} : {acc.replace("f16", "index")}""",
        "32",
    )
    uniformity = Uniformity(made)
    found = {name: uniformity.of(values[name]) for name in ("w", "a", "b", "acc", "d", "row")}
    assert found == {"w": "thread", "a": "thread", "b": "grid", "acc": "grid", "d": "thread", "row": "thread"}


def test_loops_around_a_value() -> None:
    """How many change it: a sum of what the outer loop changes has 1, wherever it stands; a load is where it is."""
    _, values = kernel("""
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %x = arith.cast %n : index
  control.for %c0, %x, %c1 (%i: index) {
    %y = arith.add %x, %c1 : index
    control.for %c0, %x, %c1 (%j: index) {
      %s = arith.add %i, %y : index
      %t = arith.mul %s, %j : index
      %v = tile.load %A, %c0, %c0 : f32
      control.yield
    }
    control.yield
  }""")
    depths = {name: loops_around(values[name], {}) for name in ("n", "x", "i", "y", "j", "s", "t", "v")}
    assert depths == {"n": 0, "x": 0, "i": 1, "y": 0, "j": 2, "s": 1, "t": 2, "v": 2}


def test_shared_layout() -> None:
    """Disjoint and aligned, unless over another; a tile over one tile still avoids the others."""
    made, values = kernel("""
  %a = tile.shared_alloc : shared<i8, [20]>
  %b = tile.shared_alloc : shared<f32, [8]>
  %c = tile.shared_alloc : shared<f32, [4]>
  %over_b = tile.shared_alloc %b : shared<f32, [2]>
  %too_long = tile.shared_alloc %b : shared<f32, [9]>
  %over_ab = tile.shared_alloc %a, %b : shared<f32, [16]>
  %again = tile.shared_alloc %over_b : shared<f32, [2]>""")
    layout = lay_out_shared(made)
    offsets = {slot.label: slot.offset for slot in layout.slots.values()}
    assert offsets == {"a": 0, "b": 32, "c": 64, "over_b": 32, "too_long": 80, "over_ab": 0, "again": 32}
    assert layout.bytes == 80 + 36
    assert values["a"].op in layout.slots
