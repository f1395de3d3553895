"""LLVM IR text of the emulator's compiled loops.

Each loop walks the groups and warps of an array [groups, warps, 32] and handles the 32 lanes of a warp as one
vector. An operand has element strides along groups and warps (0 where it does not vary) and a mode:
"v" has a value a lane, "s" one for all lanes, "n" (masks only) is absent. All functions return an i64:
not 0 if an active lane was misaligned or outside its bounds (such lanes are left out).
"""

from __future__ import annotations

__all__ = ["elementwise_ir", "gather_ir", "scatter_ir"]

_FLOATS = {"f32": ("float", "i32", 0x7FFFFFFF), "f64": ("double", "i64", 0x7FFFFFFFFFFFFFFF)}
_OPERATIONS = {
    "add": "fadd {v} %a, %b",
    "sub": "fsub {v} %a, %b",
    "mul": "fmul {v} %a, %b",
    "div": "fdiv {v} %a, %b",
    "fma": "call {v} @llvm.fma.v32{f}({v} %a, {v} %b, {v} %c)",
}


def elementwise_ir(fn: str, dtype: str, modes: str) -> str:
    """``void run(out, groups, warps, a, a_group, a_warp, ...)``: a row of the scalar table, NaNs canonical."""
    scalar, bits, nan = _FLOATS[dtype]
    vector = f"<32 x {scalar}>"
    names = "abc"[: len(modes)]
    parameters = "".join(f", ptr %{n}p, i64 %{n}g, i64 %{n}w" for n in names)
    reads = "".join(_read(n, scalar, mode) for n, mode in zip(names, modes, strict=True))
    operation = _OPERATIONS[fn].format(v=vector, f=dtype)
    declare = f"declare {vector} @llvm.fma.v32{dtype}({vector}, {vector}, {vector})\n" if fn == "fma" else ""
    body = f"""{reads}
  %r = {operation}
  %nan = fcmp uno {vector} %r, zeroinitializer
  %raw = bitcast {vector} %r to <32 x {bits}>
{_splat("canonical", bits, str(nan))}
  %clean = select <32 x i1> %nan, <32 x {bits}> %canonical, <32 x {bits}> %raw
  %to = getelementptr <32 x {bits}>, ptr %out, i64 %row
  store <32 x {bits}> %clean, ptr %to, align {_bytes(bits)}
"""
    return declare + _loops(f"ptr noalias %out, i64 %groups, i64 %warps{parameters}", body)


def gather_ir(bits: int, mode: str, mask: str) -> str:
    """``run(out, groups, warps, memory, rows, address, ..., mask, ..., low, room, misaligned)``.

    The element of lane address a in group g is at ``memory + a + rows[g] * size``; a is inside if
    ``(a - low) <= room`` (unsigned) and ``a & misaligned`` is 0. `memory` has the origin taken off.
    """
    element = f"i{bits}"
    vector = f"<32 x {element}>"
    gather = f"@llvm.masked.gather.v32{element}.v32p0"
    places = f"<32 x ptr> align {bits // 8} %places, <32 x i1> %take"
    body = f"""{_place(bits, mode, mask)}
  %got = call {vector} {gather}({places}, {vector} zeroinitializer)
  %to = getelementptr <32 x {element}>, ptr %out, i64 %row
  store <32 x {element}> %got, ptr %to, align {bits // 8}
"""
    declare = f"declare {vector} {gather}(<32 x ptr>, <32 x i1>, {vector})\n"
    return _REDUCE + declare + _loops(f"ptr noalias %out, {_PLACE_PARAMETERS}", body, checked=True)


def scatter_ir(bits: int, mode: str, mask: str, value: str) -> str:
    """``run(value, ..., groups, warps, memory, ...)``: like `gather_ir`. Lanes are written in order."""
    element = f"i{bits}"
    vector = f"<32 x {element}>"
    scatter = f"@llvm.masked.scatter.v32{element}.v32p0"
    body = f"""{_read("x", element, value)}
{_place(bits, mode, mask)}
  call void {scatter}({vector} %x, <32 x ptr> align {bits // 8} %places, <32 x i1> %take)
"""
    declare = f"declare void {scatter}({vector}, <32 x ptr>, <32 x i1>)\n"
    return _REDUCE + declare + _loops(f"ptr %xp, i64 %xg, i64 %xw, {_PLACE_PARAMETERS}", body, checked=True)


# -- pieces ----------------------------------------------------------------------------------------

