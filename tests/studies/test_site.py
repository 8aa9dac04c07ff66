"""The site: what a reader must find on its pages, what must never get onto them, and what it refuses."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from site_results import HOSTILE, add_figures, estimate, make_leaderboard, make_paper, make_results

from fedpriv.site import main
from fedpriv.studies.site import charts
from fedpriv.studies.site.publishing import MARKER, replace_site
from fedpriv.studies.site.wording import PAPERS, duration, measured, plain, slug

VOID = {"meta", "link", "img", "br", "input", "path", "circle", "polyline", "source"}


class Page(HTMLParser):
    """Text, links, ids and headings of a page; fails on tags that do not nest."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.text, self.links, self.loads, self.ids, self.headings = "", [], [], [], []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.raw = file.read_text(encoding="utf-8")
        self.feed(self.raw)
        assert not self._open, file
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append((tag, given))
        if tag not in VOID:
            self._open.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        if "href" in given:
            (self.loads if tag == "link" else self.links).append(given["href"])
        if "src" in given:
            self.loads.append(given["src"])
        if "srcset" in given:
            self.loads.append(given["srcset"])
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] != ["script"]:
            self.text += data + " "

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("site")
    told: list[tuple[str, int | None, int | None]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpriv.report.live.task._Task.told", lambda _, *what: told.append(what))
        assert main([f"results={make_results(home / 'results')}", f"out={home / 'site'}"]) == 0
    assert told[0][0] == "reading the results" and told[-1][0] == "pages"  # what progress is made of
    return home / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {file.relative_to(site).as_posix(): Page(file) for file in sorted(site.rglob("*.html"))}


def has(page: Page, *words: str) -> None:
    for wanted in words:
        assert wanted in page.text, wanted


# --- what is there ---------------------------------------------------------------------------------------


def test_landing_page(pages):
    page = pages["index.html"]
    has(
        page, "Claimed", "What the paper’s own formula says", "Verified", "An upper bound that a sound analysis",
        "Audited", "A lower bound, measured by attacking", "make run", "make test",
        *PAPERS.values(), "A client sends the change of its noise", "✓ 1 holds", "✗ 1 does not hold", "? 1 not decided",
        "– 1 cannot be tested here", "One client’s data, seen by server", "84.4 ± 0.7 %", "50 none reaches it",
        "97.4 ± 0.2 %", "commit 0123456789ab, commit fedcba987654 with changes", "2026-11-20",
        "A Processor 9000", "10 runs",
    )  # fmt: skip


def test_page_of_a_paper(pages):
    page = pages["papers/fedcad.html"]
    has(
        page, "A title of Fed-CAD", "A. Author, B. Author", "at a small scale", "✓ holds", "✗ does not hold",
        "Correlated noise reaches a higher accuracy", "Theorem VI.1", "difference +3.1 ± 1.0 points",
        "difference −0.2 ± 0.9 rounds", "difference +∞", "What leaks", "How it was repaired", "a public schedule",
        "87.2 ± 0.8 (3) paper 92.43 seeds 0 1 2", "1,979 ± 3 (3) paper ∞ seed 0", "84.1 (3) paper 90 run was-lost",
        "too slow for this machine", "nothing measured yet",
        "sigma 0.1 : of 3 pairs, 3 as reported beyond doubt", "Paper: Fed-CAD > Fed-LDP.", "2 h 3 min",
        "120,000 of a budget of 150,000", "flwr 1.41.0, torch 2.15.0",
    )  # fmt: skip
    assert page.of("img")[0]["alt"] == "Two lines of accuracy over rounds"
    for link in ("fedcad-s0.html", "index.html#fedcad-s1", "index.html#fedcad-s2"):  # a page, and lines of the list
        assert f"../runs/fedcad/{link}" in page.links
    assert "was-lost.html" not in page.raw
    (dark,), (light,) = page.of("source")[:1], page.of("img")[:1]
    assert dark["media"] == "screen and (prefers-color-scheme: dark)"
    assert dark["srcset"] == str(light["src"]).replace(".png", "-dark.png")
    orders = re.findall(r"(. [a-z ]+?) sigma ([\d.]+) :", page.text)
    assert orders == [("✓ holds", "0.1"), ("✗ does not hold", "1.0"), ("? not decided", "9")]


def test_leaderboard(pages):
    page = pages["leaderboard.html"]
    has(
        page, "Papernot and Steinke 2022", "The epsilon of an entry is of its final run.", "16 trials of search",
        "all data of one client was replaced by any other", "MNIST, 1,000 clients", "Epsilon 8", "84.4 ± 0.7 (3)",
        "seeds 0 1 2", "91.6 MiB", "39.0 s ± 2.0 s", "learning_rate=0.1", "privacy.target_epsilon=8",
        "Not ranked, and prices without calibration", "no finite bound: the loss is sent in clear", "published",
        "Correlated noise beats fresh noise at epsilon 8", "No method reaches this target.",
        "clip_norm: 0.1 .. 10 (log)",
    )  # fmt: skip
    sections = page.raw.split('<section class="board"')[1:]
    assert [len(re.findall(r'<table class="sortable entries">', section)) for section in sections] == [2, 2, 0, 2]
    ranks = re.findall(r'class="rank">(\d)', sections[0])
    assert ranks == ["1", "2", "3", "1", "2", "3", "4", "5"]
    assert "papers/fedcad.html" in page.links and page.of("img")[0]["alt"] == "Accuracy over epsilon"


def test_page_of_a_run(pages):
    page = pages["runs/fedcad/fedcad-s0.html"]
    has(
        page, "fedcad-s0", "fedcad on mnist · model cnn · 80,202 parameters", "seed 0", "accuracy 86.0 %",
        "claimed 12.3 the whole run a weak promise, if it holds the paper's own formula: Theorem VI.1",
        "verified 31.5 the whole run a weak promise",
        "not audited", "all data of one client", "Also seen by: secure-sum", "verified 4.2", "not comparable",
        "python -m fedpriv strategy=fedcad dataset=mnist seed=0", "dataset=mnist", "91.8 MiB", "31.0 s", "0123456789",
        "Fed-CAD, Accuracy by noise: Fed-CAD, adaptive, sigma 0.1", "endless ∞", "nothing –", "900 MiB",
        "fedcad-s0 86.0 % 31.5 31.0 s fedcad-s1 87.0 % 31.5 31.0 s fedcad-s2 88.0 %",
        "The whole record is line 1 of fedcad/runs.jsonl",
    )  # fmt: skip
    assert {"index.html#fedcad-s1", "index.html#fedcad-s2"} < set(page.links)
    assert "Accuracy on the test set over rounds: 31.5 % in round 2, 85.5 % in round 30." in page.text
    assert len(page.of("svg")) == 3 and all(svg["role"] == "img" for svg in page.of("svg"))
    assert "Mean length of the clients’ updates over rounds: 1.41 in round 1, 1.7 in round 30." in page.text
    final = pages["runs/leaderboard/final-0.html"]
    has(final, "Leaderboard, One client’s data, seen by server, epsilon 8: Fed-CAD", "Back to the leaderboard")


def test_runs_that_lack_nearly_everything(pages):
    names = {name.removeprefix("runs/fedcad/") for name in pages if name.startswith("runs/fedcad/")}
    assert len(names) == 1 + 8 and {"plan-bare.html", "index.html", f"{slug('index')}.html"} <= names
    has(pages["runs/fedcad/plan-bare.html"], "plan: what a run would cost", "left no record of privacy", "seed 0")
    audit = pages["runs/fedcad/audit-published.html"]
    has(audit, "Published variant.", "no finite bound: Diff follows the norm", "audited ∞", "lira: agrees with the")
    (name,) = (name for name in names if name.startswith("one-point"))
    has(pages[f"runs/fedcad/{name}"], "Evaluated once: 50.0 % in round 7.")
    assert not pages["runs/fedcad/not-evaluated.html"].of("svg")
    has(pages["runs/fedcad/dme-strange.html"], "∞", "2 h 1 min", "Note. to be read", "personalised 91.0 %")


def test_list_of_all_runs(pages):
    page = pages["runs/fedcad/index.html"]
    has(
        page,
        "Runs of Fed-CAD",
        "10 runs in 2 settings",
        "python -m fedpriv run accuracy, % clients’ own tests, % time, s options "
        "fedcad-s0 86.0 fedcad-s1 87.0 fedcad-s2 88.0 87.0 31.0 strategy=fedcad dataset=mnist plan-bare plan=true",
        "dme-strange 91.0 7300.0 plan=true",
        "8 runs of this list have a page; none was left out for room.",
    )
    runs = {"fedcad-s0", "fedcad-s1", "fedcad-s2", "plan-bare", slug("index"), slug(f"../up {HOSTILE}?a#b%41")}
    assert runs <= set(page.ids)
    assert "fedcad-s0.html" in page.links and "fedcad-s1.html" not in page.links
    assert "31.5" not in page.text  # epsilons of different threat models: not in one column


# --- what must never be there ----------------------------------------------------------------------------


def test_hostile_text_stays_text(pages):
    for name, page in pages.items():
        assert "<script>alert" not in page.raw and "onerror=alert(1)>" not in page.raw, name
        assert not any("onerror" in attributes for _, attributes in page.tags), name
        assert len(page.of("script")) <= 1, name
    assert HOSTILE in pages["papers/fedcad.html"].text and HOSTILE in pages["leaderboard.html"].text
    assert any(HOSTILE in (image["alt"] or "") for image in pages["papers/fedcad.html"].of("img"))
    (up,) = (page for name, page in pages.items() if name.startswith("runs/fedcad/up-"))
    assert f"../up {HOSTILE}?a#b%41" in up.text


def test_every_link_and_anchor_leads_somewhere(site, pages):
    assert len(pages) == 1 + 5 + 1 + 6 + 5 * 8 + 1
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), name
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if link == "data:,":
                continue
            assert not parts.scheme and not parts.netloc, (name, link)
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            assert target.is_file(), (name, link)
            if parts.fragment:
                assert parts.fragment in pages[target.resolve().relative_to(site).as_posix()].ids, (name, link)


