"""Products over ranks against torch's fused operators and NCCL, bf16. Needs several GPUs of one host, and torch.

    torchrun --nproc-per-node 2 -m benchmarks.distributed --write

- gather: `all_gather_gemm` of the first products of gated MLPs, [m, h] times [h, 2 f / ranks].
- scatter: `gemm_reduce_scatter` of the second ones, [m, f / ranks] times [f / ranks, h].
- reduce: `gemm_all_reduce` of the second ones for few rows, call by call, and as a captured graph of calls.
- mlp: the whole MLP, forward, and forward and backward, on one GPU with whole weights against all of them.

"fused" is torch's `symm_mem` operator (of reduce: its one-shot all-reduce behind torch.mm); "nccl" is the collective,
and torch.mm after or before it; "local" is the product alone, by `gemm` or torch.mm, whichever is faster. Each result
is compared with a reference first. In each round all contenders take turns; a time is the median of the rounds, and of
this the maximum over the ranks.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, table, write

__all__ = ["figures", "main"]

MODELS = {"7B": (4096, 11008), "13B": (5120, 13824), "34B": (8192, 22016), "70B": (8192, 28672)}
"""h and f of their MLPs."""
ROWS = 1024, 2048, 4096, 8192, 16384
"""Of all ranks together."""
GROUPS = {"8192, 16384": (8192, 16384), "2048, 4096": (2048, 4096), "1024": (1024,)}
FEW = 1, 4, 16, 64
SECONDS, RATE = 0.015, 600e12
"""Of a batch of calls, about; and how fast a GPU multiplies, about. Ranks that measured it would not agree."""
GRAPHED, REPLAYS, CALLS = 10, 10, 50
"""Calls of a graph; how often a batch replays it; calls of a batch without one."""
MODES = "forward", "forward and backward"

Contenders = Mapping[str, Callable[[], Any]]
Case = dict[str, Any]


@dataclass(frozen=True)
class Here:
    """This rank."""

    torch: Any
    dist: Any
    rank: int
    ranks: int
    device: Any
    rounds: int

    @property
    def group(self) -> str:
        return self.dist.group.WORLD.group_name

    def normal(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device=self.device, dtype=self.torch.bfloat16)

    def empty(self, *shape: int) -> Any:
        return self.torch.empty(*shape, device=self.device, dtype=self.torch.bfloat16)

    def meet(self) -> None:
        self.torch.cuda.synchronize()
        self.dist.barrier(device_ids=[self.device.index])
        self.torch.cuda.synchronize()

    def worst(self, numbers: list[float]) -> list[float]:
        """Of each the maximum over the ranks."""
        found = self.torch.tensor(numbers, device=self.device, dtype=self.torch.float64)
        self.dist.all_reduce(found, op=self.dist.ReduceOp.MAX)
        return found.tolist()

    def check(self, what: str, got: Any, want: Any, roundings: int) -> None:
        """Is the largest error within so many roundings to bf16 of the largest element?"""
        (error,) = self.worst([float((got.float() - want.float()).abs().max() / want.abs().max())])
        if not error <= roundings * 2.0**-8:
            raise SystemExit(f"{what}: the largest error is {error:.4g} of the largest element")

    def times(self, contenders: Contenders, calls: int, alone: Iterable[str] = ()) -> dict[str, float]:
        """Microseconds of a call. alone: on rank 0, while the others wait."""
        found: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(-1, self.rounds):  # the first one warms up
            names = list(contenders)
            random.Random(number).shuffle(names)
            for name in names:
                self.meet()
                idle = name in alone and self.rank
                found[name].append(0.0 if idle else self._batch(contenders[name], calls))
        self.meet()
        worst = self.worst([statistics.median(times[1:]) for times in found.values()])
        return dict(zip(found, worst, strict=True))

    def _batch(self, call: Callable[[], Any], calls: int) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        start.record()
        for _ in range(calls):
            call()
        end.record()
        self.torch.cuda.synchronize()
        return start.elapsed_time(end) / calls * 1e3

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(KINDS), default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="results to distributed_<ranks>.md and .json")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("no ranks\n  fix: torchrun --nproc-per-node 2 -m benchmarks.distributed")
    import torch
    import torch.distributed as dist

    import_module("torch.distributed._symmetric_memory")  # defines torch's fused operators
    from tiledsl.distributed import release

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    here = Here(torch, dist, dist.get_rank(), dist.get_world_size(), device, args.rounds)
    cases: list[Case] = []
    for kind in args.only:
        torch.manual_seed(here.rank)
        cases += reversed(list(KINDS[kind](here)))
        torch.cuda.empty_cache()
    if here.rank == 0:
        title, text = f"Products over {here.ranks} GPUs, bf16", f"{all_cases(cases)}\n\n{figures(cases)}"
        if args.write:
            by = f"torchrun --nproc-per-node {here.ranks}"
            write(f"distributed_{here.ranks}", title, text, {"ranks": here.ranks, "cases": cases}, args.out, by)
        else:
            print(f"{title}\n{text}", flush=True)
    here.meet()
    release()
    dist.destroy_process_group()
    return 0


# -- what is measured ----------------------------------------------------------------------------------------
# The largest cases come first, so that the memory that ranks share need not grow.


def gather(here: Here) -> Iterator[Case]:
    from tiledsl.distributed import all_gather_gemm
    from tiledsl.gemm import gemm

    torch, dist = here.torch, here.dist
    for model, (h, f) in reversed(MODELS.items()):
        b = here.normal(2 * f // here.ranks, h).mT  # a weight as torch.nn.Linear has it
        for m in reversed(ROWS):
            a, every, c = here.normal(m // here.ranks, h), here.empty(m, h), here.empty(m, b.shape[1])

            def nccl(a: Any = a, b: Any = b, every: Any = every, c: Any = c) -> Any:
                dist.all_gather_into_tensor(every, a)
                return torch.mm(every, b, out=c)

            fused = partial(torch.ops.symm_mem.fused_all_gather_matmul, a, [b], 0, here.group)
            contenders = {
                "ours": partial(all_gather_gemm, a, b),
                "fused": fused,
                "nccl": nccl,
                "gemm": partial(gemm, every, b, c),
                "mm": partial(torch.mm, every, b, out=c),
            }
            dist.all_gather_into_tensor(every, a)
            want = every.float() @ b.float()
            for name, call in contenders.items():
                got = call()
                here.check(f"gather {model} {m}, {name}", got[1][0] if name == "fused" else got, want, 2)
            del want, got
            yield _case(here, "gather", model, (m, b.shape[1], h), contenders)


def scatter(here: Here) -> Iterator[Case]:
    from tiledsl.distributed import gemm_reduce_scatter
    from tiledsl.gemm import gemm

    torch, dist = here.torch, here.dist
    for model, (h, f) in reversed(MODELS.items()):
        k = f // here.ranks
        b = here.normal(h, k).mT
        for m in reversed(ROWS):
            a, c, mine = here.normal(m, k), here.empty(m, h), here.empty(m // here.ranks, h)

            def nccl(a: Any = a, b: Any = b, c: Any = c, mine: Any = mine) -> Any:
                dist.reduce_scatter_tensor(mine, torch.mm(a, b, out=c))
                return mine

            fused = partial(torch.ops.symm_mem.fused_matmul_reduce_scatter, a, b, "sum", 0, here.group)
            contenders = {
                "ours": partial(gemm_reduce_scatter, a, b),
                "fused": fused,
                "nccl": nccl,
                "gemm": partial(gemm, a, b, c),
                "mm": partial(torch.mm, a, b, out=c),
            }
            total = a.float() @ b.float()
            local = total.clone()
            dist.all_reduce(total)
            rows = total[here.rank * mine.shape[0] :][: mine.shape[0]]
            for name, call in contenders.items():
                want, roundings = (local, 2) if name in ("gemm", "mm") else (rows, here.ranks + 2)
                here.check(f"scatter {model} {m}, {name}", call(), want, roundings)
            del total, local, rows, want
            yield _case(here, "scatter", model, (m, h, k), contenders)


def _case(here: Here, kind: str, model: str, shape: tuple[int, int, int], contenders: Contenders) -> Case:
    m, n, k = shape
    calls = min(max(round(SECONDS * RATE / (2 * m * n * k)), 2), 50)
    us = here.times(contenders, calls)
    return _told(here, {"kind": kind, "model": model, "shape": shape, "us": us, "local": min(us["gemm"], us["mm"])})


def reduce(here: Here) -> Iterator[Case]:
    import torch.distributed._symmetric_memory as symmetric

    from tiledsl.distributed import gemm_all_reduce
    from tiledsl.gemm import gemm

    torch, dist = here.torch, here.dist
    for model, (h, f) in reversed(MODELS.items()):
        b = here.normal(h, f // here.ranks).mT
        for m in reversed(FEW):
            a, c = here.normal(m, f // here.ranks), here.empty(m, h)
            shared = symmetric.empty(m * h, dtype=torch.bfloat16, device=here.device)
            symmetric.rendezvous(shared, dist.group.WORLD)
            shared = shared.view(m, h)

            def nccl(a: Any = a, b: Any = b, c: Any = c) -> Any:
                dist.all_reduce(torch.mm(a, b, out=c))
                return c

            def fused(a: Any = a, b: Any = b, shared: Any = shared) -> Any:
                torch.mm(a, b, out=shared)
                return torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", here.group)

            all_of_it = {"ours": partial(gemm_all_reduce, a, b), "fused": fused, "nccl": nccl}
            want = a.float() @ b.float()
            dist.all_reduce(want)
            graphs: dict[str, Any] = {}
            for name, call in all_of_it.items():
                here.check(f"reduce {model} {m}, {name}", call(), want, here.ranks + 2)
                here.meet()  # nothing of NCCL's is under way while a graph is captured
                graphs[name] = graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    for _ in range(GRAPHED):
                        result = call()
                graph.replay()
                here.check(f"reduce {model} {m}, {name} in a graph", result, want, here.ranks + 2)
            alone = {"gemm": partial(gemm, a, b, c), "mm": partial(torch.mm, a, b, out=c)}
            loop = here.times({**all_of_it, **alone}, CALLS)
            replays = {name: graph.replay for name, graph in graphs.items()}
            graphed = {name: us / GRAPHED for name, us in here.times(replays, REPLAYS).items()}
            shape, local = (m, h, f // here.ranks), min(loop["gemm"], loop["mm"])
            yield _told(here, {"kind": "reduce", "model": model, "shape": shape, "us": graphed, "way": "graph"})
            yield _told(
                here, {"kind": "reduce", "model": model, "shape": shape, "us": loop, "local": local, "way": "loop"}
            )
            replays.clear()  # of graphs of NCCL's none may be left when the group is destroyed
            graphs.clear()
            del graph


def mlp(here: Here) -> Iterator[Case]:
    from tiledsl.distributed import all_gather_gemm, gemm_reduce_scatter
    from tiledsl.torch import gemm

    torch, (rank, ranks) = here.torch, (here.rank, here.ranks)
    for model, (h, f) in reversed(MODELS.items()):
        torch.manual_seed(0)  # of all ranks: each makes the whole weights, and keeps its part
        m, part = ROWS[-1], slice(rank * f // ranks, (rank + 1) * f // ranks)
        mine = slice(rank * m // ranks, (rank + 1) * m // ranks)
        x, gate, up, down = here.normal(m, h), here.normal(f, h), here.normal(f, h), here.normal(h, f)
        for weight in (gate, up, down):
            weight.mul_(weight.shape[1] ** -0.5)
        whole = [t.requires_grad_() for t in (x, torch.cat((gate, up)), down)]
        parts = (x[mine], torch.cat((gate[part], up[part])), down[:, part])
        parts = [t.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for t in parts]
        grad = here.normal(m, h)
        grads = {"ours": grad[mine].contiguous(), "gemm": grad, "mm": grad}
        layers = {
            "ours": (all_gather_gemm, gemm_reduce_scatter, parts),
            "gemm": (gemm, gemm, whole),
            "mm": (torch.mm, torch.mm, whole),
        }

        def forward(name: str, layers: Any = layers) -> Any:
            first, second, (x, both, down) = layers[name]
            gate, up = first(x, both.mT).chunk(2, 1)
            return second(torch.nn.functional.silu(gate) * up, down.mT)

        def without(name: str, forward: Any = forward) -> tuple[Any, ...]:
            with torch.no_grad():
                return (forward(name),)

        def backward(name: str, forward: Any = forward, layers: Any = layers, grads: Any = grads) -> tuple[Any, ...]:
            return torch.autograd.grad(forward(name), layers[name][2], grads[name])

        for mode, run in zip(reversed(MODES), (backward, without), strict=True):
            got, want = run("ours"), run("mm")
            if mode == MODES[1]:
                of_gate, of_up = want[1].chunk(2)
                want = want[0], torch.cat((of_gate[part], of_up[part])), want[2][:, part]
            for number, (ours, theirs) in enumerate(zip(got, (want[0][mine], *want[1:]), strict=True)):
                here.check(f"mlp {model}, {mode}, result {number}", ours, theirs, ranks + 4)
            del got, want, ours, theirs
            us = here.times({name: partial(run, name) for name in layers}, 2, alone=("gemm", "mm"))
            yield _told(
                here,
                {"kind": "mlp", "model": model, "shape": (m, h, f), "us": us, "local": min(us["gemm"], us["mm"])}
                | {"way": mode, "efficiency": min(us["gemm"], us["mm"]) / (ranks * us["ours"])},
            )


def _told(here: Here, case: Case) -> Case:
    times = ", ".join(f"{name} {us:.1f}" for name, us in case["us"].items())
    here.say(f"  {case['kind']} {case['model']} {'x'.join(map(str, case['shape']))} {case.get('way', '')}: {times}")
    return case


Kind = Callable[[Here], Iterator[Case]]
KINDS: dict[str, Kind] = {"gather": gather, "scatter": scatter, "reduce": reduce, "mlp": mlp}


# -- tables --------------------------------------------------------------------------------------------------


def all_cases(cases: list[Case]) -> str:
    names = ("ours", "fused", "nccl", "gemm", "mm")
    rows = [
        (
            case["kind"],
            case.get("way", ""),
            case["model"],
            "x".join(map(str, case["shape"])),
            *(f"{case['us'][name]:.1f}" if name in case["us"] else "" for name in names),
        )
        for case in cases
    ]
    header = ("product", "timed", "model", "m x n x k; of mlp m x h x f", *(f"{name}, us" for name in names))
    return f"{table(header, rows)}\n\nOf mlp gemm and mm are one GPU with the whole weights."


def figures(cases: list[Case]) -> str:
    """Means and worst cases of ratios of times, by kind and rows."""
    rows: list[tuple[str, ...]] = []
    for kind in ("gather", "scatter"):
        of_kind = [case for case in cases if case["kind"] == kind]
        for group, heights in GROUPS.items():
            some = [case for case in of_kind if case["shape"][0] in heights]
            rows += _figure(kind, f"m = {group}", "ours / local", _ratios(some, "ours", "local"), max)
        for name in ("fused", "nccl"):
            rows += _figure(kind, "all", f"{name} / ours", _ratios(of_kind, name, "ours"), min)
    for way in ("loop", "graph"):
        some = [case for case in cases if case["kind"] == "reduce" and case["way"] == way]
        for name in ("nccl", "fused"):
            rows += _figure("reduce", way, f"{name} / ours", _ratios(some, name, "ours"), min)
    for mode in MODES:
        efficiencies = [case["efficiency"] for case in cases if case["kind"] == "mlp" and case["way"] == mode]
        rows += _figure("mlp", mode, "efficiency", efficiencies, min)
    text = "Ratios are of times; efficiency is that of one GPU / (GPUs x that of all)."
    return f"{table(('product', 'of', 'ratio', 'cases', 'mean', 'worst'), rows)}\n\n{text}"


def _ratios(cases: list[Case], above: str, below: str) -> list[float]:
    return [case["us"][above] / (case["local"] if below == "local" else case["us"][below]) for case in cases]


def _figure(kind: str, of: str, ratio: str, found: list[float], worst: Any) -> list[tuple[str, ...]]:
    if not found:
        return []
    return [(kind, of, ratio, str(len(found)), f"{statistics.mean(found):.3f}", f"{worst(found):.3f}")]


if __name__ == "__main__":
    sys.exit(main())
