"""Linear layers over the ranks of a device mesh, for `parallelize_module`, and how DTensor shards `gemm`.

    parallelize_module(mlp, mesh, {"up": ColumnParallel(), "down": RowParallel()})

Between layers activations are sharded by rows: each rank has [rows / ranks, features], as plain tensors. A
`ColumnParallel` layer gathers them and has its columns of the result for all rows; a `RowParallel` layer takes such
columns, and scatters the rows of the sum. So a block of one of each begins and ends with its own rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tiledsl.distributed.memory import torch
from tiledsl.distributed.operators import all_gather_gemm, gemm_reduce_scatter
from tiledsl.errors import TileError

__all__ = ["ColumnParallel", "RowParallel"]

_tensor: Any = importlib.import_module("torch.distributed.tensor")
_parallel: Any = importlib.import_module("torch.distributed.tensor.parallel")
_experimental: Any = importlib.import_module("torch.distributed.tensor.experimental")


class _Linear(_parallel.ParallelStyle):
    """axis: of the weight [out, in], along which it is sharded. product: of rows, the weight's shard and the bias."""

    axis: int
    product: Callable[..., Any]

    def _apply(self, module: Any, device_mesh: Any) -> Any:
        if not isinstance(module, torch.nn.Linear):
            message = f"{type(self).__name__} is for torch.nn.Linear, and the module is a {type(module).__name__}"
            raise TileError(f"{message}\n  fix: name the linear layers in the plan of parallelize_module")
        ranks = device_mesh.size()
        if module.weight.shape[self.axis] % ranks:
            message = f"the weight {tuple(module.weight.shape)} has no {ranks} equal parts along axis {self.axis}"
            raise TileError(f"{message}\n  fix: pad the layer")
        shards = [_tensor.Shard(self.axis)]
        module.weight = torch.nn.Parameter(_tensor.distribute_tensor(module.weight, device_mesh, shards))
        if module.bias is not None:
            shards = [_tensor.Shard(0) if self.axis == 0 else _tensor.Replicate()]
            module.bias = torch.nn.Parameter(_tensor.distribute_tensor(module.bias, device_mesh, shards))
        group, product = device_mesh.get_group(), self.product

        def forward(rows: Any) -> Any:
            bias = None if module.bias is None else module.bias.to_local().float()
            return product(rows, module.weight.to_local().mT, bias, group=group)

        module.forward = forward
        return module


class ColumnParallel(_Linear):
    """A linear layer whose outputs are sharded: [rows / ranks, in] to [rows, out / ranks], by `all_gather_gemm`."""

    axis, product = 0, staticmethod(all_gather_gemm)


class RowParallel(_Linear):
    """One whose inputs are sharded: [rows, in / ranks] to [rows / ranks, out], by `gemm_reduce_scatter`."""

    axis, product = 1, staticmethod(gemm_reduce_scatter)


@_experimental.register_sharding(torch.ops.tiledsl.gemm.default)
def _shardings_of_gemm(A: Any, B: Any, bias: Any = None, **settings: Any) -> list[Any]:
    """Of C, then of A, B and the bias: nothing, rows, columns, or k, whose sums are partial."""
    whole, partial = _tensor.Replicate(), _tensor.Partial()
    matrix = len(A.shape) - 2
    rows, columns = _tensor.Shard(matrix), _tensor.Shard(matrix + 1)

    def given(of_a: Any, of_b: Any, of_bias: Any) -> list[Any]:
        return [of_a, of_b, None if bias is None else of_bias]

    found = [
        ([whole], given(whole, whole, whole)),
        ([rows], given(rows, whole, whole)),
        ([columns], given(whole, columns, _tensor.Shard(0))),
    ]
    if bias is None:  # else each rank would add it
        found.append(([partial], given(columns, rows, None)))
    if len(A.shape) == 3 and len(B.shape) == 3 and A.shape[0] == B.shape[0]:
        found.append(([_tensor.Shard(0)], given(_tensor.Shard(0), _tensor.Shard(0), whole)))
    return found
