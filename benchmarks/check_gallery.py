"""What `fedpriv check` says of the programs in a gallery of known faults, beside what is known of them.

    python -m benchmarks.check_gallery [folder=tests/checking/gallery] [out=FILE.jsonl] [seconds=45] [only=NAME,NAME]

A line of ``out`` for each program: verdict, names of the faults found, the three epsilons, CPU seconds, the commit
whose check it was ("+": with changes), and the seconds that it had. Programs that are there already are not checked
again; the table is printed at the end.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

OPTIONS = ("epsilon", "delta", "scope", "calls", "adjacency", "unit", "bound", "form")


def loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gallery_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def claim_of(file: Path) -> Mapping[str, Any]:
    """The file's CLAIM, read without running the rest of it."""
    import ast

    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "CLAIM" for one in node.targets):
            return dict(eval(compile(ast.Expression(node.value), str(file), "eval"), {}))
    return {}


def checked(file: Path, seconds: float) -> dict[str, Any]:
    """The check's own JSON of a program in short, by its command."""
    return run(f"{file}:target", claim_of(file), seconds)


def run(
    target: str, claim: Mapping[str, Any], seconds: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What `fedpriv check` says of a target, in short."""
    options = [f"{name}={claim[name]}" for name in OPTIONS if claim.get(name) is not None]
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        made = subprocess.run(
            [sys.executable, "-m", "fedpriv", "check", target, *options, f"seconds={seconds}", f"out={folder}"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = Path(folder) / "check.json"
        said: dict[str, Any] = (
            json.loads(found.read_text()) if found.is_file() else {"verdict": "no result", "why": made.stderr[-400:]}
        )
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    names = {level: [one["name"] for one in said.get("findings", ()) if one["severity"] == level] for level in LEVELS}
    figures = {name: said.get(name) for name in ("verdict", "claimed", "verified", "audited", "why_not", "why")}
    return {**figures, **names, "cpu_seconds": round(used, 1)}


LEVELS = ("fault", "doubt")


def commit() -> str:
    """Of this checkout, short."""
    asked = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, cwd=Path(__file__).parent).stdout.strip()


def main(arguments: Sequence[str]) -> None:
    given = dict(one.split("=", 1) for one in arguments)
    folder = Path(given.get("folder", "tests/checking/gallery"))
    out = Path(given.get("out", "benchmarks/results/check_gallery.jsonl"))
    rows, file_of = loaded(folder / "manifest.py").ROWS, loaded(folder / "patches.py").file_of
    done = {one["file"]: one for one in map(json.loads, out.read_text().splitlines())} if out.is_file() else {}
    only = given["only"].split(",") if "only" in given else None
    for row in rows:
        if (only is None or row.file in only) and (row.file not in done or only is not None):
            seconds = float(given.get("seconds", "45"))
            said = checked(file_of(row.file), seconds)
            known = {"file": row.file, "form": row.form, "faulty": row.faulty, "commit": commit(), "seconds": seconds}
            done[row.file] = {**known, **said}
            with out.open("a") as lines:
                lines.write(json.dumps(done[row.file]) + "\n")
            print(json.dumps(done[row.file])[:300], flush=True)
    for faulty in (True, False):
        here = [one for one in done.values() if one["faulty"] == faulty]
        flagged = [one["file"] for one in here if one["verdict"] == "faults found"]
        print(f"{'faulty' if faulty else 'sound'}: {len(here)}, faults found in {len(flagged)}")
        wrong = [one["file"] for one in here if (one["file"] in flagged) != faulty]
        print(f"  {'missed' if faulty else 'false alarms'}: {', '.join(wrong) or 'none'}")


if __name__ == "__main__":
    main(sys.argv[1:])
