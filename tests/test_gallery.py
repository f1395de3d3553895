"""The gallery is complete, documented, and right: every kernel file is listed, explained and runs."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tiledsl.arch import MOST_REGISTERS
from tiledsl.compilation.lowering import lower
from tiledsl.ir.types import DTYPES
from tiledsl.layout.orders import ORDERS
from tiledsl.signatures.specialize import GlobalSpec, Specialization, assumed, check_consts

GEMM = Path(__file__).parent.parent / "examples" / "gemm"
LIBRARY = Path(__file__).parent.parent / "tiledsl" / "gemm"
LIBRARY_FILES = {"fastest": "ffma.py", "mma_fastest": "mma.py", "hopper_fastest": "hopper.py"}
"""Where the text of a kernel stands that the gallery has from the library."""


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    sys.path.insert(0, str(GEMM))
    import gallery

    return gallery


@functools.cache
def _load(number: int) -> Any:
    """One object a kernel for all tests, since it keeps what it has compiled."""
    import gallery

    return gallery.load(gallery.GALLERY[number])


def _run(number: int, A: Any, B: Any, C: Any, *more: Any, **consts: Any) -> None:
    """The kernel on the emulator; one that takes batches gets batches of one."""
    import gallery

    kernel = _load(number)
    kernel(*gallery.as_given(kernel, A, B, C), *more, device="emulator", **consts)


def _number(gallery: ModuleType, name: str) -> int:
    return [entry.kernel for entry in gallery.GALLERY].index(name)


def _kernels(path: Path) -> list[str]:
    """Names of the `@tile_kernel` functions in a file, without running it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
            if any(isinstance(d, ast.Name) and d.id == "tile_kernel" for d in decorators):
                names.append(node.name)
    return names


def test_every_kernel_is_listed(gallery: ModuleType) -> None:
    texts = (*GEMM.glob("*.py"), *LIBRARY.glob("*.py"))
    in_files = {(path.name, name) for path in texts for name in _kernels(path)}
    entries = (*gallery.GALLERY, *gallery.HOPPER, *gallery.PREPARED)
    listed = {(LIBRARY_FILES.get(entry.kernel, entry.file), entry.kernel) for entry in entries}
    listed |= {("pad.py", "pad"), ("pad.py", "pad_both")}  # before a product
    listed |= {("planes.py", "scales_of_both"), ("planes.py", "split_both")}  # as well
    listed |= {("residues.py", "combined"), ("residues.py", "residues_of_both")}  # and behind it
    listed |= {
        ("all_reduce.py", "all_reduce"),
        ("all_reduce.py", "all_reduce_words"),
        ("emulated_ranks.py", "send_rows"),
    }  # between ranks
    listed |= {("grouped.py", "hopper_grouped"), ("int4.py", "hopper_int4")}  # of the library alone
    assert in_files == listed, "the kernels of examples/gemm and tiledsl/gemm, and GALLERY in gallery.py differ"


@pytest.mark.parametrize("readme", ["README.md", "examples/gemm/README.md"])
def test_every_kernel_is_explained(gallery: ModuleType, readme: str) -> None:
    text = (GEMM.parent.parent / readme).read_text()
    missing = [entry.file for entry in (*gallery.GALLERY, *gallery.HOPPER, *gallery.PREPARED) if entry.file not in text]
    assert not missing, f"{readme} does not mention {', '.join(missing)}"


Case = tuple[int, dict[str, Any], str]
"""A kernel's number in the gallery, consts, and the format of its operands."""


def _cases(*, every_format: bool = False) -> list[Case]:
    """All variants of all kernels, in the first of their formats, or in all of them with what they choose for it."""
    sys.path.insert(0, str(GEMM))
    import gallery

    cases: list[Case] = []
    for number, entry in enumerate(gallery.GALLERY):
        cases += [(number, consts, entry.formats[0]) for consts in entry.variants]
        for format in entry.formats[1:] if every_format else ():
            cases.append((number, gallery.chosen(entry, {}, 128, 128, 128, format), format))
    return cases


