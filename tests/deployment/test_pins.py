"""What `flwr run` installs for the app is what was locked and tested."""

from __future__ import annotations

import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

from flwr.cli.build import build_fab_from_disk
from packaging.requirements import Requirement

from deploy.rehearsal import copy_of
from tools.pins import LOCK, PROJECT, ROOT, pins, with_pins


def constraints(project: str) -> list[str]:
    return list(tomllib.loads(project).get("tool", {}).get("uv", {}).get("constraint-dependencies", []))


def test_the_apps_bundle_pins_what_nodes_and_servers_were_locked_to(tmp_path: Path) -> None:
    """Of every direct dependency too; final versions alone, but of what has no other."""
    with zipfile.ZipFile(BytesIO(build_fab_from_disk(copy_of(ROOT, tmp_path)))) as bundle:
        project = bundle.read("pyproject.toml").decode()
    assert constraints(project) == pins(LOCK.read_text()) and len(constraints(project)) > 100
    pinned = {Requirement(pin).name.lower(): str(Requirement(pin).specifier) for pin in constraints(project)}
    direct = [Requirement(line) for line in tomllib.loads(project)["project"]["dependencies"]]
    assert [one.name for one in direct if not pinned.get(one.name.lower(), "").startswith("==")] == []
    assert not any("rc" in version for version in pinned.values())


def test_a_new_lock_replaces_the_pins_and_nothing_else(tmp_path: Path) -> None:
    before = PROJECT.read_text()
    assert constraints(with_pins(before, [])) == []
    assert with_pins(with_pins(before, []), pins(LOCK.read_text())) == before
    lock = "one==1.0 ; sys_platform == 'win32' \\\n    --hash=sha256:ab\n    # via two\ntwo==2.0\n"
    assert constraints(with_pins(before, pins(lock))) == ["one==1.0 ; sys_platform == 'win32'", "two==2.0"]
