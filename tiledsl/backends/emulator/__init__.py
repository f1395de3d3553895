"""A NumPy machine that runs kernels of either level, bit for bit as the GPU does.

`launch.run` is the entry, `launch.run_together` that of several launches. It flattens the kernel (`program`) into
instructions (`control`), which `machine` and `schedule` let cohorts of warps (`cohort`) execute in turn; `rules/` says
what each op does to them and to what their blocks own (`chunk`). Checks (`sanitizer/`) are a hook (`hooks`).
"""

from tiledsl.backends.emulator.hooks import Access, Hook, LaunchInfo
from tiledsl.backends.emulator.launch import OneLaunch, Prepared, run, run_together
from tiledsl.backends.emulator.options import Options, RunResult, TraceRow

__all__ = [
    "Access",
    "Hook",
    "LaunchInfo",
    "OneLaunch",
    "Options",
    "Prepared",
    "RunResult",
    "TraceRow",
    "run",
    "run_together",
]
