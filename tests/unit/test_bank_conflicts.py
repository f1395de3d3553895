"""The bank-conflict pass: what it counts, what it chooses and what it does not know; `explain` and its table."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tiledsl import (
    Const,
    Global,
    Layout,
    barrier,
    cdiv,
    const,
    f32,
    grid,
    padded,
    shared,
    swizzled,
    threads,
    tile_kernel,
    unroll,
)
from tiledsl.__main__ import main
from tiledsl.dims import M, N
from tiledsl.errors import CompileError, TileError
from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import tile
from tiledsl.ir.parser import parse_kernel
from tiledsl.passes.analysis.active_lanes import ActiveLanes
from tiledsl.passes.analysis.lanes import Lanes
from tiledsl.passes.banks.bank_conflicts import bank_report, candidates, choose_layouts
from tiledsl.passes.banks.bank_report import AccessReport, BankReport

TILED = Path(__file__).parent.parent.parent / "examples" / "gemm" / "shared_tiled.py"


def kernel(body: str, threads: str = "32", args: str = "") -> Kernel:
    """A kernel whose block has these threads; %t is the linear index for one axis, %x and %y for two."""
    names = ("t",) if "," not in threads else ("x", "y")
    ids = "\n".join(f"  %{n} = gpu.thread_id {{axis = {a}}} : index" for a, n in enumerate(names))
    numbers = "\n".join(f"  %{n} = arith.constant {n} : index" for n in (0, 1, 2, 3, 4, 8, 16, 31, 32))
    parameters = f"(%A: global<f32, [N], unit=0, align=16>{args})"
    head = f"kernel k{parameters}\n  grid(N) threads({threads}) level(tile) index_bits(32) {{"
    return parse_kernel(f"{head}\n{ids}\n{numbers}\n  %v = arith.constant 1.0 : f32\n{body}\n  control.return\n}}\n")


def report(body: str, threads: str = "32", args: str = "", limit: int | None = None) -> BankReport:
    return bank_report(kernel(body, threads, args), limit)


def only(found: BankReport) -> AccessReport:
    (access,) = found.accesses
    return access


S = "  %S = tile.shared_alloc : shared<f32, [32, 32]>\n"


def test_column_accesses_are_counted_and_swizzled() -> None:
    found = report(f"{S}  tile.store %S, %t, %3, %v")
    access = only(found)
    assert (access.row_order, access.chosen, access.ideal, access.weight) == (32, 1, 1, 1)
    assert (access.kind, access.bytes, access.warps) == ("store", 4, 1)
    assert found.tiles[0].layout == "swizzled(unit=1, span=32)"
    assert found.tiles[0].bytes == found.tiles[0].row_bytes == 4096
    assert found.conflicts == 0


def test_ties_go_to_row_order() -> None:
    found = report(f"{S}  tile.store %S, %3, %t, %v")
    assert (found.tiles[0].layout, found.tiles[0].by) == ("row", "row order is best")


def test_the_mean_is_over_the_warps_that_take_part() -> None:
    """Warp 0 stores a column, warp 1 a row; the other two are kept out by the condition."""
    body = f"""{S}
      %warp = arith.floordiv %t, %32 : index
      %lane = arith.mod %t, %32 : index
      %down = arith.eq %warp, %0 : bool
      %row = arith.select %down, %lane, %3 : index
      %col = arith.select %down, %3, %lane : index
      %two = arith.lt %warp, %2 : bool
      control.if %two {{
        tile.store %S, %row, %col, %v
        control.yield
      }} else {{
        control.yield
      }}"""
    access = only(report(body, "128"))
    assert (access.row_order, access.ideal, access.warps) == (Fraction(33, 2), 1, 2)


LOOP = """
  control.for %0, {hi}, %1 (%i: index) {{
    tile.store %S, {row}, {col}, %v
    control.yield
  }}"""


def loop(hi: str = "%8", row: str = "%t", col: str = "%i") -> str:
    return LOOP.format(hi=hi, row=row, col=col)


UNKNOWN_N = ", %n: i32"
WITH_N = "  %m = arith.cast %n : index\n"


def test_weights_are_trip_counts() -> None:
    assert only(report(S + loop())).weight == 8
    assert only(report(S + WITH_N + loop("%m"), args=UNKNOWN_N)).weight == 64


def test_a_loop_variable_moves_all_lanes_alike() -> None:
    """In row order the count holds for every value; swizzled, each residue is counted and here they agree."""
    found = report(S + WITH_N + loop("%m"), args=UNKNOWN_N)
    access = only(found)
    assert (access.row_order, access.chosen, access.least, access.most) == (32, 1, 1, 1)


def test_residues_that_differ_give_a_range() -> None:
    """Two rows i and i + 1 of a tile swizzled every other row: alike or not, as i is even or odd."""
    body = """
      %S = tile.shared_alloc {layout = "swizzled(unit=1, span=32, every=2)"} : shared<f32, [32, 32]>
      %half = arith.floordiv %t, %16 : index
      %col = arith.mod %t, %16 : index
      %row = arith.add %half, %m : index
      tile.store %S, %row, %col, %v"""
    access = only(report(WITH_N + body, args=UNKNOWN_N))
    assert (access.row_order, access.least, access.most) == (2, 1, 2)
    assert access.chosen is not None
    assert 1 < access.chosen < 2


def test_carried_indices_are_followed() -> None:
    """An index that every iteration moves by the same distance; one that data moves is unknown."""
    body = f"""{S}
      %end = control.for %0, %m, %1, %t : index (%i: index, %at: index) {{
        %row = arith.mod %at, %32 : index
        tile.store %S, %at, %3, %v
        %next = arith.add %at, %i : index
        control.yield %next
      }}"""
    assert only(report(WITH_N + body, args=UNKNOWN_N)).row_order == 32
    data = "%a = tile.load %A, %at : f32\n%next = arith.cast %a : index"
    loaded = body.replace("%next = arith.add %at, %i : index", data)
    access = only(report(WITH_N + loaded, args=UNKNOWN_N))
    assert (access.row_order, access.chosen) == (None, None)
    assert access.notes == ("an index is not known by lane",)


def test_what_is_unknown_has_no_say() -> None:
    body = f"""{S}
      %a = tile.load %A, %t : f32
      %i = arith.cast %a : index
      tile.store %S, %t, %3, %v
      tile.store %S, %i, %3, %v"""
    found = report(body)
    assert len(found.unknown) == 1
    assert found.tiles[0].layout == "swizzled(unit=1, span=32)"
    assert [a.is_known for a in found.accesses] == [True, False]
    assert "unknown" in str(found)


def test_a_condition_that_is_not_known_counts_all_lanes_and_says_so() -> None:
    body = f"""{S}
      %a = tile.load %A, %t : f32
      %c = arith.lt %a, %v : bool
      %b = tile.dim %A {{axis = 0}} : index
      %u = arith.lt %b, %32 : bool
      %few = arith.lt %t, %4 : bool
      %both = arith.and %few, %u : bool
      control.if %c {{
        tile.store %S, %t, %3, %v
        control.yield
      }} else {{
        control.yield
      }}
      control.if %both {{
        tile.store %S, %t, %3, %v
        control.yield
      }} else {{
        control.yield
      }}"""
    first, second = report(body).accesses
    assert first.row_order == 32
    assert "all lanes counted: the condition of line" in first.notes[0]
    assert (second.row_order, second.notes) == (4, ())


def test_guarded_vectors_at_the_edge() -> None:
    """A vector of a tile of ten that lies across the edge goes element by element."""
    body = """
      %S = tile.shared_alloc : shared<f32, [10]>
      %at = arith.mul %t, %4 : index
      %z = tile.pack %v : fragment<f32, [4]>
      tile.put %S, %at, %z {vec = 4}"""
    found = report(body)
    assert [(a.bytes, a.copies, a.warps) for a in found.accesses] == [(16, 1, 1), (4, 2, 1)]
    assert [a.chosen for a in found.accesses] == [1, 1]


def test_the_warp_that_is_shown() -> None:
    """Of all warps and copies the one with the most wavefronts, with the lanes that take part."""
    body = f"""{S}
      %few = arith.lt %t, %8 : bool
      control.if %few {{
        tile.store %S, %t, %3, %v
        control.yield
      }} else {{
        control.yield
      }}"""
    lanes = only(report(body)).lanes
    assert lanes is not None and (lanes.warp, lanes.phase) == (0, 32)
    assert lanes.rows == (*range(8), *[-1] * 24) and lanes.columns == (*[3] * 8, *[-1] * 24)
    assert lanes.row_order == (*((3, i) for i in range(8)), *[()] * 24)
    assert len({bank for bank, _ in lanes.chosen[:8]}) == 8 and {wave for _, wave in lanes.chosen[:8]} == {0}


def test_a_place_that_a_loop_variable_moves_is_one_that_it_can_have() -> None:
    body = '  %S = tile.shared_alloc {layout = "swizzled(unit=1, span=4)"} : shared<f32, [64, 4]>'
    body += "\n  %four = arith.mod %t, %4 : index" + loop(row="%four", col="%i")
    lanes = only(report(body)).lanes
    assert lanes is not None and lanes.rows == (0, 1, 2, 3) * 8
    (column,) = set(lanes.columns)
    assert 0 <= column < 4  # after that the banks of a row come again
    assert [bank for bank, _ in lanes.chosen[:4]] == [4 * row + (column ^ row) for row in range(4)]


@pytest.mark.parametrize(("layout", "rows"), [("row", ["0123", "4567"]), ("padded(5)", ["0123", "5678"])])
def test_a_drawn_layout_has_the_bank_of_each_word(layout: str, rows: list[str]) -> None:
    body = f"""
      %S = tile.shared_alloc {{layout = "{layout}"}} : shared<f32, [2, 4]>
      tile.store %S, %0, %3, %v"""
    (tile_,) = report(body).tiles
    assert ([*tile_.banks], [*tile_.row_banks], tile_.cell) == (rows, ["0123", "4567"], 1)


def test_padding_needs_room() -> None:
    """Padding would cure the first tile; with too little memory it stays in row order."""
    body = """
      %S = tile.shared_alloc : shared<f32, [8, 36]>
      %row = arith.floordiv %t, %4 : index
      %quad = arith.mod %t, %4 : index
      %col = arith.mul %quad, %4 : index
      %z = tile.pack %v : fragment<f32, [4]>
      tile.store %S, %row, %col, %z {vec = 4}"""
    assert report(body, limit=1488).tiles[0].layout == "padded(48)"
    assert report(body, limit=1487).tiles[0].layout == "row"


def test_over_follows_the_footprint() -> None:
    """A tile over a padded one, that is longer than it, starts where the padded one does."""
    made = kernel("""
      %S = tile.shared_alloc {layout = "padded(36)"} : shared<f32, [4, 32]>
      %T = tile.shared_alloc : shared<f32, [64]>
      %U = tile.shared_alloc %S : shared<f32, [128]>
      tile.store %T, %t, %v""")
    from tiledsl.passes.banks.shared_layout import lay_out_shared

    slots = list(lay_out_shared(made).slots.values())
    assert [(s.offset, s.bytes) for s in slots] == [(0, 560), (560, 256), (0, 512)]


def test_two_uses_want_different_layouts() -> None:
    """Rows are read in quads of 16 bytes: no layout may tear these apart to cure the columns."""
    body = f"""{S}
      %col = arith.mul %t, %1 : index
      %quad = arith.mod %t, %8 : index
      %at = arith.mul %quad, %4 : index
      %q = tile.load %S, %3, %at {{vec = 4}} : fragment<f32, [4]>
      %e = tile.extract %q {{at = (0,)}} : f32
      tile.store %A, %t, %e
      tile.store %S, %t, %3, %v"""
    found = report(body)
    (plan,) = found.tiles
    assert plan.layout.startswith("swizzled(unit=4, span=8")
    assert [(a.row_order, a.chosen) for a in found.accesses] == [(4, 4), (32, 4)]


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (64, 64), (16, 128), (12, 48), (32, 36)])
@pytest.mark.parametrize(("by_quads", "by_columns"), [(1, 1), (8, 1), (1, 0), (0, 4)])
def test_the_choice_is_the_first_of_the_best(rows: int, columns: int, by_quads: int, by_columns: int) -> None:
    """Layouts are not counted to the end where a better one is known; that changes nothing of what is chosen."""
    quads, singles = by_quads > 0, by_columns > 0
    body = f"""
      %S = tile.shared_alloc : shared<f32, [{rows}, {columns}]>
      %row = arith.mod %t, %8 : index
      %quad = arith.floordiv %t, %8 : index
      %col = arith.mul %quad, %4 : index
      %z = tile.pack %v : fragment<f32, [4]>
      %turn = arith.mod %t, %{max(by_columns, 1)} : index"""
    body += "\n      tile.store %S, %row, %col, %z {vec = 4}" * by_quads if quads else ""
    body += "\n      tile.store %S, %row, %turn, %v" if singles else ""
    (tile_,) = report(body).tiles
    vector = 16 if quads else 4
    counted = [(layout, under(body, layout)) for layout in map(str, candidates((rows, columns), 4, vector))]
    least = min(count for _, count in counted if count is not None)
    assert tile_.wavefronts == least
    assert tile_.layout == next(layout for layout, count in counted if count == least)


def under(body: str, layout: str) -> Fraction | int | None:
    """The wavefronts of the only tile, where it is laid out so."""
    made = kernel(body)
    alloc = next(op for op in made.walk() if isinstance(op, tile.SharedAlloc))
    alloc.attrs["layout"] = layout
    return bank_report(made).tiles[0].wavefronts


def test_lanes_of_thread_indices() -> None:
    made = kernel("  %sum = arith.add %x, %y : index\n  tile.store %A, %sum, %v", threads="8, 6")
    lanes = Lanes(made)
    store = next(op for op in made.walk() if isinstance(op, tile.Store))
    form = lanes.of(store.indices[0])
    assert form is not None
    assert form.lanes.shape == (2, 32)
    assert form.lanes[1, 3] == 35 % 8 + 35 // 8
    assert ActiveLanes(lanes).reaching(store).lanes.sum() == 48


def test_the_report_is_what_the_pass_does() -> None:
    made = kernel(f"{S}  tile.store %S, %t, %3, %v")
    promised = bank_report(made).tiles[0].layout
    choose_layouts(made)
    (alloc,) = [op for op in made.walk() if isinstance(op, tile.SharedAlloc)]
    assert alloc.layout == promised
    again = bank_report(made).tiles[0]
    assert (again.by, again.layout) == ("given", promised)


# -- as a user asks --------------------------------------------------------------------------------


@tile_kernel
def transpose(A: Global[f32, M, N], B: Global[f32, N, M]):
    bx, by = grid(cdiv(N, 32), cdiv(M, 32))
    tx, ty = threads(32, 8)
    S = shared((32, 32), f32)
    for i in unroll(4):
        S[ty + 8 * i, tx] = A.get(by * 32 + ty + 8 * i, bx * 32 + tx)
    barrier()
    for i in unroll(4):
        B.put(bx * 32 + ty + 8 * i, by * 32 + tx, S[tx, ty + 8 * i])


def test_explain_shows_before_and_after() -> None:
    found = transpose.explain("banks", arch="sm_90a")
    assert isinstance(found, BankReport)
    store, load = found.accesses
    assert (store.copies, store.row_order, store.chosen) == (4, 1, 1)
    assert (load.copies, load.row_order, load.chosen) == (4, 32, 1)
    assert load.loc.line == store.loc.line + 3
    text = str(found)
    assert "shared memory of transpose() for sm_90a, blocks of 32 x 8 threads: 4096 of 232448 bytes" in text
    assert "B.put(bx * 32 + ty + 8 * i, by * 32 + tx, S…" in text
    row = next(line for line in text.splitlines() if " load " in line)
    assert row.split()[-7:] == ["load", "4", "x4", "32", "1", "1", "1"]


def test_the_chosen_layout_computes_the_same() -> None:
    source = np.random.default_rng(0).standard_normal((45, 70), dtype=np.float32)
    target = np.zeros((70, 45), np.float32)
    transpose(source, target, device="emulator")
    assert np.array_equal(target, source.T)


def test_explain_knows_what_it_can_explain() -> None:
    with pytest.raises(TileError, match="no explanation is called 'bunks'"):
        transpose.explain("bunks", arch="sm_90a")


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{TILED}:shared_tiled", "banks", "--const", "T=32"]) == 0
    out = capsys.readouterr().out
    assert "shared_tiled(T=32) for sm_90a" in out
    assert "acc += As[ty, k] * Bs[k, tx]" in out


@tile_kernel
def wide(A: Global[f32, M, N], *, rows: const = 8, layout: Const[Layout | None] = None):
    grid(1)
    t = threads(8)
    S = shared((rows, 32), f32, layout=layout)
    got = S.load(t, 0, vec=16)
    for i in unroll(4):
        A[t, i] = got[i]


@pytest.mark.parametrize(
    ("layout", "line", "message", "fix"),
    [
        (padded(33), "S.load(t, 0, vec=16)", "its layout padded(33) a step along axis 0 is 132 bytes",
         "pad S to a multiple of 4, or leave its layout to the compiler"),
        (swizzled(1, 8), "S.load(t, 0, vec=16)", "moves every 4 bytes to a place of their own", "unit=4 or more"),
        (swizzled(4, 16), "shared((rows, 32)", "64 elements, and a row of 32", "span=8 fits this row"),
    ],
)  # fmt: skip
def test_a_layout_that_cannot_be(layout: Layout, line: str, message: str, fix: str) -> None:
    with pytest.raises(CompileError) as caught:
        wide.compile(arch="sm_90a", layout=layout)
    text = str(caught.value)
    assert line in text
    assert message in text
    assert fix in text


def test_over_the_limit_after_padding() -> None:
    with pytest.raises(CompileError) as caught:
        wide.compile(arch="sm_90a", rows=1800, layout=padded(36))
    text = str(caught.value)
    assert "need 259184 bytes, 232448 are possible on sm_90a: S 259184 bytes (1800 x 32 f32, padded(36))" in text


def test_a_layout_that_is_given_is_kept() -> None:
    found = wide.explain("banks", arch="sm_90a", layout=padded(40))
    assert isinstance(found, BankReport)
    (plan,) = found.tiles
    assert (plan.layout, plan.by, plan.bytes, plan.row_bytes) == ("padded(40)", "given", 1248, 1024)
    assert (plan.row_wavefronts, plan.wavefronts, plan.ideal) == (8, 2, 1)
