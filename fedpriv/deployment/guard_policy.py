"""The section ``guard`` of a policy: which foreign apps may run on this machine, and what of their answers may leave.

Every number here is the operator's: a server chooses neither noise nor clip norm, neither shards nor their sampling.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedpriv.common.errors import OptionError
from fedpriv.common.sum_limits import FEWEST_BITS, MOST_BITS
from fedpriv.config.options import SMALLEST, Options

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
#: The type of a message that asks for declared counts.
CountsKind = Annotated[str, Field(pattern=r"^(evaluate|query)(\.[A-Za-z_][A-Za-z0-9_]*)?$")]
CountsName = Annotated[str, Field(min_length=1, max_length=128)]

#: Numbers of one declared vector of counts at most.
MOST_COUNTS = 4096
#: Noise of each site alone, or whole-number noise of all sites in a secure sum.
Noise = Literal["own", "ddgauss", "skellam"]


class CountsPolicy(Options):
    """Numbers that an app counts on a shard, in reply to one kind of message: none is negative."""

    metrics: dict[CountsName, Annotated[int, Field(ge=1, le=MOST_COUNTS)]] = Field(
        description="names in the app's reply, and how many numbers each has", min_length=1
    )
    clip: float = Field(ge=SMALLEST, description="longest vector C of a shard's counts")
    noise_multiplier: float = Field(gt=0, description="standard deviation of this machine's noise / clip")


class GuardPolicy(Options):
    """What the guard makes of an app's answers. Lengths are in the units of the app's own numbers."""

    apps: Literal["any"] | tuple[Sha256, ...] = Field(
        description="any, or the SHA-256 of every app that may run: `fedpriv deploy node bundle APP`"
    )
    unit: Literal["row", "person", "client"] = Field(
        description="whose data: one row (or file), all rows of a person, or all of this machine's"
    )
    table: str = Field(
        default="", description="CSV or Parquet file, or folder, in the data folder; empty: the data folder itself"
    )
    column: str | None = Field(default=None, description="unit person: the table's column that names the person")
    shards: int = Field(default=1, ge=1, le=4096, description="virtual clients, each with a part of the data")
    repeat: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="of a table: times that a shard has each row, for apps that expect many",
    )
    single: bool = Field(
        default=False,
        description="a shard answers only while it holds exactly one unit: one unit moves the sum by C, and not by 2C",
    )
    sampling: float = Field(default=1.0, gt=0, le=1, description="probability with which a shard takes part in a round")
    clip: float = Field(ge=SMALLEST, description="longest answer C of a shard, as one vector")
    noise_multiplier: float = Field(gt=0, description="standard deviation of this machine's noise / clip")
    noise: Noise = Field(default="own", description="own: Gaussian, alone; ddgauss, skellam: in a secure sum")
    sites: int = Field(default=1, ge=1, description="of a secure sum: machines that take part at most")
    min_replies: int = Field(default=2, ge=2, description="of a secure sum: fewest machines whose sum is opened")
    colluders: int = Field(default=0, ge=0, description="of these, machines that may tell the server their noise")
    threshold: int | None = Field(default=None, ge=2, description="of a secure sum: machines that open it; null: 2/3")
    bits: int = Field(default=32, ge=FEWEST_BITS, le=MOST_BITS, description="of a secure sum: its modulus is 2^bits")
    reply: Literal["difference", "reply"] = Field(
        default="difference", description="what is clipped: the app's arrays less those that came down, or the arrays"
    )
    sandbox: Literal["namespaces", "none"] = Field(
        default="namespaces", description="none: the code is trusted, which the ledger and reports say"
    )
    memory_mib: int = Field(default=4096, ge=64, description="of one start of the app")
    processor_seconds: float = Field(default=300.0, gt=0, description="of one start of the app")
    wall_seconds: float = Field(default=600.0, gt=0, description="of one start of the app")
    processes: int = Field(default=64, ge=1, description="processes and threads of one start of the app")
    pad_seconds: float | None = Field(
        default=None, gt=0, description="every start of the app takes so long, however soon it answers"
    )
    min_answered: float = Field(
        default=0.9, ge=0, le=1, description="share of an app's starts that must answer when it is tried, or none runs"
    )
    counts: dict[CountsKind, CountsPolicy] = Field(
        default={}, description="by type of message (evaluate, query, query.NAME): the counts that leave in reply"
    )
    api: Literal["message", "numpy"] = Field(
        default="message", description="numpy: the app is a NumPyClient, and gets its messages in their older form"
    )
    node_config: dict[str, bool | int | float | str] = Field(
        default={}, description="what the app finds in context.node_config, beside partition-id and data-path"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        whole, named = self.unit == "client", "/" not in self.table and not self.table.startswith(".")
        rules: list[tuple[str, object, object, str]] = [
            ("shards", self.shards, not whole or self.shards == 1, "unit client has one shard: 1"),
            ("repeat", self.repeat, not whole or self.repeat == 1, "unit client sees the data as they are: 1"),
            ("single", self.single, not (whole and self.single), "unit client has one shard with all data: false"),
            ("sampling", self.sampling, not self.single or self.sampling == 1, "with single: 1.0"),
            ("sampling", self.sampling, not whole or self.sampling == 1, "a server knows who answered: 1.0"),
            (
                "column",
                self.column,
                (self.column is None) == (self.unit != "person"),
                "of unit person, and needed there",
            ),
            ("sampling", self.sampling, self.noise == "own" or self.sampling == 1, NO_SAMPLED_SUM),
            ("apps", self.apps, self.sandbox == "namespaces" or self.apps != "any", "sandbox none: digests alone"),
            ("min_replies", self.min_replies, not self.in_sum or self.min_replies <= self.sites, "at most `sites`"),
            ("colluders", self.colluders, self.colluders < self.min_replies, "fewer than min_replies"),
            ("pad_seconds", self.pad_seconds, (self.pad_seconds or math.inf) > self.wall_seconds, "above wall_seconds"),
            ("pad_seconds", self.pad_seconds, self.apps != "any" or self.shards == 1 or self.pad_seconds, UNREAD),
            ("table", self.table, named, "a name in the data folder"),
        ]
        for kind, query in self.counts.items():
            fits = sum(query.metrics.values()) <= MOST_COUNTS and "num-examples" not in query.metrics
            allowed = f"{MOST_COUNTS} numbers in all at most, none named num-examples"
            rules.append((f"counts.{kind}.metrics", query.metrics, fits, allowed))
        for name, value, holds, allowed in rules:
            if not holds:
                raise OptionError(f"guard.{name}", "null" if value is None else value, allowed)
        return self

    @property
    def in_sum(self) -> bool:
        return self.noise != "own"


UNREAD = "apps any with several shards: a number, or what one shard takes is on the next one's clock"
NO_SAMPLED_SUM = "no bound is known here for whole-number noise over a sample: 1.0 with ddgauss, skellam"
