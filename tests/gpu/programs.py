"""What the GPU tests do: each function runs in a process of its own, since some of them kill their context.

``python tests/gpu/programs.py NAME`` runs one by hand.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import kernels as k

from tiledsl.errors import DeviceError, KernelArgumentError
from tiledsl.measure import gemm_bound

Array = Any
FAR = 2**31 - 2**21
"""An index far outside any allocation that still fits in 32 bits."""


def raises(kind: type[Exception] | tuple[type[Exception], ...], call: Any, *parts: str) -> str:
    """Call and check that each of `parts` is in the error's text."""
    try:
        call()
    except kind as error:
        text = str(error)
        assert all(p in text for p in parts), f"{parts} not all in: {text}"
        return text
    raise AssertionError(f"no {kind}")


def problem(m: int, n: int, depth: int, seed: int = 0) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(seed)
    A = random.standard_normal((m, depth), dtype=np.float32)
    B = random.standard_normal((depth, n), dtype=np.float32)
    return A, B, np.full((m, n), np.nan, np.float32)


def emulated(kernel: Any, *args: Any, **consts: Any) -> list[Any]:
    """Copies of the arguments after a run on the emulator."""
    copies = [a.copy(order="K") if isinstance(a, np.ndarray) else a for a in args]
    kernel(*copies, device="emulator", **consts)
    return copies


def same_bits(a: Array, b: Array) -> bool:
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def parity(kernel: Any, *args: Any, **consts: Any) -> None:
    """The GPU's results are the emulator's, bit for bit, in every array."""
    expected = emulated(kernel, *args, **consts)
    kernel(*args, device="gpu", **consts)
    for got, want in zip(args, expected, strict=True):
        if isinstance(got, np.ndarray):
            assert same_bits(got, want), f"{kernel.name}: {np.count_nonzero(got != want)} of {got.size} differ"


# -- parity with the emulator ------------------------------------------------------------------------------


def numpy_arrays_and_parity() -> None:
    for m, n, depth in ((1, 1, 1), (16, 16, 16), (33, 17, 45), (100, 7, 0), (65, 130, 31)):
        for tile in (8, 16, 32):
            parity(k.gemm, *problem(m, n, depth), T=tile)
    A, B, C = problem(33, 17, 45)
    parity(k.gemm, A, B, np.ones_like(C), 0.3, -1.7)
    assert k.gemm.verify(lambda A, B, C, a, b: A.astype(np.float64) @ B, A, B, C, bound=gemm_bound(A, B))


def functions_and_casts_parity() -> None:
    random = np.random.default_rng(3)
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, 65504, 65520, 1e10], np.float32)
    X = np.concatenate([random.standard_normal(2000).astype(np.float32) * 20, special])
    parity(k.functions, X, np.zeros((8, X.size), np.float32))


def warps_and_atomics_parity() -> None:
    X = np.random.default_rng(4).integers(-1000, 1000, 1000).astype(np.int32)
    parity(k.warp_sums, X, np.zeros_like(X), np.zeros(1, np.int32))


def dtypes_and_strides_parity() -> None:
    random = np.random.default_rng(5)
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint16, np.int64, np.bool_):
        base = random.integers(0, 2 if dtype is np.bool_ else 100, (40, 70)).astype(dtype)
        for view in (base, base.T, base[::2, 3:], base[::-1, ::-3], np.broadcast_to(base[:1], (9, 70)), base[:, :1]):
            target = np.zeros(view.shape[::-1], dtype).T
            parity(k.copy_2d, view, target)
            assert same_bits(view, target)


def vectors_parity() -> None:
    for m, n in ((3, 128), (5, 256), (2, 132)):
        X = np.random.default_rng(6).standard_normal((m, n), dtype=np.float32)
        parity(k.vectors, X, np.zeros_like(X))


# -- arrays in place -----------------------------------------------------------------------------------------


