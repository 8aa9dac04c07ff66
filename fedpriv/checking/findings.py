"""What a check finds, and what it concludes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Layer = Literal["recognised", "replayed", "sampled"]
Severity = Literal["fault", "doubt", "note"]

#: What a check concludes.
FAULTS, NO_FAULT, NOT_CHECKED = "faults found", "no fault found", "could not check"


@dataclass(frozen=True)
class Finding:
    """One thing that a layer found.

    name: stable identifier in kebab-case, the same for the same fault in every target. severity: a fault breaks the
    claim or any bound; a doubt may, depending on what the check cannot see; a note is for the reader. text: what was
    seen, with its numbers. remedy: how to mend it. pair: of neighbours with which it was seen, and the records whose
    numbers leave; place: "FILE:LINE" of the target where these are made, or the noise is drawn, where that was found.
    """

    layer: Layer
    name: str
    severity: Severity
    text: str
    remedy: str = ""
    pair: str = ""
    records: Sequence[str] = ()
    place: str = ""


#: Doubts that nearly every program gives: the command names them in one line.
USUAL = ("broken-number-leaves", "global-generator")


def finding(key: str, severity: Severity | None = None, /, **figures: Any) -> Finding:
    """A finding of the table. key: its name, with ":" and a word where several sentences have one name; severity: where
    it is not the table's; figures: what the sentence's places hold; records: as `Finding` has them.
    """
    layer, usual, text, remedy = KINDS[key]
    records, pair = figures.pop("records", ()), figures.get("pair", "")
    text, remedy = (part.format(**figures) if figures else part for part in (text, remedy))
    return Finding(
        layer, key.partition(":")[0], severity or usual, text, remedy, getattr(pair, "name", pair), tuple(records)
    )


def words_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def conclusion(findings: Sequence[Finding], checked: bool) -> str:
    """`FAULTS` where any finding is a fault; `NOT_CHECKED` where no layer could look; else `NO_FAULT`."""
    if any(finding.severity == "fault" for finding in findings):
        return FAULTS
    return NO_FAULT if checked else NOT_CHECKED


def json_number(value: float | None) -> float | str | None:
    """JSON has no infinity: it becomes the text "inf"."""
    return value if value is None or math.isfinite(value) else ("inf" if value > 0 else "-inf")


#: Every sentence that a check can say: layer, severity, name (and which of several sentences); text; > remedy.
TABLE = """
recognised fault account-below-what-ran
    The loop's accountant says epsilon {claimed:.4g} at delta {delta:g}; what ran costs {verified:.4g}{reasons}.
    > One accountant that is told of every step, with its noise and its sampler.
recognised doubt assumed
    {text}
replayed doubt broken-number-leaves
    An update that holds NaN or infinity leaves as NaN: that tells it from every other update.
    > Replace an update that is not finite by zero before it is clipped.
replayed doubt broken-number-switches-off-clipping
    An update with one number that is NaN or infinite leaves with numbers up to {largest:.3g}, where a long honest
    one leaves with at most {usual:.3g}: the clipping does not hold.
    > Replace an update that is not finite by zero before it is clipped.
replayed note cannot-be-seeded
    Equal seeds give other numbers: the target draws from the operating system's randomness, or from a generator
    that the check cannot reach. Replays compare laws, not single calls; sampling goes on.
recognised fault claim-not-verified
    {claim.epsilon:.4g} is claimed, and {verified:.4g} is what can be proved of {scope}.
    > Claim what the accountants of what really runs give.
recognised note claim-of-one-reply
    epsilon {epsilon:g} is of one reply. Replies of further rounds, and to repeated messages, add to it.
    > State epsilon for all rounds of a run.
sampled doubt claim-perhaps-refuted
    With {pair.name}, an epsilon of at least {seen.epsilon_lower:.3g} is shown at {percent:g} % confidence, where
    {limit:g} is claimed: that may be chance.
    > Check again with more time or trials: seconds=, trials=.
sampled fault claim-refuted
    With {pair.name}, what leaves was told apart better than the claim allows: {seen.trials:,} calls of each give an
    epsilon of at least {least:.3g} at delta {delta:g} for {scope}, where {claim.epsilon:g} is claimed{doubt}. The
    bound is wrong once in {checks:,.0f} such audits.
    > Compare the noise with what one contribution can change; count every number that leaves.
