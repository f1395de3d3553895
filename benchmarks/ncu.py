"""Hardware counters of launches, by Nsight Compute: one row of counters for each kernel launch of a program."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["COPY_COUNTERS", "COUNTERS", "Launch", "find_ncu", "parse", "profile"]

COUNTERS: Mapping[str, str] = {
    "load wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "store wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "load conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "store conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "ldmatrix wavefronts": "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldsm.sum",
    "ldmatrix conflicts": "sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum",
    "stmatrix wavefronts": "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_stsm.sum",
    "stmatrix conflicts": "sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_stsm.sum",
    "cp_async wavefronts": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",
    "cp_async conflicts": "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum",
    "all wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "load instructions": "smsp__inst_executed_op_shared_ld.sum",
    "store instructions": "smsp__inst_executed_op_shared_st.sum",
    "atomic instructions": "smsp__inst_executed_op_shared_atom.sum",
}
"""The counters, by our names. Those that a version of ncu does not have are left out."""

COPY_COUNTERS: Mapping[str, str] = {
    "cp_async wavefronts": COUNTERS["cp_async wavefronts"],
    "cp_async conflicts": COUNTERS["cp_async conflicts"],
    "conflicts in the pipe": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum",
    "all shared wavefronts": COUNTERS["all wavefronts"],
    "all wavefronts of the pipe": "l1tex__data_pipe_lsu_wavefronts.sum",
    "bank reads": "l1tex__data_bank_reads.sum",
    "bank writes": "l1tex__data_bank_writes.sum",
    "tag requests": "sm__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts.sum",
    "tag stage": "l1tex__t_set_accesses_pipe_lsu_mem_global_op_ld.sum",
    "sectors": "l1tex__m_xbar2l1tex_read_sectors_mem_lg_op_ld.sum",
}
"""For a launch whose only access to shared memory is an asynchronous copy: what it moves, and through which units."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `counters`: the values that ncu reported, by the names of COUNTERS."""

    kernel: str
    counters: dict[str, int]


def find_ncu() -> str:
    """ncu on the PATH or in a CUDA toolkit. Raises SystemExit that says where to find it."""
    found = shutil.which("ncu")
    toolkits = sorted(Path("/usr/local").glob("cuda*/bin/ncu"), reverse=True)
    if found is None and not toolkits:
        raise SystemExit("this needs ncu (Nsight Compute, part of the CUDA toolkit) on the PATH")
    return found or str(toolkits[0])


def profile(
    command: Sequence[str], folder: Path, counters: Mapping[str, str] = COUNTERS, only: str = ""
) -> list[Launch]:
    """Run `command` in `folder` under ncu; its launches of kernels whose name contains `only`, in order.

    Raises SystemExit with ncu's own message where it fails, for instance where counters are not permitted.
    """
    ncu = find_ncu()
    metrics = _available(ncu, counters)
    # To a file: the program's own output and ncu's remarks do not mix with the rows.
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "ncu.csv"
        options = ["--csv", "--clock-control", "none", "--cache-control", "none", "--log-file", str(log)]
        options += ["--kernel-name", f"regex:{only}"] if only else []
        done = subprocess.run(
            [ncu, *options, "--metrics", ",".join(metrics), *command],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        text = log.read_text() if log.exists() else ""
    if done.returncode or "==ERROR==" in text:
        raise SystemExit(f"ncu failed ({done.returncode}):\n{text[-2000:]}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return parse(text, counters)


def _available(ncu: str, counters: Mapping[str, str]) -> list[str]:
    """The counters that this ncu knows; asking for another one would make it stop."""
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False).stdout
    names = {line.split()[0] for line in listed.splitlines() if line.strip()}
    known = [counter for counter in counters.values() if counter.split(".")[0] in names]
    return known or list(counters.values())


def parse(text: str, counters: Mapping[str, str] = COUNTERS) -> list[Launch]:
    """Launches from what ``ncu --csv --metrics`` prints: one row for each launch and metric.

    Lines before the header, ``==PROF==`` remarks among them, are skipped. Raises ValueError for text without rows,
    and for a counter without a number.
    """
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError(f"no table of ncu in this text: {text[:200]!r}")
    rows = [line for line in lines[start:] if line.startswith('"')]
    names = {counter: name for name, counter in counters.items()}
    launches: dict[str, Launch] = {}
    for row in csv.DictReader(io.StringIO("\n".join(rows))):
        launch = launches.setdefault(row["ID"], Launch(row["Kernel Name"], {}))
        name = names.get(row["Metric Name"])
        if name is not None:
            launch.counters[name] = _number(row["Metric Name"], row["Metric Value"])
    return [launches[number] for number in sorted(launches, key=int)]


def _number(metric: str, text: str) -> int:
    try:
        return round(float(text.replace(",", "")))
    except ValueError:
        raise ValueError(f"{metric} has no value: {text!r}") from None
