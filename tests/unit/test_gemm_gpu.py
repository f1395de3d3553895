"""How `gemm` launches on a GPU, which is the emulator here: addresses, streams, workspaces, captured graphs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest

from tests.unit.emulated_gpu import EmulatedDriver, FakeCupy, FakeExporter, FakeTorch, aligned, install
from tests.unit.test_gemm_call import BF16, equal, exact, numbers, relu_bias
from tiledsl import Const, Float, Global, f32, grid, i32, threads, tile_kernel, u32
from tiledsl.dims import H, J, K, L, M, N, P, Q, R
from tiledsl.errors import DeviceError, KernelArgumentError
from tiledsl.gemm import call, gemm, release, workspace
from tiledsl.gemm.epilogue import Epilogue, add_bias
from tiledsl.gemm.plan import Plan, Problem, plan

D = TypeVar("D", bound=Float)
E = TypeVar("E", bound=Float)


@pytest.fixture(autouse=True)
def padded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small operands are copied here as large ones are, so that there are several launches and a workspace."""
    monkeypatch.setattr("tiledsl.gemm.plan.loads_apart", lambda _: False)
    plan.cache_clear()
    yield
    plan.cache_clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> EmulatedDriver:
    made = EmulatedDriver()
    install(monkeypatch, made)
    return made


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, gpu: EmulatedDriver) -> Any:
    return install(monkeypatch, gpu)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that were checked and described."""
    calls: list[Any] = []
    function = call._call
    monkeypatch.setattr(call, "_call", lambda *args: (calls.append(args), function(*args))[1])
    return calls


def tensors(m: int, n: int, k: int, seed: int = 0) -> list[FakeTorch]:
    arrays = numbers(m, k, seed=seed), numbers(k, n, seed=seed + 1), np.full((m, n), np.nan, BF16)
    return [FakeTorch(aligned(x)) for x in arrays]


def right(A: FakeTorch, B: FakeTorch, C: FakeTorch) -> bool:
    return equal(C.array, exact(A.array, B.array))


PRODUCTS = {
    "one launch": (40, 32, 24, "hopper_fastest"),
    "both operands copied": (40, 31, 23, "pad_both"),
    "A copied": (40, 32, 23, "pad"),
    "k is cut": (40, 32, 2048, "hopper_fastest"),
}
"""And the kernel that is launched first."""


@pytest.mark.parametrize("name", PRODUCTS)
def test_later_calls_only_look_up(name: str, gpu: EmulatedDriver, slow: list[Any]) -> None:
    m, n, k, first = PRODUCTS[name]
    launches: list[Any] = []
    for seed in range(3):
        A, B, C = tensors(m, n, k, seed)
        assert gemm(A, B, C) is C
        assert right(A, B, C) and C.version == 1
        launches.append([(kernel, stream) for kernel, stream, _ in gpu.launched])
        gpu.launched.clear()
    assert len(slow) == 1
    assert launches[0][0] == (first, 7) and launches == [launches[0]] * 3


def test_c_is_allocated(gpu: EmulatedDriver, slow: list[Any]) -> None:
    for _ in range(2):
        A, B, _ = tensors(40, 32, 24)
        C = gemm(A, B)
        assert C.dtype == "torch.bfloat16" and right(A, B, C)
        D = gemm(A, B, out_dtype="torch.float32")
        assert D.dtype == "torch.float32" and right(A, B, D)
    assert len(slow) == 2


def test_what_the_launch_depends_on_is_looked_up(gpu: EmulatedDriver, slow: list[Any]) -> None:
    A, B, C = tensors(40, 32, 24)
    bias = FakeTorch(aligned(numbers(32, dtype=np.float32)))
    old = FakeTorch(aligned(numbers(40, 32)))
    more: list[dict[str, Any]] = [
        {"A": FakeTorch(aligned(A.array, 2))},
        {"A": FakeTorch(aligned(np.asfortranarray(A.array)))},
        {"alpha": 0.0},
        {"alpha": 2},
        {"C": old, "beta": 1.0},
        {"bias": bias},
        {"bias": bias, "epilogue": relu_bias},
        {"stream": 11},
    ]
    for count, changed in enumerate([{}, *more], 1):
        for _ in range(2):
            given = {"A": A, "B": B, "C": C, **changed}
            before = old.array.astype(np.float64)
            gemm(**given)
            expected = exact(given["A"].array, B.array) * given.get("alpha", 1)
            expected = expected + (before if "beta" in changed else 0) + (bias.array if "bias" in changed else 0)
            expected = np.maximum(expected, 0) if "epilogue" in changed else expected
            assert equal(given["C"].array, expected), changed
        assert len(slow) == min(count, len(more)), changed  # another stream is no other launch
    assert gpu.launched[-1][1] == 11


def test_an_overlap_is_found_in_later_calls(gpu: EmulatedDriver, slow: list[Any]) -> None:
    """C may lie between the rows of A, and not in them."""
    A, B, C = tensors(32, 32, 32)
    room = aligned(numbers(32, 64))
    left, right_half = (FakeTorch(room[:, at : at + 32]) for at in (0, 32))
    A = FakeTorch(aligned(room)[:, :32])
    C = FakeTorch(aligned(room)[:, :32])
    gemm(A, B, C)
    gemm(left, B, right_half)
    assert right(left, B, right_half)
    assert len(slow) == 2
    with pytest.raises(KernelArgumentError, match="C is written, and shares memory with A"):
        gemm(left, B, left)
    C.requires_grad = True  # type: ignore[misc]
    with pytest.raises(KernelArgumentError, match="C is written, and requires a gradient"):
        gemm(A, B, C)


@pytest.mark.parametrize("make", [FakeCupy, FakeExporter])
def test_other_libraries(make: Any, gpu: EmulatedDriver) -> None:
    A, B, C = (aligned(numbers(*shape, dtype=np.float16)) for shape in ((40, 24), (24, 32), (40, 32)))
    stream = 9 if make is FakeCupy else 0
    given = make(A), make(B), make(C)
    assert gemm(*given) is given[2]
    assert equal(C, exact(A, B))
    if make is FakeCupy:
        assert equal(gemm(*given[:2]).array, exact(A, B))
        assert gemm(given[0], FakeTorch(B), given[2]) is given[2]
        assert (9, 7) in gpu.waits and (7, 9) in gpu.waits  # each library's stream is waited for
    assert {s for _, s, _ in gpu.launched} == {stream}


def test_devices_that_differ_are_refused(gpu: EmulatedDriver) -> None:
    A, B, C = tensors(40, 32, 24)
    for given in ((A, FakeTorch(B.array, 1), C), (A, B, FakeTorch(C.array, 1)), (A, B.array, C)):
        with pytest.raises(KernelArgumentError, match=r"A is in the memory of GPU 0, but [BC] in"):
            gemm(*given)
    with pytest.raises(KernelArgumentError, match="A is in the memory of GPU 0, and the emulator runs on host memory"):
        gemm(A, B, C, device="emulator")


def test_streams_are_taken_from_every_library(gpu: EmulatedDriver) -> None:
    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 14)

    for stream in (11, SimpleNamespace(cuda_stream=12), SimpleNamespace(ptr=13), Protocol()):
        gemm(*tensors(40, 32, 24), stream=stream)
    assert [stream for _, stream, _ in gpu.launched] == [11, 12, 13, 14]
    with pytest.raises(KernelArgumentError, match="stream is a str; expected a CUDA stream"):
        gemm(*tensors(40, 32, 24), stream="default")


# -- workspaces --------------------------------------------------------------------------------------------------


def rooms(gpu: EmulatedDriver) -> list[int]:
    """Where the launches since the last call had their workspaces."""
    found = [pointers[1] for kernel, _, pointers in gpu.launched if kernel == "pad"]
    gpu.launched.clear()
    return found


def test_a_stream_has_its_workspace(gpu: EmulatedDriver, torch: Any) -> None:
    first, other = tensors(40, 32, 23), tensors(600, 32, 1001)
    for stream in (11, 12, 11):
        gemm(*first, stream=stream)
    one, two, again = rooms(gpu)
    assert one == again != two
    gemm(*other, stream=11)
    gemm(*first, stream=11)
    large, then = rooms(gpu)
    assert large == then != one
    assert one in gpu.memory  # kernels that have not run may use it
    release()
    assert not gpu.memory
    gemm(*first, stream=11)
    assert right(*first) and len(gpu.memory) == 1


def test_each_thread_has_its_own_per_thread_stream(gpu: EmulatedDriver) -> None:
    product = tensors(40, 32, 23)
    for _ in range(2):
        thread = threading.Thread(target=gemm, args=product, kwargs={"stream": 2})
        gemm(*product, stream=2)
        thread.start()
        thread.join()
    assert len(set(rooms(gpu))) >= 2


def test_launches_of_threads_do_not_mix(gpu: EmulatedDriver) -> None:
    """Each product's operands are copied to the workspace that the other's were copied to."""
    products = [tensors(40, 31, 23, seed) for seed in range(4)]

    def work(A: Any, B: Any, C: Any) -> None:
        for _ in range(5):
            gemm(A, B, C, stream=11)

    threads = [threading.Thread(target=work, args=product) for product in products]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(right(*product) for product in products)
    assert [kernel for kernel, _, _ in gpu.launched] == ["pad_both", "hopper_fastest"] * 20


# -- captured graphs ---------------------------------------------------------------------------------------------


def test_in_a_graph_of_torch_memory_is_torchs(gpu: EmulatedDriver, torch: Any) -> None:
    product = tensors(40, 32, 23)
    gemm(*product)
    torch.capturing = True
    own = set(gpu.memory)
    gpu.launched.clear()
    gemm(*product)
    torch.capturing = False
    (room,) = rooms(gpu)
    assert right(*product) and set(gpu.memory) == own
    assert not any(at <= room < at + memory.size for at, memory in gpu.memory.items())


def test_each_graph_of_torch_has_zeros_of_its_own(
    gpu: EmulatedDriver, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are zero before: nothing in the graph sets them. Its launches on one stream share them."""
    from tiledsl.gemm import prepared

    monkeypatch.setattr(prepared, "plan", lambda problem: Plan(probe, {}, done=5000, numbers={"groups": 3}))
    monkeypatch.setattr(workspace, "GRAPH_ZEROS", 1 << 17)
    product = tensors(6, 5, 7)
    gemm(*product)
    eager = gpu.launched[-1][2][3]
    gpu.streams, torch.capturing = {7}, True
    found: list[int] = []
    for gpu.capture in (1, 1, 2, 3):
        gemm(*product)
        assert right(*product)
        found.append(gpu.launched[-1][2][3])
    first, again, second, third = found
    assert first == again and len({eager, first, second, third}) == 4
    assert all(second - first >= 20000 and third - second >= 20000 for _ in found)
    for gpu.capture in range(4, 20):  # no zeros are left: they are torch's, and set in the graph
        gemm(*product)
        assert right(*product)
    gpu.streams, torch.capturing = set(), False
    gemm(*tensors(6, 5, 8))
    gpu.streams, torch.capturing, gpu.capture = {7}, True, 20
    gemm(*product)
    assert any(at <= gpu.launched[-1][2][3] < at + memory.size for at, memory in gpu.memory.items())


