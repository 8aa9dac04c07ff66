"""`fedpriv`, the one command: its subcommands, flags and exit codes, its help, and completion in a real bash."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from conftest import NO_REPORT, SMALL, Outcome, said_once
from pydantic import Field

from fedpriv.__main__ import main
from fedpriv.attacks.run import OF_RUNS
from fedpriv.commands import (
    audit,
    certificate,
    check,
    credentials,
    dme,
    doctor,
    export,
    guard_costs,
    leaderboard,
    leaf,
    new,
    node,
    predict,
    reproduce,
    schema,
    superlink,
)
from fedpriv.commands import help as help_page
from fedpriv.commands.help import answers, describe_options, help_text, method_help, rows_of
from fedpriv.commands.help import main as help_main
from fedpriv.commands.table import COMMANDS, DEPLOYMENT
from fedpriv.commands.table import FLAG_NAMES as FLAGS
from fedpriv.common.command_line import EXIT_CODES, Existing, options_of, read_arguments, read_options
from fedpriv.common.errors import OptionError
from fedpriv.common.verbosity import VARIABLE
from fedpriv.config.compose import compose, option_names
from fedpriv.config.methods import METHODS
from fedpriv.config.options import AttackConfig
from fedpriv.config.strategy_options import field_of, spelled
from fedpriv.config.symbols import COMMON, SYMBOLS

ROOT = Path(__file__).resolve().parents[2]
EVERYWHERE = {**COMMANDS, **{f"deploy {name}": command for name, command in DEPLOYMENT.items()}}
Fedpriv = Callable[..., Outcome]


@pytest.fixture
def fedpriv(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fedpriv:
    """``fedpriv("audit", "run=here")``: the command in this process, working in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Outcome:
        capfd.readouterr()
        try:
            code = main(said_once(arguments))
        except SystemExit as ended:  # argparse
            code = int(ended.code or 0)
        return Outcome(code, *capfd.readouterr())

    return call


# --- subcommands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERYWHERE)
def test_every_command_is_there_and_tells_its_options(name: str, fedpriv: Fedpriv) -> None:
    assert callable(EVERYWHERE[name].work(name.split()[-1]))
    outcome = fedpriv(*name.split(), "--help")
    assert outcome.code == 0 and outcome.err == "" and len(outcome.out) > 100
    assert fedpriv("help", *name.split()).out == fedpriv(*name.split(), "--help").out or name == "help"


#: Options that a command reads; what shell completion offers is read off its help.
READ = {
    "audit": [audit.audit, guard_costs.audit],
    "check": [check.check, check.init],
    "certificate": [certificate.main],
    "reproduce": [reproduce.main],
    "leaderboard": [leaderboard.main],
    "dme": [dme.main],
    "predict": [predict.main],
    "schema": [schema.draft, schema.check, schema.doctor, schema.fill],
    "new": [new.main],
    "leaf": [leaf.main],
    "export": [export.main],
    "credentials": [credentials.make, credentials.renew],
    "superlink": [superlink.main],
    "node": list(node.COMMANDS.values()),
    "doctor": [doctor.server, doctor.node],
}


@pytest.mark.parametrize("name", READ)
def test_help_and_completion_know_every_option_of_a_command(name: str) -> None:
    offered = {**COMMANDS, **DEPLOYMENT}[name].offers(name)
    others = {"audit": {"strategy"}, "predict": {"death"}}.get(name, set())  # of a run; of an example
    known = {option for command in READ[name] for option in options_of(command).options}
    assert {word.rstrip("=") for word in offered if word.endswith("=")} - others == known


#: Before a run's options: words of `fedpriv` itself.
RUN_WORDS = ("option", "resume", "rerun", "extend", "run", "strategy")


def commands_in_messages() -> Iterator[str]:
    """What stands behind `fedpriv in a text of the package, with X for what is put in."""
    for file in sorted((ROOT / "fedpriv").rglob("*.py")):
        for one in ast.walk(ast.parse(file.read_text())):
            parts = one.values if isinstance(one, ast.JoinedStr) else [one] if isinstance(one, ast.Constant) else []
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)
            yield from re.findall(r"`fedpriv ([^`]+)`", text)