def _scaled(*, every_format: bool = False) -> list[Case]:
    """Of the kernels that compute alpha A B + beta C."""
    import gallery

    return [case for case in _cases(every_format=every_format) if gallery.GALLERY[case[0]].scaled]


@pytest.mark.parametrize(("number", "consts", "format"), _cases())
@pytest.mark.parametrize("size", [(1, 1, 1), (37, 21, 19), (16, 64, 168), (5, 40, 0), (0, 64, 32)])
def test_right_at_edges(
    gallery: ModuleType, number: int, consts: dict[str, Any], format: str, size: tuple[int, int, int]
) -> None:
    """Any M, N, K: also 1, no multiple of the tile, more steps than stages, and none at all (K = 0 gives zeros)."""
    from reference import random_problem, worst_error

    A, B, C = random_problem(*size, format=format)
    _run(number, A, B, C, **consts)
    error, bound = worst_error(C, A, B, format=format)
    assert error <= bound


@pytest.mark.parametrize(("number", "consts", "format"), _scaled(every_format=True))
@pytest.mark.parametrize("size", [(130, 260, 40), (133, 139, 35)])
def test_right_over_several_tiles(
    gallery: ModuleType, number: int, consts: dict[str, Any], format: str, size: tuple[int, int, int]
) -> None:
    """More than one block in each direction, several steps along K; aligned operands, and others."""
    from reference import random_problem, worst_error

    alpha, beta = (0.5, -1.5) if format not in ("i8", "u8") else (2.0, -3.0)
    A, B, C = random_problem(*size, format=format)
    C[:] = np.arange(C.size).reshape(C.shape) % 13
    old = C.copy()
    _run(number, A, B, C, alpha, beta, **consts)
    error, bound = worst_error(C, A, B, alpha, beta, old, format)
    assert error <= bound


@pytest.mark.parametrize(("number", "consts", "format"), _scaled())
@pytest.mark.parametrize(("alpha", "beta"), [(-0.5, 0.0), (0.0, 2.0), (0.0, 0.0), (1.0, 1.0)])
def test_what_a_zero_multiplies_is_not_read(
    gallery: ModuleType, number: int, consts: dict[str, Any], format: str, alpha: float, beta: float
) -> None:
    """BLAS: beta = 0 never reads C, alpha = 0 never reads A or B. There they hold NaN, and the result does not."""
    from reference import random_problem, worst_error

    A, B, C = random_problem(35, 37, 19, format=format)
    if alpha == 0:
        A[:], B[:] = np.nan, np.nan
    if beta != 0:
        C[:] = np.arange(C.size).reshape(C.shape) % 7 - 3
    old = C.copy()
    _run(number, A, B, C, alpha, beta, **consts)
    error, bound = worst_error(C, A, B, alpha, beta, old, format)
    assert error <= bound


TWINS = ("f16", "e5m2", "u8")
"""Formats whose elements are as wide as those of bf16, e4m3 and i8, and that are copied alike."""


@pytest.mark.parametrize(
    ("number", "consts", "format"), [case for case in _cases(every_format=True) if case[2] not in TWINS]
)
def test_any_strides(gallery: ModuleType, number: int, consts: dict[str, Any], format: str) -> None:
    """Column-major, shifted and every-other-element operands give the same bits as packed ones.

    The first and last call need no specialisation that the tests above do not need.
    """
    from reference import random_problem

    A, B, C = random_problem(20, 36, 24, format=format)
    blank = C[0, 0]
    _run(number, A, B, C, **consts)
    wide = np.full((20, 75), blank, C.dtype)
    _run(number, np.asfortranarray(A), np.asfortranarray(B), wide[:, :72:2], **consts)
    assert np.array_equal(wide[:, :72:2], C)
    assert np.array_equal(wide[:, 1:72:2], np.full((20, 36), blank), equal_nan=True)
    left, right = (np.pad(X, ((0, 0), (1, 0)))[:, 1:] for X in (A, np.repeat(B, 2, axis=0)))
    _run(number, left, right[::2], wide[:, 39:], **consts)
    assert np.array_equal(wide[:, 39:], C)


