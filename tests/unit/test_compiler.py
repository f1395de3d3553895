"""What a compilation does to the process around it: the garbage collector is off meanwhile, and then as it was."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import pytest

from tiledsl import Global, f32, grid, threads, tile_kernel
from tiledsl.compilation.lowering import lower
from tiledsl.dims import N
from tiledsl.errors import CompileError


@tile_kernel
def cleared(X: Global[f32, N]):
    tx = threads(32)
    grid(1)
    X[tx] = 0.0


@tile_kernel
def misnamed(X: Global[f32, N]):
    tx = threads(32)
    grid(1)
    X[tx] = unknown  # pyright: ignore[reportUndefinedVariable]  # noqa: F821


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Every test begins with it on, and leaves it on."""
    gc.enable()
    yield
    gc.enable()


def lowering(observe: Callable[[], object]) -> None:
    """Lower a kernel and call `observe` once in between."""
    compiled = cleared.compile(arch="sm_90a")

    def at(stage: str, _kernel: Any) -> None:
        if stage == "tile":
            observe()

    lower(compiled.signature, compiled.spec, compiled.arch, observe=at)


def test_the_collector_is_off_while_a_kernel_compiles() -> None:
    seen: list[bool] = []
    lowering(lambda: seen.append(gc.isenabled()))
    assert seen == [False]
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(CompileError):
        misnamed.compile(arch="sm_90a")
    assert gc.isenabled()


def test_it_stays_off_for_who_had_it_off() -> None:
    gc.disable()
    lowering(lambda: None)
    assert not gc.isenabled()


def test_of_two_that_compile_at_once_the_last_one_turns_it_on() -> None:
    inside, other_ended = Event(), Event()

    def wait() -> None:
        inside.set()
        assert other_ended.wait(timeout=60)

    first = Thread(target=lowering, args=(wait,))
    first.start()
    assert inside.wait(timeout=60)
    lowering(lambda: None)
    between = gc.isenabled()
    other_ended.set()
    first.join()
    assert not between
    assert gc.isenabled()
