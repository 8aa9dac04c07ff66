"""The site in a real browser: every kind of page, from the disk, on a small and on a large screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Watched, chromium
from site_results import HOSTILE, make_leaderboard, make_paper

from fedpriv.site import main
from fedpriv.studies.site.wording import slug

pytestmark = pytest.mark.browser

HOSTILE_RUN = slug(f"../up {HOSTILE}?a#b%41")
KINDS = (
    "index.html",
    "papers/fedcad.html",
    "leaderboard.html",
    "runs/fedcad/index.html",
    "runs/fedcad/fedcad-s0.html",
    "runs/fedcad/plan-bare.html",
    "runs/fedcad/audit-published.html",
    f"runs/fedcad/{HOSTILE_RUN}.html",
)


#: Row headers of a box through which the cells that pass below them are seen.
SEEN_THROUGH = """(box) => [...box.querySelectorAll("tbody th")].filter((one) =>
  /^rgba|\\/|transparent/.test(getComputedStyle(one).backgroundColor)).map((one) => one.innerText)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("site")
    make_paper(home / "results", "fedcad")
    make_leaderboard(home / "results")
    assert main([f"results={home / 'results'}", f"out={home / 'site'}"]) == 0
    return home / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def opened(browser: Any, site: Path) -> Iterator[Watched]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    watched = Watched(page, site)
    yield watched
    page.close()
    assert watched.faults == []


@pytest.mark.parametrize("path", KINDS)
def test_a_page_opens_without_a_fault_and_fits_a_phone(opened: Watched, path: str) -> None:
    opened.open(path)
    for size, scheme in (((1200, 900), "light"), ((360, 740), "dark")):
        opened.page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
        opened.page.emulate_media(color_scheme=scheme)
        assert opened.width() <= size[0]
        assert opened.page.locator("h1").is_visible()
        assert opened.barriers() == []
    opened.decode()
    background = "getComputedStyle(document.body).backgroundColor"
    assert opened.page.evaluate(background) == "rgb(19, 20, 23)"  # the style was found


@pytest.mark.parametrize("path", ["papers/fedcad.html", "leaderboard.html", "runs/fedcad/index.html"])
def test_on_a_phone_a_wide_table_scrolls_in_its_box_and_says_what_its_rows_are(opened: Watched, path: str) -> None:
    page = opened.page
    page.set_viewport_size({"width": 360, "height": 740})
    opened.open(path)
    boxes = page.locator("div.scroll:has(tbody th)")
    wide = [box for box in boxes.all() if box.evaluate("(box) => box.scrollWidth > box.clientWidth + 40")]
    assert wide and opened.width() == 360
    for box in wide:
        assert box.evaluate("(box) => box.getBoundingClientRect().right") <= 360
        for header in box.locator("thead th").all():  # whole, on one line
            assert header.evaluate("(one) => one.scrollWidth <= one.clientWidth + 1 && one.clientHeight < 60")
        box.evaluate("(box) => { box.scrollLeft = box.scrollWidth; }")
        left, right = box.evaluate("(box) => [box.getBoundingClientRect().left, box.getBoundingClientRect().right]")
        for name in box.locator("tbody th").all():
            place = name.bounding_box()
            assert left <= place["x"] < left + 3 and place["x"] + place["width"] < right - 60
        assert box.evaluate(SEEN_THROUGH) == []
        assert box.evaluate("(box) => scrollX") == 0


@pytest.mark.parametrize("path", ["papers/fedcad.html", "leaderboard.html"])
def test_pictures_follow_the_scheme(opened: Watched, path: str) -> None:
    shown = "[...document.images].map((one) => one.currentSrc.endsWith('-dark.png'))"
    for scheme, media, dark in (("dark", "screen", True), ("light", "screen", False), ("dark", "print", False)):
        opened.page.emulate_media(color_scheme=scheme, media=media)
        opened.open(path)
        opened.decode()
        found = opened.page.evaluate(shown)
        assert found and set(found) == {dark}, (scheme, media)


def test_a_reader_goes_from_the_front_to_a_run_and_back(opened: Watched) -> None:
    page = opened.page
    opened.open("index.html")
    page.get_by_role("heading", name="Fed-CAD").get_by_role("link").click()
    page.get_by_role("row", name="Fed-CAD, adaptive").get_by_role("link", name="1").click()  # no page of its own
    assert page.url.endswith("runs/fedcad/index.html#fedcad-s1")
    assert page.locator(":target").inner_text() == "fedcad-s1 87.0"
    page.get_by_role("link", name="fedcad-s0").click()
    assert page.locator("h1").inner_text() == "fedcad-s0"
    page.get_by_role("link", name="Fed-CAD, Accuracy by noise: Fed-CAD, adaptive, sigma 0.1").click()
    assert page.url.endswith("papers/fedcad.html#row:accuracy:fedcad")
    assert page.locator("tr:target th").inner_text() == "Fed-CAD, adaptive"
    page.get_by_role("link", name="All 10 runs").click()
    page.get_by_role("link", name="../up").click()
    assert HOSTILE in page.locator("h1").inner_text()
    page.get_by_role("link", name="Leaderboard", exact=True).click()
    assert page.locator("h1").inner_text() == "Methods at equal verified privacy"


