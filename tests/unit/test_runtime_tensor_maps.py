"""Tensor maps and clusters without a GPU: what the driver is told of a tensor and of a launch, and what is refused.

The driver's functions are stand-ins that record what they were given, through the same ctypes and bindings as on a GPU.
"""

from __future__ import annotations

import ctypes
import dataclasses
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.test_runtime_launch import meant
from tiledsl import (
    Cluster,
    Global,
    bf16,
    cdiv,
    f32,
    grid,
    persistent,
    ptx,
    shared,
    store_tma,
    swizzle_128b,
    threads,
    tile_kernel,
    tile_schedule,
    tma_commit,
    tma_load,
    tma_wait,
    u64,
)
from tiledsl.arch import MAP_BYTES
from tiledsl.compilation.compiled import Image
from tiledsl.dims import K, M, N
from tiledsl.errors import CompileError, DeviceError, KernelArgumentError
from tiledsl.ir.abi import abi_of, launch_parameters
from tiledsl.ir.expr import parse_expr
from tiledsl.ir.grid import checked_grid
from tiledsl.ir.tensor_maps import TensorMap, parse_tensor_map
from tiledsl.ir.types import BF16, E4M3, F32, TF32, DType, GlobalType
from tiledsl.runtime import tensor_maps
from tiledsl.runtime.driver import Driver
from tiledsl.runtime.launch import ArgumentBuffer, LaunchPlan, Shape
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.tensor_maps import MapImages, check_maps, encoding
from tiledsl.signatures.annotations import read_signature
from tiledsl.signatures.specialize import ArrayInfo

BASE = 0x7F00_0000_0000
SMALL = Shape((2, 1, 1), (128, 1, 1), 0)
MAP = TensorMap("A", (1, 0), (64, 128), 128)
"""Of a row-major matrix: boxes of 128 rows, 64 columns of two bytes each."""


class FakeDriver(Driver):
    """Encodes maps and launches as a GPU's driver would be asked to, and remembers what it was asked."""

    def __init__(self) -> None:
        import cuda.bindings.driver as bindings

        self.encoded: list[dict[str, Any]] = []
        self.configs: list[Any] = []
        self.params: list[list[bytes]] = []
        self.count, self.maps = 0, 0
        self.lost, self.last_kernel = "", ""
        self.current: list[int] = []
        self.blanks: list[tuple[int, bool]] = []
        self._callback = ctypes.CFUNCTYPE(*tensor_maps._PROTOTYPE)(self._encode)
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        self.cu = SimpleNamespace(
            cuGetProcAddress=lambda name, version, flags: (0, address, 0),
            CUlaunchConfig=bindings.CUlaunchConfig,
            CUlaunchAttribute=bindings.CUlaunchAttribute,
            CUlaunchAttributeID=bindings.CUlaunchAttributeID,
        )

    def _encode(
        self, out: int, data_type: int, rank: int, address: int, extents: Any, strides: Any, box: Any, steps: Any,
        interleave: int, swizzle: int, promotion: int, fill: int,
    ) -> int:  # fmt: skip
        assert out % 64 == 0
        assert self.current == [0], "the address is of no context"
        self.encoded.append({
            "data_type": data_type, "address": address or 0, "extents": extents[:rank], "strides": strides[: rank - 1],
            "box": box[:rank], "steps": steps[:rank], "interleave": interleave, "swizzle": swizzle,
            "promotion": promotion, "fill": fill,
        })  # fmt: skip
        ctypes.memset(out, len(self.encoded), MAP_BYTES)
        return 0

    def launch(self, *args: Any) -> tuple[int]:  # type: ignore[override]
        return self._launched(args[-2])

    def launch_with(self, config: Any, function: Any, params: int, extra: int) -> tuple[int]:  # type: ignore[override]
        self.configs.append(config)
        return self._launched(params)

    def _launched(self, params: int) -> tuple[int]:
        pointers = list((ctypes.c_void_p * (self.count + self.maps)).from_address(params))
        assert all(p % 64 == 0 for p in pointers[self.count :])
        self.params.append([ctypes.string_at(p, MAP_BYTES) for p in pointers[self.count :]])
        return (0,)

    @contextmanager
    def active(self, ordinal: int) -> Any:  # type: ignore[override]
        self.current.append(ordinal)
        yield 1
        self.current.pop()

    def blank(self, context: int, writable: bool) -> int:
        self.blanks.append((context, writable))
        return 0x1000 + 128 * writable


