"""The probe of the sandbox: it finds each hole that is made for it, and none where none is made."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from guarded import GuardedMachines

from fedpriv.commands.node import main as node_command
from fedpriv.guard import attempts, probe, processes, root, syscalls

pytestmark = pytest.mark.usefixtures("kernel_alone")


def allow(call: str) -> str:
    """Code of a sandbox whose filter lets a call through."""
    return (
        "import re, fedpriv.guard.syscalls as calls; "
        f"entry = re.search(r'{call}=\\S+', calls._ABSENT + calls._PARTLY)[0]; "
        "calls._ABSENT, calls._PARTLY = (table.replace(entry, '') for table in (calls._ABSENT, calls._PARTLY)); "
        "calls._ALLOWED += entry + ' '; "
    )


#: A hole -> code that makes it in a sandbox's processes, and what then tells.
HOLES = {
    "descriptors of the old root": (
        "import os; dup2 = os.dup2; os.dup2 = lambda old, new, *more, **named: "
        "new if new < 3 else dup2(old, new, *more, **named); " + allow("utimensat") + allow("fchmod"),
        "fstat 0 (held) (after it)",
    ),
    "an answer that the kernel numbers": (
        "import os, fedpriv.guard.root as root; enter = root.Root.enter; "
        "root.Root.enter = lambda *given: (os.close(enter(*given)), os.memfd_create('answer'))[1]; ",
        "fstat 3 (held) (after it)",
    ),
    "a user's waiting signals": (
        "import resource; setrlimit = resource.setrlimit; "
        "resource.setrlimit = lambda limit, value: limit == resource.RLIMIT_SIGPENDING or setrlimit(limit, value); ",
        "waiting signals (beside it)",
    ),
    "pages that the kernel read": (allow("getrusage"), "getrusage 0x0 (after it)"),
    "times of event descriptors": (allow("sendfile"), "fstat 6 (eventfd) (after it)"),
    "devices that can be written": (
        "import fedpriv.guard.root as root; root._DEVICE = 0; ",
        "lstat /dev/null (after it)",
    ),
}


@pytest.mark.rotates(2)
@pytest.mark.parametrize("writable", [False, True])
def test_a_hole_is_found(writable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them, in sandboxes that have all but the last, and in those that have the last."""
    holes = [*HOLES.values()][-1:] if writable else [*HOLES.values()][:-1]
    code = "".join(code for code, _ in holes).replace("{", "{{").replace("}", "}}")
    monkeypatch.setattr(processes, "_CODE", processes._CODE.replace("import main; main(", f"import main; {code}main("))
    before = [os.stat(device).st_mode for device in root.DEVICES]
    if not writable:
        monkeypatch.setattr(probe, "PADDED", replace(probe.PADDED, pad_s=None))
    told = {tells for _, tells in holes} | {*[probe.GAP] * (not writable)}
    assert told <= {*probe.probe(times=1).differing}
    assert [os.stat(device).st_mode for device in root.DEVICES] == before, "what a hole leads to is not harmed"


def test_no_shard_sees_anything_of_another() -> None:
    found = probe.probe()
    assert found.differing == ()
    assert found.calls > 160 and found.targets > 100 and found.attempts > 15_000


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_call_of_the_filter_is_tried(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls.platform, "machine", lambda: machine)
    tried = {entry.partition(":")[0] for entry in (attempts.READING + attempts.CHANGING).split()}
    assert {*syscalls.all_numbers()} <= tried | attempts.ENDING and not tried & attempts.ENDING


# --- kernels that lack something ----------------------------------------------------------------------------------

LACKING = """
import struct, sys
from fedpriv.guard import kernel, syscalls
absent = {numbers}
code = [(0x20, 0, 0, 0), *((0x15, len(absent) - at, 0, number) for at, number in enumerate(absent))]
code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x50000 | 38)]  # ENOSYS
kernel.prctl(38, 1, what="no new privileges")
syscalls.confine(b"".join(struct.pack("HBBI", *instruction) for instruction in code))
{more}
from fedpriv.guard import probe
try:
    found = probe.probe(times=1)
    print(found.attempts, found.differing)
except probe.SandboxUnavailable as error:
    print(error)
"""
OTHER_USER = """
import os
uid, gid = os.getuid(), os.getgid()
kernel.unshare(kernel.NEW_USERS, "users")
kernel.own_users(uid, gid, 1234)
"""


def lacking(*numbers: int, more: str = "") -> str:
    """What the probe says in a process whose kernel has no such system calls."""
    code = LACKING.format(numbers=numbers, more=more)
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.rotates(2)
@pytest.mark.parametrize(("numbers", "more"), [((444, 445, 446), ""), ((), OTHER_USER)])
def test_without_landlock_and_as_another_user_nothing_is_told(numbers: tuple[int, ...], more: str) -> None:
    tried, _, differing = lacking(*numbers, more=more).partition(" ")
    assert int(tried) > 15_000 and differing == "()"


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((syscalls.machine().seccomp,), "seccomp"),
        ((272 if syscalls.machine().clone == 56 else 97,), "user namespaces"),  # unshare
        ((428,), "open_tree"),
        ((442,), "mount_setattr"),
    ],
)
def test_without_the_rest_no_app_runs(numbers: tuple[int, ...], words: str) -> None:
    told = lacking(*numbers)
    assert told.startswith("the sandbox cannot be built here") and words in told


# --- the commands -------------------------------------------------------------------------------------------------


def test_the_command_says_what_was_tried(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert node_command(["probe"]) == 0
    assert "no shard saw anything of another" in capsys.readouterr().out
    monkeypatch.setattr(probe, "probe", lambda: probe.Probed(1, 2, 3, ("fstat 0 (held) (after it)",), 1.0))
    assert node_command(["probe"]) == 1
    out, err = capsys.readouterr()
    assert "1 told a shard of another" in out and "fstat 0 (held)" in out and "does not keep apps apart" in err


def test_init_says_it_too_and_begins_nothing_where_apps_are_not_kept_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "probe", lambda: probe.Probed(1, 2, 3, (), 1.0))
    GuardedMachines(tmp_path / "good")
    assert "sandbox: 1 system calls on 2 descriptors and paths, 3 attempts: no shard" in capsys.readouterr().out
    monkeypatch.setattr(probe, "probe", lambda: probe.Probed(1, 2, 3, ("fstat 0 (held) (after it)",), 1.0))
    with pytest.raises(AssertionError):
        GuardedMachines(tmp_path / "bad")
    assert "guard.sandbox=namespaces: must keep apps apart" in capsys.readouterr().err
    assert not (tmp_path / "bad" / "data-0" / ".fedpriv").exists()

    def none() -> probe.Probed:
        raise probe.SandboxUnavailable("no user namespaces")

    monkeypatch.setattr(probe, "probe", none)
    GuardedMachines(tmp_path / "later")
    assert "sandbox: no app can run on this machine, as it is: no user namespaces" in capsys.readouterr().out
