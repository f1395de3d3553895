"""Random control flow means the same in a kernel as in Python.

One program text is run twice: as plain Python on a list, and as a one-thread kernel on the emulator
before and after the passes. Values stay in 0..255, so that nothing wraps.
"""

from __future__ import annotations

import itertools
import linecache
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.backends import emulator
from tiledsl.dims import M
from tiledsl.frontend import build
from tiledsl.ir.core import Kernel
from tiledsl.ir.types import I32
from tiledsl.ir.verifier import verify
from tiledsl.lang import Global, grid, i32, index, threads, unroll
from tiledsl.passes.pipeline import run_pipeline
from tiledsl.signatures.annotations import read_signature
from tiledsl.signatures.signature import GlobalSpec, Specialization

NAMES = ("a", "b", "c")
COUNTER = itertools.count()

name = st.sampled_from(NAMES)
atom = name | st.integers(0, 9).map(str)
value = (
    name
    | st.integers(0, 9).map(lambda n: f"i32({n})")
    | st.builds(lambda x, y: f"(({x} + {y}) & 255)", name, atom)
    | st.builds(lambda x, op, y: f"({x} {op} {y})", name, st.sampled_from("^&|"), atom)
    | st.builds(lambda x, p, y: f"({x} if {p} else {y})", name, st.deferred(lambda: test), name)
)
test = st.builds(lambda x, op, y: f"{x} {op} {y}", name, st.sampled_from(["<", "==", "!=", ">="]), atom)
condition = (
    test
    | st.builds(lambda x, op, y: f"({x}) {op} ({y})", test, st.sampled_from(["and", "or"]), test)
    | st.builds(lambda x: f"(0 < {x} < 8 and A[index({x})] > 2)", name)
    | st.builds(lambda x: f"not {x}", test)
)


@st.composite
def blocks(draw: Any, depth: int, loops: int) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        lines += draw(statements(depth, loops))
    return lines


@st.composite
def statements(draw: Any, depth: int, loops: int) -> list[str]:
    kinds = ["assign", "augment", "store"] + ["exit"] * (depth < 3) + ["if", "for", "while", "unroll"] * (depth > 0)
    kind = draw(st.sampled_from(kinds))
    if kind == "assign":
        return [f"{draw(name)} = {draw(value)}"]
    if kind == "augment":
        return [f"{draw(name)} {draw(st.sampled_from(['^=', '|=', '&=']))} {draw(atom)}"]
    if kind == "store":
        return [f"A[{draw(st.integers(3, 7))}] = {draw(name)}"]
    if kind == "exit":
        return [draw(st.sampled_from(["break", "continue", "return"] if loops else ["return"]))]
    body = ["    " + line for line in draw(blocks(depth - 1, loops + (kind != "if")))]
    if kind == "if":
        other = ["    " + line for line in draw(blocks(depth - 1, loops))]
        return [f"if {draw(condition)}:", *body, *(["else:", *other] if draw(st.booleans()) else [])]
    fresh = next(COUNTER)
    if kind == "for":
        return [f"for i{fresh} in range({draw(name)} & 3):", *body]
    if kind == "unroll":
        return [f"for i{fresh} in unroll({draw(st.integers(0, 3))}):", *body]
    return [f"n{fresh} = A[1] & 3", f"while n{fresh} > 0:", f"    n{fresh} = n{fresh} - 1", *body]


def compiled(text: str, namespace: dict[str, Any]) -> Any:
    file = f"<program {next(COUNTER)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec", dont_inherit=True), namespace)
    return namespace["program"]


def kernel_of(lines: list[str]) -> Kernel:
    head = ["def program(A: Global[i32, M]):", "    grid(1)", "    threads(1)", *PROLOGUE]
    text = "\n".join([*head, *("    " + line for line in lines), *EPILOGUE, ""])
    fn = compiled(text, {f.__name__: f for f in (Global, i32, index, M, grid, threads, unroll)})
    return build(read_signature(fn), Specialization((("A", GlobalSpec(I32, 0, 16)),), ()), "sm_90a")


PROLOGUE = ["    a = A[0]", "    b = A[1]", "    c = A[2]"]
EPILOGUE = ["    A[0] = a", "    A[1] = b", "    A[2] = c"]


def in_python(lines: list[str], start: list[int]) -> list[int]:
    text = "\n".join(["def program(A):", *PROLOGUE, *("    " + line for line in lines), *EPILOGUE, ""])
    memory = list(start)
    compiled(text, {"unroll": range, "index": int, "i32": int})(memory)
    return memory


@settings(max_examples=100, deadline=None)
@given(blocks(3, 0), st.lists(st.integers(0, 9), min_size=8, max_size=8))
def test_control_flow_is_that_of_python(lines: list[str], start: list[int]) -> None:
    wanted = in_python(lines, start)
    kernel = kernel_of(lines)
    verify(kernel)
    for stage in (kernel.clone(), run_pipeline(kernel, verify_each=True)):
        memory = np.array(start, dtype=np.int32)
        emulator.run(stage, {"A": memory})
        assert memory.tolist() == wanted, stage.level
