"""Overrides as a hostile caller could send them, and what must hold of every one: refused in one line, or a
configuration in which nothing was set that is not to be set from outside.
"""

from __future__ import annotations

import os
import random
from functools import cache
from typing import Any

from omegaconf import OmegaConf
from tripwires import Tripped, armed

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import COMMANDS, CONF, REMOTE_GROUPS
from fedpriv.config.own_options import group_choices
from fedpriv.config.remote import MOST_CHARACTERS, compose_remote_text
from fedpriv.config.schema import Config

SECRET_NAME, SECRET = "FEDPRIV_FUZZ_SECRET", "mb7Q-never-shown"

KEYS = (
    *("seed", "num_clients", "num_rounds", "local.lr", "local.sampler", "privacy.delta", "strategy.client.clip_norm"),
    *("strategy.client.diff", "strategy.server.min_replies", "engine.device", "evaluate.every", "run_dir"),
    *("strategy.client.clipping", "strategy.server.clipping", "partition.alpha", "dataset.size"),
    *REMOTE_GROUPS,
)
FORBIDDEN_KEYS = (
    *("strategy.client._target_", "strategy.server._target_", "strategy._target_", "_target_", "local._target_"),
    *("privacy.rng", "dataset.root", "dataset.cache", "dataset.path", "dataset.split", "dataset.download"),
    *("model.path", "model.name", "dataset.name", "strategy.name", "engine.name", "engine.address", "engine.faults"),
    *("hydra.run.dir", "hydra/launcher", "hydra.searchpath", "hydra.job.env_set.X", "defaults", "strategy", "engine"),
    *("strategy@x", "strategy@strategy.client", "experiment@_global_", "conf/strategy", "/strategy", "x", "", "${x}"),
    *COMMANDS,
)
#: What would be sound on the machine's own command line.
FORBIDDEN = (
    *("privacy.rng=secure", "privacy.rng=seeded", "dataset.root=/etc", "dataset.cache=/tmp", "dataset.download=true"),
    *("strategy.client._target_=os.mkdir", "strategy.server={_target_:os.mkdir}", "+strategy.client._target_=os.mkdir"),
    *("dataset.path=os.getcwd", "dataset=custom", "model=custom", "model.path=os.getcwd", "dataset=image_folder"),
    *("partition=partitioner", "partition.partitioner=os.getcwd"),
    *("dataset=huggingface", "dataset.hub_name=x/y", "dataset.revision=main"),
    *("engine.address=auto", "engine.faults=[{round:1,client:0,kind:drop}]", "dataset.split=/etc/passwd", "run_dir=x"),
    *("hydra.run.dir=/tmp", "+experiment=fedcad_mnist", "~seed", "seed=1,2", "privacy.target_epsilon=1"),
)
PREFIXES = ("", "", "", "", "+", "++", "~", " ", "\n", "\0", "'", '"', "\\", "@", "/", "../")
SECRETS = (
    f"${{oc.env:{SECRET_NAME}}}",
    f"$\\{{oc.env\\:{SECRET_NAME}\\}}",
    f"'${{oc.env:{SECRET_NAME}}}'",
    f"\\${{oc.env:{SECRET_NAME}}}",
    f"\\\\${{oc.env:{SECRET_NAME}}}",
    f"[${{oc.env:{SECRET_NAME}}}]",
    f"{{a:${{oc.env:{SECRET_NAME}}}}}",
    f"${{oc.decode:${{oc.env:{SECRET_NAME}}}}}",
    f"str(${{oc.env:{SECRET_NAME}}})",
    f"${{${{oc.env:{SECRET_NAME}}}}}",
)
VALUES = (
    *SECRETS,
    *("1", "0.5", "-1", "1e400", "nan", "inf", "null", "true", "???", "", "0x10", "1_000", "9" * 64, "9" * 5000),
    *("fedavg", "coqfl", "digits", "iid", "dirichlet", "custom", "image_folder", "fedcad_mnist", "small", "flower"),
    *("../x", "../../etc/passwd", "/etc/passwd", "/tmp/x", "~", "C:\\x", "strategy/../x", "\ud800", "é", "١", "a\nb"),
    *("1,2", "range(1,9)", "choice(a,b)", "glob(*)", "interval(0,1)", "shuffle(1,2)", "int('3')", "extend_list(1)"),
    *("[1,2]", "[]", "[" * 50 + "]" * 50, "{a:1}", "{_target_:os.system}", "{_target_:os.system,command:id}", "[[1]]"),
    *("os.system", "builtins.eval", "__import__('os').system('id')", "!!python/object/apply:os.system [id]", "x" * 300),
)


