"""The page of a run: what a reader must find on it, and what must never get onto it."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from report_runs import LEAKS, NO_PRIVACY, make_run, privacy, summary, whole_page
from report_runs import config as make_config

from fedpriv.common.errors import RunFolderError
from fedpriv.report.compare import compare
from fedpriv.report.page import write_comparison, write_report
from fedpriv.report.reading import read_run
from fedpriv.report.tables import final_lines, final_table

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """The text, links and pictures of a page; fails on tags that do not nest."""

    def __init__(self, file: Path):
        super().__init__()
        self.text, self.images, self.links, self.tags, self._open = "", [], [], set(), []
        self.raw = file.read_text(encoding="utf-8")
        self.feed(re.sub(r"<style>.*?</style>", "", self.raw, flags=re.S))
        assert not self._open
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in VOID:
            self._open.append(tag)
        if tag == "img":
            self.images.append(dict(attributes))
        if tag == "a":
            self.links.append(dict(attributes)["href"])

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data + " "


def held(image: dict[str, str]) -> tuple[str, bytes]:
    """(kind, content) of a picture that is in the page."""
    found = re.fullmatch(r"data:([a-z/+]+);base64,(.+)", image["src"])
    assert found is not None
    return found[1], b64decode(found[2])


def report(folder: Path) -> Page:
    return Page(whole_page(folder))


def test_a_finished_run_shows_everything(tmp_path):
    page = report(make_run(tmp_path / "run"))
    for words in (
        "fedcad on mnist: 88.0 % accuracy",
        "80,202 parameters",
        "claimed 12.3 the whole run",
        "Theorem VI.1, composed by RDP",
        "verified 31.5 the whole run",
        "spent so far 31.5",
        "median client 22",
        "not audited",
        "all data of one client was replaced by any other of the same public size",
        "the server, which sees the messages of each client one by one",
        "1e-05",
        "This page is not for publication",
        "outside the ledger",
        "number of examples of each client is public by assumption",
        "gaussian multiplier 0.05 300 91 30",
        "91.8 MiB",
        "900 ms",
        "noise_multiplier: 0.1",
        "2.15.0",
        "diff_mean 0.495 0.35",
        "Replies refused 3 (stale 2, wrong shape 1)",
        "Trainer vectorised",
    ):
        assert words in page.text, words
    assert "Published variant" not in page.text and "not finished" not in page.text
    assert [image["alt"].split(" over")[0] for image in page.images] == [
        "Line plot of test accuracy",
        "Line plot of loss",
        "Step plot of the epsilon spent so far: 31.5 after round 30; verified for the whole run 31.5, claimed for the "
        "whole run 12.3.",
        "Line plot of L2 norms",
    ]
    assert "88.0 % in round 30" in page.images[0]["alt"]
    for image, name in zip(page.images, ("accuracy", "private/loss", "epsilon", "private/noise"), strict=True):
        assert held(image) == ("image/svg+xml", (tmp_path / "run" / f"{name}.svg").read_bytes())
        assert (tmp_path / "run" / f"{name}.png").stat().st_size > 5000
    public = Page(tmp_path / "run" / "report.html")
    assert len(public.images) == 3 and "for the experimenter alone" in public.text
    assert held(public.images[1])[1] == (tmp_path / "run" / "loss.svg").read_bytes() != held(page.images[1])[1]


def test_a_page_needs_no_network_and_no_script(tmp_path):
    page = report(make_run(tmp_path / "run", rounds=3))
    written = re.sub(r'src="data:[^"]*"', "", page.raw)
    assert "script" not in page.tags and "http" not in page.raw and "//" not in written and "src=" not in written
    for rule in ("prefers-color-scheme: dark", "@media print", "width=device-width"):
        assert rule in page.raw


def test_a_published_run_says_what_leaks(tmp_path):
    page = report(make_run(tmp_path / "run", rounds=3, record=LEAKS))
    assert "Published variant. This run follows the paper as printed" in page.text
    assert f"What leaks: {LEAKS['reasons'][0]}" in page.text
    assert f"verified ∞ the whole run no promise no finite bound: {LEAKS['reasons'][0]}" in page.text
    assert "verified for the whole run without finite bound" in page.images[2]["alt"]


def test_a_run_without_privacy_claims_nothing(tmp_path):
    page = report(make_run(tmp_path / "run", rounds=3, record=NO_PRIVACY, noise=None, strategy="fedavg"))
    assert "claimed no claim the method claims no epsilon" in page.text
    assert "no finite bound: updates are sent without noise" in page.text
    assert "No noise was added." in page.text


def test_further_threat_models_are_apart(tmp_path):
    others = [
        privacy(observer="public", verified_epsilon=4.2, claimed_epsilon=None),
        privacy(observer="secure-sum", verified_epsilon="inf", reasons=["one reply is enough"]),
    ]
    page = report(make_run(tmp_path / "run", rounds=3, record=privacy(others=others)))
    own, public, summed = re.split("Also seen by:", page.text)
    assert "verified 31.5" in own and "4.2" not in own and "one reply is enough" not in own
    assert public.strip().startswith("public") and "verified 4.2" in public and "not comparable" in public
    assert "no finite bound: one reply is enough" in summed
    assert "Secure summation is assumed: nothing in this run hid single messages from the server." in page.text
    assert "Secure summation" not in report(make_run(tmp_path / "plain", rounds=2)).text


def test_an_unfinished_run_with_a_torn_line(tmp_path):
    folder = make_run(tmp_path / "run", finished=False)
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text()[:-30])
    page = report(folder)
    assert "This run is not finished. 14 rounds of 30 so far." in page.text
    assert "metrics.jsonl: its last line is torn and was left out" in page.text
    assert "80.9 % accuracy so far" in page.text
    assert "epsilon spent so far 21.5 no guarantee for the whole run" in page.text
    assert "The three epsilons are written when the run ends." in page.text


def test_a_run_that_has_hardly_begun(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(make_config()))
    page = report(folder)
    assert "fedcad on mnist: not evaluated yet" in page.text and not page.images
    (folder / "config.yaml").write_text("{")
    assert "config.yaml: cannot be read" in report(folder).text
    with pytest.raises(RunFolderError):
        write_report(tmp_path)


def test_nulls_everywhere(tmp_path):
    folder = make_run(tmp_path / "run", rounds=3)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    bare = [{key: value if key == "round" else None for key, value in line.items()} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in bare))
    for file in folder.glob("*.png"):
        file.unlink()
    content = json.loads((folder / "summary.json").read_text())
    content = dict.fromkeys(content) | {"privacy": dict.fromkeys(content["privacy"])}
    (folder / "summary.json").write_text(json.dumps(content))
    page = report(folder)
    assert page.images == [] and "not stated" in page.text
    assert "No round has been evaluated yet." in page.text


def test_an_audit_above_the_bound_is_an_alarm(tmp_path):
    record = privacy(audited_epsilon=40.0, audited_confidence=0.95, audited_trials=1000)
    assert "The verified bound is wrong." in report(make_run(tmp_path / "bad", rounds=2, record=record)).text
    record = privacy(audited_epsilon=30.0, audited_confidence=0.95, audited_trials=1000)
    page = report(make_run(tmp_path / "good", rounds=2, record=record))
    assert "is wrong" not in page.text and "audited 30 the whole run" in page.text


def test_pictures_of_others_are_shown_where_they_exist(tmp_path):
    folder = make_run(tmp_path / "run", rounds=2)
    (folder / "private" / "labels.png").write_bytes(b"png")
    assert held(report(folder).images[-1]) == ("image/png", b"png")
    (folder / "audit.png").write_bytes(b"audit")
    (folder / "private" / "labels.svg").write_bytes(b"<svg/>")
    found = [held(image) for image in report(folder).images[-2:]]
    assert found == [("image/png", b"audit"), ("image/svg+xml", b"<svg/>")]


ATTACK = "<script>alert('x')</script><img src=x onerror=y>\"&amp;[bold]"


def test_everything_from_files_is_escaped(tmp_path):
    folder = make_run(tmp_path / "run", rounds=2, record=LEAKS | {"reasons": [ATTACK], "claimed_equation": ATTACK})
    (folder / "config.yaml").write_text(f"note: |\n  {ATTACK}\n")
    (folder / "ledger.jsonl").write_text(
        json.dumps({"round": 1, "client": 0, "mechanism": ATTACK, "unit": ATTACK, "adjacency": "a", "observer": "b"})
    )
    content = json.loads((folder / "summary.json").read_text())
    content |= {"strategy": ATTACK, "dataset": ATTACK, "model": ATTACK, "versions": {ATTACK: ATTACK}}
    content["privacy"] |= {"observer": ATTACK, "accountant": ATTACK, "others": [{"observer": ATTACK}]}
    content["timing"] = {ATTACK: 1.0}
    (folder / "summary.json").write_text(json.dumps(content))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[0]["figures"] = {ATTACK: ATTACK}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report(folder)
    assert "script" not in page.tags and all("onerror" not in image for image in page.images)
    assert page.text.count(" ".join(ATTACK.split())) > 10


def test_the_comparison_is_escaped_and_links_to_the_runs(tmp_path):
    names = ("a b&c<script>", "d")
    for name, value in zip(names, (ATTACK, "0.5"), strict=True):
        make_run(tmp_path / name, rounds=2, diff=value, record=LEAKS | {"reasons": [ATTACK]}, **{ATTACK: value})
    write_report(tmp_path / "d")
    runs = [read_run(tmp_path / name) for name in names]
    html, table, latex, picture = write_comparison(compare(runs), tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.*")} == {0o600}
    page = Page(html)
    assert html.read_text().count("<script") == 1  # the one that sorts
    assert page.text.count("<script>alert('x')</script>") >= 3
    assert page.links == ["comparison.csv", "comparison.tex", "a%20b%26c%3Cscript%3E/summary.json", "d/report.html"]
    assert (table.name, latex.name, picture.name) == ("comparison.csv", "comparison.tex", "comparison.png")


# --- the table at the end of a run -----------------------------------------------------------------------


def test_the_final_lines_hold_accuracy_epsilons_and_time():
    lines = final_lines(summary(make_config(), 0.88, 31.0, LEAKS | {"others": [privacy(observer="public")]}))
    assert lines[0] == "fedcad on mnist, 30 rounds"
    assert [line.split("  ")[0] for line in lines[1:6]] == [
        "accuracy", "claimed epsilon", "verified epsilon", "audited epsilon", "time",
    ]  # fmt: skip
    assert "88.0 %" in lines[1] and "12.3" in lines[2] and "not audited" in lines[4] and "31.0 s" in lines[5]
    assert "∞" in lines[3] and f"no finite bound: {LEAKS['reasons'][0]}" in lines[3]
    assert "delta 1e-05" in lines[6] and "not comparable with these, in the report: public" in lines[6]


def test_the_final_table_keeps_brackets_as_they_are():
    from rich.console import Console

    record = LEAKS | {"reasons": ["[red]leak[/red] [/]"]}
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(final_table(summary(make_config(), 0.88, 31.0, record)))
    assert "no finite bound: [red]leak[/red] [/]" in console.export_text()


def test_final_lines_of_a_summary_without_privacy():
    assert any("no claim" in line for line in final_lines({"strategy": "fedavg", "dataset": "digits", "rounds": 3}))
