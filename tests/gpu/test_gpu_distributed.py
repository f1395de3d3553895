"""`tiledsl.distributed` on all GPUs of this machine: one test for each program of distributed_programs.py, by peers'
memory and by NCCL, also as two nodes that do not reach each other's memory."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tiledsl.runtime.driver import available

pytestmark = pytest.mark.gpu

PROGRAMS = Path(__file__).with_name("distributed_programs.py")
ROOT = PROGRAMS.parents[2]
SECONDS = 240
ALONE = {"graphs", "missing"}
"""Programs of the overlapped kernels alone."""


def _names() -> list[str]:
    """The programs, read without importing them: collection needs no GPU and no torch."""
    tree = ast.parse(PROGRAMS.read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]


def _gpus() -> int:
    driver = available()
    count = 0 if driver is None else len(driver.devices)
    if count < 2:
        pytest.skip(f"this machine has {count} GPU")
    return count


def _started(program: tuple[str, ...], *options: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *options, *program]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def _output(*programs: subprocess.Popen[str]) -> list[str]:
    try:
        return [program.communicate(timeout=SECONDS)[0] for program in programs]
    finally:
        for program in programs:
            program.kill()


@pytest.mark.parametrize("peers", ["1", "0"])
@pytest.mark.parametrize("name", [name for name in _names() if name != "missing"])
def test_program(name: str, peers: str) -> None:
    if peers == "0" and name in ALONE:
        pytest.skip("of the overlapped kernels alone")
    program = _started((str(PROGRAMS), name), "--standalone", f"--nproc-per-node={_gpus()}", TILEDSL_PEERS=peers)
    (output,) = _output(program)
    assert program.returncode == 0 and "done\n" in output, output[-6000:]
    assert ("NCCL sends what products need: TILEDSL_PEERS is 0" in output) == (peers == "0"), output[-6000:]


@pytest.mark.parametrize("which", ["gather", "scatter", "reduce"])
def test_a_rank_that_does_not_come_is_named(which: str) -> None:
    count = _gpus()
    arguments = str(PROGRAMS), "missing", which
    (output,) = _output(_started(arguments, "--standalone", f"--nproc-per-node={count}", TILEDSL_PEER_TIMEOUT="2"))
    assert f"rank {count - 1} of the group did not come to this product in time" in output, output[-6000:]


@pytest.mark.parametrize("name", ["products", "layers"])
def test_two_nodes(name: str) -> None:
    """Two launches of torchrun, each with half of the GPUs, without access to peers."""
    count = _gpus()
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
    each, nodes = count // 2, []
    for node in range(2):
        seen = ",".join(str(number) for number in range(node * each, node * each + each))
        options = f"--nnodes=2 --node-rank={node} --nproc-per-node={each} --master-addr=127.0.0.1 --master-port={port}"
        environment = {"CUDA_VISIBLE_DEVICES": seen, "NCCL_P2P_DISABLE": "1"}
        nodes.append(_started((str(PROGRAMS), name), *options.split(), **environment))
    outputs = _output(*nodes)
    assert not any(node.returncode for node in nodes), "\n".join(output[-3000:] for output in outputs)
    assert "NCCL sends what products need" in outputs[0], outputs[0][-3000:]
