"""Reading SASS: control codes, operands, control flow. The oracles are nvdisasm's text and life ranges."""

from __future__ import annotations

import re

import pytest
from sass_samples import life_ranges, listing, program, samples

from tiledsl.backends.ptx import TARGETS
from tiledsl.backends.ptx.sass.control import check_target, decode_control
from tiledsl.backends.ptx.sass.live import live_registers
from tiledsl.backends.ptx.sass.operands import decode_operands
from tiledsl.backends.ptx.sass.program import Sass, SassProgram
from tiledsl.backends.ptx.sass.scoreboards import awaited
from tiledsl.errors import TileError

SAMPLES = [(name, target) for target in TARGETS for name in samples(target)]

LOADS = ("LDS", "LDG", "LDSM", "LDC", "S2R", "MUFU", "SHFL", "ATOMG", "ATOMS", "F2F", "F2I", "I2F")


def names(text: str) -> set[str]:
    return set(text.split())


# -- control codes


@pytest.mark.parametrize(("name", "target"), SAMPLES)
def test_reuse_flags_are_where_nvdisasm_shows_them(name: str, target: str) -> None:
    """The k-th flag belongs to the k-th source operand."""
    for sass in program(name, target).instructions:
        flags = [k for k in range(4) if sass.control.reuse[k]]
        shown = sass.text.count(".reuse")
        assert len(flags) == shown, sass.text
        if sass.base in ("FFMA", "IADD3", "IMAD", "LOP3"):
            sources = sass.text.split(",")[len(sass.operands.results) :]
            assert flags == [k for k, source in enumerate(sources) if ".reuse" in source], sass.text


@pytest.mark.parametrize("target", TARGETS)
def test_whoever_uses_a_loaded_register_waits_for_its_barrier(target: str) -> None:
    """Of what the barriers are for: a load names one, and the first use of its result waits for that."""
    waited = 0
    for name in samples(target):
        made = program(name, target)
        for i, sass in enumerate(made.instructions):
            if sass.base in LOADS and sass.control.write_barrier is not None and not sass.operands.conditional:
                waited += _waited(made, i)
    assert waited > 10


def _waited(made: SassProgram, load: int) -> int:
    """1 if a use of what the load at `load` writes follows in a straight line, which then has waited."""
    use = _use(made, load)
    if use is None:
        return 0
    barrier, until = made.instructions[load].control.write_barrier, made.instructions[load + 1 : use + 1]
    waited = any(barrier in sass.control.waits or sass.base == "DEPBAR" for sass in until)
    assert waited, f"{made.instructions[load].text} is used by {made.instructions[use].text}"
    return 1


@pytest.mark.parametrize("target", TARGETS)
def test_whoever_waits_knows_for_whom(target: str) -> None:
    """Up to the first use of a load's result something has waited for this load; and each wait is for a scoreboard that
    the other one set. (ptxas also waits twice for one.)"""
    for name in samples(target):
        made = program(name, target)
        sasses, known = made.instructions, awaited(made)
        for i, sass in enumerate(sasses):
            boards = [{sasses[s].control.write_barrier, sasses[s].control.read_barrier} for s in known[i]]
            assert sass.base == "DEPBAR" or all(sass.control.waits & each for each in boards), sass.text
            if sass.base in LOADS and sass.control.write_barrier is not None and not sass.operands.conditional:
                use = _use(made, i)
                assert use is None or any(i in known[j] for j in range(i + 1, use + 1)), f"{sass.text} at {use}"


def _use(made: SassProgram, load: int) -> int | None:
    """The first use of what the load at `load` writes, if it follows in a straight line."""
    for i in range(load + 1, len(made.instructions)):
        operands = made.instructions[i].operands
        if made.instructions[load].operands.writes & (operands.reads | operands.writes):
            return i
        if made.successors[i] != (i + 1,):
            return None
    return None


def test_waits_by_hand() -> None:
    def coded(stall: int, write: int = 7, waits: int = 0) -> int:
        return (stall | write << 5 | 7 << 8 | waits << 11) << 105

    texts = (
        "LDS R1, [R0] ;",
        "LDS R2, [R0] ;",
        "FADD R3, R1, R2 ;",
        "LDS R4, [R0] ;",
        "DEPBAR.LE SB1, 0x1 ;",
        "FADD R5, R4, R4 ;",
    )
    codes = (coded(1, 0), coded(1, 0), coded(1, waits=1), coded(1, 1), coded(1), coded(1, waits=0b11))
    made = SassProgram(
        "f", "sm_90a", tuple(Sass(16 * i, t, c) for i, (t, c) in enumerate(zip(texts, codes, strict=True))), {}
    )
    assert awaited(made) == [(), (), (0, 1), (), (3,), (3,)]


