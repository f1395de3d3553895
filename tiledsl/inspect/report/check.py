"""``k.check`` for a report: on the emulator, with arrays of zeros of the sizes that were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiledsl.backends.emulator.timeline import Timeline
from tiledsl.backends.emulator.work import Work
from tiledsl.errors import EmulatorError, Finding, HazardError
from tiledsl.inspect.inputs import arguments_of, sizes_needed, values_of
from tiledsl.inspect.report import data
from tiledsl.inspect.report.data import Check
from tiledsl.inspect.report.places import Places
from tiledsl.kernel import TileKernel
from tiledsl.verdict import MOST, assuming

DEADLOCK = "T401"


@dataclass(frozen=True)
class Checked:
    """With what its warps did, what the whole launch computed, if it passed, what was found, the deadlock in which it
    ended, if so, and the `sizes` that the grid may name."""

    check: Check
    timeline: Timeline | None = None
    work: Work | None = None
    findings: list[data.Finding] = field(default_factory=list[data.Finding])
    deadlock: Finding | None = None
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])


def checked(kernel: TileKernel, settings: Mapping[str, Any], sizes: list[str], places: Places) -> Checked:
    """sizes: texts ``NAME=VALUE`` for extents and scalars; without any,
    the kernel does not run. An optional tensor is passed if all of its extents are given. Raises TileError for sizes
    that the kernel does not have or cannot do without."""
    if not sizes:
        how = " ".join(f"--check {name}=..." for name in sizes_needed(kernel))
        return Checked(Check(None, False, f"not run: give {how or '--check, with a size'}", -1))
    values = values_of(kernel, "--check", sizes)
    import numpy as np

    from tiledsl.backends.emulator import Options

    given = {name: str(value) for name, value in values.items()}
    passed = arguments_of(kernel, settings, values, np.zeros)
    dispatcher, timeline, work = kernel.dispatcher, Timeline(), Work()
    arguments = dispatcher.arguments(dispatcher.launcher.bind((), passed), "emulator")
    dispatcher.place(arguments)
    found: list[Finding] = []

    def take(error: HazardError) -> None:
        found.append(error.finding)
        if len(found) >= MOST:
            raise error

    try:
        dispatcher.emulate(arguments, Options(checks=True, report=take, hooks=(timeline, work)))
    except EmulatorError as error:
        if not found or found[-1] is not error.finding:
            found.append(error.finding)
    if found:
        findings = [_finding(each, places) for each in found]
        text = "\n\n".join(each.text for each in findings)
        deadlock = next((each for each in found if each.code == DEADLOCK), None)
        return Checked(Check(given, False, text, findings[0].place), timeline, None, findings, deadlock)
    assumed = assuming(dispatcher.emulated(arguments).prepared.models)
    passed = Check(given, True, f"no race, no deadlock, no read of what was not written{assumed}", -1)
    named = {p.name: p.default for p in kernel.signature.scalars} | values
    return Checked(passed, timeline, work, sizes={n: value for n, value in named.items() if isinstance(value, int)})


def _finding(found: Finding, places: Places) -> data.Finding:
    """With the lines of all sides."""
    place = places.of(found.loc)
    also = dict.fromkeys(places.of(side.loc) for side in found.sides)
    fix = f"\nfix: {found.fix}" if found.fix else ""
    text = places.shown(f"{found.code}: {found.message}{fix}")
    return data.Finding("error", text, place, "timeline", [each for each in also if each not in (place, -1)])