@pytest.mark.parametrize("said", sorted({*commands_in_messages()}))
def test_a_command_that_a_text_names_is_there_with_its_options(said: str) -> None:
    words = said.split()
    place = words.index("deploy") + 1 if words[0] == "deploy" else 0
    commands = DEPLOYMENT if place else COMMANDS
    name = words[place] if len(words) > place else ""
    options = [word.strip("[]").partition("=")[0] for word in words if "=" in word]
    if name not in commands:  # a run, or any of them
        assert (place and name in ("", "NAME")) or "=" in name or re.fullmatch(r"-.*|\[run\]", name), said
        assert {*options} <= {*option_names([], ""), *RUN_WORDS}, said
        return
    command = commands[name]
    subcommand = words[place + 1 :][:1] if name in ("node", "schema", "check") else []
    known = {word.rstrip("=") for word in command.offers(name)}
    assert not subcommand or re.search(r"[A-Z=.{]|--", subcommand[0]) or subcommand[0] in command.help(name), said
    assert command.run_options or {*options} <= known | {"option"}, said


def test_help_names_every_option_of_an_attack() -> None:
    offered = {word.rstrip("=") for word in COMMANDS["attack"].offers("attack")}
    assert offered == {"run", "attack", *(name for name in AttackConfig.model_fields if name not in OF_RUNS)}


@pytest.mark.parametrize("name", ["audit", "papers", "node", "report"])
def test_python_finds_a_command_under_the_name_of_the_package(name: str) -> None:
    """`python -m fedpriv.audit` is `fedpriv audit`, though the file is in a folder; and nothing else is found so."""
    found = importlib.util.find_spec(f"fedpriv.{name}.__main__" if name == "report" else f"fedpriv.{name}")
    assert found is not None and found.origin is not None
    assert found.origin.endswith(("commands/" if name != "report" else "report/") + Path(found.origin).name)
    rooms = {place.name for place in (ROOT / "fedpriv").iterdir()}
    assert not rooms & {file.name for file in (ROOT / "fedpriv/commands").glob("[a-z]*")} - {"runs.py"}


def test_help_without_imports_of_what_it_is_about() -> None:
    """`fedpriv audit --help` does not wait for torch."""
    script = (
        "import sys; from fedpriv.__main__ import main; code = main(['audit', '--help']);"
        "print([code, *(name for name in ('torch', 'hydra', 'pydantic') if name in sys.modules)])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0]"


def test_run_is_what_the_command_does_without_a_subcommand(fedpriv: Fedpriv, tmp_path: Path) -> None:
    options = (*SMALL, NO_REPORT, "num_rounds=1")
    for number, call in enumerate([options, ("run", *options)]):
        assert fedpriv(*call, f"hydra.run.dir=run{number}").code == 0
    found = [json.loads((tmp_path / f"run{number}" / "summary.json").read_text()) for number in (0, 1)]
    assert found[0]["accuracy"] == found[1]["accuracy"]
    sweep = fedpriv("-m", "run", *options, "seed=0,1", "hydra.sweep.dir=sweep")
    assert sweep.code == 0 and "sweep: 2 runs finished, 0 failed" in sweep.out
    assert fedpriv("compare", "run0", "run1", "--out", "both").code == 0
    alone = fedpriv("compare", "run0")
    assert alone.code == 2 and "`fedpriv report run0` writes its report" in alone.err
    report = fedpriv("report", "run0")
    assert (report.code, report.out) == (0, "run0/report.html\n") and (tmp_path / "run0/report.html").exists()


def test_plan_is_the_option_plan(fedpriv: Fedpriv, tmp_path: Path) -> None:
    first, second = fedpriv("plan", *SMALL), fedpriv(*SMALL, "plan=true")
    assert first.code == second.code == 0 and "verified epsilon" in first.out
    kept = [[line for line in one.out.splitlines() if "time" not in line] for one in (first, second)]
    assert kept[0] == kept[1] and not list(tmp_path.iterdir())


def test_files_and_folders_with_the_names_of_subcommands_do_not_matter(fedpriv: Fedpriv, tmp_path: Path) -> None:
    for name in COMMANDS:
        if len(name) % 2:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text("x")
    assert fedpriv("plan", *SMALL).code == 0
    assert fedpriv("audit", "run=nowhere").err == "fedpriv: nowhere: there is no such run folder\n"


# --- options of a command ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sized:
    size: Annotated[int, Field(ge=1, le=9)]
    kind: Literal["small", "large"] = "small"


def work(
    name: str,
    *,
    sized: Sized,
    share: Annotated[float | None, Field(gt=0, lt=1)] = None,
    quick: bool = False,
    place: Existing | None = None,
    out: Path = Path("here"),
) -> None: ...


def free(*overrides: str, run: Path | None = None) -> None: ...


def test_options_are_read_off_the_types_of_a_function(tmp_path: Path) -> None:
    given = ["--size", "3", "share=0.5", "a", "quick=true", f"place='{tmp_path}'", "out=~/x"]
    words, options = read_arguments(work, given)
    assert words == ["a"] and options == {
        "sized": Sized(3),
        "share": 0.5,
        "quick": True,
        "place": tmp_path,
        "out": Path.home() / "x",
    }
    assert read_arguments(work, ["a", "size=9", "share=null"])[1] == {"sized": Sized(9), "share": None}
    assert read_arguments(free, ["-m", "run=x", "a.b=1", "c"]) == (["-m", "a.b=1", "c"], {"run": Path("x")})
    assert read_options(Sized, {"size": 2, "kind": None}) == Sized(2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("size=3", "NAME: is missing; --help shows the usage"),
        ("a", "size: is missing"),
        ("a b size=3", "b: is too much; allowed: size, kind, share, quick, place, out"),
        ("a size=10", "size=10: must be a whole number from 1 to 9"),
        ("a size=1.5", "size=1.5: must be a whole number"),
        ("a size=", "size: is empty: leave it out, or give a value"),
        ("a size=3 share=1", "share=1: must be a number of more than 0 and less than 1"),
        ("a size=3 share=nan", "share=nan: must be a number of more than 0"),
        ("a size=3 kind=larg", "kind=larg: allowed: small, large; did you mean large?"),
        ("a size=3 quick=yes", "quick=yes: allowed: true, false"),
        ("a size=3 quick=1", "quick=1: allowed: true, false"),
        ("a size=3 place=nowhere", "place=nowhere: there is no such file or folder"),
        (
            "a size=3 plase=x",
            "plase=x: no such option; allowed: size, kind, share, quick, place, out; did you mean place?",
        ),
        ("a --sise 3", "--sise: no such option; allowed: size, kind, share, quick, place, out; did you mean size?"),
        ("a --size", "--size: needs a value"),
    ],
)
def test_a_wrong_option_of_a_command_is_named_with_what_is_allowed(given: str, words: str) -> None:
    with pytest.raises(OptionError) as refused:
        read_arguments(work, given.split())
    assert str(refused.value).startswith(words)


