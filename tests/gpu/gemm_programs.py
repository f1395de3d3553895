"""What the GPU tests of `gemm` do: each function runs in a process of its own.

``python tests/gpu/gemm_programs.py NAME`` runs one by hand.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from programs import raises, same_bits

from tiledsl import Fragment, Memory, exp, f32, index, maximum, tile_function
from tiledsl.errors import DeviceError, KernelArgumentError
from tiledsl.gemm import formats, gemm, release, warmup
from tiledsl.gemm.formats import FLOATS
from tiledsl.ir.types import E4M3, F32, TF32

KINDS = {
    "one launch": (300, 264, 72),
    "both operands copied": (331, 217, 4043),
    "lines put in order": (133, 217, 129),
    "in parts": (270, 70, 2048),
    "in parts, by clusters": (270, 70, 9000),
}
"""Products of the kinds of launches that there are."""


def _tensors(m: int, n: int, k: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Small integers, whose products are exact."""
    import torch

    torch.manual_seed(seed)
    A, B = (torch.randint(-3, 4, shape, device="cuda").bfloat16() for shape in ((m, k), (k, n)))
    return A, B, torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)


def _exact(A: Any, B: Any) -> Any:
    return (A.double() @ B.double()).to(A.dtype)


def every_library() -> None:
    """NumPy, torch on both sides, CuPy, and DLPack without a library that is known."""
    import cupy
    import torch

    class Exporter:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

        def __dlpack__(self, **more: Any) -> Any:
            return self.tensor.__dlpack__(**more)

    for name, (m, n, k) in KINDS.items():
        A, B, C = (x.half() for x in _tensors(m, n, k))
        expected = _exact(A, B)
        assert torch.equal(gemm(A, B, C), expected), name
        assert torch.equal(gemm(A, B), expected) and gemm(A, B, out_dtype="f32").dtype == torch.float32, name
        made = gemm(cupy.asarray(A), cupy.asarray(B))
        assert isinstance(made, cupy.ndarray) and bool((made == cupy.asarray(expected)).all()), name
        C.zero_()
        torch.cuda.synchronize()
        gemm(Exporter(A), Exporter(B), Exporter(C))
        torch.cuda.synchronize()
        assert torch.equal(C, expected), name
        a, b = A.cpu(), B.cpu()
        assert torch.equal(gemm(a, b), expected.cpu()), name
        found = gemm(a.numpy(), b.numpy())
        assert same_bits(found, expected.cpu().numpy()), name
        assert same_bits(gemm(a.numpy(), b.numpy(), device="emulator"), found), name
    text = "A is in the memory of GPU 0, but B in host memory"
    raises(KernelArgumentError, lambda: gemm(A, B.cpu()), text)


def ragged_operands() -> None:
    """Lines that begin at multiples of 2, 4 and 8 bytes, loaded in parts and copied, in every order; and results whose
    rows TMA cannot store, in vectors of each width, beside what stays as it is."""
    import torch

    for m, n, k in ((133, 217, 129), (70, 1178, 357), (331, 509, 4043), (9, 66, 130), (700, 132, 36), (2062, 39, 34)):
        A, B, _ = _tensors(m, n, k)
        exact = A.double() @ B.double()
        for a in (A, A.T.contiguous().T):
            for b in (B, B.T.contiguous().T):
                assert torch.equal(gemm(a, b), exact.to(A.dtype)), (m, n, k, a.stride(), b.stride())
        for out in (torch.bfloat16, torch.float32):
            room = torch.full((m, n + 12), 7, device="cuda", dtype=out)
            for start in (0, 1, 2, 4):
                C = room[:, start : start + n]
                assert torch.equal(gemm(A, B, C), exact.to(out)), (m, n, k, start)
                C.fill_(7)
                assert bool((room == 7).all()), (m, n, k, start)


def shared_batches() -> None:
    """One matrix times many, in every way that it can be said."""
    import torch

    for m, n, k in ((128, 256, 64), (1, 512, 264), (77, 33, 129)):
        (A, B, _), (one, other, _) = _tensors(5 * m, n, k), _tensors(m, 5 * n, k, 1)
        A = A.view(5, m, k)
        many = other.view(k, 5, n).permute(1, 0, 2)
        for a, b in (
            (A, B),
            (A, B[None]),
            (A, B.expand(5, k, n)),
            (one, many),
            (one[None], many.contiguous()),
            (A, many),
        ):
            expected = _exact(a, b)
            assert torch.equal(gemm(a, b), expected), (m, n, k, a.stride(), b.stride())
            C = torch.empty(m, 5, n, device="cuda", dtype=a.dtype).transpose(0, 1)
            assert torch.equal(gemm(a, b, C), expected), (m, n, k, a.stride(), b.stride())


