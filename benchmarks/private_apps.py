"""Flower's public apps made private by `fedpriv.flower`: lines that change, accuracy, time of a client.

    git clone https://github.com/flwrlabs/flower FLOWER
    python -m benchmarks.private_apps run FLOWER PICTURES [APP] [SEEDS]   # of `APPS`, or all
    python -m benchmarks.private_apps compare   # a mod before torch's own loop, and the same run of `python -m fedpriv`
    python -m benchmarks.private_apps show

The apps' own text is read from FLOWER, changed in memory of a copy by `APPS`, and both are run in this process, each
from its own ServerApp on; in the place of the hub's data sets their loaders get scikit-learn's iris and, of PICTURES,
MNIST/raw/*-ubyte and cifar10/{train,test}/CLASS/*. fedprox needs the package easydict. Lines of JSON go to
benchmarks/results/private_apps.jsonl. Time: processor time of a whole answer / of the app's own part of it, median over
the answers of a run; accuracy: mean over SEEDS (5).
"""

from __future__ import annotations

import difflib
import importlib
import io
import json
import math
import re
import shutil
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict

from fedpriv.apps.client import AppClient, _App
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.runs.preparation import resolve

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "private_apps.jsonl"
SERVER, CLIENT = "server_app.py", "client_app.py"
IMPORT = (CLIENT, "import ClientApp", "import ClientApp\nfrom fedpriv.flower import fedcad_mod")
STRATEGY = (SERVER, "from flwr.serverapp.strategy import FedAvg", "from fedpriv.flower import FedCAD")
MOD = (CLIENT, "app = ClientApp()", "app = ClientApp(mods=[fedcad_mod()])")
#: Of each app its place in FLOWER, package, nodes, run-config of one's own, and what changes: (file, before, after).
APPS: dict[str, dict[str, Any]] = {
    "quickstart-pytorch": {
        "folder": "examples/quickstart-pytorch",
        "package": "pytorchexample",
        "nodes": 10,
        "config": {"num-server-rounds": 5, "learning-rate": 0.01},
        "changes": [
            STRATEGY,
            (SERVER, "FedAvg(fraction_evaluate=fraction_evaluate)", "FedCAD({options})"),
            (SERVER, "    # Save final", "    print(strategy.privacy)\n    # Save final"),
            IMPORT,
            MOD,
        ],
    },
    "quickstart-sklearn": {
        "folder": "examples/quickstart-sklearn",
        "package": "sklearnexample",
        "nodes": 10,
        "config": {},
        "changes": [
            STRATEGY,
            (SERVER, "FedAvg(fraction_train=1.0, fraction_evaluate=1.0)", "FedCAD({options})"),
            (SERVER, "    # Save final", "    print(strategy.privacy)\n    # Save final"),
            IMPORT,
            MOD,
        ],
    },
    "fedprox": {  # its server is of Flower's older form, of which no strategy of the newer one is a part
        "folder": "baselines/fedprox",
        "package": "fedprox",
        "nodes": 1000,
        "config": {"algorithm.num-server-rounds": 30},
        "changes": [
            (SERVER, "from flwr.server import (\n    ServerApp,\n    ServerAppComponents,\n    ServerConfig,\n", ""),
            (
                SERVER,
                "    SimpleClientManager,\n)\n",
                "from flwr.app import ArrayRecord, MetricRecord\nfrom flwr.serverapp import ServerApp\n"
                "from fedpriv.flower import FedCAD\n",
            ),
            (SERVER, "def server_fn(context", "app = ServerApp()\n\n\n@app.main()\ndef main(grid, context"),
            (SERVER, "FedAvgWithStragglerDrop(\n        fraction_fit", "FedCAD(\n        fraction_train"),
            (SERVER, "fraction_evaluate=run_config.algorithm.fraction_evaluate,\n        ", ""),
            (SERVER, "min_available_clients=", "min_available_nodes="),
            (
                SERVER,
                "        initial_parameters=parameters,\n        on_fit_config_fn=get_on_fit_config(),\n"
                "        evaluate_fn=evaluate_fn,\n    )\n    client_manager = SimpleClientManager()\n"
                "    server = ResultsSaverServer(\n        client_manager=client_manager,\n        strategy=strategy,\n"
                "        results_saver_fn=history_saver,\n        run_config=run_config,\n    )\n"
                "    config = ServerConfig(num_rounds=int(run_config.algorithm.num_server_rounds))\n"
                "    return ServerAppComponents(server=server, config=config)\n",
                "        {options}\n    )\n    strategy.start(\n        grid=grid,\n"
                "        initial_arrays=ArrayRecord(ndarrays),\n"
                "        num_rounds=int(run_config.algorithm.num_server_rounds),\n"
                "        evaluate_fn=lambda n, a: MetricRecord(evaluate_fn(n, a.to_numpy_ndarrays(), {{}})[1]),\n"
                "    )\n"
                "    print(strategy.privacy)\n",
            ),
            (SERVER, "\n# Create ServerApp\napp = ServerApp(server_fn=server_fn)\n", ""),
            (CLIENT, 'config["current_round"]', 'config["server-round"]'),
            (CLIENT, "from flwr.common import", "from fedpriv.flower import fedcad_mod\nfrom flwr.common import"),
            (CLIENT, "ClientApp(client_fn)", "ClientApp(client_fn, mods=[fedcad_mod()])"),
        ],
    },
}
#: The method's own defaults; and a run's verified epsilon of 50, by its own plan.
OPTIONS = {"defaults": "", "epsilon 50": "target_epsilon=50"}


