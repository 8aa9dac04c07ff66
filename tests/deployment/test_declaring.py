"""What a node declares can be put right: a mistake at `init` closes no folder, and no budget is renewed by it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed import MACHINES, codes

from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.deployment.declaration import Declared

RIGHT = {"classes": "a,b,c", "size": "4", "channels": "1"}


@pytest.mark.parametrize(
    "wrong",
    [{"channels": "3"}, {"size": "40"}, {"classes": "c,b,a"}, {"classes": "a,b,c,d"}, {"size": "8", "channels": "3"}],
)
def test_a_mistake_at_init_is_put_right(wrong: dict[str, str], machines: MACHINES) -> None:
    network = machines(1)
    given = [f"{name}={value}" for name, value in wrong.items()]
    assert network.command("declare", 0, *given) == 0
    with pytest.raises(Exception, match="policy"):
        network.serve(network.overrides("num_rounds=1"))
    assert network.command("declare", 0, *[f"{name}={RIGHT[name]}" for name in wrong]) == 0
    assert codes(network.serve(network.overrides("num_rounds=1", run="second"))) == ["sent"]
    # What was spent stays, whatever is declared afterwards.
    assert network.command("declare", 0, *given) == 0
    assert network.booked(0) == 1
    with network.ledger(0).held(thorough=True) as ledger:
        assert len(ledger.releases()) == 1


def test_a_ledger_with_channels_that_no_run_knows_is_put_right(machines: MACHINES) -> None:
    network = machines(1)
    with network.ledger(0).held() as ledger:
        ledger.declare(Declared(12, ("a", "b", "c"), 4, 2))  # what `init` once allowed
    assert network.command("declare", 0) == 2, "what it keeps is wrong too"
    assert network.command("declare", 0, "channels=1") == 0
    assert codes(network.serve(network.overrides("num_rounds=1"))) == ["sent"]


@pytest.mark.parametrize("command", ["init", "declare"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("channels=2", "channels=2: must be 1 for grey or 3 for colour"),
        ("channels=0", "channels=0"),
        ("size=3", "size=3: must be a whole number from 4 to 1024"),
        ("size=3x", "size=3x"),
        ("classes=a", "classes=a: at least 2 different names"),
        ("classes=a,b,c,c", "classes=a,b,c,c"),
        ("classes=a,b,,c", "classes=a,b,,c"),
        ("classes=a, b,c", "classes=a, b,c"),
        ("classes=a,b,c'", "classes=a,b,c'"),
        ("classes=a,b", "not one of the classes a, b"),
        ("chanels=1", "chanels=1: no such option"),
    ],
)
def test_what_no_run_could_name_is_not_declared(
    command: str, given: str, words: str, machines: MACHINES, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = machines(1)
    before = network.ledger(0)._lines.path.read_bytes()
    options = RIGHT if command == "init" else {}
    merged = options | dict([given.split("=")])
    assert network.command(command, 0, *[f"{name}={value}" for name, value in merged.items()]) == 2
    assert words in capsys.readouterr().err
    assert network.ledger(0)._lines.path.read_bytes() == before


def test_init_says_what_will_be_fixed_before_it_is(
    machines: MACHINES, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = machines(1)
    capsys.readouterr()

    def create(*given: object) -> None:
        print("NOW")

    monkeypatch.setattr(DataLedger, "create", create)
    assert network.command("init", 0, "classes=b,a,c,x", "size=32", "channels=1") == 0
    before, _, after = capsys.readouterr().out.partition("NOW")
    counted = "0 b (4 pictures), 1 a (4 pictures), 2 c (4 pictures), 3 x (0 pictures); 32 x 32 pixels, channels 1"
    assert f"public, until `declare` changes it: {counted}" in before
    assert (
        "accountant gaussian: Gaussian noise alone, no secure sum" in before
        and str(network.data(0) / ".fedpriv") in before
    )
    assert "12 pictures declared; the ledger has begun" in after
