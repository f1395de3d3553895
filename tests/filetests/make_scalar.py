"""Makes scalar/*.tir: every scalar row, cast and bit cast on special values of every dtype.

Expected results come from `tests.filetests.reference`, not from the compiler.
"""

from __future__ import annotations

import struct

import numpy as np

from tests.filetests.reference import approximate, cast_bits, row_bits
from tests.filetests.values import special_bits, special_values
from tiledsl.ir.scalar import SCALAR, ScalarFn, converts
from tiledsl.ir.types import BOOL, DTYPES, F32, INDEX, DType

__all__ = ["texts"]

STORED = tuple(t for t in DTYPES.values() if t is not INDEX)
HEADER = """; Written by tests/filetests/make_scalar.py. {}
"""
APPROXIMATE_INPUTS = {
    "rcp_approx": (0.0, -0.0, 1.0, -3.0, 0.1, 1e20, -7e-20, float("inf"), float("-inf"), float("nan")),
    "rsqrt_approx": (0.0, 1.0, 2.0, 0.1, 1e20, 7e-20, 1e-40, -1.0, float("inf"), float("nan")),
    "exp2_approx": (
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.3,
        -7.7,
        127.5,
        -126.0,
        -126.5,
        -1000.0,
        128.0,
        float("inf"),
        float("-inf"),
        float("nan"),
    ),
    "log2_approx": (0.0, 1.0, 2.0, 0.3, 1e20, 7e-20, 1e-40, -1.0, float("inf"), float("nan")),
    "tanh_approx": (0.0, -0.0, 0.1, -0.5, 1.0, 3.0, -20.0, 0.001, float("inf"), float("-inf"), float("nan")),
    "sin_approx": (0.0, 0.1, -0.5, 1.0, 1.5, 2.0, -2.5, 3.0),
    "cos_approx": (0.0, 0.1, -0.5, 1.0, -1.2, 2.0, -2.5, 3.0),
}

_MATRIX_INPUTS = (
    # tf32: a tie, its neighbours in f32 and f64, a tie that nearest even would move the same way; overflow; subnormals
    1 + 2.0**-11, 1 + 2.0**-11 - 2.0**-23, 1 + 2.0**-11 - 2.0**-40, 1 + 3 * 2.0**-11, 65537.0,
    2.0**128 - 2.0**116, 2.0**128 - 2.0**116 - 2.0**104, 2.0**-137, 2.0**-137 - 2.0**-149, 3 * 2.0**-137, 1e300,
    # e4m3: ties to even both ways and next to them, the end of its range, subnormals
    1 + 2.0**-4, 1 + 3 * 2.0**-4, 1 + 2.0**-4 + 2.0**-23, 1 + 2.0**-4 + 2.0**-40, 1 + 2.0**-4 - 2.0**-40,
    432.0, 447.0, 448.0, 463.0, 464.0, 465.0, 480.0, 512.0, 2.0**-9, 2.0**-10, 2.0**-10 + 2.0**-33, 3 * 2.0**-10,
    2.0**-6 - 2.0**-10, 2.0**-6,
    # e5m2: the same
    1 + 2.0**-3, 1 + 3 * 2.0**-3, 1 + 2.0**-3 + 2.0**-23, 1 + 2.0**-3 + 2.0**-40, 1 + 2.0**-3 - 2.0**-40,
    53248.0, 57344.0, 61439.0, 61440.0, 65536.0, 2.0**-16, 2.0**-17, 2.0**-17 + 2.0**-40, 3 * 2.0**-17,
    2.0**-14 - 2.0**-17, 2.0**-14,
)  # fmt: skip
"""Where rounding to the formats of matrix operands is decided."""


_NANS = {
    "f64": (0x7FF0000000000001, 0xFFF0000020000000, 0x7FF8000000000000, 0xFFFFFFFFFFFFFFFF),
    "f32": (0x7F800001, 0xFF801FFF, 0x7F802000, 0x7FC00000, 0xFFFFFFFF),
    "f16": (0x7C01, 0xFC01, 0x7E00, 0xFFFF),
    "bf16": (0x7F81, 0xFF81, 0x7FC0, 0xFFFF),
}
"""NaNs in which a conversion shows that keeps some of their bits: with a payload only in the bits that a narrower
format drops or just above them, quiet without a payload, and with all bits set."""


def texts() -> dict[str, str]:
    """The text of every file, by its place below the folder."""
    files = {f"{row.name}.tir": _row_file(row) for row in SCALAR.values()}
    for src in STORED:
        files[f"cast_{src}.tir"] = _cast_file(src)
    files["bitcast.tir"] = _bitcast_file()
    files["select.tir"] = _select_file()
    files["seen_nans.tir"] = _seen_nans_file()
    return {f"scalar/{name}": text for name, text in files.items()}


