"""Timing that compares: contenders take turns, A B A B, and ratios are formed within a round.

A GPU's clock drifts with its temperature and power over seconds; within one round it hardly does. So the
figure is the median over rounds of the ratio in a round, with its quartiles, never a ratio of two medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.device import Device

__all__ = ["L2_BYTES", "Timing", "buffer_sets", "interleave", "quartiles"]

L2_BYTES = 60 << 20
"""L2 of an H200."""


@dataclass(frozen=True)
class Timing:
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
    device: Device, contenders: dict[str, Callable[[int], None]], *, rounds: int, seconds: float = 0.05
) -> Timing:
    """Time `contenders`, each called with a running number that picks its operands.

    In each round each contender runs for about `seconds`, timed by events around the whole batch; who
    goes first changes every round. One more round before them warms up and sizes the batches.
    """
    batch: dict[str, int] = {}
    for name, launch in contenders.items():
        launch(0)
        device.synchronize()
        per_launch = max(_timed(device, launch, 0, 3), 1e-4)
        batch[name] = max(1, min(500, round(seconds * 1e3 / per_launch)))
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            taken[name].append(_timed(device, contenders[name], number, batch[name]))
    return Timing(taken)


def _timed(device: Device, launch: Callable[[int], None], first: int, count: int) -> float:
    """Milliseconds of a launch, over `count` of them back to back."""
    start, end = device.event(), device.event()
    device.record(start)
    for number in range(first, first + count):
        launch(number)
    device.record(end)
    device.synchronize()
    return device.milliseconds(start, end) / count
