"""The names of the language as plain Python sees them: classes, annotations, signatures, refusals."""

from __future__ import annotations

import inspect
import typing
from typing import Any, Callable, Literal, TypeVar, get_args, get_origin

import numpy as np
import pytest

import tiledsl
from tiledsl import dims, lang
from tiledsl.errors import TileError
from tiledsl.ir import types as ir
from tiledsl.lang import math
from tiledsl.lang.constants import CONST
from tiledsl.layout.mma import SHAPES

DTYPES: dict[str, Any] = {name: getattr(lang, "boolean" if name == "bool" else name) for name in ir.DTYPES}

# Every function that a kernel calls, as the frontend binds its arguments.
SIGNATURES = {
    "assert_": "(condition, message='')",
    "ballot": "(predicate)",
    "barrier": "()",
    "cdiv": "(a, b)",
    "convert": "(fragment, layout)",
    "coordinates": "(acc)",
    "copy": "(src, dst, vec=16)",
    "copy_async": "(src, dst, vec=16)",
    "fence": "(reach='gpu')",
    "fma": "(a, b, c)",
    "fragment": "(shape, dtype, layout=None, init=0)",
    "grid": "(*extents, cluster=())",
    "grid_size": "(axis=0)",
    "lane_id": "()",
    "load_fragment": "(src, layout, vec=0)",
    "load_matrix": "(src, layout)",
    "maximum": "(a, b)",
    "minimum": "(a, b)",
    "mma": "(a, b, acc)",
    "outer_fma": "(acc, a, b, order='rows')",
    "pipelined": "(loop, /, *, stages, fragments=0)",
    "ptx.commit_group": "()",
    "ptx.cp_async": "(dst, dst_index, src, src_index, bytes=16)",
    "ptx.inline": "(text, outputs, *operands, volatile=False, convergent=False, memory='unknown', uniform='thread', "
    "emulate=None)",
    "ptx.ldmatrix": "(src, *index, num=4, trans=False)",
    "ptx.mma_sync": "(shape, a, b, c, dtypes)",
    "ptx.stmatrix": "(dst, *index_and_words, trans=False)",
    "ptx.wait_group": "(pending)",
    "shared": "(shape, dtype, over=None, layout=None)",
    "shuffle": "(value, lane, width=32)",
    "shuffle_down": "(value, distance, width=32)",
    "shuffle_up": "(value, distance, width=32)",
    "shuffle_xor": "(value, mask, width=32)",
    "store": "(fragment, dst, via=None, vec=0)",
    "store_matrix": "(fragment, dst)",
    "syncwarp": "()",
    "threads": "(*extents, blocks=0, assembler_level=3)",
    "tile": "(i, size)",
    "tiles": "(extent, size, start=0)",
    "unroll": "(*bounds, by=0)",
    "vote_all": "(predicate)",
    "vote_any": "(predicate)",
    "wait": "(*tokens)",
    "warp_id": "()",
    "where": "(condition, a, b)",
    "persistent": "(schedule, cluster=Cluster(m=1, n=1))",
    "role": "(name, *, warpgroups=1, registers=0, threads=0, instances=1)",
    "tile_schedule": "(m, n, k, tile, group=8, along='m', batches=1, splits=1)",
    "tma_load": "(src, dst, multicast='', hint='', mbarrier=None, every=1, first=0)",
    "tma_wait": "(pending=0, read=False)",
    "wgmma": "(a, b, acc)",
    "wgmma.accumulator": "(shape, dtype)",
    "Ring": "(stages, **tiles)",
    "Ring.fill": "(self)",
    "Ring.use": "(self, in_flight=0)",
    "Role.turn": "(self, name)",
    "Pending.wait": "(self)",
    "Memory.get": "(self, *index, other=0, vec=0)",
    "Memory.put": "(self, *index_and_value)",
    "Memory.load": "(self, *index, vec=16)",
    "Memory.store": "(self, *index_and_fragment)",
    "Memory.atomic_load": "(self, *index, order='relaxed', scope='gpu')",
    "Memory.atomic_store": "(self, *index_and_value, order='relaxed', scope='gpu')",
    **dict.fromkeys(
        [f"Memory.atomic_{name}" for name in ("add", "exchange", "cas", "min", "max", "and", "or", "xor")],
        "(self, *index_and_value, order='relaxed', scope='gpu')",
    ),
    "Scalar.to": "(self, dtype, /)",
    "Scalar.bitcast": "(self, dtype, /)",
}


