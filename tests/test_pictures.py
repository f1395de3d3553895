"""The pictures of the README are what the command makes of the committed results, and nothing in them overlaps."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.pictures import FOLDER, PICTURES, WIDTH, cases

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"
CHARACTER, LINE = 7.0, 13.0
"""Of text: about as wide and as high as it is drawn."""


def boxes(picture: Any) -> list[tuple[float, float, float, float, str]]:
    """Left, right, top and bottom of each text."""
    found = list[tuple[float, float, float, float, str]]()
    for text in picture.iter(f"{SVG}text"):
        kinds, content = text.get("class").split(), text.text or ""
        x, y, width = float(text.get("x")), float(text.get("y")), CHARACTER * len(content)
        left = x - width if "end" in kinds else x - width / 2 if "middle" in kinds else x
        found.append((left, left + width, y - LINE + 3, y + 3, content))
    return found


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_command_makes(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text() == PICTURES[name](), "run python -m benchmarks.pictures"


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_overlaps_or_leaves_the_picture(name: str) -> None:
    picture: Any = ElementTree.fromstring(PICTURES[name]())
    height, texts = float(picture.get("height")), boxes(picture)
    assert len(texts) > 10
    for left, right, top, bottom, content in texts:
        assert left >= 0 and right <= WIDTH and top >= 0 and bottom <= height, content
    for one, other in combinations(texts, 2):
        apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
        assert apart, f"{one[4]!r} lies over {other[4]!r}"
    for dot in picture.iter(f"{SVG}circle"):
        assert 0 < float(dot.get("cx")) < WIDTH and 0 < float(dot.get("cy")) < height - 30


def test_both_schemes_colour_the_same() -> None:
    """What is dark on light is light on dark: each class that has a colour of its own has two."""
    light, dark = re.findall(r"<style>(.*?)@media[^{]*{(.*?)}\s*</style>", PICTURES["roofline"](), re.DOTALL)[0]
    coloured = set(re.findall(r"(?:^|[\s}])(\.?\w+) {[^}]*(?:fill|stroke): #", light))
    assert coloured == set(re.findall(r"(?:^|[\s}])(\.?\w+) {[^}]*(?:fill|stroke): #", dark))


def test_the_numbers_are_in_the_pictures() -> None:
    ladder = PICTURES["ladder"]()
    for case in cases("gemm_cold"):
        if case["size"] == [4096] * 3 and case["kernel"] in ("naive", "fastest", "maxas_64"):
            assert f"{case['tflops']:.1f}, {case['ratio']:.2f} of cuBLAS" in ladder
    dots = PICTURES["families"]().count("<circle")
    every = sum(c["kernel"] != "cuBLAS" for f in ("bf16", "f32") for c in cases(f"random_shapes_{f}_cold_rested"))
    assert dots == every + 2  # of the legend


@pytest.mark.parametrize("page", ["README.md", "examples/gemm/README.md"])
def test_they_are_where_people_look_first(page: str) -> None:
    assert re.search(r"!\[[^\]]+\]\([./]*docs/pictures/ladder\.svg\)", (ROOT / page).read_text())
