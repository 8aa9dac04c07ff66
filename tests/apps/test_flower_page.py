"""docs/flower.md: its table is that of the code, its snippets run, and on Flower's own runtimes its apps train."""

from __future__ import annotations

import difflib
import json
import os
import re
import signal
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doc_commands import blocks
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from nodes_of_an_app import AppNodes
from rotation import together

from deploy.rehearsal import BIN, free_ports, patiently
from fedpriv import flower
from fedpriv.apps.client import NOT_IN_APPS, needs_a_trainer
from fedpriv.commands.new import APP_FILES, make_method
from fedpriv.common.errors import RunFailed
from fedpriv.config.method_pairs import target
from fedpriv.config.methods import METHODS
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.privacy.ledger import LedgerFile

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "flower.md").read_text()
SNIPPETS = ["\n".join(lines) for kind, _, lines in blocks(PAGE) if kind == "python"]
#: What Flower's own quickstart has around the lines that change, of the shape of its example.
SERVER = '''\
"""quickstart: a Flower app."""

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    arrays = ArrayRecord({"weight": Array(np.zeros((2, 3), np.float32)), "steps": Array(np.array(7))})
    strategy = FedAvg(fraction_evaluate=0.5)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=2, evaluate_fn=evaluate)


def evaluate(server_round, arrays):
    return MetricRecord({"accuracy": float(arrays["weight"].numpy().mean())})
'''
CLIENT = '''\
"""quickstart: a Flower app."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg, context):
    arrays = {name: Array(np.asarray(array.numpy() + 1)) for name, array in msg.content["arrays"].items()}
    metrics = MetricRecord({"train_loss": 0.5, "num-examples": 10})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg, context):
    raise AssertionError("nobody asks for it")
'''


def snippet(words: str) -> str:
    """The page's one snippet with these words."""
    (found,) = [text for text in SNIPPETS if words in text]
    return found


def changed(text: str, block: str) -> str:
    """A file of the quickstart with a snippet's lines in the place that each of them names."""
    for line in filter(None, block.splitlines()):
        code = line.partition("  # ")[0]
        if code.startswith("strategy = "):
            text, count = re.subn(r"strategy = FedAvg\(.*\)", code, text)
        elif code.startswith("app = "):
            text, count = re.subn(r"app = ClientApp\(\)", code, text)
        elif "in the place of" in line:
            text, count = re.subn(r"from flwr\.serverapp\.strategy import FedAvg", code, text)
        elif code.startswith("print"):
            text, count = re.subn(r"( +)(result = .*\n)", rf"\1\2\1{code}\n", text)
        else:
            text, count = re.subn(r"(from flwr\.clientapp import ClientApp)", rf"\1\n{code}", text)
        assert count == 1, line
    return text


def test_at_most_ten_lines_change() -> None:
    after = changed(SERVER, snippet("strategy.privacy)  #")), changed(CLIENT, snippet("mods=[fedcad_mod()]"))
    lines = [
        line
        for old, new in zip((SERVER, CLIENT), after, strict=True)
        for line in difflib.ndiff(old.splitlines(), new.splitlines())
        if line.startswith("+ ")
    ]
    assert len(lines) == 5 and "five lines" in PAGE


def test_the_table_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| (`[a-z_, `]+`) \| (`[A-Za-z, `]+`) \| ([^|]*) \| ([^|]*) \|(.*)\|$", PAGE, re.MULTILINE)
    listed = [
        (method, strategy, *cells)
        for methods, strategies, *cells in rows
        for method, strategy in zip(re.findall(r"\w+", methods), re.findall(r"\w+", strategies), strict=True)
    ]
    assert sorted(row[0] for row in listed) == sorted(METHODS)
    for method, strategy, function, trainer, beside in listed:
        assert strategy == target(method, "server").rpartition(".")[2]
        assert flower.client_of(method).__name__ == f"{strategy}Client"
        if (why := NOT_IN_APPS.get(method)) is not None:
            assert (function, trainer, beside.strip()) == ("no", "no", why.partition(";")[0])
            continue
        why = needs_a_trainer(flower.client_of(method).kind())
        assert (function, trainer) == (f"no: {why}" if why else "yes", "yes"), method
        fields = METHODS[method].model_fields
        assert ("public_loss=" in beside) == flower.strategy_of(method).needs_public_loss, method
        assert ("distil=" in beside) == ("distillation_epochs" in fields), method
        assert ("identity keys" in beside) == flower.client_of(method).kind().traits.needs_identity, method
        assert ("trusts_server" in beside) == (
            method in ("dpftrl", "dpfedavg", "dpfedexp", "dpfedsam", "dpzo", "scaffold")
        ), method


