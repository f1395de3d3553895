"""The page of a report as a browser shows it: panes that are linked, what is drawn, and how long it takes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.chromium import chromium
from tiledsl.__main__ import main
from tiledsl.inspect.inputs import values_of
from tiledsl.inspect.loading import load_kernel
from tiledsl.inspect.report.collect import collect
from tiledsl.inspect.report.data import Report
from tiledsl.inspect.report.measure import lowered_run, read_run
from tiledsl.inspect.report.page import page

pytestmark = pytest.mark.browser

HERE = Path(__file__).parent
KERNELS = HERE / "kernels.py"
GEMM = HERE.parents[1] / "examples" / "gemm"
FORMATS = {"D": "bf16", "E": "bf16", "F": "bf16"}
REPORTS: dict[str, tuple[Path, dict[str, Any], list[str]]] = {
    "conflict": (KERNELS, {}, []),
    "spill": (KERNELS, {}, []),
    "deadlock": (KERNELS, {}, ["M=64", "K=512"]),
    "large": (KERNELS, {}, []),
    "hopper_fastest": (GEMM / "hopper_fastest.py", FORMATS, ["M=256", "N=256", "K=512", "L=1"]),
    "hopper_ring": (GEMM / "hopper_ring.py", {"D": "bf16"}, ["M=256", "N=256", "K=512"]),
}
MEASURED = {"hopper_ring": HERE / "hopper_ring.stamps"}
"""Runs on an H200: `tiledsl report examples/gemm/hopper_ring.py --dtype D=bf16 --measure M=2048 --measure N=2048
--measure K=512 --save-stamps FILE -o k.html`."""
LOCAL = re.compile("file:|blob:")
SIZES = {"phone": (390, 844), "laptop": (1280, 800), "wide": (2560, 1300)}


def report_of(name: str) -> Report:
    """Of `REPORTS`, with the run that was measured, if there is one."""
    file, settings, check = REPORTS[name]
    kernel = load_kernel(file, name)
    if name not in MEASURED:
        return collect(kernel, "sm_90a", settings, check)
    run = read_run(str(MEASURED[name]))
    values = values_of(kernel, "--measure", [f"{size}={value}" for size, value in run.sizes.items()])
    # The code may have changed since, which a report refuses: here the page is tested.
    code = lowered_run(kernel, "sm_90a", settings, values, np.zeros)[2]
    return collect(kernel, "sm_90a", settings, check, replace(run, code=code))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the page of each report."""
    made = tmp_path_factory.mktemp("reports")
    for name in REPORTS:
        (made / f"{name}.html").write_text(page(report_of(name)), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def opened(browser: Any, folder: Path) -> Iterator[Any]:
    """Opens a report; at the end fails if the console had an error, a dialog was opened, or the network was asked."""
    pages: list[Any] = []
    wrong: list[str] = []

    def open_(name: str, size: str = "laptop", scheme: str = "light", at: str = "") -> Any:
        width, height = SIZES[size]
        found = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        found.on("console", lambda each: wrong.append(each.text) if each.type in ("error", "warning") else None)
        found.on("pageerror", lambda error: wrong.append(str(error)))
        found.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        found.on("request", lambda each: None if LOCAL.match(each.url) else wrong.append(each.url))
        found.goto(f"{(folder / name).with_suffix('.html').as_uri()}{at}")
        pages.append(found)
        return found

    yield open_
    for each in pages:
        each.close()
    assert wrong == []


def lit(found: Any, pane: str) -> int:
    return found.locator(f'section[aria-label="{pane}"]').locator(".row.lit, .row.here").count()


def row(found: Any, pane: str, text: str) -> Any:
    return found.locator(f'section[aria-label="{pane}"] .row', has_text=text).first


# -- the panes -------------------------------------------------------------------------------------------


def test_a_click_lights_up_what_belongs_together_in_all_panes(opened: Any) -> None:
    found = opened("conflict")
    row(found, "Python", "= S[x, y + 8 * i]").click()
    assert all(lit(found, pane) for pane in ("Python", "IR", "PTX", "SASS"))
    assert found.evaluate("location.hash").startswith("#python-0-")
    assert found.locator("#status").inner_text().startswith("Lines that belong to this one: ")
    row(found, "SASS", "LDS").click()
    assert found.evaluate("location.hash").startswith("#sass-")
    here = found.locator('section[aria-label="Python"] .row.lit').all_inner_texts()
    assert len(here) == 1 and "= S[x, y + 8 * i]" in here[0]
    found.keyboard.press("Escape")
    assert not any(lit(found, pane) for pane in ("Python", "IR", "PTX", "SASS"))


def test_the_address_leads_to_its_line(opened: Any) -> None:
    found = opened("conflict", at="#sass-0010")
    assert found.locator('section[aria-label="SASS"] .row.here').count() == 1


def test_the_slider_and_the_keys_choose_the_pass(opened: Any) -> None:
    found = opened("conflict")
    slider, choice = found.locator('input[aria-label="Pass"]'), found.locator('select[aria-label="Pass"]')
    first = row(found, "IR", "level(thread)")
    assert first.count() == 1
    slider.focus()
    found.keyboard.press("Home")
    assert choice.evaluate("each => each.value") == "0" and row(found, "IR", "level(tile)").count() == 1
    found.locator('section[aria-label="IR"] .rows').focus()
    for _ in range(30):
        found.keyboard.press(".")
    assert slider.evaluate("each => each.value") == slider.evaluate("each => each.max") and first.count() == 1
    choice.select_option("3")
    assert slider.evaluate("each => each.value") == "3"


def test_a_pane_scrolls_and_is_searched(opened: Any) -> None:
    found = opened("large")
    found.locator('input[aria-label="Find in SASS"]').fill("EXIT")
    found.keyboard.press("Enter")
    assert "EXIT" in found.locator('section[aria-label="SASS"] .row.here').inner_text()
    assert found.locator('section[aria-label="SASS"] .row').count() < 200


def test_downloads(opened: Any) -> None:
    found = opened("conflict")
    with found.expect_download() as download:
        found.get_by_text("conflict.ptx").click()
    assert ".visible .entry conflict(" in Path(download.value.path()).read_text()


# -- what is drawn -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["conflict", "spill", "deadlock", "hopper_fastest"])
def test_all_is_drawn_without_an_error_and_fits_the_width(opened: Any, name: str, size: str, scheme: str) -> None:
    found = opened(name, size, scheme)
    found.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    found.wait_for_timeout(100)
    assert found.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert found.evaluate("[...document.querySelectorAll('main > section')].every((each) => each.children.length > 1)")
    dark = found.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((each) => each < 64)")
    assert dark == (scheme == "dark")


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("conflict", ["bank conflicts: load of S takes 32 wavefronts, 1 without conflicts"]),
        ("spill", ["spills: ", "of local memory"]),
        ("deadlock", ["deadlock: these warps wait for ever", "warps 4, 5, 6, 7 wait"]),
    ],
)
def test_what_is_wrong_is_on_the_first_screen(opened: Any, name: str, texts: list[str]) -> None:
    found = opened(name)
    finding = found.locator("#findings li").first
    assert all(text in finding.inner_text() for text in texts)
    for each in (finding, found.locator(".row.error, .row.warning").first):
        box = each.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= SIZES["laptop"][1]


