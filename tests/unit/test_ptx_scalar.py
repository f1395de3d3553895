"""Every row of the scalar table, for every dtype that it accepts, and every cast becomes a cubin."""

from __future__ import annotations

import re

import pytest
from ptx_kernels import kernel, load, store

from tiledsl.backends.protocol import Binary
from tiledsl.backends.ptx import TARGETS, build
from tiledsl.ir.core import Kernel, Value
from tiledsl.ir.ops import arith, control, gpu, mem, warp
from tiledsl.ir.scalar import SCALAR, converts
from tiledsl.ir.types import BOOL, DTYPES, E4M3, E5M2, F32, F64, I8, I16, I32, I64, INDEX, U8, DType, PtrType

DTYPE_LIST = [d for d in DTYPES.values() if d != INDEX]


def rows_kernel(dtype: DType) -> Kernel:
    """out[i] = row(in[0], in[1], in[2]) for every row; results that are bool go through select."""
    made, b = kernel(f"rows_{dtype}", [("a", PtrType("global", dtype)), ("out", PtrType("global", dtype))])
    source, out = made.body.args
    operands = [load(b, source, b.constant(i, I32)) for i in range(3)]
    accepted = [row for row in SCALAR.values() if row.accepts(dtype)]
    for position, row in enumerate(accepted):
        value = b.scalar(row.name, *operands[: row.arity])
        if row.to_bool and dtype != BOOL:
            value = b.select(value, operands[0], operands[1])
        store(b, out, b.constant(position, I32), value)
    b.op(control.Return)
    return made


def casts_kernel(src: DType, *without: DType) -> Kernel:
    """The cast of one element to every dtype that it converts to but `without`, and the bit casts that exist."""
    params = [("a", PtrType("global", src)), *((f"to_{d}", PtrType("global", d)) for d in DTYPE_LIST)]
    made, b = kernel(f"casts_{src}", params)
    value = load(b, made.body.args[0], b.constant(0, I32))
    for out, to in zip(made.body.args[1:], DTYPE_LIST, strict=True):
        if converts(src, to) and to not in without:
            store(b, out, b.constant(0, I32), b.cast(value, to))
        if to.bits == src.bits and BOOL not in (src, to):
            store(b, out, b.constant(1, I32), b.value(arith.Bitcast(value, to=to)))
    b.op(control.Return)
    return made


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
def test_every_row_assembles(dtype: DType) -> None:
    binary = build(rows_kernel(dtype), TARGETS["sm_90a"])
    assert binary.cubin.startswith(b"\x7fELF")
    assert binary.resources.stack == binary.resources.spill_stores == 0


@pytest.mark.parametrize("dtype", DTYPE_LIST, ids=str)
def test_every_cast_assembles(dtype: DType) -> None:
    build(casts_kernel(dtype), TARGETS["sm_90a"])


@pytest.mark.parametrize("target", ["sm_80", "sm_120a"])
def test_16_bit_floats_and_wide_integers_on_other_targets(target: str) -> None:
    """sm_80 has no bf16 addition, no bf16 atomics and no conversions between bf16 and integers."""
    for name in ("bf16", "f16"):
        build(rows_kernel(DTYPES[name]), TARGETS[target])
    for name in ("f64", "i64", "i32", "bf16", "tf32"):
        build(casts_kernel(DTYPES[name], E4M3, E5M2), TARGETS[target])


@pytest.mark.parametrize("to", ["f16", "bf16", "f32", "f64"])
def test_a_bool_becomes_a_float_by_a_choice(to: str) -> None:
    """One instruction."""
    made, b = kernel("k", [("out", PtrType("global", DTYPES[to]))])
    vote = b.value(warp.Vote(b.scalar("lt", b.value(gpu.LaneId(dtype=I32)), b.constant(3, I32)), mode="any"))
    b.add(mem.Store(made.body.args[0], b.cast(vote, DTYPES[to])))
    b.op(control.Return)
    ptx = build(made, TARGETS["sm_90a"]).ptx
    assert "selp" in ptx and "cvt" not in ptx


