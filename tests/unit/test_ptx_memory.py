"""Vectors, shared memory, atomics, warps, control flow and debugging ops become the PTX they should."""

from __future__ import annotations

import re

import pytest
from ptx_kernels import at, kernel, load, naive, shared_tiled, store

from tiledsl.backends.ptx import TARGETS, build
from tiledsl.backends.ptx.lower import read_only_pointers
from tiledsl.errors import AssemblerError
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel
from tiledsl.ir.ops import barriers, control, debug, gpu, mem, ptx, tma, warp
from tiledsl.ir.tensor_maps import TensorMap
from tiledsl.ir.types import BOOL, DTYPES, F16, F32, F64, I8, I32, I64, INDEX, U32, U64, DType, PtrType, Type

DTYPE_LIST = [d for d in DTYPES.values() if d != INDEX]


def finish(made: Kernel, b: Builder, target: str = "sm_90a") -> str:
    b.op(control.Return)
    return build(made, TARGETS[target]).ptx


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
def test_vector_widths(dtype: DType) -> None:
    """Loads and stores of 2, 4, 8 and 16 bytes, global and shared, are one instruction each."""
    made, b = kernel("k", [("a", PtrType("global", dtype)), ("c", PtrType("global", dtype))])
    made.shared_bytes = 4096
    a, c = made.body.args
    tile = b.value(mem.SharedBase(dtype=dtype, offset=256, bytes=1024, label="S"))
    sizes = [size for size in (2, 4, 8, 16) if size > dtype.bytes]
    for slot, size in enumerate(sizes):
        vec, place = size // dtype.bytes, b.constant(slot * 16 // dtype.bytes, I32)
        values = b.op(mem.Load, b.value(mem.Offset(a, place)), vec=vec).results
        b.op(mem.Store, b.value(mem.Offset(tile, place)), *values, vec=vec)
        b.op(gpu.Barrier)
        back = b.op(mem.Load, b.value(mem.Offset(tile, place)), vec=vec).results
        b.op(mem.Store, b.value(mem.Offset(c, place)), *back, vec=vec)
    text = finish(made, b)
    for access in ("ld.global.nc", "st.shared", "ld.shared", "st.global"):
        assert len(re.findall(rf"\b{re.escape(access)}\.\S+", text)) == len(sizes), text


def test_shared_addresses_are_base_plus_immediate() -> None:
    text = build(shared_tiled(16), TARGETS["sm_90a"]).ptx
    assert re.findall(r"ld\.shared\.v4\.b32 .*\[%r\d+\+48\]", text)
    assert ".extern .shared .align 1024 .b8 $shared[]" in text
    assert "cvta" not in text


def test_32_bit_indices_are_widened_by_the_multiplication() -> None:
    text = build(naive(), TARGETS["sm_90a"]).ptx
    assert "mul.wide.s32" in text or "mad.wide.s32" in text
    assert "cvt.s64.s32" not in text


def test_only_pointers_that_are_never_written_are_read_only() -> None:
    made = naive()
    a, b, c, *_ = made.body.args
    assert read_only_pointers(made) == {a, b}
    text = build(made, TARGETS["sm_90a"]).ptx
    assert "ld.global.nc" in text and "ld.global.b32" not in text
    copy, build_ = kernel("k", [("a", PtrType("global", F32)), ("c", PtrType("global", F32))])
    source, out = copy.body.args
    zero = build_.constant(0, I32)
    flag = build_.scalar("lt", build_.value(gpu.LaneId(dtype=I32)), zero)
    chosen = build_.select(flag, source, out)
    store(build_, chosen, zero, load(build_, source, zero))
    assert read_only_pointers(copy) == set()  # written through an address whose origin is not known
    assert c is not None