def test_the_lanes_that_collide_are_open_from_the_beginning(opened: Any) -> None:
    found = opened("conflict")
    red = found.locator("#shared details[open] svg.heat rect[fill^=hsl]")
    assert red.count() == 32 and len({each.get_attribute("x") for each in red.all()}) == 1
    assert found.get_by_text("lanes 0 to 31 in bank 0: 32 words").is_visible()


def test_a_wait_tells_who_ended_it(opened: Any) -> None:
    found = opened("deadlock")
    found.locator("svg.timeline .wait").first.click()
    assert " released it." in found.locator("#timeline [role=status]").inner_text()
    assert found.locator("svg.timeline .stuck").count() == 4
    chart, names = found.locator("svg.timeline").last, found.locator("svg.names")
    width, left = chart.bounding_box()["width"], names.bounding_box()["x"]
    found.locator('input[aria-label="Zoom"]').fill("3")
    assert chart.bounding_box()["width"] > 6 * width
    found.locator(".chart").evaluate("each => { each.scrollLeft = 1000; }")
    assert names.bounding_box()["x"] == left and chart.bounding_box()["x"] < left - 500


def test_a_click_on_an_element_marks_what_its_lane_holds(opened: Any) -> None:
    found = opened("hopper_fastest")
    found.locator("#fragments summary").first.click(position={"x": 2, "y": 8})
    found.locator("svg.held g").first.click()
    marked = found.locator("svg.held g.mine")
    assert marked.count() == 4 and len({each.get_attribute("data-lane") for each in marked.all()}) == 1


