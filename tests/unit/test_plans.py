"""One way from a call to a launch: arrays of every library find the plan of an earlier call like theirs, in one
dictionary under one key, and are launched by one sequence. The GPU here is a stand-in: its memory is the host's."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tiledsl import Global, cdiv, const, f32, grid, i32, threads, tile_kernel
from tiledsl.dims import M, N
from tiledsl.errors import KernelArgumentError
from tiledsl.ir.types import F32
from tiledsl.runtime import dispatch, driver
from tiledsl.runtime.driver import Device, Driver
from tiledsl.runtime.launch import LaunchPlan
from tiledsl.signatures.signature import REQUIRED
from tiledsl.signatures.specialize import ArrayInfo


class HostDriver(Driver):
    """Launches nothing, and remembers what it was asked to: the stream and the first 8 bytes of each argument."""

    def __init__(self) -> None:
        self.lost = self.last_kernel = ""
        self.devices = (Device(0, 0, "a GPU", (9, 0), 132),)
        self.launches: list[tuple[int, list[int]]] = []
        self.memory: dict[int, Any] = {}
        self.waits: list[tuple[int, int]] = []

    def launch(self, *args: Any) -> tuple[int]:  # type: ignore[override]
        *_, stream, params, _ = args
        pointers = (ctypes.c_void_p * 2).from_address(params)
        self.launches.append((stream, [ctypes.c_uint64.from_address(p).value for p in pointers]))
        return (0,)

    def active(self, ordinal: int) -> Any:  # type: ignore[override]
        return nullcontext(1)

    def current_device(self) -> int:
        return 0

    def pointer_device(self, pointer: int) -> int:
        return 0

    def function(self, *args: Any) -> Any:  # type: ignore[override]
        return 5

    def allocate(self, size: int, what: str) -> int:
        memory = np.zeros(size + 256, np.uint8)
        address = memory.ctypes.data + -memory.ctypes.data % 256
        self.memory[address] = memory
        return address

    def free(self, pointer: int) -> None:
        del self.memory[pointer]

    def upload(self, pointer: int, host: int, size: int, what: str) -> None:
        ctypes.memmove(pointer, host, size)

    def download(self, host: int, pointer: int, size: int, what: str) -> None:
        ctypes.memmove(host, pointer, size)

    def synchronize(self, stream: int, what: str) -> None:
        pass

    def wait_for(self, stream: int, other: int) -> None:
        self.waits.append((stream, other))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    made = HostDriver()
    monkeypatch.setattr(driver, "_open", lambda: made)
    return made


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done for a plan, by name."""
    done: list[str] = []
    for name in ("specialize", "check_maps"):
        function = getattr(dispatch, name)
        monkeypatch.setattr(dispatch, name, lambda *args, _f=function, _n=name: (done.append(_n), _f(*args))[1])
    monkeypatch.setattr(dispatch, "LaunchPlan", lambda *args: (done.append("plan"), LaunchPlan(*args))[1])
    return done


def make_kernel() -> Any:
    @tile_kernel
    def doubled(X: Global[f32, M, N], Y: Global[f32, M, N], n: i32 = 1, *, T: const = 32):
        i, j = grid(cdiv(N, T), M)
        c = i * T + threads(T)
        Y.put(j, c, X.get(j, c) * f32(2))

    return doubled


# -- arrays of each library ----------------------------------------------------------------------------------


