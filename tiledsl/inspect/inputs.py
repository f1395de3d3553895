"""Arguments for a kernel, made from its signature: sizes and scalars by name, arrays of zeros or random data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tiledsl.errors import UsageError
from tiledsl.kernel import TileKernel
from tiledsl.signatures.signature import REQUIRED


def sizes_needed(kernel: TileKernel) -> list[str]:
    """The extents and scalars without which the kernel cannot run: those of tensors that are not optional."""
    required = [p for p in kernel.signature.tensors if not p.optional]
    extents = [dim for p in required for dim in p.dims if isinstance(dim, str)]
    return list(dict.fromkeys([*extents, *(p.name for p in kernel.signature.scalars if p.default is REQUIRED)]))


def values_of(kernel: TileKernel, option: str, texts: list[str]) -> dict[str, int | float]:
    """``["M=64"]`` as ``{"M": 64}``. Raises UsageError for a size that the kernel does not have, or cannot do without.
    option: of the command line, for messages."""
    scalars = {p.name: p for p in kernel.signature.scalars}
    extents = {dim for p in kernel.signature.tensors for dim in p.dims if isinstance(dim, str)}
    values: dict[str, int | float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in scalars and name not in extents:
            listed = ", ".join([*sorted(extents), *scalars]) or "none"
            message = f"{option} {text}: {kernel.name} has no size or scalar {name!r}. It has: {listed}"
            raise UsageError(f"{message}\n  fix: name one of these")
        read = float if name in scalars and scalars[name].dtype.kind == "float" else int
        try:
            values[name] = read(number)
        except ValueError:
            raise UsageError(f"{option} {text}: expected a number\n  fix: write it as {option} {name}=64") from None
        if name in extents and values[name] < 0:
            raise UsageError(f"{option} {text}: expected a size\n  fix: give 0 or more")
    if missing := [name for name in sizes_needed(kernel) if name not in values]:
        fix = " ".join(f"{option} {name}=..." for name in missing)
        raise UsageError(f"a run of {kernel.name} needs {', '.join(missing)}\n  fix: add {fix}")
    return values


def arguments_of(
    kernel: TileKernel, settings: Mapping[str, Any], values: Mapping[str, int | float], make: Callable[..., Any]
) -> dict[str, Any]:
    """settings: consts, which are arguments, too, and dtypes. ``make(shape, dtype)`` makes an array. An optional tensor
    is passed if all of its extents are given."""
    from tiledsl.ir.semantics import numpy_dtype

    spec, _ = kernel.specialized(None, settings)
    dtypes = {name: tensor.dtype for name, tensor in spec.tensors if tensor is not None}
    arguments: dict[str, Any] = {p.name: values[p.name] for p in kernel.signature.scalars if p.name in values}
    for param in kernel.signature.tensors:
        shape = [dim if isinstance(dim, int) else values.get(dim) for dim in param.dims]
        arguments[param.name] = None
        if None not in shape:
            arguments[param.name] = make(tuple(int(n or 0) for n in shape), numpy_dtype(dtypes[param.name]))
    return arguments | {c.name: settings[c.name] for c in kernel.signature.consts if c.name in settings}


def random_arrays(seed: int = 0) -> Callable[..., Any]:
    """What makes arrays of normal numbers, or of small integers where the elements have 8 bits. Other integers are
    zeros: most are counters, flags, indices or sizes."""
    import numpy as np

    rng = np.random.default_rng(seed)

    def make(shape: tuple[int, ...], dtype: Any) -> Any:
        if dtype.kind not in "iub":
            return rng.standard_normal(shape, np.float32).astype(dtype)
        return rng.integers(0, 8, shape).astype(dtype) if dtype.itemsize == 1 else np.zeros(shape, dtype)

    return make
