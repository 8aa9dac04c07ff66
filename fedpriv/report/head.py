"""The head of a run's report as a piece of HTML: title, tiles with the three epsilons, warnings. For a notebook."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment

from fedpriv.report.overview import head

#: Rules of this piece alone: a notebook's own page has others.
STYLE = """<style>
.fedpriv-head { --line: #bbb; --soft: #777; font: 14px/1.5 system-ui, sans-serif; max-width: 60rem; }
.fedpriv-head .tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: .6rem 0; }
.fedpriv-head .tile { border: 1px solid var(--line); border-top: 4px solid var(--line); border-radius: 6px;
  padding: .4rem .8rem; min-width: 8rem; }
.fedpriv-head .tile b { display: block; font-size: 1.4em; font-variant-numeric: tabular-nums; }
.fedpriv-head .tile span, .fedpriv-head .soft { color: var(--soft); }
.fedpriv-head .claimed { border-top-color: #D55E00; } .fedpriv-head .verified { border-top-color: #009E73; }
.fedpriv-head .audited { border-top-color: #0072B2; }
.fedpriv-head .box { border-left: 5px solid #D55E00; padding: .2rem .8rem; margin: .6rem 0; }
</style>"""

PIECE = """<div class="fedpriv-head">
<p><strong>{{ title }}</strong><br><span class="soft">{{ subtitle }}</span></p>
<div class="tiles">
{% for tile in tiles %}<div class="tile {{ tile.kind }}"><span>{{ tile.name }}</span><b>{{ tile.value }}</b>
<span>{{ tile.detail }}</span></div>
{% endfor %}</div>
{% if sentence %}<p>{{ sentence }}</p>{% endif %}
{% for box in boxes %}<div class="box"><strong>{{ box.title }}</strong> {{ box.text }}
{% if box.lines %}<ul>{% for line in box.lines %}<li>{{ line }}</li>{% endfor %}</ul>{% endif %}</div>
{% endfor %}
"""

_PIECE = Environment(autoescape=True).from_string(PIECE)


def head_of(folder: Path, below: str = "") -> str:
    """HTML of a run's head; everything that comes from a file is escaped. below: HTML that follows it."""
    return f"{STYLE}\n{_PIECE.render(head(folder))}{below}</div>"
