"""Merging of accesses to memory: what becomes one access, and each reason why something does not."""

from __future__ import annotations

from itertools import count

import pytest

from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import tile
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.verifier import verify
from tiledsl.passes.banks.bank_conflicts import bank_report
from tiledsl.passes.banks.merge_accesses import merge_accesses

HEAD = """kernel k(%A: global<f32, [N], unit=0, align=16>, %n: i32, %on: bool)
  grid(1) threads(32) level(tile) index_bits(32) {
  %t = gpu.thread_id {axis = 0} : index
  %0 = arith.constant 0 : index
  %1 = arith.constant 1 : index
  %2 = arith.constant 2 : index
  %3 = arith.constant 3 : index
  %4 = arith.constant 4 : index
  %5 = arith.constant 5 : index
  %m = arith.cast %n : index
  %4t = arith.mul %t, %4 : index
  %v = arith.constant 1.0 : f32
"""
AUTO = "  %S = tile.shared_alloc : shared<f32, [32, 32]>\n"
NAMES = count()


def given(layout: str, dims: str = "32, 32", dtype: str = "f32") -> str:
    return f'  %S = tile.shared_alloc {{layout = "{layout}"}} : shared<{dtype}, [{dims}]>\n'


S = given("row")


def kernel(body: str) -> Kernel:
    """Indices in `body` are the constants 0 to 5, t, 4t and an unknown m."""
    made = parse_kernel(f"{HEAD}{body}\n  control.return\n}}\n")
    verify(made)
    return made


def merge(body: str, limit: int | None = None) -> Kernel:
    made = kernel(body)
    merge_accesses(made, limit)
    verify(made)
    return made


def left(body: str, limit: int | None = None) -> list[str]:
    """The accesses to shared memory that are left, in program order: "load 4" for one of four elements."""
    accesses = [op for op in merge(body, limit).walk() if isinstance(op, tile.Access)]
    return [f"{op.name.removeprefix('tile.')} {op.vec}" for op in accesses if op.memory.op is not None]


def wavefronts(made: Kernel) -> int:
    """Of all accesses, in the layouts that are chosen for them."""
    return sum(int(report.wavefronts or 0) for report in bank_report(made).tiles)


def load(column: str, row: str = "%t", vec: int = 1, dtype: str = "f32") -> str:
    """A load of S, and an op that uses it: what nobody uses is no access."""
    name, fragment = f"%l{next(NAMES)}_", f"fragment<{dtype}, [{vec}]>"
    if vec == 1:
        use = f"tile.pack {name} : {fragment}"
        return f"  {name} = tile.load %S, {row}, {column} : {dtype}\n  {name}u = {use}\n"
    use = f"tile.extract {name} {{at = (0,)}} : {dtype}"
    return f"  {name} = tile.load %S, {row}, {column} {{vec = {vec}}} : {fragment}\n  {name}u = {use}\n"


def loads(*columns: str, row: str = "%t", dtype: str = "f32") -> str:
    return "".join(load(column, row, 1, dtype) for column in columns)


def store(column: str, row: str = "%t", vec: int = 1) -> str:
    if vec == 1:
        return f"  tile.store %S, {row}, {column}, %v\n"
    name = f"%s{next(NAMES)}_"
    pack = f"  {name} = tile.pack %v : fragment<f32, [{vec}]>\n"
    return f"{pack}  tile.store %S, {row}, {column}, {name} {{vec = {vec}}}\n"


def stores(*columns: str, row: str = "%t") -> str:
    return "".join(store(column, row) for column in columns)


# -- what merges -----------------------------------------------------------------------------------


def test_neighbours_become_the_widest_aligned_vectors() -> None:
    assert left(S + loads("%0", "%1", "%2", "%3")) == ["load 4"]
    assert left(S + stores("%0", "%1", "%2", "%3")) == ["store 4"]
    assert left(S + loads("%1", "%2", "%3", "%4", "%5")) == ["load 1", "load 2", "load 2"]


def test_nothing_is_loaded_that_nobody_asked_for() -> None:
    assert left(S + loads("%0", "%1", "%2")) == ["load 2", "load 1"]
    assert left(S + loads("%0", "%2", "%4")) == ["load 1"] * 3
    unused = "  %x = tile.load %S, %t, %1 : f32\n"
    assert left(S + unused + loads("%0", "%2", "%3")) == ["load 1", "load 1", "load 2"]


