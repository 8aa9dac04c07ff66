"""`fedpriv deploy node try`: an app is started on a machine's own shards before it may run there."""

from __future__ import annotations

import shutil
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from asking import APPS, write_rows
from flwr.app import Array, ArrayRecord
from guarded import GuardedMachines

import fedpriv
from fedpriv.commands import node as commands
from fedpriv.commands.node import main as node_command
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.systems import lock
from fedpriv.deployment.bundles import bundle_digest
from fedpriv.deployment.policy import read_policy
from fedpriv.guard import shards
from fedpriv.guard.shards import TRIALS, Starts, Trial, known_trial, note_trial, why_not
from fedpriv.guard.trial import try_app

pytestmark = pytest.mark.timeout(300)
#: Lines that an app gets before it reads its data.
CRASHES = {
    "never": "",
    "without its key": "    context.node_config['num-partitions']\n",
}


@pytest.fixture(autouse=True)
def one_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same shards in every run of these tests."""
    monkeypatch.setattr(shards.secrets, "token_hex", lambda count: "5a" * count)


def app_that(crashes: str, folder: Path, server: str = "") -> Path:
    app = Path(shutil.copytree(APPS / "quickstart-message", folder / "app", ignore=shutil.ignore_patterns("__pyc*")))
    file = app / "messageexample" / "client_app.py"
    head = "def load_data(context):\n"
    file.write_text(file.read_text().replace(head, head + CRASHES[crashes]))
    if server:
        file = app / "messageexample" / "server_app.py"
        file.write_text(file.read_text().replace("    FedAvg()", server + "    FedAvg()"))
    return app


def machine(folder: Path, **guard: Any) -> GuardedMachines:
    network = GuardedMachines(folder / "machines")
    write_rows(network.data(0) / "table.csv", 40)
    write_policy(network, **guard)
    return network


def write_policy(network: GuardedMachines, **guard: Any) -> None:
    """With the share of a policy that names none."""
    network.write_policy(0, **{"min_answered": None} | guard)


def tried(network: GuardedMachines, app: Path, *more: str) -> int:
    return node_command(["try", f"policy={network.policy(0)}", f"data={network.data(0)}", f"guard={app}", *more])


def test_an_app_is_tried_on_every_shard_and_nothing_is_booked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = machine(tmp_path)
    assert tried(network, app_that("never", tmp_path)) == 0
    said = capsys.readouterr().out
    assert "4 of 4 starts answered" in said and "MiB" in said and "seconds" in said
    assert network.booked() == [] and not (network.data(0) / ".fedpriv" / "guard-answers.json").exists()


def check_tried(network: GuardedMachines, guard: Path | str) -> None:
    commands._check_tried(commands.Node(network.policy(0), network.data(0)), str(guard), 0)


def test_reasons_are_counted_and_run_refuses_below_the_policys_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_that("without its key", tmp_path)
    network = machine(tmp_path, apps=[bundle_digest(app)])
    assert tried(network, app) == 1
    said = capsys.readouterr().out
    assert "0 of 4 starts answered" in said and "4 x KeyError: 'num-partitions'" in said

    def checked(guard: Path | str) -> str:
        check_tried(network, guard)
        return str(capsys.readouterr())

    for guard in (app, "any"):
        with pytest.raises(OptionError, match=r"guard.min_answered=0.9: .* 0 of 4 starts"):
            checked(guard)
    write_policy(network, apps=[bundle_digest(app)], min_answered=0.0)
    checked(app)
    write_policy(network, apps=[bundle_digest(app)], node_config={"num-partitions": 1})
    assert "4 of 4 starts answered" in checked(app)  # other rules: tried again
    assert "starts" not in checked(app)  # known from now on
    (network.data(0) / "table.csv").touch()
    with pytest.raises(OptionError, match="nobody has tried it since its data or packages changed"):
        checked("any")
    assert "4 of 4 starts answered" in checked(app)
    assert "nobody has tried" not in checked("any")
    (tmp_path / "own" / "own-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "own" / "own-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path / "own")  # of this process alone, as Ray adds its own; a node has it not
    assert "own" in {package.name for package in distributions()}
    assert "nobody has tried" not in checked("any")
    write_policy(network, apps=[bundle_digest(app), "b" * 64], node_config={"num-partitions": 1})
    with pytest.raises(OptionError, match=r"bbbbbbbbbbbbbbbb: nobody has tried it under these rules: .*client=0"):
        checked("any")
    write_policy(network, apps="any", pad_seconds=700.0)
    assert "that nobody has tried" in checked("any")  # their digests are not known here


def test_a_share_between_is_allowed_where_the_policy_says_so(tmp_path: Path) -> None:
    app = app_that("never", tmp_path)
    network = machine(tmp_path)
    write_policy(network, shards=40, apps=[bundle_digest(app)], min_answered=0.4)
    found = try_app(network.policy(0), network.data(0), app)
    assert (
        0.4 < found.starts["train"].share < 0.9 and found.starts["train"].started == 40
    )  # an empty shard has no labels
    check_tried(network, app)
    write_policy(network, shards=40, apps=[bundle_digest(app)])
    with pytest.raises(OptionError, match="asks for more"):  # the share may change, and needs no other trial
        check_tried(network, app)


def test_single_shards_that_are_not_asked_are_no_starts(tmp_path: Path) -> None:
    app = app_that("never", tmp_path)
    network = machine(tmp_path, apps=[bundle_digest(app)])
    write_policy(network, shards=100, single=True, apps=[bundle_digest(app)])
    found = try_app(network.policy(0), network.data(0), app)
    assert found.starts["train"].share == 1 and 15 < found.starts["train"].started < 40
    write_policy(network, shards=1, single=True, apps=[bundle_digest(app)])
    with pytest.raises(OptionError, match="0 of 0 starts"):
        check_tried(network, app)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("    raise RuntimeError('no network here')\n", "no network here"),
        ("    grid.get_node_ids()\n    return\n", "sent no model"),
        ("    arrays = ArrayRecord({'w': Array(np.zeros(3, 'u1'))})\n", "the model has no float arrays"),
    ],
)
def test_an_app_whose_server_gives_no_model(
    server: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    network, app = machine(tmp_path), app_that("never", tmp_path, server)
    assert tried(network, app) == 2
    assert words in capsys.readouterr().err
    np.savez(tmp_path / "model.npz", weights=np.zeros(4), bias=np.zeros(1))
    assert tried(network, app, f"model={tmp_path / 'model.npz'}") == 0
    assert "4 of 4" in capsys.readouterr().out


def test_the_server_of_a_guarded_federation_gives_its_model_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = "    import fedpriv\n    FedAvg = lambda: fedpriv.guarded(globals()['FedAvg'](), run_dir='/srv/none')\n"
    assert tried(machine(tmp_path), app_that("never", tmp_path, server)) == 0
    assert "4 of 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["model=none.npz"], "model=none.npz: there is no such file"),
        (["model=POLICY"], "no .npz file of a model's arrays"),
        (["guard=any"], "guard=any: one app"),
    ],
)
def test_wrong_options_are_named(
    more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = machine(tmp_path)
    given = [word.replace("POLICY", str(network.policy(0))) for word in more]
    app = [] if more[0].startswith("guard") else [f"guard={app_that('never', tmp_path)}"]
    assert node_command(["try", f"policy={network.policy(0)}", f"data={network.data(0)}", *app, *given]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("confined", [True, False])
def test_a_simulation_raises_where_an_app_crashes(confined: bool, tmp_path: Path) -> None:
    import numpy as np

    app = app_that("without its key", tmp_path)
    table = write_rows(tmp_path / "t.csv", 40)
    start = ArrayRecord({"weights": Array(np.zeros(4)), "bias": Array(np.zeros(1))})
    rules = {"unit": "row", "shards": 4, "clip": 0.1}
    with pytest.raises(RunFailed, match=r"0 of 4 starts answered.*4 x KeyError: 'num-partitions'"):
        fedpriv.simulate_guard(app, [table], rules, start, confined=confined)
    found = fedpriv.simulate_guard(
        app, [table], rules | {"node_config": {"num-partitions": 1}}, start, confined=confined, epsilon=float("inf")
    )
    assert np.linalg.norm(found.arrays["weights"].numpy()) > 0.01
    fedpriv.simulate_guard(app, [table], rules | {"min_answered": 0.0}, start, confined=confined)


def test_a_simulation_tells_the_app_its_servers_train_config(tmp_path: Path) -> None:
    import numpy as np

    app = app_that("never", tmp_path)
    file = app / "messageexample" / "client_app.py"
    file.write_text(
        file.read_text().replace(
            "    features, labels = load_data(context)\n    arrays",
            "    assert message.content['config']['lr'] == 0.5 and message.content['config']['server-round'] == 1\n"
            "    features, labels = load_data(context)\n    arrays",
        )
    )
    start = ArrayRecord({"weights": Array(np.zeros(4)), "bias": Array(np.zeros(1))})
    given: Any = (app, [write_rows(tmp_path / "t.csv", 40)], {"unit": "row", "shards": 4, "clip": 0.1}, start)
    fedpriv.simulate_guard(*given, confined=False, train_config={"lr": 0.5})
    with pytest.raises(RunFailed, match="KeyError: 'lr'"):
        fedpriv.simulate_guard(*given, confined=False)


def test_the_share_that_a_policy_names_is_at_most_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = machine(tmp_path)
    write_policy(network, min_answered=1.5)
    assert node_command(["status", f"policy={network.policy(0)}", f"data={network.data(0)}"]) == 2
    assert "guard.min_answered" in capsys.readouterr().err
    write_policy(network)
    assert read_policy(network.policy(0)).guard.min_answered == 0.9  # type: ignore[union-attr]


@pytest.mark.parametrize("content", ["", "[]", '{"a": null}', '{"a": {}}', '{"a": {"starts": {"train": 3}}}'])
def test_a_damaged_note_of_a_trial_is_none(content: str, tmp_path: Path) -> None:
    network = machine(tmp_path)
    (network.data(0) / ".fedpriv" / TRIALS).write_text(content)
    assert known_trial(network.data(0), "a", read_policy(network.policy(0)), 0) is None


# --- counts -------------------------------------------------------------------------------------------------------

COUNTS = {"evaluate": {"metrics": {"num-rows": 1}, "clip": 50.0, "noise_multiplier": 2.0}}


def test_an_app_is_tried_on_every_kind_of_counts_that_the_policy_declares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One whose evaluate always raises, and one whose reply lacks the declared name."""
    app = app_that("never", tmp_path)
    network = machine(tmp_path, apps=[bundle_digest(app)], counts=COUNTS)
    assert tried(network, app) == 1
    said = capsys.readouterr().out
    assert "train: 4 of 4 starts answered" in said
    assert "evaluate: 0 of 4 starts answered" in said and "4 x one of the counts num-rows is not in the reply" in said
    with pytest.raises(OptionError, match=r"evaluate: 0 of 4 starts"):
        check_tried(network, "any")
    file = app / "messageexample" / "client_app.py"
    file.write_text(file.read_text().replace('"accuracy"', '"num-rows"'))
    assert tried(network, app) == 0
    assert capsys.readouterr().out.count("4 of 4 starts answered") == 2


