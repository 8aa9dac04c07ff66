"""A deployment of real processes: what TLS, node keys and approved bundles let through, and what they do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from processes import executors, wait_until
from rotation import together

from deploy.demo import check
from deploy.rehearsal import Rehearsal, copy_of, patiently
from fedpriv.commands.credentials import make_credentials

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


def test_the_approved_app_trains_on_the_nodes_own_pictures(machines: Rehearsal) -> None:
    said: list[str] = []
    run_dir = machines.folder / "run"
    machines.submit(machines.overrides(run_dir))
    machines.wait_for_summary(run_dir)
    check(machines, run_dir, said.append)
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


def releases(machines: Rehearsal, number: int) -> int:
    with machines.ledger(number).held() as ledger:
        return len(ledger.releases())