recognised doubt clip-is-not-last
    A mod outside the clip changes the reply after it was clipped: the norm that the server's noise is for need not
    hold any more.
    > Put the clipping mod first in the list of mods: the first is outermost.
recognised doubt cohort-of-fixed-size
    Accounted as {config.neighboring_relation.value} with {config.sampling_method.value}; a round has {n} of
    {config.population_size} clients, always as many. That a client takes part and has nothing to say is what the
    account covers. Where a client who leaves makes room for another, the mean moves by 2 C / {n}: without
    amplification a round costs epsilon {per_round:.4g} at delta {delta:g}.
    > State the relation as zero-out, or double the noise.
recognised note count-bare
    The number of examples leaves as it is ({names}): public by assumption.
    > Report a fixed number where it is not public.
recognised doubt count-of-whole-bits
    The count's noise {deviation:g} is taken for a bit that moves it by 1/2. A client who has nothing to say moves
    it by 1: a round's multiplier is {real:.4g}, not {given:.4g}.
    > Count each bit less one half, or double the count's noise.
recognised note data-of-partitions
    The app was asked as partitions of its data set: their data are two clients' data as the app reads them, no
    worst case, so that too little noise or a clip of each layer alone may pass. To try others, make an `AppTarget`
    with `give`, a function that puts a data set where the app reads it.
recognised doubt divided-by-replies
    The mean is over the replies that come, the noise is for {n}: with m replies its multiplier is {z:g} m / {n},
    {smallest:.3g} at the {least} that the strategy inside accepts. Only a warning is logged.
    > Accept rounds of the expected size alone, or divide the sum by that size.
recognised fault exact-share-in-metrics
    The round's metrics hold the exact share of clipped clients, beside the norm that has noise.
    > Take the bit out of the metrics: train_metrics_aggr_fn of the strategy inside.
recognised fault fixed-batches-priced-as-poisson
    The loop's accountant says epsilon {claimed:.4g} at delta {delta:g}; what ran costs {verified:.4g}{reasons}.
    > poisson_sampling=True, or one Gaussian for each pass in the account.
replayed fault form-depends-on-data:length
    With {pair}, other numbers leave: the length or the names of what is sent depend on the data, without noise.
    > Send the same names and lengths whatever the data are.
replayed fault form-depends-on-data:loop
    With the same noisy sums, one example {change} changes the number of steps.
    > Decide on nothing that was measured on the data without noise.
replayed fault form-depends-on-data:text
    With {pair}, {what} of what is sent changes with the data, and nothing random hides it.
    > Send the same names, lengths and texts whatever the data are.
recognised fault formula-outside-its-range
    The formula is proven for epsilon below 1. At {epsilon:g} its noise costs epsilon {enough:.4g} even at
    sensitivity {sensitivity:g}.
    > Take the noise from the Gaussian mechanism's exact curve (Balle and Wang 2018).
recognised note formula-outside-its-range:note
    The formula is proven for epsilon below 1. At {epsilon:g} the exact curve gives epsilon {enough:.4g} at
    sensitivity {sensitivity:g}.
replayed doubt global-generator
    All randomness comes from generators of the whole process: after `random.seed(1)`, `numpy.random.seed(1)` and
    `torch.manual_seed(1)` the noise is the same again. Whoever seeds them, as training code does for repeatable
    runs, knows the noise, and can take it away.
    > Pass a generator of the mechanism's own, seeded from the operating system (secrets, torch.Generator).
replayed note held-generator
    The target holds a generator that the operating system seeded; every play began it anew, from a seed of its own.
recognised doubt metrics-bare
    A metric of the app leaves as it is ({names}, 0.25 or 0.75 by the data): clip and noise are of arrays alone.
    > Report no metric, or one with noise of its own that is accounted.
replayed fault metrics-bare:answer
    In answer to a message of type {kind}, {names} moved with the data and never changed in {plays} calls with other
    seeds: it leaves without noise; epsilon is infinite.
    > Add noise to every number that leaves, or do not send it.
recognised fault metrics-bare:published
    The {what} of the clients are published without noise ({names}): where one client reports 0.25 or 0.75, they
    never changed in {plays} rounds with other seeds. If clients report what they see in their data, epsilon is
    infinite.
    > Publish no metric, or one with noise of its own that is accounted.
