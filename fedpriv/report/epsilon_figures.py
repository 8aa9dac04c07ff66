"""The epsilons of a run for display: claimed, verified, audited and what stands beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedpriv.report.words import (
    NEXT_TO_NOTHING,
    SCOPES,
    Figure,
    figure,
    mapping_at,
    number,
    number_at,
    promise,
    reasons,
)


def three_figures(privacy: Mapping[str, Any]) -> list[Figure]:
    """Claimed, verified and audited epsilon of one threat model."""
    return [_claimed(privacy), _verified(privacy), _audited(privacy)]


def all_figures(privacy: Mapping[str, Any]) -> list[Figure]:
    """The three, with the median client's bound, what was spent, and further audits: at other scopes than the claim's,
    each with the claim and the bound for that scope; with canaries; of a client's own fit.
    """
    claimed, verified, audited = three_figures(privacy)
    middle, spent = number_at(privacy, "verified_median"), number_at(privacy, "spent_so_far")
    whole, same = SCOPES["run"], "the same bound for the client in the middle"
    median = [] if middle is None else [Figure("median client", figure(middle), whole, same, promise(middle))]
    words = "the epsilon of the choices that were made: no guarantee given beforehand"
    so_far = Figure("spent so far", figure(spent, "not recorded"), whole, words, promise(spent))
    return [claimed, verified, *median, so_far, audited, *_further_audits(privacy), *opacus_figure(privacy)]


def _claimed(privacy: Mapping[str, Any]) -> Figure:
    value = number_at(privacy, "claimed_epsilon")
    if value is None:
        return Figure("claimed", "no claim", "", "the method claims no epsilon")
    holds = "if it holds" if value < NEXT_TO_NOTHING else "even if it holds"
    formula = f"the paper's own formula: {privacy.get('claimed_equation') or 'equation not recorded'}"
    return Figure("claimed", figure(value), _scope(privacy), formula, f"{promise(value)}, {holds}")


def _verified(privacy: Mapping[str, Any]) -> Figure:
    value, at_scope = number_at(privacy, "verified_epsilon"), number_at(privacy, "verified_at_claimed_scope")
    if value is None:
        return Figure("verified", "not computed", "", "no bound was computed")
    if math.isinf(value):
        detail = f"no finite bound: {'; '.join(reasons(privacy)) or 'no reason was recorded'}"
    else:
        detail = f"sound upper bound for what was sent ({privacy.get('accountant') or 'unnamed'} accountant)"
    if _scope(privacy) != SCOPES["run"] and at_scope is not None:
        detail += f". At the claim's scope, {_scope(privacy)}: {figure(at_scope)} ({promise(at_scope)})"
    return Figure("verified", figure(value), SCOPES["run"], detail, promise(value))


def _scope(privacy: Mapping[str, Any]) -> str:
    scope = str(privacy.get("claimed_scope") or "run")
    return SCOPES.get(scope, scope)


def _audited(privacy: Mapping[str, Any]) -> Figure:
    value = number_at(privacy, "audited_epsilon")
    if value is None:
        reason = mapping_at(privacy, "in_run_audit").get("reason")
        if reason is not None:
            return Figure("audited", "not audited", "", f"no canaries in this run: {reason}")
        return Figure("audited", unaudited(privacy), "", offered(privacy))
    if math.isinf(value):
        detail = "no finite epsilon fits: the ledger itself records a leak without noise"
    else:
        confidence, trials = number_at(privacy, "audited_confidence"), number_at(privacy, "audited_trials")
        sure = "" if confidence is None else f" with {100 * confidence:g} % confidence"
        count = "" if trials is None else f", {trials:,.0f} trials"
        detail = f"measured lower bound: the true epsilon is no smaller{sure}{count}"
    return _audit({**privacy, "verdict": privacy.get("audit_verdict")}, _scope(privacy), detail)


def unaudited(privacy: Mapping[str, Any]) -> str:
    """In place of an audited epsilon: what a cheap audit within the run would have shown, where there is one."""
    offer = mapping_at(privacy, "in_run_offer")
    shown = number_at(offer, "would_show")
    if not offer.get("cheap") or shown is None:
        return "not audited"
    return f"not run (would show ≥ {figure(shown)})"


def offered(privacy: Mapping[str, Any]) -> str:
    """What an audit within the run would have taken and shown, where it is cheap, or why there can be none."""
    offer = mapping_at(privacy, "in_run_offer")
    words = "no attack was run against this code yet"
    if reason := offer.get("reason"):
        return f"{words}. Within the run there can be none: {reason}; `fedpriv audit` attacks the release code"
    share = number_at(offer, "share")
    if share is None or not offer.get("cheap"):
        return words
    shown, assuming, most = (number_at(offer, name) for name in ("would_show", "would_show_if_gaussian", "at_most"))
    words += f". audit.in_run=true would have taken about {max(0.1, 100 * share):.2g} % of the rounds' CPU time"
    words += f" for {offer.get('coins')} canaries, and shown "
    if shown is None:
        return f"{words}{figure(most)} at most"
    return f"{words}about {figure(shown)}, or {figure(assuming)} if the noise is Gaussian, of a mechanism at its ledger"


def opacus_figure(privacy: Mapping[str, Any]) -> list[Figure]:
    """The epsilon by Opacus' accountants, for comparison; empty where `privacy.accountant` did not ask for it."""
    found = privacy.get("opacus")
    if not isinstance(found, Mapping):
        return []
    rdp, prv = number(found.get("rdp")), number(found.get("prv"))
    said = "; ".join(map(str, found.get("remarks") or []))
    if rdp is None:
        return [Figure("Opacus'", "no figure", "", said)]
    which = "PRV accountant" if prv is not None else "RDP accountant"
    detail = f"{found.get('library')}, {which}, {found.get('adjacency')}: for comparison, no verified bound"
    detail += f"; by its RDP accountant {figure(rdp)}" * (prv is not None) + f". {said}" * bool(said)
    return [Figure("Opacus'", figure(rdp if prv is None else prv), SCOPES["run"], detail)]