def test_filters_show_what_was_asked_and_the_address_keeps_it(opened: Watched) -> None:
    page = opened.page
    opened.open("leaderboard.html")
    status = page.get_by_role("status")
    assert status.inner_text() == "24 of 24 entries" and len(opened.texts("section.board")) == 4
    page.get_by_label("Threat model").select_option("client-server")
    assert status.inner_text() == "8 of 24 entries" and len(opened.texts("section.board")) == 1
    page.get_by_label("Target epsilon").select_option("8")
    assert opened.texts(".group h3") == ["Epsilon 8"] and status.inner_text() == "5 of 24 entries"
    page.get_by_label("Method or paper").fill("FED-cad")
    assert opened.texts("tr.entry .rank") == ["1", "2"]  # Fed-CAD, and the baseline of its paper
    assert page.url.endswith("#board=client-server&target=8&q=FED-cad")
    address = page.url
    page.get_by_label("Method or paper").fill("no such method")
    assert opened.texts("#nothing") == ["No entry fits these filters."] and opened.texts("section.board") == []
    page.get_by_role("button", name="Show all").click()
    page.wait_for_function("document.getElementById('filter-status').textContent === '24 of 24 entries'")
    assert page.url.endswith("leaderboard.html")
    page.goto("about:blank")
    page.goto(address)  # a link to a filtered view
    assert opened.texts("tr.entry .rank") == ["1", "2"] and status.inner_text() == "2 of 24 entries"
    assert page.get_by_label("Method or paper").input_value() == "FED-cad"
    page.goto(address.partition("#")[0] + "#board=none&target=99&q=%3Cscript%3E&x=y")
    assert page.get_by_label("Threat model").input_value() == "" and status.inner_text() == "0 of 24 entries"
    page.goto(address.partition("#")[0] + "#entry:client-server:2:dpfedavg")  # an anchor: everything is shown
    assert status.inner_text() == "24 of 24 entries" and page.locator("tr:target").is_visible()


def test_methods_left_out_follow_the_filters(opened: Watched) -> None:
    opened.open("leaderboard.html#board=client-server&target=8")
    assert [text.split()[0] for text in opened.texts("tr.leftout")] == ["DP-FedAGS"]
    opened.open("leaderboard.html#board=client-server&target=2")
    opened.page.wait_for_function(
        "document.querySelectorAll('#board\\\\:client-server tr.leftout:not([hidden])').length === 2"
    )
    opened.open("leaderboard.html#q=cpsgd")
    opened.page.wait_for_function("document.getElementById('filter-status').textContent === '0 of 24 entries'")
    assert len(opened.texts("tr.leftout")) == 3 and opened.texts(".group") == []


def test_tables_sort_by_mouse_and_by_keyboard(opened: Watched) -> None:
    page = opened.page
    opened.open("leaderboard.html#board=client-server&target=8")
    accuracy = page.get_by_role("button", name="accuracy, %").locator("visible=true")
    accuracy.click()
    assert opened.texts("tr.entry .rank") == ["5", "4", "3", "2", "1"]
    assert opened.texts("th[aria-sort=ascending]") == ["accuracy, %"]
    accuracy.press("Enter")
    assert opened.texts("tr.entry .rank") == ["1", "2", "3", "4", "5"]
    assert opened.texts("th[aria-sort=descending]") == ["accuracy, %"]
    page.get_by_role("button", name="sent by clients").locator("visible=true").press("Space")
    assert opened.texts("tr.entry .rank") == ["5", "4", "3", "2", "1"] and len(opened.texts("th[aria-sort]")) == 1
    opened.open("papers/fedcad.html")
    column = page.get_by_role("button", name="sigma 1.0")
    order = "tbody tr td:nth-child(3)"
    column.click()  # what is missing stays last, infinite is a number
    assert [text.split()[0] for text in opened.texts(f"table.cells:has({order}) {order}")[:2]] == ["1,979", "∞"]
    column.click()
    assert [text.split()[0] for text in opened.texts(f"table.cells:has({order}) {order}")[:2]] == ["∞", "1,979"]


def test_keyboard_readers_skip_to_the_content(opened: Watched) -> None:
    opened.open("papers/fedcad.html")
    opened.page.keyboard.press("Tab")
    skip = opened.page.get_by_role("link", name="Skip to the content")
    assert skip.bounding_box()["y"] >= 0
    opened.page.keyboard.press("Enter")
    assert opened.page.evaluate("document.activeElement.id") == "main"


def test_without_scripts_everything_is_shown(browser: Any, site: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    watched = Watched(context.new_page(), site)
    watched.open("leaderboard.html#board=client-server&target=8")
    assert watched.page.locator("tr.entry:visible").count() == 24 and not watched.page.locator("#filters").is_visible()
    assert watched.page.locator("th button").count() == 0
    context.close()
    assert watched.faults == []


def test_a_page_prints(opened: Watched) -> None:
    opened.open("leaderboard.html")
    assert opened.page.pdf()[:4] == b"%PDF"
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("#filters").is_visible() and not opened.page.locator("nav").is_visible()
