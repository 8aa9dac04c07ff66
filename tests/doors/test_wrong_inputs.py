"""Wrong inputs as people make them, each answered in one line that names the option, the value and what is allowed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import NO_REPORT, SMALL, ctrl_c

import fedpriv
from fedpriv.__main__ import main
from fedpriv.commands.table import FLAG_NAMES
from fedpriv.common.errors import OptionError
from fedpriv.config.checks import doubts
from fedpriv.config.compose import CONF, compose
from fedpriv.config.own_options import group_choices

#: All run at every commit: a page or a message that changes anywhere is met here, and all take ten seconds.
pytestmark = pytest.mark.rotates(1)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that Ctrl-C ended after its second round."""
    folder = tmp_path_factory.mktemp("runs") / "half"
    with ctrl_c(after=2):
        assert main([*SMALL, NO_REPORT, "checkpoint.every=1", f"hydra.run.dir={folder}"]) == 130
    return folder


@pytest.mark.parametrize(
    ("call", "words"),
    [
        # options of a run
        ("strategy=fedcat", f"strategy=fedcat: allowed: {', '.join(group_choices(CONF / 'strategy'))} (did you mean"),
        ("strategy.client.diff=1.5", "strategy.client.diff=1.5: must be at most 0.999"),
        ("seed=0,1", "seed=0,1: several values need -m (a sweep)"),
        ("=3", "option=value"),
        ("--nosuch", "there is no such flag; allowed: " + ", ".join(FLAG_NAMES)),
        ("--config-name=x", "there is no such flag"),
        ("plan=maybe", "plan=maybe: allowed: true, false"),
        ("-m|plan=true|seed=0,1", "plan=true: plans one run"),
        ("hydra.nosuch=1", "hydra.nosuch=1: not an option of Hydra"),
        ("hydra/launcher=slurm", "hydra/launcher=slurm: allowed: basic, joblib"),
        ("run_dir=x", "hydra.run.dir"),
        ("resume=", "resume: must be the folder of a run"),
        ("resume=x|-m", "-m: resume= takes the run's own options"),
        ("rerun=x", "x: there is no such run folder"),
        ("hydra.run.dir=/proc/nowhere", "/proc/nowhere: "),
        ("hydra.run.dir=/dev/null/x", "Not a directory"),
        ("dataset=image_folder|dataset.root=nowhere", "dataset.root=nowhere: there is no such folder"),
        ("dataset=mnist|dataset.root=nowhere", "MNIST/raw/train-images-idx3-ubyte"),
        ("local.batch_size=1000", "local.batch_size=1000: local.sampler=poisson: the smallest client has 71"),
        ("partition=dirichlet|partition.alpha=0.001", "partition.alpha=0.001: in 10 attempts"),
        ("model=cnn", "model=cnn: needs pictures of at least 16x16, these are 8x8"),
        ("strategy.client._target_=os.mkdir", "strategy.client._target_=os.mkdir: is not a class"),
        ("strategy.client._target_=pathlib.Path", "must be a subclass of fedpriv.client.base.Client"),
        ("strategy.server._target_=strategies.nosuch.X", "strategy.server._target_=strategies.nosuch.X: cannot be"),
        ("privacy.target_epsilon=5|strategy=fedavg", "privacy.target_epsilon=5.0: fedavg has no noise"),
        ("seed=1|audit", "a command comes first: fedpriv audit ..."),
        ("epsilon=8", "epsilon=8: there is no such option; did you mean privacy.target_epsilon?"),
        ("lr=0.1", "did you mean local.lr or strategy.server.lr?"),
        ("method=fedldp", "did you mean strategy?"),
        ("clip_norm=1", "did you mean strategy.client.clip_norm?"),
        ("noise=2", "did you mean strategy.client.noise_multiplier?"),
        ("clients=4", "did you mean num_clients?"),
        ("--cfg|jobs", "-c/--cfg: invalid choice: 'jobs' (choose from 'job', 'hydra', 'all')"),
        ("-m|--cfg|job|seed=1,2", "--cfg: shows one run: leave out -m"),
        ("--resolve", "--resolve: belongs to --cfg"),
        ("--hepl", "did you mean --help?"),
        # commands
        ("audti|run=x", "audti: there is no such command; did you mean audit?"),
        ("reprot|x", "reprot: there is no such command; did you mean report or reproduce?"),
        ("trian", "trian: there is no such command; did you mean run?"),
        ("privacy.unit=patient", "allowed: row, person or client (did you mean person?)"),
        ("schema|file|dataset.decimal=dot", "decimal=dot: allowed: point, comma"),
        ("fedcad", "fedcad: there is no such command; did you mean strategy=fedcad?"),
        ("cifar10", "did you mean dataset=cifar10?"),
        ("empty", "empty: a folder is no command; did you mean fedpriv report empty"),
        ("deploy|nod", "deploy=nod: allowed: credentials, superlink, node, doctor; did you mean node?"),
        ("help|fedcat", "help=fedcat: there is no such method, command or option; did you mean fedcad"),
        ("help|epsilon", "command or option; did you mean privacy.target_epsilon?"),
        ("papers|x=1", "x=1: no such option; allowed: none"),
        ("schema|nowhere.csv", "FILE=nowhere.csv: there is no such file"),
        ("schema|file|file", "file: is too much; allowed: target, out, separator"),
        ("schema|check|file", "schema_file: is missing: schema_file=SCHEMA; --help shows the usage"),
        ("schema|fill|file", "ask: is missing: ask=RUN_FOLDER; --help shows the usage"),
        ("schema|file|decimal=dot", "decimal=dot: allowed: point, comma"),
        ("deploy|credentials|host=localhost", "FOLDER: is missing"),
        ("deploy|credentials|=", "no such option"),
        ("deploy|credentials|made|host=no host", "host=no host: must be a host's name or an IP address"),
        ("deploy|credentials|made|nodes=-1", "nodes=-1: must be a whole number from 0"),
        ("deploy|credentials|made|days=0", "days=0: must be a whole number from 1"),
        ("deploy|credentials|server|made", "has no ca/ca.key"),
        ("deploy|credentials|server|made|nodes=3", "nodes=3: no such option; allowed: host, days"),
        ("new|FedMine", "NAME=FedMine: must be small letters"),
        ("new|../mine", "must be small letters"),
        (f"new|{'a' * 33}", "at most 32 characters"),
        ("new|lambda", "NAME=lambda: is a word of Python, YAML"),
        ("new|null", "NAME=null: is a word of Python, YAML"),
        ("new|fedcad", "NAME=fedcad: is a method of the project"),
        ("new|fedcad|app=true", "NAME=fedcad: is a method of the project"),
        ("new|folder=x", "NAME: is missing"),
        ("new|torch|app=true", "NAME=torch: is a package that Python has, which the app would hide"),
        ("new|mine|folder=file", "folder=file: must be a folder"),
        ("predict|run=empty", "FILE: is missing"),
        ("predict|picture.png", "run: is missing"),
        ("hydra.run.dir=file", "hydra.run.dir=file: is a file; it must be a folder"),
        ("hydra.run.dir=file/x", "file is not a folder (Not a directory)"),
        ("-m|hydra.sweep.dir=file", "hydra.sweep.dir=file: is a file"),
        ("hydra.run.dir=", "hydra.run.dir: is empty; it must be a folder's name"),
        ("hydra.run.dir=' '", "is empty; it must be a folder's name"),
        ("hydra.run.dir=null", "hydra.run.dir=null: not an option of Hydra"),
        ("-m|hydra.sweep.dir=", "hydra.sweep.dir: is empty; it must be a folder's name"),
        ("-m|seed=0,0", "seed=0,0: names the same run twice (seed=0)"),
        ("-m|local.lr=1,1.0|seed=0,1", "local.lr=1,1.0: names the same run twice (local.lr=1.0)"),
        ("-m|seed=0,1|strategy=fedcad,fedcad", "strategy=fedcad,fedcad: names the same run twice (strategy=fedcad)"),
        ("deploy|node|bundle|file", "app=file: no app (File is not a zip file)"),
        ("deploy|node|bundle|empty", "app=empty: no app ("),
        ("deploy|node|bundle|.", "app=.: no app ("),
        ("resume=/nonexistent", "resume=/nonexistent: there is no such run folder"),
        ("resume=file", "resume=file: a file, not a run folder"),
        ("resume=empty", "empty: not a run folder, it has no config.yaml"),
        ("rerun='with a space'", "there is no such run folder"),
        ("dataset.root=/data/Bilder ö", "\"dataset.root='/data/Bilder ö'\""),
        ("dataset.root=/data/it's", "\"dataset.root='/data/it\\\\'s'\""),
        ("strategy={name:", "quote it for the shell"),
        ("dataset=image_folder|dataset.root=file", "dataset.root=file: a file, not a folder"),
        ("dataset=digits|dataset.size=16", "dataset.size=16: there is no such option with dataset=digits"),
        ("dataset.split=file", "dataset.split=file: must be a .npz file with rows `train` and `test`\n"),
        ("dataset.split=nowhere", "`test` (No such file or directory)"),
        (
            "engine.faults=[{round: 1}]",
            "engine.faults.0.client: the option has no value; a fault has round, client, kind",
        ),
        ("engine.faults=3", "must be a list of {round, client, exchange, kind}, or {rate, kinds}"),
        ("+new.deep.option=1", "new.deep.option=1: there is no such option here"),
        ("engine.faults={rate: 0.1, rat: 2}", "engine.faults.rat=2: there is no such option here; a fault has rate"),
        ("num_rounds=1e3", "num_rounds=1e3: must be a whole number, without a point or an exponent: 1000"),
        ("num_rounds=1e-3", "num_rounds=1e-3: must be a whole number\n"),
        ("num_rounds", "num_rounds: is an option and needs a value: num_rounds=..."),
        ("local.lr=-1e-3", "local.lr=-1e-3: must be more than 0"),
        ("strategy=FedCAD", "(did you mean fedcad?)"),
        ("local.sampler=poison", "allowed: shuffle or poisson (did you mean poisson?)"),
        ("audit|run=", "run: is empty: leave it out, or give a value"),
        ("audit|run=empty|trils=2000", "did you mean trials?"),
        ("predict|run=empty|nowhere.png", "empty: not a run folder"),
        ("attack|members=100", "run: is missing"),
        ("report|empty", "empty: no run in it"),
        ("compare|empty|file", "empty: no run in it"),
        ("deploy|node|status|policy=file|data=file", "data=file: must be a folder"),
        (
            "hydra.run.dir=" + "a" * 5000,
            "...: must be a path: it, or a name in it, is longer than this system allows\n",
        ),
        (
            "resume=" + "a" * 5000,
            f"resume={'a' * 500}...: must be a path: it, or a name in it, is longer than",
        ),
        ("audit|run=" + "a" * 5000, f"run={'a' * 500}...: must be a path: it, or a name in it, is longer than"),
        ("deploy|node|initt", "COMMAND=initt: allowed: policy, bundle"),
    ],
)
def test_a_wrong_input_is_answered_in_one_line(
    call: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    assert main(call.split("|")) == 2
    said = capfd.readouterr()
    assert said.out == "" and said.err.startswith("fedpriv: ") and said.err.count("\n") == 1 and words in said.err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["file"]  # nothing was begun


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("ledger.jsonl", lambda text: None, "damaged: it does not begin with what it held at round-000002"),
        ("ledger.jsonl", lambda text: text.partition("\n")[2], "damaged: it does not begin"),
        ("ledger.jsonl", lambda text: text[:40], "damaged: it does not begin"),
        ("config.yaml", lambda text: "seed: [", "config.yaml: cannot be read"),
        ("config.yaml", lambda text: text.replace("num_rounds: 3", "num_rounds: x"), "config.yaml: num_rounds=x: must"),
        ("metrics.jsonl", lambda text: "x\n" + text, "metrics.jsonl: line 1 is damaged"),
    ],
)
def test_a_damaged_run_is_not_resumed(file, change, words, half, tmp_path, capfd) -> None:
    """Least of all with a ledger that lost a line: the clients would have released more than it says."""
    folder = tmp_path / "run"
    shutil.copytree(half, folder)
    changed = change((folder / file).read_text())
    (folder / file).unlink() if changed is None else (folder / file).write_text(changed)
    capfd.readouterr()
    assert main([f"resume={folder}"]) == 2
    assert words in capfd.readouterr().err
    assert not (folder / "summary.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["privacy.delta=0.5"], "privacy.delta=0.5 is not below 1 / 10 clients: whoever publishes all"),
        (["privacy.delta=0.1"], "not below 1 / 10 clients"),
        (["privacy.delta=0.05"], "privacy.delta=0.05 is large"),
        (["strategy=dpsgd", "privacy.delta=1e-3"], "privacy.delta=0.001 is not below 1 / 1,437 examples"),
        (["strategy=dpsgd", "dataset.train_examples=200", "privacy.delta=0.006"], "not below 1 / 200 examples"),
        (["privacy.delta=1e-4"], ""),
        (["strategy=dpsgd", "privacy.delta=1e-5"], ""),
    ],
)
def test_a_delta_that_promises_nothing_is_warned_of(options: list[str], words: str) -> None:
    found = doubts(compose([*options, "dataset=digits", "num_clients=10", "clients_per_round=2"]))
    assert len(found) == bool(words) and words in "".join(found)


