"""What a result says of the code that made it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fedpriv.common import versions
from fedpriv.common.versions import made_by


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false")
    call = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()


def test_a_commit_says_whether_the_sources_differ_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document does not decide a result, a new source file does."""
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    (tmp_path / "fedpriv" / "common").mkdir(parents=True)
    (tmp_path / "fedpriv" / "common" / "versions.py").write_text("x = 1\n")
    read = versions.commit.__wrapped__
    git(tmp_path, "init", "--quiet")
    assert read().startswith("version ")  # installed inside of somebody's repository, which does not hold it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    first = git(tmp_path, "rev-parse", "HEAD")[:12]
    (tmp_path / "notes.md").write_text("mine")
    assert read() == first
    (tmp_path / "fedpriv" / "new.py").write_text("")
    assert read() == f"{first}+" and made_by(read()) == f"commit {first} with changes"


def test_outside_a_checkout_the_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    found = versions.commit.__wrapped__()
    assert found == f"version {versions.version('fedpriv')}" == made_by(found)


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ("1655e35deb2e", "commit 1655e35deb2e"),
        ("0123456789abcdef0123456789abcdef01234567+", "commit 0123456789ab with changes"),
        ("", "a commit that is not recorded"),
        ("unknown", "a commit that is not recorded"),
        ("unknown+", "a commit that is not recorded"),
    ],
)
def test_what_is_stored_in_words(stored: str, words: str) -> None:
    assert made_by(stored) == words


def test_a_library_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "VERSIONS", ("numpy", "no-such-library-here"))
    assert sorted(versions.library_versions()) == ["numpy", "python"]
