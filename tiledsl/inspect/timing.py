"""Timing that compares: contenders take turns, and ratios are formed within a round.

A GPU's clock drifts with its temperature and power over seconds; within one round it hardly does. So the
figure is the median over rounds of the ratio in a round, with its quartiles, never a ratio of two medians.
"""

from __future__ import annotations

import random
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiledsl.inspect.frameworks import Device

L2_BYTES = 60 << 20
"""L2 of an H200."""
MOST_LAUNCHES = 500
"""Of one batch: the driver takes 1024 before it blocks."""


@dataclass(frozen=True)
class RoundTimes:
    """Milliseconds of one launch in each round, by contender, in the same order of rounds."""

    rounds: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.rounds[name])

    def speed_ratios(self, name: str, base: str) -> list[float]:
        """How many times as fast as `base` the contender was, round by round."""
        return [b / a for a, b in zip(self.rounds[name], self.rounds[base], strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def buffer_sets(set_bytes: int, *, cold: bool) -> int:
    """How many sets of operands to go round so that each launch finds L2 full of others (1 if hot)."""
    return max(2, -(-3 * L2_BYTES // set_bytes)) if cold else 1


def interleave(
    device: Device,
    contenders: dict[str, Callable[[int], None]],
    *,
    rounds: int,
    seconds: float = 0.05,
    rest: float = 0.0,
    seed: int = 0,
    graphed: int = 1,
) -> RoundTimes:
    """Time `contenders`, each called with a running number that picks its operands.

    In each round each contender runs for about `seconds`, timed by events around the whole batch, in an
    order of its own, drawn from `seed`: what runs before leaves its heat and its clock behind, and that
    shall not always be the same one. One more round before them warms up and sizes the batches. `rest`:
    seconds in which the GPU does nothing before each batch, so that power does not limit it. `graphed`:
    launches in one CUDA graph, without the host's part; 1: no graph.
    """
    if graphed > 1:
        contenders = {name: device.graphed(launch, graphed) for name, launch in contenders.items()}
    batch: dict[str, int] = {}
    for name, launch in contenders.items():
        launch(0)
        device.synchronize()
        per_launch = max(_timed(device, launch, 0, 3), 1e-4)
        batch[name] = max(1, min(MOST_LAUNCHES, round(seconds * 1e3 / per_launch)))
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    order = random.Random(seed)
    for number in range(rounds):
        for name in order.sample(list(contenders), len(contenders)):
            if rest:
                time.sleep(rest)
                contenders[name](number)  # the first launch after a rest finds everything asleep
            taken[name].append(_timed(device, contenders[name], number, batch[name]) / graphed)
    return RoundTimes(taken)


def _timed(device: Device, launch: Callable[[int], None], first: int, count: int) -> float:
    """Milliseconds of a launch, over `count` of them back to back."""
    start, end = device.event(), device.event()
    device.record(start)
    for number in range(first, first + count):
        launch(number)
    device.record(end)
    device.synchronize()
    return device.milliseconds(start, end) / count


class Clocks:
    """SM clock in MHz and power in W, sampled by nvidia-smi five times a second while the `with` lasts."""

    FIELDS = "clocks.sm,power.draw,temperature.gpu"

    def __init__(self) -> None:
        self._samples: list[tuple[float, float, float, float]] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Clocks:
        if shutil.which("nvidia-smi"):
            command = ["nvidia-smi", f"--query-gpu={self.FIELDS}", "--format=csv,noheader,nounits", "-lms", "200"]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()  # SIGTERM may be ignored, as this process was started
            self._process.wait()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                clock, power, temperature = (float(x) for x in line.split(","))
            except ValueError:  # "[N/A]", or half a line at the end
                continue
            self._samples.append((time.perf_counter(), clock, power, temperature))

    def since(self, start: float) -> dict[str, float]:
        """Medians of the samples after `start` (of time.perf_counter); empty if there are none."""
        recent = [s[1:] for s in self._samples if s[0] >= start]
        if not recent:
            return {}
        clock, power, temperature = (statistics.median(column) for column in zip(*recent, strict=True))
        return {"sm_mhz": clock, "watts": power, "celsius": temperature}
