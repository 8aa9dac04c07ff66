"""docs/protection.md's table of methods against the code, so that the page cannot go stale; SECURITY.md's links, modes,
numbers and the tests that hold its promises.
"""

from __future__ import annotations

import ast
import inspect
import math
import os
import re
import stat
from asyncio.constants import SSL_HANDSHAKE_TIMEOUT
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from deployed import MACHINES, asker

from deploy.rehearsal import free_ports
from fedpriv.client.base import Client
from fedpriv.client.build import make_client
from fedpriv.commands.credentials import CA_DAYS, make, make_credentials
from fedpriv.commands.superlink import private_apps, private_database
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS
from fedpriv.config.schema import Config
from fedpriv.data.cache import cache_folder
from fedpriv.deployment.accounting import RESERVED
from fedpriv.deployment.bundles import Approved
from fedpriv.deployment.executor import client_processes
from fedpriv.deployment.gate import MOST_STATES
from fedpriv.deployment.policy import Booked, Limits, Policy, UnitBudget, too_dear
from fedpriv.deployment.superlink_gate import BODY_SECONDS, HEAD_BYTES, HEAD_SECONDS
from fedpriv.privacy.composition import compose as composed
from fedpriv.privacy.events import Entry, Threat
from fedpriv.report.views import private_folder
from fedpriv.runs.folder import Checkpoint, RunFolder

ROOT = Path(__file__).resolve().parents[2]
SECURITY = (ROOT / "SECURITY.md").read_text()
PAGE = (ROOT / "docs" / "protection.md").read_text()
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("| `strategy=")
]
CASES = [
    (row[0].strip("`"), variant, row)
    for row in ROWS
    for variant in (("published", "repaired") if row[1] == "both" else (row[1],))
]
#: A deployment's run, small enough that nothing is read or trained for it.
RUN = (
    "dataset=on_nodes",
    "dataset.classes=[a,b]",
    "dataset.examples=[100,100,100,100]",
    "dataset.size=4",
    "dataset.channels=1",
    "features=none",
    "model=linear",
    "num_clients=4",
    "clients_per_round=4",
    "num_rounds=3",
)
#: As lenient as a policy can be: what it refuses has no price.
LIMITS = Limits(
    min_noise_multiplier=1e-9,
    max_round_epsilon=1e9,
    max_clip_norm=1e9,
    max_sampling_rate=1.0,
    max_batch_size=10**9,
    max_local_steps=10**9,
    max_rounds=10**9,
)


@lru_cache(maxsize=64)
def config_of(options: str) -> Config:
    own = {"strategy=ask": ["model=constant"], "strategy=moments": ["model=moments"]}  # these train none
    model = own.get(options.partition(" ")[0], [])
    return compose([*options.split(), *RUN, *model])


def client_of(options: str, variant: str) -> Client:
    config = config_of(options)
    privacy = config.privacy.model_copy(update={"variant": variant})
    return make_client(config.model_copy(update={"privacy": privacy}), examples=100)


def test_every_method_has_a_row_for_each_variant() -> None:
    plain = [(options, variant) for options, variant, _ in CASES if options.count("=") == 1]
    assert sorted(plain) == sorted((f"strategy={name}", v) for name in METHODS for v in ("published", "repaired"))
    assert all(len(row) == 8 and all(row[place] for place in (0, 1, 2, 3, 5, 6, 7)) for row in ROWS)


@pytest.mark.rotates(2)
@pytest.mark.parametrize(("options", "variant", "row"), CASES, ids=[f"{o} {v}" for o, v, _ in CASES])
def test_the_row_says_what_the_code_does(options: str, variant: str, row: tuple[str, ...]) -> None:
    client = client_of(options, variant)
    threat = client.threat
    assert row[2] == f"{threat.unit}, {threat.adjacency}, {threat.observer}"

    finite = math.isfinite(composed(client.planned_events(2), 1e-5).epsilon)
    assert row[3] == ("finite" if finite else "none")
    if client.exact_leak() is not None:
        assert row[3] == "none", client.exact_leak()
    if client.books_itself:
        assert finite == client.keeps_budget

    charges = client.all_charges() if client.books_itself else ()
    others = {charge.event.threat.observer for charge in charges} - {threat.observer}
    assert {word.strip() for word in row[4].split(",") if word.strip()} == others
    assert client.traits.shares_secrets == (row[0] in ("`strategy=coqfl`", "`strategy=corrquant`"))

    assert row[5] == ("yes" if answers(client, charges) else "no")


def answers(client: Client, charges: tuple) -> bool:  # type: ignore[type-arg]
    """Whether a node with one budget of this unit and adjacency against the server would answer."""
    budget = UnitBudget(unit=client.threat.unit, adjacency=client.threat.adjacency, delta=1e-5, max_epsilon=1e9)  # type: ignore[arg-type]
    policy = Policy(
        counter="/nowhere",
        budgets=(budget,),
        accountant="renyi",
        order=1.1,
        strategies=tuple(METHODS),
        variants=("published", "repaired"),
        bundles=(),
        limits=LIMITS,
    )
    if too_dear(policy, client):
        return False
    entries = tuple(Entry(1, 0, number, 0, charge.event) for number, charge in enumerate(charges))
    return policy.refusal([], Booked(entries, client.threat, client.traits.shares_secrets)) is None


