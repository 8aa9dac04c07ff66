"""Container files and the pages on deployment: linters pass, what they copy exists, programs take the commands."""

from __future__ import annotations

import argparse
import fnmatch
import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedpriv.commands import credentials, node, superlink
from fedpriv.commands.credentials import make_credentials
from fedpriv.common.command_line import read_arguments
from fedpriv.config.compose import compose
from fedpriv.config.remote import compose_remote
from fedpriv.config.schema import Config
from fedpriv.deployment.policy import objections, read_policy

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
DOCKERFILES = [ROOT / "deploy/superlink.Dockerfile", ROOT / "deploy/supernode.Dockerfile"]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
NODES = [name for name in COMPOSE["services"] if name.startswith("node-")]
DEPLOY = "\n".join((ROOT / "docs" / name).read_text() for name in ("deploy.md", "networks.md", "upkeep.md"))


def instructions(file: Path) -> list[tuple[str, str]]:
    """(instruction, its text) of a Dockerfile, lines that go on joined."""
    text = re.sub(r"\\\n", " ", "\n".join(line for line in file.read_text().splitlines() if not line.startswith("#")))
    return [
        (word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def named(file: Path, instruction: str) -> list[str]:
    return [text for word, text in instructions(file) if word == instruction]


# --- linters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [["hadolint", *map(str, DOCKERFILES)], ["compose-lint", "check", "--fail-on", "low", "deploy/compose.yaml"]],
    ids=["hadolint", "compose-lint"],
)
def test_linters_pass(command: list[str]) -> None:
    done = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


# --- images ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_an_image_holds_what_it_needs_and_no_secret(file: Path) -> None:
    (argument,) = named(file, "ARG")
    assert named(file, "FROM") == ["${BASE_IMAGE}"] and argument.startswith("BASE_IMAGE=")
    base = argument.removeprefix("BASE_IMAGE=")
    assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}", base), "pinned, and no registry's host"
    assert all(named(each, "ARG") == [argument] for each in DOCKERFILES) and base.partition("@")[0] in DEPLOY
    assert named(file, "USER") == ["10001:10001"] and len(named(file, "HEALTHCHECK")) == 1
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*"
    let_in = [pattern[1:] for pattern in patterns if pattern[0] == "!"]
    copied = []
    for text in named(file, "COPY"):
        *sources, _ = [word for word in text.split() if not word.startswith("--")]
        copied += sources
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source in let_in, f"{source} is kept out by .dockerignore"
    bundled = yaml.safe_load(json.dumps(_toml()["tool"]["flwr"]["app"]["fab-include"]))
    for pattern in bundled:  # the digest of /app is that of the sources
        assert any(fnmatch.fnmatch(pattern.strip("/"), f"{source}*") for source in copied), pattern
    lock = {"superlink.Dockerfile": "deploy/requirements.txt", "supernode.Dockerfile": "deploy/node.txt"}[file.name]
    assert {lock, "pyproject.toml", ".gitignore", "NOTICE"} <= set(copied)


def _toml() -> dict[str, Any]:
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_an_images_commands_are_taken_by_their_programs(file: Path) -> None:
    (entry,), (given,) = named(file, "ENTRYPOINT"), named(file, "CMD")
    _, flag, module = json.loads(entry)
    assert flag == "-m"
    CHECKS[module](json.loads(given))
    health = named(file, "HEALTHCHECK")[0]
    _, flag, code = json.loads(health[health.index("[") :])
    assert flag == "-c"
    compile(code, "healthcheck", "exec")
    for line in named(file, "RUN"):
        for command in line.split("&&"):
            _check_shell(shlex.split(command))


def _check_shell(words: list[str]) -> None:
    if words[:3] == ["python", "-m", "pip"]:
        from pip._internal.commands import create_command

        options, _ = create_command(words[3]).parse_args(words[4:])  # SystemExit for an option that it does not know
        assert options.require_hashes and not options.cache_dir
        assert (ROOT / "deploy" / options.requirements[0]).read_text().count("--hash=sha256:") > 100
    else:
        assert words[0] in ("groupadd", "useradd", "mkdir", "chown")


