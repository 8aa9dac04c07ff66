"""Grouping over seeds, mean and spread, threat models apart, and the command line."""

from __future__ import annotations

import csv
import itertools
import json
import math
import shutil

import pytest
import yaml
from report_runs import LEAKS, change_summary, make_run, privacy, sweep_of

from fedpriv.config.compose import compose
from fedpriv.report.__main__ import main
from fedpriv.report.compare import (
    compare,
    comparison_tables,
    latex_tables,
    mean_curve,
    naming,
    rounded,
    runs_table,
    telling,
)
from fedpriv.report.over_seeds import holm, paired, spread, two_sided
from fedpriv.report.plots import draw_tradeoffs
from fedpriv.report.reading import SWEEP_FILE, read_run
from fedpriv.report.tables import plain_table


def compared(*folders):
    return compare([read_run(folder) for folder in folders])


def change(folder, option, value):
    """Sets one (dotted) option in a run's config.yaml."""
    content = yaml.safe_load((folder / "config.yaml").read_text())
    *groups, name = option.split(".")
    at = content
    for group in groups:
        at = at[group]
    at[name] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    return folder


def test_spread_against_a_hand_computation():
    # 0.80, 0.82, 0.87: mean 0.83; squares 9e-4 + 1e-4 + 16e-4 = 26e-4, over n - 1 = 2: 13e-4.
    result = spread([0.80, 0.82, 0.87])
    assert result.mean == pytest.approx(0.83)
    assert result.std == pytest.approx(math.sqrt(13e-4))
    # Student's t, two degrees of freedom, 97.5%: 4.302653 (any printed table).
    assert result.half_width == pytest.approx(4.302653 * math.sqrt(13e-4) / math.sqrt(3), rel=1e-6)


def test_spread_of_what_is_missing_single_or_infinite():
    assert spread([]).mean is None and spread([None, None]).n == 0
    assert (spread([None, 2.0]).mean, spread([None, 2.0]).std, spread([None, 2.0]).n) == (2.0, None, 1)
    assert (spread([1.0, math.inf]).mean, spread([1.0, math.inf]).std) == (math.inf, None)


def test_runs_of_a_sum_of_clients_are_compared_at_both_adjacencies(tmp_path):
    """The column is that of the table's other adjacency; tables without such a figure have none."""
    runs = [make_run(tmp_path / f"a{noise}", noise=noise, rounds=2) for noise in (0.1, 0.2)]
    for run, (epsilon, other) in zip(runs, ((1.0, 0.469), (2.0, 0.929)), strict=True):
        found = {"verified_epsilon": epsilon, "observer": "secure-sum"}
        change_summary(run, privacy=privacy(**found, other_adjacency="zero-out", other_epsilon=other))
    (table,) = comparison_tables(compared(*runs))
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert {row["zero-out ε"] for row in rows} == {"0.469", "0.929"}
    (table,) = comparison_tables(compared(make_run(tmp_path / "alone", rounds=2)))
    assert not any("out ε" in name for name in table.header)


def test_runs_that_differ_only_in_seed_form_a_group(tmp_path):
    runs = [make_run(tmp_path / f"a{seed}", seed=seed, rounds=2, accuracy=0.8 + seed / 100) for seed in range(3)]
    change(runs[1], "engine.name", "ray")
    change(runs[2], "run_dir", "/elsewhere")
    other = make_run(tmp_path / "b", noise=0.3, rounds=2)
    comparison = compared(*runs, other)
    assert [len(group.runs) for group in comparison.groups] == [3, 1]
    assert [dict(group.options) for group in comparison.groups] == [
        {"strategy.client.noise_multiplier": "0.1"},
        {"strategy.client.noise_multiplier": "0.3"},
    ]
    row = comparison.tables[0][1][1]  # the best comes first
    assert row.figures["accuracy"].mean == pytest.approx(0.81) and row.figures["accuracy"].std == pytest.approx(0.01)
    assert row.figures["claimed_epsilon"].mean == 12.3 and row.figures["audited_epsilon"].n == 0


