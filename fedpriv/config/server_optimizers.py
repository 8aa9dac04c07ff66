"""What the options of the server's optimizer require of the method, and the learning rate that they stand for."""

from __future__ import annotations

from fedpriv.common.errors import OptionError
from fedpriv.config.schema import Config

#: strategy.server.lr where it is null. With adam and yogi every coordinate moves by about so much in a round.
USUAL_LR = {"sgd": 1.0, "momentum": 1.0, "adam": 0.01, "yogi": 0.01}

#: Methods whose server adds no averaged update, and why.
OWN_STEP = {
    "fedonce": "the server's rule finds the length of its one step along each direction (strategy.server.step)",
    "ask": "the noisy sum is the answer",
}


def learning_rate(optimizer: str, lr: float | None) -> float:
    """eta of the server's optimizer."""
    return USUAL_LR[optimizer] if lr is None else float(lr)


def check_optimizer(config: Config) -> None:
    """Raises `OptionError` where a method has no use for an optimizer."""
    options = config.strategy.options
    if (why := OWN_STEP.get(config.strategy.name)) is None:
        return
    if options.optimizer != "sgd":
        raise OptionError("strategy.server.optimizer", options.optimizer, f"{why}; allowed: sgd")
    if options.lr not in (None, 1):
        raise OptionError("strategy.server.lr", options.lr, f"{why}; allowed: null or 1")
