"""`fedpriv check`: the three epsilons of other people's code, by replaying it and sampling it.

    fedpriv check my_app.privacy:release
    fedpriv check my_app/privacy.py:release epsilon=8 delta=1e-5
    fedpriv check --fail-above 8 --epsilon 8 my_app.privacy.release
    fedpriv check init PATH [out=check_targets.py]   lists where a repository releases something, and writes targets

TARGET is a function release(update, rng), or another object that the checks know (docs/check.md). It runs in a process
of its own, without a network where the system allows that, on inputs that the check makes. Options may be written with
dashes too: --epsilon 8, --fail-above 8.

epsilon=     what is claimed, at delta; without it, nothing is
delta=       of every figure (1e-5)
scope=       call or run: what the claim is about (call); a run needs calls=
calls=       calls of a run
adjacency=   of the claim: replace-one, zero-out or add-or-remove-one; without it, one update against none refutes it
unit=        of the claim: client (all that one client has) or example
form=        what the target takes: update, data (rows and targets), clients (a list of their data) or rows; without
             it, what unit= says is tried first, then the others
also=        what is read beside what it returns: printed, files (of a scratch folder that it works in), or both
bound=       L2 norm of the updates that the target gets, where its caller clips them
dims=        lengths of the updates that are tried (16,256)
trials=      calls of each input for the audit, at most (20000)
confidence=  of the audited epsilon (0.95)
seed=        of the check's own draws (0)
seconds=     of CPU for everything (45)
memory=      GiB for the target (8)
fail_above=  exit with 1 if a fault is found, nothing could be checked, an epsilon is above this, or none is verified
unverified=  fail or pass: with fail_above=, what becomes of a target whose epsilon nothing bounds from above (fail)
baseline=    check.json of an earlier check: its doubts are accepted; with it, a doubt of another name fails
show=        name of a pair of inputs: prints both and what leaves with them, to be pasted
python=      the interpreter that has the target's libraries; it needs Python 3.9 and numpy (functions alone)
out=         folder of check.json, check.sarif, report.md and report.html (outputs/check/<date-time>)

Without fail_above=, the exit code is 0 if no fault is found, and 1 if one is, or nothing could be checked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedpriv.checking.asking import CheckOptions
from fedpriv.checking.candidates import candidates, targets
from fedpriv.checking.child import check_name
from fedpriv.checking.findings import NO_FAULT, USUAL
from fedpriv.checking.result import accepted, log_lines, write_check
from fedpriv.commands.schema import write_new
from fedpriv.common.command_line import DONE, FAILED, Existing, check_place, command, shown
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say


@command
def init(path: Path, *, out: Path = Path("check_targets.py")) -> None:
    found = candidates(path)
    if not found:
        raise OptionError(
            "PATH", path, "holds no function that draws noise and clips, and no strategy, filter, mod or app"
        )
    for one in found:
        say(f"{one.file}:{one.line} {one.name}: {one.seen}")
    write_new(out, targets(path.resolve(), found, shown(out)).encode())
    say(f"wrote {out} with {len(found)} targets; fill in each ..., and check one by its name")


@command
def check(
    target: str,
    *,
    options: CheckOptions,
    fail_above: Annotated[float | None, Field(ge=0)] = None,
    unverified: Literal["fail", "pass"] | None = None,
    baseline: Existing | None = None,
    out: Path | None = None,
) -> int:
    folder = out or Path(f"outputs/check/{datetime.now():%Y-%m-%d_%H-%M-%S}")
    check_place("out", str(folder))
    if unverified is not None and fail_above is None:
        raise OptionError("unverified", unverified, "belongs to fail_above=")
    made = check_name(target, options.question, options.limits)
    say(f"taken as {made.facts.get('form', 'nothing: it was not called')}")
    known = set() if baseline is None else accepted(made, baseline)
    for one in made.findings:
        if one.severity == "doubt" and one.name in {*known, *USUAL}:
            continue
        say(f"{one.severity}: {one.name}: {one.text}")
        if one.place:
            say(f"    at {shown(Path(one.place))}")
        if one.severity == "fault" and one.remedy:
            say(f"    to mend it: {one.remedy}")
    doubts = {one.name for one in made.findings if one.severity == "doubt"}
    for words, names in (
        ("accepted doubts", doubts & known),
        ("doubts as of most programs", (doubts - known) & {*USUAL}),
    ):
        if names:
            say(f"{words}: {', '.join(sorted(names))}")
    if "shown" in made.facts:
        say(made.facts["shown"])
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in log_lines(made):
            say(line)
    for layer in made.layers:
        could = f" It could show at most: {layer.could_show}." if layer.could_show else ""
        cut = f" {layer.cut_in_words}" if layer.cut else ""
        say(f"{layer.name}: {layer.words}{could}{cut}")
    pages = write_check(made, folder)
    say(f"report: {shown(pages[-1])}")
    say(made.last_line)
    new = doubts - known if baseline is not None else set()
    if new:
        say(f"fails: {baseline} has no doubt {', '.join(sorted(new))}")
    if fail_above is None or new:
        return DONE if made.verdict == NO_FAULT and not new else FAILED
    why = made.why_above(fail_above, unverified or "fail")
    if why is not None:
        say(f"fails: {why}")
    return DONE if why is None else FAILED


def console() -> None:
    """The command of the wheel fedpriv-check."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    return init(arguments[1:]) if arguments[:1] == ["init"] else check(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