def test_a_repeated_seed_counts_once(tmp_path):
    """Two copies of one run would pretend to know a spread of zero."""
    comparison = compared(make_run(tmp_path / "a", rounds=2), make_run(tmp_path / "b", rounds=2))
    assert [len(group.runs) for group in comparison.groups] == [1]
    assert [(path.name, "same configuration and seed" in why) for path, why in comparison.left_out] == [("b", True)]


@pytest.mark.parametrize(
    ("option", "value"),
    [("precision", "bfloat16"), ("faults", {"rate": 0.3, "kinds": ["drop"]}), ("faults", [{"round": 1, "client": 0}])],
)
def test_runs_whose_engine_changes_the_result_are_no_seeds_of_the_others(option, value, tmp_path):
    """A run with planned faults was left out as a repetition of that without, or counted as one more seed of it."""
    runs = [make_run(tmp_path / f"{seed}{name}", seed=seed, rounds=2) for seed in range(2) for name in "ab"]
    for run in runs[1::2]:
        change(run, f"engine.{option}", value)
    found = compared(*runs)
    assert [len(group.runs) for group in found.groups] == [2, 2] and not found.left_out


def test_of_equal_runs_the_whole_one_counts(tmp_path):
    for name in "abc":
        make_run(tmp_path / name, rounds=2)
    (tmp_path / "a" / "metrics.jsonl").unlink()
    (group,) = (found := compared(*(tmp_path / name for name in "abc"))).groups
    assert group.runs[0].path.name == "b" and {path.name for path, _ in found.left_out} == {"a", "c"}


def test_only_options_that_differ_are_columns(tmp_path):
    runs = [
        make_run(tmp_path / "ldp", strategy="fedldp", rounds=2),
        make_run(tmp_path / "cad", strategy="fedcad", rounds=2, diff=0.5),
        make_run(tmp_path / "cad2", strategy="fedcad", rounds=2, diff=0.7),
    ]
    ldp, cad, cad2 = compared(*runs).groups
    assert dict(ldp.options) == {"strategy.name": "fedldp", "strategy.client.diff": "–"}
    assert cad.short_names == ["strategy", "diff"]
    assert [group.label() for group in (ldp, cad, cad2)] == ["fedldp", "fedcad, diff 0.5", "fedcad, diff 0.7"]
    # An option that only one method has is implied by the method: no column for it.
    assert list(compared(*runs[:2]).groups[0].options) == ["strategy.name"]


def test_unlike_runs_have_short_names():
    """As few options as tell them apart; a budget stands for no other option, whose curves would be one."""
    names = ["strategy.name", "local.lr", "local.steps", "model.name", "strategy.client.noise_multiplier"]

    def of(*rows: str) -> list[str]:
        return naming([dict(zip(names, row.split(), strict=True)) for row in rows], names)

    assert of("a 1 1 m 1", "b 2 2 m 2", "c 3 3 n 3") == ["strategy.name"]
    assert of("a 1 1 m 1", "a 2 2 m 2", "b 3 3 n 3") == ["strategy.name", "local.lr"]
    assert of("a 1 1 m 1", "a 1 1 m 2", "b 3 3 n 3") == ["strategy.name", "strategy.client.noise_multiplier"]
    assert of("a 1 1 m 1", "a 1 2 m 1", "a 2 1 m 1", "a 2 2 m 1") == ["strategy.name", "local.lr", "local.steps"]
    assert naming([{"x": "1"}], ["x"]) == ["x"]
    names[3] = "dataset.name"  # without which a mean accuracy says nothing
    assert of("a 1 1 m 1", "b 2 2 m 2", "c 3 3 n 3") == ["strategy.name", "dataset.name"]