recognised note metrics-not-accounted
    The accountant counts the model alone, as its documentation says.
sampled doubt more-than-recognised
    With {pair}, an epsilon of at least {least:.3g} was sampled, where what was recognised costs {verified:.3g}:
    more leaves than that, or pairs are of another adjacency.
    > Look at what leaves beside the recognised release.
replayed fault moves-more-than-claimed
    With {name}, the data move what leaves by {worst.size:.3g} standard deviations of its {worst.law} noise: an
    epsilon of {epsilon:.3g} (at least {least:.3g}) at delta {held.delta:.3g} for {of}, where {claim.epsilon:g} is
    claimed{why}.
    > Scale the noise to what one client or example can change (in L2 norm for Gaussian noise, in L1 for Laplace),
    under the adjacency of the claim.
replayed fault moves-more-than-claimed:reach
    {seen}
    > Scale the noise to what one client or example can change, under the adjacency of the claim.
recognised fault moves-more-than-claimed:two-clips
    Two updates clipped to {clip:g} differ by up to {twice:g}; the noise is for {sensitivity:g}. One reply costs
    epsilon {exact:.4g} at delta {delta:g} between any two data sets, not {epsilon:g}.
    > Set sensitivity to {twice:g}.
replayed fault no-randomness
    Nothing that leaves is random: {plays} calls with other seeds gave the same numbers, and with {pair} they are
    others. Anybody who sees them can compute what came in; epsilon is infinite.
    > Add noise after clipping, from a generator that is not seeded with a constant or with the data.
recognised fault no-randomness:mod
    Standard deviation {std:g} at sensitivity {mod.sensitivity:g}, epsilon {mod.epsilon:g}, delta {mod.delta:g}: no
    noise.
    > Give a positive sensitivity, a finite epsilon and a delta in (0, 1).
recognised fault noise-after-another-aggregate
    {text}
    > Wrap a strategy that takes the mean.
recognised doubt noise-by-replies
    The noise of {what} is divided by the number of replies, so that its scale tells that one came more: no bound is
    known for a claim about one client more or less. It is replayed and sampled.
    > Divide sum and noise by a constant, the expected number.
replayed fault noise-cancels-between-calls
    The noise of {calls} calls is correlated: together they show {times:.3g} times as much of the data, in standard
    deviations, as calls with noise of their own would.
    > Draw new noise in every call, or account for the run as a whole (matrix mechanisms do).
replayed fault noise-depends-on-data:gone
    With {pair}, {gone} varied from call to call with one input and never with the other: the noise depends on the
    data, and tells them apart.
    > Draw noise of a scale that is fixed before the data are seen.
replayed fault noise-depends-on-data:grows
    With {probe}, the noise grows from {first:.3g} to {last:.3g}.
    > Clip first, then add noise of a scale that is fixed before the data are seen.
replayed fault noise-depends-on-data:length
    With {pair.name}, the noise of {seen.record} is {seen.ratio:.3g} times as large with one input as with the
    other: its length alone shows an epsilon of at least {seen.epsilon:.3g} at delta {held.delta:.3g}, where
    {claim.epsilon:g} is claimed{twice}.
    > Draw noise of a scale that is fixed before the data are seen, how many there are of them included.
replayed fault noise-depends-on-data:loop
    With the same noisy sums, one example {change} changes noise or clip norm of step {step}.
    > Fix them before training, or let them follow noisy numbers alone.
replayed fault noise-depends-on-data:scale
    With {pair}, the noise of {where} is {ratio:.3g} times as large with one input as with the other: its scale
    depends on the data, or it is added before the update is clipped.
    > Clip first, then add noise of a scale that is fixed before the data are seen.
replayed fault noise-ends
    {seen} The noise ends: it was hardly ever more than {end:.3g} of its deviations, and often just below.
    > Draw noise that has no end (do not cut or redraw large values), or account for what its end costs.
replayed fault noise-fades
    Call {number} of an instance has {ratio:.3g} times less noise than the first: a cost per call does not hold for
    every call.
    > Account for each call with the noise that it has.
recognised doubt noise-of-the-next-norm
    Updates are clipped to the norm of this round, and the noise is for that of the next. When all are clipped the
    next is {least:.3g} of it, and the model's multiplier {model:.4g}, not {stated:.4g}.
    > Add the noise of the norm that clipped the updates (Andrew et al. 2021, Algorithm 1).
