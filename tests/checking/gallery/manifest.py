"""What is known of each program of the gallery: sound or faulty, why, and its true privacy loss.

The programs are written as strangers write them: they import flwr, opacus, torch and numpy alone. Each has `target`
(what is checked) and mostly `CLAIM` (what its author would say): epsilon, delta, scope ("call", or "run" of `calls`
calls), adjacency, unit. A program that keeps state has to be imported anew, or its `target` copied, for a fresh start.

Forms, and how `target` is called:
- release: `target(update, rng)`, a numpy generator. release-torch: `target(update, generator)`.
  release-bare: `target(update)`; release-torch-bare: the same with a tensor.
  Inputs "vector": one float array with one axis; "layers": a list of arrays.
- mod: a Flower client mod, `target(msg, ctxt, call_next)`. strategy: a strategy of flwr.serverapp;
  old-strategy: one of flwr.server. client-app: a ClientApp, whose rows follow `partition-id` in the node's
  configuration and whose model starts at `initial_arrays`. numpy-app: the same around a NumPyClient (fitins records).
- loop: `target(data=None)` trains and returns what is published; without an argument on rows of its own.
  Inputs "dataset": a TensorDataset; "pair": a tuple of rows and labels.
- filter: `target.process(dxo, shareable, fl_ctx)`, with a DXO of the file's own.

`loss` is the epsilon at the claim's delta, under the claim's adjacency and scope, of the worst pair of inputs: "exact",
a "lower" bound (faulty programs), or an "upper" one (sound programs). Infinite: some event has chance above delta on
one side and none on the other. Attacks on the last bits of 64-bit floating-point noise (Mironov 2012) and on the
quality of numpy's and torch's generators are left out: by them no such program would be sound.

`source` is "own", or the public report or question that the program re-creates in a few lines of its own.
"""

from dataclasses import dataclass
from math import exp, inf, log, log1p, sqrt

from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp
from scipy.stats import chi2, norm

DELTA = 1e-5
#: What a program takes, by the first word of its form, where its row says nothing else; others are of clients.
USUAL = {"release": "vector", "mod": "layers", "client": "partition-id", "numpy": "partition-id"}
USUAL |= {"loop": "pair", "filter": "arrays"}
PROJECTS = {"opacus": "https://github.com/meta-pytorch/opacus/", "flower": "https://github.com/flwrlabs/flower/"}


@dataclass(frozen=True)
class Row:
    """One program: its file's name without ending, and what is known of it."""

    file: str
    form: str
    faulty: bool
    loss: float
    bound: str
    words: str
    source: str = "own"
    inputs: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", self.inputs or USUAL.get(self.form.partition("-")[0], "clients"))


def gaussian(mu: float, delta: float = DELTA) -> float:
    """Epsilon of the Gaussian mechanism whose sensitivity is `mu` standard deviations (Balle and Wang 2018)."""

    def gap(epsilon: float) -> float:
        first, second = norm.logcdf(mu / 2 - epsilon / mu), epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
        return first + log1p(-exp(min(second - first, -1e-300))) - log(delta)

    return float(brentq(gap, 1e-9, mu * mu / 2 + 12 * mu + 12))


