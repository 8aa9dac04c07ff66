"""What stands in place of an audited epsilon: what an audit within the run would take and show; and the estimate."""

from __future__ import annotations

from report_runs import privacy

from fedpriv.report.epsilon_figures import all_figures, offered, three_figures, unaudited
from fedpriv.report.live.tracking.tracked_figures import of_summary

CHEAP = {
    "coins": 1121,
    "requests": 47,
    "share": 0.0391,
    "cheap": True,
    "would_show": 3.08,
    "would_show_if_gaussian": 5.11,
}


def test_a_cheap_audit_is_offered_with_what_it_would_show() -> None:
    record = privacy(in_run_offer=CHEAP)
    audited = three_figures(record)[2]
    assert (audited.name, audited.value) == ("audited", "not run (would show ≥ 3.08)")
    assert "audit.in_run=true would have taken about 3.9 % of the rounds' CPU time for 1121 canaries" in audited.detail
    assert "about 3.08, or 5.11 if the noise is Gaussian" in audited.detail
    assert of_summary({"privacy": record})[1]["summary/privacy.audited_epsilon"] == audited.value


def test_what_is_dear_impossible_or_unknown_is_said_too() -> None:
    dear = privacy(in_run_offer=CHEAP | {"cheap": False, "share": 0.31})
    assert unaudited(dear) == "not audited" and offered(dear) == "no attack was run against this code yet"
    joint = privacy(in_run_offer={"coins": 71, "share": 0.03, "cheap": True, "at_most": 2.41})
    assert unaudited(joint) == "not audited" and "for 71 canaries, and shown 2.41 at most" in offered(joint)
    none = privacy(in_run_offer={"reason": "clients share noise in groups"})
    assert "there can be none: clients share noise in groups" in offered(none)
    assert offered(privacy()) == "no attack was run against this code yet" and unaudited(privacy()) == "not audited"


def test_an_audit_that_was_run_has_no_offer_and_an_estimate_is_called_one() -> None:
    within = {
        "audited_epsilon": 3.0,
        "audited_confidence": 0.95,
        "audited_at_most": 3.6,
        "correct": 99,
        "guesses": 100,
        "canaries": 1000,
        "share_of_rounds": 0.03,
        "sharper": [],
        "estimated": {"epsilon": 6.84, "source": "Andrew et al. 2023", "assumes": "the scores are Gaussian"},
    }
    figures = all_figures(privacy(audited_epsilon=3.0, audited_confidence=0.95, in_run_audit=within))
    (estimated,) = [one for one in figures if one.name == "estimated"]
    assert estimated.value == "6.84" and "no bound and no audit" in estimated.detail
    assert "Andrew et al. 2023" in estimated.detail and "assumes that the scores are Gaussian" in estimated.detail
    assert not any("6.84" in one.value + one.detail for one in figures if one.name != "estimated")
    assert all("would have taken" not in one.detail for one in figures)