def test_no_page_needs_the_network(site, pages):
    style = (site / "style.css").read_text()
    assert not re.search(r"https?:|url\(|@import|//", style)
    for rule in ("prefers-color-scheme: dark", "@media print"):
        assert rule in style
    for name, page in pages.items():
        assert not re.search(r"https?://", page.raw), name


def test_pages_are_built_for_everybody(pages):
    for name, page in pages.items():
        assert 'content="width=device-width' in page.raw and '<html lang="en">' in page.raw
        assert [attributes["id"] for attributes in page.of("main")] == ["main"], name
        assert page.links[0] == "#main" and page.headings[0] == 1 and page.headings.count(1) == 1, name
        steps = [after - before for before, after in zip(page.headings, page.headings[1:], strict=False)]
        assert max(steps, default=0) <= 1, (name, page.headings)
        assert all(image.get("alt") for image in page.of("img")), name
        assert all(header.get("scope") for header in page.of("th")), name
        current = [link for link in page.of("a") if "aria-current" in link]
        assert len(current) == (0 if name.startswith("runs/") else 1), name


# --- the command -----------------------------------------------------------------------------------------


def test_any_subset_of_the_studies_will_do(tmp_path, capsys):
    make_paper(tmp_path / "one", "agn")
    assert main([f"results={tmp_path / 'one'}", f"out={tmp_path / 'site'}"]) == 0
    assert capsys.readouterr().out == f"11 pages: open {tmp_path / 'site' / 'index.html'}\n"
    page = Page(tmp_path / "site" / "index.html")
    assert "DPFL-AGN" in page.text and "Best at equal" not in page.text and "Leaderboard" not in page.text
    make_leaderboard(tmp_path / "two")
    assert main([f"results={tmp_path / 'two'}", f"out={tmp_path / 'site'}"]) == 0  # ours: replaced as a whole
    assert not (tmp_path / "site" / "papers").exists()
    board = Page(tmp_path / "site" / "leaderboard.html")
    assert "papers/" not in board.raw and "Fed-CAD" in board.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "site", "two"]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err