def test_an_option_that_only_some_runs_have_is_shown_where_nothing_else_tells_them_apart(tmp_path):
    old, new = make_run(tmp_path / "old", rounds=2), make_run(tmp_path / "new", rounds=2, diff=0.5)
    assert [group.label() for group in compared(old, new).groups] == ["all runs", "diff 0.5"]
    new = make_run(tmp_path / "null", rounds=2, diff=None)  # not the same as an option that is not there
    assert [group.label() for group in compared(old, new).groups] == ["all runs", "diff null"]


def test_the_curve_is_the_mean_over_seeds_where_evaluated(tmp_path):
    for seed, accuracy in ((0, 0.7), (1, 0.9)):
        make_run(tmp_path / str(seed), seed=seed, accuracy=accuracy, rounds=5, every=2)
    (group,) = compared(*sorted(tmp_path.iterdir())).groups
    rounds, mean, std, _ = mean_curve(group)
    assert rounds == [2, 4, 5]
    assert mean[-1] == pytest.approx(0.8) and std[-1] == pytest.approx(math.sqrt(0.02))


def test_plain_tables_align():
    assert plain_table(("a", "bbb"), [("cc", "d"), ("e", "f")]) == ["a   bbb", "cc  d", "e   f"]
    assert plain_table((), [("cc", "d")]) == ["cc  d"]


# --- command line ----------------------------------------------------------------------------------------


def test_one_run_gets_its_report(tmp_path, capsys):
    folder = make_run(tmp_path / "run", rounds=3)
    (folder / "config.yaml").write_text(yaml.safe_dump(compose().to_dict()))
    assert main([str(folder)]) == 0
    said = capsys.readouterr()
    assert (said.out.strip(), said.err) == (str(folder / "report.html"), "")
    assert (folder / "report.html").is_file() and not (tmp_path / "comparison.html").exists()


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("ledger.jsonl", None, "missing: what the run released is no longer known"),
        ("ledger.jsonl", '{"round": 1', "1 torn or broken lines are not counted here"),
        ("config.yaml", "seed: [", "cannot be read"),
        ("config.yaml", "seed: 1", "num_clients: the option has no value"),
        ("metrics.jsonl", "{", "its last line is torn"),
        ("summary.json", "[]", "no mapping of names to values"),
    ],
)
def test_a_damaged_run_is_reported_and_said_in_the_exit_code(file, content, words, tmp_path, capsys):
    folder = make_run(tmp_path / "run", rounds=3)
    (folder / "config.yaml").write_text(yaml.safe_dump(compose().to_dict()))
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    assert main([str(folder)]) == 1
    said = capsys.readouterr()
    assert said.out.strip() == str(folder / "report.html")
    assert f"fedpriv: {folder / file}: " in said.err and words in said.err and said.err.count("\n") == 1


