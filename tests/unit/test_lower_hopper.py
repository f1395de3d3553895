"""TMA, mbarriers, wgmma and roles: from the tile level to PTX and SASS, and what the emulator makes of both levels."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hopper_texts import SHARED_LIMIT, Product, lowered, one_tile, one_tile_by_registers, ring, run

from tiledsl.backends.protocol import Binary
from tiledsl.backends.ptx import TARGETS, build
from tiledsl.backends.ptx.codegen import emit_ptx
from tiledsl.backends.ptx.lower import read_only_pointers
from tiledsl.backends.ptx.sass.disassemble import sass_listing
from tiledsl.backends.ptx.sass.program import Sass, SassProgram
from tiledsl.backends.ptx.sass.report import sass_report
from tiledsl.errors import AssemblerError, CompileError
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.layout.wgmma import WGMMA, find_wgmma
from tiledsl.passes.banks.bank_conflicts import bank_report
from tiledsl.passes.banks.bank_report import TileReport
from tiledsl.passes.pipeline import run_pipeline

HOPPER = TARGETS["sm_90a"]
EDGES = {"M": 200, "N": 136, "K": 144}

PRODUCTS = [
    Product(),
    Product(m=64, n=64, span_a=64, span_b=32, k=64),
    Product(m=128, n=104, k=32, span_a=64, span_b=64),
    Product(turned_a=True),
    Product(turned_b=True),
    Product(turned_a=True, turned_b=True, a="f16", m=64, n=176, span_b=32),
    Product(turned_b=True, n=160, span_b=64),
    Product(turned_b=True, n=176, staged=192),
    Product(turned_b=True, n=8, staged=64, m=64),
    Product(turned_b=True, n=40, staged=64, span_b=64, turned_a=True),
    Product(m=256, n=64, warpgroups=2),
    Product(m=256, n=64, warpgroups=2, turned_a=True, span_a=64),
    Product(m=192, n=40, warpgroups=3),
    Product(a="f16", acc="f16"),
    Product(a="tf32", k=32),
    Product(a="e4m3", k=128),
    Product(a="e4m3", b="e5m2", k=64, span_a=64, span_b=64),
    Product(a="i8", b="u8", acc="i32", k=128, n=96),
]


def built(text: str) -> Binary:
    return build(lowered(text), HOPPER)


def program(binary: Binary) -> SassProgram:
    (listing,) = sass_listing(binary.cubin)
    return listing


def instructions(binary: Binary) -> list[Sass]:
    return list(program(binary).instructions)


def with_line(text: str, word: str) -> int:
    """The line of the first op whose text has `word`, which is the line of errors about it."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if word in line)


# -- what is computed ------------------------------------------------------------------------------


@pytest.mark.parametrize("p", PRODUCTS, ids=str)
def test_a_product_is_the_same_at_both_levels(p: Product) -> None:
    """Edges that no tile divides: TMA fills them with zeros."""
    text = one_tile(p)
    for kernel in (parse_kernel(text), lowered(text)):
        got, want = run(kernel, p, EDGES)
        assert np.array_equal(got, want)


@pytest.mark.parametrize("p", [Product(m=64, n=64), Product(m=256, n=32, warpgroups=2), Product(a="f16")], ids=str)
def test_a_left_operand_from_registers(p: Product) -> None:
    text = one_tile_by_registers(p)
    for kernel in (parse_kernel(text), lowered(text)):
        got, want = run(kernel, p, EDGES)
        assert np.array_equal(got, want)
    assert re.search(r"HGMMA[.\w]* R\d+, R\d+, gdesc\[UR\d+\]", "\n".join(s.text for s in instructions(built(text))))


def test_registers_that_products_still_read_get_no_other_values() -> None:
    text = one_tile_by_registers(Product(m=64, n=64)).replace("%next {pending = 0", "%next {pending = 1")
    with pytest.raises(CompileError, match="reads its left operand from registers until all products") as caught:
        lowered(text)
    assert caught.value.loc.line == with_line(text, "wgmma.mma") and "in_flight=0" in caught.value.fix


@pytest.mark.parametrize("p", [Product(out="bf16", warpgroups=2), Product(a="f16", out="f16", m=64)], ids=str)
def test_roles_and_a_ring(p: Product) -> None:
    """Three blocks go through all tiles; the loader is stages ahead, and C leaves while the next tile is computed."""
    text = ring(p, stages=2, blocks=3)
    for kernel in (parse_kernel(text), lowered(text)):
        got, want = run(kernel, p, {"M": 328, "N": 200, "K": 272})
        assert np.array_equal(got, want)


