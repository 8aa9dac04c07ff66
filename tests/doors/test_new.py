"""`python -m fedpriv.new`: what it makes is in form, and a method's constructor is its schema.

That a new method passes its own test and the project's is seen where the tutorial makes one: tests/system/test_docs.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from project_copy import copied, python
from pydantic import Field, ValidationError

from fedpriv import cli as cli_module
from fedpriv.client.build import check_own_client, client_class, make_client
from fedpriv.common.errors import OptionError
from fedpriv.config import help as help_module
from fedpriv.config.compose import compose
from fedpriv.config.constructors import constructor_schema
from fedpriv.config.schema import StrategyConfig
from fedpriv.deployment import policy
from fedpriv.new import main, make_method
from fedpriv.runs.preparation import server_class

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
        (["mine", "folder=/proc"], "folder=/proc: must be the project's folder, clients/ is not in it"),
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


# --- a constructor is a schema ---------------------------------------------------------------------------


class Base:
    def __init__(self, population: Any, *, min_replies: int = 1, weighting: str = "uniform") -> None: ...


class Half(Base):
    def __init__(
        self,
        population: Any,
        *,
        rate: Annotated[float, Field(gt=0, description="eta")],
        kind: Literal["a", "b"] = "a",
        free=None,  # type: ignore[no-untyped-def]
        **options: Any,
    ) -> None: ...


class Narrow(Half):
    def __init__(self, population: Any, *, share: float, path: Path | None = None, **options: Any) -> None: ...


class Unreadable:
    def __init__(self, *, rate: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_parameters_are_options_with_types_ranges_and_defaults() -> None:
    schema = constructor_schema(Half, "server")
    assert set(schema.model_fields) == {"rate", "kind", "free", "min_replies", "weighting"}
    assert schema.model_fields["rate"].description == "eta" and schema.model_fields["rate"].is_required()
    found = schema.model_validate({"rate": 1}).model_dump()
    assert found == {"rate": 1.0, "kind": "a", "free": None, "min_replies": 1, "weighting": "uniform"}
    for wrong in ({}, {"rate": 0}, {"rate": "1"}, {"rate": 1, "kind": "c"}, {"rate": 1, "nosuch": 1}):
        with pytest.raises(ValidationError):
            schema.model_validate(wrong)


def test_a_class_may_give_what_its_base_requires() -> None:
    schema = constructor_schema(Narrow, "server")
    assert {name for name, field in schema.model_fields.items() if field.is_required()} == {"share"}
    schema.model_validate({"share": 0.5, "kind": "b"})
    with pytest.raises(ValidationError):
        schema.model_validate({"share": 0.5, "path": "x"})


def test_what_every_server_half_has_is_allowed_what_it_is_there() -> None:
    schema = constructor_schema(Half, "server")
    for wrong in ({"min_replies": 0}, {"weighting": "loss"}):
        with pytest.raises(ValidationError):
            schema.model_validate({"rate": 1, **wrong})


def test_an_annotation_that_cannot_be_read_is_named() -> None:
    with pytest.raises(OptionError, match=r"Unreadable: an annotation .* 'Nowhere' is not defined"):
        constructor_schema(Unreadable, "client")


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


def test_help_shows_what_its_constructor_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_module, "group_choices", lambda group: ["mine", "fedcad"])
    monkeypatch.setattr(cli_module, "compose", lambda overrides: own("fedprox"))
    rows = help_module._method_options(cli_module.own_methods())
    (row,) = [row for row in rows if row[2].startswith("mine: ")]
    assert row[:2] == ("strategy.client.proximal_mu", "float")
    assert any(row[0] == "strategy.server.min_replies" and row[2].startswith("fewer usable") for row in rows)


def test_a_policy_may_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_method("mine", folders(tmp_path))
    with pytest.raises(OptionError, match="strategies=mine: allowed: "):
        policy.Policy._methods_exist(("mine",))
    monkeypatch.setattr(policy, "CONF", tmp_path / "conf")
    assert policy.Policy._methods_exist(("fedcad", "mine")) == ("fedcad", "mine")
