"""Dividing pictures among clients: every kind of partition, its limits, and the picture of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from fedpriv.common.errors import OptionError
from fedpriv.common.places import with_own_methods
from fedpriv.common.printing import printable
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import (
    DatasetConfig,
    DirichletPartition,
    IidPartition,
    PartitionBase,
    PartitionerPartition,
    PathologicalPartition,
    ShardsPartition,
)
from fedpriv.config.options import MethodOptions
from fedpriv.config.schema import Config
from fedpriv.config.strategy_options import StrategyConfig
from fedpriv.data import Dataset, Examples, FederatedData, Partition
from fedpriv.data.load import load_federated
from fedpriv.data.partition import partition_clients, split_test_set
from fedpriv.mechanisms.tasks import of_classes
from fedpriv.report.label_plot import draw_label_distribution, label_counts

SORTED_LABELS = np.repeat(np.arange(10), 120)  # as a folder per class is read

#: Of any method that asks nothing.
TRAINS = StrategyConfig.model_construct(options=MethodOptions.model_construct())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def iid(test_fraction: float = 0.0) -> IidPartition:
    return IidPartition(name="iid", test_fraction=test_fraction)


def dirichlet(alpha: float, min_examples: int = 1, test_fraction: float = 0.0) -> DirichletPartition:
    return DirichletPartition(name="dirichlet", alpha=alpha, min_examples=min_examples, test_fraction=test_fraction)


def pathological(classes_per_client: int, test_fraction: float = 0.0) -> PathologicalPartition:
    return PathologicalPartition(
        name="pathological", classes_per_client=classes_per_client, test_fraction=test_fraction
    )


def shards(shards_per_client: int, test_fraction: float = 0.0) -> ShardsPartition:
    return ShardsPartition(name="shards", shards_per_client=shards_per_client, test_fraction=test_fraction)


def rows_of(partition: Partition) -> list[np.ndarray]:
    """All rows of each client, training and local test."""
    return [np.concatenate([partition.train(k), partition.test(k)]) for k in range(partition.num_clients)]


def table_of(partition: Partition, labels: np.ndarray) -> np.ndarray:
    """[clients, classes]: pictures of each class."""
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in rows_of(partition)])


# --- what holds for all kinds ----------------------------------------------------------------------------

KINDS = [iid(), dirichlet(0.5), pathological(3), shards(2)]
IDS = [kind.name for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@pytest.mark.parametrize("test_fraction", [0.0, 0.4])
def test_every_picture_belongs_to_exactly_one_client(kind: PartitionBase, test_fraction: float, cache: Path):
    kind = kind.model_copy(update={"test_fraction": test_fraction})
    partition = partition_clients(SORTED_LABELS, kind, 20, 3, cache)
    assert partition.num_clients == 20
    np.testing.assert_array_equal(np.sort(np.concatenate(rows_of(partition))), np.arange(len(SORTED_LABELS)))
    for client, rows in enumerate(rows_of(partition)):
        assert len(partition.train(client)) >= 1
        assert abs(len(partition.test(client)) - test_fraction * len(rows)) <= 1


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_the_seed_decides(kind: PartitionBase, tmp_path: Path):
    kind = kind.model_copy(update={"test_fraction": 0.25})
    first, other = (partition_clients(SORTED_LABELS, kind, 12, seed, tmp_path / "one") for seed in (0, 1))
    again = partition_clients(SORTED_LABELS, kind, 12, 0, tmp_path / "two")  # not the first one's entry
    for name in ("indices", "offsets", "num_train"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.indices, other.indices)


def test_a_client_that_does_not_exist(cache: Path):
    partition = partition_clients(SORTED_LABELS, iid(), 20, 3, cache)
    for client in (-1, 20):
        with pytest.raises(IndexError):
            partition.train(client)


def test_a_client_with_one_picture_trains_on_it(cache: Path):
    partition = partition_clients(np.arange(20) % 2, iid(test_fraction=0.9), 20, 0, cache)
    assert partition.num_train.tolist() == [1] * 20


def test_the_local_test_set_is_drawn_and_not_cut_off(cache: Path):
    """Of a client with all classes in order, the test examples are of all classes."""
    partition = partition_clients(SORTED_LABELS, iid(test_fraction=0.5), 2, 0, cache)
    counts = np.bincount(SORTED_LABELS[partition.test(0)], minlength=10)
    assert counts.min() > 15  # of 30 expected


# --- each kind -------------------------------------------------------------------------------------------


def chi_square(table: np.ndarray) -> float:
    """Pearson's statistic of independence of client and class."""
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    return float(((table - expected) ** 2 / expected).sum())


