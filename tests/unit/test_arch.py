"""The table of the hardware: every row of it compiles, and its numbers stand nowhere else."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from tiledsl import Global, barrier, cdiv, f32, grid, shared, threads, tile_kernel
from tiledsl import arch as hardware
from tiledsl.arch import (
    FEATURES,
    INSTEAD,
    MOST_BLOCKS_PER_SM,
    MOST_SHARED,
    TARGETS,
    Target,
    require_feature,
    target_named,
    targets_from,
)
from tiledsl.dims import N
from tiledsl.errors import CompileError, Loc

ROOT = Path(__file__).parents[2]
SOURCES = [
    path.relative_to(ROOT)
    for folder in ("tiledsl", "backends")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "__pycache__" not in path.parts
    and not any(f"tiledsl/{part}/" in str(path) for part in ("backends/ptx", "gemm"))
    and path != Path(hardware.__file__)
]
"""Without the link, and the library of kernels, which are written as users write theirs."""


# -- targets ---------------------------------------------------------------------------------------


@tile_kernel
def reversed_in_blocks(X: Global[f32, N], Y: Global[f32, N], s: f32):
    n = grid(cdiv(N, 128)) * 128
    t = threads(128)
    S = shared((128,), f32)
    S[t] = X[n + t]
    barrier()
    Y[n + t] = s * S[127 - t]


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_compiles_a_kernel(name: str) -> None:
    """To PTX of a version that knows the target, and to a cubin that fits the row's limits."""
    target = TARGETS[name]
    compiled = reversed_in_blocks.compile(arch=name)
    version = re.search(r"^\.version (\d+)\.(\d+)\n\.target (\w+)\n", compiled.ptx, re.MULTILINE)
    assert version and version[3] == name and int(version[1] + version[2]) >= target.ptx
    assert compiled.cubin.startswith(b"\x7fELF")
    used = compiled.resources
    assert used.registers <= hardware.MOST_REGISTERS and used.shared == 512 <= target.shared_per_block
    assert used.blocks_per_sm == min(target.max_blocks_per_sm, target.max_warps_per_sm // 4)


def test_rows_name_features_of_the_table() -> None:
    assert set().union(*(target.features for target in TARGETS.values())) == FEATURES.keys()
    for name, target in TARGETS.items():
        assert name == target.name and {f for f, have in FEATURES.items() if name in have} == target.features


def test_targets_have_what_older_ones_do_but_for_instructions_of_one_architecture() -> None:
    """An accelerated feature (wgmma, tcgen05) is its architecture's own; multicast is slow where it is left out."""
    for older in TARGETS.values():
        for newer in map(TARGETS.__getitem__, targets_from(older.capability)):
            if older.capability < newer.capability or older.name + "a" == newer.name:
                assert older.features - newer.features <= {"wgmma", "tcgen05", "multicast"}


def test_what_no_target_exceeds() -> None:
    assert MOST_SHARED == 227 * 1024 and MOST_BLOCKS_PER_SM == 32


def test_a_missing_feature_is_refused_with_the_targets_that_have_it() -> None:
    loc = Loc("k.py", 3, 1)
    require_feature("sm_90", "tma", "tma_load()", loc)
    have = f"needs one of {', '.join(FEATURES['stmatrix'])}, and this is compiled for sm_89"
    with pytest.raises(CompileError, match=re.escape(f"store_matrix() {have}")) as several:
        require_feature("sm_89", "stmatrix", "store_matrix()", loc)
    assert several.value.fix == f'write @tile_kernel(arch="sm_90a"); {INSTEAD["stmatrix"]}'
    with pytest.raises(CompileError, match="wgmma needs sm_90a, and this is compiled for sm_100a"):
        require_feature("sm_100a", "wgmma", "wgmma", loc)


def test_targets_by_name_and_from_a_capability_on() -> None:
    assert target_named("sm_90a") is TARGETS["sm_90a"]
    assert targets_from((9, 0)) == tuple(name for name in TARGETS if name not in ("sm_80", "sm_86", "sm_89"))


# -- once ------------------------------------------------------------------------------------------

CONSTANTS = {name for name, value in vars(hardware).items() if name.isupper() and isinstance(value, int | tuple)}
NUMBERS = ("255", "1024", "65535", "65536")
"""Registers of a thread, threads of a block and bytes of a KiB, blocks along y, registers of an SM."""
OTHER = {
    "tiledsl/backends/emulator/options.py": {"65536"},  # threads that run together
    "tiledsl/frontend/intrinsics/memory.py": {"1024"},  # elements of a fragment
    "tiledsl/ir/formats.py": {"1024"},  # an exponent
    "backends/ptx/debuginfo.py": {"65535"},  # columns
    "tiledsl/backends/emulator/rules/matrices.py": {"32"},  # bits of a descriptor
}
"""Numbers that are the same and mean something else. The sizes of caches are recognised."""
CACHE = re.compile(r"lru_cache\(|\bLIMIT\b")


def test_a_fact_of_the_hardware_stands_once() -> None:
    """No module but arch.py gives one of its names a value, has its telling numbers, or counts lanes by a literal."""
    again = [text for path in SOURCES for text in facts_again(path)]
    assert not again, "import it from tiledsl.arch, or say in OTHER what else it is:\n" + "\n".join(again)


def facts_again(path: Path) -> list[str]:
    text = (ROOT / path).read_text()
    nodes = list(ast.walk(ast.parse(text)))
    numbers = {*NUMBERS, *(["32"] if "emulator" in path.parts else [])} - OTHER.get(str(path), set())
    again = [
        f"{path}:{node.lineno}: {node.id} = ..."
        for node in nodes
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in CONSTANTS
    ]
    if any(number in text for number in numbers):
        again += [
            f"{path}:{token.start[0]}: {token.line.strip()}"
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.NUMBER and token.string in numbers and not CACHE.search(token.line)
        ]
    return again + [f"{path}:{node.lineno}: {ast.unparse(node)}" for node in nodes if counts_lanes(node)]


def counts_lanes(node: ast.AST) -> bool:
    """``threads // 32``, ``128 * warpgroups``."""
    if not isinstance(node, ast.BinOp | ast.Compare):
        return False
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.left, *node.comparators]
    literal = any(isinstance(side, ast.Constant) and side.value in (31, 32, 128) for side in sides)
    return literal and any(re.search(r"(?i)thread|warp|lane", ast.unparse(side)) for side in sides)


def test_lanes_counted_by_a_literal_are_seen() -> None:
    def seen(text: str) -> bool:
        return counts_lanes(ast.parse(text, mode="eval").body)

    assert seen("threads // 32") and seen("128 * role.warpgroups") and seen("c.lanes < 32") and seen("thread & 31")
    assert not seen("bits // 32") and not seen("threads // WARP") and not seen("lane // 4")


def test_the_middle_names_no_target() -> None:
    """Limits that differ by target reach layout, IR and passes as numbers."""
    banned = {"TARGETS", Target.__name__, "require", "require_feature", "target_named", "targets_from"}
    for path in SOURCES:
        if path.parts[:2] in {("tiledsl", "layout"), ("tiledsl", "ir"), ("tiledsl", "passes")}:
            for node in ast.walk(ast.parse((ROOT / path).read_text())):
                names = {a.name for a in node.names} if isinstance(node, ast.ImportFrom) else set[str]()
                assert getattr(node, "module", "") != "tiledsl.arch" or not names & banned, path
