"""What differs between a training loop as it ran and as its accountant has it: the layer *recognised* of loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from fedpriv.checking.findings import Finding, Severity
from fedpriv.checking.loop_events import measured_share, multiplicity, multiplier
from fedpriv.checking.loop_record import LoopRecord, Source, Step

CLOSE = 1e-6


def found(name: str, severity: Severity, text: str, remedy: str = "") -> Finding:
    return Finding("recognised", name, severity, text, remedy)


def findings_of(record: LoopRecord) -> list[Finding]:
    """All that the record alone shows, without another execution."""
    parts = (_sampling, _accounting, _noise, _steps, _scale, _settings, _engines, _layers)
    return [finding for part in parts for finding in part(record)]


# --- sampling ------------------------------------------------------------------------------------------------------


def _sampling(record: LoopRecord) -> Iterator[Finding]:
    rates = {q for accounted in record.accountants for _, q, _ in accounted.history}
    amplified = any(q < 1 for q in rates)
    sources = {lot.source for step in record.private_steps for lot in step.lots}
    for source in sorted(sources, key=lambda one: one.words):
        if source.kind == "poisson":
            yield from _rate(record, source)
        elif source.kind == "without-replacement" and amplified:
            yield found(
                "fixed-batches-priced-as-poisson",
                "fault",
                f"the loader gives {source.words}; the accountant prices each step as a Poisson sample of rate "
                f"{_rates(rates)}, which no example's coin decides here",
                "poisson_sampling=True, or account one Gaussian without sampling for each pass",
            )
        elif source.kind == "with-replacement" and amplified:
            yield found(
                "replacement-priced-as-poisson",
                "fault",
                f"the loader gives {source.words}: an example can be in a batch several times; the accountant prices "
                f"a Poisson sample of rate {_rates(rates)}",
                "poisson_sampling=True",
            )
        elif source.kind == "unknown" and amplified:
            yield found(
                "sampler-not-known",
                "doubt",
                f"{source.words}: the accountant prices a Poisson sample of rate {_rates(rates)}, which cannot be "
                f"checked, so the verified figure credits no sampling",
                "Opacus' UniformWithReplacementSampler, or a bound for the sampler that runs",
            )
    twice = [lot for step in record.private_steps for lot in step.lots if multiplicity(lot) > 1]
    if twice:
        yield found(
            "example-repeated-in-batch",
            "fault",
            f"one example is in a batch {max(map(multiplicity, twice))} times, and moves the sum of clipped gradients "
            f"by as many clip norms",
            "a sampler that takes an example at most once in a step",
        )
    yield from _coins(record)


def _rates(rates: set[float]) -> str:
    return ", ".join(f"{rate:.6g}" for rate in sorted(rates)[:3])


def _rate(record: LoopRecord, source: Source) -> Iterator[Finding]:
    assert source.rate is not None
    told = [q for accounted in record.accountants for _, q, _ in accounted.history]
    per_step = Counter(len({lot.draw for lot in step.lots if lot.source == source}) for step in record.private_steps)
    if told and min(told) < source.rate * (1 - CLOSE):
        yield found(
            "rate-too-small",
            "fault",
            f"examples are drawn at rate {source.rate:.6g}, and the accountant was told {min(told):.6g}",
            "give the accountant the sampler's own rate",
        )
    if any(draws > 1 for draws in per_step):
        most = max(per_step)
        yield found(
            "batches-summed-before-noise",
            "fault",
            f"{most} Poisson batches are summed before noise is added once: an example in several of them moves the "
            f"sum by up to {most} clip norms, and one step of {most} times the rate is no bound",
            "one step for each batch, or BatchMemoryManager for large ones",
        )


def _coins(record: LoopRecord) -> Iterator[Finding]:
    """The same random batches again: the coins of a later pass are those of an earlier one."""
    passes: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for step in record.steps:
        for lot in step.lots:
            if lot.source.kind == "poisson" and lot.indices is not None and lot.source.rate not in (None, 1.0):
                passes.setdefault(lot.round, []).append(lot.indices)
    series = [tuple(batches[:5]) for batches in passes.values() if sum(map(len, batches[:5])) >= 8]
    if len(set(series)) < len(series):
        yield found(
            "sampling-repeats",
            "fault",
            f"{len(series) - len(set(series))} of {len(series)} passes draw the same batches as an earlier one: the "
            f"sampler's coins are no fresh ones",
            "do not seed the loader's generator again",
        )


# --- accounting ----------------------------------------------------------------------------------------------------


def _accounting(record: LoopRecord) -> Iterator[Finding]:
    private = record.private_steps
    steps = len(private)
    if not record.accountants:
        if steps:
            yield found("no-accountant", "doubt", f"{steps:,} noisy steps ran, and no accountant was told of any")
        return
    accounted = sum(one.steps for one in record.accountants)
    if accounted < steps:
        yield found(
            "steps-not-accounted",
            "fault",
            f"{steps:,} noisy steps ran, and the accountants' histories have {accounted:,}",
            "attach each optimiser's step hook to the accountant, and keep its history",
        )
    else:
        yield from _told_noise(record)
    with_steps = [one for one in record.accountants if one.steps]
    if len(with_steps) > 1 and max(one.steps for one in with_steps) < steps:
        yield found(
            "several-accountants",
            "fault" if _one_data_set(record) else "doubt",
            f"{len(with_steps)} accountants share the {steps:,} steps of one loop, and each states the epsilon of its "
            f"own part alone",
            "one PrivacyEngine for all training on a data set",
        )
    for one in record.accountants:
        if one.kind == "gdp" and one.steps:
            yield found(
                "accountant-approximates",
                "doubt",
                "the gdp accountant states a central limit, which is no upper bound",
                "accountant='prv' or 'rdp'",
            )
        if one.answers and one.answers[-1][2] < steps and one.steps >= steps and len(with_steps) == 1:
            yield found(
                "epsilon-asked-too-early",
                "doubt",
                f"the last epsilon that the loop asked for is of {one.answers[-1][2]:,} of {steps:,} steps",
                "ask for epsilon after the last step",
            )


def _one_data_set(record: LoopRecord) -> bool:
    return len({lot.source.data_set for step in record.private_steps for lot in step.lots}) <= 1


def _told_noise(record: LoopRecord) -> Iterator[Finding]:
    """The multipliers of the histories against those that ran, from the smallest up."""
    ran = sorted(multiplier(step) * _adaptive(step) for step in record.private_steps)
    told = sorted(z for one in record.accountants for z, _, count in one.history for _ in range(min(count, 10**6)))
    told = told[: len(ran)]
    worst = max(zip(told, ran, strict=False), key=lambda pair: pair[0] / max(pair[1], 1e-300), default=(0.0, 0.0))
    if worst[0] > worst[1] * (1 + 1e-4):
        yield found(
            "noise-multiplier-overstated",
            "fault",
            f"the accountant has steps of noise multiplier {worst[0]:.6g}; those that ran have {worst[1]:.6g} times "
            f"what one example's gradient is clipped to",
            "let the accountant read the optimiser's multiplier at every step, and clip to the optimiser's norm",
        )


def _adaptive(step: Step) -> float:
    """Adaptive clipping adds more noise to gradients, since the count pays for a part: the multiplier of both."""
    if step.noise_clip <= 0 or step.noise_multiplier <= 0:
        return 1.0
    return min(1.0, step.noise_multiplier / (step.std / step.noise_clip)) if step.std else 1.0


# --- noise ---------------------------------------------------------------------------------------------------------


def _noise(record: LoopRecord) -> Iterator[Finding]:
    private = [step for step in record.private_steps if step.moved is not None and step.rank == 0]
    zero = [step for step in private if step.std == 0]
    if zero:
        yield found("no-noise", "fault", f"{len(zero):,} steps have a noise multiplier or a clip norm of zero")
    share, count = measured_share(record)
    if share < 1:
        yield found(
            "noise-smaller-than-set",
            "fault",
            f"over {count:,} numbers the noise has {share:.4g} times the standard deviation that the optimiser's "
            f"multiplier and clip norm say",
            "add the noise that is accounted",
        )
    yield from _repeats(private)


def _repeats(private: list[Step]) -> Iterator[Finding]:
    seen: dict[bytes, int] = {}
    again = 0
    for step in private:
        if step.moved is None or step.moved.size < 2 or not step.std:
            continue
        # rounding of the sum moves the difference of noisy and clean sum a little
        key = np.round(step.moved / step.std, 2)[:64].tobytes()
        again += key in seen
        seen[key] = 1
    if again:
        yield found(
            "noise-repeats",
            "fault",
            f"{again} of {len(private)} steps add the same noise as an earlier one: their difference has none",
            "do not seed the noise's generator again",
        )


def _steps(record: LoopRecord) -> Iterator[Finding]:
    bare = [step for step in record.bare_steps if step.lots and step.applied is not None and step.applied.any()]
    if bare:
        inside = [step for step in bare if step.optimiser >= 0]
        words = " that a DPOptimizer wraps, past its noise" if inside else ""
        yield found(
            "steps-without-noise",
            "fault" if record.private_steps else "doubt",
            f"{len(bare):,} of {len(record.steps):,} optimiser steps after a batch of the data add no noise "
            f"({bare[0].kind}{words})",
            "step through the DPOptimizer alone",
        )


def _scale(record: LoopRecord) -> Iterator[Finding]:
    private = record.private_steps
    scales = {step.expected_batch_size for step in private if step.loss_reduction == "mean"}
    sizes = [(step.expected_batch_size, step.examples) for step in private]
    if len(scales) > 1 and sum(a == b for a, b in sizes) > len(sizes) / 2 and len(sizes) > 2:
        yield found(
            "scaled-by-actual-batch",
            "fault",
            f"gradients are divided by the number of examples drawn ({len(scales)} different ones), which shows it",
            "divide by the expected batch size, which is fixed",
        )
    for source in record.sources:
        rate, population = source.rate, source.population
        if rate is None or population is None or len(scales) != 1:
            continue
        expected, scale = rate * population, next(iter(scales))
        if scale and abs(scale * source.workers - expected) > 0.02 * expected:
            yield found(
                "expected-batch-rounded",
                "note",
                f"gradients are divided by {scale:g} where {expected / source.workers:.4g} examples are expected: no "
                f"matter of privacy, but of the learning rate",
            )
        if source.drop_last:
            yield found("last-batch-dropped", "note", f"{source.words}: some examples are not in every pass")


# --- settings ------------------------------------------------------------------------------------------------------


def _settings(record: LoopRecord) -> Iterator[Finding]:
    wrong = [step for step in record.private_steps if step.clip > step.noise_clip * (1 + CLOSE)]
    if wrong:
        yield found(
            "clipped-longer-than-noise",
            "fault",
            f"{len(wrong):,} steps clip gradients to {wrong[0].clip:g} and scale the noise for {wrong[0].noise_clip:g}",
            "change the clip norm of module and optimiser together",
        )
    for step in record.private_steps:
        if step.counted and step.lots:
            yield found(
                "batch-size-in-clip-norm",
                "fault",
                "the clip norm follows the share of unclipped examples, whose noisy count is divided by the number of "
                "examples drawn, without noise; and an example moves that count by 1, where half of it is accounted",
                "divide by the expected batch size, and count each example as plus or minus one half",
            )
            break


def _engines(record: LoopRecord) -> Iterator[Finding]:
    if record.engines and not any(engine.secure_mode for engine in record.engines):
        yield found(
            "noise-not-secure",
            "note",
            "the noise is torch's own generator's (secure_mode=False): fine for experiments; who can guess its state "
            "can take the noise off",
            "secure_mode=True where the model leaves",
        )
    for engine in record.engines:
        if engine.target is None or engine.epochs is None:
            continue
        planned, ran = engine.epochs * engine.batches, len(record.private_steps)
        if ran > planned and len(record.engines) == 1:
            yield found(
                "more-steps-than-target",
                "fault",
                f"the noise is for epsilon {engine.target[0]:g} in {planned:,} steps, and {ran:,} ran",
                "make_private_with_epsilon with the number of epochs that run",
            )


def _layers(record: LoopRecord) -> Iterator[Finding]:
    if record.layers:
        yield found(
            "layer-mixes-examples",
            "fault",
            f"{', '.join(record.layers)}: an example's gradient depends on the other examples of its batch, so "
            f"clipping it bounds nothing; running averages leave without noise",
            "GroupNorm or LayerNorm (ModuleValidator.fix)",
        )
