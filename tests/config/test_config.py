"""Every option is checked before anything runs: one readable line with the option, the value and what is allowed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf

from fedpriv.commands.help import help_text
from fedpriv.common.errors import OptionError
from fedpriv.common.places import with_own_methods
from fedpriv.config.compose import CONF, _fresh_hydra, compose, composed, from_dict, option_names, parse
from fedpriv.config.methods import METHODS, AdamOptions
from fedpriv.config.options import MethodOptions
from fedpriv.config.own_options import _load_sweep_config, choices, find_own_methods, group_choices, sweep_config
from fedpriv.config.remote import compose_remote
from fedpriv.config.schema import FaultPlan
from fedpriv.config.strategy_options import HALVES, OwnOptions, field_of, followed, spelled
from fedpriv.runs.other_options import with_options

STRATEGIES = group_choices(CONF / "strategy")
# (overrides, the option, what the message must say)
REFUSED = [
    (["strategy=fedcat"], "strategy", f"{', '.join(STRATEGIES[-6:])} (did you mean fedcad?)"),
    (["partition=resampld"], "partition", "allowed: column, dirichlet, iid"),
    (["num_clients=many"], "num_clients", "a whole number"),
    (["num_clients="], "num_clients", "a whole number"),
    (["partition=dirichlet", "partition.alpha=-1"], "partition.alpha", "more than 0"),
    (["partition.alpha=1"], "partition.alpha", "no such option"),
    (["strategy.client.noise_multiplier=inf"], "strategy.client.noise_multiplier", "finite"),
    (["strategy.client.noise_multiplyer=1"], "strategy.client.noise_multiplyer", "did you mean"),
    (["strategy=fedavg", "strategy.client.clip_norm=1"], "strategy.client.clip_norm", "no such option"),
    (["strategy.client=null"], "strategy.client", "a mapping"),
    (["local=null"], "local", "a mapping"),
    (["strategy.name=mine"], "strategy.name", "strategy=fedcad"),
    (["local.lr=[1,2]"], "local.lr", "number"),
    (["model.hidden=10"], "model.hidden", "no such option"),
    (["model=mlp", "model.hidden=0"], "model.hidden", "at least 1"),
    (["engine.faults=7"], "engine.faults", "a list"),
    (["engine.faults=[{round:1}]"], "engine.faults.0.client", "no value"),
    (["engine.faults=[{round:1,client:0,kind:explode}]"], "engine.faults.0.kind", "allowed: drop_before, raise, kill"),
    (["engine.faults={rate:1.5}"], "engine.faults.rate", "at most 1"),
    (["engine.faults={kinds:[drop]}"], "engine.faults.rate", "no value"),
    (["engine.faults={rate:0.3,kinds:[]}"], "engine.faults.kinds", "must not be empty"),
    (["engine.faults={rate:0.3,kinds:[drop,explode]}"], "engine.faults.kinds.1", "allowed: drop_before, raise, kill"),
    (["engine.faults={rate:0.3,when:1}"], "engine.faults.when", "no such option"),
    (["engine.faults=[{round:1,client:0,kind:drop}]", "privacy.rng=secure"], "privacy.rng", "simulations alone"),
    (["num_clients=40", "over_selection=0.9"], "over_selection", "at least 1"),
    (["attack.keep_snapshots=yes"], "attack.keep_snapshots", "true or false"),
    (["attack=white_box"], "attack", "must be a mapping"),
    (["engine=base"], "engine", "allowed: auto, flower, inprocess, ray"),
    (["dataset=base"], "dataset", "allowed: breast_cancer, cifar10"),
    (["dataset.train_examples=10"], "num_clients", "digits has 10 training examples"),
    (["dataset.split=x.npz", "dataset.train_examples=10"], "dataset.train_examples", "dataset.split says"),
    (["partition=column"], "partition.column", "has no default: give it a value"),
    (["checkpoint.every=often"], "checkpoint.every", "auto, or a whole number"),
    (["checkpoint.every=-1"], "checkpoint.every", "auto, or a whole number"),
    (["checkpoint.every=true"], "checkpoint.every", "auto, or a whole number"),
    (["dataset=image_folder"], "dataset.root", "one folder per class"),
    (["dataset=huggingface"], "dataset.hub_name", "uoft-cs/cifar10, or its files in dataset.root"),
    (["dataset=huggingface", "dataset.hub_name=../x"], "dataset.hub_name", "must be the name of a set of the hub"),
    (["dataset=huggingface", "dataset.hub_name=a/b/c"], "dataset.hub_name", "must be the name of a set of the hub"),
    (
        ["dataset=huggingface", "dataset.hub_name=a/b", "dataset.revision=/x"],
        "dataset.revision",
        "a branch, a tag or a commit",
    ),
    (["dataset=huggingface", "dataset.name=uoft-cs/cifar10"], "dataset.name", "dataset.hub_name=..."),
    (["dataset=custom"], "dataset.path", "dotted path"),
    (["dataset=image_folder", "dataset.root=x", "dataset.size=3"], "dataset.size", "at least 4"),
    (["experiment=fedcad_minst"], "experiment", "did you mean fedcad_mnist"),
    (["scale=tiny"], "scale", "literal, small"),
    (["nosuch=1"], "nosuch", "no such option"),
    (["+nosuch=1"], "nosuch", "no such option"),
    (["~seed"], "seed", "no value"),
    (["seed"], "seed", "option=value"),
    (["=3"], "", "option=value"),
    (["num_clients=[1,"], "num_clients", "option=value"),
]


@pytest.mark.parametrize(("overrides", "option", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_wrong_option_or_value_is_one_line_with_what_is_allowed(overrides: list[str], option: str, words: str):
    with pytest.raises(OptionError) as caught:
        compose(overrides)
    message = str(caught.value)
    assert caught.value.option == option
    assert message.startswith(option) and words in message and "\n" not in message
    value = overrides[-1].partition("=")[2]
    if value and "[" not in value and "{" not in value and "did you mean" not in words:
        assert value in message


def test_values_are_never_converted_silently():
    for override in ("seed='3'", "num_rounds=3.0", "dataset.download=1", "privacy.delta='1e-5'"):
        with pytest.raises(OptionError):
            compose([override])
    assert compose(["local.lr=1"]).local.lr == 1.0  # a whole number is a number


def test_a_configuration_survives_its_file():
    config = compose(["partition=dirichlet", "engine.faults=[{round:1,client:2,kind:drop}]", "privacy.max_epsilon=9"])
    assert from_dict(config.to_dict()) == config
    assert from_dict(config.to_dict()).digest() == config.digest()


def test_planned_faults_come_as_a_list_or_drawn_and_survive_their_file():
    drawn = compose(["engine.faults={rate: 0.3, kinds: [drop, slow]}"])
    assert drawn.engine.faults == FaultPlan(rate=0.3, kinds=("drop", "slow"))
    assert from_dict(drawn.to_dict()) == drawn and drawn.digest() != compose([]).digest()
    assert compose(["engine.faults={rate: 0.3}"]).engine.faults.kinds == ("drop_before", "raise", "drop")
    assert compose([]).engine.faults == compose(["engine.faults=[]"]).engine.faults == ()


def test_over_selection_asks_so_many_more():
    asked = [compose(["num_clients=30", f"over_selection={factor}"]).clients_asked for factor in (1, 1.1, 1.26, 9)]
    assert asked == [20, 22, 26, 30]


def test_the_digest_is_of_what_decides_the_result():
    config = compose([])
    assert compose(["dataset.cache=/elsewhere"]).digest() == config.digest()
    for override in (
        "seed=1",
        "local.lr=0.2",
        "strategy.client.diff=0.4",
        "num_rounds=61",
        "privacy.variant=published",
    ):
        assert compose([override]).digest() != config.digest(), override


def test_every_method_of_the_project_has_its_file():
    assert set(METHODS) <= set(STRATEGIES)


@pytest.mark.parametrize("method", STRATEGIES)
def test_every_strategy_file_has_a_schema_that_it_fills(method: str):
    options = compose([f"strategy={method}"]).strategy.options
    assert type(options) is METHODS[method] if method in METHODS else isinstance(options, OwnOptions)
    assert set(METHODS.get(method, MethodOptions).model_fields) <= set(options.model_dump())


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_file_writes_every_option_once(method: str):
    """Under the half of its spelling, and none that follows another one."""
    strategy = composed(parse([f"strategy={method}"]))["strategy"]
    written = [f"strategy.{half}.{name}" for half in HALVES for name in strategy[half] if name != "_target_"]
    schema = METHODS[method]
    assert sorted(written) == sorted(
        spelled(schema, field) for field in schema.model_fields if not followed(schema, field)
    )


def other_half(option: str) -> str:
    return option.replace("client", "?").replace("server", "client").replace("?", "server")


@pytest.mark.rotates(3)
@pytest.mark.parametrize("method", METHODS)
def test_either_half_sets_the_one_value(method: str):
    schema, plain = METHODS[method], compose([f"strategy={method}"])
    for field in schema.model_fields:
        option, value = spelled(schema, field), getattr(plain.strategy.options, field)
        other = other_half(option)
        if followed(schema, field):
            for place in (option, other):
                with pytest.raises(OptionError, match=f"{option}=7: must be {followed(schema, field)}="):
                    compose([f"strategy={method}", "local.steps=5", f"{place}=7"])
        elif field_of(schema, *other.split(".")[1:]) == field and not isinstance(value, list | tuple):
            given = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
            assert compose([f"strategy={method}", f"{other}={given}"]) == plain, other


def test_two_values_of_one_option_are_refused_with_both_names():
    both = r"strategy\.client\.min_replies=4: strategy\.server\.min_replies=3 is the same option"
    given = ["strategy=fedldp", "strategy.server.min_replies=3", "strategy.client.min_replies=4"]
    with pytest.raises(OptionError, match=both):
        compose(given)
    with pytest.raises(OptionError, match=both):  # of files
        raw = compose(given[:2]).to_dict()
        raw["strategy"]["client"]["min_replies"] = 4
        from_dict(raw)
    assert compose([*given[:2], "strategy.client.min_replies=3"]).strategy.options.min_replies == 3


def test_a_file_may_name_an_option_under_either_half(tmp_path: Path) -> None:
    """As an experiment does over its method's file; two values are refused."""
    (tmp_path / "conf/experiment").mkdir(parents=True)
    words = "# @package _global_\ndefaults: [_self_, override /strategy: fedldp]\nstrategy: {client: {min_replies: 3}"

    def of(server: str = "") -> dict[str, Any]:
        (tmp_path / "conf/experiment/mine.yaml").write_text(f"{words}{server}}}\n")
        with with_own_methods(tmp_path):
            return composed(parse(["experiment=mine"]))["strategy"]

    assert of()["server"]["min_replies"] == 3 and "min_replies" not in of()["client"]
    assert of(", server: {min_replies: 3}")["server"]["min_replies"] == 3
    with pytest.raises(OptionError, match=r"client\.min_replies=3: strategy\.server\.min_replies=4 is the same option"):
        of(", server: {min_replies: 4}")


