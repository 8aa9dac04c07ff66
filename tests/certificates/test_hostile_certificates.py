"""Files that only look like certificates: one line each, no traceback, no memory."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.certificates import statement
from fedpriv.certificates import verify_certificate as verifier
from fedpriv.common.chain import followed, without
from fedpriv.common.identities import new_identity, signature
from fedpriv.deployment.data_ledger import Signer
from fedpriv.privacy.events import EVERY_CLIENT, Threat, event_from_json
from fedpriv.privacy.ledger import read_line

SIGNER = Signer(new_identity(b"hostile")[0])
EVENT = {"mechanism": "gaussian", "count": 1, "multiplier": 1.0}
THREAT = {"unit": "client", "adjacency": "replace-one", "observer": "server"}
#: Of certificates that were made before a ledger said which policy is in force.
FIRST = "fedpriv certificate 1"
LINE = {"round": 1, "client": 0, "sequence": 0, "attempt": 0, **EVENT, **THREAT}


def certificate(*lines: dict[str, Any] | str, epsilon: Any = 0.001, delta: Any = 1e-5, **more: Any) -> dict[str, Any]:
    """Correctly signed; its epsilon is what its maker likes."""
    texts = [line if isinstance(line, str) else json.dumps(line, separators=(",", ":")) for line in lines]
    rows = [line for line in lines if isinstance(line, dict)]
    try:
        table = statement.releases(rows, node=False)
    except (KeyError, TypeError, ValueError):
        table = []
    row = {**THREAT, "delta": delta, "epsilon": epsilon, "accountant": "gaussian", "limit": None, "audit": None}
    made = {
        "kind": "run",
        "subject": {},
        "protections": [row],
        "releases": table,
        "assumptions": [],
        "digests": {},
        "ledger": statement.ledger_of("run", [text.encode() for text in texts]),
        "heads": [],
    }
    return statement.signed(made | more, SIGNER, "x")


@pytest.fixture
def verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[Any], tuple[int, str]]:
    def call(content: Any) -> tuple[int, str]:
        file = tmp_path / "certificate.json"
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        file.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
        code = verifier.main([str(file)])
        told = capsys.readouterr()
        assert told.err == "" and told.out.isascii() and told.out.count("\n") <= 12
        assert all(character.isprintable() or character == "\n" for character in told.out)
        return code, told.out

    return call


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        "3",
        '"text"',
        b"\xff\xfe",
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"format":1,"format":1}',
        '{"x":NaN}',
        '{"x":1e999}',
        "9" * 5000,
        "[" + "1," * (1 << 23) + "1]",
    ],
    ids=range(15),
)
def test_no_certificate(content: str | bytes, verdict: Callable[[Any], tuple[int, str]]) -> None:
    code, told = verdict(content)
    assert code == 2 and told.count("\n") == 1


def test_a_file_that_is_too_large_or_none_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(200 << 20)
    for path in (tmp_path / "large", tmp_path, tmp_path / "missing"):
        assert verifier.main([str(path)]) == 2 and capsys.readouterr().out.count("\n") == 1
    assert verifier.main([]) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"multiplier": -1.0},
        {"multiplier": 0.0},
        {"multiplier": 1e-320},
        {"multiplier": True},
        {"multiplier": "1"},
        {"multiplier": None},
        {"count": 10**30},
        {"count": 0},
        {"count": 1.5},
        {"client": -7},
        {"client": "0"},
        {"client": None, "clients": 3},
        {"client": None, "clients": {"0": 1}},
        {"unit": "nobody"},
        {"adjacency": ["replace-one"]},
        {"mechanism": "unheard-of"},
        {"mechanism": ["gaussian"]},
        {"further": 1},
        {"realised": 3, "adaptive": True},
        {"adaptive": 1},
        {"round": -1},
        {"round": "1"},
        {"mechanism": "poisson_gaussian", "sampling_rate": 1e-9},
        {"mechanism": "randomised_response", "epsilon": 1e-9, "dimension": 10**17, "count": 10**17},
        {"mechanism": "discrete_gaussian_sum", "sigma": 1e9, "noises": 10**15, "dimension": 1, "l2": 1},
        {"mechanism": "discrete_gaussian_sum", "sigma": 1e200, "noises": 1, "dimension": 1, "l2": 1e12},
        {"mechanism": "zcdp", "rho": "inf"},
        {"mechanism": "\u001b[31m\n\u202e"},
    ],
    ids=str,
)
def test_a_hostile_line_makes_no_epsilon_equal(
    change: dict[str, Any], verdict: Callable[[Any], tuple[int, str]]
) -> None:
    line = {name: value for name, value in (LINE | change).items() if value is not None}
    if "mechanism" in change:
        del line["multiplier"]
        line |= {"multiplier": 1.0} if change["mechanism"] == "poisson_gaussian" else {}
    code, told = verdict(certificate(line))
    assert code != 0 and "equal" not in told and "above" not in told


@pytest.mark.parametrize("delta", [0, 0.0, 1, 1.0, 2.0, -1e-5, "inf", None, True, 1e-320])
def test_a_hostile_delta(delta: Any, verdict: Callable[[Any], tuple[int, str]]) -> None:
    assert verdict(certificate(LINE, delta=delta))[0] != 0


@pytest.mark.parametrize("epsilon", [-1.0, "nan", None, True, [], "infinite", float("inf"), 10**400])
def test_a_hostile_epsilon(epsilon: Any, verdict: Callable[[Any], tuple[int, str]]) -> None:
    assert verdict(certificate(LINE, epsilon=epsilon))[0] != 0


def test_an_infinite_epsilon_is_sound(verdict: Callable[[Any], tuple[int, str]]) -> None:
    code, told = verdict(certificate(LINE, epsilon="inf"))
    assert code == 0 and "above" in told


def test_lines_without_a_chain_are_told(verdict: Callable[[Any], tuple[int, str]]) -> None:
    assert "its lines name no hash" in verdict(certificate(LINE, epsilon="inf"))[1]


def test_a_line_with_client_and_clients_is_none(verdict: Callable[[Any], tuple[int, str]]) -> None:
    """Whom it charges has two readings. The product does not read it either."""
    line = {**LINE, "clients": [1]}
    assert read_line(json.dumps(line).encode()) is None
    made = certificate(line, releases=statement.releases([None], node=False), epsilon=4.0)
    code, told = verdict(made)
    assert code == 1 and "the lines give inf to inf" in told


def test_a_sample_that_the_observer_sees_is_no_event() -> None:
    """A client's sample hides nothing from a server that sees who took part."""
    event = {"mechanism": "poisson_gaussian", "multiplier": 1.0, "sampling_rate": 0.01}
    for seen in (("client", "replace-one", "server"), ("client", "zero-out", "server")):
        with pytest.raises(ValueError, match="no such poisson_gaussian"):
            verifier.read_release(event, seen)
        with pytest.raises(ValueError):
            event_from_json(event, Threat(*seen))