def test_what_only_a_tensor_map_or_raw_ptx_writes_is_not_read_only() -> None:
    """Loads of it must not become ld.global.nc. What cp.async and TMA read is still only read."""
    tensors: list[tuple[str, Type]] = [(name, PtrType("global", F32)) for name in ("a", "c", "d")]
    made, b = kernel("k", tensors)
    a, c, d = made.body.args
    made.shared_bytes = 4096
    made.tensor_maps = tuple(TensorMap(t, (1, 0), (32, 4)) for t in ("a", "c"))
    tile = b.value(mem.SharedBase(dtype=F32, offset=0, bytes=4096, label="S"))
    zero = b.constant(0, I32)
    b.op(mem.CpAsync, tile, d, bytes=16)
    bars = b.value(mem.SharedBase(dtype=U64, offset=512, bytes=8))
    b.op(tma.MapLoad, tile, bars, zero, zero, map=0)
    assert read_only_pointers(made) == {a, c, d}
    b.op(tma.MapStore, tile, zero, zero, map=1)
    assert read_only_pointers(made) == {a, d}
    b.op(ptx.Inline, zero, text="mov.u32 $0, $1;", outputs=(U32,))
    assert read_only_pointers(made) == {a, d}
    for memory in ("nothing", "reads"):
        b.op(ptx.Inline, zero, text="ld.global.u32 $0, [$1];", outputs=(U32,), volatile=True, memory=memory)
        assert read_only_pointers(made) == {a, d}
    b.op(ptx.Inline, zero, text="red.global.add.u32 [x], $0;", outputs=(), volatile=True)
    assert read_only_pointers(made) == set()


@pytest.mark.parametrize(("wait", "read_only"), [(True, set[str]()), (False, {"a"})])
def test_what_the_grid_before_may_still_write_is_not_read_only(wait: bool, read_only: set[str]) -> None:
    """A kernel that waits for it reads what it writes; one that only lets its own dependents begin does not."""
    made, b = kernel("k", [("a", PtrType("global", F32)), ("c", PtrType("global", F32))])
    a, c = made.body.args
    b.op(barriers.GridDependency, wait=wait)
    store(b, c, b.constant(0, I32), load(b, a, b.constant(0, I32)))
    assert {pointer.name for pointer in read_only_pointers(made)} == read_only


