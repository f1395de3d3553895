"""The scripts of ``tiledsl completion`` complete, each in its own shell."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiledsl.__main__ import COMMANDS, main
from tiledsl.commands.completion import SHELLS

BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_tiledsl tiledsl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = 'autoload -Uz compinit; compinit -D; eval "$(cat $1)"; echo $_comps[tiledsl]'
FISH = 'source $argv[1]; complete -C "$argv[2..]" | string replace -r "\\t.*" ""'


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        command = [sys.executable, "-m", "tiledsl", "completion", shell]
        (folder / shell).write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return folder


def asked(shell: str, scripts: Path, program: str, *words: str) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    # bash and zsh take a name before the arguments of a program, fish does not.
    command = [shell, "-c", program, *([] if shell == "fish" else [shell]), str(scripts / shell), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(("shell", "program"), [("bash", BASH), ("fish", FISH)])
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("",), {*COMMANDS}),
        (("show", "k.py", "--st"), {"--stage"}),
        (("show", "k.py", "--stage", "p"), {"ptx"}),
        (("show", "k.py", "--arch", "sm_9"), {"sm_90", "sm_90a"}),
        (("error", "C20"), {"C201", "C202", "C203", "C204", "C205"}),
        (("gallery", "n"), {"new"}),
    ],
)
def test_what_is_offered(shell: str, program: str, words: tuple[str, ...], offered: set[str], scripts: Path) -> None:
    found = asked(shell, scripts, program, "tiledsl", *words)
    assert {each for each in found if not each.startswith("-") or words[-1]} >= offered
    assert words == ("",) or set(found) == offered


def test_zsh_takes_the_script(scripts: Path) -> None:
    assert asked("zsh", scripts, ZSH) == ["_shtab_tiledsl"]


def test_every_option_is_in_every_script(scripts: Path) -> None:
    for shell in SHELLS:
        text = (scripts / shell).read_text()
        assert all(name in text for name in COMMANDS)
        assert all(word in text for word in ("batch-invariant", "exit-code", "no-source", "T101", "sm_120a"))


def test_without_shtab(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install shtab" in capsys.readouterr().err