@pytest.mark.parametrize(
    ("format", "orders", "results"),
    [
        *(("bf16", orders, results) for orders, results in (("NN", "CF"), ("NT", "F"), ("TN", "C"), ("TT", "CF"))),
        *((format, *each) for format in ("tf32", "e4m3", "i8", "f64") for each in (("NT", "F"), ("TN", "C"))),
    ],
)
def test_every_orientation(gallery: ModuleType, format: str, orders: str, results: str) -> None:
    """`mma_fastest` takes operands of either order, aligned for the widest copies, and writes either one. No operand's
    copies depend on the other's order."""
    from reference import random_problem, worst_error

    number = _number(gallery, "mma_fastest")
    consts = gallery.chosen(gallery.GALLERY[number], {}, 64, 64, 64, format, along_k=orders == "NT")
    A, B, C = random_problem(80, 112, 96, format=format)
    given = [np.asfortranarray(X) if order == "T" else X for X, order in zip((A, B), orders, strict=True)]
    for order in results:
        out = np.full_like(C, C[0, 0], order=order)  # type: ignore[call-overload]
        _load(number)(*given, out, device="emulator", **consts)
        error, bound = worst_error(out, A, B, format=format)
        assert error <= bound


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("orders", ["NN", "TT"])
def test_by_tma_the_bits_are_the_same(gallery: ModuleType, number: int, orders: str) -> None:
    """`mma_fastest` adds up in one order, whoever copies; by TMA two processors have several tiles each, at edges. No
    access is early."""
    from reference import random_problem

    from tiledsl.gemm.epilogue import add_bias
    from tiledsl.gemm.mma import HALVES

    kernel, consts = _load(_number(gallery, "mma_fastest")), HALVES[number][1]
    A, B, C = random_problem(136, 264, 200, format="bf16")
    A, B = (np.asfortranarray(X) if order == "T" else X for X, order in zip((A, B), orders, strict=True))
    bias = np.linspace(-2, 2, 264, dtype=np.float32)
    for alpha, beta in ((1.0, 0.0), (0.3, -1.7), (0.0, 2.0)) if (orders, number) == ("NN", 0) else ((0.3, -1.7),):
        found = []
        for tma in ({}, {"TMA": False, "STAGES": 2}):
            out = np.ones_like(C)
            given = {**consts, **tma, "EPILOGUE": add_bias}
            kernel._emulated((A, B, out, alpha, beta, bias), given, checks=not tma, processors=2)
            found.append(out.view(np.uint16))
        assert np.array_equal(*found)


@pytest.mark.parametrize("bits", [32, 64])
def test_by_tma_nothing_is_spilled(gallery: ModuleType, bits: int) -> None:
    """With indices of either width, and an epilogue function."""
    from tiledsl.gemm.epilogue import add_bias
    from tiledsl.gemm.mma import HALVES
    from tiledsl.ir.types import DTYPES
    from tiledsl.signatures.specialize import Specialization, assumed, check_consts

    kernel = _load(_number(gallery, "mma_fastest"))
    dtypes = {name: DTYPES[dtype] for name, dtype in gallery.dtypes(kernel, "bf16").items()}
    for _, consts in HALVES:
        given = check_consts(kernel.signature, {**consts, "EPILOGUE": add_bias})
        spec = assumed(kernel.signature, dtypes, given)
        used = kernel.builds.compiled(Specialization(spec.tensors, spec.consts, bits), "sm_90a").resources
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)