def test_a_control_code_by_hand() -> None:
    """The code of maxas's notation B0-2---:R1:W3:Y:S04, with reuse of a and c."""
    code = 4 | 0 << 4 | 3 << 5 | 1 << 8 | 0b000101 << 11 | 0b0101 << 17
    control = decode_control(code << 105)
    assert str(control) == "B0-2---:R1:W3:Y:S04"
    assert control.reuse == (True, False, True, False)
    assert str(decode_control((1 | 1 << 4 | 7 << 5 | 7 << 8) << 105)) == "B------:R-:W-:-:S01"


@pytest.mark.parametrize("target", ["sm_75", "sm_52", "sm_103a", ""])
def test_a_target_whose_encoding_is_not_known_is_refused(target: str) -> None:
    with pytest.raises(TileError, match="its encoding is not known here\n  fix: compile for one of sm_80, sm_86"):
        check_target(target)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_of_the_compiler_is_known(target: str) -> None:
    major, minor = TARGETS[target].capability
    assert check_target(target) == 10 * major + minor
    assert program("naive", target).target == target


# -- operands


@pytest.mark.parametrize(("name", "target"), SAMPLES)
def test_reads_and_writes_are_those_of_nvdisasm(name: str, target: str) -> None:
    marks = life_ranges(name, target)
    for sass in program(name, target).instructions:
        if sass.address in marks:
            seen = marks[sass.address]
            assert sass.operands.known, sass.text
            assert sass.operands.reads == {r for r, c in seen.items() if c in "vx"}, sass.text
            assert sass.operands.writes == {r for r, c in seen.items() if c in "^x"}, sass.text


@pytest.mark.parametrize(
    ("text", "reads", "writes"),
    [
        ("FFMA R5, R2.reuse, R3, R5 ;", "R2 R3 R5", "R5"),
        ("@!P0 LDS.128 R4, [R2+0x10] ;", "R2", "R4 R5 R6 R7"),
        ("LDG.E.64.CONSTANT R4, desc[UR4][R2.64+0x8] ;", "R2 R3", "R4 R5"),
        ("STG.E.128 desc[UR8][R2.64], R12 ;", "R2 R3 R12 R13 R14 R15", ""),
        ("LDG.E R9, [R2] ;", "R2 R3", "R9"),
        ("LDGSTS.E.BYPASS.128 [R3], desc[UR4][R6.64] ;", "R3 R6 R7", ""),
        ("IADD3 R9, P1, P2, R7, ~R5, RZ, P0, !PT ;", "R7 R5", "R9"),
        ("ISETP.GE.U32.AND.EX P0, PT, R19.reuse, R9, PT, P3 ;", "R19 R9", ""),
        ("IMAD.WIDE.U32 R14, R16, R19, R14 ;", "R16 R19 R14 R15", "R14 R15"),
        ("DFMA R8, R16, -R2, 1 ;", "R16 R17 R2 R3", "R8 R9"),
        ("F2F.F64.F32 R2, R8 ;", "R8", "R2 R3"),
        ("I2F.S64 R9, R4 ;", "R4 R5", "R9"),
        ("SHFL.BFLY P0, R13, R10, 0x3, 0x1f ;", "R10", "R13"),
        ("VOTE.ANY R13, PT, P0 ;", "", "R13"),
        ("HMMA.16816.F32.BF16 R12, R4, R8, RZ ;", "R4 R5 R6 R7 R8 R9", "R12 R13 R14 R15"),
        ("HMMA.1688.F16 R8, R4, R6, R10 ;", "R4 R5 R6 R10 R11", "R8 R9"),
        ("HMMA.1688.F32.TF32 R12, R4, R8, R12 ;", "R4 R5 R6 R7 R8 R9 R12 R13 R14 R15", "R12 R13 R14 R15"),
        ("HMMA.1684.F32.TF32 R12, R4, R8, RZ ;", "R4 R5 R8", "R12 R13 R14 R15"),
        ("QMMA.16832.F32.E4M3.E5M2 R12, R4, R8, RZ ;", "R4 R5 R6 R7 R8 R9", "R12 R13 R14 R15"),
        ("IMMA.16816.S8.U8 R12, R4.ROW, R8.COL, RZ ;", "R4 R5 R8", "R12 R13 R14 R15"),
        ("DMMA.884 R4, R8, R10, RZ ;", "R8 R9 R10 R11", "R4 R5 R6 R7"),
        ("DMMA.16x8x4 R16, R4, R8, RZ ;", "R4 R5 R6 R7 R8 R9", "R16 R17 R18 R19 R20 R21 R22 R23"),
        ("LDSM.16.MT88.4 R4, [R2+UR5+0x10] ;", "R2", "R4 R5 R6 R7"),
        ("STSM.16.M88.2 [R2], R4 ;", "R2 R4 R5", ""),
        ("SYNCS.ARRIVE.TRANS64 R6, [UR6], R9 ;", "R9", "R6 R7"),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR6], R0 ;", "R0", ""),
        ("S2R R0, SR_TID.X ;", "", "R0"),
        ("@!UPT UIADD3 URZ, URZ, URZ, URZ ;", "", ""),
        ("P2R R0, PR, RZ, 0x7f ;", "", "R0"),
    ],
)
def test_operands(text: str, reads: str, writes: str) -> None:
    operands = decode_operands(text)
    assert {f"R{number}" for number in operands.reads} == names(reads)
    assert {f"R{number}" for number in operands.writes} == names(writes)
    assert operands.known