def test_a_rerun_takes_either_spelling_and_the_new_number_of_rounds():
    before = compose(["strategy=cpsgd", "num_rounds=7"])
    after = with_options(before, ["num_rounds=9", "strategy.client.min_replies=2", "strategy.server.levels=8"])
    assert after == compose(
        ["strategy=cpsgd", "num_rounds=9", "strategy.server.min_replies=2", "strategy.client.levels=8"]
    )
    assert after.strategy.options.rounds == 9


def test_two_options_of_one_name_stay_apart():
    """The server's Adam and the clients'."""
    options = compose(["strategy=agn", "strategy.client.beta1=0.3", "strategy.server.beta2=0.7"]).strategy.options
    assert isinstance(options, AdamOptions)
    assert (options.adam_beta1, options.beta1, options.adam_beta2, options.beta2) == (0.3, 0.9, 0.999, 0.7)


@pytest.mark.parametrize("method", METHODS)
def test_records_have_each_option_once(method: str) -> None:
    """And folders of earlier versions, which had some under both halves and others that follow, are read."""
    config = compose([f"strategy={method}"])
    raw, schema = config.to_dict(), METHODS[method]
    listed = [f"strategy.{half}.{name}" for half in HALVES for name in raw["strategy"][half] if name != "_target_"]
    assert sorted(listed) == sorted(spelled(schema, f) for f in schema.model_fields if not followed(schema, f))
    for field in schema.model_fields:
        name = spelled(schema, field).split(".")[2]
        for place in [place for place in HALVES if field_of(schema, place, name) == field]:
            raw["strategy"][place][name] = config.strategy.options.model_dump(mode="json")[field]
    raw["features"] |= {"waves": 1000, "width": 1.0}
    assert from_dict(raw) == config and from_dict(raw).digest() == config.digest()


