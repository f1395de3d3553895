"""``python -m tiledsl export``: what a program computes from the manifest alone is what the runtime launches with."""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tiledsl.__main__ import main
from tiledsl.arch import TARGETS
from tiledsl.export.header import header
from tiledsl.ir.abi import launch_parameters
from tiledsl.ir.expr import evaluate, parse_expr
from tiledsl.ir.grid import checked_grid
from tiledsl.ir.semantics import fold
from tiledsl.ir.types import DTYPES, INDEX
from tiledsl.runtime.launch import ArgumentBuffer
from tiledsl.runtime.tensor_maps import encoding
from tiledsl.signatures.specialize import ArrayInfo

ROOT = Path(__file__).parent.parent
TILED = f"{ROOT}/examples/gemm/shared_tiled.py:shared_tiled"
HOPPER = f"{ROOT}/tiledsl/gemm/hopper.py:hopper_fastest"


def exported(folder: Path, *arguments: str) -> dict[str, Any]:
    assert main(["export", *arguments, "-o", str(folder)]) == 0
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A product in one launch, and one whose operands are copied first."""
    folder = tmp_path_factory.mktemp("product")
    return folder, exported(folder, "--gemm", "512x1024x776", "3x400x256x136", "600x504x2003", "--stored", "NT")


def test_what_is_written(product: tuple[Path, dict[str, Any]]) -> None:
    folder, manifest = product
    assert (manifest["format"], manifest["version"]) == ("tiledsl export", 2)
    names = [kernel["name"] for kernel in manifest["kernels"]]
    assert len(set(names)) == len(names) > 2
    for kernel in manifest["kernels"]:
        cubin = (folder / kernel["cubin"]).read_bytes()
        assert cubin[:4] == b"\x7fELF" and hashlib.sha256(cubin).hexdigest() == kernel["sha256"]
        assert kernel["arch"] == "sm_90a" and not kernel["later_minor_versions"]
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        "tiledsl_export.h",
        *(f"{name}.cubin" for name in names),
    }


def test_launches_of_products(product: tuple[Path, dict[str, Any]]) -> None:
    """The last one pads A and B in a workspace; each launch names all tensors and scalars of its kernel."""
    manifest = product[1]
    kernels = {kernel["name"]: kernel for kernel in manifest["kernels"]}
    for of in manifest["products"]:
        for launch in of["launches"]:
            kernel = kernels[launch["kernel"]]
            assert [tensor["name"] for tensor in kernel["tensors"]] == [*launch["tensors"]]
            assert {scalar["name"] for scalar in kernel["scalars"]} == {*launch["scalars"]}
    one, batch, padded = manifest["products"]
    assert (one["m"], one["n"], one["k"], batch["batch"], padded["stored"]) == (512, 1024, 776, 3, "NT")
    (first,), (copy, last) = one["launches"], padded["launches"]
    assert one["workspace"] == 0 < padded["workspace"]
    given = {argument["memory"]: argument for argument in first["tensors"].values()}
    assert {*given} == {"A", "B", "C"} and first["scalars"]["alpha"] == "alpha"
    assert sorted(given["B"]["strides"]) == [0, 1, 776] and sorted(given["C"]["shape"]) == [1, 512, 1024]
    assert kernels[copy["kernel"]]["entry"] == "pad_both"
    for name in "AB":
        assert last["tensors"][name]["memory"] == "workspace"
        # of the product as it is, or transposed
        assert last["tensors"][name]["shape"] in ([1, 600, 2003], [1, 2003, 504], [1, 504, 2003], [1, 2003, 600])


def _from_manifest(kernel: dict[str, Any], infos: dict[str, ArrayInfo], scalars: dict[str, Any]) -> list[Any]:
    """The value of each parameter but pointers, and the arguments of each tensor map, as docs/export.md says."""
    tensors = {tensor["name"]: tensor for tensor in kernel["tensors"]}
    extents = {d: n for t in tensors.values() for d, n in zip(t["dims"], infos[t["name"]].shape, strict=True)}
    found: list[Any] = []
    for parameter in kernel["parameters"]:
        match parameter["kind"]:
            case "extent":
                found.append(extents[parameter["extent"]])
            case "stride":
                found.append(infos[parameter["tensor"]].strides[parameter["axis"]])
            case "scalar":
                found.append(scalars[parameter["scalar"]])
            case "tensor_map":
                found.append(_map(kernel["tensor_maps"][parameter["map"]], tensors, infos))
            case _:
                found.append(infos[parameter["tensor"]].pointer)
    return found


def _map(of: dict[str, Any], tensors: dict[str, Any], infos: dict[str, ArrayInfo]) -> Any:
    from cuda.bindings import driver as cu

    info, size = infos[of["tensor"]], tensors[of["tensor"]]["element_bytes"]
    extents = [info.shape[axis] for axis in of["axes"]]
    strides = [info.strides[axis] * size for axis in of["axes"]][1:]
    strides = [s if n > 1 else of["stride_of_extent_1"] for n, s in zip(extents[1:], strides, strict=True)]
    assert of["every"] == 1
    data_type, swizzle = (
        getattr(getattr(cu, kind), of[name]).value
        for kind, name in (("CUtensorMapDataType", "data_type"), ("CUtensorMapSwizzle", "swizzle"))
    )
    return data_type, tuple(extents), tuple(strides), tuple(of["box"]), swizzle


def test_parameters_grid_and_maps_are_those_of_a_launch(product: tuple[Path, dict[str, Any]]) -> None:
    from tiledsl.gemm.hopper import hopper_fastest

    kernels = {kernel["name"]: kernel for kernel in product[1]["kernels"]}
    for of in product[1]["products"]:
        launch = of["launches"][-1]
        kernel = kernels[launch["kernel"]]
        assert kernel["entry"] == "hopper_fastest"
        dtypes = {tensor["name"]: DTYPES[tensor["dtype"]] for tensor in kernel["tensors"]}
        infos = {
            name: ArrayInfo(dtypes[name], tuple(a["shape"]), tuple(a["strides"]), (n + 1) << 40, 0, True, None)
            for n, (name, a) in enumerate(launch["tensors"].items())
        }
        scalars = {**launch["scalars"], "alpha": 0.5, "beta": 2.0}
        found = _from_manifest(kernel, infos, scalars)
        consts = {name: _const(hopper_fastest, name, text) for name, text in kernel["consts"].items()}
        arguments = hopper_fastest.dispatcher.launcher.bind((), {**infos, **scalars, **consts})
        spec, arch = hopper_fastest.dispatcher.build_of(arguments, "sm_90a")
        image = hopper_fastest.builds.compiled(spec, arch)
        assert (image.cluster, image.block, image.shared_bytes) == (
            tuple(kernel["launch"]["cluster"]),
            tuple(kernel["launch"]["block"]),
            kernel["launch"]["shared_bytes"],
        )
        parameters = launch_parameters(image.abi, image.tensor_maps)
        dims = [(d, n) for t in kernel["tensors"] for d, n in zip(t["dims"], infos[t["name"]].shape, strict=True)]
        extents = dict(dims)
        buffer = ArgumentBuffer(parameters, extents, {name: info.strides for name, info in infos.items()})
        frame = buffer.new_frame()
        frame.pack(*(infos[name].pointer for name in buffer.pointers))
        buffer.pack_scalars(frame.buffer, buffer.scalars_at, *(scalars[name] for name in buffer.scalars))
        for number, (parameter, value) in enumerate(zip(kernel["parameters"], found, strict=True)):
            if parameter["kind"] == "tensor_map":
                tensor = image.tensor_maps[parameter["map"]]
                expected: Any = encoding(tensor, infos[tensor.tensor])
                expected = (expected.data_type, expected.extents, expected.strides, expected.box, expected.swizzle)
            else:
                kind = {8: ctypes.c_int64, 4: ctypes.c_float if isinstance(value, float) else ctypes.c_int32}
                expected = kind[parameter["bytes"]].from_address(frame.pointers[number]).value
            assert value == expected, parameter
        names = {**extents, "processors": 132}
        grid = checked_grid("", tuple(map(parse_expr, image.grid)), names, image.cluster)
        assert grid == tuple(evaluate(parse_expr(text), names) for text in kernel["launch"]["grid"])


def _const(kernel: Any, name: str, text: str) -> Any:
    """A const of the manifest; a function stands there by its name, and is the default one here."""
    default = next(c.default for c in kernel.signature.consts if c.name == name)
    return default if callable(default) else eval(text)


def test_the_header_says_what_the_manifest_says(product: tuple[Path, dict[str, Any]]) -> None:
    """Its grids, read as Python, which they also are, give the same; constants are the driver's."""
    folder, manifest = product
    text = (folder / "tiledsl_export.h").read_text()
    assert text == header(manifest)
    functions = {
        f"tiledsl_{fn}_index": partial(fold, fn, INDEX) for fn in ("add", "sub", "mul", "floordiv", "ceildiv", "min")
    }
    for kernel in manifest["kernels"]:
        extents = {name: 100 * number + 77 for number, name in enumerate(kernel["extents"])}
        (body,) = re.findall(rf"{kernel['name']}_grid\(.*?\{{\n(.*?)\n\}}", text, re.DOTALL)
        grid = [eval(e, {**functions, "extents": [*extents.values()], "scalars": [], "processors": 132})
                for e in re.findall(r"grid\[\d\] = tiledsl_blocks(.*);", body)]  # fmt: skip
        assert grid == [evaluate(parse_expr(e), {**extents, "processors": 132}) for e in kernel["launch"]["grid"]]
        assert f'"{kernel["name"]}", "{kernel["entry"]}", "{kernel["cubin"]}", "sm_90a"' in text
        assert text.count(f"{kernel['name']}_parameters") == 2
    assert "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B" in text


