"""`fedpriv new NAME [folder=.] [app=false]`: a new method, private from its first run; or a new Flower app.

    strategies/NAME.py       server half: takes the mean of the updates that arrive
    clients/NAME.py          client half: clips, adds Gaussian noise, states its cost; a place for your idea
    conf/strategy/NAME.yaml  its options
    tests/test_NAME.py       it runs and repeats, the ledger matches the closed form, no attack exceeds it

folder: where one works; what is missing of its folders is made. A run finds the method while that is the working
directory, before what is installed. NAME: lower-case letters, digits and _. No file is ever replaced. Engines, ledger,
auditor, reports, sweeps and the project's tests work with the method at once; nothing has to be registered.

app=true: a whole small Flower app in the folder NAME in place of these, with Fed-CAD from `fedpriv.flower` and the
digits that come with scikit-learn: `cd NAME && flwr run . --stream` trains it (docs/flower.md).

    NAME/pyproject.toml      for Flower: where both halves are, and the run's options
    NAME/NAME/task.py        model, data, training: yours
    NAME/NAME/client_app.py  a Flower client, made private by one mod
    NAME/NAME/server_app.py  trains, prints what the run cost
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from fedpriv.common.command_line import command
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say
from fedpriv.config.methods import METHODS

NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
#: Words that YAML or the command line read as a value, the options that all methods have, and (as `_class` names them)
#: classes that a half imports under the name of one of its own.
NO_NAMES = {"null", "none", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf", "base"}
NO_CLASSES = {"ClippingServer", "Clipping", "Gaussian", "WeighedSum"}

STRATEGY = '''\
"""@name@, server half.

The client adds the noise; the server sees each noisy update and knows who took part; nobody needs to be trusted.
"""

from fedpriv.server.clip_rules import ClippingServer


class @Class@(ClippingServer):
    """theta <- theta + mean of the noisy updates that arrived."""

    # Another mean: `mean`. Another step: `aggregate`. What a round tells the clients: `train_options`. All see noisy
    # updates only. What the server keeps goes through `vectors` and `load_vectors`, or a resumed run forgets it.
    # The options of clients/@name@.py are `self.options` here too.
'''

CLIENT = '''\
"""@name@, client half: what it is, and whose (authors, title, venue).

The client adds the noise; the server sees each noisy update and knows who took part; nobody needs to be trusted.

Symbols: sigma -> noise_multiplier, C -> clip_norm, Delta theta -> update.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from fedpriv.client.contract import Charge, Release
from fedpriv.client.gaussian import GaussianClient
from fedpriv.client.method import Traits
from fedpriv.client.secure_sum import ONE_NOISE, SummedGaussians
from fedpriv.config.methods import ClippingOptions, WeighedSumOptions
from fedpriv.mechanisms.noise import NoiseSource, add_normal, clip, finite_or_zero
from fedpriv.privacy.events import Gaussian


class @Class@Options(WeighedSumOptions, ClippingOptions):
    noise_multiplier: float = Field(ge=0, description="noise standard deviation / clip_norm")