def test_an_iid_partition_of_a_folder_sorted_by_class_is_iid(tmp_path: Path):
    """Through the whole chain, from files. With independence the statistic exceeds the bound once in a million."""
    root = tmp_path / "pictures"
    for label, name in enumerate(("ape", "bee", "cow")):
        (root / "train" / name).mkdir(parents=True)
        (root / "test" / name).mkdir(parents=True)
        for number in range(80):
            Image.new("L", (4, 4), label).save(root / "train" / name / f"{number}.png")
        Image.new("L", (4, 4), label).save(root / "test" / name / "0.png")
    dataset = DatasetConfig(
        name="image_folder", root=str(root), download=False, auxiliary=0, channels=1, cache=str(tmp_path / "cache")
    )
    num_clients, bound = 6, stats.chi2.ppf(1 - 1e-6, df=(6 - 1) * (3 - 1))
    statistics = []
    for seed in range(5):
        config = Config.model_construct(
            strategy=TRAINS, seed=seed, num_clients=num_clients, dataset=dataset, partition=iid()
        )
        data = load_federated(config)
        labels = data.dataset.train.targets
        assert (np.diff(labels) >= 0).all()  # sorted by class, as it should be for this test
        assert [data.num_examples(client) for client in range(num_clients)] == [40] * num_clients
        statistics.append(chi_square(table_of(data.partition, labels)))
    assert max(statistics) < bound
    assert np.mean(statistics) == pytest.approx(10, abs=5 * np.sqrt(2 * 10 / 5))  # a dealt-out deck would be too even
    contiguous = np.arange(240).reshape(num_clients, 40)
    assert chi_square(np.stack([np.bincount(labels[rows], minlength=3) for rows in contiguous])) > bound


def test_iid_sizes_differ_by_one_at_most(cache: Path):
    sizes = [len(rows) for rows in rows_of(partition_clients(SORTED_LABELS, iid(), 7, 0, cache))]
    assert max(sizes) - min(sizes) <= 1


def test_dirichlet_follows_alpha(cache: Path):
    """Concentrated for a small alpha, even for a large one."""

    def largest_share(alpha: float) -> float:
        table = table_of(partition_clients(SORTED_LABELS, dirichlet(alpha), 10, 0, cache), SORTED_LABELS)
        return float(np.mean(table.max(axis=1) / table.sum(axis=1)))

    assert largest_share(0.05) > 0.6
    assert largest_share(1000.0) < 0.15


def test_dirichlet_gives_everybody_the_smallest_number(cache: Path):
    partition = partition_clients(SORTED_LABELS, dirichlet(0.5, min_examples=25), 15, 0, cache)
    assert min(len(rows) for rows in rows_of(partition)) >= 25


@pytest.mark.parametrize(
    ("num_clients", "classes_per_client"), [(10, 1), (10, 2), (25, 2), (4, 10), (5, 2), (3, 4), (4, 3)]
)
def test_pathological_gives_each_client_its_classes_and_leaves_none_out(
    num_clients: int, classes_per_client: int, cache: Path
):
    for seed in range(3):
        partition = partition_clients(SORTED_LABELS, pathological(classes_per_client), num_clients, seed, cache)
        table = table_of(partition, SORTED_LABELS)
        np.testing.assert_array_equal((table > 0).sum(axis=1), classes_per_client)
        np.testing.assert_array_equal(table.sum(axis=0), 120)