def test_an_unknown_opcode_is_marked() -> None:
    operands = decode_operands("FROBNICATE R2, R4 ;")
    assert not operands.known
    assert operands.reads == {4} and operands.writes == {2}
    assert not decode_operands("HMMA.SP.16832.F32 R4, R8, R12, R4, R2, 0x0 ;").known
    assert not decode_operands("QMMA.SF.16832.F32.E4M3.E4M3.E8 R4, R8, R12, R4, R2, R3, URZ ;").known


# -- live registers


def alive(mask: int) -> set[int]:
    return {number for number in range(256) if mask >> number & 1}


@pytest.mark.parametrize(("name", "target"), SAMPLES)
def test_live_registers_are_those_of_nvdisasm(name: str, target: str) -> None:
    made = program(name, target)
    live, marks = live_registers(made), life_ranges(name, target)
    assert all(sass.operands.known for sass in made.instructions)
    compared = 0
    for i, sass in enumerate(made.instructions):
        if sass.address not in marks:  # nvdisasm ends where the code does, before the padding
            continue
        compared += 1
        assert alive(live[i]) == set(marks[sass.address]), f"{sass.address:04x} {sass.text}"
    assert compared > 20


# -- loops


def test_loops_nest() -> None:
    made = listing(
        "MOV R0, RZ ;",
        "MOV R1, RZ ;",  # outer
        "IADD3 R1, R1, 0x1, RZ ;",  # inner
        "ISETP.NE.AND P0, PT, R1, 0x8, PT ;",
        "@P0 BRA `(.L_inner) ;",
        "IADD3 R0, R0, 0x1, RZ ;",
        "ISETP.NE.AND P0, PT, R0, 0x8, PT ;",
        "@P0 BRA `(.L_outer) ;",
        "EXIT ;",
        outer=1,
        inner=2,
    )  # fmt: skip
    outer, inner = made.loops
    assert (outer.header, outer.body, outer.depth) == (1, tuple(range(1, 8)), 1)
    assert (inner.header, inner.body, inner.depth) == (2, (2, 3, 4), 2)
    assert made.inside(outer) == (inner,) and made.inside(inner) == ()


def test_a_loop_whose_cold_part_lies_behind_the_exit() -> None:
    """ptxas moves unlikely code away: the body is what reaches the back edge, not an address range."""
    made = listing(
        "IADD3 R0, R0, 0x1, RZ ;",  # loop
        "@P1 BRA `(.L_cold) ;",
        "@P0 BRA `(.L_loop) ;",  # back
        "EXIT ;",
        "IADD3 R2, R2, 0x1, RZ ;",  # cold
        "BRA `(.L_back) ;",
        loop=0,
        back=2,
        cold=4,
    )  # fmt: skip
    (loop,) = made.loops
    assert loop.body == (0, 1, 2, 4, 5)


def test_a_branch_on_a_uniform_predicate_may_fall_through() -> None:
    made = listing("BRA.U !UP0, `(.L_end) ;", "NOP ;", "EXIT ;", end=2)
    assert made.successors == ((1, 2), (2,), ())


def test_bsync_goes_where_its_bssy_said() -> None:
    made = listing("BSSY B0, `(.L_end) ;", "@P0 BRA `(.L_sync) ;", "NOP ;", "BSYNC B0 ;", "EXIT ;", end=4, sync=3)
    assert made.successors == ((1,), (2, 3), (3,), (4,), ())


def test_a_call_goes_through_its_subroutine() -> None:
    """What the subroutine reads is alive before the call; what follows the call, in the subroutine."""
    made = listing(
        "MOV R4, 0x1 ;",
        "MOV R8, 0x2 ;",
        "CALL.REL.NOINC `(.L_sub) ;",
        "STS [RZ], R8 ;",
        "EXIT ;",
        "IADD3 R5, R4, 0x1, RZ ;",  # sub
        "RET.REL.NODEC R2 `(f) ;",
        sub=5,
    )  # fmt: skip
    live = live_registers(made)
    assert alive(live[2]) == {2, 3, 4, 8}
    assert alive(live[5]) == {2, 3, 4, 5, 8}


def test_the_loops_of_a_kernel() -> None:
    made = program("shared_tiled", "sm_90a")
    (loop,) = made.loops
    sasses: list[Sass] = [made.instructions[i] for i in loop.body]
    assert sum(s.base == "FFMA" for s in sasses) == 16
    assert sum(s.base == "BAR" for s in sasses) == 2
    assert re.match(r"@!?U?P\d BRA|BRA\.U", sasses[-1].text)
