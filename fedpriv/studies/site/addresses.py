"""Where everything lies on the site: paths of pages, anchors within them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from fedpriv.studies.results import Board, Entry
from fedpriv.studies.site.inputs import LEADERBOARD, Source
from fedpriv.studies.site.wording import LIST, paper_name, plain, slug

#: A run: its study and its name.
RunKey = tuple[str, str]


@dataclass(frozen=True)
class Link:
    """text None: the run is not among the study's runs."""

    text: str
    href: str | None


@dataclass(frozen=True)
class Links:
    """what: the word for one of them, "seed" where runs are named by their seeds."""

    what: str
    links: tuple[Link, ...]


def paper_path(name: str) -> str:
    return f"papers/{name}.html"


def study_path(name: str) -> str:
    return "leaderboard.html" if name == LEADERBOARD else paper_path(name)


def study_title(name: str) -> str:
    return "the leaderboard" if name == LEADERBOARD else paper_name(name)


def list_path(study: str) -> str:
    return f"runs/{study}/{LIST}.html"


def run_path(study: str, name: str) -> str:
    return f"runs/{study}/{slug(name)}.html"


def line_path(study: str, name: str) -> str:
    """Of a run's line in the list of its study, where every run has one."""
    return f"{list_path(study)}#{slug(name)}"


def row_id(table: str, row: str) -> str:
    return f"row:{slug(table)}:{slug(row)}"


def board_id(board: Board) -> str:
    return f"board:{slug(board.name)}"


def entry_id(board: Board, entry: Entry) -> str:
    """By its method, which several entries of one target may share."""
    rivals = [other for other in board.entries if (other.target, other.method) == (entry.target, entry.method)]
    name = slug(entry.method) if len(rivals) == 1 else f"{slug(entry.method)}:{rivals.index(entry) + 1}"
    return f"entry:{slug(board.name)}:{slug(plain(entry.target))}:{name}"


def run_links(study: Source[Any], names: Sequence[str], pages: Set[RunKey]) -> Links:
    """To the page of each run that has one, to its line in the list otherwise."""
    known = [study.runs.get(name) for name in names]
    told = [run.seed for run in known if run]
    by_seed = len(set(told)) == len(names)
    texts = [str(seed) for seed in told] if by_seed else list(names)
    paths = [
        None if run is None else (run_path if (study.name, name) in pages else line_path)(study.name, name)
        for run, name in zip(known, names, strict=True)
    ]
    return Links("seed" if by_seed else "run", tuple(map(Link, texts, paths)))
