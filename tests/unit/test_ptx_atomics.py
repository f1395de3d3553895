"""Each atomic operation, in each order, scope and dtype, becomes the PTX that it should, and ptxas takes it; nothing
moves, merges or removes one."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ptx_kernels import kernel

from tiledsl import CompileError, Global, f32, fence, grid, i32, shared, threads, tile_kernel, unroll
from tiledsl.backends.ptx import TARGETS, build
from tiledsl.backends.ptx.lower import read_only_pointers
from tiledsl.dims import M, N
from tiledsl.ir.atomics import ATOMICS, SCOPES
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import control, mem
from tiledsl.ir.types import DTYPES, F32, I32, DType, PtrType, Space

ACCESS = re.compile(r"^\s*((?:ld|st)\.(?:relaxed|acquire|release|volatile)\.\S+|atom\.\S+|fence\.\S+)", re.MULTILINE)
MOST = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64", "bool"]
WORDS = ["i32", "u32", "i64", "u64"]
EXISTS = {
    "load": MOST,
    "store": MOST,
    "add": [*WORDS, "f16", "bf16", "f32", "f64"],
    "exchange": [*WORDS, "f32", "f64"],
    "cas": ["i16", "u16", "f16", "bf16", "f32", "f64", *WORDS],
    **dict.fromkeys(("min", "max", "and", "or", "xor"), WORDS),
}
"""Which dtypes there are for each operation. (PTX ISA: ld, st, atom.)"""
SUMS = {"f16": "noftz.f16", "bf16": "noftz.bf16", "f32": "f32", "f64": "f64"}


def test_the_dtypes_of_the_table_are_those_of_ptx() -> None:
    assert {name: sorted(row.dtypes) for name, row in ATOMICS.items()} == {n: sorted(d) for n, d in EXISTS.items()}


def expected(fn: str, dtype: DType, order: str, scope: str, space: str) -> str:
    """The instruction, as the PTX ISA spells it."""
    bits = f"b{dtype.bits}"
    how = "volatile" if order == "volatile" else f"{order}.{scope}"
    if fn in ("load", "store"):
        return f"{fn[0]}{'d' if fn == 'load' else 't'}.{how}.{space}.{bits}"
    signed = ("s" if dtype.name.startswith("i") else "u") + str(dtype.bits)
    type_ = {
        "add": SUMS.get(dtype.name, f"u{dtype.bits}"),
        "min": signed,
        "max": signed,
    }.get(fn, bits)
    return f"atom.{how}.{space}.{'exch' if fn == 'exchange' else fn}.{type_}"


def every(fn: str, scopes: tuple[str, ...]) -> list[tuple[DType, str, str]]:
    """Each dtype, order and scope of an operation."""
    row = ATOMICS[fn]
    hows = [(o, s) for o in row.orders for s in (scopes if o != "volatile" else ("sys",))]
    return [(DTYPES[name], order, scope) for name in EXISTS[fn] for order, scope in hows]


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_every_operation_is_its_instruction(target: str, space: Space) -> None:
    scopes = SCOPES if target != "sm_80" else ("cta", "gpu", "sys")
    made, b = kernel("k", [(name, PtrType("global", DTYPES[name])) for name in MOST])
    made.shared_bytes = 8
    wanted: list[str] = []
    for fn, row in ATOMICS.items():
        for dtype, order, scope in every(fn, scopes):
            if (fn, dtype.name, target) == ("add", "bf16", "sm_80"):
                continue  # a loop of its own: `test_bf16_addition_before_sm_90`
            pointer = made.body.args[MOST.index(dtype.name)]
            if space == "shared":
                pointer = b.value(mem.SharedBase(dtype=dtype, offset=0, bytes=8))
            values = [b.value(mem.Load(made.body.args[MOST.index(dtype.name)])) for _ in range(row.values)]
            b.add(mem.atomic(fn, pointer, *values, order=order, reach=scope))
            wanted.append(expected(fn, dtype, order, scope, space))
    b.op(control.Return)
    assert ACCESS.findall(build(made, TARGETS[target]).ptx) == wanted


def test_bf16_addition_before_sm_90() -> None:
    """There is none: a loop of compare and swap has the order and the scope."""
    made, b = kernel("k", [("a", PtrType("global", DTYPES["bf16"]))])
    (a,) = made.body.args
    b.add(mem.atomic("add", a, b.value(mem.Load(a)), order="acq_rel", reach="cta"))
    b.op(control.Return)
    text = build(made, TARGETS["sm_80"]).ptx
    assert "ld.relaxed.cta.global.b16 seen" in text and "atom.acq_rel.cta.global.cas.b16" in text


@tile_kernel
def with_cluster_scope(flag: Global[i32, N]):
    grid(1)
    threads(32)
    flag.atomic_store(0, 1, order="release", scope="cluster")


@tile_kernel
def with_cluster_fence():
    grid(1)
    threads(32)
    fence("cluster")


@pytest.mark.parametrize("made", [with_cluster_scope, with_cluster_fence], ids=lambda k: k.name)
def test_cluster_scope_needs_sm_90(made: Any) -> None:
    assert ".cluster" in made.compile(arch="sm_90").ptx
    with pytest.raises(CompileError, match=r"needs one of sm_90, .* this is compiled for sm_89") as caught:
        made.compile(arch="sm_89")
    assert caught.value.loc.line > 0 and "or use scope 'gpu'" in str(caught.value)


# -- nothing moves, merges or removes one ------------------------------------------------------------


@tile_kernel
def twice_and_unused(flag: Global[i32, N], X: Global[f32, N], Y: Global[f32, N]):
    """Equal loads, loads that nobody uses, in a loop that does not change the place, under a constant condition."""
    grid(1)
    t = threads(32)
    flag.atomic_load(0)
    flag.atomic_load(0)
    flag.atomic_load(0, order="volatile")
    Y[t] = X[t]
    for _ in range(N):
        flag.atomic_load(0, order="acquire")
    for _ in unroll(3):
        flag.atomic_load(1)
    flag.atomic_store(0, 0)
    flag.atomic_store(0, 0)
    flag.atomic_or(0, 0)


def test_no_pass_and_no_optimisation_of_llvm_touches_one() -> None:
    compiled = twice_and_unused.compile(arch="sm_90a")
    count = {"atomic_load": 7, "atomic_store": 2, "atomic_or": 1}
    for level, family in (("tile", "tile"), ("thread", "mem")):
        text = compiled.ir(level)
        assert {name: text.count(f"{family}.{name}") for name in count} == count
    found = ACCESS.findall(compiled.ptx)
    acquires = found.count("ld.acquire.gpu.global.b32")
    assert acquires >= 1  # LLVM unrolls the loop
    assert [f for f in found if "acquire" not in f] == [
        *["ld.relaxed.gpu.global.b32"] * 2,
        "ld.volatile.global.b32",
        *["ld.relaxed.gpu.global.b32"] * 3,
        *["st.relaxed.gpu.global.b32"] * 2,
        "atom.relaxed.gpu.global.or.b32",
    ]


@tile_kernel
def handed_over(flag: Global[i32, N], data: Global[f32, M]):
    """Plain accesses stay on their side of the atomic ones, in shared memory too."""
    grid(1)
    t = threads(32)
    S = shared((64,), f32)
    S[t] = 1
    S[t + 32] = 2
    data[0] = S[t]
    flag.atomic_store(0, 1, order="release")
    while flag.atomic_load(1, order="acquire") == 0:
        pass
    data[2] = data[1] + S[t] + S[t + 32]


def test_plain_accesses_do_not_pass_atomic_ones() -> None:
    text = handed_over.compile(arch="sm_90a").ptx
    order = re.findall(r"\b((?:ld|st)(?:\.acquire|\.release)?(?:\.gpu)?\.(?:global|shared))", text)
    shared_first = ["st.shared", "st.shared", "ld.shared", "st.global", "st.release.gpu.global"]
    assert order[:5] == shared_first or order[:4] == [*shared_first[:2], *shared_first[3:]], order
    assert order[-5:].count("ld.shared") == 2 and order[-1] == "st.global"
    assert order.index("ld.acquire.gpu.global") < order.index("ld.global")


# -- which tensors count as read only ----------------------------------------------------------------


def finished(b: Builder, made: Kernel) -> set[str]:
    b.op(control.Return)
    return {p.name for p in read_only_pointers(made)}


def pointers(*names: str) -> tuple[Kernel, Builder]:
    made, b = kernel("k", [(n, PtrType("global", F32 if n != "flag" else I32)) for n in names])
    return made, b


@pytest.mark.parametrize("order", ["relaxed", "acquire", "volatile"])
def test_a_kernel_that_reads_a_flag_of_others_reads_nothing_that_is_constant(order: str) -> None:
    """Who writes the flag, another kernel or the host, may write the data as well."""
    made, b = pointers("flag", "data")
    flag, data = made.body.args
    b.add(mem.atomic("load", flag, order=order, reach="sys" if order == "volatile" else "gpu"))
    b.value(mem.Load(data))
    assert finished(b, made) == set()


@pytest.mark.parametrize(("scope", "constant"), [("gpu", {"data"}), ("sys", set[str]())])
def test_a_flag_among_the_blocks_of_a_kernel_leaves_its_inputs_constant(scope: str, constant: set[str]) -> None:
    made, b = pointers("flag", "data")
    flag, data = made.body.args
    b.add(mem.atomic("load", flag, order="acquire", reach=scope))
    b.add(mem.atomic("store", flag, b.constant(0, I32), order="release", reach=scope))
    b.value(mem.Load(data))
    assert finished(b, made) == constant


def test_what_is_known_to_load_only_decides_and_not_what_is_known_to_write() -> None:
    """An op that the check does not know makes its tensor one that is written."""
    made, b = pointers("data", "out")
    data, out = made.body.args
    b.value(mem.Load(data))
    b.add(mem.atomic("load", out, order="relaxed"))
    b.add(mem.atomic("exchange", out, b.value(mem.Load(data))))
    assert finished(b, made) == {"data"}
