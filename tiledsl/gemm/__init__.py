"""Production kernels, and the call that chooses among them.

- `gemm` (`call.py`): C = epilogue(alpha A B + beta C), any shape and strides. `warmup` compiles before the first call,
  `release` frees workspaces. A call goes: `operands.py` (what the arrays are), `plan.py` (the choice), `steps.py` (its
  launches), `prepared.py` (kept for later calls), `workspace.py`. `formats.py`: the dtypes that it multiplies.
  `choice.py`: tile and parts for a Hopper GPU, by a model that `traced.py` compiles.
- `grouped_gemm`, `masked_gemm` (`grouped_call.py`): groups of rows, each with a matrix of its own, whose sizes are in
  device memory; the kernel is in `grouped.py`.
- `int4_gemm`, `pack_int4` (`int4_call.py`): weights of 4 bits, which go through registers; the kernel is in `int4.py`.
- `hopper.py`: TMA and wgmma. `mma.py`: mma.sync, any dtype of the tensor cores. `bands.py`: the order of tiles.
- `ffma.py`: fp32. `ffma_staged.py`: its loop for small tiles. `ffma_parts.py`: k in parts. `ffma_choice.py`: its plans.
- `arguments.py`: checks that products share. `epilogue.py`: functions applied to the result. `pad.py`: copies of
  operands that TMA cannot read, or wgmma not in their order. `split_k.py`: which CTA of `hopper.py` has which tile and
  part of k, and the reduction in a cluster. `parts.py`: how CTAs meet that have parts of the same sums. `promoted.py`:
  sums in f32, and scales of blocks.
- `*_tiles.py`: tile functions that these kernels share with the gallery, `examples/gemm/` of the repository, which
  explains each idea in a kernel of its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiledsl.gemm.call import gemm
    from tiledsl.gemm.grouped_call import grouped_gemm, masked_gemm
    from tiledsl.gemm.int4_call import Int4Weights, int4_gemm, pack_int4
    from tiledsl.gemm.warm_up import warmup
    from tiledsl.gemm.workspace import release

__all__ = ["Int4Weights", "gemm", "grouped_gemm", "int4_gemm", "masked_gemm", "pack_int4", "release", "warmup"]

_MODULES = {
    "gemm": "call",
    "grouped_gemm": "grouped_call",
    "masked_gemm": "grouped_call",
    "Int4Weights": "int4_call",
    "int4_gemm": "int4_call",
    "pack_int4": "int4_call",
    "warmup": "warm_up",
    "release": "workspace",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for: who shows a kernel of this package needs none of the calls, which take a third of a
    second."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
