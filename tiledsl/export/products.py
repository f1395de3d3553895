"""The kernels that `gemm` launches for products of given shapes, and with which arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tiledsl.export.manifest import Exported, compiled_for
from tiledsl.gemm.asked import asked_format
from tiledsl.gemm.prepared import SOMEWHERE, planned
from tiledsl.gemm.steps import BIAS, ROOM, ZEROS, Place
from tiledsl.gemm.warm_up import operands_of

MEMORIES = {0: "A", 1: "B", 2: "C", BIAS: "bias", ROOM: "workspace", ZEROS: "zeros"}
"""By their numbers in a `Place`."""


def products(
    sizes: Iterable[Sequence[int]], dtype: str, out: str | None, layout: str, arch: str
) -> tuple[list[Exported], list[dict[str, Any]]]:
    """The kernels of all these products, each once, and for each product its launches in order.

    sizes: (m, n, k), or (batch, m, n, k). layout: how A and B are stored, as in `warmup`. A launch names its kernel,
    and for each tensor its memory: A, B, C, the workspace, or memory that is zero before and after each product.
    """
    format, result = asked_format("export", dtype, out)
    wanted = format.a
    kernels: dict[str, Exported] = {}
    found: list[dict[str, Any]] = []
    for size in sizes:
        of = operands_of(tuple(size), (wanted, wanted, result), layout, False, False, 0)
        steps = planned(of, 0.0, None, arch)
        launches: list[dict[str, Any]] = []
        for step in steps.launches:
            values = step.values((*of.addresses, *SOMEWHERE), 0)
            spec, _ = step.kernel.dispatcher.build_of(values, arch)
            made = compiled_for(step.kernel, spec, arch)
            made = kernels.setdefault(made.name, made)
            numbers = {a.name: values[a.name] for a in made.compiled.abi if a.kind == "scalar"}
            scaled = {"alpha": "alpha", "beta": "beta"} if step.scaled else {}
            arguments = {name: _argument(place) for name, place in step.arrays.items()}
            launches.append({"kernel": made.name, "tensors": arguments, "scalars": {**numbers, **scaled}})
        *batch, m, n, k = size
        asked = {"batch": batch[0] if batch else 1, "m": m, "n": n, "k": k}
        stored = {"dtype": wanted.name, "out": result.name, "stored": layout}
        found.append({**asked, **stored, "workspace": steps.room, "zeros": steps.zeros, "launches": launches})
    return list(kernels.values()), found


def _argument(place: Place) -> dict[str, Any]:
    """offset: in bytes. strides: in elements."""
    where = {"memory": MEMORIES[place.memory], "offset": place.offset}
    return {**where, "shape": list(place.shape), "strides": list(place.strides)}
