"""The IR's data structures: values, ops, blocks and kernels.

The IR is SSA with structured control flow. A region is exactly one `Block`; loop-carried values are
block arguments, never phis. Ops are mutable and know the users of their results, so a pass edits in
place. An op's *meaning* lives in the backends, one rule an op class; here are only its shape,
its `verify` and the facts that it declares (`ir/facts.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Callable, ClassVar, Iterator, Literal, Mapping, NoReturn, Sequence, TypeVar

from tiledsl.errors import UNKNOWN_LOC, Loc, VerifyError
from tiledsl.ir.abi import AbiArg
from tiledsl.ir.declare import attribute
from tiledsl.ir.expr import Expr
from tiledsl.ir.facts import NOTHING, Access, Effect, NanBits, Scope, Stays, Sync, Varies, check_declared, effects_of
from tiledsl.ir.tensor_maps import TensorMap
from tiledsl.ir.types import INDEX, KINDS, DType, FragmentType, Type
from tiledsl.recursion import deep_recursion

Attr = int | float | bool | str | Type | tuple[Any, ...]
Level = Literal["tile", "thread", "both"]
T = TypeVar("T")

OPS: dict[str, type[Op]] = {}
"""Every op class by IR name. Classes register themselves when they are defined."""


class Value:
    """An SSA value: a result of an op or an argument of a block. `name` is a hint for printing."""

    __slots__ = ("index", "name", "owner", "type", "uses")

    def __init__(self, type_: Type, owner: Op | Block, index: int, name: str = "") -> None:
        self.type = type_
        self.owner = owner
        self.index = index
        self.name = name
        self.uses: dict[tuple[Op, int], None] = {}

    @property
    def dtype(self) -> DType:
        """The dtype of a scalar value."""
        assert isinstance(self.type, DType), f"{self.type} is not a scalar"
        return self.type

    @property
    def fragment(self) -> FragmentType:
        """The type of a fragment."""
        assert isinstance(self.type, FragmentType), f"{self.type} is not a fragment"
        return self.type

    @property
    def op(self) -> Op | None:
        """The op that defines this value, or None for a block argument."""
        return self.owner if isinstance(self.owner, Op) else None

    @property
    def block(self) -> Block:
        """The block that it is made in."""
        return self.owner.block if isinstance(self.owner, Op) else self.owner

    def replace_all_uses_with(self, other: Value) -> None:
        for user, position in list(self.uses):
            user.set_operand(position, other)

    def __repr__(self) -> str:
        return f"<Value {self.name or hex(id(self))}: {self.type}>"


class operand:  # noqa: N801 - used like a keyword in op classes
    """Declares that operand `position` of an op class has this name; -1 is the last one. An op has those operands that
    its class names, and more only if it is `variadic`.

    kind: the type that the operand must have, or the class of its type.
    """

    def __init__(self, position: int, kind: Type | type[Type] | None = None) -> None:
        self.position, self.kind = position, kind

    def __get__(self, op: Op, owner: type[Op] | None = None) -> Value:
        return op.operands[self.position]


class operands:  # noqa: N801 - used like a keyword in op classes
    """Declares a name for all operands from `position` on; the op is variadic."""

    def __init__(self, position: int) -> None:
        self.position = position

    def __get__(self, op: Op, owner: type[Op] | None = None) -> list[Value]:
        return op.operands[self.position :]


class Op:
    """Base of all ops. Construct as ``Add(a, b, attr=..., loc=loc)``; result types are inferred.

    Class attributes that a subclass states:
      `name`     IR name, ``family.snake``; unique.
      `level`    the levels at which the op is legal.
      `terminator`  True for the op that ends a block.
      `ends`        the class of the terminator of each of its blocks.
      `variadic`    True for one with more operands than the class names; its `verify` says which.
      `gives`       the types of its results: each a type, or the name of the attribute or operand that has it.
    And what `ir/facts.py` lists: what it accesses, orders and needs, and how its results vary. What is here stands for
    no class that registers itself.
    """

    name: ClassVar[str] = ""
    level: ClassVar[Level] = "both"
    touches: tuple[Access, ...] = ()
    sync: Sync = NOTHING
    stays: Stays = ""
    scope: Scope = "thread"
    alike: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    varies: Varies = "thread"
    cause: str = ""
    nan: NanBits = "sees"
    called: str = ""
    effects: frozenset[Effect] = frozenset()
    """What it does to memory or the world; an op without effects may be removed or merged."""
    terminator: ClassVar[bool] = False
    ends: ClassVar[tuple[type[Op], ...]] = ()
    variadic: ClassVar[bool] = False
    gives: ClassVar[tuple[Type | str, ...]] = ()
    named: ClassVar[Mapping[str, operand]] = {}
    """The operands that the class names."""
    named_operands: ClassVar[int] = 0
    """The number of operands that there must be for those, counted from the front and from the end."""
    attributes: ClassVar[Mapping[str, attribute[Any]]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Of all attributes, in the order of `attributes`; None: it must be given."""

    def __init_subclass__(cls) -> None:
        said: dict[str, Any] = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
        attributes: dict[str, attribute[Any]] = {k: v for k, v in said.items() if isinstance(v, attribute)}
        cls.attributes, cls.defaults = attributes, {k: v.default for k, v in attributes.items()}
        cls.named = {name: value for name, value in said.items() if isinstance(value, operand)}
        places = [declared.position for declared in cls.named.values()]
        cls.named_operands = max([0, *(at + 1 for at in places)]) + max([0, *(-at for at in places)])
        rest = any(isinstance(value, operands) for value in vars(cls).values())
        if rest:
            cls.variadic = True
        if "parts" not in vars(cls) and (rest or (cls.named and not cls.variadic)):
            names = {value.position: name for name, value in said.items() if isinstance(value, (operand, operands))}
            cls.parts = tuple(name for _, name in sorted(names.items()))
        if "effects" not in vars(cls):
            cls.effects = effects_of(cls)
        if cls.name:
            check_declared(cls, Op)
            assert cls.name not in OPS, f"op {cls.name} is defined twice"
            OPS[cls.name] = cls

    def __init__(
        self,
        *operands: Value,
        blocks: Sequence[Block] = (),
        types: Sequence[Type] | None = None,
        loc: Loc = UNKNOWN_LOC,
        **attrs: Attr,
    ) -> None:
        self.loc = loc
        self.parent: Block | None = None
        self.blocks: Sequence[Block] = ()
        if blocks:
            self.blocks = list(blocks)
            for block in blocks:
                block.parent = self
        defaults = self.defaults
        self.attrs: dict[str, Any] = {**defaults, **attrs}
        if len(self.attrs) > len(defaults):
            unknown = ", ".join(sorted(attrs.keys() - defaults.keys()))
            raise AssertionError(f"{self.name} has no attribute {unknown}")
        if None in self.attrs.values():
            missing = next(name for name, value in self.attrs.items() if value is None)
            raise VerifyError(f"{self.name} needs attribute {missing}", loc)
        self.operands: list[Value] = list(operands)
        for position, value in enumerate(operands):
            value.uses[self, position] = None
        given = self.infer() if types is None else types
        self.results: list[Value] = [Value(type_, self, index) for index, type_ in enumerate(given)]

    # -- what a subclass defines ---------------------------------------------------------------

    def infer(self) -> Sequence[Type]:
        """Result types from operands, attributes and blocks: what the class says in `gives`, unless overridden."""
        return [self._given(each) if isinstance(each, str) else each for each in self.gives]

    def _given(self, name: str) -> Type:
        found = getattr(self, name)
        return found.type if isinstance(found, Value) else found

    def verify(self) -> None:
        """Check what is special to this op; call `self.require`. Generic checks: `ir.verifier`."""

    def verify_in(self, kernel: Kernel) -> None:
        """Check what the kernel around it decides."""

    # -- shared machinery ----------------------------------------------------------------------

    @property
    def result(self) -> Value:
        """The only result."""
        assert len(self.results) == 1, f"{self.name} has {len(self.results)} results"
        return self.results[0]

    @property
    def block(self) -> Block:
        """The block that it is in."""
        assert self.parent is not None, f"{self.name} is in no block"
        return self.parent

    @property
    def groups(self) -> dict[str, tuple[Value, ...]]:
        """The operands by the names of the groups that they form, in order."""
        found = {name: getattr(self, name) for name in self.parts}
        return {name: (part,) if isinstance(part, Value) else tuple(part) for name, part in found.items()}

    @property
    def held(self) -> Type | None:
        """The fragment that those who must reach the op together hold, if it moves one."""
        return None

    def accesses(self) -> list[Access]:
        """What the op itself reads and writes, not what ops inside it do."""
        touches = self.touches
        return [touch._replace(memory=self._memory(touch.part)) for touch in touches] if touches else []

    def _memory(self, part: str) -> Value | int | None:
        found = getattr(self, part) if part else None
        return found if found is None or isinstance(found, (Value, int)) else next(iter(found))

    @property
    def is_pure(self) -> bool:
        """True if the op, with all that it contains, has no effect but its results."""
        if self.effects or self.terminator:
            return False
        return not self.blocks or all(op.is_pure or op.terminator for block in self.blocks for op in block.ops)

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            self.refuse(message)

    def refuse(self, message: str) -> NoReturn:
        raise VerifyError(f"{self.name}: {message}", self.loc)

    def expect(self, type_: Type, kind: type[T]) -> T:
        """The type of an operand, which must be of this class."""
        if not isinstance(type_, kind):
            raise VerifyError(f"{self.name}: {type_} is not {KINDS[kind]}", self.loc)
        return type_

    def found(self, value: T | None, message: str) -> T:
        """The value, which must be one: what a table has for this op."""
        if value is None:
            raise VerifyError(f"{self.name}: {message}", self.loc)
        return value

    def require_indices(self, indices: Sequence[Value], rank: int, of: str = "") -> None:
        """Check that these are the indices of something with `rank` axes."""
        self.require(len(indices) == rank, f"takes {rank} indices{of}")
        self.require(all(v.type == INDEX for v in indices), "indices are of type index")

    def set_operand(self, position: int, value: Value) -> None:
        del self.operands[position].uses[self, position]
        self.operands[position] = value
        value.uses[self, position] = None

    def set_operands(self, values: Sequence[Value]) -> None:
        """Replace the whole operand list."""
        for position, old in enumerate(self.operands):
            del old.uses[self, position]
        self.operands = list(values)
        for position, value in enumerate(self.operands):
            value.uses[self, position] = None

    def erase(self) -> None:
        """Remove this op, with all that it contains, from its block. Its results must be unused."""
        assert not any(r.uses for r in self.results), f"{self.name} still has users"
        self.drop_operands()
        if self.parent is not None:
            self.parent.ops.remove(self)
            self.parent = None

    def drop_operands(self) -> None:
        """Forget all operands, also of the ops inside (they go with this one)."""
        self.set_operands(())
        for block in self.blocks:
            for op in block.ops:
                op.drop_operands()

    def walk(self) -> Iterator[Op]:
        """This op and all that it contains, in program order."""
        yield self
        for block in self.blocks:
            yield from block.walk()

    def clone(self, mapping: dict[Value, Value]) -> Op:
        """A deep copy whose operands go through `mapping`, which gains this op's results."""
        blocks = [block.clone(mapping) for block in self.blocks]
        copy = type(self)(
            *(mapping.get(v, v) for v in self.operands),
            blocks=blocks,
            types=[r.type for r in self.results],
            loc=self.loc,
            **self.attrs,
        )
        for old, new in zip(self.results, copy.results, strict=True):
            new.name = old.name
            mapping[old] = new
        return copy

    def __repr__(self) -> str:
        return f"<{self.name} at {self.loc}>"