def torch_launches_follow_names() -> None:
    """A launch that is known is forgotten when a helper, or what it reads, has changed."""
    import torch

    X = torch.arange(100, device="cuda", dtype=torch.float32)
    Y = torch.zeros_like(X)
    plans = k.scaled.dispatcher.launcher.plans

    def gives(value: float) -> bool:
        for _ in range(3):
            Y.zero_()
            k.scaled(X, Y)
            assert torch.equal(Y, X * value)
        return len(plans) == 1

    assert gives(2.0)
    k.FACTORS[0] = 3.0
    assert gives(3.0)
    k.factor = lambda: 4.0
    assert gives(4.0)
    assert len(k.scaled.builds._known) == 3


def arrays_of_any_library_find_their_plan() -> None:
    """The second call of a shape makes none, and gives the same bits; so does time()."""
    import torch

    class Interface:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor, self.__cuda_array_interface__ = tensor, tensor.__cuda_array_interface__

    arrays = problem(100, 70, 50)
    expected = emulated(k.gemm, *arrays)[2]
    plans = k.gemm.dispatcher.launcher.plans
    in_place = lambda x: Interface(torch.from_numpy(x).cuda())  # noqa: E731
    # The emulator has one; what is copied to the GPU is described alike, whoever has it.
    for of, known in ((np.asarray, 2), (torch.from_numpy, 2), (in_place, 3)):
        for _ in range(3):
            A, B, C = (of(x) for x in arrays)
            k.gemm(A, B, C, device="gpu")
        k.gemm.time(A, B, C, repeat=2, device="gpu")
        assert len(plans) == known
    A, B, C = (torch.from_numpy(x).cuda() for x in problem(100, 70, 50))
    for _ in range(3):
        C.fill_(float("nan"))
        k.gemm(Interface(A), Interface(B), Interface(C))
        assert same_bits(C.cpu().numpy(), expected)


def torch_in_place() -> None:
    import torch

    A, B, C = (torch.from_numpy(x).cuda() for x in problem(100, 70, 50))
    expected = torch.from_numpy(emulated(k.gemm, *problem(100, 70, 50))[2]).cuda()
    launcher = k.gemm.dispatcher.launcher
    k.gemm(A, B, C)
    assert torch.equal(C, expected)
    assert len(launcher.plans) == 2  # the emulator has its own
    for _ in range(3):
        C.fill_(float("nan"))
        k.gemm(A, B, C)
        assert torch.equal(C, expected)
    assert len(launcher.plans) == 2
    wide = torch.zeros(100, 200, device="cuda")
    k.gemm(A.t().contiguous().t(), B, wide[:, 3:73])
    assert torch.equal(wide[:, 3:73], expected) and not wide[:, 73:].any()
    half = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    out = torch.zeros_like(half)
    k.copy_2d(half, out)
    assert torch.equal(half, out)
    codes = torch.arange(256, device="cuda", dtype=torch.uint8).reshape(16, 16)
    for eight_bits in (torch.float8_e4m3fn, torch.float8_e5m2):
        target = torch.zeros_like(codes)
        k.copy_2d(codes.view(eight_bits), target.view(eight_bits))
        assert torch.equal(codes, target)
    raises(KernelArgumentError, lambda: k.gemm(A, B, A[:, :50]), "gemm()")
    raises(KernelArgumentError, lambda: k.copy_2d(half, half), "shares memory with X")
    raises(KernelArgumentError, lambda: k.copy_2d(half, out[:1].expand(64, 64)), "several of its elements are one")
    raises(KernelArgumentError, lambda: k.gemm(A, B.cpu(), C), "A is in the memory of GPU 0, but B in host memory")
    raises(KernelArgumentError, lambda: k.gemm(A, B, C, device="emulator"), "pass NumPy arrays")
    joint = torch.randn(64, 128, device="cuda")
    k.copy_2d(joint[:, :64], joint[:, 64:])
    assert torch.equal(joint[:, :64], joint[:, 64:])
    assert k.gemm.verify(lambda A, B, C, a, b: (A.double() @ B.double()).float(), A, B, C, bound=1e-4)
    assert k.gemm.time(A, B, C).where == "gpu"