def _row_file(row: ScalarFn) -> str:
    text = HEADER.format(f"arith.{row.name}: {row.doc}.")
    for dtype in STORED:
        if row.accepts(dtype):
            text += _approximate_kernel(row) if row.ulp is not None else _row_kernel(row, dtype)
    return text


def _row_kernel(row: ScalarFn, dtype: DType) -> str:
    operands = [special_values(dtype, axis, row.arity) for axis in range(row.arity)]
    bits = [[int(v) for v in o.view(f"u{dtype.bytes}")] for o in operands]
    results = [row_bits(row.name, dtype, values) for values in zip(*bits, strict=True)]
    to = BOOL if row.to_bool else dtype
    count = len(results)
    inputs = [f"; in {_name(a)}: {dtype} [{count}] = specials({a} of {row.arity})" for a in range(row.arity)]
    return _kernel(f"{row.name}_{dtype}", inputs, [dtype] * row.arity, _out(to, results), f"arith.{row.name}", to)


def _approximate_kernel(row: ScalarFn) -> str:
    inputs = [float(np.float32(x)) for x in APPROXIMATE_INPUTS[row.name]]
    results = [_f32(approximate(row.name, x)) for x in inputs]
    given = f"; in A: f32 [{len(inputs)}] = " + " ".join(_hex(_f32(x), F32) for x in inputs)
    out = _out(F32, results, within=f" within {int(row.ulp or 0)} ulp")
    return _kernel(f"{row.name}_f32", [given], [F32], out, f"arith.{row.name}", F32)


def _cast_file(src: DType) -> str:
    text = HEADER.format(f"arith.cast from {src} to every other dtype that it converts to.")
    bits = _cast_inputs(src)
    for dst in STORED:
        if dst is not src and converts(src, dst):
            results = [cast_bits(b, src, dst) for b in bits]
            given = _listed(f"; in A: {src} [{len(bits)}] =", src, bits)
            text += _kernel(f"{src}_to_{dst}", [given], [src], _out(dst, results), "arith.cast", dst)
    return text


def _cast_inputs(src: DType) -> list[int]:
    """The special values, and floats where rounding or saturation is decided."""
    extra: list[float] = []
    if src.python is float:
        ends = [float(s * 2**b) for b in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1)]
        ties = [
            0.49999,
            2.5,
            3.5,
            2049.0,
            2051.0,
            257.0,
            259.0,
            65519.0,
            65520.0,
            1.0 + 2.0**-9,
            1.0 + 2.0**-12 + 2.0**-30,
            1.0 + 2.0**-8 + 2.0**-40,  # just above a tie of bf16, of f16, of f32: rounding by way of f32 would lose it
            1.0 + 2.0**-11 + 2.0**-40,
            1.0 + 2.0**-24 + 2.0**-52,
        ]
        extra = [*ends, *(e - 1 for e in ends), *ties, 2.0**-25, 2.0**-25 * 1.0001, 2.0**-134, 5e-324]
        extra += [s * x for x in _MATRIX_INPUTS for s in (1, -1)]
    values = [cast_bits(struct.unpack("<Q", struct.pack("<d", x))[0], DTYPES["f64"], src) for x in extra]
    values += _NANS.get(src.name, ())
    if src.is_integer and src.bits == 64:
        values = [(1 << 53) + 1, (1 << 53) + 3, (1 << 24) + 1, (1 << 40) + (1 << 15) + 1, (1 << 62) + 1, 65519, 65520]
    if src.is_integer and src.bits >= 32:  # just above a tie of bf16, which by way of f32 would be one
        values += [
            n % (1 << src.bits)
            for s in (1, -1)
            for n in (s * 0x1010001, s * ((1 << src.bits - 3) + (1 << src.bits - 11) + 1))
        ]
    return list(dict.fromkeys([*special_bits(src), *values]))


def _bitcast_file() -> str:
    text = HEADER.format("arith.bitcast between all dtypes of the same width; a NaN's payload survives.")
    for src in STORED:
        for dst in STORED:
            if src.bits == dst.bits and src is not dst and BOOL not in (src, dst):
                bits = list(special_bits(src))
                given = _listed(f"; in A: {src} [{len(bits)}] =", src, bits)
                text += _kernel(f"{src}_as_{dst}", [given], [src], _out(dst, bits), "arith.bitcast", dst)
    return text


def _select_file() -> str:
    text = HEADER.format("arith.select: the bits of one operand, NaN payloads included.")
    for dtype in STORED:
        bits = list(special_bits(dtype))
        other = bits[1:] + bits[:1]
        flags = [n % 2 for n in range(len(bits))]
        given = [
            _listed(f"; in A: bool [{len(bits)}] =", BOOL, flags),
            _listed(f"; in B: {dtype} [{len(bits)}] =", dtype, bits),
            _listed(f"; in C: {dtype} [{len(bits)}] =", dtype, other),
        ]
        results = [x if flag else y for flag, x, y in zip(flags, bits, other, strict=True)]
        text += _kernel(f"select_{dtype}", given, [BOOL, dtype, dtype], _out(dtype, results), "arith.select", dtype)
    return text


