"""`fedpriv deploy doctor server|node ...`: what would stop a server or a node of a deployment (docs/operations.md).

    server  credentials=FOLDER [host=0.0.0.0] [port=8000] [control=8001] [database=FILE]
    node    policy=FILE data=FOLDER superlink=HOST:PORT credentials=FOLDER client=NUMBER [port=9094] [OPTION=VALUE ...]

The options are those of `fedpriv deploy superlink` and `fedpriv deploy node run`. Further options of a node are those
of a run, which its policy, its data and its ledger are compared with. Call it as the user who is to run the service.
Each line says "ok", "wrong" with the remedy, or "not looked at" with the reason. Nothing is written and nothing is
booked; the SuperLink is asked for its health and whether it knows the node's key. Exit code 1: something is wrong.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fedpriv.commands import superlink as servers
from fedpriv.commands.node import Client, Node, SuperLink, check_shards, identity_of, there
from fedpriv.common.command_line import DONE, FAILED, Folder, address_of, command, nearest
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


#: Why no socket was bound -> what to do about it.
UNBOUND = {
    errno.EADDRINUSE: "stop what listens there (`ss -ltnp` names it), or choose another port",
    errno.EADDRNOTAVAIL: "host= must be an address of this machine",
    errno.EACCES: "choose a port from 1024 on",
}


class NotLookedAt(Exception):
    """A check cannot be made here; says why."""


class Doctor:
    """Prints a line for each check. code: the exit code of those so far."""

    code = DONE

    @contextmanager
    def check(self, name: str) -> Iterator[list[str]]:
        """Context of one check, which raises what is wrong, or else fills the list with what was found."""
        found: list[str] = []
        state = "ok"
        try:
            yield found
        except NotLookedAt as reason:
            state, found = "not looked at", [str(reason)]
        except (FedprivError, OSError) as error:
            state, found, self.code = "wrong", [str(error)], FAILED
        say(f"{state:<13}  {name}: {' '.join(' '.join(found).split())}", flush=True)

    def see_machine(self, *keys: Path) -> None:
        """Checks that a server and a node have in common."""
        with self.check("versions") as found:
            flwr, others = installed("flwr"), f"Python {platform.python_version()}, fedpriv {made_by(commit())}"
            try:
                wanted = next(one for one in requires("fedpriv") or () if one.startswith("flwr~="))
            except PackageNotFoundError:
                raise NotLookedAt(f"flwr {flwr}, {others}, which is not installed as a package") from None
            if flwr.rpartition(".")[0] != wanted.removeprefix("flwr~=").rpartition(".")[0]:
                raise OptionError("flwr", flwr, f"fedpriv needs {wanted}: `make install` brings the locked versions")
            found += [f"flwr {flwr}, {others}; on every machine the doctor should say the same of flwr and fedpriv"]
        with self.check("keys") as found:
            for key in keys:
                key.open("rb").close()
                seen = key.stat()  # a group may read what another user owns: so Kubernetes shares a Secret with a pod
                if seen.st_mode & (0o037 if seen.st_uid != os.geteuid() else 0o077):
                    raise OptionError("credentials", key, f"other users may read or change it: chmod 600 {key}")
            found += [f"{', '.join(key.name for key in keys)}: for this user alone"]
        with self.check("proxies") as found:
            servers.check_proxies()
            found += [f"{', '.join(filter(os.environ.get, servers.PROXIES[:-1])) or 'none'} in the environment"]

    def see_port(self, option: str, host: str, port: int, ask: Callable[[], object]) -> None:
        """ask: raises where what listens there is not what should."""
        import httpx

        with self.check(option) as found:
            try:
                servers.bound(option, host, port).close()
                found += [f"{port} is free"]
            except OptionError as busy:
                number = next((one for one in UNBOUND if os.strerror(one) in busy.allowed), errno.EADDRINUSE)
                wrong = OptionError(option, port, f"{busy.allowed}: {UNBOUND[number]}")
                if number != errno.EADDRINUSE:
                    raise wrong from None
                try:
                    ask()
                except (httpx.HTTPError, FedprivError, OSError):
                    raise wrong from None
                found += [f"{port} answers already, as it should where the service runs"]

    def see_disk(self, *folders: Path, database: Path | None = None) -> None:
        """database: which no service makes a folder for."""
        with self.check("disk") as found:
            if database is not None:
                folders = (*folders, place := database.absolute().parent)
                if not place.is_dir():
                    raise OptionError("database", database, f"there is no such folder: mkdir {place}")
            for folder in folders:
                place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
                if not os.access(place, os.W_OK | os.X_OK):
                    raise OptionError("disk", place, "must be writable by the user who runs the service")
                if (free := shutil.disk_usage(place).free >> 20) < LEAST_FREE:
                    raise OptionError("disk", place, f"{free} MiB are free: make room for {LEAST_FREE} MiB")
                found += [f"{place}: {free} MiB are free."]


@command
def server(
    *,
    credentials: Folder,
    host: str = "0.0.0.0",
    port: servers.Port = 8000,
    control: servers.Port = 8001,
    database: Path | None = None,
) -> int:
    from cryptography import x509
    from flwr.supercore.utils import get_flwr_home

    from fedpriv.deployment.clock import ask

    servers.superlink_arguments(credentials, host, port, control)  # without the database, which it would make
    doctor, here, authority = Doctor(), servers.CONTROL_HOST, credentials / "ca.crt"
    public = here if address_of(host) in ("0.0.0.0", "::") else host
    doctor.see_machine(credentials / "server.key")
    with doctor.check("certificate") as found:
        servers.check_certificate(credentials)
        own = x509.load_pem_x509_certificate((credentials / "server.crt").read_bytes())
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        shown = ", ".join(str(name.value) for name in names)
        found += [f"until {own.not_valid_after_utc:%Y-%m-%d}, for nodes that call this server {shown}"]
    doctor.see_port("port", address_of(host), port, lambda: ask(f"{public}:{port}", authority))
    doctor.see_port("control", here, control, lambda: ask(f"{here}:{control}", authority))
    doctor.see_disk(get_flwr_home(), database=database)
    return doctor.code


@command
def node(
    *overrides: str,
    node: Node,
    superlink: SuperLink,
    credentials: Folder,
    client: Client,
    port: Annotated[int, Field(ge=1024, le=65535)] = 9094,
) -> int:
    import httpx

    from fedpriv.deployment.approved_weights import check_files
    from fedpriv.deployment.clock import ClockRefused, ask, knows, open_to_all

    authority, key, here = there(credentials / "ca.crt"), there(credentials / "node.key"), servers.CONTROL_HOST
    doctor, offset = Doctor(), None
    doctor.see_machine(key, *credentials.glob("identity.key"))
    with doctor.check("superlink") as found:
        try:
            offset, ends = ask(superlink, authority)
            controls = open_to_all(superlink, authority)
        except ImportError:
            raise NotLookedAt("the proxies must be right first") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
            remedy = next(words for word, words in UNREACHED.items() if word in str(error))
            raise OptionError("superlink", superlink, f"{error}: {remedy}") from None
        if controls:
            words = "answers Flower's control API, by which anybody may run any program there"
            remedy = "nodes call the server's `port`, and no other machine may reach its `control`"
            raise OptionError("superlink", superlink, f"{words}: {remedy}")
        found += [f"answers nodes alone, with a certificate for this name until {ends}"]
    with doctor.check("clock") as found:
        if offset is None:
            raise NotLookedAt("the SuperLink did not say what time it is")
        if offset.refused:
            raise ClockRefused(str(offset))
        found += [str(offset)]
    with doctor.check("registered") as found:
        if offset is None or offset.refused:
            raise NotLookedAt("the SuperLink and this machine's clock must be right first")
        try:
            known = knows(superlink, authority, key)
        except (httpx.HTTPError, ValueError) as error:  # ValueError: of the key
            raise OptionError("credentials", key, f"cannot be shown to the SuperLink ({error})") from None
        if known is None:
            raise NotLookedAt("a plain SuperLink does not say; `fedpriv deploy node run` learns it at once")
        if not known:
            words = "the SuperLink does not know it, or has revoked it: `flwr supernode register` of its node.pub there"
            raise OptionError("credentials", key, words)
        found += ["the SuperLink knows this node's key"]
    doctor.see_port("port", here, port, lambda: httpx.get(f"http://{here}:{port}/health", trust_env=False))
    policy = None
    with doctor.check("policy") as found:
        policy = node.rules
        check_files(policy.weights, node.policy)
        if not policy.bundles and policy.guard is None:
            words = "allowed: digests of apps, which `fedpriv deploy node bundle APP` prints"
            raise OptionError(f"{node.policy}: bundles", "[]", words)
        found += [f"admits {', '.join(policy.strategies) or 'no method'}, of {len(policy.bundles)} bundles"]
    if policy is not None:
        _see_data(doctor, node, credentials, client, overrides)
    else:
        with doctor.check("ledger, run, kernel, disk"):
            raise NotLookedAt("the policy must be right first")
    return doctor.code


def _see_data(doctor: Doctor, node: Node, credentials: Path, client: int, overrides: tuple[str, ...]) -> None:
    """What the policy is about."""
    from fedpriv.data.sources import chosen_classes
    from fedpriv.deployment.declaration import DeclaredTable, check_rows

    policy, data = node.rules, node.data
    with doctor.check("ledger") as found, node.ledger(identity_of(credentials)).seen(thorough=True) as ledger:
        policy.accounting(ledger.accounting(), ledger.spent())
        if ledger.signer is None:
            ledger.signs_heads()
        declared = ledger.declared()
        if isinstance(declared, DeclaredTable):
            check_rows(declared, data)
        elif declared.classes and (count := len(chosen_classes(data, declared.classes))) != declared.examples:
            words = f"{count} pictures, declared were {declared.examples}; `declare` declares the new number"
            raise DataError(f"{data}: {words}")
        found += [f"{ledger.spent().messages} messages have left, {declared.number} are declared"]
    with doctor.check("run") as found:
        if not overrides:
            raise NotLookedAt("give the run's options after these, as in strategy=fedldp num_rounds=20")
        from fedpriv.config.remote import compose_remote
        from fedpriv.deployment.gate import would_refuse
        from fedpriv.runs.preparation import resolve

        config, _, plan = resolve(compose_remote(overrides), None)
        with node.ledger().seen() as ledger:
            if wrong := would_refuse(policy, config, plan.participations[1], (client, ledger)):
                raise PolicyRefused(f"{'; '.join(wrong)}; {NODE_REMEDIES[Refusal.POLICY]}")
        found += ["policy, declared data and what is left of the budgets admit all its rounds"]
    with doctor.check("kernel") as found:
        from fedpriv.guard.sandbox import available

        if (guard := policy.guard) is None or guard.sandbox == "none":
            raise NotLookedAt("the policy has no section guard, or none with a sandbox")
        check_shards(guard, data)
        if (lacking := available()) is not None:
            raise OptionError("guard.sandbox", guard.sandbox, lacking)
        found += ["confines foreign apps; `fedpriv deploy node probe` tries whether they can tell each other anything"]
    doctor.see_disk(data, Path(policy.counter).parent, Path(tempfile.gettempdir()))


@command
def main(*overrides: str) -> int:
    installed_code_only()
    name, *given = overrides
    if (work := {"server": server, "node": node}.get(name)) is None:
        raise OptionError("MACHINE", name, f"allowed: server, node{nearest(name, ('server', 'node'))}")
    return work(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
