"""What a client never does in a secure sum, whatever a server asks: one function for each rule, all raise `SumRefused`.

Why they suffice against a server that lies, in the complete graph and with signatures ([Bonawitz et al. 2017, 6.2],
whose argument this is): a client's vector stays hidden while its own mask b, or the mask that it shares with one honest
client whose vector counts, stays hidden. b opens by t shares from clients that hold one survivor set with it, the
private key of its masks by t shares from clients that hold one without it. An honest client signs one survivor set
(`one_survivor_set`) and answers for that set alone, when t have signed it (`confirmed`); so both open only where two
sets have t signers each, 2t <= n + m for m colluders among n holders, which `threshold` forbids. What is in a set is
`survivors`'s business: at least ``floor`` clients, so no smaller sum opens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from fedpriv.common.identities import Identity, KeyRefused
from fedpriv.secure_sum.sum_session import Group, SumRefused, SumSession, in_order


def member(session: SumSession, own: int) -> None:
    """A client takes part only where it is named."""
    if own not in session.members:
        raise SumRefused(f"client {own} is not among the members that the server names")


def same_session(known: SumSession, asked: SumSession) -> None:
    """One context for each (run, round, attempt): its keys are of that one."""
    if known != asked:
        raise SumRefused("the server changed the context of the sum")


def roster(session: SumSession, own: int, named: Sequence[int]) -> None:
    """Those who announced keys are members, and this client is among them."""
    if not in_order(named) or not set(named) <= set(session.members) or own not in named:
        raise SumRefused("the server names a roster that is not of this sum")


def threshold(session: SumSession, holders: int, colluders: int) -> None:
    """Two survivor sets cannot both have t signers among the holders, ``colluders`` of which sign anything."""
    if not holders + colluders < 2 * session.threshold or session.threshold > holders:
        words = f"threshold {session.threshold} of {holders} holders of shares, of whom {colluders} may collude"
        raise SumRefused(f"{words}: it must be above half of both together, and in reach")


def peers(expected: Collection[int], found: Collection[int]) -> None:
    """The server relays the keys of exactly those with whom masks are shared."""
    if set(expected) != set(found):
        raise SumRefused("the server relays keys of others than the client's neighbours")


def distinct(keys: Iterable[bytes]) -> None:
    """No key comes twice: a copy of another's key, or of one's own, hides who can open what."""
    known = list(keys)
    if len(set(known)) != len(known):
        raise SumRefused("the server relays the same key twice")


def signed(identity: Identity | None, client: int, text: bytes, signature: bytes) -> None:
    """A peer's announcement bears the signature of its identity. Without identities, in simulation or against an
    honest-but-curious server, nothing is checked.
    """
    if identity is None:
        return
    try:
        identity.verify(client, text, signature, "announcement")
    except KeyRefused as error:
        raise SumRefused(str(error)) from None


def same_roster(known: Group, asked: Group) -> None:
    """One roster for each sum: shares of a secret go out once."""
    if (known.roster, dict(known.announced)) != (asked.roster, dict(asked.announced)):
        raise SumRefused("the server relays a second roster in the same sum")


def same_model(session: SumSession, theta: bytes | memoryview) -> None:
    """The model that came down is the one that all members have signed."""
    if hashlib.sha256(theta).digest() != session.model:
        raise SumRefused("the model is another than the one that this sum is about")


def one_upload(uploaded: bool) -> None:
    """A mask hides one vector: two under the same masks would show their difference."""
    if uploaded:
        raise SumRefused("a vector was uploaded in this sum already")


def senders(session: SumSession, expected: Collection[int], sealed: Mapping[int, bytes]) -> None:
    """Those whose shares arrived are neighbours, and enough of them to open what must be opened."""
    if not set(sealed) <= set(expected) or len(sealed) + 1 < session.threshold:
        raise SumRefused(f"shares of {len(sealed)} others, at least {session.threshold - 1} of neighbours are needed")


def survivors(group: Group, own: int, known: Collection[int], named: Sequence[int], floor: int) -> None:
    """The survivor set is of this sum, counts this client, is large enough for its guarantee, and names no neighbour
    with whom it shares no mask.
    """
    if not in_order(named) or not set(named) <= set(group.roster) or own not in named:
        raise SumRefused("the server names survivors that are not of this sum")
    holders = set(group.peers(own)) | {own}
    if not holders & set(named) <= set(known) | {own}:
        raise SumRefused("the server names survivors whose shares never came")
    if len(named) < floor:
        raise SumRefused(f"{len(named)} survivors, this client's floor is {floor}")
    if len(holders & set(named)) < group.session.threshold:
        raise SumRefused(f"{len(holders & set(named))} survivors hold shares, {group.session.threshold} are needed")


def one_survivor_set(known: Sequence[int], named: Sequence[int]) -> None:
    """One survivor set for each (run, round, attempt)."""
    if known and list(known) != list(named):
        raise SumRefused("the server names a second survivor set in the same sum")


def confirmed(session: SumSession, signers: int) -> None:
    """Shares leave when t holders, this client among them, have signed the survivor set."""
    if signers < session.threshold:
        raise SumRefused(f"{signers} clients have signed the survivor set, {session.threshold} are needed")
