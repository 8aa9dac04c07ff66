"""The Flower app of `flwr run .`: ServerApp and ClientApp, whose configuration comes from the run's own options."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpriv.common.errors import OptionError
from fedpriv.common.places import installed_code_only
from fedpriv.common.printing import OneLine
from fedpriv.config.schema import Config
from fedpriv.engines.worker import make_client_app


@lru_cache(maxsize=4)
def _composed(overrides: str) -> Config:
    from fedpriv.config.remote import compose_remote_text

    installed_code_only()

    config = compose_remote_text(overrides)
    if config.dataset.name == "on_nodes" and config.dataset.is_table and config.dataset.schema_digest is None:
        words = "all machines must know which schema it is: the digest that `fedpriv schema check` prints"
        raise OptionError("dataset.schema_digest", "null", words)
    engine: dict[str, Any] = {"name": "flower"}
    privacy: dict[str, Any] = {}
    if config.dataset.name == "on_nodes":  # real clients: no seeded noise, and each trains on its own
        engine |= {"trainer": "sequential"}
        privacy |= {"rng": "secure"}
    return config.model_copy(
        update={
            "engine": config.engine.model_copy(update=engine),
            "privacy": config.privacy.model_copy(update=privacy),
        }
    )


def _name_weights(config: Config) -> None:
    """Raises `OptionError` for a deployed run that starts from weights without their digest."""
    if config.dataset.name != "on_nodes":
        return
    for group, options in (("model", config.model), ("features", config.features)):
        if options.weights is not None and options.weights_sha256 is None:
            words = "nodes choose their own copy of the weights by it: the SHA-256 that `sha256sum FILE` prints"
            raise OptionError(f"{group}.weights_sha256", "null", words)


def _config_of(context: Context) -> Config:
    return _composed(str(context.run_config.get("overrides", "")))


client_app = make_client_app(_config_of)
server_app = ServerApp()


@server_app.main()
def _serve(grid: Grid, context: Context) -> None:
    from fedpriv.runs.start import serve_flwr_run

    logging.getLogger("flwr").addFilter(OneLine())
    config = _config_of(context)
    _name_weights(config)
    summary = serve_flwr_run(grid, context, config)

    from fedpriv.report.tables import print_end

    print_end(summary, Path(str(config.run_dir)), str)  # the last lines of `flwr run --stream`