# --- compose ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(COMPOSE["services"]))
def test_a_service_is_hardened(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and "ports" not in service
    assert service["security_opt"] == ["no-new-privileges:true"] and service["user"] == "10001:10001"
    dockerfile = ROOT / "deploy" / service["build"]["context"] / service["build"]["dockerfile"]
    assert dockerfile.resolve() in DOCKERFILES
    assert "privileged" not in service and "environment" not in service
    for network in service["networks"]:
        assert COMPOSE["networks"][network] == {"internal": True}
    for source, _ in map(_mounted, service["volumes"]):
        assert source in COMPOSE["volumes"] or source.startswith("../")
    keys = [text for text in service["volumes"] if "keys" in text]
    assert keys and all(text.endswith(":ro") for text in keys)
    (entry,) = named(dockerfile.resolve(), "ENTRYPOINT")
    CHECKS[json.loads(entry)[2]](service["command"])


def _mounted(text: str) -> tuple[str, str]:
    source, place = text.split(":")[:2]
    return source, place


def test_nodes_share_nothing_and_counters_lie_on_volumes_of_their_own() -> None:
    places: dict[str, str] = {}
    counter = Path(yaml.safe_load(node.TEMPLATE)["counter"])
    for name in NODES:
        service, number = COMPOSE["services"][name], name.removeprefix("node-")
        assert service["networks"] == [name], "a node reaches the server and no other node"
        options = dict(option.partition("=")[::2] for option in service["command"][1:])
        assert options["client"] == number and options["superlink"] == "superlink:8000"
        mounted = {place: source for source, place in map(_mounted, service["volumes"])}
        for option in ("data", "credentials"):
            assert number in mounted[options[option]]
        assert str(Path(options["policy"]).parent) in mounted
        assert mounted[str(counter.parent)] == f"counter-{number}" and options["data"] not in map(str, counter.parents)
        for source in mounted.values():
            assert places.setdefault(source, name) == name, f"{source} belongs to {places[source]}"


def test_the_servers_command_line_finds_it() -> None:
    import tomllib

    found = tomllib.loads((ROOT / "deploy/flower.toml").read_text())["superlink"]
    given = COMPOSE["services"]["superlink"]["command"]
    _, options = read_arguments(superlink.main, given)
    control = options.get("control", inspect.signature(superlink.main).parameters["control"].default)
    assert found[found["default"]] == {
        "address": f"localhost:{control}",
        "root-certificates": f"{options['credentials']}/ca.crt",
    }


# --- docs/deploy.md and docs/upkeep.md ---------------------------------------------------------------------------


def commands() -> Iterator[str]:
    for line in DEPLOY.splitlines():
        if line.startswith("    ") and not line.strip().startswith("-"):
            yield line.strip()


def _runs_on(text: str) -> list[str]:
    """A run's options inside --run-config."""
    (found,) = re.findall(r"""overrides="([^"]*)\"""", text)
    return shlex.split(found)


def _check_superlink(given: list[str]) -> None:
    read_arguments(superlink.main, given)


def _check_node(given: list[str]) -> None:
    command, *rest = given
    if command == "bundle":
        assert len(rest) == 1 and (ROOT / rest[0]).exists()
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: True)
        patch.setattr(Path, "is_dir", lambda path: True)
        read_arguments(node.COMMANDS[command], rest)


def _check_credentials(given: list[str]) -> None:
    renews = given[0] == "server"
    read_arguments(credentials.renew if renews else credentials.make, given[renews:])


def _check_fedpriv(given: list[str]) -> None:
    compose(given)


def _check_flwr(given: list[str]) -> None:
    from flwr.cli.app import app
    from typer.main import get_command

    command: Any = get_command(app)
    while given and hasattr(command, "commands"):
        command = command.commands[given[0]]
        given = given[1:]
    values = {"NODE_ID": "17", "RUN_ID": "17"}
    existing = [str(ROOT) if word in ("/app",) else values.get(word, word) for word in given]
    command.make_context(command.name, existing)


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "fedpriv": _check_fedpriv,
    "fedpriv.credentials": _check_credentials,
    "fedpriv.node": _check_node,
    "fedpriv.superlink": _check_superlink,
}


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_a_documented_command_is_taken_by_its_program(command: str) -> None:
    words = shlex.split(command.partition(" > ")[0].partition(" | ")[0])
    if words[0] == "docker":
        _check_compose_command(words)
    elif words[:2] == ["python", "-m"]:
        CHECKS[words[2]](words[3:])
    elif words[0] == "flwr":
        _check_flwr(words[1:])
    elif words[0] == "pip":
        from pip._internal.commands import create_command

        options, _ = create_command(words[1]).parse_args(words[2:])  # SystemExit for an option that it does not know
        assert options.require_hashes and options.requirements == ["deploy/node.txt"]
    elif words[:2] == ["sudo", "systemctl"]:
        assert words[2:4] == ["enable", "--now"]
        assert (ROOT / "deploy/systemd" / (re.sub("@.*", "@", words[4]) + ".service")).is_file()
    elif words[:2] == ["sudo", "cp"]:
        assert all((ROOT / word).is_file() for word in words[2:-1])
    elif words[0] == "flower-superlink":
        assert words[1:] == _superlink_arguments()
    elif words[:2] == ["python", "-c"]:
        compile(words[2], "command", "exec")
    else:  # tests/deployment/test_backup.py runs tar
        assert words[0] in ("ssh-keygen", "openssl", "tar", "export", "umask") or words[:2] == ["sudo", "chown"]


