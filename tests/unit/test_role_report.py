"""``k.explain("roles")``: who does what, and what goes from whom to whom."""

from __future__ import annotations

import hopper_programs as programs
import plain_ring_programs
from hopper_ir import written

from tiledsl.passes.analysis.called import called
from tiledsl.passes.cooperation.endpoints import End
from tiledsl.passes.cooperation.role_report import roles_report


def described(end: End) -> tuple[str, set[str], int]:
    """The role, what reaches the tiles, arrivals that make a slot the other end's."""
    return end.role.title, {called(op) for op in end.accesses}, end.arrivals


def test_roles_have_warps_threads_registers_and_turns() -> None:
    report = roles_report(written(programs.in_turns), "in_turns")
    load, math = report.roles
    assert (load.title, load.first, load.all_warps, load.one_thread) == ("load", 0, 4, True)
    assert (load.registers, report.registers) == (40, 168)
    assert (math.first, math.all_warps, math.threads, math.instances) == (4, 8, 128, 2)
    assert [line.split()[-2:] for line in str(report).splitlines()[3:5]] == [["of", "168"], ["multiply,", "store"]]
    (ring,) = report.rings
    assert (ring.make.stages, [(tile.name, ring.bytes_of(tile)) for tile in ring.tiles]) == (
        3,
        [("a", 8192), ("b", 8192)],
    )
    assert described(ring.producer) == ("load", {"tma_load()"}, 1)
    assert ring.in_flight == 1
    assert described(ring.consumer) == ("math", {"wgmma()"}, 1)


def test_a_slot_waits_for_all_blocks_that_share_it() -> None:
    (ring,) = roles_report(written(programs.producer_consumers, CM=2, CN=2), "").rings
    assert ring.shared_along == ["m", "n"]
    assert (ring.producer.arrivals, ring.consumer.arrivals) == (1, 6)  # of 3 blocks, 2 warpgroups each


def test_warps_release_for_themselves_what_threads_read() -> None:
    (ring,) = roles_report(written(plain_ring_programs.by_mma_sync), "").rings
    assert described(ring.consumer) == ("math", {"load_matrix()"}, 8)


def test_the_text_has_a_line_for_each() -> None:
    text = str(programs.producer_consumers.explain("roles", arch="sm_90a", CM=2))
    roles, rings = (part.splitlines() for part in text.split("\n\n"))
    assert roles[0].endswith("for sm_90a")
    assert [line.split()[0] for line in roles[3:]] == ["load", "math"]
    tiles, ends = "a 16384 bytes, b 8192 bytes", "load: tma_load() math: wgmma()"
    assert rings[2].split() == f"ring 4 {tiles} {ends} 1, 4, shared along m 1".split()


def test_without_roles_all_threads_run_all() -> None:
    assert "no roles" in str(roles_report(written(programs.one_tile), "one_tile"))
