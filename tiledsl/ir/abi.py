"""The thread-level parameter list of a kernel: what a launch passes, in order.

Pointers come first (signature order), then run-time extents (each name once, in order of first
appearance), then the strides of every tensor but along its unit axis, then scalar arguments. Behind
them stand the tensor maps: ops name those by number, so that they are parameters of the built kernel
and no arguments of its body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Sequence

from tiledsl.ir.tensor_maps import TensorMap
from tiledsl.ir.types import I32, I64, DType, GlobalType, PtrType, Type

INDEX32_LIMIT = 2**31 - 2**20
"""Extents, strides and offsets below this fit in 31 bits with room for the tiles that reach past an edge."""

ArgKind = Literal["pointer", "extent", "stride", "scalar", "tensor_map"]


@dataclass(frozen=True, slots=True)
class AbiArg:
    """One thread-level parameter.

    kind "pointer": base address of tensor `name`, whose elements are `dtype` and whose extents are
    `dims` (what an emulator needs to know of a tensor beside its address); "extent": the run-time
    dimension `name`; "stride": elements between neighbours of tensor `name` along `axis`;
    "scalar": the scalar argument `name`; "tensor_map": map number `axis` of the kernel, of tensor
    `name`. `dtype` is what is passed, except for pointers (8 bytes) and tensor maps (128 bytes).
    """

    kind: ArgKind
    name: str
    dtype: DType
    axis: int = -1
    dims: tuple[int | str, ...] = ()

    @property
    def type(self) -> Type:
        return PtrType("global", self.dtype) if self.kind == "pointer" else self.dtype

    def __str__(self) -> str:
        axis = f" {self.axis}" if self.kind == "stride" else ""
        dims = f" [{', '.join(map(str, self.dims))}]" if self.dims else ""
        return f"{self.kind} {self.name}{axis} {self.dtype}{dims}"


def abi_of(params: Sequence[tuple[str, Type]], index_bits: int) -> tuple[AbiArg, ...]:
    """The thread-level parameters for tile-level ones, given as (name, type)."""
    index = I32 if index_bits == 32 else I64
    tensors = [(name, t) for name, t in params if isinstance(t, GlobalType)]
    extents = dict.fromkeys(d for _, t in tensors for d in t.dims if isinstance(d, str))
    return (
        *(AbiArg("pointer", name, t.dtype, dims=t.dims) for name, t in tensors),
        *(AbiArg("extent", dim, index) for dim in extents),
        *(AbiArg("stride", name, index, axis) for name, t in tensors for axis in range(t.rank) if axis != t.unit),
        *(AbiArg("scalar", name, t) for name, t in params if isinstance(t, DType)),
    )


def launch_parameters(abi: Sequence[AbiArg], maps: Sequence[TensorMap]) -> tuple[AbiArg, ...]:
    """The parameters of the built kernel: `abi`, those of its body, then one tensor map after the other."""
    dtypes = {a.name: a.dtype for a in abi if a.kind == "pointer"}
    return (*abi, *(AbiArg("tensor_map", m.tensor, dtypes[m.tensor], number) for number, m in enumerate(maps)))
