"""The table of atomic operations, with the orders and scopes that they can have. (PTX ISA: memory consistency model.)

Each row is one op at either level, ``tile.atomic_<row>`` and ``mem.atomic_<row>``, and one method of tensors and tiles.
What the orders and scopes mean stands in docs/memory_model.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.types import DTYPES, INDEX, DType

SCOPES = ("cta", "cluster", "gpu", "sys")
"""The threads that an order speaks of: those of the block, of its cluster, of the GPU, of all GPUs and the host."""

SCOPE_FEATURES: dict[str, tuple[str, ...]] = {"cta": (), "cluster": ("cluster_scope",), "gpu": (), "sys": ()}
"""The rows of `arch.FEATURES` that an order among those needs."""

ACQUIRING = frozenset({"acquire", "acq_rel"})
RELEASING = frozenset({"release", "acq_rel"})

_MOVED = frozenset(t.name for t in DTYPES.values() if not t.is_matrix and t != INDEX)
_WORDS = frozenset({"i32", "u32", "i64", "u64"})
_LOAD_ORDERS = ("relaxed", "acquire", "volatile")
_STORE_ORDERS = ("relaxed", "release", "volatile")
_UPDATE_ORDERS = ("relaxed", "acquire", "release", "acq_rel")


@dataclass(frozen=True, slots=True)
class AtomicFn:
    """One row. `dtypes`: names of those that it exists for. `values`: how many follow the place; `reads`: does it give
    the element that it found? `polls`: does a loop wait for others by it? The others count or collect, as a rule."""

    name: str
    dtypes: frozenset[str]
    orders: tuple[str, ...] = _UPDATE_ORDERS
    values: int = 1
    reads: bool = True
    polls: bool = False

    @property
    def writes(self) -> bool:
        return self.values > 0

    def problem(self, dtype: DType, order: str, scope: str) -> str | None:
        """What is wrong with an operation of this kind, if anything is."""
        if dtype.name not in self.dtypes:
            return f"not defined for {dtype}"
        if order not in self.orders:
            return f"no such order: {order!r}"
        if scope not in SCOPES:
            return f"no such scope: {scope!r}"
        if order == "volatile" and scope != "sys":
            return f"volatile, and has scope 'sys', not {scope!r}"
        return None


_ROWS = (
    AtomicFn("load", _MOVED, _LOAD_ORDERS, values=0, polls=True),
    AtomicFn("store", _MOVED, _STORE_ORDERS, reads=False),
    # f32 in global memory: subnormal operands and results become zeros of their sign; all others keep them.
    AtomicFn("add", _WORDS | {"f64", "f32", "f16", "bf16"}),
    AtomicFn("exchange", _WORDS | {"f64", "f32"}, polls=True),
    # Writes the second value if the element has the bits of the first: 0.0 is not -0.0, and a NaN equals itself.
    AtomicFn("cas", _MOVED - {"i8", "u8", "bool"}, values=2, polls=True),
    *(AtomicFn(name, _WORDS) for name in ("min", "max", "and", "or", "xor")),
)

ATOMICS: dict[str, AtomicFn] = {row.name: row for row in _ROWS}
"""Rows by name."""
