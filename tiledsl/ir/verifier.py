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
8.  1 to 3 positive thread extents and 1 to 3 grid extents, whose names the parameters provide;
    `index_bits` is 32 or 64; positions have an axis of 0 to 2; constants are in range. Roles have warps of the block.
9.  Tile level: what `verify_roles` lists of roles, rings and cursors.

A breach is a `VerifyError` at the op: a compiler bug, or hand-written IR that is wrong.
"""

from __future__ import annotations

from math import prod
from typing import Any, Iterable, Mapping, NoReturn

from tiledsl.arch import (
    MOST_BLOCKS_PER_SM,
    MOST_CLUSTER,
    MOST_THREADS,
    MOST_THREADS_ALONG,
    TMA_GRAIN,
    TMA_MOST_BOX,
    WARP,
)
from tiledsl.errors import Loc, VerifyError
from tiledsl.ir.abi import AbiArg
from tiledsl.ir.core import OPS, Block, Kernel, Op, Value
from tiledsl.ir.expr import PROCESSORS, BinExpr, Expr
from tiledsl.ir.ops import control, roles
from tiledsl.ir.tensor_maps import TensorMap
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
from tiledsl.layout.shared import MAX_SHARED, SPANS
from tiledsl.recursion import deep_recursion

_TILE_TYPES = (GlobalType, TileType, FragmentType, TokenType, PendingType, RingType, CursorType)
TYPES = (DType, PtrType, *_TILE_TYPES)

SWIZZLES = (0, *sorted(SPANS))


@deep_recursion()
def verify(kernel: Kernel) -> None:
    """Raise VerifyError at the first broken invariant of `kernel`."""
    _kernel(kernel)
    walker = _Walker(kernel)
    walker.block(kernel.body, kernel, (control.Return,), 0)
    walker.check_uses()
    if kernel.level == "tile":
        verify_roles(kernel)


def _fail(message: str, loc: Loc) -> NoReturn:
    raise VerifyError(message, loc)


def _require(condition: bool, message: str, loc: Loc) -> None:
    if not condition:
        raise VerifyError(message, loc)


def _kernel(kernel: Kernel) -> None:
    loc, bits, threads, cluster = kernel.loc, kernel.index_bits, kernel.threads, kernel.cluster
    known_level = kernel.level in ("tile", "thread") and bits in (32, 64)
    _require(known_level, f"kernel of level {kernel.level} with {bits} index bits", loc)
    extents = 1 <= len(threads) <= 3 and min(threads) >= 1
    _require(extents, f"threads{threads}: 1 to 3 positive extents are needed", loc)
    _require(1 <= len(kernel.grid) <= 3, f"a grid of {len(kernel.grid)} extents: 1 to 3 are needed", loc)
    _require(0 <= kernel.assembler_level <= 3, f"assembler_level({kernel.assembler_level}): 0 to 3", loc)
    blocks = len(cluster) == 3 and min(cluster) >= 1 and prod(cluster) <= MOST_CLUSTER
    _require(blocks, f"cluster{cluster}: 3 positive extents are needed, at most {MOST_CLUSTER} blocks", loc)
    fits = 0 <= kernel.blocks_per_sm <= MOST_BLOCKS_PER_SM and 0 <= kernel.shared_bytes <= MAX_SHARED
    _require(fits, f"{kernel.blocks_per_sm} blocks an SM, of {kernel.shared_bytes} bytes of shared memory", loc)
    known = _thread_params(kernel) if kernel.level == "thread" else _tile_params(kernel)
    for name in _names(kernel.grid) - known - {PROCESSORS}:
        _fail(f"the grid needs {name}, which no parameter gives", loc)


def _thread_params(kernel: Kernel) -> set[str]:
    """Check the thread level's parameters and tensor maps; the names that grid expressions may use."""
    loc, threads = kernel.loc, kernel.threads
    few = kernel.thread_count <= MOST_THREADS and (*threads, 1, 1)[2] <= MOST_THREADS_ALONG[2]
    _require(few, f"threads{threads}: at most {MOST_THREADS} in a block, {MOST_THREADS_ALONG[2]} along z", loc)
    wanted = [a.type for a in kernel.abi]
    same = [a.type for a in kernel.body.args] == wanted
    _require(same, f"the body's arguments are not the abi's: {', '.join(map(str, wanted))}", loc)
    places = [(a.kind, a.name, a.axis) for a in kernel.abi]
    _require(len(set(places)) == len(places), "parameters of the abi need distinct names", loc)
    pointers = {a.name: a for a in kernel.abi if a.kind == "pointer"}
    for arg in kernel.abi:
        wrong = problem(GlobalType(arg.dtype, arg.dims, -1, 16)) if arg.dims else ""
        _require(not wrong, wrong, loc)
        an_index = arg.kind not in ("extent", "stride") or arg.dtype in (I32, I64)
        _require(an_index, f"{arg.kind} {arg.name} of type {arg.dtype}", loc)
        an_axis = arg.kind != "stride" or (arg.name in pointers and 0 <= arg.axis < len(pointers[arg.name].dims))
        _require(an_axis, f"a stride along axis {arg.axis} of {arg.name}, which has no such axis", loc)
    for tensor_map in kernel.tensor_maps:
        _tensor_map(tensor_map, pointers, loc)
    return {a.name for a in kernel.abi if a.kind in ("extent", "scalar") and a.dtype.is_integer}


