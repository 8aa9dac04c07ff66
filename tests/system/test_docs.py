"""README.md and the pages in docs/: short, every link leads somewhere, and every command in them is carried out.

`doc_commands` finds the commands and runs them all in one process, in a copy of the project; a command that cannot run
here is in its `ELSEWHERE`, with the reason and the test that does the same.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doc_commands import ELSEWHERE, Command, OwnFile, Shop, bare, blocks, commands, elsewhere, pages, steps
from project_copy import copied, python
from rotation import everything, is_part, together

from fedpriv.privacy.gaussian_dp import gaussian_epsilon

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = commands()
HERE = [command for command in COMMANDS if elsewhere(command.text) is None]
README = "README.md"
#: Pages take turns in so many parts, each of which takes about as long.
PARTS = 10
#: No page is longer, in lines; a page that is not named here may have 200.
LONGEST = {
    "README.md": 100,
    "docs/statistics.md": 290,
    "docs/tables.md": 230,
    "docs/results/protocol.md": 220,
}

#: One commit of five, whatever its pages, draws as much as a page's reader, and prints what the page shows.
WHOLE_AUDITS = is_part(0, 5)

pytestmark = pytest.mark.timeout(7200 if everything() else 900)


def part_of(page: str) -> int:
    return pages().index(page) % PARTS


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with its pages; not links to them, through which a command could write."""
    folder = copied(tmp_path_factory.mktemp("docs"))
    for name in ("README.md", "Makefile"):
        shutil.copy(ROOT / name, folder)
    for name in ("docs", "deploy"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def done(project: Path, request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What became of each command of the pages that this run is about, by page and line."""
    asked = [item for item in request.session.items if item.path == Path(__file__)]
    cases = [item.callspec.params for item in asked if hasattr(item, "callspec")]
    chosen = {README, *(case["command"].page for case in cases if "command" in case)}  # the others go on with its run
    for words, page in (("tutorials_method", "docs/tutorial.md"), ("users_pictures", "docs/your_data.md")):
        chosen |= {page for item in asked if words in item.name}
    environment = os.environ | {"PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    environment["FEDPRIV_HOME"] = str(project / "home")  # of the key that signs certificates
    if "docs/upkeep.md" in chosen:  # goes on with the keys of
        chosen.add("docs/deploy.md")
    command = [sys.executable, "tests/doc_commands.py", "results.jsonl", *chosen, *(["whole"] if WHOLE_AUDITS else [])]
    ran = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = map(json.loads, (project / "results.jsonl").read_text().splitlines())
    return {row["key"]: row for row in rows}


@pytest.mark.rotates(1)
@pytest.mark.parametrize("command", [one for one in HERE if one.page == README], ids=lambda command: command.key)
def test_a_command_of_the_readme_is_carried_out(command: Command, done: dict[str, dict[str, Any]]) -> None:
    carried_out(command, done)


@pytest.mark.rotates(PARTS, lambda command: part_of(command.page))
@pytest.mark.parametrize("command", [one for one in HERE if one.page != README], ids=lambda command: command.key)
def test_a_command_of_the_docs_is_carried_out(command: Command, done: dict[str, dict[str, Any]]) -> None:
    carried_out(command, done)


def carried_out(command: Command, done: dict[str, dict[str, Any]]) -> None:
    found = done[command.key]
    assert found["code"] == 0, (
        f"{command.key} ended with {found['code']}.\n{found['printed']}\n"
        "Mend the command or the page. If it can only run elsewhere, say so in tests/doc_commands.py: ELSEWHERE (with "
        "the test that runs it), FITTING (options that make it small), or a method of Shop (a new program)."
    )
    printed = found["printed"].splitlines()
    shorter = "fedpriv.audit" in command.text and not WHOLE_AUDITS
    for line in command.shows:
        there = any(printed_alike(line, one, 0.02 if shorter else 0) for one in printed)
        assert there, f"{command.key} no longer prints: {line}\n{found['printed']}"


def printed_alike(line: str, printed: str, allowed: float) -> bool:
    """Word for word; numbers within ``allowed`` of their size."""
    words, others = line.split(), printed.split()
    return len(words) == len(others) and all(
        word == other or (allowed > 0 and is_near(word, other, allowed))
        for word, other in zip(words, others, strict=True)
    )


def is_near(word: str, other: str, allowed: float) -> bool:
    try:
        return math.isclose(float(word), float(other), rel_tol=allowed)
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("printed", "alike"),
    [
        ("one release  1.05  1.01", (False, True)),
        ("one release  1.06 1.01", (True, True)),
        ("one release  1.09  1.01", (False, False)),
        ("whole run  1.06  1.01", (False, False)),
        ("one release  1.06", (False, False)),
    ],
)
def test_a_shorter_audits_figures_may_differ_by_little(printed: str, alike: tuple[bool, bool]) -> None:
    assert tuple(printed_alike("one release  1.06  1.01", printed, allowed) for allowed in (0, 0.02)) == alike


def test_what_runs_elsewhere_has_a_reason_and_a_test_that_exists() -> None:
    for pattern, why, test in ELSEWHERE:
        assert why and any(re.fullmatch(pattern, command.text) for command in COMMANDS), f"{pattern}: no such command"
        if test is not None:
            file, _, name = test.partition("::")
            tree = ast.parse((ROOT / file).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


DURATION = r"(?:half|a quarter of)? ?an? (?:minute|hour)|\w+ (?:minutes|hours)"


def test_pages_say_as_the_makefile_does_how_long_a_command_takes() -> None:
    lines = re.findall(r"^([a-z-]+):.*## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    takes = {name: found.group() for name, words in lines if (found := re.search(DURATION, words))}
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    said = [
        (page.name, name, takes[name], words)
        for page in pages
        for name, words in re.findall(rf"`make ([a-z-]+)`[^.;:`]*?\b({DURATION})", page.read_text())
        if name in takes
    ]
    assert len(said) >= 2 and [one for one in said if one[2].strip() != one[3].strip()] == []


def test_commands_are_found_wherever_they_stand() -> None:
    page = "\n".join(
        [
            "Say `python -m fedpriv.new mine` and `make test ARGS=-x`, not `make`.",
            "",
            "    python -m fedpriv \\",
            "        seed=1  # a remark",
            "    .venv/bin/python -m fedpriv 'a={b: 1}'",
            "",
            "```sh",
            "$ unheard of",
            "```",
            "```text",
            "what it prints",
            "```",
            "```python",
            "# own.py",
            "x = 1",
            "```",
        ]
    )
    assert [(step.line, step.text) for step in steps("p", page) if isinstance(step, Command)] == [
        (1, "python -m fedpriv.new mine"),
        (1, "make test ARGS=-x"),
        (4, "python -m fedpriv seed=1"),
        (5, "python -m fedpriv 'a={b: 1}'"),
        (8, "unheard of"),
    ]
    *_, last, own = steps("p", page)
    assert isinstance(last, Command) and last.shows == ("what it prints",)
    assert own == OwnFile("p", "own.py", "# own.py\nx = 1\n")
    for unknown, named in (("unheard of", "unheard"), ("python -m fedpriv.unheard of=1", "python -m fedpriv.unheard")):
        assert elsewhere(unknown) is None
        assert Shop().carry_out(Command("p", 8, unknown)) == (3, f"nobody knows how to run {named}")
    assert bare(".venv/bin/python -m x   # y") == "python -m x"
    assert bare(".venv/bin/fedpriv audit run=x") == "python -m fedpriv.audit run=x"
    assert bare("fedpriv report X Y") == "python -m fedpriv.report X Y"
    assert bare("fedpriv deploy node policy") == "python -m fedpriv.node policy"
    assert bare("fedpriv plan seed=1") == "python -m fedpriv plan=true seed=1"
    assert bare("fedpriv -m run seed=1,2") == bare("fedpriv -m seed=1,2") == "python -m fedpriv -m seed=1,2"


@pytest.mark.parametrize("page", pages())
def test_a_page_is_short_and_what_it_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    assert len(text.splitlines()) <= LONGEST.get(page, 200)
    headings = {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in text.splitlines()}
    for link in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        assert path.startswith("https://") or (ROOT / page).parent.joinpath(path).exists(), link
        assert path or anchor in headings, link
    for path in re.findall(r"`((?:fedpriv|docs|conf|strategies|clients|tests|deploy)/[\w./]+)`", text):
        made = re.search(r"/(NAME|sparse|test_sparse)\.", path)
        assert made or (ROOT / path).exists(), path
    assert {kind for kind, _, _ in blocks(text)} <= {"indented", "inline", "text", "sh", "python", "yaml", "toml"}


def test_every_page_is_in_the_table_of_contents() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page for page in pages() if Path(page).parent.name == "docs" and f"({page})" not in readme] == []


# --- the tutorial's method -------------------------------------------------------------------------------


@pytest.mark.rotates(PARTS, together(part_of("docs/tutorial.md")))
def test_the_tutorials_method_is_formatted(project: Path, done: dict[str, dict[str, Any]]) -> None:
    client = (project / "clients/sparse.py").read_text()
    assert "YOUR IDEA" not in client and "self.options.share" in client
    formatted(project, "clients/sparse.py")


@pytest.mark.rotates(PARTS, together(part_of("docs/your_data.md")))
def test_a_users_pictures_and_model_are_formatted(project: Path, done: dict[str, dict[str, Any]]) -> None:
    formatted(project, "my_pictures.py", "my_model.py")


def formatted(project: Path, *files: str) -> None:
    python(project, "ruff", "check", "--no-cache", *files)
    python(project, "ruff", "format", "--no-cache", "--check", *files)


@pytest.mark.rotates(PARTS, together(part_of("docs/tutorial.md")))
def test_the_tutorials_method_is_audited(done: dict[str, dict[str, Any]]) -> None:
    (found,) = [row for row in done.values() if "fedpriv.audit strategy=sparse" in row["command"]]
    printed = [line for line in found["printed"].splitlines() if not line.startswith("audit: ")]  # what it is doing
    assert printed[0].startswith("sparse (repaired), unit client, replace-one, observer server")
    rows = [line.split() for line in printed if "nothing is claimed" in line]
    assert len(rows) == 2
    for row in rows:
        audited, _, verified = (word for word in row if re.fullmatch(r"[\d.]+|-", word))
        assert 0.25 * float(verified) < float(audited) <= float(verified)


@pytest.mark.rotates(PARTS, together(part_of("docs/tutorial.md")))
def test_the_tutorials_flower_app_runs(project: Path, done: dict[str, dict[str, Any]]) -> None:
    pieces = ["\n".join(lines) for _, _, lines in blocks((ROOT / "docs/tutorial.md").read_text())]
    (app,) = [text for text in pieces if "run_simulation(" in text]
    (project / "flower_app.py").write_text(app)
    printed = python(project, "flower_app")
    assert float(printed.split()[-1]) == pytest.approx(gaussian_epsilon(math.sqrt(3) * 2 / 4.0, 1e-5), rel=1e-6)