# --- data ------------------------------------------------------------------------------------------------------------


class LocalDataset:
    """In the place of `flwr_datasets.FederatedDataset`: the app's own partitioner over local rows."""

    pictures = Path()

    def __init__(self, *, dataset: str, partitioners: dict[str, Any], **_: Any) -> None:
        (self.partitioner,) = partitioners.values()
        self.partitioner.dataset = rows_of(dataset, self.pictures)["train"]

    def load_partition(self, partition_id: int, split: str = "train") -> Any:
        return self.partitioner.load_partition(partition_id)


def load_local(path: str, split: str | None = None, **_: Any) -> Any:
    """In the place of `datasets.load_dataset`."""
    found = rows_of(path, LocalDataset.pictures)
    return found if split is None else found[split]


@cache
def rows_of(name: str, pictures: Path) -> dict[str, Any]:
    """Part -> `datasets.Dataset`."""
    import datasets
    from PIL import Image
    from sklearn.datasets import load_iris
    from torchvision.datasets import MNIST

    if name.endswith("iris"):
        found = load_iris()
        order = np.random.default_rng(0).permutation(len(found.target))
        columns = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
        table = {column: found.data[order, place] for place, column in enumerate(columns)}
        return {"train": datasets.Dataset.from_dict({**table, "species": found.target[order]})}

    def pictures_of(key: str, images: Iterable[Any], labels: Iterable[int], kind: Any) -> Any:
        given = {key: list(images), "label": list(labels)}
        return datasets.Dataset.from_dict(given, features=datasets.Features({key: datasets.Image(), "label": kind}))

    parts = {}
    for part in ("train", "test"):
        if name.endswith("mnist"):
            known = MNIST(str(pictures), train=part == "train")
            some = slice(None, None, 1 if part == "train" else 5)
            images = [Image.fromarray(image.numpy()) for image in known.data[some]]
            parts[part] = pictures_of("image", images, known.targets[some].tolist(), datasets.Value("int64"))
        else:
            folders = sorted((pictures / "cifar10" / part).iterdir())
            files = [(file, label) for label, folder in enumerate(folders) for file in sorted(folder.iterdir())]
            np.random.default_rng(0).shuffle(files)  # type: ignore[arg-type]
            images = [Image.open(file).convert("RGB") for file, _ in files]
            parts[part] = pictures_of("img", images, [int(label) for _, label in files], datasets.Value("int64"))
    return parts


# --- a run -----------------------------------------------------------------------------------------------------------


