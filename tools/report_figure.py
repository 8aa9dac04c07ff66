"""`python -m tools.report_figure`: docs/figures/report.png, the top of a run's report as a browser shows it.

It makes and audits the run of README.md that protects all of a client's data, and needs Chromium (`make browser`).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs" / "figures" / "report.png"
#: In pixels of the page; the figure has as many.
WIDTH, HEIGHT = 1000, 385
RUN = ("experiment=private_digits", "seed=0")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def make_run(folder: Path) -> Path:
    """The run's folder, with its report; a minute or two."""
    for words in (["fedpriv", "-q", *RUN, f"hydra.run.dir={folder}"], ["fedpriv.audit", f"run={folder}"]):
        subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return folder


def photograph(report: Path, figure: Path) -> None:
    """The top of a page as a PNG file of at most 256 colours. Fails with a message where there is no browser."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    if (found := next(filter(None, map(shutil.which, BROWSERS)), None)) is None:
        sys.exit("no Chromium here: `make browser` installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.screenshot(path=figure)
        browser.close()
    with Image.open(figure) as picture:
        few = picture.convert("RGB").quantize(64)
    few.save(figure, optimize=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.report_figure", description=__doc__)
    parser.add_argument("run", nargs="?", type=Path, help="a finished run's folder (without it the run is made)")
    parser.add_argument("--out", type=Path, default=FIGURE)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        run = given.run or make_run(Path(place) / "private")
        photograph(run / "report.html", given.out)
    print(given.out)


if __name__ == "__main__":
    main(sys.argv[1:])
