"""`fedpriv check`: the three epsilons of other people's code, by replaying it and sampling it.

    fedpriv check my_app.privacy:release
    fedpriv check my_app/privacy.py:release epsilon=8 delta=1e-5
    fedpriv check --fail-above 8 --epsilon 8 my_app.privacy.release

TARGET is a function release(update, rng), or another object that the checks know (docs/check.md). It runs in a process
of its own, without a network where the system allows that, on inputs that the check makes. Options may be written with
dashes too: --epsilon 8, --fail-above 8.

epsilon=     what is claimed, at delta; without it, nothing is
delta=       of every figure (1e-5)
scope=       call or run: what the claim is about (call); a run needs calls=
calls=       calls of a run
adjacency=   of the claim: replace-one, zero-out or add-or-remove-one; without it, one update against none refutes it
unit=        of the claim: client (all that one client has) or example
bound=       L2 norm of the updates that the target gets, where its caller clips them
dims=        lengths of the updates that are tried (16,256)
trials=      calls of each input for the audit, at most (20000)
confidence=  of the audited epsilon (0.95)
seed=        of the check's own draws (0)
seconds=     of CPU for everything (45)
memory=      GiB for the target (8)
fail_above=  exit with 1 if a fault is found, nothing could be checked, an epsilon is above this, or none is verified
unverified=  fail or pass: with fail_above=, what becomes of a target whose epsilon nothing bounds from above (fail)
out=         folder of check.json, report.md and report.html (outputs/check/<date-time>)

Without fail_above=, the exit code is 0 whatever is found, and 1 if nothing could be checked.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from fedpriv.checking.asking import READERS, question_and_limits, read_options
from fedpriv.checking.child import check_name
from fedpriv.checking.findings import NOT_CHECKED
from fedpriv.checking.result import Check, write_check
from fedpriv.common.command_line import DONE, FAILED, check_place, command, nearest, path_of, shown
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say

NAMES = (*READERS, "out")


def parse(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """(target, options by name). Raises `OptionError`."""
    given, targets, rest = dict[str, str](), list[str](), list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if word.startswith("-") or (equals and name in NAMES):
            if name not in NAMES:
                words = f"no such option; allowed: {', '.join(NAMES)}{nearest(name, NAMES)}"
                raise OptionError(word.partition("=")[0], value, words)
            if not equals:
                if not rest:
                    raise OptionError(word, "", "needs a value")
                value = rest.pop(0)
            given[name] = value
        elif equals:
            words = f"no such option; allowed: {', '.join(NAMES)}{nearest(name, NAMES)}"
            raise OptionError(name, value, words)
        else:
            targets.append(word)
    if len(targets) != 1:
        said = " ".join(targets)
        raise OptionError("target", said, "one target: module:attribute, path/file.py:attribute, or dotted")
    return targets[0], given


def _print(check: Check) -> None:
    for one in check.findings:
        say(f"{one.severity}: {one.name}: {one.text}")
        if one.severity == "fault" and one.remedy:
            say(f"    to mend it: {one.remedy}")
    for layer in check.layers:
        could = f" It could show at most: {layer.could_show}." if layer.could_show else ""
        cut = f" {layer.cut_in_words}" if layer.cut else ""
        say(f"{layer.name}: {layer.words}{could}{cut}")


@command(needs_arguments=True)
def main(arguments: Sequence[str]) -> int:
    target, given = parse(arguments)
    folder = Path(path_of(given.pop("out", f"outputs/check/{datetime.now():%Y-%m-%d_%H-%M-%S}")))
    check_place("out", str(folder))
    options = read_options(given)
    if "unverified" in options and "fail_above" not in options:
        raise OptionError("unverified", options["unverified"], "belongs to fail_above=")
    question, limits = question_and_limits(options)
    check = check_name(target, question, limits)
    _print(check)
    pages = write_check(check, folder)
    say(f"report: {shown(pages[-1])}")
    say(check.last_line)
    if "fail_above" in options:
        why = check.why_above(options["fail_above"], options.get("unverified", "fail"))
        if why is not None:
            say(f"fails: {why}")
        return DONE if why is None else FAILED
    return FAILED if check.verdict == NOT_CHECKED else DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
