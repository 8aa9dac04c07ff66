"""`python -m fedpriv.new`: what it makes is in form, and the options of a method have the schema that it names.

That a new method passes its own test and the project's is seen where the tutorial makes one: tests/system/test_docs.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from project_copy import copied, python
from pydantic import Field, ValidationError

from fedpriv import cli as cli_module
from fedpriv.client.base import Client
from fedpriv.client.build import check_own_client, client_class, make_client
from fedpriv.common.errors import OptionError
from fedpriv.config import help as help_module
from fedpriv.config.compose import compose
from fedpriv.config.halves import checked, schema_of
from fedpriv.config.methods import METHODS
from fedpriv.config.options import Options
from fedpriv.config.schema import StrategyConfig
from fedpriv.deployment import policy
from fedpriv.new import main, make_method
from fedpriv.runs.preparation import server_class
from fedpriv.server.strategy import FederatedStrategy

PLACES = ("strategies/mine.py", "clients/mine.py", "conf/strategy/mine.yaml", "tests/test_mine.py")
NAMES = ("a", "my_method", "abcdefghijklmnopqrstuvwxyz012345")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with methods of three names."""
    project = copied(tmp_path_factory.mktemp("new"))
    for name in NAMES:
        make_method(name, project)
    return project


def test_what_is_made_is_formatted_for_every_name(made: Path) -> None:
    files = [
        place for name in NAMES for place in (f"strategies/{name}.py", f"clients/{name}.py", f"tests/test_{name}.py")
    ]
    python(made, "ruff", "check", "--no-cache", *files)
    python(made, "ruff", "format", "--no-cache", "--check", *files)


def test_the_command_names_the_files_that_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mine", f"folder={folders(tmp_path)}"]) == 0
    assert capsys.readouterr().out.splitlines()[:4] == [str(tmp_path / place) for place in PLACES]


def test_an_empty_folder_or_none_is_enough(tmp_path: Path) -> None:
    made = make_method("mine", tmp_path / "not" / "there")
    assert [path.relative_to(tmp_path / "not/there").as_posix() for path in made] == list(PLACES)


def folders(tmp_path: Path) -> Path:
    for part in ("strategies", "clients", "conf/strategy", "tests"):
        (tmp_path / part).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["FedMine"], "NAME=FedMine: must be small letters"),
        (["../mine"], "must be small letters"),
        (["a" * 33], "at most 32 characters"),
        (["lambda"], "NAME=lambda: is a word of Python, YAML"),
        (["null"], "NAME=null: is a word of Python, YAML"),
        (["fedcad"], "NAME=fedcad: is a method of the project"),
        (["taken"], "taken.yaml is there already; choose another name"),
        (["folder=x"], "NAME=folder=x: comes first"),
        (["mine", "place=x"], "place=x: no such option; allowed: folder"),
        (["mine", "folder=conf/strategy/taken.yaml"], "folder=conf/strategy/taken.yaml: must be a folder"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folders(tmp_path))
    (tmp_path / "conf/strategy/taken.yaml").touch()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["taken.yaml"]


# --- a half names its schema -----------------------------------------------------------------------------


class HalfOptions(Options):
    rate: float = Field(gt=0, description="eta")
    kind: Literal["a", "b"]


class Half(Client):
    options: HalfOptions


class Narrow(Half):
    """Without an annotation of its own: the nearest class in line has one."""


class Silent(Client):
    pass


class SilentServer(FederatedStrategy):
    pass


class Unreadable(Client):
    options: Nowhere  # type: ignore[name-defined]  # noqa: F821


class Wrong(Client):
    options: dict[str, float]  # type: ignore[assignment]


@pytest.mark.parametrize("half", [Half, Narrow])
def test_a_halfs_annotation_is_its_schema(half: type[Client]) -> None:
    schema = schema_of(half, "client", {})
    assert schema is HalfOptions
    assert checked(schema, "client", {"rate": 1, "kind": "a"}) == HalfOptions(rate=1.0, kind="a")
    for wrong in (
        {},
        {"rate": 0, "kind": "a"},
        {"rate": "1", "kind": "a"},
        {"rate": 1},
        {"rate": 1, "kind": "a", "x": 1},
    ):
        with pytest.raises(OptionError, match=r"^strategy\.client\."):
            checked(schema, "client", wrong)


def test_options_are_frozen() -> None:
    options = checked(HalfOptions, "client", {"rate": 1, "kind": "a"})
    with pytest.raises(ValidationError, match="frozen"):
        options.rate = 2.0