def test_a_whole_number_is_that_number() -> None:
    whole, real = (compose(["strategy=fedldp", f"strategy.client.noise_multiplier={sigma}"]) for sigma in ("3", "3.0"))
    assert whole.digest() == real.digest() == from_dict(whole.to_dict()).digest()


@pytest.mark.rotates(3)
@pytest.mark.parametrize("experiment", choices("experiment"))
def test_every_experiment_composes_at_both_scales_and_can_be_varied(experiment: str):
    literal, small = (compose([f"experiment={experiment}", f"scale={scale}"]) for scale in ("literal", "small"))
    assert (literal.scale, small.scale) == ("literal", "small")
    assert small.num_rounds < literal.num_rounds
    none = ("privacy.target_epsilon=null", "privacy.target_observer=null")
    noise = ("strategy.client.noise_multiplier=0.7", *none)
    varied = compose([f"experiment={experiment}", "strategy=fedldp", *noise, "seed=5"])
    assert varied.strategy.name == "fedldp" and varied.strategy.options.noise_multiplier == 0.7


@pytest.mark.parametrize(
    ("experiment", "scale"), [("agn_mnist", "small"), ("agn_mnist", "literal"), ("adpfl_table3", "small")]
)
def test_a_model_that_is_asked_for_comes_before_that_of_an_experiments_scale(experiment: str, scale: str):
    given = [f"experiment={experiment}", f"scale={scale}"]
    assert compose([*given, "model=mlp"]).model.name == "mlp" != compose(given).model.name
    assert compose([*given, "model=mlp", "model.name=linear"]).model.name == "linear"


