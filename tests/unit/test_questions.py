"""What can be asked of `Compiled`: no pass runs twice for an answer, and the answers are about what was compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tiledsl import Global, barrier, cdiv, const, f32, grid, shared, threads, tile_kernel
from tiledsl.compilation.lowering import lower
from tiledsl.dims import M, N
from tiledsl.errors import TileError
from tiledsl.ir.core import Kernel
from tiledsl.ir.printer import print_kernel
from tiledsl.passes.manager import Pass, run_passes, stages_of
from tiledsl.passes.pipeline import stages

SCALE = 2.0


@tile_kernel
def transposed(X: Global[f32, M, N], Y: Global[f32, N, M], *, T: const = 32):
    i, j = grid(cdiv(N, T), cdiv(M, T))
    x, y = threads(T, 8)
    S = shared((T, T), f32)
    for k in range(T // 8):
        S[y + 8 * k, x] = X.get(j * T + y + 8 * k, i * T + x)
    barrier()
    for k in range(T // 8):
        Y.put(i * T + y + 8 * k, j * T + x, S[x, y + 8 * k] * f32(SCALE))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each pass ran, by the name of its stage."""
    count: Counter[str] = Counter()
    monkeypatch.setenv("TILEDSL_CACHE", "0")

    def counting(kernel: Kernel, passes: Sequence[Pass], **options: Any) -> Kernel:
        count.update(stages_of(passes))
        return run_passes(kernel, passes, **options)

    monkeypatch.setattr("tiledsl.passes.pipeline.run_passes", counting)
    return count


def compiled_anew() -> Any:
    return tile_kernel(transposed.fn).compile("sm_90a")


def test_what_a_build_has_kept_runs_no_pass(ran: Counter[str]) -> None:
    compiled = compiled_anew()
    assert ran == Counter(stages())
    for ask in ("ptx", "llvm", "cubin", "resources", "grid", "threads", "written", "label"):
        assert getattr(compiled, ask)
    assert compiled.explain("sass") and repr(compiled)
    assert ran == Counter(stages())


def test_all_reports_run_each_pass_once(ran: Counter[str]) -> None:
    """Up to where layouts are chosen; no report is about what follows."""
    compiled = compiled_anew()
    ran.clear()
    for _ in range(2):
        assert "wavefronts" in str(compiled.explain("banks"))
        assert str(compiled.explain("pipeline"))
    assert ran == Counter(stages()[: stages().index("bank-conflict")])


@pytest.mark.parametrize("locs", [False, True])
def test_all_stages_of_the_ir_run_each_pass_once(ran: Counter[str], locs: bool) -> None:
    compiled = compiled_anew()
    ran.clear()
    for stage in compiled.stages:
        assert compiled.ir(stage, locs=locs) == compiled.ir(stage, locs=locs)
    assert ran == Counter(stages())


def test_a_report_prints_no_ir(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compiled_anew()
    monkeypatch.setattr("tiledsl.ir.printer.print_kernel", None)
    assert compiled.explain("banks") and compiled.explain("pipeline")


def test_a_stage_with_lines_is_what_the_compiler_has_there() -> None:
    compiled = compiled_anew()
    printed: dict[str, str] = {}

    def observe(name: str, kernel: Kernel) -> None:
        printed[name] = print_kernel(kernel, locs=True)

    lower(compiled.signature, compiled.spec, compiled.arch, observe=observe)
    assert printed == {stage: compiled.ir(stage, locs=True) for stage in compiled.stages}


def test_no_answer_is_about_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked before stays; what the passes would have to run for is an error once a name has changed."""
    asked, unasked = compiled_anew(), compiled_anew()
    banks, tile = str(asked.explain("banks")), asked.ir()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert str(asked.explain("banks")) == banks and asked.ir() == tile
    for question in (lambda: unasked.explain("banks"), lambda: unasked.explain("pipeline"), unasked.ir):
        with pytest.raises(TileError, match="what transposed reads has changed since it was compiled"):
            question()