@pytest.mark.parametrize("which", ["reversed", "repeated", "one column", "one row", "one k", "no k", "wide result"])
def test_what_tma_cannot_take_goes_the_other_way(gallery: ModuleType, which: str) -> None:
    """With the consts that are chosen for TMA; all but the last two have aligned rows that it cannot describe."""
    from reference import random_problem, worst_error

    from tiledsl.gemm.mma import HALVES

    m, n, k = {"one column": (72, 1, 72), "one row": (1, 72, 9), "one k": (72, 72, 1), "no k": (72, 72, 0)}.get(
        which, (72, 72, 72)
    )
    A, B, C = random_problem(m, n, k, format="bf16")
    if which == "reversed":
        A, C = A[::-1], C[::-1]
    if which == "repeated":
        A = np.broadcast_to(A[:1], A.shape)
    if which == "one row":
        A = np.tile(A.T, (1, k)).T[:1]  # out of a matrix of 9 x 9 whose columns are contiguous
    if which == "wide result":
        C = C.astype(np.float32)
    kernel = _load(_number(gallery, "mma_fastest"))
    for _, consts in HALVES:
        C[...] = np.nan
        kernel._emulated((A, B, C), consts, checks=True)
        error, bound = worst_error(C.astype(A.dtype), A, B, format="bf16")
        assert error <= bound


