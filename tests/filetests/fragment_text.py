"""Where the elements of matrix operands lie in the lanes of a warp (PTX ISA), and the text of filetests with them.

Shares nothing with `tiledsl.layout.fragments`, against which the files that are written with it are run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiledsl.ir.types import DType
from tiledsl.layout.mma import SHAPES

__all__ = [
    "HEADER",
    "Bits",
    "argument_text",
    "bits_of",
    "constants_text",
    "fragment_text",
    "kernel_text",
    "place_of",
    "size_of",
    "tensor_text",
    "to_shared_text",
]

HEADER = "; Made by {}. {}\n"

Bits = NDArray[np.uint64]
Place = Callable[[int, int, int], tuple[int, int]]
"""Row and column of element i of the lane 4 g + t, for (g, t, i)."""

# Matrix fragments for mma (PTX ISA 9.7.14.5), by shape and bits of an element.
A_PLACES: dict[tuple[str, int], Place] = {
    ("m16n8k8", 16): lambda g, t, i: (g + 8 * (i >= 2), 2 * t + i % 2),
    ("m16n8k16", 16): lambda g, t, i: (g + 8 * (i // 2 % 2), 2 * t + i % 2 + 8 * (i >= 4)),
    ("m16n8k4", 32): lambda g, t, i: (g + 8 * i, t),
    ("m16n8k8", 32): lambda g, t, i: (g + 8 * (i % 2), t + 4 * (i >= 2)),
    ("m16n8k16", 8): lambda g, t, i: (g + 8 * (i >= 4), 4 * t + i % 4),
    ("m16n8k32", 8): lambda g, t, i: (g + 8 * (i // 4 % 2), 4 * t + i % 4 + 16 * (i >= 8)),
    ("m8n8k4", 64): lambda g, t, i: (g, t),
    ("m16n8k4", 64): lambda g, t, i: (g + 8 * i, t),
    ("m16n8k8", 64): lambda g, t, i: (g + 8 * (i % 2), t + 4 * (i // 2)),
    ("m16n8k16", 64): lambda g, t, i: (g + 8 * (i % 2), t + 4 * (i // 2)),
}
B_PLACES: dict[tuple[str, int], Place] = {
    ("m16n8k8", 16): lambda g, t, i: (2 * t + i, g),
    ("m16n8k16", 16): lambda g, t, i: (2 * t + i % 2 + 8 * (i >= 2), g),
    ("m16n8k4", 32): lambda g, t, i: (t, g),
    ("m16n8k8", 32): lambda g, t, i: (t + 4 * i, g),
    ("m16n8k16", 8): lambda g, t, i: (4 * t + i, g),
    ("m16n8k32", 8): lambda g, t, i: (4 * t + i % 4 + 16 * (i >= 4), g),
    ("m8n8k4", 64): lambda g, t, i: (t, g),
    ("m16n8k4", 64): lambda g, t, i: (t, g),
    ("m16n8k8", 64): lambda g, t, i: (t + 4 * i, g),
    ("m16n8k16", 64): lambda g, t, i: (t + 4 * i, g),
}


def _acc_place(g: int, t: int, i: int) -> tuple[int, int]:
    return g + 8 * (i >= 2), 2 * t + i % 2


def place_of(shape: str, operand: str, bits: int) -> Place:
    return _acc_place if operand == "acc" else {"a": A_PLACES, "b": B_PLACES}[operand][shape, bits]


def size_of(shape: str, operand: str) -> tuple[int, int]:
    s = SHAPES[shape]
    return {"a": (s.m, s.k), "b": (s.k, s.n), "acc": (s.m, s.n)}[operand]


def argument_text(direction: str, name: str, dtype: DType, shape: tuple[int, ...], bits: Any) -> str:
    """An argument with its values, some words a line."""
    width = 2 * dtype.bytes
    words = [f"{int(b):0{width}x}" for b in np.asarray(bits).ravel()]
    per_line = 112 // (width + 1)
    rows = [" ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
    extents = ", ".join(map(str, shape))
    return "\n;   ".join([f"; {direction} {name}: {dtype} [{extents}] =", *rows])


def tensor_text(name: str, dtype: DType, shape: tuple[int, ...]) -> str:
    extents = ", ".join(map(str, shape))
    return f"%{name}: global<{dtype}, [{extents}], unit={len(shape) - 1}, align=16>"


def kernel_text(name: str, tensors: list[str], threads: int, body: list[str]) -> str:
    head = f"kernel {name}({', '.join(tensors)})\n  grid(1) threads({threads}) level(tile) index_bits(32) {{"
    return "\n".join([head, *(f"  {line}" for line in [*body, "control.return"]), "}", ""])


def constants_text(count: int) -> list[str]:
    return [f"%{i} = arith.constant {i} : index" for i in range(count)]


def fragment_text(dtype: DType, dims: tuple[int, int], layout: str) -> str:
    return f"fragment<{dtype}, [{dims[0]}, {dims[1]}], mma.{layout}>"


def bits_of(array: Any) -> Bits:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").astype(np.uint64)


def to_shared_text(dtype: DType, dims: tuple[int, ...], name: str) -> list[str]:
    """The tile %S that holds the tensor `name`, behind a barrier."""
    type_ = f"shared<{dtype}, [{', '.join(map(str, dims))}]>"
    axes = f"src_axes = (0, 1), dst_axes = (0, 1), vec = {dtype.bytes}"
    return [
        f"%S = tile.shared_alloc {{type = {type_}}} : {type_}",
        f"tile.copy %{name}, %0, %0, %S, %0, %0 {{shape = ({dims[0]}, {dims[1]}), {axes}}}",
        "gpu.barrier",
    ]