def find(path: str) -> Any:
    found: Any = lang
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("path", "expected"), SIGNATURES.items(), ids=list(SIGNATURES))
def test_signature(path: str, expected: str) -> None:
    signature = inspect.signature(find(path))
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == expected


@pytest.mark.parametrize("name", DTYPES)
def test_each_ir_dtype_has_its_class(name: str) -> None:
    cls = DTYPES[name]
    assert cls.ir is ir.DTYPES[name]
    assert lang.ir_dtype(cls) is cls.ir
    assert issubclass(cls, lang.Float) == cls.ir.is_float
    assert issubclass(cls, lang.MatrixFormat) == cls.ir.is_matrix
    assert issubclass(cls, lang.Integer) == cls.ir.is_integer


@pytest.mark.parametrize("obj", [int, float, None, 3, "f32", lang.Scalar, lang.Float, dims.M, ir.F32])
def test_other_objects_are_no_dtype(obj: object) -> None:
    assert lang.ir_dtype(obj) is None


def test_bool_is_the_dtype_boolean() -> None:
    assert lang.ir_dtype(bool) is ir.BOOL


def test_all_names_are_exported() -> None:
    assert {*lang.__all__, "tile_function", "dims"} <= set(tiledsl.__all__)
    assert all(getattr(tiledsl, name) is getattr(lang, name) for name in lang.__all__)
    assert set(math.__all__) <= set(lang.__all__)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = tiledsl.nothing_of_the_kind  # pyright: ignore[reportAttributeAccessIssue]


def test_public_functions_are_documented() -> None:
    undocumented = [name for name in lang.__all__ if not inspect.getdoc(getattr(lang, name))]
    assert not undocumented


# -- annotations -----------------------------------------------------------------------------------

D = TypeVar("D", bound=lang.Float)


def test_global_is_readable_at_run_time() -> None:
    annotation = lang.Global[lang.f32, dims.M, Literal[3]]
    assert get_origin(annotation) is lang.Global
    assert get_args(annotation) == (lang.f32, dims.M, Literal[3])


def test_global_takes_a_type_variable() -> None:
    assert get_args(lang.Global[D, dims.M, dims.K]) == (D, dims.M, dims.K)


def test_global_can_be_optional() -> None:
    annotation = lang.Global[lang.f32, dims.N] | None
    assert set(get_args(annotation)) == {lang.Global[lang.f32, dims.N], type(None)}


def test_annotations_survive_as_strings() -> None:
    def kernel(A: lang.Global[lang.f32, dims.M] | None, alpha: lang.f32, *, T: lang.const = 16) -> None: ...

    hints = typing.get_type_hints(kernel, include_extras=True)
    assert hints["A"] == lang.Global[lang.f32, dims.M] | None
    assert hints["alpha"] is lang.f32
    assert hints["T"] == lang.const


def test_const_is_annotated() -> None:
    assert get_args(lang.const) == (int, CONST)
    assert get_args(lang.Const[bool]) == (bool, CONST)
    assert get_args(lang.Const[Callable[[int], int]])[0] == Callable[[int], int]


def test_dimensions_show_their_name() -> None:
    class Rows(dims.Dim):
        """Mine."""

    assert (str(dims.M), repr(Rows)) == ("M", "Rows")
    assert {dims.M: 1, Rows: 2}[Rows] == 2
    assert all(issubclass(getattr(dims, name), dims.Dim) for name in dims.__all__)


# -- outside kernels -------------------------------------------------------------------------------

FRAGMENT = lang.Fragment[lang.f32]()

