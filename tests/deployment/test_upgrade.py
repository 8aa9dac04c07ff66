"""What each release wrote is read by this version: a node goes on from its ledger and forgets no cost; run folders and
certificates of 1.0 and later are read for ever.

upgrade/VERSION/ has a node's files after two rounds, as that release wrote them, from 1.0 on its certificate, a run's
folder and the run's, and what was then true of them (expected.json). Before a release,
`PYTHONPATH=.:tests python tests/deployment/test_upgrade.py tests/deployment/upgrade/VERSION` writes its own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import NO_REPORT, SMALL
from deployed import POLICY, Machines, asker
from flwr.app import Message

import fedpriv
from fedpriv.certificates import statement, verify_certificate
from fedpriv.certificates.signing import OF_NODE, OF_RUN
from fedpriv.certificates.statement import signed
from fedpriv.common.chain import BEFORE, followed
from fedpriv.common.errors import LedgerRefused
from fedpriv.common.messages import Refusal
from fedpriv.config.compose import compose
from fedpriv.deployment.data_ledger import LEDGER_FORMAT, DataLedger, Signer
from fedpriv.deployment.policy import read_policy
from fedpriv.runs.start import start_run

UPGRADE = Path(__file__).parent / "upgrade"
RELEASES = sorted(path for path in UPGRADE.iterdir() if path.is_dir()) if UPGRADE.is_dir() else []
#: The node's identity: known to everybody, and nobody's.
KEY = bytes(range(32))
SIGNER = Signer(KEY)
ROUNDS = 2


def node_in(folder: Path) -> Machines:
    """A machine of these tests with data and no ledger."""
    network = object.__new__(Machines)
    network.folder, network.count, network.side = folder, 1, 4
    network.write_data()
    network.write_policy(0, POLICY)
    (folder / "peers.json").write_text(json.dumps({"0": SIGNER.public}))
    (folder / "identity-0.key").write_bytes(KEY)
    return network


def asking(network: Machines) -> Callable[..., Message]:
    return asker(network, network.overrides("num_rounds=9"))


def answer(message: Message) -> str:
    """A digest of the numbers that leave."""
    assert not message.has_error(), message.error
    digest = hashlib.sha256()
    for name, record in sorted(message.content.array_records.items()):
        for key, array in sorted(record.items()):
            digest.update(f"{name} {key} {array.dtype} {array.shape}".encode() + array.numpy().tobytes())
    return digest.hexdigest()


def state(network: Machines) -> dict[str, Any]:
    """What of a ledger must be the same whichever version reads it."""
    policy = read_policy(network.policy(0))
    with DataLedger(network.data(0), Path(policy.counter)).seen(thorough=True) as ledger:
        spent = policy.spent(ledger.spent())
        declared, head = vars(ledger.declared()), ledger.head()
    return {
        "epsilon": spent,
        "messages": ledger.spent().messages,
        "entries": ledger.num_entries(),
        "declared": json.loads(json.dumps(declared)),
        "lines": head["lines"],
        "chain": head["chain"],
    }


def truths(folder: Path) -> dict[str, Any]:
    """What of a run's folder must be the same whichever version reads it."""
    run = fedpriv.load(folder)
    likely = run.model.probabilities(np.arange(10 * 64, dtype=np.uint8).reshape(10, 1, 8, 8)).argmax(1)
    return {
        "accuracy": run.summary["accuracy"]["final"],
        "epsilon": [run.claimed_epsilon, run.verified_epsilon],
        "rounds": len(run.metrics),
        "releases": len(run.ledger),
        "options": vars(run.config.strategy.options),
        "classes": likely.tolist(),
    }


def write_release(folder: Path) -> None:
    """A node's files after `ROUNDS` rounds, as this version writes them."""
    with tempfile.TemporaryDirectory() as place:
        network = node_in(Path(place))
        assert network.command("init", 0, *network.declared(0)) == 0
        with DataLedger(network.data(0), network.folder / "counters/0.json", SIGNER).held() as ledger:
            ledger.sign_on()
        ask = asking(network)
        for number in range(1, ROUNDS + 1):
            last = answer(ask(number))
        private = network.data(0) / ".fedpriv"
        for path in (private / "ledger.jsonl", *(private / "runs").iterdir()):
            target = folder / "data" / path.relative_to(private)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        shutil.copyfile(network.folder / "counters/0.json", folder / "counter.json")
        policy = yaml.safe_load(network.policy(0).read_text()) | {"counter": "/COUNTER"}
        (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
        expected: dict[str, Any] = {"answer": last, "before": state(network)}
        of_node = signed(statement.of_node(network.policy(0), network.data(0)), SIGNER, OF_NODE)
        (folder / "node.json").write_text(json.dumps(of_node, indent=1) + "\n")
        options = (*SMALL, NO_REPORT, "strategy=fedldp", "num_rounds=2", "model=linear", "checkpoint.every=0")
        run = folder / "run"
        start_run(compose(list(options)), run)
        (run / "config.yaml").write_text((run / "config.yaml").read_text().replace(str(run.resolve()), "/RUN"))
        for name in (".owner", ".lock"):  # of this machine
            (run / name).unlink()
        of_run = signed(statement.of_run(run), SIGNER, OF_RUN)
        (folder / "run.json").write_text(json.dumps(of_run, indent=1) + "\n")
        expected["run"] = truths(run)
        answer(ask(ROUNDS + 1))
        expected["epsilon_after"] = state(network)["epsilon"]
        (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Machines, dict[str, Any]]:
    """A node with a release's files, and what is expected of them."""
    network = node_in(tmp_path)
    shutil.copytree(request.param / "data", network.data(0) / ".fedpriv")
    (tmp_path / "counters").mkdir()
    shutil.copyfile(request.param / "counter.json", tmp_path / "counters/0.json")
    policy = (request.param / "policy.yaml").read_text().replace("/COUNTER", str(tmp_path / "counters/0.json"))
    network.policy(0).write_text(policy)
    return network, json.loads((request.param / "expected.json").read_text())


def test_there_is_a_release_to_read() -> None:
    assert RELEASES


def test_a_ledger_of_an_earlier_release_has_the_same_cost(node: Any) -> None:
    network, expected = node
    found = state(network)
    assert found.pop("epsilon") == pytest.approx(expected["before"].pop("epsilon"), rel=1e-12)
    assert found == expected["before"]


def test_a_node_with_an_earlier_releases_files_goes_on(node: Any) -> None:
    """Where a run's options had another digest then, its next round is another run's to the node, whose ledger charges
    it as it would have charged it then. An answer is repeated byte for byte and at no cost, that of the release too.
    """
    network, expected = node
    ask = asking(network)
    first = answer(ask(ROUNDS))
    assert first == answer(ask(ROUNDS))
    assert ask(ROUNDS - 1).error.code == Refusal.STALE
    if first == expected["answer"]:
        assert network.booked(0) == ROUNDS
        answer(ask(ROUNDS + 1))
    assert state(network)["epsilon"] == pytest.approx(expected["epsilon_after"], rel=1e-12)
    assert network.booked(0) == ROUNDS + 1


@pytest.fixture(params=[path for path in RELEASES if (path / "run").is_dir()], ids=lambda path: path.name)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.param, tmp_path / "release"))


