"""Who may import what: the code against the table of floors (`tools.floors`)."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import packages_distributions
from typing import Any

import pytest

from tools.floors import (
    DOORS,
    FLOORS,
    FOLDERS,
    FOR_CLIENTS,
    FOR_STRATEGIES,
    ROOT,
    imported,
    module_graph,
    read_all,
    room_of,
    sources,
    under,
)

#: The Ray engine: its grid, and the pool of actors that can start before the grid is imported.
RAY_ENGINE = ("fedpriv.engines.ray", "fedpriv.engines.ray_pool")
#: Audits that put a client of their own among a run's clients, and so read and write messages.
PLAYS_A_CLIENT = (
    "fedpriv.attacks.client_canaries",
    "fedpriv.attacks.example_canaries",
    "fedpriv.attacks.fit_audit",
    "fedpriv.attacks.gradient_canaries",
    "fedpriv.attacks.noise_contract",
)
#: What halves may know of the configuration.
SCHEMAS = ("fedpriv.config.methods", "fedpriv.config.options")
#: Lines of Python in product and tests. These numbers only fall: who needs more raises one in a commit that says why.
MOST_LINES = {"fedpriv clients strategies": 94_376, "tests": 91_476}
COMMANDS = [file for file in (ROOT / "fedpriv/commands").glob("*.py") if file.stem != "__init__"]
#: Names that may come twice: a package's own file.
COMMON_FILES = {"__init__.py", "__main__.py"}


def faults(text: str, module: str) -> list[str]:
    """Forbidden imports of one file."""
    package, room, found = module.partition(".")[0], room_of(module), []
    for name in imported(text, module):
        other, words = room_of(name), None
        if package == "fedpriv" and under(name, "strategies", "clients"):
            words = "a method, which is reached through _target_ only"
        if under(name, "ray") and module not in RAY_ENGINE:
            words = "ray outside its engine"
        if name.endswith(".NumPyClient") and module != "fedpriv.client.base":
            words = "the class that client/base.py alone knows"
        if (
            room in ("mechanisms", "privacy", "attacks")
            and module not in PLAYS_A_CLIENT
            and under(name, "flwr", "ray", "hydra", "omegaconf")
        ):
            words = "a framework"
        if room is not None and under(name, "fedpriv") and not under(module, "fedpriv.report.__main__"):
            if other is None and name.split(".")[1:2] and name.split(".")[1] in DOORS:
                words = "a door"
            elif other is not None and other != room and FLOORS[other] == FLOORS[room]:
                words = "a room on its own floor"
            elif other is not None and FLOORS[other] > FLOORS[room]:
                words = "a room above it"
        if package in ("strategies", "clients"):
            allowed = FOR_STRATEGIES if package == "strategies" else FOR_CLIENTS
            flower = ("flwr.app", "flwr.serverapp") if package == "strategies" else ()
            if under(name, "hydra", "omegaconf", "clients" if package == "strategies" else "strategies"):
                words = "what a half must not know"
            elif under(name, "fedpriv") and other not in allowed:
                words = f"another room than {', '.join(sorted(allowed))}"
            elif other == "config" and not under(name, *SCHEMAS):
                words = "more of the configuration than the schema of its options"
            elif under(name, "flwr") and not under(name, *flower):
                words = "Flower"
        if under(name, *(f"fedpriv.{command.stem}" for command in COMMANDS if command.stem not in FLOORS)):
            words = "a command by the name that is for `python -m`: its own begins with fedpriv.commands"
        if re.search(r"\._[a-z]\w*$", name) and under(name, *FOLDERS):
            words = "a private name of another file"
        if words:
            found.append(f"{module} imports {name}: {words}")
    return found


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or not (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_arrows_go_down() -> None:
    texts = read_all()
    assert len(texts) > 100
    assert [fault for module, text in texts.items() for fault in faults(text, module)] == []


def test_every_file_is_in_a_room_or_is_a_door() -> None:
    top = {path.name for path in (ROOT / "fedpriv").iterdir() if path.name != "__pycache__"}
    assert top == {f"{door}.py" for door in DOORS} | set(FLOORS) | {"__init__.py", "py.typed"}


def test_no_circles() -> None:
    assert circles(module_graph(read_all())) == []


def test_a_file_has_a_name_of_its_own() -> None:
    files = [file for file in (ROOT / "fedpriv").rglob("*.py") if file.name not in COMMON_FILES]
    # A command's file has its command's name.
    named = ("fedpriv", "commands")
    rooms = [file for file in files if file.parent.name not in named and "templates" not in file.parts]
    # client/one_bit.py and server/one_bit.py are the halves of one family, as clients/x.py and strategies/x.py are.
    # fedpriv.checking has the shapes of foreign code: its subject and findings are of other kinds than a run's.
    rooms = [file for file in rooms if file.parent.name != "checking"]
    kinds = [(file.name, "half" if file.parent.name in ("client", "server") else file) for file in rooms]
    assert [name for name, times in Counter(name for name, _ in set(kinds)).items() if times > 1] == []


@pytest.mark.parametrize("folders", MOST_LINES)
def test_the_whole_does_not_grow(folders: str) -> None:
    lines = sum(file.read_bytes().count(b"\n") for folder in folders.split() for file in (ROOT / folder).rglob("*.py"))
    assert lines <= MOST_LINES[folders]


def test_papers_come_in_pairs() -> None:
    strategies, clients = ({file.name for file in (ROOT / folder).glob("*.py")} for folder in ("strategies", "clients"))
    assert strategies == clients and "fedcad.py" in strategies


def test_the_one_class_that_both_sides_need_is_known_to_them_alone() -> None:
    knowing = [module for module, file in sources().items() if "flwr.client" in file.read_text().split()]
    assert knowing == ["fedpriv.client.base"]


@pytest.mark.parametrize("room", sorted(FLOORS))
def test_a_rooms_own_file_says_what_it_is_for_and_defines_nothing(room: str) -> None:
    tree = ast.parse((ROOT / "fedpriv" / room / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    others = [node for node in tree.body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in others if not ast.unparse(node).startswith("__all__")] == []
    light = room in ("common", "config", "engines", "mechanisms", "privacy")
    assert not (light and tree.body[1:])


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("clients.fedldp", "import hydra"),
        ("clients.fedldp", "def f():\n    import ray.util"),
        ("clients.fedldp", "from fedpriv.engines.inprocess import InProcessGrid"),
        ("clients.fedldp", "from fedpriv.config.compose import compose"),
        ("strategies.fedldp", "from fedpriv.config.schema import Config"),
        ("clients.fedldp", "from fedpriv import engines"),
        ("clients.fedldp", "from fedpriv.server.strategy import FederatedStrategy"),
        ("clients.fedldp", "from flwr.client import NumPyClient"),
        ("strategies.fedcad", "from fedpriv.client.build import make_client"),
        ("strategies.fedcad", "from fedpriv.training.flat_model import Layout"),
        ("strategies.fedcad", "import clients.fedldp as baseline"),
        ("clients.fedcad", "from strategies import fedcad"),
        ("strategies.fedcad", "from flwr.client import NumPyClient"),
        ("fedpriv.engines.grid", "import ray"),
        ("fedpriv.engines.grid", "from ray.exceptions import RayActorError"),
        ("fedpriv.engines.worker", "from flwr.client import NumPyClient"),
        ("fedpriv.engines.worker", "from clients.fedcad import FedCADClient"),
        ("fedpriv.mechanisms.noise", "from flwr.app import Message"),
        ("fedpriv.mechanisms.noise", "from fedpriv.config.schema import Config"),
        ("fedpriv.mechanisms.noise", "from ..config.schema import Config"),
        ("fedpriv.mechanisms.noise", "if TYPE_CHECKING:\n    from fedpriv.privacy.events import Event"),
        ("fedpriv.privacy.ledger", "from strategies import fedcad"),
        ("fedpriv.privacy.ledger", "import omegaconf"),
        ("fedpriv.attacks.metrics", "from flwr.app import Message"),
        ("fedpriv.report.page", "from fedpriv.studies.results import Board"),
        ("fedpriv.report.page", "def f():\n    from fedpriv.training.models import build_model"),
        ("fedpriv.runs.session", "from fedpriv.app import server_app"),
        ("fedpriv.runs.session", "from fedpriv.commands import audit"),
        ("fedpriv.commands.dme", "from fedpriv.audit import main"),
        ("tests.api", "from fedpriv import new"),
        ("fedpriv.studies.study_plots", "from fedpriv.report.plots import _line"),
    ],
)
def test_a_forbidden_arrow_is_seen(module: str, text: str) -> None:
    assert faults(text, module)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("strategies.fedcad", "from fedpriv.server.strategy import FederatedStrategy"),
        ("strategies.fedcad", "from flwr.serverapp import Grid"),
        ("clients.fedcad", "from fedpriv.privacy import claimed"),
        ("clients.fedcad", "from fedpriv.config.methods import FedCADOptions"),
        ("strategies.fedcad", "from fedpriv.config.methods import ClippingOptions"),
        ("fedpriv.engines.ray", "import ray"),
        ("fedpriv.client.base", "from flwr.client import NumPyClient"),
        ("fedpriv.array", "import rayleigh"),
        ("fedpriv.commands.runs", "from fedpriv.studies.results import Board"),
        ("fedpriv.runs.session", "from fedpriv.runs.folder import RunFolder"),
    ],
)
def test_an_allowed_arrow_is_not(module: str, text: str) -> None:
    assert not faults(text, module)


@pytest.mark.parametrize(
    "late", ["from a.y import f", "def g():\n    from a.y import f", "if TYPE_CHECKING:\n    from a import y"]
)
def test_a_planted_circle_is_seen(late: str) -> None:
    texts = {"a": "", "a.x": late, "a.y": "from a.z import g\ndef f(): ...", "a.z": "import a.x", "a.w": "import a.x"}
    assert circles(module_graph(texts)) == [["a.x", "a.y", "a.z"]]
    assert circles(module_graph(texts | {"a.z": ""})) == []


# --- libraries ----------------------------------------------------------------------------------------------------

#: Declared without an import: why.
NOT_IMPORTED = {"hydra-joblib-launcher": "Hydra's plug-in, chosen by hydra/launcher=joblib"}
#: Imported without being declared: why.
NOT_DECLARED = {"ray": "flwr[simulation]"}


def _plain(name: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", name)[0].lower().replace("_", "-").replace(".", "-")


def undeclared_and_unused(project: Mapping[str, Any], texts: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Distributions that the product imports and does not declare, and runtime dependencies that it never imports."""
    runtime = set(map(_plain, project["dependencies"]))
    optional = {_plain(name) for names in project["optional-dependencies"].values() for name in names}
    tops = {name.partition(".")[0] for module, text in texts.items() for name in imported(text, module)}
    homes = packages_distributions()
    theirs = {top: set(map(_plain, homes.get(top, [top]))) for top in tops - {*sys.stdlib_module_names, *FOLDERS}}
    unknown = {top for top, names in theirs.items() if not names & (runtime | optional | NOT_DECLARED.keys())}
    return unknown, runtime - set().union(*theirs.values()) - NOT_IMPORTED.keys()


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = read_all()
    assert undeclared_and_unused(project, texts) == (set(), set())
    listed = {_plain(line) for line in (ROOT / "requirements.in").read_text().splitlines() if line[:1].isalpha()}
    assert set(map(_plain, project["dependencies"])) <= listed, "make lock would forget them"
    planted = {**project, "dependencies": [*project["dependencies"], "torchmetrics~=1.9"]}
    texts |= {"fedpriv.x": "import hypothesis"}
    assert undeclared_and_unused(planted, texts) == ({"hypothesis"}, {"torchmetrics"})
