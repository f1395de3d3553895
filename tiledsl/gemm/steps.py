"""From a `Plan` to launches: which kernel gets which memory, with which shape and strides.

No array is made for that. A launch is described by the strides of views of A, B, C and the workspace, and works for any
addresses of the same alignment.

Small products use programmatic dependent launch (EARLY): a kernel starts while the one before it in the stream still
runs. That is safe whatever the kernels before and after it are:

- Each thread of such a kernel waits (griddepcontrol.wait) before it touches global memory, until the grid before it has
  completed and its writes are visible. By induction all earlier grids have completed then. So a workspace may be reused
  by the next call as soon as this call has returned.
- A kernel that does not wait is launched normally: it starts when the whole grid before it has ended.
- Waiting blocks cannot starve the grid that they wait for: dependents start only when every block of that grid has
  started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from tiledsl.gemm.formats import Residues, Split
from tiledsl.gemm.operands import Operands
from tiledsl.gemm.pad import pad, pad_both, padded, width
from tiledsl.gemm.plan import ALIGNED, Plan, Problem
from tiledsl.gemm.planes import planes_width, scales_of_both, split_both
from tiledsl.gemm.residues import CONSTANTS, bits_for, combined, reduced, residues_of_both, residues_width
from tiledsl.ir.abi import INDEX32_LIMIT
from tiledsl.ir.types import F32, I8, U8, U32, DType
from tiledsl.kernel import TileKernel
from tiledsl.lang import cdiv
from tiledsl.layout.shared import row_major
from tiledsl.signatures.specialize import ArrayInfo

BIAS, SCALES, ROOM, ZEROS = 3, 4, 6, 7
"""Numbers of memories, after A, B and C. ROOM: a workspace. ZEROS: another one, whose words are 0 between launches."""
BITS = {1: U8, 4: U32}
"""What operands of other dtypes are copied as, by the bytes of an element: dtypes that differ share a launch."""
FAR_SCALES = 1 << 34
"""Multiplications of a product from which it is faster to copy scales of A that are not next to those of other rows:
each is fetched from a line of its own."""
GRAIN = 256
"""Alignment of the parts of a workspace, in bytes."""


class Place(NamedTuple):
    """An array of a launch, `offset` bytes after the start of memory number `memory`. strides: in elements."""

    memory: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def transposed(self) -> Place:
        """With the last two axes swapped."""
        *rest, m, n = self.shape
        *steps, down, across = self.strides
        return self._replace(shape=(*rest, n, m), strides=(*steps, across, down))

    @property
    def every_other(self) -> Place:
        """The only matrix as two, of every other row."""
        (_, rows, columns), (_, down, across) = self.shape, self.strides
        return self._replace(shape=(2, rows // 2, columns), strides=(down, 2 * down, across))

    def matrix(self, number: int) -> Place:
        """Matrix `number` of a batch, without an axis for it."""
        at = self.offset + number * self.strides[0] * self.dtype.bytes
        return self._replace(shape=self.shape[1:], strides=self.strides[1:], offset=at)

    def info(self, addresses: Sequence[int], device: int, owner: Any) -> ArrayInfo:
        at = addresses[self.memory] + self.offset
        return ArrayInfo(self.dtype, self.shape, self.strides, at, device, True, owner)


@dataclass(frozen=True)
class Step:
    """A launch: of arrays, consts and other integers by name. scaled: by alpha and beta."""

    kernel: TileKernel
    arrays: Mapping[str, Place]
    consts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    scaled: bool = False
    numbers: Mapping[str, int] = field(default_factory=dict[str, int])

    def values(
        self, addresses: Sequence[int], device: int, alpha: float = 1.0, beta: float = 0.0, owner: Any = None
    ) -> dict[str, Any]:
        """All arguments and consts by name, where the memories have these addresses."""
        given: dict[str, Any] = {name: place.info(addresses, device, owner) for name, place in self.arrays.items()}
        given |= {**self.consts, **self.numbers}
        if self.scaled:
            given |= {"alpha": alpha, "beta": beta}
        return self.kernel.dispatcher.launcher.bind((), given)


class Steps(NamedTuple):
    """All launches of a product, and the bytes that they need: of a workspace, and of memory that is zero."""

    launches: tuple[Step, ...]
    room: int
    zeros: int


def problem_of(of: Operands, beta: float, epilogue: bool, arch: str, processors: int) -> Problem:
    """What the choice depends on."""
    batch, m, k = of.a.shape
    arrays = (of.a, of.b, of.c)
    units = [info.unit_axis() for info in arrays]
    units = [unit if unit in (1, 2) else 0 for unit in units]
    by_tma = [bool(unit) and info.alignment(unit) == 16 for info, unit in zip(arrays, units, strict=True)]
    by_tma[2] = by_tma[2] and of.c.whole(units[2], ALIGNED)
    apart = [not tma and _loads_apart(info, unit) for info, unit, tma in zip(arrays, units, by_tma, strict=True)][:2]
    facts = (of.a.dtype.name, of.c.dtype.name, *units, *by_tma, *apart, beta != 0, of.bias is not None, epilogue)
    right = of.b.dtype.name if of.b.dtype != of.a.dtype else ""
    more = of.batch_invariant, right, of.promoted, of.scales is not None, of.split
    return Problem._make((batch, m, of.b.shape[2], k, *facts, arch, processors, *more))


def _loads_apart(info: ArrayInfo, unit: int) -> bool:
    """Whether TMA can read the only matrix of this array in parts: its address is aligned, and every 8th line is, too.
    Coordinates in it, which reach over 8 lines, have 32 bits."""
    if not unit or info.shape[0] > 1 or info.pointer % ALIGNED:
        return False
    return 0 < info.strides[3 - unit] < INDEX32_LIMIT // 8 - info.shape[unit]


class _Builder:
    a: Place
    b: Place
    c: Place

    def __init__(self, of: Operands) -> None:
        self.room = 0
        self.steps: list[Step] = []

        def place(number: int, info: ArrayInfo) -> Place:
            return Place(number, info.dtype, info.shape, info.strides)

        self.a, self.b, self.c = (place(number, info) for number, info in enumerate((of.a, of.b, of.c)))
        self.bias = {} if of.bias is None else {"bias": place(BIAS, of.bias)}
        self.scales = {f"scale_{'ab'[i]}": place(SCALES + i, info) for i, info in enumerate(of.scales or ())}

    def take(self, dtype: DType, shape: tuple[int, ...]) -> Place:
        """A row-major array in the workspace."""
        at = self.room
        self.room += cdiv(prod(shape) * dtype.bytes, GRAIN) * GRAIN
        return Place(ROOM, dtype, shape, row_major(shape), at)

    def copied(self, X: Place, across: bool, copies: list[Place]) -> Place:
        """A copy of X whose rows are whole vectors, and run along axis 1 of X if `across`. What is copied, as bits, and
        to where comes to `copies`."""
        if across:
            return self.copied(X.transposed, False, copies).transposed
        batch, rows, columns = X.shape
        Y = self.take(X.dtype, (batch, rows, padded(columns, X.dtype.bytes)))
        moved = BITS.get(X.dtype.bytes, X.dtype)
        copies.extend((X._replace(dtype=moved), Y._replace(dtype=moved)))
        return Y._replace(shape=X.shape)

    def copy(self, copies: list[Place], early: bool) -> None:
        """A launch that makes one or two copies, if there are any."""
        if copies:
            kernel, names = (pad, "XY") if len(copies) == 2 else (pad_both, "XYZW")
            wide = [width(X.shape[2], X.dtype.bytes) for X in copies[1::2]]
            consts = {**dict(zip(("WIDE", "WIDE2"), wide, strict=False)), "EARLY": early}
            self.steps.append(Step(kernel, dict(zip(names, copies, strict=True)), consts))

    def pad(self, plan: Plan) -> None:
        """Replace operands by copies, which the first launch makes; and the scales of A, if they are far apart."""
        copies: list[Place] = []

        def by_columns(X: Place) -> bool:
            return X.strides[1] == 1 and X.strides[2] != 1

        a, b, scales = self.a, self.b, self.scales.get("scale_a")
        across_a = plan.across_k or (by_columns(a) and not plan.along_k)
        across_b = plan.along_k or (by_columns(b) and not plan.across_k)
        self.a = self.copied(a, across_a, copies) if plan.pad_a else a
        self.b = self.copied(b, across_b, copies) if plan.pad_b else b
        self.copy(copies, plan.early)
        large = prod(a.shape) * b.shape[2] >= FAR_SCALES
        if large and scales is not None and scales.strides[1] != 1 < scales.shape[2]:
            copies = []
            self.scales["scale_a"] = self.copied(scales, True, copies)
            self.copy(copies, plan.early)

    def split(self, split: Split, early: bool) -> None:
        """Replace operands by their planes, which the first launches make, and, scaled, by the scales of their rows."""
        operands = self.a, self.b.transposed
        widths = [planes_width(X.shape[2], split) for X in operands]
        planes = [self.take(split.dtype, (*X.shape[:2], w)) for X, w in zip(operands, widths, strict=True)]
        arrays = dict(zip("XZYW", (*operands, *planes), strict=True))
        if split.scaled:
            scales = [self.take(F32, (*X.shape[:2], 1)) for X in operands]
            vectors = [S._replace(shape=S.shape[:2], strides=S.strides[:2]) for S in scales]
            rows = {name: arrays[name] for name in "XZ"} | dict(zip("SR", vectors, strict=True))
            self.steps.append(Step(scales_of_both, rows, {"EARLY": early}))
            arrays |= dict(zip(("scale_x", "scale_z"), vectors, strict=True))
            self.scales = {"scale_a": scales[0], "scale_b": scales[1].transposed}
        self.steps.append(Step(split_both, arrays, {"PLANES": split.planes, "DEPTH": split.depth, "EARLY": early}))
        self.a, self.b = planes[0], planes[1].transposed

    def residues(self, scheme: Residues, plan: Plan, finish: Mapping[str, Any]) -> int:
        """All launches by residues, as `multiply`. Their rows are aligned, also those of the sums."""
        (batch, m, k), n, count = self.a.shape, self.c.shape[2], scheme.moduli
        C, bias, early = self.c, self.bias, {"EARLY": plan.early}
        found, zeros = {"C": C, **bias}, 0
        if k:
            operands, wide = (self.a, self.b.transposed), residues_width(n)
            scales = [self.take(scheme.dtype, X.shape[:2]) for X in operands]
            rows = dict(zip("XSZR", (operands[0], scales[0], operands[1], scales[1]), strict=True))
            self.steps.append(Step(scales_of_both, rows, early, numbers={"bits": bits_for(k, scheme)}))
            matrices = count * batch
            parts = [self.take(I8, (matrices, lines, residues_width(k))) for lines in (m, wide)]
            moduli, sums = self.take(F32, (matrices, len(CONSTANTS[0]))), self.take(I8, (matrices, m, wide))
            arrays = dict(zip(("X", "Y", "Z", "W"), (operands[0], parts[0], operands[1], parts[1]), strict=True))
            arrays |= {"scale_x": scales[0], "scale_z": scales[1], "moduli": moduli}
            self.steps.append(Step(residues_of_both, arrays, {"COUNT": count, **early}))
            self.a, self.b, self.c, self.bias = parts[0], parts[1].transposed, sums, {}
            width = moduli.shape[1]
            rows = moduli._replace(shape=(matrices, wide if plan.exchanged else m, width), strides=(width, 0, 1))
            finish_sums = {**early, "EXCHANGED": plan.exchanged, "MODULI": True, "EPILOGUE": reduced}
            zeros = self.multiply(plan, finish_sums, scaled=False, more={"scale_a": rows})
            found |= {"planes": sums, "scale_a": scales[0], "scale_b": scales[1]}
        kept = {name: value for name, value in finish.items() if name != "EXCHANGED"}
        self.steps.append(Step(combined, found, {"COUNT": count, **kept}, True))
        return zeros

    def multiply(
        self, plan: Plan, finish: Mapping[str, Any], *, scaled: bool = True, more: Mapping[str, Place] | None = None
    ) -> int:
        """The launches of the kernel. Returns the bytes of zeros that they need. scaled: by alpha and beta. more: other
        arrays."""
        kernel = plan.kernel
        names = {const.name for const in kernel.signature.consts}
        # Without a const for them, beta is a factor like any other, and exchanged operands have nothing by column.
        optional = "ADD_C", "EXCHANGED"
        missing = [name for name, value in finish.items() if value and name not in names and name not in optional]
        assert not missing, f"{kernel.name} was chosen for what it cannot do: {missing}"
        consts = {**{name: value for name, value in finish.items() if name in names}, **plan.consts}
        a, b, c = self.a, self.b, self.c
        if plan.every_other:
            a, b, c = a.every_other, b._replace(shape=(2, *b.shape[1:]), strides=(0, *b.strides[1:])), c.every_other
        if plan.exchanged:
            a, b, c = b.transposed, a.transposed, c.transposed
            of_a, of_b = (self.scales.get(name) for name in ("scale_a", "scale_b"))
            self.scales = {"scale_a": of_b.transposed, "scale_b": of_a.transposed} if of_a and of_b else {}
        if len(kernel.signature.tensors[0].dims) == 2:
            for number in range(c.shape[0]):
                parts = {name: X.matrix(number) for name, X in zip("ABC", (a, b, c), strict=True)}
                self.steps.append(Step(kernel, {**parts, **self.bias}, consts, True))
            return 0
        more = dict(more or {})
        if plan.sums is not None:
            more["sums"] = self.take(F32, plan.sums)
        if plan.done:
            more["done"] = Place(ZEROS, U32, (plan.done,), (1,))
        arrays = {"A": a, "B": b, "C": c, **self.bias, **self.scales, **more}
        self.steps.append(Step(kernel, arrays, consts, scaled, plan.numbers))
        return plan.done * U32.bytes


def steps_of(of: Operands, problem: Problem, plan: Plan, epilogue: Any) -> Steps:
    """The launches of `plan`. epilogue: None for none."""
    builder = _Builder(of)
    finish = {"ADD_C": problem.add_c, "EARLY": plan.early, "EXCHANGED": plan.exchanged}
    finish |= {} if epilogue is None else {"EPILOGUE": epilogue}
    if isinstance(plan.split, Residues):
        zeros = builder.residues(plan.split, plan, finish)
        return Steps(tuple(builder.steps), builder.room, zeros)
    if plan.split:
        builder.split(plan.split, plan.early)
    else:
        builder.pad(plan)
    zeros = builder.multiply(plan, finish)
    return Steps(tuple(builder.steps), builder.room, zeros)
