"""print, assert_, breakpoint, and raw PTX."""

from __future__ import annotations

from typing import Any

from tiledsl import lang
from tiledsl.frontend.bindings import contains_value, describe, has_operators, instead_of, is_fragment, is_register
from tiledsl.frontend.call import Call, intrinsic
from tiledsl.frontend.fragments import is_distributed
from tiledsl.ir.core import Value
from tiledsl.ir.ops import debug, ptx
from tiledsl.ir.types import BOOL, F32, INDEX, DType
from tiledsl.lang import ir_dtype


def _print_signature(*values: Any, sep: str = " ") -> None:
    """The arguments of print() that a kernel may use."""


@intrinsic(print, signature=_print_signature)
def _print(call: Call) -> Any:
    text, literal = "", ""
    operands: list[Value] = []
    for number, value in enumerate(call["values"]):
        literal += str(call["sep"]) if number else ""
        if isinstance(value, Value) and isinstance(value.type, DType):
            text, literal = f"{text}{_not_a_place(literal)}{{}}", ""
            operands.append(call.builder.cast(value, F32) if value.type.is_matrix else value)
        elif has_operators(value):
            raise call.error(f"print() of {describe(value)}", instead_of(value), code="C104")
        elif contains_value(value):
            raise call.error("print() of a list with run-time values", "print its elements", code="C106")
        else:
            literal += str(value)
    format_ = _encodable(call, text + _not_a_place(literal))
    call.builder.add(debug.Print(*operands, format=format_))


def _encodable(call: Call, text: str) -> str:
    """A text that the kernel prints, which is kept as UTF-8 on the device."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        odd = text[error.start : error.end]
        message = f"the text has {odd!r}, half of a surrogate pair, which UTF-8 cannot hold"
        raise call.error(message, "leave it out", code="C104") from None
    return text


def _not_a_place(literal: str) -> str:
    """The user's text without ``{}``, which stands for an operand in `debug.Print.format`."""
    return literal.replace("{}", "{ }")


@intrinsic(lang.assert_)
def _assert(call: Call) -> Any:
    message, condition = call["message"], call["condition"]
    if is_fragment(condition):
        fix = "store it, and check what arrived" if is_distributed(condition) else "check its elements"
        raise call.error(f"the condition of assert_() is one bool, got {describe(condition)}", fix, code="C203")
    call.builder.add(debug.Assert(call.value("condition", BOOL), message=_encodable(call, message)))


@intrinsic(breakpoint, signature=lambda: None)
def _breakpoint(call: Call) -> Any:
    shown = {
        name: value
        for name, value in call.frame.env.items()
        if not name.startswith("$") and is_register(value) and isinstance(value.type, DType)
    }
    call.builder.add(debug.Breakpoint(*shown.values(), names=tuple(shown)))


@intrinsic(lang.ptx.inline)
def _inline(call: Call) -> Any:
    text, outputs = call["text"], call["outputs"]
    given: tuple[Any, ...] = () if outputs is None else outputs if isinstance(outputs, tuple) else (outputs,)  # pyright: ignore
    dtypes = [ir_dtype(output) for output in given]
    if None in dtypes or INDEX in dtypes:
        raise call.error(
            "outputs of ptx.inline() are dtypes with a size", "pass u32, f32, ... or a tuple of them", code="C708"
        )
    for operand in call["operands"]:
        if not is_register(operand) or not isinstance(operand.type, DType) or operand.type == INDEX:
            message = f"operands of ptx.inline() are run-time scalars with a size, got {describe(operand)}"
            raise call.error(message, "write i32(x) for an index or a literal", code="C708")
    of_operands = [operand.type for operand in call["operands"]]
    for name, dtype in ptx.addresses(text, [*(d for d in dtypes if d is not None), *of_operands]):
        if not ptx.is_address(dtype):
            message = f"{call.what}: expected an integer of 32 or 64 bits as the address {name}, got {dtype}"
            raise call.error(message, "pass the address as u64, or as u32 in shared memory", code="C708")
    op = ptx.Inline(
        *call["operands"],
        text=text,
        outputs=tuple(d for d in dtypes if d is not None),
        volatile=bool(call["volatile"]) or not given or call["memory"] in ("reads", "writes"),
        convergent=bool(call["convergent"]),
        memory=call["memory"],
        uniform=call["uniform"],
        emulate=_emulation(call),
    )
    call.builder.add(op)
    if isinstance(outputs, tuple):
        return tuple(op.results)
    return op.results[0] if op.results else None


def _emulation(call: Call) -> str:
    function = call["emulate"]
    if function is None:
        return ""
    externals = call.unit.kernel.externals
    for key, known in externals.items():
        if known is function:
            return key
    key = f"{getattr(function, '__name__', 'emulate')}_{len(externals)}"
    externals[key] = function
    return key
