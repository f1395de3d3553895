"""Candidates are built ahead by several processes and timed by one, in the order in which they are built."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from tiledsl.tune.workers import Answer, Open, Worker, answered

Result = dict[str, Any]
"""What became of a candidate, as JSON has it. outcome: "built" or "timed"; or why it is none: "refused" (by the
compiler or a limit), "wrong" (the result), "failed" (an exception), "crashed" (the process), "hung" (the time limit).
`reason` says more of these. us: microseconds of a launch, if it was timed."""
BUILT = "built"
OUTCOMES = {"raised": "failed", "died": "crashed", "late": "hung"}


def search(
    jobs: Sequence[Any], build: Open, timer: Worker | None, *, processes: int = 0, limit: float = 120.0
) -> Iterator[tuple[int, Result]]:
    """The number of each job with its result, as they come.

    build: opens a process that returns the `Result` of a job; one that is "built" goes to the timer, which returns the
    final one. Without a timer, "built" is final. processes: that build; by default one for each core. limit: seconds of
    a build. The processes that build end with the iterator, and when it is closed.
    """
    count = min(processes or len(os.sched_getaffinity(0)), len(jobs))
    builders = [Worker(build, limit) for _ in range(count)]
    waiting, built = deque(range(len(jobs))), deque[tuple[int, Result]]()
    timed: tuple[int, Result] = (0, {})
    left = len(jobs)
    try:
        while left:
            for worker in builders:
                if worker.job is None and waiting:
                    number = waiting.popleft()
                    worker.give(jobs[number], number)
            if timer is not None and timer.job is None and built:
                timed = built.popleft()
                timer.give(jobs[timed[0]], timed[0])
            everybody = builders if timer is None else [*builders, timer]
            for worker, number, answer in answered([w for w in everybody if w.job is not None]):
                result = _result(answer)
                if worker is timer:
                    result = {**timed[1], **result}
                elif result["outcome"] == BUILT and timer is not None:
                    built.append((number, result))
                    continue
                left -= 1
                yield number, result
    finally:
        for worker in builders:
            worker.stop()


def _result(answer: Answer) -> Result:
    if answer.kind == "done":
        return answer.value
    return {"outcome": OUTCOMES[answer.kind], "reason": answer.value}