def test_refuses_options_with_good_words(tmp_path, capsys):
    make_paper(tmp_path / "results", "agn")
    results = f"results={tmp_path / 'results'}"
    assert "colour=red: no such option; allowed: results, out" in refusal(capsys, "colour=red")
    assert "out: is missing" in refusal(capsys, results, "out=")
    nowhere = tmp_path / "nowhere"
    assert f"results={nowhere}: there is no such folder" in refusal(
        capsys, f"results={nowhere}", f"out={tmp_path / 's'}"
    )
    (tmp_path / "empty").mkdir()
    words = "no <study>/results.json there; studies: fedcad, adpfl, coqfl, fedags, agn, leaderboard"
    assert words in refusal(capsys, f"results={tmp_path / 'empty'}", f"out={tmp_path / 's'}")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert "holds something else than a site" in refusal(capsys, results, f"out={tmp_path / 'mine'}")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    assert "is a file" in refusal(capsys, results, f"out={tmp_path / 'mine' / 'thesis.txt'}")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert "is a link" in refusal(capsys, results, f"out={tmp_path / 'link'}")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("place", [".", "results", "results/agn", "results/agn/site"])
def test_results_and_site_never_lie_within_each_other(tmp_path, capsys, place):
    make_paper(tmp_path / "results", "agn")
    for folder in (tmp_path, tmp_path / "results", tmp_path / "results" / "agn"):
        (folder / MARKER).touch()
    said = refusal(capsys, f"results={tmp_path / 'results'}", f"out={tmp_path / place}")
    assert "must lie outside of the results" in said and (tmp_path / "results" / "agn" / "runs.jsonl").is_file()


