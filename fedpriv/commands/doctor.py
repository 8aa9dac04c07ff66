"""`fedpriv deploy doctor server|node ...`: what would stop a server or a node of a deployment (docs/operations.md).

    server  credentials=FOLDER [host=0.0.0.0] [port=8000] [control=8001] [database=FILE]
    node    policy=FILE data=FOLDER superlink=HOST:PORT credentials=FOLDER client=NUMBER [port=9094] [OPTION=VALUE ...]

The options are those of `fedpriv deploy superlink` and `fedpriv deploy node run`. Further options of a node are those
of a run, which its policy, its data and its ledger are compared with. Call it as the user who is to run the service.
Each line says "ok", "wrong" with the remedy, or "not looked at" with the reason. Nothing is written and nothing is
booked; the SuperLink is asked about its health, and whether it knows the node's key. Exit code 1: something is wrong.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedpriv.commands import superlink as servers
from fedpriv.commands.node import Client, Node, check_shards, identity_of, there
from fedpriv.common.command_line import DONE, FAILED, Existing, address_of, command, nearest
from fedpriv.common.errors import DataError, FedprivError, OptionError, PolicyRefused
from fedpriv.common.messages import NODE_REMEDIES, Refusal
from fedpriv.common.places import installed_code_only
from fedpriv.common.printing import say
from fedpriv.common.versions import commit, installed, made_by

#: MiB that a disk should have free: for messages, states, the app and logs.
LEAST_FREE = 1024
#: By a word of the error of a connection, what to do about it.
UNREACHED = {
    "mismatch": "use a name that the server's certificate has (`fedpriv deploy doctor server` lists them), or make one "
    "with this name: `fedpriv deploy credentials server FOLDER host=NAME`",
    "certificate": "ca.crt must be of the authority that signed the server's certificate, and no proxy may end TLS",
    "": "start the SuperLink, and let firewalls pass its port; a site's proxy belongs into HTTPS_PROXY, a dead one not",
}


class NotLookedAt(Exception):
    """A check cannot be made here; says why."""


def not_without_policy() -> str:
    raise NotLookedAt("the policy must be right first")


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

    flwr, words = installed("flwr"), f"Python {platform.python_version()}, fedpriv {made_by(commit())}"
    try:
        needed = map(Requirement, requires("fedpriv") or ())
        wanted = next(one.specifier for one in needed if one.name == "flwr" and not one.marker)
    except PackageNotFoundError:
        raise NotLookedAt(f"flwr {flwr}, {words}, which is not installed as a package") from None
    if not wanted.contains(flwr):
        raise OptionError("flwr", flwr, f"fedpriv needs {wanted}: `make install` brings the locked versions")
    return f"flwr {flwr}, {words}; on every machine the doctor should say the same of flwr and fedpriv"


def check_keys(*keys: Path) -> str:
    for key in keys:
        key.open("rb").close()
        if key.stat().st_mode & 0o077:
            raise OptionError("credentials", key, f"other users may read or change this key: chmod 600 {key}")
    return f"{', '.join(key.name for key in keys)}: for this user alone"


def proxies() -> str:
    servers.check_proxies()
    return f"{', '.join(filter(os.environ.get, servers.PROXIES[:-1])) or 'none'} in the environment"


def check_disk(*folders: Path) -> str:
    free = {}
    for folder in folders:
        place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free[place] = shutil.disk_usage(place).free >> 20
        if not os.access(place, os.W_OK | os.X_OK):
            raise OptionError("disk", place, "must be writable by the user of the service, who should call the doctor")
        if free[place] < LEAST_FREE:
            raise OptionError("disk", place, f"{free[place]} MiB are free: make room for {LEAST_FREE} MiB")
    return ", ".join(f"{mib} MiB free for {place}" for place, mib in free.items())


def check_port(option: str, host: str, port: int, ask: Callable[[], object]) -> str:
    """ask: raises where what listens there is not what should."""
    import httpx

    try:
        servers.bound(option, host, port).close()
        return f"{port} is free"
    except OptionError as busy:
        try:
            ask()
        except (httpx.HTTPError, FedprivError, OSError):
            words = f"{busy.allowed}: stop what listens there (`ss -ltnp` names it), or choose another port"
            raise OptionError(option, port, words) from None
        return f"{port} answers already, as it should where the service runs"


# --- a server and a node ------------------------------------------------------------------------------------


@command
def server(
    *,
    credentials: Existing,
    host: str = "0.0.0.0",
    port: servers.Port = 8000,
    control: servers.Port = 8001,
    database: Path | None = None,
) -> int:
    from cryptography import x509
    from flwr.supercore.utils import get_flwr_home

    from fedpriv.deployment.clock import ask

    servers.superlink_arguments(credentials, host, port, control)  # without the database, which it would make
    here, authority = servers.CONTROL_HOST, credentials / "ca.crt"
    public = here if address_of(host) in ("0.0.0.0", "::") else host

    def certificate() -> str:
        servers.check_certificate(credentials)
        found = x509.load_pem_x509_certificate((credentials / "server.crt").read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        shown = ", ".join(str(name.value) for name in names)
        return f"until {found.not_valid_after_utc:%Y-%m-%d}, for nodes that call this server {shown}"

    return printed(
        {
            "versions": check_versions,
            "keys": lambda: check_keys(credentials / "server.key"),
            "certificate": certificate,
            "proxies": proxies,
            "port": lambda: check_port("port", address_of(host), port, lambda: ask(f"{public}:{port}", authority)),
            "control": lambda: check_port("control", here, control, lambda: ask(f"{here}:{control}", authority)),
            "disk": lambda: check_disk(get_flwr_home(), *([database.parent] if database else [])),
        }
    )


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

    from fedpriv.deployment.clock import NOT_REGISTERED, Answer, ClockRefused, ask, is_registered

    authority, key, here = there(credentials / "ca.crt"), there(credentials / "node.key"), servers.CONTROL_HOST
    answers: list[Answer] = []

    def reached() -> str:
        try:
            answers.append(ask(superlink, authority))
        except ImportError:
            raise NotLookedAt("the proxies must be right first") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
            remedy = next(words for word, words in UNREACHED.items() if word in str(error))
            raise OptionError("superlink", superlink, f"{error}: {remedy}") from None
        return f"answers, with a certificate for this name until {answers[0].ends}"

    def clock() -> str:
        if not answers or (offset := answers[0].offset) is None:
            raise NotLookedAt("the SuperLink did not say what time it is")
        if offset.refused:
            raise ClockRefused(str(offset))
        return str(offset)

    def registered() -> str:
        if not answers or not answers[0].gated or (answers[0].offset and answers[0].offset.refused):
            raise NotLookedAt("that takes an answer of `fedpriv deploy superlink`, and a clock that agrees with its")
        if not is_registered(superlink, authority, key):
            raise OptionError("credentials", credentials, NOT_REGISTERED)
        return "the SuperLink knows this node's key"

    def policy() -> str:
        from fedpriv.deployment.approved_weights import check_files

        check_files(node.rules.weights, node.policy)
        if not node.rules.bundles and node.rules.guard is None:
            words = "allowed: digests of apps, which `fedpriv deploy node bundle APP` prints"
            raise OptionError(f"{node.policy}: bundles", "[]", words)
        return f"admits {', '.join(node.rules.strategies) or 'no method'}, of {len(node.rules.bundles)} bundles"

    def ledger() -> str:
        from fedpriv.data.sources import chosen_classes
        from fedpriv.deployment.declaration import DeclaredTable, check_rows

        with node.ledger(identity_of(credentials)).seen(thorough=True) as found:
            node.rules.accounting(found.accounting(), found.spent())
            if found.signer is None:
                found.signs_heads()
            declared = found.declared()
            if isinstance(declared, DeclaredTable):
                check_rows(declared, node.data)
            elif declared.classes and (count := len(chosen_classes(node.data, declared.classes))) != declared.examples:
                words = f"{count} pictures, declared were {declared.examples}; `declare` declares the new number"
                raise DataError(f"{node.data}: {words}")
            return f"{found.spent().messages} messages have left, {declared.number} are declared"

    def run() -> str:
        if not overrides:
            raise NotLookedAt("give the run's options after these, as in strategy=fedldp num_rounds=20")
        from fedpriv.config.remote import compose_remote
        from fedpriv.deployment.gate import would_refuse
        from fedpriv.runs.preparation import resolve

        config, _, plan = resolve(compose_remote(overrides), None)
        with node.ledger().seen() as found:
            if wrong := would_refuse(node.rules, config, plan.participations[1], (client, found)):
                raise PolicyRefused(f"{'; '.join(wrong)}; {NODE_REMEDIES[Refusal.POLICY]}")
        return "policy, declared data and what is left of the budgets admit all its rounds"

    def kernel() -> str:
        from fedpriv.guard.sandbox import available

        if (guard := node.rules.guard) is None or guard.sandbox == "none":
            raise NotLookedAt("the policy has no section guard, or none with a sandbox")
        check_shards(guard, node.data)
        if (lacking := available()) is not None:
            raise OptionError("guard.sandbox", guard.sandbox, lacking)
        return "confines foreign apps; `fedpriv deploy node probe` tries whether they can tell each other anything"

    health, temporary = f"http://{here}:{port}/health", Path(tempfile.gettempdir())
    code = printed(
        {
            "versions": check_versions,
            "keys": lambda: check_keys(key, *credentials.glob("identity.key")),
            "proxies": proxies,
            "superlink": reached,
            "clock": clock,
            "registered": registered,
            "port": lambda: check_port("port", here, port, lambda: httpx.get(health, trust_env=False)),
            "policy": policy,
        }
    )
    further = {"ledger": ledger, "run": run, "kernel": kernel}
    further["disk"] = lambda: check_disk(node.data, Path(node.rules.counter).parent, temporary)
    try:
        _ = node.rules
    except OptionError:
        further = dict.fromkeys(further, not_without_policy)
    return max(code, printed(further))


@command
def main(*overrides: str) -> int:
    installed_code_only()
    name, *given = overrides
    if (work := {"server": server, "node": node}.get(name)) is None:
        raise OptionError("MACHINE", name, f"allowed: server, node{nearest(name, ('server', 'node'))}")
    return work(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
