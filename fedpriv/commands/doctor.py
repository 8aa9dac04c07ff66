"""`fedpriv deploy doctor server|node ...`: what would stop a server or a node of a deployment (docs/operations.md).

    server  credentials=FOLDER [host=0.0.0.0] [port=8000] [control=8001] [database=FILE]
    node    policy=FILE data=FOLDER superlink=HOST:PORT credentials=FOLDER client=NUMBER [port=9094] [OPTION=VALUE ...]

The options are those of `fedpriv deploy superlink` and `fedpriv deploy node run`. Further options of a node are those
of a run, which its policy, its data and its ledger are compared with. Call it as the user who is to run the service.
Each line says "ok", "wrong" with the remedy, or "not looked at" with the reason. Nothing is written and nothing is
booked; the SuperLink gets a question about its health, and one that the node signs. Exit code 1: something is wrong.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedpriv.commands.node import Client, Node, check_shards, identity_of, there
from fedpriv.commands.superlink import (
    CONTROL_HOST,
    PROXIES,
    Port,
    bound,
    check_certificate,
    check_proxies,
    superlink_arguments,
)
from fedpriv.common.command_line import DONE, FAILED, Existing, address_of, command, nearest
from fedpriv.common.errors import DataError, FedprivError, OptionError, PolicyRefused
from fedpriv.common.messages import NODE_REMEDIES, Refusal
from fedpriv.common.places import installed_code_only
from fedpriv.common.printing import say
from fedpriv.common.versions import commit, installed, made_by
from fedpriv.deployment.policy import Policy

#: Bytes that a disk should have free: for messages, states, the app and logs.
LEAST_FREE = 2**30


class NotLookedAt(Exception):
    """A check cannot be made here; says why."""


def printed(checks: Mapping[str, Callable[[], str]]) -> int:
    """A line for each check, by what it returns or raises; the exit code."""
    wrong = False
    for name, check in checks.items():
        try:
            state, words = "ok", check()
        except NotLookedAt as reason:
            state, words = "not looked at", str(reason)
        except (FedprivError, OSError) as error:
            state, words, wrong = "wrong", str(error), True
        say(f"{state:<13}  {name}: {' '.join(words.split())}", flush=True)
    return FAILED if wrong else DONE


# --- checks of both -----------------------------------------------------------------------------------------


def check_versions() -> str:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    here = {"Python": platform.python_version(), "flwr": installed("flwr")}
    try:
        wanted = {one.name: one.specifier for one in map(Requirement, requires("fedpriv") or ()) if not one.marker}
        wanted["Python"] = SpecifierSet(metadata("fedpriv")["Requires-Python"])
    except PackageNotFoundError:
        raise NotLookedAt(f"{here}: fedpriv is not installed as a package") from None
    for name, version in here.items():
        if not wanted[name].contains(version):
            raise OptionError(name, version, f"fedpriv needs {wanted[name]}: `make install` brings the locked versions")
    words = ", ".join(f"{name} {version}" for name, version in here.items())
    return f"{words}, fedpriv {made_by(commit())}; the other machines' doctors must say the same of flwr and fedpriv"


def check_keys(*keys: Path) -> str:
    for key in keys:
        with key.open("rb"):
            pass
        if key.stat().st_mode & 0o077:
            raise OptionError("credentials", key, f"other users may read or change this key: chmod 600 {key}")
    return f"{', '.join(key.name for key in keys)}: for this user alone"


def proxies() -> str:
    check_proxies()
    return f"{', '.join(filter(os.environ.get, PROXIES[:-1])) or 'none'} in the environment"


def check_disk(*folders: Path) -> str:
    least = float("inf")
    for folder in folders:
        place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not os.access(place, os.W_OK | os.X_OK):
            raise OptionError("disk", place, "must be writable by the user of the service, who should call the doctor")
        if (free := shutil.disk_usage(place).free) < LEAST_FREE:
            raise OptionError("disk", place, f"{free >> 20} MiB are free: make room for {LEAST_FREE >> 20} MiB")
        least = min(least, free)
    return f"at least {least / 2**30:.1f} GiB are free"


def check_port(option: str, host: str, port: int, answers: Callable[[], object]) -> str:
    """answers: raises where what listens there is not what is to listen there."""
    import httpx

    try:
        bound(option, host, port).close()
        return f"{port} is free"
    except OptionError as busy:
        try:
            answers()
        except (httpx.HTTPError, FedprivError, OSError):
            words = f"{busy.allowed}: stop what listens there (`ss -ltnp` names it), or choose another port"
            raise OptionError(option, port, words) from None
        return f"{port} answers already, as it should where the service runs"


# --- a server -----------------------------------------------------------------------------------------------


@command
def server(
    *,
    credentials: Existing,
    host: str = "0.0.0.0",
    port: Port = 8000,
    control: Port = 8001,
    database: Path | None = None,
) -> int:
    from cryptography import x509
    from flwr.supercore.utils import get_flwr_home

    from fedpriv.deployment.clock import ask

    superlink_arguments(credentials, host, port, control)  # the database would be made
    asked = CONTROL_HOST if address_of(host) in ("0.0.0.0", "::") else host

    def certificate() -> str:
        check_certificate(credentials)
        found = x509.load_pem_x509_certificate((credentials / "server.crt").read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        shown = ", ".join(str(name.value) for name in names)
        return f"until {found.not_valid_after_utc:%Y-%m-%d}; nodes may call the server {shown}, and nothing else"

    def clock() -> str:
        raise NotLookedAt("it is the clock that nodes must agree with; `timedatectl` says whether it is synchronised")

    def by_tls(host: str, port: int) -> Callable[[], object]:
        return lambda: ask(f"{host}:{port}", credentials / "ca.crt")

    return printed(
        {
            "versions": check_versions,
            "keys": lambda: check_keys(credentials / "server.key"),
            "certificate": certificate,
            "clock": clock,
            "proxies": proxies,
            "port": lambda: check_port("port", address_of(host), port, by_tls(asked, port)),
            "control": lambda: check_port("control", CONTROL_HOST, control, by_tls(CONTROL_HOST, control)),
            "disk": lambda: check_disk(get_flwr_home(), *([database.parent] if database else [])),
        }
    )


# --- a node -------------------------------------------------------------------------------------------------

#: By a word of OpenSSL's error, what to do; last, where it is no certificate that is wrong.
UNREACHED = {
    "mismatch": "use a name that the server's certificate has (`fedpriv deploy doctor server` lists them), or make one "
    "with this name: `fedpriv deploy credentials server FOLDER host=NAME`",
    "certificate": "ca.crt must be of the authority that signed the server's certificate, and no proxy may end TLS",
    "": "start the SuperLink, let this machine reach its port through firewalls, and behind a proxy set HTTPS_PROXY",
}


@command
def node(
    *overrides: str,
    node: Node,
    superlink: str,
    credentials: Existing,
    client: Client,
    port: Annotated[int, Field(ge=1024, le=65535)] = 9094,
) -> int:
    import httpx

    from fedpriv.deployment.clock import NOT_REGISTERED, Answer, ClockRefused, Offset, ask, is_registered

    authority, key = there(credentials / "ca.crt"), there(credentials / "node.key")
    answers: list[Answer] = []

    def reached() -> str:
        try:
            answers.append(ask(superlink, authority))
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            remedy = next(words for word, words in UNREACHED.items() if word in str(error))
            raise OptionError("superlink", superlink, f"{error}: {remedy}") from None
        return f"answers, with a certificate for this name until {answers[0].ends}"

    def offset() -> Offset:
        if not answers or (found := answers[0].offset) is None:
            raise NotLookedAt("the SuperLink did not say what time it is")
        return found

    def clock() -> str:
        if (found := offset()).refused:
            raise ClockRefused(str(found))
        return str(found)

    def registered() -> str:
        if offset().refused or not answers[0].gated:
            raise NotLookedAt("that takes `fedpriv deploy superlink` and a clock that agrees with its")
        if not is_registered(superlink, authority, key):
            raise OptionError("credentials", credentials, NOT_REGISTERED)
        return "the SuperLink knows this node's key"

    def rules() -> Policy:
        try:
            return node.rules
        except OptionError:
            raise NotLookedAt("the policy must be right first") from None

    def policy() -> str:
        from fedpriv.deployment.approved_weights import check_files

        check_files(node.rules.weights, node.policy)
        if not node.rules.bundles and node.rules.guard is None:
            words = "allowed: digests of apps, which `fedpriv deploy node bundle APP` prints"
            raise OptionError(f"{node.policy}: bundles", "[]", words)
        return f"admits {', '.join(node.rules.strategies) or 'no method'}, by {len(node.rules.bundles)} bundles"

    def ledger() -> str:
        from fedpriv.data.sources import chosen_classes
        from fedpriv.deployment.declaration import DeclaredTable, check_rows

        with node.ledger(identity_of(credentials)).seen(thorough=True) as found:
            rules().accounting(found.accounting(), found.spent())
            if found.signer is None:
                found.signs_heads()
            declared = found.declared()
            if isinstance(declared, DeclaredTable):
                check_rows(declared, node.data)
            elif declared.classes and (there := len(chosen_classes(node.data, declared.classes))) != declared.examples:
                words = f"{there} pictures, declared were {declared.examples}; `declare` declares the new number"
                raise DataError(f"{node.data}: {words}")
            return f"{found.spent().messages} messages have left, {declared.number} are declared"

    def run() -> str:
        if not overrides:
            raise NotLookedAt("give the run's options behind these, as in strategy=fedldp num_rounds=20")
        from fedpriv.config.remote import compose_remote
        from fedpriv.deployment.gate import would_refuse
        from fedpriv.runs.preparation import resolve

        config, _, plan = resolve(compose_remote(overrides), None)
        with node.ledger().seen() as found:
            if wrong := would_refuse(rules(), config, plan.participations[1], (client, found)):
                raise PolicyRefused(f"{'; '.join(wrong)}; {NODE_REMEDIES[Refusal.POLICY]}")
        return "policy, declared data and what is left of the budgets admit all its rounds"

    def kernel() -> str:
        from fedpriv.guard.sandbox import available

        if (guard := rules().guard) is None or guard.sandbox == "none":
            raise NotLookedAt("the policy has no section guard, or none with a sandbox")
        check_shards(guard, node.data)
        if (lacking := available()) is not None:
            raise OptionError("guard.sandbox", guard.sandbox, lacking)
        return "confines foreign apps; `fedpriv deploy node probe` tries whether they can tell each other anything"

    return printed(
        {
            "versions": check_versions,
            "keys": lambda: check_keys(key, *credentials.glob("identity.key")),
            "proxies": proxies,
            "superlink": reached,
            "clock": clock,
            "registered": registered,
            "port": lambda: check_port(
                "port",
                CONTROL_HOST,
                port,
                lambda: httpx.get(f"http://{CONTROL_HOST}:{port}/health", trust_env=False).raise_for_status(),
            ),
            "policy": policy,
            "ledger": ledger,
            "run": run,
            "kernel": kernel,
            "disk": lambda: check_disk(node.data, Path(rules().counter).parent, Path(tempfile.gettempdir())),
        }
    )


@command
def main(*overrides: str) -> int:
    installed_code_only()
    name, *given = overrides
    if (work := {"server": server, "node": node}.get(name)) is None:
        raise OptionError("MACHINE", name, f"allowed: server, node{nearest(name, ('server', 'node'))}")
    return work(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