def break_results(folder: Path, **changes: object) -> None:
    file = folder / "agn" / "results.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "agn" / "runs.jsonl").unlink(), "runs.jsonl is missing"),
        (lambda folder: (folder / "agn" / "runs.jsonl").write_text("{}\n"), "Field required"),
        (lambda folder: (folder / "agn" / "results.json").write_text("{"), "results.json or runs.jsonl"),
        (lambda folder: (folder / "agn" / "results.json").write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda folder: break_results(folder, paper="fedcad"), "is of the paper 'fedcad'"),
        (lambda folder: break_results(folder, surprise=1), "surprise"),
        (lambda folder: (folder / "agn" / "figures" / "accuracy.png").unlink(), "figures/accuracy.png is missing"),
        (lambda folder: (folder / "agn" / "figures" / "accuracy.png").write_text("<svg>"), "is no PNG picture"),
        (
            lambda folder: break_results(
                folder, figures=[{"name": "up", "file": "../../secret.png", "alt": "a", "caption": "c"}]
            ),
            "lies outside of the study's folder",
        ),
    ],
)
def test_refuses_results_that_it_cannot_use(tmp_path, capsys, damage, words):
    make_paper(tmp_path / "results", "agn")
    add_figures(tmp_path, "secret.png")
    damage(tmp_path / "results")
    said = refusal(capsys, f"results={tmp_path / 'results'}", f"out={tmp_path / 'site'}")
    assert words in said and "agn" in said and said.count("\n") == 1
    assert not (tmp_path / "site").exists()


def test_refuses_two_runs_of_one_name(tmp_path, capsys):
    file = make_paper(tmp_path / "results", "agn") / "runs.jsonl"
    file.write_text(file.read_text() * 2)
    said = refusal(capsys, f"results={tmp_path / 'results'}", f"out={tmp_path / 'site'}")
    assert "two runs have the name 'agn-s0'" in said


