"""How far a node's clock is from its SuperLink's. A node signs the time of every request, and flwr 1.41 refuses one
from the future or from too long ago with the status 401 and no reason.

The gate before a SuperLink names its time in the header `CLOCK_HEADER`. A plain ``flower-superlink`` has ``Date``
alone: whole seconds, which uvicorn renews about once a second, so that its clock shows up to `COARSE` seconds more.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedpriv.common.errors import FedprivError
from fedpriv.common.printing import printable
from fedpriv.deployment.superlink_gate import CLOCK_HEADER, FOR_NODES, proof_of

#: Seconds that a node's clock may be ahead of the SuperLink's, and behind it.
MOST_AHEAD, MOST_BEHIND = SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
#: How much later a plain server's date may be, and by how much the header is rounded at most.
COARSE, FINE = 3.0, 0.001
#: How often the server is asked (the first answer takes longest: it waits for TLS), and seconds to wait for each.
TIMES, PATIENCE = 3, 10.0
#: A clock this many seconds ahead is worth a warning.
WARN_AHEAD = 2.0
#: Seconds between two lines of a running node about its clock.
REMARK_SECONDS = 60.0
#: Why a node with the right time is refused.
NOT_REGISTERED = (
    "the SuperLink refuses this node (401): its key was revoked or never registered, or the SuperLink lost its "
    "database; ask the server's operator, who admits a new key by `flwr supernode register`; the ledger stays as it is"
)
REMEDY = "set the clock by chrony or systemd-timesyncd (`sudo timedatectl set-ntp true`), here and on the server"


class ClockRefused(FedprivError):
    """The SuperLink will refuse this node because of its clock."""


@dataclass(frozen=True)
class Offset:
    """This machine's clock minus the SuperLink's, in seconds: between ``least`` and ``most``."""

    least: float
    most: float

    @property
    def refused(self) -> bool:
        """Whether a request signed now is refused for certain."""
        return self.least >= MOST_AHEAD or self.most <= -MOST_BEHIND

    def __str__(self) -> str:
        middle, half = (self.least + self.most) / 2, (self.most - self.least) / 2
        if abs(middle) <= half:
            return f"this machine's clock agrees with the SuperLink's within {half:.1f} s"
        side = "ahead of" if middle > 0 else "behind"
        words = f"this machine's clock is {abs(middle):.1f} s {side} the SuperLink's (± {half:.1f} s)"
        limits = f"{MOST_AHEAD} s ahead and {MOST_BEHIND} s behind are allowed"
        if self.refused:
            return f"{words}, which refuses this node: {limits}; {REMEDY}"
        return f"{words}: {limits}; {REMEDY}"


def offset_of(headers: httpx.Headers, before: float, after: float) -> Offset | None:
    """From an answer asked for and received at these times (Unix). None where it names no time."""
    try:
        if CLOCK_HEADER in headers:
            there = float(headers[CLOCK_HEADER])
            return Offset(before - there - FINE, after - there + FINE) if math.isfinite(there) else None
        date = parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    return Offset(before - date - COARSE, after - date)


def measured(superlink: str, authority: Path) -> Offset | None:
    """Asks ``superlink`` (HOST:PORT), whose certificate ``authority`` (a file) has signed.

    None where nobody answers. Raises `ClockRefused` where the certificate is not valid by this clock.
    """
    try:
        return ask(superlink, authority)[0]
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return None


def open_to_all(superlink: str, authority: Path) -> bool:
    """Whether this machine reaches Flower's control API there, which the gate's port for nodes forbids."""
    secured = ssl.create_default_context(cafile=str(authority))
    answer = httpx.get(f"https://{superlink}/v1/control/", verify=secured, timeout=PATIENCE)
    return answer.status_code != HTTPStatus.FORBIDDEN


def knows(superlink: str, authority: Path, key: Path) -> bool | None:
    """Whether the SuperLink has registered this node's key (a file); None: it does not say. The path means nothing, so
    that nothing is done there.
    """
    url, secured = f"https://{superlink}{FOR_NODES}nothing", ssl.create_default_context(cafile=str(authority))
    with httpx.Client(verify=secured, timeout=PATIENCE) as client:
        if client.get(url).status_code != HTTPStatus.UNAUTHORIZED:
            return None
        return client.get(url, headers=proof_of(key)).status_code != HTTPStatus.UNAUTHORIZED


def ask(superlink: str, authority: Path) -> tuple[Offset | None, str]:
    """As `measured`, with the certificate's last day in OpenSSL's words. Raises what a connection raises, too."""
    found: list[Offset] = []
    ends = ""
    try:
        secured = ssl.create_default_context(cafile=str(authority))
        with httpx.Client(verify=secured, timeout=PATIENCE) as client:
            for _ in range(TIMES):
                before = time.time()
                with client.stream("GET", f"https://{superlink}/health") as answer:
                    tls = answer.extensions["network_stream"].get_extra_info("ssl_object")
                    ends = tls.getpeercert()["notAfter"] if tls else ends
                if (offset := offset_of(answer.headers, before, time.time())) is not None:
                    found.append(offset)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        if any(words in str(error) for words in ("certificate is not yet valid", "certificate has expired")):
            now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time()))
            words = f"the certificate of {superlink} is not valid by this machine's clock, {now} UTC"
            raise ClockRefused(f"{words} ({printable(str(error))}): renew it, or {REMEDY}") from None
        if not found:
            raise
    if not found:
        return None, ends
    return Offset(max(offset.least for offset in found), min(offset.most for offset in found)), ends


def check_clock(superlink: str, authority: Path, say: Callable[[str], None]) -> None:
    """Before a node starts: raises `ClockRefused` where the SuperLink would refuse it, and warns where it may soon."""
    if (found := measured(superlink, authority)) is None:
        return
    if found.refused:
        raise ClockRefused(str(found))
    if found.least > WARN_AHEAD or found.most < -MOST_BEHIND / 2:
        say(str(found))


def explain_refusals(say: Callable[[str], None]) -> list[str]:
    """From now on, this process's SuperNode says so where the SuperLink refuses it because of its clock.

    Returns: the reason why the SuperLink refused the newest request; empty where it did not.
    """
    original, last, reason = FleetHttpClient._unary_unary, [-REMARK_SECONDS], list[str]()

    def asked(client: FleetHttpClient, **given: Any) -> Any:
        try:
            answer = original(client, **given)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 401:
                now = time.time()
                found = offset_of(error.response.headers, now, now)
                late = found is not None and found.refused
                reason[:] = [str(found) if late else NOT_REGISTERED]
                if late and time.monotonic() - last[0] >= REMARK_SECONDS:
                    last[0] = time.monotonic()
                    say(str(found))
            raise
        reason.clear()
        return answer

    FleetHttpClient._unary_unary = asked  # type: ignore[assignment, method-assign]
    return reason
