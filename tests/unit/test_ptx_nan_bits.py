"""Where the backend makes NaNs canonical: on the way to what sees their bits, and nowhere in a loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from one_module import listings

from tiledsl.backends.ptx import TARGETS, build
from tiledsl.backends.ptx.nan_bits import canonicalize_nans
from tiledsl.backends.ptx.sass.program import Sass, SassProgram
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.verifier import verify

WORDS = {"f64": "u64", "f32": "u32", "f16": "u16", "bf16": "u16"}
NARROW = ("f32", "f16", "bf16")
ALL = ("sm_80", "sm_90a", "sm_120a")


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
    """The lines of the kernel with the instructions that make NaNs canonical."""
    result = canonicalize_nans(made)
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
    assert canonicalize_nans(copy) is copy


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("op", ["neg", "abs"])
def test_an_accumulator_of_signed_operands_costs_nothing(dtype: str, op: str) -> None:
    """Neither does a choice between -x and a loaded value that only arithmetic sees."""
    signs = f"%m = arith.{op} %y : {{t}}\n%v = arith.select %p, %m, %x : {{t}}\n"
    made = kernel(dtype, signs + ACCUMULATE.replace("INIT", "%start").replace("NEW", "%v"))
    assert canonicalize_nans(made) is made


PACKED = "%m = arith.neg %x : f16\n%w = arith.pack_word %m, %y : u32\n"


def test_a_word_for_the_tensor_cores_costs_nothing() -> None:
    product = """
      %c = arith.constant 0.0 : f32
      %d0, %d1, %d2, %d3 = ptx.mma_sync %w, %w, %w, %c, %c, %c, %c {{shape = "m16n8k8", a = f16, b = f16, acc = f32}} : f32, f32, f32, f32
      mem.store %O, %d0
    """  # noqa: E501
    made = kernel("f16", PACKED + product, out="f32")
    assert canonicalize_nans(made) is made


USERS = {
    "store": ("mem.store %O, %m", "{t}"),
    "a vector": ("mem.store %O, %m, %x {{vec = 2}}", "{t}"),
    "bit cast": ("%u = arith.bitcast %m {{to = {u}}} : {u}\nmem.store %O, %u", "{u}"),
    "shuffle": ('%s = warp.shuffle %m, %one {{mode = "xor"}} : {t}\nmem.store %O, %s', "{t}"),
    "print": ('debug.print %m {{format = "{{{{}}}}"}}', "{t}"),
    "inline PTX": ('%s = ptx.inline %m {{text = "mov.b32 $0, $1;", outputs = ({t},)}} : {t}\nmem.store %O, %s', "{t}"),
    "if": (
        "%v = control.if %p : {t} {{\ncontrol.yield %m\n}} else {{\ncontrol.yield %x\n}}\nmem.store %O, %v",
        "{t}",
    ),
    "tf32": ("%v = arith.cast %m {{to = tf32}} : tf32\nmem.store %O, %v", "tf32"),
}
"""What sees the bits of %m, and the dtype of %O."""


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("user", USERS)
def test_whatever_sees_bits_gets_the_canonical_nan(user: str, dtype: str) -> None:
    text, out = USERS[user]
    out = out.format(t=dtype, u=WORDS[dtype])
    extra = user == "inline PTX"
    assert inlines(kernel(dtype, "%m = arith.neg %x : {t}\n" + text, out)) == 1 + extra
    assert inlines(kernel(dtype, "%m = arith.add %x, %y : {t}\n" + text, out)) == extra


def test_words_that_something_else_sees() -> None:
    assert inlines(kernel("f16", PACKED + "mem.store %O, %w", out="u32")) == 1


def test_pairs_that_are_rounded_together_are_canonical_as_they_are() -> None:
    pair = "%m = arith.neg %x : f32\n%h = arith.cast %m : f16\n%g = arith.cast %y : f16\n"
    assert inlines(kernel("f32", pair + "mem.store %O, %h, %g {{vec = 2}}", out="f16")) == 0
    assert inlines(kernel("f32", pair + "mem.store %O, %h", out="f16")) == 1


@pytest.mark.parametrize("dtype", NARROW)
def test_what_llvm_may_compute_itself(dtype: str) -> None:
    """It sees that both ways give the same constant, and its NaN is another one than that of the instruction."""
    chosen = "%c = arith.constant 0.0 : {t}\n%v = arith.select %p, %c, %c : {t}\n"
    assert inlines(kernel(dtype, chosen + "%q = arith.div %v, %v : {t}\nmem.store %O, %q")) == 1
    assert inlines(kernel(dtype, chosen + "%q = arith.div %x, %v : {t}\nmem.store %O, %q")) == 0


# -- what becomes of it ----------------------------------------------------------------------------

DROPPED = {
    "x * 1": "%c = arith.constant 1.0 : {t}\n%r = arith.mul %x, %c : {t}",
    "x * -1": "%c = arith.constant -1.0 : {t}\n%r = arith.mul %x, %c : {t}",
    "x / 1": "%c = arith.constant 1.0 : {t}\n%r = arith.div %x, %c : {t}",
    "x + -0": "%c = arith.constant -0.0 : {t}\n%r = arith.add %x, %c : {t}",
    "x - 0": "%c = arith.constant 0.0 : {t}\n%r = arith.sub %x, %c : {t}",
    "-0 - x": "%c = arith.constant -0.0 : {t}\n%r = arith.sub %c, %x : {t}",
    "abs(x) + 0": "%a = arith.abs %x : {t}\n%c = arith.constant 0.0 : {t}\n%r = arith.add %a, %c : {t}",
    "fma(x, 1, -0)": ("%c = arith.constant 1.0 : {t}\n%z = arith.constant -0.0 : {t}\n%r = arith.fma %x, %c, %z : {t}"),
    "x * (1 or -1)": (
        "%c = arith.constant 1.0 : {t}\n%d = arith.constant -1.0 : {t}\n"
        "%s = arith.select %p, %c, %d : {t}\n%r = arith.mul %x, %s : {t}"
    ),
    "min(x, x)": "%r = arith.min %x, %x : {t}",
    "min(x, NaN)": "%c = arith.constant nan : {t}\n%r = arith.min %x, %c : {t}",
    "-x": "%r = arith.neg %x : {t}",
    "abs(x)": "%r = arith.abs %x : {t}",
    "-(-x)": "%m = arith.neg %x : {t}\n%r = arith.neg %m : {t}",
    "-x * y": "%m = arith.neg %x : {t}\n%r = arith.mul %m, %y : {t}",
    "max(-x, -y)": "%m = arith.neg %x : {t}\n%q = arith.neg %y : {t}\n%r = arith.max %m, %q : {t}",
    "where(p, -(x+y), x*y)": (
        "%a = arith.add %x, %y : {t}\n%m = arith.neg %a : {t}\n%q = arith.mul %x, %y : {t}\n"
        "%r = arith.select %p, %m, %q : {t}"
    ),
}
"""What LLVM or ptxas would make a move, a bit operation or nothing of."""

BRANCH = (
    "%a = arith.add %x, %y : {t}\n%q = arith.mul %x, %y : {t}\n%r = control.if %p : {t} {{\n"
    "%m = arith.neg %a : {t}\ncontrol.yield %m\n}} else {{\ncontrol.yield %q\n}}"
)

ARITHMETIC = {"FADD", "FMUL", "FFMA", "FMNMX", "HADD2", "HMUL2", "HFMA2", "HMNMX2"}
"""Opcodes of f32, f16 and bf16 instructions that canonicalise a NaN."""

MOVES = {"PRMT", "SEL", "FSEL", "MOV", "IMAD"}
REGISTER = re.compile(r"\bR\d+\b")


def stored_from(listing: SassProgram) -> list[Counter[str]]:
    """Of every store, opcodes of the instructions that made the stored bits, seen through moves."""
    stores = [n for n, i in enumerate(listing.instructions) if i.opcode.startswith("STG")]
    data = [REGISTER.findall(listing.instructions[n].text)[-1] for n in stores]
    return [Counter(makers(listing.instructions[:n], register)) for n, register in zip(stores, data, strict=True)]


def makers(before: Sequence[Sass], register: str) -> Iterator[str]:
    """The writers of `register`: the last one, and earlier ones behind one with a predicate."""
    for position in range(len(before) - 1, -1, -1):
        text, opcode = before[position].text, before[position].opcode.split(".")[0]
        names = REGISTER.findall(text)
        if not names or names[0] != register or opcode.startswith(("ST", "BRA")):
            continue
        if opcode in MOVES:
            assert not re.search(r"[-|~]R\d", text), f"a move with a sign: {text}"
            for source in names[1:]:
                yield from makers(before[:position], source)
        else:
            yield opcode
        if not text.startswith("@"):
            return


def each_of(cases: dict[str, str], end: str) -> str:
    """All cases one after the other, each on elements of its own; `end` stores its %r to %po."""
    texts: list[str] = []
    for number, case in enumerate(cases.values()):
        offsets = "".join(f"%{p} = mem.offset %{base}, %i\n" for p, base in (("pa", "A"), ("pb", "B"), ("po", "O")))
        loads = "%x = mem.load %pa : {t}\n%y = mem.load %pb : {t}\n"
        text = f"%i = arith.constant {number + 1} : i32\n{offsets}{loads}{case}\n{end}"
        texts.append(re.sub(r"%(?!(?:A|B|O|n|p|zero|one)\b)(\w+)", rf"%\1_{number}", text))
    return "\n".join(texts)


ENDS = {"value": "mem.store %po, %r", "word": "%u = arith.bitcast %r {{to = {u}}} : {u}\nmem.store %po, %u"}
BY_F32 = ("%r = arith.cast %s : f16", "%m = arith.neg %s : f32\n%r = arith.cast %m : f16")


@cache
def compiled(target: str) -> dict[str, SassProgram]:
    """The machine code of all kernels below, by their names."""
    made: dict[str, Kernel] = {}
    for dtype in NARROW:
        for end, text in ENDS.items():
            made[f"dropped_{dtype}_{end}"] = kernel(
                dtype, each_of(DROPPED, text), WORDS[dtype] if end == "word" else dtype
            )
        made[f"branch_{dtype}"] = kernel(dtype, BRANCH + "\nmem.store %O, %r")
        made[f"from_f64_{dtype}"] = kernel("f64", f"%r = arith.cast %x : {dtype}\nmem.store %O, %r", dtype)
    made["choice"] = kernel("f32", "%m = arith.neg %x : f32\n%r = arith.select %p, %m, %y : f32\nmem.store %O, %r")
    for number, between in enumerate(BY_F32):
        made[f"by_f32_{number}"] = kernel("f16", f"%s = arith.cast %x : f32\n{between}\nmem.store %O, %r")
    made["loop"] = signs_in_a_loop()
    return listings(made, TARGETS[target])


@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("end", ENDS)
def test_arithmetic_makes_all_bits_that_are_seen(end: str, dtype: str, target: str) -> None:
    found = stored_from(compiled(target)[f"dropped_{dtype}_{end}"])
    assert len(found) == len(DROPPED)
    assert all(opcodes and opcodes.keys() <= ARITHMETIC for opcodes in found), found


@pytest.mark.parametrize("dtype", NARROW)
def test_a_branch_around_a_sign(dtype: str) -> None:
    (opcodes,) = stored_from(compiled("sm_90a")[f"branch_{dtype}"])
    assert opcodes and opcodes.keys() <= ARITHMETIC


@pytest.mark.parametrize("target", ALL)
def test_a_choice_with_a_loaded_value(target: str) -> None:
    (opcodes,) = stored_from(compiled(target)["choice"])
    assert "FADD" in opcodes and opcodes.keys() <= {"FADD", "LDG"}


@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("to", NARROW)
def test_conversions_from_f64(to: str, target: str) -> None:
    """What they make of a NaN is not known."""
    (opcodes,) = stored_from(compiled(target)[f"from_f64_{to}"])
    assert opcodes and opcodes.keys() <= ARITHMETIC


@pytest.mark.parametrize("target", ALL)
def test_tf32_from_f64(target: str) -> None:
    """It takes over an f32's NaN, and gets it settled on the way."""
    made = kernel("f64", "%r = arith.cast %x : tf32\nmem.store %O, %r", "tf32")
    assert "add.rn.f32" in build(made, TARGETS[target]).ptx


