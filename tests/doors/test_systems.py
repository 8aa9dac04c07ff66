"""Other operating systems, simulated: what cannot be run here is at least tried without what those lack."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpriv.__main__ import command, main
from fedpriv.common import systems

#: A Python as on Windows: without these modules and names, and with files that the C library locks. The libraries are
#: imported before: theirs have versions of their own for Windows.
WINDOWS = """
import importlib, os, pkgutil, signal, sys, types
import concurrent.futures.process, multiprocessing.popen_spawn_posix, multiprocessing.util, subprocess, tempfile
import flwr.app, flwr.clientapp, flwr.serverapp, flwr.simulation, huggingface_hub.hf_file_system
import hydra, joblib, matplotlib, opacus, ray, scipy, sklearn, torch

class Without:
    def find_spec(self, name, path=None, target=None):
        if name in GONE:
            raise ModuleNotFoundError(name)

GONE = ("fcntl", "resource", "termios", "pwd", "grp", "pty", "tty")
for name in GONE:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Without())
for module, names in (
    (signal, "SIGPIPE SIGKILL SIGALRM SIGVTALRM SIGHUP SIGUSR1 SIGXCPU SIGCHLD SIGQUIT setitimer ITIMER_VIRTUAL "
             "pthread_sigmask sigwait SIG_BLOCK SIG_UNBLOCK"),
    (os, "fork getuid geteuid getgid setsid killpg getpgid O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK "
         "register_at_fork sched_getaffinity WNOHANG mkfifo statvfs getloadavg fchmod chown setuid"),
):
    for name in names.split():
        delattr(module, name)
locks = []
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, LK_UNLCK=0, locking=lambda *how: locks.append(how[1:]))
import fedpriv
for found in pkgutil.walk_packages(fedpriv.__path__, "fedpriv."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
from fedpriv.commands.runs import main
code = main(["engine=inprocess", "strategy=fedldp", "num_rounds=1", "num_clients=2", "clients_per_round=2"])
print("ended with", code, locks)
"""


@pytest.mark.rotates(3)
def test_all_modules_are_imported_and_a_run_goes_through_where_windows_lacks_things(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", WINDOWS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ended with 0 [(2, 1), (0, 1)]" in ran.stdout, ran.stderr[-3000:]
    (summary,) = tmp_path.glob("outputs/*/*/summary.json")
    assert '"peak_memory_mib": null' in summary.read_text()


def test_memory_is_counted_in_the_systems_own_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda who: SimpleNamespace(ru_maxrss=3 * 2**20))
    monkeypatch.setattr(systems, "resource", usage)
    for system, mib in (("linux", 3 * 2**10), ("darwin", 3)):
        monkeypatch.setattr(sys, "platform", system)
        assert systems.peak_memory_mib() == mib
    monkeypatch.setattr(systems, "resource", None)
    assert systems.peak_memory_mib() is None


def test_a_deployment_on_windows_names_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(systems, "fcntl", None)
    assert main(["deploy", "node", "check"]) == 2
    assert "deploy: needs Linux or macOS; on Windows, run it in WSL" in capsys.readouterr().err


GROUPS = {
    "v2, of a container": ("0::/\n", {"cpu.max": "150000 100000"}, 2),
    "v2, of a job inside": ("0::/job/step\n", {"cpu.max": "max 100000", "job/cpu.max": "100000 100000"}, 1),
    "v2, the lower of two": ("0::/job/step\n", {"job/cpu.max": "300000 100000", "job/step/cpu.max": "max 100000"}, 3),
    "v2, more than the affinity": ("0::/\n", {"cpu.max": "800000 100000"}, 6),
    "v2, the outer one is lower": ("0::/job\n", {"cpu.max": "200000 100000", "job/cpu.max": "300000 100000"}, 2),
    "v2, less than a core": ("0::/\n", {"cpu.max": "20000 100000"}, 1),
    "v1": (
        "4:cpu,cpuacct:/job\n",
        {"cpu,cpuacct/job/cpu.cfs_quota_us": "200000", "cpu,cpuacct/job/cpu.cfs_period_us": "1e5"},
        2,
    ),
    "v1, without a limit": ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 6),
    "v1, of another kind": (
        "4:cpuset:/\n",
        {"cpuset/cpu.cfs_quota_us": "100000", "cpuset/cpu.cfs_period_us": "1e5"},
        6,
    ),
    "of a path outside the container": ("0::/docker/abc\n", {"cpu.max": "400000 100000"}, 4),
    "damaged": ("0::/\n", {"cpu.max": ""}, 6),
    "none": ("", {}, 6),
}


@pytest.mark.parametrize("case", GROUPS)
def test_cores_are_those_of_the_job(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems.os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(systems.os, "cpu_count", lambda: 64)
    lines, files, expected = GROUPS[case]
    (tmp_path / "groups").write_text(lines)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert systems.cores(tmp_path / "groups", tmp_path) == expected
    assert systems.cores(tmp_path / "nothing", tmp_path) == 6


def test_nobody_counts_the_cores_of_the_machine() -> None:
    asks = re.compile(r"cpu_count|\bnproc\b")
    package = Path(systems.__file__).parents[1]
    found = [file.name for file in package.rglob("*.py") if asks.search(file.read_text())]
    assert sorted(found) == ["__main__.py", "systems.py"]  # the first compares them


@pytest.mark.parametrize(("mine", "threads"), [(1, "1"), (10**6, None)])
def test_libraries_start_as_many_threads_as_the_job_has_cores(
    mine: int, threads: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.__main__.cores", lambda: mine)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("sys.argv", ["fedpriv", "--version"])
    command()
    assert os.environ.pop("OMP_NUM_THREADS", None) == threads
