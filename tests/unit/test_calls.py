"""Wrong calls: each is an error that names the argument, says what it is and how to fix it; none comes from inside."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tiledsl import Const, Global, cdiv, const, f32, grid, i32, index, threads, tile_kernel
from tiledsl.dims import M
from tiledsl.errors import KernelArgumentError, TileError


@tile_kernel
def scaled(X: Global[f32, M], alpha: f32 = 1.0, n: i32 = 1, *, T: const = 32, s: Const[float] = 1.0):
    i = grid(cdiv(M, T)) * T + threads(T)
    X.put(i, X.get(i) * alpha)


@tile_kernel
def cut(X: Global[f32, M], n: i32):
    i = grid(cdiv(M, index(n))) * 32 + threads(32)
    X.put(i, 1.0)


def ones() -> Any:
    return np.ones(40, np.float32)


class Broken:
    """Whatever it is asked for, it raises."""

    def __init__(self, error: Exception) -> None:
        object.__setattr__(self, "error", error)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") and "array" not in name and "dlpack" not in name and name != "__index__":
            return object.__getattribute__(self, name)
        raise object.__getattribute__(self, "error")

    def __dlpack__(self) -> Any: ...

    def __index__(self) -> int:
        raise object.__getattribute__(self, "error")


class Interface:
    def __init__(self, **fields: Any) -> None:
        self.__cuda_array_interface__ = fields


class Capsule:
    """An array by DLPack."""

    def __init__(self, capsule: Any, device: Any = (1, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> Any:
        return self.device


class Metres(np.ndarray):
    """An array with a unit."""

    def __array_ufunc__(self, *args: Any, **settings: Any) -> Any:
        return NotImplemented


class Plain(np.ndarray):
    """An array whose elements mean what they are."""


def used() -> Any:
    capsule = ones().__dlpack__()
    np.from_dlpack(Capsule(capsule))
    return capsule


ARRAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "X is None, but not optional"),
    "a number": (lambda: 1.0, "X is a float; expected an array"),
    "a list": (lambda: [1.0], "X is a list; expected an array"),
    "a class": (lambda: np.ndarray, "X is the class ndarray; expected an array"),
    "a kernel": (lambda: scaled, "X is a TileKernel; expected an array"),
    "masked": (lambda: np.ma.masked_array(ones(), mask=False), "X is a masked array, and a kernel knows no masks"),
    "with a unit": (lambda: ones().view(Metres), "Metres, whose arithmetic is not that of its elements"),
    "objects": (lambda: ones().astype(object), "X has the dtype object"),
    "foreign bytes": (lambda: ones().astype(">f4"), "X has foreign byte order"),
    "raises OSError": (lambda: Broken(OSError("gone")), "OSError: gone"),
    "raises RecursionError": (lambda: Broken(RecursionError()), "RecursionError"),
    "an empty interface": (lambda: Interface(), "a __cuda_array_interface__ without typestr and shape and data"),
    "an interface without data": (lambda: Interface(typestr="<f4", shape=(4,), data=None), "without data"),
    "a short typestr": (lambda: Interface(typestr="f", shape=(4,), data=(16, False)), "cannot be read as an array"),
    "a foreign typestr": (lambda: Interface(typestr=">f4", shape=(4,), data=(16, False)), "has the dtype >f4"),
    "no interface": (lambda: Interface(typestr="<f4", shape=7, data=(16, False)), "cannot be read as an array"),
    "no capsule": (lambda: Capsule(None), "cannot be read as an array"),
    "a capsule that is a number": (lambda: Capsule(5), "cannot be read as an array"),
    "a used capsule": (lambda: Capsule(used()), "cannot be read as an array"),
    "no device": (lambda: Capsule(None, None), "cannot be read as an array"),
    "half a device": (lambda: Capsule(None, (1,)), "cannot be read as an array"),
    "an unknown device": (lambda: Capsule(None, (99, 0)), "is on a device of DLPack type 99"),
}


def refused(call: Callable[[], Any], kind: type[TileError] = KernelArgumentError) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert "\n  fix: " in str(caught.value), caught.value
    return str(caught.value)


@pytest.mark.parametrize(("make", "message"), ARRAYS.values(), ids=ARRAYS)
def test_what_is_no_array(make: Callable[[], Any], message: str) -> None:
    text = refused(lambda: scaled(make(), device="emulator"))
    assert text.startswith("scaled(): X ") and message in text


class Exporter:
    """An array by DLPack. `asked`: the keywords of the last export."""

    def __init__(self, array: Any) -> None:
        self.array, self.asked = array, {}

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def export(self, **keywords: Any) -> Any:
        self.asked = keywords
        return self.array.__dlpack__(**keywords)


class Old(Exporter):
    """As before version 1."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.export()