SCALAR_GRID = """
from tiledsl import Global, cdiv, f32, grid, i8, index, threads, tile_kernel, u32
from tiledsl.dims import N


@tile_kernel
def scalar_grid(X: Global[f32, N], n: u32, small: i8):
    x, y = grid((n - 5) // 1073741824 + (n & 1), cdiv(N, 8) * index(small * 2))
    X[threads(1)] = 1.0
"""


def test_a_grid_of_scalars_has_the_values_of_the_kernel(tmp_path: Path) -> None:
    """Integers wrap in the manifest and in the header, which defines the functions that it calls."""
    file = tmp_path / "scalar_grid.py"
    file.write_text(SCALAR_GRID)
    (kernel,) = exported(tmp_path / "made", f"{file}:scalar_grid", "--arch", "sm_80")["kernels"]
    assert kernel["scalars"] == [{"name": "n", "dtype": "u32"}, {"name": "small", "dtype": "i8"}]
    text = (tmp_path / "made" / "tiledsl_export.h").read_text()
    found = re.findall(r"\b(tiledsl_(\w+)_(\w+))\(", text)
    calls = {name: (fn, DTYPES[dtype]) for name, fn, dtype in found if dtype in DTYPES}
    assert all(f"_t {name}(" in text for name in calls) and "tiledsl_mul_i8" in calls
    functions = {name: partial(fold, *of) for name, of in calls.items()}
    (body,) = re.findall(rf"{kernel['name']}_grid\(.*?\{{\n(.*?)\n\}}", text, re.DOTALL)
    for n, small, blocks in ((3, 2, [4, 8, 1]), (4, 100, [3, -112, 1]), (5, -128, [1, 0, 1])):
        names = {"N": 9, "n": n, "small": small, "processors": 132}
        assert [evaluate(parse_expr(e), names) for e in kernel["launch"]["grid"]] == blocks
        given = {**functions, "extents": [9], "scalars": [n, small]}
        assert [eval(e, given) for e in re.findall(r"grid\[\d\] = tiledsl_blocks(.*);", body)] == blocks


