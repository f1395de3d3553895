"""Random programs with tokens: what `async-groups` makes of them waits for enough, and for nothing more.

Enough: at thread level, where copies arrive as late as they may, the emulator's checks are silent and the result is
that of the tile level, where every copy is complete at once. Nothing more: with one more group in flight at any wait
the checks find it.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.backends import emulator
from tiledsl.errors import HazardError
from tiledsl.ir.builder import Builder
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import async_copy, control, gpu, tile
from tiledsl.ir.parser import parse_kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.ir.types import F32, I32, INDEX, GlobalType, SharedType, TokenType
from tiledsl.ir.verifier import verify
from tiledsl.passes.pipeline import run_pipeline
from tiledsl.passes.pipelining.async_groups import group_copies

THREADS, COLUMNS = 64, 4
ROWS = THREADS // COLUMNS
CHECKED = emulator.Options(checks=True)


class Program:
    """`statements` random ones, then waits for what is still in flight. OUT depends on all that the tiles held."""

    def __init__(self, random: Random, statements: int) -> None:
        self.random = random
        types = [GlobalType(F32, ("M", "K"), 1, 4), GlobalType(F32, ("T",), 0, 4), I32]
        self.body = Block(types, ["A", "OUT", "n"])
        self.source, out, n = self.body.args
        self.b = Builder(self.body)
        self.n = self.b.cast(n, INDEX)
        self.thread = self.b.value(gpu.ThreadId(axis=0))
        self.sum = self.b.constant(0.0, F32)
        self.flying: list[tuple[Value, Value]] = []
        for _ in range(statements):
            random.choice([self.begin, self.begin, self.arrive, self.branch, self.ring])()
        while self.flying:
            self.arrive()
        self.b.add(tile.Store(out, self.thread, self.sum))
        self.b.add(control.Return())
        self.kernel = Kernel("tokens", self.body, (1,), (THREADS,))

    def arguments(self, n: int) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        a = rng.integers(1, 9, (ROWS, 200)).astype(np.float32)
        return {"A": a, "OUT": np.zeros(THREADS, np.float32), "n": np.int32(n)}

    def index(self, value: int) -> Value:
        return self.b.constant(value, INDEX)

    def tile(self, *stages: int) -> Value:
        """A new one, allocated where everything sees it."""
        alloc = tile.SharedAlloc(type=SharedType(F32, (*stages, ROWS, COLUMNS)))
        return self.body.insert_before(self.body.ops[0], alloc).result

    def copy(self, dst: Value, *slot: Value, column: Value | None = None) -> Value:
        column = column if column is not None else self.index(COLUMNS * self.random.randrange(20))
        zero = self.index(0)
        dst_axes = (len(slot), len(slot) + 1)
        attrs: dict[str, Any] = {"shape": (ROWS, COLUMNS), "src_axes": (0, 1), "dst_axes": dst_axes, "vec": 4}
        return self.b.value(async_copy.Copy(self.source, zero, column, dst, *slot, zero, zero, **attrs))

    def read(self, total: Value, src: Value, *slot: Value) -> Value:
        """What another thread has copied."""
        row = self.b.scalar("mod", self.b.scalar("add", self.thread, self.index(5)), self.index(ROWS))
        value = self.b.value(tile.Load(src, *slot, row, self.index(self.random.randrange(COLUMNS))))
        return self.b.scalar("fma", total, self.b.constant(3.0, F32), value)

    # -- statements ----------------------------------------------------------------------------

    def begin(self) -> None:
        where = self.tile()
        self.flying.append((self.copy(where), where))

    def arrive(self) -> None:
        """Wait for some, and read them."""
        count = min(len(self.flying), self.random.randint(1, 3))
        if not count:
            return
        chosen = self.random.sample(self.flying, count)
        self.flying = [pair for pair in self.flying if pair not in chosen]
        self.b.add(async_copy.Wait(*(token for token, _ in chosen)))
        self.b.add(gpu.Barrier())
        for _, where in chosen:
            self.sum = self.read(self.sum, where)

    def branch(self) -> None:
        """Both sides commit as many groups, in tiles of their own; one of them may hand a token on."""
        b, outer, blocks = self.b, self.b.block, [Block(), Block()]
        groups, hands_on = self.random.randint(0, 2), self.random.random() < 0.5
        handed = self.tile()
        for b.block in blocks:
            total = self.sum
            for _ in range(groups):
                where = self.tile()
                b.add(async_copy.Wait(self.copy(where)))
                b.add(gpu.Barrier())
                total = self.read(total, where)
            b.add(control.Yield(total, *([self.copy(handed)] if hands_on else [])))
        b.block = outer
        condition = b.scalar("lt", self.n, self.index(self.random.randrange(4)))
        self.sum, *tokens = b.add(control.If(condition, blocks=blocks)).results
        self.flying += [(token, handed) for token in tokens]

    def ring(self) -> None:
        """A loop that keeps `ahead` copies in flight."""
        b, outer, ahead = self.b, self.b.block, self.random.randint(1, 3)
        count = self.index(ahead + 1)
        where = self.tile(ahead + 1)
        tokens = [self.copy(where, self.index(s)) for s in range(ahead)]
        body = b.block = Block([INDEX, F32, *[TokenType()] * ahead])
        i, total, *carried = body.args
        fill = b.scalar("mod", b.scalar("add", i, self.index(ahead)), count)
        column = b.scalar("mul", b.scalar("mod", i, self.index(40)), self.index(COLUMNS))
        new = self.copy(where, fill, column=column)
        b.add(async_copy.Wait(carried[0]))
        b.add(gpu.Barrier())
        total = self.read(total, where, b.scalar("mod", i, count))
        b.add(gpu.Barrier())
        b.add(control.Yield(total, *carried[1:], new))
        b.block = outer
        loop = control.For(self.index(0), self.n, self.index(1), self.sum, *tokens, blocks=[body])
        self.sum, *left = b.add(loop).results
        for s, token in enumerate(left):
            b.add(async_copy.Wait(token))
            b.add(gpu.Barrier())
            self.sum = self.read(self.sum, where, b.scalar("mod", b.scalar("add", self.n, self.index(s)), count))


SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=25)
@given(seed=SEEDS, statements=st.integers(1, 10), n=st.integers(0, 6))
def test_waits_are_enough(seed: int, statements: int, n: int) -> None:
    program = Program(Random(seed), statements)
    kernel = program.kernel
    verify(kernel)
    assert print_kernel(parse_kernel(print_kernel(kernel))) == print_kernel(kernel)
    expected, got = program.arguments(n), program.arguments(n)
    emulator.run(kernel.clone(), expected)
    lowered = run_pipeline(kernel, verify_each=True)
    assert not any(isinstance(v.type, TokenType) for op in lowered.walk() for v in op.results)
    emulator.run(lowered, got, options=CHECKED)
    assert np.array_equal(expected["OUT"], got["OUT"])


def is_silent(program: Program, number: int, *, more: int | None) -> bool:
    """True if the checks find nothing where wait `number` leaves `more` groups more in flight; None: is left out."""
    kernel = program.kernel.clone()
    wait = [op for op in kernel.walk() if isinstance(op, async_copy.WaitGroup)][number]
    if more is None:
        wait.erase()
    else:
        wait.attrs["pending"] += more
    try:
        emulator.run(run_pipeline(kernel), program.arguments(4), options=CHECKED)
    except HazardError:
        return False
    return True


def test_waits_are_not_more_than_enough() -> None:
    """Where a program needs a wait at all, it needs it for as many groups as it waits for."""
    needed = 0
    for seed in range(4):
        program = Program(Random(seed), 6)
        group_copies(program.kernel)
        count = sum(isinstance(op, async_copy.WaitGroup) for op in program.kernel.walk())
        for number in range(count):
            if not is_silent(program, number, more=None):
                needed += 1
                assert not is_silent(program, number, more=1), (seed, number)
    assert needed > 20
