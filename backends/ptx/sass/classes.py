"""Classes of instructions for a histogram of a loop, and the published counts of two fp32 GEMM loops."""

from __future__ import annotations

from tiledsl.arch import WARP, WARPGROUP_WARPS
from tiledsl.backends.ptx.sass.operands import mma_shape
from tiledsl.backends.ptx.sass.program import Sass
from tiledsl.layout.wgmma import WGMMA_ROWS

__all__ = ["CLASSES", "PUBLISHED", "arithmetic_of", "class_of", "products_of"]

CLASSES = (
    "FFMA",
    "MMA",
    "other float",
    "LDS",
    "LDS.64",
    "LDS.128",
    "LDSM",
    "STS",
    "STS.64",
    "STS.128",
    "STSM",
    "LDG",
    "LDG.64",
    "LDG.128",
    "LDGSTS",
    "STG",
    "STG.64",
    "STG.128",
    "local memory",
    "constant load",
    "address, integer",
    "move",
    "control, barrier",
    "other",
    "filler",
)
"""Names of the classes, in the order of a table."""

MEMBERS = {
    "FFMA": "FFMA FFMA2",
    "MMA": "HMMA IMMA DMMA QMMA OMMA BMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCQMMA UTCIMMA",
    "other float": """
        DADD DFMA DMUL DSETP F2F F2FP F2I FADD FADD2 FCHK FMNMX FMNMX3 FMUL FMUL2 FRND FSEL FSET FSETP FSWZADD HADD2
        HFMA2 HMNMX2 HMUL2 HSET2 HSETP2 I2F I2FP MUFU
        """,
    "LDSM": "LDSM",
    "STSM": "STSM",
    "LDGSTS": "LDGSTS UTMALDG UTMASTG UBLKCP",
    "local memory": "LDL STL",
    "constant load": "LDC LDCU ULDC",
    "address, integer": """
        BMSK BREV FLO IABS IADD IADD3 IDP IMAD IMNMX IMUL ISCADD ISETP LEA LOP3 PLOP3 POPC PRMT PSETP SEL SGXT SHF
        UBMSK UBREV UFLO UIADD3 UIMAD UIMNMX UISETP ULEA ULOP3 UPLOP3 UPOPC UPRMT USEL USGXT USHF UVIADD UVIMNMX
        VABSDIFF VIADD VIADDMNMX VIMNMX VIMNMX3
        """,
    "move": "CS2R MOV R2UR S2R S2UR UMOV P2R R2P P2UR UP2UR UR2UP MOVM",
    "control, barrier": """
        ARRIVES BAR BRA BREAK BRX BSSY BSYNC CALL DEPBAR ELECT ENDCOLLECTIVE ERRBAR EXIT FENCE JMP LDGDEPBAR MEMBAR
        NANOSLEEP NOP RET SYNCS UCGABAR_ARV UCGABAR_WAIT USETMAXREG UTMACCTL UTMACMDFLUSH WARPGROUP WARPSYNC YIELD
        """,
}
CLASS = {base: name for name, bases in MEMBERS.items() for base in bases.split()}
BY_WIDTH = {"LDS": "LDS", "STS": "STS", "LDG": "LDG", "STG": "STG", "LD": "LDG", "ST": "STG"}
"""Accesses that are told apart by width."""

PUBLISHED: tuple[tuple[str, dict[str, int]], ...] = (
    # maxas, wiki page SGEMM: the loop of 8 steps in k on Maxwell; 4 IADD, 3 XOR, 1 SETP; BAR and BRA.
    (
        "maxas",
        {"FFMA": 512, "LDS.128": 32, "STS.128": 4, "LDG.128": 4, "address, integer": 8, "control, barrier": 2},
    ),
    # An equivalent CUDA C++ kernel on Volta; 1 SHF, 6 LEA, 4 IADD, 2 ISETP, 3 IMAD, 2 LOP3; 2 S2R, 1 MOV; BAR.
    (
        "CUDA, Volta",
        {"FFMA": 512, "LDS.128": 32, "STS": 5, "address, integer": 18, "move": 3, "control, barrier": 1},
    ),
)
"""Published loops, by class, for 512 FFMAs."""

SHAPELESS = (16, 8, 16)
"""Taken for a matrix instruction whose opcode does not say what it multiplies."""


def class_of(sass: Sass) -> str:
    """The class of an instruction, one of `CLASSES`. Filler does not run: ``@!PT LDS`` before asynchronous copies,
    ``@!UPT UIADD3`` among matrix instructions."""
    base, *mods = sass.opcode.split(".")
    if sass.operands.never:
        return "filler"
    if base in BY_WIDTH:
        width = next((m for m in mods if m in ("64", "128")), "")
        return f"{BY_WIDTH[base]}.{width}" if width else BY_WIDTH[base]
    if (base == "IMAD" and "MOV" in mods) or (base == "HFMA2" and "-RZ, RZ" in sass.text):
        return "move"  # of a constant, on a pipe that has nothing else to do
    return CLASS.get(base, "other")


def arithmetic_of(sass: Sass) -> str:
    """What a loop is there for: FFMA or a matrix opcode without modifiers; "" for any other instruction."""
    kind = class_of(sass)
    return kind if kind == "FFMA" else sass.base if kind == "MMA" else ""


def products_of(sass: Sass) -> int:
    """Multiply-adds of one warp by an FFMA or a matrix instruction; 0 for others."""
    arithmetic = arithmetic_of(sass)
    if not arithmetic:
        return 0
    if arithmetic == "FFMA":
        return WARP * (2 if sass.base == "FFMA2" else 1)
    m, n, k = mma_shape(sass.opcode.split(".")) or SHAPELESS
    return (m // WARPGROUP_WARPS if m == WGMMA_ROWS else m) * n * k  # a warp's tensor core makes its part