class Tensor:
    """What the launcher asks of a torch tensor."""

    dtype, shape = "bfloat16", (256, 64)

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def stride(self) -> tuple[int, ...]:
        return (64, 1)

    def data_ptr(self) -> int:
        return self.pointer

    def get_device(self) -> int:
        return 0


def info(
    shape: tuple[int, ...], strides: tuple[int, ...] | None = None, dtype: DType = BF16, pointer: int = BASE
) -> ArrayInfo:
    """An array; row-major unless strides are given."""
    rows = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return ArrayInfo(dtype, shape, rows if strides is None else strides, pointer, 0, True, None)


# -- what is encoded -------------------------------------------------------------------------------------


def test_a_row_major_matrix() -> None:
    found = encoding(MAP, info((4000, 1024)))
    assert dataclasses.astuple(found) == (9, (1024, 4000), (2048,), (64, 128), 3)


def test_axes_stand_in_the_order_of_the_map() -> None:
    """A column-major matrix, and a batch of matrices whose rows have a gap."""
    turned = encoding(TensorMap("A", (0, 1), (64, 8), 64), info((640, 32), (1, 656)))
    assert (turned.extents, turned.strides, turned.swizzle) == ((640, 32), (1312,), 2)
    batch = encoding(TensorMap("A", (2, 1, 0), (32, 128, 1), 32), info((5, 100, 200), (30000, 256, 1), E4M3))
    assert (batch.data_type, batch.extents, batch.strides, batch.swizzle) == (0, (200, 100, 5), (256, 30000), 1)


def test_every_so_many_th_row() -> None:
    """From where the tensor begins, as the rows in between are not aligned: up to the end of the part's last row."""
    array = info((100, 1001), (1003, 1))
    last = TensorMap("A", (1, 0), (72, 8), 0, 8, 7)
    assert parse_tensor_map(str(last)) == last
    check_maps("k", [last], {"A": array})
    found = encoding(last, array)
    assert (found.extents, found.strides) == ((7 * 1003 + 1001, 12), (8 * 2006,))
    first = encoding(dataclasses.replace(last, first=0), array)
    assert (first.extents, first.strides) == ((1001, 13), (8 * 2006,))
    none = encoding(last, info((7, 1001), (1003, 1)))
    assert none.extents == (1, 1), "boxes begin at element 7 * 1003 or later"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (info((100, 1001), (-1001, 1)), "the stride of 4 rows is -8008 bytes"),
        (info((100, 1001), (1001, 1)), "the stride of 4 rows is 8008 bytes; expected a multiple of 16"),
        (info((100, 2**30), (2**29 + 4, 1)), "3 rows and one more reach 2\\^31 elements"),
        (dataclasses.replace(info((100, 1000), (1004, 1)), pointer=BASE + 8), "begins at an address"),
    ],
)
def test_rows_that_tma_cannot_take(array: ArrayInfo, message: str) -> None:
    with pytest.raises(KernelArgumentError, match=message):
        check_maps("k", [TensorMap("A", (1, 0), (72, 8), 0, 4, 3)], {"A": array})


def test_a_stride_of_several_rows_that_tma_cannot_take() -> None:
    with pytest.raises(KernelArgumentError, match="the stride of axis 0 is 1099511627776 bytes; expected less"):
        check_maps("k", [TensorMap("A", (1, 0), (72, 8), 0, 4)], {"A": info((100, 8), (2**37, 1))})


