"""The pictures of docs/report.md: what is seen first of kernels with a planted fault, and what parts of a report draw.

make pictures
"""

from __future__ import annotations

import io
from pathlib import Path

from tests.browser.chromium import chromium
from tests.browser.test_page import REPORTS
from tiledsl.inspect.loading import load_kernel
from tiledsl.inspect.report.collect import collect
from tiledsl.inspect.report.page import page

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
SCREEN = {"width": 1280, "height": 800}
COLORS = 128
"""Of a picture: enough for a page of text, and a third of the bytes."""

PICTURES = {
    "conflict": ("conflict", "light", ""),
    "spill": ("spill", "light", ""),
    "deadlock": ("deadlock", "light", ""),
    "banks": ("hopper_fastest", "light", "#shared details:last-of-type"),
    "timeline": ("deadlock", "dark", "#timeline"),
}
"""By name: the report, the colours, and the part that is shown, "" for the first screen."""


def main() -> None:
    from PIL import Image

    FOLDER.mkdir(exist_ok=True)
    with chromium() as browser:
        for name, (kernel, scheme, part) in PICTURES.items():
            file, settings, check = REPORTS[kernel]
            text = page(collect(load_kernel(file, kernel), "sm_90a", settings, check))
            found = browser.new_page(viewport=SCREEN, color_scheme=scheme)
            found.set_content(text)
            if "details" in part:
                found.locator(part).evaluate("each => { each.open = true; }")
                found.locator(f"{part} svg").first.wait_for()
            taken = (found.locator(part) if part else found).screenshot()
            picture = FOLDER / f"{name}.png"
            with Image.open(io.BytesIO(taken)) as image:
                image.convert("RGB").quantize(COLORS).save(picture, optimize=True)
            print(f"{picture.relative_to(FOLDER.parents[1])}: {picture.stat().st_size} bytes")


if __name__ == "__main__":
    main()
