"""Questions and options as `fedpriv ask` takes them, and the options of a run that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpriv.common.checksums import MODEL_FILES
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.config.compose import parse
from fedpriv.config.methods import AskOptions, asked_in_rounds
from fedpriv.config.schema import Config
from fedpriv.config.spelling import named

QUESTIONS = "strategy.client.questions"
SCORE, WEIGHTS = "score:", {"model.weights"}
FLOORS = ("strategy.server.min_replies", "strategy.client.min_replies")


def ask_options(words: Sequence[str]) -> list[str]:
    """Options of a run with strategy=ask. words: questions without ``=``, options with one, flags with ``-``.
    Answers are to be published, so that the noise is the operating system's where no option says otherwise; and all
    sites count on each other's. Raises `OptionError` where nothing is asked, or at two prices.
    """
    flags = [word for word in words if word.startswith("-")]
    options = [word for word in words if "=" in word and word not in flags and not word.startswith(SCORE)]
    questions = [word for word in words if word not in flags and word not in options]
    names = {option.partition("=")[0] for option in options}
    if not questions and QUESTIONS not in names:
        raise OptionError("questions", "[]", "nothing is asked; allowed: count, mean:COLUMN, ... (docs/statistics.md)")
    if questions and QUESTIONS in names:
        raise OptionError(QUESTIONS, "...", "questions are given twice; allowed: one of the two ways")
    if "strategy" in names:
        raise OptionError("strategy", "...", "of a question it is ask: leave it out")
    said = [named(override) for override in parse(options)]
    for name in ("privacy.target_epsilon", "privacy.delta"):
        if len(values := [one[name] for one in said if name in one]) > 1:  # the later would count in silence
            words = f"{values[0]} is given already, in Python and R as an argument of the call; allowed: one of the two"
            raise OptionError(name, "null" if values[-1] is None else values[-1], words)
    own = ["strategy=ask"]
    if questions:
        own.append(f"{QUESTIONS}=[{','.join(map(quoted, questions))}]")
    if not names & set(FLOORS):
        own.append(f"{FLOORS[0]}=${{clients_per_round}}")
    if "num_rounds" not in names and any(map(asked_in_rounds, questions)):
        own.append("num_rounds=2")  # the second looks where the first found them
    if "privacy.rng" not in names:
        own.append("privacy.rng=secure")
    if (run := next((question for question in questions if question.startswith(SCORE)), None)) and not names & WEIGHTS:
        own += _of_the_run(run)
    return [*flags, *own, *options]


def _of_the_run(question: str) -> list[str]:
    """Options that name the model of `score:RUN`. Raises `OptionError`, `RunFolderError`."""
    run = question.split(":")[1].strip()
    folder = Path(run).expanduser().absolute()
    if not run or not folder.is_dir():
        words = f"there is no such run folder ({run or 'nothing is named'}); allowed: score:RUN, RUN without a colon"
        raise OptionError("questions", question, words)
    if not (folder / MODEL_FILES[0]).is_file():
        raise RunFolderError(f"{run}: the run has not finished, or trained no model: it has no {MODEL_FILES[0]}")
    trained_on = f"the rows of the run {folder.name}"
    return [f"model.weights={quoted(str(folder / MODEL_FILES[0]))}", f"model.trained_on={quoted(trained_on)}"]


def quoted(question: str) -> str:
    """A question as a text in an option's list."""
    return "'" + question.replace("\\", "\\\\").replace("'", "\\'") + "'"


def refuse_answers(config: Config, folder: str | Path) -> None:
    """Raises `RunFolderError` for the folder of a run that answered questions, where a model is needed."""
    if isinstance(config.strategy.options, AskOptions):
        words = "strategy=ask trains no model; its answers are in answers.csv and report.html"
        raise RunFolderError(f"{folder}: {words}")