class New(Exporter):
    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None) -> Any:
        return self.export(max_version=max_version)


class Open(Exporter):
    def __dlpack__(self, **keywords: Any) -> Any:
        return self.export(**keywords)


class Failing(Exporter):
    """It takes a version, and fails by itself."""

    def __dlpack__(self, *, max_version: Any = None) -> Any:
        self.asked = {**self.asked, "times": self.asked.get("times", 0) + 1}
        raise TypeError("this array has no memory yet")


@pytest.mark.parametrize(("kind", "version"), [(Old, None), (New, (1, 0)), (Open, (1, 0))])
def test_a_producer_of_dlpack_is_asked_for_what_it_takes(kind: type[Exporter], version: Any) -> None:
    array = kind(ones())
    scaled(array, 3.0, device="emulator")
    assert (array.array == 3).all() and array.asked.get("max_version") == version


def test_a_producer_that_fails_is_asked_once() -> None:
    """Its own TypeError is not taken for that of an older one."""
    array = Failing(ones())
    assert "TypeError: this array has no memory yet" in refused(lambda: scaled(array, device="emulator"))
    assert array.asked["times"] == 1


@pytest.mark.parametrize("bound", ["x", [[1.0], [1.0, 2.0]], Broken(OSError("gone")), np.ones(3), np.ones((1, 40))])
def test_what_is_no_bound(bound: Any) -> None:
    text = refused(lambda: scaled.verify(lambda X, *_: X, ones(), bound=bound, device="emulator"))
    assert "bound" in text and "gemm_bound" in text


@pytest.mark.parametrize("kind", [np.matrix, np.recarray, Plain, np.memmap])
def test_arrays_that_only_look_different_are_arrays(kind: Any, tmp_path: Any) -> None:
    if kind is np.memmap:
        x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(40,))
        x[:] = 1
    else:
        x = ones().view(np.ndarray if kind is np.matrix else kind)
    scaled(x, 3.0, device="emulator")
    assert (np.asarray(x) == 3).all()


@pytest.mark.parametrize("value", [None, "1", [1.0], 1 + 0j, np.ones(1), np.array(1.0), True, Broken(OSError("gone"))])
def test_what_is_no_number(value: Any) -> None:
    assert "alpha is a" in refused(lambda: scaled(ones(), value, device="emulator"))


@pytest.mark.parametrize("value", [2**31, 10**30, 1.0, True, None, np.uint64(2**64 - 1)])
def test_what_is_no_i32(value: Any) -> None:
    assert re.search("n is ", refused(lambda: scaled(ones(), 1.0, value, device="emulator")))


@pytest.mark.parametrize(
    ("consts", "message"),
    [
        ({"T": "16"}, "const T is '16', a str; expected int"),
        ({"T": np.array([16])}, "const T"),
        ({"T": Broken(OSError("gone"))}, "const T is a Broken, which cannot be read as a const: OSError: gone"),
        ({"s": 10**400}, "const s is an int, which cannot be read as a const: OverflowError"),
        ({"Q": 1}, "unknown argument or const Q"),
    ],
)
def test_what_is_no_const(consts: dict[str, Any], message: str) -> None:
    assert message in refused(lambda: scaled(ones(), device="emulator", **consts))


def test_a_grid_that_divides_by_zero_names_what_is_zero() -> None:
    text = refused(lambda: cut(ones(), 0, device="emulator"))
    assert "ceildiv(M, n) divides by zero" in text and "for which n is not 0" in text


def test_questions_about_a_run() -> None:
    for block, thread in ((99, 0), (-1, 0), (0, 99), ((5, 5), 0), ("x", 0), (None, 0), (0.5, 0), (0, None), ((), 0)):
        refused(lambda b=block, t=thread: scaled.trace(block=b, thread=t)(ones()))
    for repeat in (0, -1, "x", 1.5, True):
        refused(lambda r=repeat: scaled.time(ones(), repeat=r, device="emulator"))
    refused(lambda: scaled.verify(None, ones(), device="emulator"))
    for bound in ("x", np.ones(3), object()):
        refused(lambda b=bound: scaled.verify(lambda X, *_: X, ones(), bound=b, device="emulator"))
    refused(lambda: scaled.compile("sm_90a").ir("x"), TileError)


# -- parameters may have any name ------------------------------------------------------------------------


