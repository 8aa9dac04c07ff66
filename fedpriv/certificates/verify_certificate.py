"""Checks a privacy certificate of fedpriv without fedpriv.

    python verify_certificate.py CERTIFICATE [OLDER ...] [key=HEX]

    key     the public key that must have signed, got on another way than the certificate
    OLDER   earlier certificates of the same ledger, which this one must continue

It needs Python 3.11, numpy, scipy and mpmath. Exit code: 0 verified, 1 false, 2 no certificate, 3 not verified.

What is checked, and where in this file:

    1. The certificate    its fields, its signature, and of a node the signed head of the ledger
    2. The ledger         the hash chain; every line, of which no field may be unknown; the table of releases; what was
                          in force when each message left
    3. Threats            which releases count under which threat model; limits
    4. Epsilon            all releases of a client together, from below and from above
    5. Mechanisms         what is known of one release of each: ranges of its fields, and its cost
    6. Privacy loss       laws of the loss of a release, and their sums on a grid
    7. Ed25519            signatures

What is stated on the signer's word alone is not checked: names, digests, assumptions, dates, results of audits.

An epsilon is *equal* (to 1 %) to what the lines cost, *above* it (sound), *not verified*, or FALSE: below what they
cost at least. Every bound here comes from another computation than fedpriv's, or evaluates its theorem again. Sources:

    [AKL21]  Agarwal, Kairouz, Liu: The Skellam mechanism for differentially private federated learning. NeurIPS 2021
    [BBG18]  Balle, Barthe, Gaboardi: Privacy amplification by subsampling. NeurIPS 2018
    [BW18]   Balle, Wang: Improving the Gaussian mechanism. ICML 2018
    [CKS20]  Canonne, Kamath, Steinke: The discrete Gaussian for differential privacy. NeurIPS 2020
    [CR21]   Cesar, Rogers: Bounding, concentrating and truncating. ALT 2021
    [DGK22]  Doroshenko, Ghazi, Kamath, Kumar, Manurangsi: Connect the dots. PoPETs 2022
    [FMT21]  Feldman, McMillan, Talwar: Hiding among the clones. FOCS 2021
    [FS25]   Feldman, Shenfeld: Privacy amplification by random allocation. 2025
    [KLS21]  Kairouz, Liu, Steinke: The distributed discrete Gaussian mechanism. ICML 2021
    [RFC8032] Edwards-curve digital signature algorithm
    [SS07]   Shaked, Shanthikumar: Stochastic orders. 2007
    [ZDW22]  Zhu, Dong, Wang: Optimal accounting of differential privacy via characteristic function. AISTATS 2022
"""

import hashlib
import json
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace

import mpmath
import numpy as np
from scipy import fft, signal, spatial, special

INF = math.inf
#: A file's bytes and values; clients or messages; cells of a grid; seconds for all epsilons together.
LARGEST, MOST_VALUES, MOST_CLIENTS, MOST_CELLS, SECONDS = 64 << 20, 1 << 23, 10**6, 1 << 21, 900
#: Largest whole number of a ledger.
MOST_WHOLE = 2**63 - 1
#: When to stop, by `time.perf_counter`.
STOP = [INF]

#: A threat model is three words: whose data, what neighbouring data sets differ in, and what the observer sees.
WORDS = ("unit", "adjacency", "observer")
UNITS = ("client", "example", "person")
ADJACENCIES = ("replace-one", "zero-out", "add-or-remove-one")
SEES_COHORT, BLIND_TO_COHORT = ("server", "server+members", "secure-sum"), ("trusted-server", "public")
OBSERVERS = SEES_COHORT + BLIND_TO_COHORT

#: A release of which nothing is known: its line is torn, or its noise was chosen from earlier outputs.
NO_BOUND = {"mechanism": "no_bound", "reason": "torn, or noise chosen from earlier outputs"}
#: Client of a release about every client, and of a torn line.
EVERY_CLIENT = -2


class Unknown(Exception):
    """There is no method for it here, or it would take too long: the figure is not verified."""


# --- 1. The certificate ----------------------------------------------------------------------------------------------


def main(arguments):
    """The command. Returns the exit code: the worst of what was found, and 1 before 3."""
    paths = [word for word in arguments if not word.startswith("key=")]
    given = [word[4:] for word in arguments if word.startswith("key=")]
    report, STOP[0] = Report(), time.perf_counter() + SECONDS
    np.seterr(all="ignore")
    try:
        first, *older = [read(path) for path in paths]
        if len(given) > 1:
            raise ValueError("key= is given twice")
        keys = check(first, *given or [None], report)
        for other in older:
            check(other, None, Report(report))
            check_goes_on(first, other, keys, report)
    except Exception as error:  # whatever a hostile file leads to, MemoryError too, is one line
        words = f"no certificate: {type(error).__name__} {str(error)!a:.200}"
        print(words if paths else str(__doc__).splitlines()[2].strip())
        return 2
    print({0: "verified", 1: "FALSE", 3: "not verified"}[report.code])
    return report.code


class Report:
    """What is said of a certificate, line by line. of: the report that an older certificate's faults go to."""

    def __init__(self, of=None):
        self.of, self.code = of, 0

    def say(self, code, words):
        """code: 0 so it is; 1 something is false; 3 something cannot be verified."""
        if self.of is not None:
            if code:
                self.of.say(code, f"the older one: {words}")
            return
        self.code = 1 if 1 in (self.code, code) else max(self.code, code)
        print({0: "ok:   ", 1: "FALSE:", 3: "OPEN: "}[code], words)

    def require(self, holds, words, wrong=""):
        """Says that something holds, or that it is false. wrong: in other words."""
        self.say(0 if holds else 1, words if holds else wrong or words)

    def forbid(self, wrong, words):
        """Says nothing unless something is wrong."""
        if wrong:
            self.say(1, words)

    def note(self, holds, words):
        """What a reader should know, and no fault."""
        if holds:
            self.say(0, f"note: {words}")


def read(path):
    """The JSON of a file. Raises OSError, ValueError, RecursionError."""
    with open(path, "rb", opener=lambda at, how: os.open(at, how | getattr(os, "O_NONBLOCK", 0))) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST or sum(map(content.count, (b"[", b"{", b","))) > MOST_VALUES:
        raise ValueError(f"more than {LARGEST >> 20} MiB or {MOST_VALUES} values")
    return strict(content.decode())


def strict(text):
    """JSON with one reading: no key twice, no NaN, no number that a double rounds to infinity. Raises ValueError."""

    def once(pairs):
        if len(pairs) > len(dict(pairs)):
            raise ValueError("a key stands twice")
        return dict(pairs)

    def finite(digits):
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"{digits:.40} is no number here")
        return value

    return json.loads(text, object_pairs_hook=once, parse_float=finite, parse_constant=finite)


#: JSON that is the same for equal values: what is signed, and how events are compared.
canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def number(value, least=0.0, most=INF):
    """A number, or the text "inf" where there is no upper limit. Raises ValueError."""
    if value == "inf" and most == INF:
        return INF
    if type(value) not in (int, float) or not least <= value <= most or value > sys.float_info.max:
        raise ValueError(f"{value!a:.40} is no number here")
    return float(value)