@pytest.mark.parametrize(("blocks", "wanted"), [(0, ".minnctapersm 1"), (2, ".minnctapersm 2")])
def test_registers_that_move_between_warps_are_those_of_so_many_blocks(blocks: int, wanted: str) -> None:
    """ptxas takes what setmaxnreg starts from from `.minnctapersm`; without setmaxnreg and blocks it is left out."""
    made, b = kernel("k", [("c", PtrType("global", F32))])
    made.blocks_per_sm = blocks
    assert (".minnctapersm" in finish(made, b)) == bool(blocks)
    moving, b = kernel("k", [("c", PtrType("global", F32))])
    moving.blocks_per_sm = blocks
    b.op(barriers.SetMaxNReg, registers=40, increase=False)
    assert wanted in finish(moving, b)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_atomics(target: str) -> None:
    names = ("f64", "f32", "f16", "bf16", "i32", "u32", "i64", "u64")
    made, b = kernel("k", [(n, PtrType("global", DTYPES[n])) for n in names])
    made.shared_bytes = 64
    for pointer, name in zip(made.body.args, names, strict=True):
        value = load(b, pointer, b.constant(1, I32))
        old = b.value(mem.atomic("add", pointer, value))
        shared = b.value(mem.SharedBase(dtype=DTYPES[name], offset=0, bytes=8))
        again = b.value(mem.atomic("add", shared, old))
        store(b, pointer, b.constant(2, I32), again)
    text = finish(made, b, target)
    assert text.count("atom.relaxed.gpu.global.") == text.count("atom.relaxed.gpu.shared.") == len(names)
    assert ("cas.b16" in text) == (target == "sm_80")


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
def test_shuffles(dtype: DType) -> None:
    made, b = kernel("k", [("a", PtrType("global", dtype)), ("n", I32)])
    a, n = made.body.args
    value = load(b, a, b.value(gpu.ThreadId(axis=0, dtype=I32)))
    for position, mode in enumerate(("idx", "up", "down", "xor")):
        value = b.value(warp.Shuffle(value, b.constant(3, I32), mode=mode, width=8))
        value = b.value(warp.Shuffle(value, n, mode=mode))
        store(b, a, b.constant(position, I32), value)
    words = max(1, dtype.bytes // 4)
    assert finish(made, b).count("shfl.sync.") == 8 * words


def test_a_literal_shuffle_is_one_instruction() -> None:
    made, b = kernel("k", [("a", PtrType("global", F32))])
    (a,) = made.body.args
    value = load(b, a, b.value(gpu.ThreadId(axis=0, dtype=I32)))
    store(b, a, b.constant(0, I32), b.value(warp.Shuffle(value, b.constant(16, I32), mode="xor")))
    text = finish(made, b)
    assert "shfl.sync.bfly.b32" in text and "selp" not in text and "xor.b32" not in text


def test_votes_and_synchronisation() -> None:
    made, b = kernel("k", [("out", PtrType("global", U32))])
    (out,) = made.body.args
    flag = b.scalar("lt", b.value(gpu.LaneId(dtype=I32)), b.constant(7, I32))
    for position, mode in enumerate(("any", "all", "ballot")):
        vote = b.value(warp.Vote(flag, mode=mode))
        store(b, out, b.constant(position, I32), b.cast(vote, U32))
        b.op(gpu.SyncWarp)
    for reach in ("cta", "gpu", "sys"):
        b.op(gpu.Fence, reach=reach)
    text = finish(made, b)
    for wanted in ("vote.sync.ballot", "bar.warp.sync", "fence.acq_rel.sys"):
        assert wanted in text
    assert "vote.sync.any" not in text and "vote.sync.all" not in text, "ptxas drops conversions of what they give"


def test_loops_of_all_directions_and_while() -> None:
    made, b = kernel("k", [("out", PtrType("global", I32)), ("n", I32), ("m", I32)])
    out, n, m = made.body.args
    zero, one = b.constant(0, I32), b.constant(1, I32)
    for slot, (lo, hi, step) in enumerate([(zero, n, one), (n, zero, b.constant(-2, I32)), (m, n, m)]):
        body = Block([I32, I32])
        inner = Builder(body, at(7))
        inner.op(control.Yield, inner.scalar("xor", *body.args))
        result = b.value(control.For(lo, hi, step, zero, blocks=[body]))
        store(b, out, b.constant(slot, I32), result)
    before, after = Block([I32]), Block([I32])
    test, work = Builder(before, at(8)), Builder(after, at(9))
    test.op(control.Condition, test.scalar("lt", before.args[0], n), before.args[0])
    work.op(control.Yield, work.scalar("add", work.scalar("mul", after.args[0], m), one))
    store(b, out, b.constant(3, I32), b.value(control.While(zero, blocks=[before, after])))
    text = finish(made, b)
    assert "sub.sat" not in text  # saturation is spelled with min and max or selects, outside the loops
    assert text.count("bra") >= 3


def test_index_of_64_bits() -> None:
    made, b = kernel("k", [("a", PtrType("global", F32)), ("n", I64)])
    a, n = made.body.args
    store(b, a, n, load(b, a, b.scalar("mul", n, n)))
    assert "mul.lo.s64" in finish(made, b)


def test_bool_parameters_and_memory() -> None:
    made, b = kernel("k", [("flags", PtrType("global", BOOL)), ("on", BOOL)])
    flags, on = made.body.args
    value = b.scalar("xor", load(b, flags, b.constant(1, I32)), on)
    store(b, flags, b.constant(0, I32), value)
    text = finish(made, b)
    assert ".param .u8" in text and "st.global.b8" in text


def test_print_and_assert() -> None:
    made, b = kernel("k", [(str(d), PtrType("global", d)) for d in DTYPE_LIST])
    values = [load(b, pointer, b.constant(0, I32)) for pointer in made.body.args]
    b.loc = at(21)
    b.op(debug.Print, *values, format="100% of " + ", ".join(["{}"] * len(values)))
    b.op(debug.Print, format="no operands")
    b.op(debug.Assert, values[-1], message="the flag is off")
    b.op(debug.Breakpoint, values[0], names=("x",))
    b.op(control.Return)
    binary = build(made, TARGETS["sm_90a"])
    assert "[$lines]" in binary.ptx and "[$failure]" in binary.ptx and "call" not in binary.ptx
    assert binary.resources.stack == 0
    again = build(made, TARGETS["sm_90a"])
    assert again.ptx == binary.ptx


def inline(text: str, outputs: tuple[DType, ...], *operands: DType, **flags: bool) -> str:
    params = [(f"a{i}", PtrType("global", d)) for i, d in enumerate(operands)]
    params += [(f"out{i}", PtrType("global", d)) for i, d in enumerate(outputs)]
    made, b = kernel("k", params)
    pointers = made.body.args
    b.loc = at(33)
    values = [load(b, p, b.constant(0, I32)) for p in pointers[: len(operands)]]
    results = b.op(ptx.Inline, *values, text=text, outputs=outputs, **flags).results
    for pointer, result in zip(pointers[len(operands) :], results, strict=True):
        store(b, pointer, b.constant(0, I32), result)
    return finish(made, b)


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
def test_inline_ptx_moves_every_dtype(dtype: DType) -> None:
    kind = "pred" if dtype == BOOL else f"b{max(16, dtype.bits)}"
    assert f"mov.{kind}" in inline(f"mov.{kind} $0, $1;", (dtype,), dtype)


def test_inline_ptx_with_several_results_and_labels() -> None:
    text = inline("{ mov.b32 {$0, $1}, $2; LOOP_${:uid}: }", (F16, F16), F32)
    assert re.search(r"LOOP_\d+:", text)
    text = inline("setp.lt.f32 $0, $1, $2;", (BOOL,), F32, F32)
    assert "setp.lt.f32" in text


def test_volatile_inline_ptx_is_kept() -> None:
    assert "nanosleep" in inline("nanosleep.u32 100;", (), volatile=True)
    assert "elect.sync" in inline("elect.sync _|$0, 0xffffffff;", (BOOL,), convergent=True)
    pure, b = kernel("k", [("a", PtrType("global", F64))])
    b.op(ptx.Inline, load(b, pure.body.args[0], b.constant(0, I32)), text="mov.b64 $0, $1;", outputs=(F64,))
    assert "mov.b64 \t%rd1, %rd2" not in finish(pure, b)


def test_inline_ptx_raises_the_version_only_when_it_must() -> None:
    """tanh.approx.bf16 exists from PTX 7.8 on; nothing else here needs more than the target itself."""
    made, b = kernel("k", [("a", PtrType("global", DTYPES["bf16"]))])
    (a,) = made.body.args
    value = load(b, a, b.constant(0, I32))
    store(b, a, b.constant(0, I32), b.value(ptx.Inline(value, text="tanh.approx.bf16 $0, $1;", outputs=(value.dtype,))))
    b.op(control.Return)
    assert ".version 7.8" in build(made, TARGETS["sm_90"]).ptx
    with pytest.raises(AssemblerError, match="sm_90 or higher"):
        build(made, TARGETS["sm_80"])


def test_8_bit_operands_keep_their_sign() -> None:
    text = inline("cvt.s32.s16 $0, $1;", (I32,), I8)
    assert "cvt.s32.s16" in text and ("ld.global.nc.s8" in text or "cvt.s16.s8" in text)
