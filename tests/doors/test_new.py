"""`python -m fedpriv.new`: what it makes is in form, and the options of a method have the schema that it names.

That a new method passes its own test and the project's is seen where the tutorial makes one: tests/system/test_docs.py.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from flwr.cli.build import build_fab_from_disk
from project_copy import copied, python
from pydantic import Field, ValidationError

from fedpriv.client.base import Client
from fedpriv.client.build import check_own_client, client_class, make_client
from fedpriv.commands import help as help_module
from fedpriv.commands.new import main, make_method
from fedpriv.common.errors import OptionError
from fedpriv.config import halves
from fedpriv.config.compose import compose
from fedpriv.config.halves import method_options, schema_of
from fedpriv.config.methods import METHODS, ClippingOptions
from fedpriv.config.options import MethodOptions
from fedpriv.config.schema import StrategyConfig
from fedpriv.config.strategy_options import OwnOptions, read_options
from fedpriv.deployment import policy
from fedpriv.runs.preparation import server_class
from fedpriv.server.clip_rules import ClippingServer
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


def test_help_on_a_new_method_says_its_name_once(made: Path) -> None:
    said = python(made, "fedpriv", "help", "my_method")
    assert said.startswith("my_method: clip, then Gaussian noise")


def test_a_plan_of_a_new_method_says_its_noise_and_clip_norm(made: Path) -> None:
    said = python(made, "fedpriv", "plan=true", "strategy=my_method", "num_rounds=2")
    assert re.search(r"noise multiplier +1 .*\nclip norm +1 \(L2 bound C of a client's update", said)


def test_the_command_names_the_files_that_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mine", f"folder={folders(tmp_path)}"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [str(tmp_path / place) for place in PLACES]
    assert f"`fedpriv deploy node bundle {tmp_path}` prints its digest for every policy.yaml" in said[-1]


def test_an_empty_folder_or_none_is_enough(tmp_path: Path) -> None:
    made = make_method("mine", tmp_path / "not" / "there")
    assert [path.relative_to(tmp_path / "not/there").as_posix() for path in made] == list(PLACES)


def folders(tmp_path: Path) -> Path:
    for part in ("strategies", "clients", "conf/strategy", "tests"):
        (tmp_path / part).mkdir(parents=True)
    return tmp_path


def test_no_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folders(tmp_path) / "conf/strategy/taken.yaml").touch()
    assert main(["taken", f"folder={tmp_path}"]) == 2
    assert "taken.yaml is there already; choose another name" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["taken.yaml"]


@pytest.mark.parametrize("name", ["base", "gaussian", "clipping", "clipping_", "weighed_sum", "clipping_server"])
def test_a_name_that_a_half_or_the_configuration_has_already_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match=f"NAME={name}: is a word of Python, YAML or the project"):
        make_method(name, tmp_path)
    assert not list(tmp_path.iterdir())


# --- a Flower app --------------------------------------------------------------------------------------------


def test_an_app_is_formatted_for_every_name_and_none_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in NAMES:
        assert main([name, f"folder={tmp_path}", "app=true"]) == 0
    made = capsys.readouterr().out
    assert f"`flwr run {tmp_path / 'my_method'} --stream` trains it" in made
    files = [tmp_path / name / name / f"{part}.py" for name in NAMES for part in ("task", "client_app", "server_app")]
    assert all(str(file) in made for file in files)
    for name in NAMES:
        rules = ("--isolated", "--no-cache", "--line-length", "120")
        python(tmp_path / name, "ruff", "check", *rules, "--select", "B,E,F,I,RUF,SIM,UP", ".")
        python(tmp_path / name, "ruff", "format", *rules, "--check", ".")
        project = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())
        assert project["tool"]["flwr"]["app"]["components"]["clientapp"] == f"{name}.client_app:app"
        assert project["project"]["dependencies"] == []  # nobody holds this project's name where Flower would fetch it
        assert build_fab_from_disk(tmp_path / name)
    assert main(["a", f"folder={tmp_path}", "app=true"]) == 2
    assert "a/pyproject.toml is there already; choose another name" in capsys.readouterr().err


# --- a half names the class of the options -----------------------------------------------------------------


class Mine(MethodOptions):
    rate: float = Field(gt=0, description="eta")
    kind: Literal["a", "b"]


class Half(Client):
    options: Mine


class Narrow(Half):
    """Without an annotation of its own: the nearest class in line has one."""


class Silent(Client):
    pass


class SilentServer(FederatedStrategy):
    pass


class ClippingHalf(ClippingServer):
    """Of a base whose options the client's do not have."""


class Unreadable(Client):
    options: Nowhere  # type: ignore[name-defined]  # noqa: F821


class Wrong(Client):
    options: dict[str, float]  # type: ignore[assignment]


BASE = {"min_replies": 1, "client_sampling": "fixed", "participation": "sampled", "participations": None}
BASE |= {"weighting": "uniform"}


def written(server: dict[str, Any], client: dict[str, Any]) -> OwnOptions:
    """As a YAML file of a method of one's own has them."""
    return read_options(None, {"server": BASE | server, "client": client}, compose([]))


def read_by(
    server: type[FederatedStrategy], client: type[Client], monkeypatch: pytest.MonkeyPatch, *given: dict[str, Any]
) -> Any:
    monkeypatch.setattr(halves, "locate", lambda target, option: {"server": server, "client": client}[target])
    strategy = StrategyConfig(name="mine", server="server", client="client", options=written(*given))
    return method_options(compose([]).model_copy(update={"strategy": strategy}))


