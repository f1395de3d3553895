"""PTX of tensor-core kernels: loops with cp.async, ldmatrix and every product of layout/mma.py, and what goes with it.

Bodies for `sass_samples.module`, whose entries declare the registers: %p1 is an address in global memory and %u2 one in
shared memory, a thread each.
"""

from __future__ import annotations

from benchmarks.mma_sass import operand_registers, product_line
from tiledsl.backends.ptx import Target
from tiledsl.ir.types import DTYPES
from tiledsl.layout.mma import TABLE, MmaRow

__all__ = ["FAMILIES", "matrix_samples", "product_loop"]

FAMILIES = {
    "f16": [row for row in TABLE if row.a in ("f16", "bf16")],
    "tf32": [row for row in TABLE if row.a == "tf32"],
    "fp8": [row for row in TABLE if row.a in ("e4m3", "e5m2")],
    "int8": [row for row in TABLE if row.acc == "i32"],
    "f64": [row for row in TABLE if row.a == "f64"],
}
"""Products by name; one loop has all of a name that a target has."""

ZERO = {"f32": "0f00000000", "f64": "0d0000000000000000", "b32": "0"}
COPIES = """
 cp.async.wait_group 0; bar.sync 0;
 and.b32 %u5, %u3, 1; shl.b32 %u6, %u5, 12; add.u32 %u6, %u6, %u2; xor.b32 %u7, %u6, 4096; add.u64 %p1, %p1, 4096;
 sub.u32 %u8, %u4, %u3; setp.gt.u32 %q1, %u8, 1; selp.u32 %u9, 16, 0, %q1;
 cp.async.cg.shared.global [%u7], [%p1], 16, %u9; @%q1 cp.async.ca.shared.global [%u7+2048], [%p1+2048], 8;
 cp.async.commit_group;
"""
"""The tile of the next turn is on its way to the other buffer, while this turn's, at %u6, is multiplied."""


def product_loop(rows: list[MmaRow], target: Target, tiles: tuple[int, int] = (2, 2)) -> str:
    """Of each row a product of tiles[0] x tiles[1] instruction tiles a warp, in one loop over k."""
    declared: list[str] = []
    loads: list[str] = []
    products: list[str] = []
    stores: list[str] = []
    for number, row in enumerate(rows):
        a, b, c = operand_registers(row)
        lefts = [f"%a{number}_{i}_" for i in range(tiles[0])]
        rights = [f"%b{number}_{j}_" for j in range(tiles[1])]
        accs = [[f"%c{number}_{i}_{j}_" for j in range(tiles[1])] for i in range(tiles[0])]
        for names, (kind, count) in ((lefts, a), (rights, b), ([name for line in accs for name in line], c)):
            declared += (f".reg .{kind} {name}<{count}>;" for name in names)
        declared += (f"mov.{c[0]} {name}{e}, {ZERO[c[0]]};" for line in accs for name in line for e in range(c[1]))
        for at, (name, kind, count) in enumerate((*((n, *a) for n in lefts), *((n, *b) for n in rights))):
            loads += _loads(row, name, kind, count, 256 * at, trans=name in rights)
        for i, left in enumerate(lefts):
            products += (product_line(row, left, right, accs[i][j]) for j, right in enumerate(rights))
        stores += (line for names in accs for name in names for line in _stores(row, name, target))
    first = "cp.async.cg.shared.global [%u2], [%p1], 16; cp.async.commit_group;"
    again = "add.u32 %u3, %u3, 1; setp.lt.u32 %q0, %u3, %u4; @%q0 bra next;"
    start = f"ld.param.u32 %u4, [n]; mov.u32 %u3, 0; {first}"
    return "\n".join([*declared, start, "next:", COPIES, *loads, *products, again, *stores])


def _loads(row: MmaRow, name: str, kind: str, count: int, offset: int, *, trans: bool) -> list[str]:
    """An operand from shared memory: by ldmatrix, where its registers have 32 bits."""
    if kind == "f64":
        return [f"ld.shared.f64 {name}{i}, [%u6+{offset + 8 * i}];" for i in range(count)]
    transposed = ".trans" if trans and DTYPES[row.a].bits == 16 else ""
    registers = ", ".join(f"{name}{i}" for i in range(count))
    return [f"ldmatrix.sync.aligned.m8n8.x{count}{transposed}.shared.b16 {{{registers}}}, [%u6+{offset}];"]


def _stores(row: MmaRow, name: str, target: Target) -> list[str]:
    """A result to global memory; one of 16-bit elements by stmatrix to shared memory, too, where that exists."""
    kind, count = operand_registers(row)[2]
    lines = [f"st.global.{kind} [%p1+{8 * i}], {name}{i};" for i in range(count)]
    if row.acc == "f16" and target.capability >= (9, 0):
        lines.append(f"stmatrix.sync.aligned.m8n8.x2.shared.b16 [%u2], {{{name}0, {name}1}};")
    return lines


