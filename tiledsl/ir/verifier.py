"""Checks that a kernel is well formed. The invariants:

1.  Every block ends in exactly one terminator, of the class that its owner asks for, and has none before.
    A kernel's body ends in `control.return`.
2.  Parents are consistent: an op knows its block, a block its op or kernel, and no op or block
    appears twice.
3.  A value is used only where it is visible: after its op, in the same block or in blocks inside it;
    a block's arguments in that block and inside it. (Structured control flow, so this is dominance.)
4.  Use lists are exact: a value's `uses` are the (op, position) pairs of the kernel that name it.
5.  An op is registered, legal at the kernel's level, has the operands that its class names, and all its attributes,
    each of the declared type and range.
6.  Every type is possible by itself (`types.problem`). The op's own `verify` holds; result types are those it infers.
7.  Tile level: no pointers; body arguments are tensors and scalars with distinct names.
    Blocks inside have no tensors, tiles or rings as arguments, control ops none as results.
    Fragments with a layout fit it, and the block, or the role around them, has the warps that hold them.
    Thread level: no index, tensor, tile, fragment, token or ring anywhere; body arguments are those of `abi`, which are
    distinct, with strides of axes that there are; tensor maps are of its tensors, and ops name none that is not there.
8.  1 to 3 positive thread extents; no more threads and disjoint shared tiles than some target gives a block;
    1 to 3 grid extents, whose names the parameters provide, and whose functions exist for their operands' dtypes;
    `index_bits` is 32 or 64; positions have an axis of 0 to 2; constants are in range. Roles have warps of the block.
9.  Tile level: what `verify_roles` lists of roles, rings and cursors.

A breach is a `VerifyError` at the op: a compiler bug, or hand-written IR that is wrong.
"""

from __future__ import annotations

from math import prod
from typing import Any, Iterator

from tiledsl.arch import (
    MOST_BLOCKS_PER_SM,
    MOST_SHARED,
    MOST_THREADS,
    MOST_THREADS_ALONG,
    PORTABLE_CLUSTER,
    TMA_GRAIN,
    TMA_MOST_BOX,
    WARP,
)
from tiledsl.errors import Loc, VerifyError
from tiledsl.ir.core import OPS, Block, Kernel, Op, Value
from tiledsl.ir.expr import PROCESSORS
from tiledsl.ir.expr import problem as grid_problem
from tiledsl.ir.ops import control, roles, tile
from tiledsl.ir.types import (
    I32,
    I64,
    INDEX,
    KINDS,
    CursorType,
    DType,
    FragmentType,
    GlobalType,
    PendingType,
    PtrType,
    RingType,
    TileType,
    TokenType,
    Type,
    problem,
)
from tiledsl.ir.verify_roles import verify_roles
from tiledsl.layout.fragments import FragmentLayout
from tiledsl.layout.shared import SPANS
from tiledsl.recursion import deep_recursion

_TILE_TYPES = (GlobalType, TileType, FragmentType, TokenType, PendingType, RingType, CursorType)
TYPES = (DType, PtrType, *_TILE_TYPES)

SWIZZLES = (0, *sorted(SPANS))


@deep_recursion()
def verify(kernel: Kernel) -> None:
    """Raise VerifyError at the first broken invariant of `kernel`."""
    for holds, message in _conditions(kernel):
        _require(holds, message, kernel.loc)
    ops = _OpsVerifier(kernel)
    ops.block(kernel.body, kernel, control.Return)
    ops.check_uses()
    if kernel.level == "tile":
        verify_roles(kernel)


def _require(condition: bool, message: str, loc: Loc) -> None:
    if not condition:
        raise VerifyError(message, loc)


