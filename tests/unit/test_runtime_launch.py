"""Launch plans without a GPU: how arguments are packed, grids, overlaps, and the generated launcher.

The driver here is a stand-in that records launches and reads the argument buffer as the GPU would.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import types
from typing import Any

import numpy as np
import pytest

from tiledsl import Global, bf16, const, f16, f32, f64, i8, i32, i64
from tiledsl.dims import K, M, N
from tiledsl.errors import DeviceError, KernelArgumentError
from tiledsl.ir.abi import abi_of
from tiledsl.ir.expr import parse_expr
from tiledsl.ir.grid import checked_grid
from tiledsl.ir.types import BF16, F32, GlobalType
from tiledsl.runtime.driver import Driver
from tiledsl.runtime.launch import (
    ArgumentBuffer,
    LaunchPlan,
    Shape,
    overlap_windows,
)
from tiledsl.runtime.launcher import Launcher, launcher_source
from tiledsl.signatures.annotations import read_signature
from tiledsl.signatures.signature import REQUIRED
from tiledsl.signatures.specialize import ArrayInfo

ONE = Shape((1, 1, 1), (1, 1, 1), 0)
ALONE = (1, 1, 1)
"""A cluster of one block."""


class Recorder(Driver):
    """Stands in for the driver: every launch is recorded with the 8-byte slots that it was given."""

    def __init__(self, results: list[int] | None = None) -> None:
        self.launches: list[tuple[tuple[Any, ...], int, list[bytes]]] = []
        self.results = results or []
        self.count = 0
        self.lost, self.last_kernel = "", ""
        self.activated: list[int] = []

    def launch(self, *args: Any) -> tuple[int]:  # type: ignore[override]
        *fixed, stream, params, _ = args
        pointers = (ctypes.c_void_p * self.count).from_address(params)
        self.launches.append((tuple(fixed), stream, [ctypes.string_at(p, 8) for p in pointers]))
        return (self.results.pop(0) if self.results else 0,)

    def _describe(self, code: int) -> tuple[str, str]:
        return f"CUDA_ERROR_{code}", "text"

    def active(self, ordinal: int) -> Any:  # type: ignore[override]
        from contextlib import nullcontext

        self.activated.append(ordinal)
        return nullcontext(1)


def gemm_type(dims: tuple[int | str, ...], unit: int = 1) -> GlobalType:
    return GlobalType(F32, dims, unit, 16)


ABI = abi_of(
    [
        ("A", gemm_type(("M", "K"))),
        ("B", gemm_type(("K", 8))),
        ("C", gemm_type(("M", "N"), -1)),
        ("alpha", F32),
        ("beta", BF16),
    ],
    32,
)


def test_arguments_are_packed_in_the_order_of_the_abi() -> None:
    strides = {"A": (5, 1), "B": (8, 1), "C": (-40, 2)}
    buffer = ArgumentBuffer(ABI, {"M": 3, "K": 5, "N": 20}, strides)
    assert buffer.pointers == ("A", "B", "C")
    assert buffer.scalars == ("alpha", "beta")
    recorder = Recorder()
    recorder.count = len(ABI)
    plan = LaunchPlan(recorder, "k", 0, 99, Shape((2, 3, 1), (16, 16, 1), 512), buffer, ())
    plan.run(7, (0x1000, 0x2000, 2**63 + 5), (1.5, 1.0))
    fixed, stream, slots = recorder.launches[0]
    assert fixed == (99, 2, 3, 1, 16, 16, 1, 512)
    assert stream == 7
    values = [
        struct.unpack("<Q" if a.kind == "pointer" else {"f32": "<f4x", "bf16": "<H6x"}.get(a.dtype.name, "<i4x"), slot)[
            0
        ]
        for a, slot in zip(ABI, slots, strict=True)
    ]
    assert values == [0x1000, 0x2000, 2**63 + 5, 3, 5, 20, 5, 8, -40, 2, 1.5, 0x3F80]
    assert recorder.last_kernel == "k"


def test_every_scalar_dtype_packs() -> None:
    def kernel(a: f64, b: f32, c: f16, d: bf16, e: i8, f: i32, g: i64): ...

    signature = read_signature(kernel)
    abi = abi_of([(p.name, p.dtype) for p in signature.scalars], 64)
    buffer = ArgumentBuffer(abi, {}, {})
    frame = buffer.new_frame()
    buffer.pack_scalars(frame.buffer, buffer.scalars_at, 0.1, 0.5, 0.25, 2.0, -3, -4, -5)
    expected = [struct.pack("<d", 0.1), struct.pack("<f", 0.5), struct.pack("<e", 0.25), b"\x00\x40", b"\xfd"]
    slots = [bytes(frame.buffer[8 * i : 8 * i + 8]) for i in range(7)]
    for slot, start in zip(slots, expected, strict=False):
        assert slot.startswith(start)
    assert struct.unpack("<q", slots[6])[0] == -5


def test_buffers_are_taken_and_given_back() -> None:
    recorder = Recorder()
    recorder.count = len(ABI)
    plan = LaunchPlan(
        recorder, "k", 0, 9, Shape((1, 1, 1), (1, 1, 1), 0),
        ArgumentBuffer(ABI, {"M": 1, "K": 1, "N": 1}, dict.fromkeys("ABC", (1, 1))), (),
    )  # fmt: skip

    def work(seed: int) -> None:
        for i in range(300):
            plan.run(0, (seed, i, seed ^ i), (0.0, 0.0))

    workers = [threading.Thread(target=work, args=(1000 + n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(recorder.launches) == 1200
    assert len(plan.frames) <= 4
    for _, _, slots in recorder.launches:
        a, b, c = (int.from_bytes(s, "little") for s in slots[:3])
        assert a ^ b == c  # no other thread wrote into the buffer meanwhile


def test_an_empty_grid_launches_nothing() -> None:
    recorder = Recorder()
    plan = LaunchPlan(recorder, "k", 0, 9, Shape((0, 3, 1), (16, 16, 1), 0), ArgumentBuffer((), {}, {}), ())
    plan.run(0, (), ())
    assert not recorder.launches


def test_a_launch_under_another_context_is_repeated_under_its_own() -> None:
    recorder = Recorder(results=[400, 0])
    plan = LaunchPlan(recorder, "k", 3, 9, ONE, ArgumentBuffer((), {}, {}), ())
    plan.run(0, (), ())
    assert recorder.activated == [3]
    assert len(recorder.launches) == 2


def test_a_lost_context_names_the_kernel_and_refuses_what_follows() -> None:
    recorder = Recorder(results=[0, 700])
    plan = LaunchPlan(recorder, "culprit", 0, 9, ONE, ArgumentBuffer((), {}, {}), ())
    plan.run(0, (), ())
    other = LaunchPlan(recorder, "innocent", 0, 9, ONE, ArgumentBuffer((), {}, {}), ())
    with pytest.raises(DeviceError, match=r"kernel culprit\(\) accessed an illegal address"):
        other.run(0, (), ())
    with pytest.raises(
        DeviceError, match=r"cannot be used any more by this process: kernel culprit\(\) accessed an illegal"
    ):
        recorder.refuse_if_lost()


# -- grid ------------------------------------------------------------------------------------------------


def test_grids() -> None:
    names = {"M": 100, "N": 70000}
    assert checked_grid("k", [parse_expr("floordiv(add(N, 15), 16)")], names, ALONE) == (4375, 1, 1)
    with pytest.raises(KernelArgumentError, match=r"the grid is too large: y = N = 70000 blocks; at most 65535"):
        checked_grid("k", [parse_expr("M"), parse_expr("N")], names, ALONE)
    with pytest.raises(KernelArgumentError, match=r"the grid is negative: x = sub\(M, N\) = -69900"):
        checked_grid("k", [parse_expr("sub(M, N)")], names, ALONE)


# -- overlap ---------------------------------------------------------------------------------------------


def info(shape: tuple[int, ...], strides: tuple[int, ...], pointer: int = 4096, owner: Any = None) -> ArrayInfo:
    return ArrayInfo(F32, shape, strides, pointer, 0, True, owner)


@pytest.mark.parametrize("seed", range(40))
def test_overlap_windows_are_those_of_the_byte_ranges(seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays = {
        name: info(tuple(random.integers(1, 4, 2).tolist()), tuple(random.integers(-5, 6, 2).tolist())) for name in "AB"
    }
    ((i, j, low, high),) = overlap_windows("AB", arrays, frozenset("B"))
    assert (i, j) == (0, 1)
    a = range(*arrays["A"].span())
    for distance in range(-200, 200):  # to the byte: arguments may touch
        b = range(distance + arrays["B"].span()[0], distance + arrays["B"].span()[1])
        assert (low < distance < high) == bool(set(a) & set(b)), distance


def test_only_pairs_with_a_written_tensor_are_watched() -> None:
    arrays = {n: info((4,), (1,)) for n in "ABC"}
    assert [(i, j) for i, j, _, _ in overlap_windows("ABC", arrays, frozenset("C"))] == [(0, 2), (1, 2)]
    assert overlap_windows("ABC", {**arrays, "C": info((0,), (1,))}, frozenset("C")) == ()


# -- the generated launcher --------------------------------------------------------------------------------


class Tensor:
    """What the launcher asks of a torch tensor."""

    def __init__(self, shape: tuple[int, ...], pointer: int, dtype: str = "float32", device: int = 0) -> None:
        self.shape, self.dtype, self.pointer, self.device_index = shape, dtype, pointer, device
        self.strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
        self.requires_grad, self.version = False, 0

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def data_ptr(self) -> int:
        return self.pointer

    def get_device(self) -> int:
        return self.device_index


def kernel(
    A: Global[f32, M, K],
    C: Global[f32, M, N],
    bias: Global[f32, N] | None = None,
    alpha: f32 = 1.0,
    n: i32 = 3,
    *,
    T: const = 16,
): ...


SIGNATURE = read_signature(kernel)


def meant(holds: bool = True) -> Any:
    """A meaning of a kernel, which holds or not."""
    return types.SimpleNamespace(guards=types.SimpleNamespace(check=lambda: holds))


class Harness:
    """A launcher whose slow path makes a plan at the first call of each kind and counts its calls."""

    def __init__(self) -> None:
        self.slow_calls: list[dict[str, Any]] = []
        self.grad = True
        self.written: tuple[str, ...] = ("C",)
        self.recorder = Recorder()
        self.meaning: Any = meant()
        self.launcher = Launcher(SIGNATURE, self.slow)
        self.launcher.take_torch(lambda device: 100 + device, lambda: self.grad)

    def slow(self, values: dict[str, Any], device: str | None) -> None:
        self.slow_calls.append(values)
        tensors = {n: values[n] for n in ("A", "C", "bias") if values[n] is not None}
        if not all(isinstance(t, Tensor) for t in tensors.values()):
            return
        params: list[tuple[str, Any]] = [
            (n, gemm_type({"A": ("M", "K"), "C": ("M", "N"), "bias": ("N",)}[n], len(t.shape) - 1))
            for n, t in tensors.items()
        ]
        abi = abi_of([*params, ("alpha", F32), ("n", SIGNATURE.scalars[1].dtype)], 32)
        extents = {"M": tensors["A"].shape[0], "K": tensors["A"].shape[1], "N": tensors["C"].shape[1]}
        buffer = ArgumentBuffer(abi, extents, {n: t.strides for n, t in tensors.items()})
        self.recorder.count = len(abi)
        arrays = {n: info(t.shape, t.strides) for n, t in tensors.items()}
        windows = overlap_windows(buffer.pointers, arrays, frozenset("C"))
        plan = LaunchPlan(self.recorder, "kernel", 0, 5, ONE, buffer, windows, written=self.written)
        plan.count = self.bump
        self.launcher.add(self.launcher.key({**values, "device": device}), plan, self.meaning)

    def bump(self, tensors: Any) -> None:
        for tensor in tensors:
            tensor.version += 1

    def call(self, *args: Any, **kwargs: Any) -> int:
        """Slow calls, after this one."""
        self.launcher.launch(args, kwargs)
        return len(self.slow_calls)


def test_the_launcher_takes_known_shapes_and_leaves_the_rest_to_the_slow_path() -> None:
    h = Harness()
    A, C = Tensor((4, 8), 0x10000), Tensor((4, 16), 0x20000)
    assert h.call(A, C) == 1
    assert h.call(A, C) == 1
    fixed, stream, slots = h.recorder.launches[0]
    assert (fixed[0], stream) == (5, 100)
    assert [int.from_bytes(s, "little") for s in slots[:5]] == [0x10000, 0x20000, 4, 8, 16]
    assert struct.unpack("<f4x", slots[-2])[0] == 1.0
    assert h.call(A=A, C=C, alpha=2.0) == 1  # the value of a float is no part of the key
    assert struct.unpack("<f4x", h.recorder.launches[1][2][-2])[0] == 2.0
    assert h.call(Tensor((4, 8), 0x30000), C) == 1  # nor is the address
    assert h.call(Tensor((4, 8), 0x30004), C) == 2  # but its alignment is
    assert h.call(A, C, T=32) == 3
    assert h.call(A, C, None, 1) == 4  # an int where a float was: checked once
    assert h.call(A, C, Tensor((16,), 0x40000)) == 5
    assert h.call(A, C, Tensor((16,), 0x40000)) == 5
    assert h.call(Tensor((5, 8), 0x10000), Tensor((5, 16), 0x20000)) == 6
    assert h.call(np.zeros((4, 8)), np.zeros((4, 16))) == 7
    assert h.call(A, C, n=2**40) == 8  # does not fit: the slow path says so
    assert len(h.recorder.launches) == 4


def test_overlapping_arguments_go_to_the_slow_path() -> None:
    h = Harness()
    A, C = Tensor((4, 8), 0x10000), Tensor((4, 16), 0x20000)
    h.call(A, C)
    assert h.call(A, Tensor((4, 16), 0x10000 + 4 * 8 * 4)) == 1  # right behind A
    assert h.call(A, Tensor((4, 16), 0x10000 + 4 * 8 * 4 - 16)) == 2


def test_the_launcher_takes_arguments_that_touch() -> None:
    """In front of A and behind it, with not one byte between: no slow path. 16 bytes further in, there is."""
    h = Harness()
    A, size = Tensor((4, 8), 0x10000), 4 * 16 * 4
    h.call(A, Tensor((4, 16), 0x20000))
    assert h.call(A, Tensor((4, 16), 0x10000 - size)) == 1
    assert h.call(A, Tensor((4, 16), 0x10000 + 4 * 8 * 4)) == 1
    assert h.call(A, Tensor((4, 16), 0x10000 - size + 16)) == 2
    assert h.call(A, Tensor((4, 16), 0x10000 + 4 * 8 * 4 - 16)) == 3


def test_each_launch_counts_a_version_of_what_it_writes() -> None:
    h = Harness()
    A, C = Tensor((4, 8), 0x10000), Tensor((4, 16), 0x20000)
    for _ in range(4):
        h.call(A, C)
    assert len(h.slow_calls) == 1
    assert (A.version, C.version) == (0, 3)  # the slow path has one of its own
    A.requires_grad = True
    assert h.call(A, C) == 1


def test_each_plan_says_what_it_writes() -> None:
    """Another specialisation may write another tensor."""
    h = Harness()
    A, C = Tensor((4, 8), 0x10000), Tensor((4, 16), 0x20000)
    h.call(A, C)
    h.written = ("A", "C")
    h.call(A, C, T=32)
    for _ in range(3):
        h.call(A, C, T=32)
    assert (A.version, C.version) == (3, 3)
    h.call(A, C)
    assert (A.version, C.version, len(h.slow_calls)) == (3, 4, 2)
    A.requires_grad = True
    assert h.call(A, C) == 2
    assert h.call(A, C, T=32) == 3


def test_a_written_tensor_that_requires_a_gradient_goes_to_the_slow_path() -> None:
    h = Harness()
    A, C = Tensor((4, 8), 0x10000), Tensor((4, 16), 0x20000)
    h.call(A, C)
    C.requires_grad = True
    assert h.call(A, C) == 2
    h.grad = False  # torch.no_grad()
    assert h.call(A, C) == 2


def copy(A: Global[f32, M], C: Global[f32, M]): ...


def test_addresses_are_checked_and_packed_where_they_are_others_than_the_last_time() -> None:
    slow: list[dict[str, Any]] = []

    def record(values: dict[str, Any], device: str | None) -> None:
        slow.append(values)

    launcher = Launcher(read_signature(copy), record)
    arrays = {name: info((16,), (1,)) for name in "AC"}
    abi = abi_of([(name, gemm_type(("M",))) for name in "AC"], 32)
    buffer = ArgumentBuffer(abi, {"M": 16}, dict.fromkeys("AC", (1,)))
    recorder = Recorder()
    recorder.count = len(abi)
    windows = overlap_windows(buffer.pointers, arrays, frozenset("C"))
    plan = LaunchPlan(recorder, "copy", 0, 9, ONE, buffer, windows)
    here, there, inside = (Tensor((16,), pointer) for pointer in (0x1000, 0x2000, 0x1010))
    launcher.take_torch(lambda device: 5, lambda: True)
    launcher.add(launcher.key({"A": here, "C": there, "device": None}), plan, meant())
    for a, c in ((here, there), (here, there), (there, here)):
        launcher.launch((a, c), {})
    plan.run(5, (0x4000, 0x5000), ())  # the slow path takes the same buffers
    launcher.launch((there, here), {})
    passed = [tuple(int.from_bytes(slot, "little") for slot in slots[:2]) for _, _, slots in recorder.launches]
    assert passed == [
        (0x1000, 0x2000), (0x1000, 0x2000), (0x2000, 0x1000), (0x4000, 0x5000), (0x2000, 0x1000),
    ]  # fmt: skip
    assert len(plan.frames) == 1
    launcher.launch((here, there), {})
    launcher.launch((here, inside), {})
    assert slow == [{"A": here, "C": inside}]
    assert len(recorder.launches) == 6


def test_missing_arguments_reach_the_slow_path_by_name() -> None:
    h = Harness()
    h.call(Tensor((4, 8), 0))
    assert h.slow_calls[0]["C"] is REQUIRED
    assert h.slow_calls[0]["alpha"] == 1.0
    assert h.slow_calls[0]["T"] == 16


def test_the_grid_may_come_to_depend_on_a_scalar() -> None:
    h = Harness()
    A, C = Tensor((4, 8), 0x10000), Tensor((4, 16), 0x20000)
    h.call(A, C, n=1)
    assert h.call(A, C, n=2) == 1
    h.launcher.key_by_value(frozenset({"n"}))
    assert h.call(A, C, n=1) == 2
    assert h.call(A, C, n=2) == 3
    assert h.call(A, C, n=2) == 3


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launcher, "LIMIT", 5)
    h = Harness()
    for m in range(1, 40):
        h.call(Tensor((m, 8), 0x10000), Tensor((m, 16), 0x90000))
    assert len(h.launcher.plans) <= 5


def test_the_source_of_a_launcher_reads_well() -> None:
    source = launcher_source(SIGNATURE, frozenset(), ("C",))
    assert "    if _len(_args) == 5:\n        [A, C, bias, alpha, n] = _args\n" in source
    assert "_address_of_bias = None if bias is None else bias.data_ptr()" in source


def test_no_driver_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiledsl.runtime import driver as module

    def fail() -> None:
        raise RuntimeError("libcuda not found")

    bindings = types.ModuleType("cuda.bindings.driver")
    bindings.cuInit = lambda flags: fail()  # type: ignore[attr-defined]
    package = types.ModuleType("cuda.bindings")
    package.driver = bindings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
    with pytest.raises(DeviceError) as caught:
        module.Driver()
    assert "there is no NVIDIA GPU that this process can use: libcuda not found" in str(caught.value)
    assert 'device="emulator"' in str(caught.value)
    bindings.cuInit = lambda flags: (100,)  # type: ignore[attr-defined]
    bindings.CUresult = lambda code: types.SimpleNamespace(name="CUDA_ERROR_NO_DEVICE")  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="no NVIDIA GPU that this process can use: cuInit gives CUDA_ERROR_NO_DEVICE"):
        module.Driver()
