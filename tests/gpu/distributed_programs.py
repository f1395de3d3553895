"""Programs that test_gpu_distributed.py starts by torchrun, a process a GPU. Each function is one; all ranks run it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tiledsl import maximum, tile_function
from tiledsl.distributed import (
    ColumnParallel,
    RowParallel,
    all_gather_gemm,
    calls,
    gemm_all_reduce,
    gemm_reduce_scatter,
    release,
)
from tiledsl.errors import DeviceError, KernelArgumentError
from tiledsl.gemm import gemm
from tiledsl.torch import gemm as torch_gemm

LOCAL = int(os.environ["LOCAL_RANK"])
DEVICE = torch.device("cuda", LOCAL)
SHAPES = ((256, 512, 256), (1000, 520, 200), (130, 1032, 72), (20, 256, 256))
"""m of a rank, n, k; rows that fill no tile, parts that are not equal, and few rows."""


@tile_function
def _relu(x: Any, bias: Any, column: Any) -> Any:
    return maximum(x, 0)


def _ranks() -> int:
    return dist.get_world_size()


def _random(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def _whole(rows: Any) -> Any:
    """The rows of all ranks."""
    every = rows.new_empty(_ranks() * rows.shape[0], *rows.shape[1:])
    dist.all_gather_into_tensor(every, rows.contiguous())
    return every


def _own(rows: Any) -> Any:
    m = rows.shape[0] // _ranks()
    return rows[dist.get_rank() * m :][:m]


def _sum(x: Any) -> Any:
    dist.all_reduce(x)
    return x


def _near(found: Any, expected: Any, units: float = 2.0) -> None:
    """In units of 2^-8 of the largest element: bf16 keeps 8 bits."""
    error = (found.float() - expected.float()).abs().max() / expected.float().abs().max()
    assert error.item() <= units / 256, f"rank {dist.get_rank()}: {error.item()}"


def _refused(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value), caught.value


def products() -> None:
    for m, n, k in SHAPES:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for transposed in (True, False):
                a, b = _random(m, k, dtype=dtype), _random(n, k, dtype=dtype).mT
                b = b if transposed else b.contiguous()
                every, bias = _whole(a), _random(n, dtype=torch.float32)
                c = all_gather_gemm(a, b, bias)
                _near(c, every.float() @ b.float() + bias)
                if dtype != torch.float32 and m >= 64:
                    assert torch.equal(c, gemm(every, b, bias=bias, batch_invariant=True)), (m, n, k, dtype)
                x = _random(_ranks() * m, k, dtype=dtype)
                expected = _sum(x.float() @ b.float())
                _near(gemm_reduce_scatter(x, b), _own(expected), 2 + _ranks())
                _near(gemm_reduce_scatter(x, b, bias), _own(expected) + bias, 2 + _ranks())
                for rows in (x, x[:7]):
                    sums = gemm_all_reduce(rows, b)
                    _near(sums, expected[: len(rows)], 2 + _ranks())
                    first = sums.clone()
                    dist.broadcast(first, 0)
                    assert torch.equal(sums, first), "all ranks have the same bits"


def repeated() -> None:
    """Halves are used again, by calls of all kinds and shapes, also on streams in turn."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    for number in range(30):
        m, n, k = SHAPES[number % 3]
        a, b = _random(m, k), _random(n, k).mT
        x = _random(_ranks() * m, k)
        expected = (_whole(a).float() @ b.float(), _own(_sum(x.float() @ b.float())), _sum(x[:8].float() @ b.float()))
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[number % 2]):
            found = all_gather_gemm(a, b), gemm_reduce_scatter(x, b), gemm_all_reduce(x[:8], b)
            a.zero_()  # what was sent is not read any more
        torch.cuda.synchronize()
        for ours, theirs in zip(found, expected, strict=True):
            _near(ours, theirs, 2 + _ranks())


def epilogues() -> None:
    a, b, x = _random(256, 320), _random(512, 320).mT, _random(256 * _ranks(), 320)
    _near(all_gather_gemm(a, b, None, _relu), (_whole(a).float() @ b.float()).relu())
    _near(gemm_reduce_scatter(x, b, None, _relu), _own(_sum(x.float() @ b.float())).relu(), 2 + _ranks())
    _refused(KernelArgumentError, "has no gradient", lambda: all_gather_gemm(a.requires_grad_(), b, None, _relu))


def gathered_rows() -> None:
    for m, k in ((256, 256), (130, 72), (100, 90)):
        a, to = _random(m, k), torch.empty(m * _ranks(), k, device=DEVICE, dtype=torch.bfloat16)
        calls.all_gather_gemm(a, _random(k, 256), None, None, None, to)
        assert torch.equal(to, _whole(a)), (m, k)


def gradients() -> None:
    m, n, k = 256, 512, 320
    for compiled in (False, True):
        for name, product in (("gather", all_gather_gemm), ("scatter", gemm_reduce_scatter)):
            a = _random(m if name == "gather" else m * _ranks(), k).requires_grad_()
            b, bias = _random(n, k).requires_grad_(), _random(n, dtype=torch.float32).requires_grad_()

            def run(a: Any, b: Any, bias: Any, product: Any = product) -> Any:
                return product(a, b.mT, bias)

            c = (torch.compile(run, fullgraph=True) if compiled else run)(a, b, bias)
            d = _random(*c.shape)
            c.backward(d)
            of_all = d if name == "gather" else _whole(d)
            left = of_all.float() @ b.float()
            _near(a.grad, _own(_sum(left)) if name == "gather" else left, 2 + _ranks())
            _near(b.grad, of_all.float().mT @ (_whole(a.detach()) if name == "gather" else a).float())
            _near(bias.grad, of_all.float().sum(0))
        a, b = _random(64, k).requires_grad_(), _random(k, n).requires_grad_()
        c = gemm_all_reduce(a, b)
        d = _random(*c.shape)
        c.backward(d)
        _near(a.grad, d.float() @ b.float().mT)
        _near(b.grad, a.float().mT @ d.float())