def nodes_of(app: Any, count: int, config: dict[str, Any]) -> Any:
    """A grid of nodes in this process."""
    sys.path[:0] = [str(ROOT / "tests" / "apps")]
    from nodes_of_an_app import AppNodes  # type: ignore[import-not-found]

    grid = AppNodes(app, count)
    grid.__class__ = type("Nodes", (AppNodes,), {"run": SimpleNamespace(run_id=1)})  # the older server asks for it
    for node in grid.contexts:
        own = {"partition-id": node - 101, "num-partitions": count}
        grid.contexts[node] = Context(1, node, own, RecordDict(), config)
    return grid


@contextmanager
def timed() -> Iterator[list[float]]:
    """Of every answer behind a mod: its processor time / that of the app's own part."""
    found: list[float] = []
    own = [0.0]
    whole, part = AppClient.message_answered, _App._asked

    def answered(client: AppClient, message: Any, context: Any) -> Any:
        own[0], began = 0.0, time.process_time()
        reply = whole(client, message, context)
        if own[0]:
            found.append((time.process_time() - began) / own[0])
        return reply

    def asked(app: _App, content: Any) -> Any:
        began = time.process_time()
        reply = part(app, content)
        own[0] = time.process_time() - began
        return reply

    with mock.patch.object(AppClient, "message_answered", answered), mock.patch.object(_App, "_asked", asked):
        yield found


