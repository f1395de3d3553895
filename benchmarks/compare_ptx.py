"""The PTX of the gallery at two commits: what is the same, and what differs. Needs no GPU.

    python -m benchmarks.compare_ptx main            the working tree against main
    python -m benchmarks.compare_ptx main~3 main     two commits
    python -m benchmarks.compare_ptx main --keep /tmp/ptx && diff -r /tmp/ptx/before /tmp/ptx/after

Every kernel of examples/gemm is compiled in every variant and format, and with the consts it chooses for some sizes,
for calls without its optional tensors.
Locations, comments and the labels of debug information do not count. Each commit is checked out into a temporary
worktree and compiled by a process of its own, with the same Python. Exit status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Code", "checkout", "differences", "main", "without_locations"]

ROOT = Path(__file__).parent.parent
SIZES = ((128, 128, 128), (1000, 1000, 1000), (4096, 4096, 4096), (4096, 512, 4096))
"""Sizes for which kernels choose their consts: small, odd, large, and skinny ones."""


class Code(NamedTuple):
    """The result for one kernel. ptx: without locations; "" where it does not compile, and `error` says why."""

    ptx: str
    registers: int = 0
    spills: int = 0
    error: str = ""

    @property
    def instructions(self) -> int:
        """Statements without declarations; each line of inline PTX counts."""
        return sum(line.endswith(";") and not line.startswith(".") for line in self.ptx.splitlines())


def without_locations(ptx: str) -> str:
    """PTX without ``.loc``, ``.file``, the names of functions to which these point (the section .debug_str, the last
    one), comments, the labels that only debug information has, and indentation."""
    lines = (line.split("//")[0].strip() for line in ptx.split(".section\t.debug_str")[0].splitlines())
    return "\n".join(line for line in lines if line and not line.startswith((".loc", ".file", "$L__tmp"))) + "\n"


def differences(before: dict[str, Code], after: dict[str, Code]) -> list[str]:
    """A line for each kernel whose code differs, or that only one of the two has."""
    found: list[str] = []
    for label in dict.fromkeys((*before, *after)):
        a, b = before.get(label), after.get(label)
        if a is None or b is None:
            found.append(f"{label}: only {'after' if a is None else 'before'}")
        elif a.error or b.error:
            found += [f"{label}: {a.error or 'compiled'} -> {b.error or 'compiles'}"] if a.error != b.error else []
        elif a.ptx != b.ptx:
            pairs = ((name, getattr(a, name), getattr(b, name)) for name in ("registers", "spills", "instructions"))
            found.append(f"{label}: " + ", ".join(f"{name} {x} -> {y}" for name, x, y in pairs))
    return found


# -- one commit, in a process of its own -----------------------------------------------------------------


def collect(arch: str) -> dict[str, Code]:
    """The code of every kernel of the checkout in the working directory, which may be an old one: it uses only what
    every commit has."""
    sys.path[:0] = [os.getcwd(), str(Path("examples/gemm").resolve())]
    import gallery  # pyright: ignore[reportMissingImports]

    found: dict[str, Code] = {}
    for entry in (*gallery.GALLERY, *gallery.HOPPER):
        kernel = gallery.load(entry)
        for format in entry.formats:
            for consts in _consts(gallery, entry, format, arch):
                label = " ".join([entry.kernel, format, *(f"{name}={value}" for name, value in consts.items())])
                found[label] = _code(kernel, arch, gallery.dtypes(kernel, format) | consts)
    return found


def _consts(gallery: Any, entry: Any, format: str, arch: str) -> list[dict[str, Any]]:
    """The variants, and the consts that the kernel chooses."""
    chosen = [gallery.chosen(entry, {}, *size, format, arch=arch) for size in SIZES] if entry.choose else []
    found: list[dict[str, Any]] = []
    for consts in (*entry.variants, *chosen):
        found += [consts] if consts not in found else []
    return found


def _code(kernel: Any, arch: str, settings: dict[str, Any]) -> Code:
    try:
        spec, arch = kernel.specialized(arch, settings)
        optional = {param.name for param in kernel.signature.tensors if param.optional}
        spec = replace(spec, tensors=tuple((name, None if name in optional else t) for name, t in spec.tensors))
        compiled = kernel.builds.compiled(spec, arch)
    except Exception as error:  # of any kind, as old commits may have them; its location does not count
        return Code("", error=f"{type(error).__name__}: {str(error).splitlines()[0].split('error: ')[-1]}")
    used = compiled.resources
    return Code(without_locations(compiled.ptx), used.registers, used.spill_stores + used.spill_loads)


# -- both ------------------------------------------------------------------------------------------------


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A folder with the files of `commit`; the working tree itself for ""."""
    if not commit:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(path), commit], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def _started(folder: Path, arch: str) -> subprocess.Popen[str]:
    # -P: files beside this one, such as benchmarks/gallery.py, are not importable by their bare names.
    command = [sys.executable, "-P", __file__, "--arch", arch, "--collect", "."]
    environment = os.environ | {"TILEDSL_CACHE": "0", "PYTHONPATH": str(folder)}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen[str]) -> dict[str, Code]:
    printed, _ = process.communicate()
    if process.returncode:
        raise SystemExit("a commit cannot be compiled: see above")
    return {label: Code(*code) for label, code in json.loads(printed).items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", default="", help="a commit (default: the working tree)")
    parser.add_argument("--arch", default="sm_90a", help="target (default sm_90a)")
    parser.add_argument("--keep", type=Path, help="folder for the PTX of both, without locations")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.collect:
        print(json.dumps(collect(args.arch)))
        return 0

    with ExitStack() as stack:
        folders = [stack.enter_context(checkout(commit)) for commit in (args.before, args.after)]
        before, after = map(_result, [_started(folder, args.arch) for folder in folders])
    for name, codes in (("before", before), ("after", after)) if args.keep else ():
        (args.keep / name).mkdir(parents=True, exist_ok=True)
        for label, code in codes.items():
            (args.keep / name / f"{label}.ptx".replace("/", "_")).write_text(code.ptx or code.error)
    differ = differences(before, after)
    print("\n".join([*differ, f"{len(after)} kernels after, {len(before)} before; {len(differ)} differ"]))
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
