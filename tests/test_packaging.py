"""The wheel holds everything, backends/ptx included, and works away from the checkout."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tiledsl.inspect.report.page import FOLDER

ROOT = Path(__file__).parent.parent


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_link_is_relative_and_points_into_the_checkout() -> None:
    link = ROOT / "tiledsl" / "backends" / "ptx"
    assert link.is_symlink(), "tiledsl/backends/ptx must be a symbolic link (did the checkout drop it?)"
    assert str(link.readlink()) == "../../backends/ptx"
    assert not (ROOT / "backends" / "__init__.py").exists(), "`import backends` would load a second copy"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what belongs to the package."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "tiledsl", "backends"):
        _run("cp", "-a", str(ROOT / name), str(source), cwd=ROOT)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built through an sdist as a release would be."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source), cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_every_module_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {"tiledsl/py.typed", *(f"tiledsl/inspect/report/{f.name}" for f in FOLDER.iterdir() if f.is_file())}
    for folder, package in ((ROOT / "tiledsl", "tiledsl"), (ROOT / "backends/ptx", "tiledsl/backends/ptx")):
        expected |= {f"{package}/{path.relative_to(folder)}" for path in folder.rglob("*.py")}
    assert "tiledsl/backends/ptx/lower.py" in expected
    assert not expected - names


def test_the_wheel_works_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """Unpacked into an empty folder, with the checkout out of sight."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = "import tiledsl, tiledsl.backends.ptx as t; print(tiledsl.__file__, t.__file__, *t.TARGETS)"
    # -P: the working directory stays off sys.path; the unpacked wheel stands before an editable install.
    path = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {script}"
    printed = _run(sys.executable, "-P", "-c", path, cwd=tmp_path)
    assert printed.count(str(tmp_path / "site")) == 2
    assert "sm_90a" in printed


# What Python's os lacks on Windows, where there are neither forks nor descriptors of folders.
WINDOWS_LACKS = ("register_at_fork", "fork", "getuid", "fchmod", "sched_getaffinity", "O_DIRECTORY", "O_NOFOLLOW")


def test_what_needs_numpy_and_ml_dtypes_alone(wheel: Path, tmp_path: Path) -> None:
    """The emulator, the check, IR, reports and layouts give the same with all other packages hidden, and what needs one
    says so. Not run on macOS or Windows: this is what differs there, on this machine."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    script = str(ROOT / "tests" / "unit" / "numpy_alone.py")
    full, bare = (
        json.loads(_run(sys.executable, "-P", script, str(site), *hidden, cwd=tmp_path))
        for hidden in ((), WINDOWS_LACKS)
    )
    assert bare["same"] == full["same"]
    assert full["same"]["check"] == "clean" and "tile.shared_alloc" in full["same"]["tile"]
    assert full["differs"]["works"]["machine_code"] and full["differs"]["lowered"] == full["differs"]["compiled"] == ""
    assert bare["differs"]["from"].startswith(str(site))
    assert bare["differs"]["works"] == {"emulator": True, "machine_code": False, "gpu": False}
    for message in (bare["differs"]["lowered"], bare["differs"]["compiled"]):
        assert message.startswith("llvmlite was not found") and "pip install llvmlite" in message
        assert "The emulator, k.check and k.lower(...).ir() do without it" in message


def test_wheels_of_cuda_are_for_linux(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        needed = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    ours = [line for line in needed if "extra ==" not in line]
    everywhere = {re.split(r"[<>=;]", line)[0] for line in ours if "sys_platform" not in line}
    assert everywhere == {"llvmlite", "numpy", "ml_dtypes", "rich", "pygments", "shtab"}
    assert len(ours) == len(everywhere) + 4 and all('sys_platform == "linux"' in n for n in ours if "cuda" in n)


def test_an_editable_install_is_a_path(source: Path, tmp_path: Path) -> None:
    """Editors and type checkers follow the line of a .pth file; an import hook they cannot run."""
    build = f"import setuptools.build_meta as build; build.build_editable({str(tmp_path)!r})"
    _run(sys.executable, "-c", build, cwd=source)
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        installed = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert [Path(name).suffix for name in installed] == [".pth"]
        assert archive.read(installed[0]).decode().split() == [str(source)]
