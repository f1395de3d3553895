"""``k.check`` for a report: on the emulator, with arrays of zeros of the sizes that were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiledsl.errors import EmulatorError, TileError
from tiledsl.inspect.report.data import Check
from tiledsl.inspect.report.places import Places
from tiledsl.kernel import TileKernel
from tiledsl.signatures.signature import REQUIRED, Specialization


def sizes_needed(kernel: TileKernel) -> list[str]:
    """The extents and scalars without which the kernel cannot run: those of tensors that are not optional."""
    required = [p for p in kernel.signature.tensors if not p.optional]
    extents = [dim for p in required for dim in p.dims if isinstance(dim, str)]
    return list(dict.fromkeys([*extents, *(p.name for p in kernel.signature.scalars if p.default is REQUIRED)]))


def checked(
    kernel: TileKernel, spec: Specialization, consts: Mapping[str, Any], sizes: list[str], places: Places
) -> Check:
    """sizes: texts ``NAME=VALUE`` for extents and scalars; without any, the kernel does not run. An optional tensor is
    passed if all of its extents are given. Raises TileError for sizes that the kernel does not have or cannot do
    without."""
    needed = sizes_needed(kernel)
    if not sizes:
        how = " ".join(f"--check {name}=..." for name in needed)
        return Check(None, False, f"not run: give {how or '--check, with a size'}", -1)
    values = _values(kernel, sizes)
    if missing := [name for name in needed if name not in values]:
        fix = " ".join(f"--check {name}=..." for name in missing)
        raise TileError(f"the check of {kernel.name} needs {', '.join(missing)}\n  fix: add {fix}")
    given = {name: str(value) for name, value in values.items()}
    try:
        kernel.check(**_arguments(kernel, spec, values), **consts)
    except EmulatorError as error:
        fix = f"\nfix: {error.fix}" if error.fix else ""
        return Check(given, False, f"{error.message}{fix}", places.of(error.loc))
    return Check(given, True, "no race, no deadlock, no read of what was not written", -1)


def _values(kernel: TileKernel, sizes: list[str]) -> dict[str, int | float]:
    scalars = {p.name: p for p in kernel.signature.scalars}
    extents = {dim for p in kernel.signature.tensors for dim in p.dims if isinstance(dim, str)}
    values: dict[str, int | float] = {}
    for text in sizes:
        name, _, number = text.partition("=")
        if name not in scalars and name not in extents:
            listed = ", ".join([*sorted(extents), *scalars]) or "none"
            raise TileError(f"--check {text}: {kernel.name} has no size or scalar {name!r}. It has: {listed}")
        read = float if name in scalars and scalars[name].dtype.kind == "float" else int
        try:
            values[name] = read(number)
        except ValueError:
            raise TileError(f"--check {text}: expected a number, for example --check {name}=64") from None
        if name in extents and values[name] < 0:
            raise TileError(f"--check {text}: expected a size, which is not negative")
    return values


def _arguments(kernel: TileKernel, spec: Specialization, values: Mapping[str, int | float]) -> dict[str, Any]:
    import numpy as np

    from tiledsl.ir.semantics import numpy_dtype

    dtypes = {name: tensor.dtype for name, tensor in spec.tensors if tensor is not None}
    arguments: dict[str, Any] = {p.name: values[p.name] for p in kernel.signature.scalars if p.name in values}
    for param in kernel.signature.tensors:
        shape = [dim if isinstance(dim, int) else values.get(dim) for dim in param.dims]
        if None not in shape:
            arguments[param.name] = np.zeros(tuple(int(n or 0) for n in shape), numpy_dtype(dtypes[param.name]))
        else:
            arguments[param.name] = None
    return arguments
