"""A NumPy machine that runs kernels of either level, bit for bit as the GPU does.

`launch.run` is the entry. It flattens the kernel (`program`) into instructions (`control`), which
`machine` schedules over cohorts of warps (`cohort`); the `rules_*` files say what each op does.
"""

from tiledsl.backends.emulator.launch import run
from tiledsl.backends.emulator.options import Access, Hook, LaunchInfo, Options, RunResult, TraceRow

__all__ = ["Access", "Hook", "LaunchInfo", "Options", "RunResult", "TraceRow", "run"]
