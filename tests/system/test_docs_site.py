"""`make docs`: one build of the site, strict about links and anchors, that asks no other host for anything."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browsing import SCREENS, Watched, chromium
from rotation import together

import fedpriv

pytestmark = pytest.mark.rotates(8, together(5))
ROOT = Path(__file__).resolve().parents[2]
#: What a browser fetches by itself, in HTML and in CSS.
FETCHED = (
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"' >]+",
    r"<link\b(?![^>]*rel=[\"']?canonical)[^>]*\bhref=[\"']?(?:https?:)?//[^\"' >]+",
    r"url\([\"']?(?:https?:)?//[^)]+",
    r"@import\s+[\"'](?:https?:)?//[^\"']+",
)


def fetched(text: str) -> list[str]:
    return [found for pattern in FETCHED for found in re.findall(pattern, text)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs-site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    return folder


def test_every_page_of_the_docs_is_there(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages | {"index", "security", "contributing", "changelog", "notebook", "api"} <= {
        path.stem for path in site.glob("*.html")
    }
    notebook = json.loads((ROOT / "docs/notebook.ipynb").read_text())
    heading = "".join(notebook["cells"][0]["source"]).splitlines()[0].lstrip("# ")
    assert heading in (site / "notebook.html").read_text()
    assert f"fedpriv {fedpriv.__version__}" in (site / "tutorial.html").read_text()


def test_the_reference_has_every_call(site: Path) -> None:
    text = (site / "api.html").read_text()
    for name in fedpriv.__all__:
        if not name.startswith("__"):
            there = getattr(fedpriv, name)
            assert f'id="{there.__module__}.{there.__qualname__}"' in text, name
    assert 'id="fedpriv.client.base.Client"' in text and 'id="fedpriv.server.strategy.FederatedStrategy"' in text


def test_no_page_asks_another_host(site: Path) -> None:
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    assert len(pages) > 30
    assert {path.name: found for path in pages if (found := fetched(path.read_text()))} == {}
    shown = '<script src="https://a/b.js"></script><link href=//c/d.css><i style="background: url(http://e/f.png)">'
    assert len(fetched(shown)) == 3


def test_the_search_knows_the_pages(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    assert {"experiments.html", "notebook.html", "api.html"} <= {
        entry["location"].partition("#")[0] for entry in index["docs"]
    }


@pytest.mark.browser
def test_nothing_is_cut_off_on_a_phone_or_a_desktop(site: Path) -> None:
    """Nothing is wider than the window but in a box that scrolls, by keyboard too; lines of code are whole."""
    with chromium() as browser:
        for name in ("index.html", "results/index.html", "upkeep.html"):
            for width, height in SCREENS:
                watched = Watched(browser.new_page(viewport={"width": width, "height": height}), site)
                watched.open(name)
                watched.decode()
                assert watched.width() <= width, name
                assert watched.barriers() == [], f"{name} at {width}"
                assert watched.page.evaluate(CUT) == [], f"{name} at {width}"
                if width == SCREENS[0][0] and name == "results/index.html":  # its tables show that they scroll
                    watched.open(name)
                    before, at_the_end = watched.shade(".md-typeset__scrollwrap")
                    assert before > 10 and abs(at_the_end) < 3
                watched.page.close()
                assert watched.faults == []


#: Lines of code, pictures and text that end outside their boxes, but in tables, whose boxes scroll.
CUT = """() => [...document.querySelectorAll('.md-content :is(pre > code, img, p, li)')]
  .filter((one) => one.clientWidth && one.scrollWidth > one.clientWidth + 1
    || one.getBoundingClientRect().right > innerWidth)
  .filter((one) => !one.closest('table')).map((one) => one.outerHTML.slice(0, 80))"""


def test_the_results_begin_with_their_answer(site: Path) -> None:
    article = (site / "results/index.html").read_text().partition("<article")[2]
    assert article.index("own setting, ") < article.index("<table") < article.index("<img")


def locked(file: str) -> dict[str, str]:
    """Package -> version and on which systems it is."""
    lock = (ROOT / file).read_text()
    assert "--hash=sha256:" in lock and not re.search(r"https?://|--(extra-)?index-url|--find-links", lock)
    return dict(re.findall(r"(?m)^([\w.-]+)==(.*?) \\$", lock))


@pytest.mark.rotates(1)
def test_dependencies_come_from_no_named_host_and_fit_every_system() -> None:
    """A node's are among a server's, and these among the project's, in the same versions, without tools; CUDA's
    packages are for Linux alone.
    """
    everything, servers, nodes = map(locked, ("requirements.txt", "deploy/requirements.txt", "deploy/node.txt"))
    versions = [{name: text.split()[0] for name, text in one.items()} for one in (nodes, servers, everything)]
    assert versions[0].items() < versions[1].items() < versions[2].items()
    assert "ray" in servers and not {"ray", "torchvision", "matplotlib", "datasets", "pandas"} & nodes.keys()
    assert not {"pytest", "playwright", "wandb", "mkdocs", "mypy", "ruff"} & nodes.keys()
    assert {"flwr", "torch", "opacus", "hydra-core", "cryptography"} <= nodes.keys()
    for name, version in everything.items():
        if name.startswith(("nvidia-", "cuda-")):
            assert "sys_platform == 'linux'" in version, name
