"""A loop that waits by a plain load is refused, with the atomic load to use; other loops that read memory are not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from refused import Refused, check

from tiledsl import Global, assert_, barrier, f32, fence, grid, i32, index, ptx, shared, threads, tile_kernel, vote_any
from tiledsl.dims import N

bad = Refused()
GOOD: list[Any] = []


def good(kernel: Any) -> Any:
    GOOD.append(kernel)
    return kernel


# -- refused ---------------------------------------------------------------------------------------


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def nothing_in_the_body(flag: Global[i32, N]):
    grid(2)
    threads(64)
    while flag[0] == 0:  # error: waits for another thread to write flag
        pass


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def a_value_read_again(flag: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    v = flag[0]
    while v == 0:
        v = flag[0]  # error: waits for another thread to write flag
    Z[t] = v


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def left_by_break(flag: Global[i32, N]):
    grid(2)
    threads(64)
    while True:
        if flag[0] != 0:  # error: waits for another thread to write flag
            break


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def work_meanwhile(flag: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    while flag[0] == 0:  # error: waits for another thread to write flag
        Z[t] = Z[t] + 1


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def bounded_polling(flag: Global[i32, N]):
    grid(2)
    threads(64)
    for _ in range(1000):
        if flag[0] != 0:  # error: waits for another thread to write flag
            break


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def bounded_with_a_flag(flag: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    done = False
    for _ in range(1000):
        if flag[0] != 0:  # error: waits for another thread to write flag
            done = True
            break
    if done:
        Z[t] = 1


@bad('flag.atomic_load(i, order="acquire")')
@tile_kernel
def a_guarded_load(flag: Global[i32, N]):
    b = grid(2)
    threads(64)
    while flag.get(b) == 0:  # error: waits for another thread to write flag
        pass


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def agreed_on_by_the_warp(flag: Global[i32, N]):
    grid(2)
    threads(64)
    while not vote_any(flag[0] != 0):  # error: waits for another thread to write flag
        pass


@bad('flag.atomic_load(i, order="acquire")')
@tile_kernel
def inside_another_loop(flag: Global[i32, N]):
    grid(2)
    threads(64)
    for i in range(10):
        while flag[i] == 0:  # error: waits for another thread to write flag
            pass


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def two_flags(flag: Global[i32, N], A: Global[i32, N]):
    grid(2)
    threads(64)
    while (flag[0] == 0) | (A[0] == 0):  # error: waits for another thread to write flag
        pass


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def one_flag_after_the_other(flag: Global[i32, N], A: Global[i32, N]):
    grid(2)
    threads(64)
    while flag[0] == 0 and A[0] == 0:  # error: waits for another thread to write flag
        pass


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def counting_iterations(flag: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    n = i32(0)
    while flag[0] == 0:  # error: waits for another thread to write flag
        n += 1
    Z[t] = n


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def bounded_by_the_condition(flag: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    n = i32(0)
    while flag[0] == 0 and n < 1000:  # error: waits for another thread to write flag
        n += 1
    Z[t] = n


@bad('flag.atomic_load(i, order="acquire")')
@tile_kernel
def left_by_return(flag: Global[i32, N]):
    b = grid(2)
    threads(64)
    while True:
        if flag[b] > 3:  # error: waits for another thread to write flag
            return


@bad('S.atomic_load(0, order="acquire")')
@tile_kernel
def in_shared_memory():
    grid(2)
    t = threads(64)
    S = shared((1,), i32)
    if t == 0:
        S[0] = 0
    barrier()
    if t == 32:
        S[0] = 1
    if t == 0:
        while S[0] == 0:  # error: waits for another thread to write S
            pass


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def with_a_delay(flag: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    while flag[0] == 0:  # error: waits for another thread to write flag
        for j in range(10):
            Z[t] = j.to(i32)


@bad('flag.atomic_load(0, order="acquire")')
@tile_kernel
def with_an_assertion(flag: Global[i32, N]):
    grid(2)
    t = threads(64)
    while flag[0] == 0:  # error: waits for another thread to write flag
        assert_(t < 64)


# -- accepted ---------------------------------------------------------------------------------------


@good
@tile_kernel
def search(A: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    i = index(0)
    while A[i] != 7:
        i += 1
    Z[t] = i.to(i32)


@good
@tile_kernel
def linked_list(A: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    p = A[0]
    while A[index(p)] != 0:
        p = A[index(p)]
    Z[t] = p


@good
@tile_kernel
def a_limit_in_memory(A: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    i = i32(0)
    while i < A[0]:
        i += 1
    Z[t] = i


@good
@tile_kernel
def elements_against_a_limit(flag: Global[i32, N], A: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    for i in range(100):
        if A[i] > flag[0]:
            break
        Z[t] = 3


@good
@tile_kernel
def integer_root(A: Global[i32, N], Z: Global[i32, N]):
    b = grid(2)
    t = threads(64)
    i = i32(0)
    while i * i < A[b]:
        i += 1
    Z[t] = i


@good
@tile_kernel
def with_a_barrier(flag: Global[i32, N]):
    grid(2)
    threads(64)
    while flag[0] == 0:
        barrier()


@good
@tile_kernel
def with_a_fence(flag: Global[i32, N]):
    grid(2)
    threads(64)
    while flag[0] == 0:
        fence()


@good
@tile_kernel
def memory_that_the_loop_writes(Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    while Z[t] > 0:
        Z[t] = Z[t] - 1


@good
@tile_kernel
def a_mode_in_memory(flag: Global[i32, N], A: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    s = i32(0)
    for i in range(100):
        s += A[i]
        if flag[0] != 0:
            break
    Z[t] = s


@good
@tile_kernel
def an_atomic_load(flag: Global[i32, N]):
    grid(2)
    threads(64)
    while flag.atomic_load(0, order="acquire") == 0:
        pass


@good
@tile_kernel
def until_it_is_small(A: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    x = f32(2)
    while x * x > A[0].to(f32):
        x = x * 0.5
    Z[t] = x.to(i32)


@good
@tile_kernel
def values_that_change_places(A: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    x = A[0]
    y = A[1]
    while x > 0:
        x, y = y, x - 1
    Z[t] = x


@good
@tile_kernel
def a_value_read_before(flag: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    v = flag[0]
    i = i32(0)
    while v != 0:
        v = v // 2
        i += 1
    Z[t] = i


@good
@tile_kernel
def binary_search(flag: Global[i32, N], A: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    lo = i32(0)
    hi = i32(100)
    while lo < hi:
        m = (lo + hi) // 2
        if A[index(m)] < flag[0]:
            lo = m + 1
        else:
            hi = m
    Z[t] = lo


@good
@tile_kernel
def a_condition_that_leaves_nothing(flag: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    i = i32(0)
    while i < 10:
        if flag[0] != 0:
            Z[t] = i
        i += 1


@good
@tile_kernel
def with_volatile_ptx(flag: Global[i32, N]):
    grid(2)
    threads(64)
    while flag[0] == 0:
        ptx.inline("nanosleep.u32 20;", None, volatile=True)


@good
@tile_kernel
def a_condition_with_work_and_a_bound(A: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    i = i32(0)
    while (A[0] > 0) & (i < 10):
        Z[t] = A[index(i)]
        i += 1


@good
@tile_kernel
def continue_in_a_counted_loop(flag: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    i = i32(0)
    while i < 10:
        i += 1
        if flag[0] != 0:
            continue
        Z[t] = i


@good
@tile_kernel
def a_step_in_memory(A: Global[i32, N], Z: Global[i32, N]):
    grid(2)
    t = threads(64)
    i = i32(0)
    while i < 100:
        i += A[0]
    Z[t] = i


@pytest.mark.parametrize(("kernel", "fix"), bad.cases, ids=bad.names)
def test_a_loop_that_waits_by_a_plain_load_is_refused(kernel: Any, fix: str) -> None:
    check(kernel, fix)


@pytest.mark.parametrize("kernel", GOOD, ids=lambda k: k.__name__)
def test_a_loop_that_does_not_is_compiled(kernel: Any) -> None:
    assert kernel.compile(arch="sm_90a").ptx


def test_the_advice_is_a_loop_that_stays() -> None:
    """What the error asks for reads memory in each iteration, in PTX as on the emulator."""
    text = an_atomic_load.compile(arch="sm_90a").ptx
    label, loop = re.findall(r"(\$L__BB\w+):(.*?)bra", text, re.DOTALL)[-1]
    assert "ld.acquire.gpu.global.b32" in loop, label
    an_atomic_load(np.ones(4, np.int32), device="emulator")