@tile_kernel
def named_self(self: Global[f32, M], args: f32 = 1.0, kwargs: f32 = 2.0, values: f32 = 3.0):
    i = grid(cdiv(M, 32)) * 32 + threads(32)
    self.put(i, args + kwargs + values)


@tile_kernel
def builtins(
    Exception: Global[f32, M], IndexError: f32 = 1.0, OverflowError: f32 = 1.0, type: f32 = 2.0, any: f32 = 1.0
):
    i = grid(cdiv(M, 32)) * 32 + threads(32)
    Exception.put(i, type)


@tile_kernel
def const_arch(X: Global[f32, M], *, arch: const = 3):
    i = grid(cdiv(M, 32)) * 32 + threads(32)
    X.put(i, f32(arch))


def test_a_parameter_may_be_called_self() -> None:
    for call in (
        lambda x: named_self(x, device="emulator"),
        lambda x: named_self(self=x, args=1.0, device="emulator"),
        lambda x: named_self.check(self=x),
        lambda x: named_self.trace()(self=x),
        lambda x: named_self.time(self=x, device="emulator"),
    ):
        x = ones()
        call(x)
        assert (x == 6).all()


def test_a_parameter_may_be_called_as_a_builtin() -> None:
    x = ones()
    builtins(x, device="emulator")
    assert (x == 2).all()
    assert "Exception is a" in refused(lambda: builtins(5, device="emulator"))


def test_a_const_may_be_called_arch() -> None:
    x = ones()
    const_arch(x, arch=5, device="emulator")
    assert (x == 5).all()
    compiled = const_arch.compile("sm_80", arch=4)
    assert compiled.arch == "sm_80" and compiled.spec.consts == (("arch", 4),)
    assert scaled.compile(arch="sm_80").arch == scaled.compile("sm_80").arch == "sm_80"


# -- torch, by a stand-in: the real one is where a GPU is ------------------------------------------------


class FakeTensor:
    """What is asked of a torch tensor on the host."""

    def __init__(self, array: Any, requires_grad: bool = False) -> None:
        self.array, self.requires_grad, self.version = array, requires_grad, 0
        self.layout, self.dtype, self.shape = "strided", "torch.float32", array.shape
        self.device, self.is_cuda, self.is_nested = types.SimpleNamespace(type="cpu"), False, False

    __torch_dispatch__ = None

    def is_neg(self) -> bool:
        return False

    def stride(self) -> tuple[int, ...]:
        return tuple(s // 4 for s in self.array.strides)

    def data_ptr(self) -> int:
        return self.array.ctypes.data


class Standing(FakeTensor):
    """A tensor that stands for another one."""

    __torch_dispatch__ = "its own"


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    def increment_version(tensors: Any) -> None:
        for tensor in tensors:
            tensor.version += 1

    fake = types.SimpleNamespace(Tensor=FakeTensor, strided="strided", is_grad_enabled=lambda: fake.grad, grad=True)
    fake.autograd = types.SimpleNamespace(graph=types.SimpleNamespace(increment_version=increment_version))
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


@tile_kernel
def copied(X: Global[f32, M], Y: Global[f32, M]):
    i = grid(cdiv(M, 32)) * 32 + threads(32)
    Y.put(i, X.get(i))


def test_a_write_counts_a_version_of_a_torch_tensor(torch: Any) -> None:
    """What autograd has saved of it is no longer what it was, and torch says so at `backward`."""
    x, y = FakeTensor(ones()), FakeTensor(ones() * 0)
    for run in (lambda: copied(x, y, device="emulator"), lambda: copied.check(x, y)):
        before = y.version
        run()
        assert (x.version, y.version) == (0, before + 1) and (y.array == 1).all()


def test_a_written_torch_tensor_needs_no_gradient(torch: Any) -> None:
    x, y = FakeTensor(ones(), requires_grad=True), FakeTensor(ones())
    copied(x, y, device="emulator")  # which is read may need one
    text = refused(lambda: copied(y, x, device="emulator"))
    assert "Y is written by the kernel, and requires a gradient" in text and "torch.no_grad()" in text
    assert x.version == 0
    torch.grad = False
    copied(y, x, device="emulator")
    assert x.version == 1


def test_tensors_that_stand_for_others_are_refused(torch: Any) -> None:
    nested = FakeTensor(ones())
    nested.is_nested = True
    assert "is a nested tensor" in refused(lambda: copied(nested, FakeTensor(ones()), device="emulator"))
    standing = Standing(ones())
    assert "which stands for a tensor" in refused(lambda: copied(standing, FakeTensor(ones()), device="emulator"))