WARPS = """
 ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%p1]; bar.warp.sync -1;
 movmatrix.sync.aligned.m8n8.trans.b16 %a4, %a0; prmt.b32 %a5, %a0, %a1, 0x5410; redux.sync.add.u32 %a6, %a1, -1;
 lop3.b32 %a7, %a0, %a1, %a2, 0xe8; activemask.b32 %a8; match.any.sync.b32 %a9, %a2, -1;
 ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%p1+64]; cvt.rn.f16x2.f32 %a10, %f0, %f1; cvt.rn.bf16x2.f32 %a11, %f2, %f3;
 cvt.rna.tf32.f32 %a12, %f0; nanosleep.u32 100;
 st.global.v4.b32 [%p1], {%a4, %a5, %a6, %a7}; st.global.v4.b32 [%p1+16], {%a8, %a9, %a10, %a11};
 st.global.b32 [%p1+32], %a12;
"""

BARRIERS = """
 mbarrier.init.shared.b64 [%u1], 32; fence.mbarrier_init.release.cluster; bar.sync 0;
 cp.async.ca.shared.global [%u2+64], [%p1], 16; cp.async.mbarrier.arrive.noinc.shared.b64 [%u1];
 mbarrier.arrive.shared.b64 %p2, [%u1]; st.global.b64 [%p1], %p2; ld.param.u32 %u3, [n];
 mbarrier.arrive.expect_tx.shared.b64 %p3, [%u1], %u3;
poll: mbarrier.try_wait.parity.shared.b64 %q0, [%u1], %u3; @!%q0 bra poll;
 mbarrier.test_wait.shared.b64 %q1, [%u1], %p3; @%q1 st.global.b32 [%p1+8], %u3;
 fence.proxy.async; bar.arrive 1, 128; bar.sync 2, 64; mbarrier.inval.shared.b64 [%u1];
"""

BULK = """
 mbarrier.init.shared.b64 [%u1+4096], 1; fence.proxy.async; bar.sync 0;
 elect.sync _|%q0, -1; ld.param.u32 %u3, [n]; mov.b64 %p2, p;
 @%q0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%u1+8192], [%p0], %u3, [%u1+4096];
poll: mbarrier.try_wait.parity.shared.b64 %q1, [%u1+4096], 0; @!%q1 bra poll;
 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%p2, {%u3, %u3}], [%u1];
 @%q0 cp.async.bulk.global.shared::cta.bulk_group [%p0], [%u1+8192], %u3;
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; barrier.cluster.arrive; barrier.cluster.wait;
"""


def _wgmma(shape: str, types: str, count: int, flags: str) -> str:
    """A product of a warpgroup with A in shared memory, then one with A in registers; descriptors from registers."""
    kind = "f32" if types.startswith("f32") else "b32"
    held = "{" + ", ".join(f"%w{i}" for i in range(count)) + "}"
    name = f"wgmma.mma_async.sync.aligned.{shape}.{types}"
    both, one = (f", {flags}", f", {flags.removesuffix(', 0')}") if flags else ("", "")
    wait = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    return "\n".join(
        [
            f"{{ .reg .{kind} %w<{count}>;",
            *(f"mov.{kind} %w{i}, {ZERO[kind]};" for i in range(count)),
            "ld.global.v2.b64 {%e0, %e1}, [%p1]; ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%p1];",
            f"setp.eq.u32 %q0, %u0, %u0; wgmma.fence.sync.aligned; {name} {held}, %e0, %e1, %q0{both}; {wait}",
            f"wgmma.fence.sync.aligned; {name} {held}, {{%a0, %a1, %a2, %a3}}, %e1, %q0{one}; {wait}",
            *(f"st.global.{kind} [%p1+{4 * i}], %w{i};" for i in range(count)),
            "}",
        ]
    )


WGMMA = "\n".join(
    [
        _wgmma("m64n8k16", "f32.f16.f16", 4, "1, 1, 0, 0"),
        _wgmma("m64n144k16", "f16.f16.f16", 36, "1, 1, 0, 0"),
        _wgmma("m64n64k8", "f32.tf32.tf32", 32, "1, 1"),
        _wgmma("m64n16k32", "f32.e4m3.e5m2", 8, "1, 1"),
        _wgmma("m64n32k32", "f16.e5m2.e4m3", 8, "1, 1"),
        _wgmma("m64n32k32", "s32.s8.u8", 16, ""),
    ]
)


def matrix_samples(target: Target) -> dict[str, str]:
    """Bodies by name that `target` has. Those of sm_86 and sm_90 are as those of sm_80 and sm_90a."""
    if target.name in ("sm_86", "sm_90"):
        return {}
    found = {"warps": WARPS}
    for name, family in FAMILIES.items():
        rows = [row for row in family if row.capability <= target.capability]
        if rows:
            found[name] = product_loop(rows, target, tiles=(2, 1) if name == "f64" else (2, 2))
    if target.capability >= (9, 0):
        found["barriers"] = BARRIERS
    if target.name in ("sm_90a", "sm_100a"):
        found["bulk"] = BULK
    if target.name == "sm_90a":
        found["every_wgmma"] = WGMMA
    return found