def current_stream() -> None:
    import torch

    side = torch.cuda.Stream()
    X = torch.zeros(1 << 24, device="cuda")
    k.fill(X, 0.0)
    assert X[:10].sum().item() == 0  # loads torch's own kernel, which takes longer than the sleep below
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # clocks: the kernel must wait for this on its stream
        k.fill(X, 1.0)
    assert not side.query()  # it still sleeps
    assert X[:10].sum().item() == 0  # the default stream has not seen it
    side.synchronize()
    assert X.sum().item() == X.numel()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        k.fill(X, 3.0)
    X.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert (X == 3).all()


def threads_share_a_kernel() -> None:
    import torch

    failures: list[str] = []

    def work(value: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            X = torch.zeros(1000 + value, device="cuda")
            for i in range(200):
                k.fill(X, float(value * 1000 + i))
                if i % 50 == 0 and not bool((value * 1000 + i == X).all()):
                    failures.append(f"{value} {i}")

    workers = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not failures, failures


def a_thread_without_a_context() -> None:
    import torch

    X = torch.zeros(1000, device="cuda")
    k.fill(X, 1.0)
    done: list[bool] = []

    def work() -> None:
        k.fill(X, 2.0)
        done.append(True)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    torch.cuda.synchronize()
    assert done and (X == 2).all()


def cupy_and_interfaces() -> None:
    import cupy
    import torch

    A, B, C = problem(40, 30, 20)
    expected = emulated(k.gemm, A, B, C)[2]
    on_gpu = [cupy.asarray(x) for x in (A, B, C)]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        k.gemm(*on_gpu)
        stream.synchronize()
    assert same_bits(cupy.asnumpy(on_gpu[2]), expected)

    class Interface:
        """Only __cuda_array_interface__."""

        def __init__(self, array: Any) -> None:
            self.__cuda_array_interface__ = array.__cuda_array_interface__
            self.array = array

    class Dlpack:
        """Only DLPack."""

        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self.array.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    for wrap in (Interface, Dlpack):
        tensors = [torch.from_numpy(x).cuda() for x in (A, B, C)]
        k.gemm(*(wrap(t) for t in tensors))
        torch.cuda.synchronize()
        assert same_bits(tensors[2].cpu().numpy(), expected), wrap.__name__
    half = torch.randn(30, 30, device="cuda").to(torch.bfloat16)
    target = torch.zeros_like(half)
    k.copy_2d(Dlpack(half), Dlpack(target))
    torch.cuda.synchronize()
    assert torch.equal(half, target)
    mixed = torch.zeros(40, 30, device="cuda")
    k.gemm(on_gpu[0], torch.from_numpy(B).cuda(), mixed)
    torch.cuda.synchronize()
    assert same_bits(mixed.cpu().numpy(), expected)


# -- sizes -----------------------------------------------------------------------------------------------------


def every_gpu_of_the_machine() -> None:
    """Tensors of another GPU than torch's current one: the launch goes where they are."""
    import torch

    for ordinal in range(torch.cuda.device_count()):
        X = torch.zeros(1000, device=f"cuda:{ordinal}")
        for value in (1.0, 2.0, 3.0):
            k.fill(X, value)
        torch.cuda.synchronize(ordinal)
        assert (X == 3).all()


def sizes_of_zero() -> None:
    import torch

    for m, n, depth in ((0, 5, 5), (5, 0, 5), (5, 5, 0), (0, 0, 0)):
        A, B, C = problem(m, n, depth)
        k.gemm(A, B, C, device="gpu")
        assert (C == 0).all()
        tensors = [torch.from_numpy(x).cuda() for x in problem(m, n, depth)]
        for _ in range(2):
            k.gemm(*tensors)
        assert (tensors[2] == 0).all()


def more_than_2_31_elements() -> None:
    import torch

    X = torch.zeros(70_000, 32_768, device="cuda", dtype=torch.float32)  # 2.29e9 elements, 9.2 GB
    X[-1, -1] = 5
    Y = torch.zeros(1, device="cuda")
    k.last_element(X, Y)
    assert Y.item() == 5 and X[-1, -1].item() == 7
    k.fill(X.view(-1), 2.0)
    assert X[-1, -1].item() == 2 and X[0, 0].item() == 2 and X[35_000, 17].item() == 2
    strided = X[::69_999, ::32_767]  # four elements, far apart
    out = torch.zeros(2, 2, device="cuda")
    X[-1, -1] = 9
    k.copy_2d(strided, out)
    assert out.flatten().tolist() == [2, 2, 2, 9]


def large_shared_memory() -> None:
    X = np.zeros(1, np.float32)
    for words in (1000, 16384, 57000):  # 4 KB, 64 KB and 223 KB
        k.big_shared(X, S=words, device="gpu")
        assert X[0] == words


def writes_count_versions_of_torch_tensors() -> None:
    """On the way of the launcher, too; a gradient that needs what was overwritten is torch's error."""
    import torch

    X = torch.zeros(64, device="cuda")
    for _ in range(4):
        before = X._version
        k.fill(X, 2.0)
        assert X._version == before + 1
    a = torch.ones(64, device="cuda", requires_grad=True)
    b = a * 2
    c = b.pow(2)  # saves b
    raises(KernelArgumentError, lambda: k.fill(b, 1.0), "requires a gradient", "no_grad")
    k.fill(b.detach(), 1.0)
    raises(RuntimeError, lambda: c.sum().backward(), "modified by an inplace operation")
    with torch.no_grad():
        k.fill(a, 3.0)
    with torch.inference_mode():
        k.fill(torch.zeros(64, device="cuda"), 3.0)
    assert (a == 3).all()


# -- failures ----------------------------------------------------------------------------------------------------


FAR_FAULTS = ("accessed an illegal address", "used an address of the wrong space")
"""What is 8 GB on from where the driver has put X this time: nothing, or a window of another space."""


def illegal_address() -> None:
    import torch

    X = torch.zeros(64, device="cuda")
    k.out_of_bounds(X, FAR)
    text = raises(DeviceError, lambda: k.gemm(*problem(8, 8, 8), device="gpu"), "kernel out_of_bounds() ")
    assert any(fault in text for fault in FAR_FAULTS), text
    raises(DeviceError, lambda: k.gemm(*problem(8, 8, 8), device="gpu"), "cannot be used any more by this process")
    raises(DeviceError, lambda: k.fill(X, 1.0), "out_of_bounds()")


def illegal_address_from_numpy() -> None:
    X = np.zeros(64, np.float32)
    text = raises(DeviceError, lambda: k.out_of_bounds(X, FAR, device="gpu"), "kernel out_of_bounds() ")
    assert any(fault in text for fault in FAR_FAULTS), text
    k.fill(X, 2.0, device="emulator")
    assert (X == 2).all()  # the emulator needs no context


def a_failed_assertion() -> None:
    k.asserting(np.ones(32, np.float32), device="gpu")
    X = np.ones(32, np.float32)
    X[7] = 0
    failed = "asserting(): assertion failed: X is positive; thread (7,) of block (0,)"
    raises(DeviceError, lambda: k.asserting(X, device="gpu"), failed, 'assert_(X[t] > 0, "X is positive")')
    raises(DeviceError, lambda: k.fill(X, 1.0, device="gpu"), failed)


def a_failed_assertion_seen_late() -> None:
    """A launch on arrays of torch returns at once; the next call into the driver says what happened."""
    import torch

    k.asserting(torch.zeros(32, device="cuda"))
    raises(Exception, torch.cuda.synchronize)
    raises(DeviceError, lambda: k.fill(np.ones(32, np.float32), 1.0, device="gpu"), "X is positive; thread")


def out_of_memory() -> None:
    import torch

    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - (1 << 30), dtype=torch.uint8, device="cuda")
    X = np.zeros((3 << 30) // 4, np.float32)
    raises(DeviceError, lambda: k.fill(X, 1.0, device="gpu"), "X needs 3.00 GiB of GPU memory", "are free")
    del hog
    torch.cuda.empty_cache()
    k.fill(X, 1.0, device="gpu")
    assert X[-1] == 1


def target_of_another_gpu() -> None:
    from tiledsl import tile_kernel

    foreign = tile_kernel(arch="sm_120a")(k.fill.fn)
    raises(
        DeviceError,
        lambda: foreign(np.zeros(4, np.float32), 1.0, device="gpu"),
        "is built for sm_120a",
        "cannot run it",
    )


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
