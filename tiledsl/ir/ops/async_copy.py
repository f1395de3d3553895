"""Copies to shared memory that go on while the threads do. (PTX ISA: cp.async, commit_group, wait_group; st.async.)

`async.copy` is the whole block's, with a token that `async.wait` takes; `async-groups` turns tokens into groups and
`distribute` the copy into one `async.cp` an access.
"""

from __future__ import annotations

from tiledsl.ir.core import Orders, Value, attribute, operand, operands
from tiledsl.ir.facts import Access, Sync, reads, writes
from tiledsl.ir.ops import tile
from tiledsl.ir.types import I32, INDEX, U64, GlobalType, SharedType, TokenType

CP_BYTES = (4, 8, 16)
"""What one cp.async moves, and one st.async."""
SENT_ELEMENTS = (4, 8)
"""Bytes of an element that st.async stores."""


class Copy(tile.Copy):
    """``copy_async(src, dst)``: a `tile.Copy` from a tensor to a shared tile that goes on by itself; gives its token.

    Nothing has arrived before the token was waited for, and other threads see it after a barrier behind that.
    `grouped`: a pass or the author places its group, and nothing waits for the token.
    """

    name = "async.copy"
    touches = (reads("src", guarded=True), writes("dst", guarded=True, done="token"))
    varies, nan = "thread", "sees"
    cause = "the token of a copy"
    called = "copy_async()"
    gives = (TokenType(),)
    grouped = attribute(bool, False)

    def verify(self) -> None:
        super().verify()
        self.expect(self.src.type, GlobalType)
        self.expect(self.dst.type, SharedType)
        self.require(self.vec in CP_BYTES, f"accesses of {self.vec} bytes; 4, 8 or 16 are possible")


class Wait(Orders):
    """Waits until the copies of all its tokens, as far as this thread made them, have arrived."""

    name = "async.wait"
    level = "tile"
    sync = Sync(completes="token")
    called = "wait()"
    tokens = operands(0)

    def verify(self) -> None:
        self.require(len(self.tokens) > 0, "waits for nothing")
        self.require(all(isinstance(v.type, TokenType) for v in self.tokens), "takes tokens")


class Cp(tile.Access):
    """One access of an asynchronous copy: `vec` elements, 4, 8 or 16 bytes, to a shared tile.

    Operands: the tile, its indices, the tensor, its indices. Elements past the edge of the tensor arrive as zeros
    and are not read (`guard`; without it all of them are inside).
    """

    name = "async.cp"
    touches = (reads("source"), writes("memory", done="cp_async"))
    called = "ptx.cp_async()"
    parts = ("memory", "indices", "source")
    guard = attribute(bool, True)

    def accesses(self) -> list[Access]:
        return [access._replace(guarded=self.guard and not access.writes) for access in super().accesses()]

    @property
    def source(self) -> tile.Side:
        """The tensor and the indices there."""
        memory, *indices = self.operands[1 + self.memory_type.rank :]
        return tile.Side(memory, tuple(indices), tuple(range(len(indices))))

    def verify(self) -> None:
        type_ = self.expect(self.memory.type, SharedType)
        self.require(len(self.operands) > 1 + type_.rank, f"takes {type_.rank} indices of the tile, then a tensor")
        side = self.source
        source = self.expect(side.memory.type, GlobalType)
        self.require_indices(self.indices, type_.rank, " of the tile")
        side.check(self, source.rank, type_.dtype, " of the tensor")
        size = self.vec * type_.dtype.bytes
        self.require(size in CP_BYTES, f"copies {size} bytes; 4, 8 or 16 are possible")


class Send(tile.Access):
    """This thread stores to the shared memory of a block of its cluster: `vec` elements, 4, 8 or 16 bytes, at the place
    that the tile and its indices name in every block. They count at that block's mbarrier.

    Operands: the tile, its indices, a tile of mbarriers and its indices, the rank of the block, an i32, and the value.
    (PTX ISA: st.async.)
    """

    name = "async.send"
    touches = (writes("memory", done="mbarrier"), writes("mbarrier", atomic="cluster"))
    features = ("cluster",)
    called = "ptx.st_async()"
    parts = ("memory", "indices", "mbarrier", "rank", "value")
    rank, value = operand(-2, I32), operand(-1)

    @property
    def mbarrier(self) -> list[Value]:
        """The tile of mbarriers and its indices."""
        return self.operands[1 + self.memory_type.rank : -2]

    def verify(self) -> None:
        type_ = self.expect(self.memory.type, SharedType)
        self.require(len(self.operands) > 3 + type_.rank, f"takes {type_.rank} indices, an mbarrier, a rank, a value")
        self.require_indices(self.indices, type_.rank)
        self.require(self.value.type == self.value_type, f"{self.value.type} where {self.value_type} is stored")
        size = self.vec * type_.dtype.bytes
        self.require(type_.dtype.bytes in SENT_ELEMENTS and size in CP_BYTES, f"stores {size} bytes of {type_.dtype}")
        counts, *at = (v.type for v in self.mbarrier)
        barriers = self.expect(counts, SharedType)
        self.require(barriers.dtype == U64 and at == [INDEX] * barriers.rank, "takes an mbarrier")


class CommitGroup(Orders):
    """The copies that this thread has begun since its last group are a group. (PTX ISA: cp.async.commit_group.)"""

    name = "async.commit_group"
    sync = Sync(commits="cp_async")
    called = "ptx.commit_group()"


class WaitGroup(Orders):
    """Waits until at most `pending` of this thread's last groups are in flight. (PTX ISA: cp.async.wait_group.)"""

    name = "async.wait_group"
    sync = Sync(completes="cp_async")
    called = "ptx.wait_group()"
    pending = attribute(int)