def test_tf32_is_loaded_as_it_is() -> None:
    assert encoding(MAP, info((8, 8), dtype=TF32)).data_type == encoding(MAP, info((8, 8), dtype=F32)).data_type == 7


def test_a_stride_that_is_never_stepped_along_may_be_any() -> None:
    row = info((1, 1001), (1001, 1))
    check_maps("k", [MAP], {"A": row})
    assert encoding(MAP, row).strides == (16,)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (info((2, 64), (2**39, 1)), "the stride of axis 0 is 1099511627776 bytes; expected less"),
        (info((1, 2**32 + 8), dtype=E4M3), "axis 1 has 4294967304 elements; at most 2^32"),
    ],
)
def test_arrays_that_tma_cannot_take(array: ArrayInfo, message: str) -> None:
    with pytest.raises(KernelArgumentError) as caught:
        check_maps("gemm", [MAP], {"A": array})
    text = str(caught.value)
    assert text.startswith("gemm() reads or writes A by TMA, which cannot describe it: ") and message in text
    assert "\n  fix: " in text


def test_the_largest_that_tma_can_take() -> None:
    check_maps("k", [TensorMap("A", (1, 0), (256, 256), 0)], {"A": info((2, 2**32), (2**40 - 16, 1), E4M3)})


# -- launches --------------------------------------------------------------------------------------------


def plan_of(
    driver: FakeDriver,
    arrays: dict[str, ArrayInfo],
    maps: tuple[TensorMap, ...],
    shape: Shape = SMALL,
) -> LaunchPlan:
    params = [(name, GlobalType(a.dtype, tuple(f"{name}{i}" for i in range(2)), 1, 16)) for name, a in arrays.items()]
    abi = launch_parameters(abi_of(params, 32), maps)
    extents = {f"{name}{axis}": n for name, a in arrays.items() for axis, n in enumerate(a.shape)}
    buffer = ArgumentBuffer(abi, extents, {name: a.strides for name, a in arrays.items()})
    driver.count, driver.maps = len(abi) - len(maps), len(maps)
    images = MapImages(driver, 0, "k", maps, buffer.pointers, arrays, frozenset("C")) if maps else None
    return LaunchPlan(driver, "k", 0, 99, shape, buffer, (), images)


def test_maps_are_parameters_behind_all_others() -> None:
    maps = (TensorMap("C", (1, 0), (8, 8)), TensorMap("A", (1, 0), (8, 8)))
    abi = launch_parameters(abi_of([(n, GlobalType(BF16, ("M", "N"), 1, 16)) for n in "AC"], 32), maps)
    assert [(a.kind, a.name) for a in abi[-3:]] == [("stride", "C"), ("tensor_map", "C"), ("tensor_map", "A")]
    assert [a.axis for a in abi[-2:]] == [0, 1]


def test_a_map_is_encoded_once_for_each_address() -> None:
    driver = FakeDriver()
    arrays = {"A": info((256, 64)), "C": info((256, 128))}
    plan = plan_of(driver, arrays, (MAP, TensorMap("C", (1, 0), (32, 128), 64)))
    here, there = (BASE, BASE + 4096), (BASE + 65536, BASE + 4096)
    for pointers in (here, here, there, here, there, there):
        plan.run(0, pointers, ())
    assert [e["address"] for e in driver.encoded] == [*here, there[0]]
    first = driver.encoded[0]
    assert (first["extents"], first["strides"], first["box"], first["steps"]) == ([64, 256], [128], [64, 128], [1, 1])
    assert (first["interleave"], first["swizzle"], first["promotion"], first["fill"]) == (0, 3, 2, 0)
    a, c, other_a = (bytes([number]) * MAP_BYTES for number in (1, 2, 3))
    assert driver.params == [[a, c] if p == here else [other_a, c] for p in (here, here, there, here, there, there)]