def test_a_key_that_stands_twice_is_refused(verdict: Callable[[Any], tuple[int, str]]) -> None:
    text = json.dumps(certificate(LINE, epsilon="inf"))
    assert verdict(text)[0] == 0
    assert verdict(text.replace('"kind": "run"', '"kind": "node", "kind": "run"'))[0] == 2


def test_a_torn_line_counts_without_a_bound(verdict: Callable[[Any], tuple[int, str]]) -> None:
    torn = certificate('{"round":1,"client":0,"seq', LINE)
    torn["releases"] = statement.releases([None, LINE], node=False)
    rest = {name: value for name, value in torn.items() if name not in ("signature", "format", "issued", "signer")}
    code, told = verdict(statement.signed(rest, SIGNER, "x"))
    assert code == 1 and "FALSE: epsilon 0.001" in told
    rest = copy.deepcopy(rest)
    rest["protections"][0]["epsilon"] = "inf"
    assert verdict(statement.signed(rest, SIGNER, "x"))[0] == 0


def test_words_for_a_terminal_are_escaped(verdict: Callable[[Any], tuple[int, str]]) -> None:
    made = certificate(LINE)
    made["signer"]["key"] = "\x1b[2Jgood\n"
    assert verdict(made)[0] == 1
    assert verdict(certificate(LINE, kind="\x1b[2J"))[0] == 2
    assert verdict(certificate(LINE, protections=[{**THREAT, "observer": "\x1b[2J"}]))[0] == 2


