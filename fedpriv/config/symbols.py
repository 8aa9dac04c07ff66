"""Each paper's letter for an option, for `fedpriv help METHOD`. Where two papers' letters differ, each has its own.

An option is named as after ``strategy.``, or from the top as on the command line. A test holds the table against the
schemas, and against the symbols in the docstrings of the methods' files.
"""

from __future__ import annotations

#: Of every method that does not name its own.
COMMON = {"num_clients": "N", "clients_per_round": "K", "num_rounds": "T", "local.lr": "eta", "privacy.delta": "delta"}

#: Of the rules by which C moves from round to round (`ClippingOptions`).
_CLIPPING = {
    "client.noise_multiplier": "sigma",
    "client.clip_norm": "C",
    "client.count_noise": "sigma_b",
    "client.norm_noise": "z_n",
    "server.clip_lr": "eta_C",
    "server.decay": "rho",
    "server.window": "S_w",
    "server.norm_bound": "B",
}
_EXAMPLE = {"client.noise_multiplier": "sigma", "client.clip_lr": "eta_C", "client.count_noise": "sigma_b"}
_ADAM = {"client.beta1": "beta_1", "client.beta2": "beta_2"}
_AGN = {**_EXAMPLE, "client.clip_norm": "Theta", "local.batch_size": "H"}
_ANR = {"client.noise_multiplier": "sigma_0", "server.threshold": "mu"}
_DECAY = {"client.decay": "rho"}
_ONE_BIT = {"client.radius": "r", "server.radius_floor": "r_min"}
_ROUND_EPSILON = {"client.epsilon": "eps", "client.claimed_delta": "delta"}
_GRADIENT = {**_ROUND_EPSILON, "client.clip_norm": "C", "client.sensitivity": "DeltaS", "server.learning_rate": "eta"}
_WHOLE = {**_CLIPPING, "client.clip_norm": "c"}
_UNIT = {"client.epsilon": "eps", "client.projections": "k"}
_UNIT |= {"client.bits": "b", "client.claimed_delta": "delta"}
_MASKS = {"server.threshold": "t"}

#: method -> option -> letter.
SYMBOLS: dict[str, dict[str, str]] = {
    "fedavg": {},
    "fedprox": {"client.proximal_mu": "mu"},
    "fedper": {"client.personal_layers": "K_P"},
    "lgfedavg": {},
    "fedvf": {"client.head_period": "P"},
    "pfl": {"client.personal_layers": "L", "clients_per_round": "N", "local.epochs": "E"},
    "adpfl": {
        **_CLIPPING,
        "client.clip_norm": "C^t",
        "client.noise_multiplier": "sigma_s",
        "client.epsilon": "eps",
        "client.base_share": "a",
        "client.personal_layers": "L",
        "clients_per_round": "N",
        "local.epochs": "E",
    },
    "dpftrl": {
        "client.noise_multiplier": "sigma",
    },
    "fedldp": _CLIPPING,
    "fedcad": {
        **_CLIPPING,
        "client.diff": "E[Diff], D_0",
        "client.obsolete_factor": "gamma",
        "client.sigma_diff": "sigma_Diff",
        "local.epochs": "E",
    },
    "ldpfl": {**_ONE_BIT, "client.epsilon": "eps"},
    "coqfl": {
        **_ONE_BIT,
        "client.epsilon": "eps",
        "client.bits": "M",
        "client.group_size": "g",
        "client.private_share": "mu",
    },
    "corrquant": {**_ONE_BIT, "clients_per_round": "n"},
    "fedags": {
        **_GRADIENT,
        "client.noise_multiplier": "sigma",
        "client.score_bound": "tau",
        "client.epsilon_split": "eps1, eps2, eps3",
        "client.values_share": "eps3/eps",
        "client.loss_bound": "L_max",
        "local.steps": "E",
    },
    "dpfedavg": {
        **_GRADIENT,
        "client.noise_multiplier": "sigma",
        "server.clip_lr": "eta_C",
        "server.target_quantile": "gamma",
        "server.norm_bound": "B",
    },
    "dpfedexp": {**_GRADIENT, "client.noise_multiplier": "sigma"},
    "dpfedsam": {**_GRADIENT, "client.noise_multiplier": "sigma", "client.sharpness": "rho", "local.steps": "K"},
    "dpzo": {**_GRADIENT, "client.noise_multiplier": "sigma", "client.directions": "K", "client.smoothing": "phi"},
    "scaffold": {
        "client.epsilon": "eps",
        "client.clip_norm": "C",
        "client.noise_multiplier": "sigma",
        "client.correction": "alpha",
        "clients_per_round": "|S|",
        "num_rounds": "R",
        "local.lr": "eta_l",
        "local.steps": "K",
    },
    "cpsgd": {**_GRADIENT, **_MASKS, "client.levels": "k", "client.trials": "m"},
    "ddgauss": {**_WHOLE, **_MASKS},
    "skellam": {**_WHOLE, **_MASKS},
    "moments": {"client.noise_multiplier": "sigma", **_MASKS},
    "ask": {"client.noise_multiplier": "sigma", **_MASKS},
    "dpsum": {"client.noise_multiplier": "sigma", "client.clip_norm": "C", "client.sampling_rate": "q", **_MASKS},
    "dpfedsnlc": {**_GRADIENT, "client.noise_multiplier": "sigma", "client.score_bound": "tau"},
    "dpsgd": {**_EXAMPLE, "client.clip_norm": "C", "local.batch_size": "L"},
    "agn": {**_AGN, **_ADAM},
    "anr": {**_AGN, **_DECAY, **_ANR},
    "dpfl_agn": {**_AGN, **_ADAM, **_DECAY, **_ANR},
    "nbafl": {
        "client.epsilon": "epsilon",
        "client.claimed_delta": "delta",
        "client.clip_norm": "C",
        "client.exposures": "L",
        "client.noise_multiplier": "sU / C",
        "client.proximal_mu": "mu",
        "clients_per_round": "N",
    },
    "privunit": {**_UNIT, "server.learning_rate": "eta"},
    "fedonce": {**_UNIT, "server.step": "eta", "server.scale": "tau", "server.spread": "rho"},
}