def _tensor_map(tensor_map: TensorMap, pointers: Mapping[str, AbiArg], loc: Loc) -> None:
    axes, box, swizzle = tensor_map.axes, tensor_map.box, tensor_map.swizzle
    _require(tensor_map.tensor in pointers, "a tensor map of no parameter", loc)
    pointer = pointers[tensor_map.tensor]
    same = sorted(axes) == list(range(len(pointer.dims)))
    _require(same, f"{tensor_map}: its axes are not those of the tensor", loc)
    fits = 0 < len(box) == len(axes) and all(1 <= n <= TMA_MOST_BOX for n in box) and swizzle in SWIZZLES
    needed = f"one extent of 1 to {TMA_MOST_BOX} an axis and a swizzle of {SWIZZLES} are needed"
    _require(fits, f"{tensor_map}: {needed}", loc)
    row = box[0] * pointer.dtype.bytes
    whole = row % TMA_GRAIN == 0 and (swizzle == 0 or row <= swizzle)
    _require(whole, f"{tensor_map}: rows of {row} bytes; multiples of {TMA_GRAIN} up to the swizzle are needed", loc)


def _tile_params(kernel: Kernel) -> set[str]:
    """Check the tile level's parameters; the names that grid expressions may use."""
    loc = kernel.loc
    lowered = bool(kernel.abi or kernel.shared_bytes or kernel.tensor_maps)
    _require(not lowered, "abi, shared_bytes and tensor_maps belong to the thread level", loc)
    known: set[str] = set()
    names: set[str] = set()
    for arg in kernel.body.args:
        known_type = isinstance(arg.type, (GlobalType, DType)) and arg.type != INDEX
        _require(known_type, f"a parameter of type {arg.type}", loc)
        _require(bool(arg.name) and arg.name not in names, f"parameters need distinct names, not {arg.name!r}", loc)
        names.add(arg.name)
        if isinstance(arg.type, GlobalType):
            known.update(d for d in arg.type.dims if isinstance(d, str))
        elif arg.dtype.is_integer:
            known.add(arg.name)
    return known


def _names(exprs: Iterable[Expr]) -> set[str]:
    names: set[str] = set()
    for expr in exprs:
        match expr:
            case str():
                names.add(expr)
            case BinExpr(_, a, b):
                names |= _names((a, b))
            case _:
                pass
    return names


