"""The two files of each of the five papers' methods hold every numbered line of its algorithms."""

from __future__ import annotations

from collections import defaultdict

import pytest

from fedpriv.commands.papers import REQUIRED, ROOT, tags_in


def numbers(text: str) -> set[int]:
    """``"1 to 3, 7"`` -> {1, 2, 3, 7}."""
    ends = [[int(end) for end in part.split(" to ")] for part in text.split(", ") if part]
    return {number for part in ends for number in range(part[0], part[-1] + 1)}


#: (paper, algorithm) -> (name of the method's two files, how its lines are called, those that compute something, the
#: others: headings, loops and their ends, what is returned).
LISTINGS = {
    ("Fed-CAD", "Alg. 1"): ("fedcad", "line", "7, 9 to 26", "1 to 6, 8"),
    ("Fed-CAD", "Alg. 2"): ("fedcad", "line", "6, 8", "1 to 5, 7, 9, 10"),
    ("ADP-FL", "Alg. 1"): ("adpfl", "line", "14 to 20, 22 to 25", "1 to 13, 21, 26, 27"),
    ("ADP-FL", "Alg. 2"): ("adpfl", "line", "3 to 12, 15 to 18", "1, 2, 13, 14, 19"),
    ("ADP-FL", "Alg. 3"): ("adpfl", "line", "2 to 5", "1, 6, 7"),
    ("CoQ-FL", "Alg. 1"): ("coqfl", "step", "1 to 4", ""),  # its listing is lost, its text has four steps
    ("DP-FedAGS", "Alg. 1"): ("fedags", "line", "9 to 12, 22 to 30", "3 to 8, 13 to 21, 31"),
    ("DPFL-AGN", "Alg. 1"): (
        *("dpfl_agn", "line", "1, 3, 6, 8, 10, 12 to 18, 21, 23, 24", "2, 4, 5, 7, 9, 11, 19, 20, 22, 25 to 29"),
    ),
}


def found(paper: str, algorithm: str, name: str, word: str) -> dict[int, list[str]]:
    """number -> the lines of the two files that bear it."""
    bearing: dict[int, list[str]] = defaultdict(list)
    for folder in ("clients", "strategies"):
        text = (ROOT / folder / f"{name}.py").read_text(encoding="utf-8")
        for tag in tags_in(text, folder):
            start, _, number = tag.place.rpartition(" ")
            if (tag.paper, start) == (paper, f"{algorithm} {word}"):
                bearing[int(number)].append(text.splitlines()[tag.line - 1])
            else:
                assert not (tag.paper == paper and start.startswith(f"{algorithm} ")), f"{tag} is called otherwise"
    return bearing


@pytest.mark.parametrize(("paper", "algorithm"), LISTINGS)
def test_every_line_of_the_listing_is_in_the_two_files_and_no_other(paper: str, algorithm: str) -> None:
    name, word, computing, others = LISTINGS[paper, algorithm]
    assert not numbers(computing) & numbers(others)
    assert sorted(found(paper, algorithm, name, word)) == sorted(numbers(computing) | numbers(others))


@pytest.mark.parametrize(("paper", "algorithm"), LISTINGS)
def test_what_computes_is_beside_its_number(paper: str, algorithm: str) -> None:
    """On the line of a statement, not in a comment of its own."""
    name, word, computing, _ = LISTINGS[paper, algorithm]
    bearing = found(paper, algorithm, name, word)
    assert [line for line in sorted(numbers(computing)) if all(one.lstrip()[0] == "#" for one in bearing[line])] == []


def test_the_command_lists_the_same_lines() -> None:
    ours = {(p, f"{a} {w} {n}") for (p, a), (_, w, c, o) in LISTINGS.items() for n in numbers(c) | numbers(o)}
    theirs = {(p, place) for p, _ in LISTINGS for place in REQUIRED[p] if place.startswith("Alg. ")}
    assert ours == theirs
    assert {paper for paper, _ in LISTINGS} == {"Fed-CAD", "ADP-FL", "CoQ-FL", "DP-FedAGS", "DPFL-AGN"}