def _audit(record: Mapping[str, Any], scope: str, detail: str) -> Figure:
    """The lower bound of one audit, and what it leaves to promise."""
    value = number_at(record, "audited_epsilon")
    said = f". Verdict: {record['verdict']}" if record.get("verdict") else ""
    left = promise(value) if value is None or math.isinf(value) else f"at best {promise(value)}"
    return Figure("audited", figure(value), scope, f"{detail}{said}{_at_most(record)}", left)


def _at_most(audited: Mapping[str, Any]) -> str:
    """What an audit would have shown at the verified epsilon, and at most; empty for a record without these."""
    most, expected = number_at(audited, "audited_at_most"), number_at(audited, "audited_expected")
    if most is None or math.inf in (most, number_at(audited, "audited_epsilon")):
        return ""
    seen = f". At the verified epsilon the audit would have shown {figure(expected)}" if expected else ""
    return f"{seen}. A perfect attack would have shown at most {figure(most)}: larger epsilons are not tested"


def _further_audits(privacy: Mapping[str, Any]) -> list[Figure]:
    rows, canaries, fits = (
        privacy.get("audits"),
        mapping_at(privacy, "training_audit"),
        mapping_at(privacy, "fit_audit"),
    )
    figures = []
    listed = [row for row in map(mapping_at, rows if isinstance(rows, list) else ()) if row]
    for row in listed:
        figures.extend(sharper_figures(row, SCOPES["run"] if row is listed[0] else str(row.get("scope"))))
    for row in listed[1:]:
        claimed, verified = (figure(number_at(row, f"{name}_epsilon")) for name in ("claimed", "verified"))
        words = f"claimed {claimed}, verified {verified} for this alone"
        figures.append(_audit(row, str(row.get("scope")), words))
    within = mapping_at(privacy, "in_run_audit")
    if number_at(within, "audited_epsilon") is not None:
        share = number_at(within, "share_of_rounds") or 0.0
        words = (
            f"canary clients within this run, measured lower bound: {within.get('correct')} of {within.get('guesses')} "
            f"guesses right, {within.get('canaries')} canaries; they took {100 * share:.1f} % of the rounds' time"
        )
        figures += [_audit(within, SCOPES["run"], words), *sharper_figures(within, SCOPES["run"]), *_estimated(within)]
    if canaries:
        words = (
            f"canaries in a real run, measured lower bound: {canaries.get('correct')} of {canaries.get('guesses')} "
            f"guesses right, {canaries.get('canaries')} canaries; verified for the same run "
            f"{figure(number_at(canaries, 'verified_epsilon'))}"
        )
        figures += [_audit(canaries, SCOPES["run"], words), *sharper_figures(canaries, SCOPES["run"])]
    if fits:
        words = (
            f"the {fits.get('audited_on')}, with its own keys, batches and clipping, on data chosen to be told apart: "
            f"verified for the same {figure(number_at(fits, 'verified_epsilon'))}"
        )
        figures.append(_audit(fits, str(fits.get("scope")), words))
    return figures


def _estimated(within: Mapping[str, Any]) -> list[Figure]:
    """The one-shot estimate from canaries, which bounds nothing."""
    estimate = mapping_at(within, "estimated")
    value = number_at(estimate, "epsilon")
    if value is None:
        return []
    words = f"{estimate.get('source')}, from the same canaries: no bound and no audit, it may be too large or too small"
    words += f"; assumes that {estimate.get('assumes')}"
    return [Figure("estimated", figure(value), SCOPES["run"], words)]


def sharper_figures(audited: Mapping[str, Any], scope: str) -> list[Figure]:
    """The bounds of an audit that hold under an assumption, which is named with each."""
    figures = []
    for bound in filter(None, map(mapping_at, audited.get("sharper") or [])):
        value, most, sure = (number_at(bound, name) for name in ("epsilon_lower", "attainable", "confidence"))
        words = f"lower bound that holds only if {bound.get('assumes')}"
        words += "" if sure is None else f", then with {100 * sure:g} % confidence"
        words += f". A perfect attack would have shown at most {figure(most)}"
        figures.append(Figure("audited, assuming", figure(value), scope, words))
    return figures