def test_many_clients_and_many_histories_end(verdict: Callable[[Any], tuple[int, str]]) -> None:
    steps = {
        **LINE,
        "mechanism": "poisson_gaussian",
        "sampling_rate": 0.1,
        "adjacency": "zero-out",
        "observer": "public",
    }
    lines = [{**steps, "round": n + 1, "client": n, "multiplier": 1 + n / 1000} for n in range(80)]
    row = {**THREAT, "adjacency": "zero-out", "observer": "public", "delta": 1e-5, "epsilon": 1.0}
    row |= {"accountant": "pld", "limit": None, "audit": None}
    code, told = verdict(certificate(*lines, protections=[row]))
    assert code == 3 and "not verified (more than 64 different histories" in told


# --- a signer who lies: the lines cost more than the certificate says, and its table and chain fit the lie


COUNTED = {"metrics": {"ages": 3, "rows": 1}, "clip": 4.0, "noise_multiplier": 2.5}
POLICY: dict[str, Any] = {
    "sha256": "c" * 64,
    "budgets": [{**THREAT, "delta": 1e-5, "max_epsilon": 9.0}],
    "bundles": [],
    "schemas": [],
    "weights": [],
    "guard": {"apps": ["a" * 64], "sandbox": "none", "pad_seconds": None, "counts": {"query": COUNTED}},
}
DECLARED: dict[str, Any] = {"examples": 9, "classes": ["a", "b"], "size": 4, "channels": 1}
SUM, MEMBERS = (THREAT | {"observer": observer} for observer in ("secure-sum", "server+members"))


def message(*entries: dict[str, Any], own: dict[str, str] = THREAT, time: int = 5, **more: Any) -> dict[str, Any]:
    """A node's line."""
    line = {"time": time, "run": f"guard 1f app {'a' * 64} sandbox none", "own": list(own.values())}
    return line | {"shares_secrets": False, "entries": [LINE | entry for entry in entries or ({},)]} | more


def node(*rows: dict[str, Any], epsilon: float = 4.3771780956812245, **more: Any) -> dict[str, Any]:
    """A node's certificate of a declaration, a policy and these lines; its chain is whole, and so are its figures for
    one release of multiplier 1.
    """
    head = {"ledger": "b" * 32, "format": 1, **DECLARED}
    texts, chain = [], ""
    for row in (head, {"time": 1, "policy": POLICY}, *rows):
        texts.append(json.dumps(row | {"before": chain}).encode())
        chain = followed(chain, texts[-1])
    written = [json.loads(text) for text in texts]
    whole = [row for row in written if row.keys() & {"entries", "policy", "classes"} and "novelty" not in row]
    row = {**THREAT, "delta": 1e-5, "epsilon": epsilon, "accountant": "gaussian", "limit": 9.0, "audit": None}
    made = {
        "kind": "node",
        "subject": {"declared": DECLARED, "messages": sum("entries" in one for one in whole)},
        "protections": [row],
        "policies": [{name: getattr(one, name) for name in statement.IN_FORCE} for one in statement.periods(whole)],
        "releases": statement.releases(whole, node=True),
        "assumptions": [],
        "digests": {},
        "ledger": statement.ledger_of("b" * 32, texts),
        "heads": [],
    }
    return statement.signed(made | more, SIGNER, "x")


def again(made: dict[str, Any], **change: Any) -> dict[str, Any]:
    """With other parts, signed again."""
    kept = {name: value for name, value in made.items() if name not in ("signature", "format", "issued", "signer")}
    return statement.signed(kept | change, SIGNER, "x")


TABLE = [{"mechanism": "gaussian", "multiplier": 1.0, **THREAT, "releases": 1, "first": 5, "last": 5}]
GUMBEL, SKELLAM = (
    {name: value for name, value in (LINE | event).items() if name != "multiplier"}
    for event in (
        {"mechanism": "gumbel_top_k", "k": 0, "epsilon": 5.0},
        {"mechanism": "skellam_sum", "variance": 9.0, "noises": 1, "dimension": 4, "l2": 9.0, "delta": 0},
    )
)


def divided(within: bool) -> dict[str, Any]:
    """Releases of one client, a part of them under another threat; each part is stated at its own cost. within: of one
    round, where both threats are named.
    """
    lines = [LINE | {"round": n, "sequence": n} | (SUM if n % 2 else {}) for n in range(60)]
    lines = [LINE, LINE | SUM | {"count": 9}] if within else lines
    row = {"delta": 1e-5, "epsilon": 46.0, "accountant": "gaussian", "limit": None, "audit": None}
    return certificate(*lines, protections=[THREAT | row, SUM | row])


