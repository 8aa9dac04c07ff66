"""docs/notebook.ipynb in a real kernel, and the Python of docs/python.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from rotation import together

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.rotates(5, together(3))]


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of this very Python, whatever others this machine's user has."""
    place = tmp_path / "jupyter/kernels/python3"
    place.mkdir(parents=True)
    command = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (place / "kernel.json").write_text(f'{{"argv": {command}, "display_name": "Python 3", "language": "python"}}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def test_the_notebook_runs_and_shows_what_it_says(kernels: None, tmp_path: Path) -> None:
    notebook = nbformat.read(DOCS / "notebook.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # committed without
    (tmp_path / "work").mkdir()
    resources = {"metadata": {"path": str(tmp_path / "work")}}
    NotebookClient(notebook, timeout=500, resources=resources).execute()
    cells = {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}

    def shown(part: str, kind: str) -> str:
        (outputs,) = [outputs for source, outputs in cells.items() if part in source]
        return "".join(output.data[kind] for output in outputs if kind in output.get("data", {}))

    assert "verified epsilon" in shown("plan_run", "text/html")
    head = shown("quiet=True)\nrun", "text/html")
    assert all(f"{name} epsilon" in head for name in ("claimed", "verified", "audited"))
    assert "<table" in shown("run.metrics", "text/html") and "gaussian" in shown("run.ledger", "text/html")
    assert shown('figures["accuracy"]', "image/png").startswith("iVBOR")
    assert "whole run" in shown("audit = ", "text/html") and "<table" in shown("compare_runs", "text/html")
    assert (tmp_path / "work/outputs/notebook/report.html").is_file()


def test_the_python_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"^```python\n(.*?)^```", (DOCS / "python.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 5
    exec(compile("\n".join(found), "python.md", "exec"), {})
    assert "strategy fedcat allowed: adpfl" in capsys.readouterr().out
    assert (tmp_path / "outputs/compared/comparison.html").is_file()
