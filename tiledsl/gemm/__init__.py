"""Production kernels, and the call that chooses among them.

- `gemm` (`call.py`): C = epilogue(alpha A B + beta C) for bf16 and f16 on sm_90a, any shape and strides.
- `grouped_gemm`, `masked_gemm` (`grouped_call.py`): groups of rows, each with a matrix of its own, whose sizes are in
  device memory; the kernel is in `grouped.py`.
- `hopper.py`: TMA and wgmma. `mma.py`: mma.sync, any dtype of the tensor cores. `ffma.py`: fp32.
- `epilogue.py`: functions applied to the result. `pad.py`: copies of operands that TMA cannot read. `split_k.py`: the
  reduction of partial sums.
- `*_tiles.py`: tile functions that these kernels share with the gallery, `examples/gemm/` of the repository, which
  explains each idea in a kernel of its own.
"""

from tiledsl.gemm.call import gemm
from tiledsl.gemm.grouped_call import grouped_gemm, masked_gemm

__all__ = ["gemm", "grouped_gemm", "masked_gemm"]