def test_the_theme(opened: Any) -> None:
    found = opened("conflict", scheme="light")
    for name, channel in (("light", 246), ("dark", 20)):
        found.locator("#theme").click()
        assert found.locator("#theme").inner_text() == f"Theme: {name}"
        assert found.evaluate("getComputedStyle(document.body).backgroundColor").startswith(f"rgb({channel},")


HOSTILE = '''\
from tiledsl import Const, Global, f32, grid, shared, threads, barrier, tile_kernel
from tiledsl.dims import N

@tile_kernel
def evil(X: Global[f32, N], *, NAME: Const[str] = "</title><script>alert(1)</script>"):
    """</script><script>alert(2)</script><!-- <script> ]]>"""
    t = grid(1) + threads(32)  # <img src=x onerror=alert(3)>
    S = shared((32,), f32)
    S[t] = X[t]
    X[t] = S[31 - t]
'''


def test_no_text_of_the_user_becomes_markup(opened: Any, folder: Path) -> None:
    file = folder / "<img src=x onerror=alert(4)>.py"
    file.write_text(HOSTILE)
    text = page(collect(load_kernel(file, ""), "sm_90a", {}, ["N=32"]))
    (folder / "evil.html").write_text(text, encoding="utf-8")
    found = opened("evil")
    found.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    found.wait_for_timeout(100)
    assert found.locator("img").count() == 0 and found.locator("script").count() == 2
    shown = found.locator("body").inner_text()
    assert "<img src=x onerror=alert(3)>" in shown and "<script>alert(2)</script>" in shown
    assert found.title().startswith("evil(NAME='</title><script>alert(1)</script>')")


# -- time --------------------------------------------------------------------------------------------------


def test_a_click_in_20_000_instructions_is_answered_in_50_ms(opened: Any) -> None:
    """From the click until the document is laid out again: the median of each pane."""
    found = opened("large")
    assert found.evaluate("JSON.parse(document.getElementById('data').textContent).sass.texts.length") > 20_000
    for pane in ("Python", "IR", "PTX", "SASS"):
        times = found.evaluate(f"""() => [3, 5, 4, 6, 3, 5, 4].map((i) => {{
            const row = document.querySelectorAll('section[aria-label="{pane}"] .row')[i], begun = performance.now();
            row.click();
            document.body.getBoundingClientRect();
            return performance.now() - begun;
        }})""")
        assert statistics.median(times) <= 50, (pane, times)


def test_20_000_instructions_are_painted_in_a_second(opened: Any) -> None:
    """The script draws all panes before the document has loaded."""
    found = opened("large")
    assert found.locator('section[aria-label="SASS"] .row').count() > 10
    painted, loaded = found.evaluate("""() => [performance.getEntriesByName("first-contentful-paint")[0].startTime,
        performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd]""")
    assert painted <= 1000 and loaded <= 1000, (painted, loaded)


def test_the_report_of_the_fastest_kernel_is_small(folder: Path) -> None:
    assert (folder / "hopper_fastest.html").stat().st_size <= 3_000_000


# -- two reports -----------------------------------------------------------------------------------------


def test_two_reports_side_by_side(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "d.html"
    assert main(["diff", f"{KERNELS}:conflict", "--after-a", "unroll", "--after-b", "expand", "-o", str(file)]) == 0
    found, wrong = browser.new_page(viewport={"width": 1280, "height": 800}), list[str]()
    found.on("console", lambda each: wrong.append(each.text) if each.type in ("error", "warning") else None)
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.goto(file.as_uri())
    frames = [found.frame_locator("iframe").nth(i) for i in range(2)]
    for frame, name in zip(frames, ("unroll", "expand"), strict=True):
        choice = frame.locator('select[aria-label="Pass"]')
        assert choice.evaluate("each => each.selectedOptions[0].textContent").startswith(name)
        here = frame.locator('section[aria-label="Python"] .row', has_text="= S[x, y + 8 * i]").first
        here.click()
        assert all(frame.locator(f'section[aria-label="{pane}"] .row.lit').count() for pane in ("IR", "PTX", "SASS"))
        frame.locator('section[aria-label="Python"] .rows').press("Escape")
        assert not frame.locator(".row.lit").count()
    found.locator("summary").click()
    assert found.locator("pre .add").count() and found.locator("pre .del").count()
    found.close()
    assert wrong == []


def test_a_measured_run_is_beside_the_emulators(opened: Any) -> None:
    found = opened("hopper_ring")
    text = found.locator("#timeline").inner_text()
    assert "On the emulator" in text and "Measured on NVIDIA H200" in text and "M=2048, N=2048, K=512" in text
    assert found.locator("#timeline svg").count() >= 2
