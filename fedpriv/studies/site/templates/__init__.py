"""The HTML of the site (jinja2), its style and its scripts. Python modules, as Flower's app bundle takes no other file
type for them.
"""

from fedpriv.report.templates import SUMMARY
from fedpriv.studies.site.templates.base import BASE, PARTS
from fedpriv.studies.site.templates.home import HOME
from fedpriv.studies.site.templates.leaderboard import LEADERBOARD
from fedpriv.studies.site.templates.paper import PAPER
from fedpriv.studies.site.templates.runs import RUN, RUNS
from fedpriv.studies.site.templates.script import SCRIPT
from fedpriv.studies.site.templates.style import STYLE

__all__ = ["SCRIPT", "STYLE", "TEMPLATES"]

TEMPLATES = {
    "base": BASE,
    "parts": PARTS,
    "summary": SUMMARY,
    "home": HOME,
    "paper": PAPER,
    "leaderboard": LEADERBOARD,
    "runs": RUNS,
    "run": RUN,
}
