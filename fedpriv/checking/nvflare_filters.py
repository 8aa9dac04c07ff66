"""An NVFlare filter, or a chain of them, by its interface ``process(shareable, fl_ctx)``.

Filters of a project's own often take the result itself, ``process(dxo, shareable, fl_ctx)`` or ``process_dxo`` with the
same arguments, and have a class of their own for it: the first way in which a filter takes a result is used.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from fedpriv.checking.findings import Finding
from fedpriv.checking.flower_extremes import extremes, metrics_pass, plays
from fedpriv.checking.flower_messages import Trained, fresh, shared_modules
from fedpriv.checking.flower_updates import lengths, plain, update_pairs
from fedpriv.checking.generators import seeded
from fedpriv.checking.nvflare_known import known_filters
from fedpriv.checking.nvflare_parcels import numbers_in, parcel, parcel_context, results_of
from fedpriv.checking.rounds import RoundsSubject, claim_of
from fedpriv.checking.subject import Numbers, Question, Subject


class FilterSubject(RoundsSubject):
    """filters: in the order in which a client applies them, and how each is called. The model has
    ``max(question.dims)`` numbers.
    """

    kind: ClassVar[str] = "NVFlare filter"

    def __init__(
        self, filters: Sequence[Any], question: Question, name: str = "filter", ways: Sequence[Way] | None = None
    ) -> None:
        self.filters = list(filters)
        self.ways = list(ways or [Way("process", 2)] * len(self.filters))
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

    def _through(self, chain: Sequence[Any], found: Any, kept: Any) -> Any:
        for one, way in zip(chain, self.ways, strict=True):
            found = way.result(one, found, kept)
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


@dataclass(frozen=True)
class Way:
    """How a filter is called: its method, how many arguments it takes, and the place of its own class of results among
    `results_of` its first argument (0: what the package defines).
    """

    method: str
    arguments: int
    of: int = 0

    def result(self, target: Any, found: Any, context: Any) -> Any:
        method = getattr(target, self.method)
        if self.arguments == 2:
            return method(found, context)
        inner = results_of(method, found)[self.of]
        return method(*(inner, found, context)[: self.arguments])


def recognises(target: Any, question: Question) -> Subject | None:
    """An object with a method ``process`` or ``process_dxo``, or a list of them."""
    filters = list(target) if isinstance(target, list | tuple) else [target]
    ways = [_way(one) for one in filters]
    known = [one for one in ways if one is not None]
    return FilterSubject(filters, question, ways=known) if filters and len(known) == len(ways) else None


def _way(target: Any) -> Way | None:
    """The first way in which a filter takes a result. One of two arguments is the package's: it need not be tried."""
    for name in ("process", "process_dxo"):
        method = getattr(target, name, None)
        if inspect.isclass(target) or not inspect.ismethod(method):
            continue
        places = [
            one
            for one in inspect.signature(method).parameters.values()
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
        needed = sum(one.default is one.empty for one in places)
        if name == "process" and needed == 2:
            return Way(name, 2)
        for way in (Way(name, count, of) for count in (3, 1) for of in range(3) if needed <= count <= len(places)):
            if _takes(target, way):
                return way
    return None


def _takes(target: Any, way: Way) -> bool:
    shared_modules()
    with seeded(0), _quiet():
        try:
            found = way.result(fresh(target), parcel(Trained(plain(8, 0.1))), parcel_context())
            return found is not None and any(not name.startswith("form.") for name in numbers_in(found))
        except Exception:  # of foreign code, for what it was not meant for
            return False


@contextmanager
def _quiet() -> Iterator[None]:
    """A filter's log of every result is not written."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
