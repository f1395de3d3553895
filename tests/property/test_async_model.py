"""Random sequences of asynchronous copies, groups, waits and reads, against a model of one thread in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.backends.emulator import Options, run
from tiledsl.errors import HazardError
from tiledsl.ir.core import Kernel
from tiledsl.ir.parser import parse_kernel

THREADS = 64
SLOTS = 3
LANES = {
    "all": ("%0", lambda t: True),
    "low half": ("%16", lambda t: t & 16 == 0),
    "even lanes": ("%1", lambda t: t & 1 == 0),
    "first warp": ("%32", lambda t: t & 32 == 0),
}
"""By name: the bit of a thread's index that is clear in those that do a step, and the same in Python."""


@dataclass(frozen=True)
class Step:
    """What the threads of `lanes` do. `number`: the slot of a copy or read, or how many groups a wait may leave."""

    kind: Literal["copy", "commit", "wait", "read"]
    number: int
    lanes: str


STEPS = st.builds(
    Step,
    st.sampled_from(["copy", "copy", "commit", "wait", "read"]),
    st.integers(0, SLOTS - 1),
    st.sampled_from([*LANES]),
)


def text(steps: list[Step]) -> str:
    """Each thread copies to slots of its own; step n copies X[n, t] and writes what it reads to Y[n, t]."""
    lines: list[str] = []
    for n, step in enumerate(steps):
        body = {
            "copy": f"mem.cp_async %s{step.number}, %x{n} {{bytes = 4}}",
            "commit": "async.commit_group",
            "wait": f"async.wait_group {{pending = {step.number}}}",
            "read": f"%v{n} = mem.load %s{step.number} : f32 mem.store %y{n}, %v{n}",
        }[step.kind]
        lines += [
            f"%at{n} = arith.constant {n * THREADS} : i32",
            f"%i{n} = arith.add %t, %at{n} : i32",
            f"%x{n} = mem.offset %X, %i{n} : ptr<global, f32>",
            f"%y{n} = mem.offset %Y, %i{n} : ptr<global, f32>",
            f"%b{n} = arith.and %t, {LANES[step.lanes][0]} : i32",
            f"%c{n} = arith.eq %b{n}, %0 : bool",
            f"control.if %c{n} {{ {body} control.yield }} else {{ control.yield }}",
        ]
    return "\n".join(lines)


def kernel(steps: list[Step]) -> Kernel:
    size = (len(steps) + 1) * THREADS
    slots = "\n".join(
        f"%k{s} = arith.constant {s * THREADS} : i32\n%j{s} = arith.add %t, %k{s} : i32\n"
        f"%s{s} = mem.offset %S, %j{s} : ptr<shared, f32>"
        for s in range(SLOTS)
    )
    bytes_ = SLOTS * THREADS * 4
    return parse_kernel(f"""
kernel k(%X: ptr<global, f32>, %Y: ptr<global, f32>) grid(1) threads({THREADS}) level(thread) shared_bytes({bytes_})
  abi(pointer X f32 [{size}], pointer Y f32 [{size}]) {{
  %t = gpu.thread_id {{axis = 0}} : i32
  %0 = arith.constant 0 : i32
  %1 = arith.constant 1 : i32
  %16 = arith.constant 16 : i32
  %32 = arith.constant 32 : i32
  %S = mem.shared_base {{dtype = f32, offset = 0, bytes = {bytes_}, label = "S"}} : ptr<shared, f32>
  {slots}
  {text(steps)}
  control.return
}}""")


@dataclass
class Thread:
    """What its slots hold (None: nothing yet), which copies are on their way, whether it did what is forbidden."""

    slots: list[float | None] = field(default_factory=lambda: [None] * SLOTS)
    pending: list[tuple[int, int, float]] = field(default_factory=list)
    groups: int = 0
    wrong: bool = False

    def flies(self, slot: int) -> bool:
        return any(to == slot for _, to, _ in self.pending)

    def do(self, step: Step, value: float) -> float | None:
        """What a read gives."""
        if step.kind == "copy":
            self.wrong |= self.flies(step.number)
            self.pending.append((self.groups, step.number, value))
        elif step.kind == "commit":
            self.groups += 1
        elif step.kind == "wait":
            for group, slot, arriving in self.pending:
                if group < self.groups - step.number:
                    self.slots[slot] = arriving
            self.pending = [p for p in self.pending if p[0] >= self.groups - step.number]
        else:
            self.wrong |= self.flies(step.number) or self.slots[step.number] is None
            return self.slots[step.number]
        return None


def model(steps: list[Step], x: Any) -> tuple[Any, bool]:
    """What Y holds, and whether a check should find something."""
    y = np.zeros_like(x)
    wrong = False
    for t in range(THREADS):
        thread = Thread()
        for n, step in enumerate(steps):
            if LANES[step.lanes][1](t):
                read = thread.do(step, x[n, t])
                y[n, t] = 0.0 if read is None else read
        wrong |= thread.wrong or bool(thread.pending)
    return y, wrong


@settings(max_examples=100)
@given(st.lists(STEPS, max_size=12), st.booleans())
def test_every_thread_has_its_own_groups(steps: list[Step], tidy: bool) -> None:
    """tidy: all slots are filled first, and all copies waited for at the end."""
    if tidy:
        end = [Step("commit", 0, "all"), Step("wait", 0, "all")]
        steps = [*(Step("copy", slot, "all") for slot in range(SLOTS)), *end, *steps, *end]
    x = np.arange(1, (len(steps) + 1) * THREADS + 1, dtype=np.float32).reshape(-1, THREADS)
    expected, wrong = model(steps, x)
    y = np.zeros_like(x)
    arguments = {"X": x.ravel(), "Y": y.ravel()}
    run(kernel(steps), arguments)
    np.testing.assert_array_equal(y, expected)
    if wrong:
        with pytest.raises(HazardError):
            run(kernel(steps), arguments, options=Options(checks=True))
    else:
        run(kernel(steps), arguments, options=Options(checks=True))
