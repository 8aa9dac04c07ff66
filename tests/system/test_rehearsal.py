"""A deployment of real processes: what TLS, node keys and approved bundles let through, and what they do not."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from processes import executors, wait_until
from rotation import together
from safetensors.torch import save_file

from deploy.demo import check
from deploy.rehearsal import Rehearsal, copy_of, patiently
from fedpriv.commands.credentials import make_credentials
from fedpriv.config.compose import compose
from fedpriv.data.features import PROCESS_DIMS
from fedpriv.training.models import build_model

APP = Path(__file__).resolve().parents[2]
#: Waits follow progress; the limit ends a machine that retries for ever. test_deploy_page.py is another part.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.rotates(5, together(1))]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """A SuperLink and two nodes that answer it, and three that must not be let in."""
    folder = tmp_path_factory.mktemp("rehearsal")
    app = copy_of(APP, folder / "app")  # to bundle a checkout, Flower looks at all that lies in it, as at .venv
    with Rehearsal(folder, app, nodes=2) as started:
        started.start_superlink()
        for number in range(2):
            started.start_node(number)
        other = folder / "other"
        make_credentials(other, ["127.0.0.1"], 2, 2)
        (other / "node-0" / "ca.crt").write_bytes((started.keys / "ca" / "ca.crt").read_bytes())
        started.start_node(0, other / "node-0", "unknown-key")
        started.start_node(1, other / "node-1", "another-authority")
        started.start_plain_node("without-tls", "--insecure")
        yield started


def test_a_tampered_bundle_is_neither_unpacked_nor_run(machines: Rehearsal, tmp_path: Path) -> None:
    tampered = copy_of(APP, tmp_path)
    with (tampered / "clients" / "fedcad.py").open("a") as file:
        file.write("# one line more\n")
    run_dir = machines.folder / "tampered"
    machines.submit(machines.overrides(run_dir, "engine.round_timeout=30"), tampered)
    machines.wait_until(lambda: all("bundle" in machines.log(f"node-{n}") for n in range(2)), "no bundle refused")
    machines.wait_for_end()
    assert not (run_dir / "summary.json").exists()
    for number in range(2):
        assert not list(machines.home(f"node-{number}").rglob("*.py")), "a node unpacked it"
        with machines.ledger(number).held() as ledger:
            assert ledger.releases() == []
        assert (machines.data(number) / ".fedpriv" / "refusals.json").read_text().startswith('{"bundle": ')
        said = machines.log(f"node-{number}", 10**6)
        assert "is not among the policy's bundles; remedy: read the app" in said and "ERROR" not in said


def test_the_approved_app_trains_on_the_nodes_own_pictures(machines: Rehearsal) -> None:
    said: list[str] = []
    run_dir = machines.folder / "run"
    machines.submit(machines.overrides(run_dir))
    machines.wait_for_summary(run_dir)
    check(machines, run_dir, said.append)
    assert f"folder: {run_dir}" in machines.server_log() and ", node-0" in machines.server_log()
    assert re.search(r"node_id=\d+ \(node-0\)", machines.log("superlink", 10**6))
    assert any("accuracy" in words for words in said)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unknown-key", "node"),
        ("another-authority", "certificate"),
        ("without-tls", ""),
    ],
)
def test_who_is_not_let_in(name: str, words: str, machines: Rehearsal) -> None:
    """They never become a node of the federation: no node id, and the server has two nodes only."""
    assert patiently(lambda: words in machines.log(name).lower(), machines.signs_of_life), machines.log(name)
    assert "supernode id" not in machines.log(name).lower()


def test_a_nodes_service_hands_its_messages_to_nobody_else(machines: Rehearsal) -> None:
    """Without the secret of this start another program of the machine gets no message, whatever is waiting."""
    client = RuntimeHttpClient.from_server_address(
        f"127.0.0.1:{machines.node_ports[0]}",
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
    )
    with pytest.raises(httpx.HTTPStatusError) as refused:
        client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-clientapp"]))
    assert refused.value.response.status_code == 401


def test_a_changed_policy_holds_for_the_next_message_of_the_same_warm_process(machines: Rehearsal) -> None:
    """It has answered messages under the old one."""
    nodes = [machines.process(f"node-{number}") for number in range(2)]
    warm = [wait_until(lambda node=node: executors(node)) for node in nodes]  # a node that has just started has none
    policies = [machines.policy(number).read_text() for number in range(2)]
    booked = [releases(machines, number) for number in range(2)]
    for number, policy in enumerate(policies):
        machines.policy(number).write_text(policy.replace("max_rounds: 10", "max_rounds: 2"))
    try:
        machines.submit(machines.overrides(machines.folder / "refused"))
        machines.wait_for_end()
        assert not (machines.folder / "refused/summary.json").exists()
    finally:
        for number, policy in enumerate(policies):
            machines.policy(number).write_text(policy)
    for number in range(2):
        assert "num_rounds=3: at most 2" in machines.log(f"node-{number}", 10**6)
    assert [executors(node) for node in nodes] == warm
    assert [releases(machines, number) for number in range(2)] == booked


def test_nodes_start_from_weights_and_read_a_network_that_no_bundle_holds(machines: Rehearsal) -> None:
    """Each has its own copy of the weights, and the network of features=processes from the installed fedpriv."""
    start = build_model(compose(["model=mlp", "model.hidden=8"]).model, (PROCESS_DIMS, 1, 1), 10, 1)
    files = [machines.folder / f"{owner}.safetensors" for owner in ("weights-of-0", "weights-of-1", "of-the-server")]
    for file in files:
        save_file(start.state_dict(), file)
    digest = hashlib.sha256(files[0].read_bytes()).hexdigest()
    for number, file in enumerate(files[:2]):
        policy = machines.policy(number).read_text().replace("max_epsilon: 750.0", "max_epsilon: 2000.0")
        weights = f"weights: [{{sha256: {digest}, file: {file}, trained_on: nothing}}]\n"
        machines.policy(number).write_text(policy + weights)
    booked = [releases(machines, number) for number in range(2)]
    run_dir = machines.folder / "weights"
    chosen = f"model.weights={files[2]} model.weights_sha256={digest} model.trained_on=nothing features=processes"
    more = "model=mlp model.hidden=8 model.train=head num_rounds=1 strategy.client.noise_multiplier=1.0"
    machines.submit(machines.overrides(run_dir, chosen, more))
    machines.wait_for_summary(run_dir)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["num_parameters"] == 10 * 9 and f"SHA-256 {digest[:12]}" in summary["public_knowledge"]
    for number in range(2):
        assert releases(machines, number) == booked[number] + 1
        assert list(machines.data(number).glob(".fedpriv/cache/features/*/features.npy"))
        assert not list(machines.home(f"node-{number}").rglob("*.safetensors")), "the bundle had the network"


def releases(machines: Rehearsal, number: int) -> int:
    with machines.ledger(number).held() as ledger:
        return len(ledger.releases())
