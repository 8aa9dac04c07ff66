"""docs/tutorial.md: short, every command parses, and the method that it makes is what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from project_copy import copied, python

from fedpriv.audit import parse_options
from fedpriv.cli import check
from fedpriv.compose import compose
from fedpriv.new import make_method

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
COMMANDS = [line.strip() for line in PAGE.splitlines() if line.startswith("    python -m ")]
#: The page's additions to the method that it makes, in its order.
IDEA, PARAMETER, KEPT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(OPTION,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def edited(folder: Path) -> None:
    """The page's method, made and changed as the page says."""
    make_method("sparse", folder)
    client, config = folder / "clients/sparse.py", folder / "conf/strategy/sparse.yaml"
    lines = client.read_text().splitlines(keepends=True)
    (idea,) = [number for number, line in enumerate(lines) if "YOUR IDEA" in line]
    (parameter,) = [number for number, line in enumerate(lines) if line.lstrip().startswith("clip_norm: ")]
    (last,) = [number for number, line in enumerate(lines) if line.lstrip().startswith("super().__init__(")]
    lines[idea] = IDEA
    lines[last] += KEPT
    lines[parameter] += PARAMETER
    client.write_text("".join(lines))
    config.write_text(config.read_text() + OPTION)


def test_the_page_is_short_and_what_it_names_exists() -> None:
    assert len(PAGE.splitlines()) < 100
    for link in re.findall(r"\]\(([^)]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
    for path in re.findall(r"`((?:fedpriv|docs)/[\w./]+)`", PAGE):
        assert (ROOT / path).exists(), path
    assert len(COMMANDS) == 11


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_parses(command: str, tmp_path: Path) -> None:
    """The page's own method does not exist here: one with the same options but `share` stands in for it."""
    _, _, module, *given = shlex.split(command)
    given = [word for word in given if not word.startswith("strategy.client.share=")]
    given = ["strategy=fedldp" if word == "strategy=sparse" else word for word in given]
    if module == "fedpriv":
        check([word for word in given if word != "-m"], multirun="-m" in given)
    elif module == "fedpriv.audit":
        _, run, overrides = parse_options(given)
        assert (run is None) == bool(overrides)
        compose(overrides)
    elif module == "fedpriv.new":
        assert given == ["sparse"]
    elif module == "pytest":
        assert given == ["tests/test_sparse.py"]
    else:
        assert module == "fedpriv.report" and any(f"hydra.sweep.dir={given[0]}" in other for other in COMMANDS)
    for word in given:  # a run that is audited was made before
        if word.startswith("run="):
            assert any(f"hydra.run.dir={word.removeprefix('run=')}" in other for other in COMMANDS)


def test_the_pages_method_is_formatted_and_audited(tmp_path: Path) -> None:
    project = copied(tmp_path)
    edited(project)
    python(project, "ruff", "check", "--no-cache", "clients/sparse.py")
    python(project, "ruff", "format", "--no-cache", "--check", "clients/sparse.py")
    (command,) = [command for command in COMMANDS if "trials=" in command]
    printed = python(project, *shlex.split(command)[2:], "strategy.client.share=0.5").splitlines()
    assert printed[0].startswith("sparse (repaired), unit client, replace-one, observer server")
    rows = [line.split() for line in printed if "nothing is claimed" in line]
    assert len(rows) == 2
    for row in rows:
        audited, _, verified = (word for word in row if re.fullmatch(r"[\d.]+|-", word))
        assert 0.25 * float(verified) < float(audited) <= float(verified)
