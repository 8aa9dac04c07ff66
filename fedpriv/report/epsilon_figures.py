"""The epsilons of a run for display: claimed, verified, audited and what stands beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.report.run_summary import Audited, Privacy
from fedpriv.report.words import ADJACENCIES, NEXT_TO_NOTHING, SCOPES, figure, promise

RUN = SCOPES["run"]


@dataclass(frozen=True)
class Figure:
    """One of a run's epsilons for display; ``scope`` and ``promise``, what it is worth, are empty where it has none."""

    name: str
    value: str
    scope: str
    detail: str
    promise: str = ""


def three_figures(privacy: Privacy) -> list[Figure]:
    """Claimed, verified and audited epsilon of one threat model."""
    return [_claimed(privacy), _verified(privacy), _audited(privacy)]


def all_figures(privacy: Privacy) -> list[Figure]:
    """The three, with the median client's bound, what was spent, and further audits: at other scopes than the claim's,
    each with the claim and the bound for that scope; with canaries; of a client's own fit.
    """
    claimed, verified, audited = three_figures(privacy)
    middle, spent, same = privacy.verified_median, privacy.spent_so_far, "the same bound for the client in the middle"
    median = [] if middle is None else [Figure("median client", figure(middle), RUN, same, promise(middle))]
    words = "the epsilon of the choices that were made: no guarantee given beforehand"
    median = [*beside_verified(privacy), *median]
    so_far = Figure("spent so far", figure(spent, "not recorded"), RUN, words, promise(spent))
    return [claimed, verified, *median, so_far, audited, *_further_audits(privacy), *opacus_figure(privacy)]


def _claimed(privacy: Privacy) -> Figure:
    value = privacy.claimed_epsilon
    if value is None:
        return Figure("claimed", "no claim", "", "the method claims no epsilon")
    holds = "if it holds" if value < NEXT_TO_NOTHING else "even if it holds"
    formula = f"the paper's own formula: {privacy.claimed_equation or 'equation not recorded'}"
    return Figure("claimed", figure(value), _scope(privacy), formula, f"{promise(value)}, {holds}")


def _verified(privacy: Privacy) -> Figure:
    value, at_scope = privacy.verified_epsilon, privacy.verified_at_claimed_scope
    if value is None:
        return Figure("verified", "not computed", "", "no bound was computed")
    if math.isinf(value):
        detail = f"no finite bound: {'; '.join(privacy.reasons) or 'no reason was recorded'}"
    else:
        detail = f"sound upper bound for what was sent ({privacy.accountant or 'unnamed'} accountant)"
    if _scope(privacy) != RUN and at_scope is not None:
        detail += f". At the claim's scope, {_scope(privacy)}: {figure(at_scope)} ({promise(at_scope)})"
    return Figure("verified", figure(value), RUN, detail, promise(value))


def beside_verified(privacy: Privacy) -> list[Figure]:
    """Of a sum of clients: the bound of the same releases where neighbours are the other kind; else empty."""
    if privacy.other_epsilon is None or privacy.other_adjacency not in ADJACENCIES:
        return []
    far = "half" if privacy.adjacency == "replace-one" else "twice"
    words = f"the same bound for a client {ADJACENCIES[privacy.other_adjacency]}, which moves the sum {far} as far: "
    detail = f"{words}to compare with figures for {privacy.other_adjacency}, and not with those for {privacy.adjacency}"
    value = privacy.other_epsilon
    return [Figure(f"verified, {privacy.other_adjacency}", figure(value), RUN, detail, promise(value))]


def _scope(privacy: Privacy) -> str:
    scope = privacy.claimed_scope or "run"
    return SCOPES.get(scope, scope)


def _audited(privacy: Privacy) -> Figure:
    if privacy.audited_epsilon is None:
        if (reason := privacy.in_run_audit.reason) is not None:
            return Figure("audited", "not audited", "", f"no canaries in this run: {reason}")
        return Figure("audited", unaudited(privacy), "", offered(privacy))
    if math.isinf(privacy.audited_epsilon):
        detail = "no finite epsilon fits: the ledger itself records a leak without noise"
    else:
        confidence, trials = privacy.audited_confidence, privacy.audited_trials
        sure = "" if confidence is None else f" with {100 * confidence:g} % confidence"
        count = "" if trials is None else f", {trials:,.0f} trials"
        detail = f"measured lower bound: the true epsilon is no smaller{sure}{count}"
    return _audit(privacy, _scope(privacy), detail)


def unaudited(privacy: Privacy) -> str:
    """In place of an audited epsilon: what a cheap audit within the run would have shown, where there is one."""
    offer = privacy.in_run_offer
    shown = offer.would_show if offer.cheap else None
    return "not audited" if shown is None else f"not run (would show ≥ {figure(shown)})"


