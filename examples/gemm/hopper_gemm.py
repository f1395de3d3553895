"""Any product by `hopper_fastest`: the library's `gemm`, defined in tiledsl/gemm/call.py."""

from tiledsl.gemm import gemm

__all__ = ["gemm"]
