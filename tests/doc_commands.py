"""The commands in README.md, docs/*.md and docs/results/*.md: which there are, and how each is carried out.

A command is every line of an indented block and of a fenced block for a shell (or for nothing in particular), and every
``python -m ...`` or ``make ...`` in the text. Behind it a block for ``text`` holds lines that it prints. A block for
``python`` that begins with ``# NAME.py`` is a file in the project's folder, made before the commands below it.

``python tests/doc_commands.py RESULTS PAGE...`` in a copy of the project carries out those of some pages, all in one
process, smaller where that changes nothing else, and writes a line of JSON for each. With ``whole`` among the pages,
audits whose figures a page shows draw as much as a user's.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from fedpriv.checking import child
from fedpriv.commands import runs
from fedpriv.commands.table import COMMANDS, DEPLOYMENT

ROOT = Path(__file__).resolve().parents[1]
SHELLS = ("", "sh", "bash", "console")
INLINE = re.compile(r"`((?:\.venv/bin/)?python -m [^`]+|(?:\.venv/bin/)?fedpriv [^`]*=[^`]*|make [a-z][^`]*)`")

CONTAINERS = "tests/system/test_containers.py::test_a_documented_command_is_taken_by_its_program"
CLUSTERS = "tests/system/test_clusters.py::test"
#: Commands that are not carried out here: (the whole command, why, the test that does the same or None).
ELSEWHERE: tuple[tuple[str, str, str | None], ...] = (
    (
        r"docker .*",
        "needs containers",
        CONTAINERS,
    ),
    (
        r"sudo (chown|cp|systemctl) .*",
        "needs root",
        CONTAINERS,
    ),
    (
        r"pip (download|install) .*",
        "fetches packages",
        CONTAINERS,
    ),
    (
        r"kubectl .*|sbatch .*|ray job submit --no-wait .*|.* runs/seeds/1",
        "needs a cluster",
        f"{CLUSTERS}_a_documented_command_is_taken",
    ),
    (
        r"make (sbom|release)",
        "writes into build/dist; a release takes minutes, and tries each Python",
        "tests/system/test_pythons.py::test_the_list_of_materials_has_every_locked_package",
    ),
    (r"make install.*", "fetches packages; CI begins with it", None),
    (r"export [A-Z_]+=.*|umask [0-7]+", "sets up the shell it is typed in", CONTAINERS),
    (r"make audit-packages", "asks a database of advisories over the network", None),
    (r"make (test|test-gpu|lint).*", "these checks are run by it", None),
    (r"make check-wheel", "builds a wheel", "tests/system/test_wheel.py::test_the_check_alone_needs_few_packages"),
    (
        r"make bench.*|python -m benchmarks.*",
        "a quarter of an hour",
        "tests/system/test_benchmarks.py::test_the_table_of_a_small_benchmark",
    ),
    (
        r"make parity.*",
        "half an hour, and an environment of its own",
        "tests/studies/test_parity.py::test_a_plain_loop_without_chance_ends_where_fedpriv_does",
    ),
    (
        r"make reproduce.*|python -m fedpriv\.reproduce .*",
        "runs a paper's experiments",
        "tests/studies/test_reproduction.py::test_tables_verdicts_and_figures_are_written",
    ),
    (
        r"make leaderboard.*|python -m fedpriv\.leaderboard .*",
        "half an hour",
        "tests/studies/test_leaderboard.py::test_pages_and_commands",
    ),
    (
        r"python -m fedpriv\.studies\.front_page",
        "needs the results of studies",
        "tests/studies/test_pages.py::test_the_head_is_written_between_its_marks",
    ),
    (
        r"make docs",
        "builds all pages",
        "tests/system/test_docs_site.py::test_every_page_of_the_docs_is_there",
    ),
    (
        r"make map",
        "writes into docs/",
        "tests/test_architecture.py::test_the_map_is_that_of_the_code",
    ),
    (
        r"python -m fedpriv .*experiment=private_mnist[_a-z]* .*",
        "needs the real pictures, or a minute for each run",
        "tests/methods/test_fedonce.py::test_mnist_is_learned_within_eight",
    ),
    (
        r"python -m tools\.mark_results .*",
        "needs the results of studies",
        "tests/studies/test_reproduction.py::test_a_fresh_checkout_goes_on_from_the_rows_of_a_study",
    ),
    (
        r"python -m tools\.private_runs (choices|figures) DATA",
        "hours, and the real pictures",
        "tests/report/test_private_figure.py::test_the_runs_are_made_once_each",
    ),
    (
        r"ray job submit .*",
        "needs ray[default], which is not among the requirements",
        "tests/system/test_ray_scale.py::test_two_nodes_share_the_clients_and_give_the_same_run_also_when_one_dies",
    ),
    (
        r"make deploy-demo(-tables)?|python -m deploy\.demo( tables)?",
        "three minutes",
        "tests/system/test_rehearsal.py::test_the_approved_app_trains_on_the_nodes_own_pictures",
    ),
    (
        r"python -m fedpriv leaf .*",
        "needs the files of LEAF",
        "tests/data/test_leaf.py::test_every_user_is_a_client_with_its_own_rows",
    ),
    (
        r"python -m fedpriv\.attack .*",
        "trains shadow models",
        "tests/attacks/test_attack_command.py::test_every_attack_knows_an_overfitted_model_and_is_at_chance_on_another",
    ),
    (
        r"ray (start|stop).*|python -m fedpriv engine=ray engine\.address=HEAD:6379 .*",
        "needs other machines",
        "tests/system/test_ray_scale.py::test_two_nodes_share_the_clients_and_give_the_same_run_also_when_one_dies",
    ),
    (
        r"flwr run \. --federation-config .*",
        "starts Flower's own servers",
        "tests/deployment/test_bundle.py::test_app_composes_from_the_runs_own_options",
    ),
    (
        r"flwr run my_app .*|flower-supernode .*|flower-superlink --insecure .*",
        "starts Flower's own servers",
        "tests/apps/test_flower_page.py::test_a_new_app_trains_on_supernodes_that_keep_their_own_terms",
    ),
    (
        r"python -m fedpriv\.(report|audit|certificate) (run=)?outputs/app",
        "needs a run of an app",
        "tests/apps/test_flower_page.py::test_the_commands_of_the_page_work_on_an_apps_folder",
    ),
    (
        r"flwr .*|flower-superlink .*|python -m fedpriv\.superlink .*|python -m fedpriv\.node run .*",
        "needs a server and nodes",
        "tests/system/test_rehearsal.py::test_the_approved_app_trains_on_the_nodes_own_pictures",
    ),
    (
        r"python -m fedpriv\.doctor .*",
        "needs a server and its nodes",
        "tests/deployment/test_doctor.py::test_a_node_that_can_start",
    ),
    (
        r"python -m fedpriv\.node status .* superlink=.*",
        "needs a server",
        "tests/deployment/test_clock.py::test_status_says_that_clocks_agree_or_that_nobody_answers",
    ),
    (
        r"python -c \"import sqlite3; .*|tar -C /srv/fedpriv/runs/first .*",
        "needs a server's database and a run of nodes",
        "tests/deployment/test_backup.py::test_a_database_that_is_written_is_copied_as_a_whole",
    ),
    (
        r"python -m fedpriv\.node (bundle quickstart|(init|try|status|report) .*data=/srv/patients.*)",
        "needs an app and a table of one's own",
        "tests/guard/test_guarded_nodes.py::test_an_app_that_nobody_changed_runs_on_guarded_nodes",
    ),
    (
        r"python -m fedpriv\.node bundle \.",
        "needs the tracked files alone",
        "tests/system/test_rehearsal.py::test_a_tampered_bundle_is_neither_unpacked_nor_run",
    ),
    (
        r"python -m fedpriv\.ask .*dataset=table .*",
        "needs a table of one's own",
        "tests/runs/test_asking.py::test_ranges_of_a_schema_come_from_private_quantiles",
    ),
    (
        r"python -m tools\.inference_figure( only=(survival|score|linear|(links|groups) \w+=\d+))?",
        "minutes",
        "tests/data/test_survival.py::test_the_figures_tool_runs",
    ),
    (
        r"python -m tools\.survival_figure .*|python -c \"from lifelines.*",
        "minutes, and a package that is not needed otherwise",
        "tests/runs/test_survival_models.py::test_in_a_sum_it_orders_patients_as_cox_regression_does",
    ),
    (
        r"python -m tools\.quantile_figure",
        "minutes",
        "tests/data/test_questions.py::test_intervals_are_of_use",
    ),
    (
        r"python -m tools\.statistics_figure",
        "half a minute",
        "tests/runs/test_asking.py::test_the_figures_tool_runs",
    ),
    (
        r"python -m fedpriv .*hub_name=flwrlabs/shakespeare .*",
        "needs the network",
        "tests/data/test_hub.py::test_shakespeares_characters_are_clients_that_predict_the_next_letter",
    ),
    (
        r"python -m tools\.risks_figure .*",
        "minutes",
        "tests/methods/test_dpsum.py::test_the_tool_prints_ranks_and_risks",
    ),
    (
        r"python tools/text_figure\.py|python -m benchmarks\.bench_text",
        "minutes",
        "tests/system/test_benchmarks.py::test_text_models_are_measured",
    ),
    (
        r"python -m fedpriv schema .*",
        "needs a table of one's own",
        "tests/doors/test_schema.py::test_a_check_says_what_a_schema_does",
    ),
    (
        r"python -m fedpriv .*dataset=table .*|python -m fedpriv\.audit run=outputs/(patients|notes)",
        "needs a table of one's own",
        "tests/methods/test_dpsum.py::test_the_hospitals_run",
    ),
    (
        r"python -m fedpriv .*dataset\.schema_file=.*|python -m fedpriv\.node init .* table=.*",
        "needs a table of one's own",
        "tests/deployment/test_tables_on_nodes.py::test_hospitals_learn_from_their_own_tables_in_a_secure_sum",
    ),
    (
        r"python -m fedpriv\.predict .*(patients|notes|gbsg2)\.csv.*",
        "needs a table of one's own",
        "tests/runs/test_table_models.py::test_a_table_comes_back_with_columns_more",
    ),
    (
        r"python (\w+/)?verify_certificate\.py .*",
        "needs a certificate of one's own",
        "tests/certificates/test_certificates.py::test_the_verifier_runs_alone",
    ),
    (
        r"python -m fedpriv\.certificate /srv/.*",
        "needs a node's data folder",
        "tests/certificates/test_certificates.py::test_a_nodes_certificate_from_the_command",
    ),
    (
        r"ssh-keygen .*|openssl .*",
        "other tools",
        "tests/doors/test_credentials.py::test_nodes_have_keys_that_flower_takes_each_its_own",
    ),
)

#: A run of about a second, the same command otherwise.
SMALL = {"num_rounds": "1", "num_clients": "4", "clients_per_round": "4", "engine.trainer": "sequential"}
#: Further options for the commands that hold these words.
FITTING = {
    "column=practice": {"num_clients": "10", "clients_per_round": "10"},
    "mnist": {"local.batch_size": "4", "dataset.auxiliary": "0", "local.epochs": "1"},
    "PICTURES": {"local.batch_size": "2", "dataset.auxiliary": "0"},
    "huggingface": {"local.batch_size": "2", "dataset.auxiliary": "0"},
    "round: 3": {"num_rounds": "3", "num_clients": "8", "clients_per_round": "8"},
    "my_gpt2": {"dataset.train_examples": "40", "local.batch_size": "4"},
    "model=gru": {"dataset.train_examples": "40", "local.batch_size": "4"},
    "_cifar": {"dataset": "digits", "dataset.train_examples": "40", "local.batch_size": "4"},
    "_cifar_sum": {"strategy.server.min_replies": "4"},
    "min_replies=5": {"strategy.server.min_replies": "4"},
    "partition=resampled": {"partition.examples_per_client": "60"},
    "attack.keep_snapshots": {"dataset.train_examples": "400"},
    "bandwidth=5": {"num_clients": "20", "clients_per_round": "2", "num_rounds": "10"},
}


#: Commands that are made once, though several pages show them.
BARE = ("python -m fedpriv", "python -m fedpriv.audit")


@dataclass(frozen=True)
class Command:
    page: str
    line: int
    text: str
    shows: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.page}:{self.line} {self.text}"


@dataclass(frozen=True)
class OwnFile:
    page: str
    name: str
    content: str


def pages() -> list[str]:
    own = (path for place in ("docs", "docs/results") for path in sorted((ROOT / place).glob("*.md")))
    return ["README.md", *(str(path.relative_to(ROOT)) for path in own)]


def blocks(text: str) -> Iterator[tuple[str, int, list[str]]]:
    """(kind, first line's number, lines) of a page: ``indented``, ``inline``, or what a fence is for."""
    lines, number = text.splitlines(), 0
    while number < len(lines):
        line = lines[number]
        if line.startswith("```"):
            end = next(n for n in range(number + 1, len(lines)) if lines[n].startswith("```"))
            yield line[3:].strip(), number + 2, lines[number + 1 : end]
            number = end + 1
        elif line.startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            end = next((n for n in range(number, len(lines)) if not lines[n].startswith("    ")), len(lines))
            yield "indented", number + 1, [text[4:] for text in lines[number:end]]
            number = end
        else:
            for found in INLINE.findall(line):
                yield "inline", number + 1, [found]
            number += 1


def steps(page: str, text: str | None = None) -> list[Command | OwnFile]:
    """The commands and files of a page, from its top to its end."""
    found: list[Command | OwnFile] = []
    for kind, number, lines in blocks((ROOT / page).read_text() if text is None else text):
        if kind == "text":
            last = found.pop()
            assert isinstance(last, Command), f"{page}:{number}: printed lines belong behind a command"
            found.append(Command(page, last.line, last.text, tuple(lines)))
        elif kind == "python" and (name := re.fullmatch(r"# (\w+\.py)\b.*", lines[0])):
            found.append(OwnFile(page, name[1], "\n".join(lines) + "\n"))
        elif kind in ("indented", "inline", *SHELLS):
            joined = ""
            for offset, line in enumerate(lines):
                joined += line.removesuffix("\\")
                if not line.endswith("\\") and joined.strip():
                    found.append(Command(page, number + offset, bare(joined)))
                    joined = ""
    return found


def bare(line: str) -> str:
    """A command without the remark behind it."""
    line = re.sub(r"\s+#\s.*$", "", " ".join(line.split()))
    line = line.removeprefix("$ ").replace(".venv/bin/python ", "python ").removeprefix(".venv/bin/")
    return as_module(line) if line.startswith("fedpriv ") else line


def as_module(line: str) -> str:
    """``fedpriv audit ...`` as ``python -m fedpriv.audit ...``, which is the same."""
    words = [word for word in line.split() if word != "-m"]
    table, place = (DEPLOYMENT, 2) if words[1] == "deploy" else (COMMANDS, 1)
    name = words[place] if len(words) > place and words[place] in table else "run"
    rest = " ".join(words[place + 1 :] if words[place : place + 1] == [name] else words[1:])
    rest = f"-m {rest}" if "-m" in line.split() else rest
    own = {"run": "fedpriv", "plan": "fedpriv plan=true", "compare": "fedpriv.report"}
    return f"python -m {own.get(name, f'fedpriv.{name}')} {rest}".strip()


def commands() -> list[Command]:
    return [step for page in pages() for step in steps(page) if isinstance(step, Command)]


def elsewhere(command: str) -> tuple[str, str | None] | None:
    """(reason, test) of a command that is not carried out here."""
    return next(((why, test) for pattern, why, test in ELSEWHERE if re.fullmatch(pattern, command)), None)


# --- carrying them out, in a copy of the project ---------------------------------------------------------


#: Targets of `fedpriv check` that pages show for their faults.
FAULTY = {
    "my_release.py:release_with_loss",
    "my_release:release_with_loss",
    "formula:release",
    "loops:fixed_batches",
    "rounds:Release",
}


class Shop:
    """Where commands work: the project's copy, which is also the working directory."""

    def __init__(self, whole_audits: bool = False) -> None:
        self.whole_audits = whole_audits
        self.exact = False  # the command's printed lines are compared: not one option of it may change
        self.done: dict[str, tuple[int, str]] = {}
        self.numbers = itertools.count(1)

    def carry_out(self, command: Command) -> tuple[int, str]:
        """(exit code, what it printed); a run that another page shows too is not made again."""
        self.exact = bool(command.shows)
        repeated = command.text.startswith(("python -m fedpriv ", "make papers")) or command.text in BARE
        if not repeated or command.text not in self.done or self.exact:
            self.done[command.text] = self._carry_out(command)
        return self.done[command.text]

    def _carry_out(self, command: Command) -> tuple[int, str]:
        line, _, target = command.text.partition(" > ")
        words = shlex.split(line)
        if words[0] == "make":
            return self._make(words[1:])
        if words[:2] != ["python", "-m"]:
            runs_here = words[0] == "mv" or words[:2] == ["python", "-c"]
            words = [sys.executable if word == "python" else word for word in words]
            done = subprocess.run(words, capture_output=True, text=True) if runs_here else None
            return (done.returncode, done.stderr) if done else (3, f"nobody knows how to run {words[0]}")
        name = words[2].removeprefix("fedpriv.")
        known = {*COMMANDS, *DEPLOYMENT} if name != words[2] else ()
        work = getattr(self, f"_{name}", partial(self._another, name) if name in known else None)
        if name.startswith("tools.make_"):
            work = importlib.import_module(name).main
        if work is None:
            return 3, f"nobody knows how to run python -m {words[2]}"
        code, printed = captured(lambda: work(words[3:]))
        if target:
            Path(target).write_text(printed)
        return code, printed

    def _make(self, given: list[str]) -> tuple[int, str]:
        """The target's own lines, each as a command; `make help` as it is."""
        if given == ["help"]:
            done = asked_make("help")
            return done.returncode, done.stdout
        done = asked_make("-n", "-o", "install", *given)
        code, printed = done.returncode, done.stderr
        for line in done.stdout.splitlines():
            if elsewhere(bare(line)) is None:
                one, said = self.carry_out(Command("Makefile", 0, bare(line)))
                code, printed = max(code, one), printed + said
        return code, printed

    def _fedpriv(self, given: list[str]) -> int:
        if given and given[0] == "explain-epsilon":  # a command that is no module's name
            return self._another("explain_epsilon", given[1:])
        options = dict(word.partition("=")[::2] for word in given if "=" in word)
        if "resume" in options:
            interrupted(Path(options["resume"]))
        if "extend" in options:  # by a round; the commands that repeat the run would have as many
            given = ["num_rounds=3" if word.startswith("num_rounds=") else word for word in given]
        if self.exact or options.keys() & {"plan", "resume", "rerun", "extend"} or "--help" in given:
            return runs.main(given)
        multirun = "-m" in given
        smaller = SMALL | {"engine": options.get("engine", "inprocess")}
        if given and "operations.report" not in options:  # the first command of all writes its report
            smaller |= {"operations.report": "false"}
        if given and not multirun and "hydra.run.dir" not in options:  # two runs of one second would share its folder
            smaller |= {"hydra.run.dir": f"outputs/command{next(self.numbers)}"}
        for words, more in FITTING.items():
            if words in " ".join(given):
                smaller |= more
        if options.get("partition") == "resampled":
            del smaller["clients_per_round"]
        kept = [word for word in given if word.partition("=")[0] not in smaller]
        if multirun or kept != given:  # what is made smaller is taken as it stands, too
            runs.check([word for word in given if word != "-m"], multirun)
        if multirun:  # the first value of each option, and the last one too of the first option
            swept = [n for n, word in enumerate(kept) if "," in word and not set("[{(") & set(word)]
            for n in swept:
                key, _, values = kept[n].partition("=")
                several = values.split(",")
                kept[n] = f"{key}={several[0]},{several[-1]}" if n == swept[0] else f"{key}={several[0]}"
        return runs.main([*kept, *(f"{name}={value}" for name, value in smaller.items())])

    def _pytest(self, given: list[str]) -> int:
        """A new method's own test, and what the project asks of every method."""
        import pytest

        name = Path(given[0]).stem.removeprefix("test_")
        files = [f"tests/{part}.py" for part in ("test_imports", "config/test_config", "doors/test_cli")]
        chosen = f"test_{name} or {name}] or pairs or fedcat"
        with shorter_audits():
            return int(pytest.main(["-p", "no:cacheprovider", *given, *files, "-k", chosen]))

    def _audit(self, given: list[str]) -> int:
        from fedpriv.commands.audit import main

        if self.exact and self.whole_audits:
            return main(given)
        with shorter_audits():
            as_given = self.exact or any("trials=" in word for word in given)
            return main(given if as_given else [*given, "trials=2000"])

    def _dme(self, given: list[str]) -> int:
        from fedpriv.commands.dme import main

        return main([*given, "trials=2", "dimension=20", "figure=1"])

    def _another(self, name: str, given: list[str]) -> int:
        """A command as it stands, with what stands for a file or a name."""
        module = "fedpriv.report.__main__" if name == "report" else f"fedpriv.commands.{name}"
        names = {"PICTURE...": str(next(Path("PICTURES/cat").iterdir())), "NAME": "mine"}
        words = [names.get(word, word).replace("/srv/pictures", "PICTURES") for word in given]
        return int(importlib.import_module(module).main(words))

    def _check(self, given: list[str]) -> int:
        """A page's faulty example is found to be so."""
        code = self._another("check", given)
        return int(code != 1) if set(given) & FAULTY else code

    def prepare(self, command: Command) -> None:
        """What the page's reader has by then."""
        if "client.share=" in command.text and "YOUR IDEA" in Path("clients/sparse.py").read_text():
            edit_sparse(Path(), (ROOT / command.page).read_text())
            del sys.modules["clients.sparse"]  # another command is another process
        if "multirun/DATE/TIME" in command.text:
            newest = max(Path("multirun").glob("*/*/multirun.yaml"), key=lambda path: path.stat().st_mtime)
            shutil.copytree(newest.parent, "multirun/DATE/TIME", dirs_exist_ok=True)
        if "experiment=mine" in command.text:
            page = (ROOT / command.page).read_text()
            Path("conf/experiment").mkdir(parents=True, exist_ok=True)
            _, _, text = page.partition("```yaml\n# @package")
            Path("conf/experiment/mine.yaml").write_text("# @package" + text.partition("```")[0])
        policy = Path("policy.yaml")
        if "policy=policy.yaml" in command.text and "/var/lib" in policy.read_text():
            policy.write_text(policy.read_text().replace("/var/lib/fedpriv", str(Path.cwd() / "counters")))


def asked_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Not as part of a make that runs the tests: that one's options are not this one's."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=own)


def captured(work: Callable[[], int]) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = work()
        except SystemExit as error:
            code = int(error.code or 0)
        except Exception as error:  # the command fails, the others go on
            return 1, f"{said.getvalue()}{type(error).__name__}: {error}"
    return code, said.getvalue()


def shorter_audits() -> Any:
    """While it lasts, an audit draws a thirtieth of what a user's does: at the same dimension, with fewer trials."""
    from fedpriv.attacks import release_audit

    return mock.patch.object(release_audit, "ALL_NUMBERS", release_audit.ALL_NUMBERS / 30)


def interrupted(folder: Path) -> None:
    """A run that Ctrl-C ended behind its first round."""
    from fedpriv.config.compose import compose
    from fedpriv.runs.session import Session
    from fedpriv.runs.start import start_run

    shutil.rmtree(folder, ignore_errors=True)
    real = Session._end_round

    def ctrl_c(session: Session, current: Any) -> None:
        real(session, current)
        raise KeyboardInterrupt

    config = compose([*(f"{name}={value}" for name, value in SMALL.items()), "num_rounds=2", "engine=inprocess"])
    with mock.patch.object(Session, "_end_round", ctrl_c), contextlib.suppress(KeyboardInterrupt):
        start_run(config, folder)


def edit_sparse(folder: Path, page: str) -> None:
    """The tutorial's changes to the method that it has made, in the page's order."""
    idea, added, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (option,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    client, config = folder / "clients/sparse.py", folder / "conf/strategy/sparse.yaml"
    lines = client.read_text().splitlines(keepends=True)
    places = []
    for words in ("YOUR IDEA", " noise_multiplier: "):
        (place,) = [number for number, line in enumerate(lines) if words in line]
        places.append(place)
    lines[places[0]] = idea
    lines[places[1]] += added
    client.write_text("".join(lines))
    config.write_text(config.read_text() + option)


def furnish() -> None:
    """What the pages' placeholders stand for: pictures, sets and a finished run, in the working directory."""
    import huggingface_hub
    from picture_sets import pictures, write_hub_set, write_mnist
    from PIL import Image

    for label, name in enumerate(("cat", "dog")):
        Path("PICTURES", name).mkdir(parents=True)
        for number, picture in enumerate(pictures(8, label, (32, 32))):
            Image.fromarray(picture.transpose(1, 2, 0)).save(Path("PICTURES", name, f"{number}.png"))
    write_mnist(Path("data"), 48, 16, (28, 28))
    write_hub_set(Path("stored"), size=(32, 32), train=24, test=12)
    child.PATIENCE = 100.0  # where other processes have the cores, a check's seconds of CPU take long
    runs.CHECKED_JOBS = 0  # of a sweep, those that bring a new value are checked
    huggingface_hub.snapshot_download = lambda *_, local_dir, **__: shutil.copytree("stored", local_dir)


def main(arguments: Sequence[str]) -> int:
    furnish()
    shop = Shop(whole_audits="whole" in arguments[1:])
    with Path(arguments[0]).open("w") as results:
        for page in pages():  # a page may name a file of one before it
            for step in steps(page):
                if isinstance(step, OwnFile):
                    Path(step.name).write_text(step.content)
                    importlib.invalidate_caches()
                elif page in arguments and elsewhere(step.text) is None:
                    shop.prepare(step)
                    began = os.times()
                    code, printed = shop.carry_out(step)
                    importlib.invalidate_caches()
                    seconds = sum(os.times()[:4]) - sum(began[:4])
                    row = {"key": step.key, "command": step.text, "code": code, "printed": printed, "cpu": seconds}
                    print(json.dumps(row), file=results, flush=True)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(main(sys.argv[1:]))
