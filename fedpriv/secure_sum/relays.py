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

#: Takes what a member answered; raises `MalformedMessage`.
Add = Callable[[int, Sequence[bytes]], None]
#: One exchange without parameters: (its name, whom it asks, what all are told, what each is told beside, `Add`).
Ask = Callable[[str, Sequence[int], Options, Mapping[int, Options], Add], None]


def before_upload(collector: Collector, ask: Ask) -> dict[int, Options]:
    """KEYS and SHARES; what each member who is left is told with its model. Raises `SumFailed`."""
    ask(KEYS, collector.session.members, started(collector.session), {}, collector.add_announcement)
    roster = collector.group.roster
    keys = {client: keys_for(collector, client) for client in roster}
    ask(SHARES, roster, roster_of(collector), keys, collector.add_shares)
    return {client: shares_for(collector, client) for client in collector.senders}


def after_upload(collector: Collector, ask: Ask) -> None:
    """CONFIRM and UNMASK of those whose vectors came. Raises `SumFailed`."""
    ask(CONFIRM, collector.survivors, survivors_of(collector), {}, collector.add_signature)
    told = {client: signatures_for(collector, client) for client in collector.signers}
    signed = {client: own for client, own in told.items() if own[SIGNERS]}
    ask(UNMASK, list(signed), {}, signed, collector.add_unmasking)


# --- what members are told ------------------------------------------------------------------------------------


def started(session: SumSession) -> Options:
    return {MEMBERS: list(session.members), MODEL_DIGEST: session.model}


def roster_of(collector: Collector) -> Options:
    return {ROSTER: list(collector.group.roster)}


def keys_for(collector: Collector, client: int) -> Options:
    return {PUBLIC_KEYS: collector.announced_to(client)}


def shares_for(collector: Collector, client: int) -> Options:
    return {SEALED: collector.sealed_for(client)}


def survivors_of(collector: Collector) -> Options:
    return {SURVIVORS: list(collector.survivors)}


def signatures_for(collector: Collector, client: int) -> Options:
    found = collector.signatures_for(client)
    return {SIGNERS: list(found), SIGNATURES: list(found.values())}
