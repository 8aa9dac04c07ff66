"""Which engine ``engine=auto`` means."""

from __future__ import annotations

from fedpriv.config.schema import Config


def resolve_engine(config: Config, seconds_of_work: float, workers: int) -> str:
    """What ``engine=auto`` means here: ``ray`` where several GPUs are there or where a second
    worker saves more than Ray's start-up costs; ``inprocess`` otherwise.

    seconds_of_work: estimated time of all local training in one process.
    """
    if config.engine.name != "auto":
        return config.engine.name
    import torch

    if torch.cuda.device_count() > 1:
        return "ray"
    if torch.cuda.is_available() or config.engine.device == "cuda":
        return "inprocess"
    saved = seconds_of_work * (1 - 1 / max(1, min(workers, config.clients_per_round)))
    return "ray" if saved > 2 * RAY_STARTUP_SECONDS else "inprocess"


def why_on_gpus() -> str:
    """Why ``engine=auto`` took what it did on this machine's GPUs, in words; empty where it has none."""
    import torch

    if torch.cuda.device_count() > 1:
        return f"ray: it has {torch.cuda.device_count()} GPUs, one or a share of one for each worker"
    if not torch.cuda.is_available():
        return ""
    return "inprocess: one GPU trains a cohort as one batch in one process (engine=ray shares it among several)"


#: Starting Ray and its workers, importing torch in each: seen 8 to 15 s on two cores.
RAY_STARTUP_SECONDS = 15.0