# --- the snippets, on nodes in this process --------------------------------------------------------------------------


def nodes_of(app: ClientApp, count: int = 3) -> AppNodes:
    nodes = AppNodes(app, count)
    for context in nodes.contexts.values():
        context.node_config["num-partitions"] = count
    return nodes


def test_a_whole_app_and_one_that_answers_messages(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(snippet("np.asarray(array) + 0.01"), names)
    for more in ("", snippet("FedCADClient(train).train(message, context)")):
        exec(more, names)
        names["server"](nodes_of(names["client"]), Context(1, 1, {}, RecordDict(), {}))
        verified = re.findall(r"verified=([\d.]+)", capsys.readouterr().out)
        assert [float(text) for text in verified] == pytest.approx([gaussian_epsilon(2**0.5 * 20, 1e-5)], rel=0.2)


def test_single_examples_are_protected_by_a_trainer() -> None:
    names: dict[str, Any] = {"ClientApp": ClientApp, "ArrayRecord": ArrayRecord}
    exec(snippet("DPSumClient(Trainer("), names)
    strategy = names["strategy"]
    strategy.start(nodes_of(names["client"], 10), names["start"], 4)
    assert strategy.privacy.unit == "example" and 7.5 < strategy.privacy.verified <= 8.0


def test_a_node_keeps_its_own_terms(tmp_path: Path) -> None:
    names: dict[str, Any] = {"ClientApp": ClientApp, "fedcad_mod": flower.FedCADClient.mod}
    exec(snippet("max_epsilon=20.0").replace("/srv/clinic", str(tmp_path / "clinic")), names)
    exec(CLIENT.replace("app = ClientApp()", ""), names)  # behind the snippet's mod
    start = ArrayRecord([np.zeros((2, 3), np.float32)])
    with pytest.raises(RunFailed, match=r"noise_multiplier=1\.0, this client takes 2.0 alone"):
        flower.FedCAD(noise_multiplier=1.0, min_available_nodes=1).start(nodes_of(names["app"], 1), start, 1)
    flower.FedCAD(noise_multiplier=2.0, min_available_nodes=1).start(nodes_of(names["app"], 1), start, 1)
    assert len(LedgerFile(tmp_path / "clinic/ledger.jsonl", fsync=False).read().entries) == 1


def test_the_commands_of_the_page_work_on_an_apps_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedpriv.commands import audit, certificate
    from fedpriv.report.__main__ import main as report

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDPRIV_HOME", str(tmp_path / "home"))
    client = ClientApp(client_fn=lambda context: flower.FedCADClient(lambda arrays, _: (arrays, 1)).to_client())
    start = ArrayRecord([np.zeros((2, 3), np.float32)])
    flower.FedCAD(noise_multiplier=1.0, run_dir="outputs/app", min_available_nodes=3).start(nodes_of(client), start, 2)
    for command, main in (("report", report), ("audit", audit.main), ("certificate", certificate.main)):
        (given,) = re.findall(rf"^fedpriv {command} (.*)$", PAGE, re.MULTILINE)
        assert main([*given.split(), *(["trials=2000"] if command == "audit" else [])]) == 0, capsys.readouterr()
    privacy = json.loads(Path("outputs/app/summary.json").read_text())["privacy"]
    assert 0 < privacy["audited_epsilon"] <= privacy["verified_epsilon"]


def test_an_app_learns_and_says_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_method("a_new_app", tmp_path, APP_FILES)
    monkeypatch.syspath_prepend(str(tmp_path / "a_new_app"))
    client, server = (import_module(f"a_new_app.{half}_app") for half in ("client", "server"))
    config = tomllib.loads((tmp_path / "a_new_app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {"noise-multiplier": 0.1, "run-dir": str(tmp_path / "run")}
    nodes = nodes_of(client.app, 2)
    for node, context in nodes.contexts.items():
        nodes.contexts[node] = Context(1, node, context.node_config, RecordDict(), config)
    server.app(nodes, Context(1, 1, {}, RecordDict(), config))
    said = capsys.readouterr().out
    assert float(said.rpartition(": accuracy ")[2].split()[0]) > 0.7
    assert "Privacy(unit='client', neighbours='replace-one', observer='server'" in said
    assert (tmp_path / "run/report.html").exists()


# --- on Flower's own runtimes -----------------------------------------------------------------------------------------


class Link:
    """A SuperLink, and SuperNodes if any, as processes on free ports with a FLWR_HOME of each."""

    def __init__(self, folder: Path, simulation: bool) -> None:
        self.folder, self.port = folder, free_ports(1)[0]
        self.environment = os.environ | {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(ROOT),
        }
        self.running: list[subprocess.Popen[bytes]] = []
        kind = ["--simulation"] if simulation else []
        self.begin("link", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port), *kind)
        (folder / "home-flwr").mkdir()
        address = f'address = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (folder / "home-flwr/config.toml").write_text(f'[superlink]\ndefault = "mine"\n[superlink.mine]\n{address}')

    def begin(self, name: str, *command: str, **more: str) -> subprocess.Popen[bytes]:
        environment = self.environment | {"FLWR_HOME": str(self.folder / f"home-{name}"), **more}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def run(self, app: Path, *options: str) -> str:
        """`flwr run APP --stream`, once the SuperLink answers; what it prints."""
        size = lambda: sum(path.stat().st_size for path in self.folder.glob("*.log"))  # noqa: E731
        for waits in (["list"], ["run", str(app), "--stream", *options]):
            while True:
                process = self.begin("flwr", "flwr", *waits)
                assert patiently(lambda process=process: process.poll() is not None, size), self.log("flwr")
                if process.returncode == 0 or waits[0] == "run":
                    break
                assert self.running[0].poll() is None, self.log("link")
        return self.log("flwr")


@contextmanager
def link(simulation: bool) -> Iterator[Link]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Link(Path(folder), simulation)
        try:
            yield made
        finally:
            for process in reversed(made.running):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
            for process in made.running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def assert_in(client: Path, words: str) -> None:
    """Where Flower loads this client, ``words`` hold."""
    client.write_text(f"{client.read_text()}\nfrom fedpriv.apps.client import is_deployed\n\nassert {words}\n")


@pytest.mark.timeout(900)
@pytest.mark.rotates(4, together(1))
def test_the_changed_quickstart_trains_on_flowers_simulation_runtime(tmp_path: Path) -> None:
    make_method("quick", tmp_path, APP_FILES)
    package = tmp_path / "quick/quick"
    (package / "server_app.py").write_text(changed(SERVER, snippet("strategy.privacy)  #")))
    (package / "client_app.py").write_text(changed(CLIENT, snippet("mods=[fedcad_mod()]")))
    assert_in(package / "client_app.py", "not is_deployed()")
    with link(simulation=True) as runtime:
        said = runtime.run(tmp_path / "quick")
    assert "round 2/2" in said and "unit='client'" in said, said[-5000:]
    (verified,) = re.findall(r"verified=([\d.]+)", said)
    assert 0.7 < float(verified) / gaussian_epsilon(2**0.5 * 2 / 0.3, 1e-5) < 1.3  # of Fed-CAD's two rounds


@pytest.mark.timeout(900)
@pytest.mark.rotates(4, together(3))
def test_a_new_app_trains_on_supernodes_that_keep_their_own_terms(tmp_path: Path) -> None:
    make_method("mine", tmp_path, APP_FILES)
    client = tmp_path / "mine/mine/client_app.py"
    (terms,) = re.findall(r"fedcad_mod\(folder.*\)(?=\])", snippet("max_epsilon=20.0"))
    text = client.read_text().replace("[fedcad_mod()]", f"[{terms}]").replace('"/srv/clinic"', 'os.environ["CLINIC"]')
    client.write_text(text.replace("from fedpriv", "import os\n\nfrom fedpriv", 1))
    assert_in(client, "is_deployed()")
    with link(simulation=False) as runtime:
        for number, port in enumerate(free_ports(2)):
            where = ("--superlink", f"127.0.0.1:{runtime.port}", "--port", str(port))
            config = f"partition-id={number} num-partitions=2"
            clinic = {"CLINIC": str(tmp_path / f"clinic-{number}")}
            runtime.begin(f"node-{number}", "flower-supernode", "--insecure", *where, "--node-config", config, **clinic)
        run = f'num-server-rounds=1 noise-multiplier=2.0 run-dir="{tmp_path / "run"}"'
        said = runtime.run(tmp_path / "mine", "--run-config", run)
        logs = said[-3000:] + runtime.log("node-0")[-3000:]
    assert (tmp_path / "run/summary.json").exists(), logs
    privacy = json.loads((tmp_path / "run/summary.json").read_text())["privacy"]
    assert privacy["verified_epsilon"] == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-6)
    for number in range(2):
        ledger = LedgerFile(tmp_path / f"clinic-{number}/ledger.jsonl", fsync=False)
        assert [entry.event.multiplier for entry in ledger.read().entries] == [1.0], logs
