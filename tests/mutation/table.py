"""Which operators each kind of op gets, or why it gets none; which attributes are not changed, and why.

A kind of op, or an attribute, that is in neither is a failure of `tests/test_mutation.py`.
"""

from __future__ import annotations

from tests.mutation.operators import (
    Operator,
    constant,
    delete,
    fixed,
    flip,
    move_earlier,
    move_later,
    negate,
    off_by_one,
    other_value,
    shift,
    swap,
    weaken,
    wrong_operand,
)
from tests.mutation.protocol import (
    compares,
    drops,
    exchange,
    exchange_operand,
    exchange_within,
    inverted_inits,
    narrower,
    partly,
    past_next,
    past_previous,
    rescale,
    skips,
    transposes,
    weaker,
)
from tests.mutation.stages import next_stage, other_barrier, other_swizzle, own_rank
from tiledsl.ir.scalar import SCALAR

__all__ = ["MUTATORS", "NOT_CHANGED", "NOT_MUTATED", "PROTOCOL"]

_PLACE = delete, move_earlier, move_later
"""Of what orders, begins or waits: it is there, and where it is."""
_REACH = weaken("reach", "cta", "cluster")
_ORDER = weaken("order", "relaxed", "acquire", "release", "acq_rel"), weaken("reach", "cta", "cluster", "gpu", "sys")
_COPY = other_value("src_axes"), other_value("dst_axes"), off_by_one("shape")
_ANY = wrong_operand("operands"), shift("operands")

_ATOMICS = "add", "and", "cas", "exchange", "load", "max", "min", "or", "store", "xor"

