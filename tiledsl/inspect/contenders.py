"""Kernels and cuBLAS on the same operands: what a benchmark compares, each checked before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tiledsl.errors import DeviceError, TileError, UsageError
from tiledsl.inspect.frameworks import Device
from tiledsl.inspect.loading import load_kernel, load_kernel_or_function, parse_consts
from tiledsl.inspect.timing import interleave
from tiledsl.ir.types import DType
from tiledsl.kernel import TileKernel
from tiledsl.measure import PRODUCTS
from tiledsl.signatures.signature import REQUIRED

CUBLAS = "cuBLAS"
LAYOUTS = ("NN", "NT", "TN", "TT")
"""How A and B are stored: N in row order as [M, K] and [K, N], T transposed."""

Launch = Callable[[int], None]


@dataclass(frozen=True)
class Size:
    """A product of m x k and k x n matrices; of `batch` such pairs, or of one without an axis for it (0)."""

    m: int
    n: int
    k: int
    batch: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """M, N, K, behind the batch if there is one."""
        return (*([self.batch] if self.batch else []), self.m, self.n, self.k)

    def bytes(self, itemsizes: tuple[int, int]) -> int:
        """Of the operands and of the result."""
        operand, result = itemsizes
        each = operand * (self.m * self.k + self.k * self.n) + result * self.m * self.n
        return each * max(self.batch, 1)

    def __str__(self) -> str:
        return "x".join(map(str, self.numbers))


@dataclass(frozen=True)
class Roles:
    """Which tensor of a kernel is A, B, C of a product, and how it declares A and B: as in LAYOUTS."""

    a: str
    b: str
    c: str
    layout: str = "NN"
    batched: bool = False


def read_roles(kernel: TileKernel) -> Roles:
    """Read off the names of the dimensions. Raises UsageError for a kernel that is no product of two matrices."""
    tensors = [p for p in kernel.signature.tensors if not p.optional]
    for param in kernel.signature.scalars:
        if param.default is REQUIRED:
            raise UsageError(f"bench: {kernel.name} needs {param.name}\n  fix: give it a default")
    ranks, batches = {len(p.dims) for p in tensors}, {p.dims[:-2] for p in tensors}
    if len(tensors) == 3 and ranks in ({2}, {3}) and len(batches) == 1:
        a, b, c = tensors
        for layout in LAYOUTS:
            stored = zip((a, b), layout, strict=True)
            (m, k), (inner, n) = (p.dims[-2:] if order == "N" else p.dims[:-3:-1] for p, order in stored)
            if k == inner and c.dims[-2:] == (m, n):
                return Roles(a.name, b.name, c.name, layout, ranks == {3})
    shown = ", ".join(f"{p.name}[{', '.join(map(str, p.dims))}]" for p in kernel.signature.tensors)
    fix = "name A, B and C in this order, with the dimensions M, K / K, N / M, N, of A and B also transposed"
    fix += ", and a batch before all of them or none"
    raise UsageError(f"bench: {kernel.name}({shown}) is no product that it knows\n  fix: {fix}")


@dataclass(frozen=True)
class Contender:
    """One kernel with consts; where there are none, what ``choose(m, n, k, format)`` of its file gives, if it has
    such a function."""

    label: str
    kernel: TileKernel | Callable[..., None]
    consts: dict[str, Any]
    roles: Roles

    def consts_for(self, size: Size, format: str) -> dict[str, Any]:
        choose = self.kernel.fn.__globals__.get("choose") if isinstance(self.kernel, TileKernel) else None
        if self.consts or choose is None:
            return self.consts
        return choose(size.m, size.n, size.k, format)

    def takes(self, size: Size) -> bool:
        """A kernel of batches takes a single product as a batch of one; a function takes both."""
        return self.roles.batched or not size.batch or not isinstance(self.kernel, TileKernel)

    def launcher(self, operands: Operands, layout: str = "") -> Launch:
        """``launch(number)`` on the operands of that number; stored as the kernel declares them, or in `layout`."""
        roles, size, device = self.roles, operands.size, operands.device
        sets: list[dict[str, Any]] = []
        for arrays in zip(*operands.stored(layout or roles.layout), operands.results, strict=True):
            a, b, c = (x[None] for x in arrays) if roles.batched and not size.batch else arrays
            a, b = (device.transposed(x) if order == "T" else x for x, order in zip((a, b), roles.layout, strict=True))
            sets.append({roles.a: a, roles.b: b, roles.c: c})
        fixed = self.consts_for(size, operands.device.format)
        if isinstance(self.kernel, TileKernel):
            fixed = {**{p.name: None for p in self.kernel.signature.tensors if p.optional}, **fixed}
        kernel, count = self.kernel, len(sets)
        return lambda number: kernel(**sets[number % count], **fixed)


def read_contender(text: str) -> Contender:
    """``FILE:KERNEL``, ``FILE:KERNEL:BM=128,BN=256``, or ``FILE:FUNCTION`` of a Python function of A, B and C."""
    file, _, rest = text.partition(":")
    name, _, settings = rest.partition(":")
    kernel = load_kernel(Path(file), name) if settings else load_kernel_or_function(Path(file), name)
    if not isinstance(kernel, TileKernel):
        return Contender(name, kernel, {}, Roles("A", "B", "C"))
    given = settings.split(",") if settings else []
    consts = parse_consts(kernel, given)
    return Contender(" ".join([kernel.name, *given]), kernel, consts, read_roles(kernel))


def format_of(contenders: Sequence[Contender], asked: str = "") -> str:
    """The name in `measure.PRODUCTS` of what all of them multiply. Raises UsageError where they do not agree."""
    declared: list[tuple[str, Any, Any]] = []
    for contender in contenders:
        if isinstance(contender.kernel, TileKernel):
            tensors = {p.name: p.dtype for p in contender.kernel.signature.tensors}
            declared.append((contender.label, tensors[contender.roles.a], tensors[contender.roles.c]))
    found = asked or next((operand.name for _, operand, _ in declared if isinstance(operand, DType)), "")
    if found not in PRODUCTS:
        what = f"no product of {found}" if found else f"the dtypes of {', '.join(c.label for c in contenders)} are open"
        raise UsageError(f"bench: {what}\n  fix: give --format, one of {', '.join(PRODUCTS)}")
    product = PRODUCTS[found]
    for label, operand, result in declared:
        for dtype, wanted in ((operand, product.operand), (result, product.result)):
            if isinstance(dtype, DType) and dtype.name not in (wanted, found):
                message = f"bench: {label} has {dtype}, where a product of {found} has {wanted}"
                raise UsageError(f"{message}\n  fix: give another --format, or time it on its own")
    return found


@dataclass
class Operands:
    """`sets` sets of operands and results of one product, made when they are first asked for."""

    device: Device
    size: Size
    sets: int
    _made: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def stored(self, layout: str) -> tuple[list[Any], list[Any]]:
        """A as [.., M, K] and B as [.., K, N], stored in `layout`."""
        size = self.size
        return self._operand("a", size.m, size.k, layout[0], 0), self._operand("b", size.k, size.n, layout[1], 1000)

    def _operand(self, name: str, rows: int, columns: int, order: str, seed: int) -> list[Any]:
        key, device = f"{name} {order}", self.device
        if key not in self._made:
            arrays = (device.normal(rows, columns, seed + number, self.size.batch) for number in range(self.sets))
            self._made[key] = [device.restored(x) if order == "T" else x for x in arrays]
        return self._made[key]

    @cached_property
    def results(self) -> list[Any]:
        """C as [.., M, N]."""
        size = self.size
        return [self.device.empty(size.m, size.n, size.batch) for _ in range(self.sets)]

    def check(self, label: str, launch: Launch) -> None:
        """Raise WrongResult unless `launch` gives the product of the first set, within its error bound."""
        (a, b), c = self.stored("NN"), self.results
        c[0][...] = self.device.blank
        launch(0)
        share = self.device.worst_share(c[0], a[0], b[0])
        if not share <= 1:
            raise WrongResult(f"bench: {label} at {self.size} is wrong: {share:.3g} times its error bound")


class WrongResult(TileError):  # noqa: N818 - as CannotRun
    """A result is further off than rounding can be."""


class CannotRun(TileError):  # noqa: N818 - no failure of the command
    """A contender takes none of the layouts at a size."""


def fastest(contender: Contender, operands: Operands, layouts: Sequence[str], graphed: int = 1) -> tuple[str, Launch]:
    """The layout of `layouts` in which `contender` is fastest, and its launcher, whose result is right. `graphed`: see
    `interleave`. Raises CannotRun, and TileError for a wrong result."""
    refused: list[str] = []
    found: dict[str, Launch] = {}
    for layout in layouts:
        launch = contender.launcher(operands, layout)
        try:
            launch(0)
        except DeviceError:
            raise
        except (TileError, RuntimeError, ValueError) as error:  # the last two: of cuBLAS, by torch
            refused.append(f"{layout}: {str(error).splitlines()[0]}")
            continue
        operands.check(contender.label, launch)
        found[layout] = launch
    if not found:
        raise CannotRun(f"{contender.label} at {operands.size}: left out: {'; '.join(refused)}")
    if len(found) == 1:
        return next(iter(found.items()))
    best = min(found, key=interleave(operands.device, found, rounds=3, seconds=0.02, graphed=graphed).median)
    return best, found[best]


def cublas(operands: Operands, graphed: int = 1) -> tuple[str, Launch]:
    """The layout in which cuBLAS is fastest, and cuBLAS with operands stored so. `graphed`: see `interleave`."""
    contender = Contender(CUBLAS, operands.device.matmul, {}, Roles("a", "b", "out"))
    return fastest(contender, operands, LAYOUTS, graphed)