def test_in_another_graph_the_workspace_must_be_there(gpu: EmulatedDriver) -> None:
    A, B, C = (FakeCupy(x.array) for x in tensors(40, 32, 23))
    gpu.loaded |= {"pad", "hopper_fastest"}
    for stream in (9, 11):
        gpu.streams = {9, 11}
        with pytest.raises(DeviceError, match=r"needs a workspace of \d+ bytes, and its stream captures .*\n.*warmup"):
            gemm(A, B, C, stream=None if stream == 9 else stream)
        assert not gpu.launched
        gpu.streams = set()
        gemm(A, B, C, stream=stream)
        gpu.streams = {9, 11}
        C.array[...] = 0
        gemm(A, B, C, stream=stream)
        assert equal(C.array, exact(A.array, B.array))
        gpu.launched.clear()


def test_in_a_graph_nothing_is_compiled(gpu: EmulatedDriver) -> None:
    product = tensors(40, 32, 24)
    gpu.streams = {7}
    with pytest.raises(DeviceError, match=r"needs hopper_fastest, which is not loaded yet.*\n.*warmup"):
        gemm(*product)
    assert not gpu.launched
    gpu.loaded.add("hopper_fastest")
    gemm(*product)  # another shape, of loaded code
    assert right(*product)


# -- plans -------------------------------------------------------------------------------------------------------


