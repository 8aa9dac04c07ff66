"""Every rule over several options refuses what it is there for, with the option, its value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from fedpriv.common.errors import OptionError
from fedpriv.config import checks
from fedpriv.config.checks import RULES
from fedpriv.config.compose import compose, option_names
from fedpriv.config.methods import METHODS
from fedpriv.config.schema import Config
from fedpriv.config.strategy_options import followed, spelled
from fedpriv.report.reading import leaves

NODES = "dataset=on_nodes num_clients=2 clients_per_round=2 dataset.classes=[a,b] dataset.examples=[5,5] dataset.size=8"
TABLE = "dataset=on_nodes num_clients=2 clients_per_round=2 dataset.schema_file=x dataset.examples=[5,5]"
SUMMED = "strategy=ddgauss strategy.secure_sum=protocol"
BAND = "strategy=dpftrl strategy.client.factor=banded"
TURNS = f"{BAND} strategy.server.client_sampling=poisson strategy.server.participation=cyclic"
ALLOCATED = "strategy=dpfedavg strategy.client.form=central strategy.server.client_sampling=allocated"
ONCE, BALANCED = (f"strategy=privunit strategy.server.participation={plan}" for plan in ("once", "balanced"))
FEW = "num_clients=12 clients_per_round=3 num_rounds=4"

#: rule -> options that break it; the last one is the one that is refused, where it is given.
BREAKING = {
    "colluders": "strategy=ddgauss strategy.server.min_replies=3 strategy.client.colluders=3",
    "example-batches": "strategy=dpsgd local.sampler=shuffle",
    "example-momentum": "strategy=agn local.momentum=0.9",
    "example-epochs": "strategy=anr local.epochs=2",
    "example-steps": "strategy=dpsgd local.steps=3",
    "example-median": "strategy=dpsgd strategy.client.clipping=median",
    "group-size": "strategy=coqfl num_clients=30 clients_per_round=9 strategy.client.group_size=10",
    "shuffle-delta": "strategy=ldpfl strategy.client.shuffle=true strategy.client.shuffle_delta=0.5",
    "gradient-momentum": "strategy=dpfedavg local.momentum=0.5",
    "score-bound": "strategy=fedags strategy.client.selection=gumbel strategy.client.score_bound=7",
    "central-sampling": "strategy=dpfedavg strategy.client.form=central strategy.server.client_sampling=fixed",
    "central-replies": "strategy=dpfedavg strategy.client.form=central strategy.server.client_sampling=poisson "
    "strategy.server.min_replies=3",
    "noise-rate": "strategy=dpfedavg strategy.server.learning_rate=noise",
    "central-quantile": "strategy=dpfedavg strategy.server.clipping=quantile",
    "central-clip-norm": "strategy=dpfedavg strategy.client.form=central strategy.server.client_sampling=poisson "
    "strategy.server.clipping=quantile strategy.server.norm_bound=1 strategy.client.clip_norm=99.0",
    "loss-share": "strategy=fedags strategy.client.loss_weights=true strategy.client.selection_share=0.6 "
    "strategy.client.loss_share=0.5",
    "published-noise": "strategy=fedags strategy.client.noise=laplace",
    "published-sensitivity": "strategy=dpfedavg strategy.client.sensitivity=per_example",
    "published-split": "strategy=fedags strategy.client.epsilon_split=[1,2,3]",
    "split-parts": "strategy=fedags privacy.variant=published strategy.client.epsilon_split=[1,2,0]",
    "split-sum": "strategy=fedags privacy.variant=published strategy.client.epsilon=9 "
    "strategy.client.epsilon_split=[1,2,3]",
    "control-steps": "strategy=scaffold local.steps=null",
    "clip-norm": "strategy=fedldp strategy.server.clipping=adp strategy.client.clip_norm=99",
    "unit-epsilon": "strategy=privunit strategy.client.epsilon=501",
    "balls-turns": "strategy=dpftrl strategy.server.client_sampling=balls strategy.server.participation=balanced",
    "balls-limit": "strategy=dpftrl strategy.server.client_sampling=balls strategy.server.participations=3",
    "groups-factor": "strategy=dpftrl strategy.server.participation=cyclic strategy.server.client_sampling=poisson "
    "strategy.client.factor=sqrt",
    "groups-turns": f"{BAND} strategy.client.bandwidth=1 strategy.server.client_sampling=poisson "
    "strategy.server.participation=once",
    "groups-limit": f"{TURNS} strategy.client.bandwidth=1 strategy.server.participations=60",
    "groups-number": f"{TURNS} strategy.client.bandwidth=2",
    "band-replies": "strategy=dpftrl num_clients=40 over_selection=1.5",
    "no-band": "strategy=dpftrl strategy.client.factor=sqrt strategy.client.bandwidth=3",
    "band-rounds": f"{BAND} strategy.client.bandwidth=61",
    "linear-model": "strategy=fedonce model=mlp",
    "own-optimizer": "strategy=fedonce strategy.server.optimizer=adam",
    "own-rate": "strategy=fedonce strategy.server.lr=0.5",
    "answers": "strategy=ask strategy.client.questions=[count] dataset=breast_cancer model=mlp",
    "scored-one": "strategy=ask strategy.client.questions=[score:a,score:b] dataset=breast_cancer",
    "scored": "strategy=ask strategy.client.questions=[score:a] dataset=breast_cancer",
    "moments": "strategy=moments dataset=breast_cancer model=mlp",
    "moments-alone": "strategy=dpsum dataset=breast_cancer model=moments",
    "no-start": "strategy=dpsum model=constant model.weights=w.safetensors dataset=breast_cancer",
    "lora-layers": "model.train=head model.lora_layers=[hidden]",
    "local-buffers": "strategy=fedavg model.buffers=local",
    "opacus-precision": "strategy=dpsgd local.clipping=opacus engine.precision=bfloat16",
    "cohort": "num_clients=5 clients_per_round=6",
    "replies": "strategy.server.min_replies=21",
    "target": "privacy.max_epsilon=2 privacy.target_epsilon=5.0",
    "target-observer": "privacy.target_observer=public",
    "cluster": "engine.address=auto",
    "faults-seeded": "engine.faults={rate:0.3} privacy.rng=secure",
    "faults-never": "engine.faults=[{round:61,client:1,kind:drop}]",
    "features-map": "features.map=strokes",
    "features-upright": "+features.normalise=moments",
    "features-mirror": "+features.mirror=true",
    "features-table": "dataset=breast_cancer features=gradients",
    "features-drawings": "features=gradients features.map=drawings",
    "mirrored-strokes": "features=gradients features.map=strokes features.mirror=true",
    "features-model": "features=gradients model=cnn",
    "nodes-table-classes": f"{TABLE} dataset.classes=[a,b]",
    "nodes-schema": f"{NODES} dataset.schema_digest={'0' * 64}",
    "nodes-classes": NODES.replace("[a,b]", "[a,a]"),
    "nodes-examples": NODES.replace("[5,5]", "[5,0]"),
    "nodes-size": NODES.replace("size=8", "size=null"),
    "nodes-partition": f"{NODES} partition=shards",
    "nodes-faults": f"{NODES} engine.faults={{rate:1}}",
    "over-selection-drawn": "num_clients=40 strategy.server.client_sampling=poisson over_selection=1.3",
    "over-selection-all": "over_selection=1.3",
    "allocated-open": "strategy=dpfedavg strategy.server.client_sampling=allocated",
    "allocated-even": f"{ALLOCATED} num_clients=10 clients_per_round=3",
    "allocated-long": f"{ALLOCATED} dataset=custom dataset.path=a.b clients_per_round=1 num_clients=1000001",
    "own-cohorts": "strategy=fedavg strategy.server.client_sampling=poisson strategy.server.cohorts=a.b",
    "sampled-limit": "strategy.server.participations=2",
    "planned-cohorts": f"{ONCE} {FEW} strategy.server.client_sampling=poisson",
    "once-limit": f"{ONCE} {FEW} strategy.server.participations=2",
    "once-rounds": f"{ONCE} {FEW} num_rounds=5",
    "limit-rounds": f"{BALANCED} {FEW} num_rounds=9 strategy.server.participations=2",
    "no-sum": "strategy=fedldp strategy.secure_sum=ideal",
    "sum-sensitivity": "strategy=cpsgd privacy.variant=published strategy.secure_sum=ideal "
    "strategy.client.sensitivity=per_example",
    "sum-sample": "strategy=dpsum dataset=breast_cancer strategy.client.sampling_rate=0.5",
    "sum-local": "strategy=dpsum dataset=breast_cancer strategy.client.form=local strategy.secure_sum=protocol",
    "sum-threshold": "strategy=ddgauss strategy.server.threshold=21",
    "sum-of-one": "strategy=ddgauss num_clients=1 clients_per_round=1 strategy.secure_sum=protocol",
    "sum-members": f"{SUMMED} dataset=custom dataset.path=a.b num_clients=16385 clients_per_round=16385",
    "sum-halves": f"{SUMMED} strategy.server.threshold=10",
    "sum-colluders": f"{SUMMED} num_clients=100 clients_per_round=100 strategy.server.min_replies=99 "
    "strategy.client.colluders=34",
    "sum-closes": f"{SUMMED} num_clients=40 clients_per_round=10 over_selection=2.0",
    "train-examples": "dataset.train_examples=1438",
    "resampled": "partition=resampled partition.examples_per_client=1438",
    "clients": "num_clients=1438",
    "classes": "partition=pathological partition.classes_per_client=11",
}


def test_every_rule_is_tried() -> None:
    assert BREAKING.keys() == {rule.id for rule in RULES} and len(BREAKING) == len(RULES)


@pytest.mark.parametrize("name", BREAKING)
def test_a_rule_refuses_with_option_value_and_what_is_allowed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else refuses in its place: without the rule there is no such error."""
    (rule,) = (rule for rule in RULES if rule.id == name)
    given = BREAKING[name].split()
    with pytest.raises(OptionError) as refused:
        compose(given)
    message = str(refused.value)
    option = re.sub(r"\\{x.*?\\}", r"\\w+", re.escape(rule.option))
    assert re.fullmatch(option, refused.value.option) and message.startswith(f"{refused.value.option}=")
    values = dict(override.lstrip("+").split("=", 1) for override in given)
    if "[" not in (said := values.get(refused.value.option, "[")) and "{" not in said:
        assert message.startswith(f"{refused.value.option}={said}: ")
    assert all(words in message for words in re.split(r"\{[^}]*\}", rule.words)) and "{" not in refused.value.allowed
    monkeypatch.setattr(checks, "RULES", tuple(other for other in RULES if other is not rule))
    try:
        compose(given)
    except OptionError as other:
        assert str(other) != message