def test_any_kernel_can_be_exported(tmp_path: Path) -> None:
    """Also one without maps and clusters, for a target of which later ones run the code."""
    (kernel,) = exported(tmp_path, TILED, "--arch", "sm_80", "--const", "T=32")["kernels"]
    assert kernel["consts"] == {"T": "32"} and kernel["later_minor_versions"]
    assert kernel["compute_capability"] == [*TARGETS["sm_80"].capability]
    assert kernel["tensor_maps"] == [] and kernel["launch"]["attributes"] == {}
    assert kernel["tensors"][0]["dims"] == ["M", "K"] and kernel["most_elements"] < 2**31
    assert [t["name"] for t in kernel["tensors"] if t["written"]] == ["C"]
    again = exported(tmp_path / "again", TILED, "--arch", "sm_80", "--const", "T=32")["kernels"][0]
    other = exported(tmp_path / "other", TILED, "--arch", "sm_80", "--const", "T=16")["kernels"][0]
    assert again == kernel and other["name"] != kernel["name"]


def test_attributes_of_a_launch(product: tuple[Path, dict[str, Any]]) -> None:
    launches = [kernel["launch"] for kernel in product[1]["kernels"]]
    clustered = [launch for launch in launches if launch["cluster"] != [1, 1, 1]]
    assert all(
        launch["attributes"]["CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"] == launch["cluster"] for launch in clustered
    )
    assert any("CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION" in launch["attributes"] for launch in launches)
    allowed = [launch["function_attributes"] for launch in launches if launch["shared_bytes"] > 48 << 10]
    assert allowed and all(len(of) == 1 for of in allowed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([HOPPER, "--dtype", "D=bf16", "--dtype", "F=bf16", "--dtype", "E=bf16", "--arch", "sm_80"],
         "hopper_fastest cannot be exported for sm_80: it is a kernel for sm_90a\n  fix: export it for sm_90a"),
        ([TILED, "--arch", "sm_7"], "no target 'sm_7'"),
        ([TILED, "--gemm", "64"], "export takes a FILE:KERNEL or --gemm with sizes"),
        ([], "export takes a FILE:KERNEL or --gemm with sizes"),
        (["--gemm", "64x64x64", "--format", "int3"], "gemm takes no 'int3'\n  fix: give one of f32, f16"),
        (["--gemm", "64x64x64", "--format", "f64"], "i8x15"),
        (["--gemm", "64x64x64", "--format", "f32", "--out", "bf16"], "a C of bf16 for A and B of f32"),
        (["--gemm", "64x64x64", "--arch", "sm_91"], "no target 'sm_91'"),
    ],
)  # fmt: skip
def test_refused(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *arguments, "-o", str(tmp_path / "made")]) == (1 if "cannot be exported" in message else 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_folder_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "made").write_text("")
    assert main(["export", TILED, "-o", str(tmp_path / "made")]) == 1
    assert "cannot write the export to" in capsys.readouterr().err