def offered(privacy: Privacy) -> str:
    """What an audit within the run would have taken and shown, where it is cheap, or why there can be none."""
    offer, words = privacy.in_run_offer, "no attack was run against this code yet"
    if offer.reason:
        return f"{words}. Within the run there can be none: {offer.reason}; `fedpriv audit` attacks the release code"
    if offer.share is None or not offer.cheap:
        return words
    words += f". audit.in_run=true would have taken about {max(0.1, 100 * offer.share):.2g} % of the rounds' CPU time"
    words += f" for {offer.coins} canaries, and shown "
    if offer.would_show is None:
        return f"{words}{figure(offer.at_most)} at most"
    words += f"about {figure(offer.would_show)}, or {figure(offer.would_show_if_gaussian)} if the noise is Gaussian"
    return f"{words}, of a mechanism at its ledger"


def opacus_figure(privacy: Privacy) -> list[Figure]:
    """The epsilon by Opacus' accountants, for comparison; empty where `privacy.accountant` did not ask for it."""
    found, remarks = privacy.opacus, "; ".join(privacy.opacus.remarks)
    if not found:
        return []
    if found.rdp is None:
        return [Figure("Opacus'", "no figure", "", remarks)]
    which = "RDP accountant" if found.prv is None else "PRV accountant"
    detail = f"{found.library}, {which}, {found.adjacency}: for comparison, no verified bound"
    if found.prv is not None:
        detail += f"; by its RDP accountant {figure(found.rdp)}"
    detail += f". {remarks}" if remarks else ""
    return [Figure("Opacus'", figure(found.rdp if found.prv is None else found.prv), RUN, detail)]


def _audit(audit: Audited, scope: str, detail: str) -> Figure:
    """The lower bound of one audit, what it would have shown at the verified epsilon, and what it leaves to promise."""
    value, most = audit.audited_epsilon, audit.audited_at_most
    detail += f". Verdict: {audit.verdict}" if audit.verdict else ""
    if most is not None and math.inf not in (most, value):
        if audit.audited_expected:
            detail += f". At the verified epsilon the audit would have shown {figure(audit.audited_expected)} or more"
        detail += f". A perfect attack would have shown at most {figure(most)}: larger epsilons are not tested"
    left = promise(value) if value is None or math.isinf(value) else f"at best {promise(value)}"
    return Figure("audited", figure(value), scope, detail, left)


def _further_audits(privacy: Privacy) -> list[Figure]:
    within, canaries, fits = privacy.in_run_audit, privacy.training_audit, privacy.fit_audit
    figures = []
    listed = [audit for audit in privacy.audits if audit]
    for place, audit in enumerate(listed):
        figures += sharper_figures(audit, str(audit.scope) if place else RUN)
    for audit in listed[1:]:
        claimed, verified = figure(audit.claimed_epsilon), figure(audit.verified_epsilon)
        words = f"claimed {claimed}, verified {verified} for this alone"
        figures.append(_audit(audit, str(audit.scope), words))

    def guesses(audit: Audited) -> str:
        return f"measured lower bound: {audit.correct} of {audit.guesses} guesses right, {audit.canaries} canaries; "

    if within.audited_epsilon is not None:
        words = (
            f"canary clients within this run, {guesses(within)}they took {100 * (within.share_of_rounds or 0.0):.1f} "
        )
        words += "% of the rounds' time"
        figures += [_audit(within, RUN, words), *sharper_figures(within, RUN)]
        if (estimate := within.estimated).epsilon is not None:
            words = (
                f"{estimate.source}, from the same canaries: no bound and no audit, it may be too large or too small; "
            )
            words += f"assumes that {estimate.assumes}"
            figures.append(Figure("estimated", figure(estimate.epsilon), RUN, words))
    if canaries:
        words = f"canaries in a real run, {guesses(canaries)}"
        words += f"verified for the same run {figure(canaries.verified_epsilon)}"
        figures += [_audit(canaries, RUN, words), *sharper_figures(canaries, RUN)]
    if fits:
        words = (
            f"the {fits.audited_on}, with its own keys, batches and clipping, on data chosen to be told apart: "
            f"verified for the same {figure(fits.verified_epsilon)}"
        )
        figures.append(_audit(fits, str(fits.scope), words))
    return figures


def sharper_figures(audit: Audited, scope: str) -> list[Figure]:
    """The bounds of an audit that hold under an assumption, which is named with each."""
    figures = []
    for bound in filter(None, audit.sharper):
        words = f"lower bound that holds only if {bound.assumes}"
        words += "" if bound.confidence is None else f", then with {100 * bound.confidence:g} % confidence"
        words += f". A perfect attack would have shown at most {figure(bound.attainable)}"
        figures.append(Figure("audited, assuming", figure(bound.epsilon_lower), scope, words))
    return figures
