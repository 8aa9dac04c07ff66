"""`fedpriv check init`: what a repository releases is listed, and can be checked by what is written."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from fedpriv.checking.candidates import candidates
from fedpriv.checking.checks import check_object
from fedpriv.checking.subject import Question
from fedpriv.commands.check import main
from fedpriv.common.command_line import DONE, MISTAKE

RELEASE = """
import numpy as np
from .shared import LIMIT

def weights(size):
    return np.random.randn(size)

def release(update, sigma, rng):
    short = update / max(LIMIT, np.linalg.norm(update))
    return short + rng.normal(0, sigma, update.shape)

class Client:
    def __init__(self, sigma):
        self.sigma = sigma

    def answer(self, update):
        return np.clip(update, -1, 1) + np.random.normal(0, self.sigma, update.shape)
"""
FLOWER = """
from flwr.clientapp import ClientApp
from flwr.server.strategy import FedAvg

class Noisy(FedAvg):
    def __init__(self, sigma, clip=1.0):
        super().__init__()

def private(msg, ctxt, call_next):
    return call_next(msg, ctxt)

app = ClientApp(mods=[private])
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    files = {
        "src/theirs/__init__.py": "",
        "src/theirs/shared.py": "LIMIT = 1.0\n",
        "src/theirs/privacy.py": RELEASE,
        "apps/flower.py": FLOWER,
        "apps/older.py": "print 'of Python 2'\n",
        "tests/test_privacy.py": RELEASE,
        ".venv/lib/copied.py": RELEASE,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_what_clips_and_draws_is_listed_and_others_code_is_not(repository: Path) -> None:
    assert [(one.file, one.line, one.name) for one in candidates(repository)] == [
        ("src/theirs/privacy.py", 16, "Client.answer"),
        ("apps/flower.py", 5, "Noisy"),
        ("apps/flower.py", 9, "private"),
        ("apps/flower.py", 12, "app"),
        ("src/theirs/privacy.py", 8, "release"),
    ]


def test_the_targets_that_are_written_call_the_repository(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "repository"]) == DONE
    assert "apps/flower.py:12 app: a Flower app" in capsys.readouterr().out
    assert main(["init", "repository"]) == MISTAKE and "is there already" in capsys.readouterr().err
    file = tmp_path / "check_targets.py"
    text = file.read_text()
    assert "return release(update, sigma=..., rng=rng)" in text and "return Client(sigma=...).answer(update)" in text
    assert "return Noisy(sigma=...)" in text
    file.write_text(text.replace("sigma=...", "sigma=3.73"))
    spec = importlib.util.spec_from_file_location("check_targets", file)
    assert spec is not None and spec.loader is not None
    targets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(targets)
    asked = Question(dims=(8,), trials=400)
    assert check_object(targets.privacy_release, asked, seconds=5).verdict == "no fault found"
    assert type(targets.flower_app).__name__ == "ClientApp" and type(targets.flower_noisy).__name__ == "Noisy"
    with pytest.raises(AttributeError):
        targets.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("place", "words"),
    [("nowhere", "must be a folder of Python files"), ("empty", "holds no function that draws noise and clips")],
)
def test_a_folder_without_candidates_is_said(
    place: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["init", str(tmp_path / place)]) == MISTAKE and words in capsys.readouterr().err
