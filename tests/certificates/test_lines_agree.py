"""Lines of ledgers from a generator, read by the product and by the verifier: they agree, or both refuse.

Two hundred lines in a run of all tests, 10,000 with FEDPRIV_LINES=10000 or under `make stress`. Half of the ledgers
have a line in which one thing was changed: a value, a field, a key that stands twice, the text itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedpriv.certificates import statement, verify_certificate
from fedpriv.common.chain import chain_of, followed, row_of
from fedpriv.common.errors import FedprivError
from fedpriv.common.files import json_number
from fedpriv.common.identities import new_identity
from fedpriv.deployment.data_ledger import Balance, Signer
from fedpriv.privacy.composition import guarantee_events, threats, verify
from fedpriv.privacy.events import EVERY_CLIENT, Threat, event_to_json
from fedpriv.privacy.ledger import TORN, LedgerFile, read_line

Row = dict[str, Any]
WORDS = ("unit", "adjacency", "observer")
LINES = int(os.environ.get("FEDPRIV_LINES", 10_000 if os.environ.get("FEDPRIV_STRESS") else 200))
SIGNER, DELTA, KEY = Signer(new_identity(b"lines")[0]), 1e-5, "a" * 64
SERVER, EXAMPLE = ("client", "replace-one", "server"), ("example", "add-or-remove-one", "server")
MEMBERS, SUM = ("client", "replace-one", "server+members"), ("client", "replace-one", "secure-sum")
PUBLIC, ZEROED = ("client", "replace-one", "public"), ("client", "zero-out", "trusted-server")
#: Mechanism -> the values of its fields, of which one is drawn; a field may be left out where None is among them.
VALUES: dict[str, dict[str, list[Any]]] = {
    "gaussian": {"multiplier": [0.5, 1, 3.0, 40.0, "inf", 0.0]},
    "laplace": {"multiplier": [1.0, 20.0, 0]},
    "zcdp": {"rho": [0.01, 0.5, "inf"]},
    "gumbel_top_k": {"k": [1, 20], "epsilon": [0.1, 0.5, 0]},
    "randomised_response": {"epsilon": [0.1, 1.5], "dimension": [1, 30, None]},
    "approximate_dp": {"epsilon": [0.1, 1.0, 0.0], "delta": [1e-8, 0, 1e-4]},
    "unit_cap": {"epsilon": [1.0, 4.0], "inside": [0.3, 0.0], "delta": [1e-9, 0.0, None]},
    "poisson_gaussian": {"multiplier": [1.1, 4.0], "sampling_rate": [0.01, 0.2, 0, 1]},
    "replaced_gaussian": {"multiplier": [1.1, 4.0], "sampling_rate": [0.1, 0.5, 1.0]},
    "fixed_size_gaussian": {"multiplier": [2.0, 5.0], "sample_size": [10, 0, 50], "population": [50]},
    "allocated_gaussian": {"multiplier": [1.0, 3.0], "rounds": [1, 20], "released": [None, 0, 1]},
    "paired_quantisation": {
        "epsilon": [0.5, 21.0],
        "private_share": [0.5, 0.0],
        "bits": [8, 0, None],
        "dimension": [20, None],
        "group_size": [2, 4, None],
    },
    "binomial": {
        "step": [0.05],
        "trials": [10**5, 0],
        "dimension": [64],
        "l1": [2.0],
        "l2": [1.05],
        "linf": [0.55],
        "delta": [1e-8],
        "distance": [1.0, "inf", None],
    },
    "discrete_gaussian_sum": {"sigma": [30.0, 0.1], "noises": [10, 1], "dimension": [64], "l2": [60.0, 3, 0]},
    "skellam_sum": {"variance": [900.0, 0.1], "noises": [10], "dimension": [64], "l2": [30.0, 0], "delta": [1e-8]},
    "shuffled": {"epsilon": [0.5, 3.0], "users": [10**5, 50], "delta": [1e-10], "dimension": [1, None]},
    "no_bound": {"reason": ["sent as it is"]},
}
#: Under which threats each is booked here.
PLACES = {
    "poisson_gaussian": [EXAMPLE, ZEROED],
    "replaced_gaussian": [EXAMPLE, PUBLIC],
    "fixed_size_gaussian": [PUBLIC, ("example", "replace-one", "server")],
    "allocated_gaussian": [ZEROED],
    "shuffled": [PUBLIC, SUM],
}
ANYWHERE = [SERVER, EXAMPLE, MEMBERS, SUM]
#: What a value may be changed to.
ODD: list[Any] = [0, -1, 1, 2, 1.5, True, None, "1", "inf", "nan", "", [], {}, 1000, 2**63, 10**30, 10**400, 1e-320]
ODD += [1e300, -0.0, 99, "server", "secure-sum", "gaussian", ["client", "replace-one", "server"], [3], {"a": 1}]


class Maker:
    """Ledgers from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def event(self, threat: tuple[str, ...]) -> Row:
        """Of a mechanism that may be booked under this threat."""
        kinds = [kind for kind in VALUES if threat in PLACES.get(kind, ANYWHERE)]
        kind = self.rng.choice(kinds)
        drawn = {name: self.rng.choice(values) for name, values in VALUES[kind].items()}
        event = {"mechanism": kind} | {name: value for name, value in drawn.items() if value is not None}
        return event | self.rng.choice([{}, {"count": 1}, {"count": 3}])

    def charge(self, threat: tuple[str, ...]) -> Row:
        charge = self.event(threat) | dict(zip(WORDS, threat, strict=True))
        if self.rng.random() < 0.3:
            charge["realised"] = self.event(threat)
        return charge | ({"adaptive": True} if self.rng.random() < 0.05 else {})

    def place(self, number: int) -> Row:
        return {"round": number, "client": self.rng.choice([0, 1, 7]), "sequence": number, "attempt": 0}

    def run(self) -> list[Row]:
        """A run's rows, all under one threat, or each under two."""
        first = self.rng.choice([SERVER, EXAMPLE, SUM, PUBLIC, ZEROED])
        threat, more = first, SERVER if first == SUM and self.rng.random() < 0.5 else None
        rows = []
        for number in range(1, self.rng.randint(2, 5)):
            place = self.place(number)
            if self.rng.random() < 0.3:
                del place["client"], place["sequence"]
                place |= {"clients": [0, 3], "sequences": [1, 2]} | ({"with_previous": True} if number > 1 else {})
            elif first in (PUBLIC, ZEROED) and self.rng.random() < 0.2:
                place["client"] = EVERY_CLIENT
            charge = self.charge(threat)
            rows.append(place | charge)
            if more:
                rows.append(place | self.event(more) | dict(zip(WORDS, more, strict=True)) | {"count": 1})
                rows[-2]["count"] = 1
        return rows

    def policy(self) -> Row:
        observers = self.rng.sample(["server", "server+members", "secure-sum"], 2)
        budgets = [
            {
                "unit": self.rng.choice(["client", "example"]),
                "delta": DELTA,
                "max_epsilon": 1e6,
                "adjacency": self.rng.choice(["replace-one", "add-or-remove-one"]),
                "observer": observer,
            }
            for observer in observers
        ]
        counts = {"query.ages": {"metrics": {"ages": 3, "n": 1}, "clip": 4.0, "noise_multiplier": 2.5}}
        guard = {"apps": self.rng.choice(["any", [KEY]]), "sandbox": "namespaces", "pad_seconds": 9.0}
        guard |= {"counts": self.rng.choice([{}, counts, counts])}
        known = {"sha256": f"{self.rng.randrange(16**64):064x}", "budgets": budgets, "bundles": [KEY], "schemas": []}
        return known | {"weights": [], "guard": self.rng.choice([None, guard])}

    def node(self) -> list[Row]:
        """A node's rows: a declaration, and then messages under policies."""
        pictures = {"examples": 9, "classes": ["a", "b"], "size": 4, "channels": 1}
        table = {"examples": 9, "table": "t.csv", "schema_file": "/s"}
        table |= {"separator": "auto", "decimal": "point", "encoding": "utf-8"}
        rows: list[Row] = [{"ledger": "b" * 32, "format": 1, **self.rng.choice([pictures, table])}]
        fixed = {"accountant": "renyi", "orders": {"x": 2.5}, "share": 0.9}
        if self.rng.random() < 0.5:
            rows[0] |= fixed
        for number in range(1, self.rng.randint(2, 6)):
            time = 1000 + number - 5 * (self.rng.random() < 0.1)
            if self.rng.random() < 0.4:
                rows.append({"time": time, "policy": self.policy()} | (fixed if self.rng.random() < 0.2 else {}))
            own = self.rng.choice(ANYWHERE)
            booked = [own, *self.rng.choice([[], [], [MEMBERS], [SERVER], [SUM]])]
            entries = [self.place(number) | self.charge(threat) for threat in booked]
            run = self.rng.choice(["run", f"guard 1f app {KEY} sandbox namespaces"])
            shares = self.rng.random() < 0.3
            rows.append({"time": time, "run": run, "own": list(own), "shares_secrets": shares, "entries": entries})
            in_force = next((row["policy"]["guard"] for row in reversed(rows) if "policy" in row), None)
            rows[-1] |= {"counts": "query.ages"} if in_force and in_force["counts"] and shares else {}
        return rows

    # --- what is wrong with a line

    def changed(self, row: Row) -> Row:
        """A row in which one value or field, somewhere, is another."""
        found = json.loads(json.dumps(row))
        inside = found
        while deeper := [value for value in inside.values() if isinstance(value, dict) and value] + [
            one for value in inside.values() if isinstance(value, list) for one in value if isinstance(one, dict)
        ]:
            if self.rng.random() < 0.4:
                break
            inside = self.rng.choice(deeper)
        name = self.rng.choice(sorted(inside))
        what = self.rng.random()
        if what < 0.6:
            inside[name] = self.rng.choice(ODD)
        elif what < 0.75:
            del inside[name]
        else:
            inside[
                self.rng.choice(["novelty", "count", "counts", "client", "clients", "realised", "unit", "format"])
            ] = self.rng.choice(ODD)
        return found

    def spoiled(self, text: str) -> str:
        """A line's text with something that two readers of JSON could read differently."""
        numbers = [match.span() for match in re.finditer(r"(?<=[: ,\[])\d[\d.e+-]*(?=[,}\]])", text)]
        keys = [match.group(0) for match in re.finditer(r'"\w+": ?[^,{}\[\]]+(?=[,}])', text)]
        kind = self.rng.randrange(6)
        if kind < 2 and numbers:
            start, end = self.rng.choice(numbers)
            return text[:start] + self.rng.choice(["NaN", "Infinity", "1e999", "01", "1e400", "-0"]) + text[end:]
        if kind < 4 and keys:
            return text[:-1] + "," + self.rng.choice(keys) + "}"
        others = [text[: len(text) // 2], f" {text}\t", text + "x", text.replace('"', "'"), text[:-1] + ',"é":1}', "[]"]
        return self.rng.choice(others)

    def lines(self, rows: list[Row], wrong: bool) -> list[bytes]:
        """Chained lines; wrong: one of them is changed."""
        at, how = self.rng.randrange(len(rows)) if wrong else -1, self.rng.random()
        chain, made = "", list[bytes]()
        for number, row in enumerate(rows):
            text, named = json.dumps(self.changed(row) if number == at and how < 0.75 else row), chain
            if number == at and how >= 0.85:
                text = self.spoiled(text)
            if number == at and 0.75 <= how < 0.85:
                named = self.rng.choice(["0" * 64, chain, "", "x"])
            line = text.removesuffix("}") + f',"before":"{named}"}}' if text.endswith("}") else text
            if number == at and 0.8 <= how < 0.85:
                line = '{"before":"' + named + '",' + text[1:]
            made.append(line.encode())
            chain = followed(chain, made[-1])
        return made


# --- the product's reading -------------------------------------------------------------------------------------------


def parsed(line: bytes) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(line)


def of_run(lines: list[bytes], folder: Path) -> Row | None:
    """What a certificate of a run with these lines states; None: the product refuses them."""
    ledger = LedgerFile(folder / "run.jsonl", fsync=False)
    ledger.path.write_bytes(b"".join(line + b"\n" for line in lines))
    content = ledger.read()
    if content.broken is not None:
        return None
    accounts = defaultdict(list, content.by_client())
    if every := accounts.pop(EVERY_CLIENT, None):
        accounts = defaultdict(list, {client: every + own for client, own in accounts.items()} | {EVERY_CLIENT: every})
    found = {threat: verify(accounts, DELTA, None, threat) for threat in threats(accounts)}
    rows = [json.loads(line) if read_line(line) else None for line in lines]
    try:
        ledger_part = statement.ledger_of("run", lines)
        if not content.torn:
            statement.check_undivided(content, ledger.path)
    except FedprivError:
        return None
    protections = [
        {**vars(threat), "delta": DELTA, "accountant": one.accountant, "limit": None, "audit": None}
        | {"epsilon": json_number(max(one.maximum, one.spent_so_far))}  # realised events here may cost more than booked
        for threat, one in found.items()
    ]
    made = {"kind": "run", "subject": {}, "protections": protections, "releases": statement.releases(rows, node=False)}
    return made | {"assumptions": [], "digests": {}, "ledger": ledger_part, "heads": []}


def of_node(lines: list[bytes], folder: Path, budgets: list[Row]) -> Row | None:
    """As `of_run`: by the product's own certificate of a data folder."""
    place, counter = folder / "data/.fedpriv", folder / "counter.json"
    place.mkdir(parents=True, exist_ok=True)
    (place / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    (place / "account.json").unlink(missing_ok=True)
    size = sum(len(line) + 1 for line in lines)
    head = {"ledger": "b" * 32, "bytes": size, "lines": len(lines), "chain": chain_of(lines)}
    counter.write_text(json.dumps(head))
    limits = dict.fromkeys(("max_sampling_rate", "max_batch_size", "max_local_steps", "max_rounds"), 1)
    limits |= {"min_noise_multiplier": 1.0, "max_round_epsilon": 1.0, "max_clip_norm": 1.0}
    policy = {"counter": str(counter), "budgets": budgets, "limits": limits}
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    try:
        return statement.of_node(folder / "policy.yaml", folder / "data")
    except FedprivError:
        return None


def of_a_liar(lines: list[bytes], node: bool, budgets: list[Row]) -> Row:
    """Of lines that the product refuses: an epsilon that would be above any cost, and a table of what can be read."""
    rows, table = [row for line in lines if isinstance(row := parsed(line), dict)], []
    with contextlib.suppress(Exception):
        table = statement.releases(rows, node)
    texts = [line.decode("latin-1") for line in lines]
    threat = {word: budgets[0][word] for word in WORDS} if node else dict(zip(WORDS, SERVER, strict=True))
    row = {**threat, "delta": DELTA, "epsilon": "inf", "accountant": "rdp", "limit": None, "audit": None}
    ledger = {"id": "b" * 32 if node else "run", "count": len(lines), "head": chain_of(lines), "lines": texts}
    periods = []
    with contextlib.suppress(Exception):
        periods = [{name: getattr(one, name) for name in statement.IN_FORCE} for one in statement.periods(rows)]
    made = {"kind": "node" if node else "run", "subject": {"messages": 1, "declared": {}}, "protections": [row]}
    made |= {"releases": table, "assumptions": [], "digests": {}, "ledger": ledger, "heads": []}
    return made | ({"policies": periods} if node else {})


def verdict(made: Row, folder: Path, verifier: Any = verify_certificate) -> tuple[int, str]:
    """(exit code, what was printed) of a certificate with a correct signature."""
    signed = statement.signed(made, SIGNER, "x")
    (folder / "certificate.json").write_text(json.dumps(signed))
    with contextlib.redirect_stdout(io.StringIO()) as told:
        code = verifier.main([str(folder / "certificate.json")])
    return code, told.getvalue()


def same_reading(made: Row, lines: list[bytes], folder: Path) -> bool:
    """Whether both count the same releases: of a run by client and threat, of a node under every stated threat."""
    quiet = verify_certificate.Report(of=verify_certificate.Report(of=None))
    with contextlib.redirect_stdout(io.StringIO()):
        read = verify_certificate.read_node if made["kind"] == "node" else verify_certificate.read_run
        ledger = read(made, quiet)
    if made["kind"] == "run":
        content = LedgerFile(folder / "run.jsonl", fsync=False).read()
        torn = len(content.torn)
        booked = {
            client: counted(guarantee_events(entry for entry in entries if torn == 0 or not is_torn(entry)))
            for client, entries in content.by_client().items()
        }
        seen = {
            client: plain({event: times for (threat, event), times in account.items() if threat})
            for client, account in ledger.accounts.items()
        }
        return {client: one for client, one in booked.items() if one} == {c: one for c, one in seen.items() if one}
    balance = Balance()
    for line in lines:
        balance.add(row_of(line))
    for row in made["protections"]:
        threat = tuple(row[word] for word in WORDS)
        (history,) = verify_certificate.of_messages(ledger.messages, threat)
        if plain(dict(history)) != counted(balance.spent.totals(Threat(*threat))):
            return False
    return True


def is_torn(entry: Any) -> bool:
    return bool(entry.event.mechanism == "no_bound" and entry.event.reason == TORN)


def counted(events: Any) -> Row:
    """Event as text -> how often; events without a bound are one, whatever their reason is."""
    found: Counter[str] = Counter()
    for event in events:
        flat = event_to_json(event)
        times = flat.pop("count")
        if flat.get("released") == flat.get("rounds"):
            flat.pop("released", None)
        numbers = {name: float(value) if type(value) is int else value for name, value in flat.items()}
        found["no_bound" if event.mechanism == "no_bound" else json.dumps(numbers, sort_keys=True)] += times
    return dict(found) | {"no_bound": 1} if "no_bound" in found else dict(found)


def plain(history: Row) -> Row:
    """As `counted`, of the verifier's events."""
    found: Counter[str] = Counter()
    for text, times in history.items():
        flat = json.loads(text)
        if flat.get("released") in (0, flat.get("rounds")):
            flat.pop("released", None)
        numbers = {name: float(value) if type(value) is int else value for name, value in flat.items()}
        found["no_bound" if flat["mechanism"] == "no_bound" else json.dumps(numbers, sort_keys=True)] += times
    return dict(found) | {"no_bound": 1} if "no_bound" in found else dict(found)


def outcome(made: Row | None, code: int, told: str) -> str:
    """One word of what product and verifier make of the same lines. made: the product's statement; None: it refuses.

    above: the product's bound is a looser one than the verifier's, of the same releases.
    """
    if made is None:
        return "differ" if code == 0 else "both refuse"
    if code in (1, 2):
        return "differ"
    words = set()
    said = re.findall(r"\): (equal|above|not verified|FALSE)[^;]*; the lines give \S+ to (\S+)", told)
    for row, (word, above) in zip(made["protections"], said, strict=True):
        claimed, most = float(row["epsilon"]), float(above)
        near = claimed == most or abs(claimed - most) <= 0.0101 * most
        sound = "above" if most < claimed < math.inf else "differ"
        words.add(word if word == "not verified" else "equal" if near else sound)
    return next((word for word in ("differ", "not verified", "above") if word in words), "equal")


def cases(lines: int, seed: int = 0) -> Iterator[tuple[int, bool, list[bytes], list[Row]]]:
    """(seed, whether it is a node's ledger, its lines, budgets of the policy's file), of so many lines together."""
    while lines > 0:
        maker = Maker(seed)
        node = maker.rng.random() < 0.5
        rows = maker.node() if node else maker.run()
        made = maker.lines(rows, wrong=maker.rng.random() < 0.5)
        yield seed, node, made, maker.policy()["budgets"]
        lines, seed = lines - len(made), seed + 1


def tried(seed: int, node: bool, lines: list[bytes], budgets: list[Row], folder: Path) -> tuple[str, str]:
    """(one word, and what the verifier printed)."""
    made = of_node(lines, folder, budgets) if node else of_run(lines, folder)
    code, told = verdict(made or of_a_liar(lines, node, budgets), folder)
    if made is not None and not same_reading(made, lines, folder):
        return "differ", f"{told} read otherwise"
    return outcome(made, code, told), told


def test_product_and_verifier_agree_on_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: Counter[str] = Counter()
    for case in cases(LINES):
        word, told = tried(*case, tmp_path)
        found[word] += len(case[2])
        assert word != "differ", (case[0], told, b"\n".join(case[2]).decode(errors="replace"))
    with capsys.disabled():
        print(f"\n{dict(found)}")
    assert found["equal"] > 0.3 * LINES and found["both refuse"] > 0.1 * LINES
    assert found["not verified"] < 0.04 * LINES + 10


def test_lines_on_which_they_differed_once(tmp_path: Path) -> None:
    """A policy that is null; a time of 2^63, which is as many seconds as the largest whole number below it."""
    maker = Maker(0)
    first = {"ledger": "b" * 32, "format": 1, "examples": 9, "classes": ["a", "b"], "size": 4, "channels": 1}
    known = maker.policy()
    for time, policy, word in ((1, None, "both refuse"), (2**63, known, "equal"), (2**64, known, "both refuse")):
        lines = maker.lines([first, {"time": time, "policy": policy}], wrong=False)
        assert tried(0, True, lines, maker.policy()["budgets"], tmp_path)[0] == word


@pytest.mark.parametrize("kind", VALUES)
def test_no_value_of_an_event_is_too_small_or_large_for_the_verifier(kind: str) -> None:
    """Each has a cost, no bound, or a figure that is not verified."""
    threat = PLACES.get(kind, ANYWHERE)[0]
    first = {name: next(value for value in values if value is not None) for name, values in VALUES[kind].items()}
    for name in VALUES[kind]:
        for value in (0, 1e-320, 1e-155, 1e-9, 0.5, 1, 2, 50, 1e16, 1e155, 1e300, "inf", 1000, 10**9, 2**63 - 1):
            with contextlib.suppress(verify_certificate.Unknown, ValueError):
                event = verify_certificate.complete({"mechanism": kind} | first | {name: value}, threat)
                verify_certificate.cost(verify_certificate.canonical(event))
