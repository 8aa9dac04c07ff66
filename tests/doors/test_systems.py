"""Other operating systems, simulated: what cannot be run here is at least tried without what those lack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpriv.__main__ import main
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
