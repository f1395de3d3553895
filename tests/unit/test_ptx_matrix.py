"""Matrix and asynchronous instructions become the PTX they should, on the targets that have them."""

from __future__ import annotations

import re

import pytest
from ptx_kernels import at, kernel, load

from tiledsl import (
    Global,
    cdiv,
    copy_async,
    f16,
    f32,
    fragment,
    grid,
    load_matrix,
    mma,
    pipelined,
    shared,
    store,
    threads,
    tile,
    tile_kernel,
    tiles,
    unroll,
)
from tiledsl.backends.ptx import TARGETS, build
from tiledsl.backends.ptx.lower import read_only_pointers
from tiledsl.backends.ptx.sass.disassemble import sass_listing
from tiledsl.dims import K, M, N
from tiledsl.errors import CompileError
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Kernel, Value
from tiledsl.ir.ops import arith, async_copy, control, gpu, mem, ptx
from tiledsl.ir.types import BF16, BOOL, DTYPES, E4M3, F16, F32, I8, I32, U8, U32, DType, PtrType
from tiledsl.layout.mma import TABLE, MmaRow
from tiledsl.signatures.signature import GlobalSpec, Specialization

CAPABILITIES = sorted({t.capability for t in TARGETS.values()})
PTX_NAME = {"i8": "s8", "i32": "s32"}


def check(made: Kernel) -> None:
    """The ops' own invariants; these kernels have no ABI, which `ir.verifier` asks for."""
    for op in made.walk():
        op.verify()


def target_of(capability: tuple[int, int]) -> str:
    return next(t.name for t in TARGETS.values() if t.capability == capability)


def product(row: MmaRow) -> Kernel:
    """One product of registers that are loaded and stored element by element."""
    attrs = {"a": DTYPES[row.a], "b": DTYPES[row.b], "acc": DTYPES[row.acc]}
    groups = ptx.MmaSync(shape=str(row.shape), types=(), **attrs).registers()  # pyright: ignore[reportArgumentType]
    types: list[DType] = [t for group in groups for t in group]
    made, b = kernel("k", [(f"p{i}", PtrType("global", t)) for i, t in enumerate(types)], threads=(32,))
    lane = b.value(gpu.LaneId(dtype=I32))
    registers = [load(b, p, lane) for p in made.body.args]
    b.loc = at(7)
    mma = ptx.MmaSync(*registers, shape=str(row.shape), **attrs)  # pyright: ignore[reportArgumentType]
    b.add(mma)
    outputs = made.body.args[len(types) - len(groups[2]) :]
    for pointer, value in zip(outputs, mma.results, strict=True):
        b.op(mem.Store, b.value(mem.Offset(pointer, lane)), value)
    b.op(control.Return)
    return made


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_every_product_assembles_on_its_first_target_and_not_before(row: MmaRow) -> None:
    made = product(row)
    check(made)
    text = build(made, TARGETS[target_of(row.capability)]).ptx
    names = ".".join(PTX_NAME.get(n, n) for n in (row.acc, row.a, row.b, row.acc))
    assert text.count(f"mma.sync.aligned.{row.shape}.row.col.{names} ") == 1
    older = [c for c in CAPABILITIES if c < row.capability]
    if older:
        with pytest.raises(CompileError, match=re.escape(f"the product {row} needs ")) as caught:
            build(made, TARGETS[target_of(older[-1])])
        assert caught.value.loc.line == 7 and target_of(row.capability) in caught.value.message


@pytest.mark.parametrize(("operand", "target", "version"), [("f16", "sm_80", "7.2"), ("e4m3", "sm_89", "8.4")])
def test_ptx_is_as_old_as_the_product_allows(operand: str, target: str, version: str) -> None:
    row = next(r for r in TABLE if (r.a, r.acc) == (operand, "f32"))
    assert f".version {version}\n" in build(product(row), TARGETS[target]).ptx


def test_an_unused_product_goes_and_equal_ones_are_one() -> None:
    row = next(r for r in TABLE if r.a == "bf16")
    made = product(row)
    mma = next(op for op in made.walk() if isinstance(op, ptx.MmaSync))
    twin = mma.clone({})
    made.body.insert_before(mma, twin)
    assert build(made, TARGETS["sm_90a"]).ptx.count("mma.sync") == 1
    first = next(op for op in made.walk() if isinstance(op, mem.Store))
    for value, other in zip(mma.results, twin.results, strict=True):
        value.replace_all_uses_with(other)
    assert first.values[0] in twin.results
    assert build(made, TARGETS["sm_90a"]).ptx.count("mma.sync") == 1


