"""The arrows of the design: who may import what. Read with ast, so imports inside functions count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("fedpriv", "strategies", "clients")

#: What a paper's halves may use of the project; a server half also the shared base of all server halves.
FOR_PAPERS = {
    "binomial_grid",
    "client",
    "errors",
    "example_level",
    "gaussian_client",
    "gradient_client",
    "mechanisms",
    "models",
    "one_bit_client",
    "personal",
    "privacy",
    "records",
    "seeds",
    "selecting_client",
    "shared_bits",
    "state",
    "summed_gaussians",
    "training",
    "two_exchanges",
}
SERVER_BASES = {
    "clip_server",
    "distilling_server",
    "gradient_server",
    "noise_server",
    "one_bit_server",
    "server",
    "trusted_clipping",
}
FOR_SERVERS = FOR_PAPERS | SERVER_BASES
#: Commands that make or show studies.
STUDY_COMMANDS = ("leaderboard", "reproduce", "site")
#: The Ray engine: its grid, and the pool of actors that can start before the grid is imported.
RAY_ENGINE = ("fedpriv.engines.ray", "fedpriv.engines.ray_pool")


def imported(text: str, module: str) -> Iterator[str]:
    """Dotted names that a file imports, relative ones resolved: ``from a import b`` is a.b."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = ".".join(module.split(".")[: -node.level]) + "." if node.level else ""
            origin = (parent + (node.module or "")).strip(".")
            yield from (f"{origin}.{name.name}" for name in node.names)


def under(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def faults(text: str, module: str) -> list[str]:
    """Forbidden imports of one file."""
    found = []
    package, _, rest = module.partition(".")
    for name in imported(text, module):
        wrong = False
        if package in ("strategies", "clients"):
            allowed = FOR_SERVERS if package == "strategies" else FOR_PAPERS
            wrong |= under(name, "hydra", "omegaconf", "ray", "strategies", "clients")
            wrong |= under(name, "fedpriv") and name.split(".")[1] not in allowed
            wrong |= package == "strategies" and under(name, "flwr") and not under(name, "flwr.app", "flwr.serverapp")
            wrong |= package == "clients" and under(name, "flwr")
        if package == "fedpriv":
            wrong |= under(name, "strategies", "clients")  # reached through _target_ only
        if under(rest, "mechanisms"):
            wrong |= under(name, "flwr", "ray", "hydra", "omegaconf", "fedpriv.config", "fedpriv.engines")
        if under(rest, "privacy"):
            wrong |= under(name, "flwr", "ray", "hydra", "omegaconf", "fedpriv.engines", "fedpriv.client")
        if under(rest, "attacks"):
            wrong |= under(name, "flwr", "ray", "hydra", "omegaconf", "fedpriv.report")
        if not under(rest, "studies", "site") and rest not in STUDY_COMMANDS:
            wrong |= under(name, "fedpriv.studies")  # many runs know one run, not the other way round
        if name.endswith(".NumPyClient"):
            wrong |= module not in ("fedpriv.client", "fedpriv.app")
        if under(name, "ray"):
            wrong |= module not in RAY_ENGINE
        if wrong:
            found.append(f"{module} imports {name}")
    return found


def sources() -> dict[str, Path]:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def test_the_arrows() -> None:
    assert len(sources()) > 40
    assert [fault for module, file in sorted(sources().items()) for fault in faults(file.read_text(), module)] == []


def test_papers_come_in_pairs() -> None:
    strategies, clients = ({file.name for file in (ROOT / folder).glob("*.py")} for folder in ("strategies", "clients"))
    assert strategies == clients and "fedcad.py" in strategies


def test_the_one_class_that_both_sides_need_is_known_to_them_alone() -> None:
    knowing = [module for module, file in sources().items() if "flwr.client" in file.read_text().split()]
    assert knowing == ["fedpriv.client"]


def test_light_packages_stay_light() -> None:
    """A package's own file imports nothing heavy: whoever wants one module should not pay for all."""
    for package in ("fedpriv", "fedpriv.mechanisms", "fedpriv.privacy", "strategies", "clients"):
        text = sources()[package].read_text()
        assert not [name for name in imported(text, package) if under(name, "torch", "flwr", "ray", "datasets")], (
            package
        )


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("clients.fedldp", "import hydra"),
        ("clients.fedldp", "def f():\n    import ray.util"),
        ("clients.fedldp", "from fedpriv.engines.inprocess import InProcessGrid"),
        ("clients.fedldp", "from fedpriv import engines"),
        ("clients.fedldp", "from clients.fedcad import FedCADClient"),
        ("clients.fedldp", "from .fedcad import FedCADClient"),
        ("clients.fedldp", "from . import fedcad"),
        ("clients.fedldp", "from fedpriv.server import FederatedStrategy"),
        ("clients.fedldp", "from flwr.client import NumPyClient"),
        ("strategies.fedcad", "from fedpriv.worker import make_client"),
        ("strategies.fedcad", "import strategies.fedldp as baseline"),
        ("strategies.fedcad", "from flwr.client import NumPyClient"),
        ("fedpriv.engines.grid", "import ray"),
        ("fedpriv.engines.grid", "from ray.exceptions import RayActorError"),
        ("fedpriv.worker", "from flwr.client import NumPyClient"),
        ("fedpriv.worker", "from clients.fedcad import FedCADClient"),
        ("fedpriv.mechanisms.clipping", "from flwr.app import Message"),
        ("fedpriv.mechanisms.clipping", "from fedpriv.config import Config"),
        ("fedpriv.mechanisms.clipping", "from ..config import Config"),
        ("fedpriv.privacy.ledger", "from strategies import fedcad"),
        ("fedpriv.privacy.ledger", "import omegaconf"),
        ("fedpriv.attacks.metrics", "from flwr.app import Message"),
        ("fedpriv.report.page", "from fedpriv.studies.results import Board"),
    ],
)
def test_a_forbidden_arrow_is_seen(module: str, text: str) -> None:
    assert faults(text, module)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("strategies.fedcad", "from fedpriv.server import FederatedStrategy"),
        ("strategies.fedcad", "from flwr.serverapp import Grid"),
        ("clients.fedcad", "from fedpriv.privacy import claimed"),
        ("fedpriv.engines.ray", "import ray"),
        ("fedpriv.client", "from flwr.client import NumPyClient"),
        ("fedpriv.array", "import rayleigh"),
    ],
)
def test_an_allowed_arrow_is_not(module: str, text: str) -> None:
    assert not faults(text, module)
