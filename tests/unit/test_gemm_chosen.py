"""``python -m tiledsl choose``: what is chosen, why, and what the runner-up costs."""

from __future__ import annotations

import json
import re

import pytest

from tiledsl.__main__ import main
from tiledsl.gemm.choice import ranked
from tiledsl.gemm.chosen import explain_choice
from tiledsl.gemm.plan import Problem, choice_of, plan


def chosen(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["choose", *arguments]) == 0
    return capsys.readouterr().out


def rows(text: str) -> list[list[float]]:
    """The numbers of the candidates."""
    lines = text[text.index("---\n") + 4 :].splitlines()
    found = [re.findall(r"(?<=  )\d+\.\d+", line) for line in lines]
    return [[float(number) for number in row] for row in found if row]


def test_the_terms_add_up_to_the_total_and_the_fastest_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    text = chosen(capsys, "4096x4096x4096", "--top", "3")
    found = rows(text)
    assert len(found) == 3 and [row[0] for row in found] == sorted(row[0] for row in found)
    for total, *terms in found:
        assert total == pytest.approx(sum(terms[:4]), abs=0.04)
        assert terms[1] >= max(terms[4:])
    longer = float(re.findall(r"expected to take (\d+\.\d)% longer", text)[0])
    assert longer == pytest.approx(100 * (found[1][0] / found[0][0] - 1), abs=0.1)
    consts = plan(Problem(1, 4096, 4096, 4096)).consts
    assert f"BM={consts['BM']} BN={consts['BN']} " in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["16x8192x8192", "--stored", "NT"], ["computed as the transposed product", "16, transposed"]),
        (["256x512x126592"], ["parts, whose sums are added up within the launch", ", k by "]),
        (["1000x999x777"], ["A and B copied first, to rows that TMA can read"]),
        (["1024", "--format", "f32"], ["by fastest on sm_90a", "compute", "reduction"]),
        (["1024", "--format", "f32", "--batch-invariant"], ["SLICES=1"]),
        (["4096", "--arch", "sm_80"], ["by mma_fastest on sm_80", "from a table"]),
        (["8x512x512x64", "64", "--out", "f32"], ["8x512x512x64, bf16 to f32, ", "\n64x64x64, bf16 to f32, "]),
        (["4096", "--processors", "78", "--add-c", "--bias"], ["with 78 SMs"]),
    ],
)
def test_it_says_what_is_done(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: list[str]) -> None:
    text = chosen(capsys, *arguments)
    assert [what for what in expected if what not in text] == []


def test_operands_that_are_loaded_in_parts() -> None:
    text = str(explain_choice(Problem(1, 128, 129, 64, tma_b=False, apart_b=True)))
    assert ("operands that TMA cannot read as they are loaded in parts" in text) == ("APART=" in text)
    assert "APART=" in text or "loading operands in parts would take longer" in text


@pytest.mark.parametrize("size", [(1, 4096, 4096, 4096), (1, 64, 512, 126592), (4, 512, 512, 512), (1, 1, 1, 1)])
def test_the_first_of_the_ranking_is_what_is_chosen(size: tuple[int, int, int, int]) -> None:
    problem = Problem(*size)
    ((variant, _),) = ranked(1, choice_of(problem))
    assert plan(problem).consts == variant.consts(problem.k)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["64", "--format", "q8"], "gemm takes no 'q8'\n  fix: give one of f32, "),
        (["64", "--format", "f64"], "precision='i8x15'"),
        (["64", "--format", "f64", "--arch", "sm_80"], "precision='i8x15'"),
        (["64", "--arch", "sm_1"], "sm_1"),
        (["64", "--top", "0"], "--processors and --top are 1 or more"),
        (["64", "--format", "f32", "--out", "bf16"], "a C of bf16 for A and B of f32"),
        (["64", "--out", "q"], "q"),
    ],
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["choose", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and "Traceback" not in printed.err


@pytest.mark.parametrize("text", ["x", "1x2", "0"])
def test_sizes_that_are_none(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with pytest.raises(SystemExit):
        main(["choose", text])
    assert "expected N, MxNxK or BATCHxMxNxK" in capsys.readouterr().err


def test_the_choice_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The same candidates and terms as in the table."""
    asked = ["choose", "4096", "2x64x512x1000", "--top", "3", "--stored", "NT"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert (found["schema"], found["format"], found["stored"]) == ("tiledsl.choose/1", "bf16", "NT")
    assert [choice["size"] for choice in found["choices"]] == [[4096] * 3, [2, 64, 512, 1000]]
    for choice in found["choices"]:
        assert choice["kernel"] == "hopper_fastest" and all(note in text for note in choice["notes"])
        assert len(choice["candidates"]) == 3
        for each in choice["candidates"]:
            numbers = [each["total_us"], *each["terms_us"].values()]
            # Four digits behind the point, and the table has two.
            row = next(line for line in text.splitlines() if line.startswith(f"{each['candidate']}  "))
            assert [float(number) for number in row.removeprefix(each["candidate"]).split()] == pytest.approx(
                numbers, abs=0.0051
            )