# -- matrices --------------------------------------------------------------------------------------


def with_a_row(element: DType = F16) -> tuple[Kernel, Builder, Value, Value]:
    """With 8 KiB of shared memory: the kernel, its builder, this lane's row and the parameter `out`."""
    made, b = kernel("k", [("out", PtrType("global", U32))], threads=(32,))
    made.shared_bytes = 8192
    base = b.value(mem.SharedBase(dtype=element, offset=0, bytes=8192, label="S"))
    lane = b.value(gpu.LaneId(dtype=I32))
    row = b.value(mem.Offset(base, b.scalar("mul", lane, b.constant(16 // element.bytes, I32))))
    return made, b, row, made.body.args[0]


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("num", [1, 2, 4])
def test_matrices_have_immediates(num: int, trans: bool) -> None:
    """Constants stay in the address, and no word is taken apart on its way."""
    made, b, row, out = with_a_row()
    further = b.value(mem.Offset(row, b.constant(512, I32)))
    for pointer, distance in ((row, 0), (further, 4)):
        words = b.op(mem.LdMatrix, pointer, num=num, trans=trans).results
        for position, word in enumerate(words):
            b.op(mem.Store, b.value(mem.Offset(out, b.constant(position + distance, I32))), word)
    b.op(control.Return)
    check(made)
    binary = build(made, TARGETS["sm_80"])
    name = f"ldmatrix.sync.aligned.m8n8.x{num}{'.trans' if trans else ''}.shared.b16"
    assert binary.ptx.count(name) == 2
    sass = [i.text for i in sass_listing(binary.cubin)[0].instructions]
    loads = [text for text in sass if text.startswith("LDSM")]
    assert len(loads) == 2 and "+0x400]" in loads[1]
    assert not any(text.startswith("PRMT") for text in sass)


@pytest.mark.parametrize("num", [1, 2, 4])
def test_stmatrix_is_for_hopper(num: int) -> None:
    made, b, row, _ = with_a_row()
    words = [b.constant(i, U32) for i in range(num)]
    b.loc = at(9)
    b.op(mem.StMatrix, row, *words, num=num, trans=True)
    b.op(control.Return)
    check(made)
    assert f"stmatrix.sync.aligned.m8n8.x{num}.trans.shared.b16" in build(made, TARGETS["sm_90"]).ptx
    with pytest.raises(CompileError, match=r"needs one of sm_90, sm_90a.* and this is compiled for sm_89") as caught:
        build(made, TARGETS["sm_89"])
    assert caught.value.loc.line == 9 and "sm_90a" in caught.value.fix


@pytest.mark.parametrize("dtype", [F16, BF16, E4M3, I8, U8], ids=str)
def test_words_are_vectors(dtype: DType) -> None:
    """Taken apart and put together again, a word is itself; elements of memory become one without arithmetic."""
    count = 32 // dtype.bits
    made, b = kernel("k", [("a", PtrType("global", dtype)), ("c", PtrType("global", U32))])
    a, c = made.body.args
    elements = b.op(mem.Load, a, vec=count).results
    word = b.value(arith.PackWord(*elements))
    again = b.value(arith.PackWord(*b.op(arith.UnpackWord, word, to=dtype).results))
    b.op(mem.Store, c, again)
    b.op(control.Return)
    check(made)
    binary = build(made, TARGETS["sm_90a"])
    sass = [i.opcode for i in sass_listing(binary.cubin)[0].instructions]
    assert not any(op.startswith(("PRMT", "LOP3", "IMAD", "SHF", "LEA")) for op in sass), sass


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_rounded_pairs_are_one_conversion(dtype: DType) -> None:
    """On their way to memory or into words; the first one is the low half."""
    made, b = kernel(
        "k", [("a", PtrType("global", F32)), ("c", PtrType("global", dtype)), ("w", PtrType("global", U32))]
    )
    a, c, w = made.body.args
    values = [b.cast(value, dtype) for value in b.op(mem.Load, a, vec=4).results]
    b.op(mem.Store, c, *values, vec=4)
    b.op(mem.Store, w, b.value(arith.PackWord(*values[:2])))
    b.op(control.Return)
    check(made)
    text = build(made, TARGETS["sm_80"]).ptx
    loaded = re.search(r"ld\.global\S* +\t?\{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\}", text)
    assert loaded is not None
    first, second, third, fourth = loaded.groups()
    rounding = re.findall(rf"cvt\.rn\.{dtype}x2\.f32 +\t?%r\d+, (%r\d+), (%r\d+);", text)
    assert set(rounding) == {(second, first), (fourth, third)}
    assert f"cvt.rn.{dtype}.f32" not in text


# -- asynchronous copies ---------------------------------------------------------------------------


def copying(size: int, count: str, predicated: bool = False) -> Kernel:
    """One copy of `size` bytes: all of them, as many as `n` says, or all or none. `predicated`: only where `q`."""
    made, b = kernel("k", [("a", PtrType("global", F16)), ("n", I32), ("p", BOOL), ("q", BOOL)], threads=(32,))
    made.shared_bytes = 1024
    a, n, p, q = made.body.args
    tile = b.value(mem.SharedBase(dtype=F16, offset=0, bytes=1024, label="S"))
    counts = {"all": [], "some": [n], "all or none": [b.select(p, b.constant(size, I32), b.constant(0, I32))]}
    b.op(mem.CpAsync, tile, a, *counts[count], *([q] if predicated else []), bytes=size)
    b.op(async_copy.CommitGroup)
    b.op(async_copy.WaitGroup, pending=3)
    b.op(control.Return)
    check(made)
    return made


@pytest.mark.parametrize("count", ["all", "some", "all or none"])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_copies(size: int, count: str) -> None:
    binary = build(copying(size, count), TARGETS["sm_80"])
    cache = "cg" if size == 16 else "ca"
    assert f"cp.async.{cache}.shared.global [" in binary.ptx
    assert "cp.async.commit_group;" in binary.ptx and re.search(r"cp\.async\.wait_group\s+3;", binary.ptx)
    (copy,) = [i.text for i in sass_listing(binary.cubin)[0].instructions if "LDGSTS" in i.text]
    # Some bytes are moved by another form; all or none is a predicate of the ordinary one.
    assert ("ZFILL" in copy) == (count == "some")
    assert bool(re.search(r", !?P\d ;", copy)) == (count != "all")


@pytest.mark.parametrize(("count", "zeros"), [("all", ""), ("some", r", %r\d+"), ("all or none", ", n")])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_predicated_copies(size: int, count: str, zeros: str) -> None:
    """The predicate stands in front of the copy; that of the zero fill beside it."""
    ptx = build(copying(size, count, predicated=True), TARGETS["sm_80"]).ptx
    assert re.search(rf"@%p\d+ cp\.async\.c[ag]\.shared\.global \[\S+\], \[\S+\], {size}{zeros};", ptx)


def test_the_source_of_a_copy_is_read_only() -> None:
    made = copying(16, "all")
    assert read_only_pointers(made) == {made.body.args[0]}


@tile_kernel
def pipelined_products(A: Global[f16, M, K], B: Global[f16, K, N], C: Global[f32, M, N]):
    bx, by = grid(cdiv(N, 32), cdiv(M, 32))
    threads(128)
    m, n = tile(by, 32), tile(bx, 32)
    As, Bs = shared((32, 32), f16), shared((32, 32), f16)
    acc = fragment((32, 32), f32, mma.m16n8k16.acc(warps=(2, 2)))
    for k in pipelined(tiles(K, 32), stages=2):
        copy_async(A[m, k], As, vec=16)
        copy_async(B[k, n], Bs, vec=16)
        for kk in unroll(tiles(32, 16)):
            acc = mma(load_matrix(As[:, kk], acc.a), load_matrix(Bs[kk, :], acc.b), acc)
    store(acc, C[m, n])


@pytest.mark.parametrize("whole", [True, False])
def test_copies_of_a_pipelined_loop_are_predicated(whole: bool) -> None:
    """No branch around them: ptxas spreads them among the other instructions. Whether the rows of a tensor end inside
    a vector is known when the kernel is compiled, so that there is one form of each copy."""
    tensors = (*((name, GlobalSpec(F16, 1, 16, whole)) for name in "AB"), ("C", GlobalSpec(F32, 1, 16)))
    compiled = pipelined_products.builds.compiled(Specialization(tensors, ()), "sm_90a")
    texts = [i.text for i in sass_listing(compiled.cubin)[0].instructions]
    copies = [text for text in texts if "LDGSTS" in text]
    # In the prologue and in the loop: a copy of A and one of B.
    assert len(copies) == 4, copies
    assert ["ZFILL" in text for text in copies] == [not whole] * 4
    assert all(re.match(r"@!?P\d LDGSTS", text) for text in copies), copies
    assert not any(text.startswith("PRMT") for text in texts), "words of fragments are taken apart"
