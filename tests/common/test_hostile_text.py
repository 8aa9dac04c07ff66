"""Text and files that somebody else chose: in tables, on terminals, in logs; pipes among pictures."""

from __future__ import annotations

import ast
import csv
import io
import json
import logging
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from deployed import Grid, Machines
from flwr.app import Error, Message
from flwr.common.logger import FLOWER_LOGGER
from flwr.supercore.logger import log as flower_log
from report_runs import make_run

from fedpriv.commands import predict
from fedpriv.common.errors import DataError, OptionError, RunFailed
from fedpriv.common.files import open_regular
from fedpriv.common.messages import Refusal
from fedpriv.common.places import PACKAGE
from fedpriv.common.printing import cell, printable, say
from fedpriv.data.decoding import Encoded, read_picture
from fedpriv.data.sources import chosen_classes
from fedpriv.deployment import supernode
from fedpriv.deployment.bundles import Approved
from fedpriv.deployment.policy import read_policy
from fedpriv.report.__main__ import main as report_main
from fedpriv.report.reading import find_runs


@contextmanager
def not_for_ever(seconds: int = 20) -> Iterator[None]:
    """Whoever waits for a pipe's other end is interrupted."""

    def give_up(*_: Any) -> None:
        pytest.fail("it waits for a pipe that nobody writes to")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- files that are none -----------------------------------------------------------------------------------------


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()


KINDS = [_pipe, _socket, _device, _folder]


