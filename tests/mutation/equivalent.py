"""Proofs that a mutant is no fault. Each says so of a mutant that was not found, by a rule that a machine can check.

That a rule makes the kernel wait longer, or more, is no fault; that it may then wait for ever is found by running it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import count, groupby
from typing import Any

import numpy as np

from tests.mutation.accesses import is_alone, other_elements, run_with
from tests.mutation.operators import Change
from tests.mutation.reached import ops_reached
from tests.mutation.subjects import Built, more_runs
from tiledsl.arch import TARGETS
from tiledsl.backends.emulator import Hook
from tiledsl.backends.emulator.hooks import LaunchInfo
from tiledsl.backends.emulator.hooks import Sync as Event
from tiledsl.backends.ptx.codegen import emit_ptx
from tiledsl.errors import Loc
from tiledsl.ir.core import Block, Kernel, Op, Value
from tiledsl.ir.facts import Sync
from tiledsl.ir.ops import barriers, control
from tiledsl.passes.manager import run_passes
from tiledsl.passes.pipeline import named_passes
from tiledsl.recursion import deep_recursion

__all__ = ["why_equivalent"]

_CLEANING = "canonicalize", "cse", "licm", "cse", "dce", "order-chains"


def why_equivalent(made: Built, mutant: Kernel, op: Op | None, change: Change) -> str:
    """The class of equivalents that a mutant belongs to, or "". mutant: at thread level. op: the one that `change`
    would change, in the kernel as it was."""
    if change.stronger:
        return "a stronger wait"
    texts = [_text(kernel) for kernel in (made.lowered, mutant)]
    if texts[0] == texts[1]:
        return "the same IR"
    maps, ops = zip(*((text[0], _unordered(text[1:])) for text in texts), strict=True)
    if maps[0] == maps[1] and ops[0] == ops[1]:
        return "the same IR but for the order of neighbouring loads by TMA"
    if _ptx(made.lowered, made.arch) == _ptx(mutant, made.arch):
        return "the same PTX"
    if op is None:
        return ""
    if _expects_later(op, change):
        return "bytes may arrive before they are expected, as the phase lacks this arrival"
    if any(rule(op, change) for rule in (_joins_earlier_group, _waits_earlier, _releases_later, _is_fenced_later)):
        return "a stronger wait"
    if change.guarded and (why := _left_out_for_nothing(made, mutant, op, change)):
        return why
    if _is_apart_from_fence(op, change):
        return "a proxy fence moved past a wait, or the wait past it"
    if op.name == "ring.wait" and change.what == "in_flight 0 -> 1":
        return "a slot is released a use later, with the wait for its products"
    if change.past and _is_local(made, op, change):
        return "mbarriers at which threads of their block alone arrive need no fence"
    if _merges_groups(op, change, mutant):
        return "merged groups, all waited for"
    if _meets_anyway(op, change):
        return "the lanes of a warp meet at the next op, too"
    if _is_not_read(op, change):
        return "a field or a register that wgmma does not read"
    if _waits_for_nothing(made, op):
        return "a wait for nothing"
    if _has_another_number(op, change) and _rounds(made.lowered, made) == _rounds(mutant, made):
        return "a named barrier by another number, at which the same warps meet"
    if op.name == "mem.shared_base" and _is_free(made.lowered, op) and _is_free(mutant, op, at=change.what):
        return "a tile at other bytes, of which no other tile has one"
    if change.past and other_elements(made, op, change.past):
        return "moved past accesses of its thread to other elements"
    if change.past and is_alone(made, op, _others(change)):
        return "an access to elements that no other thread accesses, moved past what orders threads"
    return ""


def _text(kernel: Kernel) -> list[Any]:
    """The IR without locations, after the passes that follow `expand`: what has an effect, in order, and what is
    computed for it, in any."""
    passes = named_passes(shared_limit=0, target="")
    cleaned = run_passes(kernel.clone(), [passes[name] for name in _CLEANING])
    names: dict[Value, Any] = {value: ("parameter", at) for at, value in enumerate(cleaned.body.args)}
    maps = [str(each) for each in cleaned.tensor_maps]
    return [sorted(maps), *_block(cleaned.body, names, maps, count())]


def _block(block: Block, names: dict[Value, Any], maps: list[str], numbers: Iterator[int]) -> list[Any]:
    """names: of values: what is computed has that of its computation, the rest those of a number in order. maps: tensor
    maps, by number."""
    found: list[Any] = []
    for op in block.ops:
        inside: list[Any] = []
        for each in op.blocks:
            number = next(numbers)
            names.update({value: (number, at) for at, value in enumerate(each.args)})
            inside.append(_block(each, names, maps, numbers))
        attributes = sorted((name, maps[value] if name == "map" else str(value)) for name, value in op.attrs.items())
        does = [op.name, attributes, [names[value] for value in op.operands], inside]
        if op.effects or op.blocks or op.terminator:
            found.append(does)
            key: Any = next(numbers)
        else:
            key = sha256(repr(does).encode()).hexdigest()
        names.update({value: (key, at) for at, value in enumerate(op.results)})
    return found


def _unordered(found: list[Any]) -> list[Any]:
    """The same with neighbouring loads by TMA in an order of its own."""
    result: list[Any] = []
    for name, group in groupby(found, lambda each: each[0]):
        ops = [[*each[:3], [_unordered(inside) for inside in each[3]]] for each in group]
        result += sorted(ops, key=repr) if name == "mem.tma_load" else ops
    return result


@deep_recursion()
def _ptx(kernel: Kernel, arch: str) -> Any:
    """Return the PTX with labels numbered as they come, and the tensor maps, which are no part of it."""
    text = re.sub(r"(?m)^\s*(\.loc|\.file|//).*\n", "", emit_ptx(kernel.clone(), TARGETS[arch])[1])
    labels: dict[str, str] = {}
    return kernel.tensor_maps, re.sub(r"\$L__\w+", lambda found: labels.setdefault(found[0], f"${len(labels)}"), text)


def _of_more_sizes(made: Built, change: Change) -> Built:
    """Return it with runs of random sizes, too, if what a change leaves out depends on sizes."""
    return replace(made, runs=(*made.runs, *more_runs(made.subject.name))) if "iteration" in change.what else made


def _left_out_for_nothing(made: Built, mutant: Kernel, op: Op, change: Change) -> str:
    """Return why it changes nothing that some threads, or some iterations, leave an op out: none of these reach it,
    or it waits for nothing there. "" if it may change something."""
    probe = mutant.clone()
    around, copy = _probed(made, probe, op)
    if around is None or copy is None:
        return ""
    if copy not in ops_reached(_of_more_sizes(made, change), probe):
        return "all threads that reach the op execute it in every iteration"
    if op.sync.completes not in ("wgmma", "cp_async", "bulk"):
        return ""
    hook = _Waits(copy.loc, op.sync.completes)
    run_with(_of_more_sizes(made, change), probe, hook)
    return "a wait for nothing" if hook.found and not any(hook.found) else ""


def _probed(made: Built, probe: Kernel, op: Op) -> tuple[control.If | None, Op | None]:
    """Return the branch around an op that some leave out, and a copy of the op, at its own line, that these execute."""
    like = [each for each in made.lowered.walk() if each.name == op.name]
    at = next((at for at, each in enumerate(like) if each is op), None)
    if at is None:
        return None, None
    guarded = [each for each in probe.walk() if each.name == op.name][at]
    around = guarded.block.parent
    assert isinstance(around, control.If)
    copy = guarded.clone({})
    copy.loc = replace(guarded.loc, line=10_000_000)
    around.orelse.insert_before(around.orelse.terminator, copy)
    return around, copy


def _expects_later(op: Op, change: Change) -> bool:
    """Return whether an expectation of bytes, which is an arrival as well, is moved past copies only."""
    past = [each.name for each in _others(change) if each.effects]
    return op.name == "mbarrier.expect_tx" and bool(past) and {*past} == {"mem.tma_load"}


def _joins_earlier_group(op: Op, change: Change) -> bool:
    """Does a copy or a product get into the group before its own, which is waited for no later?"""
    past = [each for each in change.past if each.effects]
    begins, commits = {access.done for access in op.accesses()} - {""}, op.sync.commits
    if not past or op.sync.releases:
        return False
    if change.what.startswith("before"):
        return bool(begins) and all(each.sync.commits in begins and not each.sync.releases for each in past)
    begun = [{access.done for access in each.accesses()} for each in past]
    return bool(commits) and all(commits in each for each in begun)


def _merges_groups(op: Op, change: Change, mutant: Kernel) -> bool:
    """Does it move or delete where a group ends, in a kernel whose every wait is for all groups? That what is in no
    group is waited for is a finding's matter."""
    commits = [each.sync.commits for each in (op, *change.past) if each.sync.commits and not each.sync.releases]
    waits = [each.attrs.get("pending") for each in mutant.walk() if each.sync.completes in commits]
    if not commits or any(waits):
        return False
    return _joins_next_group(op, change) or all(each.sync.completes not in commits for each in change.past)