def test_pathological_with_too_few_hands_uses_as_many_classes_as_it_can(cache: Path):
    table = table_of(partition_clients(SORTED_LABELS, pathological(2), 3, 0, cache), SORTED_LABELS)
    np.testing.assert_array_equal((table > 0).sum(axis=1), 2)
    assert (table.sum(axis=0) > 0).sum() == 6


def test_shards_are_the_setting_of_the_fedavg_paper(cache: Path):
    """Two shards each of a set sorted by class: equal sizes, two classes at most (arXiv:1602.05629)."""
    table = table_of(partition_clients(SORTED_LABELS, shards(2), 60, 0, cache), SORTED_LABELS)
    np.testing.assert_array_equal(table.sum(axis=1), 20)
    assert (table > 0).sum(axis=1).max() == 2


def test_shards_leave_out_what_does_not_fill_them(cache: Path):
    partition = partition_clients(SORTED_LABELS, shards(2), 7, 0, cache)  # 14 shards of 85
    rows = np.concatenate(rows_of(partition))
    assert len(rows) == 14 * 85
    assert len(np.unique(rows)) == len(rows)


# --- impossible requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "num_clients", "message"),
    [
        (iid(), 1201, r"num_clients=1201: each client needs one of 1200 training examples"),
        (pathological(11), 20, r"partition\.classes_per_client=11: the training examples have 10 classes"),
        (pathological(10), 121, r"partition\.classes_per_client=10: 121 clients: .*121.*120"),
        (shards(3), 401, r"partition\.shards_per_client=3: 401 clients would need 1203 shards, there are 1200"),
        (dirichlet(0.1, min_examples=13), 100, r"partition\.min_examples=13: .* 1300 training examples, .* 1200"),
        (
            dirichlet(0.01, min_examples=10),
            100,
            r"partition\.alpha=0\.01: in 10 attempts no division of 1200 training examples gave each of 100 clients 10",
        ),
        (dirichlet(1e-300), 20, r"partition\.alpha=1e-300: in 10 attempts no division .* 20 clients 1;"),
    ],
)
def test_impossible_requests_are_refused_with_the_numbers(
    kind: PartitionBase, num_clients: int, message: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
):
    with pytest.raises(OptionError, match=f"^{message}"):
        partition_clients(SORTED_LABELS, kind, num_clients, 0, tmp_path)
    assert not list(tmp_path.rglob("*.npz"))
    assert not recwarn.list


# --- partitioners by name ----------------------------------------------------------------------------------


@pytest.fixture
def own_code(tmp_path: Path) -> Iterator[Path]:
    """A folder whose modules this process, and those that it starts, import."""
    folder = tmp_path / "own"
    folder.mkdir()
    with with_own_methods(folder):
        yield folder
    sys.modules.pop("own_division", None)


