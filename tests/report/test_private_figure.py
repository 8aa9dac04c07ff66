"""The table and the picture at the beginning of README.md are those of the committed runs and of the leaderboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from picture_sets import write_mnist

from benchmarks import bench_backbones, choose_pictures
from fedpriv.config.compose import compose
from fedpriv.data import maps
from fedpriv.server.optimizers import LONGEST_STEP, NOISE_LENGTH
from tools import private_runs
from tools.private_figure import ROOT, Row, draw, interval, measured, ranked, rows
from tools.private_runs import EPSILONS, FIGURES, read

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("begins", "row"),
    [
        ("`fedonce`, stroke map, upright images |", measured("strokes")),
        ("`fedonce`, upright images, no stroke map |", measured("upright")),
        ("`fedonce`, no knowledge of digits", measured("nothing of digits")),
        ("best without public features, leaderboard |", ranked(None)),
        ("best idea of the five papers, leaderboard |", ranked("paper")),
    ],
)
def test_the_table_is_that_of_the_measured_numbers(begins: str, row: Row) -> None:
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {begins}")]
    shown = [(float(mean), float(half)) for mean, half in re.findall(r"([\d.]+) ± ([\d.]+)", line)]
    assert shown == [(pytest.approx(mean, abs=0.051), pytest.approx(half, abs=0.051)) for mean, half in row.values()]


def test_every_row_has_its_seeds_and_kept_its_promise() -> None:
    lines = read(FIGURES)
    for row in {line["row"] for line in lines}:
        for epsilon in EPSILONS:
            mine = [line for line in lines if (line["row"], line["epsilon"]) == (row, epsilon)]
            assert len({line["seed"] for line in mine}) == len(mine) == 16
            assert all(line["verified"] <= epsilon * (1 + 1e-9) for line in mine)
    mean, _ = interval([line["accuracy"] for line in lines if (line["row"], line["epsilon"]) == ("digits", 8)])
    assert f"experiment=private_digits hydra.run.dir=outputs/private   # {mean:.0f} % at epsilon 8" in README


FEATURES = (ROOT / "docs" / "results" / "features.md").read_text()
#: A line of the table of choices -> its variants.
CHANGED = {
    "nothing": ["as it is"],
    "tau 24; 96": ["tau 24", "tau 96"],
    "rho 0.25; 1": ["rho 0.25", "rho 1.0"],
    "exponent 0; 1": ["exponent 0.0", "exponent 1.0"],
    "ridge 0.1; 1": ["RIDGE 0.1", "RIDGE 1.0"],
    "size down 4.5/28; 6.5/28": ["TALL 4.5/28", "TALL 6.5/28"],
    "size across 3/28; 5/28": ["WIDE 3.0/28", "WIDE 5.0/28"],
    "strokes, at most 2; 4": ["MOST_STROKES 2", "MOST_STROKES 4"],
    "pen 0.7; 1.4 times as wide": ["PEN 0.7", "PEN 1.4"],
    "writings half; twice as different": ["writing 0.5", "writing 2"],
}


def test_the_table_of_choices_is_that_of_the_measured_numbers() -> None:
    lines = private_runs.read(private_runs.CHOICES)
    assert (
        {line["row"] for line in lines}
        == set(private_runs.VARIANTS)
        == {one for row in CHANGED.values() for one in row}
    )

    def of(row: str, epsilon: float) -> list[float]:
        found = {line["seed"]: line["accuracy"] for line in lines if (line["row"], line["epsilon"]) == (row, epsilon)}
        assert sorted(found) == [100, 101, 102, 103]
        return [found[seed] for seed in sorted(found)]

    for begins, variants in CHANGED.items():
        (line,) = [line for line in FEATURES.splitlines() if line.startswith(f"| {begins} |")]
        shown = [(float(mean), float(half)) for mean, half in re.findall(r"([\d.]+) ± ([\d.]+)", line)]
        known = [interval(of(row, epsilon)) for epsilon in private_runs.CHOICE_EPSILONS for row in variants]
        assert shown == [(pytest.approx(mean, abs=0.051), pytest.approx(half, abs=0.051)) for mean, half in known]
    apart = {}  # the pairs whose difference is not within its interval
    for row in private_runs.VARIANTS:
        for epsilon in private_runs.CHOICE_EPSILONS:
            pairs = zip(of(row, epsilon), of("as it is", epsilon), strict=True)
            mean, half = interval([one - other for one, other in pairs])
            if abs(mean) > half:
                apart[row, epsilon] = (mean, half)
    said = {"tau 24": (8, "-0.43 ± 0.14"), "exponent 0.0": (8, "-0.27 ± 0.19"), "rho 1.0": (8, "0.04 ± 0.02")}
    said |= {"tau 96": (1, "-3.8 ± 0.5"), "PEN 1.4": (1, "-2.7 ± 2.5")}
    assert set(apart) == {(row, epsilon) for row, (epsilon, _) in said.items()}
    for row, (epsilon, words) in said.items():
        digits = len(words.partition(" ")[0].partition(".")[2])
        assert " ± ".join(f"{number:.{digits}f}" for number in apart[row, epsilon]) == words and words in FEATURES


def test_the_page_of_methods_and_features_have_the_digits_measured() -> None:
    eight, four, two, one = (measured("digits")[epsilon] for epsilon in (8, 4, 2, 1))
    assert "has " + ", ".join(f"{mean:.1f} ± {half:.1f}" for mean, half in (one, two, four)) in FEATURES
    row = f"{eight[0]:.1f} ± {eight[1]:.1f}; at epsilon 4, 2, 1: {four[0]:.1f}, {two[0]:.1f}, {one[0]:.1f}"
    assert row in (ROOT / "docs" / "fedonce.md").read_text()


@pytest.mark.parametrize("what", ["figures", "choices"])
def test_the_runs_are_made_once_each(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of docs/results/features.md, on 48 small pictures."""
    write_mnist(tmp_path / "data", 48, 16, (8, 8))
    options = ("dataset=mnist", "dataset.root={data}", "model=linear", "num_rounds=1", "num_clients=4")
    small = (*options, "clients_per_round=4", "local.batch_size=4", f"dataset.cache={tmp_path / 'cache'}")
    small += ("strategy=fedldp", "dataset.auxiliary=0", "partition=iid")
    variants = {name: private_runs.VARIANTS[name] for name in ("as it is", "RIDGE 0.1")}
    for name, value in {
        "MNIST": small,
        "ROWS": {"upright": small},
        "VARIANTS": variants,
        "HELD_OUT": 20,
        "EPSILONS": (8,),
        "CHOICE_EPSILONS": (8,),
        "FIGURES": tmp_path / "figures.jsonl",
        "CHOICES": tmp_path / "choices.jsonl",
    }.items():
        monkeypatch.setattr(private_runs, name, value)
    before = maps.STROKE_RIDGE
    for _ in range(2):
        private_runs.main([what, str(tmp_path / "data"), "1"])
    rows = private_runs.read(tmp_path / f"{what}.jsonl")
    assert [row["row"] for row in rows] == (["upright"] if what == "figures" else list(variants))
    assert all(row["verified"] <= 8 and row["seed"] == 100 for row in rows) and before == maps.STROKE_RIDGE