def _joins_next_group(op: Op, change: Change) -> bool:
    """Return whether a commit is moved later, and another one comes before the first wait for what both commit."""
    work = op.sync.commits
    met = [each for each in _others(change) if work and work in (each.sync.commits, each.sync.completes)]
    return change.what.startswith("after") and bool(met) and met[0].sync.commits == work


def _others(change: Change) -> list[Op]:
    """What an op is moved past, with all that is in it."""
    return [each for around in change.past for each in around.walk()]


def _waits_earlier(op: Op, change: Change) -> bool:
    """Return whether a wait is moved before ops that it does not wait for. All that was after it stays there."""
    work = op.sync.completes
    if not change.what.startswith("before") or not (work or op.name == "role.enter"):
        return False
    begun = {access.done for each in _others(change) for access in each.accesses()}
    committed = {each.sync.commits for each in _others(change)}
    return op.sync.commits == "" and work not in (begun | committed) - {"", "mbarrier"}


def _releases_later(op: Op, change: Change) -> bool:
    """Does an op that releases, and does nothing else for synchronisation, so after more? Nothing between releases, or
    else who sees that would not see this."""
    alone = bool(op.sync.releases) and op.sync == Sync(releases=op.sync.releases)
    quiet = not any(each.sync.releases or each.sync.commits or each.sync.orders for each in _others(change))
    return change.what.startswith("after") and alone and quiet


