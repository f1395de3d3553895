"""The list of kernels in this folder, in reading order, and the functions that run and check one of them."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from reference import FORMATS, Array, random_problem, worst_error

from tiledsl.errors import ToolNotFoundError
from tiledsl.inspect.loading import load_kernel, load_module, parse_consts
from tiledsl.kernel import TileKernel
from tiledsl.runtime.driver import available

__all__ = [
    "GALLERY",
    "HOPPER",
    "HOPPER_ARCH",
    "PREPARED",
    "SIZE",
    "Entry",
    "Outcome",
    "as_given",
    "chosen",
    "dtypes",
    "here",
    "load",
    "main",
    "run",
]

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """One kernel of the gallery.

    `file` in this folder contains `kernel`. `variants`: sets of consts, each a row of the demo. `idea`: what
    this step adds, in one line. `choose`: the name of a function in the file that returns the consts for a
    product of m x n x k, where none are given. `formats`: the operands' formats, by the names of
    `reference.FORMATS`; the demo takes the first. `multiple`: M, N and K are multiples of it.
    """

    file: str
    kernel: str
    idea: str
    variants: tuple[dict[str, Any], ...] = field(default_factory=lambda: ({},))
    choose: str = ""
    formats: tuple[str, ...] = ("f32",)
    multiple: int = 1

    def sized(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """The extents, each rounded up to a size that the kernel accepts."""
        m, n, k = (-(-extent // self.multiple) * self.multiple for extent in (m, n, k))
        return m, n, k

    @property
    def scaled(self) -> bool:
        """Whether it computes C = alpha A B + beta C, and not just C = A B."""
        return self.kernel not in ("naive", "shared_tiled")


HALVES = ("bf16", "f16")

GALLERY = (
    Entry("naive.py", "naive", "one thread, one element of C"),
    Entry(
        "shared_tiled.py",
        "shared_tiled",
        "tiles of A and B in shared memory, each element read T times",
        ({"T": 16}, {"T": 32}),
    ),
    Entry("coarsen_1d.py", "coarsen_1d", "a thread computes 8 elements of a column of C"),
    Entry("coarsen_2d.py", "coarsen_2d", "a thread computes 8 x 8 elements, each read serves 8 of them"),
    Entry("vectorized.py", "vectorized", "16 bytes an instruction, A stored transposed"),
    Entry("maxas_64.py", "maxas_64", "64 threads; a thread's elements are four blocks of 4 x 4"),
    Entry("maxas_256.py", "maxas_256", "256 threads, and no bank conflict left"),
    Entry("double_buffered.py", "double_buffered", "the next tile is loaded while this one is multiplied"),
    Entry("staged_epilogue.py", "staged_epilogue", "the result through shared memory, so that stores are rows"),
    Entry(
        "ffma_order.py",
        "ffma_order",
        "the order of the FFMAs, for the operand reuse cache",
        ({"ORDER": "rows"}, {"ORDER": "serpentine"}, {"ORDER": "spiral"}),
    ),
    Entry(
        "fastest.py",
        "fastest",
        "16 x 8 elements a thread, a loop that the assembler keeps as it is written",
        (
            {},
            {"BM": 128, "BN": 64, "BK": 8, "SCHEDULE": "anew"},
            {"BM": 64, "BN": 64, "BK": 32, "SLICES": 4, "SCHEDULE": "anew"},
            {"BM": 32, "BN": 32, "BK": 32, "WARP_TILE": (32, 32), "SLICES": 4, "SCHEDULE": "staged"},
        ),
        choose="choose",
    ),
    Entry("mma_blocking.py", "mma_blocking", "tensor cores: ldmatrix and mma.sync", formats=HALVES),
    Entry("mma_async.py", "mma_async", "cp.async: the next tile arrives while this one is multiplied", formats=HALVES),
    Entry("mma_in_flight.py", "mma_in_flight", "two copies in flight, operands loaded a step ahead", formats=HALVES),
    Entry("mma_staged.py", "mma_staged", "the result through shared memory, 16 bytes a lane", formats=HALVES),
    Entry("mma_pipelined.py", "mma_pipelined", "the same by the pipelining pass, in a few lines", formats=HALVES),
    Entry(
        "mma_fastest.py",
        "mma_fastest",
        "any dtype and orientation, larger tiles, an epilogue function",
        choose="choose",
        formats=(*HALVES, "tf32", "e4m3", "e5m2", "i8", "u8", "f64"),
    ),
)


HOPPER_ARCH = "sm_90a"


def _hopper(name: str, idea: str, variants: tuple[dict[str, Any], ...] = ({},), choose: str = "") -> Entry:
    return Entry(f"{name}.py", name, idea, variants, choose, HALVES, multiple=8)


ROLES: tuple[dict[str, Any], ...] = ({"BN": 128, "CONSUMERS": 1}, {"BN": 256, "CONSUMERS": 2})

HOPPER = (
    _hopper("hopper_tma", "TMA copies tiles, wgmma multiplies them in shared memory"),
    _hopper("hopper_ring", "a ring of stages: copies run ahead of the products"),
    _hopper("hopper_roles", "one thread copies, warpgroups multiply: one, then two with a larger tile", ROLES),
    _hopper("hopper_persistent", "persistent blocks, in grouped order; clusters", ({}, {"CLUSTER": (2, 1)})),
    _hopper("hopper_store", "the result by TMA, while the next tile is multiplied"),
    _hopper("hopper_pingpong", "two alternating consumers: one multiplies while the other stores"),
    _hopper("hopper_fastest", "tiles that fit, batches, any orientation, an epilogue function", choose="choose"),
)
"""Kernels that need an sm_90a. TMA needs rows that are multiples of 16 bytes; `hopper_gemm.gemm` accepts any."""


PREPARED = (
    Entry(
        "hopper_scaled.py",
        "hopper_scaled",
        "8-bit floats with scales of blocks: sums of 128 of k, scaled and added in f32",
        formats=("e4m3",),
        multiple=16,
    ),
    Entry(
        "hopper_split.py",
        "hopper_split",
        "f32 as planes of bf16: pairs of planes, and sums of 32 of k, added in f32",
        multiple=8,
    ),
    Entry(
        "hopper_int4.py",
        "hopper_int4",
        "weights of 4 bits, unpacked in registers, which wgmma multiplies",
        formats=("bf16",),
        multiple=8,
    ),
)
"""Kernels whose operands are prepared: `prepared` does it as their files do."""

SIZE = (333, 217, 129)
"""M, N and K of a run for which none are given."""


@dataclass(frozen=True)
class Outcome:
    """One run, checked. `where`: the GPU's name or "emulator".

    `error`, `bound`: of the element with the largest error relative to its bound, against float64.
    `seconds`: on a GPU of the kernel alone, on the emulator of the whole call. Sizes in bytes. `registers`, `shared`,
    `spills`: None without an assembler.
    """

    kernel: str
    size: tuple[int, int, int]
    arch: str
    where: str
    error: float
    bound: float
    registers: int | None
    shared: int | None
    spills: int | None
    seconds: float

    @property
    def right(self) -> bool:
        return self.error <= self.bound

    def __str__(self) -> str:
        used = f"{self.registers} registers, {self.shared} bytes shared"
        return (
            f"{self.kernel}: {' x '.join(map(str, self.size))} on {self.where}: {'right' if self.right else 'WRONG'}\n"
            f"  error {self.error:.1e}, bound {self.bound:.1e}; {'no assembler' if self.registers is None else used}, "
            f"{self.seconds * 1e3:.3g} ms"
        )


def load(entry: Entry) -> TileKernel:
    """The kernel of `entry`, from its file."""
    return load_kernel(FOLDER / entry.file, entry.kernel)


def dtypes(kernel: TileKernel, format: str) -> dict[str, str]:
    """The dtype variables of `kernel` in `format`: D is the dtype of the operands, E that of the result."""
    kind = FORMATS[format]
    return {
        name: {"D": kind.operand, "F": kind.operand, "E": kind.result}[name]
        for name in kernel.signature.dtype_variables
    }


def chosen(
    entry: Entry, consts: dict[str, Any], m: int, n: int, k: int, format: str = "", **known: Any
) -> dict[str, Any]:
    """`consts` or, where there are none, those that the kernel chooses for m x n x k in `format`.

    known: further inputs of the choice, by the names of its parameters, such as `arch`.
    """
    if consts or not entry.choose:
        return consts
    choose = getattr(load_module(FOLDER / entry.file), entry.choose)
    asked = {name: value for name, value in known.items() if name in signature(choose).parameters}
    return choose(m, n, k, format or entry.formats[0], **asked)


def as_given(kernel: TileKernel, *arrays: Any) -> tuple[Any, ...]:
    """Matrices in the rank that `kernel` expects: for a batched kernel, batches of one."""
    batched = len(kernel.signature.tensors[0].dims) == 3
    return tuple(X[None] if batched else X for X in arrays)


def here() -> tuple[Entry, ...]:
    """The kernels that this machine can run: without a GPU all of them, on the emulator."""
    gpu = available()
    hopper = not gpu or gpu.target_of(gpu.current_device()) == HOPPER_ARCH
    return (*GALLERY, *HOPPER) if hopper else GALLERY


def run(
    kernel: TileKernel,
    m: int,
    n: int,
    k: int,
    consts: dict[str, Any],
    *,
    format: str = "f32",
    arch: str = "sm_90a",
    seed: int = 0,
) -> Outcome:
    """Compile `kernel`, run it on random data where possible, and compare every element with float64."""
    gpu, where = available(), "emulator"
    if gpu:
        ordinal = gpu.current_device()
        arch, where = gpu.target_of(ordinal), gpu.devices[ordinal].name
    try:
        used = kernel.compile(arch=arch, **dtypes(kernel, format), **consts).resources
    except ToolNotFoundError:
        if gpu:
            raise
        used = None  # the emulator needs none
    A, B, C = random_problem(m, n, k, seed, format)
    start = time.perf_counter()
    given = as_given(kernel, A, B, C)
    left, right = A, B
    if kernel.name in [entry.kernel for entry in PREPARED]:
        given, (left, right) = prepared(kernel.name, A, B, C, seed)
    kernel(*given, **consts)
    seconds = time.perf_counter() - start
    if gpu:
        seconds = kernel.time(*given, **consts).median
    error, bound = worst_error(C, left, right, format=format)
    sizes = (used.registers, used.shared, used.spill_stores + used.spill_loads) if used else (None, None, None)
    shown = [format] if format != "f32" else []
    label = " ".join([kernel.name, *shown, *(f"{name}={value}" for name, value in consts.items())])
    return Outcome(label, (m, n, k), arch, where, error, bound, *sizes, seconds)


def prepared(name: str, A: Array, B: Array, C: Array, seed: int) -> tuple[tuple[Any, ...], tuple[Array, Array]]:
    """The arguments of a kernel of `PREPARED`, and the operands that it multiplies."""
    if name == "hopper_scaled":
        scales, multiplied = _scaled(A, B, seed)
        return (A, np.ascontiguousarray(B.T), C, *scales), multiplied
    file = load_module(FOLDER / f"{name}.py")
    if name == "hopper_split":
        return (file.split(A, 3), file.split(B.T, 3), C), (A, B)
    q, scales = file.quantised(B.astype(np.float32))
    weights = (q.astype(float) - 8) * np.repeat(scales, file.GROUP, axis=0)[: len(q)]
    return (file.packed(q), A, C, scales), (A, weights)


def _scaled(A: Array, B: Array, seed: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Random scales of blocks (1 x 128 of A, 128 x 128 of B by its columns), and the operands multiplied by them."""
    random = np.random.default_rng(seed)
    (m, k), n, block = A.shape, B.shape[1], 128
    blocks = -(-k // block)
    of_a, of_b = (random.uniform(0.5, 2, (rows, blocks)).astype(np.float32) for rows in (m, -(-n // block)))
    along_k, along_n = ([place // block for place in range(extent)] for extent in (k, n))
    scaled = A.astype(float) * of_a[:, along_k], B.astype(float) * of_b[along_n][:, along_k].T
    return (of_a, of_b), scaled


def main(kernel: TileKernel, argv: list[str] | None = None) -> None:
    """The command line of a kernel's file: sizes and consts, one line of result, exit 1 if it is wrong."""
    entry = next(entry for entry in (*GALLERY, *HOPPER) if entry.kernel == kernel.name)
    formats = entry.formats
    parser = argparse.ArgumentParser(description=f"Run {kernel.name} on random data and check it.")
    for name, size, meaning in zip("mnk", SIZE, ("rows of A and C", "columns of B and C", "depth"), strict=True):
        parser.add_argument(f"--{name}", type=int, default=size, help=f"{meaning} (default {size})")
    parser.add_argument("--format", default=formats[0], choices=formats, help=f"of the data (default {formats[0]})")
    for const in kernel.signature.consts:
        parser.add_argument(f"--{const.name}", default=None, help=f"const (default {const.default})")
    args = parser.parse_args(argv)
    given = [c.name for c in kernel.signature.consts if getattr(args, c.name) is not None]
    consts = parse_consts(kernel, [f"{name}={getattr(args, name)}" for name in given])
    size = entry.sized(args.m, args.n, args.k)
    consts = chosen(entry, consts, *size, args.format)
    got = run(kernel, *size, consts, format=args.format)
    print(got)
    sys.exit(not got.right)
