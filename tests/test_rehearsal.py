"""A deployment of real processes: what TLS, node keys and approved bundles let through, and what they do not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.demo import check
from deploy.rehearsal import Failed, Rehearsal, copy_of
from fedpriv.credentials import make_credentials

APP = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """A SuperLink and two nodes that answer it, and three that must not be let in."""
    folder = tmp_path_factory.mktemp("rehearsal")
    with Rehearsal(folder, APP, nodes=2) as started:
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


@pytest.mark.timeout(400)
def test_a_tampered_bundle_is_neither_unpacked_nor_run(machines: Rehearsal, tmp_path: Path) -> None:
    tampered = copy_of(APP, tmp_path)
    with (tampered / "clients" / "fedcad.py").open("a") as file:
        file.write("# one line more\n")
    run_dir = machines.folder / "tampered"
    machines.submit(machines.overrides(run_dir, "engine.round_timeout=30"), tampered)
    machines.wait_until(lambda: all("bundle" in machines.log(f"node-{n}") for n in range(2)), 90, "no bundle refused")
    with pytest.raises(Failed):  # the run ends without a result
        machines.wait_for_summary(run_dir, 60)
    for number in range(2):
        assert not list(machines.home(f"node-{number}").rglob("*.py")), "a node unpacked it"
        with machines.ledger(number).held() as ledger:
            assert ledger.releases() == []
        assert (machines.data(number) / ".fedpriv" / "refusals.json").read_text().startswith('{"bundle": ')


@pytest.mark.timeout(400)
def test_the_approved_app_trains_on_the_nodes_own_pictures(machines: Rehearsal) -> None:
    said: list[str] = []
    run_dir = machines.folder / "run"
    machines.submit(machines.overrides(run_dir))
    machines.wait_for_summary(run_dir, 300)
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
    deadline = time.monotonic() + 30
    while not machines.log(name) and time.monotonic() < deadline:
        time.sleep(0.2)
    log = machines.log(name)
    print(log)
    assert "SuperNode ID" not in log
    assert words in log.lower()