def whole(value, least=0, most=MOST_WHOLE):
    """A whole number. Raises ValueError."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!a:.40} is no whole number here")
    return value


def one_of(value, allowed):
    """Raises ValueError unless it is a text among these."""
    if type(value) is not str or value not in allowed:
        raise ValueError(f"{value!a:.40} is not known here")
    return value


def fields(value, needed, optional=()):
    """A JSON object with these fields and no others. Raises ValueError."""
    if type(value) is not dict or not {*needed} <= value.keys() <= {*needed, *optional}:
        named = sorted(value) if type(value) is dict else value
        raise ValueError(f"fields {named!a:.100}, where {' '.join(needed)} are known")
    return value


def threat_of(row):
    """(unit, adjacency, observer). Raises ValueError, KeyError."""
    allowed = (UNITS, ADJACENCIES, OBSERVERS)
    return tuple(one_of(row[word], words) for word, words in zip(WORDS, allowed, strict=True))


#: Of each format. In the first there was no history of policies: a node's limits are on its signer's word where its
#: lines name no policy.
PARTS = ("format", "issued", "kind", "subject", "protections", "releases", "assumptions", "digests", "ledger", "heads")
SIGNED_BY = ("signer", "signature")
FORMATS = {"fedpriv certificate 1": False, "fedpriv certificate 2": True}


def check(certificate, key, report):
    """Says of all that can be checked whether it is so. Returns the keys that may have signed this ledger."""
    form = one_of(certificate["format"], FORMATS)
    node = one_of(certificate["kind"], ("run", "node")) == "node"
    fields(certificate, (*PARTS, *SIGNED_BY, *(["policies"] if node and FORMATS[form] else [])))
    signer = fields(certificate["signer"], ("key", "role"))["key"]
    signed = signed_by(signer, form + "\n" + unsigned(certificate), certificate["signature"])
    report.require(signed, f"signed by the key {signer!a:.70}", "it was changed after it was signed")
    report.note(key is None, "compare this key yourself")
    if key is not None:
        report.require(key == signer, "this is the key that was given")
    ledger = (read_node if node else read_run)(certificate, report)
    check_heads(certificate, ledger, report)
    table = [strict(event) | {"releases": n, "first": a, "last": b} for event, (n, a, b) in ledger.table.items()]
    same = sorted(map(canonical, table)) == sorted(map(canonical, certificate["releases"]))
    report.require(same, "the table of releases is the ledger's")
    if node:
        check_subject(certificate["subject"], ledger, report)
        if FORMATS[form]:
            stated = [fields(row, PERIOD) for row in certificate["policies"]]
            in_force = [{name: getattr(period, name) for name in PERIOD} for period in ledger.periods]
            same = canonical(stated) == canonical(in_force)
            report.require(same, "the policies are those that the ledger names as in force when each message left")
            report.note(not all(period.policy for period in ledger.periods), "of some messages the policy is not known")
            for period in ledger.periods:
                for kind, query in period.declared.items():
                    named = ", ".join(f"{name!a:.40} {size}" for name, size in query["metrics"].items())
                    times = f"{period.counts[kind]} of {period.messages} messages"
                    report.say(0, f"counts {kind} ({named:.1000}) were declared, and opened by {times}")
    known = FORMATS[form] or any(period.policy for period in ledger.periods)
    check_protections(certificate, ledger, node and known, report)
    return {signer, *ledger.signers}


def unsigned(part):
    return canonical({name: value for name, value in part.items() if name != "signature"})


HEAD = ("ledger", "bytes", "lines", "chain", "key", "time")


def check_heads(certificate, ledger, report):
    """Of a node with an identity: the head that it signed when its last message left."""
    signer, stated = certificate["signer"]["key"], fields(certificate["ledger"], ("id", "count", "head", "lines"))
    ends = (ledger.chain, len(stated["lines"])) == (stated["head"], stated["count"])
    report.require(ends, "the ledger's lines end in its head")
    for head in certificate["heads"]:
        fields(head, (*HEAD, "signature"))
        at = (stated["id"], stated["count"], stated["head"], sum(len(line) + 1 for line in stated["lines"]))
        same = at == (head["ledger"], head["lines"], head["chain"], head["bytes"]) and head["key"] == signer
        signed = signed_by(signer, "fedpriv ledger head 1\n" + unsigned(head), head["signature"])
        report.require(same and signed, "the node signed this head when its last message left")
    named = ledger.signers
    report.forbid(named and (named[-1] != signer or not certificate["heads"]), "its node's signed head is missing")
    if len({*named}) > 1:
        report.say(0, f"note: another key signed its heads before, {named[-2]!a:.70}: ask why")


def check_subject(subject, ledger, report):
    """Of a node: what its ledger declares, how many messages it holds, and how they add up."""
    fields(subject, ("declared", "messages"), ("accountant", "share"))
    said = {"declared": ledger.declared, "messages": len(ledger.messages), **ledger.accounting}
    report.forbid(canonical(said) != canonical(subject), "the subject is not what the ledger's lines declare")


def check_goes_on(first, other, keys, report):
    """Whether a certificate continues an older one."""
    report.forbid(other["signer"]["key"] not in keys, "the older one has another key, which this ledger does not name")
    lines, same = other["ledger"]["lines"], other["ledger"]["id"] == first["ledger"]["id"]
    goes_on = same and first["ledger"]["lines"][: len(lines)] == lines
    report.require(goes_on, "it continues the older one", "another ledger, or one with two heads")


# --- 2. The ledger ---------------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """What the lines of a certificate say.

    table: event as text -> [releases, place of the first, of the last]; a place is a round of a run, a time of a node.
    accounts: of a run: client -> {(threat, event): times}; threat None: under each. spent: the same, as realised.
    booked: of a run: (clients, round, attempt, threat, releases of each) of every line.
    messages: of a node, in order. periods: which policy was in force for which of them.
    """

    chain: str = ""
    signers: list = field(default_factory=list)
    table: dict = field(default_factory=dict)
    accounts: dict = field(default_factory=dict)
    spent: dict = field(default_factory=dict)
    booked: list = field(default_factory=list)
    messages: list = field(default_factory=list)
    periods: list = field(default_factory=list)
    declared: dict | None = None
    accounting: dict = field(default_factory=dict)

    def count(self, event, times, place):
        """Adds releases to the table."""
        row = self.table.setdefault(canonical(event), [0, place, place])
        row[0], row[2] = row[0] + times, place


@dataclass(frozen=True)
class Release:
    """raw: as its line says it, without its place and number; event: the same as text, nothing left out."""

    threat: tuple
    raw: dict
    event: str
    times: int


@dataclass(frozen=True)
class Message:
    """A node's. own: the threat under which its method books; releases: (threat, event, times) of each entry."""

    own: tuple
    shares_secrets: bool
    releases: tuple


#: Of a node's messages that left one after the other under one policy.
PERIOD = ("policy", "messages", "first", "last", "counts")


@dataclass
class Period:
    """counts: how many messages opened each kind of counts that the policy declares."""

    policy: dict | None
    messages: int
    first: float
    last: float
    counts: Counter = field(default_factory=Counter)

    @property
    def declared(self):
        """Kind of counts -> what the policy says of it."""
        return self.policy["guard"]["counts"] if self.policy and self.policy["guard"] else {}


def links(lines, torn, report):
    """Follows the hash chain: each line ends with the SHA-256 of all before it. Returns the chain after the last.

    torn: of each line, whether it is unreadable: a crash cut it off before it named anything.
    """
    chain, begun = "", False
    for number_of_line, (line, unreadable) in enumerate(zip(lines, torn, strict=True), 1):
        named = before(line)
        wrong = not unreadable and named != chain and (begun or named is not None)
        report.forbid(wrong, f"line {number_of_line} does not follow from those before it")
        begun = begun or named is not None
        chain = hashlib.sha256(f"{chain}{line}\n".encode()).hexdigest()
    report.note(lines and not begun, "its lines name no hash: its signature alone holds them")
    return chain


def before(line):
    """What a line names as the chain up to it; None: nothing."""
    found = re.search(r',\s?"before":\s?"([0-9a-f]{64}|)"\}$', line)
    return found[1] if found else None


def row_of(line):
    """The JSON object of a line; its last field may be `before`. Raises ValueError, RecursionError."""
    row = strict(line)
    if type(row) is not dict or row.get("before") != before(line) or not line.isascii():
        raise ValueError("no line of a ledger")
    return row


def read_release(flat, threat):
    """One event with its number. Raises ValueError, KeyError, TypeError."""
    raw = dict(flat)
    times = whole(raw.pop("count", 1), 1)
    if any(word in raw for word in WORDS):
        raise ValueError("a threat within a threat")
    event = complete(raw, threat)
    return Release(threat, raw | dict(zip(WORDS, threat, strict=True)), canonical(event), times)


def read_charge(flat):
    """(what was booked before the round, what was spent, whether its noise was chosen from earlier outputs)."""
    rest = dict(flat)
    threat, adaptive = threat_of(rest), rest.pop("adaptive", False)
    if type(adaptive) is not bool:
        raise ValueError("adaptive is true or false")
    spent = read_release(rest.pop("realised"), threat) if "realised" in rest else None
    for word in WORDS:
        del rest[word]
    booked = read_release(rest, threat)
    return booked, spent or booked, adaptive


