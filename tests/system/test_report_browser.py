"""Reports in a real browser: mailed alone, in light and dark, on a phone, by keyboard; and while a run goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import SCREENS, Watched, chromium
from report_runs import full_run, make_run, privacy, whole_page

from fedpriv.report.__main__ import main
from fedpriv.report.live.live_page import LivePage
from fedpriv.report.page import write_report
from tools import report_figure

pytestmark = pytest.mark.browser

PHONE, SCREEN = {"width": 390, "height": 800}, {"width": 1280, "height": 800}
#: Of a corner of a picture, as the browser paints it: [red, green, blue, alpha].
CORNER = """async (one) => { await one.decode(); const board = document.createElement('canvas').getContext('2d');
  board.drawImage(one, 0, 0); return [...board.getImageData(2, 2, 1, 1).data]; }"""


@pytest.fixture(scope="module")
def mailed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run's report and a comparison, and nothing else."""
    home, mail = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("mail")
    shutil.copy(whole_page(full_run(home / "a")), mail / "report.html")
    make_run(home / "b", diff=0.5, record=privacy(verified_epsilon=8.0))
    assert main([str(home)]) == 0
    shutil.copy(home / "comparison.html", mail)
    return mail


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.mark.rotates(2, lambda name, scheme: scheme == "dark")
@pytest.mark.parametrize("name", ["report.html", "comparison.html"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_mailed_page_is_whole_and_can_be_read_by_everybody(
    browser: Any, mailed: Path, name: str, scheme: str
) -> None:
    watched = Watched(browser.new_page(viewport=SCREEN, color_scheme=scheme), mailed)
    watched.open(name)
    watched.decode()
    pictures = watched.page.locator("img")
    assert pictures.count() == (10 if name == "report.html" else 1)
    watched.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for width, height in SCREENS:
        watched.page.set_viewport_size({"width": width, "height": height})
        assert watched.width() <= width
        assert watched.barriers() == []
    paper = [255, 255, 255, 255] if scheme == "light" else [28, 30, 34, 255]
    assert [one.evaluate(CORNER) for one in pictures.all()] == [paper] * pictures.count()
    watched.page.close()
    assert watched.faults == []


def test_a_table_on_a_phone_shows_that_it_scrolls(browser: Any, mailed: Path) -> None:
    watched = Watched(browser.new_page(viewport=PHONE), mailed)
    watched.open("report.html")
    before, at_the_end = watched.shade(".card")
    assert before > 10 and abs(at_the_end) < 3
    watched.page.close()


def test_a_long_reason_does_not_stretch_the_first_screen(browser: Any, tmp_path: Path) -> None:
    """Its first sentence is in the tile, all of it in the table below."""
    offer = {"reason": "whoever sees a secure sum alone sees no canary client's message"}
    report = write_report(make_run(tmp_path / "run", record=privacy(in_run_offer=offer)))
    watched = Watched(browser.new_page(viewport=SCREEN), report.parent)
    watched.open(report.name)
    (tile,) = watched.texts(".tile.audited")
    assert tile == "audited epsilon not audited no attack was run against this code yet"
    assert max(one.bounding_box()["height"] for one in watched.page.locator(".tile").all()) < 200
    assert any(offer["reason"] in row for row in watched.texts("tr.audited"))
    watched.page.close()


def test_the_picture_of_the_readme_is_the_top_of_a_report(browser: Any, mailed: Path, tmp_path: Path) -> None:
    """The committed one is small, and the tool still makes one of its size."""
    from PIL import Image

    with Image.open(report_figure.FIGURE) as committed:
        assert committed.size == (report_figure.WIDTH, report_figure.HEIGHT)
    assert report_figure.FIGURE.stat().st_size < 50_000
    command = [sys.executable, "-m", "tools.report_figure", str(mailed), "--out", str(tmp_path / "top.png")]
    subprocess.run(command, cwd=report_figure.ROOT, check=True, capture_output=True)
    with Image.open(tmp_path / "top.png") as made:
        assert made.size == (report_figure.WIDTH, report_figure.HEIGHT) and len(made.getcolors()) > 8


def test_a_wide_table_scrolls_in_its_own_box_by_keyboard(browser: Any, mailed: Path) -> None:
    watched = Watched(browser.new_page(viewport=PHONE), mailed)
    watched.open("report.html")
    box = watched.page.get_by_role("region", name="What was released")
    assert box.evaluate("(one) => one.scrollWidth > one.clientWidth")
    box.focus()
    watched.page.keyboard.press("ArrowRight")
    watched.page.wait_for_function("document.querySelector('[aria-label=\"What was released\"]').scrollLeft > 0")
    assert watched.page.evaluate("window.scrollX") == 0
    watched.page.close()
    assert watched.faults == []


def test_a_live_page_follows_the_run_and_rests_when_it_has_finished(browser: Any, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", finished=False)
    whole = write_report(make_run(tmp_path / "whole")).parent  # drawn now: a page at rest waits for nothing
    watched = Watched(browser.new_page(viewport=SCREEN), folder)
    wait = {"timeout": 120_000}
    with LivePage(folder, 1) as live:
        live.round_ended(15)
        while not (folder / "report.html").is_file():
            watched.page.wait_for_timeout(50)
        watched.open("report.html")
        watched.page.get_by_text("This run goes on.").wait_for()
        watched.page.get_by_text("15 of 30 rounds").wait_for()
        assert [one for one in watched.barriers() if not one.startswith("meta-refresh")] == []
        line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line | {"round": 16}) + "\n")
        live.round_ended(16)
        watched.page.get_by_text("16 of 30 rounds").wait_for(**wait)  # nobody reloads but the page itself
    assert "http-equiv" not in (folder / "report.html").read_text()  # interrupted: the page is at rest
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    watched.page.get_by_text("30 of 30 rounds").wait_for(**wait)
    assert watched.page.locator("meta[http-equiv], script").count() == 0  # nothing is left that could reload it
    watched.page.close()
    assert watched.faults == []


def test_a_click_or_a_key_on_a_head_sorts_the_runs(browser: Any, tmp_path: Path) -> None:
    for name, accuracy, verified in (("0-a", 0.9, 80.0), ("1-b", 0.5, "inf"), ("2-c", 0.7, 9.0), ("3-d", 0.6, None)):
        record = privacy(verified_epsilon=verified)
        make_run(tmp_path / name, accuracy=accuracy, seed=int(name[0]), record=record)
    assert main([str(tmp_path)]) == 0
    watched = Watched(browser.new_page(viewport=SCREEN), tmp_path)
    watched.open("comparison.html")

    def order() -> list[str]:
        return watched.texts("table.sortable tbody td:first-child")

    assert order() == ["0-a", "1-b", "2-c", "3-d"]
    watched.page.get_by_role("button", name="accuracy").click()
    assert order() == ["1-b", "3-d", "2-c", "0-a"]
    head = watched.page.get_by_role("button", name="verified")
    head.press("Enter")
    assert order() == ["2-c", "0-a", "1-b", "3-d"]  # infinite behind 80, unknown last
    head.press("Enter")
    assert order() == ["1-b", "0-a", "2-c", "3-d"]
    assert watched.page.locator("th[aria-sort=descending]").inner_text().startswith("verified")
    watched.page.set_viewport_size(PHONE)
    watched.page.get_by_label("sorted by").select_option("accuracy, %, rising")
    rows = watched.page.locator("table.sortable tbody td:first-child").all_inner_texts()
    assert rows == ["1-b", "3-d", "2-c", "0-a"] and watched.width() <= PHONE["width"]
    plain = browser.new_page(viewport=SCREEN, java_script_enabled=False)
    plain.goto((tmp_path / "comparison.html").as_uri())
    assert plain.get_by_role("button").count() == 0 and plain.locator("table.sortable tbody tr").count() == 4
    watched.page.close()
    assert watched.faults == []
