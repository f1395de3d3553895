"""TMA, rings, wgmma and clusters on a Hopper GPU: each public function runs in a process of its own.

``PYTHONPATH=. python tests/gpu/hopper_programs.py NAME`` runs one by hand.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "gemm"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import hopper_kernels as h
import plain_ring_programs as plain
import ring_endpoint_programs as ends
import schedule_programs as schedules
from programs import emulated, parity, raises, same_bits

from tiledsl import row_major, swizzle_32b, swizzle_64b, swizzle_128b
from tiledsl.errors import CompileErrors, DeviceError, KernelArgumentError

Array = Any


def _numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    """Random, of every kind that the dtype has."""
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


def _boxes(A: Array, C: Array, **consts: Any) -> Array:
    """Run `boxes` on a GPU; what came with the edge."""
    bm, bn = consts.get("BM", 64), consts.get("BN", 64)
    m, n = A.shape
    padded = np.full((-(-m // bm) * bm, -(-n // bn) * bn), 77).astype(A.dtype)
    h.boxes(A, C, padded, **consts, device="gpu")
    return padded


def _check_boxes(A: Array, **consts: Any) -> None:
    """C is A, and what lies past the edge is 0; the emulator says the same."""
    m, n = A.shape
    C = np.zeros_like(A)
    padded = _boxes(A, C, **consts)
    assert same_bits(C, A), consts
    assert same_bits(padded[:m, :n], A) and not padded[m:].any() and not padded[:, n:].any(), consts
    expected = emulated(h.boxes, A, np.zeros_like(A), np.full_like(padded, 77), **consts)
    assert same_bits(C, expected[1]) and same_bits(padded, expected[2])


def _problem(m: int, n: int, depth: int, seed: int = 0) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(seed)
    A, B = (random.standard_normal((rows, depth), np.float32).astype(ml_dtypes.bfloat16) for rows in (m, n))
    return A, B, np.full((m, n), np.nan, ml_dtypes.bfloat16)


# -- assertions ----------------------------------------------------------------------------------------------


def an_assertion_with_wgmma() -> None:
    """It holds and costs nothing; then it fails, and the error says where."""
    A, B, _ = _problem(128, 192, 256)
    C = np.zeros((128, 192), np.float32)
    parity(h.asserting, A, B, C, 256)
    text = "assertion failed: k is below the end; thread ("
    raises(DeviceError, lambda: h.asserting(A, B, C, 192, device="gpu"), text, "assert_(k.start < index(end)")


# -- tensor maps -------------------------------------------------------------------------------------------


def boxes_of_every_layout() -> None:
    for layout in (row_major, swizzle_32b, swizzle_64b, swizzle_128b):
        for m, n in ((64, 64), (100, 72), (1, 8), (129, 200)):
            _check_boxes(_numbers((m, n), ml_dtypes.bfloat16, m), LAYOUT=layout)
            _check_boxes(_numbers((m, n), np.float16, n), LAYOUT=layout, BM=32, BN=128)


def boxes_of_every_size_of_element() -> None:
    dtypes = (np.uint8, ml_dtypes.float8_e4m3fn, np.float16, np.float32, np.int32, np.float64)
    for dtype in dtypes:
        size = np.dtype(dtype).itemsize
        for layout in (row_major, swizzle_128b):
            _check_boxes(_numbers((70, 208), dtype), LAYOUT=layout, BYTES=size, BN=128)


def more_rows_and_columns_than_one_box() -> None:
    """A box has at most 256 elements an axis, and a swizzle's span along the inner one."""
    _check_boxes(_numbers((300, 136), ml_dtypes.bfloat16), BM=512, BN=64)
    _check_boxes(_numbers((300, 520), ml_dtypes.bfloat16), BM=64, BN=320)