class FakeTorch:
    """A torch tensor on the GPU, as far as it is asked."""

    __module__ = "torch"
    layout, is_nested, is_cuda, requires_grad = "strided", False, True, False
    __torch_dispatch__ = None
    device = SimpleNamespace(type="cuda")

    def __init__(self, array: Any, negated: bool = False) -> None:
        self.array, self.dtype, self.shape, self.negated, self.version = array, "torch.float32", array.shape, negated, 0

    def is_neg(self) -> bool:
        return self.negated

    def stride(self) -> tuple[int, ...]:
        return tuple(s // 4 for s in self.array.strides)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def get_device(self) -> int:
        return 0


class FakeCupy:
    __module__ = "cupy"

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.strides = array, array.shape, array.strides
        self.dtype, self.data = SimpleNamespace(name="float32"), SimpleNamespace(ptr=array.ctypes.data)
        self.device: Any = FakeDevice()


class FakeDevice(nullcontext[None]):
    id = 0


class FakeInterface:
    def __init__(self, array: Any) -> None:
        self.array = array
        data = (array.ctypes.data, False)
        self.__cuda_array_interface__ = {"typestr": "<f4", "shape": array.shape, "data": data, "strides": array.strides}


class FakeExporter:
    """By DLPack, from CUDA memory."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.__dlpack__()


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Any:
    def increment(tensors: Any) -> None:
        for tensor in tensors:
            tensor.version += 1

    torch: Any = SimpleNamespace(Tensor=FakeTorch, strided="strided", is_grad_enabled=lambda: True)
    torch._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 7, _increment_version=increment)
    torch.autograd = SimpleNamespace(graph=SimpleNamespace(increment_version=increment))
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=9)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return torch


def zeros(*shape: int) -> Any:
    """An array whose address is a multiple of 256."""
    memory = np.zeros(4 * int(np.prod(shape)) + 256, np.uint8)
    start = -memory.ctypes.data % 256
    return memory[start : start + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)


LIBRARIES: dict[str, Any] = {
    "NumPy": lambda array: array,
    "torch": FakeTorch,
    "CuPy": FakeCupy,
    "the CUDA array interface": FakeInterface,
    "DLPack": FakeExporter,
}
STREAMS = {"NumPy": 0, "torch": 7, "CuPy": 9, "the CUDA array interface": 0, "DLPack": 0}


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_second_call_finds_the_plan_of_the_first(library: str, gpu: HostDriver, planned: list[str]) -> None:
    """Whatever the arrays are: other addresses and values, the same shapes. Another shape is another plan."""
    kernel, of = make_kernel(), LIBRARIES[library]
    plans = kernel.dispatcher.launcher.plans
    for _ in range(3):
        kernel(of(zeros(4, 8)), of(zeros(4, 8)), n=2)
    assert planned == ["specialize", "check_maps", "plan"] and len(plans) == 1
    assert [stream for stream, _ in gpu.launches] == [STREAMS[library]] * 3
    kernel(of(zeros(4, 16)), of(zeros(4, 16)))
    assert len(planned) == 6 and len(plans) == 2 and not gpu.memory
    assert gpu.last_kernel == "doubled"


def test_the_emulator_finds_its_plan_too(planned: list[str]) -> None:
    kernel = make_kernel()
    here = {"device": "emulator"}
    for ask, options in ((kernel, here), (kernel, here), (kernel.check, {}), (kernel.trace(), {}), (kernel.time, here)):
        X, Y = zeros(4, 8) + 1, zeros(4, 8)
        ask(X, Y, **options)
        assert (Y == 2).all()
    assert planned == ["specialize", "check_maps"] and len(kernel.dispatcher.launcher.plans) == 1


class Count:
    """Stands for a number, another one each time."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def __index__(self) -> int:
        return self.numbers.pop(0)

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_const_counts_by_the_number_that_it_stands_for(library: str, gpu: HostDriver, planned: list[str]) -> None:
    kernel, of, count = make_kernel(), LIBRARIES[library], Count(32, 16, 32)
    for _ in range(3):
        kernel(of(zeros(4, 8)), of(zeros(4, 8)), T=count)
    for T in (np.int64(32), np.int64(32), 16):
        kernel(of(zeros(4, 8)), of(zeros(4, 8)), T=T)
    assert planned.count("plan") == 3 and len(gpu.launches) == 6  # of 32, 16, and NumPy's 32


def test_a_caller_may_keep_a_plan_and_give_it_addresses(gpu: HostDriver, planned: list[str]) -> None:
    """It describes the arrays itself. A plan that a call has made is found."""
    kernel = make_kernel()
    X, Y = (ArrayInfo(F32, (4, 8), (8, 1), at, 0, True, None, 0) for at in (4096, 8192))
    values = kernel.dispatcher.launcher.bind((X, Y), {"n": 2})
    plan = kernel.dispatcher.prepared(values)
    assert kernel.dispatcher.prepared(values) is plan and planned == ["specialize", "check_maps", "plan"]
    assert plan.arguments.pointers == ("X", "Y") and not gpu.launches
    assert plan.run_apart(11, (256, 512), (2,)) and plan.run(12, (512, 512), (2,))
    assert gpu.launches == [(11, [256, 512]), (12, [512, 512])]
    assert not plan.run_apart(11, (256, 272), (2,)) and len(gpu.launches) == 2
    with pytest.raises(KernelArgumentError, match="Y is written by the kernel, and shares memory with X"):
        kernel.dispatcher.prepared({**values, "X": Y})


def test_a_caller_may_ask_whether_code_is_loaded(gpu: HostDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = make_kernel()
    X, Y = (ArrayInfo(F32, (4, 8), (8, 1), at, 0, True, None, 0) for at in (4096, 8192))
    values = kernel.dispatcher.launcher.bind((X, Y), {"n": 2})
    dispatcher, gpu._functions, loaded = kernel.dispatcher, {}, list[Any]()
    monkeypatch.setattr(gpu, "function", lambda *code: Driver.function(gpu, *code))
    monkeypatch.setattr(gpu, "beside_captures", nullcontext)
    monkeypatch.setattr(gpu, "_load", lambda *code: loaded.append(code) or 5)
    assert not dispatcher.is_loaded(values)
    spec, arch = dispatcher.build_of(values)
    assert arch == "sm_90a" and dispatcher.build_of(values, "sm_80") == (spec, "sm_80")
    compiled = kernel.builds.compiled(spec, arch)
    assert kernel.builds.known(spec, arch) is compiled and kernel.builds.on_disk(spec, arch)
    assert kernel.builds.known(spec, "sm_80") is None and not kernel.builds.on_disk(spec, "sm_80")
    assert not dispatcher.is_loaded(values)
    dispatcher.prepared(values)
    assert dispatcher.is_loaded(values) and len(loaded) == 1


@pytest.mark.usefixtures("libraries")
def test_timing_and_calls_share_a_plan(gpu: HostDriver, planned: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, given in {"event": 1, "record": None, "elapsed": 1e-6, "destroy": None}.items():
        monkeypatch.setattr(gpu, name, lambda *_, _given=given: _given)
    kernel = make_kernel()
    for of in (FakeTorch, FakeCupy):
        kernel(of(zeros(4, 8)), of(zeros(4, 8)))
        assert kernel.time(of(zeros(4, 8)), of(zeros(4, 8)), repeat=3).runs == 3
    assert planned.count("plan") == len(kernel.dispatcher.launcher.plans) == 2


@pytest.mark.usefixtures("libraries")
def test_where_it_runs_is_part_of_the_key(gpu: HostDriver, planned: list[str]) -> None:
    kernel = make_kernel()
    X, Y = zeros(4, 8) + 1, zeros(4, 8)
    for device in (None, "emulator", "gpu", "emulator", None):
        kernel(X, Y, device=device)
    assert len(gpu.launches) == 3 and (Y == 2).all()
    assert planned.count("plan") == 1 and len(kernel.dispatcher.launcher.plans) == 2
    with pytest.raises(KernelArgumentError, match="device is 'here'"):
        kernel(X, Y, device="here")


def test_a_version_is_counted_for_each_launch(gpu: HostDriver, libraries: Any) -> None:
    """The first call, those that the launcher knows, and those of tensors that it cannot tell apart."""
    kernel = make_kernel()
    x, y = FakeTorch(zeros(4, 8)), FakeTorch(zeros(4, 8))
    for _ in range(3):
        kernel(x, y)
    assert (x.version, y.version, len(gpu.launches)) == (0, 3, 3)
    x, y = (FakeTorch(zeros(4, 16)[:, ::2]) for _ in range(2))
    for _ in range(3):
        kernel(x, y)
    assert (x.version, y.version, len(gpu.launches)) == (0, 3, 6)


@pytest.mark.usefixtures("gpu", "libraries")
@pytest.mark.parametrize("shape", [(4, 8), (1, 1)])
def test_a_lazily_negated_tensor_is_refused_whatever_ran_before(shape: tuple[int, int]) -> None:
    """The imaginary part of a conjugate: every stride is a multiple of 2, an axis of one element or not."""
    kernel = make_kernel()

    def view(negated: bool) -> FakeTorch:
        whole = zeros(shape[0], 2 * shape[1])
        strided = np.lib.stride_tricks.as_strided(whole, shape, (8 * shape[1], 8))
        return FakeTorch(strided, negated)

    for _ in range(2):
        kernel(view(False), view(False))
    with pytest.raises(KernelArgumentError, match="X is a lazily negated view"):
        kernel(view(True), view(False))


@pytest.mark.usefixtures("gpu", "libraries")
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_refused_once_is_refused_again(library: str) -> None:
    """No plan is kept of it, and none of another call lets it pass."""
    kernel, of = make_kernel(), LIBRARIES[library]
    whole = zeros(4, 8)
    one_row = np.lib.stride_tricks.as_strided(whole, (4, 8), (0, 4))
    for _ in range(2):
        with pytest.raises(KernelArgumentError, match="several of its elements are one"):
            kernel(of(zeros(4, 8)), of(one_row))
    kernel(of(zeros(4, 8)), of(zeros(4, 8)))
    for _ in range(2):
        with pytest.raises(KernelArgumentError, match="Y is written by the kernel, and shares memory with X"):
            kernel(of(whole), of(whole))


@pytest.mark.usefixtures("libraries")
def test_interleaved_arrays_share_no_byte(gpu: HostDriver, planned: list[str]) -> None:
    """Their ranges meet, so that the launcher asks: the slow path looks at each byte, and takes the same plan."""
    kernel = make_kernel()
    whole = zeros(8, 8)
    for _ in range(3):
        kernel(FakeTorch(whole[::2]), FakeTorch(whole[1::2]))
    assert planned.count("plan") == 1 and len(gpu.launches) == 3


@pytest.mark.usefixtures("libraries")
def test_arrays_of_two_libraries_wait_for_each_other(gpu: HostDriver) -> None:
    kernel = make_kernel()
    for _ in range(2):
        kernel(FakeTorch(zeros(4, 8)), FakeCupy(zeros(4, 8)))
    assert gpu.waits == [(7, 9), (9, 7)] * 2 and len(kernel.dispatcher.launcher.plans) == 1


# -- binding -------------------------------------------------------------------------------------------------


def test_arguments_are_bound_as_python_does() -> None:
    """Every way to give or leave out each argument: the same values by name, or an error where Python has one."""
    kernel = make_kernel()
    bind = kernel.dispatcher.launcher.bind
    python = inspect.signature(lambda X=REQUIRED, Y=REQUIRED, n=1, *, T=32: None)
    names = ("X", "Y", "n", "T", "", "other")
    for count in range(5):
        for given in itertools.chain.from_iterable(itertools.combinations(names, k) for k in range(len(names) + 1)):
            args, kwargs = tuple(range(count)), {name: f"by name {name}" for name in given}
            try:
                bound = python.bind(*args, **kwargs)
            except TypeError:
                with pytest.raises(KernelArgumentError, match=r"by position|given twice|unknown argument or const"):
                    bind(args, dict(kwargs))
                continue
            bound.apply_defaults()
            given_by_name = dict(kwargs)
            assert bind(args, given_by_name) == dict(bound.arguments)
            assert given_by_name == kwargs, "the caller's own"


def test_a_type_error_from_inside_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is it caught, nor are the arguments looked at because of it."""
    kernel = make_kernel()

    def fails(*_: Any) -> None:
        raise TypeError("inside")

    monkeypatch.setattr(kernel.dispatcher, "arguments", fails)
    with pytest.raises(TypeError, match="inside") as caught:
        kernel(1, 2)
    assert caught.value.__context__ is None
