"""A small, fixed sample of `python -m tests.fuzz sequences`, and that it finds what it is for; see CONTRIBUTING.md."""

from __future__ import annotations

import pytest

from tests.fuzz import fresh, sequences
from tiledsl.gemm import call
from tiledsl.gemm.formats import factors

C = "t(1, (16, 16), 'bf16'), t(2, (16, 16), 'bf16', first=np.nan), t(3, (16, 16), 'bf16', first=np.inf)"
PAIRS = {
    "beta that rounds to 0": ("beta=0.5**150", "beta=1.0"),
    "alpha that rounds to 0": ("alpha=1e-50, beta=1.0", "alpha=0.5, beta=0.5"),
    "0 of another type": ("beta=np.float16(0)", "beta=np.float16(6e-8)"),
    "not a number of kernels": ("beta=1.0", "beta=True"),
}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def found(pair: tuple[str, str]) -> tuple[str, str]:
    text = "".join(f"gemm({C}, {given})\n" for given in pair)
    outcome = sequences.run(text, 0, 0)
    return outcome.kind, outcome.place


@pytest.mark.parametrize("name", PAIRS)
def test_a_call_is_what_it_is_alone(name: str) -> None:
    assert found(PAIRS[name]) == ("ok", "")
    assert found(PAIRS[name][::-1]) == ("ok", "")


@pytest.mark.parametrize("name", ["beta that rounds to 0", "alpha that rounds to 0"])
def test_a_key_of_other_numbers_than_the_plan_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "factors", lambda alpha, beta, precision: (alpha, beta))
    assert found(PAIRS[name]) == ("stale", "gemm")


def test_later_calls_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that differ in alpha alone are planned once; otherwise nothing would be compared."""
    slow: list[object] = []
    function = call._call
    monkeypatch.setattr(call, "_call", lambda *given: (slow.append(given), function(*given))[1])
    results, errors = sequences.in_turn([f"gemm({C}, alpha={alpha})" for alpha in ("1.0", "0.5", "-1.0")])
    assert len(slow) == 1 and errors == [None] * 3 and len({*results}) == 3


def test_launches_of_a_kernel_are_looked_up() -> None:
    """Launches with other scalars, refused ones included, do the same as each of them alone."""
    scalars = "x=1e-50", "x=np.float32(2)", "small=128", "brain=0.3, half=70000.0", "COUNT=True", "brain=0.3, flag=True"
    text = "".join(f"many_scalars(t(1, (32,), 'f32'), {given})\n" for given in scalars)
    assert sequences.run(text, 0, 0).kind == "ok"


def test_a_launch_of_one_array() -> None:
    """The factor of A and B is 0, so the only kernel has C alone."""
    tensors = "t(1, (16, 16), 'f64'), t(2, (16, 8), 'f64', first=np.nan), t(3, (16, 8), 'f64')"
    results, errors = sequences.in_turn(
        [f"gemm({tensors}, alpha={zero}, precision='i8x15')" for zero in ("0", "1e-400")]
    )
    assert errors == [None, None] and results[0] == results[1]


def test_a_process_of_its_own_gives_the_same() -> None:
    assert fresh.run("many_scalars(t(1, (32,), 'f32'), half=0.1)\n", 0, 0).kind == "ok"


def test_cases_are_of_every_kind() -> None:
    calls = "".join(sequences.generate(1, case) for case in range(200))
    names = "grouped_gemm(", "masked_gemm(", "int4_gemm(", "warmup(", "release()", "scale_a=", "i8x15", "many_scalars("
    for name in names:
        assert calls.count(name) > 5, name
    assert sequences.generate(1, 5) == sequences.generate(1, 5) != sequences.generate(2, 5)


@pytest.mark.parametrize("number", [2.0**-150, 2.0**-149, -(2.0**-151), 1e-50, 2.0**-126, 0.0, -0.0, float("nan")])
def test_a_factor_is_0_where_it_rounds_to_0(number: float) -> None:
    counts = abs(number) > 2.0**-150 or number != number
    assert [bool(factor) for factor in factors(number, number, None)] == [counts, counts]
    assert bool(factors(number, 0, "i8x15")[0]) == (number != 0)
    assert call.LOW < number < call.HIGH or factors(number, 0, None)[0] != 0
