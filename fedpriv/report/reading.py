"""Reads a run folder from the disk: finished, still running, or with a torn last line."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedpriv.common.errors import CodeRefused, FedprivError, RunFolderError
from fedpriv.common.files import open_regular
from fedpriv.common.printing import say
from fedpriv.common.run_files import (
    LONGEST,
    MOST_VALUES,
    bytes_in,
    is_file_in,
    json_of,
    mapping_in,
    open_in,
    refuse_links,
    text_in,
)
from fedpriv.config.owner import is_own
from fedpriv.config.yaml_text import read_yaml
from fedpriv.privacy.events import EVERY_CLIENT
from fedpriv.report.views import PRIVATE, ROUND, SUMMARY, joined, split

if TYPE_CHECKING:
    from fedpriv.report.run_summary import Summary

#: A folder that holds one of these is a run's folder (``.hydra`` alone: a job that ended before its first file).
MARKS = ("config.yaml", "metrics.jsonl", "summary.json", ".hydra")
#: What tells a run that nobody named from a folder of another program.
OWN = {"config.yaml": b"strategy:", "summary.json": b'"strategy"', "metrics.jsonl": b'"round"'}
#: Folders that are looked into for runs.
MOST_FOLDERS = 20_000

#: Keys of a ledger line that are not parameters of its mechanism.
NOT_PARAMETERS = {"round", "client", "clients", "sequence", "sequences", "attempt", "with_previous", "count"}

#: In a sweep's folder: how many jobs it has, and its options. A search has none: what it tries next is not known.
SWEEP_FILE = "sweep.json"

#: Lines of metrics.jsonl, and torn ones of a ledger, that are read.
MOST_ROUNDS, MOST_TORN = 500_000, 10_000

TORN_LAST = "its last line is torn and was left out"


@dataclass(frozen=True)
class RunFolder:
    """The readable part of a run. ``summary``: as the file has it. ``problems``: file -> what could not be read."""

    path: Path
    config: Mapping[str, Any]
    config_text: str
    rounds: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any] | None
    problems: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def result(self) -> Summary:
        """The summary as types; empty where there is none."""
        from fedpriv.report.run_summary import Summary  # a tenth of a second, which no start waits for

        return Summary.model_validate(self.summary)

    @property
    def why_not_comparable(self) -> str | None:
        """The reason, in words, why this run cannot be compared, or None."""
        for name in ("config.yaml", "summary.json"):
            if name in self.problems:
                return f"{name}: {self.problems[name]}"
        if self.summary is None:
            return f"unfinished: {len(self.rounds)} rounds so far, no summary.json yet"
        return None


@dataclass(frozen=True)
class Releases:
    """All releases of one mechanism (and, without a bound, for one reason) under one threat model.

    ``parameters``: the mechanism's own, each with its smallest and largest value. A release whose client is lost
    in a torn line counts only in ``total``. clients: None where a trusted server released a sum over every client.
    """

    mechanism: str
    reason: str
    threat: str
    total: int
    clients: int | None
    most_by_one_client: int
    parameters: Mapping[str, tuple[float, float]]


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in nested mappings that is no mapping."""
    if isinstance(node, Mapping):
        for key, child in node.items():
            yield from leaves(child, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def is_run(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in MARKS)


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The run folders among and below ``folders``, in their order and without repetition.

    Raises `RunFolderError` for a path that is not a folder or holds no run.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise RunFolderError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
        runs = list(_walk(folder))
        if not runs:
            raise RunFolderError(
                f"{folder}: no run in it (a run folder holds config.yaml, metrics.jsonl, summary.json)"
            )
        found |= {run.resolve(): run for run in runs if run.resolve() not in found}
    return list(found.values())


def _walk(folder: Path) -> list[Path]:
    if is_run(folder):
        if not _is_own(folder) and any(_readable(folder / name) for name in OWN):
            raise RunFolderError(f"{folder}: its files are of another program, not of a run of fedpriv")
        return [folder]
    runs: list[Path] = []
    strangers: list[Path] = []
    for looked, (base, names, _) in enumerate(os.walk(folder)):  # which follows no link
        if looked == MOST_FOLDERS:
            raise RunFolderError(f"{folder}: more than {MOST_FOLDERS:,} folders; name a run's folder, or a sweep's")
        here = [Path(base, name) for name in sorted(names, key=_by_number) if not name.startswith(".")]
        if links := [child for child in here if child.is_symlink()]:
            say(f"fedpriv: left out, as it is a link: {', '.join(map(str, links))}", file=sys.stderr)
        here = [child for child in here if child not in links]
        for child in filter(is_run, here):
            (runs if _is_own(child) else strangers).append(child)
        names[:] = [child.name for child in here if not is_run(child)]
    if strangers:
        words = f"left out, as no run of fedpriv: {', '.join(map(str, strangers[:5]))}"
        say(f"fedpriv: {words}{f' and {len(strangers) - 5} more' if len(strangers) > 5 else ''}", file=sys.stderr)
    return runs


def _is_own(folder: Path) -> bool:
    """Of a folder that nobody named: whether it is a job of a sweep, or a file in it reads as a run's."""
    if (folder.parent / SWEEP_FILE).is_file():
        return True
    for name, word in OWN.items():
        with suppress(OSError), open_regular(folder / name) as file:
            if word in file.read(1 << 16):
                return True
    return False


def _readable(file: Path) -> bool:
    """Whether there is a mapping in it, so that it is no damaged file of a run."""
    try:
        return file.is_file() and isinstance(read_yaml(file), dict)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return False


def options_of_sweep(folder: Path) -> list[str] | None:
    """What the command of a sweep said; None: the folder is not one of a sweep that can go on."""
    try:
        found = mapping_in(folder, SWEEP_FILE)["options"]
        return [str(option) for option in found]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def flags_of_sweep(folder: Path) -> list[str]:
    """`--config-dir`, where the command of a sweep that can go on said it."""
    said = mapping_in(folder, SWEEP_FILE).get("config_dir")
    return [f"--config-dir={said}"] if said else []


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sort key that orders numbers in a name numerically: Hydra's job 2 comes before 10, and 2-fedcad before
    10-fedcad.
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def read_run(path: Path, private: bool = True) -> RunFolder:
    """Reads a run folder; missing or broken parts become entries of ``problems``, not exceptions.

    private: with what outsiders may not see, as far as it is there; else without, whoever wrote the files.
    Raises `RunFolderError` where there is no run at all, or something in the folder is a link.
    """
    if not path.is_dir() or not is_run(path):
        raise RunFolderError(f"{path}: not a run folder (which holds config.yaml, metrics.jsonl, summary.json)")
    if not is_own(path, "config.yaml"):
        refuse_links(path)
    problems: dict[str, str] = {}
    config = _read_mapping(path, "config.yaml", problems)
    config_text = text_in(path, "config.yaml") if config else ""
    summary = _read_mapping(path, "summary.json", problems)
    if config is None:
        problems.setdefault("config.yaml", "missing")
    rounds = _read_rounds(path, "metrics.jsonl", problems)
    if private:
        rest = {row["round"]: row for row in _read_rounds(path, f"{PRIVATE}/metrics.jsonl", problems)}
        rounds = [joined(row, rest.get(row["round"], {})) for row in rounds]
        withheld = _read_mapping(path, f"{PRIVATE}/summary.json", problems)
        summary = joined(summary, withheld or {}) if summary else summary
    else:  # an earlier version wrote clients' data too
        rounds = [split(row, ROUND, secret=False)[0] for row in rounds]
        summary = split(summary, SUMMARY, secret=False)[0] if summary else summary
    parts = {name: (summary or {}).get(name) for name in ("accuracy", "metrics", "privacy")}
    if wrong := [name for name, part in parts.items() if part is not None and not isinstance(part, Mapping)]:
        problems.setdefault("summary.json", f"{', '.join(wrong)}: no mapping")
    last, whole = max((row["round"] for row in rounds), default=0), (summary or {}).get("rounds")
    if type(whole) is int and last < whole:
        problems.setdefault("metrics.jsonl", f"ends with round {last} of {whole}")
    return RunFolder(path, config or {}, config_text, rounds, summary, problems)


def _read_mapping(folder: Path, name: str, problems: dict[str, str]) -> dict[str, Any] | None:
    if not is_file_in(folder, name):
        return None
    try:
        if not name.endswith(".yaml"):
            return mapping_in(folder, name)
        if isinstance(content := read_yaml(folder / name), dict):
            return content
        raise ValueError("no mapping of names to values")
    except (OSError, ValueError, yaml.YAMLError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        problems[name.rpartition("/")[2]] = f"cannot be read ({' '.join(str(words).split())})"
        return None


def _read_rounds(folder: Path, name: str, problems: dict[str, str]) -> list[dict[str, Any]]:
    """One mapping per round, in order of rounds; an incomplete line is left out and noted."""
    file = name.rpartition("/")[2]
    if not is_file_in(folder, name):
        return []
    try:
        content = bytes_in(folder, name)
        if content.count(b",") > MOST_VALUES or content.count(b"\n") > MOST_ROUNDS:
            raise OSError(errno.EFBIG, f"has more than {MOST_VALUES} values or {MOST_ROUNDS} lines")
    except OSError as error:
        problems[file] = f"cannot be read ({error.strerror})"
        return []
    lines = [_round(line) for line in content.splitlines()]
    torn = [i for i, line in enumerate(lines, start=1) if line is None]
    if torn == [len(lines)]:
        problems[file] = TORN_LAST
    elif torn:
        problems[file] = f"broken lines were left out: {', '.join(map(str, torn[:5]))}{' …' if len(torn) > 5 else ''}"
    rounds = {line["round"]: line for line in lines if line is not None}
    return [rounds[i] for i in sorted(rounds)]


def _round(line: bytes) -> dict[str, Any] | None:
    try:
        content = json_of(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) and type(content.get("round")) is int else None


def damage_of(run: RunFolder) -> dict[str, str]:
    """File -> what is wrong with it. A run that is still going on may be writing its last line."""
    problems = dict(run.problems)
    if run.summary is None and problems.get("metrics.jsonl") == TORN_LAST:
        problems.pop("metrics.jsonl")
    if "config.yaml" not in problems:
        from fedpriv.config.compose import read_config  # Hydra: only where a configuration is read

        try:
            read_config(run.path)
        except CodeRefused:
            pass  # a report needs none
        except FedprivError as error:
            problems["config.yaml"] = str(error).removeprefix(f"{run.path / 'config.yaml'}: ")
    ledger = run.path / "ledger.jsonl"
    if run.summary is not None and not ledger.exists():
        problems[ledger.name] = "missing: what the run released is no longer known"
    count_releases(ledger, problems)
    return problems


def count_releases(file: Path, problems: dict[str, str] | None = None) -> list[Releases]:
    """Counts ``ledger.jsonl`` line by line (it may be much larger than memory), largest total first."""
    if not is_file_in(file.parent, file.name):
        return []
    from fedpriv.report.run_summary import number

    per_client: defaultdict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
    parameters: defaultdict[tuple[str, str, str], dict[str, tuple[float, float]]] = defaultdict(dict)
    torn = 0
    with open_in(file.parent, file.name) as lines:
        while line := lines.readline(LONGEST):
            try:
                entry = json_of(line)
                threat = ", ".join(str(entry[name]) for name in ("unit", "adjacency", "observer"))
                kind = str(entry["mechanism"]), str(entry.get("reason", "")), threat
                count = int(entry.get("count", 1))
                named = [int(client) for client in entry["clients"]] if "clients" in entry else [int(entry["client"])]
            except (ValueError, TypeError, KeyError):
                torn += 1
                if torn > MOST_TORN:
                    break
                continue
            releases = per_client[kind]
            for client in named:
                releases[client] += count
            for name, value in entry.items():
                if name not in NOT_PARAMETERS and (known := number(value)) is not None:
                    low, high = parameters[kind].get(name, (known, known))
                    parameters[kind][name] = min(low, known), max(high, known)
    if torn and problems is not None:
        problems[file.name] = (
            f"{torn} torn or broken lines are not counted here; privacy accounting counts a torn line as spent"
        )
    rows = []
    for kind, counts in per_client.items():
        known_clients = [count for client, count in counts.items() if client >= 0]
        most = max(known_clients, default=counts[EVERY_CLIENT])
        clients = None if counts[EVERY_CLIENT] else len(known_clients)
        rows.append(Releases(*kind, counts.total(), clients, most, parameters[kind]))
    return sorted(rows, key=lambda row: -row.total)
