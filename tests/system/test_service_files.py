"""Units of systemd and alarms: what they call exists, what they watch is measured, and little is left open."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from test_containers import CHECKS

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
#: systemd's own measure of what a unit leaves open, from 0 to 10, times ten.
MOST_EXPOSED = 20


def unit(file: Path) -> ConfigParser:
    parser = ConfigParser(strict=True, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(file.read_text())
    return parser


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_a_unit_calls_what_there_is(file: Path) -> None:
    service = unit(file)["Service"]
    program, flag, module, *options = shlex.split(service["ExecStart"])
    assert program == f"{service['WorkingDirectory']}/.venv/bin/python" and flag == "-m"
    values = {"${DATA}": "/srv/pictures", "${SUPERLINK}": "server.example:8000", "%i": "0"}
    for name, value in values.items():
        options = [option.replace(name, value) for option in options]
    CHECKS[module](options)
    assert service["User"] != "root" and service["UMask"] == "0077"


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_a_unit_is_hardened_by_systemds_own_measure(file: Path, tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        assert unit(file)["Service"]["ProtectSystem"] == "strict"  # all that can be said without it
        return
    copy = tmp_path / file.name
    copy.write_text(file.read_text().replace("/opt/fedpriv/.venv/bin/python", shutil.which("true") or "/bin/true"))
    verified = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert verified.returncode == 0 and not verified.stderr, verified.stderr
    told = subprocess.run(
        [analyze, "security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(copy)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout[-300:]


def test_alarms_measure_what_is_measured() -> None:
    (group,) = yaml.safe_load((ROOT / "deploy/prometheus/fedpriv_rules.yml").read_text())["groups"]
    documented = (ROOT / "docs/monitoring.md").read_text()
    alerts = [rule["alert"] for rule in group["rules"]]
    assert len(alerts) == len(set(alerts)) >= 7
    for rule in group["rules"]:
        for name in re.findall(r"\bfedpriv_\w+", rule["expr"]):
            assert f"`{name}" in documented, name
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]
