"""The HTML of the site (jinja2), its style and its scripts. Python modules, as Flower's app bundle takes no other file
type for them.
"""

from fedpriv.report.templates import SUMMARY
from fedpriv.site.templates.base import BASE, PARTS
from fedpriv.site.templates.home import HOME
from fedpriv.site.templates.leaderboard import LEADERBOARD
from fedpriv.site.templates.paper import PAPER
from fedpriv.site.templates.runs import RUN, RUNS
from fedpriv.site.templates.script import FILTER, SORT
from fedpriv.site.templates.style import STYLE

__all__ = ["STYLE", "TEMPLATES"]

TEMPLATES = {
    "base": BASE,
    "parts": PARTS,
    "summary": SUMMARY,
    "home": HOME,
    "paper": PAPER,
    "leaderboard": LEADERBOARD,
    "runs": RUNS,
    "run": RUN,
    "filter.js": FILTER,
    "sort.js": SORT,
}