def named(partitioner: str, column: str | None = None, **arguments: Any) -> PartitionerPartition:
    return PartitionerPartition(
        name="partitioner", test_fraction=0.0, partitioner=partitioner, arguments=arguments, column=column
    )


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (named("LinearPartitioner"), [80 * k for k in range(1, 6)]),
        (named("SizePartitioner", partition_sizes=[1, 2, 3, 4, 500]), [1, 2, 3, 4, 500]),
        (named("DirichletPartitioner", alpha=1e6, min_partition_size=1), None),
        (named("InnerDirichletPartitioner", partition_sizes=[100, 200, 300, 400, 200], alpha=0.5), None),
        (named("NaturalIdPartitioner"), None),
        (named("GroupedNaturalIdPartitioner", group_size=2), [240] * 5),
        (named("ContinuousPartitioner", strictness=0.5), None),
        (named("own_division.Blocks"), [240] * 5),
        (named("own_division.blocks", first=40), [40, 290, 290, 290, 290]),
    ],
    ids=lambda kind: getattr(kind, "partitioner", ""),
)
def test_partitioners_by_name(kind: PartitionerPartition, sizes: list[int] | None, tmp_path: Path, own_code: Path):
    (own_code / "own_division.py").write_text(
        "import numpy as np\nfrom flwr_datasets.partitioner import IidPartitioner\n"
        "class Blocks(IidPartitioner):\n    pass\n"
        "def blocks(labels, num_clients, seed, first):\n"
        "    rest = np.arange(first, len(labels))\n"
        "    return [np.arange(first), *np.array_split(rest, num_clients - 1)]\n"
    )
    clients = 10 if kind.partitioner == "NaturalIdPartitioner" else 5
    partition = partition_clients(SORTED_LABELS, kind, clients, 3, tmp_path)
    held = [len(rows) for rows in rows_of(partition)]
    assert len(held) == clients and (sizes is None or held == sizes)
    rows = np.concatenate(rows_of(partition))
    assert len(np.unique(rows)) == len(rows) == sum(held)
    if "NaturalId" in kind.partitioner:  # whole classes
        assert set(table_of(partition, SORTED_LABELS).ravel().tolist()) == {0, 120}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (named("LinearPartitionr"), r"^partition\.partitioner=LinearPartitionr: no such .*allowed: Continuous.*Square"),
        (named("VerticalEvenPartitioner"), "no such partitioner of rows"),
        (named("SizePartitioner", sizes=[1]), r"raised TypeError: .*sizes"),
        (named("SizePartitioner", partition_sizes=[1, 2]), "^num_clients=5: SizePartitioner makes 2 clients"),
        (named("no_module.here"), "must be the dotted path of code"),
        (named("own_division.shared"), "clients share examples"),
        (named("own_division.empty"), "client 4 has no example"),
        (named("own_division.outside"), "rows must be 0 to 1199, not -1 to"),
        (named("own_division.fails"), "raised ZeroDivisionError"),
    ],
    ids=lambda kind: getattr(kind, "partitioner", ""),
)
def test_what_is_no_division_is_refused(kind: PartitionerPartition, words: str, tmp_path: Path, own_code: Path):
    (own_code / "own_division.py").write_text(
        "def shared(labels, num_clients, seed):\n    return [[0]] * num_clients\n"
        "def empty(labels, num_clients, seed):\n    return [[0], [1], [2], [3], []]\n"
        "def outside(labels, num_clients, seed):\n    return [[0], [1], [2], [3], [-1]]\n"
        "def fails(labels, num_clients, seed):\n    return 1 / 0\n"
    )
    with pytest.raises(OptionError, match=words):
        partition_clients(SORTED_LABELS, kind, 5, 0, tmp_path)
    assert not list(tmp_path.rglob("*.npz"))


def test_an_edit_of_the_users_function_is_another_division(tmp_path: Path, own_code: Path):
    sizes = []
    for first in (40, 50):
        code = f"    return [range({first}), range({first}, 1200)]  # {first * 'x'}\n"
        (own_code / "own_division.py").write_text("def blocks(labels, num_clients, seed):\n" + code)
        told = "from pathlib import Path; import numpy as np; from fedpriv.config.data_schema import *\n"
        told += "from fedpriv.data.partition import partition_clients\n"
        told += "kind = PartitionerPartition(name='partitioner', test_fraction=0, partitioner='own_division.blocks')\n"
        told += f"print(len(partition_clients(np.zeros(1200, int), kind, 2, 0, Path({str(tmp_path)!r})).train(0)))"
        run = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
        sizes.append(int(run.stdout))
    assert sizes == [40, 50]