def test_kept_maps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MapImages, "LIMIT", 3)
    driver = FakeDriver()
    plan = plan_of(driver, {"A": info((256, 64))}, (MAP,))
    for number in range(10):
        plan.run(0, (BASE + 256 * number,), ())
    assert plan.maps is not None and plan.maps.image.cache_info().currsize <= 3
    assert driver.params[-1] == [bytes([10]) * MAP_BYTES]


def test_an_array_without_elements_is_described_as_memory_of_the_runtime() -> None:
    """Which holds zeros, or takes what is written; the driver knows no extent of 0."""
    driver = FakeDriver()
    arrays = {"A": info((256, 0), pointer=0), "C": info((0, 128), pointer=8)}
    maps = (MAP, TensorMap("C", (1, 0), (64, 64), 128))
    check_maps("k", maps, arrays)
    plan_of(driver, arrays, maps).run(0, (0, 8), ())
    assert driver.blanks == [(1, False), (1, True)]
    assert [(e["address"], e["extents"]) for e in driver.encoded] == [(0x1000, [1, 1]), (0x1080, [1, 1])]


def test_a_driver_without_tensor_maps() -> None:
    driver = FakeDriver()
    driver.cu.cuGetProcAddress = lambda name, version, flags: (0, 0, 1)
    plan = plan_of(driver, {"A": info((256, 64))}, (MAP,))
    with pytest.raises(DeviceError, match=r"this NVIDIA driver has no tensor maps[^\n]*\n  fix: update the driver"):
        plan.run(0, (BASE,), ())


def test_clusters_and_early_launches_are_attributes_of_the_launch() -> None:
    driver = FakeDriver()
    shape = Shape((6, 2, 1), (384, 1, 1), 220_000, (2, 1, 1), dependent=True)
    plan = plan_of(driver, {"A": info((256, 64))}, (MAP,), shape)
    for stream in (7, 8, 7):
        plan.run(stream, (BASE,), ())
    config = driver.configs[0]
    assert config is driver.configs[2] and config is not driver.configs[1]
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (6, 2, 1)
    assert (config.blockDimX, config.sharedMemBytes, int(config.hStream), config.numAttrs) == (384, 220_000, 7, 2)
    cluster, early = config.attrs
    assert (int(cluster.id), int(early.id)) == (4, 6)
    size = cluster.value.clusterDim
    assert (size.x, size.y, size.z, early.value.programmaticStreamSerializationAllowed) == (2, 1, 1, 1)


def test_a_kernel_without_either_is_launched_the_short_way() -> None:
    driver = FakeDriver()
    plan_of(driver, {"A": info((256, 64))}, (MAP,)).run(0, (BASE,), ())
    assert len(driver.params) == 1 and not driver.configs


def kernel(A: Global[bf16, M, K]): ...


def test_the_generated_launcher_keeps_maps_up_to_date() -> None:
    driver = FakeDriver()
    slow: list[dict[str, Any]] = []
    launcher = Launcher(read_signature(kernel), lambda values, device: slow.append(values))
    here, there = (Tensor(BASE + 4096 * i) for i in range(2))
    plan = plan_of(driver, {"A": info((256, 64))}, (MAP,))
    launcher.take_torch(lambda device: 5, lambda: True)
    launcher.add(launcher.key({"A": here, "device": None}), plan, meant())
    for tensor in (here, there, here):
        launcher.launch((tensor,), {})
    assert not slow
    assert [e["address"] for e in driver.encoded] == [BASE, BASE + 4096]
    assert [maps[0][0] for maps in driver.params] == [1, 2, 1]


# -- kernels ---------------------------------------------------------------------------------------------