def _seen_nans_file() -> str:
    """What a compiler may turn into moves and bit operations, which leave NaNs as they are."""
    text = HEADER.format(
        "A result of arithmetic whose bits are seen: of neg, abs, x * 1 and a choice, every NaN is canonical."
    )
    for dtype in (t for t in STORED if t.is_float):
        bits = [*special_bits(dtype), *_NANS[dtype.name]]
        other, flags = bits[1:] + bits[:1], [n % 2 for n in range(len(bits))]
        given = _listed(f"; in A: {dtype} [{len(bits)}] =", dtype, bits)
        one, word = special_bits(dtype)[2], DTYPES[f"u{dtype.bits}"]
        for row in ("neg", "abs"):
            results = [row_bits(row, dtype, (x,)) for x in bits]
            lines = [f"%m = arith.{row} %x0 : {dtype}", f"%result = arith.bitcast %m : {word}"]
            text += _kernel(f"{row}_{dtype}_bits", [given], [dtype], _out(word, results), lines, word)
        results = [row_bits("mul", dtype, (x, one)) for x in bits]
        lines = [f"%one = arith.constant 1.0 : {dtype}", f"%result = arith.mul %x0, %one : {dtype}"]
        text += _kernel(f"times_one_{dtype}", [given], [dtype], _out(dtype, results), lines, dtype)
        given = _listed(f"; in A: bool [{len(bits)}] =", BOOL, flags)
        inputs = [given, _listed(f"; in B: {dtype} [{len(bits)}] =", dtype, bits)]
        inputs.append(_listed(f"; in C: {dtype} [{len(bits)}] =", dtype, other))
        results = [row_bits("neg", dtype, (x,)) if f else y for f, x, y in zip(flags, bits, other, strict=True)]
        lines = [f"%m = arith.neg %x1 : {dtype}", f"%result = arith.select %x0, %m, %x2 : {dtype}"]
        text += _kernel(f"neg_{dtype}_or", inputs, [BOOL, dtype, dtype], _out(dtype, results), lines, dtype)
    return text


def _kernel(name: str, inputs: list[str], types: list[DType], out: str, op: str | list[str], to: DType) -> str:
    """``OUT[i] = op(A[i], B[i], ...)``, guarded at the end. op: or lines that make %result of %x0, %x1, ..."""
    params = [f"%{_name(n)}: global<{t}, [N], unit=0, align={t.bytes}>" for n, t in enumerate(types)]
    params.append(f"%OUT: global<{to}, [N], unit=0, align={to.bytes}>")
    lines = [
        "",
        "; run: special values",
        *inputs,
        out,
        f"kernel {name}({', '.join(params)})",
        "  grid(floordiv(add(N, 63), 64)) threads(64) level(tile) index_bits(32) {",
        "  %block = gpu.block_id {axis = 0} : index",
        "  %thread = gpu.thread_id {axis = 0} : index",
        "  %size = arith.constant 64 : index",
        "  %first = arith.mul %block, %size : index",
        "  %i = arith.add %first, %thread : index",
    ]
    for n, dtype in enumerate(types):
        lines.append(f"  %other{n} = arith.constant {_zero(dtype)} : {dtype}")
        lines.append(f"  %x{n} = tile.get %{_name(n)}, %i, %other{n} : {dtype}")
    operands = ", ".join(f"%x{n}" for n in range(len(types)))
    body = [f"%result = {op} {operands} : {to}"] if isinstance(op, str) else op
    lines += [*(f"  {line}" for line in body), "  tile.put %OUT, %i, %result", "  control.return", "}", ""]
    return "\n".join(lines)


def _name(axis: int) -> str:
    return "ABC"[axis]


def _zero(dtype: DType) -> str:
    return {float: "0.0", bool: "false"}.get(dtype.python, "0")


def _f32(value: float) -> int:
    """Bits of a float64 rounded to f32; a NaN is the canonical one."""
    with np.errstate(over="ignore"):
        return 0x7FFFFFFF if value != value else int(np.float32(value).view(np.uint32))


def _hex(bits: int, dtype: DType) -> str:
    return f"{bits:0{2 * dtype.bytes}x}"


def _out(dtype: DType, bits: list[int], within: str = "") -> str:
    return _listed(f"; out OUT: {dtype} [{len(bits)}]{within} =", dtype, bits)


def _listed(head: str, dtype: DType, bits: list[int]) -> str:
    """`head` and the words, in lines of about 110 columns."""
    a_line = 108 // (2 * dtype.bytes + 1)
    words = [_hex(b, dtype) for b in bits]
    rows = [" ".join(words[n : n + a_line]) for n in range(0, len(words), a_line)]
    return "\n".join([head, *(f";   {row}" for row in rows)])