def test_an_epilogue_function(gallery: ModuleType) -> None:
    """A bias for each column, and any function of one's own."""
    from reference import error_bound, random_problem

    from tiledsl.gemm.epilogue import add_bias

    number = _number(gallery, "mma_fastest")
    A, B, C = random_problem(37, 140, 40, format="bf16")
    bias = np.linspace(-2, 2, 140, dtype=np.float32)
    _load(number)(A, B, C, 1.0, 0.0, bias, device="emulator", EPILOGUE=add_bias)
    exact = A.astype(np.float64) @ B.astype(np.float64) + bias
    bound = error_bound(A, B, exact, format="bf16") + 2.0**-23 * np.abs(exact)
    assert (np.abs(C.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize(("number", "consts", "format"), _cases())
def test_no_race_and_nothing_undefined(gallery: ModuleType, number: int, consts: dict[str, Any], format: str) -> None:
    """The emulator's checks: no barrier is missing, and no shared word is read that nothing has written."""
    from reference import random_problem

    kernel = _load(number)
    kernel.check(*gallery.as_given(kernel, *random_problem(70, 68, 56, format=format)), **consts)


@pytest.mark.parametrize(("number", "consts", "format"), _cases())
def test_nothing_is_spilled(gallery: ModuleType, number: int, consts: dict[str, Any], format: str) -> None:
    """On no architecture does a kernel need local memory, for spills or for a stack frame. What is far from the limit
    on one is so on all. Three more, whose code is nearly that of sm_80, stand in the committed report."""
    kernel = _load(number)
    for arch in ("sm_90a", "sm_80"):
        used = kernel.compile(arch=arch, **gallery.dtypes(kernel, format), **consts).resources
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0), arch
        if used.registers <= MOST_REGISTERS // 2:
            break


def test_the_committed_report_has_no_spills() -> None:
    """For five targets: ``python -m benchmarks.static_report``."""
    report = json.loads((GEMM.parent.parent / "benchmarks" / "results" / "static_report.json").read_text())
    cases = [case for case in report["cases"] if "refused" not in case]
    assert {case["target"] for case in cases} == {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_120a"}
    assert not [c for c in cases if c["spill_stores"] or c["spill_loads"] or c["stack"]]


@pytest.mark.parametrize(("consts", "share"), [({}, 0.92), ({"BM": 256}, 0.925)])
def test_the_main_loop_of_the_fastest_kernel_is_ffma(gallery: ModuleType, consts: dict[str, Any], share: float) -> None:
    """No load is narrower than 16 bytes. In a larger tile, copies and addresses are a smaller part."""
    report = _load(_number(gallery, "fastest")).compile(arch="sm_90a", **consts).explain("sass")
    assert report.share >= share
    assert report.histogram["LDS.128"] == 6 * report.histogram["FFMA"] // 128 and "LDS" not in report.histogram
    assert not report.spills


def test_the_fastest_loop_stays_as_it_is_written(gallery: ModuleType) -> None:
    """As it is written, nearly all FFMAs keep their order, and more of their operands come from the cache."""
    from benchmarks.ffma_orders import kept_order

    kernel = _load(_number(gallery, "fastest"))
    written, anew = (kernel.compile(arch="sm_90a", SCHEDULE=name).explain("sass") for name in ("written", "anew"))
    assert kept_order(written) > 0.85 > 0.65 > kept_order(anew)
    most, least = (max(r.banks.bank_reads) / r.banks.fmas for r in (anew, written))
    assert least < 0.97 < 1.0 < most


@pytest.mark.parametrize("align", [16, 4])
def test_the_fastest_schedule_follows_from_the_alignment(gallery: ModuleType, align: int) -> None:
    """The FFMAs of the first k of the PTX's main loop stand in the order of the schedule for such operands."""
    from tiledsl.gemm import ffma

    kernel = _load(_number(gallery, "fastest"))
    spec = assumed(kernel.signature, {}, check_consts(kernel.signature, {}))
    tensors = tuple((name, replace(known, align=align)) for name, known in spec.tensors if known)
    ptx = kernel.builds.compiled(replace(spec, tensors=tensors), "sm_90a").ptx
    factors = re.findall(r"fma\.rn\.f32 \s*%\w+, (%\w+), (%\w+)", ptx)[:128]
    schedule = ffma.VECTORS if align == 16 else ffma.ELEMENTS
    for found, wanted in zip(zip(*factors, strict=True), zip(*ORDERS[schedule.order](16, 8), strict=True), strict=True):
        assert [found.index(x) for x in found] == [wanted.index(x) for x in wanted]


@pytest.mark.parametrize("name", ["VECTORS", "ELEMENTS", "ALONG_K", "ANEW"])
@pytest.mark.parametrize("steps", [3, 8])
def test_every_instruction_of_the_fastest_loop_has_one_place(gallery: ModuleType, name: str, steps: int) -> None:
    """Each k has its FFMAs and the loads of the next one; each tile its fetches, then its stores, then the barrier, and
    what comes out of it after that."""
    from tiledsl.gemm import ffma
    from tiledsl.gemm.ffma_tiles import Tiling

    schedule = getattr(ffma, name)
    tiling = Tiling(128, 128, steps, 128, range(0, 64, 16), range(0, 64, 32))
    turn = [ffma.instructions(schedule, tiling, k, 8, 2) for k in range(steps)]
    row, column = schedule.flip
    order = [(i ^ row, j ^ column) for i, j in ORDERS[schedule.order](16, 8)]
    loads = {*(("load a", n, 0) for n in range(4)), *(("load b", n, 0) for n in range(2))}
    for of_one_k in turn:
        assert [(i, j) for what, i, j in of_one_k if what == "fma"] == order
        assert sorted(x for x in of_one_k if x[0].startswith("load")) == sorted(loads)
    written = [x for of_one_k in turn for x in of_one_k]
    kinds = [what for what, *_ in written]
    assert len(written) == steps * (128 + 6) + 8 + 2 + 1 + 1
    assert sorted(n for what, n, _ in written if what == "fetch a") == list(range(8))
    assert sorted(n for what, n, _ in written if what == "fetch b") == list(range(2))
    last_fetch = max(place for place, what in enumerate(kinds) if what.startswith("fetch"))
    after = [place for place, what in enumerate(kinds) if what.startswith("load")][-6:]
    assert last_fetch < kinds.index("stash") < kinds.index("barrier") < min(after)


def test_too_few_k_for_a_schedule(gallery: ModuleType) -> None:
    from tiledsl.gemm import ffma
    from tiledsl.gemm.ffma_tiles import Tiling

    tiling = Tiling(128, 128, 8, 512, range(0, 64, 16), range(0, 64, 32), slices=4)
    with pytest.raises(AssertionError, match="3 k a step, got 2"):
        ffma.instructions(ffma.VECTORS, tiling, 0, 8, 8)


def test_copies_of_whole_vectors_wait_once(gallery: ModuleType) -> None:
    """Rows of whole vectors need no code for a part of one: all loads of a step stand in front of the first store."""
    kernel = _load(_number(gallery, "mma_blocking"))
    report = kernel.compile(arch="sm_90a", D="bf16").explain("sass")
    assert "LDG x8, STS x8" in str(report)
    assert report.histogram["LDG.128"] == 8 and "LDG" not in report.histogram


@pytest.mark.parametrize(
    ("format", "archs"),
    [
        ("bf16", ["sm_80", "sm_86", "sm_90a"]),
        ("tf32", ["sm_80", "sm_86", "sm_90a"]),
        ("i8", ["sm_80", "sm_120a"]),
        ("e4m3", ["sm_89", "sm_90a"]),
        ("f64", ["sm_90a"]),
    ],
)
def test_what_is_chosen_fits_without_spills_and_conflicts(gallery: ModuleType, format: str, archs: list[str]) -> None:
    """The consts that `mma_fastest` chooses for a target leave it the registers and the shared memory that it needs.
    Each choice once, and e4m3, which sm_90a multiplies as f16, twice. Without a bias, as the gallery runs it: `gemm`
    refuses one for integers."""
    number = _number(gallery, "mma_fastest")
    kernel, entry = _load(number), gallery.GALLERY[number]
    for arch in archs:
        consts = gallery.chosen(entry, {}, 4096, 4096, 4096, format, arch=arch)
        spec, _ = kernel.specialized(arch, {**gallery.dtypes(kernel, format), **consts})
        given = tuple((name, None if name == "bias" else tensor) for name, tensor in spec.tensors)
        compiled = kernel.builds.compiled(replace(spec, tensors=given), arch)
        used, banks = compiled.resources, compiled.explain("banks")
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0), arch
        assert banks.conflicts == 0 and not banks.unknown, banks


NARROW = [
    ("f32", "TT", (4, 4, 4), "sm_90a"),
    ("f32", "NT", (4, 4, 16), "sm_90a"),
    ("bf16", "NN", (4, 4, 4), "sm_90a"),
    ("bf16", "NT", (2, 2, 2), "sm_90a"),
    ("bf16", "NT", (8, 8, 8), "sm_90a"),
    ("bf16", "TT", (16, 16, 2), "sm_90a"),
    ("bf16 192", "NN", (2, 2, 2), "sm_90a"),
    ("bf16 192", "NT", (16, 16, 2), "sm_90a"),
    ("bf16 128", "TT", (4, 4, 4), "sm_90a"),
    ("tf32", "TT", (8, 8, 8), "sm_89"),
    ("i8", "TN", (16, 16, 16), "sm_90a"),
    ("i8", "NT", (1, 1, 1), "sm_90a"),
    ("e4m3", "TT", (4, 4, 4), "sm_89"),
]
"""Of those that spilled when all had one and the same tile, and schedule: the worst ones, each rule of it once."""


@pytest.mark.parametrize(("format", "orders", "aligned", "arch"), NARROW)
def test_narrow_copies_are_not_spilled(
    gallery: ModuleType, format: str, orders: str, aligned: tuple[int, ...], arch: str
) -> None:
    """Each copy of a step keeps an address: where rows are little aligned `mma_fastest` takes less at once, and
    `fastest` has another schedule."""
    number = _number(gallery, "fastest" if format == "f32" else "mma_fastest")
    kernel, known = _load(number), {} if format == "f32" else {"arch": arch, "along_k": orders == "NT"}
    format, _, wide = format.partition(" ")
    size = {"": (4096, 4096, 4096), "192": (4096, 576, 7168), "128": (1024, 1024, 1024)}[wide]
    consts = gallery.chosen(gallery.GALLERY[number], {}, *size, format, **known)
    assert consts.get("BN") == (int(wide) if wide else consts.get("BN"))
    dtypes = {name: DTYPES[dtype] for name, dtype in gallery.dtypes(kernel, format).items()}
    spec = assumed(kernel.signature, dtypes, check_consts(kernel.signature, consts))
    first = 1 if format == "f32" else 0  # `fastest` has an axis for batches in front
    units = {"A": first + "TN".index(orders[0]), "B": first + "TN".index(orders[1]), "C": first + 1}
    given = {name: t.dtype for name, t in spec.tensors if t and name in units}
    tensors: list[tuple[str, GlobalSpec | None]] = [
        (name, GlobalSpec(t, units[name], max(align, t.bytes), True))
        for (name, t), align in zip(given.items(), aligned, strict=True)
    ]
    tensors += [(name, None) for name, _ in spec.tensors if name not in units]
    used = kernel.builds.compiled(Specialization(tuple(tensors), spec.consts, 32), arch).resources
    assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0)


