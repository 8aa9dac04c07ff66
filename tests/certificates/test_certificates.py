"""Certificates of runs and nodes: what a change of any field, a cut, a fork or another key leads to."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deployed import MACHINES

from fedpriv.certificates import statement, verify_certificate
from fedpriv.certificates.making import of_any
from fedpriv.certificates.signing import VARIABLE
from fedpriv.commands.certificate import main as command
from fedpriv.common.errors import LedgerRefused, OptionError, RunFolderError
from fedpriv.common.identities import new_identity, signature
from fedpriv.deployment.data_ledger import Signer

Json = dict[str, Any]
VERIFIER = Path(verify_certificate.__file__)
MINE, OTHER = (Signer(new_identity(seed)[0]) for seed in (b"mine", b"other"))
#: What the verifier cannot know, by its first one or two names: stated on the signer's word.
ON_WORD = {
    ("issued",),
    ("subject",),
    ("assumptions",),
    ("digests",),
    ("signer", "role"),
    ("ledger", "id"),
    ("protections", "accountant"),
    ("protections", "limit"),
    ("protections", "audit"),
}


def sign(certificate: Json, signer: Signer = MINE) -> Json:
    """The certificate signed again, as a dishonest signer would."""
    whole = {name: value for name, value in certificate.items() if name != "signature"}
    if isinstance(whole.get("signer"), dict):
        whole["signer"] = whole["signer"] | {"key": signer.public}
    text = statement.PURPOSE + statement.canonical(whole)
    return whole | {"signature": signature(signer.private, text).hex()}


@pytest.fixture
def verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """``verdict(certificate, "key=...", older=...)``: (exit code, what was printed)."""

    def call(certificate: Any, *more: str, older: Json | None = None) -> tuple[int, str]:
        text = certificate if isinstance(certificate, str) else json.dumps(certificate)
        (tmp_path / "certificate.json").write_text(text)
        given = [str(tmp_path / "certificate.json"), *more]
        if older is not None:
            (tmp_path / "older.json").write_text(json.dumps(older))
            given.insert(1, str(tmp_path / "older.json"))
        code = verify_certificate.main(given)
        return code, capsys.readouterr().out

    return call


@pytest.fixture(scope="module")
def of_run(tmp_path_factory: pytest.TempPathFactory) -> Json:
    from conftest import NO_REPORT, SMALL

    from fedpriv.config.compose import compose
    from fedpriv.runs.start import start_run

    folder = tmp_path_factory.mktemp("run") / "run"
    options = (*SMALL, NO_REPORT, "strategy=fedldp", "num_rounds=3", "strategy.client.noise_multiplier=8")
    start_run(compose(list(options)), folder)
    return statement.signed(statement.of_run(folder), MINE, "whoever carried out this run")


def serve(network: Any, rounds: int = 2, run: str = "run") -> None:
    network.serve(network.overrides(f"num_rounds={rounds}", run=run))


def of_node(network: Any, number: int = 0) -> Json:
    from fedpriv.common.identities import read_private

    signer = Signer(read_private(network.folder / f"identity-{number}.key", "key"))
    return statement.signed(statement.of_node(network.policy(number), network.data(number)), signer, "the node")


def sign_as_node(certificate: Json, network: Any) -> Json:
    from fedpriv.common.identities import read_private

    return sign(certificate, Signer(read_private(network.folder / "identity-0.key", "key")))


def changes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(path, what stands there instead) for every leaf, every removed and every doubled part."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from changes(part, (*path, name))
            rest = copy.copy(value)
            del rest[name]
            yield (*path, name, "removed"), (path, rest)
        if isinstance(value, list) and value:
            yield (*path, "doubled"), (path, [*value, value[-1]])
    elif isinstance(value, bool):
        yield path, (path, not value)
    elif isinstance(value, int | float):
        yield path, (path, value * 0.5 if value else 1)
    else:
        yield path, (path, (value or "") + "0")


def changed(certificate: Json, path: tuple[Any, ...], value: Any) -> Json:
    if not path:
        return copy.deepcopy(value)
    found = copy.deepcopy(certificate)
    inside = found
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    return found


def test_a_run_whose_table_is_gone_has_its_certificate(tmp_path: Path) -> None:
    from conftest import NO_REPORT

    from fedpriv.config.compose import compose
    from fedpriv.runs.start import start_run

    table, schema = tmp_path / "t.csv", tmp_path / "s.yaml"
    table.write_text("a,y\n" + "".join(f"{row % 7},{row % 2}\n" for row in range(40)))
    schema.write_text("target: {column: y, task: classification, classes: ['0', '1']}\ncolumns: {a: {range: [0, 7]}}\n")
    of_sum = ("strategy=dpsum", "num_clients=2", "clients_per_round=2", "strategy.server.min_replies=2", "num_rounds=1")
    of_table = ("dataset=table", f"dataset.root={table}", f"dataset.schema_file={schema}", f"dataset.cache={tmp_path}")
    noise = ("model=linear", "strategy.client.noise_multiplier=8", "privacy.delta=1e-4")
    start_run(compose([NO_REPORT, *of_sum, *of_table, *noise]), tmp_path / "run")
    before = statement.of_run(tmp_path / "run")
    table.unlink()
    schema.unlink()
    assert statement.of_run(tmp_path / "run") == before


def test_a_runs_certificate_is_verified(of_run: Json, verdict: Callable[..., tuple[int, str]]) -> None:
    code, told = verdict(of_run, f"key={MINE.public}")
    assert code == 0 and "equal" in told and told.endswith("verified\n")
    assert len(of_run["ledger"]["lines"]) == 3 and of_run["releases"][0]["last"] == 3


def test_every_change_is_found(of_run: Json, verdict: Callable[..., tuple[int, str]]) -> None:
    """Unsigned, by anybody; signed again with another key; and signed again with the same one."""
    found = set()
    for path, (place, value) in changes(of_run):
        other = changed(of_run, place, value)
        leaf = path[-1] not in ("removed", "doubled")
        assert not leaf or verdict(other)[0] in (1, 2), path
        if path[0] not in ("signature", "signer"):
            assert not leaf or verdict(sign(other, OTHER), f"key={MINE.public}")[0] in (1, 2), path
            if verdict(sign(other), f"key={MINE.public}")[0] == 0:
                names = tuple(name for name in path if isinstance(name, str) and name not in ("removed", "doubled"))
                found.add(names[: 2 if names[0] in ("protections", "signer", "ledger") else 1])
    assert found <= ON_WORD and ("digests",) in found and ("subject",) in found


def test_the_same_certificate_signed_by_another_key_is_found(
    of_run: Json, verdict: Callable[..., tuple[int, str]]
) -> None:
    assert verdict(sign(of_run, OTHER))[0] == 0  # without a key nobody can know
    code, told = verdict(sign(of_run, OTHER), f"key={MINE.public}")
    assert code == 1 and "FALSE: this is the key that was given" in told
    code, told = verdict(sign(of_run, OTHER), f"key={OTHER.public}", f"key={MINE.public}")
    assert code == 2 and "key= is given twice" in told


def test_lines_taken_out_moved_or_cut_are_found(of_run: Json, verdict: Callable[..., tuple[int, str]]) -> None:
    """Though head, count and table were made anew for what is left."""
    lines = of_run["ledger"]["lines"]
    for kept in (lines[1:], [lines[0], lines[2]], [lines[1], lines[0], lines[2]]):
        other = copy.deepcopy(of_run)
        other["ledger"] = statement.ledger_of("run", [line.encode() for line in kept])
        other["releases"] = statement.releases([json.loads(line) for line in kept], node=False)
        assert verdict(sign(other))[0] == 1
    cut = copy.deepcopy(of_run)
    cut["ledger"] = statement.ledger_of(of_run["ledger"]["id"], [line.encode() for line in lines[:-1]])
    cut["releases"] = statement.releases([json.loads(line) for line in lines[:-1]], node=False)
    assert verdict(sign(cut))[0] == 0  # an honest older certificate looks like that: only its epsilon is too large
    assert verdict(sign(cut), older=of_run)[0] == 1


def test_an_epsilon_below_the_cost_is_false(of_run: Json, verdict: Callable[..., tuple[int, str]]) -> None:
    other = copy.deepcopy(of_run)
    other["protections"][0]["epsilon"] *= 0.999
    code, told = verdict(sign(other))
    assert code == 1 and "FALSE: epsilon" in told
    other["protections"][0]["epsilon"] *= 2
    assert verdict(sign(other))[0] == 0 and "above" in verdict(sign(other))[1]


def test_a_nodes_heads_are_signed_and_forks_are_found(
    machines: MACHINES, verdict: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    import shutil

    network = machines(2)
    network.introduce()
    serve(network, 1)
    first = of_node(network)
    assert verdict(first)[0] == 0 and len(first["heads"]) == 1
    ledger, counter = network.data(0) / ".fedpriv/ledger.jsonl", tmp_path / "counters/0.json"
    kept = {path: path.read_bytes() for path in (ledger, counter)}
    serve(network, 1, run="second")
    longer = of_node(network)
    assert verdict(longer, older=first)[0] == 0
    shutil.rmtree(network.data(0) / ".fedpriv/runs")
    for path, content in kept.items():  # the whole node is put back, and goes on another way
        path.write_bytes(content)
    serve(network, 1, run="third")
    fork = of_node(network)
    assert verdict(fork)[0] == 0 and verdict(fork, older=first)[0] == 0
    code, told = verdict(fork, older=longer)
    assert code == 1 and "two heads" in told
    assert verdict(of_node(network, 1), older=first)[0] == 1  # another node's
    bare = {**fork, "heads": []}
    assert verdict(statement.signed({k: bare[k] for k in bare if k not in ("signature", "signer")}, MINE, "x"))[0] == 1


def test_a_message_meanwhile_is_in_the_certificate_or_in_none_of_its_parts(
    machines: MACHINES, verdict: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger grows after it was checked, before its lines are read."""
    from fedpriv.deployment.data_ledger import DataLedger

    network = machines(1)
    network.introduce()
    serve(network, 1)
    real = DataLedger.head
    monkeypatch.setattr(DataLedger, "head", lambda ledger: (serve(network, 1, run="meanwhile"), real(ledger))[1])
    made = of_node(network)
    assert made["subject"]["messages"] == 2 and verdict(made)[0] == 0


