"""What hooks hear of a run besides accesses: all that orders warps, copies and products."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from async_kernels import COMMIT, COPY, READ, result, wait
from emulator_rings import CLUSTER, RING, kernel_of, run_ring

from tiledsl.backends.emulator import Access, Hook, Options
from tiledsl.passes.pipeline import run_pipeline


class Log(Hook):
    """`heard`: the events, by name and kind, as they came."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.accesses: list[Access] = []

    def on_access(self, access: Access) -> None:
        if access.until:
            self.heard.append(f"begin {access.until}")
            self.accesses.append(access)

    def on_delivery(self, access: Access) -> None:
        self.heard.append(f"deliver {access.until}")

    def on_commit(self, op: Any, group: Any, blocks: Any, threads: Any) -> None:
        self.heard.append(f"commit {group}")

    def on_wait(self, op: Any, group: Any, blocks: Any, threads: Any, pending: int) -> None:
        self.heard.append(f"wait {group} {pending}")

    def on_barrier(self, op: Any, blocks: Any) -> None:
        self.heard.append("barrier")

    def on_init(self, op: Any, label: str, base: int, blocks: Any, threads: Any, places: Any) -> None:
        self.heard.append(f"init {label}[{(int(places[0]) - base) // 8}]")

    def on_arrive(self, sync: Any) -> None:
        self.heard.append(f"arrive {sync.kind}")

    def on_complete(self, kind: Any, homes: Any, places: Any) -> None:
        self.heard.append(f"complete {kind}")

    def on_acquire(self, sync: Any) -> None:
        self.heard.append(f"acquire {sync.kind}")

    def on_fence(self, op: Any, kind: Any, blocks: Any, threads: Any) -> None:
        self.heard.append(f"fence {kind}")

    def on_exit(self, blocks: Any, warps: Any) -> None:
        self.heard += ["exit"] * len(warps)


def test_copies_of_threads_begin_are_committed_arrive_and_were_waited_for() -> None:
    log = Log()
    result(COPY + COMMIT + wait() + READ, Options(hooks=(log,)))
    both_sides = ["begin cp_async", "begin cp_async"]
    assert log.heard == [*both_sides, "commit cp_async", "deliver cp_async", "wait cp_async 0", "exit"]


@pytest.mark.parametrize("level", ["tile", "thread"])
def test_a_ring_tells_of_every_arrival_and_wait(level: str) -> None:
    """Five steps through two slots, and two stores."""
    log, kernel = Log(), kernel_of(RING)
    run_ring(run_pipeline(kernel) if level == "thread" else kernel, options=Options(hooks=(log,)))
    assert log.heard[:6] == ["init full[0]", "init full[1]", "init empty[0]", "init empty[1]", "fence init", "barrier"]
    counts = Counter(log.heard)
    assert counts["deliver mbarrier"] == 10  # a step's two boxes
    assert counts["begin mbarrier"] == 20  # of the tensor, and of shared memory
    assert counts["arrive mbarrier"] == 5 + 4  # by the loader, and a release of each step but the last
    assert counts["commit wgmma"] == 5 and counts["fence registers"] == 5
    assert counts["commit bulk"] == counts["wait bulk 0"] == 2 and counts["begin bulk"] == 4
    assert counts["complete named"] == 3 and counts["fence proxy"] == 2
    assert counts["exit"] == 8


def test_accesses_by_tma_name_the_thread_and_the_mbarrier_that_counts() -> None:
    """In a cluster a box is for both blocks, whichever of them asks for it."""
    log = Log()
    run_ring(kernel_of(CLUSTER), 128, 32, 64, Options(hooks=(log,)))
    loads = [access for access in log.accesses if access.until == "mbarrier" and access.space == "shared"]
    pairs: set[tuple[int, int]] = set()
    for access in loads:
        assert access.owners is not None and access.mbarriers is not None
        assert len(access.owners) == len(access.mbarriers) == len(access.addresses) // access.run
        pairs |= set(zip(access.owners.tolist(), access.blocks[:: access.run].tolist(), strict=True))
    assert pairs == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert "complete cluster" in log.heard and "acquire cluster" in log.heard
