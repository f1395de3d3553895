"""Products that were planned: their launches on a GPU, which a later call only has to give addresses to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from operator import add, itemgetter
from typing import Any

from tiledsl.errors import DeviceError
from tiledsl.gemm.operands import Operands
from tiledsl.gemm.plan import plan
from tiledsl.gemm.steps import Step, Steps, problem_of, steps_of
from tiledsl.gemm.workspace import graph_zeros, keep_graph_zeros, workspace_of
from tiledsl.ir.types import I32
from tiledsl.runtime.driver import Driver
from tiledsl.runtime.launch import LaunchPlan

Launch = tuple[LaunchPlan, Callable[[tuple[int, ...]], tuple[int, ...]], list[int] | None, bool, tuple[Any, ...]]
"""The plan; what picks its addresses from those of all memories; offsets from them, or None; whether it takes alpha and
beta; its other scalars."""
SOMEWHERE = 1 << 60, 1 << 61
"""Addresses of workspaces while launches are planned: aligned, and away from all others."""


class Prepared:
    """The launches of a product, for arrays of one kind on one device.

    single: the only launch, if it needs no workspace; `pick` gives its addresses from those of `Operands`,
    and None stands for A, B and C as they are. rest: its scalars after alpha and beta. like: a torch tensor
    like the C that a call without C allocates, whose own memory was given back. whole: alpha and beta must be integers.
    """

    __slots__ = ("_launches", "_room", "_zeros", "device", "like", "pick", "rest", "single", "whole")

    def __init__(self, device: int, steps: Steps, of: Operands) -> None:
        self.device = device
        self._room, self._zeros = steps.room, steps.zeros
        addresses = (*of.addresses, *SOMEWHERE)
        self._launches = [launch_of(step, addresses, device) for step in steps.launches]
        self.single: LaunchPlan | None = None
        self.rest: tuple[Any, ...] = ()
        self.pick: Any = None
        self.like: Any = None
        self.whole = of.format.sums == I32 and of.scales is None
        if len(self._launches) == 1 and not (steps.room or steps.zeros):
            self.single, self.pick, offsets, _, self.rest = self._launches[0]
            assert offsets is None, "a single launch is of whole arrays"
            if self.pick(range(len(of.addresses))) == (0, 1, 2):
                self.pick = None

    def run(
        self, stream: int, addresses: tuple[int, ...], alpha: float, beta: float, captured: Any, *, apart: bool = False
    ) -> bool:
        """Launch all. addresses: as of `Operands`. captured: C if torch captures a graph on its current stream,
        else None. apart: launch nothing and return False where C may overlap another array, or a scalar does not fit.
        """
        if captured is not None:
            memory, _kept = self._of_graph(captured, stream)
            return self._run_all(stream, addresses + memory, alpha, beta, apart)
        own = workspace_of(self.device, stream)
        with own.lock:
            memory = own.require(self._room, self._zeros)
            return self._run_all(stream, addresses + memory, alpha, beta, apart)

    def _run_all(self, stream: int, addresses: tuple[int, ...], alpha: float, beta: float, apart: bool) -> bool:
        return all(run_launch(launch, stream, addresses, alpha, beta, apart) for launch in self._launches)

    def _of_graph(self, tensor: Any, stream: int) -> tuple[tuple[int, int], Any]:
        """Addresses of memory of the graph that torch captures on its current stream, and what keeps it until it is
        launched. It belongs to the graph as that of other tensors does."""
        torch: Any = sys.modules["torch"]
        kept = [torch.empty(self._room, dtype=torch.uint8, device=tensor.device)]
        zeros = graph_zeros(self.device, stream, self._zeros) if self._zeros else 0
        if self._zeros and not zeros:
            kept.append(torch.zeros(self._zeros, dtype=torch.uint8, device=tensor.device))
            zeros = kept[1].data_ptr()
        return (kept[0].data_ptr(), zeros), kept

    def prepare_graphs(self, stream: int) -> None:
        """Allocate what later captures of this product need. `stream` captures nothing now."""
        if self._zeros:
            keep_graph_zeros(self.device, stream)

    def reserve(self, stream: int) -> None:
        """Allocate the workspace that this product needs on `stream`."""
        if self.single is None:
            own = workspace_of(self.device, stream)
            with own.lock:
                own.require(self._room, self._zeros)


def run_launch(
    of: Launch, stream: int, addresses: tuple[int, ...], alpha: float = 1.0, beta: float = 0.0, apart: bool = False
) -> bool:
    """Launch it where the memories have these addresses. apart, and the result: as of `Prepared.run`."""
    launch, pick, offsets, scaled, rest = of
    pointers = pick(addresses) if offsets is None else tuple(map(add, pick(addresses), offsets))
    scalars = (alpha, beta, *rest) if scaled else rest
    return (launch.run_apart if apart else launch.run)(stream, pointers, scalars)


def launch_of(step: Step, addresses: Sequence[int], device: int) -> Launch:
    """A launch where the memories have these addresses, or others that are aligned as they are."""
    values = step.values(addresses, device)
    made = step.kernel.dispatcher.prepared(values)
    places = [step.arrays[name] for name in made.arguments.pointers]
    pick = _picks([place.memory for place in places])
    offsets = [place.offset for place in places]
    given = 2 if step.scaled else 0  # alpha and beta come first
    assert made.arguments.scalars[:given] == ("alpha", "beta")[:given], f"{step.kernel.name}: alpha, beta, then others"
    rest = tuple(values[name] for name in made.arguments.scalars[given:])
    return made, pick, offsets if any(offsets) else None, step.scaled, rest


def _picks(memories: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """Return what makes a tuple of the addresses of these memories, also of one: `itemgetter` has no tuple of one."""
    return itemgetter(*memories) if len(memories) > 1 else lambda addresses: tuple(addresses[at] for at in memories)


def planned(of: Operands, beta: float, epilogue: Any, arch: str, processors: int = 132) -> Steps:
    """The launches of a product for this target, and this number of SMs. epilogue: None for none."""
    problem = problem_of(of, beta, epilogue is not None, arch, processors)
    return steps_of(of, problem, plan(problem), epilogue)


def prepare(gpu: Driver, of: Operands, beta: float, epilogue: Any, capturing: bool) -> Prepared:
    """Plan a product and compile its kernels. Raises DeviceError if code would have to be loaded while a graph is
    captured."""
    device = of.a.device
    steps = planned(of, beta, epilogue, gpu.target_of(device), gpu.devices[device].processors)
    if capturing:
        addresses = (*of.addresses, *SOMEWHERE)
        for step in steps.launches:
            if not step.kernel.dispatcher.is_loaded(step.values(addresses, device)):
                message = f"gemm() needs {step.kernel.name}, which is not loaded yet, and its stream captures a graph"
                fix = "call tiledsl.gemm.warmup(...) for these shapes, or gemm once, before the capture"
                raise DeviceError(f"{message}\n  fix: {fix}")
    return Prepared(device, steps, of)
