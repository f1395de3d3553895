"""From a kernel to a cubin: targets, resources, the tools, and how their refusals reach the Python line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ptx_kernels import FILE, at, kernel, load, naive, shared_tiled, store

from tiledsl.arch import target_named
from tiledsl.backends.ptx import TARGETS, build
from tiledsl.backends.ptx.assemble import assemble, parse_usage
from tiledsl.backends.ptx.codegen import emit_ptx
from tiledsl.backends.ptx.sass.disassemble import sass_listing, sass_text
from tiledsl.backends.ptx.tools import NVDISASM, PTXAS, tool_versions
from tiledsl.errors import AssemblerError, CompileError, ToolNotFoundError
from tiledsl.ir.core import Kernel
from tiledsl.ir.ops import control, ptx
from tiledsl.ir.types import F32, I32, PtrType


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_assembles(target: str) -> None:
    binary = build(shared_tiled(16), TARGETS[target])
    assert binary.arch == target and f".target {target}" in binary.ptx
    resources = binary.resources
    assert resources.spill_stores == resources.spill_loads == resources.stack == 0
    assert resources.shared == 2048 and resources.threads == 256
    assert 0 < resources.registers <= 64


@pytest.mark.parametrize(
    ("target", "version"),
    [("sm_80", "7.2"), ("sm_89", "7.8"), ("sm_90a", "8.0"), ("sm_100a", "8.6"), ("sm_120a", "8.7")],
)
def test_ptx_version_is_the_lowest(target: str, version: str) -> None:
    assert f".version {version}\n" in emit_ptx(naive(), TARGETS[target])[1]


def test_there_is_time_while_ptxas_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`meanwhile` is called once, and before ptxas ends: this one waits for it."""
    mark = tmp_path / "mark"
    wait = f'while [ ! -e {mark} ]; do sleep 0.01; done; exec {PTXAS.path()} "$@"'
    monkeypatch.setenv("TILEDSL_PTXAS", fake_tool(tmp_path, wait))
    assert build(naive(), TARGETS["sm_90a"], meanwhile=lambda: mark.touch(exist_ok=False)).cubin


def test_where_a_cubin_runs() -> None:
    assert TARGETS["sm_80"].runs_on((8, 0)) and TARGETS["sm_80"].runs_on((8, 9))
    assert not TARGETS["sm_80"].runs_on((9, 0)) and not TARGETS["sm_86"].runs_on((8, 0))
    assert TARGETS["sm_90"].runs_on((9, 0))
    assert TARGETS["sm_90a"].runs_on((9, 0)) and not TARGETS["sm_90a"].runs_on((9, 1))
    assert not TARGETS["sm_100a"].runs_on((10, 3))