def tightened() -> dict[str, Any]:
    """A policy that a message broke, loosened before the next."""
    strict = POLICY | {"budgets": [POLICY["budgets"][0] | {"max_epsilon": 1.0}]}
    return node(
        {"time": 2, "policy": strict}, message(), {"time": 6, "policy": POLICY}, message({"round": 2}), epsilon=7.0
    )


def about_everybody(everybodys: int = 0) -> dict[str, Any]:
    """What is about every client is under one threat, and a client's own under another: each is stated at its cost."""
    lines = [LINE | {"client": EVERY_CLIENT, "round": everybodys}, LINE | SUM]
    row = {"delta": 1e-5, "epsilon": 4.4, "accountant": "gaussian", "limit": None, "audit": None}
    return certificate(*lines, protections=[THREAT | row, SUM | row])


def in_the_first_format(made: dict[str, Any]) -> dict[str, Any]:
    older = {name: value for name, value in made.items() if name not in ("policies", "signature")} | {"format": FIRST}
    return older | {"signature": signature(SIGNER.private, FIRST.encode() + b"\n" + statement.canonical(older)).hex()}


CHEAP = {**THREAT, "delta": 1e-5, "epsilon": 0.1, "accountant": "gaussian", "limit": None, "audit": None}
LIES: dict[str, tuple[Callable[[], dict[str, Any]], int, str]] = {
    "times of what was spent": (
        lambda: node(message({"realised": {**EVENT, "count": 1000}}), releases=TABLE),
        1,
        "FALSE: epsilon 4.37718",
    ),
    "a format of tomorrow": (
        lambda: again(node(message()), ledger=changed_ledger(node(message()), '"format": 1', '"format": 99')),
        1,
        "line 1 cannot be read: 'format 99'",
    ),
    "a kind of tomorrow": (lambda: node(message(), {"time": 6, "novelty": 7}), 1, "no kind of line that is known"),
    "a field of tomorrow": (lambda: node(message(novelty="seven")), 1, "line 3 cannot be read"),
    "own and another's events": (
        lambda: node(
            message({}, SUM | {"multiplier": 90.0}),
            protections=[SUM | {name: value for name, value in CHEAP.items() if name not in THREAT}],
        ),
        1,
        "FALSE: epsilon 0.1, delta 1e-05, ('client', 'replace-one', 'secure-sum'): FALSE; the lines give 4.37718",
    ),
    "another's events alone": (lambda: node(message(SUM | {"multiplier": 90.0}), epsilon=0.1), 1, "FALSE: epsilon 0.1"),
    "gumbel of no pick": (lambda: certificate(GUMBEL, epsilon=0.001), 1, "FALSE: epsilon 0.001"),
    "skellam without a share": (lambda: certificate(SKELLAM, epsilon=20.0), 1, "FALSE: epsilon 20"),
    "releases divided between threats": (lambda: divided(within=False), 1, "are divided between threats"),
    "releases of a round divided so": (lambda: divided(within=True), 1, "are divided between threats"),
    "releases about everybody divided so": (about_everybody, 1, "are divided between threats"),
    "releases about everybody in the same round": (lambda: about_everybody(1), 1, "are divided between threats"),
    "a threat of which no line speaks": (
        lambda: certificate(LINE, protections=[CHEAP | {"epsilon": 4.4}, CHEAP | MEMBERS | {"epsilon": 0.0}]),
        1,
        "an epsilon of which no line speaks",
    ),
    "more spent than booked": (
        lambda: certificate(LINE | {"multiplier": 100.0, "realised": EVENT}, epsilon=0.04),
        1,
        "FALSE: epsilon 0.04",
    ),
    "more often spent than booked": (
        lambda: certificate(LINE | {"realised": EVENT | {"count": 9}}, epsilon=4.4),
        1,
        "FALSE: epsilon 4.4",
    ),
    "the first format for what broke its policy": (
        lambda: in_the_first_format(tightened()),
        3,
        "after message 1, above the limit 1 in force there",
    ),
    "another limit in the first format": (
        lambda: in_the_first_format(again(node(message()), protections=[CHEAP | {"epsilon": 4.4, "limit": 99.0}])),
        1,
        "its limit is not what was in force",
    ),
    "a key that stands twice": (
        lambda: again(node(message()), ledger=changed_ledger(node(message()), '"count": 1', '"count": 9, "count": 1')),
        1,
        "line 3 cannot be read: 'a key stands twice'",
    ),
    "number of messages": (
        lambda: again(node(message()), subject={"declared": DECLARED, "messages": 3}),
        1,
        "the subject is not what",
    ),
    "what is declared": (
        lambda: again(node(message()), subject={"declared": DECLARED | {"examples": 90}, "messages": 1}),
        1,
        "the subject is not what",
    ),
    "another sandbox": (
        lambda: again(
            node(message()),
            policies=[{"policy": POLICY | {"guard": None}, "messages": 1, "first": 5, "last": 5, "counts": {}}],
        ),
        1,
        "FALSE: the policies are those",
    ),
    "counts that nobody asked for": (
        lambda: again(node(message()), policies=[node(message())["policies"][0] | {"counts": {"query": 1}}]),
        1,
        "FALSE: the policies are those",
    ),
    "counts that left and are not named": (
        lambda: again(node(message(counts="query")), policies=node(message())["policies"]),
        1,
        "FALSE: the policies are those",
    ),
    "counts that no policy declared": (
        lambda: node(message(counts="evaluate")),
        1,
        "line 3 opens counts 'evaluate', which the policy in force does not declare",
    ),
    "counts under other names": (
        lambda: again(
            node(message(counts="query")),
            ledger=changed_ledger(node(message(counts="query")), '"ages": 3', '"ages": 2'),
        ),
        1,
        "FALSE: the policies are those",
    ),
    "another limit": (
        lambda: again(node(message()), protections=[node(message())["protections"][0] | {"limit": 99.0}]),
        1,
        "its limit is not what was in force",
    ),
    "no limit": (
        lambda: again(node(message()), protections=[node(message())["protections"][0] | {"limit": None}]),
        1,
        "its limit is not what was in force",
    ),
    "above the limit": (lambda: node(message({"count": 9}), epsilon=19.5), 3, "is above its limit 9"),
    "above a limit that was loosened": (tightened, 3, "after message 1, above the limit 1 in force there"),
    "a head of another length": (
        lambda: again(node(message()), heads=[SIGNER.sign({"ledger": "b" * 32, "bytes": 1, "lines": 3, "chain": ""})]),
        1,
        "FALSE: the node signed this head",
    ),
    "a field of a certificate of tomorrow": (lambda: node(message(), novelty=7), 2, "novelty"),
    "a mechanism's field of tomorrow": (lambda: node(message({"novelty": 7})), 1, "line 3 cannot be read"),
    "a threat of tomorrow": (lambda: node(message({"observer": "nobody"})), 1, "line 3 cannot be read"),
}