def read_run(certificate, report):
    """A run's ledger. What was booked counts, and what was spent from below; a torn line counts as a release without a
    bound about everybody.
    """
    lines, ledger, last, torn = certificate["ledger"]["lines"], Ledger(), 0, []
    for line in lines:
        try:
            place, attempt, clients, release, spent, adaptive = read_run_line(row_of(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            torn.append(True)
            ledger.count(NO_BOUND, 1, last)
            ledger.accounts.setdefault(EVERY_CLIENT, Counter())[None, canonical(NO_BOUND)] += 1
            continue
        torn.append(False)
        raw, event = release.raw, release.event
        if adaptive:
            raw = NO_BOUND | dict(zip(WORDS, release.threat, strict=True))
            event = canonical(raw)
        ledger.count(raw, len(clients) * release.times, place)
        for client in clients:
            ledger.accounts.setdefault(client, Counter())[release.threat, event] += release.times
            ledger.spent.setdefault(client, Counter())[spent.threat, spent.event] += spent.times
        ledger.booked.append((clients, place, attempt, release.threat, release.times))
        if len(ledger.accounts) > MOST_CLIENTS:
            raise ValueError(f"more than {MOST_CLIENTS} clients")
        last = max(last, place)
    ledger.chain = links(lines, torn, report)
    if not any(torn):  # else every epsilon is infinite
        check_threats_are_whole(ledger.booked, report)
    return ledger


def read_run_line(row):
    """(round, attempt, clients, release, what was spent, adaptive). Raises ValueError, TypeError, KeyError."""
    rest = {name: value for name, value in row.items() if name != "before"}
    place, attempt = whole(rest.pop("round")), whole(rest.pop("attempt"))
    clients = rest.pop("clients") if "clients" in rest else [rest.pop("client")]
    sequences = rest.pop("sequences") if "sequences" in rest else [rest.pop("sequence")] * len(clients)
    joined = rest.pop("with_previous", False)
    if not (type(clients) is type(sequences) is list and len(clients) == len(sequences) > 0 and type(joined) is bool):
        raise ValueError("clients and sequences")
    for client, sequence in zip(clients, sequences, strict=True):
        whole(client, EVERY_CLIENT), whole(sequence)
    return place, attempt, clients, *read_charge(rest)


def check_threats_are_whole(booked, report):
    """A client's every participation is booked under each threat under which any of its participations is, with equally
    many releases: what is divided between two threats would be in neither epsilon whole. So are those about everybody.
    """
    if len({threat for _, _, _, threat, _ in booked}) < 2:
        return
    spoken = {}
    for clients, place, attempt, threat, times in booked:
        for client in clients:
            spoken.setdefault(client, {}).setdefault((place, attempt), Counter())[threat] += times
    for client, own in spoken.items():
        rounds = [*own.items(), *(spoken.get(EVERY_CLIENT, {}).items() if client != EVERY_CLIENT else ())]
        threats = {threat for _, counts in rounds for threat in counts}
        for (place, _), counts in rounds:
            if {*counts} != threats or len({*counts.values()}) > 1:
                words = ", ".join(f"{counts[threat]} under {' '.join(threat)}" for threat in sorted(threats))
                report.say(1, f"releases of client {client} in round {place} are divided between threats: {words}")
                return


#: What makes a node's line one of a kind -> its fields. A line is of at least one kind; it may also have `MORE`.
KINDS = {
    "classes": ("examples", "classes", "size", "channels"),
    "table": ("examples", "table", "schema_file", "separator", "decimal", "encoding"),
    "accountant": ("accountant", "orders", "share"),
    "signer": ("time", "signer"),
    "entries": ("time", "run", "own", "shares_secrets", "entries", "counts"),
    "policy": ("time", "policy"),
}
OPTIONAL, MORE, LEDGER_FORMAT = {"share", "counts"}, ("ledger", "format", "before"), 1


def read_node(certificate, report):
    """A node's ledger: declarations, keys, policies, and the messages that left. What was spent counts."""
    lines, ledger, policy, last, back = certificate["ledger"]["lines"], Ledger(), None, 0, 0
    for number_of_line, line in enumerate(lines, 1):
        try:
            row = read_node_line(row_of(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            report.say(1, f"line {number_of_line} cannot be read: {str(error)!a:.100}")
            continue
        other = row.get("ledger", certificate["ledger"]["id"]) != certificate["ledger"]["id"]
        report.forbid(other, "the first line names another ledger")
        if "examples" in row:
            kind = "table" if "table" in row else "classes"
            ledger.declared = {name: row[name] for name in KINDS[kind]}
        if "accountant" in row:
            ledger.accounting = {"accountant": row["accountant"], "share": float(row.get("share", 1.0))}
        ledger.signers += [row["signer"]] if "signer" in row else []
        policy, place = row.get("policy", policy), row.get("time", 0)
        if "entries" in row:
            ledger.messages.append(read_message(row, ledger))
            if not ledger.periods or ledger.periods[-1].policy != policy:
                ledger.periods.append(Period(policy, 0, place, place))
            period = ledger.periods[-1]
            period.messages, period.last = period.messages + 1, place
            if (kind := row.get("counts")) is not None:
                period.counts[kind] += 1
                words = f"line {number_of_line} opens counts {kind!a:.40}, which the policy in force does not declare"
                report.forbid(kind not in period.declared, words)
        back = back or number_of_line * (0 < place < last)
        last = max(last, place)
        if len(ledger.messages) > MOST_CLIENTS:
            raise ValueError(f"more than {MOST_CLIENTS} messages")
    ledger.chain = links(lines, [False] * len(lines), report)
    report.note(back, f"the clock went back before line {back}: the order is the chain's")
    return ledger


def read_node_line(row):
    """A line whose fields are all known and of their form. Raises ValueError, KeyError, TypeError."""
    kinds = [names for kind, names in KINDS.items() if kind in row]
    needed = {name for names in kinds for name in names}
    if not kinds:
        raise ValueError("no kind of line that is known")
    fields(row, needed - OPTIONAL, {*MORE, *(needed & OPTIONAL)})
    if type(row.get("format", LEDGER_FORMAT)) is not int or row.get("format", LEDGER_FORMAT) != LEDGER_FORMAT:
        raise ValueError(f"format {row['format']!a:.40}")
    for name, value in row.items():
        check_field(name, value)
    if "entries" in row:
        threat_of(dict(zip(WORDS, row["own"], strict=True)))
        for entry in row["entries"]:
            for name, least in (("round", 0), ("client", EVERY_CLIENT), ("sequence", 0), ("attempt", 0)):
                whole(entry[name], least)
            read_charge({name: value for name, value in entry.items() if name not in PLACE})
    return row


PLACE = ("round", "client", "sequence", "attempt")


def check_field(name, value):
    """Raises ValueError for another form than this field of a node's line has."""
    if name == "time":
        fits(number(value) <= float(MOST_WHOLE))
    elif name in ("examples", "size", "channels"):
        whole(value)
    elif name == "share":
        fits(number(value, most=1) > 0)
    elif name == "accountant":
        one_of(value, ("gaussian", "renyi"))
    elif name == "orders":
        fits(type(value) is dict and all(type(order) in (int, float) and order > 1 for order in value.values()))
    elif name in ("classes", "own", "entries"):
        kind = dict if name == "entries" else str
        fits(type(value) is list and all(type(one) is kind for one in value))
    elif name in ("signer", "counts", "policy"):
        {"signer": sha256, "counts": check_kind, "policy": check_policy}[name](value)
    elif name != "format":
        fits(type(value) is (bool if name == "shares_secrets" else str))


def fits(holds):
    if not holds:
        raise ValueError("a field of another form")


def sha256(value):
    fits(type(value) is str and re.fullmatch("[0-9a-f]{64}", value))


def check_kind(value):
    fits(type(value) is str and re.fullmatch(r"(evaluate|query)(\.[A-Za-z_][A-Za-z0-9_]*)?", value))


def check_policy(policy):
    """What is in force: digest of the policy's file, budgets, approved code, schemas, weights, rules of the guard."""
    fields(policy, ("sha256", "budgets", "bundles", "schemas", "weights", "guard"))
    digests = [policy["sha256"], *policy["bundles"], *policy["schemas"]]
    fits(all(type(policy[name]) is list for name in ("budgets", "bundles", "schemas", "weights")) and policy["budgets"])
    for budget in policy["budgets"]:
        fields(budget, (*WORDS, "delta", "max_epsilon"))
        fits(threat_of(budget)[2] in SEES_COHORT and 0 < number(budget["delta"]) < 1)
        fits(number(budget["max_epsilon"], most=sys.float_info.max) > 0)
    for weights in policy["weights"]:
        fits(type(weights) is dict and {*weights} <= {"sha256", "trained_on"})
        fits(all(type(value) is str for value in weights.values()))
    if (guard := policy["guard"]) is not None:
        fields(guard, ("apps", "sandbox", "pad_seconds", "counts"))
        for kind, query in guard["counts"].items():
            check_kind(kind)
            fields(query, ("metrics", "clip", "noise_multiplier"))
            sizes = query["metrics"]
            fits(sizes and all(0 < len(name) <= 128 and whole(size, 1, 4096) for name, size in sizes.items()))
            fits(min(number(query[name], most=sys.float_info.max) for name in ("clip", "noise_multiplier")) > 0)
            number(query["clip"], 1e-6)
        fits(guard["apps"] == "any" or type(guard["apps"]) is list)
        digests += [] if guard["apps"] == "any" else guard["apps"]
        one_of(guard["sandbox"], ("namespaces", "none"))
        fits(guard["pad_seconds"] is None or number(guard["pad_seconds"], most=sys.float_info.max) > 0)
    for digest in digests:
        sha256(digest)


def read_message(row, ledger):
    """A message of a line that was read, counted in the ledger's table: as it was spent."""
    releases = []
    for entry in row["entries"]:
        _, spent, _ = read_charge({name: value for name, value in entry.items() if name not in PLACE})
        ledger.count(spent.raw, spent.times, row["time"])
        releases.append((spent.threat, spent.event, spent.times))
    return Message(tuple(row["own"]), row["shares_secrets"], tuple(releases))


# --- 3. Threats ------------------------------------------------------------------------------------------------------


def check_protections(certificate, ledger, with_history, report):
    """Every stated epsilon, composed again. with_history: a node whose ledger says which limits were in force."""
    rows = [fields(row, ROW) for row in certificate["protections"]]
    stated = [threat_of(row) for row in rows]
    node = certificate["kind"] == "node"
    booked = {threat for account in ledger.accounts.values() for threat, _ in account if threat}
    whole_run = booked in ({*stated}, set()) and len({*stated}) == len(stated)
    words = "no epsilon is stated, a threat has none or two, or one has an epsilon of which no line speaks"
    report.forbid(not stated or not (node or whole_run), words)
    for row, threat in zip(rows, stated, strict=True):
        claimed, delta = number(row["epsilon"]), row["delta"]
        if type(delta) is not float or not 1e-300 < delta < 1:
            raise ValueError(f"delta {delta!a:.40}")
        began = time.perf_counter()
        code, verdict, (least, most) = verdict_on(claimed, delta, threat, row["accountant"], ledger, node)
        figures = f"the lines give {least:.6g} to {most:.6g} ({time.perf_counter() - began:.1f} s)"
        report.say(code, f"epsilon {claimed:.6g}, delta {delta:.3g}, {threat}: {verdict}; {figures}")
        if others := sum(all(of not in (threat, None) for of, _ in own) for own in ledger.accounts.values()):
            report.say(0, f"note: of {others} accounts nothing is booked under it: of them this epsilon says nothing")
        if row["audit"] is not None:
            report.forbid(number(row["audit"]["epsilon"]) > claimed, "an audit refutes it")
        if with_history:
            check_limits(row["limit"], threat, delta, min(claimed, most), ledger, report)
        if row["limit"] is not None and claimed > number(row["limit"]) * (1 + 1e-9):
            report.say(3, f"epsilon {claimed:.6g} is above its limit {number(row['limit']):.6g}")


ROW = (*WORDS, "delta", "epsilon", "accountant", "limit", "audit")


def verdict_on(claimed, delta, threat, accountant, ledger, node):
    """(code, word, (from below, from above)) of one stated epsilon."""
    bounds = 0.0, INF
    try:
        if accountant == "filter" and not node:
            raise Unknown("a run's filter stops clients, which its lines do not show")
        histories = of_messages(ledger.messages, threat) if node else of_clients(ledger.accounts, threat)
        least, most = bounds = worst(histories, delta)
        if most < INF and ledger.spent != ledger.accounts:
            spent, _ = worst(of_clients(ledger.spent, threat), delta)
            least, most = bounds = max(least, spent), max(most, spent)
    except Unknown as error:
        return (3 if claimed < INF else 0), f"not verified ({error})", bounds
    if claimed < least * (1 - 1e-6):
        return 1, "FALSE", bounds
    if claimed < 0.99 * most:
        return 3, "not verified", bounds
    return 0, "equal" if claimed <= 1.01 * most else "above", bounds


def check_limits(stated, threat, delta, epsilon, ledger, report):
    """A limit is the one that was in force when the last message left. Up to the last message under each policy no
    more was spent than that policy allowed.
    """
    limits = []
    for period in ledger.periods:
        budgets = period.policy["budgets"] if period.policy else ()
        found = [row["max_epsilon"] for row in budgets if (threat_of(row), row["delta"]) == (threat, delta)]
        limits.append(min(found, default=None))
    report.forbid(stated != (limits[-1] if limits else None), "its limit is not what was in force at the last message")
    left = 0
    for period, limit in zip(ledger.periods, limits, strict=True):
        left += period.messages
        if limit is None or epsilon <= limit * (1 + 1e-9):
            continue
        try:
            least, _ = worst(of_messages(ledger.messages[:left], threat), delta)
        except Unknown as error:
            report.say(3, f"whether {left} messages kept to the limit {limit:.6g} is not verified ({error})")
            continue
        if least > limit * (1 + 1e-6):
            report.say(3, f"epsilon was {least:.6g} after message {left}, above the limit {limit:.6g} in force there")


def of_clients(accounts, asked):
    """Of a run: {(event, times)} of each client under a threat, each with what was released about every client."""
    every = accounts.get(EVERY_CLIENT, Counter())
    of_each = [accounts[client] + every for client in accounts if client != EVERY_CLIENT]
    return {
        frozenset((event, times) for (threat, event), times in account.items() if threat in (asked, None))
        for account in [every, *of_each]
    }


def of_messages(messages, asked):
    """Of a node: one set {(event, times)} of everything that left, at its cost under a threat."""
    total = Counter()
    for message, times in Counter(messages).items():
        for event, number_of_releases in priced(message, asked):
            total[event] += number_of_releases * times
    return {frozenset(total.items())}


@lru_cache(maxsize=100_000)
def priced(message, asked):
    """[(event, times)] of a message under a threat: of what its method booked under its own threat alone.

    What is booked under another threat is another analysis of the same message, so it counts only where its observer is
    asked about: other members who share its secrets, or a server that sees through the masks of a secure sum.
    """
    unit, adjacency, observer = message.own
    if message.shares_secrets and asked[2] == "server+members":
        observer = "server+members"
    elif observer == "secure-sum" != asked[2]:
        observer = "server"
    known = unit, adjacency, observer
    found = [(event, times) for threat, event, times in message.releases if threat == known]
    if not found or not covers(known, asked, message.shares_secrets):
        return ((canonical(NO_BOUND), 1),)
    return tuple((restated(event, asked), times) for event, times in found)


def covers(known, asked, shares_secrets):
    """Whether a bound under one threat is one under another: any change of a client's records is a change of its data,
    and an observer who sees no more learns no more.
    """
    same_data, whole_client = known[:2] == asked[:2], known[:2] == ("client", "replace-one")
    sees_no_more = known[2] == asked[2] or (known[2], asked[2]) in (
        ("server+members", "server"),
        ("server", "secure-sum"),
        *([] if shares_secrets else [("server", "server+members")]),
    )
    return (same_data or whole_client) and sees_no_more


def restated(event, asked):
    """An event under another threat that its own covers; without a bound where the mechanism has none there."""
    flat = strict(event)
    for word in WORDS:
        del flat[word]
    try:
        return canonical(complete(flat, asked))
    except ValueError:
        return canonical(NO_BOUND)


# --- 4. Epsilon ------------------------------------------------------------------------------------------------------


def worst(histories, delta):
    """(from below, from above) of the largest epsilon over clients. histories: {(event, times)} of each.

    Of clients with Gaussian noise alone, the one with the largest sum of mu^2 is enough. A history that is part of
    another costs no more.
    """
    if len({text for history in histories for text, _ in history}) > 5000:
        raise Unknown("over 5,000 kinds of release")
    squares = {history: sum_of_squares(history) for history in histories if history}
    gaussian = [history for history, square in squares.items() if square < INF]
    others = []
    for history in sorted(squares.keys() - {*gaussian}, key=lambda one: (-sum(n for _, n in one), sorted(one))):
        if not any(all(dict(kept).get(text, 0) >= n for text, n in history) for kept in others):
            others.append(history)
        if len(others) > 64:
            raise Unknown("more than 64 different histories")
    found = [epsilon(history, delta) for history in [*others, *sorted(gaussian, key=squares.get)[-1:]]]
    return max([0.0, *(least for least, _ in found)]), max([0.0, *(most for _, most in found)])


def sum_of_squares(history):
    """Sum of mu^2 of a history of Gaussians; infinite for any other."""
    costs = [(cost(text), times) for text, times in history]
    return sum(one.mu2 * times if one is not None and one.mu2 else INF for one, times in costs)


def epsilon(history, delta):
    """(from below, from above) of one client's [(event, times)], which compose adaptively [ZDW22, Theorem 10]."""
    known = [(cost(text), times) for text, times in history]
    if any(one is None for one, _ in known):
        return INF, INF
    costs = [(one, times) for one, times in known if one.is_felt]
    mu2, paid, pure, rho = (
        sum(getattr(one, of) * times for one, times in costs) for of in ("mu2", "share", "pure", "rho")
    )
    if paid >= delta or mu2 > 1e200:
        return 0.0, INF
    if all(one.mu2 for one, _ in costs):
        return by_formula(math.sqrt(mu2), delta)
    # From above, each alone: delta 0; a Renyi curve; a Gaussian that is nearly as bad; laws of the loss.
    curves = [(one.curve, times) for one, times in costs if one.curve]
    by_curve = by_order(rho + mu2 / 2, delta - paid, curves) if rho < INF else INF
    least, most = 0.0, min(pure, by_curve)
    near = [(one.near or (one.mu2, 0.0, 0.0), times) for one, times in costs]
    square, shift, share = (sum(part[which] * times for part, times in near) for which in range(3))
    left = (delta - paid - share) * math.exp(-min(shift, 700))
    if left > 0 and all(one.near or one.mu2 for one, _ in costs):
        most = min(most, shift + by_formula(math.sqrt(square), left)[1])
    with suppress(Unknown):
        exact = not paid and not any(one.floor or one.near for one, _ in costs)
        least, above = by_laws(costs, delta, lambda one: one.floor() if one.floor else one.laws, mu2)
        if left > 0 and all(one.laws or one.mu2 or one.near for one, _ in costs) and len(costs) <= 100:
            above = above if exact else by_laws(costs, left, lambda one: one.laws, square)[1]
            most = min(most, shift + above)
    return min(least, most), most


def by_laws(costs, delta, law_of, mu2):
    """(from below, from above) by laws of the loss, the worse of both directions; mu2: of all that is Gaussian."""
    parts = [(law, times * one.times) for one, times in costs[:100] if (law := law_of(one))]
    parts += [(gaussian_law(math.sqrt(mu2)), 1)] if mu2 else []
    ways = range(max([0, *(len(law) for law, _ in parts)]))
    found = [by_grid([(law[way % len(law)], times) for law, times in parts], delta) for way in ways]
    return max([0.0, *(least for least, _ in found)]), max([0.0, *(most for _, most in found)])


def by_formula(mu, delta):
    """(from below, from above) of Gaussians with sum of mu_i^2 = mu^2 [BW18, Theorem 8], in 40 digits:

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).
    """
    with mpmath.workdps(40):
        mu, low, cdf = mpmath.mpf(mu), mpmath.mpf(0), mpmath.ncdf

        def over(e):
            return cdf(mu / 2 - e / mu) - mpmath.exp(e) * cdf(-mu / 2 - e / mu) > delta

        if not mu or not over(0):
            return 0.0, 0.0
        high = mu * mu / 2 + mu * mpmath.sqrt(-2 * mpmath.log(delta))
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if over(middle) else (low, middle)
        return float(low), float(high) * (1 + 1e-12)


def by_order(rho, delta, curves=()):
    """From above, of Renyi divergences D_a <= rho a + sum of curves [CKS20, Prop. 12], at the best order a = b + 1:

    epsilon = D_a + ln(1/(delta a))/(a - 1) + ln(1 - 1/a).
    """
    b = np.geomspace(1e-7, 1e12, 200_001)
    divergence = rho * (b + 1) + sum(times * curve(b) for curve, times in curves)
    return max(0.0, float(np.min(divergence - np.log(delta * (b + 1)) / b + np.log(b / (b + 1)))))


# --- 5. Mechanisms ---------------------------------------------------------------------------------------------------


@dataclass
class Cost:
    """What is known of ONE release.

    mu2: 1/multiplier^2 of a Gaussian (its whole cost).
    laws: law of the privacy loss of each of ``times`` coordinates, one for each direction; from above.
    floor: gives the laws from below, where they are others (None: there are none).
    rho: of zCDP, D_a <= rho a; 0 beside a curve. curve: D_a as a function of b = a - 1.
    share: of the target delta that it uses up. pure: its epsilon at delta 0, once the share is paid.
    near: (V, s, d): it costs at most what a Gaussian with mu^2 = V does, once epsilon has grown by s and delta by
    exp(s), but for d of the target delta.
    """

    mu2: float = 0.0
    laws: list | None = None
    times: int = 1
    floor: Callable | None = None
    rho: float = INF
    curve: Callable | None = None
    share: float = 0.0
    pure: float = INF
    near: tuple | None = None

    def __post_init__(self):
        self.rho = min(self.rho, self.pure * self.pure / 2)  # pure epsilon is epsilon^2/2-zCDP
        self.is_felt = bool(self.mu2 or self.rho or self.share or self.curve)


#: Of fields of events, beyond which nothing is computed here.
LARGEST_VALUES = {"dimension": 1e10, "noises": 1e5, "l2": 1e12, "linf": 1e12, "trials": 1e12, "sigma": 1e12}


@lru_cache(maxsize=100_000)
def cost(text):
    """Of one release of an event; None: it has no bound. Raises `Unknown`, and ValueError for no event."""
    flat = strict(text)
    if flat["mechanism"] == "no_bound":
        return None
    threat = threat_of(flat)
    flat = complete({name: value for name, value in flat.items() if name not in WORDS}, threat)
    e = SimpleNamespace(**{name: INF if value == "inf" else value for name, value in flat.items()})
    for name, most in LARGEST_VALUES.items():
        if getattr(e, name, 0) > most:
            raise Unknown(f"{name} beyond what is computed here")
    found = KNOWN[e.mechanism][2](e)
    bounded = found is not None and (found.rho < INF or found.pure < INF or found.laws or found.curve)
    return found if bounded and found.mu2 < INF else None


def complete(flat, threat):
    """An event with the values that it leaves out, and its threat. Raises ValueError where there is no such event."""
    kind = one_of(flat["mechanism"], KNOWN)
    known, allowed, _ = KNOWN[kind]
    needed = [name for name, (_, default) in known.items() if default is None]
    fields(flat, ["mechanism", *needed], known)
    event = {"mechanism": kind}
    for name, (check_value, default) in known.items():
        value = flat.get(name, default)
        event[name] = "inf" if (checked := check_value(value)) == INF else checked
    e = SimpleNamespace(**{name: INF if value == "inf" else value for name, value in event.items()})
    if not allowed(e, *threat):
        raise ValueError(f"no such {kind} under {' '.join(threat)}")
    return event | dict(zip(WORDS, threat, strict=True))


def gaussian(e):
    """Normal noise, multiplier = standard deviation / L2 sensitivity = 1/mu."""
    return Cost(mu2=1 / e.multiplier / e.multiplier, rho=0.0) if e.multiplier >= 1e-150 else None


def sampled(e, rate, law, least, floor=None):
    """Normal noise over a sample in which a unit is with this rate. law(multiplier, rate): of its loss."""
    if rate == 0:
        return Cost(pure=0.0)
    if rate == 1 or e.multiplier < 1e-150:
        return gaussian(e)
    if not least < e.multiplier < 1e6:
        raise Unknown("sampled noise beyond what is computed here")
    return Cost(laws=law(e.multiplier, rate), floor=floor)


def fixed_size_gaussian(e):
    """[BBG18]; from below: two data sets that reach one direction of it."""
    rate = e.sample_size / e.population
    return sampled(e, rate, fixed_size_law, 1e-3, lambda: poisson_law(e.multiplier, rate))


def allocated_gaussian(e):
    """A unit takes part in one round of ``rounds``, uniform and secret; the first ``released`` of them are released."""
    if e.rounds == 1 or e.multiplier < 1e-150:
        return gaussian(e)
    return Cost(laws=allocated_law(e.multiplier, e.rounds, e.released or e.rounds), floor=lambda: None)


def laplace(e):
    """Laplace noise, multiplier = scale / L1 sensitivity."""
    if e.multiplier < 1e-150:
        return None
    return Cost(pure=1 / e.multiplier, laws=laplace_law(e.multiplier) if 1e-3 < e.multiplier < 1e6 else None)


def symbols(epsilon, inside=None, times=1, share=0.0):
    """``times`` symbols of pure epsilon: the likelier set has probability ``inside``, None: of a bit the more probable.

    No release of pure epsilon is worse than such a bit (Kairouz, Oh, Viswanath, ICML 2015).
    """
    if epsilon == INF:
        return None
    inside = 1 / (1 + math.exp(-epsilon)) if inside is None else inside
    least = inside * math.exp(-epsilon)
    law, pure = [inside, max(0.0, 1 - inside - least), least], times * epsilon * (inside > 0)
    laws = law_of_outcomes(law, law[::-1]) if pure > 0 and epsilon < 500 else None
    return Cost(share=share, times=times, pure=pure, laws=laws)


def gumbel_top_k(e):
    """k picks whose losses have the range epsilon each: epsilon^2/8-zCDP [CR21]."""
    return None if e.epsilon == INF else Cost(rho=e.k * e.epsilon * e.epsilon / 8, pure=e.k * e.epsilon)


def zcdp(e):
    return None if e.rho == INF else Cost(rho=e.rho)


def paired_quantisation(e):
    """CoQ-FL's bits of one coordinate, high with p and the partner's with r: by uniforms of which they share ``bits``
    bits, or each with probability mu by its own. The ends of p, and of r the ends and multiples of 2^-bits, are worst.
    Other members know the shared uniform: below both ends of p, between them, or above.
    """
    if e.epsilon > 20 or (e.bits and e.private_share == 0):
        return None  # bits beyond 20 are all but sent
    if e.bits == 0 or e.epsilon == 0:
        return symbols(e.epsilon, times=e.dimension)
    low, mu, cells = 1 / (1 + math.exp(e.epsilon)), e.private_share, 2.0**e.bits
    high, alone, orders = 1 - low, 1 - (1 - mu) ** 2, np.geomspace(1e-3, 1e3, 121)
    r = np.r_[high, low, np.clip(np.arange(cells) / cells, low, high)]

    def law(p):
        """[r, 4]: probabilities of both bits, of the first alone, of the second alone, of none."""
        first, second = p * cells, (1 - r) * cells
        within = first % 1 * (1 - second % 1) / cells
        both = np.where(np.floor(first) == np.floor(second), within, np.maximum(0, p + r - 1))
        both = both * (1 - alone) + alone * p * r
        return np.stack([both, p - both, r - both, 1 - p - r + both], 1)

    def seen(p, *shared):
        """[1, 6]: the bit, and where the shared uniform lies."""
        yes = mu * p + (1 - mu) * np.array(shared)
        return (np.array([low, high - low, low]) * [yes, 1 - yes]).reshape(1, 6)

    if e.observer == "server+members" or e.group_size > 2:
        p, q = seen(high, 1, 1, 0), seen(low, 1, 0, 0)
        ends = [high, low], [low, high]
    else:
        p, q = law(high), law(low)
        ends = p[0], q[0]
    gains = [e.dimension * special.logsumexp(b * np.log(p / q), b=p, axis=1).max() for b in orders]
    laws = dominating_law(p, q)
    return Cost(times=e.dimension, laws=laws, floor=lambda: law_of_outcomes(*ends), rho=0.0, curve=chord(orders, gains))


def discrete_gaussian_sum(e):
    """[KLS21, Theorem 1], with a bound on tau that holds for every number of noises."""
    if e.l2 == 0 and e.sigma > 0:
        return Cost(rho=0.0)
    k, j = 1 - 1 / np.arange(2, e.noises + 1), np.arange(1, 12)
    off = 2 * np.exp(-2 * (math.pi * e.sigma) ** 2 * np.outer(k, j**2)).sum(1)
    if e.sigma == 0 or off.max(initial=0) >= 0.5:
        return None
    tau, root = 2 * float(np.sum(np.log1p(off) - np.log1p(-off))), math.sqrt(e.noises) * e.sigma
    reach, l1 = int(10 * root) + int(e.l2) + 1, min(math.sqrt(e.dimension) * e.l2, e.l2**2)

    def floor():
        """The exact law of one coordinate; beyond 1e-12 FFT's rounding would count."""
        law = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * e.sigma**2))
        law = fft.fftshift(fft.irfft(fft.rfft(fft.ifftshift(law / law.sum())) ** e.noises, len(law)))
        return shifted_law(law[law > 1e-12 * law.max()], int(e.l2))

    rho = ((e.l2 / root) ** 2 + 2 * tau * l1 / root + tau * tau * e.dimension) / 2
    return Cost(rho=rho, floor=floor if reach < MOST_CELLS // 8 else lambda: None, near=nearly_gaussian(root, e, tau))


def nearly_gaussian(root, e, tau):
    """The loss is linear in the noise x, and E f(x) <= E f(x + N(0, t)) for convex f: by Poisson's summation formula a
    Gaussian of variance root^2 + t, but for a factor on each of the coordinates that can change.
    """
    t, changed, m2 = np.geomspace(0.3, 9, 300), min(e.dimension, e.l2**2), (e.l2 / root) ** 2
    off = 2 * np.exp(-2 * (math.pi * np.arange(1, 9)[:, None]) ** 2 / (1 / root**2 + 1 / t)).sum(0)
    shift = np.where(off < 0.5, m2 * t / root**2 / 2 + changed * (tau + np.log1p(off) - np.log1p(-off)), INF)
    best = np.argmin(shift + m2 * t / root**2)
    return (m2 * (1 + t[best] / root**2), shift[best], 0.0) if shift[best] < 100 else None


def skellam_sum(e):
    """Of whole orders: [AKL21]. Here of all: no second difference of -ln P exceeds c, so ln P(x)^(1 + b) P(x + v)^-b is
    at most c b (b + 1) v^2/2 more than c u (1 - u)/2 + ln P(k)^(1 - u) P(k + 1)^u, with x - b v = k + u. Summed over x,
    these two are about 0 together. Proof of ``near``: fedpriv/privacy/integer_laws.py.
    """
    m, u, law, near = e.noises * e.variance, np.arange(17) / 32, None, 1
    if m < 3:
        return None
    if e.l2 == 0:
        return Cost(rho=0.0)
    if 0 < (reach := 10 * math.sqrt(m) + e.l2) < MOST_CELLS // 8:
        law = special.ive(np.abs(np.arange(-int(reach), int(reach) + 1)), m)
        first, second = law[:-1][law[1:] > 0], law[1:][law[1:] > 0]
        near = [(first ** (1 - at) * second**at).sum() for at in u]
    c, log = -math.log1p(-1 / math.sqrt(m * m - 1)), math.log(2 * e.dimension / e.delta)
    r = 2 + e.l2 + log / 3 + math.sqrt(log * log / 9 + 2 * m * log)  # Bernstein's inequality
    least, most = 1 / math.hypot(r + 1, m, 2), c * (math.exp(c / 2) + math.asinh((r + 1) / m) ** 2 / 3)
    tails = math.log1p(2 * math.exp(-r * r / (2 * m + r)) / -math.expm1(-least * r)) * min(e.dimension, e.l2**2)
    gaussian_of = most * e.l2**2, (most - least) * e.l2**2 / 2 + tails, e.delta
    more = np.max(c * u * (1 - u) / 2 + np.log(near)) + c / 8192 + 1e-12  # between two of u at most c/8192
    return Cost(
        rho=c * e.l2**2 / 2,
        near=gaussian_of if gaussian_of[1] < 100 else None,
        curve=lambda b: more * min(e.dimension, e.l2**2) / b,
        floor=lambda: None if law is None else shifted_law(law[law > 0], int(e.l2)),
    )


def shuffled(e):
    """[FMT21, Theorem 3.1]; from below: all others' bits are alike."""
    if e.epsilon == INF:
        return None
    grown, low = np.exp(e.epsilon) / e.users, 1 / (1 + np.exp(e.epsilon))
    holds = 16 * math.log(2 / e.delta) * grown <= 1
    more = 8 * math.sqrt(grown * math.log(4 / e.delta)) + 8 * grown if holds else 0.0
    less = min(e.epsilon, math.log1p(math.tanh(e.epsilon / 2) * more)) if holds else e.epsilon

    def floor():
        """The number of ones among the others' bits, and with one that is 1 with probability high or low."""
        law = special.softmax(np.r_[0, np.cumsum(np.log(e.users / np.arange(1, e.users) - 1) - e.epsilon)])
        law = np.r_[0, law[law > 1e-14 * law.max()], 0]
        return law_of_outcomes(*(law[1:] * (1 - p) + law[:-1] * p for p in (1 - low, low)))

    found = symbols(less, None, e.dimension, e.dimension * e.delta * holds)
    if 1e-9 < e.epsilon < 500 and e.users < MOST_CELLS:
        found.floor = floor
    return found


def binomial(e):
    """cpSGD. Exact moments M(v) of one coordinate that moves by v steps, its noise within ``reach`` of its mean (all
    are, but for delta). Vectors T apart, rounded by the same uniforms, end n + 1 steps apart with probability f, else
    n. So for every w the sum of ln((1 - f) M(n) + f M(n + 1)) is at most w T^2 + d max over t = n + f of
    (that ln - w t^2).
    """
    half, most = e.trials / 2, max(1, round(min(e.linf / e.step, 1e15))) if e.step else INF
    reach = math.sqrt(half * math.log(2 * e.dimension / e.delta))
    if reach + most + 1 >= half:
        return None
    if most > 200 or reach > 1e6:
        raise Unknown("a binomial beyond what is computed here")
    z = np.arange(math.ceil(half - reach), math.floor(half + reach) + 1)
    law = special.softmax(np.r_[0, np.cumsum(np.log((e.trials - z[:-1]) / (z[:-1] + 1)))])
    loss = -np.cumsum([np.log((e.trials - z - v) / (z + v + 1)) for v in range(most)], 0)  # ln P/Q, moved by v + 1
    b = np.geomspace(1e-2, min(1e4, 200 / loss.max()), 161)
    grown = np.array([0 * b, *([law @ np.expm1(at * one) for at in b] for one in loss)])  # M - 1
    n, m, slope = np.arange(most)[:, None], 1 + grown[:-1], grown[1:] - grown[:-1]
    w = np.geomspace(0.1, 1e4, 400)[:, None, None] * np.log1p(grown[1])
    root = np.sqrt((c := m - slope * n) ** 2 + 2 * slope**2 / w)  # where (m + slope (t - n)) has the derivative 2 w t
    t = np.clip(np.where(c > 0, slope / w / (np.abs(c) + root), (root - c) / (2 * slope)), n, n + 1)
    near = min(e.distance, e.l2) / e.step
    gains = (e.dimension * (np.log(m + slope * (t - n)) - w * t * t).max(1) + w[:, 0] * near**2).min(0)
    floor = min(most, int(min(near, 1e15)) - 1)
    return Cost(rho=0.0, share=e.delta, curve=chord(b, gains), floor=lambda: shifted_law(law, floor))


def chord(b, gains):
    """D_a at a = b + 1 from above, by ln sum P^a Q^(1 - a) at some b: convex in a, and 0 at b = 0."""
    return lambda at: np.where(at > b[-1], INF, np.interp(at, np.r_[0, b], np.r_[0, gains])) / at


def real(most=INF, default=None):
    """A field that is a number of at least 0; default: where it may be left out."""
    return (lambda value: number(value, most=most)), default


def integer(least, most=MOST_WHOLE, default=None):
    return (lambda value: whole(value, least, most)), default


def below_one(value):
    fits(number(value) < 1)
    return float(value)


def between_0_and_1(value):
    fits(0 < number(value) < 1)
    return float(value)


def reason(value):
    fits(type(value) is str and value not in ("", "inf"))
    return value


def anywhere(e, unit, adjacency, observer):
    return True


def hides_who(unit, observer):
    """Whether a sample hides who is in it: of a client's rows, or of the clients from who does not see the cohort."""
    return unit != "client" or observer in BLIND_TO_COHORT


def by_coin(e, unit, adjacency, observer):
    return adjacency != "replace-one" and hides_who(unit, observer)


def of_a_pass(e, unit, adjacency, observer):
    return e.released <= e.rounds and by_coin(e, unit, adjacency, observer)


def of_fixed_size(e, unit, adjacency, observer):
    return e.sample_size <= e.population and adjacency == "replace-one" and hides_who(unit, observer)


def of_parts(e, unit, adjacency, observer):
    """Parts of a client's data, or clients one of which is replaced."""
    return adjacency == ("replace-one" if unit == "client" else "add-or-remove-one") and hides_who(unit, observer)


def of_two_values(e, unit, adjacency, observer):
    """No pure epsilon allows a likelier set of more than 1/(1 + exp(-epsilon))."""
    return e.inside * (1 + math.exp(-e.epsilon)) <= 1 + 1e-12


def of_a_shuffle(e, unit, adjacency, observer):
    return observer not in ("server", "server+members")


def of_pairs(e, unit, adjacency, observer):
    e.observer = observer
    return True


DIMENSION = integer(1, default=1)
#: mechanism -> (its fields: check, and value where it is left out; whether such an event is one under a threat; cost)
KNOWN = {
    "no_bound": ({"reason": (reason, None)}, anywhere, lambda e: None),
    "gaussian": ({"multiplier": real()}, anywhere, gaussian),
    "laplace": ({"multiplier": real()}, anywhere, laplace),
    "zcdp": ({"rho": real()}, anywhere, zcdp),
    "gumbel_top_k": ({"k": integer(1), "epsilon": real()}, anywhere, gumbel_top_k),
    "poisson_gaussian": (
        {"multiplier": real(), "sampling_rate": real(1)},
        by_coin,
        lambda e: sampled(e, e.sampling_rate, poisson_law, 1e-3),
    ),
    "replaced_gaussian": (
        {"multiplier": real(), "sampling_rate": real(1)},
        of_parts,
        lambda e: sampled(e, e.sampling_rate, replaced_law, 0.05),
    ),
    "fixed_size_gaussian": (
        {"multiplier": real(), "sample_size": integer(0), "population": integer(1)},
        of_fixed_size,
        fixed_size_gaussian,
    ),
    "allocated_gaussian": (
        {"multiplier": real(), "rounds": integer(1, 10**6), "released": integer(0, default=0)},
        of_a_pass,
        allocated_gaussian,
    ),
    "randomised_response": (
        {"epsilon": real(), "dimension": DIMENSION},
        anywhere,
        lambda e: symbols(e.epsilon, times=e.dimension),
    ),
    "approximate_dp": (
        {"epsilon": real(), "delta": (below_one, None)},
        anywhere,
        lambda e: symbols(e.epsilon, share=e.delta),
    ),
    "unit_cap": (
        {"epsilon": real(), "inside": real(1), "delta": (below_one, 0.0)},
        of_two_values,
        lambda e: symbols(e.epsilon, e.inside, share=e.delta),
    ),
    "paired_quantisation": (
        {
            "epsilon": real(),
            "private_share": real(1),
            "bits": integer(0, 16, 8),
            "dimension": DIMENSION,
            "group_size": integer(2, default=2),
        },
        of_pairs,
        paired_quantisation,
    ),
    "binomial": (
        {
            **{name: real() for name in ("step", "l1", "l2", "linf")},
            "trials": integer(0),
            "dimension": integer(1),
            "delta": (between_0_and_1, None),
            "distance": real(default="inf"),
        },
        anywhere,
        binomial,
    ),
    "discrete_gaussian_sum": (
        {"sigma": real(), "noises": integer(1), "dimension": integer(1), "l2": real()},
        anywhere,
        discrete_gaussian_sum,
    ),
    "skellam_sum": (
        {
            "variance": real(),
            "noises": integer(1),
            "dimension": integer(1),
            "l2": real(),
            "delta": (between_0_and_1, None),
        },
        anywhere,
        skellam_sum,
    ),
    "shuffled": (
        {"epsilon": real(), "users": integer(1), "delta": (between_0_and_1, None), "dimension": DIMENSION},
        of_a_shuffle,
        shuffled,
    ),
}


# --- 6. Privacy loss -------------------------------------------------------------------------------------------------
#
# The privacy loss of a release is L = ln P/Q of what is seen, P and Q being its laws on two neighbouring data sets. A
# law of the loss is (least, largest, tails), tails(t) = (P[L > t], Q[L > t]); what P has beyond the largest is a loss
# without bound. A mechanism has one for each direction, as either data set may be P.

#: Normal tails are cut at 9.5 standard deviations, below 1.1e-21; above(x) = P[N(x, 1) > 0].
Z, above = 9.5, special.ndtr


def gaussian_law(mu):
    """N(mu, 1) against N(0, 1): the loss is N(mu^2/2, mu^2) under P and N(-mu^2/2, mu^2) under Q."""
    return [(mu * (mu / 2 - Z), mu * (mu / 2 + Z), lambda t: (above(mu / 2 - t / mu), above(-mu / 2 - t / mu)))]


def mixed(x, *sides):
    """P and Q of numbers above x, each given by (rate, shift): (1 - rate) N(0, 1) + rate N(shift, 1)."""
    return [(1 - rate) * above(-x) + rate * above(shift - x) for rate, shift in sides]


def poisson_law(sigma, rate):
    """(1 - rate) N(0, 1) + rate N(1/sigma, 1) against N(0, 1), in both directions."""
    none, m = math.log1p(-rate), 1 / sigma  # the loss never falls below none

    def place(t):
        """Where the loss is t."""
        return sigma * (t - math.log(rate) + special.xlogy(1, np.maximum(-np.expm1(none - t), 0))) + m / 2

    least, most = (np.logaddexp(none, math.log(rate) + z * m - m * m / 2) for z in (-Z, Z + m))
    return [
        (least, most, lambda t: mixed(place(t), (rate, m), (0, 0))),
        (-most, -least, lambda t: mixed(-place(-t), (0, 0), (rate, -m))),
    ]


def replaced_law(multiplier, rate):
    """(1 - rate) N(0, 1) + rate N(c, 1) against its reflection: the part that is drawn is another. With u = exp(c x)
    the loss t is where (u + w)/(1/u + w) = exp(t), w = exp(c^2/2) (1 - rate)/rate.
    """
    c, w = 1 / (2 * multiplier), math.exp(1 / (8 * multiplier**2)) * (1 - rate) / rate
    least, most = (np.log((math.exp(c * x) + w) / (math.exp(-c * x) + w)) for x in (-Z, Z + c))

    def place(t):
        return (t / 2 + np.arcsinh(w * np.sinh(t / 2))) / c

    return [(least, most, lambda t: mixed(place(t), (rate, c), (rate, -c)))]


def fixed_size_law(multiplier, rate):
    """A part that may be drawn, with this rate, is replaced: `poisson_law` one way above loss 0, the other way below,
    as two data sets may change places [BBG18].
    """
    (_, most, up), (least, _, down) = poisson_law(multiplier, rate)
    return [(least, most, lambda t: np.where(t < 0, down(t), up(t)))]


def laplace_law(scale):
    def tails(t):
        x, inside = np.clip((1 - scale * t) / 2, 0, 1) / scale, (t >= -1 / scale) & (t < 1 / scale)
        return np.where(inside, 1 - np.exp(-x) / 2, t < 0), np.where(inside, np.exp(x - 1 / scale) / 2, t < 0)

    return [(-1 / scale, 1 / scale, tails)]


def law_of_outcomes(p, q):
    """Of outcomes with these probabilities; those that have none in P or in Q are left out."""
    kept = sorted((pair for pair in zip(p, q, strict=True) if min(pair) > 0), key=lambda pq: pq[0] / pq[1])
    p, q = np.array(kept).T
    return [law_of_losses(np.log(p / q), p, q)]


def law_of_losses(loss, p, q, unbounded=0.0):
    """Of outcomes by their increasing losses. unbounded: what P has of losses without bound."""
    up_p, up_q = (np.r_[np.cumsum(side[::-1])[::-1], 0] for side in (p, q))

    def tails(t):
        at = np.searchsorted(loss, t, side="right")
        return up_p[at] + unbounded, up_q[at]

    return loss[0], loss[-1], tails


def dominating_law(p, q):
    """Of pairs of laws [pairs, outcomes], both ways: the best (false alarms, power) of tests of any of them. The hull
    of these points is the power of a law that dominates all.
    """
    order = np.argsort(q / p, axis=1)
    y, x = (np.cumsum(np.take_along_axis(side, order, 1), 1)[:, :-1].ravel() for side in (p, q))
    points = np.array([[0, 0], [1, 1], [1, 0], *zip(x, y, strict=True), *zip(1 - y, 1 - x, strict=True)])
    corners = {0, 1, *spatial.ConvexHull(points).vertices} - {2}
    hull = points[sorted(corners, key=lambda n: tuple(points[n]))]
    return law_of_outcomes(*np.diff(hull, axis=0).T[::-1])


def shifted_law(law, shift):
    """A coordinate's noise, a law on consecutive whole numbers, moved by so many; None: nothing is known of it."""
    return law_of_outcomes(law[shift:], law[:-shift]) if 0 < shift < len(law) else None


#: Standard deviations at which one round's normal number is cut; the first for which the grid is large enough.
CUTS = (7.5, 7.0, 6.5, 6.0, 5.5)


@lru_cache(maxsize=64)
def allocated_law(sigma, rounds, released):
    """One round of ``rounds``, uniform and secret, has the unit; the first n = ``released`` are seen [FS25].

    The pair that dominates a pass is Q = N(0, 1)^n, P = (1/t) sum_i N(m e_i, I), m = 1/sigma, with dP/dQ = R =
    (t - n + Y_1 + ... + Y_n)/t, Y_i = exp(m x_i - m^2/2): independent lognormals of mean 1 under Q. Both directions,
    E (R - c)_+ and E (1 - c R)_+, are expectations of convex functions of R. So numbers that are larger in the convex
    order (same mean, more spread) are bounds from above, and independent sums keep that order [SS07, 3.A.12].

    Here each Y_i is divided between two points of a grid of equal steps h, its mean kept, and what is above the last
    point M becomes M and a further mean E (Y - M)_+, which is a loss without bound of that probability under P. The law
    of the sum is a power of one Fourier transform; under P one of the Y_i is drawn in proportion to its size.
    """
    m, n = 1 / sigma, released
    if not 1e-3 < m < 10:
        raise Unknown("an allocation beyond what is computed here")
    # h^2/4 more variance, where Y has exp(m^2) - 1; finer for few rounds, whose sum may be near 0.
    step = 0.04 * math.sqrt(math.expm1(m * m)) * min(1.0, n / 16)
    for z in CUTS:
        low, high = math.exp(-m * Z - m * m / 2), math.exp(m * (z + m) - m * m / 2)
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first < MOST_CELLS // 4:
            break
    else:
        raise Unknown("an allocation with too little noise for the grid")
    points = np.arange(first, last + 1) * step
    with np.errstate(divide="ignore"):
        edges = np.log(points) / m + m / 2  # x where Y is a point; under P, x has the mean m
    mass, moment = ((above(edges[1:] - at) - above(edges[:-1] - at)) for at in (0.0, m))
    up = np.clip((moment - points[:-1] * mass) / step, 0, mass)
    y = np.r_[mass - up, 0] + np.r_[0, up]
    y[0], y[-1] = y[0] + above(edges[0]), y[-1] + above(-edges[-1])
    rest = max(0.0, above(m - edges[-1]) - points[-1] * above(-edges[-1]))
    # How far the sum goes, up and down, but with probability 1e-14 (Chernoff), under Q; one more Y bounds it under P.
    offsets, tilts, tiny = np.arange(len(y)) * step, 2.0 ** np.arange(-16, 16, 0.5) / step / 64, 1e-14
    ends = [
        min((n * special.logsumexp(sign * t * offsets, b=y) - math.log(tiny)) / t for t in tilts) for sign in (1, -1)
    ]
    lowest = max(0, math.floor(-ends[1] / step) - 1)
    size = 1 << math.ceil(math.log2(math.ceil(ends[0] / step) + len(y) - lowest + 4))
    if size > MOST_CELLS:
        raise Unknown("an allocation with too little noise for the grid")
    one, sized = (fft.rfft(np.bincount(np.arange(len(y)) % size, part, size)) for part in (y, y * points))
    powers = one**n, sized * one ** (n - 1)
    felt = max(np.count_nonzero(np.abs(power) > 1e-16) for power in powers)
    rounding = 2.3e-16 * math.log2(size) * (n + 1) * math.sqrt(2 * felt) + 4 * tiny
    laws = [np.roll(np.maximum(fft.irfft(power, size), 0), -lowest) for power in powers]
    q, p = laws[0], (1 - n / rounds) * laws[0] + n / rounds * laws[1]
    ratio = (rounds - n + n * first * step + (lowest + np.arange(size)) * step) / rounds
    sure, kept = float(q[ratio <= 0].sum()), ratio > 0
    ratio, q, p = ratio[kept], q[kept], p[kept]
    forward = law_of_losses(np.log(ratio), p, p / ratio, n / rounds * rest + rounding)
    back = law_of_losses(-np.log(ratio)[::-1], q[::-1], (q * ratio)[::-1], sure + rounding)
    return [forward, back]


def on_grid(least, most, tails, step):
    """(index of the least loss, probabilities under P at multiples of step, that of no bound). What lies between two
    points is divided among them so that P and Q keep their masses: an adversary learns more [DGK22].
    """
    first, last = math.floor(least / step), math.ceil(most / step)
    if last - first > MOST_CELLS or max(-least, most) > 600:
        raise Unknown("losses too far apart for the grid")
    grid = np.arange(first, last + 1) * step
    p_up, q_up = tails(grid)
    p, q = p_up[:-1] - p_up[1:], q_up[:-1] - q_up[1:]
    upper = np.clip((p - np.exp(grid[:-1]) * q) / -np.expm1(-step), 0, np.maximum(p, 0))
    lower = np.r_[1 - p_up[0] + p[0] - upper[0], p[1:] - upper[1:], 0]
    return first, np.maximum(lower, 0) + np.r_[0, upper], p_up[-1]


def by_grid(parts, delta):
    """(from below, from above) of [(law, times)], with P and Q in one direction.

    From above: at delta less the errors of cut tails and FFT. From below: a release on the grid moves by at most a
    step, by step^2 exp(step)/8 in the mean (its parts keep E[exp(-L)]), so all together by more than ``moved`` only
    with probability eta (Hoeffding). The grid becomes finer until both agree to 0.2 %.
    """
    count, eta, least, most, ends = sum(times for _, times in parts), delta / 1000, 0.0, INF, None
    widest = max(high - low for (low, high, _), _ in parts)
    step = widest / 64
    while widest / step < MOST_CELLS - 4:
        grids = [(*on_grid(*law, step), times) for law, times in parts]
        ends = ends or sum_ends(grids, step, delta / 1e6)  # finer grids spread less: the same ends hold
        low, cells = math.floor(-ends[1] / step), sum(ends) / step + 4
        if not cells < MOST_CELLS or time.perf_counter() > STOP[0]:
            break
        size = 1 << math.ceil(math.log2(cells))
        transform, start = np.ones(size // 2 + 1, complex), max(low, 0)
        for first, p, _, times in grids:
            transform *= fft.rfft(np.bincount((first + np.arange(len(p))) % size, p, size)) ** times
        felt = np.count_nonzero(np.abs(transform) > 1e-16)
        rounding = 2.3e-16 * math.log2(size) * count * math.sqrt(2 * felt)
        error = rounding + 2 * delta / 1e6 + sum(times * sure for _, _, sure, times in grids)
        p = np.roll(np.maximum(fft.irfft(transform, size), 0), -low)[start - low :]
        moved = step * math.sqrt(count * math.log(1 / eta) / 2) + count * step * step * math.exp(step) / 8
        least = max(least, epsilon_of(p, start, step, delta + error + eta) - moved)
        most = min(most, epsilon_of(p, start, step, delta - error))
        if most - least <= 2e-3 * most or most < 1e-6:
            break
        step /= 4 if 4 * cells < MOST_CELLS else 2  # a grid within this one
    if most == INF:
        raise Unknown("too many releases for the grid")
    return least, most


def sum_ends(grids, step, tiny):
    """How far the sum of all losses goes, up and down, but with probability ``tiny`` each (Chernoff)."""
    tilts = 2.0 ** np.arange(-8, 14, 0.5)

    def end(sign, tilt):
        tilted = (
            times * special.logsumexp(sign * tilt * step * (first + np.arange(len(p))), b=p)
            for first, p, _, times in grids
        )
        return (sum(tilted) - math.log(tiny)) / tilt

    return [float(np.min([end(sign, tilt) for tilt in tilts if sign > 0 or tilt >= 1])) for sign in (1, -1)]


def epsilon_of(p, start, step, delta):
    """The epsilon with delta(epsilon) = E (1 - exp(epsilon - L))_+ = delta; p: of multiples of step from start on."""
    over, weighed = np.cumsum(p[::-1])[::-1], signal.lfilter([1], [1, -math.exp(-step)], p[::-1])[::-1]
    place = int(np.argmax(over - weighed <= delta))  # delta(e) = over - exp(e - loss) weighed, below this loss
    if delta <= 0 or over[place] - weighed[place] > delta:
        return INF
    inside = (over[place] - delta) / weighed[place] if weighed[place] else 0
    return (start + place) * step + math.log(inside) if inside > 0 and start + place else 0.0


# --- 7. Ed25519 ------------------------------------------------------------------------------------------------------
#
# [RFC8032, section 5.1], verification alone: nothing here is secret.

P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D, ROOT = -121665 * pow(121666, -1, P) % P, pow(2, (P - 1) // 4, P)


def signed_by(key, text, signature):
    """Whether the owner of a public key signed this text; both in hexadecimal digits."""
    if not (re.fullmatch("[0-9a-f]{64}", str(key)) and re.fullmatch("[0-9a-f]{128}", str(signature))):
        return False
    public, mark = bytes.fromhex(key), bytes.fromhex(signature)
    a, s, base = point_of(public), int.from_bytes(mark[32:], "little"), point_of(b"\x58" + b"\x66" * 31)
    if a is None or s >= ORDER or multiplied(8, a)[0] == 0:
        return False  # with a key of small order anybody could sign
    h = int.from_bytes(hashlib.sha512(mark[:32] + public + text.encode()).digest(), "little") % ORDER
    x, y = added(multiplied(s, base), multiplied(h, (P - a[0], a[1])))
    return (y | (x & 1) << 255).to_bytes(32, "little") == mark[:32]


def point_of(text):
    """The point that 32 bytes name; None where they name none."""
    y, sign = int.from_bytes(text, "little") & (2**255 - 1), text[31] >> 7
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if (x * x - square) % P == 0 else x * ROOT % P
    x = P - x if x & 1 != sign else x
    return None if y >= P or x == P or (x * x - square) % P else (x, y)


def added(a, b):
    """The sum of two points on the curve y^2 - x^2 = 1 + D x^2 y^2."""
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x, y, inverse = a[0] * b[1] + b[0] * a[1], a[1] * b[1] + a[0] * b[0], pow(1 - product * product, -1, P)
    return x * (1 - product) * inverse % P, y * (1 + product) * inverse % P


def multiplied(scalar, point):
    found = 0, 1
    for bit in f"{scalar:b}":
        found = added(found, found)
        found = added(found, point) if bit == "1" else found
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
