"""Makes tile/atomics.tir and mem/atomics.tir: every atomic operation on pairs of special values.

Each thread has elements of its own, in global and in shared memory, so that results are those of any order. Expected
ones are computed here, on bits as Python integers.
"""

from __future__ import annotations

from tests.filetests.values import special_bits, special_values
from tiledsl.ir.atomics import ATOMICS, AtomicFn
from tiledsl.ir.types import DTYPES, I32, U32, DType

__all__ = ["texts"]

HEADER = """; Written by tests/filetests/make_atomics.py: atomic operations on pairs of special values, each thread on
; an element of its own in global and in shared memory. Updated elements and what was found there, bit for bit.
"""
SCOPES = ("cta", "gpu", "sys")


def texts() -> dict[str, str]:
    """The text of every file, by its place in the folder."""
    rows = [row for row in ATOMICS.values() if row.name != "add"]  # sums of floats: tile/atomic.tir
    tile = [_kernel(row, DTYPES[name], "tile") for row in rows for name in DTYPES if name in row.dtypes]
    thread = [_kernel(row, dtype, "mem") for row in ATOMICS.values() for dtype in (I32, U32)]
    return {"tile/atomics.tir": HEADER + "".join(tile), "mem/atomics.tir": HEADER + "".join(thread)}


# -- the reference -----------------------------------------------------------------------------------


def updated(fn: str, dtype: DType, old: int, value: int, new: int) -> int:
    """The bits of the element after one operation; of cas, `value` is what the element is compared with."""
    lesser, greater = sorted((old, value), key=lambda bits: _number(bits, dtype))
    match fn:
        case "load":
            return old
        case "store" | "exchange":
            return value
        case "add":
            return (old + value) % (1 << dtype.bits)
        case "cas":
            return new if old == value else old
        case "min":
            return lesser
        case "max":
            return greater
        case "and":
            return old & value
        case "or":
            return old | value
        case _:
            assert fn == "xor", fn
            return old ^ value


def _number(bits: int, dtype: DType) -> int:
    return bits - (1 << dtype.bits) if dtype.kind == "int" and bits >> (dtype.bits - 1) else bits


# -- the text ----------------------------------------------------------------------------------------


def _kernel(fn: AtomicFn, dtype: DType, family: str) -> str:
    old, value = ([int(v) for v in special_values(dtype, axis, 2).view(f"u{dtype.bytes}")] for axis in range(2))
    new = special_bits(dtype)[-1]
    after = [updated(fn.name, dtype, a, b, new) for a, b in zip(old, value, strict=True)]
    count = len(old)
    outs = {"C": after, "SC": after} | ({"O": old, "SO": old} if fn.reads else {})
    lines = ["", "; run: special values"]
    lines += [f"; in C: {dtype} [{count}] = specials(0 of 2)", f"; in A: {dtype} [{count}] = specials(1 of 2)"]
    for name, bits in outs.items():
        lines += _listed(f"; out {name}: {dtype} [{count}] =", dtype, bits)
    names = ["C", "A", *[name for name in outs if name != "C"]]
    order, scope = _how(fn, dtype)
    how = f'{{order = "{order}", reach = "{scope}"}}'
    body = (_tile_body if family == "tile" else _thread_body)(fn, dtype, new, how, count)
    return "\n".join(
        [*lines, *_head(f"{fn.name}_{dtype}", names, dtype, family, count), *body, "  control.return", "}", ""]
    )


def _how(fn: AtomicFn, dtype: DType) -> tuple[str, str]:
    """Another order and scope for each dtype."""
    number = list(DTYPES).index(dtype.name)
    order = fn.orders[number % len(fn.orders)]
    return order, "sys" if order == "volatile" else SCOPES[number % len(SCOPES)]


def _head(name: str, names: list[str], dtype: DType, family: str, count: int) -> list[str]:
    if family == "tile":
        types = ", ".join(f"%{n}: global<{dtype}, [N], unit=0, align={dtype.bytes}>" for n in names)
        return [f"kernel {name}({types})", f"  grid(1) threads({count}) level(tile) index_bits(32) {{"]
    types = ", ".join(f"%{n}: ptr<global, {dtype}>" for n in names)
    abi = ", ".join(f"pointer {n} {dtype} [N]" for n in names)
    return [
        f"kernel {name}({types}, %N: i32)",
        f"  grid(1) threads({count}) level(thread) index_bits(32) shared_bytes({count * dtype.bytes}) "
        f"abi({abi}, extent N i32) {{",
    ]