def test_what_an_app_may_answer_is_looked_up_with_every_message(tmp_path: Path) -> None:
    """Before the app is started, and nothing is booked: nobody has tried it, under the policy as it is now."""
    network = machine(tmp_path, counts=COUNTS)
    policy, data = read_policy(network.policy(0)), network.data(0)
    refused = "policy: this node's policy does not allow this app"
    assert [network.ask(kind=kind).error.reason for kind in ("train", "evaluate")] == [refused] * 2
    note_trial(data, "a" * 64, policy, 0, Trial({"evaluate": Starts(4)}))
    assert network.ask().error.reason == refused and not network.ask(kind="evaluate").has_error()
    note_trial(data, "a" * 64, policy, 0, Trial({"train": Starts(4), "evaluate": Starts(3, Counter(crash=1))}))
    assert network.ask().error.reason == network.ask(kind="evaluate").error.reason == refused
    note_trial(data, "a" * 64, policy, 0, Trial({"train": Starts(4), "evaluate": Starts(4)}))
    assert not network.ask().has_error()
    (data / "table.csv").touch()
    assert not network.ask().has_error()  # a server must not read when the data change
    write_policy(network, counts=COUNTS, reply="reply")
    assert network.ask().error.reason == refused
    assert len(network.booked()) == 3 and len(network.boxed.asked) == 12