replayed fault noise-on-a-grid
    With {pair}, {finer} have noise in multiples of {grid:.3g}, and data that are none: what is finer than this grid
    leaves without noise, and moved with the data; epsilon is infinite.
    > Round what is released after the noise is added, or draw noise of the same precision as the data.
replayed fault noise-repeats
    Of {plays} calls with other seeds, {repeated} pairs had exactly the same noise.
    > Seed the generator once, with at least 128 bits of the operating system's randomness.
replayed fault noise-repeats-between-calls:cancels
    Two calls of one instance have the same noise, or noise that cancels: their difference or sum shows the data
    without any; epsilon is infinite.
    > Draw new noise in every call; do not seed a generator anew for each.
replayed fault noise-repeats-between-calls:mask
    The difference or sum of the whole numbers of two messages of one instance is the same whatever the seed is, and
    another with other data: one mask is used twice; epsilon is infinite.
    > Draw a new mask for every message.
replayed fault noise-repeats-between-calls:stock
    In {count} of {rows} rows of {calls} calls of one instance, two calls had the same noise or its negative (of
    {of} pairs of calls in a row): their difference or sum shows the data without any; epsilon is infinite.
    > Draw new noise in every call; keep no stock of noises that may be used twice.
replayed fault noise-repeats-between-processes
    Two processes that nobody seeded released exactly the same numbers: the generator is seeded with a constant when
    the code is imported, so every client and every run has the same noise; epsilon is infinite.
    > Seed the generator from the operating system: numpy.random.default_rng(), torch.Generator().seed().
replayed fault noise-repeats:loop
    Two executions from different seeds add the same noise: the loop seeds its generator with a constant; epsilon is
    infinite.
    > Leave the noise's generator unseeded; secure_mode=True where the model leaves.
sampled fault noise-repeats:trials
    Among {trials:,} calls with the same data, {repeated:,} pairs released exactly the same numbers: the noise has
    few seeds, and can be guessed.
    > Seed the generator once, with at least 128 bits of the operating system's randomness.
recognised note norm-moves-away
    The norm falls when more updates are clipped than the target and grows when fewer are: it moves away from the
    quantile. In Andrew et al. 2021, Algorithm 1, the bit is set for updates that are not clipped.
replayed doubt not-finite
    With {pair}, what leaves holds numbers that are infinite or NaN.
    > Clip in a way that holds for every update, also for one that is very long.
replayed doubt not-read
    Not read: {what}. What these hold is not judged.
    > Return arrays, numbers, texts, or containers and records of these.
replayed note not-shown
    {text}
replayed fault number-without-noise:bare
    With {pair}, {moved} moved with the data and never changed in {plays} calls with other seeds: it leaves without
    noise; epsilon is infinite.
    > Add noise to every number that leaves, or do not send it.
replayed fault number-without-noise:bits
    With {pair}, a low bit of {low} is the same in {plays} calls with other seeds, and another with the other input: it
    leaves without noise; epsilon is infinite.
    > Write nothing into the bits of a number that has noise.
replayed fault number-without-noise:broken
    Of updates that hold NaN or infinity, {count} finite numbers leave without noise, equal under {seeds} seeds and
    others for another update; epsilon is infinite.
    > Replace an update that is not finite by zero, then clip it and add noise as to any other.
replayed fault number-without-noise:call
    In call {number} of {calls} of one instance, {count} numbers left without noise, which moved with the data and
    did not in the first call; epsilon is infinite.
    > Add noise in every call.
replayed fault number-without-noise:count
    With {pair}, a count of examples leaves without noise: the claim is about two clients' whole data, and it tells
    them apart; epsilon is infinite.
    > Send a public constant, or count its noise in the claim.
replayed doubt number-without-noise:counts
    With {pair}, a count of examples leaves without noise: where neighbours differ in their number of examples, it
    tells them apart.
    > Send a public constant, or count its noise in the claim.
replayed fault number-without-noise:loop
    With the same noisy sums, one example {change} changes {bare}: it follows the data without noise; epsilon is
    infinite.
    > Derive everything after noise from the noisy sums: no second optimiser, no running averages of batches, no
    losses of the training data.
