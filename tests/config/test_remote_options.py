"""Overrides from outside, property by property: whatever is written there, it is refused in one line or it sets
nothing but values (option_fuzz.py says what must hold).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import option_fuzz
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf.basecontainer import BaseContainer

from fedpriv.common.errors import OptionError
from fedpriv.config.remote import MOST_CHARACTERS, MOST_OVERRIDES, compose_remote, compose_remote_text

keys = st.sampled_from((*option_fuzz.KEYS, *option_fuzz.FORBIDDEN_KEYS))
values = st.one_of(
    st.sampled_from(option_fuzz.VALUES),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=20),
    st.recursive(st.sampled_from(option_fuzz.SECRETS), lambda inner: inner.map("${{oc.decode:{}}}".format) | inner),
)
overrides = st.builds("{}{}={}".format, st.sampled_from(option_fuzz.PREFIXES), keys, values)
#: Of hypothesis: the same cases in every run.
FIXED = settings(derandomize=True, deadline=None, max_examples=5000 if "FEDPRIV_STRESS" in os.environ else 120)


@pytest.fixture(scope="module", autouse=True)
def _traps() -> Iterator[None]:
    resolvers = dict(BaseContainer._resolvers)
    option_fuzz.set_traps()
    yield
    BaseContainer._resolvers = resolvers
    del os.environ[option_fuzz.SECRET_NAME]


@FIXED
@given(st.text())
@example("seed='1")
@example("\\")
@example("seed=1 " * 5000)
def test_any_text(text: str) -> None:
    option_fuzz.try_text(text)


@FIXED
@given(st.lists(overrides, max_size=4).map(" ".join))
@example(f"run_dir='{option_fuzz.SECRETS[1]}'")
@example("strategy.client.clipping='$\\{oc.env\\:FEDPRIV_FUZZ_SECRET\\}'")
def test_texts_that_look_like_options(text: str) -> None:
    option_fuzz.try_text(text)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("num_rnds=2", "there is no such option, did you mean num_rounds?"),
        ("strategy=fedldpp", "(did you mean fedldp?)"),
        ("dataset=custom", "allowed: breast_cancer, "),
        ("privacy.target_epsilon=8", "`fedpriv plan` with this option"),
        ("privacy.rng=secure", "only a command on the server's own machine"),
        ("dataset.test_root=here", "must be an absolute path"),
        ("local.lr=${seed}", "must be a number, a name"),
        ("features.architecture=torch.nn.Linear", "the name of a network of torchvision"),
    ],
)
def test_a_refusal_says_what_is_allowed(line: str, remedy: str) -> None:
    with pytest.raises(OptionError, match="outside the app") as caught:
        compose_remote([line])
    assert remedy in str(caught.value)


@pytest.mark.parametrize("line", option_fuzz.FORBIDDEN)
def test_what_only_the_machines_own_user_may_set(line: str) -> None:
    with pytest.raises(OptionError, match="outside the app"):
        compose_remote([line])


@pytest.mark.parametrize("secret", option_fuzz.SECRETS)
@pytest.mark.parametrize("key", ["run_dir", "seed", "strategy.client.diff", "local.sampler", "strategy"])
def test_no_spelling_of_an_interpolation_reads_the_environment(key: str, secret: str) -> None:
    for value in (secret, f"'{secret}'", f'"{secret}"', f"/{secret}", f"[{secret}]"):
        with pytest.raises(OptionError, match="outside the app"):
            compose_remote([f"{key}={value}"])


@pytest.mark.parametrize(
    "text", ["seed=1 " * (MOST_OVERRIDES + 1), "x" * (MOST_CHARACTERS + 1), "seed=" + "1" * MOST_CHARACTERS]
)
def test_too_much_is_refused_in_a_short_line(text: str) -> None:
    with pytest.raises(OptionError, match="are allowed") as refused:
        compose_remote_text(text)
    assert len(str(refused.value)) < 120


def test_a_text_is_divided_as_a_shell_would() -> None:
    config = compose_remote_text("strategy=agn 'strategy.client.beta1=0.5'  run_dir=/runs/a_b-c.d+1%")
    assert (config.strategy.options.adam_beta1, config.run_dir) == (0.5, "/runs/a_b-c.d+1%")
    with pytest.raises(OptionError, match="cannot be divided into options"):
        compose_remote_text("seed='1")


FOLDERS = ("runs", "../runs", "~/runs", "", "'/a b'", "/a\nb", "/$HOME", "/a\0", "//" + "x" * 1100)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_runs_folder_is_a_plain_absolute_path(folder: str) -> None:
    with pytest.raises(OptionError, match="run_dir"):
        compose_remote([f"run_dir={folder}"])