def test_a_folder_for_a_comparison_is_refused_where_it_would_do_nothing(tmp_path, capsys):
    run, other = make_run(tmp_path / "a", rounds=2), make_run(tmp_path / "b", rounds=2, noise=0.3)
    assert main([str(run), "--out", str(tmp_path / "new")]) == 2
    assert "is for a comparison; the report of one run is in its folder" in capsys.readouterr().err
    assert main([str(run), str(other), "--out", str(run / "config.yaml")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "is there and no folder" in said.err


def test_a_summary_without_its_parts_is_damaged(tmp_path, capsys):
    """Else its page says that the run goes on, and a comparison takes it up without figures."""
    run = make_run(tmp_path, rounds=2)
    change_summary(run, privacy=3, accuracy="x")
    assert main([str(run)]) == 1 and "summary.json: accuracy, privacy: no mapping" in capsys.readouterr().err
    assert read_run(run).why_not_comparable == "summary.json: accuracy, privacy: no mapping"


def test_a_sweep_gets_a_comparison_in_its_folder(tmp_path, capsys):
    sweep = tmp_path / "sweep"
    for seed in (0, 1):
        make_run(sweep / str(seed), seed=seed, rounds=3, accuracy=0.8 + 0.02 * seed, record=LEAKS)
    make_run(sweep / "2", seed=2, rounds=4, finished=False)
    make_run(sweep / "3", seed=3, rounds=3).joinpath("summary.json").write_text("{")
    assert main([str(sweep)]) == 0
    out = capsys.readouterr().out
    assert "81.0 ± 1.4" in out and "warning" not in out
    assert f"left out: {sweep / '2'}: unfinished: 2 rounds so far" in out
    assert f"left out: {sweep / '3'}: summary.json: cannot be read" in out
    for name in ("comparison.html", "comparison.csv", "comparison.png"):
        assert str(sweep / name) in out and (sweep / name).stat().st_size > 0
    with (sweep / "comparison.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["accuracy_mean"]) == pytest.approx(0.81)
    assert float(row["accuracy_std"]) == pytest.approx(math.sqrt(2) / 100)
    # Student's t with one degree of freedom: 12.7062.
    assert float(row["accuracy_ci95_half_width"]) == pytest.approx(12.7062 * 0.01, rel=1e-4)
    assert (row["verified_epsilon_mean"], row["audited_epsilon_mean"], row["accuracy_n"]) == ("inf", "", "2")
    assert (row["unit"], row["observer"], float(row["delta"])) == ("client", "server", 1e-5)


def test_the_comparison_goes_to_the_common_parent_or_where_told(tmp_path, capsys):
    a, b = make_run(tmp_path / "x" / "a", rounds=2), make_run(tmp_path / "y" / "b", rounds=2, noise=0.3)
    assert main([str(a), str(b)]) == 0 and (tmp_path / "comparison.html").is_file()
    assert main([str(a), str(b), "--out", str(tmp_path / "new" / "place")]) == 0
    assert (tmp_path / "new" / "place" / "comparison.csv").is_file()
    assert main([str(a), str(b), "--out", str(a / "config.yaml")]) == 2


@pytest.mark.parametrize("broken", [False, True])
def test_nothing_to_report_is_one_line_and_exit_code_2(tmp_path, capsys, broken):
    if broken:
        for name in "ab":
            make_run(tmp_path / name, rounds=2, finished=False)
    assert main([str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedpriv: ") and err.count("\n") == 1 and "Traceback" not in err
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2


def test_an_option_that_both_halves_have_is_shown_once() -> None:
    halves = [
        {"strategy.server.clipping": rule, "strategy.client.clipping": rule, "strategy.server.decay": decay}
        for rule, decay in (("fixed", 0.9), ("adp", 0.8))
    ]
    assert telling(halves, None) == ["strategy.client.clipping", "strategy.server.decay"]
    halves[0]["strategy.client.clipping"] = "quantile"  # no longer the same
    assert "strategy.server.clipping" in telling(halves, None)


ASKED = ["strategy=fedldp,fedcad", "privacy.target_epsilon=2,8", "seed=1,2"]


def runs_of(sweep):
    return sorted(path for path in sweep.iterdir() if path.is_dir())


def test_a_sweep_shows_the_options_that_it_varied(tmp_path):
    asked, not_asked = (runs_of(sweep_of(tmp_path / name, options)) for name, options in (("a", ASKED), ("b", None)))
    (table,) = comparison_tables(compared(*asked))
    assert table.header[:3] == ["strategy", "target_epsilon", "accuracy, %"] and table.header[-1] == "seeds"
    assert {row[1] for row in table.rows} == {"2", "8"}
    by_hand = comparison_tables(compared(*not_asked))[0].header
    assert by_hand[:2] == ["strategy", "target_epsilon"] and {row[-1] for row in table.rows} == {"2"}  # both seeds
    # an option that the command gave and that does not tell all apart hides none of the others
    (tmp_path / "a" / SWEEP_FILE).write_text(json.dumps({"jobs": 8, "options": ASKED[:1]}))
    assert comparison_tables(compared(*asked))[0].header == by_hand


def test_two_sweeps_of_other_experiments_show_all_that_differs(tmp_path):
    """The rounds that both commands gave told them apart, and hid that their experiments' files name other methods."""
    for name, strategy, rounds in (("a", "fedldp", 2), ("b", "fedcad", 4)):
        make_run(tmp_path / name / "0", strategy=strategy, rounds=rounds)
        said = {"jobs": 1, "options": [f"experiment={name}", f"num_rounds={rounds}"]}
        (tmp_path / name / SWEEP_FILE).write_text(json.dumps(said))
    header = comparison_tables(compared(tmp_path / "a/0", tmp_path / "b/0"))[0].header
    assert header[0] == "strategy" and "num_rounds" in header


def test_a_curve_takes_a_point_of_one_seed_beside_one_of_two(tmp_path):
    """A single seed has no interval: its point has no bar, and the page is written."""
    sweep = sweep_of(tmp_path / "a", ASKED)
    shutil.rmtree(sweep / "fedldp-8-2")
    drawn = draw_tradeoffs(compared(*runs_of(sweep)), tmp_path)
    assert [picture.file for picture in drawn] == ["tradeoff.png"] and (tmp_path / "tradeoff.png").stat().st_size


def test_a_fourth_option_stands_behind_the_epsilons(tmp_path):
    runs = [make_run(tmp_path / str(n), rounds=2, noise=0.1 * n) for n in (1, 2)]
    for n, run in enumerate(runs):
        for name in ("delta", "accountant", "clip_norm"):
            change(run, f"privacy.{name}", str(n))
    header = comparison_tables(compared(*runs))[0].header
    assert header.index("accuracy, %") == 3 and header[-2] == "seeds"
    assert {*header[:3], header[-1]} == {"delta", "accountant", "clip_norm", "noise_multiplier"}


def test_what_tells_the_rows_of_one_table_apart_stands_in_front(tmp_path):
    """Of runs under two threat models most options differ between the tables, and are alike within each."""
    others = privacy(unit="example", verified_epsilon=1.0)
    for n, record in enumerate((None, None, others, others)):
        run = make_run(tmp_path / str(n), rounds=2, noise=0.1 + 0.1 * (n % 2), record=record)
        for name in ("delta", "accountant", "clip_norm"):
            change(run, f"privacy.{name}", str(n // 2))
    tables = comparison_tables(compared(*(tmp_path / str(n) for n in range(4))))
    assert len(tables) == 2
    assert {table.header[0] for table in tables} == {"noise_multiplier"}
    assert all(len({row[0] for row in table.rows}) == 2 for table in tables)


def test_numbers_have_four_digits_or_as_many_as_tell_them_apart():
    assert rounded(["3.8124849524260545", "8.0", "uniform", "–", "100000"]) == ["3.812", "8", "uniform", "–", "100000"]
    assert rounded(["0.123456", "0.123457"]) == ["0.123456", "0.123457"]


def test_every_run_has_a_row_with_what_it_is_sorted_by(tmp_path):
    make_run(tmp_path / "10-a", accuracy=0.5, record=privacy(verified_epsilon="inf", audited_epsilon=None))
    make_run(tmp_path / "9-b", accuracy=0.7, noise=0.3, seed=4, total_s=125.0)
    header, rows = runs_table(compared(tmp_path / "10-a", tmp_path / "9-b"), tmp_path)
    assert header[:3] == ["run", "noise_multiplier", "seed"] and header[-1] == "time, s"
    first, second = (dict(zip(header, row, strict=True)) for row in rows)
    assert (first["run"].text, first["run"].link) == ("9-b", "9-b/summary.json")
    assert (first["noise_multiplier"].value, first["seed"].value, first["accuracy, %"].value) == (0.3, 4, 0.7)
    assert (first["time, s"].value, second["verified ε"].key, second["verified ε"].text) == (125.0, "Infinity", "∞")
    assert (second["audited ε"].key, second["audited ε"].text) == ("", "not audited")
    traffic = json.loads((tmp_path / "9-b/summary.json").read_text())["traffic"]
    assert first["sent, MiB"].value == traffic["bytes_up"] + traffic["bytes_down"]


def test_runs_are_ranked_by_the_metric_that_leads(tmp_path):
    """Of a regression the smallest error is best, of classes the largest accuracy."""

    def with_error(name, noise, error):
        folder = make_run(tmp_path / name, noise=noise, rounds=2)
        sites = [{"site": "north", "value": error + 5, "examples": 9}]
        metrics = {"leading": "rmse", "more_is_better": False, "final": {"rmse": error}, "sites": sites}
        return change_summary(folder, accuracy={"final": None}, metrics=metrics)

    found = compared(with_error("a", 0.1, 60.0), with_error("b", 0.3, 55.5))
    (table,) = comparison_tables(found)
    place = table.header.index("rmse")
    assert [row[place] for row in table.rows] == ["55.5", "60"]
    assert [row[table.header.index("worst site")] for row in table.rows] == ["60.5", "65"]
    worse, better = make_run(tmp_path / "c", rounds=2, accuracy=0.8), make_run(tmp_path / "d", noise=0.3, rounds=2)
    (table,) = comparison_tables(compared(worse, better))
    assert [row[table.header.index("accuracy, %")] for row in table.rows][1] == "80.0"


# --- who wins at equal epsilon -----------------------------------------------------------------------------


def cell_of(table, name):
    return [row[table.header.index(name)] for row in table.rows]


def three_methods(folder, epsilons=(2.0, 2.01, 8.0), below=0.02):
    """Of each three seeds: noise 0.1 with 80, 81, 82 %, noise 0.2 2.0, 2.1 and 1.9 points below it, and noise 0.3."""
    runs = []
    for seed in range(3):
        accuracies = 0.80 + seed / 100, 0.80 - below + seed / 100 + (0.0, -0.001, 0.001)[seed], 0.9
        for place, (accuracy, epsilon) in enumerate(zip(accuracies, epsilons, strict=True)):
            options = {"seed": seed, "noise": 0.1 * (place + 1), "accuracy": accuracy}
            record = privacy(verified_epsilon=epsilon)
            runs.append(make_run(folder / f"{place}-{seed}", rounds=2, record=record, **options))
    return compared(*runs)


def test_rows_of_equal_epsilon_are_compared_with_the_best_seed_by_seed(tmp_path):
    comparison = three_methods(tmp_path)
    (table,) = comparison_tables(comparison)
    assert cell_of(table, "noise_multiplier") == ["0.1", "0.2", "0.3"]  # by epsilon, then the best first
    # -2.0, -2.1, -1.9: mean -2.0, standard deviation 0.1; t of 4.302653 / sqrt(3) = 2.484 times it.
    assert cell_of(table, "to the best") == ["best", "-2.0 (-2.2 to -1.8)", "–"]
    gap, p = comparison.tables[0][1][1].to_best
    assert (gap.mean, gap.half_width) == (pytest.approx(-0.02), pytest.approx(0.002484, rel=1e-3))
    # t = -2.0 / (0.1 / sqrt(3)) = -34.6 with two degrees of freedom: p = 2 * 0.00041
    assert p == pytest.approx(1 - 34.641 / math.sqrt(2 + 34.641**2), rel=1e-3)
    words = "noise multiplier 0.1 is best with 81.0 %; surely ahead of noise multiplier 0.2."
    assert table.winners == [f"At ε 2 (a real promise), {words}"]


def test_epsilons_that_differ_are_not_compared(tmp_path):
    (table,) = comparison_tables(three_methods(tmp_path, (8.0, 2.0, 2.05)))
    assert cell_of(table, "noise_multiplier") == ["0.2", "0.3", "0.1"]
    assert "to the best" not in table.header and not table.winners


def test_runs_on_other_data_are_not_compared(tmp_path):
    """A row that is ahead on an easier table has beaten nobody: each set has a winner of its own."""
    runs = []
    for place, (name, root) in enumerate((("digits", None), ("table", "a.csv"), ("table", "b.csv"))):
        for noise in (0.1, 0.2):
            folder = make_run(tmp_path / f"{place}-{noise}", rounds=2, noise=noise, accuracy=0.9 - place / 10 - noise)
            runs.append(change(change(folder, "dataset.name", name), "dataset.root", root))
    runs.append(change(make_run(tmp_path / "moved", rounds=2, noise=0.3, accuracy=0.9), "dataset.name", "digits"))
    change(runs[-1], "dataset.root", "/elsewhere")  # the folder of a set that everybody has
    comparison = compared(*runs)
    (table,) = comparison_tables(comparison)
    best = [line.split(" is best with ")[1].partition(";")[0] for line in table.winners]
    assert best == ["90.0 %", "70.0 %", "60.0 %"]
    assert "digits" in table.winners[0] and "a.csv" in table.winners[1] and "b.csv" in table.winners[2]
    gaps = [row.to_best[0].mean for row in comparison.tables[0][1]]
    assert gaps == pytest.approx([0.0, -0.1, -0.2, 0.0, -0.1, 0.0, -0.1])


def test_all_pairs_that_could_have_been_shown_count(tmp_path):
    """The same runs choose the best, so pairs without it count as well."""
    rows = three_methods(tmp_path, (2.0,) * 3, below=0.0).tables[0][1]
    p_values = [two_sided(paired(one.by_seed, other.by_seed)) for one, other in itertools.combinations(rows, 2)]
    assert [row.to_best[1] for row in rows[1:]] == holm(p_values)[:2] != holm(p_values[:2])


def test_one_seed_tells_nothing_apart(tmp_path):
    runs = [make_run(tmp_path / str(n), rounds=2, noise=0.1 * n, accuracy=0.9 - 0.1 * n) for n in (1, 2)]
    (table,) = comparison_tables(compared(*runs))
    words = "noise multiplier 0.1 is best with 80.0 %; not told apart from noise multiplier 0.2"
    assert table.winners == [f"At ε 31.5 (a weak promise), {words} (one seed tells nothing apart)."]
    assert cell_of(table, "p") == ["–", "–"]


def test_a_smaller_error_wins(tmp_path):
    runs = []
    for place, errors in enumerate(((55.5, 56.5, 57.7), (60.0, 61.0, 62.0))):
        for seed, error in enumerate(errors):
            metrics = {"leading": "rmse", "more_is_better": False, "final": {"rmse": error}}
            folder = make_run(tmp_path / f"{place}-{seed}", seed=seed, noise=0.3 - 0.1 * place, rounds=2)
            runs.append(change_summary(folder, accuracy={"final": None}, metrics=metrics))
    (table,) = comparison_tables(compared(*runs))
    assert cell_of(table, "to the best")[0] == "best" and cell_of(table, "to the best")[1].startswith("4.433 (")
    assert "noise multiplier 0.3 is best with 56.57; surely ahead of noise multiplier 0.2" in table.winners[0]


def test_a_latex_table_has_what_differs_and_its_caption_the_rest(tmp_path):
    tables = comparison_tables(three_methods(tmp_path))
    lines = latex_tables(tables).splitlines()
    (line,) = [line for line in lines if line.startswith("noise")]
    columns = ["noise\\_multiplier", "accuracy, \\%", "95 \\% interval", "to the best", "p", "verified $\\varepsilon$"]
    assert line == " & ".join(columns) + " \\\\"
    (caption,) = [line for line in lines if line.startswith("\\caption")]
    assert "Of all rows: claimed $\\varepsilon$ 12.3, audited $\\varepsilon$ not audited, seeds 3. Threat" in caption