def skellam(l2: float, l1: float, variance: float, delta: float = DELTA) -> float:
    """Upper bound for Skellam noise on integers: the Renyi curve of Agarwal et al. (2021), theorem 3.5, converted."""
    best = inf
    for order in range(2, 200):
        extra = min(((2 * order - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
        renyi = order * l2**2 / (2 * variance) + extra
        best = min(best, renyi + log((order - 1) / order) - (log(delta) + log(order)) / (order - 1))
    return best


def sampled(rate: float, multiplier: float, steps: int, delta: float = DELTA) -> float:
    """Upper bound for Poisson-sampled Gaussians: integer orders of the Renyi curve (Mironov et al. 2019)."""
    best = inf
    for order in range(2, 80):
        terms = [
            gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
            + k * log(rate) + (order - k) * log1p(-rate) + (k * k - k) / (2 * multiplier**2)
            for k in range(order + 1)
        ]  # fmt: skip
        renyi = steps * float(logsumexp(terms)) / (order - 1)
        best = min(best, renyi + log((order - 1) / order) - (log(delta) + log(order)) / (order - 1))
    return best


def narrower(size: int, ratio: float, share: float = 1.0, tries: int = 1, delta: float = DELTA) -> float:
    """Lower bound where noise of `size` coordinates has `1 / ratio` of its standard deviation on one side, in a
    `share` of the cases, and never on the other, within `tries`: the test looks at the length of the noise."""
    best = 0.0
    for step in range(1, 200):
        line = size * step / 200
        seen = share * chi2.cdf(line * ratio**2, size) - delta
        best = max(best, log(max(seen, 1e-300)) - log(tries) - chi2.logcdf(line, size))
    return float(best)


ROWS = [
    # functions: faulty
    Row("aare", "release", True, inf, "exact",
        "Noise before the clip: for a long update the noise is shrunk away and the direction is left."),
    Row("aisne", "release", True, gaussian(2 * sqrt(2) / 2), "lower",
        "Each layer is clipped to C, the noise is for one clip: the sensitivity is C times the root of the number of "
        "layers (figure for two layers; 10.0 for four).",
        "https://github.com/fedbiomed/fedbiomed/issues/1443", inputs="layers"),
    Row("amstel", "release", True, gaussian(0.5 * sqrt(2)), "lower",
        "Clipped by the largest entry, priced as if by the L2 norm: sensitivity grows with the root of the dimension "
        "(figure for two coordinates)."),
    Row("brenta", "release", True, gaussian(2.0), "exact",
        "Any update may replace any other, 2C apart, but the noise is for C."),
    Row("cher", "release", True, gaussian(10.0), "exact",
        "The client divides its own noise by the number of clients, and the server reads each message."),
    Row("clyde", "release", True, gaussian(2 / sqrt(8)), "exact",
        "The standard deviation is taken for a variance: its root is drawn."),
    Row("derwent", "release", True, inf, "exact",
        "The noise is scaled by the update's own norm: a zero update gets none."),
    Row("douro", "release-bare", True, inf, "exact",
        "The noise is seeded by the round: everybody can draw it again and subtract it."),
    Row("ebro", "release-bare", True, inf, "exact",
        "The noise is seeded by a hash of the update: the release is a function of the data."),
    Row("eden", "release", True, inf, "exact",
        "One seed for all layers: the same noise in each, so the difference of two layers has none.", inputs="layers"),
    Row("ems", "release-torch", True, inf, "exact",
        "The noise is added to a copy that is thrown away.", PROJECTS["flower"] + "pull/4677"),
    Row("exe", "release", True, inf, "exact", "Only the first layer gets noise.", inputs="layers"),
    Row("fulda", "release", True, inf, "exact", "A zero update is sent as zeros, without noise."),
    Row("garonne", "release", True, inf, "exact", "An update with an entry that is not finite is sent as it is."),
    Row("glomma", "release", True, inf, "exact",
        "An update longer than 50 C is not clipped: the sensitivity has no bound."),
    Row("havel", "release", True, inf, "exact",
        "The places of the largest coordinates are chosen from the data and shown without noise."),
    Row("isar", "release-bare", True, inf, "exact",
        "The global generator is seeded with 0 in each call: the noise is a constant."),
    Row("kemi", "release", True, sqrt(2), "lower",
        "Laplace noise needs the L1 distance, the clip bounds L2: the loss is epsilon times the root of the dimension "
        "(figure for two coordinates)."),
    Row("lech", "release", True, inf, "exact",
        "The noise lies on the grid of 16-bit floats, the update does not: what is finer than the grid is the update."),
    Row("lippe", "release", True, inf, "exact",
        "One-sided geometric noise: values below the update never come, and have chance 0.86 for another update."),
    Row("lune", "release", True, inf, "exact",
        "The tree keeps one noise per level: sum 3 - sum 2 - sum 1 is a difference of two updates without noise."),
    Row("marne", "release", True, inf, "exact",
        "Momentum of raw updates is added after the noise: the second message holds the first update, not clipped."),
    Row("mersey", "release", True, inf, "exact",
        "The mask is kept for later rounds: the difference of two messages is that of the updates."),
    Row("moldau", "release", True, inf, "exact",
        "A random projection that is published with its matrix hides nothing: noise there is none."),
    Row("mosel", "release", True, 60.0, "exact",
        "Randomised response whose chance depends on the value: 30 nats each way for one coordinate."),
    Row("naab", "release", True, inf, "exact",
        "Sparse vector technique without noise on the queries: two coordinates are compared with one line, so their "
        "order cannot be reversed."),
    Row("nahe", "release", True, inf, "exact", "The largest coordinate's place is sent without noise."),
    Row("neisse", "release-bare", True, inf, "exact",
        "The secret is folded to 32 bits by exclusive or; a secret of two equal halves folds to zero: a constant mask.",
        PROJECTS["flower"] + "issues/7522"),
    Row("rhone", "release", True, gaussian(2e6), "lower",
        "What the clip cuts off is added to the next message after its clip."),
    # functions: sound
    Row("aire", "release", False, gaussian(1.0), "exact", "Gaussian mechanism, 2C over 2C."),
    Row("alma", "release", False, gaussian(1.0), "exact",
        "Each layer clipped, noise for the root of their number.", inputs="layers"),
    Row("arno", "release", False, gaussian(0.5), "exact", "Gaussian mechanism, multiplier 2."),
    Row("dart", "release", False, gaussian(0.25), "exact", "Gaussian mechanism stated by its variance."),
    Row("drau", "release-bare", False, gaussian(1.0), "exact",
        "A generator per round from the operating system's entropy."),
    Row("elbe", "release", False, gaussian(1.0), "exact",
        "One clip over all layers, a seed for each.", inputs="layers"),
    Row("enns", "release-torch", False, gaussian(1.0), "exact", "Gaussian mechanism in torch."),
    Row("iller", "release", False, gaussian(1.0), "upper", "The places are chosen without the data."),
    Row("isere", "release-bare", False, gaussian(1.0), "exact", "numpy's global generator, never seeded."),
    Row("lahn", "release", False, 1.0, "exact", "Laplace mechanism with an L1 clip."),
    Row("leine", "release", False, gaussian(1.0), "upper", "The sum is rounded, after the noise."),
    Row("loire", "release", False, 2.0, "exact", "Two-sided geometric noise on an L1-bounded grid."),
    Row("maas", "release", False, gaussian(2 * sqrt(22) / 4), "exact",
        "Tree of four updates, all of one client: nodes of 1, 2, 1 and 4 updates, so mu = 2C sqrt(22) / 4C."),
    Row("medway", "release", False, gaussian(sqrt(2)), "exact", "Momentum of what was sent, two calls."),
    Row("minho", "release", False, 0.0, "exact", "A fresh mask, uniform over the ring, in each call."),
    Row("mulde", "release", False, 8.0, "exact", "Randomised response, the budget shared over coordinates."),
    Row("neckar", "release", False, 1.0, "upper",
        "The exponential mechanism by Gumbel noise: scores in [0, 1], scale 2 / epsilon."),
    Row("oder", "release-bare", False, gaussian(1.0), "exact",
        "Box-Muller from the operating system's bytes; it cannot be seeded."),
    Row("oise", "release", False, skellam(128, 128 * sqrt(1000), 128**2), "upper",
        "Skellam noise on an integer grid (figure for up to 1,000 coordinates)."),
    Row("orne", "release", False, 3.0, "exact",
        "A random unit vector in the update's half of the sphere, or in the other: density ratio e^3."),
    Row("ouse", "release", False, gaussian(1.0), "upper", "Rounding and a range after the noise."),
    Row("piave", "release", False, gaussian(0.5), "upper", "Signs after the noise."),
    Row("rance", "release", False, gaussian(sqrt(2)), "upper",
        "The rounding error carried over is a function of noisy values."),
    Row("regen", "release", False, gaussian(sqrt(2)), "upper",
        "The remainder is added before the clip: each call is within C of zero whatever came before, and a run of two "
        "calls composes two Gaussians."),
    Row("ruhr", "release", False, gaussian(0.1), "exact", "Gaussian mechanism with much noise."),
    # Flower mods
    Row("saale", "mod", True, inf, "exact", "The noise is seeded by the client's number."),
    Row("saar", "mod", True, inf, "exact", "Arrays with one axis (biases) get no noise."),
    Row("sado", "mod", True, inf, "exact", "A metric gives the factor of the clip, so the update's norm."),
    Row("salzach", "mod", True, gaussian(1 / sqrt(2 * log(1.25e5)) * 2), "lower",
        "LocalDpMod with the clipping norm as sensitivity: two updates are 2C apart; metrics pass as they are."),
    Row("sarthe", "mod", True, gaussian(2e4 / sqrt(2 * log(1.25e5))), "lower",
        "LocalDpMod with a sensitivity far below the clipping norm: the mod does not tie the two."),
    Row("seine", "mod", True, inf, "exact",
        "LocalDpMod divides by the update's norm: a zero update ends in an error and no message.",
        PROJECTS["flower"] + "pull/7631"),
    Row("sieg", "mod", True, gaussian(sqrt(10)), "exact",
        "Noise for the sum of ten clients, claimed for each message that the server reads.",
        PROJECTS["flower"] + "issues/1892"),
    Row("somme", "mod", True, gaussian(sqrt(2)), "lower",
        "Each parameter is clipped alone, the noise is for one clip (figure for two arrays).",
        "https://github.com/fedbiomed/fedbiomed/issues/1443"),
    Row("spey", "mod", True, inf, "exact", "A generator with a seed in the code: after each start the same noise."),
    Row("tagus", "mod", False, gaussian(1.0), "exact", "Gaussian mechanism over all arrays."),
    Row("tamar", "mod", False, gaussian(1 / sqrt(2 * log(1.25e5))), "exact",
        "LocalDpMod with twice the clipping norm; a zero or non-finite update is made harmless first."),
    Row("tay", "mod", False, gaussian(1.0) + 1.0, "upper",
        "Gaussian mechanism, and a metric in [0, 1] with Laplace noise of scale 1."),
    Row("tees", "mod", False, 2.0, "exact", "Laplace mechanism with an L1 clip over all arrays."),
    # strategies
    Row("tweed", "strategy", True, inf, "exact", "The clip is the raw median of the clients' norms, and is published."),
    Row("traun", "strategy", True, gaussian(10.0), "lower",
        "The noise is for the mean of 100 clients, the mean is over those who answered (figure for ten)."),
    Row("trent", "strategy", True, gaussian(2.0), "lower",
        "Weights follow the clients' own counts, the noise is for equal ones: one client's weight tends to 1 (figure "
        "for two clients)."),
    Row("tyne", "strategy", True, gaussian(2.0), "lower",
        "The mean is clipped, not the clients, and the noise is for one client of the mean (figure for two clients).",
        "https://github.com/raptor7197/caamas/issues/36"),
    Row("unstrut", "strategy", True, inf, "exact", "The clients' metrics are averaged and published bare."),
    Row("ure", "old-strategy", True, inf, "exact", "A median without noise is a function of the data."),
    Row("vah", "old-strategy", True, gaussian(sqrt(2)), "lower",
        "Each array is clipped alone, the noise is for one clip (figure for two arrays)."),
    Row("vecht", "old-strategy", True, inf, "exact", "The noise is kept and added again in later rounds."),
    Row("vienne", "strategy", True, gaussian(4.0), "lower",
        "Flower's wrapper around FedAvg: weights follow the clients' counts and metrics pass (figure: one client has a "
        "fifth of all examples instead of a tenth)."),
    Row("vltava", "strategy", False, gaussian(1.0), "exact",
        "Noisy sum over a public number of clients, however many answer."),
    Row("warta", "old-strategy", False, gaussian(1.0), "exact", "The same in the older form."),
    Row("wear", "strategy", False, gaussian(sqrt(1.25)), "exact",
        "The clip follows a noisy count: mean of mu 1 and count of mu 1/2 (Andrew et al. 2021)."),
    # client apps
    Row("weser", "client-app", True, inf, "exact", "The training loss is sent bare."),
    Row("wey", "numpy-app", True, inf, "exact", "The count of positive rows is sent bare."),
    Row("wye", "client-app", True, inf, "exact",
        "The running mean and variance of BatchNorm are sent without clip or noise."),
    Row("yare", "client-app", True, gaussian(2 / (2 * exp(-10))), "lower",
        "Full noise in the first round alone: later its standard deviation is e^-10 of it."),
    Row("murg", "numpy-app", True, inf, "exact", "The accuracy on the client's rows is sent bare."),
    Row("yonne", "client-app", False, gaussian(1.0), "exact", "Gaussian mechanism, no metrics."),
    Row("avon", "numpy-app", False, gaussian(1.0), "exact", "Gaussian mechanism, a constant count."),
    # training loops
    Row("allier", "loop", True, gaussian(sqrt(2)), "exact",
        "Fixed batches priced as Poisson: every step is seen, a row is in one step of each epoch with certainty.",
        PROJECTS["opacus"] + "issues/80", inputs="dataset"),
    Row("ardeche", "loop", True, narrower(128, 2.0), "lower",
        "The expected batch is the floor of rate times count: 2 for 8 rows, 1 for 7, so the noise of 128 weights has "
        "half the standard deviation.", PROJECTS["opacus"] + "issues/571", inputs="dataset"),
    Row("cam", "loop", True, gaussian(1.0), "lower", "Twelve of sixteen steps are not accounted.", inputs="dataset"),
    Row("dee", "loop", True, gaussian(1.0), "lower", "A new accountant in each of four stages.", inputs="dataset"),
    Row("esk", "loop", True, gaussian(sqrt(3) / 2), "exact",
        "Three models of one data set, one of three accounts is reported.", inputs="dataset"),
    Row("inn", "loop", True, inf, "exact", "The training loss of each step is returned.", inputs="dataset"),
    Row("gave", "loop", True, gaussian(32.0), "lower",
        "The batch's mean gradient is clipped, not each row's; the noise is for one row of the mean."),
    Row("guadiana", "loop", True, gaussian(4.0), "lower", "Noise in the first step alone."),
    Row("leda", "loop", True, gaussian(2.0), "lower",
        "Four workers divide the standard deviation by four: the sum has half of what it needs."),
    Row("lot", "loop", True, inf, "exact", "The gradient of a second loss is added without clip or noise."),
    Row("nene", "loop", True, narrower(128, 2.0, 1 - 0.75**4, 4), "lower",
        "The noisy sum is divided by the size of the random batch: with two rows a quarter of the steps has half the "
        "noise, with one row none."),
    Row("nith", "loop", True, gaussian(10.0), "lower",
        "Rows are clipped to a default of 10, the noise is for a clip of 1.", PROJECTS["opacus"] + "pull/664"),
    Row("po", "loop", True, gaussian(2.5), "lower",
        "The sum of clipped gradients is not cleared: a row is in step t up to t times, so 10 times in the weights, "
        "against noise of 2 in each of four steps.", PROJECTS["opacus"] + "pull/203"),
    Row("isel", "loop", True, inf, "exact",
        "Four workers draw their noise from one seed: the difference of two messages has none."),
    Row("kander", "loop", True, inf, "exact",
        "The last incomplete batch is dropped, so the number of published steps tells the number of rows: four for 16, "
        "three for 15."),
    Row("linth", "loop", True, inf, "exact",
        "The weight decay follows the mean of the labels, without bound and without noise."),
    Row("thames", "loop", False, sampled(0.25, 2.0, 16), "upper", "Opacus with Poisson batches.", inputs="dataset"),
    Row("tiber", "loop", False, sampled(0.25, 2.0, 8), "upper", "Opacus in small physical batches.", inputs="dataset"),
    Row("vilaine", "loop", False, sampled(0.25, 2.0, 8), "upper", "Opacus with ghost clipping.", inputs="dataset"),
    Row("wupper", "loop", False, gaussian(sqrt(2) / 4), "upper",
        "Fixed batches, priced without amplification: two Gaussians.", inputs="dataset"),
    Row("saane", "loop", False, gaussian(1.0), "upper", "Full-batch descent, sixteen Gaussians."),
    Row("salat", "loop", False, gaussian(1.0), "upper", "Four workers, each with half the noise."),
    Row("sarre", "loop", False, sampled(0.25, 2.0, 8), "upper",
        "Poisson batches and a fixed divisor; an empty batch gets its noise."),
    # filters
    Row("allen", "filter", True, inf, "exact",
        "Sparse vector technique: entries above the line that are not chosen pass without noise.",
        "https://github.com/NVIDIA/NVFlare/issues/343"),
    Row("bann", "filter", True, inf, "exact",
        "Noise inside the clip: large entries come out at the edge of the range whatever the noise is.",
        "https://github.com/NVIDIA/NVFlare/issues/462"),
    Row("cocker", "filter", True, inf, "exact", "The norm before the clip is sent in the result's facts."),
    Row("dane", "filter", False, gaussian(1.0), "exact", "Gaussian mechanism over all arrays."),
    Row("eder", "filter", False, 6.0, "exact", "Randomised response of the signs, the budget shared."),
    # kept back from those who wrote the check until 2026-11-25; as it was then, it found 9 of these 12 faulty ones
    Row("acer", "release", True, gaussian(5.0), "exact",
        "The clipped step is multiplied by five before the noise for one."),
    Row("alnus", "release", True, gaussian(sqrt(2)), "lower",
        "Clipped by the root mean square: the L2 norm may be the root of the dimension times it (two coordinates)."),
    Row("betula", "release", True, inf, "exact",
        "Every second call has the negative of the first one's noise: the sum of two messages has none."),
    Row("carya", "loop", True, inf, "exact",
        "An empty random batch makes no step and no noise: with one row the model moves sometimes, with none never."),
    Row("cedrus", "mod", True, inf, "exact", "Whether a message or an error is sent depends on the update's norm."),
    Row("corylus", "old-strategy", True, gaussian(0.335 / 0.2), "lower",
        "Outliers are dropped by the raw median and the mean is over those kept: one client drops four others."),
    Row("fagus", "filter", True, inf, "exact",
        "Sixteen noises made in advance: in eight calls two share one with chance 0.88."),
    Row("fraxinus", "release", True, inf, "exact",
        "Noise cut at two standard deviations: a seventh of one side's outputs is out of the other's reach."),
    Row("ginkgo", "release", True, inf, "exact",
        "Binomial noise of sixteen coins against a shift of eight steps: supports differ."),
    Row("ilex", "release", True, inf, "exact",
        "The chance to be kept follows the entry's size: a zero entry is never kept."),
    Row("juglans", "loop", True, inf, "exact", "The clip looks at the norm of the last two columns alone."),
    Row("larix", "client-app", True, inf, "exact", "Training stops by the raw loss and the number of epochs is sent."),
    Row("malus", "release-torch-bare", False, gaussian(1.0), "exact",
        "Gaussian mechanism in torch, seeded from the operating system."),
    Row("morus", "release", False, 1.5, "exact", "One coordinate, one biased sign (Duchi et al. 2018)."),
    Row("picea", "loop", False, gaussian(1.0), "upper", "Momentum and rates after the noise: sixteen Gaussians."),
    Row("pinus", "mod", False, gaussian(0.5), "upper", "16-bit floats after the noise."),
    Row("populus", "old-strategy", False, 2.0, "exact", "Laplace mechanism on a sum of L1-clipped updates."),
    Row("prunus", "filter", False, 3.0, "exact", "Two-sided geometric noise on an L1-bounded grid."),
    # written without a look at how the check works, and run once, on 2026-11-27
    Row("agger", "client-app", True, inf, "exact",
        "Means and variances of batch normalisation are sent with the model, and have no noise."),
    Row("birs", "strategy", True, inf, "exact",
        "The next clip norm follows the exact share of short updates, and all clients are told it."),
    Row("doller", "loop", True, inf, "exact",
        "A warm restart makes a new optimiser: its epoch is neither clipped nor noised.", inputs="dataset"),
    Row("ecker", "mod", True, inf, "exact", "Arrays of one axis get no noise."),
    Row("fils", "release", True, gaussian(0.95), "lower",
        "Rounding to a grid after the clip doubles the norm of an update of four equal numbers (the figure allows for "
        "the rounding of the noise)."),
    Row("gurk", "old-strategy", True, inf, "exact",
        "The average of the clients' losses is published beside the model."),
    Row("isen", "strategy", False, gaussian(sqrt(0.5)), "upper",
        "Adaptive clipping of Andrew et al.: centred bits, noise, constant divisors; one client more or less."),
    Row("jagst", "loop", False, gaussian(sqrt(12) / 3.5), "upper",
        "A falling clip norm, noise in proportion, and the average of the models."),
    # a client more or less, by those who wrote that part of the check
    Row("quercus", "strategy", True, narrower(256, 2.0), "lower",
        "The noisy sum is divided by the number of replies: with two replies the noise is half that with one."),
    Row("salix", "old-strategy", False, gaussian(1.0), "exact",
        "Whoever replies is added up, with noise, over a constant."),
    Row("taxus", "strategy", True, gaussian(2.0), "lower",
        "A mean over replies moves by 2 C / n where one is missing, the noise is for C / n."),
    Row("tilia", "old-strategy", True, inf, "exact",
        "Clip norm and noise follow the longest update: among updates of zero one client decides about the noise."),
    # beside allen: what is not chosen is zero, not bare
    Row("sorbus", "filter", False, 2.0, "upper",
        "Report noisy max (Dwork and Roth 2014, 3.3), epsilon 1, and Laplace noise on the entry, epsilon 1."),
    # reduced from public code of which the check said the wrong thing, written anew
    Row("mincio", "release-torch-bare", False, gaussian(1.0), "exact",
        "Gaussian mechanism in 32-bit floats. A number that is none switches the clip off, and long ones beside it "
        "swallow the small noise: a doubt about broken updates, and nothing for others."),
    Row("oglio", "release", True, 4 + log1p(-DELTA * 2**16), "lower",
        "Clipped by the L2 norm, Laplace noise for the L1 norm, claimed at a delta above zero (figure: sixteen equal "
        "numbers, where all sixteen losses are 1/4 with chance 2^-16)."),
    Row("brembo", "loop", True, gaussian(20.0), "lower",
        "An engine that is imported at run time gets a twentieth of the noise.", inputs="dataset"),
    # by somebody who had not read the check, after it was mended for public code
    Row("auk", "release", True, inf, "exact",
        "The clip, which is also the scale of the noise, follows raw lengths of earlier updates."),
    Row("bittern", "release", True, gaussian(sqrt(22) / 2), "lower",
        "The tree's noise is priced as if a step were in one node: with all four steps changed mu is sqrt(22)/2."),
    Row("crake", "release", True, gaussian(sqrt(2)), "lower",
        "Each layer has noise for its share of the clip alone (figure for two layers).", inputs="layers"),
    Row("dunlin", "release", True, gaussian(1.59), "lower",
        "Rounding to the nearest after the clip makes a dense update longer: 256 numbers of 0.625 grid steps become 1 "
        "each, of length 16 for 10 (the figure allows for the rounding of the noise)."),
    Row("egret", "release", True, inf, "exact",
        "The head leaves without noise in the message's checkpoint.", inputs="layers"),
    Row("fulmar", "loop", True, 30.0, "lower",
        "The batch's mean gradient is clipped, not each row's, and the noise is for one row's share.",
        inputs="dataset"),
    Row("gannet", "loop", True, inf, "exact", "The number of steps follows the raw loss."),
    Row("harrier", "strategy", True, inf, "exact",
        "Replies are weighted by their counts, the noise is for equal weights; the counts weigh without noise."),
    Row("ibis", "mod", True, inf, "exact", "One array has neither clip nor noise."),
    Row("jacana", "release", True, gaussian(sqrt(1 / 4 + 4)), "exact",
        "The bit about the clip is not paid for: noise of 0.5 for a bit."),
    Row("knot", "release", True, inf, "exact",
        "48 noises are used again and again: two of 32 messages have the same one, up to its sign."),
    Row("limpkin", "release", True, inf, "exact", "Which entries are largest is told without noise."),
    Row("merlin", "release", False, 2.383, "upper", "Tree noise paid for every node, momentum after it."),
    Row("noddy", "release", False, gaussian(1.0), "exact", "Shares of the clip, noise for the whole.", inputs="layers"),
    Row("osprey", "release", False, gaussian(sqrt(0.5)), "exact",
        "Bit and update are both paid for; bounds on the clip are public."),
    Row("plover", "loop", False, 1.699, "upper",
        "Rows' whole gradients are clipped, three full batches of a fixed number of rows; a module is returned.",
        inputs="dataset"),
    Row("quail", "loop", False, 2.818, "upper",
        "A Poisson sample by hand, divided by the expected size; all steps are published."),
    Row("ruff", "release", False, 1.994, "upper",
        "Rounding towards zero does not lengthen; noise on whole numbers, modulo a power of two."),
    Row("snipe", "release", False, gaussian(1.0), "exact",
        "The head is not sent; a counter of rounds is no data; the message has slots.", inputs="layers"),
    Row("teal", "strategy", False, gaussian(1.0), "exact",
        "A noisy sum over a public number of clients, then momentum."),
]  # fmt: skip

#: Of every faulty program, in a word, what its fault is.
KINDS = {
    "no noise": "ems exe fulda garonne havel moldau naab nahe saar sado tweed unstrut ure weser wey wye "
    "murg inn guadiana linth allen cocker agger birs doller ecker gurk egret ibis limpkin",
    "sensitivity": "aisne amstel glomma kemi marne rhone somme trent tyne vah vienne gave lot nith po acer "
    "alnus corylus juglans fils taxus oglio bittern dunlin fulmar harrier",
    "too little noise": "brenta cher clyde salzach sarthe sieg traun yare leda brembo crake jacana",
    "known or repeated noise": "douro ebro eden isar lune mersey neisse saale spey vecht isel betula fagus knot",
    "noise that follows the data": "aare derwent mosel ardeche nene bann ilex quercus tilia auk",
    "noise that ends, or a grid": "lech lippe fraxinus ginkgo",
    "whether something is sent": "seine kander carya cedrus larix gannet",
    "account": "allier cam dee esk",
}