# --- flags -----------------------------------------------------------------------------------------------


def test_quiet_leaves_the_last_line_and_errors(fedpriv: Fedpriv) -> None:
    options = (*SMALL, "num_rounds=1", "evaluate.every=0")
    outcome = fedpriv("-q", *options, NO_REPORT, "hydra.run.dir=here")
    assert (outcome.code, outcome.out, outcome.err) == (0, "folder: here\n", "")
    assert fedpriv(*options, "-q", "hydra.run.dir=page").out == "report: page/report.html\n"
    assert fedpriv("--quiet", "-m", *options, NO_REPORT, "seed=0,1", "hydra.sweep.dir=all").out.splitlines() == [
        *(f"folder: all/{number}-fedcad-digits" for number in (0, 1)),
        "compare: all/comparison.html",
    ]
    assert "num_clients=0: must be at least 1" in fedpriv("-q", "num_clients=0").err
    assert VARIABLE not in os.environ


def test_verbose_logs_events_of_level_debug_and_shows_where_an_error_came_from(fedpriv: Fedpriv) -> None:
    outcome = fedpriv("-v", *SMALL, "num_rounds=1", NO_REPORT, "hydra.run.dir=here")
    levels = {line.split()[2]: line.split()[1] for line in outcome.err.splitlines()}
    assert levels["run_prepared"] == levels["round_timings"] == "debug" and levels["round_ended"] == "info"
    wrong = fedpriv("-v", "num_clients=0")
    assert wrong.code == 2 and "Traceback" in wrong.err and wrong.err.splitlines()[-1].startswith("fedpriv: num_cl")
    assert VARIABLE not in os.environ


