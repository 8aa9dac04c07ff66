"""The server's side of a secure sum as exchanges: what a `Collector` tells each member, and where its answers go.

KEYS and SHARES come before the models go down, CONFIRM and UNMASK after the masked vectors came up. How a message
travels is the caller's (`Ask`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedpriv.common.messages import (
    CONFIRM,
    KEYS,
    MEMBERS,
    MODEL_DIGEST,
    PUBLIC_KEYS,
    ROSTER,
    SEALED,
    SHARES,
    SIGNATURES,
    SIGNERS,
    SURVIVORS,
    UNMASK,
    Options,
)
from fedpriv.secure_sum.collector import Collector
from fedpriv.secure_sum.sum_session import SumSession

#: One exchange without parameters: (its name, what each member is told, what takes a member's answer).
Ask = Callable[[str, Mapping[int, Options], Callable[[int, Sequence[bytes]], None]], None]


def before_upload(collector: Collector, ask: Ask) -> dict[int, Options]:
    """KEYS and SHARES; what each member who is left is told with its model. Raises `SumFailed`."""
    ask(KEYS, dict.fromkeys(collector.session.members, started(collector.session)), collector.add_announcement)
    roster = collector.group.roster
    ask(SHARES, {client: keys_for(collector, client) for client in roster}, collector.add_shares)
    return {client: shares_for(collector, client) for client in collector.senders}


def after_upload(collector: Collector, ask: Ask) -> None:
    """CONFIRM and UNMASK of those whose vectors came. Raises `SumFailed`."""
    ask(CONFIRM, dict.fromkeys(collector.survivors, survivors_of(collector)), collector.add_signature)
    told = {client: signatures_for(collector, client) for client in collector.signers}
    ask(UNMASK, {client: signed for client, signed in told.items() if signed[SIGNERS]}, collector.add_unmasking)


# --- what a member is told ------------------------------------------------------------------------------------


def started(session: SumSession) -> Options:
    return {MEMBERS: list(session.members), MODEL_DIGEST: session.model}


def keys_for(collector: Collector, client: int) -> Options:
    return {ROSTER: list(collector.group.roster), PUBLIC_KEYS: collector.announced_to(client)}


def shares_for(collector: Collector, client: int) -> Options:
    return {SEALED: collector.sealed_for(client)}


def survivors_of(collector: Collector) -> Options:
    return {SURVIVORS: list(collector.survivors)}


def signatures_for(collector: Collector, client: int) -> Options:
    found = collector.signatures_for(client)
    return {SIGNERS: list(found), SIGNATURES: list(found.values())}
