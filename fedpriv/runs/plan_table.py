"""What a run would cost, in words: the answer of `fedpriv plan`."""

from __future__ import annotations

from fedpriv.client.build import make_client, person_word
from fedpriv.config.schema import Config
from fedpriv.deployment.gate import would_refuse
from fedpriv.deployment.policy import Policy
from fedpriv.engines.worker import Worker
from fedpriv.report.live.progress import figure
from fedpriv.runs.planning import plan_elsewhere
from fedpriv.runs.preparation import resolve
from fedpriv.training.trained_part import trained_words

#: How the name of a line begins that says what a node would refuse.
REFUSED = "the policy refuses"


def _parameters(worker: Worker) -> str:
    size, shared = worker.model.layout.num_parameters, worker.shared
    held = shared.stop - shared.start
    return str(size) if held == size else f"{size}, of which {held} are shared"


def _public_knowledge(config: Config) -> dict[str, str]:
    from fedpriv.data.features import known_beforehand

    known, part = known_beforehand(config), config.model.train
    trained = {} if part == "all" else {"trained": f"{trained_words(config.model)}; the rest is no coordinate"}
    return trained if known == "none" else {"public knowledge": known, **trained}


def plan_rows(config: Config, policy: Policy | None = None) -> dict[str, str]:
    """Name -> value of every line, the last about what a node with this policy would do. Trains nothing."""
    config, worker, plan = resolve(config, None)
    claim = plan.claim
    claimed = f"{figure(claim.epsilon)} (scope {claim.scope}; {claim.equation})" if claim else "nothing is claimed"
    person = "".join(f" (all rows of one {word})" for word in person_word(config).values())
    threat = f"unit {plan.threat.unit}{person}, {plan.threat.adjacency}, observer {plan.threat.observer}"
    rows = {
        "method": f"{config.method} ({config.privacy.variant}), {config.model.name}, {config.dataset.name}",
        **_public_knowledge(config),
        "rounds": f"{config.num_rounds}, {config.clients_asked} of {config.num_clients} clients each; "
        f"a client takes part {plan.participations[0]} to {plan.participations[1]} times",
        "parameters": _parameters(worker),
        "claimed epsilon": claimed,
        "verified epsilon": f"{figure(plan.verified_epsilon)} (median {figure(plan.verified_median)}; "
        f"{plan.accountant})",
        **({} if plan.by_opacus is None else {"Opacus' epsilon": plan.by_opacus.words}),
        "threat model": f"{threat}, delta {config.privacy.delta:g}",
        **{
            f"and against {other.threat.observer}": f"{figure(other.verified_epsilon)} (median "
            f"{figure(other.verified_median)}; {other.accountant})"
            for other in plan_elsewhere(config)
        },
        "bytes up / down": f"{plan.bytes_up:,} / {plan.bytes_down:,}",
        "estimated time": f"{plan.seconds:.0f} s of local training on one worker; engine {config.engine.name}",
        "trainer": plan.trainer,
    }
    if hasattr(config.strategy.options, "noise_multiplier"):
        chosen = getattr(make_client(config), "noise_multiplier", None)
        rows["noise multiplier"] = f"{chosen:.6g} (standard deviation / clip_norm)"
    rows |= {f"reason {number}": reason for number, reason in enumerate(plan.reasons, 1)}
    if policy is not None:
        wrong = would_refuse(policy, config, plan.participations[1])
        rows |= {f"{REFUSED} {number}": words for number, words in enumerate(wrong, 1)}
        rows |= {} if wrong else {"policy": "admits this run, on a ledger without releases"}
    return rows