def test_a_copy_that_another_key_continues_is_told(
    machines: MACHINES, of_run: Json, verdict: Callable[..., tuple[int, str]]
) -> None:
    """A certificate holds the ledger's lines: whoever has it can append lines and sign with a key of his own."""
    code, told = verdict(sign(of_run, OTHER), older=of_run)
    assert code == 1 and "the older one has another key" in told
    network = machines(1)
    network.introduce()
    serve(network, 1)
    first = of_node(network)
    lines = [line.encode() for line in first["ledger"]["lines"]]
    row = {"time": 0, "signer": OTHER.public, "before": first["ledger"]["head"]}
    other = first | {"ledger": statement.ledger_of(first["ledger"]["id"], [*lines, json.dumps(row).encode()])}
    size = sum(len(line) + 1 for line in other["ledger"]["lines"])
    head = {"ledger": first["ledger"]["id"], "bytes": size, "lines": len(lines) + 1, "chain": other["ledger"]["head"]}
    other = sign(other | {"heads": [OTHER.sign(head)]}, OTHER)
    code, told = verdict(
        other, older=first
    )  # as after `declare` with new credentials: which of them it is, the node says
    assert code == 0 and f"note: another key signed its heads before, '{first['signer']['key']}'" in told
    assert verdict(other, f"key={OTHER.public}", older=first)[0] == 0
    assert verdict(other, f"key={first['signer']['key']}", older=first)[0] == 1
    assert "another key" not in verdict(first)[1]