class Pure(Op):
    """Base of ops that compute their results and do nothing else."""

    touches = ()
    sync = NOTHING
    stays = ""
    scope = "thread"
    features = ()


class Orders(Op):
    """Base of ops of one thread that order memory accesses or asynchronous work; each says in `sync` how."""

    touches = ()
    stays = ""
    scope = "thread"
    features = ()


class Block:
    """A list of ops that ends in a terminator, with typed arguments."""

    __slots__ = ("args", "ops", "parent")

    def __init__(self, arg_types: Sequence[Type] = (), names: Sequence[str] = ()) -> None:
        self.parent: Op | Kernel | None = None
        self.ops: list[Op] = []
        hints = [*names, *[""] * (len(arg_types) - len(names))]
        self.args: list[Value] = [Value(t, self, i, hints[i]) for i, t in enumerate(arg_types)]

    def append(self, op: Op) -> Op:
        op.parent = self
        self.ops.append(op)
        return op

    def insert_before(self, anchor: Op, op: Op) -> Op:
        op.parent = self
        self.ops.insert(self.ops.index(anchor), op)
        return op

    @property
    def terminator(self) -> Op:
        return self.ops[-1]

    def walk(self) -> Iterator[Op]:
        # With nested generators each op would pass through as many as it is deep.
        pending = [iter(self.ops[:])]
        while pending:
            for op in pending[-1]:
                yield op
                if op.blocks:
                    pending += [iter(block.ops[:]) for block in reversed(op.blocks)]
                    break
            else:
                pending.pop()

    def discard(self) -> None:
        """Take apart all that is in the block, which nobody needs any more. Ops, values and blocks refer to each other:
        Python's collector would find them one by one, for a tenth of the time that a compilation takes."""
        pending: list[Block] = [self]
        for block in pending:
            for op in block.ops:
                pending += op.blocks
                op.operands.clear()
                for result in op.results:
                    result.uses.clear()
                op.results.clear()
            for arg in block.args:
                arg.uses.clear()
            block.ops.clear()
            block.parent = None

    def clone(self, mapping: dict[Value, Value]) -> Block:
        copy = Block([a.type for a in self.args], [a.name for a in self.args])
        mapping.update(zip(self.args, copy.args, strict=True))
        for op in self.ops:
            copy.append(op.clone(mapping))
        return copy


