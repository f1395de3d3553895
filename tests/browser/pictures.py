"""The pictures of docs/report.md: what is seen first of kernels with a planted fault, and what parts of a report draw.

make pictures
"""

from __future__ import annotations

import io
from pathlib import Path

from tests.browser.chromium import chromium
from tests.browser.test_page import GEMM, report_of
from tiledsl.inspect.report.page import page

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
SCREEN = {"width": 1280, "height": 800}
GALLERY = GEMM / "hopper_ring.py"
COLORS = 128
"""Of a picture: enough for a page of text, and a third of the bytes."""

PICTURES = {
    "conflict": ("conflict", "light", ""),
    "spill": ("spill", "light", ""),
    "deadlock": ("deadlock", "light", ""),
    "banks": ("hopper_fastest", "light", "#shared details:last-of-type"),
    "timeline": ("deadlock", "dark", "#timeline"),
    "measured": ("hopper_ring", "light", "#timeline"),
    "report": ("hopper_ring", "light", "#panes"),
}
"""By name: the report, the colours, and the part that is shown, "" for the first screen."""


def main() -> None:
    from PIL import Image

    FOLDER.mkdir(exist_ok=True)
    with chromium() as browser:
        for name, (kernel, scheme, part) in PICTURES.items():
            text = page(report_of(kernel))
            found = browser.new_page(viewport=SCREEN, color_scheme=scheme)
            found.set_content(text)
            if "details" in part:
                found.locator(part).evaluate("each => { each.open = true; }")
                found.locator(f"{part} svg").first.wait_for()
            if part == "#panes":
                line = next(n for n, text in enumerate(GALLERY.read_text().splitlines(), 1) if "= wgmma(" in text)
                found.evaluate(f"location.hash = '#python-0-{line}'")
                found.locator('section[aria-label="SASS"] .row.lit').first.wait_for()
            taken = (found.locator(part) if part else found).screenshot()
            picture = FOLDER / f"{name}.png"
            with Image.open(io.BytesIO(taken)) as image:
                image.convert("RGB").quantize(COLORS).save(picture, optimize=True)
            print(f"{picture.relative_to(FOLDER.parents[1])}: {picture.stat().st_size} bytes")


if __name__ == "__main__":
    main()