OVERRIDE = re.compile(r"(?<![\w.=])([a-z_]+(?:\.[a-z_]+)*)=([\w.+|-]*\w|\[\])")
VALUE = re.compile(r"null|true|false|\[\]|-?\d[\d.e+-]*|[a-z]\w*")


def remedies(option: str, words: str) -> Iterator[tuple[str, str]]:
    """(option, value) of each remedy that a refusal names, and of each option that it names as its reason: a bare word
    is a value of the option before it.
    """
    reason, marked, allowed = words.rpartition("allowed: ")
    if not marked:
        reason, marked, allowed = words.rpartition(": ")
    yield from OVERRIDE.findall(reason if marked else words)
    for part in re.split(r"; |, or |, | or ", allowed):
        if limit := re.fullmatch(r"(?:at most|at least) ([\d.e+-]+)(?: is allowed|)", part):
            yield option, limit[1]
        elif marked and (found := OVERRIDE.search(part)):
            option = found[1]
            yield from ((option, value) for value in found[2].split("|"))
        elif marked and VALUE.fullmatch(part):
            yield option, part


@pytest.mark.parametrize("name", BREAKING)
def test_every_remedy_of_a_refusal_is_applied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a message tells to write is an option and a value, and that refusal does not come again."""
    given = BREAKING[name].split()
    with pytest.raises(OptionError) as refused:
        compose(given)
    with monkeypatch.context() as patch:
        patch.setattr(checks, "RULES", ())
        in_force = dict(leaves(compose(given).to_dict()))
    for option, value in remedies(refused.value.option, refused.value.allowed):
        known = in_force.get(option, in_force.get(f"{option}.name"))
        if value in (str(known), f"{known:g}" if isinstance(known, float) else "") or re.search(r"\.\d", option):
            continue  # a reason, as it is; or an element of a list, which no option sets
        others = [override for override in given if override.lstrip("+").partition("=")[0] != option]
        try:
            compose([*others, f"{option}={value}"])
        except OptionError as again:
            assert str(again) != str(refused.value), f"{option}={value} is no remedy of: {again}"
            assert again.option != option or str(again.value) != value, f"a wrong remedy: {again}"


def outside(field: FieldInfo) -> Iterator[tuple[Any, str]]:
    """(a value just outside an option's range, what its error says)."""
    words = {"ge": "must be at least", "gt": "must be more than", "le": "must be at most", "lt": "must be less than"}
    parts = () if get_origin(field.annotation) is tuple else (field.annotation, *get_args(field.annotation))
    whole = int in parts and not any(get_origin(part) is Literal for part in parts)
    for limit in field.metadata:
        for name, says in words.items():
            if (end := getattr(limit, name, None)) is not None:
                step = (1 if whole else abs(end) / 8 or 1) * {"ge": -1, "le": 1}.get(name, 0)
                yield end + step, f"{says} {end:g}" if end < 1e6 else says
    for kind in parts:
        if get_origin(kind) is Literal and all(isinstance(choice, str) for choice in get_args(kind)):
            yield "nonsense", f"allowed: {get_args(kind)[0]}" if len(get_args(kind)) > 1 else ""
    if whole:
        yield 2.5, "must be a whole number"
    elif float in parts:
        yield "nan", "must be a finite number"


@pytest.mark.parametrize("method", [*METHODS, None])
def test_a_value_just_outside_its_range_is_refused(method: str | None) -> None:
    """Of every option of every method; None: of the groups that all methods have."""
    strategy = [] if method is None else [f"strategy={method}"]
    if method is None:
        present, groups = option_names([], ""), Config.model_fields.items()
        kinds = [(name, field.annotation) for name, field in groups if isinstance(field.annotation, type)]
        options = {name: field for name, field in groups if field.metadata}
        for group, kind in kinds:
            options |= {f"{group}.{n}": f for n, f in getattr(kind, "model_fields", {}).items() if n != "name"}
        options = {name: field for name, field in options.items() if name in present and name[:9] != "strategy."}
    else:
        fields = METHODS[method].model_fields.items()
        options = {spelled(METHODS[method], n): f for n, f in fields if not followed(METHODS[method], n)}
    tried = 0
    for option, field in options.items():
        for value, words in outside(field):
            with pytest.raises(OptionError) as refused:
                compose([*strategy, f"{option}={value}"])
            assert refused.value.option == option and words in refused.value.allowed, (option, value)
            assert str(refused.value).startswith(f"{option}={value}: ")
            tried += 1
    assert tried >= 10