def _superlink_arguments() -> list[str]:
    """What `python -m fedpriv.superlink` of step 2 makes."""
    (line,) = {line for line in commands() if line.startswith("python -m fedpriv.superlink")}
    _, options = read_arguments(superlink.main, line.split()[3:])
    names = ("host", "port", "control", "database")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: True)
        patch.setattr(Path, "is_dir", lambda path: True)
        patch.setattr(superlink, "private_database", lambda path: path)
        return superlink.superlink_arguments(
            options["credentials"], **{name: options[name] for name in names if name in options}
        )


def _check_compose_command(words: list[str]) -> None:
    assert words[:3] == ["docker", "compose", "-f"] and (ROOT / words[3]).exists()
    action, *rest = words[4:]
    rest = [word for word in rest if word not in ("-d", "--rm")]
    assert action in ("build", "up", "exec", "run")
    if rest:
        assert rest[0] in COMPOSE["services"]
    if action == "exec":
        assert rest[1] == "flwr"
        _check_flwr(rest[2:])
    if action == "run":
        _check_node(rest[1:])


def test_the_example_fits_the_policy_that_is_printed(tmp_path: Path) -> None:
    """The plan of step 4, the runs of step 5 and of the containers are the same run, and the template allows it."""
    (tmp_path / "policy.yaml").write_text(node.TEMPLATE)
    policy = read_policy(tmp_path / "policy.yaml")
    submitted = [line for line in commands() if "--run-config" in line]
    assert len(submitted) == 2
    configs = [compose_remote(_runs_on(line)) for line in submitted]
    (plan,) = [line for line in commands() if "plan=true" in line]
    planned = compose(shlex.split(plan)[3:])
    for config in configs:
        assert _what_matters(config) == _what_matters(planned)
        for count in config.dataset.examples:
            assert objections(policy, config, count) == []
    from fedpriv.client.build import make_client
    from fedpriv.privacy.composition import compose as composed

    client = make_client(planned, examples=650)
    budget = policy.budgets[0]
    once, twice, thrice = (
        composed(client.planned_events(runs * planned.num_rounds), budget.delta).epsilon for runs in (1, 2, 3)
    )
    assert f"verified epsilon  {once:.4g} " in DEPLOY and f"({twice:.4g} of {budget.max_epsilon:g})" in DEPLOY
    assert twice < budget.max_epsilon < thrice


def _what_matters(config: Config) -> dict[str, Any]:
    found = config.to_dict()
    for name in ("run_dir", "checkpoint", "scale"):
        found.pop(name)
    found["dataset"].pop("test_root")
    return found


def test_the_refusal_codes_are_all_there() -> None:
    from fedpriv.common.messages import Refusal

    table = {name: int(code) for code, name in re.findall(r"(\d{3}) `([A-Z_]+)`", DEPLOY)}
    assert table == {code.name: int(code) for code in Refusal}


def test_flowers_own_command_takes_what_a_node_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deployed import Machines
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    network, given = Machines(tmp_path / "a folder", 1), list[argparse.Namespace]()
    make_credentials(tmp_path / "keys", ["localhost"], 1, 1)
    monkeypatch.setattr("fedpriv.deployment.bundles.guard_bundles", lambda approved, note: None)
    monkeypatch.setattr("fedpriv.deployment.supernode.wait_to_activate", lambda say: None)
    monkeypatch.setattr(
        "fedpriv.deployment.supernode.run_supernode",
        lambda arguments, port, approved: given.append(_parse_args_run_supernode().parse_args(arguments)),
    )
    options = (f"credentials={tmp_path / 'keys/node-0'}", "superlink=superlink:8000", "client=0")
    assert network.command("run", 0, *options) == 0
    (found,) = given
    assert not found.insecure and found.root_certificates and found.auth_supernode_private_key
    assert not found.runtime_dependency_install
    from flwr.common.config import parse_config_args

    config = parse_config_args([found.node_config])
    assert config["policy"] == str(network.policy(0)) and config["data"] == str(network.data(0))


def test_flowers_own_command_takes_what_the_superlink_gives_it(tmp_path: Path) -> None:
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

    make_credentials(tmp_path, ["localhost"], 0, 1)
    given = superlink.superlink_arguments(tmp_path / "server", database=tmp_path / "state.db")
    found = _parse_args_run_superlink().parse_args(given)
    assert found.enable_supernode_auth and not found.insecure
    assert (found.host, found.port, found.database) == ("127.0.0.1", 8001, str(tmp_path / "state.db"))
