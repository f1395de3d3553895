"""The C header of an export: the manifest's kernels as constants, for ``#include`` beside <cuda.h>."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tiledsl.ir.expr import PROCESSORS, BinExpr, Expr, parse_expr

HEAD = """\
/* Kernels exported by tiledsl, version {version} of the manifest, which is in manifest.json with more of the same.
 *
 * A kernel is launched with kernel->parameters as kernelParams, in their order. docs/export.md of tiledsl explains all
 * fields; examples/exported_gemm.c is a program that uses them. */
#ifndef TILEDSL_EXPORT_H
#define TILEDSL_EXPORT_H

#include <cuda.h>
#include <stdint.h>

#define TILEDSL_EXPORT_VERSION {version}
#define TILEDSL_MOST_RANK {rank}

/* A tensor that a launch is given. Its stride along unit_axis is 1; its address, and its other strides in bytes, are
 * multiples of alignment; if whole, its extent along unit_axis in bytes, too. dims[i]: number of the extent along axis
 * i among extents; or -1 - n if it is always n. */
typedef struct {{
    const char *name, *dtype;
    int element_bytes, rank, dims[TILEDSL_MOST_RANK], unit_axis, alignment, whole, written;
}} tiledsl_tensor;

/* What one parameter is. of: number of the tensor, extent, scalar or tensor map. axis: of a stride, in elements. */
typedef enum {{ TILEDSL_POINTER, TILEDSL_EXTENT, TILEDSL_STRIDE, TILEDSL_SCALAR, TILEDSL_TENSOR_MAP }} tiledsl_kind;
typedef struct {{
    tiledsl_kind kind;
    int of, axis, bytes;
}} tiledsl_parameter;

/* The constant arguments of cuTensorMapEncodeTiled. Extents and strides are the tensor's along axes, the first of
 * which has stride 1. The stride of an extent of 1, which is never used, is stride_of_extent_1 bytes. Steps are 1. */
typedef struct {{
    int tensor;
    cuuint32_t rank;
    int axes[5];
    cuuint32_t box[5];
    CUtensorMapDataType data_type;
    CUtensorMapInterleave interleave;
    CUtensorMapSwizzle swizzle;
    CUtensorMapL2promotion l2_promotion;
    CUtensorMapFloatOOBfill fill;
    int stride_of_extent_1, every, first;
}} tiledsl_tensor_map;

/* A kernel. later_minor_versions: its cubin runs on them, too. programmatic: the launch may have the attribute
 * CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION. shared_bytes above 48 KB have to be allowed by
 * cuFuncSetAttribute. grid(extents, integer scalars by their number, SMs, result). */
typedef struct {{
    const char *name, *entry, *cubin, *arch;
    int capability[2], later_minor_versions;
    int tensor_count, extent_count, scalar_count, parameter_count, map_count;
    const tiledsl_tensor *tensors;
    const char *const *extents, *const *scalars, *const *scalar_dtypes;
    const tiledsl_parameter *parameters;
    const tiledsl_tensor_map *maps;
    int64_t most_elements; /* no extent and no offset, in elements, is this large */
    unsigned block[3], cluster[3], shared_bytes;
    int programmatic, uses_processors;
    void (*grid)(const int64_t *extents, const int64_t *scalars, int64_t processors, unsigned grid[3]);
}} tiledsl_kernel;

static inline int64_t tiledsl_min(int64_t a, int64_t b) {{ return a < b ? a : b; }}
static inline int64_t tiledsl_max(int64_t a, int64_t b) {{ return a > b ? a : b; }}
static inline int64_t tiledsl_floordiv(int64_t a, int64_t b) {{ return a / b - (a % b != 0 && (a < 0) != (b < 0)); }}
static inline int64_t tiledsl_ceildiv(int64_t a, int64_t b) {{ return a / b + (a % b != 0 && (a < 0) == (b < 0)); }}
static inline int64_t tiledsl_mod(int64_t a, int64_t b) {{ return a - b * tiledsl_floordiv(a, b); }}
"""
KERNEL = """\

/* {label}, {arch} */
static const tiledsl_tensor {name}_tensors[] = {{
{tensors}
}};
static const char *const {name}_extents[] = {{{extents}}};
static const char *const {name}_scalars[] = {{{scalars}}};
static const char *const {name}_scalar_dtypes[] = {{{scalar_dtypes}}};
static const tiledsl_parameter {name}_parameters[] = {{
{parameters}
}};
static const tiledsl_tensor_map {name}_maps[] = {{
{maps}
}};
static inline void {name}_grid(const int64_t *extents, const int64_t *scalars, int64_t processors, unsigned grid[3]) {{
    (void)extents, (void)scalars, (void)processors;
{grid}
}}
"""
TAIL = """\

static const tiledsl_kernel tiledsl_kernels[] = {{
{kernels}
}};
#define TILEDSL_KERNEL_COUNT {count}