def layers() -> None:
    mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (_ranks(),))
    parallel, tensors = torch.distributed.tensor.parallel, torch.distributed.tensor
    for bias in (True, False):
        torch.manual_seed(0)
        mlp, one = (
            torch.nn.Sequential(torch.nn.Linear(512, 1024, bias), torch.nn.GELU(), torch.nn.Linear(1024, 512, bias))
            for _ in range(2)
        )
        mlp.to(DEVICE, torch.bfloat16), one.to(DEVICE, torch.bfloat16)
        one.load_state_dict(mlp.state_dict())
        parallel.parallelize_module(mlp, mesh, {"0": ColumnParallel(), "2": RowParallel()})
        x = torch.randn(_ranks() * 256, 512, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        rows = _own(x.detach()).clone().requires_grad_()
        y, z = mlp(rows), one(x)
        _near(y, _own(z), 4 + _ranks())
        y.sum().backward(), z.sum().backward()
        _near(rows.grad, _own(x.grad), 4 + _ranks())
        for ours, theirs in zip(mlp.parameters(), one.parameters(), strict=True):
            _near(ours.grad.full_tensor(), theirs.grad, 4 + _ranks())
    replicate, shard = tensors.Replicate(), tensors.Shard
    A, B = _random(256, 512), _random(512, 384)
    dist.broadcast(A, 0), dist.broadcast(B, 0)
    for of_a, of_b, of_c in (
        (replicate, replicate, replicate),
        (shard(0), replicate, shard(0)),
        (replicate, shard(1), shard(1)),
        (shard(1), shard(0), tensors.Partial()),
    ):
        left, right = (tensors.distribute_tensor(X, mesh, [of]) for X, of in ((A, of_a), (B, of_b)))
        C = torch_gemm(left, right)
        assert C.placements == (of_c,), (of_a, of_b, C.placements)
        _near(C.full_tensor(), A.float() @ B.float(), 2 + _ranks())


def graphs() -> None:
    x, b = _random(8, 256), _random(256, 512)
    gemm_all_reduce(x, b)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(3):
            y = gemm_all_reduce(x, b)
    a, wide = _random(4096, 256), _random(256, 512)
    for _ in range(4):
        all_gather_gemm(a, wide)  # the first needs more room: the graph keeps its segments
        x.copy_(_random(8, 256))
        expected = _sum(x.float() @ b.float())
        graph.replay()
        _near(y, expected, 2 + _ranks())
    torch.cuda.synchronize()

    def captured(call: Callable[[], Any]) -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            call()

    _refused(DeviceError, "captures a graph", lambda: captured(lambda: all_gather_gemm(a, wide)))
    _refused(DeviceError, "is new for these shapes", lambda: captured(lambda: gemm_all_reduce(a[:24], wide)))


def errors() -> None:
    rank = dist.get_rank()
    b = _random(256, 256)
    for call in (all_gather_gemm, gemm_reduce_scatter, gemm_all_reduce):
        different = _random((128 + 64 * rank) * _ranks(), 256)
        _refused(KernelArgumentError, "calls", lambda call=call, a=different: call(a, b))
        _refused(KernelArgumentError, "[M, K] and [K, N]", lambda call=call: call(_random(128, 200), b))
        _refused(KernelArgumentError, "two axes", lambda call=call: call(_random(2, 128, 256), b))
        _refused(KernelArgumentError, "two axes", lambda call=call: call(_random(128, 256).cpu(), b))
        _near(call(a := _random(128 * _ranks(), 256), b)[:1], call(a, b)[:1], 0.0)
    _refused(KernelArgumentError, "pad A", lambda: gemm_reduce_scatter(_random(128 * _ranks() + 1, 256), b))
    _refused(KernelArgumentError, "bias is", lambda: all_gather_gemm(_random(128, 256), b, _random(256)))
    other = all_gather_gemm if rank else gemm_reduce_scatter
    _refused(KernelArgumentError, "rank", lambda: other(_random(64 * _ranks(), 256), b))


def missing(which: str) -> None:
    """The last rank ends, and the others say so. Only this program exits with an error."""
    call = {"gather": all_gather_gemm, "scatter": gemm_reduce_scatter, "reduce": gemm_all_reduce}[which]
    a, b = _random(8 if which == "reduce" else 256, 256), _random(256, 256)
    call(a, b)
    torch.cuda.synchronize()
    dist.barrier()
    if dist.get_rank() == _ranks() - 1:
        time.sleep(60)  # its memory stays, and it does not come
        os._exit(0)
    call(a, b)
    torch.cuda.synchronize()


if __name__ == "__main__":
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
    torch.manual_seed(dist.get_rank())
    name, *arguments = sys.argv[1:]
    globals()[name](*arguments)
    release()
    dist.barrier()
    dist.destroy_process_group()
    if LOCAL == 0:
        print("done")