@pytest.mark.parametrize("half", [Half, Narrow])
def test_an_annotation_names_the_options_of_both_halves(half: type[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    sound = {"rate": 1, "kind": "a"}
    found = read_by(SilentServer, half, monkeypatch, {}, sound)
    assert isinstance(found, Mine) and (found.rate, found.kind, found.weighting) == (1.0, "a", "uniform")
    with pytest.raises(ValidationError, match="frozen"):
        found.rate = 2.0
    for wrong in ({}, {"rate": 0, "kind": "a"}, {"rate": "1", "kind": "a"}, {"rate": 1}, {**sound, "x": 1}):
        with pytest.raises(OptionError, match=r"^strategy\.client\."):
            read_by(SilentServer, half, monkeypatch, {}, wrong)
    with pytest.raises(OptionError, match=r"^strategy\.server\.rate=0: must be more than 0"):  # as it is written
        read_by(SilentServer, half, monkeypatch, {"rate": 0}, {"kind": "a"})
    assert read_by(SilentServer, half, monkeypatch, {"rate": 2}, {"kind": "a"}).rate == 2
    assert read_by(SilentServer, half, monkeypatch, {"further": "x"}, sound).further == "x"  # of a half that names none


def test_two_annotations_are_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    clipping = compose(["strategy=fedldp"]).to_dict()["strategy"]
    server = {name: value for name, value in clipping["server"].items() if name not in ("_target_", "variant")}
    noise = {"noise_multiplier": 1.0, "clip_norm": 1.0, "count_noise": None, "norm_noise": None}
    found = read_by(ClippingHalf, Half, monkeypatch, server, {"rate": 1, "kind": "a", **noise})
    assert isinstance(found, Mine) and isinstance(found, ClippingOptions)
    assert (found.rate, found.clip_norm, found.variant) == (1.0, 1.0, "repaired")


def test_without_an_annotation_the_options_are_what_the_yaml_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    options = read_by(SilentServer, Silent, monkeypatch, {"a": 3}, {"rate": 0.5, "names": ["a", "b"]})
    assert (options.rate, options.names, options.a, options.min_replies) == (0.5, ["a", "b"], 3, 1)
    with pytest.raises(ValidationError, match="frozen"):
        options.rate = 2.0


def test_what_every_method_has_is_checked_before_its_halves_are_loaded() -> None:
    for wrong in ({"min_replies": 0}, {"weighting": "loss"}):
        with pytest.raises(OptionError, match=rf"^strategy\.server\.{next(iter(wrong))}="):
            written(wrong, {})
    with pytest.raises(OptionError, match=r"^strategy\.client\.rate=2: strategy\.server\.rate=1 is .*another name"):
        written({"rate": 1}, {"rate": 2})


@pytest.mark.parametrize(
    ("half", "words"),
    [
        (Unreadable, r"Unreadable: the annotation of its options cannot be read .*'Nowhere' is not defined"),
        (Wrong, r"Wrong: its options must be a subclass of fedpriv\.config\.options\.MethodOptions"),
    ],
)
def test_an_annotation_that_is_no_class_of_options_is_named(half: type[Client], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        schema_of(SilentServer, half, written({}, {}))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_rows_are_what_the_halves_name(name: str) -> None:
    """Two places that must agree: the row is read before anything heavy is loaded, the annotations by mypy."""
    config = compose([f"strategy={name}"])
    for kind in (server_class(config), client_class(config)):
        named = halves._named(kind)
        assert named is not None and issubclass(METHODS[name], named), (name, kind)


def own(like: str, **changes: Any) -> Any:
    """The configuration of a method of one's own with the halves of another."""
    config = compose([f"strategy={like}"])
    raw = config.strategy.to_dict()
    raw["client"] |= changes
    options = read_options(None, raw, config)
    strategy = config.strategy.model_copy(update={"name": "mine", "options": options})
    return config.model_copy(update={"strategy": strategy})


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ({"noise_multiplier": "much"}, "strategy.client.noise_multiplier=much: must be a (valid )?number"),
        ({"clip_norm": None}, "strategy.client.clip_norm=null: must be a (valid )?number"),
        ({"nosuch": 1}, "strategy.client.nosuch=1: there is no such option here"),
    ],
)
def test_options_of_a_client_without_a_row_are_checked(client: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=f"^{words}"):
        make_client(own("fedldp", **client))


def test_what_the_shared_analyses_rest_on_holds_for_methods_without_a_row() -> None:
    config = own("dpsgd")
    check_own_client(config, client_class(config), method_options(config))
    shuffled = config.model_copy(update={"local": config.local.model_copy(update={"sampler": "shuffle"})})
    with pytest.raises(OptionError, match=r"local\.sampler=shuffle: mine's analysis holds for Poisson batches"):
        make_client(shuffled)
    with pytest.raises(OptionError, match=r"client\.colluders=7: must be less than strategy\.server\.min_replies=1"):
        make_client(own("cpsgd", colluders=7))


def test_help_shows_what_its_schema_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(help_module, "choices", lambda group: ["mine", "fedcad"])
    monkeypatch.setattr(help_module, "compose", lambda overrides: own("fedprox"))
    rows = help_module.all_method_options()
    (row,) = [row for row in rows if " mine: " in row[2] and "proximal" in row[0]]
    assert row[:2] == ("strategy.client.proximal_mu", "float >=0")
    assert any(row[0] == "strategy.server.min_replies" and "fewer usable" in row[2] for row in rows)


def test_a_policy_may_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_method("mine", folders(tmp_path))
    with pytest.raises(OptionError, match="strategies=mine: allowed: "):
        policy.Policy._methods_exist(("mine",))
    monkeypatch.setattr(policy, "CONF", tmp_path / "conf")
    assert policy.Policy._methods_exist(("fedcad", "mine")) == ("fedcad", "mine")