@pytest.mark.parametrize("make", KINDS)
def test_only_regular_files_are_read(make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    path = Path("strange")
    make(path)
    with not_for_ever():
        with pytest.raises(OSError):
            open_regular(path)
        assert isinstance(read_picture(Encoded("strange", str(path)), 1, (4, 4)), str)
        with pytest.raises(OptionError, match="policy=strange: cannot be read"):
            read_policy(path)


@pytest.mark.parametrize("make", [_pipe, _socket, _device])
def test_a_class_folder_holds_regular_files(make: Callable[[Path], None], tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    make(Path("strange"))
    with not_for_ever(), pytest.raises(DataError, match="strange: not a regular file"):
        chosen_classes(tmp_path, ("a", "b"))


def test_a_pipe_in_a_class_folder_is_answered_and_the_lock_is_free(tmp_path: Path) -> None:
    network = Machines(tmp_path, 1)
    os.mkfifo(network.data(0) / "a" / "4.png")
    with not_for_ever(60), pytest.raises(RunFailed):
        network.serve(network.overrides("dataset.examples=[12]"))
    assert network.booked(0) == 0


def test_a_pipe_among_folders_of_runs_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, pipe = make_run(tmp_path / "run", rounds=1), tmp_path / "pipe"
    pipe.mkdir()
    os.mkfifo(pipe / "config.yaml")
    with not_for_ever():
        assert find_runs([tmp_path]) == [run]
    assert capsys.readouterr().err == f"fedpriv: left out, as no run of fedpriv: {pipe}\n"


# --- formulas ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "written"),
    [
        *(
            (text, f"'{text}")
            for text in ("=1+1", "+a", "-a", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "=cmd|' /C calc'!A0")
        ),
        *((text, f"'{text}") for text in ("-1+cmd", "\t1", "-1_0", "-", "\uff1d1")),
        *((text, text) for text in ("-1", "+1.5e-3", "-inf", "-.5", "plain", "a=b", "", "'x")),
        *((number, number) for number in (-1, -0.5, float("-inf"), None)),
    ],
)
def test_no_cell_is_a_formula(value: Any, written: Any) -> None:
    assert cell(value) == written and type(cell(value)) is type(value)


def test_comparison_csv_holds_no_formula(tmp_path: Path) -> None:
    from fedpriv.report.compare import compare, write_csv
    from fedpriv.report.reading import read_run

    for number, name in enumerate(('=HYPERLINK("http://x")', "-2.5")):
        make_run(tmp_path / str(number), rounds=2, strange=name)
    write_csv(compare([read_run(tmp_path / "0"), read_run(tmp_path / "1")]), tmp_path / "comparison.csv")
    with (tmp_path / "comparison.csv").open(newline="") as file:
        cells = {text for row in csv.reader(file) for text in row}
    assert '\'=HYPERLINK("http://x")' in cells and "-2.5" in cells
    assert not [text for text in cells if re.match(r"[=@\t\r]", text)]


# --- control characters ------------------------------------------------------------------------------------------

EVIL = "a\x1b[2J\x1b]0;t\x07\nfedpriv: all is well\r\u202eb\x9b"


def test_printable_is_one_line_without_escapes() -> None:
    found = printable(EVIL)
    assert found.isprintable() and found.startswith(r"a\x1b[2J\x1b]0;t\x07\nfedpriv: all is well\r\u202eb\x9b")
    assert printable("Katze, \u732b") == "Katze, \u732b"


def test_a_terminal_without_an_epsilon_gets_its_number() -> None:
    terminal = io.TextIOWrapper(buffer := io.BytesIO(), "ascii", write_through=True)
    say("verified \u03b5 2", "of 3", file=terminal)
    assert buffer.getvalue() == b"verified \\u03b5 2 of 3\n"


def test_predict_prints_no_escape(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    class Model:
        classes = (EVIL, "b")

        def read_picture(self, path: str) -> Any:
            return torch.zeros(1)

        def probabilities(self, images: Any) -> Any:
            return torch.tensor([[0.9, 0.1]])

    monkeypatch.setattr(predict, "load_model", lambda folder: Model())
    assert predict.main(["run=x", "p\n\x1b[0m.png"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and out.rstrip("\n").replace("\t", "").isprintable()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_comparison_prints_no_escape(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names come from summary.json and config.yaml, which anybody may have written."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda _: terminal))
    for number in range(2):
        make_run(tmp_path / str(number), rounds=2, strange=f"{EVIL}{number}")
    assert report_main([str(tmp_path / "0"), str(tmp_path / "1")]) == 0
    printed = "".join(capsys.readouterr())
    assert "all is well" in printed
    svg = (tmp_path / "comparison.svg").read_bytes()
    assert b"all is well" in svg and ElementTree.fromstring(svg)
    styles = r"\x1b\[[0-9;]*m" if terminal else "(?!)"
    assert not [letter for letter in re.sub(styles, "", printed) if not letter.isprintable() and letter not in "\n\t"]


def test_everything_is_printed_by_one_printer() -> None:
    own = {
        "certificates/verify_certificate.py",
        "commands/predict.py",
        "common/printing.py",
    }  # predict: a table's cells
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Name) and node.id == "print"
    }
    assert found == own


def test_flowers_log_of_a_servers_group_is_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, FLOWER_LOGGER.name)  # a run on Flower's engine in this process made it quiet
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, before = Kept(), list(FLOWER_LOGGER.filters)
    monkeypatch.setattr("flwr.supernode.cli.flower_supernode", lambda: flower_log(20, "[RUN %s, ROUND %s]", 7, EVIL))
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("fedpriv.deployment.executor.client_processes", lambda port, approved: nullcontext([]))
    FLOWER_LOGGER.addHandler(handler)
    umask = os.umask(0)
    try:
        supernode.run_supernode([], 0, Approved(Path("policy.yaml")))
    finally:
        assert os.umask(umask) == 0o077, "what a node writes from there on is for its user alone"
        FLOWER_LOGGER.removeHandler(handler)
        FLOWER_LOGGER.filters[:] = before
    assert len(lines) == 1 and lines[0].isprintable() and "[RUN 7, ROUND a" in lines[0]


# --- what a server's operator learns from codes ------------------------------------------------------------------


def _refusing(code: Refusal) -> Callable[[Grid, int, Message], Message]:
    def deliver(self: Grid, number: int, message: Message) -> Message:
        return Message(Error(code=int(code), reason=code.name.lower()), reply_to=message)

    return deliver


def test_nodes_that_approve_no_app_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Machines(tmp_path, 2)
    monkeypatch.setattr(Grid, "deliver", _refusing(Refusal.BUNDLE))
    with pytest.raises(RunFailed, match=r"2 x bundle \(they have not approved this app: `fedpriv.node bundle`"):
        network.serve(network.overrides("engine.round_timeout=2"))


def test_a_nodes_refusal_is_not_this_runs_budget(tmp_path: Path) -> None:
    network = Machines(tmp_path, 2)
    for number in range(2):
        policy = network.policy(number)
        policy.write_text(policy.read_text().replace("100.0", "0.5"))
    network.serve(network.overrides())
    note = json.loads((tmp_path / "run" / "summary.json").read_text())["note"]
    assert "privacy.max_epsilon" not in note and "2 x budget_spent (a budget or a bound of their own" in note


def test_codes_are_counted_the_most_frequent_first() -> None:
    from fedpriv.server.exchange import what_to_do

    found = what_to_do(Counter({"policy": 1, "ledger": 3, "malformed": 9}))
    assert [words.split(" (")[0] for words in found] == ["3 x ledger", "1 x policy"]