def test_a_table_is_divided_by_groups_of_a_columns_values(tmp_path: Path):
    options = ["dataset=practices", f"dataset.cache={tmp_path}", "partition=partitioner", "partition.column=practice"]
    groups = ["partition.partitioner=GroupedNaturalIdPartitioner", "partition.arguments={group_size: 2}"]
    data = load_federated(compose([*options, *groups, "num_clients=5", "clients_per_round=5"]))
    column = ["partition=column", options[-1], "num_clients=10", "clients_per_round=5"]
    site = load_federated(compose([*options[:2], *column]))
    alone = [set(site.partition.train(client).tolist()) for client in range(10)]
    for client in range(5):
        rows = set(data.partition.train(client).tolist())
        assert sum(one <= rows for one in alone) == 2 and len(rows) == sum(len(one) for one in alone if one <= rows)


# --- the cache -------------------------------------------------------------------------------------------


def test_a_worker_finds_the_partition_without_importing_anything_heavy(tmp_path: Path):
    expected = partition_clients(SORTED_LABELS, dirichlet(0.3), 10, 4, tmp_path)
    script = (
        "import sys, numpy as np; from pathlib import Path; from fedpriv.config.data_schema import DirichletPartition\n"
        "from fedpriv.data.partition import partition_clients\n"
        "kind = DirichletPartition.model_validate_json(sys.argv[1])\n"
        "found = partition_clients(np.repeat(np.arange(10), 120), kind, 10, 4, Path(sys.argv[2]))\n"
        "heavy = {'datasets', 'flwr_datasets', 'pandas', 'torch', 'torchvision', 'sklearn', 'matplotlib'}\n"
        "print(int(found.indices[:200] @ np.arange(200)), sorted(heavy & set(sys.modules)))\n"
    )
    arguments = [sys.executable, "-c", script, dirichlet(0.3).model_dump_json(), str(tmp_path)]
    done = subprocess.run(arguments, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True)
    assert done.stdout.strip() == f"{expected.indices[:200] @ np.arange(200)} []", done.stderr


def test_other_labels_are_another_partition(tmp_path: Path):
    partition_clients(SORTED_LABELS, iid(), 5, 0, tmp_path)
    partition_clients(SORTED_LABELS[::-1], iid(), 5, 0, tmp_path)
    partition_clients(SORTED_LABELS, iid(), 6, 0, tmp_path)
    partition_clients(SORTED_LABELS, iid(test_fraction=0.1), 5, 0, tmp_path)
    assert len(list(tmp_path.rglob("partition.npz"))) == 4


# --- the public split and the whole ----------------------------------------------------------------------


def test_auxiliary_and_reported_pictures_are_disjoint_and_all():
    public, reported = split_test_set(100, 30, seed=1)
    assert (len(public), len(reported)) == (30, 70)
    np.testing.assert_array_equal(np.sort(np.concatenate([public, reported])), np.arange(100))
    np.testing.assert_array_equal(split_test_set(100, 30, seed=1)[0], public)
    assert not np.array_equal(split_test_set(100, 30, seed=2)[0], public)
    assert public.max() > 40  # drawn, not the first ones
    assert len(split_test_set(100, 0, seed=1)[1]) == 100


@pytest.mark.parametrize("auxiliary", [360, 1000])
def test_too_many_auxiliary_pictures_are_refused(auxiliary: int):
    with pytest.raises(OptionError, match=rf"dataset\.auxiliary={auxiliary}: there are 360 test examples"):
        load_federated(digits_config(), auxiliary=auxiliary)


def digits_config(num_clients: int = 10, partition: PartitionBase | None = None) -> Config:
    dataset = DatasetConfig(name="digits", root=None, download=False, auxiliary=0)
    return Config.model_construct(
        strategy=TRAINS, seed=0, num_clients=num_clients, dataset=dataset, partition=partition or iid()
    )


def test_digits_among_ten_clients():
    data = load_federated(digits_config(partition=iid(test_fraction=0.2)), auxiliary=60)
    assert data.num_clients == 10
    sizes = [(data.num_examples(k), len(data.train_indices(k)), len(data.test_indices(k))) for k in range(10)]
    assert set(sizes) <= {(115, 115, 29), (114, 114, 29)}
    assert (len(data.auxiliary), len(data.test)) == (60, 300)


