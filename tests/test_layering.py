"""Modules import downward only, in the order of LAYERS."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent / "tiledsl"

# Lowest first. A module may import from its own layer and from those before it. What is not a folder is a file.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("outside", "errors", "arch", "findings", "refusals", "accepted", "forks", "html", "recursion", "tables"),
    ("layout",),
    ("ir", "boundary"),
    ("passes",),
    ("lang", "dims", "function", "meaning", "signatures"),
    ("frontend",),
    ("backends",),
    ("runtime", "compilation", "kernel", "measure", "verdict", "ranks"),
    ("inspect",),
    ("tune",),
    (
        "",
        "__main__",
        "pytest_plugin",
    ),  # tiledsl/__init__.py re-exports the language; the other two are for users
    ("gemm",),  # kernels, written in the language as users write theirs
    ("torch", "export"),  # gemm for others: as operators of PyTorch, as files for programs without Python
    ("distributed",),  # over the ranks of a process group
    ("commands",),
)
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}

# The middle of the compiler knows no target.
TARGET_FREE = tuple(part for layer in LAYERS[: LAYERS.index(("frontend",)) + 1] for part in layer)
TARGET_MODULES = ("llvmlite", "cuda")


def _files() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if "__pycache__" not in p.parts)


def _module(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def _imports(path: Path) -> list[tuple[str, int]]:
    """Every module that `path` imports, also inside functions and under TYPE_CHECKING, as (name, line)."""
    found: list[tuple[str, int]] = []
    package = ("tiledsl", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
            if base == "tiledsl":
                found += [(f"tiledsl.{alias.name}", node.lineno) for alias in node.names]
            else:
                found.append((base, node.lineno))
    return found


def _all_imports() -> list[tuple[str, Path, str, int]]:
    """Of every module: its part of tiledsl, its file, and what `_imports` says."""
    return [((_module(path) or ("",))[0], path, name, line) for path in _files() for name, line in _imports(path)]


def _part(module: str) -> str:
    """The part of tiledsl that a module name belongs to; names re-exported by tiledsl count as the top."""
    name = module.split(".")[1] if "." in module else ""
    return name if name in RANK else ""


def test_every_module_has_its_layer() -> None:
    homeless = [path.relative_to(ROOT) for path in _files() if (_module(path) or ("",))[0] not in RANK]
    assert not homeless, f"give these parts of tiledsl their place in LAYERS: {homeless}"


def test_imports_point_downward() -> None:
    upward = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for part, path, name, line in _all_imports()
        if part not in ("", "__main__") and name.split(".")[0] == "tiledsl" and RANK[_part(name)] > RANK[part]
    ]
    assert not upward, "\n".join(upward)


def test_the_middle_knows_no_target() -> None:
    target = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for part, path, name, line in _all_imports()
        if part in TARGET_FREE and name.split(".")[0] in TARGET_MODULES
    ]
    assert not target, "\n".join(target)


def test_import_tiledsl_is_light() -> None:
    """`import tiledsl` loads none of the heavy libraries: they wait until a kernel needs them."""
    heavy = ("numpy", "llvmlite", "cuda.bindings", "cuda.pathfinder", "rich", "pygments", "ml_dtypes")
    script = f"import sys, tiledsl; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.strip() == "[]"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """No module needs, over others, inside a function or for a type alone, one that needs it: each can be read after
    those that it imports."""
    paths = {".".join(("tiledsl", *_module(path))): path for path in _files()}
    backend = (ROOT.parent / "backends" / "ptx").rglob("*.py")  # rglob does not follow the link
    paths |= {f"tiledsl.backends.ptx.{path.stem}": path for path in backend if path.stem != "__init__"}
    needs = {name: _needs(path, paths) - {name} for name, path in paths.items()}
    while ready := [name for name, others in needs.items() if not others & needs.keys()]:
        for name in ready:
            del needs[name]
    circle = [name for name, others in needs.items() if others & needs.keys()]
    assert not circle, f"these import each other in a circle, or what does: {', '.join(sorted(circle))}"


def _needs(path: Path, paths: Mapping[str, Path]) -> set[str]:
    """The modules of `paths` that `path` imports; of ``from package import name`` the package for names of its own."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & paths.keys()
            found |= inner | ({str(node.module)} if len(inner) < len(node.names) else set())
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & paths.keys()