@pytest.mark.parametrize(
    "changed",
    [
        {"reply": "reply"},
        {"counts": {}},
        {"api": "numpy"},
        {"table": ""},
        {"wall_seconds": 9.0},
        {"client": 1},
        {"most": 9},
    ],
)
def test_a_trial_is_of_all_that_changes_an_answer(changed: dict[str, Any], tmp_path: Path) -> None:
    network = machine(tmp_path, counts=COUNTS)
    note_trial(network.data(0), "a" * 64, read_policy(network.policy(0)), 0, Trial({"train": Starts(4)}))
    client, most = changed.pop("client", 0), changed.pop("most", 1000)
    for beside in ({"clip": 3.0}, {"noise_multiplier": 9.0}, {"min_answered": 0.5}, {"apps": ["a" * 64, "b" * 64]}):
        write_policy(network, **{"counts": COUNTS} | beside)
        assert why_not(network.data(0), "a" * 64, read_policy(network.policy(0)), 0) is None
    write_policy(network, **{"counts": COUNTS} | changed)
    policy = read_policy(network.policy(0))
    policy = policy.model_copy(update={"limits": policy.limits.model_copy(update={"max_parameters": most})})
    assert "nobody has tried it" in str(why_not(network.data(0), "a" * 64, policy, client))