class @Class@Client(SummedGaussians, GaussianClient):
    """Clip to C, add fresh N(0, sigma^2 C^2 I). Under a secure sum, which is assumed, the clients' noises add up."""

    options: @Class@Options
    traits = Traits(why_no_sum=ONE_NOISE)
    # To remember: `Traits(State=Kept, why_no_sum=ONE_NOISE)`, a frozen dataclass of tensors. `perturb` gets the last
    # one (None: the first time), and returns the next one as the second value of `Release`.

    def perturb(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        idea = update  # YOUR IDEA: any function of the update [..., d] (the auditor calls it with many trials at once)
        clipped = clip(finite_or_zero(idea), self.clip_norm)
        value = add_normal(clipped, self.noise_multiplier * self.clip_norm, noise)
        return Release(value, None, self.figures(clipped, value - clipped))

    def charges(self, state: Any) -> tuple[Charge, ...]:
        # Two data sets move what was clipped by at most 2C under replace-one, whatever the idea is.
        own = Gaussian(threat=self.threat, multiplier=self.noise_multiplier / 2)
        return Charge(own), *self.summed(own)  # to the server, and to whoever sees sums alone
'''

CONFIG = """\
# @package _global_
# clip, then Gaussian noise on every coordinate. How C moves, if it does: base.yaml.
defaults: [base, _self_]
strategy:
  name: @name@
  server: {_target_: strategies.@name@.@Class@, min_replies: 1, client_sampling: fixed, weighting: uniform}
  client:
    _target_: clients.@name@.@Class@Client
    noise_multiplier: 1.0 # sigma: noise standard deviation / clip_norm
    clip_norm: 1.0 # C
    colluders: 0 # among min_replies: clients whose noise the observer of a secure sum knows
"""

TEST = '''\
"""@name@ repeats, its ledger is the closed form, no attack finds more than that."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest

import fedpriv
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

SIGMA, ROUNDS, DELTA = 4.0, 3, 1e-5
NAME = "@name@"
METHOD = [f"strategy={NAME}", f"strategy.client.noise_multiplier={SIGMA}", f"num_rounds={ROUNDS}"]
QUICK = ["model=linear", "dataset.train_examples=200", "num_clients=4", "clients_per_round=4", "engine=inprocess"]
QUICK += ["engine.trainer=sequential", "operations.report=false"]


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])


def closed_form(releases: int) -> float:
    """Epsilon of so many Gaussians: the sensitivity is 2C, so each has mu = 2 / sigma."""
    return gaussian_epsilon(math.sqrt(releases) * 2 / SIGMA, DELTA)


def test_it_repeats_and_its_epsilon_is_the_closed_form(tmp_path: Path) -> None:
    first, second = (fedpriv.run([*METHOD, *QUICK], folder=tmp_path / name, quiet=True) for name in "ab")
    models = {hashlib.sha256((run.folder / "model.safetensors").read_bytes()).hexdigest() for run in (first, second)}
    ledgers = {(run.folder / "ledger.jsonl").read_text() for run in (first, second)}
    assert (len(models), len(ledgers)) == (1, 1)
    ledger = first.ledger
    assert len(ledger) == ROUNDS * 4
    assert set(ledger["mechanism"]) == {"gaussian"} and set(ledger["multiplier"]) == {SIGMA / 2}
    assert first.verified_epsilon == pytest.approx(closed_form(ROUNDS), rel=1e-6)


def test_audited_is_at_most_verified() -> None:
    for scope in fedpriv.audit_run(METHOD, trials=60_000, confidence=0.999, seed=7).scopes:
        assert scope.verified == pytest.approx(closed_form(scope.participations), rel=1e-6)
        assert 0.25 * scope.verified < scope.audit.epsilon_lower <= scope.verified  # and the auditor is not blind


def test_an_option_out_of_range_is_named() -> None:
    with pytest.raises(fedpriv.OptionError, match=r"strategy\\.client\\.noise_multiplier=-1.*must be at least 0"):
        fedpriv.plan_run([*METHOD[:1], "strategy.client.noise_multiplier=-1"])
'''

APP_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "@app@"
version = "1.0.0"
description = "A private Flower app: Fed-CAD by fedpriv.flower"
license = "Apache-2.0"
dependencies = [] # Flower would fetch them anew for each run; where fedpriv is installed, so is all that this app needs

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "example"

[tool.flwr.app.components]
serverapp = "@name@.server_app:app"
clientapp = "@name@.client_app:app"

[tool.flwr.app.config]
num-server-rounds = 10
local-epochs = 3
learning-rate = 0.1
noise-multiplier = 0.3 # sigma: noise standard deviation / clip-norm
clip-norm = 1.0 # C: L2 bound of what a client's training may change
run-dir = "" # folder for ledger, model and report; "": none is kept
"""

APP_TASK = '''\
"""@name@: model, data and training; nothing here knows of privacy."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def new_model():
    return nn.Sequential(nn.Linear(64, 10))


def load_data(part=None, parts=1):
    """One node's share of the digits, or (None) the server's pictures for testing: every fifth."""
    inputs, labels = load_digits(return_X_y=True)
    rows = torch.arange(len(labels))
    rows = rows[rows % 5 == 0] if part is None else rows[rows % 5 != 0][part::parts]
    inputs, labels = torch.tensor(inputs / 16, dtype=torch.float32)[rows], torch.tensor(labels)[rows]
    return DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=part is not None)


def train(model, loader, epochs, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
    return loss.item()


def accuracy(model, loader):
    with torch.no_grad():
        hits = [model(inputs).argmax(1) == labels for inputs, labels in loader]
    return float(torch.cat(hits).float().mean())
'''

APP_CLIENT = '''\
"""@name@: a Flower client; the mod makes its answers private."""

from fedpriv.flower import fedcad_mod
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from @name@.task import load_data, new_model, train

# On a real node: fedcad_mod(folder="/srv/clinic", max_epsilon=8.0). Its ledger there says what left; more is refused.
app = ClientApp(mods=[fedcad_mod()])


@app.train()
def train_message(message, context):
    model, config = new_model(), context.run_config
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss = train(model, loader, config["local-epochs"], config["learning-rate"])
    metrics = MetricRecord({"num-examples": len(loader.dataset), "train-loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
'''

APP_SERVER = '''\
"""@name@: a Flower server with Fed-CAD in the place of FedAvg."""

from fedpriv.flower import FedCAD
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp

from @name@.task import accuracy, load_data, new_model

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    strategy = FedCAD(
        noise_multiplier=config["noise-multiplier"], clip_norm=config["clip-norm"], run_dir=config["run-dir"] or None
    )
    arrays, rounds = ArrayRecord(new_model().state_dict()), config["num-server-rounds"]
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, evaluate_fn=evaluate)
    print(strategy.privacy)


def evaluate(server_round, arrays):
    model = new_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    found = accuracy(model, load_data())
    print(f"round {server_round}: accuracy {found:.3f}")
    return MetricRecord({"accuracy": found})
'''

#: Path of each file.
APP_FILES = {
    "@name@/pyproject.toml": APP_PROJECT,
    "@name@/@name@/__init__.py": "",
    "@name@/@name@/task.py": APP_TASK,
    "@name@/@name@/client_app.py": APP_CLIENT,
    "@name@/@name@/server_app.py": APP_SERVER,
}
FILES = {
    "strategies/@name@.py": STRATEGY,
    "clients/@name@.py": CLIENT,
    "conf/strategy/@name@.yaml": CONFIG,
    "tests/test_@name@.py": TEST,
}


def make_method(name: str, folder: Path, files: Mapping[str, str] = FILES) -> list[Path]:
    """Writes all files, those of a method or `APP_FILES`, or none; returns them. Raises `OptionError`, OSError."""
    check_name(name)
    if files is APP_FILES and importlib.util.find_spec(name) and not (folder / name).exists():
        raise OptionError("NAME", name, "is a package that Python has, which the app would hide; choose another name")
    if folder.exists() and not folder.is_dir():
        raise OptionError("folder", str(folder), "must be a folder")
    made = {folder / _filled(place, name): _filled(text, name) for place, text in files.items()}
    if taken := [path for path in made if path.exists()]:
        raise OptionError("NAME", name, f"{taken[0]} is there already; choose another name")
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(text)
    return list(made)


def check_name(name: str) -> None:
    """Raises `OptionError` if this cannot be the name of a method."""
    if not NAME.fullmatch(name):
        words = "must be small letters, digits and _, a letter first, at most 32 characters (as in my_method)"
        raise OptionError("NAME", name, words)
    if keyword.iskeyword(name) or name in NO_NAMES or _class(name) in NO_CLASSES:
        raise OptionError("NAME", name, "is a word of Python, YAML or the project; choose another name")
    if name in METHODS:
        raise OptionError("NAME", name, "is a method of the project; choose another name")


def _filled(text: str, name: str) -> str:
    text = text.replace("@app@", name.replace("_", "-").strip("-"))
    return text.replace("@name@", name).replace("@Class@", _class(name))


def _class(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


@command
def main(name: str, *, folder: Path = Path("."), app: bool = False) -> None:
    for path in make_method(name, folder, APP_FILES if app else FILES):
        say(path)
    if app:
        say(f"`flwr run {folder / name} --stream` trains it; docs/flower.md has the rest")
    else:
        say(f"`fedpriv strategy={name}` trains with it, `fedpriv audit strategy={name}` attacks it")
    bundle = f"`fedpriv deploy node bundle {folder / name if app else folder}`"
    say(f"in a deployment: an app with other files is another bundle: {bundle} prints its digest for every policy.yaml")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