_REDUCE = "declare i1 @llvm.vector.reduce.or.v32i1(<32 x i1>)\n"
_PLACE_PARAMETERS = (
    "i64 %groups, i64 %warps, ptr %memory, ptr %rows, ptr %ap, i64 %ag, i64 %aw, ptr %mp, i64 %mg, i64 %mw, "
    "i64 %low, i64 %room, i64 %misaligned"
)


def _bytes(type_: str) -> int:
    return {"float": 4, "double": 8}.get(type_) or int(type_[1:]) // 8


def _splat(name: str, type_: str, value: str) -> str:
    return f"""  %{name}.one = insertelement <32 x {type_}> poison, {type_} {value}, i32 0
  %{name} = shufflevector <32 x {type_}> %{name}.one, <32 x {type_}> poison, <32 x i32> zeroinitializer"""


def _read(name: str, type_: str, mode: str) -> str:
    """Defines ``%name``, a vector, from the operand at row %g, %w."""
    where = f"""
  %{name}.at.g = mul i64 %g, %{name}g
  %{name}.at.w = mul i64 %w, %{name}w
  %{name}.at = add i64 %{name}.at.g, %{name}.at.w
  %{name}.from = getelementptr {type_}, ptr %{name}p, i64 %{name}.at"""
    if mode == "v":
        return f"{where}\n  %{name} = load <32 x {type_}>, ptr %{name}.from, align {_bytes(type_)}"
    one = f"  %{name}.value = load {type_}, ptr %{name}.from, align {_bytes(type_)}"
    return "\n".join((where, one, _splat(name, type_, f"%{name}.value")))


def _place(bits: int, mode: str, mask: str) -> str:
    """Defines %places, %take (lanes to access) and %bad (active lanes that are not inside)."""
    wanted = "  %want = add <32 x i1> zeroinitializer, splat (i1 true)"
    if mask != "n":
        wanted = f"{_read('m', 'i8', mask)}\n  %want = icmp ne <32 x i8> %m, zeroinitializer"
    return f"""{_read("a", "i64", mode)}
{_splat("lows", "i64", "%low")}
{_splat("rooms", "i64", "%room")}
{_splat("lowbits", "i64", "%misaligned")}
  %from.low = sub <32 x i64> %a, %lows
  %within = icmp ule <32 x i64> %from.low, %rooms
  %off = and <32 x i64> %a, %lowbits
  %aligned = icmp eq <32 x i64> %off, zeroinitializer
  %inside = and <32 x i1> %within, %aligned
{wanted}
  %take = and <32 x i1> %want, %inside
  %outside = xor <32 x i1> %inside, splat (i1 true)
  %wrong = and <32 x i1> %want, %outside
  %bad = call i1 @llvm.vector.reduce.or.v32i1(<32 x i1> %wrong)
  %rowp = getelementptr i64, ptr %rows, i64 %g
  %rowoffset = load i64, ptr %rowp, align 8
  %rowbytes = mul i64 %rowoffset, {bits // 8}
  %start = getelementptr i8, ptr %memory, i64 %rowbytes
  %places = getelementptr i8, ptr %start, <32 x i64> %a"""


def _loops(parameters: str, body: str, checked: bool = False) -> str:
    """The nest over %g and %w around `body`; %row counts them through."""
    carry = "  %any = phi i64 [ 0, %entry ], [ %any.next, %body ]\n" if checked else ""
    update = "  %bad.wide = zext i1 %bad to i64\n  %any.next = or i64 %any, %bad.wide\n" if checked else ""
    result = "%any.next" if checked else "0"
    return f"""
define i64 @run({parameters}) {{
entry:
  %total = mul i64 %groups, %warps
  br label %body
body:
  %row = phi i64 [ 0, %entry ], [ %row.next, %body ]
  %g = phi i64 [ 0, %entry ], [ %g.next, %body ]
  %w = phi i64 [ 0, %entry ], [ %w.next, %body ]
{carry}{body}{update}
  %row.next = add i64 %row, 1
  %w.more = add i64 %w, 1
  %wrap = icmp eq i64 %w.more, %warps
  %w.next = select i1 %wrap, i64 0, i64 %w.more
  %g.step = zext i1 %wrap to i64
  %g.next = add i64 %g, %g.step
  %done = icmp eq i64 %row.next, %total
  br i1 %done, label %exit, label %body
exit:
  ret i64 {result}
}}
"""
