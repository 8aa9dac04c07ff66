"""The gallery's programs run as their forms say, and what is known of each is complete and fits its claim."""

import importlib.util
import math
import pathlib
import re
import sys

import numpy as np
import pytest
from checking.gallery.patches import file_of, programs
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import fitins_to_recorddict
from flwr.supercore.task_identity import TaskIdentity
from opacus.accountants import RDPAccountant
from scipy.stats import norm, skellam

from fedpriv.checking.reading import played

MANIFEST = pathlib.Path(__file__).parent / "gallery" / "manifest.py"


def load(name):
    """A fresh module of the gallery; it is not kept among the imported ones."""
    file = MANIFEST if name == "manifest" else file_of(name)
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


manifest = load("manifest")
ROWS = manifest.ROWS
SHAPES = [(4, 3), (3,), (2, 2)]


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Flower's messages name the task of this process; before and after this file there is none."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def example(inputs):
    generator = np.random.default_rng(3)
    if inputs == "vector":
        return generator.standard_normal(12)
    return [generator.standard_normal(shape) for shape in SHAPES]


def context(part=0):
    return Context(1, 11, {"partition-id": part}, RecordDict(), {})


def question(arrays):
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
    return Message(content=content, dst_node_id=11, message_type="train")


def record(arrays):
    return ArrayRecord({f"a{place}": Array(np.asarray(array)) for place, array in enumerate(arrays)})


def flat(values):
    return np.concatenate([np.asarray(value, dtype=np.float64).ravel() for value in values])


def play_release(module, row):
    update = example(row.inputs)
    if row.form == "release-torch-bare":
        import torch

        return [module.target(torch.as_tensor(update)).numpy()]
    if row.form == "release-torch":
        import torch

        return [module.target(torch.as_tensor(update), torch.Generator().manual_seed(1)).numpy()]
    arguments = () if row.form == "release-bare" else (np.random.default_rng(1),)
    return list(played("released", module.target(update, *arguments)).numbers.values())


def play_mod(module, row):
    start, moves = [np.zeros(shape) for shape in SHAPES], example("layers")

    def app(message, _):
        content = {"arrays": record(moves), "metrics": MetricRecord({"num-examples": 5, "train_loss": 0.5})}
        return Message(content=RecordDict(content), reply_to=message)

    reply = module.target(question(record(start)), context(), app)
    assert not reply.has_error()
    return next(iter(reply.content.array_records.values())).to_numpy_ndarrays()


def play_strategy(module, row):
    generator = np.random.default_rng(5)
    updates = [[generator.standard_normal(shape) for shape in SHAPES] for _ in range(10)]
    if row.form == "old-strategy":
        results = [(None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), 5, {})) for arrays in updates]
        merged, _ = module.target.aggregate_fit(1, results, [])
        return parameters_to_ndarrays(merged)

    class Grid:
        def get_node_ids(self):
            return range(10)

    target = module.target
    config = ConfigRecord()
    messages = list(target.configure_train(1, record([np.zeros(shape) for shape in SHAPES]), config, Grid()))
    replies = []
    for message, arrays in zip(messages, updates, strict=True):
        metrics = MetricRecord({"num-examples": 5, "train_loss": 0.5})
        replies.append(Message(content=RecordDict({"arrays": record(arrays), "metrics": metrics}), reply_to=message))
    merged, _ = target.aggregate_train(1, replies)
    return merged.to_numpy_ndarrays()


def play_app(module, row):
    message = question(module.initial_arrays)
    if row.form == "numpy-app":
        start = ndarrays_to_parameters(module.initial_arrays.to_numpy_ndarrays())
        message.content = fitins_to_recorddict(FitIns(start, {}), keep_input=True)
    reply = module.target(message, context())
    assert not reply.has_error()
    return next(iter(reply.content.array_records.values())).to_numpy_ndarrays()


def play_loop(module, row):
    answer = module.target()
    published = answer[0] if isinstance(answer, tuple) else answer
    if isinstance(answer, tuple):
        assert 0 < answer[-1] <= module.CLAIM["epsilon"]  # the author's own figure, as reported by the program
    return list(played("published", published).numbers.values())


def play_filter(module, row):
    names = dict(zip("abc", example("layers"), strict=True))
    return list(module.target.process(module.DXO("WEIGHT_DIFF", names, {"steps": 3}), None, None).data.values())


