"""The pages of runs and comparisons: their text as reviewed files, and what must never get onto them.

`python tests/report/test_reviewed_pages.py` (with PYTHONPATH=tests) writes tests/report/pages/ anew, to be read before
it is committed.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from base64 import b64decode
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from report_runs import LEAKS, NO_PRIVACY, change_summary, full_run, make_run, privacy, sweep_of, whole_page
from report_runs import config as make_config

from fedpriv.common.errors import RunFolderError
from fedpriv.report.compare import compare, compare_folders, comparison_tables
from fedpriv.report.overview import head_of
from fedpriv.report.page import write_comparison, write_report
from fedpriv.report.reading import read_run
from fedpriv.report.run_summary import Summary
from fedpriv.report.tables import final_lines, final_table, plain_table

PAGES = Path(__file__).parent / "pages"
VOID = {"meta", "img", "br"}
BLOCKS = {"p", "h1", "h2", "h3", "li", "tr", "div", "summary", "pre", "figcaption", "title"}


class Page(HTMLParser):
    """The text (a line for each block), links and pictures of a page; fails on tags that do not nest."""

    def __init__(self, raw: str) -> None:
        super().__init__()
        self.text, self.images, self.links, self.tags, self._open = "", [], [], set(), []
        self.raw = raw
        self.feed(re.sub(r"<(style|script)>.*?</\1>", "", raw, flags=re.S))
        assert not self._open
        self.lines = [line for text in self.text.split("\n") if (line := " ".join(text.split()))]
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in VOID:
            self._open.append(tag)
        if tag in BLOCKS:
            self.text += "\n" + "# " * (tag in ("h1", "h2", "h3"))
        if tag == "img":
            self.images.append(dict(attributes))
            self.text += f"\n[{dict(attributes)['alt']}]\n"
        if tag == "a":
            self.links.append(dict(attributes)["href"])

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        self.text += " | " * (tag in ("td", "th", "dt"))

    def handle_data(self, data):
        self.text += data.replace("\n", " ") + " "


def report(folder: Path) -> Page:
    return Page(whole_page(folder).read_text())


# --- reviewed files --------------------------------------------------------------------------------------

SHARPER = [{"assumes": "the noise is Gaussian", "epsilon_lower": 5.5, "attainable": 8.0, "confidence": 0.9}]
WITHIN = {
    "audited_epsilon": 3.0, "audited_at_most": 3.6, "correct": 99, "guesses": 100, "canaries": 1000,
    "share_of_rounds": 0.03, "sharper": SHARPER,
    "estimated": {"epsilon": 6.84, "source": "Andrew et al. 2023", "assumes": "the scores are Gaussian"},
}  # fmt: skip
AUDITS = privacy(
    claimed_scope="coordinate", audited_epsilon=3.0, audited_confidence=0.95, audited_trials=100_000,
    audit_verdict="consistent", audited_at_most=3.6, audited_expected=3.1, in_run_audit=WITHIN, secure_sum="protocol",
    audits=[{"sharper": SHARPER}, {"scope": "round", "claimed_epsilon": 1.0, "audited_epsilon": 0.5, "verdict": "ok"}],
    training_audit={"audited_epsilon": 2.0, "correct": 9, "guesses": 10, "canaries": 100, "verified_epsilon": 30.0},
    fit_audit={"audited_epsilon": 1.0, "scope": "one fit", "audited_on": "client 3", "verified_epsilon": 4.0},
    opacus={"rdp": 5.0, "prv": 4.5, "library": "Opacus 1.6", "adjacency": "add-or-remove-one", "remarks": ["by hand"]},
    others=[
        privacy(observer="public", verified_epsilon=4.2, claimed_epsilon=None),
        privacy(observer="secure-sum", verified_epsilon="inf", reasons=["one reply is enough"]),
    ],
)  # fmt: skip
CHEAP = {"coins": 1121, "share": 0.0391, "cheap": True, "would_show": 3.08, "would_show_if_gaussian": 5.11}
ANSWERS = [
    {"question": "histogram:sex", "of": ["f", "m"], "values": [123456.7, 2], "low": [1, 1.5], "high": [2, 2.5]},
    {"question": "top:x:2", "of": list("abc"), "values": [1, 3, 2], "low": [0] * 3, "high": [9] * 3, "remarks": ["r"]},
    {
        "question": "table:sex:ill",
        "of": ["f and no", "f and yes", "m and no", "m and yes"],
        "values": [101.37, 56.2, 98.4, -3.1],
        "low": [88.2, 43.1, 85.2, -16.3],
        "high": [114.5, 69.4, 111.6, 10.1],
    },
    {"question": "mean:age", "of": ["age"], "values": [55.512345], "low": [55.1], "high": [55.9]},
]
NO_ACCURACY = {"accuracy": {"final": None}}
METRICS = {
    "leading": "rmse", "more_is_better": False, "final": {"mae": 2.0, "rmse": 3.14159, "r2": None},
    "sites": [{"site": "north", "value": 4.5, "examples": 1200}, {"site": "south", "value": 2, "examples": 9}],
}  # fmt: skip


def _offers(place: Path) -> Path:
    offers = {
        "cheap": CHEAP, "dear": CHEAP | {"cheap": False, "share": 0.31}, "none": {"reason": "clients share noise"},
        "joint": {"coins": 71, "share": 0.03, "cheap": True, "at_most": 2.41},
    }  # fmt: skip
    for noise, (name, offer) in enumerate(offers.items(), 1):
        make_run(place / name, rounds=2, noise=0.1 * noise, record=privacy(in_run_offer=offer))
    return place


def _table(place: Path) -> Path:
    folder = change_summary(make_run(place, rounds=2, record=AUDITS), metrics=METRICS, **NO_ACCURACY)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [line | {"accuracy": None, "metrics": {"rmse": 4.0 - line["round"] / 2}} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    facts = {"diverged": "the run diverged", "note": "budgets ended it", "untrained": "of no class", "num_shared": 100}
    return change_summary(folder, stages=[{"rounds": 1, "verified_epsilon": 3.0}, {"rounds": 2}], **facts)


def _torn(place: Path) -> Path:
    file = make_run(place, finished=False) / "metrics.jsonl"
    file.write_text(file.read_text()[:-30])
    return place


def _alarms(place: Path) -> Path:
    verdict = {"attack": "lira", "shown": True, "verdict": "AUC contradicts the guarantee"}
    record = privacy(audited_epsilon=40.0, unit="person", person="patient")
    return change_summary(make_run(place, rounds=2, record=record), attacks={"lira": verdict})


#: Name -> a run's folder, or one that holds some, which are compared.
CASES: dict[str, Callable[[Path], Path]] = {
    "everything": full_run,
    "modest": lambda place: full_run(place, epsilon=2.0),
    "leaks": lambda place: make_run(place, rounds=3, record=LEAKS),
    "no_privacy": lambda place: make_run(place, rounds=3, record=NO_PRIVACY, noise=None, strategy="fedavg"),
    "table": _table,
    "alarms": _alarms,
    "torn": _torn,
    "answers": lambda place: change_summary(make_run(place), answers=ANSWERS, asked={"replied": 7}, **NO_ACCURACY),
    "offers": _offers,
    "sweep": lambda place: sweep_of(place, ["strategy=fedldp,fedcad", "privacy.target_epsilon=2,8", "seed=1,2"]),
    "threats": lambda place: make_run(place / "b", rounds=2, record=LEAKS).parent
    if make_run(place / "a", rounds=2, noise=0.3, record=AUDITS) else place,
}  # fmt: skip


def shown(place: Path) -> str:
    """All that a person reads of a folder: pages, terminal, CSV and LaTeX."""
    if not (place / "config.yaml").exists():
        comparison = compare_folders(sorted(path for path in place.iterdir() if path.is_dir()))
        write_comparison(comparison, place)
        tables = ["\n".join([one.title, *plain_table(one.header, one.rows)]) for one in comparison_tables(comparison)]
        files = [(place / f"comparison.{kind}").read_text() for kind in ("csv", "tex")]
        return "\n\n".join(["\n".join(Page((place / "comparison.html").read_text()).lines), *tables, *files]).rstrip()
    whole = report(place).lines
    public = Page((place / "report.html").read_text()).lines
    lines = final_lines(read_run(place).summary or {})
    less = [line for line in public if line not in whole]
    return "\n".join([*whole, "", "=== for outsiders", *less, "", "=== in the terminal", *lines])


@pytest.mark.parametrize("name", CASES)
def test_pages_are_those_that_were_reviewed(name: str, tmp_path: Path) -> None:
    assert shown(CASES[name](tmp_path / "run")).splitlines() == (PAGES / f"{name}.txt").read_text().splitlines()


# --- what a page is --------------------------------------------------------------------------------------


def held(image: dict[str, str]) -> tuple[str, bytes]:
    """(kind, content) of a picture that is in the page."""
    found = re.fullmatch(r"data:([a-z/+]+);base64,(.+)", image["src"])
    assert found is not None
    return found[1], b64decode(found[2])


def test_pictures_are_in_the_page_and_those_of_clients_data_only_in_the_private_one(tmp_path: Path) -> None:
    page = report(make_run(tmp_path / "run"))
    for image, name in zip(page.images, ("accuracy", "private/loss", "epsilon", "private/noise"), strict=True):
        assert held(image) == ("image/svg+xml", (tmp_path / "run" / f"{name}.svg").read_bytes())
        assert (tmp_path / "run" / f"{name}.png").stat().st_size > 5000
    public = Page((tmp_path / "run" / "report.html").read_text())
    assert len(public.images) == 3 and "for the experimenter alone" in public.text
    assert held(public.images[1])[1] == (tmp_path / "run" / "loss.svg").read_bytes() != held(page.images[1])[1]
    (tmp_path / "run" / "audit.png").write_bytes(b"audit")  # drawn by others
    (tmp_path / "run" / "private" / "labels.png").write_bytes(b"png")
    assert [held(image) for image in report(tmp_path / "run").images[-2:]] == [
        ("image/png", b"audit"),
        ("image/png", b"png"),
    ]


def test_a_page_needs_no_network_and_no_script(tmp_path: Path) -> None:
    page = report(make_run(tmp_path / "run", rounds=3))
    written = re.sub(r'src="data:[^"]*"', "", page.raw)
    assert "script" not in page.tags and "http" not in page.raw and "//" not in written and "src=" not in written
    for rule in ("prefers-color-scheme: dark", "@media print", "width=device-width"):
        assert rule in page.raw


def test_a_run_that_has_hardly_begun_and_one_of_nulls(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(make_config()))
    page = report(tmp_path / "run")
    assert "fedcad on mnist: not evaluated yet" in page.text and not page.images
    (tmp_path / "run" / "config.yaml").write_text("{")
    assert "config.yaml: cannot be read" in report(tmp_path / "run").text
    with pytest.raises(RunFolderError):
        write_report(tmp_path)
    folder = make_run(tmp_path / "nulls", rounds=2)
    bare = [json.dumps({"round": i, **dict.fromkeys(("accuracy", "loss", "figures", "seconds"))}) for i in (1, 2)]
    (folder / "metrics.jsonl").write_text("\n".join(bare) + "\n")
    content = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(
        json.dumps(dict.fromkeys(content) | {"privacy": dict.fromkeys(content["privacy"])})
    )
    page = report(folder)
    assert page.images == [] and "not stated" in page.text and "No round has been evaluated yet." in page.text


ATTACK = "<script>alert('x')</script><img src=x onerror=y>\"&amp;[bold]"


def test_everything_from_files_is_escaped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", rounds=2, record=LEAKS | {"reasons": [ATTACK], "claimed_equation": ATTACK})
    (folder / "config.yaml").write_text(f"note: |\n  {ATTACK}\n")
    (folder / "ledger.jsonl").write_text(
        json.dumps({"round": 1, "client": 0, "mechanism": ATTACK, "unit": ATTACK, "adjacency": "a", "observer": "b"})
    )
    change_summary(
        folder, strategy=ATTACK, dataset=ATTACK, model=ATTACK, versions={ATTACK: ATTACK}, timing={ATTACK: 1.0}
    )
    change_summary(folder, privacy={"observer": ATTACK, "accountant": ATTACK, "others": [{"observer": ATTACK}]})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[0]["figures"] = {ATTACK: ATTACK}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for page in (report(folder), Page(head_of(folder))):
        assert "script" not in page.tags and all("onerror" not in image for image in page.images)
        assert page.text.count(" ".join(ATTACK.split())) > 4


def test_the_comparison_is_escaped_and_links_to_the_runs(tmp_path: Path) -> None:
    names = ("a b&c<script>", "d")
    for name, value in zip(names, (ATTACK, "0.5"), strict=True):
        make_run(tmp_path / name, rounds=2, diff=value, record=LEAKS | {"reasons": [ATTACK]}, **{ATTACK: value})
    write_report(tmp_path / "d")
    html, table, latex, picture = write_comparison(compare([read_run(tmp_path / name) for name in names]), tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.*")} == {0o600}
    page = Page(html.read_text())
    assert html.read_text().count("<script") == 1  # the one that sorts
    assert page.text.count("<script>alert('x')</script>") >= 3
    assert page.links == ["comparison.csv", "comparison.tex", "a%20b%26c%3Cscript%3E/summary.json", "d/report.html"]
    assert (table.name, latex.name, picture.name) == ("comparison.csv", "comparison.tex", "comparison.png")
    assert r"\&amp;" in latex.read_text() and r"alert('x')" in latex.read_text()


def test_the_final_table_keeps_brackets_as_they_are() -> None:
    from rich.console import Console

    record = LEAKS | {"reasons": ["[red]leak[/red] [/]"]}
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(final_table({"strategy": "fedavg", "privacy": record}))
    assert "no finite bound: [red]leak[/red] [/]" in console.export_text()


# --- the typed summary -----------------------------------------------------------------------------------


def test_a_summary_is_read_as_types() -> None:
    result = Summary.model_validate({"privacy": AUDITS | {"verified_epsilon": "inf"}, "metrics": METRICS})
    assert (result.privacy.verified_epsilon, result.privacy.delta) == (float("inf"), 1e-5)
    assert (result.privacy.verdict, result.privacy.in_run_audit.estimated.epsilon) == ("consistent", 6.84)
    assert [one.threat[2] for one in result.privacy.others] == ["public", "secure-sum"]
    assert result.leading == ("rmse", 3.14159, False) and result.worst_site == ("north", 4.5)
    assert list(result.further_metrics.items()) == [("rmse", "3.142"), ("mae", "2")]


@pytest.mark.parametrize("junk", [None, "x", -1, [], {}, True, 1e308, "inf", ["a"], {"a": 1}, [[[{}]]]])
def test_what_is_not_of_its_kind_counts_as_not_there(junk: object) -> None:
    """At every place of a summary that has every key."""

    def places(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        return [at, *(place for key, item in items for place in places(item, (*at, key)))]

    whole = {"privacy": AUDITS | {"in_run_offer": CHEAP}, "metrics": METRICS, "accuracy": {"final": 0.5}}
    whole |= {"stages": [{"rounds": 1}], "attacks": {"a": {"figures": {"auc": {"value": 1}}}}, "timing": {"x": 1}}
    for place in places(whole)[1:]:
        content = json.loads(json.dumps(whole))
        node = content
        for key in place[:-1]:
            node = node[key]
        node[place[-1]] = junk
        assert "epsilon" in "\n".join(final_lines(content))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for case in sys.argv[1:] or CASES:
            (PAGES / f"{case}.txt").write_text(shown(CASES[case](Path(place) / case)) + "\n")
