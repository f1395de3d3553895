"""What is timed for the model of the choice, and its fit, without a GPU."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import choice_fit, choice_times
from benchmarks.choice_fit import (
    F32,
    HOPPER,
    INT4,
    Model,
    Times,
    bytes_of,
    constants,
    digits,
    fit,
    load,
    put,
    rewritten,
)
from benchmarks.choice_times import as_row, jobs_of, of_row, sampled
from tiledsl.gemm import choice, ffma_choice
from tiledsl.gemm.choice import Request, best, estimate, halves, table_of
from tiledsl.inspect.contenders import Size

SIZE = Size(1000, 2000, 3000)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The model of other tests has its own constants."""
    before = {model: constants(model) for model in (HOPPER, F32, INT4)}
    yield
    for model, values in before.items():
        put(values, model)


@pytest.fixture
def times() -> Times:
    return Times(load(*HOPPER.files)[::10])


# -- what is timed ---------------------------------------------------------------------------------------


def test_the_fastest_by_the_model_are_timed_and_some_of_each_kind() -> None:
    found = sampled(SIZE, "NT", 24, random.Random(1))
    assert found[0] == best(Request(1, 1000, 2000, 3000, (True, True))) and len(set(found)) == len(found) == 24
    assert {v.exchanged for v in found} == {False, True} and {v.tile[2] for v in found} == {1, 2}
    assert len(sampled(Size(8192, 8192, 8192), "NT", 24, random.Random(1))) <= 16


def test_jobs_are_the_same_each_time_and_families_take_turns() -> None:
    jobs = list(jobs_of(["deep", "batched"], 5, 2, ["NT", "NN"], 4))
    assert [(job.family, job.layout) for job in jobs[:4]] == [
        ("deep", "NT"), ("deep", "NN"), ("batched", "NT"), ("batched", "NN"),
    ]  # fmt: skip
    assert jobs == list(jobs_of(["deep", "batched"], 5, 2, ["NT", "NN"], 4))
    assert len({job.key for job in jobs}) == 8


def test_a_line_of_the_file_gives_the_variant_back() -> None:
    for layout in ("NT", "NN"):
        for v in sampled(SIZE, layout, 24, random.Random(1)):
            row = as_row(12.5, v)
            assert len(row) == 1 + len(choice_times.COLUMNS) and of_row(json.loads(json.dumps(row)), layout) == (
                12.5,
                v,
            )
    job = next(jobs_of(["batched"], 5, 1, ["NT"], 2))
    size = job.size
    line = {"format": "bf16", "seed": 5, "layout": "NT", "shape": [size.batch, size.m, size.n, size.k]}
    assert choice_times.key_of(line) == job.key


def test_all_kernels_are_built_ahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--seed", "3", "--families", "small", "--count", "1", "--layouts", "NT", "--variants", "2"]
    command = [*given, "--build", "--kernels", str(tmp_path / "k"), "--processes", "2"]
    assert choice_times.main(command) == 0
    assert "1 shapes, 2 variants" in capsys.readouterr().out
    assert len(list((tmp_path / "k").glob("*.kernel"))) == 2
    assert choice_times.main([*given, "--kernels", str(tmp_path / "k"), "--out", str(tmp_path)]) == 1
    assert "a benchmark needs an NVIDIA GPU" in capsys.readouterr().err


# -- the fit ---------------------------------------------------------------------------------------------


def test_the_model_is_that_of_the_choice(times: Times) -> None:
    """Asked for all at once, it says of each what it says of it alone."""
    found = times.by_model()
    formats = [shape.format for shape in times.shapes]
    for row in (7, *(formats.index(f) for f in ("bf16", "e4m3", "tf32", "i8"))):
        shape = times.shapes[row]
        (*product, k), (size, result) = shape.shape, bytes_of(shape)
        product += halves(k, size), (True, shape.layout == "NT"), 132
        for column, (_, v) in enumerate(shape.times):
            total = estimate(table_of([v], [result]), *product, size=size, result=result).total[0]
            assert math.isclose(found[row, column], math.log(total), rel_tol=1e-12)
        assert np.isinf(found[row, len(shape.times) :]).all()


def test_a_fit_makes_the_score_smaller_and_leaves_what_was_measured(times: Times) -> None:
    before, macs = times.score(), choice.MACS
    found = fit(times, 60)
    assert before > times.score()
    assert macs == choice.MACS
    assert found == constants() and all(value > 0 for value in found.values())


def test_constants_that_are_far_off_choose_badly(times: Times) -> None:
    """So the data decide: with other constants, the choice is worse."""
    before = times.chosen().mean()
    put({("FIRST", None): 200.0})
    assert times.chosen().mean() > 2 * before