def leading_dimensions() -> None:
    """Rows with a gap, every second row, and one row whose stride means nothing. The new C is not 0."""
    import torch

    wide = torch.randn(90, 256, device="cuda").bfloat16()
    for A in (wide[:, :200], wide[::2, 8:136], wide[3:4]):
        C = torch.ones(A.shape[0], 1024, device="cuda", dtype=torch.bfloat16)
        padded = torch.full([-(-n // 64) * 64 for n in A.shape], 77.0, device="cuda", dtype=torch.bfloat16)
        h.boxes(A, C[:, 8 : 8 + A.shape[1]], padded)
        assert torch.equal(C[:, 8 : 8 + A.shape[1]], A)
        assert (C[:, :8] == 1).all() and (C[:, 8 + A.shape[1] :] == 1).all()
        assert torch.equal(padded[: A.shape[0], : A.shape[1]], A)
        assert not padded[A.shape[0] :].any() and not padded[:, A.shape[1] :].any()


def batches_end_where_they_end() -> None:
    for shape in ((5, 64, 64), (3, 70, 200), (1, 1, 8), (7, 63, 72)):
        A = _numbers(shape, ml_dtypes.bfloat16)
        C = np.zeros_like(A)
        parity(h.batches, A, C)
        assert same_bits(A, C)


def what_tma_cannot_take() -> None:
    for A in (_numbers((64, 63), ml_dtypes.bfloat16), _numbers((64, 72), ml_dtypes.bfloat16)[:, 4:]):
        text = raises((CompileErrors, KernelArgumentError), lambda A=A: _boxes(A, np.zeros_like(A)), "16")
        assert "A" in text and "fix:" in text


def rows_that_end_within_16_bytes() -> None:
    """On the GPU, since a copy of a host array's slice has no gaps, and then no aligned rows."""
    import torch

    wide = torch.zeros(3, 64, 1000, device="cuda", dtype=torch.bfloat16)
    for rows, columns in ((64, 70), (1, 999)):
        A, C = wide[:2, :rows, :columns]
        raises(CompileErrors, lambda A=A, C=C: h.boxes(A, C, wide[2]), "TMA writes whole 16 bytes", "C.whole")


def rows_and_matrices_may_be_repeated() -> None:
    """By a stride of 0."""
    import torch

    row = torch.randn(1, 1, 128, device="cuda").bfloat16().expand(3, 128, 128)
    one = torch.randn(1, 128, 128, device="cuda").bfloat16().expand(3, 128, 128)
    for A in (row, one):
        C = torch.zeros(3, 128, 128, device="cuda", dtype=torch.bfloat16)
        h.batches(A, C)
        assert torch.equal(A, C)


def maps_follow_their_arrays() -> None:
    """One plan, arrays that move: the maps are those of the arrays of this launch, in every thread."""
    import torch

    sources = [torch.randn(100, 128, device="cuda").bfloat16() for _ in range(5)]
    targets = [torch.zeros_like(s) for s in sources]
    padded = torch.zeros(128, 128, device="cuda", dtype=torch.bfloat16)
    for _ in range(4):
        for source in sources:
            for target in targets:
                h.boxes(source, target, padded)
                assert torch.equal(source, target)
    assert len(h.boxes.dispatcher.launcher.plans) == 1
    failures: list[int] = []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            own, rest = torch.zeros_like(sources[0]), torch.zeros_like(padded)
            for i in range(200):
                h.boxes(sources[(i * seed) % 5], own, rest)
                if i % 20 == 0 and not torch.equal(own, sources[(i * seed) % 5]):
                    failures.append(seed)

    torch.cuda.synchronize()
    workers = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not failures
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        h.boxes(sources[0], targets[1], padded)
    targets[1].zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(sources[0], targets[1])


# -- rings, wgmma and clusters -----------------------------------------------------------------------------


def products_parity() -> None:
    """Edges on every side, sums of nothing, more tiles than blocks, and slots that are used many times."""
    for size in ((128, 128, 64), (1, 8, 8), (200, 136, 72), (256, 384, 1024), (130, 264, 0)):
        parity(h.ring_gemm, *_problem(*size))
    parity(h.ring_gemm, *_problem(256, 512, 200), BN=256, STAGES=2)
    parity(h.ring_gemm, *_problem(256, 512, 200), BN=192)


def clusters_parity() -> None:
    for size in ((256, 256, 128), (130, 520, 328), (1000, 200, 64)):
        for shape in ({"CM": 2}, {"CN": 2}, {"CM": 4}, {"CM": 2, "CN": 2}):
            parity(h.ring_gemm, *_problem(*size), **shape)


def clusters_share_global_memory() -> None:
    import torch

    X = torch.randint(-9, 9, (128, 8192), device="cuda").float()
    exact = X.view(16, 8, -1).sum(1).repeat_interleave(8, 0)
    Y, out = torch.empty_like(X), torch.empty_like(X)
    for _ in range(300):
        Y.fill_(float("nan"))
        h.sums_of_a_cluster(X, Y, out)
        assert bool((out == exact).all())
    A = np.random.default_rng(0).integers(-9, 9, (16, 256)).astype(np.float32)
    parity(h.sums_of_a_cluster, A, np.zeros_like(A), np.zeros_like(A))


def large_products() -> None:
    import torch

    for m, n, depth in ((2048, 4096, 1024), (4096, 1000, 2048)):
        torch.manual_seed(m)
        A, B = (torch.randn(rows, depth, device="cuda").bfloat16() for rows in (m, n))
        exact = A.double() @ B.double().T
        bound = 2.0**-8 * exact.abs() + -(-depth // 16) * 5.25 * 2.0**-23 * (A.double().abs() @ B.double().abs().T)
        for consts in ({}, {"CM": 2}, {"CM": 2, "BN": 256}):
            C = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
            for _ in range(3):
                C.fill_(float("nan"))
                h.ring_gemm(A, B, C, **consts)
            assert bool(((C.double() - exact).abs() <= bound + 1e-40).all()), (m, n, depth, consts)


def rings_that_threads_read_parity() -> None:
    """By ldmatrix, as fragments and element by element; alone, in clusters, and besides products."""
    for size in ((128, 128, 64), (200, 136, 72), (520, 264, 1024), (1000, 1000, 328)):
        for consts in ({}, {"CM": 2}, {"CN": 2}, {"CM": 2, "CN": 2}, {"WARPGROUPS": 1, "INSTANCES": 2}):
            parity(plain.by_mma_sync, *_problem(*size), **consts)
    A = np.random.default_rng(0).standard_normal((1000, 2048), np.float32)
    for way in ("fragment", "elements"):
        parity(plain.sums, A, np.full((1000, 32), np.nan, np.float32), WAY=way)
    A, B, _ = _problem(512, 64, 2000)
    for in_flight in (0, 1):
        C, S = np.full((512, 64), np.nan, np.float32), np.full(512, np.nan, np.float32)
        parity(plain.read_besides, A, B, C, S, IN_FLIGHT=in_flight)
        for first in (False, True):
            parity(plain.mixed_uses, A, B, C, S, IN_FLIGHT=in_flight, FIRST=first, GROUPS=2)


def rings_that_threads_read_under_load() -> None:
    """TMA overtakes no read: every launch gives the same bits. Without the proxy fence that ends a use, 190 of 311
    launches at 8192 were wrong on an H200, each in a few rows of 64 columns."""
    import torch

    for size, launches in ((4096, 400), (8192, 200)):
        torch.manual_seed(size)
        A, B = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
        exact, of_absolutes = A.double() @ B.double(), A.double().abs() @ B.double().abs()
        bound = 2.0**-8 * exact.abs() + size // 16 * 5.25 * 2.0**-23 * of_absolutes + 1e-40
        for consts in ({}, {"CM": 2}, {"STAGES": 2}):
            first, C = (torch.full((size, size), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2))
            h.ring_mma(A, B, first, **consts)
            assert bool(((first.double() - exact).abs() <= bound).all()), (size, consts)
            wrong = torch.zeros((), device="cuda", dtype=torch.int64)
            for _ in range(launches):
                C.fill_(float("nan"))
                h.ring_mma(A, B, C, **consts)
                wrong += torch.ne(C, first).any()
            assert not int(wrong), f"{int(wrong)} of {launches} launches at {size}, {consts}"


def rings_that_threads_fill_parity() -> None:
    """For products, by stmatrix, as fragments and element by element; and for other threads."""
    for size in ((64, 64, 32), (200, 136, 72), (520, 264, 1024), (1000, 1000, 328)):
        for way in ("matrix", "fragment", "elements"):
            for consts in ({}, {"GROUPS": 2}, {"IN_FLIGHT": 0}, {"CM": 2}, {"INSTANCES": 2}):
                A, B, C = _problem(*size)
                parity(ends.converted, A.astype(np.float32) * np.float32(1.001), B, C, WAY=way, **consts)
    for columns in (128, 120):
        A = np.random.default_rng(columns).standard_normal((1000, columns), np.float32)
        for one in ("", "fills", "uses"):
            parity(ends.relayed, A, np.full_like(A, np.nan), ONE=one)


def rings_that_one_thread_uses_parity() -> None:
    """It adds up elements, and it stores by TMA what others have put there."""
    A = np.random.default_rng(0).standard_normal((1000, 2048), np.float32)
    for consts in ({}, {"WAY": "take"}, {"STAGES": 1}):
        parity(ends.totals, A, np.full(1000, np.nan, np.float32), **consts)
    for size in ((64, 64, 64), (200, 136, 72), (520, 264, 1024), (1000, 1000, 328)):
        parity(ends.stored_by_one, *_problem(*size))
    parity(ends.exchanged, *(np.full((64, 64), x, ml_dtypes.bfloat16) for x in (5, 0)))


def rings_that_threads_fill_under_load() -> None:
    """No product, and no store by TMA, is ahead of what threads have written, and nobody writes what is still read:
    every launch gives the same bits."""
    import torch

    size, launches = 4096, 200
    torch.manual_seed(size)
    A, B = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
    exact, of_absolutes = A.double() @ B.double().T, A.double().abs() @ B.double().abs().T
    bound = 2.0**-8 * exact.abs() + size // 16 * 5.25 * 2.0**-23 * of_absolutes + 1e-40
    wide = A.float()
    runs = [(ends.converted, wide, {"WAY": way, "GROUPS": g}) for way in ("matrix", "elements") for g in (1, 2)]
    for kernel, left, consts in (*runs, (ends.stored_by_one, A, {})):
        first, C = (torch.full((size, size), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2))
        kernel(left, B, first, **consts)
        assert bool(((first.double() - exact).abs() <= bound).all()), (kernel.name, consts)
        wrong = torch.zeros((), device="cuda", dtype=torch.int64)
        for _ in range(launches):
            C.fill_(float("nan"))
            kernel(left, B, C, **consts)
            wrong += torch.ne(C, first).any()
        assert not int(wrong), f"{int(wrong)} of {launches} launches of {kernel.name}, {consts}"


def arrays_without_elements() -> None:
    import torch

    for m, n, depth in ((0, 8, 8), (8, 0, 8), (128, 128, 0), (0, 0, 0)):
        A, B = (torch.ones(rows, depth, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
        C = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        for _ in range(2):
            h.ring_gemm(A, B, C)
        assert not C.any()


def launches_that_overlap() -> None:
    """A grid that begins early sees everything of the one before it."""
    import torch

    X, Y = torch.zeros(1 << 22, device="cuda"), torch.zeros(1 << 22, device="cuda")
    for value in range(100):
        h.produces(X, float(value))
        h.consumes(X, Y)
        if value % 10 == 0:
            assert bool((value + 1 == Y).all()), value
    parity(h.consumes, np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32))


# -- schedules that the compiler does not know ---------------------------------------------------------------


def _integers(*shape: int, seed: int = 0) -> Array:
    """Small, so that sums are exact in any order."""
    return np.random.default_rng([*shape, seed]).integers(-4, 5, shape).astype(np.float16)


def schedules_parity() -> None:
    """The emulator has 8 processors and the GPU more, so that other blocks compute other parts; sums are exact."""
    for sizes in ([0], [0, 0, 128, 1], [70, 0, 130, 64, 1, 0, 300], [64] * 40):
        rows = max(1, sum(sizes))
        A, B, C = _integers(rows, 136), _integers(len(sizes), 200, 136), np.full((rows, 200), 7, np.float32)
        for kernel in (schedules.grouped, schedules.grouped_in_turns):
            parity(kernel, A, B, C.copy(), np.array(sizes, np.int32))
    for m, n, depth in ((136, 72, 328), (330, 264, 520), (64, 8, 4096), (300, 72, 0)):
        A, B = _integers(m, depth), _integers(n, depth, seed=1)
        for instances in (1, 2):
            parity(schedules.stream_k, A, B, np.full((m, n), 3, np.float32), INSTANCES=instances)
            for parts in (2, 5):
                sums = np.full((m, n), 3, np.float32)
                parity(schedules.split_unequally, A, B, sums, PARTS=parts, INSTANCES=instances)
                parity(schedules.split, A, B, sums, SPLITS=parts, INSTANCES=instances)
        parity(schedules.two_schedules, A, B, np.full((m, n), np.nan, np.float32))
        parity(schedules.triangle, A, np.full((m, m), 7, np.float32))
    for cluster in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1)):
        parity(schedules.by_columns, *_problem(520, 264, 328), CM=cluster[0], CN=cluster[1])
    for steps in ([3], [0, 0], [1, 4, 0, 2] * 10):
        ends = np.cumsum([0, *steps]).astype(np.int32)
        A, B = _integers(200, 64 * sum(steps)), _integers(136, 64 * sum(steps), seed=1)
        for instances in (1, 2):
            sums = np.full((len(steps), 200, 136), np.nan, np.float32)
            parity(schedules.grouped_along_k, A, B, sums, ends, INSTANCES=instances)
    X = np.random.default_rng(0).integers(-9, 9, (1000, 37)).astype(np.float32)
    parity(schedules.sums_of_rows, X, np.full(1000, np.nan, np.float32))


def schedules_under_load() -> None:
    """Many items for each block, of many lengths, launch after launch."""
    import torch

    def integers(*shape: int) -> Any:
        return torch.randint(-4, 5, shape, device="cuda").half()

    torch.manual_seed(0)
    random = np.random.default_rng(0)
    for _ in range(20):
        sizes = random.choice([0, 1, 64, 128, 777, *random.integers(1, 2000, 5)], 16)
        rows, n, depth = int(sizes.sum()) + 1, 8 * int(random.integers(1, 128)), 8 * int(random.integers(1, 200))
        A, B = integers(rows, depth), integers(16, n, depth)
        expected = torch.full((rows, n), 7.0, device="cuda")
        for group, (first, size) in enumerate(zip(np.cumsum(sizes) - sizes, sizes, strict=True)):
            expected[first : first + size] = A[first : first + size].float() @ B[group].float().T
        for kernel in (schedules.grouped, schedules.grouped_in_turns):
            C = torch.full((rows, n), 7.0, device="cuda")
            kernel(A, B, C, torch.tensor(sizes.astype(np.int32), device="cuda"))
            assert torch.equal(C, expected), (kernel, sizes, n, depth)
        m = int(random.integers(1, 3000))
        A, B = integers(m, depth), integers(n, depth)
        exact = A.float() @ B.float().T
        for kernel in (schedules.stream_k, schedules.split_unequally, schedules.split):
            for instances in (1, 2):
                C = torch.zeros((m, n), device="cuda")
                kernel(A, B, C, INSTANCES=instances)
                assert torch.equal(C, exact), (kernel, instances, m, n, depth)


# -- any product -------------------------------------------------------------------------------------------

PRODUCTS = {
    "early, pairs of blocks": (300, 264, 72),
    "early, by lines, both operands copied": (133, 217, 129),
    "early, by lines, one operand copied": (300, 391, 200),
    "narrow": (200, 40, 72),
    "in parts": (270, 70, 2048),
    "in many parts": (70, 30, 64 * 130),
}


def any_product() -> None:
    """`gemm` gives the emulator's bits in all its ways, orders and strides, with what comes behind the product."""
    from tiledsl.gemm import gemm
    from tiledsl.gemm.epilogue import add_bias

    for name, (m, n, depth) in PRODUCTS.items():
        A, Bt, C = _problem(m, n, depth)
        bias = np.linspace(-2, 2, n, dtype=np.float32)
        for a, b, c in ((A, Bt.T, C), (A, Bt.T.copy(), C), (np.asfortranarray(A), Bt.T, np.asfortranarray(C))):
            for more in ((), (0.5, -1.5, bias, add_bias)):
                old = np.ones_like(c) if more else c
                found, expected = old.copy(order="K"), old.copy(order="K")
                gemm(a, b, found, *more, device="gpu")
                gemm(a, b, expected, *more, device="emulator")
                assert same_bits(found, expected), (name, a.strides, b.strides, more[:2])


def copies_parity() -> None:
    """`pad` and `pad_both` by themselves, launched early and not."""
    from tiledsl.gemm.pad import pad, pad_both

    X, Z = _numbers((3, 37, 301), np.float16), _numbers((3, 90, 7), np.float16)
    for early in (False, True):
        Y, W = np.full((3, 37, 304), np.nan, np.float16), np.full((3, 90, 8), np.nan, np.float16)
        parity(pad, X, Y.copy(), EARLY=early)
        parity(pad_both, X, Y, Z, W, EARLY=early)


def products_in_a_row() -> None:
    """Each needs the result of the one before, and workspaces and results are used again: without a pause, with
    kernels of torch in between, and in a graph it is as one by one."""
    import torch

    from tiledsl.gemm import gemm

    def steps(way: str, X: Any, B: Any, Y: Any) -> None:
        size = len(X)
        for _ in range(15):
            for source, target in ((X, Y), (Y, X)) if X.shape == Y.shape else ((X, Y),):
                gemm(source, B, target, size**-0.5)
                if way == "with torch":
                    target.neg_()
                    target.neg_()
                if way == "alone":
                    torch.cuda.synchronize()
            if X.shape != Y.shape:
                X[:, :size] = Y

    for size, depth in ((1000, 1000), (777, 777), (1001, 1001), (512, 4096), (128, 8192), (60, 8192)):
        torch.manual_seed(size)
        first, B = (torch.randn(*shape, device="cuda").bfloat16() for shape in ((size, depth), (depth, size)))
        found: dict[str, Any] = {}
        for way in ("alone", "in a row", "with torch", "in a graph"):
            X, Y = first.clone(), torch.full((size, size), float("nan"), device="cuda", dtype=torch.bfloat16)
            if way == "in a graph":
                graph = torch.cuda.CUDAGraph()
                torch.cuda.synchronize()
                with torch.cuda.graph(graph):
                    steps(way, X, B, Y)
                graph.replay()
            else:
                steps(way, X, B, Y)
            torch.cuda.synchronize()
            found[way] = torch.cat([X.flatten(), Y.flatten()])
        assert bool(found["alone"].isfinite().all()), size
        assert all(torch.equal(found["alone"], last) for last in found.values()), size


def bench_command() -> None:
    """The benchmark of this package runs from end to end."""
    from tiledsl.__main__ import main

    file = str(Path(__file__).parent / "hopper_kernels.py")
    small = ["--sizes", "512", "1000x520x264", "--rounds", "3", "--seconds", "0.005"]
    assert main(["bench", f"{file}:ring_gemm", f"{file}:ring_gemm:CM=2", *small, "--load", "burst", "sustained"]) == 0


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
