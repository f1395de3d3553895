"""The Hopper ladder at two commits: an older one's machine code and the working tree's, interleaved on a GPU.

    python -m benchmarks.compare_speed make main /tmp/main.json      where git is; needs no GPU
    python -m benchmarks.compare_speed time /tmp/main.json           on a GPU, with torch

Both versions of a kernel run through the same launches on the same arrays, so that only the machine code differs.
Outputs are compared bit for bit first. Figures are ratios within a round: more than 1 is faster than before.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.compare_ptx import ROOT, checkout
from benchmarks.report import table, write
from tiledsl.inspect.timing import interleave, quartiles

__all__ = ["main"]

LADDER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("hopper_tma", {}),
    ("hopper_ring", {}),
    ("hopper_roles", {}),
    ("hopper_store", {}),
    ("hopper_persistent", {}),
    ("hopper_persistent", {"CLUSTER": (2, 1)}),
    ("hopper_persistent", {"CLUSTER": (1, 2)}),
    ("hopper_pingpong", {}),
    ("hopper_fastest", {}),
    ("hopper_fastest", {"BN": 128, "INSTANCES": 2}),
    ("hopper_fastest", {"BN": 128, "STAGES": 6}),
    ("hopper_fastest", {"BN": 128, "STAGES": 6, "CLUSTER": (2, 1)}),
    ("hopper_fastest", {"BN": 64, "STAGES": 8}),
    ("hopper_fastest", {"BM": 64, "BN": 64, "INSTANCES": 2, "STAGES": 10}),
)
SIZES = ((4096, 4096, 4096), (8192, 4096, 512), (1024, 1000, 8192), (2056, 3080, 2048), (128, 1024, 32768))
"""Long enough that the host is not the limit, and with edges. The last one has tiles for few SMs only, so that the
latency of a step along k decides."""
SETS = 4
"""Sets of operands, used in rotation: together more than L2 holds."""


def _label(name: str, consts: dict[str, Any]) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in consts.items())])


# -- one commit, in a process of its own -----------------------------------------------------------------

_COLLECT = """
import base64, importlib, json, sys
sys.path[:0] = [".", "examples/gemm"]
from tiledsl import bf16
found = {}
for label, name, consts in json.loads(sys.argv[1]):
    kernel = getattr(importlib.import_module(name), name)
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in consts.items()}
    dtypes = {p.dtype: bf16 for p in kernel.signature.params if isinstance(getattr(p, "dtype", None), str)}
    compiled = kernel.compile("sm_90a", **given, **dtypes)
    image = getattr(compiled, "image", compiled)
    found[label] = [base64.b64encode(image.cubin).decode(), str(image.abi) + str(image.tensor_maps),
                    image.resources.registers, image.resources.spill_loads]
print(json.dumps(found))
"""
"""It uses only what every commit has."""


def _make(commit: str, to: Path) -> None:
    asked = json.dumps([(_label(name, consts), name, consts) for name, consts in LADDER])
    with checkout(commit) as folder:
        environment = os.environ | {"TILEDSL_CACHE": "0", "PYTHONPATH": str(folder)}
        command = [sys.executable, "-P", "-c", _COLLECT, asked]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    to.write_text(json.dumps({"commit": commit, "kernels": json.loads(done.stdout)}))


# -- both, on a GPU --------------------------------------------------------------------------------------


def _kernel(name: str, copy: str) -> Any:
    """The gallery's kernel, from a module of its own: the two copies share no compiled code."""
    sys.path[:0] = [str(ROOT / "examples/gemm")]
    defined = getattr(importlib.import_module(name), name).signature.loc.file  # that of the library, for some
    spec = importlib.util.spec_from_file_location(f"{name}_{copy}", defined)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def _launched(kernel: Any, cubin: bytes | None = None) -> list[Any]:
    """The images that launches of `kernel` load from now on: the compiled one, or `cubin` in its place."""
    compile_now, images = kernel.builds.compiled, list[Any]()

    def compiled(spec: Any, arch: str) -> Any:
        built = compile_now(spec, arch)
        images.append(built)
        return built if cubin is None else replace(built, cubin=cubin)

    kernel.builds.compiled = compiled
    return images


def _cases(kernels: dict[str, list[Any]], rounds: int, seed: int) -> Iterator[dict[str, Any]]:
    import torch

    from benchmarks.device import open_device

    watch = open_device("bf16")
    for name, consts in LADDER:
        label = _label(name, consts)
        code, takes, registers, spills = kernels[label]
        new, old = _kernel(name, "now"), _kernel(name, "before")
        images = _launched(new)
        _launched(old, base64.b64decode(code))
        batch = (1,) if name == "hopper_fastest" else ()
        for m, n, k in SIZES:
            generator = torch.Generator(device="cuda").manual_seed(seed + m)

            def made(*shape: int, generator: Any = generator) -> Any:
                return torch.randn(*shape, device="cuda", generator=generator).bfloat16()

            sets = [(made(*batch, m, k), made(*batch, k, n)) for _ in range(SETS)]
            C, other = (torch.zeros(*batch, m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            more = consts | ({"bias": torch.zeros(n, device="cuda")} if batch else {})
            new(*sets[0], C, **more)
            old(*sets[0], other, **more)
            assert str(images[0].abi) + str(images[0].tensor_maps) == takes, f"{label}: it takes other arguments"
            assert torch.equal(C, other), f"{label} of {m} x {n} x {k}: other bits"
            launches = {
                which: lambda i, kernel=kernel, sets=sets, C=C, more=more: kernel(*sets[i % SETS], C, **more)
                for which, kernel in (("now", new), ("before", old))
            }
            timing = interleave(watch, launches, rounds=rounds, seconds=0.03, seed=seed)
            used = images[0].resources
            yield {
                "kernel": label,
                "size": [m, n, k],
                "ratio": quartiles(timing.speed_ratios("now", "before")),
                "microseconds": timing.median("now") * 1e3,
                "registers": [registers, used.registers],
                "spill loads": [spills, used.spill_loads],
            }


def _time(made: dict[str, Any], rounds: int, seed: int) -> None:
    cases = list(_cases(made["kernels"], rounds, seed))
    rows = [
        (
            case["kernel"],
            " x ".join(map(str, case["size"])),
            f"{case['microseconds']:.1f}",
            "{1:.4f} ({0:.4f} to {2:.4f})".format(*case["ratio"]),
            " and ".join(map(str, case["registers"])),
            " and ".join(map(str, case["spill loads"])),
        )
        for case in cases
    ]
    ratios = [case["ratio"][1] for case in cases]
    head = ("kernel", "m x n x k", "us", "speed, now to before (quartiles)", "registers, before and now", "spill loads")
    text = f"Mean {statistics.mean(ratios):.4f}, worst {min(ratios):.4f}, of medians of {rounds} rounds.\n\n"
    title = f"The Hopper ladder, now against {made['commit']}"
    write("compare_speed", title, text + table(head, rows), {"cases": cases})


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="compile the kernels of a commit")
    make.add_argument("commit")
    make.add_argument("to", type=Path)
    timed = commands.add_parser("time", help="time them against the working tree's")
    timed.add_argument("made", type=Path)
    timed.add_argument("--rounds", type=int, default=15)
    timed.add_argument("--seed", type=int, default=7, help="for the operands and the order")
    args = parser.parse_args(argv)
    if args.command == "make":
        _make(args.commit, args.to)
    else:
        _time(json.loads(args.made.read_text()), args.rounds, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
