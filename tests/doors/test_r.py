"""The package for R: the code of its vignette is carried out, and what it refuses is refused in R."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.rscript


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("library")
    shutil.copytree(ROOT / "r", place / "source")
    subprocess.run(["R", "CMD", "INSTALL", f"--library={place}", str(place / "source")], check=True)
    return place


def carried_out(code: str, library: Path, folder: Path) -> str:
    """What R prints."""
    command = f"options(fedpriv.command = {str(Path(sys.executable).parent / 'fedpriv')!r})"
    head = f".libPaths(c({str(library)!r}, .libPaths()))\nset.seed(1)\n{command}\n"
    (folder / "code.R").write_text(head + code)
    done = subprocess.run(["Rscript", "code.R"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_vignette_runs(library: Path, tmp_path: Path) -> None:
    text = (ROOT / "r/vignettes/hospitals.Rmd").read_text()
    code = re.findall(r"```r\n(.*?)```", text, re.DOTALL)
    said = carried_out("\n".join(code) + "\nprint(nrow(asked))", library, tmp_path)
    count = re.search(r"count\s+\w+\s+(\d+)", said)
    assert count and abs(int(count[1]) - 500) < 60
    assert re.search(r"linear:pressure:age:sex\s+age\s+0\.[2-8]", said)
    assert re.search(r"\[1\] 0\.9\d+", said) and "TRUE" in said  # the epsilon; the certificate
    assert not list(Path(tmp_path).rglob("table.csv"))


def test_what_the_command_refuses_is_an_error_of_r(library: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "target: {column: y, task: classification, classes: [a, b]}\ncolumns: {x: {range: [0, 1]}}\n"
    )
    code = """
library(fedpriv)
d <- data.frame(x = runif(200), y = "a")
tell <- function(call) cat(conditionMessage(tryCatch(call, error = identity)), "\\n")
tell(ask(d, "meen:x", "s.yaml", 1))
tell(regression(x ~ log(z), d, "s.yaml", 1))
tell(ask(d, "count", "s.yaml", 1, options = "privacy.target_epsilon=5"))
options(fedpriv.command = "no-such-program")
tell(ask(d, "count", "s.yaml", 1))
"""
    first, second, twice, third = carried_out(code, library, tmp_path).strip().splitlines()
    assert "privacy.target_epsilon=5: 1 is given already" in twice
    assert "questions=meen:x: there is no such question" in first
    assert "must be TARGET ~ COLUMN + COLUMN" in second and "no program no-such-program" in third