def run(name: str, flower: Path, options: str | None, seed: int) -> dict[str, Any]:
    """One run of an app, as it is (None) or with `FedCAD` and these options."""
    known = APPS[name]
    np.random.seed(seed)  # noqa: NPY002  (the apps' own)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as place, chdir(place):
        app = Path(place) / "app"
        shutil.copytree(flower / known["folder"], app)
        lines = 0 if options is None else change(app / known["package"], known["changes"], options)
        config = flatten_dict(tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
        config |= known["config"]
        sys.path[:0] = [str(app)]
        try:
            client, server = (
                importlib.import_module(f"{known['package']}.{half}_app") for half in ("client", "server")
            )
            grid, said = nodes_of(client.app, known["nodes"], config), io.StringIO()
            tested = noted(server, "test") if hasattr(server, "test") else []
            with redirect_stdout(said), timed() as ratios:
                server.app(grid, Context(1, 1, {}, RecordDict(), config))
            right = tested[-1][1] if tested else of_sklearn(client)
            epsilon = re.search(r"verified=([\d.e+-]+|inf)", said.getvalue())
            found = {"lines": lines, "accuracy": float(right), "epsilon": epsilon and float(epsilon[1])}
            return {**found, "time": statistics.median(ratios or [1.0])}
        finally:
            sys.path.remove(str(app))
            for module in [module for module in sys.modules if module.partition(".")[0] == known["package"]]:
                del sys.modules[module]


def noted(module: Any, name: str) -> list[Any]:
    """What a function of a module returns from now on: (loss, accuracy) of the global model, of an app's `test`."""
    found, real = [], getattr(module, name)

    def function(*given: Any, **named: Any) -> Any:
        found.append(real(*given, **named))
        return found[-1]

    setattr(module, name, function)
    return found


def of_sklearn(client: Any) -> float:
    """Accuracy of the model that the app left, on all nodes' test parts."""
    import joblib

    model, parts = joblib.load("logreg_model.pkl"), [client.load_data(part, 10) for part in range(10)]
    return float(model.score(*(np.concatenate([part[place] for part in parts]) for place in (2, 3))))


def change(package: Path, changes: Iterable[tuple[str, str, str]], options: str) -> int:
    """Changes an app's files; returns how many of the new text's lines are not in the old one, or the other way."""
    before = {name: (package / name).read_text() for name in (SERVER, CLIENT)}
    after = dict(before)
    for file, old, new in changes:
        assert after[file].count(old) == 1, f"{file}: {old!r} is there {after[file].count(old)} times"
        after[file] = after[file].replace(old, new.format(options=options))
    added = removed = 0
    for name, text in after.items():
        (package / name).write_text(text)
        for line in difflib.ndiff(before[name].splitlines(), text.splitlines()):
            added, removed = added + line.startswith("+ "), removed + line.startswith("- ")
    return max(added, removed)


def main(flower: Path, pictures: Path, names: list[str], seeds: int) -> None:
    import datasets
    import flwr_datasets

    LocalDataset.pictures = pictures
    flwr_datasets.FederatedDataset, datasets.load_dataset = LocalDataset, load_local  # type: ignore[misc,assignment]
    for name in names or APPS:
        rows: dict[str, list[dict[str, Any]]] = {form: [] for form in ("bare", *OPTIONS)}
        for seed in range(seeds):
            for form in rows:
                rows[form].append(run(name, flower, OPTIONS.get(form), seed))
                print(name, form, seed, rows[form][-1], flush=True)
        for form, found in rows.items():
            known = {key: found[0][key] for key in ("lines", "epsilon")}
            times = statistics.median(one["time"] for one in found)
            line = {"app": name, "form": form, **known, "accuracy": [one["accuracy"] for one in found], "time": times}
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")


def compare(seeds: int = 8) -> None:
    """Accuracy on digits, 10 clients, 10 rounds: mean and half width of the 95 % interval."""
    from fedpriv import flower, run
    from fedpriv.training.evaluation import Evaluator

    size = ["model=linear", "num_clients=10", "clients_per_round=10", "num_rounds=10", "operations.report=false"]
    size += ["local.lr=0.1", "local.batch_size=32", "local.epochs=3", "local.sampler=shuffle", "engine=inprocess"]
    for noise in (0.1, 0.3):
        found: dict[str, list[float]] = {"mod": [], "python -m fedpriv": []}
        for seed in range(seeds):
            options = ["strategy=fedcad", f"strategy.client.noise_multiplier={noise}", f"seed={seed}", *size]
            with tempfile.TemporaryDirectory() as folder:
                whole = run(options, folder=Path(folder) / "run", quiet=True).summary["accuracy"]["final"]
            config, worker, _ = resolve(compose(options), None)
            torch.manual_seed(seed)
            apps = [torch_app(Worker(config), client) for client in range(10)]
            strategy = flower.FedCAD(noise_multiplier=noise, min_available_nodes=10)
            arrays = ArrayRecord(worker.model.module.state_dict())
            result = strategy.start(nodes_of(apps, 10, {}), arrays, 10).arrays
            theta = np.concatenate([array.numpy().ravel() for array in result.values()])
            found["mod"].append(100 * Evaluator(worker)(theta).metrics["accuracy"])
            found["python -m fedpriv"].append(100 * whole)
        for form, right in found.items():
            print(f"noise {noise}, {form}: {np.mean(right):.1f} ± {2.36 * np.std(right, ddof=1) / seeds**0.5:.1f}")


def torch_app(worker: Worker, client: int) -> ClientApp:
    """SGD as anybody writes it, on the rows of a run's client."""
    from fedpriv import flower

    rows, module = worker.local_data(client), worker.model.module
    inputs, targets = rows.inputs.float(), rows.targets
    app = ClientApp(mods=[flower.fedcad_mod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            for batch in torch.randperm(len(inputs)).split(32):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(inputs[batch]), targets[batch]).backward()
                optimizer.step()
        content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(inputs)})}
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    return app


def show() -> None:
    print("| app | options | changed lines | accuracy in % | verified epsilon | time of a client |")
    for row in map(json.loads, RESULTS.read_text().splitlines()):
        right = 100 * np.array(row["accuracy"])
        shown = [f"{right.mean():.1f} ({right.min():.1f} to {right.max():.1f})", f"{row['epsilon'] or math.inf:.4g}"]
        print(f"| {row['app']} | {row['form']} | {row['lines']} | {shown[0]} | {shown[1]} | {row['time']:.2f} |")


if __name__ == "__main__":
    if sys.argv[1] in ("show", "compare"):
        {"show": show, "compare": compare}[sys.argv[1]]()
    else:
        flower, pictures, *names = sys.argv[2:]
        seeds = int(names.pop()) if names and names[-1].isdecimal() else 5
        main(Path(flower).resolve(), Path(pictures).resolve(), names, seeds)