def test_a_run_folder_of_an_earlier_release_is_read(release: Path, tmp_path: Path) -> None:
    """Its figures, model and report; it is repeated in a new folder, and has a certificate."""
    expected = json.loads((release / "expected.json").read_text())["run"]
    found = truths(release / "run")
    assert found.pop("options").items() >= expected.pop("options").items()  # later versions may have more
    assert found == expected
    run = fedpriv.load(release / "run")
    assert "fedldp" in run.report.read_text()
    again = fedpriv.rerun(run, ["num_rounds=1"], folder=tmp_path / "again", quiet=True)
    assert again.config.model.name == "linear" and 0 < (again.verified_epsilon or 0) < (run.verified_epsilon or 0)
    then = json.loads((release / "run.json").read_text())
    assert statement.of_run(release / "run")["protections"] == then["protections"]


@pytest.mark.parametrize("name", ["run", "node"])
def test_a_certificate_of_an_earlier_release_is_verified(
    name: str, release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify_certificate.main([str(release / f"{name}.json"), f"key={SIGNER.public}"]) == 0
    capsys.readouterr()
    text = (release / f"{name}.json").read_text()
    (release / f"{name}.json").write_text(text.replace('"delta": 1e-05', '"delta": 1e-06'))
    assert verify_certificate.main([str(release / f"{name}.json")]) == 1


def further(network: Machines, line: dict[str, Any]) -> None:
    """A line that another version has appended, signed and vouched for as it should be."""
    path, counter = network.data(0) / ".fedpriv/ledger.jsonl", network.folder / "counters/0.json"
    head = json.loads(counter.read_text())
    text = json.dumps(line | {BEFORE: head["chain"]}).encode()
    path.write_bytes(path.read_bytes() + text + b"\n")
    place = {"ledger": head["ledger"], "bytes": path.stat().st_size, "lines": head["lines"] + 1}
    counter.write_text(json.dumps(SIGNER.sign(place | {"chain": followed(head["chain"], text)})))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"format": LEDGER_FORMAT + 1, "examples": 12}, f"format {LEDGER_FORMAT + 1}"),
        ({"format": "2b", "examples": 12}, "format 2b"),
        ({"time": 1, "novelty": 7}, "novelty"),
    ],
)
def test_a_line_of_a_newer_version_is_refused_with_words(
    line: dict[str, Any], words: str, node: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it says may have a cost that this version cannot count."""
    network, _ = node
    ask = asking(network)
    further(network, {"time": 1, "format": LEDGER_FORMAT, "signer": SIGNER.public})  # known, and so it is read
    assert state(network)["messages"] == ROUNDS
    further(network, line)
    with pytest.raises(LedgerRefused, match="newer"):
        state(network)
    assert ask(ROUNDS + 1).error.code == Refusal.LEDGER
    capsys.readouterr()
    assert network.command("status", 0) == 2
    said = capsys.readouterr().err
    assert words in said and "install the newer version" in said and "ledger.jsonl" in said


def test_a_policy_of_a_newer_version_is_refused_by_the_option_it_does_not_know(
    node: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    network, _ = node
    ask = asking(network)
    network.policy(0).write_text(network.policy(0).read_text() + "novelty: 3\n")
    assert ask(ROUNDS + 1).has_error()
    capsys.readouterr()
    assert network.command("status", 0) == 2
    assert "novelty" in capsys.readouterr().err


def test_a_new_ledger_names_its_format(tmp_path: Path) -> None:
    network = node_in(tmp_path)
    assert network.command("init", 0, *network.declared(0)) == 0
    assert json.loads((network.data(0) / ".fedpriv/ledger.jsonl").read_text())["format"] == LEDGER_FORMAT


if __name__ == "__main__":
    write_release(Path(sys.argv[1]))
