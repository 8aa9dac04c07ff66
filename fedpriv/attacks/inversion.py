"""Gradient inversion: the server looks for a client's training examples in its update (`gradient_inversion`).

The score of an example says how much nearer the nearest found one is than any public example:
log(min_z |x - z|) - log(min_r |x - r|), r the examples found in the update of x's client and z the public ones, so that
what anybody would guess counts for nothing. The threshold is 0. Distances are root mean squares: of pixels from 0 to 1,
and of a table's inputs in standard deviations of the public rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.attacks.gradient_inversion import Known, distances, labels_in, quotients, searched
from fedpriv.attacks.metrics import proportion
from fedpriv.attacks.subject import Scored, Subject
from fedpriv.attacks.targets import Rows, Sides, Targets
from fedpriv.attacks.view import View
from fedpriv.common.errors import RunFolderError
from fedpriv.training.sequential import inputs_of

Values = NDArray[np.float64]

#: Smallest distance.
SMALLEST = 1e-6
#: Errors of pixels below half a step of a byte count as none: at most 54.2 dB.
LEAST = 1 / 510
#: Examples that are shown.
SHOWN = 8


@dataclass(frozen=True)
class Found:
    """What was found for the members of the attacked clients. found: the nearest example from the update, public: the
    nearest of as many public ones, each [n, i] as is true; errors and public_errors: distances [n]; shape: of one.
    """

    rows: Rows
    clients: Rows
    true: Values
    found: Values
    public: Values
    shape: tuple[int, ...]
    nearer: int  # members to which the found example is nearer than every public one
    sought: int  # examples sought in one update

    @property
    def errors(self) -> Values:
        return np.sqrt(((self.true - self.found) ** 2).mean(1))

    @property
    def public_errors(self) -> Values:
        return np.sqrt(((self.true - self.public) ** 2).mean(1))


class Gauge:
    """Examples of a pool as numbers to be compared: pixels from 0 to 1, or a table's inputs in standard deviations."""

    def __init__(self, view: View, public: Rows) -> None:
        pool, inputs = view.pool, view.pool.train.inputs
        if pool.vocabulary is not None or pool.train.features is not None:
            words = "is for examples that the model reads as they are: pixels, or a table's inputs"
            raise RunFolderError(f"attack=inversion {words}; this run's model reads tokens or features")
        self.view, self.pictures = view, inputs.dtype == np.uint8
        self._scale: NDArray[Any]
        self._shift: NDArray[Any]
        seen = self._read(public)
        if self.pictures:
            scale = [np.asarray(part, np.float32).reshape(-1, 1, 1) for part in (pool.std, pool.mean)]
            self._scale, self._shift = (np.broadcast_to(part, inputs.shape[1:]).reshape(-1) for part in scale)
            low, high = (torch.from_numpy((value - scale[1]) / scale[0]) for value in (0.0, 1.0))
        else:
            deviation = seen.std(0).reshape(-1)
            self._scale, self._shift = 1 / np.where(deviation > 0, deviation, 1.0), np.zeros(1)
            low, high = torch.from_numpy(seen.min(0)), torch.from_numpy(seen.max(0))
        self.known = Known(tuple(inputs.shape[1:]), low.float(), high.float(), 0.0)
        self.public = self(seen)

    def _read(self, rows: Rows) -> NDArray[np.float32]:
        return inputs_of(self.view.pool, self.view.pool.train, rows).numpy()

    def __call__(self, read: NDArray[np.float32]) -> Values:
        """[n, i] of examples as a model reads them."""
        values: Values = read.reshape(len(read), -1).astype(np.float64) * self._scale + self._shift
        return values

    def of(self, rows: Rows) -> Values:
        return self(self._read(rows))


