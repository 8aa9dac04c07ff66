"""A real browser for tests: Chromium, and a page that notes whatever goes wrong in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

#: Findings of axe-core that keep somebody from reading a page.
GRAVE = ("serious", "critical")

#: Sizes of windows, in pixels: a phone, a small and a large desktop.
SCREENS = ((390, 844), (1024, 768), (1920, 1080))


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window. Fails the test where there is none."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.fail("there is no Chromium here: `make browser` installs it, `make test` leaves these tests out")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu"], timeout=120_000
        )
        yield browser
        browser.close()


#: Without the shades of boxes that scroll, on which axe-core cannot tell a contrast.
SHADES = ".card, .scroll { background: var(--card) !important } .md-typeset__scrollwrap { background: none !important }"


class Watched:
    """A page and what went wrong in it. folder: what its addresses are below."""

    def __init__(self, page: Any, folder: Path) -> None:
        self.page, self.folder = page, folder
        self.faults: list[str] = []
        page.set_default_timeout(30_000)
        page.on("console", lambda message: self.faults.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("requestfailed", self._failure)
        page.on("request", self._request)

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file://", "data:")):
            self.faults.append(f"request: {request.url}")

    def _failure(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # a click may leave a page whose pictures are still loading
            self.faults.append(f"failed: {request.url}: {request.failure}")

    def open(self, path: str) -> None:
        self.page.goto(f"{self.folder.as_uri()}/{path}")

    def width(self) -> int:
        return self.page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")

    def texts(self, what: str) -> list[str]:
        """Of the elements that are seen."""
        return [" ".join(one.inner_text().split()) for one in self.page.locator(f"{what}:visible").all()]

    def shade(self, box: str) -> list[float]:
        """How dark the right edge of the first such box is that scrolls: before it is scrolled, and at its end."""
        wide = self.page.evaluate_handle(
            "(box) => [...document.querySelectorAll(box)].find((one) => one.scrollWidth > one.clientWidth + 20)", box
        ).as_element()
        dark = []
        for place in (0, 10_000):
            wide.evaluate("(one, place) => one.scrollTo({left: place, behavior: 'instant'})", place)
            pixels = np.asarray(Image.open(BytesIO(wide.screenshot())).convert("L"), dtype=float)
            dark.append(float(np.median(pixels[:, -12]) - np.median(pixels[:, -3])))
        return dark

    def decode(self) -> None:
        """Waits for all pictures; fails for one that is none."""
        pictures = "[...document.images].map((one) => { one.loading = 'eager'; return one.decode().then(() => true); })"
        assert all(self.page.evaluate(f"Promise.all({pictures})"))

    def barriers(self) -> list[str]:
        """What axe-core finds serious or critical, with the first element of each."""
        from axe_playwright_python.sync_playwright import Axe

        self.page.add_style_tag(content=SHADES)
        found = Axe().run(self.page, options={"preload": False}).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in found if one["impact"] in GRAVE]
