"""``k.explain("resources")`` and ``k.explain("tensor-maps")``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiledsl.arch import target_named
from tiledsl.compilation.launch_report import BoxReport
from tiledsl.errors import TileError
from tiledsl.inspect.loading import load_kernel

GEMM = Path(__file__).parents[2] / "examples" / "gemm"


def kernel(name: str) -> Any:
    return load_kernel(GEMM / f"{name}.py", name)


def test_what_a_block_takes_and_one_more_would_need() -> None:
    compiled = kernel("shared_tiled").compile("sm_90a", T=32)
    found = compiled.explain("resources")
    used, room = found.used, found.room
    assert used == compiled.resources and room.next_blocks == used.blocks_per_sm + 1
    limits = target_named("sm_90a").block_limits(registers=used.registers, shared=used.shared, threads=used.threads)
    assert room.blocks == limits and min(limits.values()) == used.blocks_per_sm == limits[used.limiter]
    header, *rows = str(found).splitlines()
    assert header.endswith(
        f"{used.blocks_per_sm} blocks an SM, limited by {used.limiter}: {used.occupancy:.0%} of its warps"
    )
    assert any(row.split()[:2] == ["registers", str(used.registers)] for row in rows)
    assert rows[-1].startswith("0 bytes of spill stores and 0 of loads")


def test_what_is_needed_is_enough_and_no_more() -> None:
    found = kernel("hopper_ring").compile("sm_90a", D="bf16").explain("resources")
    target, used, room = target_named("sm_90a"), found.used, found.room
    assert room.registers is None or room.registers <= used.registers
    for name, most in (("registers", room.registers), ("shared", room.shared)):
        sizes = {"registers": used.registers, "shared": used.shared, "threads": used.threads}
        limit = {"registers": "registers", "shared": "shared memory"}[name]
        assert most is not None
        assert target.block_limits(**{**sizes, name: most})[limit] >= room.next_blocks
        more = most + (1 if name == "registers" else 16)
        assert more > sizes[name] or target.block_limits(**{**sizes, name: more})[limit] < room.next_blocks


def test_boxes_of_tma() -> None:
    found = kernel("hopper_ring").explain("tensor-maps", arch="sm_90a", D="bf16")
    assert found.maps[0] == BoxReport("A", "bf16", (1, 0), (64, 128), 128, 16384, 1)
    assert "64 x 128  16384  128 bytes" in str(found)
    assert "no tensor maps" in str(kernel("shared_tiled").explain("tensor-maps", arch="sm_90a"))


def test_what_is_not_assembled_has_no_resources() -> None:
    with pytest.raises(TileError, match=r"was not assembled\n  fix: k.compile\(...\).explain\('resources'\)"):
        kernel("shared_tiled").lower("sm_90a").explain("resources")