def test_hydras_flags_show_what_would_be_composed(fedpriv: Fedpriv, tmp_path: Path) -> None:
    shown = fedpriv("run", "--cfg", "job", "strategy=fedldp", "num_rounds=7")
    assert shown.code == 0 and "num_rounds: 7" in shown.out and "name: fedldp" in shown.out
    assert "${oc.env:FEDPRIV_" in shown.out
    resolved = fedpriv("plan", "-c", "job", "--resolve", "strategy=fedldp")
    assert resolved.code == 0 and "${" not in resolved.out
    assert "run:\n" in fedpriv("--cfg=hydra", "hydra.run.dir=x").out
    for order in (
        ["--cfg", "job", "experiment=agn_mnist", "model=mlp"],
        ["experiment=agn_mnist", "model=mlp", "--cfg", "job"],
    ):
        assert "\n  name: mlp\n" in fedpriv(*order).out  # and not that of the experiment's scale
    assert fedpriv("--cfg", "job", "num_rounds=0").code == 2
    assert not list(tmp_path.iterdir())


def test_exit_codes_are_listed_where_people_look() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    for code, words in EXIT_CODES.items():
        assert f"| {code} | {words}" in page
        assert re.search(rf"^  {code} +{re.escape(words)}$", help_page.usage(), re.MULTILINE)
    assert all(flag in help_page.usage() for flag in FLAGS)


@pytest.mark.slow
def test_who_reads_no_further_gets_no_traceback() -> None:
    call = f"{sys.executable} -m fedpriv --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", call], capture_output=True, text=True)
    assert done.stderr == "" and done.returncode in (0, 141)  # by who was faster


# --- help on options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "lines"),
    [
        ("local.lr", ["  local.lr=0.1  (float >0; the paper's eta)", "      learning rate of local SGD"]),
        ("dataset", ["dataset=breast_cancer|", "  dataset.download=false  (bool)"]),
        ("dataset=mnist", ["dataset=breast_cancer|"]),
        ("privacy", ["  privacy.delta=1e-05  (float >0 <1; the paper's delta)"]),
        ("strategy.server.lr", ["  strategy.server.lr=null  (float|null >0)"]),
        ("scale", ["scale=literal|small"]),
        ("strategy=fedcad", ["fedcad: Fed-CAD"]),
    ],
)
def test_help_on_a_group_a_section_or_an_option(
    word: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert help_main([word]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(start) for line in printed) for start in lines), printed


def test_the_help_on_all_options_has_their_defaults_and_names_that_can_be_written() -> None:
    rows = {line.split()[0]: line for line in help_text().splitlines() if line.startswith("  ")}
    assert rows["num_rounds"].endswith(f"[{compose([]).num_rounds}]")
    assert rows["privacy.target_epsilon"].endswith("[null]") and rows["dataset.download"].endswith("[false]")
    assert not any(name.startswith("strategy.options.") for name in rows)
    assert " not dpftrl: fewer usable replies" in help_text()


# --- help on a method ------------------------------------------------------------------------------------


def texts_of(method: str) -> dict[str, str]:
    """Option as `SYMBOLS` names it -> its description."""
    rows = [*rows_of(METHODS[method]), *describe_options()]
    return {option.removeprefix("strategy."): words for option, _, words in rows}


def test_every_option_of_every_method_has_words_and_every_letter_an_option() -> None:
    assert SYMBOLS.keys() == METHODS.keys()
    for method in METHODS:
        options = texts_of(method)
        unnamed = [option for option, words in options.items() if not words and option.startswith(("client", "server"))]
        assert unnamed == [], method
        assert {*SYMBOLS[method], *COMMON} - options.keys() == set(), method
        assert all({**COMMON, **SYMBOLS[method]}.values())


#: Names of variables of these files, that options of the same names have nothing to do with.
VARIABLES = {("fedags", "client.threshold"), ("fedonce", "server.spread")}


def letters_in_code(method: str) -> dict[str, str]:
    """Option -> letter, by the line ``Symbols: sigma -> noise_multiplier, ...`` of the method's two files."""
    found = {}
    for half, folder in (("client", "clients"), ("server", "strategies")):
        text = (ROOT / folder / f"{method}.py").read_text().split('"""')[1]
        listed = re.search(r"Symbols: (.*?)(?:\n\n|\Z)", text, re.DOTALL)
        for pair in re.split(r"[,;] (?=[^()]*->)", " ".join(listed[1].split()) if listed else ""):
            letter, arrow, name = pair.partition(" -> ")
            word = re.match(r"`*([a-z_0-9.]+)`*(?=$|[.,; ]+\(|[.,;]|$)", name)
            if arrow and word:
                option = word[1].rstrip(".")
                if "." not in option and option not in COMMON and (field := field_of(METHODS[method], half, option)):
                    option = spelled(METHODS[method], field).removeprefix("strategy.")
                found[option] = letter
    return found