def sizes_of_nothing() -> None:
    import torch

    for m, n, k in ((0, 8, 8), (8, 0, 8), (0, 0, 0)):
        assert gemm(*_tensors(m, n, k)).shape == (m, n)
    A, B, C = _tensors(40, 32, 0)
    assert bool((gemm(A, B, C) == 0).all())
    C.fill_(3)
    assert bool((gemm(A, B, C, 1.0, 2.0) == 6).all())
    A, B, C = _tensors(300, 264, 72)
    A.fill_(float("nan"))
    assert bool((gemm(A, B, C, 0.0) == 0).all())
    assert bool((gemm(A, B, C.fill_(1), 0.0, -1.0) == -1).all())
    torch.cuda.synchronize()


def streams_and_threads() -> None:
    """Threads with a stream each, and several on one stream: workspaces are not shared by what runs at once."""
    import torch

    cases = [(name, _tensors(*size, seed)) for seed, (name, size) in enumerate([*KINDS.items(), *KINDS.items()])]
    expected = [_exact(A, B) for _, (A, B, _) in cases]
    torch.cuda.synchronize()
    wrong: list[str] = []

    def work(number: int, stream: Any, named: bool) -> None:
        name, (A, B, C) = cases[number]
        C = torch.empty_like(C)
        for _ in range(60):
            if named:
                gemm(A, B, C, stream=stream)
            else:
                with torch.cuda.stream(stream):
                    gemm(A, B, C)
            stream.synchronize()
            if not torch.equal(C, expected[number]):
                wrong.append(name)
            C.zero_()
            torch.cuda.current_stream().synchronize()

    shared = torch.cuda.Stream()
    for streams in ([torch.cuda.Stream() for _ in cases], [shared] * len(cases)):
        for named in (False, True):
            threads = [threading.Thread(target=work, args=(i, stream, named)) for i, stream in enumerate(streams)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not wrong, wrong
    release()
    for (name, (A, B, C)), exact in zip(cases, expected, strict=True):
        assert torch.equal(gemm(A, B, C), exact), name


def captured_by_torch() -> None:
    """Graphs that were captured on one stream may run at the same time, and besides other calls."""
    import torch

    cases = {name: _tensors(*size, seed) for seed, (name, size) in enumerate(KINDS.items())}
    A, B, C = next(iter(cases.values()))
    torch.cuda.synchronize()

    def capture(*products: Any) -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for product in products:
                gemm(*product)
        return graph

    raises(DeviceError, lambda: capture((A, B, C)), "which is not loaded yet", "tiledsl.gemm.warmup(")
    torch.cuda.synchronize()
    warmup(KINDS.values())
    graphs = [capture(*cases.values()) for _ in range(3)]
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(30):
        for x in cases.values():
            x[2].zero_()
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        others = {name: gemm(A, B) for name, (A, B, _) in cases.items()}
        torch.cuda.synchronize()
        for name, (A, B, C) in cases.items():
            assert torch.equal(C, _exact(A, B)) and torch.equal(others[name], C), name


def captured_while_others_call() -> None:
    """Another thread compiles, loads code and allocates workspaces meanwhile."""
    import torch

    products = [_tensors(*size, seed) for seed, size in enumerate(KINDS.values())]
    A, B, C = _tensors(256, 256, 256)
    gemm(A, B, C)
    torch.cuda.synchronize()
    failed: list[Exception] = []

    def others() -> None:
        try:
            stream = torch.cuda.Stream()
            for a, b, c in products:
                gemm(a, b, c, stream=stream)
        except Exception as error:
            failed.append(error)

    graph, thread = torch.cuda.CUDAGraph(), threading.Thread(target=others)
    with torch.cuda.graph(graph):
        gemm(A, B, C)
        thread.start()
        thread.join()
        gemm(A, B, C, 1.0)
    assert not failed, failed
    C.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(C, _exact(A, B)) and all(torch.equal(c, _exact(a, b)) for a, b, c in products)


def captured_by_cupy() -> None:
    """In a graph of CuPy the workspace is that of the stream, which `warmup` allocates."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    size = KINDS["both operands copied"]
    A, B, _ = (cupy.asarray(x.half()) for x in _tensors(*size))
    C = cupy.zeros(size[:2], "float16")
    expected = (A.astype("float64") @ B.astype("float64")).astype("float16")
    cupy.cuda.Device().synchronize()

    def capture() -> Any:
        with stream:
            stream.begin_capture()
            try:
                gemm(A, B, C)
            finally:
                graph = stream.end_capture()
        return graph

    raises(DeviceError, capture, "which is not loaded yet", "tiledsl.gemm.warmup(")
    warmup([size], "f16", stream=0)
    raises(DeviceError, capture, "needs a workspace of", "tiledsl.gemm.warmup(")
    warmup([size], "f16", stream=stream)
    graph = capture()
    graph.launch(stream)
    stream.synchronize()
    assert bool((expected == C).all())


def bits_of_the_emulator() -> None:
    """Sums that round: whole tiles, parts of k, few rows, also 100 times in a row."""
    import torch

    for m, n, k in ((300, 264, 72), (3, 520, 2048), (70, 136, 4104), (128, 192, 9000), (512, 64, 3000)):
        torch.manual_seed(m)
        A, B = (torch.randn(shape, device="cuda").bfloat16() for shape in ((m, k), (k, n)))
        for right in (B, B.T.contiguous().T):
            found = gemm(A, right)
            expected = torch.empty_like(found, device="cpu")
            gemm(A.cpu(), right.cpu(), expected, device="emulator")
            assert same_bits(found.cpu().float().numpy(), expected.float().numpy()), (m, n, k)
            for _ in range(100):
                assert torch.equal(gemm(A, right), found), (m, n, k)


FORMATS = {
    ("float32", "float32"): ("float32", "bfloat16"),
    ("float8_e4m3fn", "float8_e4m3fn"): ("bfloat16", "float32", "float16", "float8_e4m3fn"),
    ("float8_e4m3fn", "float8_e5m2"): ("bfloat16", "float8_e5m2"),
    ("float8_e5m2", "float8_e5m2"): ("bfloat16",),
    ("int8", "int8"): ("int32",),
    ("uint8", "int8"): ("int32",),
    ("uint8", "uint8"): ("int32",),
}
"""dtypes of A and B, f32 standing for tf32, and some of C."""


def _of_format(a: str, b: str, m: int, n: int, k: int) -> tuple[Any, Any, dict[str, Any]]:
    """Small integers, whose products are exact, and what `gemm` needs besides."""
    import torch

    torch.manual_seed(m)
    low = 0 if "uint8" in (a, b) else -3
    A, B = (torch.randint(low, 4, shape, device="cuda").float() for shape in ((m, k), (k, n)))
    more = {"precision": "tf32"} if a == "float32" else {}
    return A.to(getattr(torch, a)), B.to(getattr(torch, b)), more


def every_format() -> None:
    """Every pair of dtypes, stored in every order and where TMA cannot read it; in one piece and in parts of k."""
    import torch

    sizes = ((300, 272, 320), (64, 128, 8192), (133, 217, 413), (7, 4096, 2048), (1000, 520, 1000))
    for (a, b), outs in FORMATS.items():
        for number, (m, n, k) in enumerate(sizes):
            A, B, more = _of_format(a, b, m, n, k)
            out = getattr(torch, outs[number % len(outs)])
            exact = A.double() @ B.double()
            if out.itemsize == 1:
                exact = exact.clamp(-torch.finfo(out).max, torch.finfo(out).max)
            for left in (A, A.T.contiguous().T):
                for right in (B, B.T.contiguous().T):
                    found = gemm(left, right, out_dtype=out, **more)
                    expected = exact.float().to(out) if out.is_floating_point else exact.to(out)
                    assert torch.equal(found.double(), expected.double()), (a, b, out, m, n, k)


def formats_of_results_that_tma_cannot_store() -> None:
    """Beside what stays as it is; scaled, added to, and with a bias."""
    import torch

    for (a, b), outs in FORMATS.items():
        A, B, more = _of_format(a, b, 150, 203, 64)
        exact = A.double() @ B.double()
        for out in outs:
            room = torch.full((150, 220), 7.0, device="cuda").to(getattr(torch, out))
            for start in (0, 1, 4, 8):
                C = room[:, start : start + 203]
                gemm(A, B, C, 2.0, -1.0, **more)
                top = torch.finfo(C.dtype).max if C.element_size() == 1 else 1e30
                expected = (2 * exact - 7).clamp(-top, top).float().to(C.dtype)
                assert torch.equal(C.double(), expected.double()), (a, b, out, start)
                C.copy_(torch.full_like(C, 7, dtype=torch.float32))
                assert bool((room.float() == 7).all()), (a, b, out, start)
        if "int8" not in a:
            bias = torch.arange(203, device="cuda").float()
            assert torch.equal(gemm(A, B, bias=bias, out_dtype="f32", **more).double(), exact + bias.double()), (a, b)
    A, B, _ = _of_format("int8", "int8", 64, 64, 64)
    for _ in range(2):  # also a call that looks up its launches
        raises(KernelArgumentError, lambda: gemm(A, B, alpha=0.5), "expected an integer up to 2^24")
        assert torch.equal(gemm(A, B, alpha=2.0).double(), 2 * (A.double() @ B.double()))


def formats_have_the_bits_of_the_emulator() -> None:
    """Sums that round, NaN and infinity; 8-bit integers of all values."""
    import torch

    for (a, b), outs in FORMATS.items():
        for m, n, k in ((96, 80, 288), (64, 64, 2176), (40, 56, 100)):
            A, B, more = _of_format(a, b, m, n, k)
            if "int8" in a:
                A, B = (torch.randint(0, 256, x.shape, device="cuda").to(torch.uint8).view(x.dtype) for x in (A, B))
            else:
                left, right = (torch.randn(x.shape, device="cuda").mul_(4) for x in (A, B))
                left[3, 5] = float("nan")
                if a != "float8_e4m3fn":
                    left[7, 2] = float("-inf")
                A, B = left.to(A.dtype), right.to(B.dtype)
            for out in outs:
                found = gemm(A, B, out_dtype=out, **more)
                expected = torch.empty_like(found, device="cpu")
                gemm(A.cpu(), B.cpu(), expected, device="emulator", **more)
                bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[found.element_size()]
                assert torch.equal(found.cpu().view(bits), expected.view(bits)), (a, b, out, m, n, k)


@tile_function
def _softened(x: Fragment[f32], bias: Memory[f32], at: Fragment[index]) -> Fragment[f32]:
    """An epilogue: what hardware approximates, a choice, and a bias."""
    return maximum(x / (1.0 + exp(-x)), 0.25 * x) + bias.get(at)


def epilogues_have_the_bits_of_the_emulator() -> None:
    """alpha, beta, a bias and an epilogue function, of every float format into every dtype of results; NaN, infinity
    and sums that no result can hold."""
    import torch

    m, n, k = 72, 80, 288
    names = {"bf16": "bfloat16", "f16": "float16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    dtypes = {dtype: getattr(torch, names.get(str(dtype), "float32")) for dtype in (*FLOATS, TF32)}
    for format in formats.FORMATS.values():
        if format.sums != F32 or format.a == F32:
            continue
        left, right = torch.randn(m, k, device="cuda").mul_(4), torch.randn(k, n, device="cuda").mul_(4)
        left[3, 5] = float("nan")
        left[7] *= 60
        if format.a != E4M3:  # which has no infinity
            left[9, 2] = float("inf")
        A, B = left.to(dtypes[format.a]), right.to(dtypes[format.b])
        bias, before = torch.randn(n, device="cuda"), torch.randn(m, n, device="cuda")
        bias[2], bias[5] = float("-inf"), float("nan")
        for precision in {TF32: ("tf32",)}.get(format.a, (None, "promoted")[: 1 + (A.element_size() == 1)]):
            for out in format.results:
                C, more = before.to(dtypes[out]), {"epilogue": _softened, "precision": precision}
                expected = C.cpu()
                gemm(A, B, C, 0.5, -2.0, bias=bias, **more)
                gemm(A.cpu(), B.cpu(), expected, 0.5, -2.0, bias=bias.cpu(), device="emulator", **more)
                bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[C.element_size()]
                assert torch.equal(C.cpu().view(bits), expected.view(bits)), (format, out, precision)


def promoted_sums() -> None:
    """Sums of 128 products each are added in f32: exact where tensor cores alone are not, and the emulator's bits."""
    import torch

    for a, b in (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")):
        for m, n, k in ((300, 272, 1024), (64, 128, 8192), (133, 217, 413), (1000, 520, 4096)):
            A, B, _ = _of_format(a, b, m, n, k)
            A, B = A.float().abs().to(A.dtype), B.float().abs().to(B.dtype)
            for right in (B, B.T.contiguous().T):
                found = gemm(A, right, precision="promoted", out_dtype="f32")
                assert torch.equal(found.double(), A.double() @ B.double()), (a, b, m, n, k)
        A, B = torch.randn(96, 640, device="cuda").to(A.dtype), torch.randn(640, 80, device="cuda").to(B.dtype)
        found = gemm(A, B, precision="promoted", out_dtype="f32")
        expected = torch.empty_like(found, device="cpu")
        gemm(A.cpu(), B.cpu(), expected, precision="promoted", device="emulator")
        assert torch.equal(found.cpu(), expected), (a, b)


def int4_weights() -> None:
    """Bits of the emulator, for whole numbers exact ones, and in a captured graph."""
    import torch

    from tiledsl.gemm import int4_gemm, pack_int4

    for dtype, zeros, out in ((torch.bfloat16, False, None), (torch.float16, True, torch.float32)):
        for m, n, k, group in ((1, 4096, 4096, 128), (40, 200, 1000, 64), (300, 330, 640, 32), (700, 1160, 2048, 128)):
            q, groups = torch.randint(0, 16, (k, n)), -(-k // group)
            scales = (torch.rand(groups, n) / 4 + 0.1).to(torch.float32 if zeros else dtype)
            points = torch.randint(0, 16, (groups, n)) if zeros else None
            X = torch.randn(m, k).to(dtype)
            W = pack_int4(q, scales.cuda(), points, group=group)
            C = torch.empty(m, n, dtype=out or dtype, device="cuda")
            found = int4_gemm(X.cuda(), W, C)
            if m * n * k < 1 << 26:
                expected = torch.empty(m, n, dtype=C.dtype)
                int4_gemm(X, pack_int4(q, scales, points, group=group), expected, device="emulator")
                assert torch.equal(found.cpu(), expected), (dtype, m, n, k)
            spread = [x.double().repeat_interleave(group, 0)[:k] for x in (scales, points if zeros else 8 + 0 * scales)]
            exact = X.double() @ ((q - spread[1]) * spread[0])
            error = (found.cpu().double() - exact).abs().max() / exact.abs().max()
            assert error < 2.0**-7, (dtype, m, n, k, float(error))
    graph = torch.cuda.CUDAGraph()
    X, C = X.cuda(), torch.zeros_like(C)
    with torch.cuda.graph(graph):
        int4_gemm(X, W, C)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(C, found)


def _scaled(a: str, b: str, m: int, n: int, k: int) -> tuple[Any, Any, Any, Any]:
    """Random operands that round, and scales of their blocks, of very different sizes."""
    import torch

    torch.manual_seed(m)
    A, B = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    of_a, of_b = (
        torch.randn(s, device="cuda").mul_(4).exp2_() for s in ((m, -(-k // 128)), (-(-k // 128), -(-n // 128)))
    )
    return A.to(getattr(torch, a)), B.to(getattr(torch, b)).T, of_a, of_b


def block_scales_are_exact() -> None:
    """Integers scaled by powers of two: operands in every order, scales in both, in one piece and in parts of k."""
    import torch

    for a, b in (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")):
        for m, n, k in ((300, 272, 1024), (64, 128, 8192), (133, 217, 413), (1000, 520, 4096), (4096, 2112, 896)):
            A, B, _ = _of_format(a, b, m, n, k)
            of_a, of_b = (
                torch.randint(-2, 3, x.shape, device="cuda").float().exp2_() for x in _scaled(a, b, m, n, k)[2:]
            )
            left = A.double() * of_a.double().repeat_interleave(128, 1)[:, :k]
            right = B.double() * of_b.double().repeat_interleave(128, 0).repeat_interleave(128, 1)[:k, :n]
            expected = left @ right
            for A_ in (A, A.T.contiguous().T):
                for B_ in (B, B.T.contiguous().T):
                    for scale_a, scale_b in ((of_a, of_b.T.contiguous().T), (of_a.T.contiguous().T, of_b)):
                        found = gemm(A_, B_, scale_a=scale_a, scale_b=scale_b, out_dtype="f32")
                        assert torch.equal(found.double(), expected), (a, b, m, n, k)
            bias = torch.arange(n, device="cuda").float()
            found = gemm(A, B, bias=bias, alpha=2.0, scale_a=of_a, scale_b=of_b)
            assert torch.equal(found, (2 * expected + bias.double()).bfloat16()), (a, b, m, n, k)


def block_scales_have_the_bits_of_the_emulator() -> None:
    """Sums that round; scales of 0, infinity and NaN; batches, whose B and scales are repeated or not."""
    import torch

    for a, b in (("float8_e4m3fn", "float8_e4m3fn"), ("float8_e4m3fn", "float8_e5m2")):
        for m, n, k in ((96, 200, 640), (64, 48, 2176), (5, 300, 1000), (257, 400, 400)):
            A, B, of_a, of_b = _scaled(a, b, m, n, k)
            for special in (False, True):
                if special:
                    of_a[1, 0], of_a[2, -1], of_a[3, 1], of_b[0, 0] = float("inf"), float("nan"), 0, float("-inf")
                    A[4] = torch.zeros(k, device="cuda").to(A.dtype)
                for scale_a in (of_a, of_a.T.contiguous().T):
                    found = gemm(A, B, scale_a=scale_a, scale_b=of_b, out_dtype="f32")
                    expected = torch.empty_like(found, device="cpu")
                    gemm(A.cpu(), B.cpu(), expected, scale_a=of_a.cpu(), scale_b=of_b.cpu(), device="emulator")
                    assert torch.equal(found.cpu().view(torch.int32), expected.view(torch.int32)), (
                        a,
                        b,
                        m,
                        n,
                        k,
                        special,
                    )
    A, B, of_a, of_b = _scaled("float8_e4m3fn", "float8_e4m3fn", 300, 144, 384)
    A, of_a = A.view(3, 100, 384), of_a.view(3, 100, 3)
    for right, by in ((B, of_b), (B.expand(3, -1, -1), torch.stack([of_b, 2 * of_b, -of_b]))):
        found = gemm(A, right, scale_a=of_a, scale_b=by)
        expected = torch.empty_like(found, device="cpu")
        gemm(A.cpu(), right.cpu(), expected, scale_a=of_a.cpu(), scale_b=by.cpu(), device="emulator")
        assert torch.equal(found.cpu().view(torch.int16), expected.view(torch.int16))


def every_tile_of_block_scales() -> None:
    """Each width, which reaches into one to three blocks of columns; instances, steps of two blocks, clusters; the
    emulator's bits."""
    import torch

    from tiledsl.gemm.choice import Variant
    from tiledsl.gemm.hopper import hopper_fastest

    A, B, of_a, of_b = (x[None] for x in _scaled("float8_e4m3fn", "float8_e4m3fn", 264, 720, 528))
    tiles = [(128, columns, 1) for columns in (256, 32, 64, 96, 112, 128, 144, 160, 176, 192)]
    tiles += [(64, 16, 2), (64, 32, 2), (64, 64, 2)]
    for number, tile in enumerate(tiles):
        along_m, along_n = ((1, 1), (2, 1), (1, 2))[number % 3]
        variant = Variant(tile, along_m=along_m, along_n=along_n)
        consts = variant.consts(0, 4, size=1, beside=4096) | {"HALVES": variant.in_halves}
        if tile[0] == 64:  # the last step has one block, not two
            consts |= {"BK": 256, "STAGES": 5 if tile[1] == 64 else 6}
        found = [torch.zeros(1, 264, 720, device=device) for device in ("cuda", "cpu")]
        for C, device in zip(found, (None, "emulator"), strict=True):
            arrays = (x.to(C.device) for x in (A, B))
            scales = {name: x.to(C.device) for name, x in (("scale_a", of_a), ("scale_b", of_b))}
            hopper_fastest(*arrays, C, **scales, device=device, PROMOTED=True, SCALED=True, **consts)
        assert torch.equal(found[0].cpu().view(torch.int32), found[1].view(torch.int32)), tile


def sums_in_halves() -> None:
    """Tiles of 128 x 256, one half of the columns after the other: the bits of tiles of 128 x 128, with scales and
    without, also where CTAs have several tiles, and of the emulator. Ten times, since warpgroups are out of step."""
    import torch

    from tiledsl.gemm.choice import Variant
    from tiledsl.gemm.hopper import hopper_fastest

    for m, n, k in ((264, 720, 528), (130, 300, 112), (70, 272, 256), (3000, 5000, 1040), (2176, 4096, 4096)):
        A, B, of_a, of_b = (x[None] for x in _scaled("float8_e4m3fn", "float8_e4m3fn", m, n, k))
        for scaled in (True, False):
            more: dict[str, Any] = {"scale_a": of_a, "scale_b": of_b} if scaled else {}

            def product(columns: int, device: Any = None, more: Any = more, scaled: bool = scaled, size: Any = (m, n),
                        operands: Any = (A, B)) -> Any:  # fmt: skip
                consts = Variant((128, columns, 1)).consts(0, 4, size=1, beside=4096)
                consts |= {"PROMOTED": True, "SCALED": scaled, "HALVES": columns == 256}
                C = torch.full((1, *size), 7.0, device="cpu" if device else "cuda")
                arrays = [x.to(C.device) for x in operands]
                hopper_fastest(*arrays, C, device=device, **{n: x.to(C.device) for n, x in more.items()}, **consts)
                return C.view(torch.int32)

            expected = product(128)
            for _ in range(10):
                assert torch.equal(product(256), expected), (m, n, k, scaled)
            if m * n * k < 1 << 27:
                assert torch.equal(product(256, "emulator"), expected.cpu()), (m, n, k, scaled)


def rows_within_sectors() -> None:
    """Results that are two products, of every other row: by many tiles, next to what stays as it is; a row is not
    finite."""
    import torch

    from tiledsl.gemm.choice import ranked
    from tiledsl.gemm.operands import described
    from tiledsl.gemm.plan import as_two, choice_as_two
    from tiledsl.gemm.prepared import launch_of, run_launch
    from tiledsl.gemm.sharded import SOMEWHERE
    from tiledsl.gemm.steps import problem_of, steps_of

    stream = torch.cuda.current_stream().cuda_stream
    for m, n, k, along_k in ((1040, 1240, 16, False), (2232, 1368, 104, True), (530, 5080, 72, False), (4, 8, 8, True)):
        A, B, _ = _tensors(m, n, k)
        B = B.T.contiguous().T if along_k else B
        A[1] = float("inf")
        room = torch.full((m + 2, n + 16), 7.0, device="cuda", dtype=torch.bfloat16)
        C = room[1:-1, 8:-8]
        of = described(A, B, C, None, None, None)
        problem = problem_of(of, 0.0, False, "sm_90a", 132)
        one = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        gemm(A[:-1], B, one[:-1])  # of an odd number of rows: as one
        gemm(A[-1:], B, one[-1:])
        for variant, _ in ranked(1000, choice_as_two(problem))[::5]:
            room.fill_(7.0)
            (step,) = steps_of(of, problem, as_two(problem, variant), None).launches
            addresses = A.data_ptr(), B.data_ptr(), C.data_ptr(), *SOMEWHERE[3:]
            run_launch(launch_of(step, SOMEWHERE, 0), stream, addresses, 1.0, 0.0)
            assert torch.equal(C.view(torch.int16), one.view(torch.int16)), (m, n, k, variant)
            around = torch.cat([room[0], room[-1], room[1:-1, :8].flatten(), room[1:-1, -8:].flatten()])
            assert bool((around == 7).all()), (m, n, k, variant)


def _of_planes(name: str, m: int, n: int, k: int) -> tuple[Any, Any]:
    """Random operands; those of bf16x6 of all sizes, each element by itself, those of f16x3 each row, or column."""
    import torch

    torch.manual_seed(m)
    A, B = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    shapes = (A.shape, B.shape) if name == "bf16x6" else ((m, 1), (1, n))
    return tuple(
        X * torch.randint(-20, 21, s, device="cuda").float().exp2() for X, s in zip((A, B), shapes, strict=True)
    )


def planes_are_accurate() -> None:
    """No further from the product than FFMA's sums may be; operands in every order, unaligned and with steps."""
    import torch

    for name in ("bf16x6", "f16x3"):
        for m, n, k in ((300, 272, 1024), (64, 128, 8192), (133, 217, 413), (1000, 520, 4096), (4096, 2112, 896)):
            A, B = _of_planes(name, m, n, k)
            exact, terms = A.double() @ B.double(), A.double().abs() @ B.double().abs()
            wide = torch.empty(m, 2 * k, device="cuda")
            wide[:, ::2] = A
            for left in (A, A.T.contiguous().T, wide[:, ::2]):
                for right in (B, B.T.contiguous().T):
                    found = gemm(left, right, precision=name)
                    assert bool(((found.double() - exact).abs() <= terms * (k + 24) * 2.0**-24).all()), (name, m, n, k)
            bias = torch.arange(n, device="cuda").float()
            C = torch.ones(m, n, device="cuda")
            expected = 2 * gemm(A, B, precision=name) + (-1 + bias)
            found = gemm(A, B, C, 2.0, -1.0, bias, precision=name)
            assert bool(((found - expected).abs() <= 2.0**-22 * (expected.abs() + n)).all()), (name, m, n, k)


def planes_have_the_bits_of_the_emulator() -> None:
    """In one piece and in parts of k, exchanged or not, batches; numbers that are not finite, huge and tiny."""
    import torch

    for name in ("bf16x6", "f16x3"):
        for m, n, k in ((96, 200, 640), (64, 48, 2176), (5, 300, 1000), (257, 400, 400), (1, 1, 1)):
            A, B = _of_planes(name, m, n, k)
            for special in (False, True):
                if special and m > 64:
                    A[1, 0], A[2, -1], A[3], A[4] = float("inf"), float("nan"), A[3] * 2.0**-120, 0
                    A[5, 1], A[6] = 3.4e38, A[6] * 2.0**-140
                    B[:, 7] *= 2.0**100
                    B[:, 8] *= 2.0**-100
                for left, right in ((A, B), (A.T.contiguous().T, B.T.contiguous().T)):
                    found = gemm(left, right, precision=name)
                    expected = torch.empty_like(found, device="cpu")
                    gemm(A.cpu(), B.cpu(), expected, precision=name, device="emulator")
                    bits = found.cpu().view(torch.int32), expected.view(torch.int32)
                    assert torch.equal(*bits), (name, m, n, k, special)
        A, B = (X.view(3, 100, X.shape[-1]) for X in (_of_planes(name, 300, 100, 384)[0], torch.randn(300, 56)))
        A, B = A[:, :, :100], B.cuda()
        found = gemm(A, B, precision=name)
        expected = torch.empty_like(found, device="cpu")
        gemm(A.cpu(), B.cpu(), expected, precision=name, device="emulator")
        assert torch.equal(found.cpu().view(torch.int32), expected.view(torch.int32)), name


def residues_have_the_bits_of_the_emulator() -> None:
    """f32 and f64, in every order, batches; numbers that are not finite, huge and tiny; alpha, beta and a bias."""
    import torch

    for name, dtype, bits in (("i8x8", torch.float32, torch.int32), ("i8x15", torch.float64, torch.int64)):
        tiny = 2.0**-130 if dtype is torch.float32 else 2.0**-1030

        def same(A: Any, B: Any, *more: Any, name: str = name, bits: Any = bits) -> bool:
            left, right = A.cpu(), B.cpu()
            found = gemm(A, B, *more, precision=name)
            on_host = [x.cpu() if isinstance(x, torch.Tensor) else x for x in more[1:]]
            before = None if not more or more[0] is None else more[0].new_ones(more[0].shape, device="cpu")
            expected = torch.empty_like(found, device="cpu") if before is None else before
            gemm(left, right, expected, *on_host, precision=name, device="emulator")
            return torch.equal(found.cpu().view(bits), expected.view(bits))

        for m, n, k in ((96, 200, 640), (5, 300, 1000), (257, 130, 400), (1, 1, 1), (130, 64, 3000)):
            torch.manual_seed(m)
            A, B = (torch.randn(shape, device="cuda", dtype=dtype) for shape in ((m, k), (k, n)))
            for special in (False, True):
                if special and m > 64:
                    A[1, 0], A[2, -1], A[3], A[4] = float("inf"), float("nan"), A[3] * tiny, 0
                    A[6] *= 2.0**100
                    B[:, 7] *= 2.0**100
                    B[:, 8] *= tiny
                for left, right in ((A, B), (A.T.contiguous().T, B.T.contiguous().T)):
                    assert same(left, right), (name, m, n, k, special)
            C = torch.ones(m, n, device="cuda", dtype=dtype)
            bias = torch.arange(n, device="cuda").float() if name == "i8x8" else None
            assert same(A, B, C, 0.3, -1.7, bias), (name, m, n, k)
        A, B = (torch.randn(shape, device="cuda", dtype=dtype) for shape in ((3, 100, 70), (3, 70, 56)))
        assert same(A, B) and same(A, B[:1]), name


def integers_with_scales_have_the_bits_of_the_emulator() -> None:
    """Of rows and columns, to every dtype; operands in every order, results that TMA cannot store."""
    import torch

    for m, n, k in ((96, 208, 640), (5, 300, 1000), (257, 130, 400), (1000, 1040, 2048)):
        torch.manual_seed(m)
        A, B = (torch.randint(-128, 128, s, device="cuda", dtype=torch.int8) for s in ((m, k), (k, n)))
        of_a, of_b = torch.rand(m, 1, device="cuda") / 50, torch.rand(1, n, device="cuda") / 50
        bias = torch.randn(n, device="cuda")
        for out in (torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.uint8):
            expected = torch.full((m, n), 3, dtype=out)
            on_host = {"scale_a": of_a.cpu(), "scale_b": of_b.cpu()}
            gemm(A.cpu(), B.cpu(), expected, 0.3, -0.7, bias.cpu(), **on_host, device="emulator")
            for left, right in ((A, B), (A.T.contiguous().T, B.T.contiguous().T)):
                C = torch.full((m, n), 3, dtype=out, device="cuda")
                gemm(left, right, C, 0.3, -0.7, bias, scale_a=of_a, scale_b=of_b)
                bits = torch.int32 if out.itemsize == 4 else torch.int16 if out.itemsize == 2 else torch.uint8
                assert torch.equal(C.cpu().view(bits), expected.view(bits)), (m, n, k, out)


def residues_are_accurate() -> None:
    """No further from the product than sums of the same dtype are."""
    import torch

    for name, dtype, unit in (("i8x8", torch.float32, 2.0**-24), ("i8x15", torch.float64, 2.0**-53)):
        for m, n, k in ((2048, 1024, 4096), (133, 217, 8192), (4096, 2112, 896)):
            torch.manual_seed(k)
            A, B = (torch.randn(shape, device="cuda", dtype=dtype) for shape in ((m, k), (k, n)))
            found, plain = gemm(A, B, precision=name), A @ B
            rows = [x[:8].cpu().numpy().astype("longdouble") for x in (A, B.T)]
            exact, terms = rows[0] @ rows[1].T, abs(rows[0]) @ abs(rows[1]).T
            errors = [float((abs(C[:8, :8].cpu().numpy() - exact) / terms).max() / unit) for C in (found, plain)]
            assert errors[0] <= max(errors[1], 2), (name, m, n, k, errors)


def every_tile_of_planes() -> None:
    """Widths, clusters, instances and parts of k, by the emulator's bits."""
    import torch

    from tiledsl.gemm.choice import Variant
    from tiledsl.gemm.formats import SPLITS
    from tiledsl.gemm.operands import described
    from tiledsl.gemm.plan import planes_by_variant
    from tiledsl.gemm.prepared import Prepared
    from tiledsl.gemm.steps import problem_of, steps_of

    tiles = [Variant((128, columns, 1)) for columns in (16, 64, 96, 112, 128, 160, 176, 192)]
    tiles += [Variant((64, 32, 2)), Variant((128, 96, 1), along_m=2, along_n=2), Variant((128, 64, 1), along_m=4)]
    tiles += [Variant((128, 96, 1), exchanged=True), Variant((128, 96, 1), parts=2), Variant((64, 32, 2), parts=3)]
    tiles += [Variant((128, 64, 1), parts=1, groups=3), Variant((128, 64, 1), parts=2, groups=2, exchanged=True)]
    for name, split in SPLITS.items():
        A, B = _of_planes(name, 264, 360, 500)
        for variant in tiles:
            found: list[Any] = []
            for at in ("cuda", "cpu"):
                C = torch.full((264, 360), float("nan"), device=at)
                of = described(A.to(at), B.to(at), C, None, None, None, name)
                problem = problem_of(of, 0.0, False, "sm_90a", 132)
                steps = steps_of(of, problem, planes_by_variant(problem, split, variant), None)
                if at == "cuda":
                    stream = torch.cuda.current_stream().cuda_stream
                    assert Prepared(0, steps, of).run(stream, of.addresses, 1.0, 0.0, None)
                    torch.cuda.synchronize()
                else:
                    _emulated(steps, of)
                found.append(C.cpu().view(torch.int32))
            assert torch.equal(*found), (name, variant)


def _emulated(steps: Any, of: Any) -> None:
    import numpy as np

    room, zeros = np.empty(steps.room + 256, np.uint8), np.zeros(steps.zeros + 256, np.uint8)
    addresses = (*of.addresses, *(x.ctypes.data + -x.ctypes.data % 256 for x in (room, zeros)))
    for step in steps.launches:
        step.kernel.dispatcher.run(step.values(addresses, -1, 1.0, 0.0, (of.given, room, zeros)), "emulator")


def batch_invariance() -> None:
    """A row has the same bits whatever m is, and whatever the other rows are."""
    import torch

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for n, k in ((264, 1544), (4096, 4096), (1000, 8192)):
            torch.manual_seed(n)
            A, B = (torch.randn(shape, device="cuda").to(dtype) for shape in ((5000, k), (k, n)))
            for right in (B, B.T.contiguous().T):
                alone = torch.cat([gemm(A[i : i + 1], right, batch_invariant=True) for i in range(0, 5000, 500)])
                for m in (2, 7, 16, 33, 64, 100, 257, 1000, 2049, 4999):
                    chosen = torch.randperm(5000, device="cuda")[:m]
                    found = gemm(A[chosen], right, batch_invariant=True)
                    here = torch.nonzero(chosen % 500 == 0)[:, 0]
                    assert torch.equal(found[here], alone[chosen[here] // 500]), (n, k, m)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
