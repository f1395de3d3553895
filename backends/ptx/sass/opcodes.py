"""Opcodes of SASS by class, for a histogram of a loop. Other opcodes are unknown."""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """Opcodes with blanks between them."""
    return frozenset(text.split())


CLASSES = {
    "FFMA": "FFMA FFMA2",
    "MMA": "HMMA IMMA DMMA QMMA OMMA BMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCQMMA UTCIMMA",
    "other float": """
        DADD DFMA DMNMX DMUL DSETP F2F F2FP F2I FADD FADD2 FCHK FMNMX FMNMX3 FMUL FMUL2 FRND FSEL FSET FSETP FSWZADD
        HADD2 HFMA2 HMNMX2 HMUL2 HSET2 HSETP2 I2F I2FP MUFU
        """,
    "LDS": "LDS",
    "LDS.64": "LDS.64",
    "LDS.128": "LDS.128",
    "LDSM": "LDSM",
    "STS": "STS",
    "STS.64": "STS.64",
    "STS.128": "STS.128",
    "STSM": "STSM",
    "LDG": "LDG LD",
    "LDG.64": "LDG.64 LD.64",
    "LDG.128": "LDG.128 LD.128",
    "LDGSTS": "LDGSTS UTMALDG UTMASTG UBLKCP",
    "STG": "STG ST",
    "STG.64": "STG.64 ST.64",
    "STG.128": "STG.128 ST.128",
    "local memory": "LDL STL",
    "constant load": "LDC LDCU ULDC",
    "address, integer": """
        BMSK BREV FLO I2I IABS IADD IADD3 IDP IMAD IMNMX IMUL ISCADD ISETP LEA LOP3 PLOP3 POPC PRMT PSETP SEL SGXT SHF
        UBMSK UBREV UFLO UIADD3 UIMAD UIMNMX UISETP ULEA ULOP3 UPLOP3 UPOPC UPRMT UPSETP USEL USETP USGXT USHF UVIADD
        UVIMNMX VABSDIFF VABSDIFF4 VIADD VIADDMNMX VIMNMX VIMNMX3
        """,
    "move": "CS2R MOV R2UR S2R S2UR UMOV P2R R2P P2UR UP2UR UR2UP MOVM",
    "control, barrier": """
        ARRIVES BAR BRA BREAK BRX BSSY BSYNC CALL DEPBAR ELECT ENDCOLLECTIVE ERRBAR EXIT FENCE JMP LDGDEPBAR MEMBAR
        NANOSLEEP NOP RET SYNCS UCGABAR_ARV UCGABAR_WAIT USETMAXREG UTMACCTL UTMACMDFLUSH WARPGROUP WARPSYNC YIELD
        """,
    "other": """
        ACQBULK ATOM ATOMG ATOMS B2R BMOV BPT CCTL CCTLL CGAERRBAR JMX KILL LEPC MATCH PMTRIG PREEXIT QSPC RED REDG REDS
        REDUX SHFL VOTE VOTEU
        """,
    "filler": "",
}
"""Names of the classes in the order of a table, and their opcodes, with a width where accesses are told apart by it."""

CLASS = {opcode: name for name, opcodes in CLASSES.items() for opcode in names(opcodes)}