def test_the_reference_experiment_is_the_papers():
    config = compose(["experiment=fedcad_mnist"])
    assert (config.num_clients, config.clients_per_round, config.num_rounds) == (100, 10, 30)
    assert config.strategy.options.noise_multiplier == 0.3 and config.model.name == "cnn"
    assert compose(["experiment=fedcad_mnist_learnable"]).strategy.options.noise_multiplier == 0.03


@pytest.mark.parametrize("classes", [2, 5])
def test_the_agn_experiments_take_the_other_partitions_that_they_name(classes: int) -> None:
    assert compose(["experiment=agn_mnist"]).partition.model_dump()["shards_per_client"] == 40
    config = compose(["experiment=agn_mnist", "partition=pathological", f"partition.classes_per_client={classes}"])
    assert config.partition.model_dump()["classes_per_client"] == classes


# --- from outside ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override",
    [
        "strategy.client._target_=os.mkdir",
        "strategy.server._target_=os.mkdir",
        "strategy.client={_target_:os.mkdir}",
        "strategy={client:{_target_:os.mkdir}}",
        "strategy.name=fedavg",
        "+strategy.client.x=1",
        "++seed=1",
        "~seed",
        "+experiment=fedcad_mnist",
        "hydra.run.dir=/tmp/x",
        "hydra/launcher=joblib",
        "dataset.root=/etc",
        "dataset.cache=/etc",
        "dataset.download=true",
        "dataset.path=os.getcwd",
        "model.path=os.getcwd",
        "model=custom",
        "dataset=custom",
        "dataset=image_folder",
        "dataset=huggingface",
        "dataset.hub_name=uoft-cs/cifar10",
        "dataset.revision=main",
        "dataset.subset=plain_text",
        "engine={address:ray://x:1}",
        "strategy.client.diff={x:1}",
        "engine.address=ray://x:1",
        "engine.faults=[]",
        "engine.faults={rate:1}",
        "privacy.rng=seeded",
        "seed=1,2",
        "seed=${oc.env:HOME}",
        "run_dir=$\\{oc.env\\:HOME\\}",
        "seed=int('3')",
        "resume=/tmp",
        "rerun=/tmp",
        "conf/strategy=fedavg",
        "strategy@x=fedavg",
    ],
)
def test_outside_overrides_pass_an_allow_list(override: str):
    with pytest.raises(OptionError):
        compose_remote([override])


