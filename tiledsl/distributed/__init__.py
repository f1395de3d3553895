"""Products over the ranks of a process group of torch.distributed, which hide what they send.

- `all_gather_gemm`: the rows of A are sharded; every rank gets A B for all rows, with its own B.
- `gemm_reduce_scatter`: A and B are sharded along k; every rank gets its rows of the sum.
- `gemm_all_reduce`: the same, but every rank gets the whole sum.

All have gradients, and are operators of torch (`operators.py`). `ColumnParallel` and `RowParallel` (`styles.py`) let
`parallelize_module` use them for linear layers.

Where all ranks reach each other's memory and have the kernel for wgmma, one launch computes, and waits for what it
needs, tile by tile (`calls.py`; how it does is in `tiledsl/gemm/peers.py`, and who stores what where in
`tiledsl/gemm/sharded.py`). Elsewhere, and between hosts, NCCL sends parts of the operands while others are multiplied
(`by_nccl.py`); a warning says so once. `memory.py`: what is known of a group, and the memory that its ranks share.

All ranks of a group make the same calls in the same order, with arrays of the same shapes. What is new to a rank is
compared first, on the hosts. A rank that does not come ends the others, with an error that names it, after
TILEDSL_PEER_TIMEOUT seconds (600), or when NCCL's watchdog says so.
"""

from __future__ import annotations

from tiledsl.distributed.memory import release
from tiledsl.distributed.operators import all_gather_gemm, gemm_all_reduce, gemm_reduce_scatter
from tiledsl.distributed.styles import ColumnParallel, RowParallel

__all__ = ["ColumnParallel", "RowParallel", "all_gather_gemm", "gemm_all_reduce", "gemm_reduce_scatter", "release"]