class _Walker:
    """One walk in program order. `visible`: values that the op at hand may use. `warps`: the first and the number of
    those that the op at hand is for."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.warps = 0, -(-kernel.thread_count // WARP)
        self.visible: set[Value] = set()
        self.seen: set[Op | Block] = set()
        self.values: list[Value] = []
        self.uses = 0

    def block(self, block: Block, parent: Op | Kernel, ends: tuple[type[Op], ...], position: int) -> None:
        loc = parent.loc
        if block in self.seen:
            _fail("a block appears twice", loc)
        self.seen.add(block)
        if block.parent is not parent:
            _fail("a block does not know its owner", loc)
        if not block.ops or not block.ops[-1].terminator:
            _fail("a block does not end in a terminator", block.ops[-1].loc if block.ops else loc)
        local: list[Value] = []
        for index, arg in enumerate(block.args):
            self.define(arg, block, index, loc, local)
        for op in block.ops:
            self.op(op, block, local)
            if op.terminator:
                if op is not block.ops[-1]:
                    _fail(f"{op.name} in the middle of a block", op.loc)
                if not isinstance(op, ends[position]):
                    _fail(f"the block ends in {op.name}; {ends[position].name} is needed", op.loc)
        self.visible.difference_update(local)

    def define(self, value: Value, owner: Op | Block, index: int, loc: Loc, local: list[Value]) -> None:
        if value.owner is not owner or value.index != index:
            _fail(f"{value!r} does not know its owner", loc)
        self.type(value.type, loc)
        self.visible.add(value)
        self.values.append(value)
        local.append(value)

    def type(self, type_: Type, loc: Loc) -> None:
        wrong = problem(type_)
        if wrong:
            _fail(wrong, loc)
        if self.kernel.level == "tile":
            if isinstance(type_, PtrType):
                _fail(f"{type_} at tile level", loc)
            if isinstance(type_, PendingType):
                type_ = type_.fragment
            if isinstance(type_, FragmentType) and type_.layout is not None:
                self.fragment(type_, type_.layout, loc)
        elif isinstance(type_, _TILE_TYPES) or type_ is INDEX:
            _fail(f"{type_} at thread level", loc)

    def fragment(self, type_: FragmentType, layout: FragmentLayout, loc: Loc) -> None:
        first, count = self.warps
        whole = self.kernel.thread_count % WARP == 0
        # Of a role, or of a block of warpgroups, several groups of warps may hold a fragment each.
        several = (first, count) != (0, self.kernel.thread_count // WARP) or layout.interleaved > 1
        held = layout.threads // WARP
        fits = whole and layout.first == first and (count % held == 0 if several else count == held)
        if not fits:
            of = f"warps {first} to {first + count - 1}"
            _fail(f"{type_} is held by {layout.threads} threads from warp {layout.first} on, not by {of}", loc)

    def op(self, op: Op, block: Block, local: list[Value]) -> None:
        if op in self.seen:
            _fail(f"{op.name} appears twice", op.loc)
        self.seen.add(op)
        if op.parent is not block:
            _fail(f"{op.name} does not know its block", op.loc)
        if OPS.get(op.name) is not type(op):
            _fail(f"{op.name} is not a registered op", op.loc)
        if op.level not in ("both", self.kernel.level):
            _fail(f"{op.name} is not legal at {self.kernel.level} level", op.loc)
        for position, value in enumerate(op.operands):
            self.operand(op, position, value)
        self.attributes(op)
        ends = op.ends
        if len(op.blocks) != len(ends):
            _fail(f"{op.name} has {len(op.blocks)} blocks, not {len(ends)}", op.loc)
        outer, role = self.warps, op.role if isinstance(op, (control.If, roles.Region)) else ()
        for position, inner in enumerate(op.blocks):
            self.warps = self.role(op, role) if role and position == 0 else outer
            self.block(inner, op, ends, position)
        self.warps = outer
        op.verify_in(self.kernel)
        self.signature(op)
        for carried in [*op.results, *(a for b in op.blocks for a in b.args)] if op.blocks else ():
            if isinstance(carried.type, (GlobalType, TileType, RingType)):
                what = "a ring" if isinstance(carried.type, RingType) else "a tensor or a tile"
                _fail(f"{op.name} carries {what}", op.loc)
        for index, result in enumerate(op.results):
            self.define(result, op, index, op.loc, local)

    def role(self, op: Op, role: tuple[int, ...]) -> tuple[int, int]:
        first, count = role if len(role) == 2 else (-1, 0)
        if first < 0 or count < 0 or (first + max(count, 1)) * WARP > self.kernel.thread_count:
            _fail(f"{op.name}: a role {role} of {self.kernel.thread_count} threads", op.loc)
        return first, max(count, 1)

    def operand(self, op: Op, position: int, value: Value) -> None:
        self.uses += 1
        if value not in self.visible:
            _fail(f"{op.name} uses {value!r} (operand {position}) where it is not visible", op.loc)
        if (op, position) not in value.uses:
            _fail(f"{value!r} does not know that {op.name} uses it", op.loc)

    def attributes(self, op: Op) -> None:
        for name, declared in op.attributes.items():
            value: Any = op.attrs.get(name)
            wrong = declared.problem(value)
            if wrong:
                _fail(f"{op.name}: {wrong}", op.loc)
            if isinstance(value, TYPES):
                self.type(value, op.loc)
        if op.attrs.keys() != op.attributes.keys():
            _fail(f"{op.name} has attributes that its class does not declare", op.loc)

    def signature(self, op: Op) -> None:
        given, named = len(op.operands), op.named_operands
        if given < named or (given > named and not op.variadic):
            _fail(f"{op.name} takes {'at least ' if op.variadic else ''}{named} operands, not {given}", op.loc)
        for name, declared in op.named.items():
            type_, kind = op.operands[declared.position].type, declared.kind
            if kind is not None and not (isinstance(type_, kind) if isinstance(kind, type) else type_ == kind):
                wanted = KINDS[kind] if isinstance(kind, type) else kind
                _fail(f"{op.name}: {name} is {type_}, not {wanted}", op.loc)
        try:
            op.verify()
            inferred = tuple(op.infer())
        except VerifyError:
            raise
        except Exception as error:  # it looks at one operand as another one, or an attribute, says: they disagree
            text = f"{op.name} cannot have these operands and attributes together ({type(error).__name__}: {error})"
            raise VerifyError(text, op.loc) from error
        if inferred != tuple(r.type for r in op.results):
            _fail(f"{op.name} gives {', '.join(map(str, inferred)) or 'nothing'}, not what its results say", op.loc)

    def check_uses(self) -> None:
        if sum(len(v.uses) for v in self.values) == self.uses:
            return
        for value in self.values:
            for user, position in value.uses:
                if user not in self.seen or position >= len(user.operands) or user.operands[position] is not value:
                    _fail(f"{value!r} lists a use by {user.name} that does not exist", user.loc)
