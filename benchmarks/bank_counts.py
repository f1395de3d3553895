"""Two counts of the wavefronts that a launch takes: the static one times executions, and the emulator's.

The static count gives the wavefronts of one access of each warp. How often a warp makes it depends on sizes, and
comes from a run of the tile level on the emulator, which knows no layouts. The other count uses the real addresses
of the thread level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.gallery import chosen_consts, gallery_kernels, gallery_module, reference
from tiledsl.arch import EMULATED_ARCH
from tiledsl.backends import emulator
from tiledsl.backends.emulator.wavefronts import Ints, WavefrontCount
from tiledsl.compilation.lowering import lower
from tiledsl.ir.core import Kernel, Op
from tiledsl.kernel import TileKernel
from tiledsl.layout.banks import PHASES, Kind
from tiledsl.layout.shared import ROW
from tiledsl.passes.analysis.lanes import Lanes
from tiledsl.passes.banks.bank_conflicts import bank_report
from tiledsl.passes.banks.bank_report import BankReport
from tiledsl.passes.banks.shared_accesses import SharedAccess, shared_accesses
from tiledsl.passes.banks.wavefront_counter import WavefrontCounter
from tiledsl.runtime.arrays import host_array
from tiledsl.signatures.specialize import specialize

__all__ = [
    "BothCounts",
    "Bounds",
    "Key",
    "Product",
    "count_both",
    "emulated_counts",
    "executions",
    "gallery_products",
    "static_counts",
]


class Key(NamedTuple):
    """Accesses that both levels can distinguish. place: file and line."""

    place: str
    kind: Kind
    bytes: int

    @classmethod
    def of(cls, op: Op, kind: Kind, width: int) -> Key:
        return cls(f"{Path(op.loc.file).name}:{op.loc.line}", kind, width)


LARGE = (4096, 4096, 4096)

Bounds = tuple[int, int]
Executions = Mapping[tuple[Op, int], Ints]


@dataclass(frozen=True)
class BothCounts:
    """Wavefronts of one launch by access: static ones as minimum and maximum, None where they are not known.

    `accesses`: how many warp accesses a launch makes. `report`: of the same kernel, with its layouts.
    """

    static: dict[Key, Bounds | None]
    emulated: Counter[Key]
    accesses: Counter[Key]
    report: BankReport

    @property
    def differences(self) -> list[str]:
        """Accesses whose static count is known and is not the emulator's, or that it does not have."""
        found = [f"{key}: static none, emulated {self.emulated[key]}" for key in self.emulated.keys() - self.static]
        for key, bounds in self.static.items():
            if bounds is not None and not bounds[0] <= self.emulated[key] <= bounds[1]:
                found.append(f"{key}: static {bounds}, emulated {self.emulated[key]}")
        return found

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of accesses that there are, in the order of the phase table."""
        there = {key.kind for key in (*self.static, *self.emulated)}
        in_order: dict[Kind, None] = {kind: None for kind, _ in PHASES}
        return [kind for kind in in_order if kind in there]

    def of_kind(self, kind: Kind) -> tuple[int | None, int]:
        """Static and emulated wavefronts of all accesses of a kind; None if one of them is not exact."""
        bounds = [b for key, b in self.static.items() if key.kind == kind]
        exact = [b[0] for b in bounds if b is not None and b[0] == b[1]]
        emulated = sum(n for key, n in self.emulated.items() if key.kind == kind)
        return sum(exact) if len(exact) == len(bounds) else None, emulated


@dataclass(frozen=True)
class Product:
    """A gallery kernel with the consts of a variant, and its format: one of `reference.FORMATS`."""

    kernel: TileKernel
    consts: dict[str, Any]
    format: str

    def problem(self, size: tuple[int, int, int]) -> tuple[Any, ...]:
        """A, B and C for M, N, K."""
        return gallery_module().as_given(self.kernel, *reference().random_problem(*size, format=self.format))


def gallery_products() -> dict[str, Product]:
    """Every kernel, variant and format of the gallery; labels are like ``shared_tiled T=32`` and ``bf16 mma_async``.

    A variant without consts gets those that the kernel chooses for a large product of the format; for f32, where the
    format makes no difference, the defaults.
    """
    found: dict[str, Product] = {}
    for format in reference().FORMATS:
        for label, (kernel, given) in gallery_kernels(format).items():
            if format == "f32":
                found[label] = Product(kernel, given, format)
            else:
                consts = chosen_consts(kernel.name, given, LARGE, format)
                found[f"{format} {label}"] = Product(kernel, consts, format)
    return found


def count_both(kernel: TileKernel, *args: Any, **kwargs: Any) -> BothCounts:
    """Both counts of one call, on the emulator; it writes to the arguments as a call does."""
    dispatcher = kernel.dispatcher
    arguments = dispatcher.arguments(dispatcher.launcher.bind(args, kwargs))
    problem = specialize(kernel.signature, arguments.arrays, arguments.consts)
    at_tile_level: list[Kernel] = []

    def observe(stage: str, at_stage: Kernel) -> None:
        if stage == "after:bank-conflict":
            at_tile_level.append(at_stage.clone())

    arch = kernel.signature.arch or EMULATED_ARCH
    threads, _ = lower(kernel.signature, problem.spec, arch, observe=observe)
    (tiles,) = at_tile_level
    inputs = {**{name: host_array(info) for name, info in arguments.present.items()}, **arguments.scalars}
    counting, counted = WavefrontCount(), WavefrontCount()
    saved = {name: array.copy() for name, array in inputs.items() if hasattr(array, "copy")}
    emulator.run(tiles, {**inputs, **saved}, options=emulator.Options(hooks=(counting,)))
    emulator.run(threads, inputs, options=emulator.Options(hooks=(counted,)))
    accesses: Counter[Key] = Counter()
    for (op, _), count in counted.counts.items():
        accesses[Key.of(op, count.kind, count.bytes)] += count.accesses
    static = static_counts(tiles, "chosen", executions(counting))
    return BothCounts(static, emulated_counts(counted), accesses, bank_report(tiles))


def executions(hook: WavefrontCount) -> Executions:
    """Of a run at tile level: how often each warp made each access."""
    return {key: count.by_warp for key, count in hook.counts.items()}


def emulated_counts(hook: WavefrontCount) -> Counter[Key]:
    found: Counter[Key] = Counter()
    for (op, _), count in hook.counts.items():
        found[Key.of(op, count.kind, count.bytes)] += count.wavefronts
    return found


def static_counts(kernel: Kernel, layout: Literal["row", "chosen"], made: Executions) -> dict[Key, Bounds | None]:
    """Minimum and maximum wavefronts of a tile-level kernel's accesses on a line; None where they are not known."""
    lanes = Lanes(kernel)
    counter = WavefrontCounter(lanes)
    found: dict[Key, Bounds | None] = {}
    for access in shared_accesses(kernel.walk(), lanes):
        key = Key.of(access.op, access.kind, access.width)
        bounds = _bounds(access, counter, layout, made)
        before = found.get(key, (0, 0))
        found[key] = None if bounds is None or before is None else (before[0] + bounds[0], before[1] + bounds[1])
    return found


def _bounds(access: SharedAccess, counter: WavefrontCounter, layout: str, made: Executions) -> Bounds | None:
    count = counter.count(access, ROW if layout == "row" else access.alloc.placement)
    times = made.get((access.op, access.width))
    if times is None:
        return 0, 0
    if count is None or access.mask.unknown or access.guarded:
        return None
    assert not times[len(count.least) :].any(), "more warps than the block has"
    here = times[: len(count.least)]
    return int(here @ count.least), int(here @ count.most)
