"""Coverage-guided: texts from outside into the composition of a run inside the app.

``python tests/fuzz_options.py -runs=N -seed=S`` (libFuzzer's own options). An input's first byte says whether the rest
is the text itself or steers the generator in option_fuzz.py.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import atheris
from fuzz_bytes import Choices

with atheris.instrument_imports(
    include=["fedpriv.config.compose", "fedpriv.config.schema", "fedpriv.config.methods", "shlex"]
):
    import option_fuzz


def one_input(data: bytes) -> None:
    if data[:1] < b"\x80":
        option_fuzz.try_text(data[1:].decode("utf-8", "surrogateescape"))
    else:
        option_fuzz.try_text(option_fuzz.text(Choices(data[1:])))


def main() -> None:
    option_fuzz.set_traps()
    with tempfile.TemporaryDirectory() as folder:
        rng = random.Random(0)
        for number in range(40):
            text = option_fuzz.text(rng).encode("utf-8", "surrogatepass")
            (Path(folder) / f"text{number}").write_bytes(b"\0" + text[:500])
            (Path(folder) / f"choices{number}").write_bytes(b"\xff" + rng.randbytes(60))
        for number, line in enumerate(option_fuzz.FORBIDDEN):
            (Path(folder) / f"line{number}").write_bytes(b"\0" + line.encode())
        limits = ["-timeout=30", "-malloc_limit_mb=256", "-rss_limit_mb=4096", "-max_len=9000", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *limits, *sys.argv[1:], folder], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