OUTSIDE: dict[str, Callable[[], Any]] = {
    "f32(...)": lambda: lang.f32(0),
    "index(...)": lambda: lang.index(0),
    "barrier()": lang.barrier,
    "grid()": lambda: lang.grid(1),
    "shared()": lambda: lang.shared((4,), lang.f32),
    "unroll()": lambda: lang.unroll(3),
    "mma()": lambda: lang.mma(FRAGMENT, FRAGMENT, FRAGMENT),
    "wgmma.accumulator()": lambda: lang.wgmma.accumulator((64, 64), lang.f32),
    "tma_load()": lambda: lang.tma_load(lang.Memory[lang.f32](), lang.Memory[lang.f32]()),
    "role()": lambda: lang.role("load"),
    "Ring()": lambda: lang.Ring(2, a=lang.SharedTile[lang.f32]()),
    "tile_schedule()": lambda: lang.tile_schedule(dims.M, dims.N, dims.K, tile=(64, 64, 64)),
    "a schedule": lambda: list(lang.Schedule.__new__(lang.Schedule)),
    "ptx.mbarrier_wait()": lambda: lang.ptx.mbarrier_wait(lang.Memory[lang.u64](), 0, parity=0),
    "copy_async()": lambda: lang.copy_async(lang.Memory[lang.f32](), lang.Memory[lang.f32]()),
    "pipelined()": lambda: lang.pipelined(range(3), stages=2),
    "ptx.wait_group()": lambda: lang.ptx.wait_group(0),
    "cdiv() of run-time values": lambda: lang.cdiv(dims.M, 2),
    "the operator * on M": lambda: dims.M * 2,
    "the dimension K as a Python int": lambda: range(dims.K),
    "ptx.inline()": lambda: lang.ptx.inline("nanosleep.u32 1;", None),
    "relu()": lambda: lang.relu(object.__new__(lang.f32)),
    "the operator *": lambda: object.__new__(lang.f32) * 2,
    "the operator ==": lambda: object.__new__(lang.i32) == 2,
    "the operator == on e4m3": lambda: object.__new__(lang.e4m3) == object.__new__(lang.e4m3),
    "tf32(...)": lambda: lang.tf32(0.5),
    "a kernel's boolean as a Python bool": lambda: bool(object.__new__(lang.boolean)),
    ".to()": lambda: object.__new__(lang.f32).to(lang.f16),
    ".get()": lambda: lang.Memory[lang.f32]().get(0),
    "a fragment": lambda: lang.Fragment[lang.f32]()[0],
}


@pytest.mark.parametrize(("what", "use"), OUTSIDE.items(), ids=list(OUTSIDE))
def test_plain_python_is_refused(what: str, use: Callable[[], Any]) -> None:
    with pytest.raises(TileError) as error:
        use()
    text = str(error.value)
    assert what in text
    assert "kernel" in text
    assert "fix: " in text


def test_layouts_are_made_in_plain_python() -> None:
    acc = lang.mma.m16n8k16.acc(warps=(4, 2))
    assert str(acc) == "mma.m16n8k16.acc(4, 2)"
    assert (acc.threads, acc.a, acc.b) == (256, lang.mma.m16n8k16.a((4, 2)), lang.mma.m16n8k16.b((4, 2)))
    assert [str(getattr(lang.mma, name).shape) for name in SHAPES] == list(SHAPES)
    with pytest.raises(ValueError, match="at least one along each axis"):
        lang.mma.m16n8k16.acc(warps=(0, 4))
    with pytest.raises(AttributeError, match=r"mma has no m16n16k16; the shapes are m16n8k8, m16n8k16"):
        _ = lang.mma.m16n16k16  # pyright: ignore[reportAttributeAccessIssue]


def test_clusters_are_made_in_plain_python() -> None:
    assert lang.Cluster(m=2) == lang.Cluster(2, 1)
    for m, n in ((0, 1), (True, 1), (4, 4)):
        with pytest.raises(ValueError, match=r"positive|portable"):
            lang.Cluster(m, n)
    assert [str(s) for s in (lang.swizzle_128b, lang.swizzle_64b, lang.swizzle_32b)] == [
        "swizzle_128b",
        "swizzle_64b",
        "swizzle_32b",
    ]


def test_dimensions_are_not_called() -> None:
    with pytest.raises(TileError, match=r"M\(\) has no value"):
        dims.M()


@pytest.mark.parametrize(("a", "b", "expected"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (7, -2, -3)])
def test_cdiv_of_ints_works_in_plain_python(a: int, b: int, expected: int) -> None:
    assert lang.cdiv(a, b) == expected
    found = lang.cdiv(np.int8(a), np.int16(b))
    assert found == expected and type(found) is int


def test_cdiv_of_numpy_integers_does_not_wrap() -> None:
    assert lang.cdiv(np.int8(-128), np.int8(-1)) == 128
    assert lang.cdiv(np.uint64(2**64 - 1), 2) == 2**63


@pytest.mark.parametrize("warps", [(0, 1), (2, -1), (1.5, 2), (True, 1), ("2", 2)])
def test_a_layout_needs_whole_warps(warps: Any) -> None:
    with pytest.raises(ValueError, match="an int each, at least one along each axis"):
        lang.mma.m16n8k16.acc(warps=warps)