@pytest.mark.parametrize("target", ALL)
def test_f16_by_way_of_f32(target: str) -> None:
    """LLVM drops the way there and back, and narrows what lies between."""
    for number in range(len(BY_F32)):
        (opcodes,) = stored_from(compiled(target)[f"by_f32_{number}"])
        assert opcodes and opcodes.keys() <= ARITHMETIC


@pytest.mark.parametrize("dtype", NARROW)
def test_signs_by_integers_stay_bits(dtype: str) -> None:
    """``(bits ^ sign).bitcast(float)`` keeps a NaN's payload: LLVM may not make -x of it, nor abs and copysign."""
    body = """
      %v = arith.add %x, %y : {t}
      %i = arith.bitcast %v {{to = {u}}} : {u}
      %s = arith.constant {sign} : {u}
      %j = arith.xor %i, %s : {u}
      %r = arith.bitcast %j {{to = {t}}} : {t}
      mem.store %O, %r
    """
    ptx = build(kernel(dtype, body), TARGETS["sm_90a"]).ptx
    assert "xor.b" in ptx and "neg." not in ptx


def signs_in_a_loop() -> Kernel:
    signs = "%m = arith.neg %y : {t}\n%v = arith.abs %x : {t}\n"
    body = ACCUMULATE.replace("INIT", "%start").replace("NEW", "%l").replace("%x", "%v")
    inside = "%o = mem.offset %A, %i : ptr<global, {t}>\n%e = mem.load %o : {t}\n%l = arith.neg %e : {t}\n%next ="
    return kernel("f32", signs + body.replace("%next =", inside, 1))


@pytest.mark.parametrize("target", ALL)
def test_signs_in_a_loop_are_modifiers(target: str) -> None:
    listing = compiled(target)["loop"]
    opcodes = Counter(i.opcode.split(".")[0] for i in listing.instructions)
    assert opcodes["FFMA"] > 0 and opcodes["FADD"] == 0
    assert all(re.search(r"-R\d", i.text) for i in listing.instructions if i.opcode == "FFMA")