def emitted(rows: list[tuple[str, tuple[object, ...]]], dtype: DType, target: str = "sm_90a") -> str:
    """PTX of ``out[i] = row(operands)``; an operand is a literal, or an int index into the input in a str."""
    made, b = kernel("k", [("a", PtrType("global", dtype)), ("out", PtrType("global", dtype))])
    source, out = made.body.args

    def operand(x: object) -> Value:
        if isinstance(x, str):
            return load(b, source, b.constant(int(x), I32))
        assert isinstance(x, int | float)
        return b.constant(x, dtype)

    for position, (row, operands) in enumerate(rows):
        store(b, out, b.constant(position, I32), b.scalar(row, *map(operand, operands)))
    b.op(control.Return)
    return ptx_of(made, target)


def ptx_of(made: Kernel, target: str = "sm_90a") -> str:
    return binary_of(made, target).ptx


def binary_of(made: Kernel, target: str = "sm_90a") -> Binary:
    return build(made, TARGETS[target])


def test_multiplication_and_addition_stay_apart_and_fma_is_one() -> None:
    made, b = kernel("k", [("a", PtrType("global", F32)), ("out", PtrType("global", F32))])
    source, out = made.body.args
    x, y, z = (load(b, source, b.constant(i, I32)) for i in range(3))
    store(b, out, b.constant(0, I32), b.scalar("add", b.scalar("mul", x, y), z))
    store(b, out, b.constant(1, I32), b.scalar("fma", x, y, z))
    b.op(control.Return)
    ptx = ptx_of(made)
    assert ptx.count("fma.rn.f32") == 1
    assert "mul.rn.f32" in ptx and "add.rn.f32" in ptx


def test_rounding_is_to_nearest_and_nothing_flushes_subnormals() -> None:
    ptx = emitted([("div", ("0", "1")), ("sqrt", ("0",)), ("rcp_approx", ("1",))], F32)
    assert "div.rn.f32" in ptx and "sqrt.rn.f32" in ptx and "rcp.approx.f32" in ptx
    assert ".ftz" not in ptx


def test_exp2_approx_is_one_instruction() -> None:
    """Without scaling before and behind it: what would be subnormal is 0."""
    assert "ex2.approx.ftz.f32" in emitted([("exp2_approx", ("0",))], F32)


@pytest.mark.parametrize(("row", "instruction"), [("floordiv", "shr.s32"), ("mod", "and.b32")])
def test_a_literal_power_of_two_divides_by_one_instruction(row: str, instruction: str) -> None:
    ptx = emitted([(row, ("0", 16))], I32)
    assert instruction in ptx
    assert "div." not in ptx and "selp" not in ptx and "setp" not in ptx


def test_division_by_a_literal_zero_follows_the_table() -> None:
    ptx = emitted([("floordiv", ("0", 0))], I32)
    assert "], 0;" in ptx and "div" not in ptx


def test_a_literal_shift_has_no_test() -> None:
    ptx = emitted([("shl", ("0", 3)), ("shr", ("1", 5))], I32)
    assert "shl.b32" in ptx and "shr.s32" in ptx and "selp" not in ptx
    assert "], 0;" in emitted([("shl", ("0", 32))], I32)


def test_bf16_before_sm_90_is_exact_through_fma() -> None:
    ptx = emitted([("add", ("0", "1")), ("mul", ("0", "1"))], DTYPES["bf16"], "sm_80")
    assert ptx.count("fma.rn.bf16") == 2
    native = emitted([("add", ("0", "1")), ("mul", ("0", "1"))], DTYPES["bf16"])
    assert "add.rn.bf16" in native and "mul.rn.bf16" in native


def cast_ptx(src: DType, to: DType, target: str = "sm_90a") -> str:
    made, b = kernel("k", [("a", PtrType("global", src)), ("out", PtrType("global", to))])
    source, out = made.body.args
    store(b, out, b.constant(0, I32), b.cast(load(b, source, b.constant(0, I32)), to))
    b.op(control.Return)
    return ptx_of(made, target)


