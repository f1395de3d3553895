"""Host time of one launch with three torch tensors, compared with a bare cuLaunchKernel and torch.mm. The kernel with
tensor maps, which are encoded at its first launch, is also launched as a cluster. The one with many names shows the
cost of checking whether their meaning has changed.

`gemm` of bf16, choice included, is compared with torch.mm and ``@``: with a result of the caller's, a new one, with a
bias, with operands that are copied and k that is cut (more launches than one), and with a result at an address that no
launch has had before, whose tensor map is encoded. Then as an operator of torch: by `tiledsl.torch`, and as the code of
torch.compile calls it. Last what a choice takes, which a call makes when its shape is new.

    python -m benchmarks.launch_overhead --rounds 40

The product is tiny, so that the GPU is always ahead of the host: only the host's work is timed.
All are interleaved, in batches small enough for the launch queue; the figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.device import DEFAULT_STREAM, Device, pointer
from benchmarks.gallery import gallery_kernels
from benchmarks.nvcc import CudaKernel
from benchmarks.report import RESULTS, table, write
from tiledsl import (
    Cluster,
    Global,
    barrier,
    f32,
    persistent,
    ptx,
    row_major,
    shared,
    store_tma,
    threads,
    tile_kernel,
    tile_schedule,
    tma_commit,
    tma_load,
    tma_wait,
    u32,
    u64,
)
from tiledsl.dims import K, M, N
from tiledsl.gemm import gemm
from tiledsl.gemm.choice import Request, best
from tiledsl.gemm.plan import Problem, plan
from tiledsl.inspect.loading import load_kernel
from tiledsl.inspect.timing import quartiles

__all__ = ["main"]

SIZE = 16
PRODUCT = 256
BATCH = 200  # below the 1024 launches after which the driver blocks


@tile_kernel(arch="sm_90a")
def three_maps(A: Global[f32, M, K], B: Global[f32, K, N], C: Global[f32, M, N]):
    """Loads rows of A and B by TMA and stores those of A to C: small, but with every feature of a launch."""
    work = persistent(tile_schedule(M, N, K, tile=(8, SIZE, SIZE)), cluster=Cluster(m=2))
    t = threads(32)
    a, b = shared((8, SIZE), f32, layout=row_major), shared((8, SIZE), f32, layout=row_major)
    full = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
    barrier()
    phase = u32(0)
    for item in work:
        if t == 0:
            ptx.mbarrier_expect_tx(full, 0, bytes=2 * 8 * SIZE * 4)
            tma_load(A[item.m, 0:SIZE], a, mbarrier=(full, 0))
            tma_load(B[item.m, 0:SIZE], b, mbarrier=(full, 0))
            ptx.mbarrier_wait(full, 0, parity=phase)
            store_tma(a, C[item.m, item.n])
            tma_commit()
            tma_wait(0)
        phase = phase ^ 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)

    import torch

    device = Device()
    a, b, c = device.normal(SIZE, SIZE, 0), device.normal(SIZE, SIZE, 1), device.empty(SIZE, SIZE)
    kernels = gallery_kernels()
    (kernel, _), (fastest, consts) = kernels["naive"], kernels["fastest"]
    # Loaded as a file of a user's: names in the package's own modules are not looked at again.
    many = load_kernel(Path(fastest.signature.loc.file), "fastest")
    batches = [x[None] for x in (a, b, c)]
    bare = CudaKernel.load("naive", 16)
    packed = bare.arguments(*map(pointer, (a, b, c)), SIZE, SIZE, SIZE)
    contenders: dict[str, Callable[[], object]] = {
        "tiledsl, three torch tensors": lambda: kernel(a, b, c),
        "tiledsl, three tensor maps, cluster of 2": lambda: three_maps(a, b, c),
        "tiledsl, three torch tensors, many names": lambda: many(*batches, **consts),
        "bare cuLaunchKernel, packed arguments": bare.launcher(packed, SIZE, SIZE, DEFAULT_STREAM),
        "torch.mm(a, b, out=c)": lambda: torch.mm(a, b, out=c),
    }
    contenders |= _products(torch)
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(args.rounds + 1):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            microseconds = _host_time(device, contenders[name])
            if number:  # the first round loads and compiles
                taken[name].append(microseconds)

    rows: list[tuple[str, str, str, str]] = []
    for name, values in taken.items():
        low, middle, high = quartiles(values)
        rows.append((name, f"{middle:.2f}", f"{low:.2f}-{high:.2f}", "<= 8" if name.startswith("tiledsl") else ""))
    text = table(("host us a launch", "median", "quartiles", "goal"), rows)
    data = {"microseconds": {name: [round(v, 3) for v in values] for name, values in taken.items()}}
    write("launch_overhead", "Host time of one launch", text, data, args.out)
    for ours, theirs in (
        ("tiledsl, three torch tensors", "torch.mm(a, b, out=c)"),
        ("gemm(a, b, c)", "torch.mm(a, b, out=c), bf16"),
        ("gemm(a, b)", "a @ b, bf16"),
    ):
        below = statistics.median(taken[ours]) <= statistics.median(taken[theirs])
        print(f"{ours}, at most {theirs}: {'yes' if below else 'NO'}")
    return 0


def _products(torch: Any) -> dict[str, Callable[[], object]]:
    """Calls of `gemm` and of torch on bf16 tensors."""
    from tiledsl import torch as operators  # which needs torch

    def tensor(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda").bfloat16()

    a, b, c = (tensor(PRODUCT, PRODUCT) for _ in range(3))
    bias = torch.randn(PRODUCT, device="cuda")
    odd = tensor(PRODUCT, PRODUCT - 1), tensor(PRODUCT - 1, PRODUCT), c
    deep = tensor(64, 4096), tensor(4096, 64), tensor(64, 64)
    room = tensor(1 << 24)
    addresses, sizes = itertools.count(), itertools.count(1)
    in_fp32 = Problem(1, 4096, 4096, 4096, "f32", "f32")

    def elsewhere() -> Any:
        start = next(addresses) % (room.numel() // 64 - PRODUCT * PRODUCT // 64) * 64
        return room[start : start + PRODUCT * PRODUCT].view(PRODUCT, PRODUCT)

    return {
        "gemm(a, b, c)": lambda: gemm(a, b, c),
        "torch.mm(a, b, out=c), bf16": lambda: torch.mm(a, b, out=c),
        "gemm(a, b)": lambda: gemm(a, b),
        "a @ b, bf16": lambda: a @ b,
        "tiledsl.torch.gemm(a, b)": lambda: operators.gemm(a, b),
        "tiledsl.torch.gemm_into(c, a, b)": lambda: operators.gemm_into(c, a, b),
        "torch.ops.tiledsl.gemm.default(a, b)": lambda: torch.ops.tiledsl.gemm.default(a, b),
        "gemm(a, b, c, bias=bias)": lambda: gemm(a, b, c, bias=bias),
        "gemm, one operand copied": lambda: gemm(*odd),
        "gemm, k cut": lambda: gemm(*deep),
        "a view of new memory": elsewhere,
        "a view of new memory, and gemm(a, b, view)": lambda: gemm(a, b, elsewhere()),
        "choice.best, a new shape of many tiles": lambda: best(
            Request(1, 4096 + next(sizes), 4096, 4096, (True, True))
        ),
        "choice.best, a new shape of few tiles": lambda: best(Request(1, 256, 256, 4096 + next(sizes), (True, True))),
        "plan, a new shape in fp32": lambda: plan(in_fp32._replace(m=4096 + next(sizes))),
        "plan, the same with B along k": lambda: plan(in_fp32._replace(m=4096 + next(sizes), unit_b=1)),
    }


def _host_time(device: Device, launch: Callable[[], object]) -> float:
    """Microseconds of host time a launch, over one batch."""
    device.synchronize()
    start = time.perf_counter()
    for _ in range(BATCH):
        launch()
    taken = time.perf_counter() - start
    device.synchronize()
    return 1e6 * taken / BATCH


if __name__ == "__main__":
    sys.exit(main())
