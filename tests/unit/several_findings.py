"""Kernels with more than one fault, and some that are accepted."""

from __future__ import annotations

from tiledsl import Const, Global, barrier, cdiv, f32, grid, shared, threads, tile_kernel, unroll
from tiledsl.dims import N


@tile_kernel
def two_races(X: Global[f32, N], Y: Global[f32, N], *, RIGHT: Const[bool] = True):
    """Both tiles lack their barrier, and the loop meets each pair of lines again and again, in both orders."""
    b, t = grid(cdiv(N, 64)), threads(64)
    S, R = shared((64,), f32), shared((64,), f32)
    total = f32(0)
    for _ in range(8):
        S[t] = X.get(b * 64 + t)
        R[t] = Y.get(b * 64 + t)
        if RIGHT:
            barrier()
        total += S[t ^ 32] + S[t ^ 33]
        total += R[t ^ 32]
        if RIGHT:
            barrier()
    X.put(b * 64 + t, total)


@tile_kernel
def race_and_more(X: Global[f32, N], *, RIGHT: Const[bool] = True):
    """A race, a read of what nobody has written, and last an access out of bounds."""
    b, t = grid(1), threads(64)
    S, R = shared((64,), f32), shared((64,), f32)
    S[t] = X[t]
    if RIGHT:
        barrier()
        R[t] = f32(1)
    x = S[t ^ 32]
    y = R[t]
    X[t if RIGHT else t + 64] = x + y + f32(b)


@tile_kernel
def unrolled(X: Global[f32, N]):
    """An unrolled loop has many ops at one line."""
    t = grid(1) + threads(64)
    S = shared((64,), f32)
    S[t] = X[t]
    for _ in unroll(100):
        S[t] += S[t ^ 32]
    X[t] = S[t]


@tile_kernel
def same_value(X: Global[f32, N], *, REASON: Const[bool] = True):
    t = grid(1) + threads(64)
    S = shared((1,), f32)
    if REASON:
        S[0] = f32(3)  # tiledsl: accept T101 because all threads write the same value
    else:
        S[0] = f32(3)
    barrier()
    X[t] = S[0]


@tile_kernel
def unused(X: Global[f32, N]):
    t = grid(1) + threads(64)
    X[t] = f32(3)  # tiledsl: accept T102 because it is "tiledsl: accept T999" in a text


@tile_kernel
def accepted_above(X: Global[f32, N]):
    t = grid(1) + threads(64)
    S = shared((1,), f32)
    # tiledsl: accept T201, T101 because a line that is too long
    # has its comment above, and goes on here
    S[0] = f32(3)
    barrier()
    X[t] = S[0]


@tile_kernel
def no_reason(X: Global[f32, N]):
    X[grid(1) + threads(64)] = f32(3)  # tiledsl: accept T101


@tile_kernel
def no_such_code(X: Global[f32, N]):
    X[grid(1) + threads(64)] = f32(3)  # tiledsl: accept T101, T199 because of nothing


@tile_kernel
def no_finding(X: Global[f32, N]):
    X[grid(1) + threads(64)] = f32(3)  # tiledsl: accept T402 because it is long


@tile_kernel
def beyond(X: Global[f32, N]):
    t = grid(1) + threads(64)
    X[t + 64] = f32(3)  # tiledsl: accept T501 because the array is followed by another one
    X[t] = f32(4)


@tile_kernel
def written_first(X: Global[f32, N], Y: Global[f32, N]):
    t = grid(1) + threads(64)
    Y[t] = X[t]
    X[t] = Y[t]
    Y[t] += X[t]