@pytest.mark.pictures
def test_a_hundred_clients_with_six_hundred_pictures_of_real_mnist(pictures: Path):
    dataset = DatasetConfig(name="mnist", root=str(pictures), download=False, auxiliary=1000)
    config = Config.model_construct(strategy=TRAINS, seed=0, num_clients=100, dataset=dataset, partition=iid())
    data = load_federated(config, auxiliary=1000)
    assert {data.num_examples(client) for client in range(100)} == {600}
    assert (len(data.auxiliary), len(data.test)) == (1000, 9000)
    table = table_of(data.partition, data.dataset.train.targets)
    assert chi_square(table) < stats.chi2.ppf(1 - 1e-6, df=99 * 9)


# --- the picture -----------------------------------------------------------------------------------------


def made_up(num_clients: int, num_classes: int, names: Sequence[str] = ()) -> FederatedData:
    """Client k holds k + 1 training examples and one test picture, all of class k mod num_classes."""
    sizes = np.arange(num_clients) + 2
    labels = np.repeat(np.arange(num_clients) % num_classes, sizes)
    images = np.zeros((len(labels), 1, 1, 1), dtype=np.uint8)
    dataset = Dataset(
        "made up",
        Examples(images, labels),
        Examples(images, labels),
        of_classes(tuple(names or map(str, range(num_classes)))),
        (0.5,),
        (1,),
    )
    partition = Partition(np.arange(len(labels)), np.concatenate([[0], np.cumsum(sizes)]), sizes - 1)
    return FederatedData(dataset, partition, np.arange(0), np.arange(1))


def test_label_counts_include_the_local_test_set():
    np.testing.assert_array_equal(label_counts(made_up(3, 2)), [[2, 0], [0, 3], [4, 0]])


@pytest.mark.rotates(3)
@pytest.mark.parametrize(("num_clients", "num_classes"), [(1, 2), (10, 10), (100, 20), (101, 10), (5, 100), (1200, 3)])
def test_the_picture_of_the_label_distribution_is_drawn(num_clients: int, num_classes: int, tmp_path: Path):
    draw_label_distribution(made_up(num_clients, num_classes), tmp_path / "labels.png")
    with Image.open(tmp_path / "labels.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 600 and 200 < picture.height < 2600
        colours = len(set(map(tuple, np.asarray(picture.convert("RGB")).reshape(-1, 3)[::7].tolist())))
    assert colours > min(num_clients, num_classes, 20)


@pytest.mark.parametrize("names", [("$5 #-$6", "$10,000-$19,999"), ("a\x1b[31mb", "c\x00d"), ("$\\frac{$", "<b>&")])
@pytest.mark.parametrize("num_clients", [2, 101])  # bars; a map whose labels are made while it is drawn
def test_names_of_classes_are_drawn_as_they_are(names: tuple[str, ...], num_clients: int, tmp_path: Path):
    """What stands between two dollar signs is no formula, and what an SVG may not hold is not in it."""
    draw_label_distribution(made_up(num_clients, 2, names), tmp_path / "labels.png")
    svg = (tmp_path / "labels.svg").read_text()
    ElementTree.fromstring(svg)
    assert "Oblique" not in svg  # the font of a formula's letters
    for name in names:
        assert escape(printable(name)) in svg  # the comment that matplotlib writes before a text


def test_a_picture_that_cannot_be_drawn_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise ValueError("$no $font")

    monkeypatch.setattr("matplotlib.axes.Axes.draw", broken)
    draw_label_distribution(made_up(2, 2), tmp_path / "labels.png")
    assert "<!-- $no $font -->" in (tmp_path / "labels.svg").read_text()
    assert Image.open(tmp_path / "labels.png").size == (520, 330)
