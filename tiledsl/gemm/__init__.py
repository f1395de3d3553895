"""Production kernels, and the call that chooses among them.

- `gemm` (`call.py`): C = epilogue(alpha A B + beta C) for bf16 and f16 on sm_90a, any shape and strides.
- `hopper.py`: TMA and wgmma. `mma.py`: mma.sync, any dtype of the tensor cores. `bands.py`: the order of tiles.
- `ffma.py`: fp32. `ffma_staged.py`: its loop for small tiles. `ffma_parts.py`: k in parts. `ffma_choice.py`: its plans.
- `epilogue.py`: functions applied to the result. `pad.py`: copies of operands that TMA cannot read. `split_k.py`: the
  reduction of partial sums.
- `*_tiles.py`: tile functions that these kernels share with the gallery, `examples/gemm/` of the repository, which
  explains each idea in a kernel of its own.
"""

from tiledsl.gemm.call import gemm

__all__ = ["gemm"]
