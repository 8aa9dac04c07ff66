"""What a page has only while its run goes on: it reloads itself and says so. Imports nothing that draws."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedpriv.common.files import write_atomic


@dataclass(frozen=True)
class Live:
    """Of a page that is rewritten while its run goes on: the seconds after which it reloads itself."""

    seconds: int

    @property
    def words(self) -> str:
        now = datetime.now(UTC).strftime("%H:%M:%S UTC")
        return f"As it was at {now}; this page looks for news every {self.seconds} seconds."


#: What of a page is there only while its run goes on.
_LIVE = re.compile(r"<!--live-->.*?<!--/live-->", re.DOTALL)


def hold_still(page: Path) -> None:
    """Turns a live page into one of a run that has stopped: it no longer reloads itself. Others stay as they are."""
    if page.is_file() and (found := page.read_text(encoding="utf-8")) != (still := _LIVE.sub("", found)):
        write_atomic(page, still, durable=False)