PLAYS = {
    "release": play_release,
    "release-torch": play_release,
    "release-torch-bare": play_release,
    "release-bare": play_release,
    "mod": play_mod,
    "strategy": play_strategy,
    "old-strategy": play_strategy,
    "client-app": play_app,
    "numpy-app": play_app,
    "loop": play_loop,
    "filter": play_filter,
}
FORMS = set(PLAYS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
@pytest.mark.rotates(3)
def test_a_program_runs_once_as_its_form_says(row):
    values = flat(PLAYS[row.form](load(row.file), row))
    assert values.size > 0
    assert np.isfinite(values).all()


def test_every_program_has_its_row_and_every_row_its_program():
    assert sorted(row.file for row in ROWS) == sorted(programs())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.file)
def test_a_row_is_complete_and_fits_the_claim(row):
    claim = load(row.file).CLAIM
    assert row.form in FORMS
    assert row.bound in ("exact", "lower" if row.faulty else "upper")
    assert len(row.words) > 15
    assert row.source == "own" or re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", row.source)
    assert claim["scope"] in ("call", "run")
    assert claim["scope"] == "call" or claim["calls"] >= 1
    assert claim["adjacency"] in ("replace-one", "zero-out", "add-or-remove-one")
    assert not math.isnan(row.loss)
    if row.faulty:
        assert row.loss > claim["epsilon"]
    else:
        assert row.loss <= claim["epsilon"]


def test_the_programs_are_strangers_and_do_not_betray_themselves():
    for row in ROWS:
        text = programs()[row.file]
        assert "fedpriv" not in text
        assert "#" not in text
        assert not re.search(r"\b(fault|wrong|bug|leak|sound|bare|correct)", text, re.IGNORECASE), row.file


def test_there_are_enough_of_each():
    assert sum(row.faulty for row in ROWS) >= 32
    assert sum(not row.faulty for row in ROWS) >= 24
    assert len({row.source for row in ROWS if row.source != "own"}) >= 6
    for form in FORMS:
        both = {row.faulty for row in ROWS if row.form == form}
        assert both == {True, False} or form == "release-torch-bare", form


def hockey_stick(first, second, epsilon):
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
def test_the_gaussian_figure_is_that_of_a_sum_over_a_grid(mu):
    points = np.linspace(-12, 12 + mu, 200_001)
    first, second = norm.pdf(points - mu), norm.pdf(points)
    step = points[1] - points[0]
    assert hockey_stick(first * step, second * step, manifest.gaussian(mu)) == pytest.approx(1e-5, rel=1e-3)


def test_the_skellam_figure_is_above_the_exact_law_of_one_coordinate_and_near_it():
    points = np.arange(-3000, 3001)
    first, second = skellam.pmf(points - 128, 8192, 8192), skellam.pmf(points, 8192, 8192)
    figure = manifest.skellam(128, 128, 128**2)
    assert hockey_stick(first, second, figure) < 1e-5 < hockey_stick(first, second, 0.9 * figure)


def test_the_sampled_figure_is_above_the_exact_law_of_one_step_and_near_the_accountant_of_many():
    points = np.linspace(-20, 20, 200_001)
    step, plain = points[1] - points[0], norm.pdf(points, scale=2)
    mixed = 0.75 * plain + 0.25 * norm.pdf(points - 1, scale=2)
    figure = manifest.sampled(0.25, 2.0, 1)
    assert (
        max(hockey_stick(*pair, figure) for pair in ((mixed * step, plain * step), (plain * step, mixed * step))) < 1e-5
    )
    accountant = RDPAccountant()
    accountant.history = [(2.0, 0.25, 16)]
    assert manifest.sampled(0.25, 2.0, 16) == pytest.approx(accountant.get_epsilon(delta=1e-5), rel=0.02)


def test_the_figure_for_narrower_noise_is_reached_by_a_test_of_length():
    generator = np.random.default_rng(8)
    figure = manifest.narrower(4, 2.0)
    wide = np.square(generator.standard_normal((200_000, 4))).sum(axis=1)
    lines = np.linspace(0.05, 4.0, 80)
    seen, chance = [(wide / 4 < line).mean() for line in lines], [(wide < line).mean() for line in lines]
    best = max(math.log(a / b) for a, b in zip(seen, chance, strict=True) if b > 1e-3)
    assert best == pytest.approx(figure, abs=0.25)
    assert manifest.narrower(4, 2.0, 0.5, 2) == pytest.approx(figure - math.log(4), abs=0.05)