replayed fault number-without-noise:symbols
    With {pair}, {fixed} of the numbers moved with the data and never changed in {count:,} calls: a randomised
    number would have an epsilon of at least {least:.3g}.
    > Randomise every number that leaves.
replayed doubt other-shapes
    What leaves has another shape in each call: those numbers could not be compared, and are not judged.
    > Check a function that releases a fixed form, or pad what it releases.
replayed note raises:broken
    An update that holds NaN or infinity ends in {error}: its absence tells of it.
replayed doubt raises:calls
    Several calls ended with an error of the target: {words}.
replayed doubt raises:pair
    With {pair}, the target raises an error{both} ({words}).
    > Release something of the same form whatever the data are.
replayed doubt raises:replay
    A replay ended with an error of the target: {words}.
recognised doubt round-needs-all-replies
    With one reply fewer no model leaves: whether all replied is told to everybody. The claim is about a client more
    or less; a client without an update was compared instead.
    > Let a round with fewer replies publish a model as well, or say that who replies is public.
replayed doubt seeds-global-generator
    A call leaves {reseeded} global generator in one fixed state: it seeds it, and all later noise of the process
    repeats.
    > Pass a generator of the mechanism's own, seeded from the operating system (secrets, torch.Generator).
replayed fault shared-noise
    With {pair}, {words}, and it moves with the data: what is left of their difference or sum has no noise; epsilon
    is infinite.
    > Draw noise of its own for every number.
replayed fault state-crosses-calls
    What the second call releases depends on the data of the first ({count} numbers): an update that was paid for
    once is used again.
    > Account for a run as a whole, or forget the data of a call at its end.
replayed fault state-crosses-calls:bare
    The second call releases {count} numbers of the data of the first without noise; epsilon is infinite.
    > Forget the data of a call at its end, or release what is kept of them with noise.
replayed fault unbounded-sensitivity
    With {probe.name}, of length {shorter:g} and {longer:g}, {growing} numbers that leave ({record} and others
    alike) still move, the one most by {step:.3g}: nothing bounds what one contribution does; epsilon is infinite.
    > Clip everything that a contribution moves, before noise is added. If inputs are clipped before they come here,
    say so to the check: bound=NORM.
replayed fault unbounded-sensitivity:beyond
    With {name}, the data move what leaves by {distance:.3g} standard deviations of its noise: nothing is protected.
    > Clip what one client or example contributes, and scale the noise to it.
replayed fault unbounded-sensitivity:loop
    One example {change} moves the sum before noise by {worst:.4g} clip norms (at most {norms} if its gradient is
    clipped to the norm that the noise is for).
    > Clip each example's gradient over all parameters to max_grad_norm.
recognised doubt unusual-update:array
    A model with an array without axes (a single number, such as a temperature): {seen}
    > Give such parameters one axis, or keep them at the client.
recognised doubt unusual-update:clipped
    A model with whole numbers, in an update that is clipped: {seen}
    > Keep such arrays at the client.
recognised doubt unusual-update:infinite
    An update with infinity: {seen}
    > Release the zero update with its noise where training gave no number.
recognised doubt unusual-update:nan
    An update with NaN: {seen}
    > Release the zero update with its noise where training gave no number.
recognised doubt unusual-update:whole
    A model with whole numbers (such as a counter of batches): {seen}
    > Keep such arrays at the client, or send a public value.
recognised doubt update-of-zero
    An update of norm 0 (a client that learned nothing): {seen}
    > Leave an update of norm 0 as it is, and add its noise.
recognised doubt weights-by-reported-counts
    Replies are weighted by the number of examples that they report: one client that reports far more than the other
    {clients} moves the model {times:.3g} times as far as with equal numbers. The noise does not grow with it.
    > Weigh all replies alike, or bound the numbers and calibrate the noise to the largest share.
"""


def _kinds(table: str) -> dict[str, tuple[Layer, Severity, str, str]]:
    kinds: dict[str, Any] = {}
    for line in table.strip("\n").split("\n"):
        if line[:1] != " ":
            layer, severity, key = line.split()
            kinds[key] = [layer, severity, "", ""]
            place = 2
        else:
            place = 3 if line.lstrip()[0] == ">" else place
            kinds[key][place] = f"{kinds[key][place]} {line.strip().removeprefix('> ')}".strip()
    return {key: tuple(parts) for key, parts in kinds.items()}


KINDS = _kinds(TABLE)