@pytest.mark.parametrize(("dtype", "vec"), [("f64", 2), ("f32", 4), ("bf16", 8), ("u8", 16), ("bool", 16)])
def test_vectors_have_16_bytes_at_most(dtype: str, vec: int) -> None:
    numbers = "".join(f"  %c{e} = arith.constant {e} : index\n" for e in range(16))
    body = given("row", "32, 32", dtype) + numbers + loads(*(f"%c{e}" for e in range(16)), dtype=dtype)
    assert left(body) == [f"load {vec}"] * (16 // vec)


def test_equal_indices_need_not_be_one_value() -> None:
    ways = "  %a = arith.add %4t, %1 : index\n  %b = arith.add %1, %4t : index\n  %c = arith.shl %t, %2 : index\n"
    assert left(S + ways + loads("%a", "%b", row="%0")) == ["load 1"]
    assert left(S + ways + loads("%c", "%a", row="%0")) == ["load 2"]
    rows = "  %r = arith.floordiv %m, %3 : index\n  %s = arith.floordiv %m, %3 : index\n"
    assert left(S + rows + load("%0", "%r") + load("%1", "%s")) == ["load 2"]


def test_the_index_of_the_first_element_may_be_computed_later() -> None:
    later = "  %a = arith.add %4t, %3 : index\n" + load("%a", "%0")
    body = S + later + "  %b = arith.sub %a, %1 : index\n" + load("%b", "%0")
    assert left(body) == ["load 2"]


def test_other_work_between_does_not_matter() -> None:
    between = """
  tile.store %A, %t, %v
  %O = tile.shared_alloc : shared<f32, [32]>
  tile.store %O, %t, %v
  %c = control.if %on : f32 {
    control.yield %v
  } else {
    control.yield %v
  }
"""
    assert left(S + load("%0") + between + load("%1")) == ["load 2", "store 1"]


def test_equal_loads_are_one_load() -> None:
    assert left(S + loads("%m", "%m", "%m")) == ["load 1"]


def test_what_a_vector_holds_is_not_loaded_again() -> None:
    assert left(S + load("%0", vec=4) + load("%1")) == ["load 4"]
    assert left(S + load("%1") + load("%0", vec=4)) == ["load 4"]


def test_vectors_become_wider_ones() -> None:
    assert left(S + load("%0", vec=2) + load("%2", vec=2)) == ["load 4"]
    assert left(S + store("%1") + store("%2", vec=2) + store("%0")) == ["store 4"]


def test_of_several_writes_the_last_one_remains() -> None:
    second = "  %x = arith.constant 2.0 : f32\n  tile.store %S, %t, %0, %x\n"
    (only,) = (op for op in merge(S + stores("%0", "%1") + second).walk() if isinstance(op, tile.Store))
    pack = only.value.op
    assert isinstance(pack, tile.Pack) and [v.name for v in pack.operands] == ["x", "v"]
    assert left(S + stores("%m", "%m")) == ["store 1"]


# -- what does not ---------------------------------------------------------------------------------

BETWEEN = {
    "a write to the tile": "tile.store %S, %m, %m, %v",
    "a guarded write": "tile.put %S, %m, %m, %v",
    "an atomic": "%old = tile.atomic_add %S, %m, %m, %v : f32",
    "a barrier": "gpu.barrier",
    "a warp's barrier": "gpu.sync_warp",
    "a fence": 'gpu.fence {reach = "cta"}',
    "a shuffle": '%sh = warp.shuffle %v, %n {mode = "idx"} : f32',
    "output": 'debug.print {format = "here"}',
    "raw PTX": 'ptx.inline {text = "nanosleep.u32 100;", outputs = (), volatile = true}',
    "a write to a tile that lies over it": "%O = tile.shared_alloc %S : shared<f32, [8]>\n  tile.store %O, %0, %v",
    "a branch with a write": "control.if %on {\n tile.store %S, %m, %m, %v\n control.yield\n } else {\n"
    " control.yield\n }",
    "a loop": "control.for %0, %m, %1 (%i: index) {\n control.yield\n }",
}


@pytest.mark.parametrize("what", BETWEEN)
def test_loads_do_not_move_past(what: str) -> None:
    found = left(f"{S}{load('%0')}\n  {BETWEEN[what]}\n{load('%1')}")
    assert "load 2" not in found and found.count("load 1") == 2


@pytest.mark.parametrize("what", BETWEEN)
def test_stores_do_not_move_past(what: str) -> None:
    assert "store 2" not in left(f"{S}{store('%0')}\n  {BETWEEN[what]}\n{store('%1')}")


@pytest.mark.parametrize("read", ["tile.load %S, %m, %m : f32", "tile.get %S, %m, %m, %v : f32"])
def test_stores_do_not_move_past_a_read(read: str) -> None:
    assert "store 2" not in left(f"{S}{store('%0')}  %y = {read}\n{store('%1')}")


def test_a_branch_is_a_block_of_its_own() -> None:
    inside = f"  control.if %on {{\n{load('%1')}  control.yield\n  }} else {{\n  control.yield\n  }}\n"
    assert left(S + load("%0") + inside) == ["load 1"] * 2


def test_guarded_accesses_stay_alone() -> None:
    gets = "".join(f"  %g{c} = tile.get %S, %t, %{c}, %v : f32\n" for c in range(2))
    puts = "".join(f"  tile.put %S, %t, %{c}, %v\n" for c in range(2))
    assert left(S + gets + puts) == ["get 1"] * 2 + ["put 1"] * 2


def test_tensors_are_left_alone() -> None:
    """A vector of global memory is asked for by name: LLVM knows nothing of a tensor's alignment either."""
    made = merge("".join(f"  tile.store %A, %{e}, %v\n" for e in range(4)))
    assert [op.vec for op in made.walk() if isinstance(op, tile.Store)] == [1] * 4


def test_neighbours_in_a_column_are_no_neighbours() -> None:
    assert left(S + "".join(load("%t", f"%{row}") for row in range(4))) == ["load 1"] * 4


@pytest.mark.parametrize(
    ("column", "merged"), [("%4t", ["load 2"]), ("%t", ["load 1"] * 2), ("%m", ["load 1"] * 2)], ids=["4t", "t", "m"]
)
def test_alignment_is_proven(column: str, merged: list[str]) -> None:
    assert left(f"{S}  %a = arith.add {column}, %1 : index\n" + loads(column, "%a", row="%0")) == merged


@pytest.mark.parametrize(("length", "row", "vec"), [(33, "%t", 1), (34, "%t", 2), (33, "%4t", 4), (36, "%t", 4)])
def test_so_is_that_of_the_row(length: int, row: str, vec: int) -> None:
    """A row of 33 words is aligned to 4 bytes, unless its number is a multiple of 4."""
    body = given("row", f"128, {length}") + loads("%0", "%1", "%2", "%3", row=row)
    assert left(body) == [f"load {vec}"] * (4 // vec)


# -- layouts ---------------------------------------------------------------------------------------

COLUMN = "  tile.store %S, %t, %m, %v\n  gpu.barrier\n"


@pytest.mark.parametrize(
    ("layout", "vec"),
    [("row", 4), ("padded(33)", 1), ("padded(34)", 2), ("padded(36)", 4)]
    + [(f"swizzled(unit={unit}, span=4)", min(unit, 4)) for unit in (1, 2, 4, 8)],
)
def test_a_given_layout_says_what_stays_together(layout: str, vec: int) -> None:
    """Whatever it costs: under one layout a vector never takes more wavefronts than its elements."""
    body = given(layout) + COLUMN + loads("%0", "%1", "%2", "%3")
    assert left(body) == ["store 1"] + [f"load {vec}"] * (4 // vec)
    assert wavefronts(merge(body)) <= wavefronts(kernel(body))


def test_a_vector_that_costs_no_wavefronts_is_made() -> None:
    """Each lane reads a row of its own: swizzled by 16 bytes in four wavefronts, what four elements take at best."""
    body = AUTO + loads("%0", "%1", "%2", "%3")
    assert left(body) == ["load 4"]
    assert wavefronts(merge(body)) == wavefronts(kernel(body)) == 4


def test_a_vector_that_costs_wavefronts_is_not_made() -> None:
    """Single elements of a column take one in the best layout, and two or four in one that keeps vectors together."""
    body = AUTO + COLUMN + loads("%0", "%1", "%2", "%3")
    assert left(body) == ["store 1"] + ["load 1"] * 4
    assert wavefronts(kernel(body)) == 5
    assert wavefronts(merge(given("padded(36)") + COLUMN + loads("%0", "%1", "%2", "%3"))) == 8


def test_the_next_narrower_vector_may_cost_none() -> None:
    """The kernel's own vectors have 8 bytes: what keeps those together serves pairs, but not four at once."""
    column = "".join(store("%2", vec=2) for _ in range(2))
    assert left(AUTO + column + "  gpu.barrier\n" + loads("%0", "%1", "%2", "%3", row="%3"))[-2:] == ["load 2"] * 2


@pytest.mark.parametrize(("limit", "vec"), [(32 * 49 * 4, 1), (32 * 48 * 4, 4)])
def test_only_layouts_that_fit_count(limit: int, vec: int) -> None:
    """A word of padding cures columns and rows of single elements; without room for it vectors are better."""
    body = "  %S = tile.shared_alloc : shared<f32, [32, 48]>\n" + COLUMN + loads("%0", "%1", "%2", "%3")
    assert left(body, limit) == ["store 1"] + [f"load {vec}"] * (4 // vec)


# -- global memory ---------------------------------------------------------------------------------

TENSORS = """kernel k(%X: global<f32, [M, N], unit=1, align=16>, %Y: global<f32, [M, N], unit=1, align=16>, %n: i32)
  grid(1) threads(32) level(tile) index_bits(32) {
  %t = gpu.thread_id {axis = 0} : index
  %0 = arith.constant 0 : index
  %1 = arith.constant 1 : index
  %2 = arith.constant 2 : index
  %3 = arith.constant 3 : index
  %4 = arith.constant 4 : index
  %m = arith.cast %n : index
  %4t = arith.mul %t, %4 : index
  %4t1 = arith.add %4t, %1 : index
  %4t2 = arith.add %4t, %2 : index
  %4t3 = arith.add %4t, %3 : index
  %m1 = arith.add %m, %1 : index
  %v = arith.constant 1.0 : f32
  %z = arith.constant 0.0 : f32
  %negative = arith.constant -0.0 : f32
"""
GATHERED = ", gathered = true"


def of_tensors(body: str, head: str = TENSORS) -> list[str]:
    made = parse_kernel(f"{head}{body}\n  control.return\n}}\n")
    verify(made)
    merge_accesses(made)
    verify(made)
    return [f"{op.name.removeprefix('tile.')} {op.vec}" for op in made.walk() if isinstance(op, tile.Access)]


def get(column: str, row: str = "%t", other: str = "%z", memory: str = "%X", more: str = GATHERED) -> str:
    name = f"%g{next(NAMES)}_"
    loaded = f"  {name} = tile.get {memory}, {row}, {column}, {other} {{vec = 1{more}}} : f32\n"
    return f"{loaded}  {name}u = tile.pack {name} : fragment<f32, [1]>\n"


def put(column: str, row: str = "%t", memory: str = "%X", more: str = GATHERED) -> str:
    return f"  tile.put {memory}, {row}, {column}, %v {{vec = 1{more}}}\n"


def test_gathered_elements_of_a_tensor_merge() -> None:
    assert of_tensors(get("%4t") + get("%4t1") + get("%4t")) == ["get 2"]
    assert of_tensors(get("%4t") + get("%4t1") + get("%4t2") + get("%4t3")) == ["get 4"]
    assert of_tensors(put("%4t") + put("%4t1") + put("%4t2")) == ["put 2", "put 1"]
    assert of_tensors(get("%0", "%m") + get("%1", "%m")) == ["get 2"]


def test_only_what_is_proven_to_be_aligned_becomes_a_vector() -> None:
    assert of_tensors(get("%m") + get("%m1") + get("%m")) == ["get 1", "get 1"]
    assert of_tensors(get("%4t1") + get("%4t2")) == ["get 1", "get 1"]
    assert of_tensors(get("%4t") + get("%4t1"), TENSORS.replace("align=16", "align=4")) == ["get 1", "get 1"]
    assert of_tensors(get("%4t") + get("%4t1"), TENSORS.replace("unit=1", "unit=-1")) == ["get 1", "get 1"]
    assert of_tensors(get("%4t") + get("%4t1"), TENSORS.replace("unit=1", "unit=0")) == ["get 1", "get 1"]


def test_what_the_author_wrote_by_itself_keeps_its_width() -> None:
    assert of_tensors(get("%4t", more="") + get("%4t1", more="")) == ["get 1", "get 1"]
    assert of_tensors(put("%4t", more="") + put("%4t1", more="")) == ["put 1", "put 1"]
    assert of_tensors(get("%4t", more="") + get("%4t", more="")) == ["get 1"]


def test_what_stands_past_the_edge_counts() -> None:
    assert of_tensors(get("%4t") + get("%4t1", other="%v")) == ["get 1", "get 1"]
    assert of_tensors(get("%4t") + get("%4t", other="%negative")) == ["get 1", "get 1"]
    assert of_tensors(get("%4t") + "  %zero = arith.constant 0.0 : f32\n" + get("%4t", other="%zero")) == ["get 1"]


@pytest.mark.parametrize(
    "between", [put("%m"), "  gpu.barrier\n", "  tile.store %X, %t, %m, %v\n"], ids=["put", "barrier", "store"]
)
def test_loads_of_a_tensor_stay_on_their_side_of_a_write(between: str) -> None:
    assert [a for a in of_tensors(get("%4t") + between + get("%4t")) if "get" in a] == ["get 1", "get 1"]


def test_stores_to_a_tensor_stay_on_their_side_of_a_read() -> None:
    assert of_tensors(put("%4t") + get("%m") + put("%4t1")) == ["put 1", "get 1", "put 1"]
    assert of_tensors(put("%4t") + put("%m", memory="%Y") + put("%4t1")) == ["put 1", "put 2"]


def test_other_tensors_do_not_matter() -> None:
    """Those that are written overlap no other."""
    assert of_tensors(get("%4t") + put("%m", memory="%Y") + get("%4t1")) == ["get 2", "put 1"]
