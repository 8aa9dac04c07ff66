"""Options that come from outside, by `flwr run`: an allow-list, checked before Hydra sees anything."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import REMOTE_GROUPS, compose, option_names
from fedpriv.config.own_options import CONF, group_choices
from fedpriv.config.schema import CODE, Config
from fedpriv.config.spelling import meant

#: Value options that a remote caller may set, beside `REMOTE_GROUPS`; paths, targets, noise source and groups that load
#: code are not among them.
REMOTE_OPTIONS = re.compile(
    r"seed|num_clients|clients_per_round|over_selection|num_rounds"
    r"|(local|evaluate|checkpoint)\.[a-z_]+"
    r"|partition\.(alpha|min_examples|examples_per_client|classes_per_client|shards_per_client|test_fraction)"
    r"|model\.(hidden|second_hidden|groups|train|rank|lora_layers|buffers)"
    r"|dataset\.(auxiliary|size|channels|background|white_level|test_fraction|train_examples|classes|examples)"
    r"|dataset\.(schema_digest|separator|decimal|encoding)"
    r"|features\.(map|normalise|mirror|dims|exponent)"
    r"|features\.(layer|size|mean|std)|(features|model)\.weights_sha256"
    r"|attack\.(keep_snapshots|snapshot_every)"
    r"|audit\.(in_run|canaries|confidence)"
    r"|operations\.(live_report|log_format|log_level|metrics_port|report|stop_grace)"
    r"|engine\.(workers|threads_per_client|trainer|round_timeout|client_memory_mib|device|precision)"
    r"|privacy\.(variant|delta|max_epsilon|mechanism|across_sites)"
    r"|strategy\.secure_sum|strategy\.(server|client)\.[a-z][a-z0-9_]*"
)
#: The only values from outside that reach Hydra: numbers and names, or flat lists of them. Nothing in them can be
#: escaped into an interpolation, a function, a sweep or a mapping.
_PLAIN = r"[A-Za-z0-9_.+-]{1,64}"
REMOTE_VALUE = re.compile(rf"{_PLAIN}|\[(?:{_PLAIN}(?:,{_PLAIN})*)?\]")
#: Questions of strategy=ask (`fedpriv.data.questions`), unquoted: without the letters of a quotation, an escape, an
#: interpolation, a function or a mapping.
_QUESTION = r"[A-Za-z0-9_.+:/%@ -]{1,256}"
REMOTE_QUESTIONS = re.compile(rf"\[{_QUESTION}(?:,{_QUESTION})*\]")
#: A network of torchvision: a dotted path would be a class.
REMOTE_ARCHITECTURE = re.compile(r"[a-z0-9_]{1,64}")
#: Choices that mean a path or a function of the machine's own user, or an address that it would ask.
LOCAL_CHOICES = ("custom", "huggingface", "image_folder", "partitioner")
#: Folders and files of the server's own machine, which no client's looks at.
REMOTE_FOLDERS = ("run_dir", "dataset.test_root", "dataset.schema_file", "model.weights", "features.weights")
#: What these may be: absolute paths. Hydra's grammar cannot escape these letters either.
REMOTE_FOLDER = re.compile(r"/[\w./+@%-]{0,1023}", re.ASCII)
#: Options whose values have another form than `REMOTE_VALUE`, in words too. Texts are what a report repeats, unquoted.
FORMS = {
    **dict.fromkeys(REMOTE_FOLDERS, (REMOTE_FOLDER, "an absolute path of letters, digits and _./+@%-")),
    "strategy.client.questions": (REMOTE_QUESTIONS, "a list of questions of letters, digits, spaces and _.+:/%@-"),
    "features.architecture": (REMOTE_ARCHITECTURE, "the name of a network of torchvision"),
    **dict.fromkeys(
        ("model.trained_on", "features.trained_on"),
        (re.compile(_QUESTION), "a text of letters, digits, spaces and _.+:/%@-"),
    ),
}
MOST_OVERRIDES, MOST_CHARACTERS = 128, 8192


def compose_remote_text(text: str) -> Config:
    """As `compose_remote`, for overrides in one text, divided as a shell would."""
    if len(text) > MOST_CHARACTERS:
        raise OptionError("overrides", "", f"{len(text)} characters, at most {MOST_CHARACTERS} are allowed")
    try:
        overrides = shlex.split(text)
    except ValueError as error:
        raise OptionError("overrides", "", f"cannot be divided into options ({error})") from None
    return compose_remote(overrides)


def compose_remote(overrides: Sequence[str]) -> Config:
    """As `compose`, for overrides that come from outside: only value options of an allow-list pass, with plain values.

    What does not pass is refused before Hydra sees it, so nothing of it is parsed, resolved or evaluated.
    """
    if len(overrides) > MOST_OVERRIDES or sum(map(len, overrides)) > MOST_CHARACTERS:
        words = f"at most {MOST_OVERRIDES} options of {MOST_CHARACTERS} characters in all are allowed"
        raise OptionError("overrides", "", words)
    for key, given in (line.partition("=")[::2] for line in overrides):
        if refused := _refused(key, given):
            raise OptionError(_printable(key), _printable(given), f"this cannot be set from outside the app{refused}")
    return compose(overrides)


def _refused(key: str, given: str) -> str:
    """What is allowed in place of this option; empty if it is."""
    if key in REMOTE_GROUPS:
        allowed = [one for one in group_choices(CONF / key) if one not in LOCAL_CHOICES]
        close = difflib.get_close_matches(given[:64].lower(), allowed, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        return "" if given in allowed else f"; allowed: {', '.join(allowed)}{hint}"
    form, words = FORMS.get(key, (REMOTE_VALUE, "a number, a name, or a list of them, of letters, digits and _.+-"))
    value = REMOTE_OPTIONS.fullmatch(key) and key not in CODE and not key.endswith(".cohorts")  # in either spelling
    if key in FORMS or value:
        return "" if form.fullmatch(given) else f"; it must be {words}"
    if key == "privacy.target_epsilon":
        return ": a submitted run states its noise; `fedpriv plan` with this option says which it needs"
    known = option_names([], "")
    if key in known:
        return ": only a command on the server's own machine may set it"
    close = meant(key[:64], known)
    return f"; there is no such option{f', did you mean {close[0]}?' if close else ''}"


def _printable(text: str) -> str:
    """For an error: without control characters, cut."""
    cut = text[:60] + "..." if len(text) > 60 else text
    return "".join(letter if letter.isprintable() else " " for letter in cut)
