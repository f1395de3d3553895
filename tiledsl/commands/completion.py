"""Print a script by which a shell completes commands, options and their values.

    eval "$(tiledsl completion bash)"   in ~/.bashrc
    eval "$(tiledsl completion zsh)"    in ~/.zshrc, behind compinit
    tiledsl completion fish | source    in ~/.config/fish/config.fish

The script is made once: a shell that uses it starts no Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Any, cast

from tiledsl import findings, refusals
from tiledsl.arch import TARGETS
from tiledsl.errors import ToolNotFoundError

SHELLS = ("bash", "zsh", "fish")
VALUES = {"arch": [*TARGETS], "code": [*refusals.KINDS, *findings.KINDS]}
"""Of arguments by their name: what is offered for those that argparse takes as they are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(arguments: argparse.Namespace) -> int:
    try:
        shtab: Any = import_module("shtab")  # it has types, but is not needed for anything else
    except ImportError as error:
        raise ToolNotFoundError(
            f"shtab was not found, which writes the script ({error})\n  fix: pip install shtab"
        ) from None
    parser: argparse.ArgumentParser = arguments.whole()
    for action in _actions(parser):
        if action.choices is None and action.dest in VALUES:
            action.choices = VALUES[action.dest]
        elif action.choices is None and "FILE" in str(action.metavar):
            action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue] - what shtab looks for
    print(shtab.complete(parser, shell=arguments.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Of all commands, and of theirs."""
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage] - argparse has no other way
        yield action
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            for each in cast(Any, action).choices.values():
                yield from _actions(each)