def test_float_to_int_lets_the_hardware_saturate() -> None:
    ptx = cast_ptx(F32, I32)
    assert "cvt.rzi.s32.f32" in ptx and "setp" not in ptx
    for src, to in ((F64, I32), (F32, I64), (F64, I64)):  # a NaN is not 0 by itself there
        assert "setp.nan" in cast_ptx(src, to) or "setp.num" in cast_ptx(src, to)


@pytest.mark.parametrize("to", [I8, U8, I16], ids=str)
def test_narrow_results_are_clamped(to: DType) -> None:
    ptx = cast_ptx(F32, to)
    assert "min." in ptx and ("max." in ptx) == to.is_signed


def test_wide_integers_round_to_bf16_once() -> None:
    assert "cvt.rn.bf16.s32" in cast_ptx(I32, DTYPES["bf16"])
    before = cast_ptx(I64, DTYPES["bf16"], "sm_80")
    assert "cvt.rz.f32.s64" in before and "cvt.rn.bf16.f32" in before


def test_f64_narrows_in_one_rounding() -> None:
    assert "cvt.rn.f16.f64" in cast_ptx(F64, DTYPES["f16"])
    assert "cvt.rn.bf16.f64" in cast_ptx(F64, DTYPES["bf16"])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("to", ["f32", "tf32"])
def test_bf16_becomes_the_upper_half_of_an_f32(to: str, target: str) -> None:
    """A move: what ptxas makes of cvt.f32.bf16 depends on whether it knows the NaN."""
    ptx = cast_ptx(DTYPES["bf16"], DTYPES[to], target)
    zero, upper = re.findall(r"\{(0x0000|%rs\d+), (%rs\d+)\};", ptx)[0]  # of a mov.b32, or of the store itself
    assert zero == "0x0000" or re.search(rf"mov\.b16\s+{zero}, 0x0000;", ptx)
    assert re.search(rf"ld\.global\S*\s+{upper},", ptx)
    assert "cvt.f32.bf16" not in ptx


def test_constants_keep_their_bits() -> None:
    made, b = kernel("k", [(str(d), PtrType("global", d)) for d in DTYPE_LIST if d.is_float])
    for out in made.body.args:
        assert isinstance(out.type, PtrType)
        for position, value in enumerate((-0.0, float("nan"), float("inf"), 1.5, 2.0**-14)):
            store(b, out, b.constant(position, I32), b.constant(value, out.type.dtype))
    b.op(control.Return)
    ptx = ptx_of(made)
    for bits in ("2147483647", "9223372036854775807", "32767"):  # canonical NaNs
        assert bits in ptx or f"0x{int(bits):X}" in ptx, bits


def test_positions_and_select() -> None:
    made, b = kernel("k", [("out", PtrType("global", I32))], (8, 4, 4))
    (out,) = made.body.args
    ids: list[Value] = [b.value(gpu.ThreadId(axis=axis, dtype=I32)) for axis in range(3)]
    ids += [b.value(gpu.BlockId(axis=axis, dtype=I32)) for axis in range(3)]
    ids += [b.value(gpu.WarpId(dtype=I32)), b.value(gpu.LaneId(dtype=I32))]
    for position, value in enumerate(ids):
        store(b, out, b.constant(position, I32), value)
    b.op(control.Return)
    ptx = ptx_of(made)
    assert ".reqntid 8, 4, 4" in ptx
    for register in ("%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z"):
        assert register in ptx


def test_16_bits_are_not_negated_by_what_ptxas_gets_wrong() -> None:
    """ptxas 13.0 takes -32768, negated by neg.s16 or abs.s16, for 32768."""
    made, b = kernel("negated", [("x", PtrType("global", I16)), ("y", PtrType("global", I16))])
    x, y = made.body.args
    value = load(b, x, b.constant(0, I32))
    negated = b.scalar("neg", value), b.scalar("sub", b.constant(0, I16), value)
    for number, found in enumerate((*negated, b.scalar("abs", value))):
        store(b, y, b.constant(number, I32), found)
    b.op(control.Return)
    text = build(made, TARGETS["sm_90a"]).ptx
    assert "neg.s16" not in text and "abs.s16" not in text
    assert "mul.lo.s16" in text and "shr.s16 sign" in text