def _conditions(kernel: Kernel) -> Iterator[tuple[bool, str]]:
    """What must hold for the header of a kernel, each with the message where it does not."""
    bits, threads, cluster, level = kernel.index_bits, kernel.threads, kernel.cluster, kernel.assembler_level
    yield kernel.level in ("tile", "thread"), f"a kernel of level {kernel.level}"
    yield bits in (32, 64), f"{bits} index bits: 32 or 64 are possible"
    yield 1 <= len(threads) <= 3 and min(threads) >= 1, f"threads{threads}: 1 to 3 positive extents are needed"
    few = kernel.thread_count <= MOST_THREADS and (*threads, 1, 1)[2] <= MOST_THREADS_ALONG[2]
    yield few, f"threads{threads}: at most {MOST_THREADS} in a block, {MOST_THREADS_ALONG[2]} along z"
    yield 1 <= len(kernel.grid) <= 3, f"a grid of {len(kernel.grid)} extents: 1 to 3 are needed"
    yield 0 <= level <= 3, f"assembler_level({level}): 0 to 3"
    blocks = len(cluster) == 3 and min(cluster) >= 1 and prod(cluster) <= PORTABLE_CLUSTER
    yield blocks, f"cluster{cluster}: 3 positive extents are needed, at most {PORTABLE_CLUSTER} blocks"
    fits = 0 <= kernel.blocks_per_sm <= MOST_BLOCKS_PER_SM and 0 <= kernel.shared_bytes <= MOST_SHARED
    yield fits, f"{kernel.blocks_per_sm} blocks an SM, of {kernel.shared_bytes} bytes of shared memory"
    if kernel.level == "thread":
        yield from _thread_level(kernel)
        known = {a.name: a.dtype for a in kernel.abi if a.kind in ("extent", "scalar") and a.dtype.is_integer}
    else:
        yield from _tile_level(kernel)
        tensors = [a.type.dims for a in kernel.body.args if isinstance(a.type, GlobalType)]
        known: dict[str, DType] = {d: INDEX for dims in tensors for d in dims if isinstance(d, str)}
        known |= {a.name: a.type for a in kernel.body.args if isinstance(a.type, DType) and a.type.is_integer}
    for expr in kernel.grid:
        wrong = grid_problem(expr, {PROCESSORS: INDEX, **known})
        yield not wrong, wrong


def _thread_level(kernel: Kernel) -> Iterator[tuple[bool, str]]:
    """Parameters and tensor maps."""
    wanted = [a.type for a in kernel.abi]
    same = [a.type for a in kernel.body.args] == wanted
    yield same, f"the body's arguments are not the abi's: {', '.join(map(str, wanted))}"
    places = [(a.kind, a.name, a.axis) for a in kernel.abi]
    yield len(set(places)) == len(places), "parameters of the abi need distinct names"
    pointers = {a.name: a for a in kernel.abi if a.kind == "pointer"}
    for arg in kernel.abi:
        wrong = problem(GlobalType(arg.dtype, arg.dims, -1, 16)) if arg.dims else ""
        yield not wrong, wrong
        an_index = arg.kind not in ("extent", "stride") or arg.dtype in (I32, I64)
        yield an_index, f"{arg.kind} {arg.name} of type {arg.dtype}"
        an_axis = arg.kind != "stride" or (arg.name in pointers and 0 <= arg.axis < len(pointers[arg.name].dims))
        yield an_axis, f"a stride along axis {arg.axis} of {arg.name}, which has no such axis"
    for each in kernel.tensor_maps:
        yield each.tensor in pointers, "a tensor map of no parameter"
        pointer, box, swizzle = pointers[each.tensor], each.box, each.swizzle
        same = sorted(each.axes) == list(range(len(pointer.dims)))
        yield same, f"{each}: its axes are not those of the tensor"
        fits = 0 < len(box) == len(each.axes) and all(1 <= n <= TMA_MOST_BOX for n in box) and swizzle in SWIZZLES
        needed = f"one extent of 1 to {TMA_MOST_BOX} an axis and a swizzle of {SWIZZLES} are needed"
        yield fits, f"{each}: {needed}"
        row = box[0] * pointer.dtype.bytes
        whole = row % TMA_GRAIN == 0 and (swizzle == 0 or row <= swizzle)
        yield whole, f"{each}: rows of {row} bytes; multiples of {TMA_GRAIN} up to the swizzle are needed"
        yield 0 <= each.first < each.every, f"{each}: its first row is none of the first {each.every}"