@pytest.mark.parametrize(("options", "variant", "row"), CASES, ids=[f"{o} {v}" for o, v, _ in CASES])
def test_nothing_is_booked_under_another_threat_alone(options: str, variant: str, row: tuple[str, ...]) -> None:
    """A budget against the server reads what is booked under the method's own words: what leaves must be there, and an
    account for a further observer stands beside it. (NbAFL's second account is of the server's release.)
    """
    client = client_of(options, variant)
    if not client.books_itself:
        return
    seen: dict[Threat, int] = {}
    for charge in client.all_charges():
        seen[charge.event.threat] = seen.get(charge.event.threat, 0) + 1
    assert all(count <= seen[client.threat] for count in seen.values())


def table(heading: str) -> list[list[str]]:
    """The cells of the rows of SECURITY.md's first table below this heading."""
    lines = SECURITY.partition(f"{heading}\n")[2].splitlines()
    rows = (line for line in takewhile(lambda line: not line.startswith("#"), lines) if line.startswith("|"))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows][2:]


def test_each_promise_has_a_test_that_exists() -> None:
    """Of every item of the two lists, and of the headings that a row begins with."""
    promised: set[str] = set()
    for names, tests in table("## Promises and their tests"):
        promised |= {name.strip() for name in names.partition(":")[0].split(";")}
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert len(named) == tests.count("::") and (named or tests == "nothing is promised"), names
        for file, name in named:
            tree = ast.parse((ROOT / "tests" / file).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"
    items = set(re.findall(r"^- \*\*(.+?)\.\*\*", SECURITY, re.MULTILINE))
    headings = {line.lstrip("# ") for line in SECURITY.splitlines() if line.startswith("#")}
    assert items > {"Cost", "Code"} and promised - headings == items


def test_numbers_of_the_page_are_the_codes() -> None:
    page = " ".join(SECURITY.split())
    for words in (
        f"uses {1 - RESERVED} of delta",
        f"within {RESERVED} of delta",
        f"each for {HEAD_SECONDS:g} seconds before the head of its request",
        f"may have open files, each for {SSL_HANDSHAKE_TIMEOUT:g} seconds",
        f"a request's head is limited to {HEAD_BYTES // 1024} KiB",
        f"arrive slowly ({BODY_SECONDS:g} seconds each)",
        f"the states of the newest {MOST_STATES} runs",
        f"`ca.key` | {CA_DAYS // 365} years",
        f"`server.key` | {inspect.signature(make).parameters['days'].default} days by default",
    ):
        assert words in page, words


def test_security_names_what_exists() -> None:
    for path in re.findall(r"\]\(((?!http)[^)#]+)[^)]*\)", SECURITY):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (fedpriv\.[a-z_]+)", SECURITY):
        assert (ROOT / "fedpriv" / "commands" / f"{module.removeprefix('fedpriv.')}.py").exists(), module


def test_modes_of_files_are_those_of_the_page(
    machines: MACHINES, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a umask that would let everybody read."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    before = os.umask(0)
    try:
        network = machines(1)
        asker(network, network.overrides())(1)
        make_credentials(tmp_path / "keys", ["localhost"], 1, 1)
        private_database(tmp_path / "superlink.db")
        state = Checkpoint(1, np.zeros(2, np.float32), {}, {}, {})
        RunFolder(tmp_path).save_checkpoint(state, compose([]), keep=1)
        private_folder(tmp_path)
        private_apps()
        cache_folder(compose([f"dataset.cache={tmp_path / 'cache'}"]).dataset)
        with client_processes(free_ports(1)[0], Approved(network.policy(0))) as arguments:
            secret = Path(arguments[-1])
            unpacked = stat.S_IMODE(secret.parent.stat().st_mode), stat.S_IMODE(secret.stat().st_mode)
    finally:
        os.umask(before)
    places = {
        "the counter": network.folder / "counters/0.json",
        "DATA/.fedpriv": network.data(0) / ".fedpriv",
        "FLWR_HOME/apps": tmp_path / "flwr" / "apps",
        "the cache of simulations": tmp_path / "cache",
    }
    checked = 0
    for what, mode, *_ in table("### Who may read what"):
        if re.fullmatch("0[0-7]{3}", mode):
            names = re.findall("`([^`]*)`", what) or [what]
            if names == ["fedpriv-node-*"]:  # it ends with the node
                assert (int(mode, 8), 0o600) == unpacked
                names = []
            for path in [places.get(name, tmp_path / name) for name in names]:
                assert stat.S_IMODE(path.stat().st_mode) == int(mode, 8), f"{path}: the page says {mode}"
                checked += 1
    assert checked == 11
