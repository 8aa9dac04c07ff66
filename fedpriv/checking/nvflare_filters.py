"""An NVFlare filter, or a chain of them, by its interface ``process(shareable, fl_ctx)``."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from fedpriv.checking.findings import Finding
from fedpriv.checking.flower_extremes import extremes, metrics_pass, plays
from fedpriv.checking.flower_messages import Trained, fresh, shared_modules
from fedpriv.checking.flower_updates import lengths, update_pairs
from fedpriv.checking.generators import seeded
from fedpriv.checking.nvflare_known import known_filters
from fedpriv.checking.nvflare_parcels import numbers_in, parcel, parcel_context
from fedpriv.checking.rounds import RoundsSubject, claim_of
from fedpriv.checking.subject import Numbers, Question, Subject


class FilterSubject(RoundsSubject):
    """filters: in the order in which a client applies them. The model has ``max(question.dims)`` numbers."""

    kind: ClassVar[str] = "NVFlare filter"

    def __init__(self, filters: Sequence[Any], question: Question, name: str = "filter") -> None:
        self.filters = list(filters)
        shared_modules()
        size = max(question.dims)
        with _quiet():
            recognised = known_filters(self.filters, size, self._once)
        super().__init__(
            name=name,
            pairs=update_pairs([size], "replace-one"),
            probes=[lengths(size)],
            recognised=recognised,
            claim=claim_of(recognised, question, "the filter's own accountant", "replace-one"),
        )
        self.notes = [*self._metrics(), *extremes(plays(self))]

    def quiet(self) -> AbstractContextManager[None]:
        return _quiet()

    def rounds(self, data: Sequence[Trained]) -> Iterator[dict[str, Numbers]]:
        chain, kept = [fresh(one) for one in self.filters], parcel_context()
        for trained in data:
            yield numbers_in(self._through(chain, parcel(trained), kept))

    @staticmethod
    def _through(chain: Sequence[Any], found: Any, kept: Any) -> Any:
        for one in chain:
            found = one.process(found, kept)
            if found is None:
                return None
        return found

    def _once(self, trained: Trained) -> list[Any]:
        """The filters after one result."""
        chain = [fresh(one) for one in self.filters]
        with seeded(0):
            self._through(chain, parcel(trained), parcel_context())
        return chain

    def _metrics(self) -> Iterator[Finding]:
        yield from (one for one in metrics_pass(plays(self)) if one.name == "metrics-bare")


def recognises(target: Any, question: Question) -> Subject | None:
    """An object with a method ``process`` of two arguments, or a list of them."""
    filters = list(target) if isinstance(target, list | tuple) else [target]
    return FilterSubject(filters, question) if filters and all(_is_filter(one) for one in filters) else None


def _is_filter(target: Any) -> bool:
    process = getattr(target, "process", None)
    if inspect.isclass(target) or not inspect.ismethod(process):
        return False
    needed = [one for one in inspect.signature(process).parameters.values() if one.default is one.empty]
    return len(needed) == 2


@contextmanager
def _quiet() -> Iterator[None]:
    """A filter's log of every result is not written."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
