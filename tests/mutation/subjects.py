"""The kernels that are mutated, with inputs that reach as much of them as they can."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import gcd
from typing import Any

import numpy as np

from tests.mutation import kernels
from tests.mutation.inputs import Input, Subject, around, arrays, copied, gallery_file
from tiledsl.arch import target_named
from tiledsl.backends.emulator import Options
from tiledsl.compilation.lowering import lower
from tiledsl.ir.core import Kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.passes.pipeline import run_pipeline
from tiledsl.runtime.arrays import host_array
from tiledsl.runtime.dispatch import EMULATED_ARCH
from tiledsl.signatures.signature import Specialization
from tiledsl.signatures.specialize import specialize

__all__ = ["OUTSIDE", "SUBJECTS", "Built", "Run", "built", "differences", "digest_of", "more_runs"]


def _plain(m: int, n: int, k: int, edge: tuple[int, int] = (5, 59)) -> tuple[Input, ...]:
    """Of a kernel that computes C = A B: whole tiles of m x n x k and parts of more, whole ones, parts of one with more
    terms than rows or columns and with few terms, an empty sum. edge: so many columns more, and terms; with odd ones no
    vector fits the edge, and the kernel is the general one."""
    columns, terms = edge
    some = Input(7, columns, k + terms), Input(7, columns, terms if terms % 4 == 0 else 1)
    return Input(m + 1, n + columns, k + terms), Input(m, n, k), *some, Input(m, n, 0)


def _scaled(m: int, n: int, k: int, edge: tuple[int, int]) -> tuple[Input, ...]:
    """The same of C = alpha A B + beta C, with the old C and without."""
    edges, whole, part, few, empty = _plain(m, n, k, edge)
    return (
        replace(edges, alpha=0.5, beta=-1.5),
        replace(whole, alpha=1.0, beta=0.0),
        replace(part, alpha=1.0, beta=0.0),
        replace(few, alpha=1.0, beta=0.0),
        replace(part, alpha=0.0, beta=2.0),
        replace(empty, alpha=1.0, beta=2.0),
    )


def _fp32(name: str, m: int, n: int, k: int, label: str = "", **consts: Any) -> Subject:
    """Edges without vectors of 16 bytes, and with."""
    make = _plain if name in ("naive", "shared_tiled") else _scaled
    inputs = *make(m, n, k, (5, 27)), make(m, n, k, (4, 28))[0]
    return Subject(label or name, name, consts, inputs, "f32", "f32", pad=(4, 8, 12))


def _mma(
    name: str, m: int, n: int, k: int, label: str = "", processors: int = 1, more: tuple[Input, ...] = (), **consts: Any
) -> Subject:
    inputs = *_scaled(m, n, k, (8, 24)), *more
    return Subject(label or name, name, consts, inputs, processors=processors)


def _hopper(
    name: str,
    m: int,
    n: int,
    k: int,
    label: str = "",
    processors: int = 2,
    columns: int = 5,
    more: tuple[Input, ...] = (),
    **consts: Any,
) -> Subject:
    """columns: more than whole tiles have; a kernel that stores C by TMA has whole vectors. more: other inputs, as a
    whole band of several tiles and a part of one."""
    return Subject(label or name, name, consts, (*_plain(m, n, k, (columns, 59)), *more), processors=processors)


SMALL: dict[str, Any] = {"BM": 64, "BN": 64}
HALVES: dict[str, Any] = {"BM": 128, "BN": 64, "STAGES": 2}
STAGED: dict[str, Any] = {
    "BM": 32, "BN": 32, "BK": 32, "WARP_TILE": (32, 32), "SLICES": 4, "SCHEDULE": "staged", "GROUP": 2
}  # fmt: skip
ANEW: dict[str, Any] = {"BM": 64, "BN": 64, "BK": 32, "SLICES": 4, "SCHEDULE": "anew", "GROUP": 2}
_ALL = [
    _fp32("naive", 16, 32, 8),
    _fp32("shared_tiled", 16, 32, 32, T=16),
    _fp32("coarsen_1d", 64, 64, 32),
    _fp32("coarsen_2d", 128, 128, 32),
    _fp32("vectorized", 128, 128, 32),
    _fp32("maxas_64", 64, 64, 32),
    _fp32("maxas_256", 128, 128, 32),
    _fp32("double_buffered", 128, 128, 32),
    _fp32("staged_epilogue", 128, 128, 32),
    _fp32("ffma_order", 128, 128, 32),
    _fp32("fastest", 64, 32, 96, "fastest, staged", **STAGED),
    _fp32("fastest", 128, 64, 96, "fastest, anew", **ANEW),
    _mma("mma_blocking", 128, 128, 64),
    _mma("mma_async", 128, 128, 128),
    _mma("mma_in_flight", 128, 128, 192),
    _mma("mma_staged", 128, 128, 128),
    _mma("mma_pipelined", 128, 128, 192),
    _mma("mma_fastest", 128, 128, 192, GROUP=2, **SMALL, BK=32, STAGES=3, WARPS=(2, 2)),
    _mma(
        "mma_fastest",
        128,
        64,
        256,
        "mma_fastest, TMA",
        2,
        more=(Input(256, 64, 128, 1.0, 0.0),),
        GROUP=2,
        **SMALL,
        BK=64,
        STAGES=2,
        WARPS=(2, 2),
        TMA=True,
    ),
    _hopper("hopper_tma", 64, 64, 128, **SMALL),
    _hopper("hopper_ring", 64, 64, 512, **SMALL, STAGES=3),
    _hopper("hopper_roles", 128, 64, 320, **HALVES),
    _hopper("hopper_persistent", 256, 64, 192, GROUP=2, **HALVES),
    _hopper(
        "hopper_persistent",
        256,
        128,
        192,
        "hopper_persistent, cluster",
        4,
        more=(Input(640, 133, 64),),
        GROUP=4,
        **HALVES,
        CLUSTER=(2, 1),
    ),
    _hopper("hopper_store", 256, 128, 192, columns=8, GROUP=2, **{**HALVES, "BN": 128}),
    _hopper("hopper_pingpong", 192, 64, 192, columns=8, more=(Input(192, 136, 64),), GROUP=2, **SMALL, STAGES=2, OUT=1),
    _hopper("hopper_fastest", 256, 208, 192, columns=8, GROUP=2, **{**HALVES, "BN": 208}),
    _hopper("hopper_fastest", 256, 256, 192, "hopper_fastest, cluster", 8, 8, GROUP=2, **HALVES, CLUSTER=(2, 2)),
    Subject(
        "hopper_fastest, add",
        "hopper_fastest",
        {"BM": 64, "BN": 128, "STAGES": 2, "INSTANCES": 2, "ADD_C": True, "GROUP": 2},
        (Input(199, 133, 195, 0.5, -1.5), Input(192, 128, 192, 1.0, 2.0), Input(199, 133, 0, 1.0, 2.0)),
    ),
    Subject("hopper_scaled", "hopper_scaled", {"STAGES": 2}, (Input(135, 133, 640),), "e4m3", pad=(8, 16, 32)),
    Subject(
        "hopper_split",
        "hopper_split",
        {"BN": 64, "STAGES": 2},
        (Input(135, 71, 155), Input(128, 64, 96), Input(7, 5, 27), Input(135, 71, 0)),
        result="f32",
    ),
    Subject(
        "hopper_int4",
        "hopper_int4",
        {"STAGES": 2},
        (Input(21, 69, 571), Input(16, 64, 384), Input(5, 7, 100)),
    ),
]


def _outside(name: str, m: int, n: int = 64, operand: str = "f32", processors: int = 2) -> Subject:
    """Return a kernel of `kernels` as a subject, on m rows and on twice as many."""
    return Subject(name, name, {}, (Input(m, n, 0), Input(2 * m, n, 0)), operand, operand, processors, (8, 16, 24))


_OUTSIDE = [
    _outside("last_block", 3, processors=4),
    _outside("handed_on", 3, processors=8),
    _outside("released_on", 3, processors=8),
    _outside("locked", 3, processors=4),
    _outside("sent", 8, 256, processors=4),
    replace(_outside("copied_by_warps", 6), inputs=(Input(6, 52, 0), Input(12, 64, 0))),
    _outside("two_halves", 10),
    _outside("by_hand", 14),
    _outside("turned", 48, operand="bf16"),
    _outside("voted", 3),
]
OUTSIDE = frozenset(subject.name for subject in _OUTSIDE)
"""The names of the subjects that are no kernels of the gallery."""
SUBJECTS = {subject.name: subject for subject in [*_ALL, *_OUTSIDE]}


@dataclass
class Built:
    """A subject, compiled. `written`: as the frontend makes it; `lowered`: as the emulator runs it."""

    subject: Subject
    written: Kernel
    lowered: Kernel
    runs: tuple[Run, ...]
    arch: str


@dataclass
class Run:
    """The arguments of a run by parameter (`given`), the `expected` C, bit for bit, with all of the memory around it,
    and the names of other arrays that the kernel writes (`scratch`)."""

    given: dict[str, Any]
    expected: Any
    scratch: frozenset[str] = frozenset()

    def arguments(self) -> dict[str, Any]:
        """Fresh ones: a kernel writes C, and a wrong one anything."""
        return {name: copied(value) if isinstance(value, np.ndarray) else value for name, value in self.given.items()}

    def options(self, subject: Subject, **options: Any) -> Options:
        return Options(checks=True, processors=subject.processors, **options)


@cache
def built(name: str) -> Built:
    subject = SUBJECTS[name]
    kernel = _kernel(subject)
    specs, runs = zip(*(_run(subject, each) for each in subject.inputs), strict=True)
    assert len({*map(_general, specs)}) == 1, f"the inputs of {name} are of several specialisations"
    found: list[Kernel] = []

    def keep(stage: str, kernel: Kernel) -> None:
        if stage == "tile":
            found.append(kernel.clone())

    arch = kernel.signature.arch or EMULATED_ARCH
    lower(kernel.signature, specs[0], arch, observe=keep, bounds=True, until="canonicalize")
    limit = target_named(arch).shared_per_block
    lowered = run_pipeline(found[0].clone(), shared_limit=limit, target=arch, bounds=True)
    return Built(subject, found[0], lowered, runs, arch)


def digest_of(name: str) -> str:
    """Of a subject's kernel as the frontend makes it."""
    return hashlib.sha256(print_kernel(built(name).written, locs=False).encode()).hexdigest()[:16]