MUTATORS: dict[str, tuple[Operator, ...]] = {
    # -- rings, roles and schedules, before they are lowered
    "ring.make": (off_by_one("stages"), off_by_one("cluster"), swap),
    "ring.acquire": _PLACE,
    "ring.publish": _PLACE,
    "ring.wait": (*_PLACE, off_by_one("in_flight")),
    "ring.release": _PLACE,
    "ring.drain": _PLACE,
    "ring.skip": (delete, shift("operands")),
    "ring.take": _PLACE,
    "ring.free": (*_PLACE, shift("operands")),
    "role.region": (delete, off_by_one("first", "warps", "instances", "registers"), flip("one_thread")),
    "role.enter": _PLACE,
    "role.leave": _PLACE,
    "role.group_barrier": _PLACE,
    "role.work": (shift(0, 1, 2), wrong_operand("inits")),
    "role.leads": (delete,),
    "role.instance": (delete,),
    # -- barriers, fences, mbarriers
    "gpu.barrier": _PLACE,
    "gpu.sync_warp": _PLACE,
    "gpu.fence": (*_PLACE, weaken("reach", "cta", "cluster", "gpu", "sys")),
    "gpu.named_barrier": (*_PLACE, off_by_one("number", "threads"), flip("wait"), shift("offset")),
    "cluster.arrive": _PLACE,
    "cluster.wait": _PLACE,
    "gpu.setmaxnreg": (*_PLACE, off_by_one("registers"), flip("increase")),
    "gpu.grid_dependency": (*_PLACE, flip("wait")),
    "mbarrier.init": (*_PLACE, off_by_one("count"), wrong_operand(0)),
    "mbarrier.arrive": (*_PLACE, _REACH, shift("more"), wrong_operand(0)),
    "mbarrier.expect_tx": (*_PLACE, off_by_one("bytes", by=16), wrong_operand(0)),
    "mbarrier.wait": (*_PLACE, _REACH, negate(-1), wrong_operand(0)),
    "fence.mbarrier_init": _PLACE,
    "fence.proxy_async": _PLACE,
    # -- asynchronous copies
    "async.copy": (
        *_PLACE,
        other_value("src_axes"),
        other_value("dst_axes"),
        off_by_one("shape"),
        flip("grouped"),
        *_ANY,
    ),
    "async.wait": _PLACE,
    "async.cp": (*_PLACE, flip("guard"), off_by_one("vec"), *_ANY),
    "async.send": (*_PLACE, off_by_one("vec"), *_ANY),
    "async.commit_group": _PLACE,
    "async.wait_group": (*_PLACE, off_by_one("pending")),
    "mem.cp_async": (*_PLACE, off_by_one("bytes"), fixed("more"), shift("more"), wrong_operand("dst", "src", "more")),
    "mem.send": (*_PLACE, off_by_one("vec"), *_ANY),
    "tma.load": (
        *_PLACE,
        off_by_one("box", "every", "first"),
        other_value("axes"),
        other_value("multicast", "", "m", "n"),
        shift("place", "origin", "mbarrier", "receivers"),
    ),
    "tma.store": (*_PLACE, off_by_one("box"), other_value("axes"), shift("operands")),
    "tma.commit_group": _PLACE,
    "tma.wait_group": (*_PLACE, off_by_one("pending"), flip("read")),
    "mem.tma_load": (
        *_PLACE,
        off_by_one("map"),
        flip("multicast"),
        shift("coordinates", "receivers"),
        wrong_operand("dst", "mbarrier"),
    ),
    "mem.tma_store": (*_PLACE, off_by_one("map"), shift("coordinates"), wrong_operand(0)),
    # -- products
    "wgmma.begin": (delete,),
    "wgmma.fence": _PLACE,
    "wgmma.commit_group": _PLACE,
    "wgmma.mma": (
        *_PLACE,
        off_by_one("k", by=16),
        other_value("a_axes"),
        other_value("b_axes"),
        fixed("accumulate"),
        shift("a_origin", "b_origin"),
    ),
    "wgmma.wait": (*_PLACE, off_by_one("pending"), flip("finish")),
    "ptx.wgmma": (
        *_PLACE,
        off_by_one("n", by=8),
        flip("turned_a", "turned_b"),
        fixed("accumulate"),
        wrong_operand("left", "right", "accumulators"),
    ),
    "ptx.wgmma_descriptor": (
        off_by_one("advance", "leading", "stride", by=16),
        off_by_one("swizzle"),
        wrong_operand(0),
    ),
    "ptx.wgmma_wait": (*_PLACE, off_by_one("pending")),
    "ptx.mma_sync": (delete, wrong_operand("operands"), swap),
    "matrix.mma": (delete, wrong_operand(0, 1, 2)),
    # -- plain accesses
    "tile.copy": (*_PLACE, *_COPY, *_ANY),
    "tile.load": (delete, shift("operands")),
    "tile.get": (delete, flip("whole"), shift("operands")),
    "tile.store": (*_PLACE, *_ANY),
    "tile.put": (*_PLACE, flip("whole"), *_ANY),
    "tile.shared_alloc": (off_by_one("stages"),),
    "tile.dim": (off_by_one("axis"),),
    "tile.stride": (off_by_one("axis"),),
    "tile.pack": (swap, wrong_operand("elements")),
    "tile.extract": (off_by_one("at"),),
    "tile.insert": (delete, off_by_one("at"), wrong_operand(1)),
    "matrix.load": (delete, other_value("axes"), shift("origin")),
    "matrix.store": (*_PLACE, other_value("axes"), shift("origin")),
    "matrix.ldmatrix": (delete, off_by_one("num"), flip("trans"), shift("operands")),
    "matrix.stmatrix": (*_PLACE, off_by_one("num"), flip("trans"), *_ANY),
    "matrix.coordinates": (off_by_one("axis"),),
    "matrix.slice": (off_by_one("columns"),),
    "matrix.from_words": (swap, wrong_operand("words")),
    "matrix.convert": (wrong_operand(0),),
    "matrix.to_words": (wrong_operand(0),),
    "mem.load": (delete, move_earlier, move_later, wrong_operand(0)),
    "mem.store": (*_PLACE, wrong_operand("operands"), swap),
    "mem.ldmatrix": (delete, move_earlier, move_later, flip("trans"), off_by_one("num"), wrong_operand(0)),
    "mem.stmatrix": (*_PLACE, flip("trans"), off_by_one("num"), *_ANY),
    "mem.shared_base": (off_by_one("offset", by=16),),
    "mem.offset": (shift(1), wrong_operand(0, 1)),
    **{f"tile.atomic_{fn}": (*_PLACE, *_ORDER, shift("operands")) for fn in _ATOMICS},
    **{f"mem.atomic_{fn}": (*_PLACE, *_ORDER, *_ANY) for fn in _ATOMICS},
    # -- control flow and places
    "control.for": (shift(0, 1, 2), wrong_operand("inits")),
    "control.if": (negate(0), fixed(0)),
    "control.while": (wrong_operand("inits"),),
    "control.condition": (negate(0), wrong_operand("passed")),
    "control.yield": (swap, wrong_operand("values")),
    "gpu.thread_id": (off_by_one("axis"),),
    "gpu.block_id": (off_by_one("axis"),),
    "gpu.grid_size": (off_by_one("axis"),),
    "gpu.warp_id": (delete,),
    "gpu.lane_id": (delete,),
    "cluster.rank": (delete,),
    "warp.elect": (delete,),
    "warp.shuffle": (delete, other_value("mode", "idx", "up", "down", "xor"), off_by_one("width"), shift(1)),
    "warp.vote": (delete, other_value("mode", "any", "all"), negate(0)),
    # -- values
    "arith.constant": (constant,),
    "arith.select": (negate(0), swap),
    "arith.cast": (wrong_operand(0),),
    "arith.bitcast": (wrong_operand(0),),
    "arith.pack_word": (swap, wrong_operand("elements")),
    "arith.unpack_word": (wrong_operand(0),),
    **{f"arith.{fn}": (shift("values"), wrong_operand("values")) for fn in SCALAR},
    "ptx.inline": (delete, wrong_operand("values"), shift("values")),
}

