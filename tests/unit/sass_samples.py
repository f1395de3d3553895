"""PTX whose SASS has every kind of operand, and nvdisasm's own view of registers to compare with."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache, partial

from mma_samples import matrix_samples
from one_module import entries
from ptx_kernels import naive, shared_tiled

from tiledsl.backends.ptx import TARGETS
from tiledsl.backends.ptx.assemble import assemble
from tiledsl.backends.ptx.sass.disassemble import FUNCTION, sass_listing
from tiledsl.backends.ptx.sass.program import Sass, SassProgram
from tiledsl.backends.ptx.tools import NVDISASM

MODULE = """.version {version}
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 tiles[];
"""

ENTRY = """.visible .entry {name}(.param .u64 p, .param .u32 n)
.reqntid 128
{{
 .reg .u64 %p<8>; .reg .u32 %u<16>; .reg .pred %q<4>; .reg .b32 %a<16>; .reg .f32 %f<16>; .reg .f64 %d<8>;
 .reg .f32 %c<64>; .reg .b64 %e<4>;
 ld.param.u64 %p0, [p]; cvta.to.global.u64 %p0, %p0; mov.u32 %u0, %tid.x; mul.wide.u32 %p1, %u0, 256;
 add.u64 %p1, %p0, %p1; mov.u32 %u1, tiles; shl.b32 %u2, %u0, 4; add.u32 %u2, %u2, %u1;
"""

MOVES = """
 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%a0}, [%u2];
 ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%a1, %a2}, [%u2+512];
 ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%a3, %a4, %a5, %a6}, [%u2+1024];
 cp.async.ca.shared.global [%u2], [%p1], 4; cp.async.cg.shared.global [%u2+16], [%p1+16], 16;
 cp.async.commit_group; cp.async.wait_group 0; bar.sync 1, 64;
 st.global.v2.b32 [%p1], {%a0, %a1}; st.global.v4.b32 [%p1+16], {%a3, %a4, %a5, %a6}; st.global.b32 [%p1+32], %a2;
 ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%p1+64]; st.shared.v4.b32 [%u2], {%a0, %a1, %a2, %a3};
 ld.shared.v2.b32 {%a4, %a5}, [%u2+64]; st.shared.b32 [%u2+128], %a4; st.shared.v2.b32 [%u2+136], {%a5, %a4};
 atom.global.add.u32 %a6, [%p1+8], %a4; atom.shared.add.u32 %a7, [%u2], %a6; red.global.add.u32 [%p1+64], %a7;
 atom.shared.cas.b32 %a8, [%u2], %a6, %a7; shfl.sync.bfly.b32 %a9|%q1, %a8, 3, 31, -1;
 @%q1 st.global.b32 [%p1+128], %a9; vote.sync.ballot.b32 %a10, %q1, -1; st.global.b32 [%p1+132], %a10;
"""

ATOMICS = """
 ld.acquire.gpu.global.b64 %p2, [%p1]; ld.relaxed.sys.global.b32 %a0, [%p1+8]; ld.volatile.global.b64 %p3, [%p1+16];
 st.release.gpu.global.b64 [%p1+24], %p2; st.relaxed.cta.shared.b64 [%u2], %p3; fence.acq_rel.gpu; fence.acq_rel.cta;
 atom.acq_rel.gpu.global.min.s64 %p4, [%p1+32], %p3; atom.relaxed.gpu.global.max.u64 %p5, [%p1+40], %p4;
 atom.relaxed.gpu.global.cas.b64 %p6, [%p1+48], %p5, %p4; atom.acquire.sys.global.exch.b64 %p7, [%p1+56], %p6;
 atom.relaxed.gpu.global.and.b64 %p2, [%p1+64], %p7; atom.relaxed.gpu.global.add.f64 %d0, [%p1+72], 0d3FF0000000000000;
 atom.relaxed.cta.shared.cas.b64 %p3, [%u2+8], %p2, %p7; atom.relaxed.cta.shared.exch.b64 %p4, [%u2+16], %p3;
 atom.relaxed.cta.shared.max.s64 %p5, [%u2+24], %p4; atom.relaxed.cta.shared.min.s32 %a1, [%u2+32], %a0;
 atom.relaxed.gpu.global.cas.b32 %a2, [%p1+80], %a1, %a0; atom.relaxed.gpu.global.max.s32 %a3, [%p1+84], %a2;
 st.global.b64 [%p1+88], %p5; st.global.f64 [%p1+96], %d0; st.global.b32 [%p1+104], %a3;
"""

WIDE = """
 ld.global.f64 %d0, [%p1]; ld.global.f64 %d1, [%p1+8]; fma.rn.f64 %d2, %d0, %d1, %d1; add.f64 %d3, %d2, %d0;
 setp.lt.f64 %q0, %d3, %d1; selp.f64 %d4, %d3, %d1, %q0; st.global.f64 [%p1+16], %d4;
 cvt.rn.f32.f64 %f0, %d4; cvt.f64.f32 %d5, %f0; st.global.f64 [%p1+24], %d5;
 cvt.rzi.s64.f64 %p2, %d3; cvt.rn.f64.s64 %d6, %p2; st.global.f64 [%p1+32], %d6; st.global.b64 [%p1+40], %p2;
 mul.hi.u64 %p3, %p2, %p1; st.global.b64 [%p1+48], %p3; setp.lt.u64 %q1, %p3, %p2;
 selp.b64 %p4, %p3, %p2, %q1; st.global.b64 [%p1+56], %p4; cvt.rn.f32.u64 %f1, %p4; st.global.f32 [%p1+64], %f1;
