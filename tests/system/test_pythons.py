"""Every supported Python: words and metadata agree, the locks fit it on each system, and no module is used that a later
version lacks. Only one Python runs these tests; CONTRIBUTING.md says which others were tried.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SUPPORTED = ("3.11", "3.12", "3.13")
SYSTEMS = {
    "linux": ("linux", "Linux", "x86_64", "posix"),
    "arm": ("linux", "Linux", "aarch64", "posix"),
    "mac": ("darwin", "Darwin", "arm64", "posix"),
    "windows": ("win32", "Windows", "AMD64", "nt"),
}
#: Of the standard library, gone in 3.12 or 3.13 (PEP 594 and others).
GONE = frozenset(
    [
        "aifc",
        "asynchat",
        "asyncore",
        "audioop",
        "cgi",
        "cgitb",
        "chunk",
        "crypt",
        "distutils",
        "imghdr",
        "imp",
        "lib2to3",
        "mailcap",
        "msilib",
        "nis",
        "nntplib",
        "ossaudiodev",
        "pipes",
        "smtpd",
        "sndhdr",
        "spwd",
        "sunau",
        "telnetlib",
        "uu",
        "xdrlib",
    ]
)


def test_words_and_metadata_agree() -> None:
    assert PROJECT["requires-python"] == f">={SUPPORTED[0]}"
    named = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"]]
    assert tuple(found[1] for found in named if found) == SUPPORTED
    for name in ("README.md", "CONTRIBUTING.md"):
        assert f"Python {SUPPORTED[0]} or later" in (ROOT / name).read_text(), name
    assert f"--universal --python-version {SUPPORTED[0]} " in (ROOT / "Makefile").read_text()
    assert f"PYTHONS ?= {' '.join(SUPPORTED)}\n" in (ROOT / "Makefile").read_text()
    assert sys.version_info >= (3, 11)


def test_the_version_is_the_same_everywhere() -> None:
    """And its node's ledger, run folder and certificates are kept (`tests/deployment/test_upgrade.py`)."""
    named = {"pyproject.toml": PROJECT["version"]}
    for file, pattern in {
        "fedpriv/__init__.py": r'__version__ = "(.*)"',
        "CITATION.cff": r"version: (.*)",
        "r/DESCRIPTION": r"Version: (.*)",
        "CHANGELOG.md": r"## (\d\S*)",
        "README.md": r".* Version (\d\S*):",
    }.items():
        (named[file],) = re.findall(rf"(?m)^{pattern}", (ROOT / file).read_text())[:1] or [""]
    assert set(named.values()) == {PROJECT["version"]}, named
    assert (ROOT / "tests/deployment/upgrade" / PROJECT["version"] / "run.json").is_file()


def test_the_list_of_materials_has_every_locked_package() -> None:
    command = ["make", "-s", "-o", "install", "sbom", f"VENV={sys.prefix}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    made = json.loads((ROOT / "build/dist/node.sbom.json").read_text())
    packages = {(one["name"], one["version"]) for one in made["components"]}
    assert packages == {*re.findall(r"(?m)^([\w.-]+)==([\w.]+)", (ROOT / "deploy/node.txt").read_text())}
    assert made["metadata"]["component"]["version"] == PROJECT["version"]


def locked(file: str, environment: dict[str, str]) -> dict[str, str]:
    """Package -> version, of the lines that are for this environment."""
    lines = re.findall(r"(?m)^([\w.-]+(?:\[[\w,]+\])?==.*?) \\$", (ROOT / file).read_text())
    found = [Requirement(line) for line in lines]
    return {one.name.lower(): str(one.specifier) for one in found if not one.marker or one.marker.evaluate(environment)}


@pytest.mark.parametrize("file", ["requirements.txt", "deploy/requirements.txt", "deploy/node.txt"])
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", SUPPORTED)
def test_a_lock_has_every_dependency_for_every_python(python: str, system: str, file: str) -> None:
    platform, name, machine, kind = SYSTEMS[system]
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "implementation_version": f"{python}.1",
    }
    environment |= {"sys_platform": platform, "platform_system": name, "platform_machine": machine, "os_name": kind}
    found = locked(file, environment)
    for line in PROJECT["dependencies"]:
        wanted = Requirement(line)
        version = found[wanted.name.lower()].removeprefix("==")
        assert SpecifierSet(str(wanted.specifier)).contains(version), f"{line}, locked {version}"


def test_a_node_can_be_installed_from_a_folder_of_wheels() -> None:
    """One package has no wheel and is built on the node, by setuptools from the same folder."""
    packages = re.findall(r"(?m)^([\w.-]+)==", (ROOT / "deploy/node.txt").read_text())
    assert "setuptools" in packages
    assert f"({len(packages)} packages" in (ROOT / "docs/upkeep.md").read_text()


def test_no_module_is_imported_that_a_later_python_lacks() -> None:
    folders = ("fedpriv", "strategies", "clients", "benchmarks", "deploy", "parity", "tools", "tests")
    used: dict[str, str] = {}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                used |= {alias.name.partition(".")[0]: str(path) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                used[node.module.partition(".")[0]] = str(path)
    assert {name: path for name, path in used.items() if name in GONE} == {}
    assert "json" in used and len(used) > 50