def test_a_certificate_without_an_epsilon_is_false(machines: MACHINES, verdict: Callable[..., tuple[int, str]]) -> None:
    network = machines(1)
    network.introduce()
    serve(network, 1)
    code, told = verdict(sign_as_node(of_node(network) | {"protections": []}, network))
    assert code == 1 and "no epsilon is stated" in told


def test_a_head_needs_the_nodes_key(machines: MACHINES) -> None:
    network = machines(2)
    network.introduce()
    serve(network, 1)
    counter = network.folder / "counters/0.json"
    head = json.loads(counter.read_text())
    assert head["lines"] == 4 and head["signature"]
    for wrong in (
        {name: head[name] for name in ("ledger", "bytes", "lines", "chain")},
        head | {"time": head["time"] + 1},
        OTHER.sign({name: head[name] for name in ("ledger", "bytes", "lines", "chain")}),
    ):
        counter.write_text(json.dumps(wrong))
        for thorough in (False, True):
            with pytest.raises(LedgerRefused, match="is not signed by"), network.ledger(0).held(thorough):
                pass
    counter.write_text(json.dumps(head))
    with network.ledger(0).held() as ledger, pytest.raises(LedgerRefused, match="whose key is not here"):
        ledger.declare(ledger.declared())
    assert network.command("declare", 0) == 0  # nothing to write
    credentials = network.folder / "keys"
    credentials.mkdir()
    (credentials / "identity.key").write_bytes(OTHER.private)
    assert network.command("declare", 0, f"credentials={credentials}") == 0
    assert json.loads(counter.read_text())["key"] == OTHER.public


