"""``k.check`` for a report: on the emulator, with arrays of zeros of the sizes that were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiledsl.backends.emulator.timeline import Timeline
from tiledsl.backends.emulator.work import Work
from tiledsl.errors import EmulatorError, Finding
from tiledsl.inspect.inputs import arguments_of, sizes_needed, values_of
from tiledsl.inspect.report.data import Check
from tiledsl.inspect.report.places import Places
from tiledsl.kernel import TileKernel
from tiledsl.signatures.signature import Specialization


@dataclass(frozen=True)
class Checked:
    """With what its warps did, what the whole launch computed, if it ended, what was found, and the `sizes` that the
    grid may name."""

    check: Check
    timeline: Timeline | None = None
    work: Work | None = None
    found: Finding | None = None
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])


def checked(
    kernel: TileKernel, spec: Specialization, consts: Mapping[str, Any], sizes: list[str], places: Places
) -> Checked:
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
    arrays = arguments_of(kernel, spec, values, np.zeros)
    dispatcher, timeline, work = kernel.dispatcher, Timeline(), Work()
    arguments = dispatcher.arguments(dispatcher.launcher.bind((), {**arrays, **consts}), "emulator")
    dispatcher.place(arguments)
    try:
        dispatcher.emulate(arguments, Options(checks=True, hooks=(timeline, work)))
    except EmulatorError as error:
        fix = f"\nfix: {error.fix}" if error.fix else ""
        place = places.of(error.loc)
        for side in error.finding.sides:
            places.of(side.loc)
        text = places.shown(f"{error.finding.code}: {error.message}{fix}")
        failed = Check(given, False, text, place)
        return Checked(failed, timeline, None, error.finding)
    passed = Check(given, True, "no race, no deadlock, no read of what was not written", -1)
    named = {p.name: p.default for p in kernel.signature.scalars} | values
    return Checked(passed, timeline, work, sizes={n: value for n, value in named.items() if isinstance(value, int)})
