"""The leaderboard's arithmetic: order and ties, duels between ideas and plain methods, and how sure they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pytest import approx

from fedpriv.studies.evidence import two_sided
from fedpriv.studies.ranking import (
    Contender,
    Contenders,
    against_alone,
    better_at,
    difference,
    duels,
    outcome,
    ranked,
    verdicts,
)
from fedpriv.studies.results import Duel, Estimate


def contender(name: str, values: list[float], idea: str = "paper") -> Contender:
    return Contender(name, name.upper(), idea, dict(enumerate(values)))


def by_name(boards: dict[float, list[Contender]]) -> Contenders:
    return {target: {one.method: one for one in here} for target, here in boards.items()}


def fought(boards: dict[float, list[Contender]], chance: float = 10.0) -> list[Duel]:
    return duels(by_name(boards), chance)


def gap(one: dict[int, float], other: dict[int, float]) -> Estimate:
    return difference(Contender("one", "", "", one), Contender("other", "", "", other))


def test_the_order_is_by_mean_and_what_no_pair_decides_is_tied() -> None:
    a = contender("a", [80.0, 81.0, 82.0])
    b = contender("b", [84.0, 85.0, 86.0])  # 4 above a with every seed, though their own intervals overlap (± 2.48)
    c = contender("c", [88.0, 80.0, 86.0])  # 84.7: below b by -4 to 5
    found = ranked([a, b, c])
    assert [(rank, tied, one.method) for rank, tied, one in found] == [(1, True, "b"), (2, True, "c"), (3, False, "a")]
    assert b.accuracy.half_width == approx(4.302653 / 3**0.5)
    assert ranked([]) == []
    same = ranked([contender("x", [50.0, 52.0]), contender("y", [52.0, 50.0])])
    assert [rank for rank, _, _ in same] == [1, 1]
    assert [tied for _, tied, _ in ranked([contender("x", [50.0]), contender("y", [10.0])])] == [True, True]


def test_differences_are_paired_by_seed() -> None:
    """Runs that move together differ beyond doubt although their intervals overlap; and the other way round."""
    low, high = contender("low", [70.0, 80.0, 90.0]), contender("high", [71.0, 81.2, 91.1])
    found = difference(high, low)
    assert found.mean == approx(1.1) and found.n == 3 and found.half_width == approx(4.302653 * 0.1 / 3**0.5)
    assert outcome(found) == "beats" and outcome(difference(low, high)) == "loses to"
    assert outcome(gap({0: 1.0, 1: 3.0}, {0: 3.0, 1: 1.0})) == "not decided"
    assert outcome(gap({0: 9.0}, {0: 1.0})) == "not decided"  # one seed has no interval
    assert gap({0: 1.0, 1: 5.0}, {1: 2.0, 2: 7.0}).mean == 3.0


def said(target: float, contenders: list[Contender], chance: float = 10.0) -> list[str]:
    here = by_name({target: contenders})
    return verdicts(target, here, duels(here, chance), chance)


def test_ideas_meet_the_plain_methods_and_nobody_else() -> None:
    plain = contender("plain", [80.0, 80.2, 80.4], "plain")
    worse = contender("worse", [60.0, 60.2, 60.4], "plain")
    guesser = contender("guesser", [10.0, 10.2, 10.4], "plain")
    rival = contender("rival", [99.0, 99.1, 99.2], "rival")
    idea, bad = contender("idea", [85.0, 85.1, 85.5]), contender("bad", [70.0, 70.1, 70.5])
    everybody = {8.0: [worse, plain, guesser, rival, idea, bad]}
    found = {(one.method, one.against): one.outcome for one in fought(everybody)}
    assert found == {
        ("idea", "plain"): "beats", ("bad", "plain"): "loses to", ("idea", "worse"): "beats", ("bad", "worse"): "beats",
    }  # fmt: skip
    own = replace(contender("own", [85.0, 85.1, 85.5]), against=("rival", "absent"))
    assert {(one.method, one.against) for one in fought({8.0: [plain, rival, own]})} == {("own", "rival")}
    words = said(8.0, [worse, plain, rival, bad])
    assert len(words) == 2 and "BAD loses to PLAIN" in words[0]
    assert words[1] == (
        "At epsilon 8, against the other plain methods: 1 of 1 won (BAD against WORSE by 10.00 ± 0.25), 0 lost, "
        "0 not decided."
    )
    first, second = said(8.0, [plain, idea, bad], 10.0)
    assert first == "At epsilon 8, IDEA beats PLAIN by 5.00 ± 0.25 points (85.2 against 80.2 %)."
    assert second == "At epsilon 8, BAD loses to PLAIN by 10.00 ± 0.25 points (70.2 against 80.2 %)."
    (open_,) = said(8.0, [plain, contender("idea", [79.0, 82.0, 80.0])], 10.0)
    assert open_.startswith("At epsilon 8, IDEA against PLAIN is not decided: +0.1 ± 3.")


def test_whoever_is_behind_has_its_runs_at_smaller_epsilons_too() -> None:
    """A badly searched opponent is no win, and a badly searched idea no loss: what keeps 1 keeps 8, not the reverse."""
    good, bad = contender("plain", [80.0, 80.2, 80.4], "plain"), contender("plain", [70.0, 70.2, 70.4], "plain")
    idea, poor = contender("idea", [79.0, 79.1, 79.5]), contender("idea", [50.0, 50.1, 50.2])
    searched_badly = {1.0: [good, idea], 8.0: [bad, idea]}
    at_1, at_8 = fought(searched_badly)
    assert at_1.outcome == "loses to" and at_8.outcome == "not decided"
    assert at_8.against_at == 1.0 and at_8.p == 1.0 and at_8.difference == at_1.difference
    (words, *_) = verdicts(8.0, by_name(searched_badly), [at_8], 10.0)
    assert "IDEA against PLAIN (with its runs at epsilon 1) is not decided: -1.00 ± " in words
    larger = fought({1.0: [bad, idea], 8.0: [good, idea]})
    assert [one.against_at for one in larger] == [None, None] and larger[0].outcome == "beats"
    idea_badly = {1.0: [bad, idea], 8.0: [good, poor]}
    (_, helped) = fought(idea_badly)
    assert helped.method_at == 1.0 and helped.outcome == "loses to" and helped.difference.mean == approx(-1.0)
    words = verdicts(8.0, by_name(idea_badly), [helped], 10.0)[0]
    assert "IDEA (with its runs at epsilon 1) loses to PLAIN by 1.0" in words


def test_no_win_is_due_to_runs_that_happen_to_spread_less() -> None:
    """Not told apart at its own target, told apart from its tight runs at a smaller one: that is no win."""
    tight, wide = contender("plain", [89.7, 89.75, 89.8, 89.75], "plain"), contender("plain", [90, 90, 90, 86], "plain")
    idea = contender("idea", [90.0, 90.05, 90.1, 90.05])
    assert outcome(difference(idea, tight)) == "beats"
    (_, at_8) = fought({1.0: [tight, idea], 8.0: [wide, idea]})
    gaps = [one - other for one, other in zip(idea.accuracies.values(), wide.accuracies.values(), strict=True)]
    assert at_8.outcome == "not decided" and at_8.p == two_sided(gaps)


def test_a_search_chose_badly_only_for_sure() -> None:
    tight, wide = contender("a", [89.7, 89.75, 89.8, 89.75]), contender("a", [90, 90, 90, 86])
    worse = contender("a", [80.0, 80.1, 80.0, 80.1])
    found = by_name({1.0: [tight], 2.0: [wide], 8.0: [worse]})
    assert better_at(wide, 2.0, found) is None and better_at(tight, 1.0, found) is None
    assert better_at(worse, 8.0, found) == 1.0 and better_at(worse, 0.5, found) is None
    assert better_at(contender("b", [1.0, 2.0, 3.0, 4.0]), 8.0, found) is None


def test_of_equal_methods_few_are_ever_told_apart() -> None:
    """Five targets, eight seeds, everybody alike: any verdict at all in one board of twenty."""
    rng = np.random.default_rng(0)
    wrong, boards = 0, 40
    for _ in range(boards):
        board = {
            float(target): [contender(name, list(rng.normal(50.0, 1.0, 8)), idea) for name, idea in
                            (("plain", "plain"), ("other", "plain"), ("idea", "paper"))]
            for target in range(1, 6)
        }  # fmt: skip
        wrong += any(one.outcome != "not decided" for one in fought(board))
    assert wrong <= 0.12 * boards


def test_the_best_is_held_against_what_clients_have_by_themselves() -> None:
    alone = {0: 90.0, 1: 91.0, 2: 92.0}
    low, high = contender("low", [80.0, 81.1, 82.2]), contender("high", [91.0, 92.1, 93.3])
    said = against_alone(8.0, [low], alone)
    assert said.startswith("At epsilon 8, the best, LOW, is worse by 9.90 ± 0.25 points than what every client has ")
    assert "is better by 1.13 ± " in against_alone(8.0, [low, high], alone)
    assert "is not told apart" in against_alone(8.0, [contender("same", [92.0, 90.0, 91.2])], alone)
    assert "91.0 % by itself" in against_alone(1.0, [], alone)
    assert "no seed of the best, LOW," in against_alone(1.0, [low], {7: 90.0})


def test_a_boards_duels_are_decided_together() -> None:
    """p = 0.03 decides one duel; of two at p = 0.03 none, and the page says why."""
    plain = contender("plain", [80.0] * 4, "plain")
    near = contender("near", [80.6, 81.4, 81.0, 80.4])
    (one,) = fought({8.0: [plain, near]})
    gaps = [one - 80.0 for one in near.accuracies.values()]
    assert one.p == one.adjusted == two_sided(gaps) and one.outcome == "beats"
    twice = {1.0: [plain, near], 8.0: [plain, near]}
    both = fought(twice)
    assert [duel.adjusted for duel in both] == [approx(2 * (one.p or 0))] * 2
    assert {duel.outcome for duel in both} == {"not decided"}
    words = verdicts(8.0, by_name(twice), both, 10.0)
    assert words == [
        "At epsilon 8, NEAR against PLAIN is not decided: +0.85 ± 0.71 points "
        f"(80.8 against 80.0 %; p = {both[0].adjusted:.2g} among all pairwise tests of the board)."
    ]


def test_a_board_without_learning_or_without_sides_says_so() -> None:
    guess, plain = contender("guess", [11.0, 12.0]), contender("plain", [80.0, 81.0], "plain")
    (words,) = said(1.0, [guess], 10.0)
    assert words == "At epsilon 1 nothing learns: the best, GUESS, has 11.5 %, and guessing 10.0 %."
    assert "no paper's idea is ranked" in said(1.0, [plain], 10.0)[0]
    assert "no plain method" in said(1.0, [contender("idea", [80.0, 81.0])], 10.0)[0]
    assert said(1.0, [], 10.0) == ["At epsilon 1 no method can be calibrated, or all guess."]