@tile_kernel(arch="sm_90a")
def moved(A: Global[bf16, M, N], C: Global[bf16, M, N]):
    grid(cdiv(N, 64), cdiv(M, 8))
    t = threads(32)
    S = shared((8, 64), bf16, layout=swizzle_128b)
    full = shared((1,), u64)
    if t == 0:
        ptx.mbarrier_init(full, 0, count=1)
        ptx.fence_mbarrier_init()
        ptx.mbarrier_expect_tx(full, 0, bytes=8 * 64 * 2)
        tma_load(A[0:8, 0:64], S, mbarrier=(full, 0))
        ptx.mbarrier_wait(full, 0, parity=0)
        store_tma(S, C[0:8, 0:64])
        tma_commit()
        tma_wait(0)


@tile_kernel(arch="sm_90a")
def counted(C: Global[f32, N]):
    work = persistent(tile_schedule(N, 1, 1, tile=(8, 8, 8)), cluster=Cluster(m=2))
    t = threads(32)
    for item in work:
        if t < 8:
            C.put(item.m.start + t, f32(1))


def test_a_kernel_s_maps_are_those_of_its_declarations() -> None:
    image = moved.compile()
    assert set(image.tensor_maps) == {TensorMap(name, (1, 0), (64, 8), 128) for name in "AC"}
    assert (image.cluster, image.dependent, image.written) == ((1, 1, 1), False, ("C",))
    assert counted.compile().cluster == (2, 1, 1)


def test_the_emulator_refuses_what_a_gpu_would() -> None:
    A, C = np.zeros((8, 64), ml_dtypes.bfloat16), np.zeros((8, 64), ml_dtypes.bfloat16)
    moved(A, C, device="emulator")
    with pytest.raises(CompileError, match="those of A are known to be multiples of 8, or one is negative,"):
        moved(A[::-1], C, device="emulator")


def test_a_row_may_be_repeated() -> None:
    """By a stride of 0."""
    A, C = np.arange(64).reshape(1, 64).astype(ml_dtypes.bfloat16), np.zeros((8, 64), ml_dtypes.bfloat16)
    moved(np.broadcast_to(A, (8, 64)), C, device="emulator")
    assert (C == A).all()


def test_an_emulated_gpu_has_as_many_processors_as_asked_for() -> None:
    for processors in (2, 8, 132):
        C = np.zeros(100, np.float32)
        counted._emulated((C,), {}, processors=processors)
        assert (C == 1).all()


# -- clusters and the GPU --------------------------------------------------------------------------------


def test_the_grid_is_a_multiple_of_the_cluster() -> None:
    grid = [parse_expr("M"), parse_expr("N")]
    assert checked_grid("k", grid, {"M": 132, "N": 3}, (2, 1, 1)) == (132, 3, 1)
    with pytest.raises(KernelArgumentError, match=r"the grid has 3 blocks along x, no multiple of the cluster's 2"):
        checked_grid("k", grid, {"M": 3, "N": 1}, (2, 1, 1))


def test_a_grid_may_depend_on_the_number_of_processors() -> None:
    grid = [parse_expr("min(M, processors)")]
    assert checked_grid("k", grid, {"processors": 132, "M": 500}, (1, 1, 1)) == (132, 1, 1)


# -- the disk cache --------------------------------------------------------------------------------------


def test_what_a_launch_needs_survives_the_disk_cache() -> None:
    from tiledsl.backends.protocol import Resources

    resources = Resources(32, 0, 0, 0, 1024, 384, 1, "threads", 1.0)
    maps = (MAP, TensorMap("C", (2, 1, 0), (32, 64, 1), 64))
    image = Image(
        "k", "sm_90a", "llvm", "ptx", b"cubin", resources,
        abi=abi_of([("A", GlobalType(BF16, ("M", "K"), 1, 16))], 32), grid=("M",), threads=(384,), shared_bytes=1024,
        written=("C",), cluster=(2, 1, 1), tensor_maps=maps, dependent=True,
    )  # fmt: skip
    again = Image.from_bytes(image.to_bytes())
    assert again is not None
    assert (again.cluster, again.tensor_maps, again.dependent) == ((2, 1, 1), maps, True)
    assert again.abi == image.abi
    assert [parse_tensor_map(str(m)) for m in maps] == list(maps)