def test_what_a_start_does_not_depend_on_is_named_here() -> None:
    """A new rule counts until somebody shows that no start depends on it."""
    assert {
        *("apps", "min_answered", "pad_seconds", "clip", "noise_multiplier", "noise", "sampling"),
        *("sites", "min_replies", "colluders", "threshold", "bits"),
    } == shards._BESIDE_STARTS


def test_trials_at_the_same_time_are_all_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note is read and written while the ledger is held."""
    network, app = machine(tmp_path), app_that("never", tmp_path)
    write, seen = shards.write_atomic, list[bool]()

    def noted(path: Path, *given: Any, **more: Any) -> None:
        if path.name != TRIALS:
            return write(path, *given, **more)
        with open(network.data(0) / ".fedpriv" / "lock") as other:
            try:
                lock(other)
                seen.append(False)
            except OSError:
                seen.append(True)
        return write(path, *given, **more)

    monkeypatch.setattr(shards, "write_atomic", noted)
    assert tried(network, app) == 0 and seen == [True]


def test_a_server_that_waits_for_replies_has_sent_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = (
        "    model = ArrayRecord({'weights': Array(np.zeros(4)), 'bias': Array(np.zeros(1))})\n"
        "    content = RecordDict({'arrays': model})\n"
        "    identifiers = list(grid.push_messages([Message(content, 2, 'train')]))\n"
        "    while not list(grid.pull_messages(identifiers)):\n        pass\n"
    )
    app = app_that("never", tmp_path, server)
    file = app / "messageexample" / "server_app.py"
    file.write_text("from flwr.app import ConfigRecord, Message, RecordDict\n" + file.read_text())
    network = machine(tmp_path, counts=COUNTS)
    assert tried(network, app) == 1
    assert "train: 4 of 4 starts" in capsys.readouterr().out