def test_refuses_two_of_one_name(tmp_path, capsys):
    folder = make_paper(tmp_path / "results", "agn")
    claims = json.loads((folder / "results.json").read_text())["claims"]
    break_results(tmp_path / "results", claims=[claims[0], claims[0]])
    said = refusal(capsys, f"results={tmp_path / 'results'}", f"out={tmp_path / 'site'}")
    assert "2 claims have the name 'better'" in said


def test_an_error_leaves_the_old_site_as_it_was(tmp_path):
    out = tmp_path / "site"
    with replace_site(out) as folder:
        (folder / "index.html").write_text("old")
    with pytest.raises(KeyboardInterrupt), replace_site(out) as folder:
        (folder / "index.html").write_text("half")
        raise KeyboardInterrupt
    assert (out / "index.html").read_text() == "old" and list(tmp_path.iterdir()) == [out]


def test_it_starts_without_torch():
    code = (
        "import sys, fedpriv.site;"
        "print([name for name in ('torch', 'flwr', 'ray', 'hydra', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
    assert main(["--help"]) == 0


# --- words and charts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "width", "words"),
    [
        (87.23, 0.83, "87.2 ± 0.8"),
        (87.23, 0.083, "87.23 ± 0.08"),
        (0.1234567, 0.00001, "0.1235 ± 0.0000"),
        (1979.4, 12.3, "1,979 ± 12"),
        (-3.0, 0.0, "−3.0 ± 0.0"),
        (87.23, None, "87.2"),
        (math.inf, None, "∞"),
        (None, None, "–"),
    ],
)
def test_estimates_in_words(mean, width, words):
    assert measured(estimate(mean, width)) == words


def test_numbers_in_words():
    assert [plain(value) for value in (92.43, 8.0, 0.1, math.inf, None)] == ["92.43", "8", "0.1", "∞", "–"]
    assert measured(None) == "–" and measured(estimate(2.0, 1.0), signed=True) == "+2.0 ± 1.0"
    assert duration(estimate(math.inf)) == "∞" and duration(estimate(None)) == "–"


def test_names_of_files():
    assert slug("fedcad-s0_eps=8") != slug("fedcad-s0_eps-8") == "fedcad-s0_eps-8"
    for name in ("", "..", ".hidden", "index", "a/b", "x" * 300, "a#b?c%41", "\ud800"):
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}", slug(name)) and slug(name) != name, name
    assert slug("a b") != slug("a-b") != slug("a  b")


def test_charts_hold_their_points():
    places = re.search(r'points="([^"]+)"', str(charts.accuracy_chart([(1, 0.0, None), (3, None, 1.0), (5, 1.0, 0.5)])))
    assert places is not None and places[1] == f"{charts.LEFT}.0,{charts.HEIGHT - charts.BOTTOM}.0 624.0,{charts.TOP}.0"
    assert charts.accuracy_chart([]) is None and charts.loss_chart([(1, 0.5, None)]) is None
    assert charts.accuracy_chart([(1, math.nan, None)]) is None
    for curve in ([(3, 0.5, 0.0)], [(1, 0.5, -2.0), (2, 0.5, 1e-12)], [(1, 7.0, 1e300), (9999, -1.0, 3.0)]):
        for chart in (charts.accuracy_chart(curve), charts.loss_chart(curve)):
            numbers = re.findall(r'(?:points|cx|cy|x|y)="([^"]+)"', str(chart))
            found = [float(part) for text in numbers for part in re.split("[ ,]", text)]
            assert found and all(-1 <= value <= charts.WIDTH + 1 for value in found)


def test_strips():
    assert charts.strip(None, 0, 1) == charts.strip(estimate(math.inf), 0, 1) == charts.strip(estimate(0.5), 1, 1) == ""
    assert 'class="interval" d="M80.0 9H156.0"' in charts.strip(estimate(0.75, 0.25), 0, 1)
    middle = charts.around_zero(estimate(3.0, 1.0))
    assert 'class="zero" d="M80.0 2V16"' in middle and "<circle" in middle and charts.around_zero(estimate(0.0)) == ""