def test_the_model_of_fp32_is_that_of_its_choice() -> None:
    """Of a shape whose operands are aligned, and of one whose operands are not."""
    shapes = load(*F32.files, model=F32)
    some = [next(s for s in shapes if (s.shape[3] % 4 > 0) == odd and s.shape[1] > 16) for odd in (False, True)]
    for shape, times in zip(some, Times(some, model=F32).by_model(), strict=True):
        along, (batch, m, n, k) = shape.layout == "NT", shape.shape
        unaligned = sum(extent % 4 > 0 for extent in (k, k if along else n))
        found = ffma_choice.ranked_f32(10**6, ffma_choice.Product(batch, m, n, k, along, unaligned))
        by_option = {(c.name, parts, whole): times.total for c, parts, whole, times in found}
        known = [(t, by_option.get((v[0].name, *v[1:]))) for (_, v), t in zip(shape.times, times, strict=False)]
        known = [(t, us) for t, us in known if us]
        assert len(known) > 1 and all(math.isclose(t, math.log(1e3 * us), rel_tol=1e-9) for t, us in known)


def test_what_is_chosen_in_fp32_is_fast_where_it_was_measured() -> None:
    """5% slower than the fastest in the mean; constants that are far off choose worse."""
    times = Times(load(*F32.files, model=F32), model=F32)
    before = times.chosen().mean()
    assert before < 0.05
    put({("PARTS", None): 30.0, ("L2", None): 1e6}, F32)
    assert times.chosen().mean() > 2 * before


@pytest.mark.parametrize(("family", "most"), [("few", 0.03), ("many", 0.01)])
def test_what_is_chosen_for_int4_is_fast_where_it_was_measured(family: str, most: float) -> None:
    """Slower than the fastest in the mean, as a logarithm; constants that are far off choose worse."""
    times = Times([shape for shape in load(*INT4.files, model=INT4) if shape.family == family], model=INT4)
    before = times.chosen().mean()
    assert before < most
    put({key: value * (9 if key[0] == "UNPACKED" else 1) for key, value in constants(INT4).items()}, INT4)
    assert times.chosen().mean() > before + 0.02


@pytest.mark.parametrize("model", [HOPPER, F32, INT4])
def test_the_source_is_rewritten_in_place(model: Model) -> None:
    text = Path(str(model.module.__file__)).read_text()
    values = {name: digits(1.1 * value) for name, value in constants(model).items()}
    new = rewritten(text, values)
    assert len(new.splitlines()) == len(text.splitlines())
    changed = [(a, b) for a, b in zip(text.splitlines(), new.splitlines(), strict=True) if a != b]
    assert all(
        a.partition(" = ")[0] == b.partition(" = ")[0] or a.partition(": ")[0] == b.partition(": ")[0]
        for a, b in changed
    )
    made: dict[str, Any] = {"__name__": model.module.__name__}
    exec(compile(new, "rewritten", "exec"), made)
    for (name, key), value in values.items():
        assert (made[name] if key is None else made[name][key]) == value
    assert all(made[name] == getattr(model.module, name) for name in ("MACS", "TOGETHER", "EARLY") if name in made)
    assert rewritten(new, values) == new


@pytest.mark.parametrize(("value", "written"), [(13358.7, 13359), (2.0612, 2.06), (0.86349, 0.863), (134.4, 134)])
def test_a_constant_has_three_digits(value: float, written: float) -> None:
    assert digits(value) == written


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    some = tmp_path / "times.jsonl"
    lines = (choice_fit.RESULTS / "choice_times.jsonl").read_text().splitlines(keepends=True)
    some.write_text("".join(lines[::40]))
    assert choice_fit.main([str(some), "--rounds", "5", "--worst", "1"]) == 0
    printed = capsys.readouterr().out
    assert "fitted:" in printed and "\nDRAM = " in printed and "; fastest Variant(" in printed
    assert choice_fit.main([str(some), "--check", "family", "--rounds", "2"]) == 0
    assert "without family" in capsys.readouterr().out


def test_some_constants_alone(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--rounds", "2", "--seeds", "8981", "--only", "ORDER", "COPY"]
    assert choice_fit.main(given) == 0
    assert [line.split(" = ")[0] for line in capsys.readouterr().out.splitlines() if " = " in line] == ["ORDER", "COPY"]
    with pytest.raises(SystemExit):
        choice_fit.main(["--only", "MACS"])
    assert "--only: no constants MACS; there are SM_INTAKE," in capsys.readouterr().err