def _is_fenced_later(op: Op, change: Change) -> bool:
    """Return whether a product is moved after a fence of registers, and nothing else with an effect."""
    ordered = [each.sync.orders for each in _others(change) if each.effects]
    begins = bool(op.accesses()) and all(access.done == "wgmma" for access in op.accesses())
    return change.what.startswith("after") and begins and ordered == ["registers"]


def _is_apart_from_fence(op: Op, change: Change) -> bool:
    """A proxy fence for shared memory orders what its thread itself reads and writes; a wait for groups, what TMA and
    wgmma do."""
    both = [op, *(each for each in _others(change) if each.effects)]
    fences = [each for each in both if isinstance(each, barriers.FenceProxy) and each.space == "shared"]
    waits = [each for each in both if each.sync.completes in ("wgmma", "bulk") and not each.accesses()]
    return bool(fences and waits) and len(both) == len(fences) + len(waits)


class _Arrivals(Hook):
    """At which mbarriers do others than threads of their block arrive? `made`: by operation. Keys: block and place."""

    def __init__(self) -> None:
        self.made: dict[Op, set[tuple[int, int]]] = {}
        self.others: set[tuple[int, int]] = set()

    def on_init(
        self, op: Op, label: str, base: int, blocks: np.ndarray, threads: np.ndarray, places: np.ndarray
    ) -> None:
        self.made.setdefault(op, set()).update(zip(blocks.tolist(), places.tolist(), strict=True))

    def on_arrive(self, sync: Event) -> None:
        far = sync.homes != sync.blocks
        if sync.kind == "mbarrier" and (sync.commits or sync.op.name == "mbarrier.expect_tx" or far.any()):
            self.others.update(zip(sync.homes.tolist(), sync.places.tolist(), strict=True))


def _is_local(made: Built, op: Op, change: Change) -> bool:
    """Return whether nothing that needs the fence arrives at the mbarriers that are now initialized after it."""
    past = [each for each in change.past if each.effects]
    names = {op.name, *(each.name for each in past)}
    if names != {"mbarrier.init", "fence.mbarrier_init"}:
        return False
    late = [op] if op.name == "mbarrier.init" else [each for each in past if each is not op]
    hook = _Arrivals()
    run_with(made, made.lowered, hook)
    return not any(hook.made.get(each, {(-1, -1)}) & hook.others for each in late) and all(e in hook.made for e in late)


def _meets_anyway(op: Op, change: Change) -> bool:
    """Is it a `sync_warp` that is moved or deleted, or moved past, in front of what all lanes execute together?"""
    at = [each for each in op.block.ops if each.effects]
    if op.name != "gpu.sync_warp":
        past = [each.name for each in change.past if each.effects]
        return past == ["gpu.sync_warp"] and _is_barrier(at[at.index(op) :])
    return _is_barrier(at[at.index(op) + 1 :])


def _is_barrier(following: Sequence[Op]) -> bool:
    """Do these begin with a barrier, or with an arrival there and the wait? (PTX ISA: barrier, barrier.cluster:
    .aligned.) That orders the lanes' accesses as `sync_warp` does; an arrival by itself does not."""
    first = next((each for each in following if not _is_arrival(each)), None)
    return first is not None and _meets(first) and following.index(first) < 2


def _meets(op: Op) -> bool:
    return op.scope in ("warp", "cta") and bool(op.sync.meets) and not op.sync.completes