# -- what becomes of it ----------------------------------------------------------------------------


@pytest.mark.parametrize("p", PRODUCTS, ids=str)
def test_every_product_is_a_chain(p: Product) -> None:
    """ptxas makes no remark (that would be an error), no spill, no stack, and the instruction that was meant."""
    binary = built(one_tile(p))
    row = find_wgmma(*p.dtypes[:2], p.acc)
    assert row is not None
    use = binary.resources
    assert (use.spill_stores, use.spill_loads, use.stack) == (0, 0, 0)
    assert set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.(\w+)", binary.ptx)) == {f"m64n{p.n}k{row.k}"}


def test_every_row_of_the_table_assembles() -> None:
    for row in WGMMA:
        p = Product(a=row.a, b=row.b, acc=row.acc, m=64, n=32, k=128 * 8 // row.bits)
        assert f".m64n32k{row.k}." in built(one_tile(p)).ptx


@pytest.fixture(scope="module")
def warp_specialised() -> Binary:
    """128 x 256 x 64, four stages, two warpgroups that multiply."""
    return built(ring(Product(n=256, out="bf16", warpgroups=2)))


def test_accumulators_stay_where_they_are(warp_specialised: Binary) -> None:
    """From the first product of a step to the wait nothing but products writes one."""
    use = warp_specialised.resources
    assert (use.spill_stores, use.spill_loads, use.stack, use.registers) == (0, 0, 0, 168)
    code = instructions(warp_specialised)
    held = {r for s in code if s.base == "HGMMA" for r in s.operands.writes}
    assert len(held) == 128
    flying = False
    for s in code:
        flying = (flying or s.base == "HGMMA") and not s.opcode.startswith("WARPGROUP.DEPBAR")
        if flying and s.base != "HGMMA":
            assert not s.operands.writes & held, s.text
    loops = program(warp_specialised).loops
    steady = [loop for loop in loops if sum(code[i].base == "HGMMA" for i in loop.body) == 4]
    assert steady and all(len(loop.body) < 60 for loop in steady)
    # Descriptors are computed once a warp, where the instruction reads them, and not copied there.
    assert not any(code[i].base == "R2UR" for loop in steady for i in loop.body)


def test_what_the_instructions_are(warp_specialised: Binary) -> None:
    code = instructions(warp_specialised)
    counts = {base: sum(s.base == base for s in code) for base in ("UTMALDG", "UTMASTG", "STSM", "USETMAXREG", "LDL")}
    assert counts == {"UTMALDG": 2, "UTMASTG": 4, "STSM": 16, "USETMAXREG": 2, "LDL": 0}
    assert not sass_report(warp_specialised.cubin, warp_specialised.ptx).unknown


def test_the_epilogue_has_no_bank_conflicts() -> None:
    kernel = parse_kernel(ring(Product(n=128, out="bf16", warpgroups=2)))
    tiles: dict[str, TileReport] = {}

    def look(stage: str, seen: Kernel) -> None:
        if stage == "merge-accesses":
            tiles.update({t.name: t for t in bank_report(seen).tiles})

    run_pipeline(kernel, shared_limit=SHARED_LIMIT, observe=look)
    out = tiles["out"]
    assert out.layout == "swizzle_128b" and out.by == "given"
    assert out.wavefronts == out.ideal > 0 and out.row_wavefronts == 8 * out.ideal


def test_tensor_maps_are_parameters() -> None:
    """Behind all others, aligned to 64 bytes, and never copied: TMA reads them where they are."""
    kernel = lowered(one_tile(Product()))
    assert [(m.tensor, m.box, m.swizzle) for m in kernel.tensor_maps] == [("A", (64, 128), 128), ("B", (64, 128), 128)]
    _, ptx = emit_ptx(kernel, HOPPER)
    entry = ptx[ptx.index(".entry") : ptx.index("{", ptx.index(".entry"))]
    assert re.findall(r"\.param (.*?)\[128\]", entry) == [
        f".align 64 .b8 one_param_{len(kernel.abi) + number}" for number in range(2)
    ]
    assert "ld.param" not in re.sub(r"ld\.param\.b(32|64)", "", ptx) and ".local" not in ptx


# -- the text of each op ---------------------------------------------------------------------------

OPS = """kernel ops(%A: global<bf16, [M, N], unit=1, align=16>, %blocks: u16, %block: i32, %parity: u32, %who: i32)
  grid(2) threads(256) cluster(2, 1, 1) {
  %zero = arith.constant 0 : index
  %tid = gpu.thread_id {axis = 0} : index
  %first = arith.eq %tid, %zero : bool
  %S = tile.shared_alloc {layout = "swizzle_128b"} : shared<bf16, [64, 64]>
  %bars = tile.shared_alloc {layout = "row"} : shared<u64, [1]>
  %p = warp.elect : bool
  gpu.setmaxnreg {registers = 40, increase = false}
  gpu.grid_dependency {wait = true}
  cluster.arrive
  cluster.wait
  %rank = cluster.rank : i32
  %both = arith.and %first, %p : bool
  control.if %both {
    tma.prefetch %A
    mbarrier.init %bars, %zero {count = 3}
    fence.mbarrier_init
    mbarrier.expect_tx %bars, %zero {bytes = 8192}
    tma.load %S, %zero, %zero, %A, %zero, %zero, %bars, %zero, %blocks
        {box = (64, 64), axes = (0, 1), multicast = "m", hint = "evict_last"}
    mbarrier.arrive %bars, %zero
    mbarrier.arrive %bars, %zero, %rank {reach = "cluster"}
    mbarrier.wait %bars, %zero, %parity {reach = "cluster"}
    fence.proxy_async
    fence.proxy_async {space = "global"}
    tma.store %S, %zero, %zero, %A, %zero, %zero {box = (64, 64), axes = (0, 1)}
    tma.commit_group
    tma.wait_group {pending = 1}
    tma.wait_group {pending = 0, read = true}
    control.yield
  } else {
    control.yield
  }
  gpu.named_barrier %who {number = 2, threads = 128}
  gpu.named_barrier {number = 1, threads = 64, wait = false}
  gpu.grid_dependency {wait = false}
  control.return
}
"""


def test_the_text_of_each_op() -> None:
    _, ptx = emit_ptx(lowered(OPS), HOPPER)
    wanted = """
        .explicitcluster
        .reqnctapercluster 2, 1, 1
        elect.sync
        setmaxnreg.dec.sync.aligned.u32 40;
        griddepcontrol.wait;
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
        %cluster_ctarank
        prefetch.tensormap
        mbarrier.init.shared::cta.b64
        fence.mbarrier_init.release.cluster;
        mbarrier.arrive.expect_tx.shared::cta.b64
        createpolicy.fractional.L2::evict_last.b64
        cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint
        mbarrier.arrive.shared::cta.b64
        mapa.shared::cluster.u32
        mbarrier.arrive.release.cluster.shared::cluster.b64
        mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64
        fence.proxy.async.shared::cta;
        fence.proxy.async.global;
        cp.async.bulk.tensor.2d.global.shared::cta.bulk_group
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group 1;
        cp.async.bulk.wait_group.read 0;
        griddepcontrol.launch_dependents;
    """
    for line in wanted.split("\n"):
        assert line.strip() in ptx, line
    assert re.search(r"bar(rier)?(\.cta)?\.sync(\.aligned)?\s+%r\d+, 128;", ptx)
    assert re.search(r"bar(rier)?(\.cta)?\.arrive(\.aligned)?\s+1, 64;", ptx)
    assert ".version 8.0" in ptx
    build(lowered(OPS), HOPPER)


def test_a_tensor_that_tma_writes_is_not_read_only() -> None:
    kernel = lowered(OPS)
    assert not read_only_pointers(kernel)
    assert {v.name for v in read_only_pointers(lowered(one_tile(Product())))} == {"A", "B"}


@pytest.mark.parametrize(
    ("target", "word", "message"),
    [
        ("sm_90", "wgmma.fence", "needs sm_90a, and this is compiled for sm_90"),
        ("sm_100a", "wgmma.fence", "needs sm_90a, and this is compiled for sm_100a"),
        ("sm_80", "mbarrier.init", "ptx.mbarrier_init() needs one of sm_90, sm_90a"),
    ],
)
def test_targets_without_it(target: str, word: str, message: str) -> None:
    text = one_tile(Product())
    with pytest.raises(CompileError, match=re.escape(message)) as caught:
        build(lowered(text), TARGETS[target])
    assert caught.value.loc.line == with_line(text, word)
    assert "sm_90a" in caught.value.fix


def test_a_remark_of_ptxas_is_an_error_at_its_line() -> None:
    """An accumulator that is read while a product is on its way: ptxas would wait for each of them."""
    kernel = lowered(one_tile(Product(m=64, n=8)))
    text = print_kernel(kernel)
    product = next(line for line in text.splitlines() if " ptx.wgmma %" in line)
    pointer = re.search(r"%\w+ = mem.shared_base", text)
    assert pointer is not None
    read = product.split(",")[0].strip()
    spoiled = text.replace(
        product,
        f"{product}\n  %word = arith.bitcast {read} : u32\n  %half = arith.cast %word : u16\n  "
        f"%spoil = arith.bitcast %half : bf16\n  mem.store {pointer[0].split()[0]}, %spoil",
        1,
    )
    with pytest.raises(AssemblerError, match="Potential Performance Loss") as caught:
        build(parse_kernel(spoiled), HOPPER)
    assert caught.value.loc.line


def test_what_is_rarely_done_costs_nothing_else() -> None:
    """Results of an `if` that is likely: a branch past the other block, and no selection for each of them."""
    names = [f"%x{i}" for i in range(16)]
    types = ", ".join(["f32"] * 16)
    loads = "\n".join(f"  %i{i} = arith.constant {i} : index\n  %x{i} = tile.load %A, %i{i} : f32" for i in range(16))
    results = ", ".join(f"%y{i}" for i in range(16))
    stores = "\n".join(f"  tile.store %A, %i{i}, %y{i}" for i in range(16))
    text = f"""kernel rare(%A: global<f32, [N], unit=0, align=4>, %some: bool)
  grid(1) threads(32) {{
{loads}
  {results} = control.if %some {{likely = true}} : {types} {{
    control.yield {", ".join(names)}
  }} else {{
    %zero = arith.constant 0.0 : f32
    control.yield {", ".join(["%zero"] * 16)}
  }}
{stores}
  control.return
}}
"""
    _, ptx = emit_ptx(lowered(text), HOPPER)
    assert "selp.f32" not in ptx and re.search(r"@%p\d+ bra", ptx)
    _, ptx = emit_ptx(lowered(text.replace(" {likely = true}", "")), HOPPER)
    assert "selp.f32" in ptx


# -- roles in passes -------------------------------------------------------------------------------


def test_a_role_keeps_its_block_in_front() -> None:
    """Canonicalize turns an `if not` round, but not that of a role."""
    text = """kernel roles()
  grid(1) threads(256) {
  %four = arith.constant 4 : index
  %w = gpu.warp_id : index
  %low = arith.lt %w, %four : bool
  %high = arith.not %low : bool
  control.if %high {role = (4, 4)} {
    gpu.named_barrier {number = 1, threads = 128}
    control.yield
  } else {
    control.yield
  }
  control.return
}
"""
    made = print_kernel(lowered(text))
    then = made[made.index("role = (4, 4)") :]
    assert then.index("gpu.named_barrier") < then.index("else")


def test_instances_of_a_role_hold_an_accumulator_each() -> None:
    """Two warpgroups of one role: where a product begins may differ between them, but not within one."""
    text = """kernel instances()
  grid(1) threads(384) {
  %zero = arith.constant 0 : index
  %four = arith.constant 4 : index
  %eight = arith.constant 8 : index
  %no = arith.constant false : bool
  %S = tile.shared_alloc {layout = "swizzle_128b"} : shared<bf16, [2, 64, 64]>
  %w = gpu.warp_id : index
  %math = arith.ge %w, %four : bool
  control.if %math {role = (4, 8)} {
    %own = arith.sub %w, %four : index
    %index = arith.floordiv %own, NUMBER : index
    %begun = wgmma.begin : pending<fragment<f32, [64, 64], wgmma.acc(1, 4)>>
    wgmma.fence
    %a = wgmma.mma %begun, %no, %S, %index, %zero, %zero, %S, %index, %zero, %zero
        {k = 64, a_axes = (1, 2), b_axes = (2, 1)} : pending<fragment<f32, [64, 64], wgmma.acc(1, 4)>>
    wgmma.commit_group
    %done = wgmma.wait %a : fragment<f32, [64, 64], wgmma.acc(1, 4)>
    control.yield
  } else {
    control.yield
  }
  control.return
}
"""
    lowered(text.replace("NUMBER", "%four"))
    with pytest.raises(CompileError, match="all 128 threads of the warpgroup, but where this one begins may differ"):
        lowered(text.replace("floordiv %own, NUMBER", "mod %own, %four"))


def test_a_descriptor_takes_no_more_of_an_address_than_its_field() -> None:
    """In a cluster the rank of a block stands in the upper bits of its own shared addresses: measured on an H200."""
    _, ptx = emit_ptx(lowered(one_tile(Product())), HOPPER)
    assert re.search(r"and\.b32\s+%r\d+, %r\d+, 16320;", ptx)  # 0x3fff, less what the alignment knows to be 0
