"""What is computed for one element stands together: epilogue functions of whole fragments need few registers."""

from __future__ import annotations

import pytest

from tiledsl import (
    Const,
    Fragment,
    Global,
    Ring,
    bf16,
    cdiv,
    f32,
    grid,
    load_fragment,
    log,
    mma,
    persistent,
    role,
    shared,
    silu,
    sqrt,
    store,
    store_tma,
    swizzle_128b,
    threads,
    tile,
    tile_function,
    tile_kernel,
    tile_schedule,
    tma_load,
    wgmma,
)
from tiledsl import fragment as new_fragment
from tiledsl.dims import K, M, N
from tiledsl.ir.ops import arith
from tiledsl.ir.parser import parse_kernel
from tiledsl.passes.scalar.order_chains import order_chains


@tile_kernel(arch="sm_90a")
def gated(A: Global[bf16, M, K], G: Global[bf16, N, K], U: Global[bf16, N, K], C: Global[bf16, M, N]):
    """silu(A G^T) * (A U^T): 128 accumulators a thread, and a division with a slow path for every other one."""
    work = persistent(tile_schedule(M, N, K, tile=(128, 128, 64)))
    a = shared((128, 64), bf16, layout=swizzle_128b)
    g, u = shared((128, 64), bf16, layout=swizzle_128b), shared((128, 64), bf16, layout=swizzle_128b)
    ring = Ring(4, a=a, g=g, u=u)
    out = shared((2, 128, 64), bf16, layout=swizzle_128b)
    with role("load", registers=40, threads=1):
        for t in work:
            for k in t.k:
                with ring.fill() as s:
                    tma_load(A[t.m, k], s.a)
                    tma_load(G[t.n, k], s.g)
                    tma_load(U[t.n, k], s.u)
    with role("math", warpgroups=2, registers=232):
        for t in work:
            x, y = wgmma.accumulator((128, 128), f32), wgmma.accumulator((128, 128), f32)
            for _ in t.k:
                with ring.use(in_flight=1) as s:
                    x = wgmma(s.a, s.g.T, x)
                    y = wgmma(s.a, s.u.T, y)
            store_tma((silu(x.wait()) * y.wait()).to(bf16), C[t.m, t.n], via=out)


def test_a_gated_unit_does_not_spill() -> None:
    resources = gated.compile().resources
    assert (resources.spill_stores, resources.spill_loads) == (0, 0)


@tile_function
def by_hand(x: Fragment[f32]) -> Fragment[f32]:
    return x / sqrt(x * x + 1)


FUNCTIONS = {"silu": silu, "log": log, "by hand": by_hand}


@tile_kernel
def mapped(C: Global[bf16, M, N], *, OF: Const[str]):
    """128 elements a thread."""
    by, bx = grid(cdiv(M, 128), cdiv(N, 128))
    threads(128)
    m, n = tile(by, 128), tile(bx, 128)
    layout = new_fragment((128, 128), f32, mma.m16n8k16.acc(warps=(2, 2))).layout
    x = load_fragment(C[m, n], layout, vec=4).to(f32)
    store(FUNCTIONS[OF](x).to(bf16), C[m, n], vec=4)


@pytest.mark.parametrize("of", FUNCTIONS)
def test_functions_of_a_fragment_take_as_many_registers_as_it_has_words(of: str) -> None:
    """64 words of two elements, what one element needs, addresses: not 128 elements at the same step."""
    resources = mapped.compile(arch="sm_90a", OF=of).resources
    assert resources.registers <= 128 and resources.spill_stores == 0


HEAD = """kernel k(%A: ptr<global, f32>) grid(1) threads(1) level(thread) index_bits(32) {
  %one = arith.constant 1.0 : f32
"""


def rows(count: int, between: str = "") -> str:
    """`count` elements are loaded, doubled, squared and stored, each step for all of them."""
    text = HEAD
    for i in range(count):
        text += f"  %i{i} = arith.constant {i} : i32\n  %p{i} = mem.offset %A, %i{i} : ptr<global, f32>\n"
    text += "".join(f"  %x{i} = mem.load %p{i} : f32\n" for i in range(count))
    text += "".join(f"  %d{i} = arith.add %x{i}, %one : f32\n" for i in range(count)) + between
    text += "".join(f"  %e{i} = arith.sub %x{i}, %one : f32\n" for i in range(count))
    text += "".join(f"  %s{i} = arith.mul %d{i}, %e{i} : f32\n" for i in range(count))
    return text + "".join(f"  mem.store %p{i}, %s{i}\n" for i in range(count)) + "  control.return\n}\n"


def order(text: str) -> str:
    kernel = parse_kernel(text)
    order_chains(kernel)
    return "".join(op.name[6] for op in kernel.walk() if isinstance(op, arith.Scalar))


def test_each_value_that_leaves_a_row_is_computed_by_itself() -> None:
    assert order(rows(64)) == "asm" * 64


def test_few_values_stay_as_they_were_written() -> None:
    assert order(rows(24)) == "a" * 24 + "s" * 24 + "m" * 24


def test_nothing_moves_over_an_effect() -> None:
    assert order(rows(64, "  gpu.barrier\n")).startswith("a" * 64)