#endif
"""
NOTHING = "    {0}, /* none */"
INFIX = {"add": "+", "sub": "-", "mul": "*"}


def header(manifest: Mapping[str, Any]) -> str:
    """The text of the header for a manifest."""
    kernels = manifest["kernels"]
    rank = max((len(tensor["dims"]) for kernel in kernels for tensor in kernel["tensors"]), default=1)
    parts = [HEAD.format(version=manifest["version"], rank=rank)]
    parts += [_kernel(kernel) for kernel in kernels]
    parts.append(TAIL.format(kernels="\n".join(map(_row, kernels)), count=len(kernels)))
    return "".join(parts)


def _kernel(kernel: Mapping[str, Any]) -> str:
    extents = kernel["extents"]
    tensors = {tensor["name"]: number for number, tensor in enumerate(kernel["tensors"])}
    scalars = {scalar["name"]: number for number, scalar in enumerate(kernel["scalars"])}
    values = {PROCESSORS: PROCESSORS, **{name: f"extents[{i}]" for i, name in enumerate(extents)}}
    values |= {name: f"scalars[{i}]" for name, i in scalars.items()}
    consts = ", ".join(f"{name}={value}" for name, value in kernel["consts"].items())
    grid = [
        f"    grid[{i}] = (unsigned){_expr(parse_expr(e), values)};" for i, e in enumerate(kernel["launch"]["grid"])
    ]
    return KERNEL.format(
        label=f"{kernel['entry']}({consts})",
        arch=kernel["arch"],
        name=kernel["name"],
        tensors=_rows(_tensor(tensor, extents) for tensor in kernel["tensors"]),
        extents=_strings(extents),
        scalars=_strings(scalars),
        scalar_dtypes=_strings(scalar["dtype"] for scalar in kernel["scalars"]),
        parameters=_rows(_parameter(p, tensors, extents, scalars) for p in kernel["parameters"]),
        maps=_rows(_map(m, tensors) for m in kernel["tensor_maps"]),
        grid="\n".join(grid),
    )


def _rows(rows: Iterable[str]) -> str:
    return "\n".join(f"    {{{row}}}," for row in rows) or NOTHING


def _strings(texts: Iterable[str]) -> str:
    return ", ".join(f'"{text}"' for text in texts) or "0"


def _tensor(tensor: Mapping[str, Any], extents: Sequence[str]) -> str:
    dims = [extents.index(d) if isinstance(d, str) else -1 - d for d in tensor["dims"]]
    numbers = (tensor["unit_axis"], tensor["alignment"], int(tensor["whole"]), int(tensor["written"]))
    listed = ", ".join(map(str, numbers))
    shape = f"{len(dims)}, {{{', '.join(map(str, dims))}}}"
    return f'"{tensor["name"]}", "{tensor["dtype"]}", {tensor["element_bytes"]}, {shape}, {listed}'


def _parameter(
    parameter: Mapping[str, Any], tensors: Mapping[str, int], extents: Sequence[str], scalars: Mapping[str, int]
) -> str:
    match parameter["kind"]:
        case "extent":
            of, kind = extents.index(parameter["extent"]), "TILEDSL_EXTENT"
        case "scalar":
            of, kind = scalars[parameter["scalar"]], "TILEDSL_SCALAR"
        case "tensor_map":
            of, kind = parameter["map"], "TILEDSL_TENSOR_MAP"
        case other:
            of, kind = tensors[parameter["tensor"]], f"TILEDSL_{other.upper()}"
    return f"{kind}, {of}, {parameter.get('axis', 0)}, {parameter['bytes']}"


def _map(of: Mapping[str, Any], tensors: Mapping[str, int]) -> str:
    axes, box = (", ".join(map(str, of[name])) for name in ("axes", "box"))
    names = ", ".join(of[name] for name in ("data_type", "interleave", "swizzle", "l2_promotion", "fill"))
    numbers = ", ".join(str(of[name]) for name in ("stride_of_extent_1", "every", "first"))
    return f"{tensors[of['tensor']]}, {len(of['axes'])}, {{{axes}}}, {{{box}}}, {names}, {numbers}"


def _expr(expr: Expr, values: Mapping[str, str]) -> str:
    """A host expression in C, in parentheses if it needs them. Names are looked up in `values`."""
    match expr:
        case int():
            return str(expr)
        case str():
            return values[expr]
        case BinExpr(fn, a, b):
            left, right = _expr(a, values), _expr(b, values)
            return f"({left} {INFIX[fn]} {right})" if fn in INFIX else f"tiledsl_{fn}({left}, {right})"


def _row(kernel: Mapping[str, Any]) -> str:
    name, launch = kernel["name"], kernel["launch"]
    texts = _strings((name, kernel["entry"], kernel["cubin"], kernel["arch"]))
    major, minor = kernel["compute_capability"]
    counts = ", ".join(
        str(len(kernel[what])) for what in ("tensors", "extents", "scalars", "parameters", "tensor_maps")
    )
    arrays = ", ".join(
        f"{name}_{what}" for what in ("tensors", "extents", "scalars", "scalar_dtypes", "parameters", "maps")
    )
    block, cluster = (", ".join(map(str, launch[what])) for what in ("block", "cluster"))
    programmatic = int("CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION" in launch["attributes"])
    sizes = f"{{{block}}}, {{{cluster}}}, {launch['shared_bytes']}, {programmatic}, {int(launch['uses_processors'])}"
    runs_on = f"{{{major}, {minor}}}, {int(kernel['later_minor_versions'])}"
    return (
        f"    {{{texts},\n     {runs_on}, {counts},\n     {arrays},\n"
        f"     {kernel['most_elements']}, {sizes}, {name}_grid}},"
    )
