"""Imported once, by the process that all others are forked from: what a case would read or import."""

from tests.fuzz.corpus import programs, texts
from tiledsl.backends import emulator, ptx
from tiledsl.frontend import build

programs()
texts()

__all__ = ["build", "emulator", "ptx"]