def test_an_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5 and half == pytest.approx(3.182446 * (5 / 3) ** 0.5 / 2, rel=1e-6)


def test_the_picture_is_drawn_from_the_results(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw(rows(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    points = re.findall(r"[ML] [\d.]+ [\d.]+", (tmp_path / "a.svg").read_text())
    committed = re.findall(r"[ML] [\d.]+ [\d.]+", (ROOT / "docs" / "figures" / "private_mnist.svg").read_text())
    assert points == committed, "the committed picture is stale: python -m tools.private_figure draws it"


def test_the_experiments_of_cifar_are_what_the_rule_chose() -> None:
    """Of the committed runs on held-out pictures; and the server's constants are those of the rule's candidates."""
    assert LONGEST_STEP == choose_pictures.LONGEST
    for trust, experiment in (("sum", "private_cifar_sum"), ("server", "private_cifar_trusted")):
        dims, exponent, step, rounds = choose_pictures.chosen()[trust]
        found = compose([f"experiment={experiment}"])
        assert (found.features.dims, found.features.exponent, found.num_rounds) == (dims, exponent, rounds)
        options = found.strategy.options
        assert (options.step if trust == "sum" else options.learning_rate) == "noise"
        assert step == f"noise {NOISE_LENGTH:g}" + (" plain" if trust == "server" else "")
        assert (options.optimizer, found.num_clients) == ("sgd", choose_pictures.CLIENTS)


# --- commands beside figures -----------------------------------------------------------------------------

#: In a part of a page: an option that says which run it is, and a figure that a run gave.
OPTION = re.compile(
    r"`[^`]*?\b(experiment|strategy|features|model|partition|privacy|local|scale)(\.[a-z_.]+)?=[^`]*`"
    r"|^    (python -m fedpriv|fedpriv|\.venv/bin/fedpriv) .*=",
    re.M,
)
FIGURE = re.compile(r"\d ± \d|\d(\.\d+)? %")
CIFAR, MNIST = "experiment=private_cifar", "experiment=private_mnist"
ONCE, WEIGHTS, FEATURES_PAGE = "docs/fedonce.md", "docs/public_weights.md", "docs/features.md"
PLAIN, DIGITS = "experiment=private_mnist_plain", "experiment=private_digits"
#: Options of a page's rows.
ALL_TAKE_PART = "strategy.server.participation=balanced clients_per_round=1000"
TEN = "experiment=example_mnist num_clients=10 clients_per_round=10 local.batch_size=600 local.lr=1000"
PINK = "features.map=pink features.dims=599 features.exponent=0.4"


def of_mnist(row: str, epsilon: float, seeds: int) -> tuple[str, list[float]]:
    """Of docs/figures/private_runs.jsonl: options, and the accuracies of the first seeds."""
    lines = [line for line in read(FIGURES) if (line["row"], line["epsilon"]) == (row, epsilon)]
    return " ".join(private_runs.ROWS[row]), [line["accuracy"] for line in lines if line["seed"] < 100 + seeds]


def of_cifar(known: str, epsilon: float, seeds: int) -> tuple[str, list[float]]:
    """Of benchmarks/results/backbones.jsonl, where nobody is trusted."""
    options = (*bench_backbones.TRUST["nobody"], *bench_backbones.FEATURES[known][0], "features.mirror=true")
    wanted = {"trust": "nobody", "known": known, "epsilon": epsilon}
    lines = [line for line in read(bench_backbones.RESULTS) if wanted.items() <= line.items()]
    assert sorted(line["seed"] for line in lines) == list(range(seeds))
    return " ".join(options), [line["accuracy"] for line in lines]


def of_chosen(trust: str, epsilon: float, seeds: int) -> tuple[str, list[float]]:
    """Of the same file, the experiments whose options a rule chose."""
    wanted = {"trust": trust, "known": bench_backbones.CHOSEN_NAME, "epsilon": epsilon}
    lines = [line for line in read(bench_backbones.RESULTS) if wanted.items() <= line.items()]
    assert sorted(line["seed"] for line in lines) == list(range(seeds))
    return bench_backbones.CHOSEN[trust], [line["accuracy"] for line in lines]


#: (page, beginning of the part, its options, which of its figures, epsilon, record, its row, its seeds).
RECORDED = (
    ("README.md", f"    .venv/bin/fedpriv {DIGITS}", DIGITS, 0, 8, of_mnist, "digits", 16),
    *(("README.md", "| `fedonce`, no knowledge", PLAIN, n, 2**n, of_mnist, "nothing of digits", 16) for n in range(4)),
    *((ONCE, f"`{PLAIN}` knows", PLAIN, n, 2**n, of_mnist, "nothing of digits", 16) for n in range(4)),
    (ONCE, "| `experiment=private_mnist` |", MNIST, 0, 8, of_mnist, "strokes", 4),
    (ONCE, "| `features.map=none scale", f"{MNIST} features.map=none scale=small", 0, 8, of_mnist, "upright", 4),
    (ONCE, f"| digits (`{DIGITS}`", DIGITS, 0, 8, of_mnist, "digits", 16),
    ("README.md", "| CIFAR-10, `experiment=private_cifar`", CIFAR, 0, 8, of_cifar, "our network", 3),
    (WEIGHTS, "| all images of a client", CIFAR, 0, 8, of_cifar, "our network", 3),
    (FEATURES_PAGE, "`experiment=private_cifar` has", CIFAR, 0, 8, of_cifar, "our network", 3),
    *(
        (FEATURES_PAGE, f"| `{experiment}`", experiment, n, 2**n, of_chosen, trust, 3)
        for trust, experiment in bench_backbones.CHOSEN.items()
        for n in range(4)
    ),
)
#: Figures whose runs were not kept: (page, beginning of the part, the options that the page gives them).
NOT_KEPT = (
    ("README.md", "| accuracy in %, noise shared in a secure sum", "experiment=hospitals privacy.target_epsilon=1"),
    ("README.md", "| accuracy in %, each hospital", "experiment=hospitals strategy.client.form=local"),
    (
        FEATURES_PAGE,
        "| `experiment=example_mnist num_clients=10",
        TEN,
    ),
    (FEATURES_PAGE, "| `experiment=example_cifar`", "experiment=example_cifar"),
    (ONCE, "| `features.normalise=none`", f"{MNIST} features.normalise=none"),
    (
        ONCE,
        "| `strategy.server.participation=b",
        f"{MNIST} {ALL_TAKE_PART}",
    ),
    (ONCE, "| `strategy.client.mechanism=gaussian`", f"{MNIST} strategy.client.mechanism=gaussian"),
    (ONCE, "| `features=none", f"{MNIST} features=none features.map=none features.normalise=none"),
    (ONCE, "| Dirichlet 0.3", f"{MNIST} partition=dirichlet partition.alpha=0.3"),
    (ONCE, "| `experiment=private_mnist_sum`", "experiment=private_mnist_sum"),
    (ONCE, "| `experiment=private_mnist_trusted`", "experiment=private_mnist_trusted"),
    (ONCE, "If a sum may lack", "experiment=private_mnist_sum strategy.server.min_replies=900"),
    (
        FEATURES_PAGE,
        "The second command's test accuracy",
        "experiment=hospitals strategy=moments model=moments engine.trainer=auto num_rounds=1",
    ),
    ("docs/tables.md", "`strategy.client.recalibration` is how many", "experiment=hospitals dataset=practices"),
    ("docs/methods.md", "The paper's accuracies on MNIST", "experiment=agn_mnist_private scale=small"),
    (WEIGHTS, "| single images, epsilon 3", "experiment=example_cifar"),
    (
        WEIGHTS,
        "| the same without the map",
        f"experiment=example_cifar {PINK}",
    ),
    (WEIGHTS, "For single images, dimensions", f"{CIFAR} features.exponent=0.1 strategy.server.effective_dims=1000"),
)


def parts(page: str) -> list[str]:
    """Rows of tables, commands, and paragraphs in one line."""
    blocks = re.sub(r"\\\n\s+", "", (ROOT / page).read_text()).split("\n\n")
    rows = [(one.splitlines() if one.startswith(("|", "    ", "- ")) else [one.replace("\n", " ")]) for one in blocks]
    return [part for row in rows for part in row]


def part_of(page: str, begins: str) -> str:
    (part,) = [part for part in parts(page) if part.startswith(begins)]
    return part


def composed(options: str, epsilon: float) -> dict[str, object]:
    """What a run is, wherever its pictures lie."""
    where = ("dataset=image_folder", "dataset.root=x", "dataset.size=32") if CIFAR in options else ("dataset.root=x",)
    if "digits" in options:
        where = ()
    chosen = [option for option in options.split() if not option.startswith("dataset.root=")]
    return compose([*chosen, *where, f"privacy.target_epsilon={epsilon}"]).deciding()


@pytest.mark.parametrize("claim", RECORDED, ids=lambda claim: f"{claim[0]}-{claim[1][:30]}-{claim[3]}")
def test_a_command_beside_a_figure_is_the_one_that_gave_it(claim: tuple) -> None:  # type: ignore[type-arg]
    page, begins, options, place, epsilon, record, row, seeds = claim
    ran, accuracies = record(row, epsilon, seeds)
    part = part_of(page, begins)
    named = [word for word in options.split() if "=" in word]
    assert all(re.search(rf"{re.escape(word)}(?![\w.])", " ".join(parts(page))) for word in named)
    assert composed(options, epsilon) == composed(ran, epsilon)
    mean, half = interval(accuracies)
    exact = re.findall(r"([\d.]+) ± ([\d.]+)", part) or [(found, "") for found in re.findall(r"([\d.]+) %", part)]
    value, width = exact[place]
    assert float(value) == pytest.approx(mean, abs=0.51 if "." not in value else 0.051)
    assert not width or float(width) == pytest.approx(half, abs=0.051)


@pytest.mark.parametrize("claim", NOT_KEPT, ids=lambda claim: claim[1][:40])
def test_a_figure_whose_runs_were_not_kept_stands_beside_a_command(claim: tuple[str, str, str]) -> None:
    page, begins, options = claim
    assert FIGURE.search(part_of(page, begins))
    compose([*options.split(), *(() if "hospitals" in options else ("dataset.root=x",))])


def test_no_command_stands_beside_a_figure_unseen() -> None:
    """A new one belongs into RECORDED, with its runs, or into NOT_KEPT."""
    pages = ["README.md", *(f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md")))]
    known = [(claim[0], str(claim[1])) for claim in (*RECORDED, *NOT_KEPT)]
    found = [(page, part) for page in pages for part in parts(page) if OPTION.search(part) and FIGURE.search(part)]
    unseen = [(page, part[:80]) for page, part in found if not any(page == p and part.startswith(b) for p, b in known)]
    assert len(found) >= 24 and unseen == []
