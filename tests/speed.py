"""Which tests are slow, for `make test-fast`: listed in `slow_tests.txt`, which `make test-times` writes anew.

A test function is listed with all its cases: where one of them took more than 0.2 seconds, or all together more
than 0.6, on two busy cores. What is not listed is fast, so a new test is run until somebody measures it.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("slow_tests.txt")
ONE, ALL = 0.2, 0.6  # seconds

_seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))  # function -> case -> seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fedpriv")
    group.addoption("--fast", action="store_true", help="leave out the tests listed in tests/slow_tests.txt")
    group.addoption("--list-slow", action="store_true", help="write tests/slow_tests.txt from what this run took")


def deselect_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --fast."""
    if not config.getoption("--fast"):
        return
    slow = set(LIST.read_text().split())
    left_out = [item for item in items if function_of(item.nodeid) in slow]
    if left_out:
        items[:] = [item for item in items if function_of(item.nodeid) not in slow]
        config.hook.pytest_deselected(items=left_out)


def function_of(nodeid: str) -> str:
    """``room/test_file.py::test_name`` of a case."""
    return nodeid.partition("[")[0].removeprefix("tests/")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[function_of(report.nodeid)][report.nodeid] += report.duration


def write_slow(config: pytest.Config) -> None:
    """With --list-slow, in the process that hears of all tests."""
    if config.getoption("--list-slow") and not hasattr(config, "workerinput"):
        taken = {function: cases.values() for function, cases in _seconds.items()}
        slow = {function for function, cases in taken.items() if max(cases) > ONE or sum(cases) > ALL}
        slow |= {function for function in LIST.read_text().split() if function not in taken and is_there(function)}
        LIST.write_text("".join(f"{function}\n" for function in sorted(slow)))


def is_there(function: str) -> bool:
    """Whether a test that this run left out, as another commit's, still has its name."""
    file, _, name = function.partition("::")
    path = LIST.parent / file
    return path.exists() and f"def {name}(" in path.read_text()