def test_an_empty_folder_is_not_the_working_directory_and_half_a_run_is_not_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["audit", f"run={half}"]) == 2 and "the run has not finished" in capfd.readouterr().err
    for folder in ("", " "):
        with pytest.raises(OptionError, match="is empty"):
            fedpriv.run(SMALL, folder=folder, quiet=True)
    assert main([f"rerun={half}", "hydra.run.dir="]) == 2
    assert not list(tmp_path.iterdir())


def test_a_target_below_delta_is_warned_of(tmp_path, capfd) -> None:
    assert main(["plan", *SMALL, "privacy.target_epsilon=1e-300"]) == 0
    warning = (
        "fedpriv: warning: privacy.target_epsilon=1e-300 is below privacy.delta=1e-05: delta alone is the guarantee\n"
    )
    assert capfd.readouterr().err == warning
    assert main(["plan", *SMALL, "privacy.target_epsilon=1"]) == 0
    assert capfd.readouterr().err == ""


def test_an_option_that_is_given_twice_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan=true", "num_rounds=2", "seed=1", "seed=1", "num_rounds=3"]) == 0
    said = capfd.readouterr()
    assert said.err == "fedpriv: num_rounds is given as 2 and as 3: the last one counts\n"
    assert "rounds            3" in said.out
    assert main(["predict", "run=one", "run=one", "run=two", "rows.csv", "out=new.csv"]) == 2
    assert capfd.readouterr().err.startswith("fedpriv: run is given as one and as two: the last one counts\n")


@pytest.mark.parametrize(("clip_norm", "doubted"), [(0.5, False), (100, True)])
def test_a_bound_behind_which_dpsum_stands_still_is_doubted(clip_norm: float, doubted: bool) -> None:
    options = ["strategy=dpsum", "dataset=breast_cancer", f"strategy.client.clip_norm={clip_norm}"]
    found = "; ".join(doubts(compose(options)))
    assert (f"strategy.client.clip_norm={clip_norm:g}: the step is in units of it" in found) == doubted
