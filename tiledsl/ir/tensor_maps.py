"""How a tensor is described to the tensor memory accelerator: what the runtime encodes, and the emulator reads.

(CUDA driver API: cuTensorMapEncodeTiled.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorMap:
    """The map of one box shape of one tensor parameter.

    tensor: name of the kernel's parameter. axes: its axes, that of stride 1 first, then as coordinates are given.
    box: extents of a box along `axes`. swizzle: bytes of the span, 128, 64 or 32; 0 for none. every, first: along the
    second axis it has only every so many-th row, from row `first` on. The strides of the rows between need not be
    aligned, so it begins where the tensor does, and `first` strides are added to coordinates along the first axis.
    """

    tensor: str
    axes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    every: int = 1
    first: int = 0

    def __str__(self) -> str:
        axes, box = (", ".join(map(str, numbers)) for numbers in (self.axes, self.box))
        rows = f", every={self.every}, first={self.first}" if self.every > 1 else ""
        return f"map({self.tensor}, axes=[{axes}], box=[{box}], swizzle={self.swizzle}{rows})"


_TEXT = re.compile(r"map\((\w+), axes=\[([\d, ]*)\], box=\[([\d, ]*)\], swizzle=(\d+)(?:, every=(\d+), first=(\d+))?\)")


def parse_tensor_map(text: str) -> TensorMap:
    """Read what `str(map)` wrote. Raises ValueError for anything else."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"not a tensor map: {text!r}")
    axes, box = (tuple(int(n) for n in match[i].split(",")) for i in (2, 3))
    return TensorMap(match[1], axes, box, int(match[4]), int(match[5] or 1), int(match[6] or 0))