def test_value_options_may_come_from_outside():
    config = compose_remote(
        ["strategy=fedldp", "strategy.client.noise_multiplier=0.3", "seed=4", "partition=dirichlet", "local.lr=0.5"]
    )
    assert (config.strategy.name, config.seed, config.partition.name) == ("fedldp", 4, "dirichlet")


# --- help ------------------------------------------------------------------------------------------------


def test_help_names_every_option_and_every_choice():
    text = help_text()
    shown = {line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.split()}
    groups = ["strategy", "dataset", "features", "partition", "model"]
    names = {
        name
        for group in groups
        for choice in group_choices(CONF / group)
        if choice not in ("image_folder", "custom")
        for name in option_names([f"{group}={choice}"], "")
    }
    names |= {"dataset.size", "dataset.path", "model.path"}
    hidden = {"resume", "rerun", "extend", "plan", "policy", "run_dir"} | {
        f"{group}.name" for group in (*groups, "engine")
    }
    assert names - hidden <= shown
    assert all(word in text for word in ("resume=", "rerun=", "extend=", "plan", "predict", "hydra.run.dir"))
    for group in groups:
        assert all(choice in text for choice in group_choices(CONF / group))


#: What neither a help text nor a refusal needs: a tenth of a second to import, or much more.
HEAVY = ("torch", "flwr", "ray", "numpy", "scipy", "matplotlib", "datasets", "pandas", "dp_accounting", "rich", "PIL")


