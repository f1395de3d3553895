"""A NumPy machine that runs kernels of either level, bit for bit as the GPU does.

`launch.run` is the entry. It flattens the kernel (`program`) into instructions (`control`), which `machine` and
`schedule` let cohorts of warps (`cohort`) execute in turn; `rules/` says what each op does to them and to what their
blocks own (`chunk`). Checks (`sanitizer/`) are a hook (`hooks`).
"""

from tiledsl.backends.emulator.hooks import Access, Hook, LaunchInfo
from tiledsl.backends.emulator.launch import Prepared, run
from tiledsl.backends.emulator.options import Options, RunResult, TraceRow

__all__ = ["Access", "Hook", "LaunchInfo", "Options", "Prepared", "RunResult", "TraceRow", "run"]
