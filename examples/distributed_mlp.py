"""A tensor-parallel MLP by `tiledsl.distributed`, forward and backward, compared with the same MLP on one GPU.

    torchrun --nproc-per-node 2 examples/distributed_mlp.py

Each rank has rows of the input and of the output, columns of the first layer, and the same rows of the second one:

    x [rows / ranks, features]  -- up: gathers the rows -->      [rows, hidden / ranks]
    gelu                                                         [rows, hidden / ranks]
    y [rows / ranks, features]  <-- down: scatters the sums --   [rows, hidden / ranks]

Needs torch, and a GPU for each rank.
"""

# pyright: basic, reportMissingImports=false
# torch need not be installed where this is checked.

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.functional import gelu

import tiledsl.gemm
from tiledsl.distributed import ColumnParallel, RowParallel, all_gather_gemm, release
from tiledsl.torch import gemm

__all__ = ["MLP"]

ROWS, FEATURES, HIDDEN = 2048, 1024, 4096


class MLP(nn.Module):
    """It says nothing of ranks: `parallelize_module` replaces the products of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, FEATURES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x)))


def on_one_gpu(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return gemm(gelu(gemm(x, up.mT)), down.mT)


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    # All ranks draw the same: the whole weights, and the rows of all ranks.
    torch.manual_seed(0)
    mlp = MLP().to(device, torch.bfloat16)
    every_x, every_grad = (torch.randn(ROWS, FEATURES, device=device, dtype=torch.bfloat16) for _ in range(2))
    whole = [tensor.detach().clone().requires_grad_() for tensor in (every_x, mlp.up.weight, mlp.down.weight)]

    parallelize_module(mlp, init_device_mesh("cuda", (ranks,)), {"up": ColumnParallel(), "down": RowParallel()})
    rows, columns = part(ROWS, rank, ranks), part(HIDDEN, rank, ranks)
    x = every_x[rows].clone().requires_grad_()
    y = mlp(x)
    y.backward(every_grad[rows])

    y_of_all = on_one_gpu(*whole)
    x_grad, up_grad, down_grad = torch.autograd.grad(y_of_all, whole, every_grad)
    compared = {
        "the output": (y, y_of_all[rows]),
        "the gradient of x": (x.grad, x_grad[rows]),
        "the gradient of up": (mlp.up.weight.grad.to_local(), up_grad[columns]),
        "the gradient of down": (mlp.down.weight.grad.to_local(), down_grad[:, columns]),
    }
    # One GPU rounds a sum to bf16 once, by at most 2^-8 of it. Ranks also round what each of them sends once, and add
    # that in f32. So both results, and the sums of all other ranks, are off by a rounding each; and one more, since an
    # activation that is off by a rounding, if the order of a sum was another one, goes into the next sums.
    bound = (ranks + 2) * 2.0**-8
    for name, (ours, theirs) in compared.items():
        error = largest_error(ours.detach(), theirs.detach())
        if rank == 0:
            print(f"{name}: the largest error is {error:.5f} of the largest element; the bound is {bound:.5f}")
        assert error <= bound, name

    # Gathered rows are multiplied as if they had been here: with k in one part, the bits are those of one GPU.
    with torch.no_grad():
        B = mlp.up.weight.to_local().mT
        gathered = all_gather_gemm(x, B)
        alone = tiledsl.gemm.gemm(every_x, B, batch_invariant=True)
    assert torch.equal(gathered, alone)
    if rank == 0:
        print("the gathered product: equal to that of one GPU, bit for bit")

    release()
    dist.destroy_process_group()


def part(extent: int, rank: int, ranks: int) -> slice:
    """Of an axis, what a rank has."""
    return slice(rank * extent // ranks, (rank + 1) * extent // ranks)


def largest_error(ours: Tensor, theirs: Tensor) -> float:
    """Of all ranks, relative to the largest element."""
    error = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
    dist.all_reduce(error, op=dist.ReduceOp.MAX)
    return error.item()


if __name__ == "__main__":
    main()
