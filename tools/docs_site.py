"""MkDocs' hooks for `make docs`: pages that lie outside docs/, and a notebook and the Python API as pages."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import fedpriv

ROOT = Path(__file__).resolve().parents[1]
#: Files outside docs/ -> their pages.
ELSEWHERE = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "docs/notebook.ipynb": "notebook.md",
}
#: Headings of the reference, and the modules or classes below each.
REFERENCE = {
    "Calls, and what they return": (
        "fedpriv.api.calls",
        "fedpriv.checking.result.Check",
        "fedpriv.training.trained_model.TrainedModel",
    ),
    "An accountant for Flower's own strategies": ("fedpriv.runs.flower_accountant.accountant",),
    "Guard": ("fedpriv.guard.guarded_strategy.guarded", "fedpriv.guard.simulation.simulate_guard"),
    "What they raise": ("fedpriv.common.errors",),
    "For a method of your own: the client": (
        "fedpriv.client.method.Method",
        "fedpriv.client.base.Client",
        "fedpriv.client.contract",
        "fedpriv.client.gaussian.GaussianClient",
    ),
    "For a method of your own: the server": (
        "fedpriv.server.strategy.FederatedStrategy",
        "fedpriv.server.clip_rules.ClippingServer",
    ),
    "Noise, clipping, and what they cost": (
        "fedpriv.mechanisms.noise",
        "fedpriv.privacy.events",
    ),
}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+)((?:#[^)\s]*)?)\)")


def on_config(config: Any) -> Any:
    """MkDocs' event: every page's head names the version that it is about."""
    config.site_name = f"fedpriv {fedpriv.__version__}"
    return config


def on_files(files: Any, config: Any) -> Any:
    """MkDocs' event: the list of pages."""
    for source in ELSEWHERE:
        files.append(File.generated(config, ELSEWHERE[source], content=_page(source)))
    files.append(File.generated(config, "api.md", content=_reference()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """MkDocs' event: links between files become links between pages."""
    uri = page.file.src_uri
    return markdown if uri in ELSEWHERE.values() else with_links(markdown, f"docs/{uri}", uri)


def with_links(markdown: str, source: str, uri: str) -> str:
    """source: the file, from the root of the project; uri: its page. What is no page stays a name without a link."""

    def moved(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[2]))
        if (page := ELSEWHERE.get(target)) is None and target.startswith("docs/"):
            page = target.removeprefix("docs/")
        if page is None:
            return found[1] if (ROOT / target).exists() else found[0]
        return f"[{found[1]}]({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{found[3]})"

    return _LINK.sub(moved, markdown)


def _page(source: str) -> str:
    text = (ROOT / source).read_text(encoding="utf-8")
    return with_links(from_notebook(text) if source.endswith(".ipynb") else text, source, ELSEWHERE[source])


def from_notebook(text: str) -> str:
    """Its words and its code, without outputs."""
    parts = []
    for cell in json.loads(text)["cells"]:
        content = "".join(cell["source"])
        parts.append(content if cell["cell_type"] == "markdown" else f"```python\n{content}\n```")
    return "\n\n".join(parts) + "\n"


def _reference() -> str:
    parts = ["# Python API", "[Python](python.md) is the guide; this is the reference, made from the code."]
    for heading, names in REFERENCE.items():
        parts += [f"## {heading}", *(f"::: {name}" for name in names)]
    return "\n\n".join(parts) + "\n"
