"""Kernels of several GPUs in one run of the emulator: each launch has a rank, and memory is shared where arrays are.

What a GPU sees of another's memory are NumPy arrays here, which launches of several ranks get as arguments. All
launches run at the same time, also those of one rank, as on streams of their own: nothing orders them but atomic
operations, of scope "sys" between ranks (docs/memory_model.md). A copy engine is one more launch on its rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiledsl.errors import Loc, short_traceback
from tiledsl.kernel import TileKernel
from tiledsl.runtime.dispatch import Arguments
from tiledsl.signatures.specialize import Called, argument_error
from tiledsl.verdict import Asked, CheckResult, checked, written_arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tiledsl.backends.emulator import Options, Prepared, RunResult

__all__ = ["OnRank", "check_ranks", "run_ranks"]


@dataclass(frozen=True)
class OnRank:
    """A launch of a kernel on the GPU `rank`, 0 or above. `args`: as in a call: NumPy arrays, which may be those of
    other launches, in part, too, and scalars. `consts`: what a call gets by name."""

    rank: int
    kernel: TileKernel
    args: tuple[Any, ...] | list[Any] = ()
    consts: Mapping[str, Any] = field(default_factory=dict[str, Any])


@short_traceback
def run_ranks(launches: Iterable[OnRank], *, seed: int | None = None) -> None:
    """Run the launches together on the emulator; arrays are written in place.

    seed: of the order in which warps take turns; None and 0 are the usual one. Raises KernelArgumentError,
    CompileErrors, and EmulatorError or HazardError for what the kernels do wrong, as waiting for a flag that nobody
    sets.
    """
    from tiledsl.backends.emulator import Options

    asked = Asked.of(Called("run_ranks"), (), (), seed)
    _Together("run_ranks", launches).run(Options(seed=asked.seeds[0]))


@short_traceback
def check_ranks(
    launches: Iterable[OnRank],
    *,
    seed: int | None = None,
    seeds: int | None = None,
    raises: bool = True,
    checks: Any = None,
    without: Any = (),
    baseline: Any = None,
    processors: int | None = None,
) -> CheckResult:
    """Run the launches together with the emulator's checks: as `TileKernel.check`, whose options these are, for all
    kernels at once. Arrays are written as by the last run, and each run finds what they hold now.

    Races between ranks are found as those between blocks of one. Raises HazardError for the first finding, unless
    `raises` is False, and KernelArgumentError, CompileErrors and EmulatorError as `run_ranks`.
    """
    together = _Together("check_ranks", launches)
    names = [launch.kernel.name for launch in together.launches]
    asked = Asked.of(
        Called("check_ranks"), names, (), seed, seeds, raises, checks, without, baseline, processors=processors
    )
    return checked(together, asked)


class _Together:
    """Launches that run at the same time, as what a check runs."""

    def __init__(self, called: str, launches: Iterable[OnRank]) -> None:
        self.launches = _require_launches(called, launches)
        self.name = ", ".join(dict.fromkeys(launch.kernel.name for launch in self.launches))
        self.loc: Loc = self.launches[0].kernel.signature.loc
        self.arguments = [each.kernel.on_host((*each.args,), dict(each.consts)) for each in self.launches]

    def arrays(self) -> list[NDArray[Any]]:
        return [array for arguments in self.arguments for array in written_arrays(arguments)]

    def code(self) -> list[Prepared]:
        return [
            launch.kernel.dispatcher.emulation(arguments, shared=True)[0].prepared
            for launch, arguments in self._with_arguments()
        ]

    def run(self, options: Options) -> RunResult:
        from tiledsl.backends.emulator import OneLaunch, run_together

        together: list[OneLaunch] = []
        for launch, arguments in self._with_arguments():
            lowered, inputs = launch.kernel.dispatcher.emulation(arguments, shared=True)
            together.append(OneLaunch(lowered.prepared, inputs, launch.rank))
        return run_together(together, options=options)

    def _with_arguments(self) -> Iterable[tuple[OnRank, Arguments]]:
        return zip(self.launches, self.arguments, strict=True)


def _require_launches(called: str, launches: Any) -> list[OnRank]:
    """Raises KernelArgumentError."""
    fix = "pass a list of OnRank(rank, kernel, args, consts)"
    if not isinstance(launches, Iterable) or isinstance(launches, (str, bytes, Mapping)):
        raise argument_error(Called(called), f"launches is a {type(launches).__name__}", fix)  # pyright: ignore[reportUnknownArgumentType]
    given: list[Any] = [*launches]  # pyright: ignore[reportUnknownArgumentType]
    if not given:
        raise argument_error(Called(called), "there are no launches", fix)
    for number, launch in enumerate(given):
        if not isinstance(launch, OnRank):
            raise argument_error(Called(called), f"launch {number} is a {type(launch).__name__}", fix)
        for problem, what in _problems(launch):
            raise argument_error(Called(called), f"of launch {number} {problem}", what)
    return given


def _problems(launch: Any) -> Iterable[tuple[str, str]]:
    """What is wrong with it, and what to pass."""
    if type(launch.rank) is not int or launch.rank < 0:
        yield f"the rank is {launch.rank!r}", "pass the GPU's number in its group, an int from 0 on"
    if not isinstance(launch.kernel, TileKernel):
        yield f"the kernel is a {type(launch.kernel).__name__}", "pass a function with @tile_kernel"
    if not isinstance(launch.args, (tuple, list)):
        yield f"args is a {type(launch.args).__name__}", "pass a tuple of the kernel's arguments, as in a call"
    if not isinstance(launch.consts, Mapping):
        yield f"consts is a {type(launch.consts).__name__}", 'pass a dict by name, as {"BM": 64}'