def changed_ledger(made: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The ledger with another text in its lines, chained again."""
    lines, chain = [], ""
    for text in made["ledger"]["lines"]:
        rest = without(text.replace(old, new).encode())
        lines.append(rest.removesuffix(b"}") + f',"before":"{chain}"}}'.encode())
        chain = followed(chain, lines[-1])
    return statement.ledger_of("b" * 32, lines)


@pytest.mark.parametrize("lie", LIES)
def test_a_signers_lie_is_found(lie: str, verdict: Callable[[Any], tuple[int, str]]) -> None:
    make, expected, words = LIES[lie]
    code, told = verdict(make())
    assert code == expected and words in told, told


def test_the_truth_is_verified(verdict: Callable[[Any], tuple[int, str]]) -> None:
    assert verdict(node(message()))[0] == verdict(node(message(), message({"round": 2}), epsilon=7.0))[0] == 0
    code, told = verdict(node(message(counts="query"), message({"round": 2}), epsilon=7.0))
    assert code == 0 and "counts query ('ages' 3, 'rows' 1) were declared, and opened by 1 of 2 messages" in told
    # under another threat a message costs what was booked there: masks that come off, secrets that are shared
    masked = message(SUM | {"multiplier": 90.0}, {}, own=SUM)
    shared = message({"multiplier": 90.0}, MEMBERS, shares_secrets=True)
    under_members = [CHEAP | MEMBERS | {"epsilon": 4.3771780956812245}]
    assert verdict(node(masked))[0] == verdict(node(shared, protections=under_members))[0] == 0
    assert verdict(in_the_first_format(node(message())))[0] == 0


def test_an_epsilon_says_of_how_many_clients_it_says_nothing(verdict: Callable[[Any], tuple[int, str]]) -> None:
    row = CHEAP | {"epsilon": 4.4}
    code, told = verdict(certificate(LINE, LINE | SUM | {"client": 1}, protections=[row, row | SUM]))
    assert code == 0 and told.count("of 1 accounts nothing is booked under it") == 2, told