@tile_kernel
def probe(
    A: Global[D, L, M, K],
    B: Global[D, L, K, N],
    C: Global[E, L, M, N],
    alpha: f32 | float = 1.0,
    beta: f32 | float = 0.0,
    bias: Global[f32, J] | None = None,
    sums: Global[f32, P, H, Q] | None = None,
    done: Global[u32, R] | None = None,
    groups: i32 | int = 1,
    *,
    EXCHANGED: Const[bool] = False,
    EPILOGUE: Const[Epilogue] = add_bias,
):
    """Computes through the workspace. `done` is zero before and after; 3 groups are expected where it is there."""
    column, row, batch = grid(N, M, L)
    threads(1)
    acc = f32(0)
    for k in range(K):
        acc += A[batch, row, k].to(f32) * B[batch, k, column].to(f32)
    if sums is not None:
        sums[batch, row, column] = acc
        acc = sums[batch, row, column]
    x = alpha * acc
    if beta != 0:
        x = beta * C[batch, row, column].to(f32) + x
    if bias is not None:
        x = x + bias[row if EXCHANGED else column]
    if done is not None:
        x = x + f32(done[row]) + f32(groups) - 3
    C[batch, row, column] = x.to(C.dtype)


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_plan_is_carried_out(exchanged: bool, gpu: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """With copies, a workspace and zeros; exchanged: the kernel gets B, A and C with their matrix axes swapped."""
    from tiledsl.gemm import prepared

    m, n, k = 6, 5, 7
    sums = (2, n, m) if exchanged else (2, m, n)
    made = Plan(probe, {}, exchanged, pad_b=True, sums=sums, done=5000, numbers={"groups": 3})
    monkeypatch.setattr(prepared, "plan", lambda problem: made)
    bias = FakeTorch(aligned(numbers(n, dtype=np.float32)))
    for _ in range(2):
        A, B, C = (FakeTorch(aligned(numbers(2, *shape))) for shape in ((m, k), (k, n), (m, n)))
        expected = 2 * exact(A.array, B.array) + bias.array - C.array.astype(np.float64)
        gemm(A, B, C, 2.0, -1.0, bias)
        assert equal(C.array, expected)
        (_, _, (source, copy)), (name, _, pointers) = gpu.launched[-2:]
        assert name == "probe" and source == B.data_ptr()
        zeros = gpu.memory[pointers[5]]
        start = pointers[5] - zeros.ctypes.data
        assert zeros[start:].size >= 20000 and not zeros[start : start + 20000].any()
        assert pointers[:3] == ((copy, A.data_ptr(), C.data_ptr()) if exchanged else (A.data_ptr(), copy, C.data_ptr()))


def test_one_launch_of_exchanged_operands(
    gpu: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, slow: list[Any]
) -> None:
    from tiledsl.gemm import prepared

    monkeypatch.setattr(prepared, "plan", lambda problem: Plan(probe, {}, exchanged=True))
    bias = FakeTorch(aligned(numbers(5, dtype=np.float32)))
    for _ in range(2):
        A, B, C = tensors(6, 5, 7)
        gemm(A, B, C, bias=bias)
        assert equal(C.array, exact(A.array, B.array) + bias.array)
        assert gpu.launched[-1][2] == tuple(x.data_ptr() for x in (B, A, C, bias))
    assert len(slow) == 1


def test_the_problem_is_what_the_arrays_are(gpu: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiledsl.gemm import prepared

    asked: list[Problem] = []
    function = prepared.plan
    monkeypatch.setattr(prepared, "plan", lambda problem: (asked.append(problem), function(problem))[1])
    A, B, C = tensors(40, 32, 24)
    bias = FakeTorch(aligned(numbers(32, dtype=np.float32)))
    gemm(A, FakeTorch(np.asfortranarray(B.array)), C)
    gemm(FakeTorch(aligned(A.array, 2)), B, None, 1, 1e-9 * 0, bias, out_dtype="f32")
    gemm(FakeTorch(np.repeat(A.array, 2, axis=1)[:, ::2]), B, FakeTorch(np.asfortranarray(numbers(40, 32))), 1.0, 0.5)
    plain = Problem(1, 40, 32, 24)
    assert asked == [
        plain._replace(unit_b=1),
        plain._replace(out="f32", tma_a=False, bias=True),
        plain._replace(unit_a=0, tma_a=False, unit_c=1, add_c=True),
    ]