def _tile_level(kernel: Kernel) -> Iterator[tuple[bool, str]]:
    """Parameters."""
    lowered = bool(kernel.abi or kernel.shared_bytes or kernel.tensor_maps)
    yield not lowered, "abi, shared_bytes and tensor_maps belong to the thread level"
    names: set[str] = set()
    for arg in kernel.body.args:
        yield isinstance(arg.type, (GlobalType, DType)) and arg.type != INDEX, f"a parameter of type {arg.type}"
        yield bool(arg.name) and arg.name not in names, f"parameters need distinct names, not {arg.name!r}"
        names.add(arg.name)


class _OpsVerifier:
    """One walk in program order. `visible`: values that the op at hand may use. `warps`: the first and the number of
    those that the op at hand is for. `possible`: by identity, the types that were checked, and for which warps.
    `shared`: bytes of the shared tiles so far that are over no other, and so disjoint.

    No message is written before it is needed: that would take as long as all the checks.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.warps = 0, -(-kernel.thread_count // WARP)
        self.visible: set[Value] = set()
        self.possible: set[tuple[int, tuple[int, int]]] = set()
        self.seen: set[Op | Block] = set()
        self.values: list[Value] = []
        self.uses = 0
        self.shared = 0

    def block(self, block: Block, parent: Op | Kernel, end: type[Op]) -> None:
        loc = parent.loc
        _require(block not in self.seen, "a block appears twice", loc)
        self.seen.add(block)
        _require(block.parent is parent, "a block does not know its owner", loc)
        last = block.ops[-1] if block.ops else None
        ends = last is not None and last.terminator
        _require(ends, "a block does not end in a terminator", loc if last is None else last.loc)
        local: list[Value] = []
        for index, arg in enumerate(block.args):
            self.define(arg, block, index, loc, local)
        for op in block.ops:
            self.op(op, block, local)
            if op.terminator:
                _require(op is last, f"{op.name} in the middle of a block", op.loc)
                _require(isinstance(op, end), f"the block ends in {op.name}; {end.name} is needed", op.loc)
        self.visible.difference_update(local)

    def define(self, value: Value, owner: Op | Block, index: int, loc: Loc, local: list[Value]) -> None:
        if value.owner is not owner or value.index != index:
            raise VerifyError(f"{value!r} does not know its owner", loc)
        self.type(value.type, loc)
        self.visible.add(value)
        self.values.append(value)
        local.append(value)

    def type(self, type_: Type, loc: Loc) -> None:
        if (key := (id(type_), self.warps)) in self.possible:
            return
        wrong = problem(type_)
        _require(not wrong, wrong, loc)
        if self.kernel.level == "tile":
            _require(not isinstance(type_, PtrType), f"{type_} at tile level", loc)
            if isinstance(type_, PendingType):
                type_ = type_.fragment
            if isinstance(type_, FragmentType) and type_.layout is not None:
                self.fragment(type_, type_.layout, loc)
        else:
            _require(not isinstance(type_, _TILE_TYPES) and type_ is not INDEX, f"{type_} at thread level", loc)
        self.possible.add(key)

    def fragment(self, type_: FragmentType, layout: FragmentLayout, loc: Loc) -> None:
        first, count = self.warps
        whole = self.kernel.thread_count % WARP == 0
        # Of a role, or of a block of warpgroups, several groups of warps may hold a fragment each.
        several = (first, count) != (0, self.kernel.thread_count // WARP) or layout.interleaved > 1
        held = layout.threads // WARP
        fits = whole and layout.first == first and (count % held == 0 if several else count == held)
        holders = f"{layout.threads} threads from warp {layout.first} on, not by warps {first} to {first + count - 1}"
        _require(fits, f"{type_} is held by {holders}", loc)

    def op(self, op: Op, block: Block, local: list[Value]) -> None:
        op.require(op not in self.seen, "appears twice")
        self.seen.add(op)
        op.require(op.parent is block, "does not know its block")
        op.require(OPS.get(op.name) is type(op), "is not a registered op")
        if op.level not in ("both", self.kernel.level):
            op.refuse(f"not legal at {self.kernel.level} level")
        for position, value in enumerate(op.operands):
            if value not in self.visible:
                op.refuse(f"uses {value!r} (operand {position}) where it is not visible")
            if (op, position) not in value.uses:
                op.refuse(f"{value!r} does not know of its use as operand {position}")
        self.uses += len(op.operands)
        self.attributes(op)
        if len(op.blocks) != len(op.ends):
            op.refuse(f"has {len(op.blocks)} blocks, not {len(op.ends)}")
        outer, role = self.warps, op.role if isinstance(op, (control.If, roles.Region)) else ()
        for position, (inner, end) in enumerate(zip(op.blocks, op.ends, strict=True)):
            self.warps = self.role(op, role) if role and position == 0 else outer
            self.block(inner, op, end)
        self.warps = outer
        if isinstance(op, tile.SharedAlloc):
            self.shared += 0 if op.over else op.type.bytes
            most = max(self.shared, op.type.bytes)
            op.require(most <= MOST_SHARED, f"{most} bytes of shared tiles; at most {MOST_SHARED} fit")
        op.verify_in(self.kernel)
        self.signature(op)
        for carried in [*op.results, *(a for b in op.blocks for a in b.args)] if op.blocks else ():
            if isinstance(carried.type, (GlobalType, TileType, RingType)):
                op.refuse(f"carries {carried.type}, which control flow cannot choose")
        for index, result in enumerate(op.results):
            self.define(result, op, index, op.loc, local)

    def role(self, op: Op, role: tuple[int, ...]) -> tuple[int, int]:
        first, count = role if len(role) == 2 else (-1, 0)
        fits = first >= 0 and count >= 0 and (first + max(count, 1)) * WARP <= self.kernel.thread_count
        op.require(fits, f"a role {role} of {self.kernel.thread_count} threads")
        return first, max(count, 1)

    def attributes(self, op: Op) -> None:
        for name, declared in op.attributes.items():
            value: Any = op.attrs.get(name)
            wrong = declared.problem(value)
            if wrong:
                op.refuse(wrong)
            if isinstance(value, TYPES):
                self.type(value, op.loc)
        op.require(op.attrs.keys() == op.attributes.keys(), "has attributes that its class does not declare")

    def signature(self, op: Op) -> None:
        given, named = len(op.operands), op.named_operands
        if given != named and not (op.variadic and given > named):
            op.refuse(f"takes {'at least ' if op.variadic else ''}{named} operands, not {given}")
        for name, declared in op.named.items():
            type_, kind = op.operands[declared.position].type, declared.kind
            if kind is not None:
                is_class = isinstance(kind, type)
                fits = isinstance(type_, kind) if is_class else type_ == kind
                if not fits:
                    op.refuse(f"{name} is {type_}, not {KINDS[kind] if is_class else kind}")
        try:
            op.verify()
            inferred = list(op.infer())
        except VerifyError:
            raise
        except Exception as error:  # it looks at one operand as another one, or an attribute, says: they disagree
            text = f"{op.name} cannot have these operands and attributes together ({type(error).__name__}: {error})"
            raise VerifyError(text, op.loc) from error
        if inferred != [r.type for r in op.results]:
            op.refuse(f"gives {', '.join(map(str, inferred)) or 'nothing'}, not what its results say")

    def check_uses(self) -> None:
        if sum(len(v.uses) for v in self.values) == self.uses:
            return
        for value in self.values:
            for user, position in value.uses:
                if user not in self.seen or position >= len(user.operands) or user.operands[position] is not value:
                    raise VerifyError(f"{value!r} lists a use by {user.name} that does not exist", user.loc)
