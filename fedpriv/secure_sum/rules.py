"""What a client never does in a secure sum, whatever a server asks: one function for each rule, all raise `SumRefused`.

Why they suffice against a server that lies and is helped by m of the members. Honest members sign one survivor set
(`one_survivor_set`) in one group (`same_roster`), whose digest binds everybody's keys, and answer UNMASK for that set
alone, once enough have signed it (`confirmed`): with s signatures needed of n clients on the roster, 2s > n + m, so all
honest answers of a group are for one set U3.

Let H be the honest clients of U3 that uploaded, and A those of H that signed U3: nobody else answers for it. A client
of A masks with every neighbour in U3 (`survivors`). Another of H masks with whom the server likes, and a server may
relay the shares of one of two neighbours alone, but with t - 1 at least (`senders`). A mask that one of two put on
stays on, and hides whatever it is added to. So where no key of a client of H opens, the vectors tell at most sums over
sets K of H with every b of K open, that hold whomever of H one of them masked with, and whose masks both put on.

*Complete graph* ([Bonawitz et al. 2017, 6.2]). s is the threshold t. A private key opens by t shares from clients
whose set does not name its owner, b by t from those whose set does: for one client never both, as 2t > n + m
(`threshold`), and no key of H. Every K holds somebody of A: else some v in K masked with none of A, so its t - 1 others
are not in A, nor is v, and of the t that open b_v at most m are not in A: 2t - m <= n. Whoever is in A masked with all
of H: K is H. Whom U3 names without an upload has masks with all of A, which never come off.

*Sparse graph.* Members lie on a ring in the order of hashes of the group, which nobody knows before all keys are
announced, and each shares masks with those among the h = k/2 next ones on either side. Let no h places in a row hold
more than w = t - h - 2 of the m (`sum_graph.sparse_graph` says how likely that is for colluders who were chosen before
the keys).

1. A key of a client of H never opens: honest clients give no share of it, and of its k neighbours at most 2w < t lie.
2. Every K holds somebody of A. Else some v in K masked with none of A. Of its neighbours, c <= 2w lie; at least t - c
   others are in A and answer for b_v, at least t - 1 - c others are those that it masked with: 2t - 1 - c <= 2h, that
   is c >= 2w + 3.
3. Every K holds all of A, so there is one. Take v of A in K: all its neighbours in H are in K. The t shares of b_v come
   from v, from A, and from colluders; the h places on one side give at most h and v gives one, so of the h places on
   the other side at least t - 1 - h = w + 1 answer, and one of them at least is in A: it is in K. From there on in the
   same way around the ring, to the next of A each time, which leaves none of A out.
4. K is large enough: of the signers, at least the floor of survivors, all but m are in A: they sign after uploading.

Who has uploaded joins the sum no second time, also where its machine has made room for other runs' states: it would be
honest in two groups (`fedpriv.client.masked_sum.make_room`).

Whoever is counted (members, roster, survivors, signers) is a peer that this client's own machine knows (`members`).
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


def members(named: Sequence[int], known: Collection[int], most: int) -> None:
    """Whoever is to be counted is a peer that this client's machine knows, and no more take part than the run asks."""
    if len(named) > most:
        raise SumRefused(f"the server names {len(named)} members; the run asks {most} clients in a round")
    if strangers := [client for client in named if client not in known]:
        raise SumRefused(f"client {strangers[0]} is not among the peers that this machine knows")


def unanswered(answer: Mapping[int, bytes] | None) -> None:
    """Once its shares have left, a client does nothing more in a sum but repeat them."""
    if answer is not None:
        raise SumRefused("this client has opened its shares of this sum already")


def same_session(known: SumSession, asked: SumSession) -> None:
    """One context for each (run, round, attempt): its keys are of that one."""
    if known != asked:
        raise SumRefused("the server changed the context of the sum")


def roster(session: SumSession, own: int, named: Sequence[int]) -> None:
    """Those who announced keys are members, and this client is among them."""
    if not in_order(named) or not set(named) <= set(session.members) or own not in named:
        raise SumRefused("the server names a roster that is not of this sum")


def threshold(group: Group, holders: int) -> None:
    """t is in reach of the ``holders`` of a client's shares; in a complete graph, where t signatures of a survivor set
    are enough, two sets cannot both have them among the roster, of whom the colluders sign anything.
    """
    session = group.session
    two_sets = group.complete and 2 * session.threshold <= len(group.roster) + session.colluders
    if two_sets or session.threshold > holders:
        words = f"threshold {session.threshold} of {holders} holders of shares, of whom {session.colluders} may collude"
        raise SumRefused(f"{words}: it must be above half of both together, and in reach")


def peers(expected: Collection[int], found: Collection[int]) -> None:
    """The server relays the keys of everybody on the roster."""
    if set(expected) != set(found):
        raise SumRefused("the server relays keys of others than the roster names")


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
    if known.digest != asked.digest:
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


def confirmed(least: int, signers: int) -> None:
    """Shares leave when so many survivors, this client among them, have signed the survivor set."""
    if signers < least:
        raise SumRefused(f"{signers} clients have signed the survivor set, {least} are needed")