def attack(view: View, subject: Subject, targets: Targets) -> Scored:
    public = subject.public if subject.public.size else targets.known.others
    gauge = Gauge(view, public)
    members, others, found = list[Values](), list[Values](), []
    for client in attacked(subject, targets.evaluated):
        sides = targets.evaluated.of(targets.evaluated.homes == client)
        guessed = gauge(reconstruct(view, subject, client, gauge))
        if not len(guessed):
            continue
        for rows, scores in ((sides.members, members), (sides.others, others)):
            true = gauge.of(rows)
            nearest, anyhow = (np.maximum(distances(true, of).min(1), SMALLEST) for of in (guessed, gauge.public))
            scores.append(np.log(anyhow / nearest))
        true = gauge.of(sides.members)
        nearest = distances(true, guessed).argmin(1)
        as_many = gauge.public[np.linspace(0, len(gauge.public) - 1, len(guessed)).astype(int)]
        beside = distances(true, as_many).argmin(1)
        found.append((sides.members, np.full(len(true), client), true, guessed[nearest], as_many[beside], len(guessed)))
    if not members:
        words = "no evaluated example is of a client whose update was kept"
        raise RunFolderError(f"attack=inversion: {words}; a smaller attack.update_every keeps more")
    scored = Scored(np.concatenate(members), np.concatenate(others), 0.0)
    rows, clients, true, guesses, beside = (np.concatenate([part[place] for part in found]) for place in range(5))
    nearer = int((scored.members > 0).sum())
    made = Found(rows, clients, true, guesses, beside, gauge.known.shape, nearer, max(part[5] for part in found))
    return Scored(scored.members, scored.others, 0.0, made)


def attacked(subject: Subject, sides: Sides) -> list[int]:
    """Clients with most evaluated pairs whose updates were kept; of a model with other clients, any of these."""
    heard = {client for seen in subject.model.seen.values() for client in seen.updates}
    there = np.isin(sides.homes, sorted(heard))
    clients, counts = np.unique(sides.homes[there] if there.any() else sides.homes, return_counts=True)
    order = clients[np.lexsort((clients, -counts))]
    return [int(client) for client in order[: subject.options.inverted_clients]]


def reconstruct(view: View, subject: Subject, client: int, gauge: Gauge) -> NDArray[np.float32]:
    """Examples as the model reads them [r, ...] from the first update of a client that was kept, first those of the
    search, then quotients. A client that this model does not have is answered for by the first that it has.
    """
    options, rounds = subject.options, subject.model.seen
    heard = {one for seen in rounds.values() for one in seen.updates}
    place = client if client in heard else min(heard, default=0)
    for seen in rounds.values():
        if place not in seen.updates:
            continue
        theta, update = (torch.from_numpy(np.ascontiguousarray(part)) for part in (seen.before, seen.updates[place]))
        known = Known(gauge.known.shape, gauge.known.low, gauge.known.high, options.inverted_smoothness)
        count = options.inverted_examples
        labels = labels_in(view.model, update, count, len(view.pool.classes))
        made = searched(view.model, theta, update, labels, known, options.inverted_steps, options.seed)
        read = torch.cat([made, quotients(view.model, update, known, count)])
        return read.numpy()
    return np.zeros((0, *gauge.known.shape), np.float32)


def quality(found: Found, pictures: bool) -> dict[str, Any]:
    """Quartiles of what was found, beside the baseline of as many public examples: the peak signal-to-noise ratio of
    pictures in dB, 20 log10(1 / error), or a table's error in standard deviations. nearer: the share of members to
    which an example found is nearer than every public one.
    """

    def level(errors: Values) -> list[float]:
        values = -20 * np.log10(np.maximum(errors, LEAST)) if pictures else errors
        return [float(value) for value in np.quantile(values, (0.25, 0.5, 0.75))]

    return {
        "measure": "PSNR in dB" if pictures else "error in standard deviations",
        "found": level(found.errors),
        "public": level(found.public_errors),
        "nearer": asdict(proportion(found.nearer, len(found.rows), 0.95)),
        "examples": len(found.rows),
        "clients": len(np.unique(found.clients)),
        "sought": found.sought,
    }


def samples(found: Found) -> list[dict[str, Any]]:
    """The members that were found best: each beside what was found and the nearest public example, flat."""
    best = np.argsort(found.errors)[:SHOWN]
    return [
        {
            "row": int(found.rows[place]),
            "client": int(found.clients[place]),
            **{
                name: [round(float(value), 4) for value in values[place]]
                for name, values in (("true", found.true), ("found", found.found), ("public", found.public))
            },
        }
        for place in best
    ]