_ROUNDS = partly, skips
"""The operators that change which threads, or which iterations, execute an op that orders, begins, or waits."""
_MEETS = "gpu.barrier", "gpu.named_barrier", "gpu.sync_warp", "mbarrier.arrive", "cluster.arrive", "cluster.wait"
_WORDS = "relaxed", "acquire", "release", "acq_rel"
_NARROW = weaker("order", *_WORDS), weaker("reach", "cta", "cluster", "gpu", "sys"), skips, exchange_operand(0)
_SIDE = other_swizzle(0), next_stage(0), exchange_operand(0)

PROTOCOL: dict[str, tuple[Operator, ...]] = {
    # -- rings and roles, before they are lowered
    "ring.acquire": (skips,),
    "ring.publish": (skips,),
    "ring.wait": (skips,),
    "ring.release": (skips, past_previous("ring.wait")),
    "ring.take": (skips,),
    "ring.free": (skips,),
    "role.enter": (skips, past_next("role.leave")),
    "role.leave": (skips, past_previous("role.enter")),
    # -- barriers, fences, mbarriers
    "gpu.barrier": (narrower, skips, past_next("control.for"), past_previous("control.for")),
    "gpu.sync_warp": (*_ROUNDS, past_next("control.for", "gpu.barrier")),
    "gpu.fence": (
        *_ROUNDS,
        weaker("reach", "cta", "cluster", "gpu", "sys"),
        past_next(*_MEETS),
        past_previous(*_MEETS),
    ),
    "gpu.named_barrier": (
        *_ROUNDS,
        narrower,
        exchange("number"),
        exchange("wait"),
        rescale("threads", by=(2,)),
        exchange_operand("offset"),
    ),
    "cluster.arrive": (*_ROUNDS, past_next("cluster.wait", "control.for"), past_previous("control.for")),
    "cluster.wait": (*_ROUNDS, narrower, past_next("control.for"), past_previous("cluster.arrive")),
    "gpu.grid_dependency": (partly,),
    "mbarrier.init": (exchange("count"), rescale("count"), past_next("gpu.barrier")),
    "mbarrier.arrive": (
        *_ROUNDS,
        other_barrier(0),
        next_stage(0),
        own_rank("more"),
        exchange_operand(0),
        past_previous("mbarrier.wait", "ptx.wgmma_wait", "gpu.sync_warp", "gpu.barrier"),
    ),
    "mbarrier.expect_tx": (
        skips,
        other_barrier(0),
        next_stage(0),
        rescale("bytes"),
        exchange("bytes"),
        past_next("mem.tma_load"),
    ),
    "mbarrier.wait": (
        *_ROUNDS,
        other_barrier(0),
        next_stage(0),
        exchange_operand(0, -1),
        past_previous("mbarrier.arrive", "mbarrier.expect_tx"),
        past_next("mem.tma_load", "ptx.wgmma", "mbarrier.arrive"),
    ),
    "fence.mbarrier_init": (partly, past_next(*_MEETS)),
    "fence.proxy_async": (*_ROUNDS, past_next(*_MEETS), past_previous(*_MEETS)),
    # -- asynchronous copies
    "async.commit_group": (*_ROUNDS, past_next("async.wait_group"), past_previous("mem.cp_async", "control.for")),
    "async.wait_group": (
        *_ROUNDS,
        off_by_one("pending", by=2),
        past_previous("async.commit_group"),
        past_next("gpu.barrier", "gpu.sync_warp"),
    ),
    "mem.cp_async": (
        skips,
        other_swizzle("dst"),
        next_stage("dst"),
        exchange_operand("dst", "src", "more"),
        past_next("async.commit_group", "gpu.barrier"),
    ),
    "mem.send": (skips, own_rank("rank"), next_stage(0), other_barrier("mbarrier"), exchange_operand(0)),
    "tma.commit_group": (*_ROUNDS, past_next("tma.wait_group"), past_previous("mem.tma_store")),
    "tma.wait_group": (*_ROUNDS, off_by_one("pending", by=2), past_previous("tma.commit_group"), past_next(*_MEETS)),
    "mem.tma_load": (
        skips,
        next_stage("dst", "mbarrier"),
        other_barrier("mbarrier"),
        exchange("map"),
        exchange_operand("dst"),
        exchange_within("coordinates"),
    ),
    "mem.tma_store": (
        skips,
        next_stage(0),
        exchange("map"),
        exchange_within("coordinates"),
        past_previous("fence.proxy_async", *_MEETS),
    ),
    # -- products
    "wgmma.fence": (*_ROUNDS, past_next("ptx.wgmma")),
    "wgmma.commit_group": (*_ROUNDS, past_next("ptx.wgmma_wait"), past_previous("ptx.wgmma")),
    "ptx.wgmma_wait": (
        *_ROUNDS,
        off_by_one("pending", by=2),
        past_previous("wgmma.commit_group"),
        past_next("mbarrier.arrive", "gpu.barrier"),
    ),
    "ptx.wgmma": (exchange_operand("left", "right"),),
    "ptx.wgmma_descriptor": (next_stage(0), exchange("advance"), exchange("swizzle"), exchange_operand(0)),
    "ptx.mma_sync": (exchange_operand(0),),
    # -- plain accesses and atomic operations
    "matrix.store": (exchange_within("origin"),),
    "matrix.ldmatrix": (exchange_operand(-1),),
    "mem.load": (*_SIDE, skips),
    "mem.store": (*_SIDE, exchange_operand("values"), skips),
    "mem.ldmatrix": (*_SIDE, skips),
    "mem.stmatrix": (*_SIDE, exchange_operand("words"), skips),
    **{f"mem.atomic_{fn}": _NARROW for fn in _ATOMICS},
    # -- control flow and values
    "control.for": (inverted_inits,),
    "control.if": (exchange_operand(0),),
    "warp.shuffle": (exchange_operand(1), exchange("mode")),
    "arith.select": (drops,),
    **{f"arith.{fn}": (drops,) for fn, row in SCALAR.items() if row.arity > 1 and not row.to_bool},
    **{f"arith.{fn}": (compares, exchange_operand(1)) for fn in ("lt", "le", "gt", "ge")},
    "arith.add": (drops, transposes),
}
"""Mistakes in a protocol between threads, at the ends of tiles, and in where results go, by kind of op."""

