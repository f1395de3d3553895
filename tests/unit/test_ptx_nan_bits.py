"""Where the backend makes NaNs canonical: on the way to what sees their bits, and nowhere in a loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tiledsl.backends.ptx import TARGETS, build
from tiledsl.backends.ptx.disassemble import Instruction, sass_listing
from tiledsl.backends.ptx.nan_bits import settle_nans
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify

WORDS = {"f64": "u64", "f32": "u32", "f16": "u16", "bf16": "u16"}
NARROW = ("f32", "f16", "bf16")


def kernel(dtype: str, body: str, out: str = "") -> Kernel:
    """%A and %B hold `dtype`, %O holds `out`; %x and %y are elements, %w is their word, %p is not known."""
    out = out or dtype
    params = [("A", dtype), ("B", dtype), ("O", out)]
    pointers = ", ".join(f"%{name}: ptr<global, {t}>" for name, t in params)
    abi = ", ".join(f"pointer {name} {t} [N]" for name, t in params)
    header = f"kernel k({pointers}, %n: i32) grid(1) threads(1) level(thread) index_bits(32) abi({abi}, extent N i32)"
    begin = "%zero = arith.constant 0 : i32\n%one = arith.constant 1 : i32\n%p = arith.lt %n, %zero : bool\n"
    begin += f"%x = mem.load %A : {dtype}\n%y = mem.load %B : {dtype}\n"
    body = body.format(t=dtype, u=WORDS.get(dtype, ""), sign=1 << (int(re.sub(r"\D", "", dtype)) - 1))
    made = parse_kernel(f"{header} {{\n{begin}{body}\ncontrol.return\n}}")
    verify(made)
    return made


def settled(made: Kernel) -> list[str]:
    """The lines of the kernel with its settling instructions."""
    result = settle_nans(made)
    verify(result)
    return [line.strip() for line in print_kernel(result).splitlines()]


def inlines(made: Kernel) -> int:
    return sum("ptx.inline" in line for line in settled(made))


# -- which values are settled where ----------------------------------------------------------------

ACCUMULATE = """
  %start = arith.constant 0.0 : {t}
  %sum = control.for %zero, %n, %one, INIT : {t} (%i: i32, %acc: {t}) {{
    %next = arith.fma %x, NEW, %acc : {t}
    control.yield %next
  }}
  mem.store %O, %sum
"""


def test_an_f64_accumulator_is_settled_once_at_its_store() -> None:
    text = settled(kernel("f64", ACCUMULATE.replace("INIT", "%start").replace("NEW", "%x")))
    assert sum("ptx.inline" in line for line in text) == 1
    store = next(n for n, line in enumerate(text) if line.startswith("mem.store"))
    assert text[store - 1].startswith(text[store].split(", ")[1] + " = ptx.inline %sum")


def test_a_payload_that_was_loaded_is_kept() -> None:
    """The loop may hand on the loaded value: then only what it computes is settled, where the two meet."""
    text = settled(kernel("f64", ACCUMULATE.replace("INIT", "%y").replace("NEW", "%x")))
    inline = next(n for n, line in enumerate(text) if "ptx.inline" in line)
    assert "%next" in text[inline] and text[inline + 1].startswith("control.yield")
    assert "mem.store %O, %sum" in text


@pytest.mark.parametrize("dtype", ["f64", *NARROW])
def test_a_copy_is_left_alone(dtype: str) -> None:
    copy = kernel(dtype, "mem.store %O, %x")
    assert settle_nans(copy) is copy


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("op", ["neg", "abs"])
def test_an_accumulator_of_signed_operands_costs_nothing(dtype: str, op: str) -> None:
    """Neither does a choice between -x and a loaded value that only arithmetic sees."""
    signs = f"%m = arith.{op} %y : {{t}}\n%v = arith.select %p, %m, %x : {{t}}\n"
    made = kernel(dtype, signs + ACCUMULATE.replace("INIT", "%start").replace("NEW", "%v"))
    assert settle_nans(made) is made


def test_a_word_for_the_tensor_cores_costs_nothing() -> None:
    word = "%m = arith.neg %x : f16\n%w = arith.pack_word %m, %y : u32\n%a = mem.ldmatrix %S {num = 4} : u32, u32, u32, u32"
    product = (
        "%S = mem.shared_base {dtype = f16, offset = 0, bytes = 512} : ptr<shared, f16>\n" + word.replace("= 4", "= 1")
    ).replace(": u32, u32, u32, u32", ": u32")
    product += "\n%c = arith.constant 0.0 : f32\n%d:4 = ptx.mma_sync %w, %w, %a, %w, %w, %a, %c, %c, %c, %c "
    assert product


@pytest.mark.parametrize(
    "user",
    [
        "mem.store %O, %m",
        "%q = arith.bitcast %m {{to = {u}}} : {u}",
        "debug.print %m {{text = \"\", formats = (\"\",)}}",
    ],
    ids=["store", "bitcast", "print"],
)
def test_users(user: str) -> None:
    pass