def test_the_table_of_choices_says_how_much_shared_memory_they_take(gallery: ModuleType) -> None:
    from tiledsl.gemm import mma

    kernel = _load(_number(gallery, "mma_fastest"))
    tables = {id(choices): (format, choices) for format, choices in [*mma.CHOICES.items(), *mma.ALONG_K.items()]}
    for format, choices in tables.values():
        for kilobytes, consts in choices:
            dtypes = {name: DTYPES[dtype] for name, dtype in gallery.dtypes(kernel, format).items()}
            spec = assumed(kernel.signature, dtypes, check_consts(kernel.signature, consts))
            assert lower(kernel.signature, spec, "sm_90a")[0].shared_bytes == kilobytes << 10, (format, consts)


@pytest.mark.parametrize("name", ["maxas_256", "double_buffered", "staged_epilogue", "ffma_order", "fastest"])
def test_no_avoidable_bank_conflict(gallery: ModuleType, name: str) -> None:
    """From `maxas_256` on, every access to shared memory takes as few wavefronts as its bytes allow."""
    number = _number(gallery, name)
    for consts in gallery.GALLERY[number].variants:
        report = _load(number).compile(arch="sm_90a", **consts).explain("banks")
        assert report.conflicts == 0 and not report.unknown, report


@pytest.mark.parametrize("size", [(4096, 4096, 4096), (4096, 2112, 7168), (1000, 1000, 1000), (1, 1, 1)])
def test_the_choice_is_among_the_tested_ones(gallery: ModuleType, size: tuple[int, int, int]) -> None:
    """What `fastest` chooses for a size are consts that it has, and that compile."""
    entry = gallery.GALLERY[_number(gallery, "fastest")]
    consts = gallery.chosen(entry, {}, *size)
    assert consts and gallery.load(entry).compile(arch="sm_90a", **consts).resources.spill_loads == 0
    assert gallery.chosen(entry, {"BK": 8}, *size) == {"BK": 8}


def test_loops_equal_float64() -> None:
    """The reference that is written to be read agrees with the one that is used."""
    sys.path.insert(0, str(GEMM))
    from reference import matmul_loops, random_problem, worst_error

    A, B, C = random_problem(6, 5, 7)
    matmul_loops(A, B, C)
    error, bound = worst_error(C, A, B)
    assert error <= bound


def test_one_wrong_element_is_seen() -> None:
    sys.path.insert(0, str(GEMM))
    from reference import random_problem, worst_error

    A, B, C = random_problem(64, 64, 8)
    C[:] = A @ B
    for wrong in (C[63, 63] + 1e-3, np.nan):
        C[63, 63] = wrong
        error, bound = worst_error(C, A, B)
        assert error > bound


def test_a_kernel_file_runs_by_itself() -> None:
    command = [sys.executable, str(GEMM / "naive.py"), "--m", "33", "--n", "21", "--k", "9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "33 x 21 x 9" in done.stdout
    assert "right" in done.stdout