@dataclass(eq=False)
class Kernel:
    """One specialised kernel: what the frontend makes, passes rewrite and backends consume.

    body:    its arguments are the kernel's parameters. At tile level one per present `Global`
             (`GlobalType`) and scalar, in the order of the signature. At thread level what
             `ir.abi` lists: pointers, then sizes, strides and scalars.
    grid:    1 to 3 host expressions over the names of run-time dimensions and scalars.
    threads: threads of a block along x, y, z (trailing ones may be left out).
    level:   "tile" until `expand`, then "thread".
    blocks_per_sm: minimum resident CTAs per SM, as far as registers go; 0: no minimum.
    index_bits: width that `index` gets in `expand`: 32 or 64.
    shared_bytes: shared memory of a block in bytes (0 until `expand` has laid it out).
    abi: what each body argument is, at thread level; empty at tile level.
    externals: Python callables that `ptx.inline` names as its emulation.
    cluster: blocks of a cluster along x, y, z; (1, 1, 1): no clusters. The grid counts blocks all the same.
    tensor_maps: at thread level, those that `mem.tma_load` and the like name by number.
    assembler_level: how much the assembler optimises, 0 to 3.
    """

    name: str
    body: Block
    grid: tuple[Expr, ...]
    threads: tuple[int, ...]
    level: Literal["tile", "thread"] = "tile"
    index_bits: int = 32
    shared_bytes: int = 0
    abi: tuple[AbiArg, ...] = ()
    loc: Loc = UNKNOWN_LOC
    externals: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    blocks_per_sm: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    tensor_maps: tuple[TensorMap, ...] = ()
    assembler_level: int = 3

    def __post_init__(self) -> None:
        self.body.parent = self

    @property
    def thread_count(self) -> int:
        return prod(self.threads)

    def walk(self) -> Iterator[Op]:
        return self.body.walk()

    @deep_recursion()
    def clone(self) -> Kernel:
        return replace(self, body=self.body.clone({}), externals=dict(self.externals))
