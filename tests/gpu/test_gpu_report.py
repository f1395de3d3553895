"""A run of a kernel with stamps of the clock, on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiledsl.inspect.loading import load_kernel
from tiledsl.inspect.report.collect import collect
from tiledsl.inspect.report.measure import measure, read_run

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples" / "gemm"
FORMATS = {"D": "bf16", "E": "bf16", "F": "bf16"}


@pytest.mark.parametrize(
    ("name", "arch", "settings", "sizes"),
    [
        ("shared_tiled", "", {}, ["M=1024", "N=1024", "K=256"]),
        ("mma_pipelined", "", {"D": "bf16"}, ["M=1024", "N=1024", "K=256"]),
        ("hopper_fastest", "sm_90a", FORMATS, ["M=2048", "N=4096", "K=512", "L=1"]),
        ("hopper_fastest", "sm_90a", {**FORMATS, "CLUSTER": (2, 1)}, ["M=2048", "N=4096", "K=512", "L=1"]),
    ],
)
def test_a_measured_run(name: str, arch: str, settings: dict[str, Any], sizes: list[str], tmp_path: Path) -> None:
    from tiledsl.runtime import gpu_arch

    kernel = load_kernel(EXAMPLES / f"{name}.py", name)
    target = arch or gpu_arch()
    made = measure(kernel, target, settings, sizes)
    assert made.same and 0 < made.us[1] <= made.us[0]
    file = tmp_path / "run.stamps"
    file.write_text(made.to_json())
    found = collect(kernel, target, settings, [], read_run(str(file))).measured
    assert found is not None
    timeline = found.timeline
    for records in made.records:
        times = [time for site, time, _ in records[2:-2]]
        assert len(records) > 4 and times == sorted(times)
    assert timeline.full_at is None and all(0 <= start <= end for _, start, end, *_ in timeline.waits)
    last = max(row.end for row in timeline.rows)
    assert all(end <= last for _, _, end, *_ in timeline.waits)
    # The clock says what the events do, as far as the globaltimer of a short run tells.
    shortest = 0.2 * found.us_stamped if name == "hopper_fastest" else 0  # of others a block is one of several in turn
    assert found.mhz == 0 or shortest < last / found.mhz < 2 * found.us_stamped
    uses = {len(slot.spans) for slot in timeline.slots}
    assert not timeline.slots or min(uses) >= 1
    assert all(full < free for slot in timeline.slots for full, free in slot.spans if free >= 0)