"""

MMA = """
 ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%p1]; ld.global.v2.b32 {%a4, %a5}, [%p1+16];
 ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%p1+32]; mov.u32 %u3, 0;
loop:
 mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%a0, %a1, %a2, %a3}, {%a4, %a5},
   {%f0, %f1, %f2, %f3};
 mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0, %f1, %f2, %f3}, {%a0, %a1, %a2, %a3}, {%a4, %a5},
   {%f0, %f1, %f2, %f3};
 mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%a6, %a7}, {%a0, %a1, %a2, %a3}, {%a4, %a5}, {%a4, %a5};
 st.global.v2.b32 [%p1+48], {%a6, %a7};
 add.u32 %u3, %u3, 1; ld.param.u32 %u4, [n]; setp.lt.u32 %q2, %u3, %u4; @%q2 bra loop;
 st.global.v4.f32 [%p1+64], {%f0, %f1, %f2, %f3};
"""


def _wgmma() -> str:
    held = "{" + ", ".join(f"%c{i}" for i in range(32)) + "}"
    start = " ".join(f"mov.f32 %c{i}, 0f00000000;" for i in range(32))
    end = " ".join(f"st.global.f32 [%p1+{4 * i}], %c{i};" for i in range(32))
    shape = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"
    wait = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    return f"""
 mov.b64 %e0, 0x4000004000010000; mov.b64 %e1, 0x4000004000010400; setp.eq.u32 %q0, %u0, %u0; {start}
 wgmma.fence.sync.aligned; {shape} {held}, %e0, %e1, %q0, 1, 1, 0, 0; {wait}
 ld.global.v4.b32 {{%a0, %a1, %a2, %a3}}, [%p1];
 wgmma.fence.sync.aligned; {shape} {held}, {{%a0, %a1, %a2, %a3}}, %e1, %q0, 1, 1, 0; {wait}
 {end}
"""


BODIES = {"moves": MOVES, "atomics": ATOMICS, "wide": WIDE, "mma": MMA, "wgmma": _wgmma()}
VERSIONS = {"sm_100a": "8.6", "sm_120a": "8.7"}


def module(bodies: Mapping[str, str], target: str) -> str:
    """PTX with an entry for each body, by its name."""
    parts = [MODULE.format(version=VERSIONS.get(target, "8.0"), target=target)]
    for name, body in bodies.items():
        parts += [ENTRY.format(name=name), body, " ret;\n}\n"]
    return "".join(parts)


def samples(target: str) -> list[str]:
    """Names for `program` and `life_ranges`."""
    return [*KERNELS, *_bodies(target)]


def _bodies(target: str) -> dict[str, str]:
    small = {name: body for name, body in BODIES.items() if name != "wgmma" or target == "sm_90a"}
    return small | matrix_samples(TARGETS[target])


KERNELS = {"naive": naive, "shared_tiled": partial(shared_tiled, 16)}


@cache
def cubin(target: str) -> bytes:
    """All samples of a target are one module: nvdisasm takes longer to start than to read it."""
    bodies = _bodies(target)
    _, kernels = entries((make() for make in KERNELS.values()), TARGETS[target])
    return assemble(module(bodies, target) + kernels, TARGETS[target], name=next(iter(bodies))).cubin


@cache
def program(name: str, target: str) -> SassProgram:
    (found,) = (each for each in sass_listing(cubin(target)) if each.name == name)
    return found


def listing(*texts: str, **labels: int) -> SassProgram:
    """A made-up function: an instruction every 16 bytes."""
    instructions = tuple(Sass(16 * i, text) for i, text in enumerate(texts))
    return SassProgram("f", "sm_90a", instructions, {f".L_{name}": place for name, place in labels.items()})


INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/")

LifeRanges = dict[int, dict[int, str]]


def life_ranges(name: str, target: str) -> LifeRanges:
    """What `nvdisasm --print-life-ranges` says of general registers at each address: "v" read, "^" written, "x" both,
    ":" only alive."""
    return _life_ranges(target)[name]


@cache
def _life_ranges(target: str) -> dict[str, LifeRanges]:
    """By function."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin(target))
        file.flush()
        options = ("--print-code", "--print-life-ranges", "--life-range-mode", "narrow")
        command = [str(NVDISASM.path()), *options, file.name]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[str, LifeRanges] = {}
    function = ""
    names: list[str] = []
    columns: list[tuple[int, int]] = []
    for line in lines:
        tail = line[line.index("// |") :] if "// |" in line else ""
        if start := FUNCTION.match(line.partition("//")[0].rstrip()):
            function = start[1]
        elif "GPR" in tail:
            names = [part.strip() for part in tail.split("|")[1:-1]]
        elif tail and "#" in tail:
            bars = [m.start() for m in re.finditer(r"\|", tail)]
            columns = list(zip([m.start() + 2 for m in re.finditer("#", tail)], bars[1:], strict=True))
        elif tail and (match := INSTRUCTION.match(line)):
            first, end = columns[names.index("GPR")]
            marks = {i: c for i, c in enumerate(tail[first:end]) if c != " "}
            found.setdefault(function, {})[int(match[1], 16)] = marks
    return found