def _kernel(subject: Subject) -> Any:
    module = kernels if subject.name in OUTSIDE else gallery_file(subject.kernel)
    return getattr(module, subject.kernel)


def _run(subject: Subject, given: Input) -> tuple[Specialization, Run]:
    kernel = _kernel(subject)
    values, expected = arrays(subject, given)
    bound = kernel.dispatcher.launcher.bind((), {**values, **subject.consts})
    arguments = kernel.dispatcher.arguments(bound, "emulator")
    hosts = {name: None if info is None else host_array(info) for name, info in arguments.arrays.items()}
    spec = specialize(kernel.signature, arguments.arrays, arguments.consts).spec
    return spec, Run({**hosts, **arguments.scalars}, expected, subject.scratch)


MORE = 16


@cache
def more_runs(name: str) -> tuple[Run, ...]:
    """Return runs of other sizes: of a kernel outside the gallery on more rows; of others `MORE` of random sizes, up to
    those of the largest input, and multiples of the greatest common divisor of those of all inputs."""
    rng, inputs = np.random.default_rng(1), SUBJECTS[name].inputs
    if name in OUTSIDE:
        return tuple(_run(SUBJECTS[name], replace(inputs[0], m=inputs[0].m * n))[1] for n in (3, 4, 5))
    most = [max(sizes) for sizes in zip(*((each.m, each.n, each.k) for each in inputs), strict=True)]
    step = [gcd(*sizes) for sizes in zip(*((each.m, each.n, each.k) for each in inputs), strict=True)]
    scalars = sorted({(each.alpha, each.beta) for each in inputs}, key=repr)
    runs: list[Run] = []
    for number in range(MORE):
        m, n, k = (int(rng.integers(1, a // b + 1)) * b for a, b in zip(most, step, strict=True))
        alpha, beta = scalars[number % len(scalars)]
        runs.append(_run(SUBJECTS[name], Input(m, n, k, alpha, beta))[1])
    return tuple(runs)


def _general(spec: Specialization) -> Any:
    """Without what is known of rows: code for rows of any length takes those of whole vectors, too."""
    tensors = [(name, tensor and replace(tensor, whole=False)) for name, tensor in spec.tensors]
    return replace(spec, tensors=tuple(tensors))


def differences(run: Run, arguments: Mapping[str, Any]) -> str:
    """What is not as it should be after a run, or "". The rows' padding counts, too."""
    if around(arguments["C"]).tobytes() != run.expected.tobytes():
        return "C is wrong"
    arrays = {name for name, value in run.given.items() if isinstance(value, np.ndarray)}
    inputs = sorted(arrays - {"C"} - run.scratch)
    return next((f"{name} is written" for name in inputs if not _same(arguments[name], run.given[name])), "")


def _same(a: Any, b: Any) -> bool:
    return around(a).tobytes() == around(b).tobytes()
