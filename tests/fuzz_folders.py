"""Coverage-guided: bytes from outside into the files of a run's folder, and what a report and a comparison make of it.

``python tests/fuzz_folders.py -runs=N -seed=S`` (libFuzzer's own options). An input's first byte names the file.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris
import pandas  # noqa: F401 - a comparison imports it when it is made

with atheris.instrument_imports(include=["fedpriv.common.run_files", "fedpriv.config.yaml_text", "fedpriv.report"]):
    from fedpriv.common.errors import FedprivError
    from fedpriv.common.run_files import fitting
    from fedpriv.report.compare import compare, comparison_tables
    from fedpriv.report.reading import count_releases, read_run
    from fedpriv.report.tables import final_lines

import report_runs
from hostile_folders import CONTENTS
from tripwires import armed

FILES = ("config.yaml", "summary.json", "metrics.jsonl", "ledger.jsonl")


def one_input(data: bytes, folder: Path) -> None:
    file = folder / FILES[data[0] % len(FILES)] if data else folder / FILES[0]
    before = file.read_bytes()
    file.write_bytes(data[1:])
    try:
        with armed(), fitting(folder):
            run = read_run(folder)
            count_releases(folder / "ledger.jsonl", {})
            comparison_tables(compare([run]))
            final_lines(dict(run.summary or {}))
    except FedprivError as error:
        str(error).encode()
    finally:
        file.write_bytes(before)


def main() -> None:
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as seeds:
        folder = report_runs.full_run(Path(place) / "run", rounds=3, clients=3)
        one_input(b"\0", folder)  # what is imported late is
        for number, name in enumerate(FILES):
            (Path(seeds) / name).write_bytes(bytes([number]) + (folder / name).read_bytes())
            for word, content in CONTENTS.items():
                (Path(seeds) / f"{name} {word}").write_bytes(bytes([number]) + content[:60_000])
        limits = ["-timeout=30", "-malloc_limit_mb=512", "-rss_limit_mb=4096", "-max_len=60000", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *limits, *sys.argv[1:], seeds], lambda data: one_input(data, folder))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