def _operands(fn: AtomicFn) -> str:
    return "".join((", %value", ", %new")[: fn.values])


def _shown(fn: AtomicFn, result: str, family: str, place: str, how: str, dtype: DType) -> str:
    made = f"{family}.atomic_{fn.name} {place}{_operands(fn)} {how}"
    return f"  {result} = {made} : {dtype}" if fn.reads else f"  {made}"


def _constant(dtype: DType, bits: int) -> list[str]:
    """`%new`, by its bits."""
    if dtype.python is bool:
        return [f"  %new = arith.constant {'true' if bits else 'false'} : bool"]
    if dtype.python is float:
        word = f"u{dtype.bits}"
        return [f"  %bits = arith.constant {bits} : {word}", f"  %new = arith.bitcast %bits {{to = {dtype}}} : {dtype}"]
    return [f"  %new = arith.constant {_number(bits, dtype)} : {dtype}"]


def _tile_body(fn: AtomicFn, dtype: DType, new: int, how: str, count: int) -> list[str]:
    shared = f"shared<{dtype}, [{count}]>"
    lines = ["  %t = gpu.thread_id {axis = 0} : index", f"  %value = tile.load %A, %t : {dtype}"]
    lines += _constant(dtype, new) if fn.values == 2 else []
    lines += [f"  %S = tile.shared_alloc {{type = {shared}}} : {shared}", f"  %c = tile.load %C, %t : {dtype}"]
    lines += ["  tile.store %S, %t, %c"]
    lines += [_shown(fn, "%old", "tile", "%C, %t", how, dtype), _shown(fn, "%before", "tile", "%S, %t", how, dtype)]
    lines += ["  tile.store %O, %t, %old", "  tile.store %SO, %t, %before"] if fn.reads else []
    return [*lines, f"  %after = tile.load %S, %t : {dtype}", "  tile.store %SC, %t, %after"]


def _thread_body(fn: AtomicFn, dtype: DType, new: int, how: str, count: int) -> list[str]:
    lines = ["  %t = gpu.thread_id {axis = 0} : i32"]
    names = ["C", "A", "SC", *(("O", "SO") if fn.reads else ())]
    lines += [f"  %at{n} = mem.offset %{n}, %t : ptr<global, {dtype}>" for n in names]
    lines += [f"  %value = mem.load %atA : {dtype}"]
    lines += _constant(dtype, new) if fn.values == 2 else []
    base = f'{{dtype = {dtype}, offset = 0, bytes = {count * dtype.bytes}, label = "S"}}'
    lines += [f"  %S = mem.shared_base {base} : ptr<shared, {dtype}>"]
    lines += [f"  %atS = mem.offset %S, %t : ptr<shared, {dtype}>", f"  %c = mem.load %atC : {dtype}"]
    lines += ["  mem.store %atS, %c"]
    lines += [_shown(fn, "%old", "mem", "%atC", how, dtype), _shown(fn, "%before", "mem", "%atS", how, dtype)]
    lines += ["  mem.store %atO, %old", "  mem.store %atSO, %before"] if fn.reads else []
    return [*lines, f"  %after = mem.load %atS : {dtype}", "  mem.store %atSC, %after"]


def _listed(head: str, dtype: DType, bits: list[int]) -> list[str]:
    """Hexadecimal words, continued on further lines; or the name of the operand that has them."""
    for axis in range(2):
        if bits == [int(v) for v in special_values(dtype, axis, 2).view(f"u{dtype.bytes}")]:
            return [f"{head} specials({axis} of 2)"]
    words = [f"{b:0{2 * dtype.bytes}x}" for b in bits]
    each = 96 // (2 * dtype.bytes + 1)
    return [head, *(";   " + " ".join(words[i : i + each]) for i in range(0, len(words), each))]
