"""Where the backend makes f64 NaNs canonical: on the way to memory, and nowhere in a loop."""

from __future__ import annotations

from tiledsl.backends.ptx.f64_nan import settle_f64_nans
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify


def kernel(dtype: str, body: str) -> Kernel:
    header = f"kernel k(%A: ptr<global, {dtype}>, %n: i32) grid(1) threads(1) level(thread) index_bits(32)"
    return parse_kernel(f"{header} abi(pointer A {dtype} [N], extent N i32) {{\n{body}\ncontrol.return\n}}")


ACCUMULATE = """
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %x = mem.load %A : {t}
  %start = arith.constant 0.0 : {t}
  %sum = control.for %zero, %n, %one, {init} : {t} (%i: i32, %acc: {t}) {{
    %next = arith.fma %x, %x, %acc : {t}
    control.yield %next
  }}
  mem.store %A, %sum
"""


def lines(kernel: Kernel) -> list[str]:
    verify(kernel)
    return [line.strip() for line in print_kernel(kernel).splitlines()]


def test_an_accumulator_is_settled_once_at_its_store() -> None:
    settled = settle_f64_nans(kernel("f64", ACCUMULATE.format(t="f64", init="%start")))
    text = lines(settled)
    assert sum("ptx.inline" in line for line in text) == 1
    store = next(n for n, line in enumerate(text) if line.startswith("mem.store"))
    assert text[store - 1].startswith(text[store].split(", ")[1] + " = ptx.inline %sum")


def test_a_payload_that_was_loaded_is_kept() -> None:
    """The loop may hand on the loaded value: then only what it computes is settled, where the two meet."""
    settled = settle_f64_nans(kernel("f64", ACCUMULATE.format(t="f64", init="%x")))
    text = lines(settled)
    inline = next(n for n, line in enumerate(text) if "ptx.inline" in line)
    assert "%next" in text[inline] and text[inline + 1].startswith("control.yield")
    assert "mem.store %A, %sum" in text


def test_a_copy_is_left_alone() -> None:
    copy = kernel("f64", "  %x = mem.load %A : f64\n  mem.store %A, %x")
    assert settle_f64_nans(copy) is copy


def test_other_dtypes_need_nothing() -> None:
    single = kernel("f32", ACCUMULATE.format(t="f32", init="%start"))
    assert settle_f64_nans(single) is single