@pytest.mark.parametrize(
    "argument, code, words",
    [
        ("--help", 0, ""),
        ("strategy.client.diff=1.5", 2, "strategy.client.diff=1.5: must be at most 0.999"),
        ("strategy=nonsense", 2, "strategy=nonsense: allowed: "),
        ("num_rounds=-1", 2, "num_rounds=-1: must be at least 1"),
        ("num_round=3", 2, "num_round=3: there is no such option; did you mean num_rounds?"),
        ("engine=flour", 2, "engine=flour: allowed: "),
    ],
)
def test_help_and_a_mistake_load_nothing_heavy(argument: str, code: int, words: str) -> None:
    script = (
        f"import runpy, sys; sys.argv = ['fedpriv', {argument!r}]\n"
        "try: runpy.run_module('fedpriv', run_name='__main__')\n"
        f"except SystemExit as end: print(); print(end.code, [name for name in {HEAVY} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == f"{code} []"
    assert found.stderr.startswith(f"fedpriv: {words}" if words else "") and (words or not found.stderr)


@pytest.mark.rotates(8)
@pytest.mark.parametrize(
    "overrides",
    [
        "seed=3 num_rounds=7 strategy.client.diff=0.5 operations.log_level=error",
        "local.lr=0.5 strategy=fedldp strategy.client.clip_norm=2 local.lr=0.25",
        "engine.faults=[{round:4,client:1,kind:drop}] privacy={target_epsilon:8,variant:published} run_dir=/runs/a",
        "strategy=adpfl partition=dirichlet partition.alpha=0.3 ~tracking +strategy.server.own=1 strategy.server.own=2",
        "dataset=mnist dataset.root=/data/Bilder model=cnn tracking.kinds=[tensorboard] local.steps=null",
        "strategy=privunit strategy.client.epsilon=3 privacy.delta=1e-6 operations.report=false dataset.root='a b'",
        "num_clients=${num_rounds} run_dir=x${seed}/${oc.env:HOME} local.lr=${strategy.server.tau}",
        *(f"experiment={name} scale={scale}" for name in choices("experiment") for scale in ("literal", "small")),
        *(f"strategy={name}" for name in STRATEGIES),
        *(f"{group}={name}" for group in ("dataset", "features", "model", "engine") for name in choices(group)),
    ],
)
def test_files_and_values_make_what_hydra_makes_of_them(overrides: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIV_METRICS_PORT", "81")
    monkeypatch.setenv("FEDPRIV_TRACKING", "wandb")
    lines = re.findall(r"(?:'[^']*'|\S)+", overrides)
    found = composed(parse(lines))
    with _fresh_hydra(), initialize_config_dir(str(CONF), version_base="1.3"):
        wanted = OmegaConf.to_container(hydra_compose("config", overrides=lines), resolve=True)
    assert found == wanted and sorted(map(repr, leaves(found))) == sorted(map(repr, leaves(wanted)))  # 1 is no True


def test_a_sweeps_jobs_have_the_configs_that_hydra_composes_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, choices, repeated and added options, in every order; no job's values are in the next one's config."""
    jobs = [
        ["strategy=fedldp", "seed=0", "local.lr=0.1"],
        ["strategy=fedldp", "seed=1", "local.lr=0.2"],
        ["local.lr=0.3", "strategy=fedcad", "seed=1"],
        ["seed=2", "strategy=fedldp"],
        ["strategy=fedldp", "+strategy.server.own=1", "seed=3", "seed=4"],
        ["strategy=fedldp", "~tracking", "privacy={target_epsilon:8}"],
        ["strategy=fedldp", "hydra.sweep.subdir=${seed}", "run_dir=x${seed}", "seed=5"],
        ["strategy=fedldp", "seed=0", "local.lr=0.1"],
    ]
    find_own_methods()
    with _fresh_hydra(), initialize_config_dir(str(CONF), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        loader = hydra.config_loader
        overrides = ["hydra.sweep.dir=there", "hydra.job.config.override_dirname.exclude_keys=[seed]"]
        master = loader.load_configuration("config", [*overrides, "seed=0,1"], RunMode.MULTIRUN)
        for job in jobs:
            found, wanted = sweep_config(loader, master, job), _load_sweep_config(loader, master, job)
            assert OmegaConf.to_container(found) == OmegaConf.to_container(wanted)
            for config in (found, wanted):
                config.hydra.job.num = 7
            place = "hydra.sweep.subdir"
            assert OmegaConf.select(found, place) == OmegaConf.select(wanted, place)
            assert OmegaConf.is_struct(found) and OmegaConf.get_cache(found) == OmegaConf.get_cache(wanted)
        assert len(loader.__dict__["composed"]) == 3  # for each strategy, and that which says where to write
        with pytest.raises(HydraException, match="nowhere"):
            sweep_config(loader, master, ["strategy=fedldp", "nowhere=1"])


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        yield from leaves(value, f"{path}{name}.") if isinstance(value, dict) else [(f"{path}{name}", value)]


@pytest.mark.parametrize(
    ("defaults", "words"),
    [
        ("[/scales/adpfl@_global_: small]", "its file has .*@_global_.*: 'small'.*; defaults may have _self_, NAME"),
        ("[{/dataset: digits, /model: cnn}]", "its file has .*; defaults may have"),
        ("[nowhere]", "experiment=nowhere: allowed: .*adpfl_table2"),
        ("[/scales/adpfl@_here_: huge]", "scales/adpfl=huge: allowed:"),
        ("[override /strategy: fedcat]", "strategy=fedcat: allowed: "),
        ("[_self_", r"mine\.yaml: cannot be read"),
        ("", "its file has None; defaults may have"),
        ("agn_mnist", "its file has 'agn_mnist'; defaults may have"),
        ("[mine, _self_]", "a file of conf/ is based on itself"),
    ],
)
def test_what_a_file_builds_on_is_refused_by_name(defaults: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/mine.yaml").write_text(f"# @package _global_\ndefaults: {defaults}\n")
    with with_own_methods(tmp_path), pytest.raises(OptionError, match=words):
        compose(["experiment=mine"])


def test_an_experiment_builds_on_another_one(tmp_path: Path) -> None:
    (tmp_path / "conf/experiment").mkdir(parents=True)
    text = "# @package _global_\ndefaults: [agn_mnist, _self_, override /model: mlp]\nlocal: {lr: 0.5}\n"
    (tmp_path / "conf/experiment/mine.yaml").write_text(text)
    with with_own_methods(tmp_path):
        config = compose(["experiment=mine", "scale=small"])
    assert (config.strategy.name, config.model.name, config.local.lr, config.num_rounds) == (
        "dpfl_agn",
        "cnn",
        0.5,
        100,
    )
    assert config.partition.name == "shards" and config.strategy.options.noise_multiplier == 4.0


def test_an_experiment_may_tell_hydra_where_to_write_and_how_to_launch(tmp_path: Path) -> None:
    (tmp_path / "conf/experiment").mkdir(parents=True)
    text = "defaults: [override /hydra/launcher: joblib, _self_]\nhydra: {sweep: {dir: here}}\nnum_rounds: 3\n"
    (tmp_path / "conf/experiment/mine.yaml").write_text(f"# @package _global_\n{text}")
    with with_own_methods(tmp_path):
        assert compose(["experiment=mine"]).num_rounds == 3


def test_what_is_optional_in_a_files_defaults_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "conf/experiment").mkdir(parents=True)
    text = "defaults: [_self_, optional nowhere, optional override /strategy: fedldp, optional override /model: none]"
    (tmp_path / "conf/experiment/mine.yaml").write_text(f"# @package _global_\n{text}\n")
    with with_own_methods(tmp_path):
        assert compose(["experiment=mine"]).strategy.name == "fedldp"


def test_a_reference_to_the_time_of_day_is_followed() -> None:
    assert re.fullmatch(r"log-20\d\d", compose(["operations.log_file=log-${now:%Y}"]).operations.log_file or "")


def test_no_experiment_can_be_asked_for() -> None:
    assert compose(["experiment=null", "seed=3"]) == compose(["~experiment", "seed=3"]) == compose(["seed=3"])


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    (tmp_path / "conf/experiment").mkdir(parents=True)
    file = tmp_path / "conf/experiment/mine.yaml"
    with with_own_methods(tmp_path):
        for rounds in (7, 11):
            file.write_text(f"# @package _global_\nnum_rounds: {rounds}\nengine: {{faults: [{{round: {rounds}}}]}}\n")
            tree = composed(parse(["experiment=mine"]))
            assert tree["num_rounds"] == rounds
            tree["engine"]["faults"].append("spoilt")
            assert composed(parse(["experiment=mine"]))["engine"]["faults"] == [{"round": rounds}]


#: The first digits of what runs had on 29 November 2026: results that were committed then are found by these.
DIGESTS = {
    "strategy=fedavg": "c3079552b8c7effc",
    "strategy=fedcad": "08c56cdaccf25ecd",
    "strategy=dpsgd": "9f59a3d3ce0350ec",
    "strategy=agn": "b92a5c2ac5bd8aef",
    "strategy=dpftrl": "f955ebb4f9b85048",
    "strategy=dpsum": "68ce44517f1edd08",
    "experiment=hospitals": "f5bf541f22594f36",
    "features=backbone": "5d61e65095b717a2",
}


@pytest.mark.parametrize("choice", DIGESTS)
def test_a_new_option_leaves_the_digests_of_older_runs(choice: str) -> None:
    """`YOUNGER` in `fedpriv.config.schema` names it, with the value that all runs before had."""
    assert compose([choice]).digest().startswith(DIGESTS[choice])