_CHECK = "it is a check: where the kernel is right it does nothing, and a GPU has no code for it"
_SHOWS = "it shows values to the user, and the result does not depend on it"
NOT_MUTATED = {
    "control.return": "the end of every kernel, without operands",
    "debug.assert": _CHECK,
    "debug.breakpoint": _SHOWS,
    "debug.print": _SHOWS,
    "debug.stamp": "it is in no build but those that are measured",
    "mem.tma_prefetch": "a hint: nothing depends on it but time",
    "mem.within": _CHECK,
    "ptx.wgmma_registers": "registers of any content: nothing reads them before a product overwrites them",
    "ring.cursor": "the beginning of a ring, which has no operand but the ring",
    "tma.prefetch": "a hint: nothing depends on it but time",
    "warp.uniform": "the value itself; ptxas is told that it is the same in the warp",
}
"""Kinds of op that get no mutator, each with the reason."""

_HINT = "a hint to the compiler or the machine, which changes no result"
_TEXT = "a text for messages"
_CHECKED = "it is what the checks know of the op; no code comes of it"
_TYPE = "the verifier compares it with the types of the op's values: every change is a compile error"
_CHOICE = "how the compiler divides the work; every value that passes its checks gives the same result"
NOT_CHANGED = {
    "nowrap": _HINT,
    "unroll": _CHOICE,
    "fragments": _CHOICE,
    "gathered": _CHOICE,
    "vec": _CHOICE,
    "layout": "all addresses are computed from it, so that another one is as right",
    "likely": _HINT,
    "predicated": _CHOICE,
    "role": _CHECKED,
    "hint": _HINT,
    "title": _TEXT,
    "label": _TEXT,
    "to": _TYPE,
    "dtype": _TYPE,
    "type": _TYPE,
    "outputs": _TYPE,
    "a": _TYPE,
    "b": _TYPE,
    "acc": _TYPE,
    "mem.shared_base.bytes": _CHECKED,
    "fence.proxy_async.space": "a fence of the other space is none for this one, which `delete` plants",
    "control.for.stages": _CHOICE,
    "role.work.stages": _CHOICE,
    "ptx.mma_sync.shape": _TYPE,
    "text": "PTX as its author wrote it, of which the emulator knows nothing but `emulate`",
    "volatile": _HINT,
    "convergent": _HINT,
    "memory": _CHECKED,
    "uniform": _CHECKED,
    "emulate": "the emulator's stand-in of the text, not a part of what runs on a GPU",
}
"""Attributes that no mutator changes, of any op or of one, each with the reason."""
