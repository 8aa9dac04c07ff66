"""The pytest plugin: the fixture ``fedpriv_check``. pytest finds it by itself where fedpriv is installed.

    def test_release(fedpriv_check):
        fedpriv_check(release, epsilon=8, delta=1e-5, fail_above=8, unverified="pass")

It checks the target as `fedpriv.check` does, and fails the test on a fault, where nothing could be checked, and, with
``fail_above``, where an epsilon is above that or none is verified. It returns the `fedpriv.CheckResult`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fedpriv.api.calls import CheckResult


@pytest.fixture
def fedpriv_check() -> Callable[..., CheckResult]:
    """(target, fail_above=None, unverified="fail", **options of `fedpriv.check`) -> `fedpriv.CheckResult`."""

    def check(target: Any, *, fail_above: float | None = None, unverified: str = "fail", **options: Any) -> CheckResult:
        from fedpriv.api.calls import check as checked  # at its first use: every test session loads this file

        found = checked(target, **options)
        if found.verdict != "no fault found":
            why: str | None = str(found)
        else:
            why = None if fail_above is None else found.why_above(fail_above, unverified)
        if why is not None:
            pytest.fail(f"{why}\n\n{found.report}", pytrace=False)
        return found

    return check