def _is_arrival(op: Op) -> bool:
    return op.scope in ("warp", "cta") and bool(op.sync.releases) and not (op.sync.meets or op.sync.completes)


def _is_not_read(op: Op, change: Change) -> bool:
    """Return whether the change is of the leading byte offset of swizzled operands that are contiguous along k (PTX
    ISA: matrix descriptor), or of a sum that its product does not add to."""
    if op.name == "ptx.wgmma_descriptor" and op.attrs["swizzle"] and change.what.startswith("leading"):
        products: Any = op.results[0].uses
        return not any(each.turned_a if at <= len(each.left) else each.turned_b for each, at in products)
    found = re.fullmatch(r"operand (\d+) is another value", change.what)
    if op.name != "ptx.wgmma" or found is None:
        return False
    adds = op.operands[0].op
    begins = len(op.operands) - len(op.results)
    return int(found[1]) >= begins and adds is not None and adds.attrs.get("value") is False


def _is_free(kernel: Kernel, op: Op, at: str = "") -> bool:
    """Do the bytes of a tile belong to no other one? at: "offset a -> b", in the place of its own offset."""
    begin = int(at.split()[-1]) if at else op.attrs["offset"]
    tiles = [(each.attrs["offset"], each.attrs["bytes"]) for each in kernel.walk() if each.name == op.name]
    mine = tiles.index((begin, op.attrs["bytes"])) if (begin, op.attrs["bytes"]) in tiles else -1
    others = [each for number, each in enumerate(tiles) if number != mine]
    return mine >= 0 and all(a + n <= begin or begin + op.attrs["bytes"] <= a for a, n in others)


class _Waits(Hook):
    """The waits at one place: does any wait for groups? `found`: of each, whether there are more groups than it leaves.

    `groups`: of each thread, those that it has not waited for. A wait for reads alone leaves their writes.
    """

    def __init__(self, loc: Loc, work: str) -> None:
        self.loc, self.work = str(loc), work
        self.groups: dict[tuple[int, int, bool], int] = {}
        self.found: list[bool] = []

    def of_launch(self, launch: LaunchInfo) -> Hook:
        self.groups.clear()
        return self

    def on_commit(self, op: Op, group: Any, blocks: np.ndarray, threads: np.ndarray) -> None:
        if group == self.work:
            for block, thread in zip(blocks.tolist(), threads.tolist(), strict=True):
                for who in ((block, thread, read) for read in (False, True)):
                    self.groups[who] = self.groups.get(who, 0) + 1

    def on_wait(self, op: Op, group: Any, blocks: np.ndarray, threads: np.ndarray, pending: int) -> None:
        if group != self.work:
            return
        only_reads = bool(op.attrs.get("read"))
        for block, thread in zip(blocks.tolist(), threads.tolist(), strict=True):
            if str(op.loc) == self.loc:
                self.found.append(self.groups.get((block, thread, only_reads), 0) > pending)
            for who in ((block, thread, read) for read in {True, only_reads}):
                self.groups[who] = min(self.groups.get(who, 0), pending)


def _waits_for_nothing(made: Built, op: Op) -> bool:
    """Has no input any group to wait for there?"""
    if op.sync.completes not in ("wgmma", "cp_async", "bulk"):
        return False
    hook = _Waits(op.loc, op.sync.completes)
    run_with(made, made.lowered, hook)
    return bool(hook.found) and not any(hook.found)


class _Rounds(Hook):
    """Who meets at named barriers: the lines and warps of each round that ends."""

    def __init__(self) -> None:
        self.arrived: dict[tuple[int, int], list[tuple[str, int]]] = {}
        self.found: Counter[Any] = Counter()

    def of_launch(self, launch: LaunchInfo) -> Hook:
        self.arrived.clear()
        return self

    def on_arrive(self, sync: Event) -> None:
        if sync.kind == "named":
            for home, place, warp in zip(sync.homes.tolist(), sync.places.tolist(), sync.warps.tolist(), strict=True):
                self.arrived.setdefault((home, place), []).append((str(sync.op.loc), warp))

    def on_complete(self, kind: Any, homes: np.ndarray, places: np.ndarray) -> None:
        if kind == "named":
            for at in zip(homes.tolist(), places.tolist(), strict=True):
                self.found[at[0], tuple(sorted(self.arrived.pop(at)))] += 1


def _has_another_number(op: Op, change: Change) -> bool:
    """Return whether only the number of a named barrier changes, not whether it waits or for how many threads."""
    return op.name == "gpu.named_barrier" and re.match(r"number |operand ", change.what) is not None


def _rounds(kernel: Kernel, made: Built) -> Counter[Any]:
    hook = _Rounds()
    run_with(made, kernel, hook)
    return hook.found
