"""The report in a real browser: Chromium, headless, driven by playwright.

Chromium is looked for on the path or at FP8PARITY_CHROMIUM. Without it these tests skip. With FP8PARITY_REQUIRE_BROWSER=1 they fail.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
import reports
from fp8parity.report import write

pytestmark = pytest.mark.slow
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REQUIRED = os.environ.get("FP8PARITY_REQUIRE_BROWSER") == "1"


def lacking(what: str) -> None:
    (pytest.fail if REQUIRED else pytest.skip)(f"{what}; the report is not tested in a browser")


@pytest.fixture(scope="module")
def browser():
    binary = os.environ.get("FP8PARITY_CHROMIUM") or next((path for n in NAMES if (path := shutil.which(n))), None)
    if binary is None:
        lacking(f"no Chromium on the path ({', '.join(NAMES)}) or at FP8PARITY_CHROMIUM")
    if importlib.util.find_spec("playwright") is None:
        lacking("the package playwright is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Containers run as root, where Chromium's own sandbox does not start.
        started = driver.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    made = reports.report(
        {"te-mxfp8-tiny-native": "needs sm_100"}, models=("tiny", "mini"), gaps={("te-current", "mini"): 0.0081},
        stops={("te-nvfp4", "mini"): 100}, speeds=True,
    )  # fmt: skip
    write(made, path)
    return path


@pytest.fixture
def visit(browser, file):
    """Opens the report in a fresh window; the test fails where the page complained or asked for anything but itself."""
    faults: list[str] = []
    contexts = []

    def start(path: Path = file, width: int = 1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: faults.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: faults.append(str(e)))
        page.on(
            "request",
            lambda r: faults.append(r.url) if not r.url.startswith((path.as_uri(), "data:", "blob:")) else None,
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        return page

    yield start
    for context in contexts:
        context.close()
    assert not faults


DRAWN = """() => [...document.querySelectorAll('.canvas')].filter((c) => c.checkVisibility()).map((c) => {
  const box = c.getBoundingClientRect(), plot = c.querySelector('.main-svg');
  const marks = c.querySelectorAll('.scatterlayer .js-line, .points path, .heatmaplayer image').length;
  const text = [...c.querySelectorAll('.xtick text, .ytick text, .legendtext, .xtitle, .ytitle')].map((t) => t.getBoundingClientRect());
  const off = text.filter((t) => t.left < box.left - 1 || t.right > box.right + 1 || t.bottom > box.bottom + 1).length;
  return {name: c.parentElement.id, drawn: !!plot, marks, off, width: plot?.getBoundingClientRect().width, room: box.width};
})"""


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_plot_is_drawn_inside_the_page(visit, width, scheme):
    page = visit(width=width, color_scheme=scheme)
    first = page.evaluate(DRAWN)
    assert [p["name"] for p in first] == ["overview", "gap-1", "speed-0", "speed-1", "snr-0", "paired-1"]
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    plots = {p["name"]: p for p in first}
    for group, count in (("gap", 2), ("speed", 2), ("snr", 4), ("losses", 2)):
        for i in range(count):
            page.check(f"input[name=tab-{group}] >> nth={i}")
            until(
                page,
                "[...document.querySelectorAll('.canvas')].every((c) => !c.checkVisibility() || c.querySelector('.main-svg'))",
            )
            plots |= {p["name"]: p for p in page.evaluate(DRAWN)}
    assert len(plots) == 15
    for plot in plots.values():
        assert plot["drawn"] and plot["marks"] >= 1, plot
        assert plot["off"] == 0, plot
        assert abs(plot["width"] - plot["room"]) < 2, plot
    assert page.evaluate("document.documentElement.scrollWidth") == width
    inside = page.evaluate(
        "[...document.querySelectorAll('.box, pre, .command')].every((b) => b.getBoundingClientRect().right <= innerWidth)"
    )
    assert inside


def until(page, condition: str) -> None:
    """Wait for a script's truth. (playwright's own wait evaluates inside the page, which the page's policy forbids.)"""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never came true: {condition}")


def axis(page, name: str, key: str):
    return page.evaluate(f"document.querySelector('#{name} .canvas')._fullLayout.{key}")


def test_log_tail_and_zoom(visit):
    page = visit()
    page.check("input[name=tab-losses] >> nth=0")
    page.click("#losses ~ * summary:visible >> nth=0")
    until(page, "document.querySelector('#loss-0 .main-svg')")
    assert axis(page, "loss-0", "yaxis.type") == "linear"
    page.check("#loss-0 input >> nth=1")
    assert axis(page, "loss-0", "yaxis.type") == "log"
    page.check("#loss-0 input >> nth=2")
    assert axis(page, "loss-0", "yaxis.type") == "linear"
    assert axis(page, "loss-0", "xaxis.range") == [120, 159]
    page.check("#loss-0 input >> nth=0")
    whole = axis(page, "loss-0", "xaxis.range")
    assert whole[0] <= 0 and whole[1] >= 159
    area = page.locator("#loss-0 .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] - 30, steps=5)
    page.mouse.up()
    low, high = axis(page, "loss-0", "xaxis.range")
    assert 70 < low < 90 and 110 < high < 130
    page.check("#snr-0 input >> nth=1")
    assert 10 < page.evaluate("document.querySelector('#snr-0 .canvas').data[0].z[0].at(-1)") < 26


def test_the_keyboard_reaches_what_the_mouse_does(visit):
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.focus("input[name=tab-snr]:checked")
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('#snr-1 .main-svg')")
    assert page.evaluate("document.querySelector('#snr-0 .canvas').checkVisibility()") is False
    page.focus("#paired-1 input")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert axis(page, "paired-1", "xaxis.range") == [120, 159]
