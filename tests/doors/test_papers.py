"""Every equation of the papers is in the code, where `make papers` says."""

from __future__ import annotations

import re

import pytest

from fedpriv.commands import papers


def test_every_listed_equation_is_in_the_code_and_a_removed_tag_is_missed() -> None:
    tags = papers.find_tags()
    assert papers.missing(tags) == [] and {tag.paper for tag in tags} <= papers.REQUIRED.keys()
    fewer = [tag for tag in tags if (tag.paper, tag.place) != ("Fed-CAD", "Alg. 1 line 16")]
    assert papers.missing(fewer) == ["[Fed-CAD, Alg. 1 line 16]"]


def test_tags_point_at_their_lines() -> None:
    for tag in papers.find_tags():
        line = (papers.ROOT / tag.file).read_text().splitlines()[tag.line - 1]
        ranged = re.search(rf"\[{tag.paper}, [^]]*lines \d[^]]* to ", line)
        assert f"[{tag.paper}, " in line and (ranged or tag.place.split()[-1] in line)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("x = 1  # [Fed-CAD, Alg. 1 line 14]", ["Alg. 1 line 14"]),
        ("\n# [Fed-CAD, Alg. 1 lines 13, 20, 21]", ["Alg. 1 line 13", "Alg. 1 line 20", "Alg. 1 line 21"]),
        ("x = 1  # [Fed-CAD, Alg. 1 lines 1 to 3, 20]", [f"Alg. 1 line {line}" for line in (1, 2, 3, 20)]),
        ("x = 1  # v_1 = 1  [Fed-CAD, III-C (3)]", ["III-C (3)"]),
        ("# [DPFL-AGN, eq. 13] and [Fed-CAD, V-B]", ["eq. 13", "V-B"]),
        ('"""says [Kairouz, Theorem 2] of it"""', []),
        ("# shapes [n, k] or [N, d]", []),
    ],
)
def test_what_a_tag_is(text: str, places: list[str]) -> None:
    assert [tag.place for tag in papers.tags_in(text, "file.py")] == places


def test_the_command_prints_equation_and_place_and_fails_where_one_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert papers.main([]) == 0
    printed = capsys.readouterr().out.splitlines()
    (line,) = [line for line in printed if line.startswith("[Fed-CAD, Alg. 1 line 14]")]
    assert line.split()[-1].startswith("clients/fedcad.py:")
    monkeypatch.setattr(papers, "REQUIRED", {"Fed-CAD": ("Alg. 3 line 1",)})
    assert papers.main([]) == 1 and "[Fed-CAD, Alg. 3 line 1]" in capsys.readouterr().err
