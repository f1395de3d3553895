"""What a launch computes, and what it moves from and to global memory: counted as it runs.

A hook: pass `Options(hooks=(Work(),))`.
"""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np

from tiledsl.arch import WARP, WARPGROUP_WARPS
from tiledsl.backends.emulator.hooks import Access, Bools, Hook, Ints, LaunchInfo, OpHook, TensorInfo
from tiledsl.ir.core import Op
from tiledsl.ir.ops import arith, matrix, ptx, wgmma
from tiledsl.ir.types import DType, FragmentType
from tiledsl.layout.wgmma import WGMMA_ROWS

SCALAR = {"fma": 2, "add": 1, "sub": 1, "mul": 1}
"""Operations of a scalar function of floats. Others, and those of integers, are not counted."""


class Work(OpHook):
    """tensor: multiply-adds of tensor cores, by the dtype of A. scalar: how often threads execute one, by dtype and
    function. read, written: bytes of global memory that accesses and copies ask for. blocks: of the launch."""

    def __init__(self) -> None:
        self.tensor: Counter[str] = Counter()
        self.scalar: Counter[tuple[str, str]] = Counter()
        self.read = self.written = self.blocks = 0
        self._tensors: dict[str, TensorInfo] = {}
        self._touched: dict[tuple[str, bool], Bools] = {}
        self._of: dict[Op, tuple[str, str, int]] = {}

    @property
    def operations(self) -> int:
        scalar = sum(count * SCALAR[name] for (_, name), count in self.scalar.items())
        return 2 * sum(self.tensor.values()) + scalar

    @property
    def distinct(self) -> int:
        """Bytes if each element is read once, and written once."""
        return sum(int(seen.sum()) * self._tensors[label].size for (label, _), seen in self._touched.items())

    def of_launch(self, launch: LaunchInfo) -> Hook:
        self.blocks = prod(launch.grid)
        self._tensors = {tensor.label: tensor for tensor in launch.tensors}
        return self

    def on_op(self, op: Op, blocks: Ints, warps: Ints, active: Bools | None) -> None:
        kind, dtype, each = self._of.get(op) or self._of.setdefault(op, _work_of(op))
        if kind == "none":
            return
        shape = len(blocks), warps.shape[1], WARP
        lanes = prod(shape)
        if active is not None:
            lanes = int(np.count_nonzero(active)) * lanes // max(1, np.size(active))
        if kind == "tensor":
            self.tensor[dtype] += each * (lanes // WARP)
        else:
            self.scalar[dtype, kind] += lanes

    def on_access(self, access: Access) -> None:
        if access.space != "global" or access.label not in self._tensors:
            return
        bytes_ = len(access.addresses) * access.width
        tensor = self._tensors[access.label]
        reads, writes = access.kind in ("read", "fetch", "atomic"), access.kind in ("write", "async", "atomic")
        self.read += bytes_ * reads
        self.written += bytes_ * writes
        first = (access.addresses - tensor.low) // tensor.size
        for wrote in (False, True)[not reads : 1 + writes]:
            key = access.label, wrote
            if key not in self._touched:
                self._touched[key] = np.zeros(tensor.bytes // tensor.size, np.bool_)
            for more in range(max(1, access.width // tensor.size)):
                self._touched[key][first + more] = True


def _work_of(op: Op) -> tuple[str, str, int]:
    """The kind of its work, the dtype, and how much of it a warp does: multiply-adds of tensor cores."""
    if isinstance(op, matrix.Mma):
        acc, a = op.acc.type, op.a.type
        assert isinstance(acc, FragmentType) and isinstance(a, FragmentType)
        return "tensor", a.dtype.name, prod(acc.dims) * a.dims[1] * WARP // acc.held_as.threads
    if isinstance(op, ptx.MmaSync):
        shape = op.row.shape
        return "tensor", op.a.name, shape.m * shape.n * shape.k
    if isinstance(op, wgmma.Instruction):
        return "tensor", op.a.name, WGMMA_ROWS * op.n * op.row.k // WARPGROUP_WARPS
    if isinstance(op, wgmma.Mma):
        acc = op.fragment
        return "tensor", op.row.a, prod(acc.dims) * op.k * WARP // acc.held_as.threads
    if isinstance(op, arith.Scalar) and op.fn.name in SCALAR:
        dtype = op.operands[0].type
        if isinstance(dtype, DType) and dtype.is_float:
            return op.fn.name, dtype.name, 1
    return "none", "", 0