def text(rng: random.Random) -> str:
    """One case."""
    parts = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 30))):
        kind = rng.random()
        if kind < 0.5:
            part = f"{rng.choice(KEYS)}={rng.choice(VALUES)}"
        elif kind < 0.87:
            part = f"{rng.choice(PREFIXES)}{rng.choice((*KEYS, *FORBIDDEN_KEYS))}={rng.choice(VALUES)}"
        elif kind < 0.97:
            part = rng.choice(FORBIDDEN)
        else:
            part = rng.choice((rng.choice(VALUES), f"{rng.choice(KEYS)}", "'", "=" * 3, "seed='1", "x" * 9000))
        if rng.random() < 0.1:  # a letter somewhere becomes another
            place = rng.randrange(len(part) + 1)
            part = part[:place] + chr(rng.randrange(1, 0x250)) + part[place + 1 :]
        parts.append(part)
    return rng.choice((" ", " ", "\n", ";", ",")).join(parts)


def check(given: str) -> Config | None:
    """What became of a text: a configuration, or None where it was refused. Raises for anything else."""
    try:
        config = compose_remote_text(given)
    except OptionError as error:
        said = str(error)
        assert SECRET not in said, f"{given!r} shows {said!r}"
        assert len(said) <= 1000 and "\n" not in said and "\0" not in said, said
        return None
    assert len(given) <= MOST_CHARACTERS
    raw = config.to_dict()
    assert SECRET not in str(raw), f"{given!r} was evaluated"
    strategy = config.strategy.name
    assert strategy in group_choices(CONF / "strategy")
    for half, options in (("strategies", raw["strategy"]["server"]), ("clients", raw["strategy"]["client"])):
        targets = _leaves(options, "_target_")
        assert len(targets) == 1 and targets[0].startswith(f"{half}.{strategy}."), targets
    assert "_target_" not in str({key: value for key, value in raw.items() if key != "strategy"})
    default = defaults()["dataset"]
    assert all(raw["dataset"][key] == default[key] for key in ("root", "cache", "path", "split", "download")), given
    assert raw["model"].get("path") is None and raw["dataset"]["name"] not in ("custom", "huggingface", "image_folder")
    assert raw["privacy"]["rng"] == "seeded"
    assert raw["privacy"]["target_epsilon"] is None or "experiment=" in given
    assert raw["engine"]["address"] is None and raw["engine"]["faults"] == defaults()["engine"]["faults"]
    assert raw["run_dir"] is None or (raw["run_dir"].startswith("/") and raw["run_dir"].isprintable())
    return config


def _leaves(node: Any, name: str) -> list[Any]:
    if isinstance(node, dict):
        own = [node[name]] if name in node else []
        return own + [leaf for value in node.values() for leaf in _leaves(value, name)]
    return [leaf for value in node for leaf in _leaves(value, name)] if isinstance(node, list) else []


def trip(*given: Any) -> Any:
    """conf/config.yaml reads the host's own variables; nothing from outside may read any."""
    if given and (given[0] is None or str(given[0]).startswith("FEDPRIV_")):
        return given[1] if len(given) > 1 else None
    raise Tripped("a resolver was called")


def set_traps() -> None:
    """A secret in the environment, and resolvers that must not be called. What is loaded once is loaded before."""
    os.environ[SECRET_NAME] = SECRET
    for given in ("", "strategy=coqfl seed=2 local.lr=0.5", "nosuch=1", "strategy.client.nosuch=1", "seed=x"):
        check(given)
    for resolver in (
        "oc.env",
        "oc.decode",
        "oc.create",
        "oc.deprecated",
        "oc.dict.keys",
        "oc.dict.values",
        "oc.select",
    ):
        OmegaConf.register_new_resolver(resolver, trip, replace=True)


def try_text(given: str) -> Config | None:
    """`check` where nothing may be evaluated, written or started."""
    with armed():
        return check(given)


@cache
def defaults() -> dict[str, Any]:
    return compose_remote_text("").to_dict()
