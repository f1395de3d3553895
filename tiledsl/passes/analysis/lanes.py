"""What each lane of each warp of a block computes: integers as affine forms of unknown symbols.

An `AffineForm` stands for ``lanes[warp, lane] + sum of coefficient * symbol``. A symbol is an integer that is not known
here but that all lanes of a warp agree on at any one time: a loop variable, a block index, an extent,
how far a loop-carried index has moved. Thread indices are known, since the block's shape is. What is neither,
such as an index that was loaded from memory, is None: unknown, and never guessed.

A form is the value modulo 2 to the power of its bits. Where that is not enough, the number is known not to wrap: for a
division or a comparison it is an `index`, whose range a launch proves; for a conversion to more bits its interval says
so. Values without symbols are computed by `ir.semantics`, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any, Hashable, Mapping

import numpy as np
from numpy.typing import NDArray

from tiledsl.arch import WARP
from tiledsl.ir import semantics
from tiledsl.ir.core import Block, Kernel, Value
from tiledsl.ir.ops import arith, control, gpu, tile
from tiledsl.ir.types import BOOL, INDEX, DType, GlobalType
from tiledsl.passes.analysis.intervals import Intervals
from tiledsl.passes.analysis.structure import incoming, operands_first, trip_count
from tiledsl.passes.analysis.thread_numbers import position
from tiledsl.passes.analysis.uniformity import Uniformity

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

EXACT_TERMS = 1 << 31
"""Lane constants of a form stay below this, so that 32-bit arithmetic on them does not wrap."""

PLAIN_DEPTH = 4
"""How many ops deep one looks before all of the kernel is analysed."""


@dataclass(frozen=True, slots=True, eq=False)
class AffineForm:
    """`lanes` [warps, 32]; `terms`: coefficients by symbol, none of them 0. A bool has no terms."""

    lanes: NDArray[Any]
    terms: Mapping[Hashable, int]

    @property
    def is_uniform(self) -> bool:
        """True if all lanes of each warp agree."""
        return bool((self.lanes == self.lanes[:, :1]).all())

    @property
    def constant(self) -> int | None:
        """The value, where it is one number for the whole block."""
        first = self.lanes.flat[0]
        return int(first) if not self.terms and bool((self.lanes == first).all()) else None

    def scaled(self, factor: int) -> AffineForm:
        if factor == 1:
            return self
        return AffineForm(self.lanes * factor, {s: c * factor for s, c in self.terms.items()} if factor else {})

    def plus(self, other: AffineForm, sign: int = 1) -> AffineForm:
        terms = dict(self.terms)
        for symbol, coefficient in other.terms.items():
            terms[symbol] = terms.get(symbol, 0) + sign * coefficient
        return AffineForm(self.lanes + sign * other.lanes, {s: c for s, c in terms.items() if c})


class Lanes:
    """Evaluates values of a tile-level kernel on demand.

    `trips`: for loops whose trip count is known, how many values (0 and up) their symbol takes.
    """

    def __init__(self, kernel: Kernel) -> None:
        count = kernel.thread_count
        self.warps = -(-count // WARP)
        thread = np.arange(self.warps * WARP, dtype=np.int64).reshape(self.warps, WARP)
        self.exists: Bools = thread < count
        self.thread = thread
        self.kernel = kernel
        self.trips: dict[Hashable, int] = {}
        self._known: dict[Value, AffineForm | None] = {}

    @cached_property
    def uniformity(self) -> Uniformity:
        """The analysis of the whole kernel: made when something is asked that forms do not tell."""
        return Uniformity(self.kernel)

    @cached_property
    def intervals(self) -> Intervals:
        """Return the intervals of the kernel's integers, made when one of 32 bits becomes one of 64."""
        return Intervals(self.kernel)

    def of(self, value: Value) -> AffineForm | None:
        """The form of an integer or bool, or None."""
        for here in operands_first(value, self._known, _inputs):
            self._known[here] = self._or_symbol(here, self._form(here))
        return self._known[value]

    def constant(self, number: Any) -> AffineForm:
        return AffineForm(np.full((self.warps, WARP), number), {})

    def first(self, count: int) -> Bools:
        """True for the first `count` lanes of each warp."""
        return self.thread % WARP < count

    def symbol(self, key: Hashable, multiple: int = 1) -> AffineForm:
        """A fresh unknown that is `multiple` times an integer."""
        return AffineForm(np.zeros((self.warps, WARP), np.int64), {key: multiple})

    def is_uniform(self, value: Value) -> bool:
        """True if all lanes of a warp agree on `value`: by form, by a look at what it comes from, or by analysis."""
        form = self.of(value)
        return self._lanes_agree(value) if form is None else form.is_uniform

    def _lanes_agree(self, value: Value) -> bool:
        return self._is_plainly_uniform(value, PLAIN_DEPTH) or self.uniformity.of(value) != "thread"

    def _is_plainly_uniform(self, value: Value, depth: int) -> bool:
        """By the forms of what it is computed from, and by what no lane can change."""
        op = value.op
        if value.owner is self.kernel.body or isinstance(op, (gpu.BlockId, gpu.GridSize, tile.Dim, arith.Constant)):
            return True
        if depth == 0 or not isinstance(op, (arith.Scalar, arith.Cast, arith.Select)):
            return False
        forms = ((v, self._known.get(v)) for v in op.operands)
        return all(self._is_plainly_uniform(v, depth - 1) if form is None else form.is_uniform for v, form in forms)

    def _or_symbol(self, value: Value, form: AffineForm | None) -> AffineForm | None:
        """Where nothing is known of a number but that the lanes agree, it is a symbol of its own."""
        plain = isinstance(value.type, DType) and value.type.is_integer
        return self.symbol(value) if form is None and plain and self._lanes_agree(value) else form

    # -- one value -----------------------------------------------------------------------------

    def _form(self, value: Value) -> AffineForm | None:
        if not isinstance(value.type, DType) or value.type.python is float:
            return None
        owner = value.owner
        if isinstance(owner, Block):
            return self._argument(value, owner)
        match owner:
            case arith.Constant(value=number):
                return self.constant(number)
            case gpu.Position():
                numbers = position(owner, self.kernel.threads)
                return None if numbers is None else AffineForm(numbers.reshape(self.warps, WARP), {})
            case tile.Dim() if not isinstance(owner, tile.Stride) and isinstance(owner.tensor.type, GlobalType):
                extent = owner.tensor.type.dims[owner.axis]
                return self.constant(extent) if isinstance(extent, int) else None
            case arith.Scalar():
                return self._scalar(owner)
            case arith.Cast():
                return self._cast(owner)
            case arith.Select():
                return self._either(value, owner.condition, owner.a, owner.b)
            case control.If():
                return self._either(value, owner.condition, *incoming(value))
            case control.For():
                return self._after_loop(value, owner)
            case tile.Extract():
                return None if owner.packed is None else self.of(owner.packed)
            case _:
                return None

    def _cast(self, op: arith.Cast) -> AffineForm | None:
        form, source = self.of(op.src), op.src.type
        if form is None or not isinstance(source, DType):
            return None
        if not form.terms:
            return self._exact(semantics.cast(_as(form.lanes, source), source, op.to), op.to)
        wide = source.bits >= 32 and op.to.bits >= 32 and op.to.is_integer
        return form if wide and (op.to.bits <= source.bits or self._fits(op.src)) else None

    def _fits(self, value: Value) -> bool:
        """Return whether the form of `value`, an integer, is its number, not only modulo 2 to the power of its bits."""
        form, op = self.of(value), value.op
        if form is None or not form.terms or form.terms == {value: 1}:
            return form is not None
        if not isinstance(op, arith.Scalar) or self.intervals.of(value) == value.dtype.limits:
            return False
        return all(self._fits(v) for v in op.operands)

    def _exact(self, array: NDArray[Any], dtype: DType) -> AffineForm | None:
        if dtype == BOOL:
            return AffineForm(array.astype(np.bool_), {})
        if not dtype.is_integer or (dtype.kind == "uint" and dtype.bits == 64 and bool((array >> 63).any())):
            return None
        return AffineForm(array.astype(np.int64), {})

    # -- scalar functions ----------------------------------------------------------------------

    def _scalar(self, op: arith.Scalar) -> AffineForm | None:
        forms = [self.of(v) for v in op.operands]
        known = [f for f in forms if f is not None]
        dtype = op.operands[0].type
        if len(known) < len(forms) or not isinstance(dtype, DType):
            return None
        if dtype == INDEX and op.fn.name == "add":
            return known[0].plus(known[1])
        if not any(f.terms for f in known):
            to = BOOL if op.fn.to_bool else dtype
            return self._exact(semantics.apply(op.fn.name, dtype, *[_as(f.lanes, dtype) for f in known]), to)
        form = self._with_terms(op.fn.name, dtype, known)
        if form is not None and form.lanes.dtype != np.bool_ and int(np.abs(form.lanes).max()) >= EXACT_TERMS:
            return None
        return form

    def _with_terms(self, fn: str, dtype: DType, forms: list[AffineForm]) -> AffineForm | None:
        """Operands of which one at least has symbols."""
        if dtype.bits < 32:
            return None
        a, b = forms[0], forms[-1]
        number = b.constant
        match fn:
            case "add":
                return a.plus(b)
            case "sub":
                return a.plus(b, -1)
            case "neg":
                return a.scaled(-1)
            case "mul":
                factor = a.constant if number is None else number
                return None if factor is None else (b if number is None else a).scaled(factor)
            case "shl" if number is not None and 0 <= number < 31:
                return a.scaled(1 << number)
            case "floordiv" | "mod" if number is not None and number > 0:
                return self._divided(fn, dtype, a, number)
            case "shr" if number is not None and 0 <= number < 31:
                return self._divided("floordiv", dtype, a, 1 << number)
            case "and" if number is not None and number >= 0 and number & (number + 1) == 0:
                return self._divided("mod", dtype, a, number + 1)
            case "eq" | "ne" | "lt" | "le" | "gt" | "ge" if dtype == INDEX and a.terms == b.terms:
                return AffineForm(semantics.apply(fn, INDEX, a.lanes, b.lanes).astype(np.bool_), {})
            case _:
                return None

    def _divided(self, fn: str, dtype: DType, form: AffineForm, by: int) -> AffineForm | None:
        """Exact where every symbol comes in whole multiples of the divisor."""
        wraps_alike = fn == "mod" and by & (by - 1) == 0
        if any(c % by for c in form.terms.values()) or (dtype != INDEX and not wraps_alike):
            return None
        if fn == "mod":
            return AffineForm(form.lanes % by, {})
        return AffineForm(form.lanes // by, {s: c // by for s, c in form.terms.items()})

    # -- several definitions -------------------------------------------------------------------

    def _either(self, value: Value, condition: Value, then: Value, orelse: Value) -> AffineForm | None:
        a, b = self.of(then), self.of(orelse)
        if a is None or b is None:
            return None
        chosen = self.of(condition)
        same_terms = a.terms == b.terms
        if chosen is not None and same_terms:
            return AffineForm(np.where(chosen.lanes, a.lanes, b.lanes), a.terms)
        if a.lanes.dtype == np.bool_:
            return None
        difference = a.plus(b, -1)
        if chosen is not None and chosen.is_uniform:
            # Each warp takes one of the two; which terms it has then is what the symbol hides.
            lanes = np.where(chosen.lanes, a.lanes, b.lanes)
            return AffineForm(lanes, {value: gcd(*a.terms.values(), *b.terms.values())})
        if self.is_uniform(condition) and difference.is_uniform:
            return a.plus(self.symbol(value, _common(difference))) if difference.terms or difference.lanes.any() else a
        return None

    def _argument(self, value: Value, block: Block) -> AffineForm | None:
        loop = block.parent
        if isinstance(loop, control.For) and value.index == 0:
            return self._induction(loop)
        match incoming(value):
            case [init, following]:
                return self._carried(value, init, following)
            case _:
                return None

    def _induction(self, loop: control.For) -> AffineForm | None:
        """lo + step * iteration: at any one time all lanes are in the same iteration."""
        lo, step = self.of(loop.lo), self.of(loop.step)
        if lo is None or step is None or step.constant is None or loop.lo.dtype.bits < 32:
            return None
        trips = trip_count(loop)
        if trips is not None:
            self.trips[loop] = trips
        return lo.plus(self.symbol(loop, step.constant))

    def _carried(self, value: Value, init: Value, following: Value) -> AffineForm | None:
        """Where each iteration moves all lanes of a warp by the same distance: the start plus an unknown one."""
        start = self.of(init)
        if start is None or not value.dtype.is_integer or value.dtype.bits < 32:
            return None
        # Assume so, and look whether the loop's body agrees; then forget what was derived from the assumption.
        now = start.plus(self.symbol(value))
        outer, self._known = self._known, {**self._known, value: now}
        after = self.of(following)
        self._known = outer
        step = None if after is None else after.plus(now, -1)
        if step is None or not step.is_uniform:
            return None
        return start.plus(self.symbol(value, _common(step))) if step.terms or step.lanes.any() else start

    def _after_loop(self, value: Value, loop: control.For) -> AffineForm | None:
        """A carried value, after as many iterations in one lane as in the others."""
        if not all(self.is_uniform(v) for v in (loop.lo, loop.hi, loop.step)):
            return None
        inside = self.of(loop.body.args[value.index + 1])
        start = self.of(loop.inits[value.index])
        if inside is None or start is None or inside.lanes.dtype == np.bool_:
            return None
        moved = inside.plus(start, -1)
        return start.plus(self.symbol(value, _common(moved))) if moved.terms else start


def _inputs(value: Value) -> list[Value]:
    """What to evaluate first: plain chains of ops may be longer than Python's stack."""
    op = value.op
    if isinstance(op, tile.Extract):
        return [] if op.packed is None else [op.packed]
    return op.operands if isinstance(op, (arith.Scalar, arith.Cast, arith.Select)) else []


def _common(form: AffineForm) -> int:
    """The largest number that divides a uniform form, whatever its symbols are; 1 for 0."""
    return gcd(*(int(v) for v in form.lanes[:, 0]), *form.terms.values()) or 1


def _as(lanes: NDArray[Any], dtype: DType) -> NDArray[Any]:
    return lanes.astype(semantics.numpy_dtype(dtype))
