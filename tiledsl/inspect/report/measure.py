"""A run on a GPU for a report: the kernel is timed as it is, and runs once in a build that stamps the clock.

`measure` needs a GPU. What it gives is a file, from which `measured` makes the part of a report anywhere.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiledsl.backends.stamp_records import STAMPS, Record, Regions, decode
from tiledsl.compilation.compiled import Image
from tiledsl.compilation.compiler import Builds, build
from tiledsl.compilation.lowering import lower
from tiledsl.errors import DeviceError, UsageError
from tiledsl.inspect.inputs import arguments_of, random_arrays, values_of
from tiledsl.inspect.report import data
from tiledsl.inspect.report.places import Places
from tiledsl.inspect.report.stamped import stamped_timeline
from tiledsl.ir.core import Kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.kernel import TileKernel
from tiledsl.measure import time_by_events
from tiledsl.outside import is_time, read_text
from tiledsl.runtime.dispatch import Dispatcher

SCHEMA = "tiledsl.stamps/1"
REPEAT = 20
"""Timed runs."""


@dataclass(frozen=True)
class Run:
    """What `measure` found. code: of the build with stamps. sizes: texts. us: of the kernel as it is, and of that
    build: median and least, back to back. same: whether both gave the same results. records: of each warp of the first
    cluster."""

    kernel: str
    arch: str
    code: str
    gpu: str
    sizes: dict[str, str]
    us: tuple[float, float]
    us_stamped: tuple[float, float]
    same: bool
    records: list[list[Record]]

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, separators=(",", ":")) + "\n"


def measure(kernel: TileKernel, arch: str, settings: Mapping[str, Any], sizes: Sequence[str]) -> Run:
    """On random data of these sizes, texts ``NAME=VALUE``. Raises UsageError, and DeviceError without a GPU."""
    from tiledsl.runtime.driver import available, driver

    values = values_of(kernel, "--measure", [*sizes])
    if available() is None:
        fix = "measure where one is, with --save-stamps FILE, and give the file to --stamps; `tiledsl doctor` says more"
        raise DeviceError(f"--measure needs an NVIDIA GPU, and this process can use none\n  fix: {fix}")
    gpu = driver()
    gpu.target_of(0, kernel.name, arch)
    lowered, bound, code = lowered_run(kernel, arch, settings, values, random_arrays())
    target, chosen = kernel.dispatcher.build_of(bound)
    if chosen != arch:
        raise UsageError(f"--measure runs {kernel.name} as it is built for {chosen} here\n  fix: add --arch {chosen}")
    image = build(kernel.signature, target, arch, stamps=True)
    builds = Builds(kernel.signature)
    builds.adopt(target, arch, image)
    us, results, _ = _run(kernel.dispatcher, bound)
    again = _bound(kernel, settings, values, random_arrays())
    us_stamped, stamped_results, memory = _run(Dispatcher(builds), again, image)
    return Run(
        kernel=kernel.name, arch=arch, code=code, gpu=gpu.devices[0].name,
        sizes={name: str(value) for name, value in values.items()}, us=us, us_stamped=us_stamped,
        same=results == stamped_results, records=decode(memory, Regions.of(lowered)),
    )  # fmt: skip


def _run(
    dispatcher: Dispatcher, bound: Mapping[str, Any], image: Image | None = None
) -> tuple[tuple[float, float], list[bytes], bytes]:
    """(median and least time in us, what the kernel has written, the stamps of the last run). image: the build with
    stamps, if this is it."""
    arguments = dispatcher.arguments(bound)
    with dispatcher.on_gpu(arguments) as launch:
        gpu, device = launch.plan.driver, launch.plan.device
        seconds = time_by_events(launch, REPEAT)
        memory = b""
        with gpu.active(device) as context:
            if image is not None:
                code = context, image.cubin, image.name, image.arch, image.shared_bytes, device
                function = gpu.function(*code)
                gpu.clear_variable(function, STAMPS)
                launch.run()
                gpu.synchronize(launch.stream, f"{image.name}()")
                memory = gpu.read_variable(function, STAMPS)
            else:
                launch.run()
        written = launch.plan.written
    us = 1e6 * statistics.median(seconds), 1e6 * min(seconds)
    return us, [bound[name].tobytes() for name in written], memory


def _bound(
    kernel: TileKernel, settings: Mapping[str, Any], values: Mapping[str, int | float], make: Callable[..., Any]
) -> dict[str, Any]:
    """The arguments of a call by name, on the host."""
    return kernel.dispatcher.launcher.bind((), arguments_of(kernel, settings, values, make))


def lowered_run(
    kernel: TileKernel,
    arch: str,
    settings: Mapping[str, Any],
    values: Mapping[str, int | float],
    make: Callable[..., Any],
) -> tuple[Kernel, dict[str, Any], str]:
    """(the kernel with stamps that a run of these sizes launches, its arguments, a digest of it)"""
    bound = _bound(kernel, settings, values, make)
    used, _ = kernel.dispatcher.build_of(bound, arch)
    lowered = lower(kernel.signature, used, arch, stamps=True)[0]
    return lowered, bound, hashlib.sha256(print_kernel(lowered, locs=False).encode()).hexdigest()


def read_run(file: str) -> Run:
    """What `Run.to_json` wrote. Raises UsageError."""
    fix = "give a file that `tiledsl report --measure ... --save-stamps FILE` wrote"
    try:
        fields = json.loads(read_text(Path(file)))
        if fields.pop("schema") != SCHEMA:
            raise ValueError
        records = [[(site, time, place) for site, time, place in each] for each in fields.pop("records")]
        us, us_stamped = (tuple(fields.pop(name)) for name in ("us", "us_stamped"))
        run = Run(**fields, us=us, us_stamped=us_stamped, records=records)
        if not _is_typed(run):
            raise ValueError
        return run
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}\n  fix: {fix}") from error
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} has no stamps of this version, {SCHEMA}\n  fix: {fix}") from error


def _is_typed(run: Run) -> bool:
    texts = (run.kernel, run.arch, run.code, run.gpu, *run.sizes.keys(), *run.sizes.values())
    numbers = [number for row in run.records for record in row for number in record]
    return (
        all(type(text) is str for text in texts)
        and all(type(number) is int for number in numbers)
        and all(len(pair) == 2 and all(map(is_time, pair)) for pair in (run.us, run.us_stamped))
        and type(run.same) is bool
    )


def measured(
    kernel: TileKernel, arch: str, settings: Mapping[str, Any], run: Run,
    roles: Sequence[data.Role], rings: Sequence[data.Ring], places: Places,
) -> data.Measured:  # fmt: skip
    """Of a run of this kernel. It needs no GPU. Raises UsageError for a run of another build."""
    import numpy as np

    values = values_of(kernel, "--measure", [f"{name}={value}" for name, value in run.sizes.items()])
    lowered, _, code = lowered_run(kernel, arch, settings, values, np.zeros)
    if (run.kernel, run.code) != (kernel.name, code):
        of = f"of {run.kernel} for {run.arch}" if (run.kernel, run.arch) != (kernel.name, arch) else "of other code"
        fix = "measure again, or give the --const, --dtype and --arch that were measured"
        raise UsageError(f"the stamps are {of}: not of {kernel.name} as it is now\n  fix: {fix}")
    try:
        timeline, mhz = stamped_timeline(lowered, run.records, roles, rings, places)
    except (ArithmeticError, LookupError, ValueError) as error:
        message = f"the stamps are of no run of {kernel.name}: {type(error).__name__} in their records"
        raise UsageError(f"{message}\n  fix: measure again") from error
    digits = [float(f"{us:.4g}") for us in (*run.us, run.us_stamped[0])]
    return data.Measured(run.gpu, run.sizes, (digits[0], digits[1]), digits[2], run.same, round(mhz), timeline)