def test_a_clock_set_back_is_told(
    machines: MACHINES, verdict: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = machines(1)
    network.introduce()
    serve(network, 1)
    from fedpriv.deployment import data_ledger

    real = data_ledger.time.time
    monkeypatch.setattr(data_ledger.time, "time", lambda: real() - 86_400)
    serve(network, 2, run="second")
    code, told = verdict(of_node(network))
    assert code == 0 and told.count("the clock went back before line 5") == told.count("the clock") == 1


def test_a_changed_ledger_or_summary_has_no_certificate(
    run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "home"))
    folder = run("strategy=fedldp", "num_rounds=2")
    assert of_any(folder).content["kind"] == "run"
    key = tmp_path / "home" / "certificate.key"
    assert oct(key.stat().st_mode)[-3:] == "600" and of_any(folder).key == of_any(folder).key
    file = folder / "ledger.jsonl"
    content = file.read_text()
    file.write_text(content.replace('"round":2', '"round":3'))
    of_any(folder)  # the last line's own round: its chain names only what comes before it
    file.write_text(content.partition("\n")[2])
    with pytest.raises(RunFolderError, match="does not follow"):
        of_any(folder)
    file.write_text(content.partition("\n")[0] + "\n")
    with pytest.raises(RunFolderError, match=r"the ledger costs .* summary\.json says"):
        of_any(folder)
    (folder / "summary.json").unlink()
    with pytest.raises(RunFolderError, match="only a finished run"):
        of_any(folder)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("nowhere",), "FOLDER=nowhere"),
        (("key=x",), "FOLDER: is missing"),
        ((".", "signer=x"), "no such option"),
        ((".", "verifier=maybe"), "allowed: true, false"),
        ((".", "policy=x"), "policy=x: is of a node"),
    ],
)
def test_wrong_options(options: tuple[str, ...], named: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(options) == 2 and named in capsys.readouterr().err


def test_a_nodes_certificate_from_the_command(machines: MACHINES, tmp_path: Path, capsys, monkeypatch) -> None:
    network = machines(1)
    network.introduce()
    serve(network, 1)
    keys, data, policy = network.folder / "keys", str(network.data(0)), f"policy={network.policy(0)}"
    keys.mkdir()
    (keys / "identity.key").write_bytes((network.folder / "identity-0.key").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert command((data, policy)) == 2 and "credentials" in capsys.readouterr().err
    assert command((data, policy, f"credentials={keys}", f"out={data}/x")) == 2
    assert command((data, policy, f"credentials={keys}", "verifier=true")) == 0
    folder = tmp_path / "certificate"
    assert {path.name for path in folder.iterdir()} == {"certificate.json", "certificate.html", VERIFIER.name}
    page = (folder / "certificate.html").read_text()
    assert "all data of one client" in page and "gaussian" in page and "<script" not in page


def test_the_verifier_runs_alone(of_run: Json, tmp_path: Path) -> None:
    """In a bare interpreter, where no module of the project and no torch may be imported."""
    (tmp_path / VERIFIER.name).write_text(VERIFIER.read_text())
    (tmp_path / "certificate.json").write_text(json.dumps(of_run))
    script = (
        "import builtins, runpy, sys\n"
        "real = builtins.__import__\n"
        "def checked(name, *rest):\n"
        "    assert name.partition('.')[0] not in ('fedpriv', 'torch', 'cryptography', 'dp_accounting'), name\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = checked\n"
        f"sys.argv = ['x', 'certificate.json', 'key={MINE.public}']\n"
        f"runpy.run_path({VERIFIER.name!r}, run_name='__main__')\n"
    )
    told = subprocess.run(
        [sys.executable, "-I", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert (told.returncode, told.stderr) == (0, "") and told.stdout.endswith("verified\n")
    text = VERIFIER.read_text()
    assert max(map(len, text.splitlines())) <= 120
    sections = re.findall(r"^# --- (\d)\. (\w[\w ]+) -+$", text, re.MULTILINE)
    named = re.findall(r"^    (\d)\. ([A-Z][\w ]+?)  ", text, re.MULTILINE)
    assert sections == named and len(named) == 7  # in the order in which the beginning says that they come
    sources = dict(re.findall(r"^    \[(\w+)\] +(\w.+)$", text, re.MULTILINE))
    assert all(text.count(f"[{source}") > 1 for source in sources)


def test_an_option_error_names_the_key(tmp_path: Path, run: Callable[..., Path]) -> None:
    (tmp_path / "key").write_bytes(b"short")
    folder = run("strategy=fedldp", "num_rounds=1")
    with pytest.raises(OptionError, match="must be an Ed25519 private key"):
        of_any(folder, key=str(tmp_path / "key"))


def test_the_page_shows_numbers_as_numbers() -> None:
    """A count of 1 equals True, and 0 False."""
    from fedpriv.certificates.writing import _shown

    shown = [_shown(value) for value in (1, 0, True, False, None, 1.0, [1, True])]
    assert shown == ["1", "0", "yes", "no", "not known", "1", "1, yes"]


def test_a_run_that_released_nothing_has_nothing_to_certify(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nothing was released that could be certified"):
        statement.ledger_lines(tmp_path / "ledger.jsonl")
