"""The templates in `pages/`, by jinja2, which escapes everything that comes from a file.

They end in .md, which Flower's bundle takes; it takes no .html, .css or .js.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from fedpriv.report.words import figure, percent, promise, seconds


def _text(name: str) -> str:
    return (files("fedpriv.report") / "pages" / f"{name}.md").read_text(encoding="utf-8")


_PAGES = Environment(loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
_PAGES.filters |= {"figure": figure, "percent": percent, "promise": promise, "seconds": seconds}


def rendered(name: str, **facts: Any) -> str:
    """The template ``name``, such as ``run.html``, with these facts."""
    return _PAGES.get_template(name).render(facts)