def test_without_an_annotation_the_options_are_what_the_yaml_file_says() -> None:
    given = {"rate": 0.5, "names": ["a", "b"]}
    options: Any = checked(schema_of(Silent, "client", given), "client", given)
    assert (options.rate, options.names) == (0.5, ["a", "b"])
    with pytest.raises(ValidationError, match="frozen"):
        options.rate = 2.0


def test_what_every_server_half_has_is_allowed_what_it_is_there() -> None:
    cohorts = {"client_sampling": "fixed", "participation": "sampled", "participations": None}
    sound = {"rate": 1, "min_replies": 1, "weighting": "uniform"} | cohorts
    schema = schema_of(SilentServer, "server", sound)
    assert checked(schema, "server", sound).model_dump().items() >= sound.items()
    for wrong in ({"min_replies": 0}, {"weighting": "loss"}):
        with pytest.raises(OptionError):
            checked(schema, "server", sound | wrong)


@pytest.mark.parametrize(
    ("half", "words"),
    [
        (Unreadable, r"Unreadable: the annotation of its options cannot be read .*'Nowhere' is not defined"),
        (Wrong, r"Wrong: its options must be a subclass of fedpriv\.config\.options\.Options"),
    ],
)
def test_an_annotation_that_is_no_schema_is_named(half: type[Client], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        schema_of(half, "client", {})


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_rows_are_what_the_halves_name(name: str) -> None:
    """Two places that must agree: the row is read before anything heavy is loaded, the annotation by mypy."""
    config = compose([f"strategy={name}"])
    for half, kind, row in zip(
        ("server", "client"), (server_class(config), client_class(config)), METHODS[name], strict=True
    ):
        named = schema_of(kind, half, {})  # type: ignore[arg-type]
        assert issubclass(row, named) and row.model_fields.keys() - named.model_fields.keys() == set(), (name, half)


def own(like: str, **client: Any) -> Any:
    """The configuration of a method of one's own with the halves of another."""
    config = compose([f"strategy={like}"])
    strategy = StrategyConfig(name="mine", server=config.strategy.server, client=config.strategy.client | client)
    return config.model_copy(update={"strategy": strategy})


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ({"noise_multiplier": "much"}, "strategy.client.noise_multiplier=much: must be a (valid )?number"),
        ({"clip_norm": None}, "strategy.client.clip_norm=null: must be a (valid )?number"),
        ({"nosuch": 1}, "strategy.client.nosuch=1: there is no such option here"),
        ({"variant": "published"}, "strategy.client.variant=published: there is no such option here"),
    ],
)
def test_options_of_a_client_without_a_row_are_checked(client: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=f"^{words}"):
        make_client(own("fedldp", **client))


def test_options_of_a_server_without_a_row_are_checked() -> None:
    config = own("fedavg")
    assert server_class(config).__name__ == "FedAvg"
    config.strategy.server["min_replies"] = 0
    with pytest.raises(OptionError, match=r"^strategy\.server\.min_replies=0: must be at least 1"):
        server_class(config)


def test_what_the_shared_analyses_rest_on_holds_for_methods_without_a_row() -> None:
    config = own("dpsgd")
    check_own_client(config, client_class(config))
    shuffled = config.model_copy(update={"local": config.local.model_copy(update={"sampler": "shuffle"})})
    with pytest.raises(OptionError, match=r"local\.sampler=shuffle: mine's analysis holds for Poisson batches"):
        make_client(shuffled)
    with pytest.raises(OptionError, match=r"strategy\.client\.min_replies=7: must be strategy\.server\.min_replies=1"):
        make_client(own("cpsgd", min_replies=7))


def test_help_shows_what_its_schema_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_module, "choices", lambda group: ["mine", "fedcad"])
    monkeypatch.setattr(cli_module, "compose", lambda overrides: own("fedprox"))
    rows = help_module._method_options(cli_module.own_methods())
    (row,) = [row for row in rows if " mine: " in row[2] and "proximal" in row[0]]
    assert row[:2] == ("strategy.client.proximal_mu", "float >=0")
    assert any(row[0] == "strategy.server.min_replies" and "fewer usable" in row[2] for row in rows)


def test_a_policy_may_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_method("mine", folders(tmp_path))
    with pytest.raises(OptionError, match="strategies=mine: allowed: "):
        policy.Policy._methods_exist(("mine",))
    monkeypatch.setattr(policy, "CONF", tmp_path / "conf")
    assert policy.Policy._methods_exist(("fedcad", "mine")) == ("fedcad", "mine")
