"""The manifest: all that a program without Python needs to launch exported kernels, as plain data.

Names of the driver's constants are those of the CUDA driver API. Lists that a launch passes or walks through are in its
order. A change that a reader of an older manifest would misread is a new VERSION.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import Any

from tiledsl.arch import MAP_ALIGNMENT, MAP_BYTES, TARGETS, TMA_GRAIN
from tiledsl.backends.ptx import tools
from tiledsl.compilation.compiled import Compiled
from tiledsl.errors import TileError
from tiledsl.ir.abi import INDEX32_LIMIT, AbiArg, launch_parameters
from tiledsl.ir.expr import PROCESSORS
from tiledsl.ir.tensor_maps import TensorMap
from tiledsl.ir.types import DTYPES
from tiledsl.kernel import TileKernel
from tiledsl.runtime.driver import STATIC_SHARED
from tiledsl.runtime.tensor_maps import DATA_TYPES, FILL_WITH_ZEROS, L2_PROMOTION_128B, NO_INTERLEAVE, SWIZZLES
from tiledsl.signatures.signature import Specialization

VERSION = 1


@dataclass(frozen=True)
class Exported:
    """A kernel that is exported."""

    compiled: Compiled

    @cached_property
    def name(self) -> str:
        """The kernel's name and a digest of its specialisation, which other versions of the compiler give, too."""
        spec, arch = self.compiled.spec, self.compiled.arch
        told = f"{self.compiled.label} {spec.tensors} {spec.index_bits} {arch}"
        return f"{self.compiled.name}_{hashlib.sha256(told.encode()).hexdigest()[:8]}"

    @property
    def file(self) -> str:
        return f"{self.name}.cubin"


def compiled_for(kernel: TileKernel, spec: Specialization, arch: str) -> Exported:
    """Compile. Raises TileError for a target that the kernel does not have, CompileErrors."""
    only = kernel.signature.arch
    if only and arch != only:
        message = f"{kernel.name} cannot be exported for {arch}: it is a kernel for {only}"
        fix = f'export it for {only}, or change @tile_kernel(arch="{only}")'
        raise TileError(f"{message}\n  fix: {fix}")
    return Exported(kernel.builds.compiled(spec, arch))


def manifest(kernels: Sequence[Exported], products: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """The manifest of these kernels. products: see `products.products`."""
    return {
        "format": "tiledsl export",
        "version": VERSION,
        "made_by": {"tiledsl": _own_version(), "ptxas": tools.PTXAS.release()},
        "kernels": [_kernel(each) for each in kernels],
        "products": list(products),
    }


def _own_version() -> str:
    try:
        return metadata.version("tiledsl")
    except metadata.PackageNotFoundError:
        return "a checkout that is not installed"


def _kernel(each: Exported) -> dict[str, Any]:
    compiled = each.compiled
    target = TARGETS[compiled.arch]
    parameters = launch_parameters(compiled.abi, compiled.tensor_maps)
    return {
        "name": each.name,
        "entry": compiled.name,
        "cubin": each.file,
        "sha256": hashlib.sha256(compiled.cubin).hexdigest(),
        "arch": compiled.arch,
        "compute_capability": list(target.capability),
        "later_minor_versions": not target.exact,
        "consts": {name: getattr(value, "__name__", repr(value)) for name, value in compiled.spec.consts},
        "tensors": _tensors(compiled),
        "extents": [a.name for a in parameters if a.kind == "extent"],
        "scalars": [{"name": a.name, "dtype": a.dtype.name} for a in parameters if a.kind == "scalar"],
        "most_elements": INDEX32_LIMIT if compiled.spec.index_bits == 32 else 2**63 - 1,
        "parameters": [_parameter(a) for a in parameters],
        "tensor_maps": [_tensor_map(m, compiled) for m in compiled.tensor_maps],
        "launch": _launch(compiled),
        "resources": {"registers": compiled.resources.registers, "blocks_per_sm": compiled.resources.blocks_per_sm},
    }


def _tensors(compiled: Compiled) -> list[dict[str, Any]]:
    """The tensors that a launch gets. A tensor must have stride 1 along `unit_axis`; its address, and its other strides
    in bytes, must be multiples of `alignment`, and if `whole`, its extent along `unit_axis` in bytes, too."""
    specs = dict(compiled.spec.tensors)
    found: list[dict[str, Any]] = []
    for param in compiled.signature.tensors:
        spec = specs[param.name]
        if spec is not None:
            found.append(
                {
                    "name": param.name,
                    "dtype": spec.dtype.name,
                    "element_bytes": spec.dtype.bytes,
                    "dims": list(param.dims),
                    "unit_axis": spec.unit,
                    "alignment": spec.align,
                    "whole": spec.whole,
                    "written": param.name in compiled.written,
                }
            )
    return found


def _parameter(a: AbiArg) -> dict[str, Any]:
    """One parameter of the entry: what to point ``kernelParams`` at."""
    match a.kind:
        case "pointer":
            return {"kind": "pointer", "tensor": a.name, "bytes": 8}
        case "extent":
            return {"kind": "extent", "extent": a.name, "bytes": a.dtype.bytes}
        case "stride":  # in elements
            return {"kind": "stride", "tensor": a.name, "axis": a.axis, "bytes": a.dtype.bytes}
        case "scalar":
            return {"kind": "scalar", "scalar": a.name, "bytes": a.dtype.bytes}
        case "tensor_map":
            return {"kind": "tensor_map", "map": a.axis, "bytes": MAP_BYTES, "alignment": MAP_ALIGNMENT}


def _tensor_map(m: TensorMap, compiled: Compiled) -> dict[str, Any]:
    """The arguments of cuTensorMapEncodeTiled that are known; docs/export.md says how the others follow."""
    cu: Any = importlib.import_module("cuda.bindings.driver")  # it has no stubs
    dtype = next(a.dtype.name for a in compiled.abi if a.kind == "pointer" and a.name == m.tensor)
    assert dtype in DTYPES
    return {
        "tensor": m.tensor,
        "axes": list(m.axes),
        "box": list(m.box),
        "data_type": cu.CUtensorMapDataType(DATA_TYPES[dtype]).name,
        "interleave": cu.CUtensorMapInterleave(NO_INTERLEAVE).name,
        "swizzle": cu.CUtensorMapSwizzle(SWIZZLES[m.swizzle]).name,
        "l2_promotion": cu.CUtensorMapL2promotion(L2_PROMOTION_128B).name,
        "fill": cu.CUtensorMapFloatOOBfill(FILL_WITH_ZEROS).name,
        "stride_of_extent_1": TMA_GRAIN,
        "every": m.every,
        "first": m.first,
    }


def _launch(compiled: Compiled) -> dict[str, Any]:
    """grid: expressions of extents, integer scalars and PROCESSORS, the number of SMs; floordiv and mod round down,
    ceildiv rounds up."""
    grid = [*compiled.grid, "1", "1"][:3]
    attributes: dict[str, Any] = {}
    if compiled.cluster != (1, 1, 1):
        attributes["CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"] = list(compiled.cluster)
    if compiled.dependent:
        attributes["CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"] = 1
    of_function = {}
    if compiled.shared_bytes > STATIC_SHARED:
        of_function["CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"] = compiled.shared_bytes
    return {
        "grid": grid,
        "uses_processors": any(PROCESSORS in text for text in grid),
        "block": list(compiled.block),
        "cluster": list(compiled.cluster),
        "shared_bytes": compiled.shared_bytes,
        "attributes": attributes,
        "function_attributes": of_function,
    }
