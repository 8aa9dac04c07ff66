"""What `fedpriv check` says of public code, beside what a person wrote of it before (corpus/targets.yaml).

    python -m benchmarks.check_corpus repositories=FOLDER [out=FILE.jsonl] [seconds=15,45] [only=NAME,NAME]

FOLDER holds the repositories, each as OWNER+NAME at the commit that targets.yaml names; nothing is downloaded, and a
target whose repository is not there is left out and counted. Their code is loaded from there by corpus/wrappers.py.
A line of ``out`` for each target and number of seconds; lines that are there already are not made again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.check_gallery import commit, run

HERE = Path(__file__).parent / "corpus"
#: Form of a target -> what is asked for it (`form=`).
FORMS = {"release": "update", "run": "update", "data": "data"}
OUTCOMES = ("found", "passed", "missed", "accused", "could not check")


def targets() -> tuple[Mapping[str, str], list[dict[str, Any]]]:
    """Commits by repository, and the targets in the order of the file."""
    said = yaml.safe_load((HERE / "targets.yaml").read_text())
    return said["repositories"], said["targets"]


def outcome(truth: str, verdict: str) -> str:
    """In a word of OUTCOMES, what a verdict is beside the truth."""
    if verdict not in ("faults found", "no fault found"):
        return "could not check"
    flagged = verdict == "faults found"
    return ("found" if flagged else "missed") if truth == "faulty" else ("accused" if flagged else "passed")


def checkout(folder: Path) -> str | None:
    """The commit whose work tree a folder is; None where it is none."""
    if not (folder / ".git").exists():
        return None
    asked = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: Sequence[str]) -> None:
    given = dict(one.split("=", 1) for one in arguments)
    if "repositories" not in given or not Path(given["repositories"]).is_dir():
        raise SystemExit(f"repositories= must be the folder of the repositories; it is {given.get('repositories')!r}")
    where = Path(given["repositories"]).resolve()
    out = Path(given.get("out", "benchmarks/results/check_corpus.jsonl"))
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []
    made = {(one["name"], one["seconds"]): one for one in done}
    only = given["only"].split(",") if "only" in given else None
    commits, rows = targets()
    environment = {**os.environ, "FEDPRIV_CORPUS": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
    absent = []
    for seconds in (float(one) for one in given.get("seconds", "15,45").split(",")):
        for row in rows:
            folder = where / row["repository"].replace("/", "+")
            if (only is not None and row["name"] not in only) or (row["name"], seconds) in made:
                continue
            if not folder.is_dir():
                absent.append(row["name"])
                continue
            if (found := checkout(folder)) != commits[row["repository"]]:
                raise SystemExit(f"{folder}: its commit is {found}, and the truth is of {commits[row['repository']]}")
            claim = {**row["claim"], "form": FORMS[row["form"]]}
            said = run(f"benchmarks.corpus.wrappers:{row['name']}", claim, seconds, environment)
            known = {name: row[name] for name in ("name", "form", "truth")}
            line = {
                **known,
                "commit": commit(),
                "seconds": seconds,
                "outcome": outcome(row["truth"], said["verdict"]),
                **said,
            }
            made[row["name"], seconds] = line
            text = (
                json.dumps(line).replace(str(where), "FOLDER").replace(sys.prefix, "PYTHON")
            )  # no place of this machine
            with out.open("a") as lines:
                lines.write(f"{text}\n")
            print(text[:300], flush=True)
    for seconds in sorted({seconds for _, seconds in made}):
        print(f"{seconds:g} seconds:")
        for truth in ("faulty", "sound"):
            here = [one for one in made.values() if one["seconds"] == seconds and one["truth"] == truth]
            counts = {word: [one["name"] for one in here if one["outcome"] == word] for word in OUTCOMES}
            print(
                f"  {truth}: {len(here)}; "
                + "; ".join(f"{word} {len(names)}" for word, names in counts.items() if names)
            )
            for word in ("missed", "accused", "could not check"):
                if counts[word]:
                    print(f"    {word}: {', '.join(counts[word])}")
    if absent:
        print(f"not there: {', '.join(sorted(set(absent)))}")


if __name__ == "__main__":
    main(sys.argv[1:])