def test_the_letters_are_those_of_the_methods_files() -> None:
    compared = 0
    for method in METHODS:
        known = {**COMMON, **SYMBOLS[method]}
        for option, letter in letters_in_code(method).items():
            if option in texts_of(method) and (method, option) not in VARIABLES:
                assert letter in known.get(option, "").split(", "), (method, option)
                compared += 1
    assert compared > 45


@pytest.mark.parametrize("columns", [50, 80, 132])
def test_help_on_a_method_fits_the_terminal(columns: int, fedpriv: Fedpriv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = fedpriv("help", "fedcad")
    assert outcome.code == 0 and max(map(len, outcome.out.splitlines())) <= columns
    said = " ".join(outcome.out.split())
    assert "strategy.client.obsolete_factor=0.0 (float >=0 <=1; the paper's gamma)" in said
    assert "gamma: weight of the newest change in Diff; 0 = constant" in said
    assert "num_rounds=60 (int >=1 <2147483648; the paper's T)" in said


def test_help_on_every_method_names_every_option_and_value() -> None:
    for method, kind in METHODS.items():
        said = method_help(method, kind)
        for option, _, _ in rows_of(kind):
            assert f" {option}=" in said, (method, option)
    assert "strategy.server.step=auto" in method_help("fedonce", METHODS["fedonce"])


def test_help_lists_methods_and_answers_for_commands(fedpriv: Fedpriv) -> None:
    outcome = fedpriv("help")
    assert outcome.code == 0 and "fedcad" in outcome.out and "exit codes:" in outcome.out
    assert fedpriv("help", "audit").out == fedpriv("audit", "--help").out
    assert fedpriv("help", "deploy", "node").out == fedpriv("deploy", "node", "--help").out


# --- completion ------------------------------------------------------------------------------------------

#: Asks bash's own completion function, as Tab would.
BASH = """
fedpriv() { "$PYTHON" -m fedpriv "$@"; }
eval "$(fedpriv -sc install=bash)"
while IFS= read -r line; do
    COMP_LINE="$line" COMP_POINT=${#line} COMP_WORDS=(fedpriv) COMPREPLY=()
    "$(complete -p fedpriv | sed 's/.*-F \\([^ ]*\\) .*/\\1/')"
    echo "$line>${COMPREPLY[*]}"
done
"""


def test_bash_completes_subcommands_and_options() -> None:
    lines = ["fedpriv au", "fedpriv strategy=fedc", "fedpriv plan local.sam"]
    done = subprocess.run(
        ["bash", "-c", BASH], input="\n".join(lines) + "\n", text=True, capture_output=True, check=True,
        env={**os.environ, "PYTHON": sys.executable}
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "fedpriv au>audit audit.",  # the command, and the group of options
        "fedpriv strategy=fedc>fedcad",  # bash has divided the word at =
        "fedpriv plan local.sam>local.sampler=",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedpriv -q re", ["report", "reproduce", "rerun=", "resume="]),
        ("fedpriv audit run", ["run="]),
        ("fedpriv attack lo", []),
        ("fedpriv audit strategy=fedl", ["strategy=fedldp"]),
        ("fedpriv deploy s", ["superlink"]),
        ("fedpriv deploy superlink por", ["port="]),
        ("fedpriv help nba", ["nbafl"]),
        ("fedpriv run privacy.variant=", ["privacy.variant=published", "privacy.variant=repaired"]),
        ("fedpriv strategy=fedcad strategy.client.obs", ["strategy.client.obsolete_factor="]),
        ("fedpriv -m strategy=fedcad,fedav", ["strategy=fedcad,fedavg"]),
        ("fedpriv evaluate.clients=t", ["evaluate.clients=true"]),
        ("fedpriv report --o", []),
        ("fedpriv --ver", ["--verbose", "--version"]),
    ],
)
def test_what_completion_offers(line: str, expected: list[str]) -> None:
    assert answers(line) == expected


def test_completion_of_paths(tmp_path: Path) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "fifth.txt").touch()
    assert answers(f"fedpriv audit run={tmp_path}/runs/fi") == [
        f"run={tmp_path}/runs/fifth.txt",
        f"run={tmp_path}/runs/first/",
    ]
    assert answers(f"fedpriv dataset.root={tmp_path}/ru") == [f"dataset.root={tmp_path}/runs/"]