@pytest.mark.parametrize(
    ("target", "registers", "shared", "threads", "blocks", "limiter"),
    [
        ("sm_90a", 32, 2048, 256, 8, "threads"),
        ("sm_90a", 168, 200 * 1024, 384, 1, "registers"),
        ("sm_90a", 40, 100 * 1024, 128, 2, "shared memory"),
        ("sm_90a", 16, 0, 32, 32, "blocks"),
        ("sm_90a", 255, 0, 256, 1, "registers"),
        ("sm_86", 32, 0, 1024, 1, "threads"),
    ],
)
def test_occupancy(target: str, registers: int, shared: int, threads: int, blocks: int, limiter: str) -> None:
    held = TARGETS[target].occupancy(registers=registers, shared=shared, threads=threads)
    assert (held.blocks_per_sm, held.limiter) == (blocks, limiter)
    assert held.occupancy == blocks * (threads // 32) / TARGETS[target].max_warps_per_sm


@pytest.mark.parametrize("name", ["_", "WARP_SZ", "noyau_\u00e9l\u00e9mentaire"])
def test_a_name_that_ptx_does_not_take(name: str) -> None:
    made = naive()
    made.name = name
    with pytest.raises(CompileError, match="PTX cannot have a kernel called"):
        build(made, TARGETS["sm_90a"])


def test_a_name_and_a_file_that_look_special() -> None:
    """Kernels in notebook cells have made-up file names; PTX opcodes are good Python names."""
    made, b = kernel("add", [("a", PtrType("global", F32))])
    file = '/tmp/\u00fcber "all"/100% <cell> 1.py'
    b.loc = at(5, file=file)
    store(b, made.body.args[0], b.constant(0, I32), b.constant(1.0, F32))
    b.op(control.Return)
    (listing,) = sass_listing(build(made, TARGETS["sm_90a"]).cubin)
    assert (file, 5) in {(i.loc.file, i.loc.line) for i in listing.instructions if i.loc is not None}


def test_an_unknown_target_names_the_known_ones() -> None:
    with pytest.raises(CompileError, match="no target 'sm_75'") as caught:
        target_named("sm_75")
    assert "sm_90a" in caught.value.fix


def test_usage_is_read() -> None:
    text = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    24 bytes stack frame, 16 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers"""
    assert parse_usage(text, "k") == {"registers": 255, "stack": 24, "spill_stores": 16, "spill_loads": 12}


def with_inline(text: str) -> Kernel:
    """A kernel whose line 41, in a tile function called on line 40, holds that PTX."""
    made, b = kernel("k", [("a", PtrType("global", F32))])
    (a,) = made.body.args
    zero = b.constant(0, I32)
    value = load(b, a, zero)
    b.loc = at(41, caller=at(40), file="/project/lib.py", function="helper")
    value = b.value(ptx.Inline(value, text=text, outputs=(F32,)))
    b.loc = at(42)
    store(b, a, zero, value)
    b.op(control.Return)
    return made


def test_bad_inline_ptx_is_reported_at_its_line() -> None:
    with pytest.raises(AssemblerError) as caught:
        build(with_inline("frobnicate.f32 $0, $1;"), TARGETS["sm_90a"])
    loc = caught.value.loc
    assert (loc.file, loc.line, loc.function) == ("/project/lib.py", 41, "helper")
    assert loc.caller is not None and (loc.caller.file, loc.caller.line) == (FILE, 40)
    assert "frobnicate" in caught.value.message and "sm_90a" in caught.value.message


@pytest.mark.parametrize(
    ("text", "shown"),
    [("mov.b32 $0, $2;", "$2"), ("mov.b32 $0, $x;", "$x;"), ("mov.b32 $0, ${1:x};", "${1:x};"), ("mov $0, $1; $", "$")],
)
def test_inline_ptx_that_names_no_operand(text: str, shown: str) -> None:
    message = re.escape(f"{shown!r}, which is none of its 2 results and operands")
    with pytest.raises(CompileError, match=message) as caught:
        build(with_inline(text), TARGETS["sm_90a"])
    assert caught.value.loc.line == 41


def test_inline_ptx_may_hold_any_characters() -> None:
    text = 'mov.b32 $0, ${1}; // "quoted" \\ {a|b} $$ Gr\u00fc\u00dfe\n// and a second line'
    assert "second line" in build(with_inline(text), TARGETS["sm_90a"]).ptx


def test_a_stack_frame_is_an_error() -> None:
    access = "st.volatile.local.f32 [p], $1; ld.volatile.local.f32 $0, [p];"
    text = "{ .local .b32 a[8]; .reg .b64 p; mov.b64 p, a; " + access + " }"
    with pytest.raises(AssemblerError, match="stack frame of 32 bytes"):
        build(with_inline(text), TARGETS["sm_90a"])


def fake_tool(folder: Path, body: str) -> str:
    script = folder / "tool"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("remark", "fix"),
    [
        (
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized, line 24",
            "accumulators must stay untouched",
        ),
        ("ptxas info    : (C7515) wgmma.wait_group was injected by compiler in function 'naive'", "see the remark"),
        (
            "ptxas info    : (C7507) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register"
            " requirements.",
            "more registers=",
        ),
    ],
)
def test_a_remark_is_an_error(remark: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_PTXAS", fake_tool(tmp_path, f'echo "{remark}" >&2'))
    with pytest.raises(AssemblerError, match="ptxas made a remark") as caught:
        build(naive(), TARGETS["sm_90a"])
    assert caught.value.loc.file == FILE and caught.value.loc.line > 0
    assert fix in str(caught.value)


def test_a_crash_of_ptxas_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_PTXAS", fake_tool(tmp_path, "echo 'ptxas fatal   : out of memory' >&2; exit 1"))
    with pytest.raises(AssemblerError, match="out of memory"):
        build(naive(), TARGETS["sm_90a"])


@pytest.mark.parametrize(("tool", "wheel"), [(PTXAS, "nvidia-cuda-nvcc"), (NVDISASM, "nvidia-cuda-nvdisasm")])
def test_a_missing_tool_names_its_wheel(tool: object, wheel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEDSL_PTXAS", raising=False)
    monkeypatch.delenv("TILEDSL_NVDISASM", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("tiledsl.backends.ptx.tools._in_wheel", lambda wheel, name: None)
    use = (lambda: build(naive(), TARGETS["sm_90a"])) if tool is PTXAS else (lambda: sass_text(b""))
    with pytest.raises(ToolNotFoundError, match=f"pip install {wheel}"):
        use()


def test_a_wrong_override_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_PTXAS", "/nowhere/ptxas")
    with pytest.raises(ToolNotFoundError, match="TILEDSL_PTXAS='/nowhere/ptxas'"):
        assemble("", TARGETS["sm_90a"], name="k")


def test_tool_versions_are_stable() -> None:
    first = tool_versions()
    assert tool_versions() == first
    assert {name for name, _ in first} >= {"ptxas", "llvmlite"}


def test_sass_shows_python_lines_through_inlining() -> None:
    binary = build(with_inline("sin.approx.f32 $0, $1;"), TARGETS["sm_90a"])
    assert "EXIT" in sass_text(binary.cubin)
    (listing,) = sass_listing(binary.cubin)
    assert listing.name == "k"
    sine = next(i for i in listing.instructions if i.opcode == "MUFU.SIN")
    assert sine.loc is not None and sine.loc.caller is not None
    assert (sine.loc.file, sine.loc.line) == ("/project/lib.py", 41)
    assert (sine.loc.caller.file, sine.loc.caller.line) == (FILE, 40)
    assert "sin.approx.f32" in binary.ptx.splitlines()[sine.ptx_line - 1]
    store_ = next(i for i in listing.instructions if i.opcode.startswith("STG"))
    assert store_.loc is not None and store_.loc.line == 42
    assert store_.encoding >> 64 and store_.address % 16 == 0


def test_main_loop_of_shared_tiled_is_what_nvcc_makes() -> None:
    """T = 32: 32 FFMA, 32 LDS of B, 8 LDS.128 of A, and no addresses between them."""
    (listing,) = sass_listing(build(shared_tiled(32), TARGETS["sm_90a"]).cubin)
    barriers = [i for i, s in enumerate(listing.instructions) if s.opcode.startswith("BAR.SYNC")]
    inner = [s.opcode for s in listing.instructions[barriers[0] + 1 : barriers[1]]]
    assert sorted(set(inner)) == ["FFMA", "LDS", "LDS.128"]
    assert [inner.count(op) for op in ("FFMA", "LDS", "LDS.128")] == [32, 32, 8]


def test_llvmlite_is_imported_by_building_only() -> None:
    code = "import sys, tiledsl.backends.ptx; assert 'llvmlite' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
